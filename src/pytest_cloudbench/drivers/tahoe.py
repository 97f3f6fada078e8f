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
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar
from unicodedata import is_normalized
from urllib.parse import quote, urlsplit

from pytest_cloudbench.drivers.base import CredentialSet, check_params, timeout_of, usable_credentials, walk
from pytest_cloudbench.drivers.egress import leaving
from pytest_cloudbench.drivers.web import WebClient
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


def _reason(status: int, body: bytes) -> tuple[ErrorKind | None, str]:
    """Read the gateway's error: a line of text, a traceback, or a web page."""
    text = body.decode(errors="replace")
    if "<html" in text.lower():
        text = html.unescape(_MARKUP.sub(" ", text))
    kind = next((kind for word, kind in _WORD_KINDS if word in text), None)
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    is_traceback = lines[:1] and lines[0].startswith("Traceback")
    return kind, (lines[-1] if is_traceback else " ".join(lines)) if lines else ""


class _Missing(Exception):
    """The gateway's answer does not list it; the cause of the CloudError that leaves."""


# --- connect --------------------------------------------------------------------------------------


class TahoeDriver:
    """A pool of connections to one gateway, shared by all threads."""

    capabilities: ClassVar[Capabilities] = _CAPABILITIES
    credential_sets: ClassVar[tuple[CredentialSet, ...]] = (
        CredentialSet(("cap",)),
        CredentialSet(("cap_file",), public=("cap_file",), free=("cap_file",)),
    )

    def __init__(self, url: str, endpoint: Endpoint | None, cap: str, timeout_s: float) -> None:
        self._cap, self._site = cap, f"{url.rstrip('/')}/"
        self._top = f"{self._site}uri/{quote(cap, safe='')}"
        self._client = WebClient(leaving(endpoint, url), _reason, timeout_s)

    @classmethod
    def connect(cls, spec: ProviderSpec, endpoint: Endpoint | None, credentials: Mapping[str, str]) -> TahoeDriver:
        """Return the driver for ``tahoe:URL``, the address of a gateway. Nothing is sent before the first operation.

        The credential is the writable capability of a directory, or a file that holds it.
        """
        check_params(spec, {"timeout_s", "token_env"})
        url = endpoint.url if endpoint else spec.target
        if not urlsplit(url).hostname or not url.startswith(("http://", "https://")):
            raise SpecError(f"provider {redact.clean(spec.text)!r}: expected tahoe:URL, such as http://127.0.0.1:3456")
        given = endpoint.credentials if endpoint else credentials
        secrets = usable_credentials(spec.scheme, cls.credential_sets, given)
        cap = secrets.get("cap") or _cap_in(spec, secrets["cap_file"])
        redact.learn([cap, quote(cap, safe="")])
        if not cap.startswith("URI:DIR2"):
            raise CredentialsError(f"{spec.scheme}: cap is not that of a directory, which begins with URI:DIR2")
        return cls(url, endpoint, cap, timeout_of(spec))

    @property
    def clock_url(self) -> str:
        """An address whose answers are dated."""
        return self._site

    def versions(self) -> Mapping[str, str]:
        """Return the libraries, and what is switched off in them."""
        return self._client.versions()

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def requests(self) -> int:
        """Return how many requests this thread has sent so far."""
        return self._client.requests()

    def _url(self, verb: str, path: str, query: str = "") -> str:
        parts = [part for part in path.split("/") if part]
        if not path.startswith("/") or any(part in {".", ".."} for part in parts) or "\0" in path:
            raise CloudError(ErrorKind.INVALID, verb, path, detail="expected /NAME/... without '.' and '..'")
        if not is_normalized("NFC", path):
            raise CloudError(ErrorKind.INVALID, verb, path, detail="a name is composed (NFC) here")
        try:
            return "/".join([self._top, *(quote(part, safe="") for part in parts)]) + (f"?{query}" if query else "")
        except UnicodeEncodeError as error:
            raise CloudError(ErrorKind.INVALID, verb, path, detail="not a file name") from error

    @contextmanager
    def _read(self, verb: str, path: str) -> Iterator[None]:
        """Turn an answer of an unexpected shape into CloudError."""
        try:
            yield
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CloudError(ErrorKind.SERVER, verb, path, detail="the answer cannot be read") from error

    def _node(self, verb: str, path: str) -> tuple[str, Any]:
        """Return what a path is, ``filenode`` or ``dirnode``, and what the gateway says about it."""
        answer = self._client.send_json(verb, path, "GET", self._url(verb, path, "t=json"))
        with self._read(verb, path):
            kind, told = answer
            if kind not in {"filenode", "dirnode"}:
                raise ValueError(kind)
            return kind, told

    # --- required verbs ---------------------------------------------------------------------------

    def put(self, path: str, content: Content) -> Entry:
        """Upload an immutable file with one request; the gateway creates the folders above it."""
        url = self._url("put", path, "format=CHK")
        self._named("put", path)
        headers = {"content-length": str(content.size_bytes)}
        self._client.send("put", path, "PUT", url, headers=headers, content=chunks(content, _PIECE_BYTES))
        return Entry(path, size_bytes=content.size_bytes)

    def get(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """Yield the file's bytes from ``offset``; sends the request when the first piece is asked for."""
        headers = {"accept-encoding": "identity", **({"range": f"bytes={offset}-"} if offset else {})}
        with self._client.stream("get", path, "GET", self._url("get", path), headers=headers) as response:
            if "accept-ranges" not in response.headers:
                raise CloudError(ErrorKind.CONFLICT, "get", path, detail="it is a folder")
            if offset and response.status_code != 206:
                raise CloudError(ErrorKind.SERVER, "get", path, detail="the range was ignored")
            yield from response.iter_raw()

    def stat(self, path: str) -> Entry:
        """Return what the gateway knows about one path."""
        kind, told = self._node("stat", path)
        with self._read("stat", path):
            return _entry(path, kind, told)

    def list(self, folder: str) -> Iterator[Entry]:
        """Yield everything below ``folder``, one request for each folder."""
        return walk(folder, self._children)

    def _children(self, folder: str) -> Iterator[tuple[Entry, str]]:
        kind, told = self._node("list", folder)
        with self._read("list", folder):
            children = told["children"] if kind == "dirnode" else {}
            top = folder.rstrip("/")
            found = [_entry(f"{top}/{name}", *children[name]) for name in sorted(children)]
        return ((entry, entry.path) for entry in found)

    def delete(self, path: str) -> None:
        """Unlink a file, or a folder with all its contents. Storage servers may collect or keep what is unlinked."""
        self._named("delete", path)
        self._client.send("delete", path, "DELETE", self._url("delete", path))

    def mkdir(self, path: str) -> None:
        """Create a folder and its parents; no error if it exists."""
        url = self._url("mkdir", path, "t=mkdir")
        if path.strip("/"):
            self._client.send("mkdir", path, "POST", url)

    # --- optional verbs ---------------------------------------------------------------------------

    def copy(self, source: str, target: str) -> Entry:
        """Link a file under another name as well, which moves no content; an existing target is a conflict."""
        self._named("copy", target)
        url = self._url("copy", target, "t=uri&replace=false")
        kind, told = self._node("copy", source)
        if kind != "filenode":
            raise CloudError(ErrorKind.CONFLICT, "copy", source, detail="a folder cannot be copied")
        with self._read("copy", source):
            cap, entry = str(told["ro_uri"]), _entry(target, kind, told)
        self._client.send("copy", source, "PUT", url, content=cap.encode())
        return entry

    def move(self, source: str, target: str) -> Entry:
        """Link a file or folder under another name and unlink it; an existing target is a conflict."""
        self._named("move", source)
        self._named("move", target)
        self._url("move", target)
        old_folder, _, old = source.rpartition("/")
        new_folder, _, new = target.rpartition("/")
        kind, told = self._node("move", source)
        with self._read("move", source):
            entry = _entry(target, kind, told)
        place = "/".join([self._cap, *filter(None, new_folder.split("/"))])
        names = {"from_name": old, "to_dir": place, "to_name": new, "replace": "false"}
        query = "&".join(["t=relink", *(f"{name}={quote(value, safe='')}" for name, value in names.items())])
        self.mkdir(new_folder or "/")
        self._client.send("move", source, "POST", self._url("move", old_folder or "/", query))
        return entry

    def _named(self, verb: str, path: str) -> None:
        if not path.strip("/"):
            raise CloudError(ErrorKind.INVALID, verb, path, detail="expected /NAME")


def _entry(path: str, kind: str, told: Mapping[str, Any]) -> Entry:
    return Entry(path, is_folder=True) if kind == "dirnode" else Entry(path, size_bytes=int(told["size"]))


def _cap_in(spec: ProviderSpec, name: str) -> str:
    try:
        return opening.read_file(Path(name).expanduser()).decode("ascii").strip()
    except (OSError, ValueError) as error:
        raise CredentialsError(f"{spec.scheme}: {name} cannot be read: {getattr(error, 'strerror', error)}") from error
