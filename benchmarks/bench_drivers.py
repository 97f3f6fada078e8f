"""CPU time of a small put through our driver, over the same put through the bare SDK.

Both send the same request to the same server in another process, from one thread and one connection, in turns. The bare
SDK has the driver's settings (no retries, no hashes that nobody asked for, no look at the environment), so that what is
left is the driver's own layer: its checks, its counting, its errors and its entry.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.bare_sdks import BARE, BODY, Put
from benchmarks.harness import Blocks, Figure, alternating, median
from pytest_cloudbench import drivers, providers
from pytest_cloudbench.model import UsageError
from pytest_cloudbench.workload.payload.contents import Literal

__all__ = ["compared", "measure"]

_PUTS = 20
"""Few, so that a pair of blocks meets the same machine, and there are many pairs for the median."""
_BLOCKS = 80
_BOUND = 1.05


def measure(names: Sequence[str], runs: int) -> list[Figure]:
    """``driver_overhead_ratio``: the largest of all drivers."""
    ratios: dict[str, Any] = {}
    absent: dict[str, str] = {}
    absolute: dict[str, float] = {}
    for scheme in BARE:
        if told := _absent(scheme):
            absent[scheme] = told
            continue
        blocks = compared(scheme, _BLOCKS * runs)
        ratios[scheme] = {"ratio": blocks.ratio, "interval_95": blocks.interval95, "pairs": len(blocks.ours)}
        absolute[f"{scheme}, ms CPU / put"] = median(blocks.ours)
        absolute[f"{scheme}, bare SDK, ms CPU / put"] = median(blocks.reference)
    worst = max((each["ratio"] for each in ratios.values()), default=float("nan"))
    details = {**ratios, "absent": absent}
    return [
        Figure("driver_overhead_ratio", worst, "CPU / CPU of the bare SDK", _BOUND, details=details, absolute=absolute)
    ]


def compared(scheme: str, blocks: int) -> Blocks:
    """One driver and its bare SDK in turns, milliseconds of CPU per put."""
    spec, bare = BARE[scheme]
    with providers.provided(spec) as provider:
        endpoint, content, put = provider.endpoint, Literal(BODY), provider.driver.put
        assert endpoint is not None
        return alternating(_timed(lambda path: put(path, content)), _timed(bare(endpoint)), blocks)


def _absent(scheme: str) -> str:
    """What is not installed here, of a driver's library and the server that stands in for its provider."""
    if missing := drivers.missing_library(scheme):
        return missing
    try:
        providers.resolve(BARE[scheme][0])
    except UsageError as error:
        return str(error)
    return ""


def _timed(put: Put) -> Callable[[], float]:
    """CPU of this process per put, milliseconds; the server's is not in it."""
    numbers = itertools.count()

    def block() -> float:
        paths = [f"/bench/{number % 50}.bin" for number in itertools.islice(numbers, _PUTS)]
        before_s = time.process_time()
        for path in paths:
            put(path)
        return (time.process_time() - before_s) / _PUTS * 1e3

    return block
