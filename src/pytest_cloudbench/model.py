"""Layer 0: the frozen values that modules pass to each other, and the error tree.

What may live here: values with units in their names and the exceptions. No I/O, no clock,
no import from this package.

The error tree::

    CloudbenchError                 everything this package raises on purpose
    |-- UsageError                  the user can mend it (one line, no traceback, exit status 4)
    |   |-- SpecError               a provider spec that cannot be understood
    |   |-- ConfigError             a TOML file with a wrong key, type or value
    |   `-- CredentialsError        credentials are missing or unusable
    |-- CloudError                  one operation on a provider did not succeed
    |-- EmulatorError               an emulator did not start, or died
    |-- ClientError                 a sync client did not start, ended, or did not finish in time
    |-- FleetError                  an agent was lost or came too late
    |-- BudgetError                 --max-ops or --max-bytes was reached
    `-- ResultsError                results could not be written or read
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol
from urllib.parse import parse_qsl

__all__ = [
    "KIB",
    "MIB",
    "BudgetError",
    "Capabilities",
    "ClientError",
    "CloudError",
    "CloudbenchError",
    "ConfigError",
    "Content",
    "CredentialsError",
    "EmulatorError",
    "Endpoint",
    "Entry",
    "ErrorKind",
    "FleetError",
    "Op",
    "Outcome",
    "ProviderSpec",
    "ResultsError",
    "SpecError",
    "UsageError",
    "Verb",
    "chunks",
    "did_you_mean",
]

KIB = 1024
MIB = 1024 * 1024


class Outcome(str, Enum):
    """What became of one operation. Throttling is kept apart from failure everywhere."""

    OK = "ok"
    THROTTLED = "throttled"
    FAILED = "failed"
    CORRUPT = "corrupt"
    LOST = "lost"


class ErrorKind(str, Enum):
    """Why an operation did not succeed, in the same words for every provider."""

    THROTTLED = "throttled"
    QUOTA = "quota"
    AUTH = "auth"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    INVALID = "invalid"
    NETWORK = "network"
    SERVER = "server"
    CORRUPT = "corrupt"


class Verb(str, Enum):
    """The operations a driver can be asked for."""

    PUT = "put"
    GET = "get"
    STAT = "stat"
    LIST = "list"
    DELETE = "delete"
    COPY = "copy"
    MOVE = "move"
    SHARE = "share"
    REVOKE = "revoke"


@dataclass(frozen=True, slots=True)
class Op:
    """One operation's record. Times are nanoseconds of the run's monotonic clock; 0 means "not known"."""

    verb: Verb
    sensor: int
    seq: int
    agent: int
    scheduled_ns: int
    start_ns: int
    first_byte_ns: int
    end_ns: int
    size_bytes: int
    outcome: Outcome
    kind: ErrorKind | None = None
    retry_after_s: float | None = None
    digest: bytes = b""

    @property
    def service_ns(self) -> int:
        """From the real start to the end."""
        return self.end_ns - self.start_ns

    @property
    def response_ns(self) -> int:
        """From the *scheduled* start to the end: what a waiting sensor feels."""
        return self.end_ns - self.scheduled_ns

    @property
    def lateness_ns(self) -> int:
        """How much later than scheduled the operation really started."""
        return self.start_ns - self.scheduled_ns


@dataclass(frozen=True, slots=True)
class Entry:
    """One object or folder as the provider lists it. ``digest`` is lower-case hex in the driver's algorithm."""

    path: str
    size_bytes: int = 0
    digest: str | None = None
    is_folder: bool = False
    revision: str | None = None


class Content(Protocol):
    """The bytes of one file, readable at any place so that big files stream through constant memory."""

    @property
    def size_bytes(self) -> int: ...

    def read(self, offset: int, length: int) -> bytes:
        """At most ``length`` bytes from ``offset``; shorter only at the end."""
        ...


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a driver can do, as data. The conformance suite collects only what is declared here.

    Attributes:
        digest: name of the hash the provider lists for a file (see ``payload.DIGESTS``), or None.
        verbs: the verbs the driver implements.
        revisions: an overwrite keeps the former content reachable.
        ranges: ``get`` can start at an offset.
        case_sensitive: ``/A`` and ``/a`` are two objects.
        max_request_bytes: above it the driver splits an upload itself; None means no bound.
        via: the library that really talks, with a note where it distorts (retries, pacing).
    """

    digest: str | None
    verbs: frozenset[Verb]
    revisions: bool = False
    ranges: bool = False
    case_sensitive: bool = True
    max_request_bytes: int | None = None
    via: str = ""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an emulator listens, and what a driver needs to talk to it.

    Attributes:
        hosts: role (``api``, ``content``, ``notify``, ``web``) to ``host:port``.
        port: the TLS port of all of them.
        ca_file: PEM file of the authority that signed the emulator's certificate.
        access_token: a token the emulator accepts.
        control: ``host:port`` of the control socket.
        control_token_file: holds the token that each connection to it begins with; only its owner can read it.
        profile: name of the behaviour profile.
        pid: process id of the emulator.
    """

    hosts: Mapping[str, str]
    port: int
    ca_file: str
    access_token: str = field(repr=False)
    control: str
    control_token_file: str
    profile: str
    pid: int


@dataclass(frozen=True, slots=True)
class ProviderSpec:
    """A provider as the user names it: ``SCHEME[:TARGET][?KEY=VALUE&...]``.

    Examples: ``emulated:dropbox``, ``dropbox``, ``folder:/tmp/x``, ``s3://bucket?endpoint=URL``.
    """

    text: str
    scheme: str
    target: str
    params: Mapping[str, str]

    @classmethod
    def parse(cls, text: str) -> ProviderSpec:
        """Read a spec. Raises SpecError with what was expected; never anything else."""
        head, mark, query = text.strip().partition("?")
        scheme, _, target = head.partition(":")
        if not scheme or not scheme.replace("-", "").replace("_", "").isalnum() or not scheme.isascii():
            raise SpecError(f"provider {text!r}: expected SCHEME[:TARGET][?KEY=VALUE], such as folder:PATH")
        if any(ord(character) < 32 for character in text):
            raise SpecError(f"provider {text!r}: control characters are not allowed")
        try:
            pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(mark))
        except ValueError as error:
            raise SpecError(f"provider {text!r}: after '?' expected KEY=VALUE pairs joined by '&'") from error
        params = dict(pairs)
        if len(params) != len(pairs):
            raise SpecError(f"provider {text!r}: a key after '?' is given twice")
        return cls(text.strip(), scheme.lower(), target.removeprefix("//"), params)

    @property
    def is_emulated(self) -> bool:
        """Whether an emulator stands in for the provider: results measure the client and loopback."""
        return self.scheme == "emulated"


class CloudbenchError(Exception):
    """Root of everything this package raises on purpose."""


class UsageError(CloudbenchError):
    """The user can mend it; the message says how."""


class SpecError(UsageError):
    """A provider spec that cannot be understood."""


class ConfigError(UsageError):
    """A configuration file with a wrong key, type or value; names file, key and what was expected."""

    def __init__(self, source: str, key: str, expected: str) -> None:
        super().__init__(f"{source}: {key}: {expected}" if key else f"{source}: {expected}")
        self.source, self.key, self.expected = source, key, expected


class CredentialsError(UsageError):
    """Credentials are missing or unusable."""


class CloudError(CloudbenchError):
    """One operation on a provider did not succeed.

    Args:
        kind: why, in the words shared by all providers.
        operation: the verb or API route.
        path: what it was asked for.
        retry_after_s: seconds the provider asked to wait, where it said so.
        detail: the provider's own words, without secrets.
    """

    def __init__(
        self,
        kind: ErrorKind,
        operation: str,
        path: str,
        *,
        retry_after_s: float | None = None,
        detail: str = "",
    ) -> None:
        super().__init__(f"{operation} {path}: {kind.value}" + (f" ({detail})" if detail else ""))
        self.kind, self.operation, self.path = kind, operation, path
        self.retry_after_s, self.detail = retry_after_s, detail


class EmulatorError(CloudbenchError):
    """An emulator did not start, or died while it was needed."""


class ClientError(CloudbenchError):
    """A sync client or its server did not start, ended, or did not finish in time; with its last words."""


class FleetError(CloudbenchError):
    """An agent was lost or came too late."""


class BudgetError(CloudbenchError):
    """The budget of operations or bytes was reached."""


class ResultsError(CloudbenchError):
    """Results could not be written or read."""


def chunks(content: Content, chunk_bytes: int = 4 * MIB) -> Iterator[bytes]:
    """The content in order, in pieces of ``chunk_bytes``."""
    for offset in range(0, content.size_bytes, chunk_bytes):
        yield content.read(offset, chunk_bytes)


def did_you_mean(word: object, names: Iterable[str]) -> str:
    """The end of a message about an unknown name: a suggestion, or nothing."""
    if not isinstance(word, str) or not word:
        return ""
    from difflib import get_close_matches  # only a mistake needs it

    known, lower = list(names), word[:60].lower()
    near = [name for name in known if name.startswith(lower)] or get_close_matches(lower, known, 1)
    near = near or [name for name in known if lower in name]
    return f"; did you mean {near[0]}?" if near else ""
