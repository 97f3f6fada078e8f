"""Reading of an HTTP answer in any encoding: a small first piece that marks the first byte, then large pieces."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import requests

from pytest_cloudbench.drivers.sdk import read_pieces, response_pieces
from pytest_cloudbench.workload.payload import RandomContent

KIB = 1024
SIZES = [0, 1, KIB, 5 * KIB, 256 * KIB, 257 * KIB, 1024 * KIB + 7]


def body_of(size_bytes: int) -> bytes:
    return RandomContent("pieces", size_bytes).read(0, size_bytes)


class Carrier(BaseHTTPRequestHandler):
    """Sends a body of the size that the path names, with a length, in chunks, compressed, or cut off."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        _, how, size = self.path.split("/")
        body = body_of(int(size))
        self.send_response(200)
        if how == "gzip":
            body = gzip.compress(body)
            self.send_header("Content-Encoding", "gzip")
        if how == "chunked":
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for begin in range(0, len(body), 3000):
                chunk = body[begin : begin + 3000]
                self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            self.wfile.write(b"0\r\n\r\n")
            return
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.close_connection = how == "cut"
        self.wfile.write(body[: len(body) // 2] if how == "cut" else body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Carrier) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        serving.join()


@pytest.mark.parametrize("size_bytes", SIZES)
@pytest.mark.parametrize("how", ["length", "chunked", "gzip"])
def test_answer_is_read_whole_with_a_small_first_piece(address: str, how: str, size_bytes: int) -> None:
    with requests.Session() as session:
        session.trust_env = False
        for _ in range(2):
            with session.get(f"{address}/{how}/{size_bytes}", stream=True, timeout=60) as response:
                pieces = list(response_pieces(response))
            assert b"".join(pieces) == body_of(size_bytes)
            assert len(pieces[0] if pieces else b"") <= KIB
            assert b"" not in pieces
        (pool,) = session.get_adapter(address).poolmanager.pools._container.values()  # type: ignore[attr-defined] # the pool says how many connections were made
        assert pool.num_connections == 1, "a body that was read leaves its connection for the next request"


def test_large_answers_are_few_pieces(address: str) -> None:
    with requests.get(f"{address}/length/{1024 * KIB}", stream=True, timeout=60) as response:
        sizes = [len(piece) for piece in response_pieces(response)]
    assert sizes == [KIB, *[256 * KIB] * 3, 255 * KIB]


def test_answer_that_breaks_off_is_an_error(address: str) -> None:
    with requests.get(f"{address}/cut/{300 * KIB}", stream=True, timeout=60) as response:
        pieces = response_pieces(response)
        assert len(next(pieces)) == KIB
        with pytest.raises(requests.exceptions.ChunkedEncodingError):
            list(pieces)


@pytest.mark.parametrize("size_bytes", SIZES)
def test_file_is_read_in_the_same_pieces(size_bytes: int) -> None:
    body, read_bytes = body_of(size_bytes), 0

    def read_piece(piece_bytes: int) -> bytes:
        nonlocal read_bytes
        piece = body[read_bytes : read_bytes + piece_bytes]
        read_bytes += len(piece)
        return piece

    pieces = list(read_pieces(read_piece))
    assert b"".join(pieces) == body
    assert [len(piece) for piece in pieces[:1]] == [min(KIB, size_bytes)][: size_bytes > 0]
