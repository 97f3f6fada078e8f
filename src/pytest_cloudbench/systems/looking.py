"""What every look at a client through a capture needs: waiting until it is quiet, and its packets afterwards.

What may live here: what sessions, activities and transfers share. None of it knows what was done, or what follows.
"""

from __future__ import annotations

import mmap
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from pytest_cloudbench.capture import CaptureResult
from pytest_cloudbench.model import UsageError
from pytest_cloudbench.traffic import Analysis, Whose, analyze

__all__ = ["briefly", "difference", "look", "wait_quiet"]

_LOOK_S, _QUIET_LOOKS, _QUIET_BYTES, _QUIET_MOST_S = 0.1, 4, 2_000, 4.0
_LAST_LINES, _MOST_CHARACTERS = 3, 400

_Seen = TypeVar("_Seen")


def wait_quiet(path: Path) -> None:
    """Return when the capture at ``path`` hardly grows any more, or after some seconds: a client may never be quiet."""
    wait = threading.Event().wait
    sizes = [path.stat().st_size]
    until_s = time.monotonic() + _QUIET_MOST_S
    while time.monotonic() < until_s:
        wait(_LOOK_S)
        sizes.append(path.stat().st_size)
        if len(sizes) > _QUIET_LOOKS and sizes[-1] - sizes[-1 - _QUIET_LOOKS] < _QUIET_BYTES:
            return


def look(
    capture: CaptureResult, see: Callable[[Analysis], _Seen], *, client: Sequence[str], whose: Whose | None = None
) -> tuple[_Seen | None, tuple[str, ...]]:  # fmt: skip
    """What ``see`` makes of a capture's packets; else None, and why the capture counts for nothing.

    Args:
        capture: one that has ended.
        see: called with the analysis, of which it may keep no columns: they end with the file's mapping.
        client: the client's addresses.
        whose: which of their flows are the client's, where other programs have the same addresses.
    """
    if capture.reasons:
        return None, tuple(f"capture: {reason}" for reason in capture.reasons)
    with capture.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            analysis: Analysis = analyze(data, source=capture.path.name, client=client, whose=whose)
        except UsageError as error:  # packets, and none of the client
            return None, (str(error),)
        found = see(analysis)
        del analysis
    return found, ()


def briefly(error: Exception) -> str:
    """The first line of what an error says, and the last ones: clients add the end of a log, whose end says most."""
    first, *more = str(error).strip().splitlines() or [""]
    last = " | ".join(line.strip() for line in more[-_LAST_LINES:])
    if len(last) > _MOST_CHARACTERS:
        last = f"...{last[-_MOST_CHARACTERS:]}"
    return f"{first[:_MOST_CHARACTERS]} ({last})" if last else first[:_MOST_CHARACTERS]


def difference(after: float | None, before: float | None) -> float | None:
    """What was used in between; None where one of the two is not known."""
    return None if after is None or before is None else after - before
