"""The connections of httpx's clients: one for each request in flight, kept for the next request to the same host.

What may live here: handing out connections. httpx's own pool has a limit, and a request above it waits inside the
measured operation. It closes connections that are idle for five seconds. For each request it also compares all idle
connections with each other: with 250 of them a request takes 22 ms of CPU, and 0.4 ms here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any


def unlimited_transport(new_transport: Callable[..., Any]) -> Any:
    """Return a transport for a client of httpx that has as many connections as requests were in flight at once.

    Args:
        new_transport: makes a transport of httpx with the given ``limits``. Each serves one request at a time.
    """
    import httpx

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=None)

    class Body(httpx.SyncByteStream):
        """The body of an answer. Its connection serves other requests once it is closed."""

        def __init__(self, stream: Any, give_back: Callable[[], None]) -> None:
            self._stream, self._give_back = stream, give_back

        def __iter__(self) -> Iterator[bytes]:
            yield from self._stream

        def close(self) -> None:
            try:
                self._stream.close()
            finally:
                self._give_back()

    class Unlimited(httpx.BaseTransport):
        """A transport for each request in flight. The one that was used last is the next one to be used."""

        def __init__(self) -> None:
            self._all = list[Any]()
            self._idle = dict[tuple[str, bytes], deque[Any]]()

        def handle_request(self, request: httpx.Request) -> httpx.Response:
            idle = self._idle.setdefault((request.url.scheme, request.url.netloc), deque())
            try:
                transport = idle.pop()
            except IndexError:
                transport = new_transport(limits=limits)
                self._all.append(transport)
            try:
                response: httpx.Response = transport.handle_request(request)
            except BaseException:
                idle.append(transport)  # it has closed its connection, and opens another one for the next request
                raise
            response.stream = Body(response.stream, lambda: idle.append(transport))
            return response

        def close(self) -> None:
            for transport in [*self._all]:
                transport.close()

    return Unlimited()
