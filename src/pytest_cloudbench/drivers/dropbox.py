"""Driver for Dropbox with the official SDK.

What may live here: everything that is specific to Dropbox as a client, in this order: imports,
capabilities, error table, connect, required verbs, optional verbs.

What the SDK does on its own, and how this driver handles it:

- It sleeps and retries on 429 (forever), on 5xx (4 times) and after an expired token (once, even when
  it has no way to get another): all three are off, one call is one request. A token that is about to expire is
  refreshed before the request, inside the operation that notices it; the driver does nothing else on its own.
- Since 12.2 it hashes every upload to send ``content_hash``: off, because that measures the client's CPU and not the
provider; ``?content_hash=1`` turns it on, and a mismatch then has the kind ``corrupt``.
- Its HTTP library follows redirects, and would send file and token again to any host that the answer names: off, a
redirect is an error. It reuses a kept-alive connection only after it has checked that the server has not closed it, and
does not resend requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from http.cookiejar import DefaultCookiePolicy
from importlib import import_module
from threading import Lock
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit

from pytest_cloudbench.drivers._dropbox_api import (
    CAPABILITIES,
    CLOCK_URL,
    CREDENTIAL_SETS,
    EDITORS_MAY,
    MEMBER_ROLES,
    OAUTH,
    SESSION_PIECE_BYTES,
    kind_of_tags,
    kind_without_tags,
    open_dropbox_link,
    require_composed,
)
from pytest_cloudbench.drivers.base import (
    CredentialSet,
    LastResponse,
    OAuthLogin,
    check_params,
    choice_of,
    role_of_level,
    timeout_of,
    usable_credentials,
)
from pytest_cloudbench.drivers.egress import Egress, egress_of
from pytest_cloudbench.drivers.pages import PageTokens
from pytest_cloudbench.drivers.sdk import (
    UNLIMITED_POOL,
    Meaning,
    OwnError,
    SdkDriver,
    network_failure,
    response_pieces,
)
from pytest_cloudbench.drivers.stranger import Stranger
from pytest_cloudbench.model import (
    MIB,
    Capabilities,
    CloudError,
    Content,
    Endpoint,
    Entry,
    ErrorKind,
    ProviderSpec,
)
from pytest_cloudbench.support import redact

# --- capabilities ---------------------------------------------------------------------------------

_SDK = "pytest_cloudbench.drivers._dropbox_sdk"
_CAPABILITIES = replace(CAPABILITIES, via="dropbox SDK on requests; retries and content_hash off")

# The SDK's hosts by their roles. The SDK itself prefers those that the environment names when it is imported.
_HOSTS = {role: f"{role}.dropboxapi.com" for role in ("api", "content", "notify")}

_Result = TypeVar("_Result")

# --- error table ----------------------------------------------------------------------------------


def _path_of_tags(error: Any) -> list[str]:
    """Return the path of tags of a refusal, from the outermost to the innermost."""
    tags = []
    while error is not None:
        tag = getattr(error, "_tag", None)
        if isinstance(tag, str):
            tags.append(tag)
            error = error._value
        else:
            error = getattr(error, "reason", None)
    return tags


class _LastRead(LastResponse):
    """A last response that reads refusals to their end. The SDK drops refused downloads unread, with the connection."""

    def note(self, response: Any, *_args: Any, **_kwargs: Any) -> None:
        """Keep a response. For use as a response hook."""
        super().note(response)
        if response.status_code >= 400:
            _ = response.content


# --- connect --------------------------------------------------------------------------------------


class DropboxDriver(SdkDriver):
    """One SDK client and one session, shared by all threads.

    That is safe: after ``connect`` the client's only state is its token, which is refreshed under a lock, and the
    session's only state is its cookies, which are refused. The pool of connections below is made for threads. Sharing
    keeps the number of connections at the number of requests in flight, and refreshes a token once instead of once per
    thread.
    """

    imports = (_SDK, "requests.exceptions", "stone.backends.python_rsrc.stone_validators")
    libraries = ("dropbox", "requests", "urllib3", "stone", "openssl")
    capabilities: ClassVar[Capabilities] = _CAPABILITIES
    member_roles, full_promises = MEMBER_ROLES, EDITORS_MAY
    credential_sets: ClassVar[tuple[CredentialSet, ...]] = CREDENTIAL_SETS
    clock_url: ClassVar[str] = CLOCK_URL
    oauth: ClassVar[OAuthLogin] = OAUTH

    def __init__(
        self,
        sdk: Any,
        client: Any,
        session: Any,
        secrets: Mapping[str, str],
        egress: Egress,
        *,
        multipart_bytes: int = 150 * MIB,
        part_bytes: int = SESSION_PIECE_BYTES,
        list_page_entries: int | None = None,
    ) -> None:
        self._files, self._client, self._session, self._last = sdk.files, client, session, _LastRead()
        self._sharing = sdk.sharing
        super().__init__(self._last, egress.remarks, session)
        hashes = "on" if client._auto_content_hash else "off"
        self.settings = {"dropbox.retries": "off", "dropbox.content_hash": hashes}
        self._last.watch(session)
        # Classes of errors, for the table: refused by the API; an answer, or a request, that makes no sense.
        http = import_module("requests.exceptions")
        stone = import_module("stone.backends.python_rsrc.stone_validators")
        self._refusal: Any = sdk.exceptions.ApiError
        self._unreadable: tuple[type[Exception], ...] = (http.InvalidJSONError,)
        self._unsendable: tuple[type[Exception], ...] = (http.InvalidURL, stone.ValidationError)
        self._may_refresh = "refresh_token" in secrets
        self._refresh_lock, self._token = Lock(), secrets.get("access_token")
        self.multipart_bytes = multipart_bytes
        self.part_bytes = part_bytes
        self.list_page_entries = list_page_entries

    @classmethod
    def connect(cls, spec: ProviderSpec, endpoint: Endpoint | None, credentials: Mapping[str, str]) -> DropboxDriver:
        """Return the driver for ``dropbox``. Nothing is sent before the first operation."""
        check_params(spec, {"content_hash", "timeout_s", "token_env"}, no_target="the account's root is used")
        content_hash = choice_of(spec, "content_hash", ("0", "1"))
        fields = endpoint.credentials if endpoint else credentials
        secrets = usable_credentials(spec.scheme, cls.credential_sets, fields)
        sdk = import_module(_SDK).sdk
        egress = egress_of(endpoint, f"https://{_HOSTS['api']}")
        session = _new_session(sdk, egress)
        client = sdk.Dropbox(
            oauth2_access_token=secrets.get("access_token"),
            oauth2_refresh_token=secrets.get("refresh_token"),
            app_key=secrets.get("app_key"),
            app_secret=secrets.get("app_secret"),
            max_retries_on_error=0,
            max_retries_on_rate_limit=0,
            session=session,
            timeout=timeout_of(spec),
            auto_content_hash=content_hash == "1",
        )
        # The loop around a request repeats it after an expired token, which no setting turns off.
        client.request_json_string_with_retry = client.request_json_string
        # Set for this client alone. The SDK's own constants are those of the environment in which it was imported.
        client.refresh_access_token = partial(client.refresh_access_token, host=_HOSTS["api"])
        client._host_map = {
            role: urlsplit(endpoint.urls[role]).netloc if endpoint else host for role, host in _HOSTS.items()
        }
        return cls(sdk, client, session, secrets, egress)

    @contextmanager
    def _cloud_errors(self, verb: str, path: str, target: str = "") -> Iterator[Any]:
        """Yield the SDK's client with a valid token, and raise every error as CloudError."""
        require_composed(verb, path, path + target)
        self._last.response = None
        with super()._cloud_errors(verb, path):
            if self._may_refresh:
                self._refresh_token()
            yield self._client

    def _refresh_token(self) -> None:
        """Get another token if the current one is about to end. The lock keeps other threads from doing the same."""
        with self._refresh_lock:
            self._client.check_and_refresh_access_token()
            if (token := self._client._oauth2_access_token) != self._token:
                redact.learn([token])
                self._token = token

    def _explain_error(self, error: Any) -> Meaning | None:
        kind, words = self._kind_of_error(error)
        if kind is None:
            return None
        if self._last.response is not None:
            self._last.response.close()  # the SDK leaves a download's response open
        header_s = self._last.retry_after_s()
        return Meaning(kind, words, getattr(error, "backoff", None) if header_s is None else header_s)

    def _kind_of_error(self, error: Any) -> tuple[ErrorKind | None, str]:
        if isinstance(error, self._refusal):
            tags = _path_of_tags(error.error)
            return kind_of_tags(tags), f"{self._last.status()} {'/'.join(tags)}"
        if isinstance(error, OSError) and not isinstance(error, (*self._unreadable, *self._unsendable)):
            return network_failure(error)[:2]  # all that requests raises is an OSError
        # Not the SDK's own text: it begins with the request's number, so no two would be equal.
        tags = _path_of_tags(getattr(error, "error", None))
        text = "/".join(tags) or str(getattr(error, "body", None) or getattr(error, "message", None) or error)
        status = getattr(error, "status_code", None) or self._last.status()
        if status is not None:
            return kind_without_tags(status, text), f"{status} {text}"
        return ErrorKind.INVALID if isinstance(error, self._unsendable) else None, text

    def _entry_of_metadata(self, metadata: Any) -> Entry:
        path = metadata.path_display or metadata.path_lower or ""
        if isinstance(metadata, self._files.FolderMetadata):
            return Entry(path, is_folder=True)
        return Entry(path, size_bytes=metadata.size, digest=metadata.content_hash, revision=metadata.rev)

    # --- required verbs ---------------------------------------------------------------------------

    def put(self, path: str, content: Content) -> Entry:
        """Upload with one request, or with an upload session if the file is too large for one request."""
        if content.size_bytes > self.multipart_bytes:
            return self._put_in_pieces(path, content)
        data = content.read(0, content.size_bytes)
        with self._cloud_errors("put", path) as client:
            return self._entry_of_metadata(
                client.files_upload(data, path, mode=self._files.WriteMode.overwrite, mute=True)
            )

    def _put_in_pieces(self, path: str, content: Content) -> Entry:
        piece_bytes, size_bytes, files = self.part_bytes, content.size_bytes, self._files
        data = content.read(0, piece_bytes)
        with self._cloud_errors("put", path) as client:
            session_id = client.files_upload_session_start(data).session_id
        offset = len(data)
        while size_bytes - offset > piece_bytes:
            data = content.read(offset, piece_bytes)
            with self._cloud_errors("put", path) as client:
                client.files_upload_session_append_v2(data, files.UploadSessionCursor(session_id, offset))
            offset += len(data)
        data = content.read(offset, size_bytes - offset)
        with self._cloud_errors("put", path) as client:
            cursor = files.UploadSessionCursor(session_id, offset)
            commit = files.CommitInfo(path, mode=files.WriteMode.overwrite, mute=True)
            return self._entry_of_metadata(client.files_upload_session_finish(data, cursor, commit))

    def get(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """Yield the file's bytes from ``offset``. The request is sent when the first piece is asked for."""
        headers = {"Range": f"bytes={offset}-"} if offset else None
        with self._cloud_errors("get", path) as client:
            _, response = client.files_download(path, extra_headers=headers)
            # Closing returns the connection to the pool if all was read, and drops it otherwise.
            with closing(response):
                if offset and response.status_code != 206:
                    raise CloudError(ErrorKind.SERVER, "get", path, detail="the range was ignored")
                yield from response_pieces(response)

    def stat(self, path: str) -> Entry:
        """Return what Dropbox knows about one path."""
        with self._cloud_errors("stat", path) as client:
            return self._entry_of_metadata(client.files_get_metadata(path))

    def list(self, folder: str) -> Iterator[Entry]:
        """Yield everything below ``folder``, page by page."""
        top = "" if folder == "/" else folder
        with self._cloud_errors("list", folder) as client:
            page = client.files_list_folder(top, recursive=True, limit=self.list_page_entries)
            entries = self._entries_of_page(page, top)
        yield from entries
        tokens = PageTokens("list", folder)
        while page.has_more:
            tokens.use(page.cursor)
            with self._cloud_errors("list", folder) as client:
                page = client.files_list_folder_continue(page.cursor)
                entries = self._entries_of_page(page, top)
            yield from entries

    def _entries_of_page(self, page: Any, top: str) -> Sequence[Entry]:
        return [
            self._entry_of_metadata(metadata)
            for metadata in page.entries
            # A recursive list starts with the folder itself.
            if metadata.path_lower != top.lower() and not isinstance(metadata, self._files.DeletedMetadata)
        ]

    def delete(self, path: str) -> None:
        """Remove a file, or a folder with all its contents."""
        with self._cloud_errors("delete", path) as client:
            client.files_delete_v2(path)

    def mkdir(self, path: str) -> None:
        """Create a folder. Dropbox creates its parents. No error if it exists."""
        with self._cloud_errors("mkdir", path) as client:
            try:
                client.files_create_folder_v2(path)
            except self._refusal as error:
                if _path_of_tags(error.error) != ["path", "conflict", "folder"]:
                    raise

    # --- optional verbs ---------------------------------------------------------------------------

    def share(self, path: str) -> str:
        """Return the URL of a new public link to ``path``. An existing link is a conflict."""
        with self._cloud_errors("share", path) as client:
            return str(client.sharing_create_shared_link_with_settings(path).url)

    def share_until(self, path: str, ends_at: datetime) -> str:
        """Return the URL of a new public link to ``path`` that ends by itself. Not for Dropbox Basic."""
        with self._cloud_errors("share", path) as client:
            settings = import_module("dropbox.sharing").SharedLinkSettings(expires=ends_at.replace(tzinfo=None))
            return str(client.sharing_create_shared_link_with_settings(path, settings).url)

    def revoke(self, url: str) -> None:
        """Make a link from ``share`` unusable."""
        with self._cloud_errors("revoke", url) as client:
            client.sharing_revoke_shared_link(url)

    @staticmethod
    def open_link(url: str, stranger: Stranger) -> bytes:
        """Return what a link gives to a person without an account."""
        return open_dropbox_link(url, stranger)

    def find_deleted(self, path: str, content: bytes) -> str:
        """Return ``as a version`` if the newest version of a deleted file still has the content. Otherwise empty."""
        with self._cloud_errors("list versions", path) as client:
            versions = client.files_list_revisions(path, limit=1).entries
        is_kept = bool(versions) and b"".join(self.get(f"rev:{versions[0].rev}")) == content
        return "as a version" if is_kept else ""

    # --- members ---

    def address(self) -> str:
        """Return the address by which others share with this account."""
        with self._cloud_errors("address", "/") as client:
            return str(client.users_get_current_account().email)

    def admit(self, path: str, address: str, level: str) -> None:
        """Let another account use a folder at a level of ``member_roles``. Sends it no e-mail."""
        folder_id = self._shared_folder("admit", path)
        with self._cloud_errors("admit", path) as client:
            access = getattr(self._sharing.AccessLevel, role_of_level(MEMBER_ROLES, level))
            members = client.sharing_list_folder_members(folder_id).users
            ids = [member.user.account_id for member in members if member.user.email.lower() == address.lower()]
            for account_id in ids:  # a member's level cannot be changed by the e-mail address
                selector = self._sharing.MemberSelector.dropbox_id(account_id)
                client.sharing_update_folder_member(folder_id, selector, access)
            if not ids:
                self._add_member(client, folder_id, address, access)

    def _add_member(self, client: Any, folder_id: str, address: str, access: Any) -> None:
        added = self._sharing.AddMember(self._sharing.MemberSelector.email(address), access)
        client.sharing_add_folder_member(folder_id, [added], quiet=True)

    def dismiss(self, path: str, address: str) -> None:
        """Undo ``admit``, which takes the service a while."""
        folder_id = self._shared_folder("dismiss", path)
        with self._cloud_errors("dismiss", path) as client:
            client.sharing_remove_folder_member(folder_id, self._sharing.MemberSelector.email(address), False)

    def refer(self, path: str) -> str:
        """Return the shared folder's id and the file's name, by which members find a file. Shares the folder."""
        folder, _, name = path.rpartition("/")
        return f"{self._shared_folder('refer', folder)}/{name}"

    def _shared_folder(self, verb: str, path: str) -> str:
        """Return the id of a shared folder. Shares the folder if it is not shared yet."""
        with self._cloud_errors(verb, path) as client:
            try:
                shared = client.sharing_share_folder(path)
            except self._refusal as error:
                if _path_of_tags(error.error) != ["bad_path", "already_shared"]:
                    raise
                return str(error.error.get_bad_path().get_already_shared().shared_folder_id)
            if not shared.is_complete():
                raise OwnError(ErrorKind.SERVER, "the folder is not shared yet")
            return str(shared.get_complete().shared_folder_id)

    def read_shared(self, reference: str) -> bytes:
        """Return the content of another account's file."""
        return self._in_mounted_folder("read", reference, lambda: b"".join(self.get(f"ns:{reference}")))

    def write_shared(self, reference: str, content: Content) -> None:
        """Replace the content of another account's file, which is small."""
        self._in_mounted_folder("write", reference, lambda: self.put(f"ns:{reference}", content))

    def delete_shared(self, reference: str) -> None:
        """Remove another account's file."""
        self._in_mounted_folder("delete", reference, lambda: self.delete(f"ns:{reference}"))

    def share_on(self, reference: str, address: str) -> None:
        """Let a third account read the shared folder that has another account's file. Sends it no e-mail."""
        with self._cloud_errors("share on", reference) as client:
            self._add_member(client, reference.partition("/")[0], address, self._sharing.AccessLevel.viewer)

    def _in_mounted_folder(self, verb: str, reference: str, attempt: Callable[[], _Result]) -> _Result:
        """Try, and once more after mounting the shared folder if it cannot be found."""
        try:
            return attempt()
        except CloudError as error:
            if error.kind not in (ErrorKind.NOT_FOUND, ErrorKind.AUTH):
                raise
            with self._cloud_errors(verb, reference) as client:
                try:
                    client.sharing_mount_folder(reference.partition("/")[0])
                except self._refusal as refusal:
                    if _path_of_tags(refusal.error) != ["already_mounted"]:
                        raise
                    raise error from None
        return attempt()

    def copy(self, source: str, target: str) -> Entry:
        """Copy a file or folder. An existing target is a conflict."""
        with self._cloud_errors("copy", source, target) as client:
            return self._entry_of_metadata(client.files_copy_v2(source, target).metadata)

    def move(self, source: str, target: str) -> Entry:
        """Rename a file or folder. An existing target is a conflict."""
        with self._cloud_errors("move", source, target) as client:
            return self._entry_of_metadata(client.files_move_v2(source, target).metadata)

    def space(self) -> tuple[int, int]:
        """Return the bytes used, and the bytes that the account may hold."""
        with self._cloud_errors("space", "/") as client:
            usage = client.users_get_space_usage()
            kind = usage.allocation
            return int(usage.used), int((kind.get_team() if kind.is_team() else kind.get_individual()).allocated)


def _new_session(sdk: Any, egress: Egress) -> Any:
    """Return the SDK's own session, without redirects. Its adapter never retries (``max_retries=0``)."""
    session = sdk.create_session(max_connections=UNLIMITED_POOL, ca_certs=egress.trusted or None)
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=()))
    session.get_redirect_target = lambda _response: None
    egress.direct_session(session)
    return session
