"""Driver for Google Drive with Google's own API client.

What may live here: everything that is specific to Google Drive as a client, in this order: imports, capabilities, error
table, connect, required verbs, optional verbs. What carries the requests is in ``_gdrive_http``, and the way from paths
to ids in ``_gdrive_paths``.

Google Drive has no paths: a file has an id, a name that others may have too, and the id of its folder. The driver turns
a path into ids by searching, one request for each part of it:

- The ids of folders are remembered, as an application remembers the folder it writes to; ``prepare`` looks them up
  before anything is measured. A remembered folder that is gone is looked up again.
- Ids of files are never remembered. A put therefore takes a search and an upload, and a get a search and a download.
- If several files have the same name, the driver takes the one changed last; of several folders, the oldest. A driver
  that has made a folder looks whether another was faster, and then takes that one. Nothing stops two writers that put a
  new file of the same name at the same time from making two.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from pytest_cloudbench.drivers._gdrive_http import SCOPES, Misled, Refused, Transport, new_token
from pytest_cloudbench.drivers._gdrive_paths import (
    FILE_FIELDS,
    FOLDER_TYPE,
    FindsDriveFiles,
    file_id_in,
    name_in_path,
    raise_error,
    split_path,
)
from pytest_cloudbench.drivers._gdrive_search import PAGE_ENTRIES
from pytest_cloudbench.drivers._gdrive_trash import FindsInDriveTrash
from pytest_cloudbench.drivers.base import (
    CredentialSet,
    OAuthLogin,
    check_params,
    kind_of_status,
    role_of_level,
    timeout_of,
    usable_credentials,
    walk,
)
from pytest_cloudbench.drivers.egress import egress_of
from pytest_cloudbench.drivers.google_home import google_credentials
from pytest_cloudbench.drivers.sdk import Meaning, meaning_of_refusal, network_failure
from pytest_cloudbench.drivers.stranger import Stranger
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
    Verb,
)

# --- capabilities ---------------------------------------------------------------------------------

_RESUMABLE_BYTES = 5 * MIB
_CAPABILITIES = Capabilities(
    digest="md5",
    verbs=frozenset(Verb),
    revisions=True,
    ranges=True,
    conflicts=frozenset(
        {Conflict.PUT_ON_FOLDER, Conflict.PUT_BELOW_FILE, Conflict.GET_FOLDER, Conflict.MKDIR_ON_FILE}
    ),
    moves_folders=True,
    server_side_copy=True,
    space=True,
    names=NameRules(),
    max_request_bytes=_RESUMABLE_BYTES,
    # With the folder's id known. A put above 5 MiB sends one more for each piece of 8 MiB, and a list at least one for
    # each folder.
    requests={
        Verb.PUT: 2, Verb.GET: 2, Verb.STAT: 1, Verb.LIST: 1, Verb.DELETE: 2, Verb.COPY: 2, Verb.MOVE: 2,
        Verb.SHARE: 2, Verb.REVOKE: 1,
    },
    via="google-api-python-client on httplib2; retries and redirects off, downloads read from its connection",
)  # fmt: skip

_MIME = "application/octet-stream"
_HOST = "https://www.googleapis.com/"
_TOKEN_URL = "https://oauth2.googleapis.com/token"  # an address
# The provider requires a multiple of 256 KiB; a small one keeps memory use low.
_PIECE_BYTES = 8 * MIB

# --- error table ----------------------------------------------------------------------------------

_REASON_KINDS: Mapping[str, ErrorKind] = {
    "rateLimitExceeded": ErrorKind.THROTTLED,
    "userRateLimitExceeded": ErrorKind.THROTTLED,
    "sharingRateLimitExceeded": ErrorKind.THROTTLED,
    "dailyLimitExceeded": ErrorKind.THROTTLED,
    "quotaExceeded": ErrorKind.THROTTLED,
    "storageQuotaExceeded": ErrorKind.QUOTA,
    "teamDriveFileLimitExceeded": ErrorKind.QUOTA,
    "activeItemCreationLimitExceeded": ErrorKind.QUOTA,
    "numChildrenInNonRootLimitExceeded": ErrorKind.QUOTA,
    "myDriveHierarchyDepthLimitExceeded": ErrorKind.QUOTA,
    "teamDriveHierarchyTooDeep": ErrorKind.QUOTA,
    "notFound": ErrorKind.NOT_FOUND,
    "fileNotDownloadable": ErrorKind.CONFLICT,
    "cannotCopyFile": ErrorKind.CONFLICT,
    "fileIdInUse": ErrorKind.CONFLICT,
    "duplicate": ErrorKind.CONFLICT,
    "conditionNotMet": ErrorKind.CONFLICT,
    "parentNotAFolder": ErrorKind.CONFLICT,
    "cannotAddParent": ErrorKind.INVALID,
    "fieldNotWritable": ErrorKind.INVALID,
    "backendError": ErrorKind.SERVER,
    "internalError": ErrorKind.SERVER,
    "transientError": ErrorKind.SERVER,
    # OAuth's words, in the answer to a renewal.
    "invalid_grant": ErrorKind.AUTH,
    "invalid_client": ErrorKind.AUTH,
    "unauthorized_client": ErrorKind.AUTH,
    "invalid_scope": ErrorKind.AUTH,
}

_STATUS_KINDS: Mapping[int, ErrorKind] = {410: ErrorKind.NOT_FOUND}


def _parse_refusal(content: bytes) -> tuple[str, str]:
    """Return the reason and the message of a refusal. If it is not Google's JSON, only the message."""
    text = content.decode(errors="replace")
    try:
        error = json.loads(text)
        if isinstance(error["error"], str):  # the token route's
            return error["error"], f"{error['error']}: {error.get('error_description', '')}"
        details = error["error"].get("errors") or [{}]
        reason = str(details[0].get("reason", ""))
        return reason, f"{reason}: {error['error'].get('message', '')}"
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError):
        return "", text


def _meaning_of(status: int, content: bytes, headers: Mapping[str, str]) -> Meaning:
    reason, text = _parse_refusal(content)
    kind = ErrorKind.SERVER if status >= 500 else _REASON_KINDS.get(reason) or kind_of_status(status, _STATUS_KINDS)
    return meaning_of_refusal(status, text, headers, kind)


# --- connect --------------------------------------------------------------------------------------


class GoogleDriveDriver(FindsDriveFiles, FindsInDriveTrash):
    """One API object for all threads, and one httplib2 client for each, since those are not safe to share."""

    imports = ("googleapiclient.discovery", "googleapiclient.http", "google.oauth2.credentials", "httplib2")
    libraries = ("google-api-python-client", "google-auth", "httplib2", "openssl")
    settings: Mapping[str, str] = {"gdrive.retries": "off", "gdrive.redirects": "off", "gdrive.file_ids": "looked up"}
    capabilities: ClassVar[Capabilities] = _CAPABILITIES
    credential_sets: ClassVar[tuple[CredentialSet, ...]] = (
        CredentialSet(("access_token",)),
        CredentialSet(("refresh_token", "client_id", "client_secret"), public=("client_id",)),
        CredentialSet(
            ("service_account_file",),
            ("subject",),
            public=("service_account_file", "subject"),
            free=("service_account_file",),
        ),
    )

    member_roles: Mapping[str, str] = {
        "reader": "read", "commenter": "", "writer": "write", "fileOrganizer": "", "organizer": "", "owner": "",
    }  # fmt: skip
    full_promises: ClassVar[frozenset[str]] = frozenset({"write", "share"})
    """Only the owner deletes what is in My Drive (developers.google.com, "Roles and permissions")."""
    elsewhere = staticmethod(google_credentials)
    clock_url: ClassVar[str] = f"{_HOST}drive/v3/about"
    oauth: ClassVar[OAuthLogin] = OAuthLogin(
        "https://accounts.google.com/o/oauth2/v2/auth",
        _TOKEN_URL,
        "https://console.cloud.google.com/apis/credentials",
        scopes=SCOPES,
        # Without these two, no refresh token comes, or only the first time. Device codes do not allow this scope.
        extra={"access_type": "offline", "prompt": "consent"},
    )

    def __init__(self, transport: Transport, api: Any, root_id: str) -> None:
        super().__init__(transport.sent, transport.egress.remarks, transport)
        self._transport, self._files = transport, api.files()
        self._permissions, self._about = api.permissions(), api.about()
        self._http_module: Any = import_module("googleapiclient.http")
        self._refusal: Any = import_module("googleapiclient.errors").HttpError
        self._auth: Any = import_module("google.auth.exceptions").GoogleAuthError
        library, client = import_module("httplib2"), import_module("http.client")
        self._failed: tuple[type[Exception], ...] = (OSError, library.HttpLib2Error, client.HTTPException)
        self._folders[""] = root_id
        self.multipart_bytes = _RESUMABLE_BYTES
        self.part_bytes = _PIECE_BYTES
        self.page_entries = PAGE_ENTRIES

    @classmethod
    def connect(
        cls, spec: ProviderSpec, endpoint: Endpoint | None, credentials: Mapping[str, str]
    ) -> GoogleDriveDriver:
        """Return the driver for ``gdrive[?root=FOLDER_ID]``. Nothing is sent before the first operation."""
        check_params(spec, {"root", "timeout_s", "token_env"}, no_target="?root=ID names another root folder")
        fields = endpoint.credentials if endpoint else credentials
        secrets = usable_credentials(spec.scheme, cls.credential_sets, fields)
        base = f"{endpoint.urls.get('api', endpoint.url)}/" if endpoint else _HOST
        token_url = f"{endpoint.urls.get('oauth', endpoint.url)}/token" if endpoint else _TOKEN_URL
        token = new_token(spec, secrets, token_url, is_emulated=endpoint is not None)
        transport = Transport(egress_of(endpoint, base), frozenset({urlsplit(base).netloc}), token, timeout_of(spec))
        discovery = import_module("googleapiclient.discovery")
        document = _api_description()
        document["rootUrl"] = base
        document["baseUrl"] = base + document["servicePath"]
        document.pop("mtlsRootUrl", None)
        api = discovery.build_from_document(document, http=transport.http)
        return cls(transport, api, spec.params.get("root", "root"))

    def _explain_error(self, error: Exception) -> Meaning | None:
        answer: Any = getattr(error, "resp", None) if isinstance(error, self._refusal) else None
        if answer is not None:
            return _meaning_of(answer.status, getattr(error, "content", b""), answer)
        if isinstance(error, Refused):
            return _meaning_of(error.status, error.content, error.headers)
        if isinstance(error, Misled):
            return Meaning(ErrorKind.SERVER, str(error))
        if isinstance(error, self._auth):
            return Meaning(ErrorKind.AUTH, str(error))
        if isinstance(error, UnicodeEncodeError):
            return Meaning(ErrorKind.INVALID, "the name is not text")
        if isinstance(error, self._failed):
            return network_failure(error)
        if isinstance(error, (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError)):
            return Meaning(ErrorKind.SERVER, f"the answer cannot be read: {error}")
        return None

    def _send(self, request: Any) -> Any:
        """Send one of the library's requests, once."""
        return request.execute(http=self._transport.http, num_retries=0)

    def prepare(self, folder: str) -> None:
        """Look up the ids of a folder and of those above it, and open this thread's connection."""
        with self._cloud_errors("prepare", folder):
            self._folder_id("prepare", folder, split_path("prepare", folder))

    def _entry_of_file(self, path: str, file: Mapping[str, Any]) -> Entry:
        if file["mimeType"] == FOLDER_TYPE:
            return Entry(path, is_folder=True)
        size_bytes = int(file.get("size", 0))
        return Entry(path, size_bytes, digest=file.get("md5Checksum"), revision=file.get("headRevisionId"))

    # --- required verbs ---------------------------------------------------------------------------

    def put(self, path: str, content: Content) -> Entry:
        """Search for the file, then create it or give it a new revision, above 5 MiB in pieces."""

        def write(folder_id: str, name: str) -> dict[str, Any]:
            files = self._search_files(folder_id, name)
            if files and files[0]["mimeType"] == FOLDER_TYPE:
                raise_error(ErrorKind.CONFLICT, "put", path, "it is a folder")
            media = self._media_upload(content)
            common = {"media_body": media, "fields": FILE_FIELDS, "supportsAllDrives": True}
            if files:
                request = self._files.update(fileId=files[0]["id"], **common)
            else:
                request = self._files.create(body={"name": name, "parents": [folder_id]}, **common)
            return dict(self._send(request))

        with self._cloud_errors("put", path):
            return self._entry_of_file(path, self._act_in_folder("put", path, write, makes=True))

    def _media_upload(self, content: Content) -> Any:
        """Return a content as the library uploads it, read piece by piece, or at once if it is small."""
        upload: Any = self._http_module.MediaUpload
        size_bytes, part_bytes = content.size_bytes, self.part_bytes
        is_resumable = size_bytes > self.multipart_bytes

        class Media(upload):  # type: ignore[misc]  # the library has no types
            def chunksize(self) -> int:
                return part_bytes

            def mimetype(self) -> str:
                return _MIME

            def size(self) -> int:
                return size_bytes

            def resumable(self) -> bool:
                return is_resumable

            def has_stream(self) -> bool:
                return False

            def getbytes(self, begin: int, length: int) -> bytes:
                return content.read(begin, min(length, size_bytes - begin))

        return Media()

    def get(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """Yield the file's bytes from ``offset``. The requests are sent when the first piece is asked for."""
        with self._cloud_errors("get", path):
            file = self._find_file("get", path)
            request = self._files.get_media(fileId=file["id"], supportsAllDrives=True)
            headers = {"user-agent": request.headers.get("user-agent", ""), "accept-encoding": "identity"}
            if offset:
                headers["range"] = f"bytes={offset}-"
            with self._transport.stream(request.uri, headers, 206 if offset else 200) as (status, pieces):
                if offset and status != 206:
                    raise CloudError(ErrorKind.SERVER, "get", path, detail="the range was ignored")
                yield from pieces

    def stat(self, path: str) -> Entry:
        """Return what Google Drive knows about one path."""
        with self._cloud_errors("stat", path):
            return (
                self._entry_of_file(path, self._find_file("stat", path))
                if split_path("stat", path)
                else Entry("/", is_folder=True)
            )

    def list(self, folder: str) -> Iterator[Entry]:
        """Yield everything below ``folder``, one search for each folder and page."""
        with self._cloud_errors("list", folder):
            names = split_path("list", folder)
            top = ("/" + "/".join(names) if names else "", self._existing_folder_id(folder, names))
        yield from walk(top, lambda parent: self._list_children(folder, *parent))

    def _list_children(self, folder: str, path: str, folder_id: str) -> Iterator[tuple[Entry, tuple[str, str]]]:
        """Yield what a folder holds, each entry with the path and id by which its own content is listed."""
        with self._cloud_errors("list", folder):
            for file in self._search(f"'{folder_id}' in parents and trashed = false", FILE_FIELDS, self.page_entries):
                entry = self._entry_of_file(f"{path}/{name_in_path(file['name'])}", file)
                yield entry, (entry.path, file["id"])

    def _existing_folder_id(self, folder: str, names: Sequence[str]) -> str:
        """Return the id of a folder that exists now, because one that is gone must not look like an empty one."""
        if not names:
            return self._folders[""]
        file = self._find_file("list", folder)
        if file["mimeType"] != FOLDER_TYPE:
            raise_error(ErrorKind.CONFLICT, "list", folder, "it is a file")
        return str(file["id"])

    def delete(self, path: str) -> None:
        """Remove a file, or a folder with all its contents, past the trash."""
        with self._cloud_errors("delete", path):
            file = self._find_file("delete", path)
            self._forget_folder(split_path("delete", path))
            self._send(self._files.delete(fileId=file["id"], supportsAllDrives=True))

    def mkdir(self, path: str) -> None:
        """Create a folder and its parents. No error if it exists."""
        with self._cloud_errors("mkdir", path):

            def make(folder_id: str, name: str) -> None:
                names = split_path("mkdir", path)
                with self._folders_lock:
                    self._folders["/".join(names)] = self._look_up_folder("mkdir", path, folder_id, name, makes=True)

            self._act_in_folder("mkdir", path, make, makes=True)

    # --- optional verbs ---------------------------------------------------------------------------

    def share(self, path: str) -> str:
        """Return the URL of a file that anyone may read from now on."""
        with self._cloud_errors("share", path):
            file = self._find_file("share", path)
            body = {"type": "anyone", "role": "reader"}
            self._send(self._permissions.create(fileId=file["id"], body=body, fields="id", supportsAllDrives=True))
            return str(file["webViewLink"])

    def revoke(self, url: str) -> None:
        """Undo ``share``: the file is private again."""
        with self._cloud_errors("revoke", url):
            file_id = file_id_in(url)
            if not file_id:
                raise_error(ErrorKind.INVALID, "revoke", url, "not the address of a file")
            self._send(self._permissions.delete(fileId=file_id, permissionId="anyoneWithLink", supportsAllDrives=True))

    @staticmethod
    def open_link(url: str, stranger: Stranger) -> bytes:
        """Return what a link gives to a person without an account."""
        return stranger.read(f"https://drive.google.com/uc?export=download&id={file_id_in(url)}")

    # --- members ---

    def address(self) -> str:
        """Return the address by which others share with this account."""
        with self._cloud_errors("address", "/"):
            return str(self._send(self._about.get(fields="user(emailAddress)"))["user"]["emailAddress"])

    def admit(self, path: str, address: str, level: str) -> None:
        """Let another account use a folder at a level of ``member_roles``. Sends it no e-mail."""
        with self._cloud_errors("admit", path):
            self._permit(self._find_file("admit", path)["id"], address, level)

    def _permit(self, file_id: str, address: str, level: str) -> None:
        body = {"type": "user", "role": role_of_level(self.member_roles, level), "emailAddress": address}
        options = {"sendNotificationEmail": False, "supportsAllDrives": True, "fields": "id"}
        self._send(self._permissions.create(fileId=file_id, body=body, **options))

    def dismiss(self, path: str, address: str) -> None:
        """Undo ``admit``."""
        with self._cloud_errors("dismiss", path):
            common = {"fileId": self._find_file("dismiss", path)["id"], "supportsAllDrives": True}
            listed = self._send(self._permissions.list(fields="permissions(id,emailAddress)", **common))["permissions"]
            for permission in listed:
                if str(permission.get("emailAddress", "")).lower() == address.lower():
                    self._send(self._permissions.delete(permissionId=permission["id"], **common))

    def refer(self, path: str) -> str:
        """Return the id by which members find a file."""
        with self._cloud_errors("refer", path):
            return str(self._find_file("refer", path)["id"])

    def read_shared(self, reference: str) -> bytes:
        """Return the content of another account's file."""
        with self._cloud_errors("read", reference):
            return bytes(self._send(self._files.get_media(fileId=reference, supportsAllDrives=True)))

    def write_shared(self, reference: str, content: Content) -> None:
        """Replace the content of another account's file."""
        with self._cloud_errors("write", reference):
            media = self._media_upload(content)
            self._send(self._files.update(fileId=reference, media_body=media, fields="id", supportsAllDrives=True))

    def delete_shared(self, reference: str) -> None:
        """Remove another account's file."""
        with self._cloud_errors("delete", reference):
            self._send(self._files.delete(fileId=reference, supportsAllDrives=True))

    def share_on(self, reference: str, address: str) -> None:
        """Let a third account read another account's file. Sends it no e-mail."""
        with self._cloud_errors("share on", reference):
            self._permit(reference, address, "read")

    def copy(self, source: str, target: str) -> Entry:
        """Copy a file. One that already has the target's name stays, too."""
        with self._cloud_errors("copy", source):
            file = self._find_file("copy", source)

            def copy_into(folder_id: str, name: str) -> dict[str, Any]:
                body = {"name": name, "parents": [folder_id]}
                request = self._files.copy(fileId=file["id"], body=body, fields=FILE_FIELDS, supportsAllDrives=True)
                return dict(self._send(request))

            return self._entry_of_file(target, self._act_in_folder("copy", target, copy_into, makes=True))

    def move(self, source: str, target: str) -> Entry:
        """Rename a file or folder. One that already has the target's name stays, too."""
        with self._cloud_errors("move", source):
            file = self._find_file("move", source)
            old_parent_id = self._folder_id("move", source, split_path("move", source)[:-1])

            def move_into(folder_id: str, name: str) -> dict[str, Any]:
                parents = (
                    {"addParents": folder_id, "removeParents": old_parent_id} if folder_id != old_parent_id else {}
                )
                request = self._files.update(
                    fileId=file["id"], body={"name": name}, fields=FILE_FIELDS, supportsAllDrives=True, **parents
                )
                return dict(self._send(request))

            try:
                return self._entry_of_file(target, self._act_in_folder("move", target, move_into, makes=True))
            finally:
                for path in (source, target):
                    self._forget_folder(split_path("move", path))

    def space(self) -> tuple[int, int]:
        """Return the bytes used, and the bytes that the account may hold, 2^63 - 1 if they are unlimited."""
        with self._cloud_errors("space", "/"):
            quota = self._send(self._about.get(fields="storageQuota"))["storageQuota"]
            return int(quota["usage"]), int(quota.get("limit", 2**63 - 1))


def _api_description() -> dict[str, Any]:
    """Return the description of the API that comes with the library."""
    package = Path(str(import_module("googleapiclient.discovery_cache").__file__)).parent
    document: dict[str, Any] = json.loads((package / "documents" / "drive.v3.json").read_bytes())
    return document
