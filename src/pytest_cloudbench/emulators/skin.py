"""What a skin (one API's look) hands to the server: answers, routes and the handful of questions it is asked.

What may live here: the narrow seam between ``server`` and the skins, as values and one protocol. No I/O.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from pytest_cloudbench.emulators.blob import Blob
from pytest_cloudbench.emulators.profile import Profile
from pytest_cloudbench.emulators.throttle import Refusal

__all__ = ["Answer", "Call", "Clock", "Handler", "Headers", "Kind", "Route", "Skin"]

Headers = Sequence[tuple[bytes, bytes]]


class Kind(str, Enum):
    """Which latency a request has, and whether it takes from the write limits."""

    META = "meta"
    READ = "read"
    WRITE = "write"
    FREE = "free"
    """Neither throttled nor delayed nor disturbed: long polls and the token routes."""


@dataclass(slots=True)
class Answer:
    """One HTTP answer. ``headers`` hold all but content-length."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes | memoryview


@dataclass(slots=True)
class Call:
    """One request with its body: text of an RPC, or content with its hash.

    ``damage`` is None, or the bit that an injected fault flips in what is stored.
    """

    route: Route
    headers: Headers
    query: bytes
    body: bytes
    blob: Blob | None
    now_s: float
    damage: int | None = None


Handler = Callable[[Call], Answer | Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Route:
    """One path of the API.

    Attributes:
        name: as the statistics and the error messages call it.
        kind: see ``Kind``.
        handler: answers a call; an awaitable where it has to wait for a change.
        content: the body is content (hashed while it arrives), not text.
        method: the only HTTP method it takes.
        denied: the answer to one who may not ask, from headers and time; the body is not waited for. None: may ask.
    """

    name: str
    kind: Kind
    handler: Handler
    content: bool = False
    method: str = "POST"
    denied: Callable[[Headers, float], Answer | None] | None = None


class Clock(Protocol):
    """The emulator's clock: it may run faster than the world's."""

    def now_s(self) -> float:
        """Seconds since 1970, on the emulator's clock."""
        ...

    def real_s(self, emulated_s: float) -> float:
        """How many seconds of the world an emulated time lasts."""
        ...


class Skin(Protocol):
    """One API. A skin module offers ``create(profile, clock, seed) -> Skin``."""

    roles: Sequence[str]
    """Hosts the API is made of, such as ``api`` and ``content``; all are served on one port."""

    host_names: Sequence[str]
    """Real host names, for the certificate."""

    routes: Mapping[str, Route]
    access_token: str

    def configure(self, profile: Profile) -> None:
        """The profile changed."""
        ...

    def refused(self, route: Route, refusal: Refusal) -> Answer:
        """The answer "too many"."""
        ...

    def broken(self, route: Route) -> Answer:
        """The answer to an injected server error."""
        ...

    def unknown(self, method: str, path: str) -> Answer:
        """The answer to a path, or a method of it, that the API has not."""
        ...
