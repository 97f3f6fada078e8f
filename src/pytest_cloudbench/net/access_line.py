"""An access line measured from one of its ends: round trips by TCP connects, and rates by bounded transfers."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pytest_cloudbench.support.clock import now_ns

_FIRST_BYTES, _LARGEST_BYTES = 64 << 10, 16 << 20
"""Sizes of the first file and of the largest ones. Each file is twice as large as the one before, if bounds allow."""
_CONNECT_S = 10.0


@dataclass(frozen=True, slots=True)
class BoundedTransfer:
    """A transfer over a line in one direction, within bounds of bytes and time.

    Attributes:
        bytes_per_s: the rate of the fastest file, from its start to its end. The line carries at least this rate.
        moved_bytes, took_s: size and duration of all files together.
        ended_by: ``bytes`` or ``seconds``, the bound that was reached.
    """

    bytes_per_s: float
    moved_bytes: int
    took_s: float
    ended_by: str


def measure_round_trips(address: tuple[str, int], connects: int) -> list[float]:
    """Return the durations of TCP connects in seconds, ascending. Each is one round trip.

    The name is resolved once, before the first connect. All go to the first of its addresses that connects. Later
    connects that fail are left out. Raises OSError if the name cannot be resolved, or if no address connects.
    """
    failure = OSError("the name has no address")
    for family, _, _, _, target in socket.getaddrinfo(*address, type=socket.SOCK_STREAM):
        try:
            trips_s = [_connect_s(family, target)]
        except OSError as error:
            failure = error
            continue
        for _ in range(connects - 1):
            with suppress(OSError):
                trips_s.append(_connect_s(family, target))
        return sorted(trips_s)
    raise failure


def _connect_s(family: int, target: Any) -> float:
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.settimeout(_CONNECT_S)
        begun_ns = now_ns()
        connection.connect(target)
        return (now_ns() - begun_ns) / 1e9


def measure_transfer(
    move: Callable[[int], int], most_s: float, most_bytes: int, clock: Callable[[], int] = now_ns
) -> BoundedTransfer:
    """Move files, one after the other, until a bound is reached.

    Except for the first, no file is started that would exceed a bound.

    Args:
        move: moves a file of about the given number of bytes, and returns how many bytes it moved.
        most_s: about how long all files may take.
        most_bytes: how many bytes all files may have.
        clock: returns the time in nanoseconds.
    """
    moved_bytes, took_s, best_bytes_per_s, size_bytes, ended_by = 0, 0.0, 0.0, min(_FIRST_BYTES, most_bytes), "bytes"
    while True:
        begun_ns = clock()
        file_bytes = move(size_bytes)
        file_s = (clock() - begun_ns) / 1e9
        moved_bytes, took_s = moved_bytes + file_bytes, took_s + file_s
        best_bytes_per_s = max(best_bytes_per_s, file_bytes / file_s if file_s > 0 else 0.0)
        fitting_bytes = int(best_bytes_per_s * (most_s - took_s))
        size_bytes = min(size_bytes * 2, _LARGEST_BYTES, most_bytes - moved_bytes)
        if size_bytes < min(_FIRST_BYTES, most_bytes):
            break
        if fitting_bytes < _FIRST_BYTES:
            ended_by = "seconds"
            break
        size_bytes = min(size_bytes, fitting_bytes)
    return BoundedTransfer(best_bytes_per_s, moved_bytes, took_s, ended_by)
