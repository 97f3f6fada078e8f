"""What a driver costs beside its library alone: CPU for puts of 5 KiB on one real server, in the same run.

Process CPU time, so that the threads of a library in Rust count too. The server is a process of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.harness import Figure, alternating, median
from pytest_cloudbench import drivers
from pytest_cloudbench.model import KIB, Endpoint, ProviderSpec
from pytest_cloudbench.payload.contents import Literal
from pytest_cloudbench.services.command import CommandService, load_recipe

__all__ = ["measure"]

_SIZE_BYTES = 5 * KIB
_PUTS = 300
_BLOCKS = 5


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
    absolute = {
        "puts of the driver / CPU-s": round(_PUTS / median(found.ours), 1),
        "puts of obstore alone / CPU-s": round(_PUTS / median(found.reference), 1),
    }
    details = {**found.details(), "warp": "not measured: its module cannot be had from Go's proxy"}
    return [Figure("s3_fast_puts_per_cpu_s", round(1 / found.ratio, 3), "puts / CPU-s over obstore alone", 0.8,
                   "at least", details=details, absolute=absolute)]  # fmt: skip


def _alone(endpoint: Endpoint) -> Callable[[str, bytes], object]:
    import obstore
    from obstore.store import S3Store

    keys = endpoint.credentials
    store = S3Store(
        "bench",
        endpoint=endpoint.url,
        region="us-east-1",
        access_key_id=keys["access_key_id"],
        secret_access_key=keys["secret_access_key"],
        client_options={"allow_http": True},
    )
    return lambda key, data: obstore.put(store, key, data)


def _cost(put: Callable[[int], object]) -> Callable[[], float]:
    """CPU seconds of one block."""

    def block() -> float:
        before = time.process_time()
        for number in range(_PUTS):
            put(number)
        return time.process_time() - before

    return block
