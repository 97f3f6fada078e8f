"""Driver for Dropbox without its SDK: plain HTTP, one request per operation.

What may live here: what is specific to Dropbox as a client by its HTTP interface, in this order: imports, capabilities,
error table, connect, required verbs, optional verbs. It is there to show what the SDK itself costs, which ``dropbox``
uses, so the two drivers send the same requests for the same operations.

The HTTP client resends nothing and follows no redirect. A token that is about to expire is refreshed before the
request, inside the operation that notices it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, ClassVar
from urllib.parse import urlencode

from pytest_cloudbench.drivers._dropbox_api import (
    CAPABILITIES,
    CLOCK_URL,
    CREDENTIAL_SETS,
    OAUTH,
    SESSION_PIECE_BYTES,
    TAG_KINDS,
    kind_of_tags,
    kind_without_tags,
    open_dropbox_link,
    require_composed,
)
from pytest_cloudbench.drivers.base import CredentialSet, OAuthLogin, check_params, timeout_of, usable_credentials
from pytest_cloudbench.drivers.egress import egress_of
from pytest_cloudbench.drivers.pages import PageTokens
from pytest_cloudbench.drivers.stranger import Stranger
from pytest_cloudbench.drivers.web import Bearer, WebClient, WebDriver
from pytest_cloudbench.model import (
    MIB,
    Capabilities,
    CloudError,
    Content,
    Endpoint,
    Entry,
    ErrorKind,
    ProviderSpec,
    chunks,
)

# --- capabilities ---------------------------------------------------------------------------------

_CAPABILITIES = replace(CAPABILITIES, via="own client on httpx; redirects and retries off")

_API, _CONTENT = "https://api.dropboxapi.com", "https://content.dropboxapi.com"
_ONE_REQUEST_BYTES = 150 * MIB
# Up to this size, a body in one piece costs less than one in several.
_PIECE_BYTES = 1 * MIB

# --- error table ----------------------------------------------------------------------------------


def _reason_of_refusal(status: int, body: bytes) -> tuple[ErrorKind | None, str]:
    """Return the kind and the words of a refusal: a path of tags, or a sentence."""
    text = body.decode(errors="replace")
    try:
        tags = _path_of_tags(json.loads(body)["error"])
    except (ValueError, TypeError, KeyError, RecursionError):
        tags = []
    if status != 409:
        kind = TAG_KINDS.get(tags[-1]) if tags and status in (403, 404) else None
        return kind or kind_without_tags(status, text), "/".join(tags) or text
    return kind_of_tags(tags), "/".join(tags) or text


def _path_of_tags(error: Any) -> list[str]:
    """Return the path of tags of a refusal, from the outermost to the innermost."""
    tags = []
    while isinstance(error, dict):
        tag = error.get(".tag")
        if isinstance(tag, str):
            tags.append(tag)
            error = error.get(tag) or error.get("reason")
        else:
            error = error.get("reason")
    return tags


# --- connect --------------------------------------------------------------------------------------


class DropboxFastDriver(WebDriver):
    """One pool of connections for all threads. The only other state is the token, which is refreshed under a lock."""

    apis: ClassVar[frozenset[str]] = frozenset({"dropbox"})
    credentials_of: ClassVar[str] = "dropbox"
    capabilities: ClassVar[Capabilities] = _CAPABILITIES
    credential_sets: ClassVar[tuple[CredentialSet, ...]] = CREDENTIAL_SETS
    clock_url: ClassVar[str] = CLOCK_URL
    oauth: ClassVar[OAuthLogin] = OAUTH

    multipart_bytes = _ONE_REQUEST_BYTES
    part_bytes = SESSION_PIECE_BYTES
    list_page_entries: int | None = None

    def __init__(self, client: WebClient, bearer: Bearer, api: str, content: str) -> None:
        super().__init__(client)
        self._bearer = bearer
        self._api, self._content = f"{api}/2/", f"{content}/2/"

    @classmethod
    def connect(
        cls, spec: ProviderSpec, endpoint: Endpoint | None, credentials: Mapping[str, str]
    ) -> DropboxFastDriver:
        """Return the driver for ``dropbox+fast``. Nothing is sent before the first operation."""
        check_params(spec, {"timeout_s", "token_env"}, no_target="the account's root is used")
        fields = endpoint.credentials if endpoint else credentials
        secrets = usable_credentials(spec.scheme, cls.credential_sets, fields)
        api = endpoint.urls["api"] if endpoint else _API
        content = endpoint.urls["content"] if endpoint else _CONTENT
        client = WebClient(egress_of(endpoint, api), _reason_of_refusal, timeout_of(spec))
        names = {"refresh_token": "refresh_token", "app_key": "client_id", "app_secret": "client_secret"}
        form = {"grant_type": "refresh_token"} | {names[name]: secrets[name] for name in names if name in secrets}
        bearer = Bearer(client, secrets, f"{api}/oauth2/token", lambda: urlencode(form).encode())
        return cls(client, bearer, api, content)

    def _call_function(self, verb: str, path: str, function: str, arg: Any) -> Any:
        """Call a function whose argument and answer are JSON."""
        body = b"null" if arg is None else _ascii_json(arg, verb, path)
        headers = {"authorization": self._bearer.header(), "content-type": "application/json"}
        return self._client.send_json(verb, path, "POST", self._api + function, headers=headers, content=body)

    def _upload_content(self, path: str, function: str, arg: Any, content: Content, offset: int, length: int) -> Any:
        """Call a function with a content, which is sent in one piece, or in several if it is long."""
        headers = {
            "authorization": self._bearer.header(),
            "content-type": "application/octet-stream",
            "content-length": str(length),
            "dropbox-api-arg": _ascii_json(arg, "put", path).decode(),
        }
        is_small, is_all = length <= _PIECE_BYTES, length == content.size_bytes
        body = content.read(offset, length) if is_small or not is_all else chunks(content, _PIECE_BYTES)
        return self._client.send_json("put", path, "POST", self._content + function, headers=headers, content=body)

    def _entry_of_metadata(self, verb: str, path: str, metadata: Any) -> Entry:
        with self._client.parsing(verb, path):
            own_path = str(metadata["path_display"])
            if metadata.get(".tag") == "folder" or "rev" not in metadata:
                return Entry(own_path, is_folder=True)
            size_bytes, digest = int(metadata["size"]), metadata["content_hash"]
            return Entry(own_path, size_bytes=size_bytes, digest=digest, revision=metadata["rev"])

    # --- required verbs ---------------------------------------------------------------------------

    def put(self, path: str, content: Content) -> Entry:
        """Upload with one request, or with an upload session if the file is too large for one request."""
        size_bytes = content.size_bytes
        if size_bytes > self.multipart_bytes:
            return self._put_in_pieces(path, content)
        arg = {"path": path, "mode": "overwrite", "mute": True}
        return self._entry_of_metadata(
            "put", path, self._upload_content(path, "files/upload", arg, content, 0, size_bytes)
        )

    def _put_in_pieces(self, path: str, content: Content) -> Entry:
        piece_bytes, size_bytes = self.part_bytes, content.size_bytes
        session = self._upload_content(path, "files/upload_session/start", {}, content, 0, piece_bytes)
        with self._client.parsing("put", path):
            cursor: dict[str, Any] = {"session_id": str(session["session_id"]), "offset": piece_bytes}
        while size_bytes - cursor["offset"] > piece_bytes:
            arg = {"cursor": cursor}
            self._upload_content(path, "files/upload_session/append_v2", arg, content, cursor["offset"], piece_bytes)
            cursor["offset"] += piece_bytes
        finish = {"cursor": cursor, "commit": {"path": path, "mode": "overwrite", "mute": True}}
        last_bytes = size_bytes - cursor["offset"]
        file = self._upload_content(path, "files/upload_session/finish", finish, content, cursor["offset"], last_bytes)
        return self._entry_of_metadata("put", path, file)

    def get(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """Yield the file's bytes from ``offset``. The request is sent when the first piece is asked for."""
        headers = {
            "authorization": self._bearer.header(),
            "dropbox-api-arg": _ascii_json({"path": path}, "get", path).decode(),
            **({"range": f"bytes={offset}-"} if offset else {}),
        }
        with self._client.stream("get", path, "POST", f"{self._content}files/download", headers=headers) as response:
            if "dropbox-api-result" not in response.headers:
                raise KeyError("dropbox-api-result")
            if offset and response.status_code != 206:
                raise CloudError(ErrorKind.SERVER, "get", path, detail="the range was ignored")
            yield from response.iter_bytes()

    def stat(self, path: str) -> Entry:
        """Return what Dropbox knows about one path."""
        return self._entry_of_metadata(
            "stat", path, self._call_function("stat", path, "files/get_metadata", {"path": path})
        )

    def list(self, folder: str) -> Iterator[Entry]:
        """Yield everything below ``folder``, page by page."""
        top = "" if folder == "/" else folder
        limit = {"limit": self.list_page_entries} if self.list_page_entries else {}
        page = self._call_function("list", folder, "files/list_folder", {"path": top, "recursive": True, **limit})
        tokens = PageTokens("list", folder)
        while True:
            with self._client.parsing("list", folder):
                cursor = page["cursor"] if page["has_more"] else None
                # A recursive list starts with the folder itself.
                rows = [row for row in page["entries"] if row["path_lower"] != top.lower() and row[".tag"] != "deleted"]
            for row in rows:
                yield self._entry_of_metadata("list", folder, row)
            if cursor is None:
                return
            tokens.use(cursor)
            page = self._call_function("list", folder, "files/list_folder/continue", {"cursor": cursor})

    def delete(self, path: str) -> None:
        """Remove a file, or a folder with all its contents."""
        self._entry_in_answer("delete", path, self._call_function("delete", path, "files/delete_v2", {"path": path}))

    def mkdir(self, path: str) -> None:
        """Create a folder. Dropbox creates its parents. No error if it exists."""
        try:
            self._entry_in_answer(
                "mkdir", path, self._call_function("mkdir", path, "files/create_folder_v2", {"path": path})
            )
        except CloudError as error:
            if getattr(error.__cause__, "args", ()) != (409, "path/conflict/folder"):
                raise

    def _entry_in_answer(self, verb: str, path: str, answer: Any) -> Entry:
        """Return the entry that an answer describes. Raises CloudError if it describes none."""
        with self._client.parsing(verb, path):
            return self._entry_of_metadata(verb, path, answer["metadata"])

    # --- optional verbs ---------------------------------------------------------------------------

    def share(self, path: str) -> str:
        """Return the URL of a new public link to ``path``. An existing link is a conflict."""
        return self._share(path, {})

    def share_until(self, path: str, ends_at: datetime) -> str:
        """Return the URL of a new public link to ``path`` that ends by itself. Not for Dropbox Basic."""
        return self._share(path, {"settings": {"expires": f"{ends_at:%Y-%m-%dT%H:%M:%SZ}"}})

    def _share(self, path: str, options: Mapping[str, Any]) -> str:
        arg = {"path": path, **options}
        link = self._call_function("share", path, "sharing/create_shared_link_with_settings", arg)
        with self._client.parsing("share", path):
            return str(link["url"])

    def revoke(self, url: str) -> None:
        """Make a link from ``share`` unusable."""
        self._call_function("revoke", url, "sharing/revoke_shared_link", {"url": url})

    @staticmethod
    def open_link(url: str, stranger: Stranger) -> bytes:
        """Return what a link gives to a person without an account."""
        return open_dropbox_link(url, stranger)

    def find_deleted(self, path: str, content: bytes) -> str:
        """Return ``as a version`` if the newest version of a deleted file still has the content. Otherwise empty."""
        answer = self._call_function("list versions", path, "files/list_revisions", {"path": path, "limit": 1})
        with self._client.parsing("list versions", path):
            revs = [str(version["rev"]) for version in answer["entries"]]
        is_kept = bool(revs) and b"".join(self.get(f"rev:{revs[0]}")) == content
        return "as a version" if is_kept else ""

    def copy(self, source: str, target: str) -> Entry:
        """Copy a file or folder. An existing target is a conflict."""
        arg = {"from_path": source, "to_path": target}
        return self._entry_in_answer("copy", source, self._call_function("copy", source, "files/copy_v2", arg))

    def move(self, source: str, target: str) -> Entry:
        """Rename a file or folder. An existing target is a conflict."""
        arg = {"from_path": source, "to_path": target}
        return self._entry_in_answer("move", source, self._call_function("move", source, "files/move_v2", arg))

    def space(self) -> tuple[int, int]:
        """Return the bytes used, and the bytes that the account may hold."""
        usage = self._call_function("space", "/", "users/get_space_usage", None)
        with self._client.parsing("space", "/"):
            return int(usage["used"]), int(usage["allocation"]["allocated"])


def _ascii_json(arg: Any, verb: str, path: str) -> bytes:
    """Return an argument as ASCII, as headers need it. Raises CloudError if it is not valid, composed Unicode."""
    text = json.dumps(arg)
    if "\\u" in text:
        plain = json.dumps(arg, ensure_ascii=False)
        require_composed(verb, path, plain)
        try:
            plain.encode()
        except UnicodeEncodeError as error:
            raise CloudError(ErrorKind.INVALID, verb, path, detail="not Unicode text") from error
    return text.encode()
