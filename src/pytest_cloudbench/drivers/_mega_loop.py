"""One event loop in one thread, for an asyncio SDK under a driver that many threads call.

What may live here: the loop's thread, and the HTTP session of its requests: how many each thread sent, which answers
are refused. The SDK's objects live in the loop; a driver's method sends a coroutine there and waits.

All threads share one loop, because they then share one login (a key derived by 100,000 rounds of a hash, or 65,536 of a
cipher), one copy of the account's tree and one pool of connections. A loop for each thread would multiply these, and
Python runs one thread at a time anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar
from weakref import WeakSet

from pytest_cloudbench.drivers.egress import Egress
from pytest_cloudbench.drivers.waits import seconds_of

_T = TypeVar("_T")
_IDLE_S = 86_400.0
"""How long an idle connection is kept: longer than a load lasts."""
_LAST_TURNS = 100


class SentBy(threading.local):
    """The number of requests that were sent for a thread, whichever thread sent them."""

    def __init__(self) -> None:
        self.requests = [0]


_SENDER: ContextVar[list[int]] = ContextVar("_SENDER")


class LoopThread:
    """A running event loop."""

    def __init__(self) -> None:
        self._sent = SentBy()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cloudbench-asyncio", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine in the loop for the calling thread, and return its result."""
        future = asyncio.run_coroutine_threadsafe(self._count_requests(self._sent.requests, work), self._loop)
        try:
            return future.result()
        finally:
            future.cancel()  # an interrupted caller no longer wants it

    @property
    def is_closed(self) -> bool:
        """True once the loop has ended."""
        return self._loop.is_closed()

    def requests(self) -> int:
        """Return how many requests the calling thread has sent."""
        return self._sent.requests[0]

    def close(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """End what still runs, run the final coroutine, and end the thread. Safe to call again."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._end_tasks(last), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _count_requests(self, count: list[int], work: Coroutine[Any, Any, _T]) -> _T:
        _SENDER.set(count)
        return await work

    async def _end_tasks(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await last()
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()


class RefusedAnswer(Exception):
    """An unsuccessful answer, judged by its status."""

    def __init__(self, status: int, text: str, wait_s: float | None) -> None:
        super().__init__(f"{status} {text}".strip())
        self.status, self.wait_s = status, wait_s


class CountedSession:
    """Stands in for the SDK's aiohttp session, to count each request, repeat none and follow no redirect.

    Args:
        egress: how requests leave this machine.
        timeout_s: for each single step: connecting, waiting for the next bytes.
        wait_headers: headers by which a refusal says how long to wait; the first one present counts.
        passes: a header. Answers that have it are passed on to the SDK, whatever their status.
    """

    def __init__(self, egress: Egress, timeout_s: float, wait_headers: Sequence[str], passes: str) -> None:
        import aiohttp

        self._sockets: WeakSet[socket.socket] = WeakSet()
        self._egress, trusted = egress, egress.context()

        async def refuse(answer: Any) -> None:
            if answer.status // 100 != 2 and passes not in answer.headers:
                text = (await answer.text())[:1000]
                wait = next((answer.headers[name] for name in wait_headers if name in answer.headers), None)
                raise RefusedAnswer(answer.status, text, seconds_of(wait, answer.headers.get("date")))

        # Without a limit, since a request above it would wait inside the measured operation.
        connector = aiohttp.TCPConnector(
            ssl=trusted, limit=0, keepalive_timeout=_IDLE_S, socket_factory=self._new_socket
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=timeout_s, sock_read=timeout_s),
            trust_env=False,
            raise_for_status=refuse,
        )
        self._session._retry_connection = False

    def request(self, method: str, url: Any, **options: Any) -> Any:
        """Send one request, for the thread whose coroutine this is."""
        _SENDER.get()[0] += 1
        proxy = self._egress.proxy_for(str(url)) or None
        return self._session.request(method, url, allow_redirects=False, proxy=proxy, **options)

    async def close(self) -> None:
        """Close all connections, without waiting for servers that no longer respond."""
        await self._session.close()
        open_sockets = [own_socket for own_socket in self._sockets if own_socket.fileno() >= 0]
        for own_socket in open_sockets:
            with contextlib.suppress(OSError):
                own_socket.shutdown(socket.SHUT_RDWR)
        for _ in range(_LAST_TURNS):
            if all(own_socket.fileno() < 0 for own_socket in open_sockets):
                return
            await asyncio.sleep(0)  # one turn of the loop, which closes them

    def _new_socket(self, address: Any) -> socket.socket:
        new_socket = socket.socket(*address[:3])
        self._sockets.add(new_socket)
        return new_socket
