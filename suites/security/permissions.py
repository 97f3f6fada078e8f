"""Do permissions hold? A second account tries what it may not do, in a folder that the first one shares with it.

(Thesis, section 2.4.8 and Table 2.2: shared files can be read-only, read-write or full. Nobody but the two accounts is
asked, and the second is not notified.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_cloudbench import (
    CloudError,
    ErrorKind,
    Inquiry,
    LiteralContent,
    RandomContent,
    UsageError,
    now_ns,
    wait_for,
)

from .rulings import Ruling, no, unknown, yes

_BYTES = 3000
_ADMITTED_S = 30.0
_REMOVED_S = 60.0
_POLL_S = 0.1
_REFUSALS = frozenset({ErrorKind.NOT_FOUND, ErrorKind.AUTH})


def ask_permissions(inquiry: Inquiry) -> Ruling:
    """Answer whether a reader cannot write, and a removed member cannot read, and since when."""
    if not inquiry.admits_members:
        return unknown("the driver does not share folders with other accounts")
    try:
        with inquiry.second_account() as other:
            return _try_out(inquiry, other)
    except UsageError as error:
        return unknown(f"it takes a second account: {error}")


def _try_out(inquiry: Inquiry, other: Inquiry) -> Ruling:
    owner, address = inquiry.driver, other.driver.address()
    if address == owner.address():
        return unknown("both sets of credentials lead to the same account")
    folder, (first, second, third) = f"{inquiry.folder}/shared", (_make_content(inquiry, n) for n in range(3))
    owner.mkdir(folder)
    owner.put(f"{folder}/file", LiteralContent(first))
    reference = owner.refer(f"{folder}/file")
    if _read(other, reference) is not None:
        return no("another account reads a file that is not shared with it")
    owner.admit(folder, address, "read")
    if not wait_for(lambda: _read(other, reference) == first, _ADMITTED_S, poll_s=_POLL_S):
        return unknown("a reader could not read, so nothing follows from what it cannot do")
    if _writes(other, reference, second):
        if wait_for(lambda: _content(inquiry, folder) == second, _ADMITTED_S, poll_s=_POLL_S):
            return no("a member that may only read has written")
        return unknown("writing by a reader was not refused, but its owner does not read what was written")
    evidence = [*_describe_roles(inquiry.driver), "read-only: reads, and its writing is refused"]
    owner.admit(folder, address, "write")
    if not wait_for(lambda: _writes(other, reference, third), _ADMITTED_S, poll_s=_POLL_S):
        return unknown("a member that may write could not, so the refusals before show nothing", evidence)
    if not wait_for(lambda: _content(inquiry, folder) == third, _ADMITTED_S, poll_s=_POLL_S):
        return unknown("what a member wrote did not appear", evidence)
    evidence.append("read-write: writes, and its owner reads that")
    owner.dismiss(folder, address)
    return _watch_removal(other, reference, second, evidence)


def _describe_roles(driver: Any) -> list[str]:
    """Return in a sentence which of the API's roles are asked about, and which are not, if the driver knows them."""
    roles: Mapping[str, str] = getattr(driver, "member_roles", {})
    asked = [role for level in ("read", "write") for role, own_level in roles.items() if own_level == level]
    others = [f"{role} (full)" if level == "full" else role for role, level in roles.items() if role not in asked]
    return [f"roles that are asked: {', '.join(asked)}; not asked: {', '.join(others)}"] if roles else []


def _watch_removal(other: Inquiry, reference: str, content: bytes, evidence: list[str]) -> Ruling:
    """Let a removed member read until it is refused."""
    removed_ns = now_ns()
    if not wait_for(lambda: _read(other, reference) is None, _REMOVED_S, poll_s=_POLL_S):
        return no(f"a removed member still reads {_REMOVED_S:g} s later", evidence)
    refused_s = (now_ns() - removed_ns) / 1e9
    if _writes(other, reference, content):
        return no("a removed member has written", evidence)
    other.driver.stat(other.folder)  # raises if the whole account is refused, which would show nothing
    evidence.append(f"removed: refused {refused_s:.2f} s later")
    how = f"a reader cannot write; a removed member is refused {refused_s:.2f} s later"
    return yes(how, evidence, member_refused_s=refused_s)


def _make_content(inquiry: Inquiry, number: int) -> bytes:
    return RandomContent(f"{inquiry.seed}/shared-{number}", _BYTES).read(0, _BYTES)


def _content(inquiry: Inquiry, folder: str) -> bytes:
    return b"".join(inquiry.driver.get(f"{folder}/file"))


def _read(inquiry: Inquiry, reference: str) -> bytes | None:
    """Return what an account reads, or None if it is refused. Raises CloudError for whatever else goes wrong."""
    try:
        return bytes(inquiry.driver.read_shared(reference))
    except CloudError as error:
        if error.kind not in _REFUSALS:
            raise
        return None


def _writes(inquiry: Inquiry, reference: str, content: bytes) -> bool:
    """Return whether an account may write. Raises CloudError if that neither succeeds nor is refused."""
    try:
        inquiry.driver.write_shared(reference, LiteralContent(content))
    except CloudError as error:
        if error.kind not in _REFUSALS:
            raise
        return False
    return True
