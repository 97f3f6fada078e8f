"""Driver for Dropbox with the official SDK.

What may live here: everything that is special to Dropbox as a client, in this order: imports,
capabilities, error table, connect, required verbs, optional verbs.

What the SDK does on its own, and what is done about it:

- It sleeps and retries on 429 (without end), on 5xx (4 times) and after an expired token (once, even when
  it has no way to get another): all three are off, one call is one request. A token that is about to
  expire is refreshed before the request, inside the operation that finds it so; nothing else is.
- Since 12.2 it hashes every upload to send ``content_hash``: off, because that is the client's CPU and not
  the provider; ``?content_hash=1`` turns it on, and a difference is then the kind ``corrupt``.
- Its HTTP library follows redirects, and would send file and token again, to whomever the answer names: off,
  a redirect is an error. It reuses a kept-alive connection only after a look whether the server has closed it, and
  does not resend a request.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from http.cookiejar import DefaultCookiePolicy
from importlib import import_module
from importlib.metadata import version
from threading import Lock, local
from typing import Any, ClassVar

from pytest_cloudbench import redact
from pytest_cloudbench.drivers.base import CredentialSet, check_params, usable_credentials
from pytest_cloudbench.drivers.sdk_import import import_lazily
from pytest_cloudbench.model import (
    KIB,
    MIB,
    Capabilities,
    CloudError,
    Content,
    Endpoint,
    Entry,
    ErrorKind,
    ProviderSpec,
    SpecError,
    Verb,
)

__all__ = ["DropboxDriver"]

# --- capabilities ---------------------------------------------------------------------------------

_CAPABILITIES = Capabilities(
    digest="sha256-4mib-blocks",
    verbs=frozenset(Verb),
    revisions=True,
    ranges=True,
    case_sensitive=False,
    max_request_bytes=150 * MIB,
    via="dropbox SDK on requests; retries and content_hash off",
)

# The namespaces whose values the SDK's client does not need for its own definition. The others
# (files, sharing, paper...) run anyway, because default arguments of its methods come from them.
_LAZY_NAMESPACES = ("account", "account_id", "check", "contacts", "openid", "secondary_emails", "team", "team_log")
# Guesses the encoding of a body that does not name one; requests wants to know its version at once.
_LAZY_VERSIONED = {"charset_normalizer": "charset_normalizer.version"}

_TIMEOUT_S = 100.0
# One pool of connections for all threads: more threads than this would lose kept-alive connections.
_POOL_CONNECTIONS = 256
# Upload sessions: the provider wants multiples of 4 MiB, and memory wants few of them.
_SESSION_PIECE_BYTES = 16 * MIB
_READ_PIECE_BYTES = 64 * KIB
# The HTTP library waits for a whole piece: a small first one marks the first byte.
_FIRST_READ_BYTES = 1 * KIB
# A server error can carry a whole web page.
_DETAIL_CHARACTERS = 300

# --- error table ----------------------------------------------------------------------------------

# A refusal (409, some 403 and 404) is a path of tags, such as path/conflict/file: the last known one counts.
_TAG_KINDS: Mapping[str, ErrorKind] = {
    "too_many_write_operations": ErrorKind.THROTTLED,
    "too_many_requests": ErrorKind.THROTTLED,
    "insufficient_space": ErrorKind.QUOTA,
    "insufficient_quota": ErrorKind.QUOTA,
    "access_denied": ErrorKind.AUTH,
    "email_not_verified": ErrorKind.AUTH,
    "no_permission": ErrorKind.AUTH,
    "no_write_permission": ErrorKind.AUTH,
    "shared_link_access_denied": ErrorKind.AUTH,
    "not_found": ErrorKind.NOT_FOUND,
    "shared_link_not_found": ErrorKind.NOT_FOUND,
    "conflict": ErrorKind.CONFLICT,
    "incorrect_offset": ErrorKind.CONFLICT,
    "not_file": ErrorKind.CONFLICT,
    "not_folder": ErrorKind.CONFLICT,
    "shared_link_already_exists": ErrorKind.CONFLICT,
    "content_hash_mismatch": ErrorKind.CORRUPT,
    "internal_error": ErrorKind.SERVER,
    "other": ErrorKind.SERVER,
    "reset": ErrorKind.SERVER,
}

_STATUS_KINDS: Mapping[int, ErrorKind] = {
    400: ErrorKind.INVALID,
    401: ErrorKind.AUTH,
    403: ErrorKind.AUTH,
    404: ErrorKind.NOT_FOUND,
    409: ErrorKind.CONFLICT,
    416: ErrorKind.INVALID,
    422: ErrorKind.INVALID,
    429: ErrorKind.THROTTLED,
}

# A malformed token is answered by 400 and these words, not by 401.
_TOKEN_WORDS = ("access token", "authorization")


def _kind_of_status(status: int, text: str) -> ErrorKind:
    if status == 400 and any(word in text.lower() for word in _TOKEN_WORDS):
        return ErrorKind.AUTH
    # A 2xx that ends here had an answer that cannot be read, which is the server's doing.
    return _STATUS_KINDS.get(status, ErrorKind.INVALID if 400 <= status < 500 else ErrorKind.SERVER)


def _tags(error: Any) -> list[str]:
    """The path of tags of a refusal, from the outermost to the innermost."""
    tags = []
    while error is not None:
        tag = getattr(error, "_tag", None)
        if isinstance(tag, str):
            tags.append(tag)
            error = error._value
        else:
            error = getattr(error, "reason", None)
    return tags


class _Last(local):
    """The thread's last response: the SDK's exceptions drop its status and headers."""

    response: Any = None

    def note(self, response: Any, *_args: Any, **_kwargs: Any) -> None:
        """A response hook of requests."""
        self.response = response
        if response.status_code >= 400:
            # The SDK drops the response of a refused download unread, and its connection with it.
            _ = response.content

    def retry_after_s(self) -> float | None:
        """The header may also be a date; it is of no use without a clock, and a driver has none."""
        text = "" if self.response is None else self.response.headers.get("retry-after", "").strip()
        return float(text) if text.isascii() and text.isdigit() else None


# --- connect --------------------------------------------------------------------------------------


class DropboxDriver:
    """One SDK client and one session, shared by all threads.

    That is safe: after ``connect`` the client's only state is its token, which is refreshed under a lock,
    and the session's only state are its cookies, which are refused. The pool of connections below is
    made for threads. Sharing keeps the number of connections at the number of requests in flight, and
    refreshes a token once instead of once per thread.
    """

    capabilities: ClassVar[Capabilities] = _CAPABILITIES
    credential_sets: ClassVar[tuple[CredentialSet, ...]] = (
        CredentialSet(("access_token",)),
        CredentialSet(("refresh_token", "app_key"), ("app_secret",), public=("app_key",)),
    )

    def __init__(
        self,
        sdk: Any,
        client: Any,
        session: Any,
        secrets: Mapping[str, str],
        *,
        session_threshold_bytes: int = 150 * MIB,
        session_piece_bytes: int = _SESSION_PIECE_BYTES,
        list_page_entries: int | None = None,
    ) -> None:
        self._files, self._client, self._session = sdk.files, client, session
        # Classes of errors, for the table: refused by the API; an answer, or a request, that makes no sense.
        http = import_module("requests.exceptions")
        stone = import_module("stone.backends.python_rsrc.stone_validators")
        self._refusal: Any = sdk.exceptions.ApiError
        self._unreadable: tuple[type[Exception], ...] = (http.InvalidJSONError,)
        self._unsendable: tuple[type[Exception], ...] = (http.InvalidURL, stone.ValidationError)
        self._may_refresh = "refresh_token" in secrets
        self._refresh_lock, self._token = Lock(), secrets.get("access_token")
        self._last = _Last()
        self._session.hooks["response"].append(self._last.note)
        self.session_threshold_bytes = session_threshold_bytes
        self.session_piece_bytes = session_piece_bytes
        self.list_page_entries = list_page_entries

    @classmethod
    def connect(cls, spec: ProviderSpec, endpoint: Endpoint | None, credentials: Mapping[str, str]) -> DropboxDriver:
        """The driver for ``dropbox``. Nothing is sent before the first operation."""
        if spec.target:
            raise SpecError(f"provider {spec.text!r}: nothing may follow 'dropbox:'; the account's root is used")
        check_params(spec, {"content_hash", "token_env"})
        content_hash = spec.params.get("content_hash", "0")
        if content_hash not in {"0", "1"}:
            raise SpecError(f"provider {spec.text!r}: content_hash is 0 or 1, not {content_hash!r}")
        given = {"access_token": endpoint.access_token} if endpoint else credentials
        secrets = usable_credentials(spec.scheme, cls.credential_sets, given)
        sdk = import_lazily("dropbox", _LAZY_NAMESPACES, _LAZY_VERSIONED)
        session = _session(sdk, endpoint)
        client = sdk.Dropbox(
            oauth2_access_token=secrets.get("access_token"),
            oauth2_refresh_token=secrets.get("refresh_token"),
            app_key=secrets.get("app_key"),
            app_secret=secrets.get("app_secret"),
            max_retries_on_error=0,
            max_retries_on_rate_limit=0,
            session=session,
            timeout=_TIMEOUT_S,
            auto_content_hash=content_hash == "1",
        )
        # The loop around a request repeats it after an expired token, which no setting turns off.
        client.request_json_string_with_retry = client.request_json_string
        if endpoint is not None:
            # Of this client alone: environment and module constants are everyone's.
            client._host_map = {role: endpoint.hosts[role] for role in ("api", "content", "notify")}
        return cls(sdk, client, session, secrets)

    def versions(self) -> Mapping[str, str]:
        """Libraries, and what is switched off in them."""
        names = ("dropbox", "requests", "urllib3", "stone")
        return {name: version(name) for name in names} | {
            "openssl": ssl.OPENSSL_VERSION,
            "dropbox.retries": "off",
            "dropbox.content_hash": "on" if self._client._auto_content_hash else "off",
        }

    def close(self) -> None:
        """Close all connections."""
        self._session.close()

    @contextmanager
    def _calling(self, operation: str, path: str) -> Iterator[Any]:
        """The SDK's client, with whatever goes wrong turned into CloudError."""
        self._last.response = None
        try:
            if self._may_refresh:
                # A no-op while the token lives. Without the lock every thread would refresh at once.
                with self._refresh_lock:
                    self._client.check_and_refresh_access_token()
                    if (token := self._client._oauth2_access_token) != self._token:
                        redact.learn([token])
                        self._token = token
            yield self._client
        except Exception as error:
            if isinstance(error, CloudError):
                raise
            kind, detail = self._why(error)
            if self._last.response is not None:
                self._last.response.close()  # the SDK leaves that of a download open
            header_s = self._last.retry_after_s()
            retry_after_s = getattr(error, "backoff", None) if header_s is None else header_s
            redact.clean_error(error)
            detail = redact.clean(detail)[:_DETAIL_CHARACTERS]
            raise CloudError(kind, operation, path, retry_after_s=retry_after_s, detail=detail) from error

    def _why(self, error: Any) -> tuple[ErrorKind, str]:
        if isinstance(error, self._refusal):
            tags = _tags(error.error)
            known = [_TAG_KINDS[tag] for tag in tags if tag in _TAG_KINDS]
            return known[-1] if known else ErrorKind.INVALID, "/".join(tags)
        if isinstance(error, OSError) and not isinstance(error, (*self._unreadable, *self._unsendable)):
            return ErrorKind.NETWORK, str(error)  # all that requests raises is an OSError
        text = str(getattr(error, "body", None) or error)
        status = getattr(error, "status_code", None) or getattr(self._last.response, "status_code", None)
        if status is not None:
            return _kind_of_status(status, text), f"{status} {text}"
        if isinstance(error, self._unsendable):
            return ErrorKind.INVALID, text
        raise error  # a mistake in this file, and not the provider's

    def _entry(self, found: Any) -> Entry:
        path = found.path_display or found.path_lower or ""
        if isinstance(found, self._files.FolderMetadata):
            return Entry(path, is_folder=True)
        return Entry(path, size_bytes=found.size, digest=found.content_hash, revision=found.rev)

    # --- required verbs ---------------------------------------------------------------------------

    def put(self, path: str, content: Content) -> Entry:
        """One request, or an upload session above the size that one request may have."""
        if content.size_bytes > self.session_threshold_bytes:
            return self._put_in_pieces(path, content)
        data = content.read(0, content.size_bytes)
        with self._calling("put", path) as client:
            return self._entry(client.files_upload(data, path, mode=self._files.WriteMode.overwrite, mute=True))

    def _put_in_pieces(self, path: str, content: Content) -> Entry:
        piece_bytes, size_bytes, files = self.session_piece_bytes, content.size_bytes, self._files
        data = content.read(0, piece_bytes)
        with self._calling("put", path) as client:
            session_id = client.files_upload_session_start(data).session_id
        offset = len(data)
        while size_bytes - offset > piece_bytes:
            data = content.read(offset, piece_bytes)
            with self._calling("put", path) as client:
                client.files_upload_session_append_v2(data, files.UploadSessionCursor(session_id, offset))
            offset += len(data)
        data = content.read(offset, size_bytes - offset)
        with self._calling("put", path) as client:
            cursor = files.UploadSessionCursor(session_id, offset)
            commit = files.CommitInfo(path, mode=files.WriteMode.overwrite, mute=True)
            return self._entry(client.files_upload_session_finish(data, cursor, commit))

    def get(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """The file's bytes from ``offset``; the request is sent when the first piece is asked for."""
        headers = {"Range": f"bytes={offset}-"} if offset else None
        with self._calling("get", path) as client:
            _, response = client.files_download(path, extra_headers=headers)
            # Closing returns the connection to the pool if all was read, and drops it otherwise.
            with closing(response):
                if offset and response.status_code != 206:
                    raise CloudError(ErrorKind.SERVER, "get", path, detail="the range was ignored")
                first = next(response.iter_content(_FIRST_READ_BYTES), b"")
                if first:
                    yield first
                    yield from response.iter_content(_READ_PIECE_BYTES)

    def stat(self, path: str) -> Entry:
        """What Dropbox knows of one path."""
        with self._calling("stat", path) as client:
            return self._entry(client.files_get_metadata(path))

    def list(self, folder: str) -> Iterator[Entry]:
        """All below ``folder``, page by page."""
        top = "" if folder == "/" else folder
        with self._calling("list", folder) as client:
            page = client.files_list_folder(top, recursive=True, limit=self.list_page_entries)
        while True:
            for found in page.entries:
                # A recursive list starts with the folder itself.
                if found.path_lower != top.lower() and not isinstance(found, self._files.DeletedMetadata):
                    yield self._entry(found)
            if not page.has_more:
                return
            with self._calling("list", folder) as client:
                page = client.files_list_folder_continue(page.cursor)

    def delete(self, path: str) -> None:
        """Remove a file, or a folder with all it holds."""
        with self._calling("delete", path) as client:
            client.files_delete_v2(path)

    def mkdir(self, path: str) -> None:
        """Create a folder; Dropbox creates its parents. No error where it exists."""
        with self._calling("mkdir", path) as client:
            try:
                client.files_create_folder_v2(path)
            except self._refusal as error:
                if _tags(error.error) != ["path", "conflict", "folder"]:
                    raise

    # --- optional verbs ---------------------------------------------------------------------------

    def share(self, path: str) -> str:
        """The address of a new public link to ``path``; where there is one already it is a conflict."""
        with self._calling("share", path) as client:
            return str(client.sharing_create_shared_link_with_settings(path).url)

    def revoke(self, url: str) -> None:
        """Make a link from ``share`` unusable."""
        with self._calling("revoke", url) as client:
            client.sharing_revoke_shared_link(url)

    def copy(self, source: str, target: str) -> Entry:
        """Copy a file or folder; an existing target is a conflict."""
        with self._calling("copy", source) as client:
            return self._entry(client.files_copy_v2(source, target).metadata)

    def move(self, source: str, target: str) -> Entry:
        """Rename a file or folder; an existing target is a conflict."""
        with self._calling("move", source) as client:
            return self._entry(client.files_move_v2(source, target).metadata)

    def space(self) -> tuple[int, int]:
        """Bytes used, and bytes the account may hold."""
        with self._calling("space", "/") as client:
            usage = client.users_get_space_usage()
        kind = usage.allocation
        return int(usage.used), int((kind.get_team() if kind.is_team() else kind.get_individual()).allocated)


def _session(sdk: Any, endpoint: Endpoint | None) -> Any:
    """The SDK's own session. Its adapter never retries (``max_retries=0``)."""
    session = sdk.create_session(max_connections=_POOL_CONNECTIONS, ca_certs=endpoint.ca_file if endpoint else None)
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=()))
    session.get_redirect_target = lambda _response: None
    if endpoint is not None:
        # REQUESTS_CA_BUNDLE would override the authority, and a proxy must not carry loopback traffic.
        # Towards the real service both apply, as they do for an application.
        session.trust_env = False
    return session
