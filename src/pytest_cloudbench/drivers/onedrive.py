"""Driver for OneDrive (SkyDrive's successor) by Microsoft Graph v1.0, on the plain HTTP client in ``web``.

What may live here: everything that is specific to OneDrive as a client, in this order: imports, capabilities, error
table, connect, required verbs, optional verbs. No SDK is used: Microsoft's own for Python takes 380 MB, and its upload
in pieces fails on the service's own answers.

What costs more than one request, all of them counted:

- ``get``: the service answers with an address on another host, which needs no token. The driver follows it itself,
  once, without the token, and only to hosts of the service.
- ``put`` above 250 MB: an upload session with fragments of 10 MiB, one after the other.
- ``copy``: the service copies later. The driver asks for the progress again as soon as each answer has come, because
  only the engine may wait.
- ``copy`` and ``move``: the folder above the target is looked up first, because it is named by its id. If it is
  missing, it is created, as the server does for ``put``.
- ``revoke``: finds the item, then the permission that has the link.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, ClassVar
from urllib.parse import quote, urlencode, urlsplit

from pytest_cloudbench.drivers.base import CredentialSet, OAuthLogin, check_params, timeout_of, usable_credentials, walk
from pytest_cloudbench.drivers.egress import egress_of
from pytest_cloudbench.drivers.pages import PageTokens
from pytest_cloudbench.drivers.stranger import Stranger
from pytest_cloudbench.drivers.web import Bearer, WebClient, WebDriver, unusable_answer
from pytest_cloudbench.model import (
    KIB,
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
    chunks,
)

# --- capabilities ---------------------------------------------------------------------------------

_FRAGMENT_STEP_BYTES = 320 * KIB

_CAPABILITIES = Capabilities(
    digest="quickxorhash",
    verbs=frozenset(Verb),
    revisions=True,
    ranges=True,
    conflicts=frozenset(
        {Conflict.PUT_ON_FOLDER, Conflict.MKDIR_ON_FILE, Conflict.COPY_ON_EXISTING, Conflict.MOVE_ON_EXISTING}
    ),
    copies_folders=True,
    moves_folders=True,
    server_side_copy=True,
    space=True,
    names=NameRules(case_sensitive=False, max_chars=255, refused='"*:<>?\\|'),
    max_request_bytes=250_000_000,
    part_step_bytes=_FRAGMENT_STEP_BYTES,
    max_part_bytes=191 * _FRAGMENT_STEP_BYTES,  # Microsoft asks for less than 60 MiB
    requests={
        Verb.PUT: 1,
        Verb.GET: 2,
        Verb.STAT: 1,
        Verb.LIST: 1,
        Verb.DELETE: 1,
        Verb.COPY: 4,
        Verb.MOVE: 2,
        Verb.SHARE: 1,
        Verb.REVOKE: 3,
    },
    via="own client on httpx; redirects and retries off",
)

_GRAPH = "https://graph.microsoft.com"
_LOGIN = "https://login.microsoftonline.com/common/oauth2/v2.0"
_SCOPES = ("Files.ReadWrite", "offline_access")
# Where the service keeps content, uploads and monitors: a redirect to any other host is an error.
_OWN_HOSTS = (
    "graph.microsoft.com",
    "sharepoint.com",
    "1drv.com",
    "onedrive.com",
    "microsoftpersonalcontent.com",
    "livefilestore.com",
    "svc.ms",
)
_FRAGMENT_BYTES = 32 * _FRAGMENT_STEP_BYTES  # Microsoft recommends 5 to 10 MiB
_PIECE_BYTES = 1 * MIB
_PAGE_ENTRIES = 1000
_FIELDS = "id,name,size,eTag,file,folder"
_MOST_LOOKS = 100_000
_NO_LINK = "The sharing link no longer exists"
"""How the service begins to refuse a link that was removed, with the status and code of a missing right."""

# --- error table ----------------------------------------------------------------------------------

_CODE_KINDS: Mapping[str, ErrorKind] = {
    "activityLimitReached": ErrorKind.THROTTLED,
    "throttledRequest": ErrorKind.THROTTLED,
    "tooManyRequests": ErrorKind.THROTTLED,
    "TooManyRequests": ErrorKind.THROTTLED,
    "quotaLimitReached": ErrorKind.QUOTA,
    "insufficientStorage": ErrorKind.QUOTA,
    "itemNotFound": ErrorKind.NOT_FOUND,
    "ResourceNotFound": ErrorKind.NOT_FOUND,
    "nameAlreadyExists": ErrorKind.CONFLICT,
    "resourceModified": ErrorKind.CONFLICT,
    "accessDenied": ErrorKind.AUTH,
    "unauthenticated": ErrorKind.AUTH,
    "InvalidAuthenticationToken": ErrorKind.AUTH,
    "invalid_grant": ErrorKind.AUTH,
    "invalid_client": ErrorKind.AUTH,
    "unauthorized_client": ErrorKind.AUTH,
    "serviceNotAvailable": ErrorKind.SERVER,
    "generalException": ErrorKind.SERVER,
}


def _reason_of_refusal(status: int, body: bytes) -> tuple[ErrorKind | None, str]:
    """Return the kind and the words of a refusal: Graph's, or those of the token route."""
    answer = json.loads(body)
    error = answer["error"]
    if isinstance(error, str):
        code, words = error, str(answer.get("error_description", ""))
    else:
        code, words = str(error["code"]), str(error.get("message", ""))
    kind = _CODE_KINDS.get(code, ErrorKind.THROTTLED if status == 509 else None)
    return kind, f"{code}: {words}"


# --- connect --------------------------------------------------------------------------------------


class OneDriveDriver(WebDriver):
    """One pool of connections for all threads. The only other state is the token, which is refreshed under a lock."""

    capabilities: ClassVar[Capabilities] = _CAPABILITIES
    member_roles: Mapping[str, str] = {"read": "read", "write": "write", "owner": ""}
    full_promises: ClassVar[frozenset[str]] = frozenset({"write", "delete", "share"})
    """Somebody who may edit a folder can add and delete files, and invite others (support.office.com, article 9fcc2f7d,
    "Share files and folders and change permissions"). Organizations can forbid sharing on."""
    credential_sets: ClassVar[tuple[CredentialSet, ...]] = (
        CredentialSet(("access_token",)),
        CredentialSet(("refresh_token", "client_id"), ("client_secret",), public=("client_id",)),
    )
    clock_url: ClassVar[str] = f"{_GRAPH}/v1.0/"
    oauth: ClassVar[OAuthLogin] = OAuthLogin(
        f"{_LOGIN}/authorize",
        f"{_LOGIN}/token",
        "https://entra.microsoft.com",
        device_url=f"{_LOGIN}/devicecode",
        scopes=_SCOPES,
    )

    def __init__(
        self, client: WebClient, bearer: Bearer, api: str, drive: str, own_hosts: tuple[str, ...] | None,
        *, multipart_bytes: int = 250_000_000, part_bytes: int = _FRAGMENT_BYTES,
    ) -> None:  # fmt: skip
        super().__init__(client)
        self._bearer, self._own_hosts = bearer, own_hosts
        self._api, self._drive = api, f"{api}/v1.0/{drive}"
        self.multipart_bytes, self.part_bytes = multipart_bytes, part_bytes
        self.list_page_entries = _PAGE_ENTRIES

    @classmethod
    def connect(cls, spec: ProviderSpec, endpoint: Endpoint | None, credentials: Mapping[str, str]) -> OneDriveDriver:
        """Return the driver for ``onedrive``, the user's own drive, or ``onedrive:DRIVE_ID``. Sends nothing yet."""
        check_params(spec, {"timeout_s", "token_env"})
        own_fields = endpoint.credentials if endpoint else credentials
        secrets = usable_credentials(spec.scheme, cls.credential_sets, own_fields)
        api, login, own_hosts = _GRAPH, f"{_LOGIN}/token", None
        if endpoint is not None:
            api = endpoint.urls.get("api", endpoint.url)
            login = f"{endpoint.urls.get('login', endpoint.url)}/common/oauth2/v2.0/token"
            own_hosts = tuple(urlsplit(url).netloc for url in endpoint.urls.values())
        client = WebClient(egress_of(endpoint, api), _reason_of_refusal, timeout_of(spec))
        fields = {"grant_type": "refresh_token", "scope": " ".join(_SCOPES)}
        fields |= {name: value for name, value in secrets.items() if name != "access_token"}
        bearer = Bearer(client, secrets, login, lambda: urlencode(fields).encode())
        drive = f"drives/{quote(spec.target, '!')}" if spec.target else "me/drive"
        return cls(client, bearer, api, drive, own_hosts)

    # --- addresses and answers --------------------------------------------------------------------

    def _item_url(self, verb: str, path: str, function: str = "", at: str = "") -> str:
        """Return the address of a function on the item at a path. Errors name ``at`` if it is given."""
        names = path.split("/")
        if names == ["", ""]:
            return f"{self._drive}/root{function}"
        if len(names) < 2 or names[0] or any(name in ("", ".", "..") for name in names[1:]):
            raise CloudError(ErrorKind.INVALID, verb, at or path, detail="expected an absolute path: /folder/file")
        try:
            encoded = "/".join([quote(name, "") for name in names])
        except UnicodeError as error:
            raise CloudError(ErrorKind.INVALID, verb, at or path, detail="a name is not Unicode text") from error
        return f"{self._drive}/root:{encoded}:{function}"

    def _token_headers(self, **more: str) -> dict[str, str]:
        return {"authorization": self._bearer.header(), **more}

    def _call_graph(self, verb: str, path: str, method: str, url: str, body: object = None) -> Any:
        """Send a request with the token, and return what its answer's JSON says."""
        headers = self._token_headers()
        if body is None:
            return self._client.send_json(verb, path, method, url, headers=headers)
        headers["content-type"] = "application/json"
        return self._client.send_json(verb, path, method, url, headers=headers, content=json.dumps(body).encode())

    def _check_own_host(self, verb: str, path: str, url: object) -> str:
        """Return an address that the service gave out, if it leads to the service. Raises CloudError."""
        parts = urlsplit(url) if isinstance(url, str) else None
        if parts is not None and parts.scheme == "https" and not parts.username:
            if self._own_hosts is not None:
                is_own = parts.netloc in self._own_hosts
            else:
                is_own = any(f".{parts.hostname}".endswith(f".{host}") for host in _OWN_HOSTS) and parts.port is None
            if is_own:
                return parts.geturl()
        raise unusable_answer(verb, path, "the answer leads to a host that is not the service's")

    def _entry_of_item(self, verb: str, path: str, folder: str, item: Any) -> Entry:
        """Return the entry of an item in ``folder``, which is a path."""
        with self._client.parsing(verb, path):
            own_path = f"{folder.rstrip('/')}/{item['name']}"
            if "folder" in item or "root" in item:
                return Entry(own_path, is_folder=True)
            digest = _hash_in_hex(item.get("file", {}).get("hashes", {}).get("quickXorHash"))
            return Entry(own_path, size_bytes=int(item["size"]), digest=digest, revision=item.get("eTag"))

    def _entry_at_path(self, verb: str, path: str, item: Any) -> Entry:
        if path == "/":
            return Entry("/", is_folder=True)
        return self._entry_of_item(verb, path, path.rpartition("/")[0], item)

    # --- required verbs ---------------------------------------------------------------------------

    def put(self, path: str, content: Content) -> Entry:
        """Upload with one request, or with an upload session if the file is too large for one request."""
        if content.size_bytes > self.multipart_bytes:
            return self._put_in_fragments(path, content)
        url = self._item_url("put", path, "/content")
        size = content.size_bytes
        headers = self._token_headers(**{"content-type": "application/octet-stream", "content-length": str(size)})
        body = content.read(0, size) if size <= _PIECE_BYTES else chunks(content, _PIECE_BYTES)
        item = self._client.send_json("put", path, "PUT", url, headers=headers, content=body)
        return self._entry_at_path("put", path, item)

    def _put_in_fragments(self, path: str, content: Content) -> Entry:
        url, size = self._item_url("put", path, "/createUploadSession"), content.size_bytes
        options = {"item": {"@microsoft.graph.conflictBehavior": "replace"}}
        session = self._call_graph("put", path, "POST", url, options)
        target = self._check_own_host("put", path, session.get("uploadUrl") if isinstance(session, dict) else None)
        offset = 0
        while True:
            end = min(offset + self.part_bytes, size)
            pieces = (content.read(begin, min(_PIECE_BYTES, end - begin)) for begin in range(offset, end, _PIECE_BYTES))
            headers = {"content-range": f"bytes {offset}-{end - 1}/{size}", "content-length": str(end - offset)}
            answer = self._client.send_json("put", path, "PUT", target, headers=headers, content=pieces)
            offset = end
            if offset == size:
                return self._entry_at_path("put", path, answer)

    def get(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """Yield the file's bytes from ``offset``. The first request is sent when the first piece is asked for."""
        url = self._item_url("get", path, "/content")
        headers = {"range": f"bytes={offset}-"} if offset else {}
        yield from self._read_content(path, url, headers)

    def _read_content(self, path: str, url: str, range_header: Mapping[str, str]) -> Iterator[bytes]:
        headers = {"accept-encoding": "identity", **range_header}
        with self._client.stream("get", path, "GET", url, headers=self._token_headers(), accept=(302,)) as response:
            location = response.headers.get("location")
            for _ in response.iter_raw():
                pass  # reads to the end: a body that breaks off is a network error
            if response.status_code != 302:
                raise unusable_answer("get", path, "the answer does not say where the content is")
        content_url = self._check_own_host("get", path, location)
        with self._client.stream("get", path, "GET", content_url, headers=headers) as response:
            if range_header and response.status_code != 206:
                raise unusable_answer("get", path, "the range was ignored")
            yield from response.iter_bytes()

    def stat(self, path: str) -> Entry:
        """Return what OneDrive knows about one path."""
        url = f"{self._item_url('stat', path)}?$select={_FIELDS}"
        return self._entry_at_path("stat", path, self._call_graph("stat", path, "GET", url))

    def list(self, folder: str) -> Iterator[Entry]:
        """Yield everything below ``folder``: folder by folder, page by page."""
        top = (folder.rstrip("/"), self._item_url("list", folder, "/children") + self._page_options())
        yield from walk(top, lambda parent: self._list_children(folder, *parent))

    def _page_options(self) -> str:
        return f"?$top={self.list_page_entries}&$select={_FIELDS}"

    def _list_children(self, folder: str, path: str, url: str) -> Iterator[tuple[Entry, tuple[str, str]]]:
        tokens = PageTokens("list", folder)
        while url:
            tokens.use(url)
            page = self._call_graph("list", folder, "GET", url)
            with self._client.parsing("list", folder):
                items, next_url = [*page["value"]], page.get("@odata.nextLink")
                urls = [f"{self._drive}/items/{quote(item['id'], '!')}/children" for item in items]
            url = "" if next_url is None else self._check_next_page(folder, next_url)
            for item, children_url in zip(items, urls, strict=True):
                entry = self._entry_of_item("list", folder, path, item)
                yield entry, (entry.path, children_url + self._page_options())

    def _check_next_page(self, folder: str, url: object) -> str:
        """Return the address of the next page, which must be on the API's own host, because it gets the token."""
        if not isinstance(url, str) or not url.startswith(f"{self._api}/"):
            raise unusable_answer("list", folder, "the next page is on another host")
        return url

    def delete(self, path: str) -> None:
        """Move a file, or a folder with all its contents, to the recycle bin."""
        self._client.send("delete", path, "DELETE", self._item_url("delete", path), headers=self._token_headers())

    def mkdir(self, path: str) -> None:
        """Create a folder, and those above that are missing. No error if it exists."""
        self._item_url("mkdir", path)
        self._make_folder("mkdir", path, path)

    def _make_folder(self, verb: str, path: str, folder: str, *, has_parent: bool = False) -> None:
        """Create a folder and those above it, trying the innermost first. No error if it exists."""
        if folder in ("", "/"):
            return
        parent, _, name = folder.rpartition("/")
        url = self._item_url(verb, parent or "/", "/children", at=path)
        options = {"name": name, "folder": {}, "@microsoft.graph.conflictBehavior": "fail"}
        try:
            item = self._call_graph(verb, path, "POST", url, options)
        except CloudError as error:
            if getattr(error.__cause__, "args", ())[:1] == (409,):
                item = self._call_graph(verb, path, "GET", f"{self._item_url(verb, folder, at=path)}?$select=id,folder")
                if "folder" not in item:
                    raise
            elif error.kind is ErrorKind.NOT_FOUND and parent and not has_parent:
                self._make_folder(verb, path, parent)
                # As from the beginning, because another thread may have made this folder meanwhile.
                return self._make_folder(verb, path, folder, has_parent=True)
            else:
                raise
        if not isinstance(item, dict) or "folder" not in item:
            raise unusable_answer(verb, path, "the answer cannot be read")

    # --- optional verbs ---------------------------------------------------------------------------

    def share(self, path: str) -> str:
        """Return the URL of a link with which everyone can read ``path``. If there is one already, it is returned."""
        return self._share(path, {})

    def share_until(self, path: str, ends_at: datetime) -> str:
        """Return the URL of a new link to ``path`` that ends by itself."""
        return self._share(path, {"expirationDateTime": f"{ends_at:%Y-%m-%dT%H:%M:%SZ}"})

    def _share(self, path: str, limits: Mapping[str, str]) -> str:
        options = {"type": "view", "scope": "anonymous", **limits}
        answer = self._call_graph("share", path, "POST", self._item_url("share", path, "/createLink"), options)
        with self._client.parsing("share", path):
            return str(answer["link"]["webUrl"])

    # --- members ---

    def address(self) -> str:
        """Return the address by which others share with this account."""
        person = self._call_graph("address", "/", "GET", f"{self._api}/v1.0/me?$select=mail,userPrincipalName")
        with self._client.parsing("address", "/"):
            return str(person.get("mail") or person["userPrincipalName"])

    def admit(self, path: str, address: str, level: str) -> None:
        """Let another account use a folder at a level of ``member_roles``. Sends it no e-mail."""
        self._invite("admit", path, self._item_url("admit", path, "/invite"), address, level)

    def _invite(self, verb: str, path: str, url: str, address: str, level: str) -> None:
        invitation = {
            "recipients": [{"email": address}], "roles": [level], "requireSignIn": True, "sendInvitation": False,
        }  # fmt: skip
        self._call_graph(verb, path, "POST", url, invitation)

    def dismiss(self, path: str, address: str) -> None:
        """Undo ``admit``: remove the invitations of this address."""
        item = self._call_graph("dismiss", path, "GET", f"{self._item_url('dismiss', path)}?$select=id")
        with self._client.parsing("dismiss", path):
            permissions_url = f"{self._drive}/items/{quote(item['id'], '!')}/permissions"
            permissions = self._call_graph("dismiss", path, "GET", permissions_url)["value"]
            ids = [str(permission["id"]) for permission in permissions if _invites(permission, address)]
        for permission_id in ids:
            url = f"{permissions_url}/{quote(permission_id, '!')}"
            self._client.send("dismiss", path, "DELETE", url, headers=self._token_headers())

    def refer(self, path: str) -> str:
        """Return the drive and the id by which members find a file."""
        url = f"{self._item_url('refer', path)}?$select=id,parentReference"
        item = self._call_graph("refer", path, "GET", url)
        with self._client.parsing("refer", path):
            return f"{quote(item['parentReference']['driveId'], '!')}/items/{quote(item['id'], '!')}"

    def read_shared(self, reference: str) -> bytes:
        """Return the content of another account's file."""
        return b"".join(self._read_content(reference, f"{self._api}/v1.0/drives/{reference}/content", {}))

    def write_shared(self, reference: str, content: Content) -> None:
        """Replace the content of another account's file, which is small."""
        headers = self._token_headers(**{"content-type": "application/octet-stream"})
        body, url = content.read(0, content.size_bytes), f"{self._api}/v1.0/drives/{reference}/content"
        self._client.send_json("write", reference, "PUT", url, headers=headers, content=body)

    def delete_shared(self, reference: str) -> None:
        """Move another account's file to that account's recycle bin."""
        url = f"{self._api}/v1.0/drives/{reference}"
        self._client.send("delete", reference, "DELETE", url, headers=self._token_headers())

    def share_on(self, reference: str, address: str) -> None:
        """Let a third account read another account's file. Sends it no e-mail."""
        self._invite("share on", reference, f"{self._api}/v1.0/drives/{reference}/invite", address, "read")

    def restore_deleted(self, reference: str) -> None:
        """Bring a file back from the recycle bin, which only personal accounts offer. The bin cannot be listed."""
        self._call_graph("restore", reference, "POST", f"{self._api}/v1.0/drives/{reference}/restore", {})

    @staticmethod
    def open_link(url: str, stranger: Stranger) -> bytes:
        """Return what a link gives to a person without an account."""
        return stranger.read(f"{url}{'&' if '?' in url else '?'}download=1")

    def revoke(self, url: str) -> None:
        """Make a link from ``share`` unusable."""
        share_id = "u!" + _base64url(url)
        try:
            item = self._call_graph("revoke", url, "GET", f"{self._api}/v1.0/shares/{share_id}/driveItem?$select=id")
        except CloudError as error:
            if error.kind is ErrorKind.AUTH and _NO_LINK in error.detail:
                raise unusable_answer("revoke", url, error.detail, ErrorKind.NOT_FOUND) from error
            raise
        with self._client.parsing("revoke", url):
            permissions_url = f"{self._drive}/items/{quote(item['id'], '!')}/permissions"
            permissions = self._call_graph("revoke", url, "GET", permissions_url)["value"]
            link_ids = [
                permission["id"]
                for permission in permissions
                if permission.get("link", {}).get("webUrl") == url and _is_public_link(permission)
            ]
        if not link_ids:
            raise unusable_answer("revoke", url, "the item has no such link", ErrorKind.NOT_FOUND)
        self._client.send(
            "revoke", url, "DELETE", f"{permissions_url}/{quote(str(link_ids[0]), '!')}", headers=self._token_headers()
        )

    def copy(self, source: str, target: str) -> Entry:
        """Copy a file or folder. An existing target is a conflict."""
        new_parent = self._new_parent("copy", source, target)
        url = self._item_url("copy", source, "/copy")
        body = json.dumps(new_parent).encode()
        headers = self._token_headers(**{"content-type": "application/json", "prefer": "respond-async"})
        answer = self._client.send("copy", source, "POST", url, headers=headers, content=body)
        monitor = self._check_own_host("copy", source, answer.headers.get("location"))
        for _ in range(_MOST_LOOKS):
            progress = self._client.send_json("copy", source, "GET", monitor)
            status = progress.get("status") if isinstance(progress, dict) else None
            if status == "completed":
                item = self._call_graph(
                    "copy", source, "GET", f"{self._item_url('copy', target, at=source)}?$select={_FIELDS}"
                )
                return self._entry_at_path("copy", target, item)
            if status in ("failed", "deleteFailed", "cancelled"):
                kind, words = (
                    _reason_of_refusal(200, json.dumps(progress).encode())
                    if "error" in progress
                    else (None, str(status))
                )
                raise unusable_answer("copy", source, words, kind or ErrorKind.SERVER)
        raise unusable_answer("copy", source, "the service does not finish the copy")

    def move(self, source: str, target: str) -> Entry:
        """Rename a file or folder. An existing target is a conflict."""
        new_parent = self._new_parent("move", source, target)
        item = self._call_graph("move", source, "PATCH", self._item_url("move", source), new_parent)
        return self._entry_at_path("move", target, item)

    def _new_parent(self, verb: str, source: str, target: str) -> dict[str, Any]:
        """Return an item's new folder and name for a request. Makes missing folders, unless the item does not exist."""
        parent, _, name = target.rpartition("/")
        self._item_url(verb, target, at=source)
        url = f"{self._item_url(verb, parent or '/', at=source)}?$select=id"
        try:
            folder = self._call_graph(verb, source, "GET", url)
        except CloudError as error:
            if error.kind is not ErrorKind.NOT_FOUND:
                raise
            self._call_graph(verb, source, "GET", f"{self._item_url(verb, source)}?$select=id")
            self._make_folder(verb, source, parent)
            folder = self._call_graph(verb, source, "GET", url)
        with self._client.parsing(verb, source):
            return {"parentReference": {"id": folder["id"]}, "name": name}

    def space(self) -> tuple[int, int]:
        """Return the bytes used, and the bytes that the account may hold."""
        answer = self._call_graph("space", "/", "GET", self._drive)
        try:
            return int(answer["quota"]["used"]), int(answer["quota"]["total"])
        except (KeyError, TypeError, ValueError) as error:
            raise CloudError(ErrorKind.SERVER, "space", "/", detail="the answer has no quota") from error


def _hash_in_hex(text: object) -> str | None:
    """Return a hash in hex, which the service writes in base64. None if there is none."""
    from base64 import b64decode

    return b64decode(text).hex() if isinstance(text, str) and text else None


def _base64url(text: str) -> str:
    from base64 import urlsafe_b64encode

    return urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _invites(permission: Mapping[str, Any], address: str) -> bool:
    """Return whether a permission is that of the person with this address alone, who is not the owner."""
    people = [*permission.get("grantedToIdentitiesV2", []), permission.get("grantedToV2", {})]
    emails = [str(person.get("user", {}).get("email", "")) for person in people]
    emails.append(str(permission.get("invitation", {}).get("email", "")))
    return {email.lower() for email in emails if email} == {address.lower()} and "owner" not in permission["roles"]


def _is_public_link(permission: Mapping[str, Any]) -> bool:
    """Return whether a permission is a link that can be removed. The owner's permission also shows an address."""
    return "owner" not in permission.get("roles", ())
