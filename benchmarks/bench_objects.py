"""What a driver costs beside its library alone: CPU for puts of 5 KiB on one real server, in the same run.

Process CPU time, so that the threads of a library in Rust count too. The server is a process of its own.
Beside them stands warp, the load generator of the people who make MinIO, with one operation at a time as well; all of
its process counts, from its start on.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

from benchmarks.harness import Figure, alternating, median, run_tree, scratch
from pytest_cloudbench import drivers
from pytest_cloudbench.model import KIB, Endpoint, ProviderSpec
from pytest_cloudbench.services.command import CommandService, load_recipe, search_path
from pytest_cloudbench.workload.payload.contents import Literal

__all__ = ["measure"]

_SIZE_BYTES = 5 * KIB
_PUTS = 1000
_BLOCKS = 5
_WARP_S = 10


def measure(names: Sequence[str], runs: int) -> list[Figure]:
    """``s3_fast_puts_per_cpu_s``."""
    with CommandService(load_recipe("s3")) as service:
        endpoint = service.start()
        driver: Any = drivers.connect(ProviderSpec.parse("s3+fast://bench"), endpoint, {})
        content = Literal(bytes(_SIZE_BYTES))
        alone = _alone(endpoint)
        ours = _cost(lambda number: driver.put(f"/ours/{number}", content))
        found = alternating(ours, _cost(lambda number: alone(f"alone/{number}", content.data)), max(_BLOCKS, runs))
        driver.close()
        warp = _warp_puts_per_cpu_s(endpoint)
    ours_per_cpu_s = _PUTS / median(found.ours)
    absolute = {
        "puts of the driver / CPU-s": round(ours_per_cpu_s, 1),
        "puts of obstore alone / CPU-s": round(_PUTS / median(found.reference), 1),
    }
    details: dict[str, Any] = found.details()
    if warp is None:
        details["warp"] = "not measured: cloudbench testbed install warp"
    else:
        absolute["puts of warp / CPU-s"] = round(warp, 1)
        details["driver over warp"] = round(ours_per_cpu_s / warp, 3)
    return [Figure("s3_fast_puts_per_cpu_s", round(1 / found.ratio, 3), "puts / CPU-s over obstore alone", 0.8,
                   "at least", details=details, absolute=absolute)]  # fmt: skip


def _alone(endpoint: Endpoint) -> Callable[[str, bytes], object]:
    import obstore

    store = _store(endpoint, "bench")
    return lambda key, data: obstore.put(store, key, data)


def _warp_puts_per_cpu_s(endpoint: Endpoint) -> float | None:
    """None if it is not installed. What it says is a rate over part of its time: the objects are counted instead."""
    import obstore

    program = shutil.which("warp", path=search_path())
    if program is None:
        return None
    keys = endpoint.credentials
    command = [
        program, "put", "--host", urlsplit(endpoint.url).netloc, "--access-key", keys["access_key_id"],
        "--secret-key", keys["secret_access_key"], "--region", "us-east-1", "--bucket", "warp",
        "--obj.size", str(_SIZE_BYTES), "--concurrent", "1", "--duration", f"{_WARP_S}s", "--noclear", "--stress",
    ]  # fmt: skip
    with scratch() as folder:
        usage = run_tree(command, folder, sampled=False).require()
    return sum(map(len, obstore.list(_store(endpoint, "warp")))) / usage.cpu_s


def _store(endpoint: Endpoint, bucket: str) -> Any:
    from obstore.store import S3Store

    keys = endpoint.credentials
    return S3Store(
        bucket,
        endpoint=endpoint.url,
        region="us-east-1",
        access_key_id=keys["access_key_id"],
        secret_access_key=keys["secret_access_key"],
        client_options={"allow_http": True},
    )


def _cost(put: Callable[[int], object]) -> Callable[[], float]:
    """CPU seconds of one block."""

    def block() -> float:
        before = time.process_time()
        for number in range(_PUTS):
            put(number)
        return time.process_time() - before

    return block
