"""The server of a made-up provider, for docs/extending/driver.md: an object store over HTTP that holds all in memory.

    pail-server --port 8000 --token SECRET

``PUT``, ``GET`` (with a range), ``HEAD`` and ``DELETE`` of ``/KEY``, and ``GET /?prefix=TEXT`` for a JSON list of
key, size and MD5. It imports nothing of the tests or the package.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

__all__ = ["main"]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer leaves in one piece
    objects: dict[str, bytes]
    token: str

    def _answer(self, status: int, body: bytes = b"", content: bytes | None = None) -> None:
        """Answer with a body, and with the MD5 of ``content``, the whole object."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if content is not None:
            self.send_header("ETag", hashlib.md5(content).hexdigest())
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _do(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        key = unquote(urlsplit(self.path).path)
        if self.headers.get("Authorization") != f"Bearer {self.token}":
            self._answer(401, b"who are you?")
        elif self.command == "PUT":
            self.objects[key] = body
            self._answer(201, content=body)
        elif self.command == "DELETE":
            self.objects.pop(key, None)
            self._answer(204)
        elif key == "/":
            prefix = parse_qs(urlsplit(self.path).query)["prefix"][0]
            objects = [(name, data) for name, data in sorted(self.objects.copy().items()) if name.startswith(prefix)]
            rows = [[name, len(data), hashlib.md5(data).hexdigest()] for name, data in objects]
            self._answer(200, json.dumps(rows).encode())
        elif key not in self.objects:
            self._answer(404, b"no such key")
        else:
            self._give(self.objects[key])

    def _give(self, data: bytes) -> None:
        byte_range = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        self._answer(206 if byte_range else 200, data[int(byte_range[1]) if byte_range else 0 :], content=data)

    do_PUT = do_GET = do_HEAD = do_DELETE = _do

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # clients may hang up


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--token", required=True)
    options = parser.parse_args()
    handler = type("Handler", (_Handler,), {"objects": {}, "token": options.token})
    server = _Server(("127.0.0.1", options.port), handler)
    print("pail-server takes requests", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
