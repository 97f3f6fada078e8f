"""CPU time of small puts and of gets through our driver, over the same through the bare SDK.

Both send the same request to the same server in another process, from one thread and one connection, in turns. The bare
SDK has the driver's settings (no retries, no hashes that nobody asked for, no look at the environment), so that what is
left is the driver's own layer: its checks, its counting, its errors and its entry. Gets are of 5 KiB, 4 MiB and 64 MiB.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.bare_sdks import BARE, BODY
from benchmarks.harness import MIB, Blocks, Figure, alternating, median
from pytest_cloudbench import drivers, providers
from pytest_cloudbench.model import KIB, UsageError
from pytest_cloudbench.workload.payload.contents import Literal

__all__ = ["compare_puts", "measure"]

_PUTS = 20
"""Few, so that a pair of blocks meets the same machine, and there are many pairs for the median."""
_BLOCKS = 80
_BOUND = 1.05
_GETS = {5 * KIB: 200, 4 * MIB: 20, 64 * MIB: 3}
"""The size of a content, and how many pairs of gets are compared for each run."""


def measure(names: Sequence[str], runs: int) -> list[Figure]:
    """``driver_overhead_ratio`` of puts and ``driver_get_ratio``, each the largest of all drivers."""
    figures = []
    absent = {scheme: why for scheme in BARE if (why := _describe_missing(scheme))}
    schemes = [scheme for scheme in BARE if scheme not in absent]
    if "driver_overhead_ratio" in names:
        blocks = {scheme: compare_puts(scheme, _BLOCKS * runs) for scheme in schemes}
        figures.append(_figure("driver_overhead_ratio", "put", blocks, absent))
    if "driver_get_ratio" in names:
        blocks = {}
        for scheme in schemes:
            blocks |= {f"{scheme}, {size:,} bytes": gets for size, gets in compare_gets(scheme, runs).items()}
        figures.append(_figure("driver_get_ratio", "get", blocks, absent))
    return figures


def _figure(name: str, verb: str, blocks: Mapping[str, Blocks], absent: Mapping[str, str]) -> Figure:
    ratios: dict[str, Any] = {}
    absolute: dict[str, float] = {}
    for label, pairs in blocks.items():
        ratios[label] = {"ratio": pairs.ratio, "interval_95": pairs.interval95, "pairs": len(pairs.ours)}
        absolute[f"{label}, ms CPU / {verb}"] = median(pairs.ours)
        absolute[f"{label}, bare SDK, ms CPU / {verb}"] = median(pairs.reference)
    worst = max((pairs.ratio for pairs in blocks.values()), default=float("nan"))
    details = {**ratios, "absent": absent}
    return Figure(name, worst, "CPU / CPU of the bare SDK", _BOUND, details=details, absolute=absolute)


def compare_puts(scheme: str, blocks: int) -> Blocks:
    """Measure one driver and its bare SDK in turns, in milliseconds of CPU per put."""
    spec, bare = BARE[scheme]
    with providers.provided(spec) as provider:
        endpoint, content, put = provider.endpoint, Literal(BODY), provider.driver.put
        assert endpoint is not None
        paths = itertools.cycle([f"/bench/{number}.bin" for number in range(50)])
        bare_put = bare(endpoint).put
        ours, theirs = (
            _make_timer(lambda: put(next(paths), content), _PUTS),
            _make_timer(lambda: bare_put(next(paths)), _PUTS),
        )
        return alternating(ours, theirs, blocks)


def compare_gets(scheme: str, runs: int) -> dict[int, Blocks]:
    """Measure one driver and its bare SDK in turns, in milliseconds of CPU per get, by size.

    Returns nothing for a client that needs ids.
    """
    spec, connect_bare = BARE[scheme]
    blocks = {}
    with providers.provided(spec) as provider:
        endpoint, driver = provider.endpoint, provider.driver
        assert endpoint is not None
        if (get := connect_bare(endpoint).get) is None:
            return {}
        for size_bytes, pairs in _GETS.items():
            path = f"/bench/{size_bytes}.bin"
            driver.put(path, Literal(bytes(size_bytes)))

            def ours(path: str = path) -> int:
                return sum(map(len, driver.get(path)))

            def bare(path: str = path) -> int:
                return len(get(path))

            if not ours() == bare() == size_bytes:
                raise RuntimeError(f"{scheme}: {ours()} and {bare()} of {size_bytes} bytes")
            blocks[size_bytes] = alternating(_make_timer(ours), _make_timer(bare), pairs * runs)
    return blocks


def _describe_missing(scheme: str) -> str:
    """Name what is not installed: a driver's library, or the server that stands in for its provider."""
    if missing := drivers.missing_library(scheme):
        return missing
    try:
        providers.resolve(BARE[scheme][0])
    except UsageError as error:
        return str(error)
    return ""


def _make_timer(call: Callable[[], object], count: int = 1) -> Callable[[], float]:
    """Return a function that measures this process's CPU for one of ``count`` calls, in milliseconds.

    The server's CPU does not count.
    """

    def block() -> float:
        before_s = time.process_time()
        for _ in range(count):
            call()
        return (time.process_time() - before_s) / count * 1e3

    return block
