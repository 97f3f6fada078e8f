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
from typing import Any, ClassVar
from urllib.parse import quote, urlencode, urlsplit

from pytest_cloudbench.drivers.base import CredentialSet, OAuthLogin, check_params, timeout_of, usable_credentials, walk
from pytest_cloudbench.drivers.egress import leaving
from pytest_cloudbench.drivers.web import Bearer, WebClient
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
from pytest_cloudbench.support import redact

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


def _reason(status: int, body: bytes) -> tuple[ErrorKind | None, str]:
    """The kind and the words of a refusal: Graph's, or those of the token route."""
    told = json.loads(body)
    error = told["error"]
    if isinstance(error, str):
        code, words = error, str(told.get("error_description", ""))
    else:
        code, words = str(error["code"]), str(error.get("message", ""))
    kind = _CODE_KINDS.get(code, ErrorKind.THROTTLED if status == 509 else None)
    return kind, f"{code}: {words}"


# --- connect --------------------------------------------------------------------------------------


class OneDriveDriver:
    """One pool of connections, shared by all threads; its only state is the token, which is refreshed under a lock."""

    capabilities: ClassVar[Capabilities] = _CAPABILITIES
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
        self._client, self._bearer, self._own_hosts = client, bearer, own_hosts
        self._api, self._drive = api, f"{api}/v1.0/{drive}"
        self.multipart_bytes, self.part_bytes = multipart_bytes, part_bytes
        self.list_page_entries = _PAGE_ENTRIES

    @classmethod
    def connect(cls, spec: ProviderSpec, endpoint: Endpoint | None, credentials: Mapping[str, str]) -> OneDriveDriver:
        """Return the driver for ``onedrive``, the user's own drive, or ``onedrive:DRIVE_ID``. Sends nothing yet."""
        check_params(spec, {"timeout_s", "token_env"})
        given = endpoint.credentials if endpoint else credentials
        secrets = usable_credentials(spec.scheme, cls.credential_sets, given)
        api, login, own_hosts = _GRAPH, f"{_LOGIN}/token", None
        if endpoint is not None:
            api = endpoint.urls.get("api", endpoint.url)
            login = f"{endpoint.urls.get('login', endpoint.url)}/common/oauth2/v2.0/token"
            own_hosts = tuple(urlsplit(url).netloc for url in endpoint.urls.values())
        client = WebClient(leaving(endpoint, api), _reason, timeout_of(spec))
        fields = {"grant_type": "refresh_token", "scope": " ".join(_SCOPES)}
        fields |= {name: value for name, value in secrets.items() if name != "access_token"}
        bearer = Bearer(client, secrets, login, lambda: urlencode(fields).encode())
        drive = f"drives/{quote(spec.target, '!')}" if spec.target else "me/drive"
        return cls(client, bearer, api, drive, own_hosts)

    def versions(self) -> Mapping[str, str]:
        """Return the libraries, and what is switched off in them."""
        return self._client.versions()

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def requests(self) -> int:
        """Return how many requests this thread has sent so far."""
        return self._client.requests()

    # --- addresses and answers --------------------------------------------------------------------

    def _url(self, verb: str, path: str, function: str = "", at: str = "") -> str:
        """Return the address of a function on the item at a path; errors name ``at`` if it is given."""
        names = path.split("/")
        if names == ["", ""]:
            return f"{self._drive}/root{function}"
        if len(names) < 2 or names[0] or any(name in ("", ".", "..") for name in names[1:]):
            raise CloudError(ErrorKind.INVALID, verb, at or path, detail="expected an absolute path: /folder/file")
        try:
            sent = "/".join([quote(name, "") for name in names])
        except UnicodeError as error:
            raise CloudError(ErrorKind.INVALID, verb, at or path, detail="a name is not Unicode text") from error
        return f"{self._drive}/root:{sent}:{function}"

    def _headers(self, **more: str) -> dict[str, str]:
        return {"authorization": self._bearer.header(), **more}

    def _json(self, verb: str, path: str, method: str, url: str, body: object = None) -> Any:
        """Send a request with the token; returns what its answer's JSON says."""
        headers = self._headers()
        if body is None:
            return self._client.send_json(verb, path, method, url, headers=headers)
        headers["content-type"] = "application/json"
        return self._client.send_json(verb, path, method, url, headers=headers, content=json.dumps(body).encode())

    def _elsewhere(self, verb: str, path: str, url: object) -> str:
        """Return an address that the service gave out, if it leads to the service. Raises CloudError."""
        parts = urlsplit(url) if isinstance(url, str) else None
        if parts is not None and parts.scheme == "https" and not parts.username:
            if self._own_hosts is not None:
                is_own = parts.netloc in self._own_hosts
            else:
                is_own = any(f".{parts.hostname}".endswith(f".{host}") for host in _OWN_HOSTS) and parts.port is None
            if is_own:
                return parts.geturl()
        raise _wrong(verb, path, "the answer leads to a host that is not the service's")

    def _entry(self, verb: str, path: str, folder: str, item: Any) -> Entry:
        """Return an item as an entry; ``folder`` is the path of the folder that it is in."""
        try:
            own = f"{folder.rstrip('/')}/{item['name']}"
            if "folder" in item or "root" in item:
                return Entry(own, is_folder=True)
            digest = _hex(item.get("file", {}).get("hashes", {}).get("quickXorHash"))
            return Entry(own, size_bytes=int(item["size"]), digest=digest, revision=item.get("eTag"))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CloudError(ErrorKind.SERVER, verb, path, detail="the answer cannot be read") from error

    def _entry_at(self, verb: str, path: str, item: Any) -> Entry:
        if path == "/":
            return Entry("/", is_folder=True)
        return self._entry(verb, path, path.rpartition("/")[0], item)

    # --- required verbs ---------------------------------------------------------------------------

    def put(self, path: str, content: Content) -> Entry:
        """Upload with one request, or with an upload session if the file is too large for one request."""
        if content.size_bytes > self.multipart_bytes:
            return self._put_in_fragments(path, content)
        url = self._url("put", path, "/content")
        size = content.size_bytes
        headers = self._headers(**{"content-type": "application/octet-stream", "content-length": str(size)})
        body = content.read(0, size) if size <= _PIECE_BYTES else chunks(content, _PIECE_BYTES)
        item = self._client.send_json("put", path, "PUT", url, headers=headers, content=body)
        return self._entry_at("put", path, item)

    def _put_in_fragments(self, path: str, content: Content) -> Entry:
        url, size = self._url("put", path, "/createUploadSession"), content.size_bytes
        wanted = {"item": {"@microsoft.graph.conflictBehavior": "replace"}}
        made = self._json("put", path, "POST", url, wanted)
        target = self._elsewhere("put", path, made.get("uploadUrl") if isinstance(made, dict) else None)
        offset = 0
        while True:
            end = min(offset + self.part_bytes, size)
            pieces = (content.read(at, min(_PIECE_BYTES, end - at)) for at in range(offset, end, _PIECE_BYTES))
            headers = {"content-range": f"bytes {offset}-{end - 1}/{size}", "content-length": str(end - offset)}
            answer = self._client.send_json("put", path, "PUT", target, headers=headers, content=pieces)
            offset = end
            if offset == size:
                return self._entry_at("put", path, answer)

    def get(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """Yield the file's bytes from ``offset``; sends the first request when the first piece is asked for."""
        url = self._url("get", path, "/content")
        headers = {"accept-encoding": "identity", **({"range": f"bytes={offset}-"} if offset else {})}
        with self._client.stream("get", path, "GET", url, headers=self._headers(), accept=(302,)) as response:
            place = response.headers.get("location")
            for _ in response.iter_raw():
                pass  # reads to the end: a body that breaks off is a network error
            if response.status_code != 302:
                raise _wrong("get", path, "the answer does not say where the content is")
        place = self._elsewhere("get", path, place)
        with self._client.stream("get", path, "GET", place, headers=headers) as response:
            if offset and response.status_code != 206:
                raise _wrong("get", path, "the range was ignored")
            yield from response.iter_bytes()

    def stat(self, path: str) -> Entry:
        """Return what OneDrive knows about one path."""
        url = f"{self._url('stat', path)}?$select={_FIELDS}"
        return self._entry_at("stat", path, self._json("stat", path, "GET", url))

    def list(self, folder: str) -> Iterator[Entry]:
        """Yield everything below ``folder``: folder by folder, page by page."""
        top = (folder.rstrip("/"), self._url("list", folder, "/children") + self._page_options())
        yield from walk(top, lambda place: self._children(folder, *place))

    def _page_options(self) -> str:
        return f"?$top={self.list_page_entries}&$select={_FIELDS}"

    def _children(self, folder: str, path: str, url: str) -> Iterator[tuple[Entry, tuple[str, str]]]:
        while url:
            page = self._json("list", folder, "GET", url)
            try:
                items, further = [*page["value"]], page.get("@odata.nextLink")
                urls = [f"{self._drive}/items/{quote(item['id'], '!')}/children" for item in items]
            except (KeyError, TypeError, AttributeError) as error:
                raise CloudError(ErrorKind.SERVER, "list", folder, detail="the answer cannot be read") from error
            url = "" if further is None else self._next_page(folder, further)
            for item, below in zip(items, urls, strict=True):
                entry = self._entry("list", folder, path, item)
                yield entry, (entry.path, below + self._page_options())

    def _next_page(self, folder: str, url: object) -> str:
        """Return the address of the next page. It is sent the token, so it must be the API's own host."""
        if not isinstance(url, str) or not url.startswith(f"{self._api}/"):
            raise _wrong("list", folder, "the next page is on another host")
        return url

    def delete(self, path: str) -> None:
        """Remove a file, or a folder with all its contents; they go to the recycle bin."""
        self._client.send("delete", path, "DELETE", self._url("delete", path), headers=self._headers())

    def mkdir(self, path: str) -> None:
        """Create a folder, and those above that are missing. No error if it exists."""
        self._url("mkdir", path)
        self._make_folder("mkdir", path, path)

    def _make_folder(self, verb: str, path: str, folder: str) -> None:
        if folder in ("", "/"):
            return
        above, _, name = folder.rpartition("/")
        url = self._url(verb, above or "/", "/children", at=path)
        wanted = {"name": name, "folder": {}, "@microsoft.graph.conflictBehavior": "fail"}
        try:
            made = self._json(verb, path, "POST", url, wanted)
        except CloudError as error:
            if error.kind is ErrorKind.CONFLICT:
                made = self._json(verb, path, "GET", f"{self._url(verb, folder, at=path)}?$select=id,folder")
                if "folder" not in made:
                    raise
            elif error.kind is ErrorKind.NOT_FOUND and above:
                self._make_folder(verb, path, above)
                made = self._json(verb, path, "POST", url, wanted)
            else:
                raise
        if not isinstance(made, dict) or "folder" not in made:
            raise _wrong(verb, path, "the answer cannot be read")

    # --- optional verbs ---------------------------------------------------------------------------

    def share(self, path: str) -> str:
        """Return the URL of a link with which everyone can read ``path``; the same one if there is one already."""
        wanted = {"type": "view", "scope": "anonymous"}
        answer = self._json("share", path, "POST", self._url("share", path, "/createLink"), wanted)
        try:
            return str(answer["link"]["webUrl"])
        except (KeyError, TypeError) as error:
            raise CloudError(ErrorKind.SERVER, "share", path, detail="the answer cannot be read") from error

    def revoke(self, url: str) -> None:
        """Make a link from ``share`` unusable."""
        share_id = "u!" + _base64url(url)
        try:
            item = self._json("revoke", url, "GET", f"{self._api}/v1.0/shares/{share_id}/driveItem?$select=id")
        except CloudError as error:
            if error.kind is ErrorKind.AUTH and _NO_LINK in error.detail:
                raise _wrong("revoke", url, error.detail, ErrorKind.NOT_FOUND) from error
            raise
        try:
            permissions = f"{self._drive}/items/{quote(item['id'], '!')}/permissions"
            known = self._json("revoke", url, "GET", permissions)["value"]
            found = [each["id"] for each in known if each.get("link", {}).get("webUrl") == url and _is_link(each)]
        except (KeyError, TypeError, AttributeError) as error:
            raise CloudError(ErrorKind.SERVER, "revoke", url, detail="the answer cannot be read") from error
        if not found:
            raise _wrong("revoke", url, "the item has no such link", ErrorKind.NOT_FOUND)
        self._client.send(
            "revoke", url, "DELETE", f"{permissions}/{quote(str(found[0]), '!')}", headers=self._headers()
        )

    def copy(self, source: str, target: str) -> Entry:
        """Copy a file or folder; an existing target is a conflict."""
        wanted = self._place("copy", source, target)
        url = self._url("copy", source, "/copy")
        body = json.dumps(wanted).encode()
        headers = self._headers(**{"content-type": "application/json", "prefer": "respond-async"})
        answer = self._client.send("copy", source, "POST", url, headers=headers, content=body)
        monitor = self._elsewhere("copy", source, answer.headers.get("location"))
        for _ in range(_MOST_LOOKS):
            told = self._client.send_json("copy", source, "GET", monitor)
            status = told.get("status") if isinstance(told, dict) else None
            if status == "completed":
                item = self._json("copy", source, "GET", f"{self._url('copy', target, at=source)}?$select={_FIELDS}")
                return self._entry_at("copy", target, item)
            if status in ("failed", "deleteFailed", "cancelled"):
                kind, words = _reason(200, json.dumps(told).encode()) if "error" in told else (None, str(status))
                raise _wrong("copy", source, words, kind or ErrorKind.SERVER)
        raise _wrong("copy", source, "the service does not finish the copy")

    def move(self, source: str, target: str) -> Entry:
        """Rename a file or folder; an existing target is a conflict."""
        wanted = self._place("move", source, target)
        item = self._json("move", source, "PATCH", self._url("move", source), wanted)
        return self._entry_at("move", target, item)

    def _place(self, verb: str, source: str, target: str) -> dict[str, Any]:
        """Return where an item is to be put; makes missing folders, unless the item does not exist."""
        above, _, name = target.rpartition("/")
        self._url(verb, target, at=source)
        url = f"{self._url(verb, above or '/', at=source)}?$select=id"
        try:
            folder = self._json(verb, source, "GET", url)
        except CloudError as error:
            if error.kind is not ErrorKind.NOT_FOUND:
                raise
            self._json(verb, source, "GET", f"{self._url(verb, source)}?$select=id")
            self._make_folder(verb, source, above)
            folder = self._json(verb, source, "GET", url)
        try:
            return {"parentReference": {"id": folder["id"]}, "name": name}
        except (KeyError, TypeError) as error:
            raise CloudError(ErrorKind.SERVER, verb, source, detail="the answer cannot be read") from error

    def space(self) -> tuple[int, int]:
        """Return the bytes used, and the bytes that the account may hold."""
        answer = self._json("space", "/", "GET", self._drive)
        try:
            return int(answer["quota"]["used"]), int(answer["quota"]["total"])
        except (KeyError, TypeError, ValueError) as error:
            raise CloudError(ErrorKind.SERVER, "space", "/", detail="the answer has no quota") from error


class _Unexpected(Exception):
    """An answer with a successful status that the driver cannot use: the cause of the CloudError that leaves."""


def _wrong(verb: str, path: str, detail: str, kind: ErrorKind = ErrorKind.SERVER) -> CloudError:
    detail = redact.clean(detail)
    error = CloudError(kind, verb, path, detail=detail)
    error.__cause__ = _Unexpected(detail)
    return error


def _hex(text: object) -> str | None:
    """Return in hex a hash that the service writes in base64; None if there is none."""
    from base64 import b64decode

    return b64decode(text).hex() if isinstance(text, str) and text else None


def _base64url(text: str) -> str:
    from base64 import urlsafe_b64encode

    return urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _is_link(permission: Mapping[str, Any]) -> bool:
    """Return whether a permission is a link that can be removed; the owner's permission also shows an address."""
    return "owner" not in permission.get("roles", ())
