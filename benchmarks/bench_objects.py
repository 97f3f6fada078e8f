"""Measure a driver beside its library alone: CPU for puts of 5 KiB on one real server, in the same run.

Process CPU time, so that the threads of a library in Rust count too. The server is a process of its own.
The driver is also compared with warp, MinIO's own load generator. Both have eight operations in flight.
No start counts. For warp, it is the difference between a long and a short run that counts.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from benchmarks.harness import Blocks, Figure, Growth, alternating, measure_growth, median, run_tree, scratch
from pytest_cloudbench import drivers
from pytest_cloudbench.model import KIB, Endpoint, ProviderSpec
from pytest_cloudbench.services.command import CommandService, load_recipe, search_path
from pytest_cloudbench.workload.payload.contents import Literal

__all__ = ["measure"]

_SIZE_BYTES = 5 * KIB
_PUTS = 1000
_BLOCKS = 5
_THREADS = 8
_WARP_S = (3, 12)


def measure(names: Sequence[str], runs: int) -> list[Figure]:
    """``s3_fast_over_obstore`` and ``s3_fast_over_warp``."""
    with CommandService(load_recipe("s3")) as service:
        endpoint = service.start()
        driver: Any = drivers.connect(ProviderSpec.parse("s3+fast://bench"), endpoint, {})
        content, alone = Literal(bytes(_SIZE_BYTES)), _alone(endpoint)

        def put(number: int) -> None:
            driver.put(f"/ours/{number}", content)

        figures = []
        if "s3_fast_over_obstore" in names:
            obstore = _cost(lambda number: alone(f"alone/{number}", content.data))
            blocks = alternating(_cost(put), obstore, max(_BLOCKS, runs))
            rates = Blocks([_PUTS / cost for cost in blocks.ours], [_PUTS / cost for cost in blocks.reference])
            growth = measure_growth("puts", _PUTS // 10, lambda count: _cost(put, count)())
            figures.append(_figure("s3_fast_over_obstore", rates, "obstore alone", 0.8, growth))
        if "s3_fast_over_warp" in names:
            if program := shutil.which("warp", path=search_path()):
                with ThreadPoolExecutor(_THREADS) as pool:
                    pairs = [
                        (_PUTS / _cost_in_flight(pool, put), _warp_puts_per_cpu_s(program, endpoint))
                        for _ in range(runs)
                    ]
                rates = Blocks([ours for ours, _ in pairs], [warp for _, warp in pairs])
                figures.append(_figure("s3_fast_over_warp", rates, "warp", 0.5, None))
            else:
                missing = {"unknown": "warp is not installed: cloudbench testbed install warp"}
                figures.append(
                    Figure("s3_fast_over_warp", math.nan, "puts / CPU-s over warp", 0.5, "at least", missing)
                )
        driver.close()
    return figures


def _figure(name: str, rates: Blocks, other: str, bound: float, growth: Growth | None) -> Figure:
    absolute = {"puts / CPU-s": round(median(rates.ours)), f"puts of {other} / CPU-s": round(median(rates.reference))}
    unit = f"puts / CPU-s over {other}"
    return Figure(name, rates.ratio, unit, bound, "at least", rates.details(), absolute, growth)


def _alone(endpoint: Endpoint) -> Callable[[str, bytes], object]:
    import obstore

    store = _store(endpoint)
    return lambda key, data: obstore.put(store, key, data)


def _warp_puts_per_cpu_s(program: str, endpoint: Endpoint) -> float:
    """Return the puts between a short and a long run over the CPU-seconds between them. Objects are counted."""
    import obstore

    keys, store, counts, costs_s = endpoint.credentials, _store(endpoint), [], []
    for duration_s in _WARP_S:
        command = [
            program, "put", "--host", urlsplit(endpoint.url).netloc, "--access-key", keys["access_key_id"],
            "--secret-key", keys["secret_access_key"], "--region", "us-east-1", "--bucket", "bench", "--stress",
            "--obj.size", str(_SIZE_BYTES), "--concurrent", str(_THREADS), "--duration", f"{duration_s}s",
        ]  # fmt: skip
        with scratch() as folder:
            costs_s.append(run_tree([*command, "--noclear"], folder, sampled=False).require().cpu_s)
        paths = [entry["path"] for page in obstore.list(store) for entry in page]
        paths = [path for path in paths if not path.startswith(("ours/", "alone/"))]
        counts.append(len(paths))
        obstore.delete(store, paths)
    return (counts[1] - counts[0]) / (costs_s[1] - costs_s[0])


def _store(endpoint: Endpoint) -> Any:
    from obstore.store import S3Store

    keys = endpoint.credentials
    return S3Store(
        "bench",
        endpoint=endpoint.url,
        region="us-east-1",
        access_key_id=keys["access_key_id"],
        secret_access_key=keys["secret_access_key"],
        client_options={"allow_http": True},
    )


def _cost(put: Callable[[int], object], count: int = _PUTS) -> Callable[[], float]:
    """Return a function that measures the CPU-seconds of ``count`` puts, one after the other."""

    def block() -> float:
        before_s = time.process_time()
        for number in range(count):
            put(number)
        return time.process_time() - before_s

    return block


def _cost_in_flight(pool: ThreadPoolExecutor, put: Callable[[int], object]) -> float:
    """Return the CPU-seconds of a block of puts on all threads of a pool."""
    before_s = time.process_time()
    for _ in pool.map(put, range(_PUTS)):
        pass
    return time.process_time() - before_s
