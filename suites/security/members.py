"""What another account may do with files that are shared with it: each deed is tried, and its effect looked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from pytest_cloudbench import CloudError, ErrorKind, Inquiry, LiteralContent, RandomContent, UsageError, wait_for

WRITE, DELETE, SHARE = DEEDS = ("write", "delete", "share")
"""What a member may try, in this order: Dropbox shares the whole folder on."""
DONE, REFUSED, WITHOUT_EFFECT = "done", "refused", "accepted, without effect"
ADMITTED_S = 30.0
POLL_S = 0.1
_BYTES = 3000
_REFUSALS = frozenset({ErrorKind.NOT_FOUND, ErrorKind.AUTH})


class Circle(NamedTuple):
    """The accounts that a question about members takes.

    Attributes:
        owner: the account that shares a folder, with a file for each deed.
        member: the account with which it shares the folder.
        third: the account with which the member may share on, or None if there is none.
    """

    owner: Inquiry
    member: Inquiry
    third: Inquiry | None

    @property
    def folder(self) -> str:
        """The folder that is shared."""
        return f"{self.owner.folder}/shared"

    @property
    def deeds(self) -> list[str]:
        """What the member can try: sharing on takes a third account."""
        return [deed for deed in DEEDS if deed != SHARE or self.third is not None]

    def refer(self, deed: str) -> str:
        """Return by what members find the file for a deed."""
        return str(self.owner.driver.refer(f"{self.folder}/{deed}"))

    def store_files(self) -> None:
        """Make the folder, and a file for each deed."""
        self.owner.driver.mkdir(self.folder)
        for deed in DEEDS:
            self.owner.driver.put(f"{self.folder}/{deed}", LiteralContent(self.make_content(deed)))

    def make_content(self, name: str) -> bytes:
        """Return content that nothing else has."""
        return RandomContent(f"{self.owner.seed}/shared-{name}", _BYTES).read(0, _BYTES)

    def read_own(self, deed: str) -> bytes | None:
        """Return what the owner reads, or None if the file is gone."""
        try:
            return b"".join(self.owner.driver.get(f"{self.folder}/{deed}"))
        except CloudError as error:
            if error.kind is not ErrorKind.NOT_FOUND:
                raise
            return None

    def may_read(self) -> bool:
        """Return whether the member reads, at the latest soon."""
        reference, content = self.refer(WRITE), self.make_content(WRITE)
        return wait_for(lambda: read(self.member, reference) == content, ADMITTED_S, poll_s=POLL_S)

    def try_deed(self, deed: str, *, patience_s: float = 0.0) -> str:
        """Let the member try a deed, and again until it is not refused. Return what came of it."""
        act, is_done = self._prepare(deed)
        if not is_accepted(act) and not wait_for(lambda: is_accepted(act), patience_s, poll_s=POLL_S):
            return REFUSED
        return DONE if wait_for(is_done, ADMITTED_S, poll_s=POLL_S) else WITHOUT_EFFECT

    def _prepare(self, deed: str) -> tuple[Callable[[], object], Callable[[], bool]]:
        """Return what does a deed, and what looks whether it is done."""
        driver, reference = self.member.driver, self.refer(deed)
        if deed == WRITE:
            changed = self.make_content("changed")
            return lambda: driver.write_shared(
                reference, LiteralContent(changed)
            ), lambda: self.read_own(deed) == changed
        if deed == DELETE:
            return lambda: driver.delete_shared(reference), lambda: self.read_own(deed) is None
        third, content = self.third, self.make_content(deed)
        assert third is not None
        address = third.driver.address()
        return lambda: driver.share_on(reference, address), lambda: read(third, reference) == content


@contextmanager
def open_circle(inquiry: Inquiry) -> Iterator[Circle]:
    """Open a second account, and a third one if there is one. Raises UsageError if there is no second account."""
    with ExitStack() as stack:
        member = stack.enter_context(inquiry.other_account(2))
        addresses = {inquiry.driver.address(), member.driver.address()}
        if len(addresses) == 1:
            raise UsageError("both sets of credentials lead to the same account")
        try:
            third = stack.enter_context(inquiry.other_account(3))
        except UsageError:
            third = None
        yield Circle(inquiry, member, None if third is None or third.driver.address() in addresses else third)


def is_accepted(act: Callable[[], object]) -> bool:
    """Return whether an account may do something. Raises CloudError if that neither succeeds nor is refused."""
    try:
        act()
    except CloudError as error:
        if error.kind not in _REFUSALS:
            raise
        return False
    return True


def read(inquiry: Inquiry, reference: str) -> bytes | None:
    """Return what an account reads, or None if it is refused. Raises CloudError for whatever else goes wrong."""
    try:
        return bytes(inquiry.driver.read_shared(reference))
    except CloudError as error:
        if error.kind not in _REFUSALS:
            raise
        return None
