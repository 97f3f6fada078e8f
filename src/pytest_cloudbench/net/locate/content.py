"""Latency and rate of a server's content, read by its URL: the time to the first byte, and the rate of the rest."""

from __future__ import annotations

import socket
import ssl
import string
import time
from http.client import HTTPConnection, HTTPException, HTTPResponse
from urllib.parse import SplitResult, quote, urlsplit

from pytest_cloudbench.model import UsageError
from pytest_cloudbench.net.locate.rtt import measure
from pytest_cloudbench.net.locate.survey import ContentSeen

_CONNECTS = 10
_GAP_S = 0.02  # the pause between round trips, so that the server is not still busy with them when it is asked
_READS_AGAIN = 4
_MOST_BYTES = 16 << 20
_PIECE_BYTES = 1 << 16
_PORTS = {"http": 80, "https": 443}
_CACHE_HEADERS = ("age", "via", "x-cache", "cf-cache-status", "x-served-by")
"""Headers that show an answer from a cache. ``Age`` and ``Via`` are standard (RFC 9111, 5.1, RFC 9110, 7.6.3), and the
others are those of large networks."""


def parse_url(url: str) -> SplitResult:
    """Return the parts of a content URL. Raises UsageError."""
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in _PORTS and parts.hostname and parts.port != 0 and not parts.username
    except ValueError:
        is_usable = False
    if not is_usable:
        raise UsageError("--content: expected URLs such as https://files.example.org/new.bin")
    return parts


def read_content(url: str, address: str, timeout_s: float) -> ContentSeen:
    """Read a URL from one of its servers, five times on one connection, at most 16 MiB each time.

    The round trips are measured between the start of the connection and the first request. Meanwhile, a server that has
    a thread or a process for each connection starts one. Otherwise the content would seem to come from far away.
    """
    parts = parse_url(url)
    name, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
    connection, rtt_ms = HTTPConnection(name, port, timeout=timeout_s), None
    try:
        connection.sock = socket.create_connection((address, port), timeout_s)
        if parts.scheme == "https":
            connection.sock = ssl.create_default_context().wrap_socket(connection.sock, server_hostname=name)
        rtt_ms = min(_measure_rtts(address, port, timeout_s))
        # As browsers do, only what HTTP cannot send is encoded: the URL may be encoded already.
        target = quote((parts.path or "/") + (f"?{parts.query}" if parts.query else ""), safe=string.punctuation)
        readings = [_read_once(connection, target) for _ in range(1 + _READS_AGAIN)]
    except (OSError, HTTPException, ValueError) as error:
        is_silent = rtt_ms is None and isinstance(error, TimeoutError)
        return ContentSeen(rtt_ms, problem="it does not answer" if is_silent else str(error) or type(error).__name__)
    finally:
        connection.close()
    first_reading, later_readings = readings[0], readings[1:]
    rates = [rate for _, rate, _ in later_readings if rate is not None]
    return ContentSeen(
        rtt_ms, first_reading[0], min(ms for ms, _, _ in later_readings), first_reading[1], max(rates, default=None),
        any(is_cached for _, _, is_cached in readings),
    )  # fmt: skip


def _measure_rtts(address: str, port: int, timeout_s: float) -> list[float]:
    """Return the round trips in milliseconds. Raises TimeoutError if there are none."""
    rtts: list[float] = measure({
        "addresses": [address], "port": port, "connects": _CONNECTS, "gap_s": _GAP_S, "timeout_s": timeout_s,
        "controls": [],
    })["rtts"][address]  # fmt: skip
    if not rtts:
        raise TimeoutError
    return rtts


def _read_once(connection: HTTPConnection, target: str) -> tuple[float, float | None, bool]:
    """Return the milliseconds to the first byte of content, the rate of the rest, and whether a cache answered.

    Raises OSError if the answer has no content, or if the server ends the connection.
    """
    if connection.sock is None:
        raise OSError("it ends the connection after each answer")
    began_ns = time.perf_counter_ns()
    connection.request("GET", target, headers={"Accept-Encoding": "identity"})
    response = connection.getresponse()
    first = response.read(1)
    first_ns = time.perf_counter_ns()
    if response.status != 200 or not first:
        raise OSError(f"it answers {response.status} without content")
    rest_bytes = _read_rest(response)
    took_ns = time.perf_counter_ns() - first_ns
    is_cached = any(response.headers.get(header) is not None for header in _CACHE_HEADERS)
    rate = rest_bytes * 1e9 / took_ns if rest_bytes > _PIECE_BYTES and took_ns else None
    return (first_ns - began_ns) / 1e6, rate, is_cached


def _read_rest(response: HTTPResponse) -> int:
    count = 0
    while piece := response.read(_PIECE_BYTES):
        count += len(piece)
        if count > _MOST_BYTES:
            raise OSError("it is larger than 16 MiB")
    return count
