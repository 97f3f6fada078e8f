"""A server that records requests before a real service or an emulator answers them, and a process that sends some.

The server has two ways in: its own address, for drivers that are told where their service is, and as a proxy for HTTP,
for drivers that know only their provider's real host names. It shows a certificate of its own for these. The process
connects a driver as an agent does, each time in a new child with an environment that the test chooses.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pytest_cloudbench.model import Endpoint

ROOT = Path(__file__).resolve().parents[2]
_HOPS = frozenset(
    {"connection", "transfer-encoding", "keep-alive", "proxy-connection", "content-length", "date", "server"}
)
# Differ from request to request, or from login to login.
_VARYING_HEADERS = frozenset(
    "date x-amz-date x-ms-date x-ms-client-request-id amz-sdk-invocation-id x-auth-token host".split()
)
_VARYING = re.compile(
    r"(?<=[?&]sn=)\w+|(?<=Signature=)\w+|(?<=SharedKey cloudbench:)\S+|(?<=gccl-invocation-id/)\S+|(?<=boundary=)\S+"
    r'|(?<="[a-z]": ")[\w-]{6,}|\d{5,}|[\da-f]{8}-[\da-f-]{20,}|(?<![\w+-])(?=[\w+-]*\d)(?!AWS4-HMAC)[\w+-]{16,}={0,2}'
    r"|20\d\d-\d\d-\d\d[T ][\d:.]+Z?|={10,}\d+=*|(?<=boxcloud.com:443/)\S+|(?<=personalcontent.com:443/)\S+"
    r"|(?<=userstorage.mega.co.nz:443/)\S+"
)


@dataclass(frozen=True)
class Recorded:
    """One request as it arrived, without the values that differ each time."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: str


class Recorder:
    """The requests that have arrived, in order."""

    def __init__(self, upstream: str, folder: Path) -> None:
        self.upstream, self.url = urlsplit(upstream), ""
        self._requests: list[Recorded] = []
        self._contexts: dict[str, ssl.SSLContext] = {}
        self._folder, self._lock = folder, threading.Lock()
        self._authority: Any = None

    def trust(self, *more: str) -> str:
        """Write a file with a new authority and those in other files, and return its path."""
        import trustme

        self._authority = trustme.CA()
        path = self._folder / "trusted.pem"
        texts = [self._authority.cert_pem.bytes(), *(Path(name).read_bytes() for name in more)]
        path.write_bytes(b"".join(texts))
        return str(path)

    def context_for(self, host: str) -> ssl.SSLContext:
        with self._lock:
            if host not in self._contexts:
                self._contexts[host] = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                self._authority.issue_cert(host).configure_cert(self._contexts[host])
            return self._contexts[host]

    def note(self, method: str, target: str, headers: Sequence[tuple[str, str]], body: bytes) -> None:
        masked_headers = [
            (name.lower(), "*" if name.lower() in _VARYING_HEADERS else _VARYING.sub("*", value))
            for name, value in headers
        ]
        is_sealed = "userstorage" in target  # encrypted with another key each time
        text = "*" if is_sealed else _VARYING.sub("*", body.decode("latin-1"))
        with self._lock:
            self._requests.append(Recorded(method, _VARYING.sub("*", target), tuple(sorted(masked_headers)), text))

    def take_requests(self) -> list[Recorded]:
        """Return the requests that have arrived since the last call."""
        with self._lock:
            requests, self._requests = self._requests, []
        return requests


def _handler(recorder: Recorder) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        inside = ""

        def do_CONNECT(self) -> None:
            host = self.path.rpartition(":")[0]
            recorder.note("CONNECT", self.path, (), b"")
            self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
            self.inside = self.path
            self.connection = recorder.context_for(host).wrap_socket(self.connection, server_side=True)
            self.rfile.close()
            self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", buffering=0)
            self.close_connection = False

        def finish(self) -> None:
            super().finish()
            self.connection.close()  # the layer of TLS, if there is one

        def pass_on(self) -> None:
            body = self._body()
            url = self.path if "://" in self.path or not self.inside else f"https://{self.inside}{self.path}"
            recorder.note(self.command, url, list(self.headers.items()), body)
            parts = urlsplit(self.path)
            target = self.path if not parts.scheme else f"{parts.path}?{parts.query}" if parts.query else parts.path
            status, reason, headers, answer = self._ask(target, body)
            self.send_response_only(status, reason)
            for name, value in headers:
                self.send_header(name, value)
            if "content-length" not in {name.lower() for name, _ in headers}:
                self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer)

        def _body(self) -> bytes:
            if "chunked" not in self.headers.get("Transfer-Encoding", ""):
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            pieces = []
            while size := int(self.rfile.readline().partition(b";")[0], 16):
                pieces.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(pieces)

        def _ask(self, target: str, body: bytes) -> tuple[int, str, list[tuple[str, str]], bytes]:
            upstream = recorder.upstream
            kind: Any = http.client.HTTPConnection
            if upstream.scheme == "https":
                context = ssl._create_unverified_context()
                kind = lambda netloc: http.client.HTTPSConnection(netloc, context=context)  # noqa: E731 - one line is enough
            connection = kind(upstream.netloc)
            try:
                connection.putrequest(self.command, target, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    if name.lower() not in _HOPS - {"date"} and name.lower() != "expect":
                        connection.putheader(name, value)
                connection.putheader("Content-Length", str(len(body)))
                connection.endheaders(body)
                answer = connection.getresponse()
                own = urlsplit(recorder.url).netloc
                headers = [
                    (name, value.replace(upstream.netloc, own) if not self.inside else value)
                    for name, value in answer.getheaders()
                    if name.lower() not in _HOPS - {"date"}
                ]
                if self.command == "HEAD":
                    headers += [("Content-Length", answer.headers.get("Content-Length", "0"))]
                return answer.status, answer.reason, headers, answer.read()
            finally:
                connection.close()

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_PATCH = do_OPTIONS = pass_on
        do_PROPFIND = do_MKCOL = do_COPY = do_MOVE = pass_on

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # clients that hang up


@contextmanager
def recording(upstream: str, folder: Path) -> Iterator[Recorder]:
    """Yield a recorder in front of the service at a URL."""
    recorder = Recorder(upstream, folder)
    server = _Server(("127.0.0.1", 0), _handler(recorder))
    recorder.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield recorder
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


# --- the process that sends requests ---


class Sender:
    """A process without any imported library. Each ``send`` is one child of it."""

    def __init__(self, folder: Path) -> None:
        environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": f"{ROOT}/src:{ROOT}"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.drivers.recorder"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            cwd=folder, env=environment,
        )  # fmt: skip

    def send(
        self,
        spec: str,
        credentials: Mapping[str, str],
        environment: Mapping[str, str],
        endpoint: Endpoint | None = None,
    ) -> dict[str, Any]:
        """Store, read, list and remove a file. Return the outcome and the driver's versions, or its error."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {
            "spec": spec, "credentials": dict(credentials), "environment": dict(environment),
            "endpoint": None if endpoint is None else endpoint.plain(),
        }  # fmt: skip
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def _operate(request: Mapping[str, Any]) -> dict[str, Any]:
    os.environ.update(request["environment"])
    from pytest_cloudbench import drivers
    from pytest_cloudbench.model import CloudbenchError, ProviderSpec
    from pytest_cloudbench.workload.payload.contents import Literal

    path, data = "/surrounded/a.txt", b"as it was\n"
    try:
        endpoint = None if request["endpoint"] is None else Endpoint.from_plain(request["endpoint"])
        driver: Any = drivers.connect(ProviderSpec.parse(request["spec"]), endpoint, request["credentials"])
        try:
            driver.mkdir("/surrounded")
            driver.put(path, Literal(data))
            content = b"".join(driver.get(path))
            size = driver.stat(path).size_bytes
            listed = sorted(entry.path for entry in driver.list("/surrounded"))
            driver.delete("/surrounded")
            is_intact = content == data and size == len(data) and path in listed
            return {"whole": is_intact, "versions": dict(driver.versions())}
        finally:
            driver.close()
    except CloudbenchError as error:
        return {"error": type(error).__name__, "told": str(error)}


def main() -> None:
    """Read requests, one a line. Do each in a child, and write its answer as a line."""
    for line in sys.stdin:
        reading, writing = os.pipe()
        if not (child := os.fork()):
            with os.fdopen(writing, "w") as file:
                file.write(json.dumps(_operate(json.loads(line))))
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as file:
            answer = file.read()
        os.waitpid(child, 0)
        print(answer or json.dumps({"error": "no answer"}), flush=True)


if __name__ == "__main__":
    main()
