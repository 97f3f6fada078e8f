"""An access line measured from one of its ends: round trips by TCP connects, and rates by bounded transfers."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass

from pytest_cloudbench.support.clock import now_ns

_FIRST_BYTES, _LARGEST_BYTES = 64 << 10, 16 << 20
"""Sizes of the first file and of the largest ones. Each is twice as large as the one before, as far as bounds allow."""
_CONNECT_S = 10.0


@dataclass(frozen=True, slots=True)
class BoundedTransfer:
    """A transfer over a line in one direction, within bounds of bytes and time.

    Attributes:
        bytes_per_s: the rate of the quickest file, from its begin to its end. The line carries at least that.
        moved_bytes, took_s: of all files.
        ended_by: ``bytes`` or ``seconds``, the bound that was reached.
    """

    bytes_per_s: float
    moved_bytes: int
    took_s: float
    ended_by: str


def measure_round_trips(address: tuple[str, int], connects: int) -> list[float]:
    """Return how long TCP connects took, in seconds, ascending: each one is a round trip. Raises OSError.

    The name is looked up once, before. A connect that fails is left out, unless all do.
    """
    family, _, _, _, target = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
    trips_s = list[float]()
    failure: OSError | None = None
    for _ in range(connects):
        with socket.socket(family, socket.SOCK_STREAM) as connection:
            connection.settimeout(_CONNECT_S)
            begun_ns = now_ns()
            try:
                connection.connect(target)
            except OSError as error:
                failure = error
                continue
            trips_s.append((now_ns() - begun_ns) / 1e9)
    if failure is not None and not trips_s:
        raise failure
    return sorted(trips_s)


def measure_transfer(
    move: Callable[[int], int], most_s: float, most_bytes: int, clock: Callable[[], int] = now_ns
) -> BoundedTransfer:
    """Move files, one after the other, until a bound is reached. No file begins that would pass one, except the first.

    Args:
        move: moves a file of about so many bytes. Returns how many it has moved.
        most_s: about how long all files may take.
        most_bytes: how many bytes all files may have.
        clock: tells nanoseconds.
    """
    moved_bytes, took_s, best, size_bytes, ended_by = 0, 0.0, 0.0, min(_FIRST_BYTES, most_bytes), "bytes"
    while True:
        begun_ns = clock()
        file_bytes = move(size_bytes)
        file_s = (clock() - begun_ns) / 1e9
        moved_bytes, took_s = moved_bytes + file_bytes, took_s + file_s
        best = max(best, file_bytes / file_s if file_s > 0 else 0.0)
        fitting_bytes = int(best * (most_s - took_s))
        size_bytes = min(size_bytes * 2, _LARGEST_BYTES, most_bytes - moved_bytes)
        if size_bytes < min(_FIRST_BYTES, most_bytes):
            break
        if fitting_bytes < _FIRST_BYTES:
            ended_by = "seconds"
            break
        size_bytes = min(size_bytes, fitting_bytes)
    return BoundedTransfer(best, moved_bytes, took_s, ended_by)
