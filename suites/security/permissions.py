"""Do permissions hold? A second account tries what it may not do, in a folder that the first one shares with it.

(Thesis, section 2.4.8 and Table 2.2: shared files can be read-only, read-write or full. Nobody but the user's own
accounts is asked, and none is notified.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pytest_cloudbench import Inquiry, LiteralContent, UsageError, now_ns, wait_for

from . import members
from .members import DELETE, DONE, POLL_S, REFUSED, SHARE, WRITE, SharedFolder, open_shared_folder, read_shared_file
from .rulings import Ruling, no, unknown, yes

_REMOVED_S = 60.0
_PAST = {WRITE: "written", DELETE: "deleted", SHARE: "shared on"}


def ask_permissions(inquiry: Inquiry) -> Ruling:
    """Answer whether a reader cannot write, delete or share on, and whether and when a removed member cannot read."""
    return _ask_shared_folder(inquiry, _try_levels)


def ask_full_access(inquiry: Inquiry) -> Ruling:
    """Answer whether a member at the highest level has the rights that the service's documents promise, and no more."""
    return _ask_shared_folder(inquiry, _compare_with_promise)


def _ask_shared_folder(inquiry: Inquiry, ask: Callable[[SharedFolder], Ruling]) -> Ruling:
    if not inquiry.admits_members:
        return unknown("the driver does not share folders with other accounts")
    try:
        with open_shared_folder(inquiry) as shared:
            return ask(shared)
    except UsageError as error:
        return unknown(f"it takes a second account: {error}")


# --- read-only, read-write and removed ------------------------------------------------------------


def _try_levels(shared: SharedFolder) -> Ruling:
    owner, address = shared.owner.driver, shared.member.driver.address()
    shared.store_files()
    if any(
        read_shared_file(stranger, shared.refer(SHARE)) is not None for stranger in shared[1:] if stranger is not None
    ):
        return no("another account reads a file that is not shared with it")
    owner.admit(shared.folder, address, "read")
    if not shared.may_read():
        return unknown("a reader could not read, so nothing follows from what it cannot do")
    for action in shared.actions:
        outcome = shared.try_action(action)
        if outcome == DONE:
            return no(f"a member that may only read has {_PAST[action]}")
        if outcome != REFUSED:
            return unknown(f"a reader's {action} was not refused, but had no effect")
    refused = " and ".join(f"{action}{' on' * (action == SHARE)}" for action in shared.actions)
    evidence = [*_describe_roles(owner), f"read-only: reads, and cannot {refused}"]
    owner.admit(shared.folder, address, "write")
    outcome = shared.try_action(WRITE, patience_s=members.ADMITTED_S)
    if outcome == REFUSED:
        return unknown("a member that may write could not, so the refusals before show nothing", evidence)
    if outcome != DONE:
        return unknown("what a member wrote did not appear", evidence)
    evidence.append("read-write: writes, and its owner reads that")
    owner.dismiss(shared.folder, address)
    return _watch_removal(shared, evidence)


def _describe_roles(driver: Any) -> list[str]:
    """Return a sentence about the API's roles that are asked about, and those that are not, if the driver has them."""
    roles: Mapping[str, str] = getattr(driver, "member_roles", {})
    asked_roles = [role for level in ("read", "write") for role, own_level in roles.items() if own_level == level]
    others = [f"{role} (full)" if level == "full" else role for role, level in roles.items() if role not in asked_roles]
    return [f"roles that are asked: {', '.join(asked_roles)}; not asked: {', '.join(others)}"] if roles else []


def _watch_removal(shared: SharedFolder, evidence: list[str]) -> Ruling:
    """Let a removed member read until it is refused."""
    member, reference, removed_ns = shared.member, shared.refer(WRITE), now_ns()
    if not wait_for(lambda: read_shared_file(member, reference) is None, _REMOVED_S, poll_s=POLL_S):
        return no(f"a removed member still reads {_REMOVED_S:g} s later", evidence)
    refused_s = (now_ns() - removed_ns) / 1e9
    again = LiteralContent(shared.make_content("again"))
    if members.is_accepted(lambda: member.driver.write_shared(reference, again)):
        return no("a removed member has written", evidence)
    member.driver.stat(member.folder)  # raises if the whole account is refused, which would show nothing
    evidence.append(f"removed: refused {refused_s:.2f} s later")
    how = f"a reader cannot write; a removed member is refused {refused_s:.2f} s later"
    return yes(how, evidence, member_refused_s=refused_s)


# --- full access ----------------------------------------------------------------------------------


def _compare_with_promise(shared: SharedFolder) -> Ruling:
    driver = shared.owner.driver
    roles: Mapping[str, str] = driver.member_roles
    level = "full" if "full" in roles.values() else "write"
    role = next(name for name, own_level in roles.items() if own_level == level)
    promised = [action for action in members.ACTIONS if action in driver.full_promises]
    evidence = [f"the highest role that can be given is {role}; it promises: {', '.join(promised)}"]
    shared.store_files()
    driver.admit(shared.folder, shared.member.driver.address(), level)
    if not shared.may_read():
        return unknown("the member could not read, so nothing follows from what it cannot do", evidence)
    if shared.third is not None and read_shared_file(shared.third, shared.refer(SHARE)) is not None:
        return unknown("a third account reads already, so nothing follows about sharing on", evidence)
    outcomes = {
        action: shared.try_action(action, patience_s=members.ADMITTED_S if action in promised else 0.0)
        for action in shared.actions
    }  # fmt: skip
    evidence += [f"{action}: {outcome}" for action, outcome in outcomes.items()]
    if missing := [action for action in promised if outcomes.get(action, DONE) != DONE]:
        return no(f"{role} is promised, but cannot: {', '.join(missing)}", evidence)
    if extra := [action for action, outcome in outcomes.items() if outcome == DONE and action not in promised]:
        return no(f"{role} can do what is not promised: {', '.join(extra)}", evidence)
    if shared.third is None:
        return unknown("the rest is as promised, but sharing on takes a third account", evidence)
    return yes(f"{role} can do what is promised: {', '.join(promised)}", evidence)
