"""The interface between experiments and providers: the driver protocol, and what all drivers share.

Drivers never measure time, never retry and never swallow errors: every failure is raised as ``CloudError`` with the
cause chained. The engine is the only clock. A driver is safe to call from many threads at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import local
from typing import Any, Protocol, TypeVar, runtime_checkable
from urllib.parse import quote, urlsplit

from pytest_cloudbench.drivers.waits import requested_wait_s
from pytest_cloudbench.model import (
    Capabilities,
    CloudError,
    Content,
    CredentialsError,
    Endpoint,
    Entry,
    ErrorKind,
    ProviderSpec,
    SpecError,
    Verb,
)
from pytest_cloudbench.support import redact

REQUIRED_VERBS = frozenset({Verb.PUT, Verb.GET, Verb.STAT, Verb.LIST, Verb.DELETE})
"""What every driver offers."""

_REQUIRED_METHODS = ("versions", "put", "get", "stat", "list", "delete", "mkdir", "close")
_REQUIRED_NAMES = (*_REQUIRED_METHODS, "capabilities")
_TIMEOUT_S, _LONGEST_TIMEOUT_S = 100.0, 86400
_DETAIL_CHARACTERS = 300
_MOST_CHARACTERS = 8192
_LEAST_NAME_CHARACTERS = 4
_WILDCARD = "*"
_REQUEST_TARGET = re.compile(
    r"(\bhttps?://[^\s/?\"'<>]+(?=[/?])|(?:\burl:|\b[A-Z]{3,9}) (?=/)|\?(?=[\w.-]+=))[^\s\"'<>)]*"
)
"""The target of a request: after a URL's host, as urllib3 or HTTP says it, or in its parameters."""
_ID = (
    r"(?<![\w+/=.-])(?<!SHA256:)(?:(?=[a-z+/=_-]*\d+[a-z+/=_-]+\d)[\w+/=-]{16,}|(?=[a-z+/=_-]*\d)[\w+/=-]{28,}"
    r"|(?=[a-f]*\d)[\da-f]{16,}\b|0x[\da-f]{6,}|\d{10,}\b)"
)
_DAY = r"\b(?:\d{4}-\d\d-\d\d[T ]?|(?:[a-z]{3}, )?\d\d? [a-z]{3} \d{4} )?"
_VARYING = re.compile(
    rf"{_ID}|{_DAY}\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z| GMT)?\b"
    r"|\b\d+(?= bytes read| read, | more expected)|(?<=received )\d+(?: of \d+)?(?= bytes)"
    r"|(?:(?<=bytes, expected )|(?<=expected is )|(?<=on a total of ))\d+",
    re.ASCII | re.IGNORECASE,
)
"""Ids (but no words with one number, and no host fingerprints), times, and received and expected byte counts."""
_COMPOSITE_METHODS = ("check_children", "compose")
_FolderKey = TypeVar("_FolderKey")


@dataclass(frozen=True, slots=True)
class CredentialSet:
    """One way to authenticate, as data. A driver that needs credentials declares ``credential_sets``.

    Attributes:
        required: names of the fields that must all be present.
        optional: names of fields that may be added.
        public: names of fields that only identify the client and are not secret.
        free: names of fields that may hold spaces and letters of any script, because no header carries them as they
            are: names, passwords and paths.
        single_use: True if its refresh token works only once. Then only credentials that ``cloudbench login`` has
            stored are used, because the next token is stored there. ``renewal`` gets the driver's access token, and
            the next ones if the driver is ``Renewing``.
    """

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    public: tuple[str, ...] = ()
    free: tuple[str, ...] = ()
    single_use: bool = False


@dataclass(frozen=True, slots=True)
class OAuthLogin:
    """A user's way to log in to a provider (OAuth 2.0 with PKCE, RFC 7636), as data: a driver's ``oauth``.

    Attributes:
        authorize_url: the page on which the user agrees.
        token_url: the route that gives tokens.
        device_url: the route that gives device codes (RFC 8628); empty if there is none, or not for files.
        shows_code: whether the page shows a code to paste if it is given no address to return to.
        scopes: what the tokens may do; empty for everything that the application may do.
        extra: further parameters of the page's address.
        port: the port of loopback to which the page returns, if the provider wants it to be registered; 0 for any.
        client_id: the credentials' field with the application's id.
        client_secret: the field with its secret, for providers that give applications one.
        register: where users register an application of their own.
    """

    authorize_url: str
    token_url: str
    register: str
    device_url: str = ""
    shows_code: bool = False
    scopes: tuple[str, ...] = ()
    extra: Mapping[str, str] = field(default_factory=dict)
    port: int = 0
    client_id: str = "client_id"
    client_secret: str = "client_secret"


STATUS_KINDS: Mapping[int, ErrorKind] = {
    400: ErrorKind.INVALID,
    401: ErrorKind.AUTH,
    403: ErrorKind.AUTH,
    404: ErrorKind.NOT_FOUND,
    408: ErrorKind.NETWORK,  # the server waited for the rest of the request
    409: ErrorKind.CONFLICT,
    412: ErrorKind.CONFLICT,
    416: ErrorKind.INVALID,
    423: ErrorKind.CONFLICT,
    429: ErrorKind.THROTTLED,
    507: ErrorKind.QUOTA,
}
"""What most services mean by an HTTP status."""


@runtime_checkable
class SharesWithMembers(Protocol):
    """A driver that shares folders with other accounts of its provider. All methods raise CloudError.

    Attributes:
        member_roles: maps the API's roles to ``read``, ``write``, ``full`` or nothing. ``full`` is more than ``write``
            without being the owner.
        full_promises: what the service's documents let members do at the highest of these levels: ``write``,
            ``delete``, ``share`` on.
    """

    member_roles: Mapping[str, str]
    full_promises: frozenset[str]

    def address(self) -> str:
        """Return the address by which others share with this account."""
        ...

    def admit(self, path: str, address: str, level: str) -> None:
        """Let another account use a folder at a level of ``member_roles``. Replaces a former level."""
        ...

    def dismiss(self, path: str, address: str) -> None:
        """Undo ``admit``."""
        ...

    def refer(self, path: str) -> str:
        """Return the reference by which members find a file."""
        ...

    def read_shared(self, reference: str) -> bytes:
        """Return the content of another account's file."""
        ...

    def write_shared(self, reference: str, content: Content) -> None:
        """Replace the content of another account's file."""
        ...

    def delete_shared(self, reference: str) -> None:
        """Remove another account's file."""
        ...

    def share_on(self, reference: str, address: str) -> None:
        """Let a third account read another account's file, which may include the rest of its shared folder."""
        ...


@runtime_checkable
class FindsDeleted(Protocol):
    """A driver that finds what its service keeps of deleted files, as versions or in a trash."""

    def find_deleted(self, path: str, content: bytes) -> str:
        """Return a few words on where the content of a deleted file still is. Empty if nowhere. Raises CloudError."""
        ...


@runtime_checkable
class RestoresDeleted(Protocol):
    """A driver whose service restores a deleted file by the id that it had, and does not list what it keeps."""

    def refer(self, path: str) -> str:
        """Return the id of a file, before it is deleted."""
        ...

    def restore_deleted(self, reference: str) -> None:
        """Bring a deleted file back to its path. Raises CloudError, NOT_FOUND if the service keeps no such file."""
        ...


def role_of_level(member_roles: Mapping[str, str], level: str) -> str:
    """Return the API's role for a level of ``SharesWithMembers``."""
    return next(role for role, own_level in member_roles.items() if own_level == level)


def kind_of_status(status: int, special: Mapping[int, ErrorKind] = STATUS_KINDS) -> ErrorKind:
    """Return what a service means by the status of a refusal, if its words do not tell.

    ``special`` holds the statuses by which this service means something else than most.
    """
    other = ErrorKind.INVALID if 400 <= status < 500 else ErrorKind.SERVER
    return special.get(status) or STATUS_KINDS.get(status, other)


def detail_of(words: str, path: str) -> str:
    """Return a provider's words as the detail of an error: in one line, not longer than can be shown.

    Secrets are removed. So that errors of one kind have one text, ``*`` replaces what differs from request to request:
    the targets of URLs, the names of the file at ``path``, ids, times and byte counts.
    """
    words = " ".join(redact.clean(words)[:_MOST_CHARACTERS].split())
    words = _REQUEST_TARGET.sub(rf"\1{_WILDCARD}", words)
    for name in filter(words.__contains__, _names_of_file(path)):  # each name is another pattern to compile
        words = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", _WILDCARD, words)
    return _VARYING.sub(_WILDCARD, words)[:_DETAIL_CHARACTERS]


def _names_of_file(path: str) -> Sequence[str]:
    """Return the names that a provider may use for a file, the longest first, without those that could be words."""
    forms = {path, path.lstrip("/"), path.rpartition("/")[2]}
    forms |= {quote(form, safe=safe, errors="replace") for form in forms for safe in ("/", "")}
    return sorted(
        (form for form in forms if len(form) >= _LEAST_NAME_CHARACTERS and not form.isalpha()), key=len, reverse=True
    )


def detail_of_error(error: BaseException, path: str) -> str:
    """Return a library's error as a detail, see ``detail_of``. The error holds no secret afterwards."""
    redact.clean_error(error)
    return detail_of(str(error), path)


class RequestCount(local):
    """The number of requests that a thread has sent.

    Attributes:
        requests: how many this thread has sent so far.
    """

    requests = 0

    def count(self, *_args: Any, **_kwargs: Any) -> None:
        """Count a request. For use as a request hook."""
        self.requests += 1


class LastResponse(RequestCount):
    """The number of requests that a thread has sent, and its last response, which an SDK hides.

    Attributes:
        response: as the HTTP library gave it; None before the first one, and after a request without an answer.
    """

    response: Any = None

    def counted(self, send: Any) -> Any:
        """Return an adapter's ``send`` that also counts all requests: redirects, retries and token requests, too."""

        def counted_send(*args: Any, **options: Any) -> Any:
            self.count()
            self.response = None
            response = send(*args, **options)
            self.note(response)
            return response

        return counted_send

    def watch(self, session: Any) -> None:
        """Count what a session of ``requests`` sends, and keep its last response."""
        for adapter in {*session.adapters.values()}:
            adapter.send = self.counted(adapter.send)

    def note(self, response: Any, *_args: Any, **_kwargs: Any) -> None:
        """Keep a response. For use as a response hook."""
        self.response = response

    def status(self) -> int | None:
        """Return the last HTTP status. None if there was no answer."""
        return getattr(self.response, "status_code", None)

    def retry_after_s(self) -> float | None:
        """Return the seconds that the provider asked to wait. None if it named none."""
        return None if self.response is None else requested_wait_s(self.response.headers)


def check_params(spec: ProviderSpec, known: Collection[str], no_target: str = "") -> None:
    """Raise SpecError for an unknown parameter, or for a target if ``no_target`` says what is used in place of one."""
    if spec.target and no_target:
        raise SpecError(f"provider {spec.text!r}: nothing may follow '{spec.scheme}:'; {no_target}")
    for name in spec.params:
        if name not in known:
            expected = f"{spec.scheme} knows: {', '.join(sorted(known)) or 'none'}"
            redact.learn(value for other, value in spec.params.items() if redact.names_secret(other))
            raise SpecError(f"provider {redact.clean(spec.text)!r}: unknown parameter {name!r}; {expected}")


def choice_of(spec: ProviderSpec, name: str, choices: tuple[str, str], default: str | None = None) -> str:
    """Return the value of a parameter that has two choices, by default the first one. Raises SpecError."""
    value = spec.params.get(name, choices[0] if default is None else default)
    if value not in choices and name in spec.params:
        raise SpecError(f"provider {spec.text!r}: {name} is {choices[0]} or {choices[1]}, not {value!r}")
    return value


def endpoint_of(spec: ProviderSpec) -> str:
    """Return the address of a service that is not the provider's own: the spec's ``endpoint``. Empty if it has none.

    Raises SpecError.
    """
    url = spec.params.get("endpoint")
    if url is not None and not is_web_address(url):
        expected = "endpoint is a URL, such as https://HOST:PORT, without user and password"
        raise SpecError(f"provider {redact.clean(spec.text)!r}: {expected}")
    return url or ""


def is_web_address(url: str) -> bool:
    """Return whether a text is an HTTP URL with a host and without a user."""
    try:
        parts = urlsplit(url)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0 and not parts.username
    except ValueError:
        return False


def timeout_of(spec: ProviderSpec) -> float:
    """Return how many seconds a driver waits in each single step: the spec's ``timeout_s``, or 100.

    Raises SpecError.
    """
    text = spec.params.get("timeout_s")
    if text is None:
        return _TIMEOUT_S
    try:
        timeout_s = float(text)
    except ValueError:
        timeout_s = 0.0
    if not 0 < timeout_s <= _LONGEST_TIMEOUT_S:
        raise SpecError(
            f"provider {spec.text!r}: timeout_s is a number of seconds, up to {_LONGEST_TIMEOUT_S}, not {text!r}"
        )
    return timeout_s


def usable_credentials(scheme: str, sets: Iterable[CredentialSet], credentials: Mapping[str, str]) -> Mapping[str, str]:
    """Return the first complete set of credentials, without the others. Raises CredentialsError if there is none.

    From here on, messages do not show its secret values.
    """
    usable_sets = [fields for fields in sets if not fields.single_use]
    for fields in usable_sets:
        if all(credentials.get(name) for name in fields.required):
            names = (*fields.required, *fields.optional)
            usable = {name: credentials[name] for name in names if credentials.get(name)}
            for name, value in usable.items():
                _check_value(scheme, name, value, is_free=name in fields.free)
            redact.learn(value for name, value in usable.items() if name not in fields.public)
            return usable
    choices = ", or ".join(" and ".join(fields.required) for fields in usable_sets)
    raise CredentialsError(f"{scheme}: credentials are missing: {choices}")


def _check_value(scheme: str, name: str, value: str, *, is_free: bool) -> None:
    # Checked here, because an HTTP library that finds such a character prints the value in its own message.
    if not value.isprintable() or not (is_free or (value.isascii() and " " not in value)):
        problem = "a control character" if is_free else "a space or another character that is not allowed"
        raise CredentialsError(f"{scheme}: {name} contains {problem}; copy it again")


def names_in(verb: str, path: str) -> list[str]:
    """Return the names of a path, for a service that has folders.

    Raises CloudError for a path that is not absolute, holds ``.``, ``..`` or NUL, or cannot be sent as text.
    """
    names = [name for name in path.split("/") if name]
    if not path.startswith("/") or "." in names or ".." in names or "\0" in path:
        raise CloudError(ErrorKind.INVALID, verb, path, detail="expected /NAME/... without '.' and '..'")
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise CloudError(ErrorKind.INVALID, verb, path, detail="not a file name") from error
    return names


def walk(top: _FolderKey, children: Callable[[_FolderKey], Iterable[tuple[Entry, _FolderKey]]]) -> Iterator[Entry]:
    """Yield everything below a folder, for a driver that lists folder by folder.

    A folder below it may be deleted meanwhile, before its turn or between two of its pages. The rest of its content is
    left out then. NOT_FOUND is raised for the top folder only.

    Args:
        top: the driver's key of the folder: a path, an id, or both.
        children: yields what is directly in the folder of a key, with the key of each entry.
    """
    pending = [top]
    is_top = True
    while pending:
        try:
            for entry, key in children(pending.pop()):
                if entry.is_folder:
                    pending.append(key)
                yield entry
        except CloudError as error:
            if is_top or error.kind is not ErrorKind.NOT_FOUND:
                raise
        is_top = False


def check_class(scheme: str, candidate: object) -> None:
    """Raise SpecError, in one line, if ``candidate`` cannot be the driver of a scheme."""
    name = f"{getattr(candidate, '__module__', '?')}:{getattr(candidate, '__qualname__', candidate)}"
    if not isinstance(candidate, type):
        methods = ", ".join(("connect", *_REQUIRED_METHODS))
        raise SpecError(f"provider {scheme!r}: {name} is not a class: expected one that has {methods}")
    factories = _COMPOSITE_METHODS if any(hasattr(candidate, method) for method in _COMPOSITE_METHODS) else ("connect",)
    _check_attributes(scheme, name, candidate, (*factories, *_REQUIRED_NAMES))


def _check_attributes(scheme: str, name: str, candidate: object, required: Iterable[str]) -> None:
    if absent := [method for method in required if not hasattr(candidate, method)]:
        raise SpecError(f"provider {scheme!r}: {name} has no {', '.join(absent)}: every driver must have it")


def check_declared(scheme: str, driver: Driver) -> None:
    """Raise SpecError, in one line, if a driver lacks what every driver must have, or what it declares."""
    name = type(driver).__qualname__
    _check_attributes(scheme, name, driver, _REQUIRED_NAMES)  # ``connect`` may return an object of another class
    declared = driver.capabilities
    if not isinstance(declared, Capabilities):
        raise SpecError(f"provider {scheme!r}: {name}.capabilities is not Capabilities, but {type(declared).__name__}")
    if absent := sorted(REQUIRED_VERBS - declared.verbs):
        raise SpecError(f"provider {scheme!r}: {name}.capabilities.verbs lacks {', '.join(absent)}")
    methods = [*sorted(verb.value for verb in declared.verbs), *(["space"] if declared.space else [])]
    if undone := [method for method in methods if not hasattr(driver, method)]:
        raise SpecError(
            f"provider {scheme!r}: {name}.capabilities declares {', '.join(undone)}, which it does not have"
        )


@runtime_checkable
class Driver(Protocol):
    """A connection to one provider. Paths are absolute POSIX paths such as ``/run/s00001.bin``.

    Every method raises CloudError, and nothing else, when the provider refuses or fails. The optional verbs that
    ``capabilities`` declares are methods, too: ``copy(source, target) -> Entry``, ``move(source, target) -> Entry``,
    ``share(path) -> str``, ``revoke(url) -> None``, ``space() -> tuple[int, int]``. A driver that can talk to services
    of other APIs than the one it is named after lists them in a class attribute, ``apis``. One that uses the accounts
    of another driver names its scheme in a class attribute, ``credentials_of``. One that knows where the provider's own
    programs keep credentials has a static method ``elsewhere()``, which yields each source and its fields.
    One whose target names a server gives its URL in a static method ``address_of(spec)``: on loopback it is no account.
    One that knows an address whose answers are dated gives it as ``clock_url``, of the class or the connected driver.
    One whose requests cannot be recorded and replayed says why in a class attribute, ``no_cassette``. One that is not
    in the table of ``drivers.surroundings`` says in a class attribute, ``surroundings``, what its libraries read.
    One may list in a class attribute, ``imports``, the modules that ``connect`` and the first request import. They are
    imported once for all agents of a machine, which are forked afterwards.
    """

    @property
    def capabilities(self) -> Capabilities:
        """The driver's abilities. A class attribute if they are the same for all specs."""
        ...

    @classmethod
    def connect(cls, spec: ProviderSpec, endpoint: Endpoint | None, credentials: Mapping[str, str]) -> Driver:
        """Return a driver ready for use. ``endpoint`` is set if an emulator stands in for the provider.

        Raises SpecError or CredentialsError if the spec or the credentials cannot work.
        """
        ...

    def versions(self) -> Mapping[str, str]:
        """Return names and versions of the libraries that do the work, for the results."""
        ...

    def put(self, path: str, content: Content) -> Entry:
        """Create or overwrite the file at ``path``. Missing parent folders are created."""
        ...

    def get(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """Yield the file's bytes from ``offset`` as they arrive. The first item marks the first byte."""
        ...

    def stat(self, path: str) -> Entry:
        """Return what the provider knows about one path."""
        ...

    def list(self, folder: str) -> Iterator[Entry]:
        """Yield all files below ``folder``, recursively, with size and digest, and folders, if there are any.

        NOT_FOUND means ``folder`` itself. A folder below it that is deleted meanwhile is left out, see ``walk``.
        """
        ...

    def delete(self, path: str) -> None:
        """Remove a file, or a folder with all its contents."""
        ...

    def mkdir(self, path: str) -> None:
        """Create a folder and its parents. No error if it exists. Does nothing if the provider has no folders."""
        ...

    def close(self) -> None:
        """Close connections. The driver is not used afterwards."""
        ...


@runtime_checkable
class Counting(Protocol):
    """A driver that knows how many requests it sends. For other drivers the number is unknown, which is not 0."""

    def requests(self) -> int:
        """Return how many requests the calling thread has sent so far, including refused and repeated ones."""
        ...


@runtime_checkable
class Preparing(Protocol):
    """A driver that has to look up or create something before operations in a folder are measured."""

    def prepare(self, folder: str) -> None:
        """Do what an application does once, not for each file: look up a folder's id or a bucket, open a connection.

        Every agent calls this before measurement starts, once the folder exists, and may call it again.
        """
        ...


NextToken = Callable[[], tuple[str, float]]
"""Returns an access token, and for how many seconds it lasts. Raises CredentialsError."""


@runtime_checkable
class Renewing(Protocol):
    """A driver that can be told where its next access token comes from, because it cannot renew one by itself."""

    def renew_by(self, next_token: NextToken) -> None:
        """Call this function when the present access token is about to end. Any thread may do so."""
        ...


@runtime_checkable
class Parted(Protocol):
    """A driver that uploads large files in parts of a size that can be chosen between two operations.

    Attributes:
        part_bytes: the size of each part but the last.
        multipart_bytes: larger files are uploaded in parts.
    """

    part_bytes: int
    multipart_bytes: int


@runtime_checkable
class Placed(Protocol):
    """A driver whose spec depends on the current folder."""

    @classmethod
    def absolute(cls, spec: ProviderSpec) -> str:
        """Return the spec in a form that does not depend on the current folder. Raises SpecError."""
        ...


@runtime_checkable
class Composite(Protocol):
    """The driver of a composite provider: ``NAME:CHILD,CHILD``. It closes its children."""

    @classmethod
    def check_children(cls, spec: ProviderSpec, children: Sequence[ProviderSpec]) -> None:
        """Raise SpecError if the parameters or the number of children cannot work. Nothing has started yet."""
        ...

    @classmethod
    def compose(cls, spec: ProviderSpec, children: Sequence[Driver]) -> Driver:
        """Return a driver ready for use, in place of ``connect``. The connected children are in the spec's order."""
        ...


@runtime_checkable
class Described(Protocol):
    """A composite whose spec names a file that describes it, children included: ``NAME:FILE?state=FOLDER``.

    Such a driver keeps its own data where the file says, or in the folder ``state``. If none of its children outlives
    the run, the run gives it a folder that does not either.
    """

    @classmethod
    def described(cls, spec: ProviderSpec) -> Sequence[str]:
        """Return the specs of the children. Raises UsageError."""
        ...
