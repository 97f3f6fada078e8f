"""A server of the smallest kind that the gate's recordings upload to: WebDAV on threads, in a process of its own.

``python benchmarks/gate_server.py PORT`` serves until it is ended. Each connection has a thread, which computes a
little and waits some 25 ms before it answers an upload. It keeps sizes, not contents.
"""

from __future__ import annotations

import hashlib
import random
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import log
from urllib.parse import unquote
from xml.sax.saxutils import escape

__all__ = ["GateServer"]

_MEDIAN_S, _SIGMA = 0.025, 0.1
_DIGESTS = 20
"""How often an upload's content is hashed: as much CPU as a small service needs for an upload."""

_ENTRY = """<d:response><d:href>{path}</d:href><d:propstat><d:prop>{properties}</d:prop>
<d:status>HTTP/1.1 200 OK</d:status></d:propstat></d:response>"""


class GateServer(ThreadingHTTPServer):
    """Sizes of files, and None for folders, by path."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.lock = threading.Lock()
        self.sizes: dict[str, int | None] = {"/": None}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: GateServer

    def do_PUT(self) -> None:
        content = self._body()
        for _ in range(_DIGESTS):
            hashlib.sha256(content).digest()
        time.sleep(random.lognormvariate(log(_MEDIAN_S), _SIGMA))
        with self.server.lock:
            has_parent = self._parent in self.server.sizes
            if has_parent:
                self.server.sizes[self._path] = len(content)
        self._answer(201 if has_parent else 409)

    def do_MKCOL(self) -> None:
        self._body()
        with self.server.lock:
            status = 405 if self._path in self.server.sizes else 201 if self._parent in self.server.sizes else 409
            if status == 201:
                self.server.sizes[self._path] = None
        self._answer(status)

    def do_PROPFIND(self) -> None:
        self._body()
        prefix = self._path.rstrip("/") + "/"
        with self.server.lock:
            if self._path not in self.server.sizes:
                return self._answer(404)
            entries = {self._path: self.server.sizes[self._path]}
            if self.headers.get("Depth") != "0":
                entries |= {path: size for path, size in self.server.sizes.items()
                            if path.startswith(prefix) and path != prefix
                            and "/" not in path[len(prefix):]}  # fmt: skip
        lines = "".join(_ENTRY.format(path=escape(path), properties=_properties(entries[path])) for path in entries)
        self._answer(207, f'<?xml version="1.0"?><d:multistatus xmlns:d="DAV:">{lines}</d:multistatus>'.encode())

    def do_DELETE(self) -> None:
        self._body()
        prefix = self._path.rstrip("/") + "/"
        with self.server.lock:
            removed = [path for path in self.server.sizes if path == self._path or path.startswith(prefix)]
            for path in removed:
                del self.server.sizes[path]
        self._answer(204 if removed else 404)

    def log_message(self, *_: object) -> None:
        """Log nothing, since it would cost more than the request."""

    @property
    def _path(self) -> str:
        return "/" + unquote(self.path).strip("/")

    @property
    def _parent(self) -> str:
        return self._path.rpartition("/")[0] or "/"

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "application/xml")
        self.end_headers()
        self.wfile.write(body)


def _properties(size: int | None) -> str:
    if size is None:
        return "<d:resourcetype><d:collection/></d:resourcetype>"
    return f"<d:resourcetype/><d:getcontentlength>{size}</d:getcontentlength>"


if __name__ == "__main__":
    GateServer(int(sys.argv[1])).serve_forever()
