"""A real server of files over plain HTTP, ``tiny.py PORT FOLDER SECRET``, and its driver."""

from __future__ import annotations

import http.client
import json
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, unquote, urlsplit

__all__ = ["serve", "server_for"]


def make_server(port: int, folder: Path, secret: str) -> ThreadingHTTPServer:
    """Make a server of the folder's files."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers["Authorization"] != secret:
                return self._say(401)
            path = self._path()
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            return self._say(201)

        def do_GET(self) -> None:
            path = self._path()
            if path.is_dir():
                files = [file for file in path.rglob("*") if file.is_file()]
                rows = [[f"/{file.relative_to(folder)}", file.stat().st_size] for file in files]
                return self._say(200, json.dumps(rows).encode())
            return self._say(200, path.read_bytes()) if path.exists() else self._say(404)

        def do_DELETE(self) -> None:
            import shutil

            path = self._path()
            if not path.exists():
                return self._say(404)
            shutil.rmtree(path) if path.is_dir() else path.unlink()
            return self._say(204)

        def _path(self) -> Path:
            return folder / unquote(self.path).lstrip("/")

        def _say(self, status: int, body: bytes = b"") -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def serve(port: int, folder: Path, secret: str) -> None:
    print(f"process {os.getpid()} serves {folder}", flush=True)  # before anybody can see that it listens
    server = make_server(port, folder, secret)
    print(f"listens on port {port}", flush=True)
    server.serve_forever()


@contextmanager
def server_for(folder: Path, secret: str) -> Iterator[ThreadingHTTPServer]:
    """Run the server in this process, as somebody's account."""
    server = make_server(0, folder, secret)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


if __name__ == "__main__":
    serve(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
else:
    from pytest_cloudbench.drivers.base import CredentialSet, usable_credentials
    from pytest_cloudbench.model import (
        Capabilities,
        CloudError,
        Content,
        Endpoint,
        Entry,
        ErrorKind,
        ProviderSpec,
        SpecError,
        Verb,
    )

    __all__ += ["Tiny"]

    class Tiny:
        capabilities: ClassVar[Capabilities] = Capabilities(
            digest=None, verbs=frozenset({Verb.PUT, Verb.GET, Verb.STAT, Verb.LIST, Verb.DELETE})
        )
        credential_sets: ClassVar[tuple[CredentialSet, ...]] = (CredentialSet(("password",)),)

        def __init__(self, host: str, password: str) -> None:
            self._host, self._password = host, password

        @classmethod
        def connect(cls, spec: ProviderSpec, endpoint: Endpoint | None, credentials: Mapping[str, str]) -> Tiny:
            if endpoint is None and not spec.target:
                raise SpecError(f"provider {spec.text!r}: expected tiny:HOST:PORT")
            available = endpoint.credentials if endpoint else credentials
            usable = usable_credentials(spec.scheme, cls.credential_sets, available)
            return cls(urlsplit(endpoint.url).netloc if endpoint else spec.target, usable["password"])

        def _ask(self, verb: str, path: str, body: bytes | None = None) -> bytes:
            try:
                with closing(http.client.HTTPConnection(self._host)) as connection:
                    connection.request(verb, quote(path), body, {"Authorization": self._password})
                    answer = connection.getresponse()
                    data = answer.read()
            except (OSError, http.client.HTTPException) as error:
                raise CloudError(ErrorKind.NETWORK, verb, path, detail=str(error)) from error
            kinds = {404: ErrorKind.NOT_FOUND, 401: ErrorKind.AUTH}
            if answer.status >= 400:
                raise CloudError(kinds.get(answer.status, ErrorKind.SERVER), verb, path)
            return data

        def versions(self) -> Mapping[str, str]:
            return {"tiny": "1"}

        def put(self, path: str, content: Content) -> Entry:
            self._ask("PUT", path, content.read(0, content.size_bytes))
            return Entry(path, content.size_bytes)

        def get(self, path: str, offset: int = 0) -> Iterator[bytes]:
            yield self._ask("GET", path)[offset:]

        def stat(self, path: str) -> Entry:
            return Entry(path, len(self._ask("GET", path)))

        def list(self, folder: str) -> Iterator[Entry]:
            rows: list[list[Any]] = json.loads(self._ask("GET", folder))
            yield from (Entry(path, size_bytes) for path, size_bytes in rows)

        def delete(self, path: str) -> None:
            self._ask("DELETE", path)

        def mkdir(self, path: str) -> None: ...

        def close(self) -> None: ...
