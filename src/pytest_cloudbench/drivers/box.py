"""Driver for Box with the official SDK.

What may live here: everything that is specific to Box as a client, in this order: imports, capabilities, error table,
connect, required verbs, optional verbs.

Box knows no paths, only ids. A path is looked up name by name, with the check that Box offers before an upload: its
answer has the id of whatever has that name, however many entries the folder has. What the driver remembers, and how
that stays true:

- Ids of folders. A 404 for a remembered folder is followed by one more attempt with ids that are looked up anew.
- Id and etag of files that it has stored, for the next ``put`` to the same path. That ``put`` sends ``If-Match``, so a
  file that was changed, renamed or moved meanwhile is never overwritten by mistake. Reads look a file up each time.

What the SDK does on its own, and how this driver handles it:

- It repeats requests by two counters, one for answers and one for broken connections: both are off. The exception is
  part of the service's protocol: a commit of an upload session that is answered by 202 is sent again by the SDK, after
  the seconds that the service names.
- It gets another token after a 401 only by repeating: off. With client credentials or a stored login, the driver asks
  for the next token shortly before the old one ends, inside the operation that notices it.
- Its HTTP library follows redirects: only a download may be redirected, and only to a host of the service.
- It reads a download in pieces of 1 KiB, which costs CPU: the driver reads the answer itself.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from importlib import import_module
from io import BytesIO
from typing import Any, ClassVar, TypeVar

from pytest_cloudbench.drivers._box_members import SharesBoxFolders
from pytest_cloudbench.drivers._box_memory import Memory
from pytest_cloudbench.drivers._box_network import (
    RenewsBoxToken,
    authentication,
    commit_retries,
    forget_details,
    new_network_session,
)
from pytest_cloudbench.drivers._box_trash import FindsInBoxTrash
from pytest_cloudbench.drivers.base import (
    CredentialSet,
    LastResponse,
    OAuthLogin,
    check_params,
    kind_of_status,
    timeout_of,
    usable_credentials,
    walk,
)
from pytest_cloudbench.drivers.keys import as_file
from pytest_cloudbench.drivers.pages import PageTokens
from pytest_cloudbench.drivers.sdk import Meaning, OwnError, response_pieces
from pytest_cloudbench.drivers.stranger import Stranger
from pytest_cloudbench.model import (
    Capabilities,
    CloudError,
    Conflict,
    Content,
    Endpoint,
    Entry,
    ErrorKind,
    NameRules,
    ProviderSpec,
    Verb,
)

# --- capabilities ---------------------------------------------------------------------------------

_SDK = "pytest_cloudbench.drivers._box_sdk"
_CAPABILITIES = Capabilities(
    digest="sha1",
    verbs=frozenset(Verb),
    revisions=True,
    ranges=True,
    conflicts=frozenset(Conflict) - {Conflict.SHARE_AGAIN},
    copies_folders=True,
    moves_folders=True,
    server_side_copy=True,
    space=True,
    names=NameRules(case_sensitive=False, max_chars=255, refused="\\\x7f" + "".join(map(chr, range(1, 32)))),
    max_request_bytes=50_000_000,
    # With the ids of all folders known. A put onto a file that this driver did not store, one above max_request_bytes
    # and a list of many entries or folders send more; a download is a redirect and the content.
    requests={
        Verb.PUT: 1, Verb.GET: 3, Verb.STAT: 2, Verb.LIST: 1, Verb.DELETE: 2, Verb.COPY: 2, Verb.MOVE: 2, Verb.SHARE: 2,
        Verb.REVOKE: 2,
    },
    via="boxsdk on requests; retries off; downloads without the SDK's pieces of 1 KiB",
)  # fmt: skip

# Larger files go in parts, as the service recommends from here on.
_SESSION_THRESHOLD_BYTES = 50_000_000
_LIST_PAGE_ENTRIES = 1000
_ITEM_FIELDS = ["name", "size", "sha1", "file_version", "parent"]

# --- error table ----------------------------------------------------------------------------------

# A refusal's code; where it is not known, its status decides.
_CODE_KINDS: Mapping[str, ErrorKind] = {
    "rate_limit_exceeded": ErrorKind.THROTTLED,
    "too_many_requests": ErrorKind.THROTTLED,
    "storage_limit_exceeded": ErrorKind.QUOTA,
    "file_size_limit_exceeded": ErrorKind.QUOTA,
    "bad_digest": ErrorKind.CORRUPT,
    "digest_mismatch": ErrorKind.CORRUPT,
    "cyclical_folder_structure": ErrorKind.CONFLICT,
    "folder_not_empty": ErrorKind.CONFLICT,
    "invalid_grant": ErrorKind.AUTH,
    "invalid_client": ErrorKind.AUTH,
    "unauthorized_client": ErrorKind.AUTH,
}


_Result = TypeVar("_Result")
_StoredFile = tuple[Entry, str, str]
_Page = tuple[Sequence[tuple[Entry, str]], str | None]


class _NameIsFree(Exception):
    """The service says that nothing has a name: the cause of a CloudError."""


# --- connect --------------------------------------------------------------------------------------


class BoxDriver(RenewsBoxToken, SharesBoxFolders, FindsInBoxTrash):
    """The SDK's managers on one session, shared by all threads.

    That is safe: the managers have no state, and the session's only state is its cookies, which are refused. The token
    is renewed under a lock, once for all threads.
    """

    imports = (_SDK, "requests.exceptions")
    libraries = ("boxsdk", "requests", "urllib3", "openssl")
    settings: Mapping[str, str] = {"boxsdk.retries": "off"}
    capabilities: ClassVar[Capabilities] = _CAPABILITIES
    credential_sets: ClassVar[tuple[CredentialSet, ...]] = (
        CredentialSet(("access_token",)),
        CredentialSet(("client_id", "client_secret", "enterprise_id"), public=("client_id", "enterprise_id")),
        CredentialSet(("client_id", "client_secret", "user_id"), public=("client_id", "user_id")),
        CredentialSet(
            ("refresh_token", "client_id", "client_secret"),
            ("renewed_token", "renewed_until_s"),
            public=("client_id", "renewed_until_s"),
            single_use=True,
        ),
    )
    clock_url: ClassVar[str] = "https://api.box.com/2.0/users/me"
    oauth: ClassVar[OAuthLogin] = OAuthLogin(
        "https://account.box.com/api/oauth2/authorize",
        "https://api.box.com/oauth2/token",
        "https://app.box.com/developers/console",
        port=53147,
    )

    def __init__(self, sdk: Any, session: Any, network: Any, secrets: Mapping[str, str]) -> None:
        http = import_module("requests.exceptions")
        self._sdk, self._session, self._last = sdk, session, LastResponse()
        super().__init__(self._last, session.egress.remarks, session)
        self._last.watch(session)
        self._refusal, self._failure = sdk.BoxAPIError, sdk.BoxSDKError
        self._unreadable: tuple[type[Exception], ...] = (http.InvalidJSONError,)
        self._unsendable: tuple[type[Exception], ...] = (http.InvalidURL, http.InvalidHeader)
        self._broken: tuple[type[Exception], ...] = (http.RequestException, OSError)
        auth = self._auth = authentication(sdk, network, secrets)
        options = {"auth": auth, "network_session": network}
        patient = {"auth": auth, "network_session": network.with_retry_strategy(commit_retries(sdk))}
        self._files, self._folders = sdk.FilesManager(**options), sdk.FoldersManager(**options)
        self._uploads, self._downloads = sdk.UploadsManager(**options), sdk.DownloadsManager(**options)
        self._parts, self._commits = sdk.ChunkedUploadsManager(**options), sdk.ChunkedUploadsManager(**patient)
        self._users, self._links = sdk.UsersManager(**options), sdk.SharedLinksFilesManager(**options)
        self._listed, self._members = sdk.ListCollaborationsManager(**options), sdk.UserCollaborationsManager(**options)
        self._trash, self._memory = sdk.TrashedItemsManager(**options), Memory()
        self.session_threshold_bytes = _SESSION_THRESHOLD_BYTES
        self.list_page_entries = _LIST_PAGE_ENTRIES

    @classmethod
    def connect(cls, spec: ProviderSpec, endpoint: Endpoint | None, credentials: Mapping[str, str]) -> BoxDriver:
        """Return the driver for ``box``. Nothing is sent before the first operation."""
        check_params(spec, {"timeout_s", "token_env"}, no_target="the account's root is used")
        fields = endpoint.credentials if endpoint else credentials
        secrets = usable_credentials(spec.scheme, cls.credential_sets, fields)
        sdk = import_module(_SDK).sdk
        session, network = new_network_session(sdk, endpoint, timeout_of(spec))
        return cls(sdk, session, network, secrets)

    @contextmanager
    def _cloud_errors(self, verb: str, path: str) -> Iterator[None]:
        """Raise every error as CloudError, also an answer that only looks like a success."""
        self._last.response = None
        with super()._cloud_errors(verb, path):
            yield
            if (self._last.status() or 200) >= 300:
                raise OwnError(ErrorKind.SERVER, f"{self._last.status()}: a redirect that is not followed")

    def _explain_error(self, error: Any) -> Meaning | None:
        kind, words = self._kind_of_error(error)
        if kind is None:
            return None
        forget_details(error)
        return Meaning(kind, words, self._last.retry_after_s())

    def _kind_of_error(self, error: Any) -> tuple[ErrorKind | None, str]:
        if isinstance(error, self._refusal):
            info = error.response_info
            body = info.body or {}
            code = str(info.code or body.get("error") or "")
            words = body.get("message") or body.get("error_description") or info.raw_body or ""
            status = int(info.status_code)
            return _CODE_KINDS.get(code) or kind_of_status(status), f"{status} {code} {words}"
        cause = error.error if isinstance(error, self._failure) and error.error is not None else error
        if isinstance(cause, (*self._unsendable, UnicodeError)):
            return ErrorKind.INVALID, str(cause)
        if isinstance(cause, self._broken) and not isinstance(cause, self._unreadable):
            return ErrorKind.NETWORK, str(cause)
        if self._last.status() is not None:
            return ErrorKind.SERVER, f"{self._last.status()}: the answer cannot be read"
        if isinstance(cause, self._failure):
            return ErrorKind.SERVER, str(cause.message)
        return None, ""

    # --- from paths to ids ------------------------------------------------------------------------

    def prepare(self, folder: str) -> None:
        """Look up the ids of a folder and of those above it."""
        self._folder_id("prepare", folder)

    def _retry_if_stale(self, attempt: Callable[[], _Result], *paths: str) -> _Result:
        """Try, and try once more with freshly looked-up ids if remembered ones on the way to the paths led nowhere."""
        try:
            return attempt()
        except CloudError as error:
            is_stale = error.kind is ErrorKind.NOT_FOUND and not isinstance(error.__cause__, _NameIsFree)
            if not is_stale or not self._memory.forget_folders_to(*paths):
                raise
        return attempt()

    def _nearest_folder(self, verb: str, path: str) -> tuple[str, str, Sequence[str]]:
        """Return the longest known folder on the way to a path, its id, and the names that follow."""
        if not path.startswith("/"):
            raise CloudError(ErrorKind.INVALID, verb, path, detail="a path begins with /")
        return self._memory.nearest_folder(path)

    def _item_by_name(self, verb: str, path: str, folder_id: str, name: str) -> tuple[str, str]:
        """Return type and id of the item that has a name in a folder. Raises CloudError, also if there is none."""
        try:
            with self._cloud_errors(verb, path):
                parent = self._sdk.PreflightFileUploadCheckParent(id=folder_id)
                if not self._uploads.preflight_file_upload_check(name=name, parent=parent).upload_url:
                    raise OwnError(ErrorKind.SERVER, "the service did not say whether the name is taken")
        except CloudError as error:
            if (item := _item_in_the_way(error)) is None:
                raise
            return item
        raise CloudError(ErrorKind.NOT_FOUND, verb, path, detail="nothing has this name") from _NameIsFree(name)

    def _item_at(self, verb: str, path: str) -> tuple[str, str]:
        """Return type and id of the item at a path. Looks up what is below the longest known folder."""
        parent, item_id, names = self._nearest_folder(verb, path)
        kind = "folder"
        for name in names:
            if kind != "folder":
                raise CloudError(ErrorKind.NOT_FOUND, verb, path, detail=f"{parent} is not a folder") from _NameIsFree(
                    name
                )
            kind, item_id = self._item_by_name(verb, path, item_id, name)
            parent = f"{parent}/{name}"
            if kind == "folder":
                self._memory.remember_folder(parent, item_id)
        return kind, item_id

    def _folder_id(self, verb: str, path: str) -> str:
        kind, item_id = self._item_at(verb, path)
        if kind != "folder":
            raise CloudError(ErrorKind.CONFLICT, verb, path, detail="not a folder")
        return item_id

    def _file_id(self, verb: str, path: str) -> str:
        kind, item_id = self._look_up_item(verb, path)
        if kind != "file":
            raise CloudError(ErrorKind.CONFLICT, verb, path, detail="not a file")
        return item_id

    def _look_up_item(self, verb: str, path: str) -> tuple[str, str]:
        """Like ``_item_at``, but always looks up the last name, which may belong to another item by now."""
        parent, name = _split_path(verb, path)
        return self._item_by_name(verb, path, self._folder_id(verb, parent), name)

    def _ensure_folder(self, verb: str, path: str, about: str, *, asks: bool = False) -> str:
        """Return the id of a folder, and create what is missing. If ``asks``, the service is asked in any case."""
        parent, folder_id, names = self._nearest_folder(verb, path)
        if asks and not names and parent:
            parent, _, name = parent.rpartition("/")
            _, folder_id, names = self._nearest_folder(verb, parent or "/")
            names = [*names, name]
        for name in names:
            parent = f"{parent}/{name}"
            folder_id = self._memory.remember_folder(parent, self._create_folder(verb, about, folder_id, name))
        return folder_id

    def _create_folder(self, verb: str, path: str, parent_id: str, name: str) -> str:
        try:
            with self._cloud_errors(verb, path):
                parent = self._sdk.CreateFolderParent(id=parent_id)
                return str(self._folders.create_folder(name, parent, fields=["id"]).id)
        except CloudError as error:
            item = _item_in_the_way(error)
            if item is None or item[0] != "folder":
                raise
            return item[1]

    # --- required verbs ---------------------------------------------------------------------------

    def put(self, path: str, content: Content) -> Entry:
        """Upload in one request, or in parts if the file is large. A file that has that name gets a new version."""
        parent, name = _split_path("put", path)
        earlier = self._memory.take_stored(path)
        if earlier is not None:
            try:
                return self._remember_stored(path, self._upload_new_version(path, name, content, *earlier))
            except CloudError as error:
                if error.kind not in (ErrorKind.CONFLICT, ErrorKind.NOT_FOUND):
                    raise
                # The file is no longer the one that this driver stored: the one that has the name now gets the content.
        return self._remember_stored(
            path, self._retry_if_stale(lambda: self._upload_by_name(path, parent, name, content), path)
        )

    def _upload_by_name(self, path: str, parent: str, name: str, content: Content) -> _StoredFile:
        folder_id = self._ensure_folder("put", parent, path)
        try:
            return self._upload_new_file(path, content, folder_id, name)
        except CloudError as error:
            item = _item_in_the_way(error)
            if item is None or item[0] != "file":
                raise
            return self._upload_new_version(path, name, content, item[1], None)

    def _remember_stored(self, path: str, stored: _StoredFile) -> Entry:
        entry, file_id, etag = stored
        self._memory.remember_stored(path, file_id, etag)
        return entry

    def _upload_new_file(self, path: str, content: Content, folder_id: str, name: str) -> _StoredFile:
        if content.size_bytes > self.session_threshold_bytes:
            with self._cloud_errors("put", path):
                session = self._parts.create_file_upload_session(folder_id, content.size_bytes, name)
            return self._upload_in_parts(path, content, session, None)
        with self._cloud_errors("put", path):
            parent = self._sdk.UploadFileAttributesParentField(id=folder_id)
            attributes = self._sdk.UploadFileAttributes(name=name, parent=parent)
            return _stored_file(path, self._uploads.upload_file(attributes, as_file(content), file_file_name=name))

    def _upload_new_version(
        self, path: str, name: str, content: Content, file_id: str, etag: str | None
    ) -> _StoredFile:
        if content.size_bytes > self.session_threshold_bytes:
            with self._cloud_errors("put", path):
                session = self._parts.create_file_upload_session_for_existing_file(file_id, content.size_bytes)
            return self._upload_in_parts(path, content, session, etag)
        with self._cloud_errors("put", path):
            attributes = self._sdk.UploadFileVersionAttributes(name=name)
            answer = self._uploads.upload_file_version(
                file_id, attributes, as_file(content), file_file_name=name, if_match=etag
            )
            return _stored_file(path, answer)

    def _upload_in_parts(self, path: str, content: Content, session: Any, etag: str | None) -> _StoredFile:
        """Upload the parts, of the size that the service dictates, and commit them."""
        with self._cloud_errors("put", path):
            session_id, part_bytes = str(session.id), int(session.part_size)
        file_hash, parts, size_bytes = hashlib.sha1(usedforsecurity=False), [], content.size_bytes
        for offset in range(0, size_bytes, part_bytes):
            data = content.read(offset, min(part_bytes, size_bytes - offset))
            file_hash.update(data)
            digest = f"sha={_base64_text(hashlib.sha1(data, usedforsecurity=False).digest())}"
            span = f"bytes {offset}-{offset + len(data) - 1}/{size_bytes}"
            with self._cloud_errors("put", path):
                parts.append(self._parts.upload_file_part(session_id, BytesIO(data), digest, span).part)
        with self._cloud_errors("put", path):
            digest = f"sha={_base64_text(file_hash.digest())}"
            answer = self._commits.create_file_upload_session_commit(session_id, parts, digest, if_match=etag)
            if answer is None:
                raise OwnError(ErrorKind.SERVER, "202: the upload is not committed yet")
            return _stored_file(path, answer)

    def get(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """Yield the file's bytes from ``offset``. The requests are sent when the first piece is asked for."""
        yield from self._read(path, self._retry_if_stale(lambda: self._file_id("get", path), path), offset)

    def _read(self, path: str, file_id: str, offset: int = 0) -> Iterator[bytes]:
        span = f"bytes={offset}-" if offset else None
        with self._cloud_errors("get", path):
            stream = self._downloads.download_file(file_id, range=span)
            response = self._last.response
            try:
                if stream is None or response.status_code != (206 if offset else 200):
                    status = response.status_code
                    problem = "202: not ready yet" if stream is None else f"{status}: not the range asked for"
                    raise OwnError(ErrorKind.SERVER, problem)
                yield from response_pieces(response)
            finally:
                # This returns the connection to the pool if everything was read, and drops it otherwise.
                response.close()

    def stat(self, path: str) -> Entry:
        """Return what Box knows about one path."""
        return self._retry_if_stale(lambda: self._stat_item(path), path)

    def _stat_item(self, path: str) -> Entry:
        if path and not path.strip("/"):
            return Entry(path, is_folder=True)
        kind, item_id = self._look_up_item("stat", path)
        with self._cloud_errors("stat", path):
            read = self._folders.get_folder_by_id if kind == "folder" else self._files.get_file_by_id
            return _entry_of_item(path, read(item_id, fields=_ITEM_FIELDS))

    def list(self, folder: str) -> Iterator[Entry]:
        """Yield everything below ``folder``, folder by folder and page by page."""
        return walk((folder.rstrip("/"), ""), lambda parent: self._list_children(folder, *parent))

    def _list_children(self, folder: str, path: str, folder_id: str) -> Iterator[tuple[Entry, tuple[str, str]]]:
        """Yield what is directly in the folder at ``path``. Without an id, that of ``folder`` is looked up."""

        def first_page() -> tuple[str, _Page]:
            own_id = folder_id or self._folder_id("list", folder)
            return own_id, self._list_page(folder, path, own_id, None)

        folder_id, (entries, marker) = first_page() if folder_id else self._retry_if_stale(first_page, folder)
        tokens = PageTokens("list", folder)
        while True:
            for entry, item_id in entries:
                if entry.is_folder:
                    self._memory.remember_folder(entry.path, item_id)
                yield entry, (entry.path, item_id)
            if not marker:
                return
            tokens.use(marker)
            entries, marker = self._list_page(folder, path, folder_id, marker)

    def _list_page(self, folder: str, path: str, folder_id: str, marker: str | None) -> _Page:
        """Return files and folders of one page with their ids, and the marker of the next page."""
        with self._cloud_errors("list", folder):
            page = self._folders.get_folder_items(
                folder_id, fields=_ITEM_FIELDS, usemarker=True, marker=marker, limit=self.list_page_entries
            )
            if page.entries is None:
                raise OwnError(ErrorKind.SERVER, "the answer has no entries")
            items = [item for item in page.entries if item.type in ("file", "folder")]
            return [(_entry_of_item(f"{path}/{item.name}", item), str(item.id)) for item in items], page.next_marker

    def delete(self, path: str) -> None:
        """Move a file, or a folder with all its contents, to the trash."""
        self._retry_if_stale(lambda: self._delete_item(path), path)
        self._memory.forget_below(path)

    def _delete_item(self, path: str) -> None:
        kind, item_id = self._look_up_item("delete", path)
        with self._cloud_errors("delete", path):
            if kind == "folder":
                self._folders.delete_folder_by_id(item_id, recursive=True)
            else:
                self._files.delete_file_by_id(item_id)

    def mkdir(self, path: str) -> None:
        """Create a folder and its parents. No error if it exists."""
        self._retry_if_stale(lambda: self._ensure_folder("mkdir", path, path, asks=True), path)

    # --- optional verbs ---------------------------------------------------------------------------

    def share(self, path: str) -> str:
        """Return the URL of a public link to ``path``. Another call returns the same one."""
        return self._share(path, {})

    def share_until(self, path: str, ends_at: datetime) -> str:
        """Return the URL of a public link to ``path`` that ends by itself."""
        return self._share(path, {"unshared_at": ends_at})

    def _share(self, path: str, limits: Mapping[str, datetime]) -> str:
        def attempt() -> str:
            kind, item_id = self._look_up_item("share", path)
            with self._cloud_errors("share", path):
                return str(self._change_link(kind, item_id, limits).shared_link.url)

        return self._retry_if_stale(attempt, path)

    def revoke(self, url: str) -> None:
        """Make a link from ``share`` unusable."""
        with self._cloud_errors("revoke", url):
            item = self._links.find_file_for_shared_link(f"shared_link={url}", fields=["type"])
            kind, item_id = str(getattr(item.type, "value", item.type)), str(item.id)
        with self._cloud_errors("revoke", url):
            self._change_link(kind, item_id, None)

    @staticmethod
    def open_link(url: str, stranger: Stranger) -> bytes:
        """Return what a link gives to a person without an account."""
        home, _, token = url.rstrip("/").rpartition("/s/")
        return stranger.read(f"{home}/shared/static/{token}")

    def _change_link(self, kind: str, item_id: str, limits: Mapping[str, datetime] | None) -> Any:
        """Give an item a public link with limits, or remove its link if ``limits`` is None. Return the item."""
        if kind == "folder":
            link = self._sdk.null if limits is None else self._sdk.UpdateFolderByIdSharedLink(**limits)
            return self._folders.update_folder_by_id(item_id, shared_link=link, fields=["shared_link"])
        link = self._sdk.null if limits is None else self._sdk.UpdateFileByIdSharedLink(**limits)
        return self._files.update_file_by_id(item_id, shared_link=link, fields=["shared_link"])

    def copy(self, source: str, target: str) -> Entry:
        """Copy a file or folder. An existing target is a conflict."""

        def attempt(kind: str, item_id: str, parent_id: str, name: str) -> Any:
            if kind == "folder":
                parent = self._sdk.CopyFolderParent(id=parent_id)
                return self._folders.copy_folder(item_id, parent, name=name, fields=_ITEM_FIELDS)
            return self._files.copy_file(
                item_id, self._sdk.CopyFileParent(id=parent_id), name=name, fields=_ITEM_FIELDS
            )

        return self._transfer_item("copy", source, target, attempt)

    def move(self, source: str, target: str) -> Entry:
        """Rename a file or folder. An existing target is a conflict."""

        def attempt(kind: str, item_id: str, parent_id: str, name: str) -> Any:
            if kind == "folder":
                parent = self._sdk.UpdateFolderByIdParent(id=parent_id)
                return self._folders.update_folder_by_id(item_id, name=name, parent=parent, fields=_ITEM_FIELDS)
            parent = self._sdk.UpdateFileByIdParent(id=parent_id)
            return self._files.update_file_by_id(item_id, name=name, parent=parent, fields=_ITEM_FIELDS)

        entry = self._transfer_item("move", source, target, attempt)
        self._memory.forget_below(source)
        return entry

    def _transfer_item(self, verb: str, source: str, target: str, action: Callable[[str, str, str, str], Any]) -> Entry:
        parent, name = _split_path(verb, target)

        def attempt() -> Entry:
            kind, item_id = self._look_up_item(verb, source)
            parent_id = self._ensure_folder(verb, parent, source)
            with self._cloud_errors(verb, source):
                return _entry_of_item(target, action(kind, item_id, parent_id, name))

        try:
            return self._retry_if_stale(attempt, source, target)
        finally:
            self._memory.forget_below(target)

    def space(self) -> tuple[int, int]:
        """Return the bytes used, and the bytes that the account may hold."""
        with self._cloud_errors("space", "/"):
            user = self._users.get_user_me(fields=["space_used", "space_amount"])
            return int(user.space_used), int(user.space_amount)


# --- helpers --------------------------------------------------------------------------------------


def _split_path(verb: str, path: str) -> tuple[str, str]:
    """Return the folder of a path, and the name in it. Raises CloudError."""
    parent, slash, name = path.rpartition("/")
    if not path.startswith("/") or not slash or not name:
        raise CloudError(ErrorKind.INVALID, verb, path, detail="expected /NAME or /FOLDER/NAME")
    return parent or "/", name


def _item_in_the_way(error: CloudError) -> tuple[str, str] | None:
    """Return type and id of the item that has the name already, if the service refused because of that."""
    info = getattr(error.__cause__, "response_info", None)
    if error.kind is not ErrorKind.CONFLICT or getattr(info, "code", None) != "item_name_in_use":
        return None
    conflicts = (getattr(info, "context_info", None) or {}).get("conflicts")
    item = conflicts[0] if isinstance(conflicts, list) and conflicts else conflicts  # a list for folders only
    return (str(item["type"]), str(item["id"])) if isinstance(item, dict) and {"type", "id"} <= item.keys() else None


def _entry_of_item(path: str, item: Any) -> Entry:
    if str(getattr(item.type, "value", item.type)) == "folder":
        return Entry(path, is_folder=True)
    return Entry(path, size_bytes=int(item.size), digest=item.sha_1, revision=item.file_version.id)


def _stored_file(path: str, answer: Any) -> _StoredFile:
    """Return a stored file, its id and its etag."""
    file = answer.entries[0]
    return _entry_of_item(path, file), str(file.id), str(file.etag)


def _base64_text(data: bytes) -> str:
    return base64.b64encode(data).decode()
