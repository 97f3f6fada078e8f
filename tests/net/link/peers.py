"""A TCP server and a client for tests, each run inside a namespace. Each prints its result as one line of JSON.

``peers.py serve ADDRESS`` first prints its port. ``peers.py send ADDRESS PORT BYTES`` sends the pattern.
"""

from __future__ import annotations

import errno
import hashlib
import json
import socket
import sys
import time

PATTERN = bytes(range(256)) * 4096


def serve(address: str) -> dict[str, object]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as listener:
        print(listener.getsockname()[1], flush=True)
        connection = listener.accept()[0]
    total, digest, error = 0, hashlib.sha256(), ""
    with connection:
        connection.settimeout(float(sys.argv[3]) if len(sys.argv) > 3 else 300.0)
        try:
            while data := connection.recv(1 << 20):
                total += len(data)
                digest.update(data)
            connection.sendall(b"done")
        except OSError as failure:
            error = errno.errorcode.get(failure.errno or 0, type(failure).__name__)
    return {"bytes": total, "sha256": digest.hexdigest(), "error": error}


def send(address: str, port: int, size_bytes: int) -> dict[str, object]:
    start_s, error, answer = time.monotonic(), "", b""
    with socket.create_connection((address, port), timeout=300) as connection:
        connection.settimeout(float(sys.argv[5]) if len(sys.argv) > 5 else 300.0)
        try:
            remaining_bytes = size_bytes
            while remaining_bytes:
                start = (size_bytes - remaining_bytes) % len(PATTERN)
                remaining_bytes -= connection.send(PATTERN[start : start + remaining_bytes])
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(4)
        except OSError as failure:
            error = errno.errorcode.get(failure.errno or 0, type(failure).__name__)
    return {"answer": answer.decode(), "error": error, "seconds": time.monotonic() - start_s}


if __name__ == "__main__":
    result = serve(sys.argv[2]) if sys.argv[1] == "serve" else send(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    print(json.dumps(result))
