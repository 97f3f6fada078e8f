"""The interface between the server and a skin (one API): answers, routes and the skin's few methods."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol

from pytest_cloudbench.emulators.blob import BytePieces
from pytest_cloudbench.emulators.core import NodeStore
from pytest_cloudbench.emulators.profile import Profile
from pytest_cloudbench.emulators.throttle import Refusal

BODILESS = frozenset({204, 304})
"""Statuses whose answers have no body, and no content-length."""


class Kind(str, Enum):
    """The kind of a request, which decides its latency and whether it counts against the write limits."""

    META = "meta"
    READ = "read"
    WRITE = "write"
    FREE = "free"
    """Neither throttled nor delayed nor disturbed: long polls and the token routes."""


@dataclass(slots=True)
class Answer:
    """One HTTP answer. ``headers`` hold all headers but content-length."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes | BytePieces


class Sink(Protocol):
    """A receiver of a body in pieces while it arrives, such as ``blob.BlobWriter``."""

    def feed(self, piece: bytes, /) -> None:
        """Add the next piece."""
        ...

    def finish(self) -> Any:
        """Return the body for the handler."""
        ...


@dataclass(slots=True)
class Call:
    """One request.

    Attributes:
        route: the route that serves it.
        method: the HTTP method.
        path: the decoded path, without the query.
        parameters: values from the path for the parameters of the route's pattern.
        query: the text after the question mark, which ``http.parse_form`` parses.
        headers: by name in lower case. If a name is repeated, the last value counts.
        now_s: the time of the request's arrival, and later of its complete body, in seconds of the emulator's clock.
        body: the result of the route's sink, or bytes if the route has no sink.
        damage: the bit that an injected fault flips in the stored content, or None.
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
        handler: answers a call. Returns an awaitable if it has to wait for a change.
        sink: creates the receiver of the body. If None, the handler gets the bytes.
        denied: returns the refusal of a call, or None to allow it. Called before the body arrives. If None, all calls
            are allowed.
    """

    name: str
    kind: Kind
    handler: Handler
    sink: Callable[[Call], Sink] | None = None
    denied: Callable[[Call], Answer | None] | None = None


class Match(NamedTuple):
    """A route, and the values of the parameters in the path."""

    route: Route
    parameters: Mapping[str, str]


class Clock(Protocol):
    """The emulator's clock, which may run faster than real time."""

    def now_s(self) -> float:
        """Return the seconds since 1970, on the emulator's clock."""
        ...

    def real_s(self, emulated_s: float) -> float:
        """Return how many real seconds an emulated duration lasts."""
        ...


class Skin(Protocol):
    """One API. A skin's module offers ``create(profile, clock, seed) -> Skin``, ``CHOICES`` and ``DEFAULTS``.

    The last two list the words that a profile of the API may use for ``throttle.reason`` and ``account.type``, and
    their defaults. Both omit settings that the API does not have.

    A skin that shows listings by ``File.listed``, and removed files by ``NodeStore.fading`` or the views, declares in
    ``LAGS`` which settings of ``readiness`` it follows. It may list ``readiness.replica_lag_s`` only if no route but
    those of ``Kind.WRITE`` changes files, and if no replica refuses an address that another one returned.
    """

    @property
    def roles(self) -> Sequence[str]:
        """The API's hosts, such as ``api`` and ``content``, which are all served on one port."""
        ...

    @property
    def host_names(self) -> Sequence[str]:
        """The real host names, for the certificate."""
        ...

    @property
    def store(self) -> NodeStore:
        """The account's files."""
        ...

    @property
    def credentials(self) -> Mapping[str, str]:
        """A client's credentials, by the API's field names."""
        ...

    def configure(self, profile: Profile) -> None:
        """Apply a changed profile."""
        ...

    def route(self, method: str, path: str, query: bytes) -> Match | None:
        """Return the route of a request, or None. ``path`` is as it was sent, so ``%2F`` is not ``/``."""
        ...

    def refused(self, call: Call, refusal: Refusal) -> Answer:
        """Return the answer "too many requests". The call has no body."""
        ...

    def broken(self, call: Call) -> Answer:
        """Return the answer for an injected server error."""
        ...

    def unknown(self, method: str, path: str) -> Answer:
        """Return the answer to a request without a route: the path is unknown, or does not accept the method."""
        ...
