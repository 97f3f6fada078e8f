"""The interface between the server and a skin (one API): answers, routes and the skin's few methods.

What may live here: this narrow interface, as values and protocols. No I/O.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol

from pytest_cloudbench.emulators.blob import BytePieces
from pytest_cloudbench.emulators.profile import Profile
from pytest_cloudbench.emulators.throttle import Refusal

BODILESS = frozenset({204, 304})
"""Statuses whose answers have no body, and no header that says how long it is."""


class Kind(str, Enum):
    """Which latency a request has, and whether it counts against the write limits."""

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
    body: bytes | BytePieces


class Sink(Protocol):
    """Receives a body in pieces while it arrives, such as ``blob.BlobWriter``."""

    def feed(self, piece: bytes, /) -> None:
        """Add the next piece."""
        ...

    def finish(self) -> Any:
        """Returns the body for the handler."""
        ...


@dataclass(slots=True)
class Call:
    """One request.

    Attributes:
        route: the route that it is for.
        method: the HTTP method.
        path: without the query, decoded.
        parameters: values from the path for the parameters of the route's pattern.
        query: the text after the question mark; ``http.fields`` parses it.
        headers: by name in lower case; if a name is repeated, the last value counts.
        now_s: when it arrived, replaced by when its body was complete; seconds of the emulator's clock.
        body: what the route's sink built from it; bytes if the route has no sink.
        damage: None, or the bit that an injected fault flips in what is stored.
    """

    route: Route
    method: str
    path: str
    parameters: Mapping[str, str]
    query: bytes
    headers: Mapping[bytes, bytes]
    now_s: float
    body: Any = b""
    damage: int | None = None


Handler = Callable[[Call], Answer | Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Route:
    """One function of the API: a path, or a pattern of paths, with one method.

    Attributes:
        name: its name in statistics and error messages.
        kind: see ``Kind``.
        handler: answers a call; returns an awaitable if it has to wait for a change.
        sink: creates the receiver of the body; None: the handler gets the bytes.
        denied: returns the refusal of a call, or None if allowed; called before the body arrives. None: never refuses.
    """

    name: str
    kind: Kind
    handler: Handler
    sink: Callable[[Call], Sink] | None = None
    denied: Callable[[Call], Answer | None] | None = None


class Match(NamedTuple):
    """A route, and the parameters in the path."""

    route: Route
    parameters: Mapping[str, str]


class Clock(Protocol):
    """The emulator's clock; it may run faster than real time."""

    def now_s(self) -> float:
        """Returns the seconds since 1970, on the emulator's clock."""
        ...

    def real_s(self, emulated_s: float) -> float:
        """Returns how many real seconds an emulated duration lasts."""
        ...


class Skin(Protocol):
    """One API. A skin's module offers ``create(profile, clock, seed) -> Skin``, ``CHOICES`` and ``DEFAULTS``.

    The last two give the words that a profile of the API may use for ``throttle.reason`` and ``account.type``, and
    their defaults. Both omit settings that the API does not have. A skin that shows listings by ``File.listed``, and
    removed files by ``NodeStore.fading`` or the views, says so by ``LAGS``: the settings of ``readiness`` it follows.
    ``readiness.replica_lag_s`` is among them only if no route but those of ``Kind.WRITE`` changes files, and no address
    that one replica gives is refused by another.
    """

    @property
    def roles(self) -> Sequence[str]:
        """The API's hosts, such as ``api`` and ``content``; all are served on one port."""
        ...

    @property
    def host_names(self) -> Sequence[str]:
        """Real host names, for the certificate."""
        ...

    @property
    def credentials(self) -> Mapping[str, str]:
        """A client's credentials, by the API's field names."""
        ...

    def configure(self, profile: Profile) -> None:
        """The profile changed."""
        ...

    def route(self, method: str, path: str, query: bytes) -> Match | None:
        """Returns a request's route; None if there is none. ``path`` is as it was sent: ``%2F`` is not ``/``."""
        ...

    def refused(self, call: Call, refusal: Refusal) -> Answer:
        """Returns the answer "too many requests". The call has no body."""
        ...

    def broken(self, call: Call) -> Answer:
        """Returns the answer for an injected server error."""
        ...

    def unknown(self, method: str, path: str) -> Answer:
        """Returns the answer if ``route`` found nothing: there is no such path, or it does not accept this method."""
        ...
