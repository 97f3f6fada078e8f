"""A second kind of server that freezes, with nothing in common with the emulator: HTTP by hand on asyncio.

``python benchmarks/freeze_server.py PERIOD_S DURATION_S`` prints its port and runs until its input ends.
It answers any request with an empty 200, but not during the last DURATION_S of each PERIOD_S. ``POST /origin``
starts the first period, ``GET /origin`` says when that was (nanoseconds of the monotonic clock).
"""

from __future__ import annotations

import asyncio
import sys
import time

__all__ = ["FrozenServer"]


class FrozenServer(asyncio.Protocol):
    """One connection, on which requests come one after the other."""

    period_ns = duration_ns = origin_ns = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.data = transport, b""

    def data_received(self, data: bytes) -> None:
        self.data += data
        head, mark, body = self.data.partition(b"\r\n\r\n")
        if not mark or len(body) < _length(head):
            return
        self.data = b""
        kind = type(self)
        if head.startswith(b"POST /origin"):
            kind.origin_ns = time.monotonic_ns()
        if b" /origin" in head:
            self.answer(str(kind.origin_ns).encode())
            return
        phase_ns = (time.monotonic_ns() - kind.origin_ns) % kind.period_ns
        if phase_ns < kind.period_ns - kind.duration_ns:
            self.answer(b"")
        else:
            asyncio.get_running_loop().call_later((kind.period_ns - phase_ns) / 1e9, self.answer, b"")

    def answer(self, body: bytes) -> None:
        self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0


async def _serve(period_s: float, duration_s: float) -> None:
    FrozenServer.period_ns, FrozenServer.duration_ns = round(period_s * 1e9), round(duration_s * 1e9)
    FrozenServer.origin_ns = time.monotonic_ns()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(FrozenServer, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_serve(float(sys.argv[1]), float(sys.argv[2])))
