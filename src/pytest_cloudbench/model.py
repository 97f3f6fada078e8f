"""The frozen values that modules pass to each other, and the error tree.

This module does no I/O, reads no clock, and imports nothing from this package.

The error tree::

    CloudbenchError                 everything this package raises on purpose
    |-- UsageError                  the user can fix it (one line, no traceback, exit status 4)
    |   |-- SpecError               a provider spec that cannot be understood
    |   |-- ConfigError             a TOML file with a wrong key, type or value
    |   `-- CredentialsError        credentials are missing or unusable
    |-- CloudError                  one operation on a provider did not succeed
    |-- ServiceError                an emulator or a real server did not start, or died
    |-- ClientError                 a sync client did not start, ended, or did not finish in time
    |-- FleetError                  an agent was lost or came too late
    |-- BudgetError                 --max-ops or --max-bytes was reached
    `-- ResultsError                results could not be written or read
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qsl, urlsplit

KIB = 1024
MIB = 1024 * 1024


class Outcome(str, Enum):
    """The outcome of one operation. Throttling is kept apart from failure everywhere."""

    __hash__ = str.__hash__  # that of Enum is written in Python, and every record needs several

    OK = "ok"
    THROTTLED = "throttled"
    FAILED = "failed"
    CORRUPT = "corrupt"
    LOST = "lost"


class ErrorKind(str, Enum):
    """The reason why an operation did not succeed, in the same words for every provider."""

    __hash__ = str.__hash__  # that of Enum is written in Python, and every record needs several

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
    """The operations that a driver may offer."""

    __hash__ = str.__hash__  # that of Enum is written in Python, and every record needs several

    PUT = "put"
    GET = "get"
    STAT = "stat"
    LIST = "list"
    DELETE = "delete"
    COPY = "copy"
    MOVE = "move"
    SHARE = "share"
    REVOKE = "revoke"


class Op(NamedTuple):  # made for every operation: a frozen dataclass takes five times as long
    """One operation's record. Times are nanoseconds of the run's monotonic clock, where 0 means "not known".

    ``detail`` has the provider's own words if the operation did not succeed. ``requests`` is the number of requests it
    took, or None if the driver cannot tell. ``cpu_wait_ns`` is how long its thread was ready to run and had to wait for
    a CPU, or None if the system cannot tell.
    """

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
    detail: str = ""
    requests: int | None = None
    cpu_wait_ns: int | None = None

    @property
    def service_ns(self) -> int:
        """Time from the real start to the end."""
        return self.end_ns - self.start_ns

    @property
    def response_ns(self) -> int:
        """Time from the *scheduled* start to the end: the delay that a waiting sensor sees."""
        return self.end_ns - self.scheduled_ns

    @property
    def lateness_ns(self) -> int:
        """Time from the scheduled start to the real start."""
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
    """The bytes of one file, readable at any offset, so that large files stream through constant memory."""

    @property
    def size_bytes(self) -> int: ...

    def read(self, offset: int, length: int) -> bytes:
        """Return ``length`` bytes from ``offset``, or fewer at the end."""
        ...


class Conflict(str, Enum):
    """The reasons for which a provider may refuse with ``ErrorKind.CONFLICT``, all about what exists already."""

    PUT_ON_FOLDER = "a put onto a folder"
    PUT_BELOW_FILE = "a put below a file, as if the file were a folder"
    GET_FOLDER = "a get of a folder"
    MKDIR_ON_FILE = "a mkdir onto a file"
    COPY_ON_EXISTING = "a copy onto an existing file"
    MOVE_ON_EXISTING = "a move onto an existing file"
    SHARE_AGAIN = "a second share of one path"


@dataclass(frozen=True, slots=True)
class NameRules:
    """The names that a provider accepts for one file or folder. No name has a ``/`` or NUL, or is ``.`` or ``..``.

    Attributes:
        case_sensitive: ``A`` and ``a`` are two names. If they are one name, the provider still keeps the spelling.
        max_chars: the length of the longest name, in characters. None means not known.
        max_bytes: the length of the longest name, in bytes of UTF-8. None means not known.
        refused: characters that no name can have.
        dotfiles: a name may begin with a dot.
    """

    case_sensitive: bool = True
    max_chars: int | None = None
    max_bytes: int | None = None
    refused: str = ""
    dotfiles: bool = True

    def problem(self, name: str) -> str:
        """Return why the provider does not accept this name, or an empty text."""
        if refused := next((character for character in name if character in self.refused), ""):
            return f"no name may hold {refused!r}"
        if name.startswith(".") and not self.dotfiles:
            return "no name may begin with a dot"
        if self.max_chars is not None and len(name) > self.max_chars:
            return f"a name has at most {self.max_chars} characters"
        if self.max_bytes is not None and len(name.encode(errors="surrogatepass")) > self.max_bytes:
            return f"a name has at most {self.max_bytes} bytes"
        return ""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The abilities of a driver, as data. The conformance suite requires what is declared here, and nothing else.

    ``requests`` and ``max_request_bytes`` are checked at drivers that count their requests. ``server_side_copy`` and
    ``via`` are for readers only.

    Attributes:
        digest: the name of the hash that the provider lists for a file (see ``payload.DIGESTS``), or None.
        verbs: the verbs the driver implements.
        revisions: an overwrite keeps the former content reachable, and each version has its own ``Entry.revision``.
        ranges: ``get`` can start at an offset.
        streams: ``get`` yields the bytes as they arrive. Otherwise, its first byte says nothing about the provider's.
        overwrites: a ``put`` onto a file replaces it.
        folders: folders exist by themselves: ``list`` and ``stat`` show them, also empty ones. Otherwise, paths are
            flat keys: a folder is only a prefix of keys, and ``mkdir`` does nothing.
        lists_by_prefix: a missing folder lists as an empty one. Otherwise, that is ``not_found``.
        deletes_missing: ``delete`` succeeds if there is nothing to delete. Otherwise, that is ``not_found``.
        conflicts: what the provider refuses because of what exists already. In other cases it may do anything.
        copies_folders: ``copy`` also copies a folder with all its contents.
        moves_folders: the same for ``move``.
        server_side_copy: ``copy`` moves no content through the client.
        space: the driver has ``space()``, which returns the bytes used and the bytes in all.
        names: which names the provider accepts.
        max_digest_bytes: the largest file that has a digest. None means no limit.
        max_request_bytes: the largest upload that the driver does not split. None means no limit.
        part_step_bytes: the size of parts, where it can be chosen, is a multiple of this.
        max_part_bytes: the largest part that can be chosen. None means no limit.
        requests: maps a verb to the least number of requests that it sends, which is unknown for other verbs.
        via: the library that sends the requests, with a note if it distorts measurements (retries, pacing).
    """

    digest: str | None
    verbs: frozenset[Verb]
    revisions: bool = False
    ranges: bool = False
    streams: bool = True
    overwrites: bool = True
    folders: bool = True
    lists_by_prefix: bool = False
    deletes_missing: bool = False
    conflicts: frozenset[Conflict] = frozenset()
    copies_folders: bool = False
    moves_folders: bool = False
    server_side_copy: bool = False
    space: bool = False
    names: NameRules = NameRules()
    max_digest_bytes: int | None = None
    max_request_bytes: int | None = None
    part_step_bytes: int = 1
    max_part_bytes: int | None = None
    requests: Mapping[Verb, int] = field(default_factory=dict)
    via: str = ""

    def digest_of(self, size_bytes: int) -> str | None:
        """Return the name of the hash that the provider lists for a file of this size, or None."""
        bound = self.max_digest_bytes
        return None if bound is not None and size_bytes > bound else self.digest


_PORTS = {"http": 80, "sftp": 22}
"""The ports of services whose URLs do not say it. All others are HTTPS."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a service, and what a driver needs to talk to it.

    Attributes:
        urls: maps a role to its URL. A service with one URL for everything has one role, of any name.
        credentials: maps a field to its value, in the driver's own names. ``repr`` omits them.
        ca_file: the PEM file of the CA that signed the service's certificate, or empty for the system's CAs.
        control: ``host:port`` of a control socket, or empty if there is none.
        api: the API that the service speaks, for drivers that speak several.
        proxy: the URL of an HTTP proxy that maps the API's real host names to the service and refuses all others, for
            clients that cannot be pointed anywhere else. Empty if there is none.
    """

    urls: Mapping[str, str]
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)
    ca_file: str = ""
    control: str = ""
    api: str = ""
    proxy: str = ""

    @property
    def url(self) -> str:
        """The URL of a service that has one URL for everything."""
        return next(iter(self.urls.values()))

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """Host and port of its URLs, each once."""
        parts = (urlsplit(url) for url in self.urls.values())
        return tuple(sorted({(part.hostname or "", part.port or _PORTS.get(part.scheme, 443)) for part in parts}))

    def plain(self) -> dict[str, Any]:
        """Return the endpoint as plain data, secrets included."""
        return {
            "urls": dict(self.urls), "credentials": dict(self.credentials), "ca_file": self.ca_file,
            "control": self.control, "api": self.api, "proxy": self.proxy,
        }  # fmt: skip

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Endpoint:
        """Return the endpoint that plain data describes, ignoring other keys. Raises KeyError and TypeError."""
        texts = (plain[name] for name in ("ca_file", "control", "api", "proxy"))
        return cls(dict(plain["urls"]), dict(plain["credentials"]), *texts)


_JOINERS = str.maketrans("", "", "-_+")
"""The characters that a scheme may hold besides letters and digits, as in ``s3+fast``."""


EMULATED, SERVED, LOCAL = "emulated", "served", "local"
SERVICE_SCHEMES = frozenset({EMULATED, SERVED, LOCAL})
"""The schemes of specs that name what stands in for a provider, and no driver."""


@dataclass(frozen=True, slots=True)
class ProviderSpec:
    """A provider as the user names it: ``SCHEME[:TARGET][?KEY=VALUE&...]``.

    Examples: ``emulated:dropbox``, ``dropbox``, ``folder:/tmp/x``, ``s3://bucket?endpoint=URL``. The target of a
        composite provider lists the specs of its children: ``NAME:CHILD,CHILD``, see ``children``.
    """

    text: str
    scheme: str
    target: str
    params: Mapping[str, str]

    @classmethod
    def parse(cls, text: str) -> ProviderSpec:
        """Read a spec. Raises only SpecError, which says what was expected."""
        bare = text.strip()
        begin = _begin_of_params(bare)
        scheme, _, target = bare[:begin].partition(":")
        if not scheme or not scheme.translate(_JOINERS).isalnum() or not scheme.isascii():
            raise SpecError(f"provider {text!r}: expected SCHEME[:TARGET][?KEY=VALUE], such as folder:PATH")
        if any(ord(character) < 32 for character in text):
            raise SpecError(f"provider {text!r}: control characters are not allowed")
        try:
            pairs = parse_qsl(bare[begin + 1 :], keep_blank_values=True, strict_parsing=begin < len(bare))
        except ValueError as error:
            raise SpecError(f"provider {text!r}: after '?' expected KEY=VALUE pairs joined by '&'") from error
        params = dict(pairs)
        if len(params) != len(pairs):
            raise SpecError(f"provider {text!r}: a key after '?' is given twice")
        return cls(bare, scheme.lower(), target.removeprefix("//"), params)

    @property
    def is_emulated(self) -> bool:
        """True if an emulator stands in for the provider. Then results measure the client and loopback."""
        return self.scheme == EMULATED

    def children(self) -> tuple[ProviderSpec, ...]:
        """Return the specs in the target of a composite provider: ``CHILD,CHILD``.

        A child that contains ``,`` or ``?`` stands in parentheses: ``(NAME:CHILD,CHILD),(folder:PATH?fsync=1)``.
        Raises SpecError.
        """
        try:
            return tuple(ProviderSpec.parse(child) for child in _split_children(self.target))
        except SpecError as error:
            raise SpecError(f"provider {self.text!r}: {error}") from None


def _begin_of_params(text: str) -> int:
    """Return the index of the ``?`` outside a child's parentheses, or the text's length."""
    depth = 0
    for index, character in enumerate(text):
        if character == "(" and (depth or text[:index].rstrip()[-1:] in {":", ","}):
            depth += 1
        elif character == ")" and depth:
            depth -= 1
        elif character == "?" and not depth:
            return index
    index = text.find("?") if depth else -1  # an unclosed parenthesis did not begin a child
    return len(text) if index < 0 else index


def _split_children(target: str) -> Iterator[str]:
    """Yield the specs of a composite's children: split at commas outside of parentheses. Raises SpecError."""
    depth, start, is_closed = 0, 0, False
    for index, character in enumerate(f"{target},"):
        is_first = not target[start:index].strip()
        if character == "," and not depth:
            child = target[start:index].strip()
            child = child[1:-1].strip() if is_closed else child
            if not child:
                raise SpecError("a child is empty; expected NAME:CHILD,CHILD")
            yield child
            start, is_closed = index + 1, False
        elif is_closed and not character.isspace():
            raise SpecError("expected ',' after ')'")
        elif character == "(" and (depth or is_first):
            depth += 1
        elif character == ")" and depth:
            depth -= 1
            is_closed = not depth
    if depth:
        raise SpecError("a parenthesis of a child is not closed")


class CloudbenchError(Exception):
    """The root of everything this package raises on purpose."""


class UsageError(CloudbenchError):
    """An error that the user can fix. The message says how."""


class SpecError(UsageError):
    """A provider spec that cannot be understood."""


class ConfigError(UsageError):
    """A configuration file with a wrong key, type or value. Names the file, the key and what was expected."""

    def __init__(self, source: str, key: str, expected: str) -> None:
        super().__init__(f"{source}: {key}: {expected}" if key else f"{source}: {expected}")
        self.source, self.key, self.expected = source, key, expected


class UnknownMetric(UsageError, KeyError):
    """A run has no metric or extra value of this name. The message lists those that it has."""

    def __str__(self) -> str:
        """Return the message as it is, and not in quotes as a KeyError does."""
        return str(self.args[0])


class CredentialsError(UsageError):
    """Credentials are missing or unusable."""


class CloudError(CloudbenchError):
    """One operation on a provider did not succeed.

    Args:
        kind: the reason, in the words shared by all providers.
        operation: the verb or API route.
        path: the path that the operation was for.
        retry_after_s: the seconds that the provider asked the client to wait, if it did.
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


class ServiceError(CloudbenchError):
    """A service (an emulator or a real server) did not start, or died while it was needed."""


class ClientError(CloudbenchError):
    """A sync client or its server did not start, died, or timed out. The message has its last output."""


class FleetError(CloudbenchError):
    """An agent was lost or came too late."""


class BudgetError(CloudbenchError):
    """The budget of operations or bytes was reached."""


class ResultsError(CloudbenchError):
    """Results could not be written or read."""


@contextmanager
def ignore_missing() -> Iterator[None]:
    """Suppress a CloudError that says that something does not exist. What follows in the block is left out."""
    try:
        yield
    except CloudError as error:
        if error.kind is not ErrorKind.NOT_FOUND:
            raise


def chunks(content: Content, chunk_bytes: int = 4 * MIB) -> Iterator[bytes]:
    """Yield the content in order, in pieces of ``chunk_bytes``."""
    for offset in range(0, content.size_bytes, chunk_bytes):
        yield content.read(offset, chunk_bytes)


def did_you_mean(word: object, names: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: a suggestion, or nothing."""
    if not isinstance(word, str) or not word:
        return ""
    from difflib import get_close_matches  # imported here, because only mistakes need it

    candidates, lower = list(names), word[:60].lower()
    similar = [name for name in candidates if name.startswith(lower)] or get_close_matches(lower, candidates, 1)
    similar = similar or [name for name in candidates if lower in name]
    return f"; did you mean {similar[0]}?" if similar else ""
