"""The accounts of one emulated service: each has a skin with a token and files of its own, and all are served together.

The first account always exists. Another is made when it is first asked for, and a reset removes it. The same number
gives the same token again. A request without a token goes to the account that issued its address, such as a link, and
otherwise to the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, cast, runtime_checkable

from pytest_cloudbench.emulators.blob import Blob
from pytest_cloudbench.emulators.profile import Profile
from pytest_cloudbench.emulators.skin import Answer, Call, Skin

_SEED_STEP = 7_368_787
_MAX_ACCOUNTS = 100
_PREFIX = "account-"


def number_of(address: str) -> int:
    """Return the number of the account that has an address."""
    first, _, _ = address.partition(".")
    return int(first.removeprefix(_PREFIX)) if first.startswith(_PREFIX) else 1


def display_name_of(address: str) -> str:
    """Return the name of the person whose account has an address."""
    number = number_of(address)
    return "Emulated User" if number == 1 else f"Emulated User {number}"


@runtime_checkable
class RecognisesRequests(Protocol):
    """A skin that can serve one of several accounts of a service."""

    def recognises(self, path: str, query: bytes, headers: Mapping[bytes, bytes]) -> bool:
        """Return whether a request is for this account: it has one of its tokens, or an address that it issued."""
        ...


class _State(Protocol):
    """The state of an account.

    Attributes:
        address: the address by which others share with this account.
    """

    address: str


@runtime_checkable
class LetsMembersIn(Protocol):
    """A skin whose files other accounts may use, as far as its account lets them.

    Attributes:
        find_member: returns the account whose valid token a request has, or None.
    """

    find_member: Callable[[bytes, Mapping[bytes, bytes]], LetsMembersIn | None]

    @property
    def state(self) -> _State:
        """The account."""
        ...

    def authorizes(self, query: bytes, headers: Mapping[bytes, bytes]) -> bool:
        """Return whether a request has a token of this account that has not ended."""
        ...

    def refuse_by_scope(self, call: Call) -> Answer | None:
        """Return the refusal of a call whose token, which is of this account, lacks the scope for it, or None."""
        ...

    def admits(self, path: str, headers: Mapping[bytes, bytes], address: str) -> bool:
        """Return whether a request is for a file that the account with this address may use."""
        ...


@runtime_checkable
class MeetsPeers(Protocol):
    """A skin that looks into other accounts for shared files, because its paths do not say who owns a file."""

    @property
    def state(self) -> _State:
        """The account."""
        ...

    def meet(self, peers: Callable[[], Sequence[Skin]]) -> None:
        """Note how to find the skins of all accounts, this one among them."""
        ...


@runtime_checkable
class EndsWaits(Protocol):
    """A skin whose clients may wait for the next change."""

    def end_waits(self) -> None:
        """Let the clients that wait be answered, because a reset is about to replace the account."""
        ...


class Accounts:
    """The skins of all accounts.

    Args:
        make_skin: makes the skin of a new account. Its argument is added to the emulator's seed.
    """

    def __init__(self, make_skin: Callable[[int], Skin]) -> None:
        self._make_skin = make_skin
        self.first = make_skin(0)
        self._others: dict[int, Skin] = {}

    def open(self, number: int) -> Skin | None:
        """Return the skin of an account by its number from 1, or None if this API or this number has none."""
        if number == 1:
            return self.first
        if not isinstance(self.first, RecognisesRequests) or not 1 <= number <= _MAX_ACCOUNTS:
            return None
        if number not in self._others:
            skin = self._others[number] = self._make_skin(_SEED_STEP * (number - 1))
            if isinstance(skin, (LetsMembersIn, MeetsPeers)):
                skin.state.address = f"{_PREFIX}{number}.{skin.state.address}"
            for sharing in (self.first, skin):
                if isinstance(sharing, LetsMembersIn):
                    sharing.find_member = self._find_member
                if isinstance(sharing, MeetsPeers):
                    sharing.meet(lambda: (self.first, *self._others.values()))
        return self._others[number]

    def find(self, path: str, query: bytes, headers: Mapping[bytes, bytes]) -> Skin:
        """Return the skin that serves a request: that of its account, or of one that shares the file with it."""
        if not self._others:  # nearly always, so that it costs nothing
            return self.first
        own = self._find_own(path, query, headers)
        if isinstance(own, LetsMembersIn) and own.authorizes(query, headers):
            for skin in (self.first, *self._others.values()):
                if skin is not own and cast(LetsMembersIn, skin).admits(path, headers, own.state.address):
                    return skin
        return own

    def _find_own(self, path: str, query: bytes, headers: Mapping[bytes, bytes]) -> Skin:
        for skin in self._others.values():
            if cast(RecognisesRequests, skin).recognises(path, query, headers):
                return skin
        return self.first

    def _find_member(self, query: bytes, headers: Mapping[bytes, bytes]) -> LetsMembersIn | None:
        members = [cast(LetsMembersIn, skin) for skin in (self.first, *self._others.values())]
        return next((member for member in members if member.authorizes(query, headers)), None)

    def configure(self, profile: Profile) -> None:
        """Apply a changed profile to all accounts."""
        for skin in (self.first, *self._others.values()):
            skin.configure(profile)

    def end_waits(self) -> None:
        """Let the clients that wait for a change of an account be answered, before a reset replaces the accounts."""
        for skin in (self.first, *self._others.values()):
            if isinstance(skin, EndsWaits):
                skin.end_waits()

    def kept(self) -> Iterator[tuple[str, Blob]]:
        """Yield what all accounts store: the path of each file, and the content of each version."""
        for skin in (self.first, *self._others.values()):
            yield from skin.store.kept()
