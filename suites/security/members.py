"""The actions of a member on shared files: each is tried, and its effect looked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from pytest_cloudbench import CloudError, ErrorKind, Inquiry, LiteralContent, RandomContent, UsageError, wait_for

WRITE, DELETE, SHARE = ACTIONS = ("write", "delete", "share")
"""The actions that a member may try. Sharing is the last, because Dropbox shares the whole folder on."""
DONE, REFUSED, WITHOUT_EFFECT = "done", "refused", "accepted, without effect"
ADMITTED_S = 30.0
POLL_S = 0.1
_BYTES = 3000
_REFUSALS = frozenset({ErrorKind.NOT_FOUND, ErrorKind.AUTH})


class SharedFolder(NamedTuple):
    """A folder that one account shares with another one, and the accounts that a question about members takes.

    Attributes:
        owner: the account that shares a folder, with a file for each action.
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
    def actions(self) -> list[str]:
        """The actions that the member can try. Sharing on takes a third account."""
        return [action for action in ACTIONS if action != SHARE or self.third is not None]

    def refer(self, action: str) -> str:
        """Return the reference by which members find the file for an action."""
        return str(self.owner.driver.refer(f"{self.folder}/{action}"))

    def store_files(self) -> None:
        """Make the folder, and a file for each action."""
        self.owner.driver.mkdir(self.folder)
        for action in ACTIONS:
            self.owner.driver.put(f"{self.folder}/{action}", LiteralContent(self.make_content(action)))

    def make_content(self, name: str) -> bytes:
        """Return content that nothing else has."""
        return RandomContent(f"{self.owner.seed}/shared-{name}", _BYTES).read(0, _BYTES)

    def read_own(self, action: str) -> bytes | None:
        """Return the content that the owner reads, or None if the file is gone."""
        try:
            return b"".join(self.owner.driver.get(f"{self.folder}/{action}"))
        except CloudError as error:
            if error.kind is not ErrorKind.NOT_FOUND:
                raise
            return None

    def may_read(self) -> bool:
        """Wait a while, and return whether the member can read."""
        reference, content = self.refer(WRITE), self.make_content(WRITE)
        return wait_for(lambda: read_shared_file(self.member, reference) == content, ADMITTED_S, poll_s=POLL_S)

    def try_action(self, action: str, *, patience_s: float = 0.0) -> str:
        """Let the member try an action until it is not refused, or for ``patience_s``. Return the outcome."""
        act, is_done = self._prepare(action)
        if not is_accepted(act) and not wait_for(lambda: is_accepted(act), patience_s, poll_s=POLL_S):
            return REFUSED
        return DONE if wait_for(is_done, ADMITTED_S, poll_s=POLL_S) else WITHOUT_EFFECT

    def _prepare(self, action: str) -> tuple[Callable[[], object], Callable[[], bool]]:
        """Return a function that performs an action, and one that checks whether it was done."""
        driver, reference = self.member.driver, self.refer(action)
        if action == WRITE:
            changed = self.make_content("changed")
            content = LiteralContent(changed)
            return lambda: driver.write_shared(reference, content), lambda: self.read_own(action) == changed
        if action == DELETE:
            return lambda: driver.delete_shared(reference), lambda: self.read_own(action) is None
        third, own_content = self.third, self.make_content(action)
        assert third is not None
        address = third.driver.address()
        return lambda: driver.share_on(reference, address), lambda: read_shared_file(third, reference) == own_content


@contextmanager
def open_shared_folder(inquiry: Inquiry) -> Iterator[SharedFolder]:
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
        yield SharedFolder(inquiry, member, None if third is None or third.driver.address() in addresses else third)


def is_accepted(act: Callable[[], object]) -> bool:
    """Do something, and return whether it is accepted. Raises CloudError if it neither succeeds nor is refused."""
    try:
        act()
    except CloudError as error:
        if error.kind not in _REFUSALS:
            raise
        return False
    return True


def read_shared_file(inquiry: Inquiry, reference: str) -> bytes | None:
    """Return the content that an account reads, or None if it is refused. Raises CloudError for all other failures."""
    try:
        return bytes(inquiry.driver.read_shared(reference))
    except CloudError as error:
        if error.kind not in _REFUSALS:
            raise
        return None
