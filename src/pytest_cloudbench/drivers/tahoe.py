"""Driver for Tahoe-LAFS, by the HTTP API of a node that is the gateway to a grid.

What may live here: everything that is specific to Tahoe-LAFS as a client, in this order: imports, capabilities, error
table, connect, required verbs, optional verbs.

The gateway encrypts and erasure-codes, so its own work is part of every operation. A directory is a mutable file that
is rewritten for each new name in it: files in one folder wait for each other. The gateway composes names (NFC): a name
that is not composed is refused here, because it would become another file's.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar
from unicodedata import is_normalized
from urllib.parse import quote, urlsplit

from pytest_cloudbench.drivers.base import CredentialSet, check_params, names_in, timeout_of, usable_credentials, walk
from pytest_cloudbench.drivers.egress import egress_of
from pytest_cloudbench.drivers.web import WebClient, WebDriver
from pytest_cloudbench.model import (
    MIB,
    Capabilities,
    CloudError,
    Conflict,
    Content,
    CredentialsError,
    Endpoint,
    Entry,
    ErrorKind,
    ProviderSpec,
    SpecError,
    Verb,
    chunks,
)
from pytest_cloudbench.support import opening, redact

# --- capabilities ---------------------------------------------------------------------------------

_VERBS = frozenset({Verb.PUT, Verb.GET, Verb.STAT, Verb.LIST, Verb.DELETE, Verb.COPY, Verb.MOVE})

_CAPABILITIES = Capabilities(
    digest=None,
    verbs=_VERBS,
    ranges=True,
    conflicts=frozenset(Conflict) - {Conflict.SHARE_AGAIN},
    moves_folders=True,
    server_side_copy=True,
    requests=dict.fromkeys(_VERBS, 1) | {Verb.COPY: 2, Verb.MOVE: 3},
    via="httpx, to a gateway that encrypts and erasure-codes; nothing is sent again",
)

_PIECE_BYTES = MIB

# --- error table ----------------------------------------------------------------------------------

_WORD_KINDS: tuple[tuple[str, ErrorKind], ...] = (
    ("UnhappinessError", ErrorKind.SERVER),  # too few storage servers are there, or have room
    ("NotEnoughSharesError", ErrorKind.SERVER),
    ("UnrecoverableFileError", ErrorKind.SERVER),  # the same of a folder, with status 410
    ("NoSharesError", ErrorKind.NOT_FOUND),
    ("was asked to replace", ErrorKind.CONFLICT),
    ("ExistingChildError", ErrorKind.CONFLICT),
    ("There was already a child", ErrorKind.CONFLICT),
    ("cannot replace directory", ErrorKind.CONFLICT),
    ("PUT to a directory", ErrorKind.CONFLICT),
    ("POST to file", ErrorKind.CONFLICT),
    ("a file was in the way", ErrorKind.CONFLICT),
    ("Files have no children", ErrorKind.CONFLICT),
    ("files have no children", ErrorKind.CONFLICT),
    ("UncoordinatedWriteError", ErrorKind.CONFLICT),
    ("No such child", ErrorKind.NOT_FOUND),
    ("BadURIError", ErrorKind.AUTH),
)  # fmt: skip
_MARKUP = re.compile(r"<(style|head)\b.*?</\1>|<[^>]*>", re.DOTALL)


def _reason_of_refusal(status: int, body: bytes) -> tuple[ErrorKind | None, str]:
    """Return the kind and the words of the gateway's error: a line of text, a traceback, or a web page."""
    text = body.decode(errors="replace")
    if "<html" in text.lower():
        text = html.unescape(_MARKUP.sub(" ", text))
    kind = next((kind for word, kind in _WORD_KINDS if word in text), None)
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    is_traceback = lines[:1] and lines[0].startswith("Traceback")
    return kind, (lines[-1] if is_traceback else " ".join(lines)) if lines else ""


# --- connect --------------------------------------------------------------------------------------


class TahoeDriver(WebDriver):
    """A pool of connections to one gateway, shared by all threads."""

    capabilities: ClassVar[Capabilities] = _CAPABILITIES
    credential_sets: ClassVar[tuple[CredentialSet, ...]] = (
        CredentialSet(("cap",)),
        CredentialSet(("cap_file",), public=("cap_file",), free=("cap_file",)),
    )

    def __init__(self, url: str, endpoint: Endpoint | None, cap: str, timeout_s: float) -> None:
        super().__init__(WebClient(egress_of(endpoint, url), _reason_of_refusal, timeout_s))
        self._cap, self.clock_url = cap, f"{url.rstrip('/')}/"
        self._top = f"{self.clock_url}uri/{quote(cap, safe='')}"

    @staticmethod
    def address_of(spec: ProviderSpec) -> str:
        """Return the address of the server that a spec names."""
        return spec.target

    @classmethod
    def connect(cls, spec: ProviderSpec, endpoint: Endpoint | None, credentials: Mapping[str, str]) -> TahoeDriver:
        """Return the driver for ``tahoe:URL``, the address of a gateway. Nothing is sent before the first operation.

        The credential is the writable capability of a directory, or a file that holds it.
        """
        check_params(spec, {"timeout_s", "token_env"})
        url = endpoint.url if endpoint else spec.target
        if not urlsplit(url).hostname or not url.startswith(("http://", "https://")):
            raise SpecError(f"provider {redact.clean(spec.text)!r}: expected tahoe:URL, such as http://127.0.0.1:3456")
        fields = endpoint.credentials if endpoint else credentials
        secrets = usable_credentials(spec.scheme, cls.credential_sets, fields)
        cap = secrets.get("cap") or _read_cap(spec, secrets["cap_file"])
        redact.learn([cap, quote(cap, safe="")])
        if not cap.startswith("URI:DIR2"):
            raise CredentialsError(f"{spec.scheme}: cap is not that of a directory, which begins with URI:DIR2")
        return cls(url, endpoint, cap, timeout_of(spec))

    def _node_url(self, verb: str, path: str, query: str = "") -> str:
        names = names_in(verb, path)
        if not is_normalized("NFC", path):
            raise CloudError(ErrorKind.INVALID, verb, path, detail="a name is composed (NFC) here")
        return "/".join([self._top, *(quote(name, safe="") for name in names)]) + (f"?{query}" if query else "")

    def _describe_node(self, verb: str, path: str) -> tuple[str, Any]:
        """Return the kind of a path, ``filenode`` or ``dirnode``, and the gateway's description of it."""
        answer = self._client.send_json(verb, path, "GET", self._node_url(verb, path, "t=json"))
        with self._client.parsing(verb, path):
            kind, description = answer
            if kind not in {"filenode", "dirnode"}:
                raise ValueError(kind)
            return kind, description

    # --- required verbs ---------------------------------------------------------------------------

    def put(self, path: str, content: Content) -> Entry:
        """Upload an immutable file with one request. The gateway creates the folders above it."""
        url = self._node_url("put", path, "format=CHK")
        self._require_name("put", path)
        headers = {"content-length": str(content.size_bytes)}
        self._client.send("put", path, "PUT", url, headers=headers, content=chunks(content, _PIECE_BYTES))
        return Entry(path, size_bytes=content.size_bytes)

    def get(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """Yield the file's bytes from ``offset``. The request is sent when the first piece is asked for."""
        headers = {"accept-encoding": "identity", **({"range": f"bytes={offset}-"} if offset else {})}
        with self._client.stream("get", path, "GET", self._node_url("get", path), headers=headers) as response:
            if "accept-ranges" not in response.headers:
                raise CloudError(ErrorKind.CONFLICT, "get", path, detail="it is a folder")
            if offset and response.status_code != 206:
                raise CloudError(ErrorKind.SERVER, "get", path, detail="the range was ignored")
            yield from response.iter_raw()

    def stat(self, path: str) -> Entry:
        """Return what the gateway knows about one path."""
        kind, description = self._describe_node("stat", path)
        with self._client.parsing("stat", path):
            return _entry_of_node(path, kind, description)

    def list(self, folder: str) -> Iterator[Entry]:
        """Yield everything below ``folder``, one request for each folder."""
        return walk(folder, self._list_children)

    def _list_children(self, folder: str) -> Iterator[tuple[Entry, str]]:
        kind, description = self._describe_node("list", folder)
        if kind != "dirnode":
            raise CloudError(ErrorKind.CONFLICT, "list", folder, detail="it is a file")
        with self._client.parsing("list", folder):
            children = description["children"]
            top = folder.rstrip("/")
            entries = [_entry_of_node(f"{top}/{name}", *children[name]) for name in sorted(children)]
        return ((entry, entry.path) for entry in entries)

    def delete(self, path: str) -> None:
        """Unlink a file, or a folder with all its contents. Storage servers may collect or keep what is unlinked."""
        self._require_name("delete", path)
        self._client.send("delete", path, "DELETE", self._node_url("delete", path))

    def mkdir(self, path: str) -> None:
        """Create a folder and its parents. No error if it exists."""
        url = self._node_url("mkdir", path, "t=mkdir")
        if path.strip("/"):
            self._client.send("mkdir", path, "POST", url)

    # --- optional verbs ---------------------------------------------------------------------------

    def copy(self, source: str, target: str) -> Entry:
        """Link a file under another name as well, which moves no content. An existing target is a conflict."""
        self._require_name("copy", target)
        url = self._node_url("copy", target, "t=uri&replace=false")
        kind, description = self._describe_node("copy", source)
        if kind != "filenode":
            raise CloudError(ErrorKind.CONFLICT, "copy", source, detail="a folder cannot be copied")
        with self._client.parsing("copy", source):
            cap, entry = str(description["ro_uri"]), _entry_of_node(target, kind, description)
        self._client.send("copy", source, "PUT", url, content=cap.encode())
        return entry

    def move(self, source: str, target: str) -> Entry:
        """Link a file or folder under another name and unlink it. An existing target is a conflict."""
        self._require_name("move", source)
        self._require_name("move", target)
        self._node_url("move", target)
        old_folder, _, old = source.rpartition("/")
        new_folder, _, new = target.rpartition("/")
        kind, description = self._describe_node("move", source)
        with self._client.parsing("move", source):
            entry = _entry_of_node(target, kind, description)
        new_parent = "/".join([self._cap, *filter(None, new_folder.split("/"))])
        names = {"from_name": old, "to_dir": new_parent, "to_name": new, "replace": "false"}
        query = "&".join(["t=relink", *(f"{name}={quote(value, safe='')}" for name, value in names.items())])
        self.mkdir(new_folder or "/")
        self._client.send("move", source, "POST", self._node_url("move", old_folder or "/", query))
        return entry

    # --- the grid ---------------------------------------------------------------------------------

    def count_servers(self) -> int:
        """Return how many storage servers the gateway is connected to."""
        answer = self._client.send_json("count servers", "/", "GET", f"{self.clock_url}?t=json")
        with self._client.parsing("count servers", "/"):
            return sum(server["connection_status"] == "connected" for server in answer["servers"])

    def repair(self, path: str) -> bool:
        """Replace the lost shares of a file or folder. Returns whether none is missing afterwards."""
        url = self._node_url("repair", path, "t=check&repair=true&output=JSON")
        answer = self._client.send_json("repair", path, "POST", url)
        with self._client.parsing("repair", path):
            return bool(answer["post-repair-results"]["results"]["healthy"])

    def _require_name(self, verb: str, path: str) -> None:
        if not path.strip("/"):
            raise CloudError(ErrorKind.INVALID, verb, path, detail="expected /NAME")


def _entry_of_node(path: str, kind: str, description: Mapping[str, Any]) -> Entry:
    return Entry(path, is_folder=True) if kind == "dirnode" else Entry(path, size_bytes=int(description["size"]))


def _read_cap(spec: ProviderSpec, name: str) -> str:
    try:
        return opening.read_file(Path(name).expanduser()).decode("ascii").strip()
    except (OSError, ValueError) as error:
        raise CredentialsError(f"{spec.scheme}: {name} cannot be read: {getattr(error, 'strerror', error)}") from error
