"""Driver for WebDAV servers, such as ownCloud and Nextcloud, with webdav4 on httpx.

What may live here: everything that is specific to WebDAV as a client, in this order: imports, capabilities, error
table, connect, required verbs, optional verbs.

What the library does on its own, and how this driver handles it:

- It repeats a request after 423, 429, 500, 502, 503, 504 and 509, three times: off (``retry=False``).
- Its ``open`` asks what a path is before it reads, and opens a broken download again in the middle: ``get`` sends one
  GET through the same HTTP client instead.
- Its ``get_props`` sends no ``Depth``, which means a whole tree: ``stat`` sends ``Depth: 0``.
- It takes a path that contains ``%41`` as encoded already, and would write another file: paths are encoded here.
- It names a folder as it names a file, which many servers refuse. This driver names it with a final slash (RFC 4918,
  section 5.2) as soon as it knows that it is one.

Servers refuse the same thing with different statuses: a put below a missing folder gets 409, 404 or, from nginx, 500.
After a refusal that may mean several things, the driver asks what is there (PROPFIND) and decides by the answer. It
repeats a request only after it has made a missing folder, or with the final slash that was missing.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, ClassVar
from urllib.parse import quote, unquote, urlsplit

from pytest_cloudbench.drivers.base import (
    CredentialSet,
    LastResponse,
    check_params,
    choice_of,
    kind_of_status,
    names_in,
    timeout_of,
    usable_credentials,
    walk,
)
from pytest_cloudbench.drivers.egress import egress_of, is_on_this_machine
from pytest_cloudbench.drivers.keys import as_file
from pytest_cloudbench.drivers.sdk import UNREADABLE, Meaning, OwnError, SdkDriver, network_failure
from pytest_cloudbench.model import (
    MIB,
    Capabilities,
    CloudError,
    Conflict,
    Content,
    Endpoint,
    Entry,
    ErrorKind,
    NameRules,
    ProviderSpec,
    SpecError,
    Verb,
)
from pytest_cloudbench.support import redact

# --- capabilities ---------------------------------------------------------------------------------

_VERBS = frozenset({Verb.PUT, Verb.GET, Verb.STAT, Verb.LIST, Verb.DELETE, Verb.COPY, Verb.MOVE})

_CAPABILITIES = Capabilities(
    digest=None,
    verbs=_VERBS,
    ranges=True,
    conflicts=frozenset(Conflict) - {Conflict.GET_FOLDER, Conflict.SHARE_AGAIN},
    copies_folders=True,
    moves_folders=True,
    server_side_copy=True,
    # A put into a folder that does not exist sends more, and a list one for each folder.
    requests=dict.fromkeys(_VERBS, 1) | {Verb.COPY: 2, Verb.MOVE: 2},
    via="webdav4 on httpx; retries off",
)

_PIECE_BYTES = MIB

# --- error table ----------------------------------------------------------------------------------

_STATUS_KINDS: Mapping[int, ErrorKind] = {
    405: ErrorKind.CONFLICT,  # a put or a mkdir where a folder is
    409: ErrorKind.CONFLICT,  # the parent is not a folder, or does not exist
    509: ErrorKind.THROTTLED,
}
_GONE = frozenset({404, 410})
_NO_PARENT = frozenset({404, 409})
# What servers answer if a folder is missing, or is named as a file, or if something is in the way.
_UNCLEAR = _NO_PARENT | {400, 403, 405, 415}
# Some servers answer the same by this status. It counts only below a folder that this driver has not seen, because
# each failure of a server would cost two requests otherwise.
_BROKEN = 500
_UNSPOKEN = frozenset({"Digest", "Negotiate", "NTLM"})
_WORDS = re.compile(r"<s:message[^>]*>([^<]+)</s:message>")
_FAILED_PART = re.compile(rb"HTTP/1\.\d ([45]\d\d)")


class _LastWebdav(LastResponse):
    """A last response with the server's words about a refusal, and the target of a redirect."""

    def refusal(self) -> tuple[int, str]:
        """Return the last status, or that of the part that failed, and the server's words."""
        if self.response is None:
            return 0, ""
        try:
            body = self.response.content
        except RuntimeError:  # it was not read, or not to its end
            body = b""
        status = int(self.response.status_code)
        if status == 207 and (match := _FAILED_PART.search(body)):
            status = int(match[1])
        message = _WORDS.search(body.decode(errors="replace"))
        method = str(self.response.headers.get("www-authenticate", "")).partition(" ")[0]
        advice = f"; the server wants {method}, which this driver does not speak" if method in _UNSPOKEN else ""
        if self.moved_on_the_same_host():
            new_url = urlsplit(self._redirect_urls()[1])
            advice = f"; the server names {new_url.path} {new_url.scheme and f'by {new_url.scheme} '}instead"
            advice += ": if it is right, put it into the spec"
        return status, f"{status} {message[1] if message else self.response.reason_phrase}{advice}"

    def names_a_folder(self) -> bool:
        """Return whether the last answer was a redirect to the same name with a final slash, which folders have.

        Only the name counts: behind a proxy, a server may have another host, port or beginning of the path in mind.
        """
        if self.response is None or not self.response.has_redirect_location:
            return False
        old_path, new_path = (unquote(urlsplit(url).path).split("/") for url in self._redirect_urls())
        return len(new_path) > 1 and new_path[-1] == "" and new_path[-2] == old_path[-1] != ""

    def moved_on_the_same_host(self) -> bool:
        """Return whether the last answer was a redirect to another place on the same host."""
        if self.response is None or not self.response.has_redirect_location:
            return False
        old_url, new_url = map(urlsplit, self._redirect_urls())
        return new_url.netloc in {"", old_url.netloc}

    def _redirect_urls(self) -> tuple[str, str]:
        """Return the address of the last request, and the one that its answer leads to."""
        return str(self.response.request.url), str(self.response.headers["location"])


# --- connect --------------------------------------------------------------------------------------


class WebdavDriver(SdkDriver):
    """One client with a pool of kept-alive connections, shared by all threads. It keeps no cookie."""

    imports = ("httpcore", "httpx", "webdav4.client", "webdav4.http", "webdav4.multistatus")
    libraries = ("webdav4", "httpx", "httpcore", "h11", "openssl")
    settings: Mapping[str, str] = {"webdav4.retries": "off"}
    capabilities: Capabilities = _CAPABILITIES
    credential_sets: ClassVar[tuple[CredentialSet, ...]] = (
        CredentialSet(("user", "password"), public=("user",), free=("user", "password")),
        CredentialSet(("token",)),
    )

    def __init__(self, url: str, endpoint: Endpoint | None, secrets: Mapping[str, str], timeout_s: float) -> None:
        import httpx
        from webdav4.client import Client, ClientError
        from webdav4.http import Client as HttpClient

        parts = urlsplit(url)
        self._base = unquote(parts.path).rstrip("/")
        self._last = _LastWebdav()
        self._folders = set[str]()
        egress = egress_of(endpoint, url)
        auth = (secrets["user"], secrets["password"]) if "user" in secrets else None
        headers = {"user-agent": "pytest-cloudbench", "accept-encoding": "identity"}
        if "token" in secrets:
            headers["authorization"] = f"Bearer {secrets['token']}"
        self.clock_url = site = f"{parts.scheme}://{parts.netloc}"
        self._http = HttpClient(
            base_url=site, auth=auth, headers=headers, transport=egress.transport(), trust_env=False,
            timeout=timeout_s, cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
            event_hooks={"request": [self._last.count], "response": [self._last.note]},
        )  # fmt: skip
        super().__init__(self._last, egress.remarks, self._http)
        self._client = Client(site, http_client=self._http, retry=False, chunk_size=_PIECE_BYTES)
        self._unsendable = (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.LocalProtocolError, UnicodeError)
        self._failed = (httpx.HTTPError, httpx.StreamError, ssl.SSLError, OSError)
        self._refused = ClientError

    @staticmethod
    def address_of(spec: ProviderSpec) -> str:
        """Return the address of the server that a spec names."""
        return _server_url(spec)

    may_be_anonymous: ClassVar[bool] = True

    @classmethod
    def connect(cls, spec: ProviderSpec, endpoint: Endpoint | None, credentials: Mapping[str, str]) -> WebdavDriver:
        """Return the driver for ``webdav://HOST/PATH``. Nothing is sent before the first operation.

        ``?tls=0`` means plain HTTP. ``?lacks=copy,dotfiles`` lists what the server cannot do: copy by itself, or
        list names that begin with a dot. A full URL works, too: ``webdav:https://HOST:PORT/PATH``.
        """
        import httpx

        check_params(spec, {"lacks", "timeout_s", "tls", "token_env"})
        capabilities = _capabilities_of(spec)
        url = endpoint.url if endpoint else _server_url(spec)
        fields = endpoint.credentials if endpoint else credentials
        is_anonymous = not fields and is_on_this_machine(url)  # the user's own server may want no credentials
        secrets = {} if is_anonymous else usable_credentials(spec.scheme, cls.credential_sets, fields)
        try:
            driver = cls(url, endpoint, secrets, timeout_of(spec))
        except httpx.InvalidURL as error:
            raise SpecError(f"provider {spec.text!r}: {error}") from error
        driver.capabilities = capabilities
        return driver

    def _remote_path(self, verb: str, path: str) -> str:
        """Return the encoded path on the server, never one outside the folder that the spec names."""
        names = names_in(verb, path)
        if verb != "list" and not self.capabilities.names.dotfiles and any(name.startswith(".") for name in names):
            raise CloudError(ErrorKind.INVALID, verb, path, detail="the server lists no name that begins with a dot")
        return quote("/".join([self._base, *names])) or "/"

    def _cloud_errors(self, verb: str, path: str, *, is_new: bool = True) -> AbstractContextManager[Any]:
        """Raise every error as CloudError: those of a new request, or of reading the answer to the last one."""
        if is_new:
            self._last.response = None
        return super()._cloud_errors(verb, path)

    def _explain_error(self, error: Exception) -> Meaning | None:
        status, words = self._last.refusal()
        if isinstance(error, self._unsendable):
            return Meaning(ErrorKind.INVALID, str(error))
        if isinstance(error, self._refused) or getattr(error, "response", None) is not None:
            kind = ErrorKind.INVALID if self._last.moved_on_the_same_host() else kind_of_status(status, _STATUS_KINDS)
            if self._last.names_a_folder():
                kind, words = ErrorKind.CONFLICT, f"{status}: it is a folder"
            return Meaning(kind, words, self._last.retry_after_s())
        if isinstance(error, self._failed):
            return network_failure(error)
        # An answer, but neither the library nor this file can read it.
        return UNREADABLE if status else None

    def _send_request(self, method: str, verb: str, path: str, *, is_folder: bool, headers: Mapping[str, str]) -> Any:
        """Send one request about a path, which is named as a folder or as a file."""
        remote = self._remote_path(verb, path)
        with self._cloud_errors(verb, path):
            return self._client.request(method, remote, add_trailing_slash=is_folder and remote != "/", headers=headers)

    # --- what is there ----------------------------------------------------------------------------

    def _find_entries(self, verb: str, path: str, depth: int, *, is_folder: bool) -> list[Entry]:
        """Return the entry of a path, and at depth 1 those of what is directly below it."""
        from webdav4.multistatus import parse_multistatus_response

        remote = self._remote_path(verb, path)
        with self._cloud_errors(verb, path):
            url = self._client.join_url(remote, add_trailing_slash=is_folder and remote != "/")
            # Not by the library's ``request``, for which a folder is missing as soon as one of its members is.
            answer = self._http.request("PROPFIND", url, headers={"Depth": str(depth)})
            answer.raise_for_status()
        with self._cloud_errors(verb, path, is_new=False):
            rows = parse_multistatus_response(answer).responses.values()
            entries = [self._entry_of_answer(row) for row in rows if len(rows) == 1 or row.status_code not in _GONE]
            if not entries:
                raise OwnError(ErrorKind.SERVER, "the answer has no entry for this path")
            return entries

    def _entry_of_answer(self, answer: Any) -> Entry:
        if answer.status_code is not None and answer.status_code >= 400:
            kind = kind_of_status(answer.status_code, _STATUS_KINDS)
            raise OwnError(kind, f"{answer.status_code} {answer.reason_phrase}")
        on_server = str(answer.path).rstrip("/")
        if f"{on_server}/"[: len(self._base) + 1] != f"{self._base}/":
            raise ValueError(f"{on_server} is not below {self._base}")
        path = on_server[len(self._base) :] or "/"
        if answer.properties.collection:
            return Entry(path, is_folder=True)
        return Entry(path, size_bytes=int(answer.properties.content_length))

    def _find_entry(self, verb: str, path: str) -> Entry:
        """Return the entry of a path, named as a file unless it is the root or the server wants a folder's name."""
        is_root = not path.strip("/")
        try:
            return self._find_entries(verb, path, 0, is_folder=is_root)[0]
        except CloudError:
            if is_root or not self._last.names_a_folder():
                raise
        return self._find_entries(verb, path, 0, is_folder=True)[0]

    def _is_folder(self, verb: str, path: str) -> bool | None:
        """Return True for a folder, False for a file, and None if that is unknown, as when nothing is there."""
        try:
            return self._find_entry(verb, path).is_folder
        except CloudError:
            return None

    # --- folders that are missing -----------------------------------------------------------------

    def _is_unclear(self, parent: str) -> bool:
        """Return whether the last refusal may be due to what is at the request's path, or to a missing folder above.

        If it shows that ``parent`` may be gone, ``parent`` is no longer taken as existing.
        """
        status = self._last.refusal()[0]
        is_new = bool(parent) and parent not in self._folders
        if status == _BROKEN:
            self._folders.discard(parent)  # somebody else may have removed it
        return status in _UNCLEAR or (status == _BROKEN and is_new) or self._last.names_a_folder()

    def _may_lack_folder(self, verb: str, parent: str) -> bool:
        """Return whether the last refusal, an unclear one, may mean that the folder above has to be made.

        Raises CloudError if the missing folder is the one that the spec names. That one is never created, because a
        mistyped one would stay for good.
        """
        is_usual = self._last.refusal()[0] in _NO_PARENT
        if not parent and is_usual:
            self._find_entry(verb, "/")
        return bool(parent) and (is_usual or parent not in self._folders)

    def _make_folder(self, verb: str, path: str) -> None:
        """Create a folder and those above it, trying the innermost first, since the others usually exist."""
        remote, parent = self._remote_path(verb, path), path.rstrip("/").rpartition("/")[0]
        for has_parent in (not parent, True):
            try:
                with self._cloud_errors(verb, path):
                    self._client.mkdir(remote)
                break
            except CloudError as refusal:
                if not self._is_unclear(parent):
                    raise
                lacks_parent = self._may_lack_folder(verb, parent) and not has_parent
                is_folder = (
                    None if lacks_parent and self._last.refusal()[0] in _NO_PARENT else self._is_folder(verb, path)
                )
                if is_folder:
                    break
                if is_folder is False:
                    detail = "no folder can be where a file is"
                    raise CloudError(ErrorKind.CONFLICT, verb, path, detail=detail) from refusal
                if not lacks_parent:
                    raise
            self._make_folder(verb, parent)
        self._folders.add(path.rstrip("/"))

    def _with_folder(self, verb: str, path: str, act: Callable[[], object]) -> None:
        """Call ``act``, which may need the folder above ``path``. If that is missing, create it and call again."""
        parent = path.rpartition("/")[0]
        try:
            act()
        except CloudError:
            if not self._is_unclear(parent) or not self._may_lack_folder(verb, parent):
                raise
            self._make_folder(verb, parent)
            act()
        self._folders.add(parent)

    # --- required verbs ---------------------------------------------------------------------------

    def put(self, path: str, content: Content) -> Entry:
        """Upload with one request. If that is refused because the folder is missing, create it and upload again."""
        remote, size_bytes = self._remote_path("put", path), content.size_bytes

        def upload() -> None:
            with self._cloud_errors("put", path):
                self._client.upload_fileobj(as_file(content), remote, overwrite=True, size=size_bytes)

        try:
            self._with_folder("put", path, upload)
        except CloudError as refusal:
            is_known = refusal.kind is ErrorKind.CONFLICT or self._last.refusal()[0] not in _UNCLEAR
            if is_known or not self._is_folder("put", path):
                raise
            raise CloudError(ErrorKind.CONFLICT, "put", path, detail="it is a folder") from refusal
        return Entry(path, size_bytes=size_bytes)

    def get(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """Yield the file's bytes from ``offset``. The request is sent when the first piece is asked for."""
        headers = {"Range": f"bytes={offset}-"} if offset else None
        remote = self._remote_path("get", path)
        with self._cloud_errors("get", path):
            request = self._http.build_request("GET", self._client.join_url(remote), headers=headers)
            response = self._http.send(request, stream=True)
            try:
                if not response.is_success:
                    response.read()
                    response.raise_for_status()
                if offset and response.status_code != 206:
                    raise CloudError(ErrorKind.SERVER, "get", path, detail="the range was ignored")
                yield from response.iter_raw()
            finally:
                response.close()

    def stat(self, path: str) -> Entry:
        """Return what the server knows about one path."""
        return self._find_entry("stat", path)

    def list(self, folder: str) -> Iterator[Entry]:
        """Yield everything below ``folder``, one request for each folder: many servers refuse ``Depth: infinity``."""
        return walk(folder, self._list_children)

    def _list_children(self, folder: str) -> Iterator[tuple[Entry, str]]:
        own_depth = _depth(folder)
        for entry in self._find_entries("list", folder, 1, is_folder=True):
            # By its depth, since servers may name the folder in another case, composed in another way, or answer with
            # the whole tree.
            if _depth(entry.path) == own_depth + 1:
                yield entry, entry.path
            elif _depth(entry.path) == own_depth and not entry.is_folder:
                # Some servers take the final slash for part of a file's name.
                raise CloudError(ErrorKind.CONFLICT, "list", folder, detail="it is a file")

    def delete(self, path: str) -> None:
        """Remove a file, or a folder with all its contents. The folder that the spec names stays."""
        self._remote_path("delete", path)
        if not path.strip("/"):
            raise CloudError(ErrorKind.INVALID, "delete", path, detail="the root cannot be deleted")
        try:
            self._send_request("DELETE", "delete", path, is_folder=False, headers={})
        except CloudError as refusal:
            is_clear = refusal.kind is ErrorKind.NOT_FOUND or not self._is_unclear("")
            if is_clear or not self._is_folder("delete", path):
                raise
            self._send_request("DELETE", "delete", path, is_folder=True, headers={})
        prefix = f"{path.rstrip('/')}/"
        self._folders -= {folder for folder in self._folders.copy() if f"{folder}/".startswith(prefix)}

    def mkdir(self, path: str) -> None:
        """Create a folder and its parents. No error if it exists."""
        if path.strip("/"):
            self._make_folder("mkdir", path)

    # --- optional verbs ---------------------------------------------------------------------------

    def copy(self, source: str, target: str) -> Entry:
        """Copy a file or folder. An existing target is a conflict."""
        return self._transfer_item("copy", source, target)

    def move(self, source: str, target: str) -> Entry:
        """Rename a file or folder. An existing target is a conflict."""
        return self._transfer_item("move", source, target)

    def _transfer_item(self, verb: str, source: str, target: str) -> Entry:
        """Copy or move a file or folder, after creating a missing folder for it. Return the new entry."""
        self._remote_path(verb, source)
        new, parent = f"{self.clock_url}{self._remote_path(verb, target)}", target.rpartition("/")[0]

        def transfer(*, is_folder: bool) -> None:
            headers = {"Destination": f"{new}/" if is_folder else new, "Overwrite": "F", "Depth": "infinity"}
            self._send_request(verb.upper(), verb, source, is_folder=is_folder, headers=headers)

        try:
            transfer(is_folder=False)
        except CloudError:
            if not self._is_unclear(parent):
                raise
            lacks_parent = self._may_lack_folder(verb, parent)
            if self._find_entry(verb, source).is_folder:  # if it does not exist, no folder is left behind
                self._with_folder(verb, target, lambda: transfer(is_folder=True))
            elif lacks_parent:
                self._make_folder(verb, parent)
                transfer(is_folder=False)
            else:
                raise
        return self._find_entry(verb, target)


def _capabilities_of(spec: ProviderSpec) -> Capabilities:
    """Return the capabilities on a server that lacks what the spec's ``lacks`` lists. Raises SpecError."""
    lacks = set(spec.params["lacks"].split(",")) if "lacks" in spec.params else set()
    if unknown := lacks - {"copy", "dotfiles"}:
        raise SpecError(f"provider {spec.text!r}: lacks is a list of copy and dotfiles, not {min(unknown)!r}")
    capabilities = _CAPABILITIES
    if "copy" in lacks:
        capabilities = replace(
            capabilities, copies_folders=False, server_side_copy=False,
            verbs=capabilities.verbs - {Verb.COPY}, conflicts=capabilities.conflicts - {Conflict.COPY_ON_EXISTING},
            requests={verb: number for verb, number in capabilities.requests.items() if verb is not Verb.COPY},
        )  # fmt: skip
    return replace(capabilities, names=NameRules(dotfiles="dotfiles" not in lacks))


def _depth(path: str) -> int:
    """Return how many names a path has."""
    return sum(1 for name in path.split("/") if name)


def _server_url(spec: ProviderSpec) -> str:
    """Return the address of the folder that a spec names. Raises SpecError."""
    tls = choice_of(spec, "tls", ("0", "1"), "1")
    is_whole = spec.target.startswith(("http://", "https://"))
    if is_whole and "tls" in spec.params:
        raise SpecError(f"provider {spec.text!r}: the URL says already whether it is TLS; leave tls out")
    url = spec.target if is_whole else f"{'https' if tls == '1' else 'http'}://{spec.target}"
    try:
        parts = urlsplit(url)
        is_usable = bool(parts.hostname) and parts.port != 0 and "#" not in url
    except ValueError:
        is_usable = False
    if not is_usable or parts.username is not None:
        expected = "webdav://HOST/PATH, without user and password: these are credentials"
        raise SpecError(f"provider {redact.clean(spec.text)!r}: expected {expected}")
    return url
