"""The check that a run's operations fit into memory, before anything is allocated for them."""

from __future__ import annotations

from collections.abc import Callable

from pytest_cloudbench.load.engine.operations import Deal
from pytest_cloudbench.model import UsageError
from pytest_cloudbench.support.wording import format_count
from pytest_cloudbench.workload.arrival import ThinkTime, Threads
from pytest_cloudbench.workload.trace import Replay

_PLANNED_BYTES, _PREPARED_BYTES, _STREAMED_BYTES, _SENSOR_BYTES = 300, 800, 150, 100
"""Bytes of one operation in an open loop (a row of its plan), in a pool (prepared before the start) and in a closed
loop (its record), and of one sensor. Measured with CPython 3.11: 130 for a plan, 100 for a record, 590 for what is
prepared."""

_SMALL_BYTES = 64 * 1024 * 1024
"""A need of at most this is not checked: nothing would run without so much memory."""


def check_memory(deal: Deal, find_available: Callable[[], int | None]) -> None:
    """Raise UsageError for a run whose operations would not fit into memory.

    ``find_available`` returns the available bytes, None if unknown. It is called only if much is needed.
    """
    ops, arrival = deal.sensors * deal.ops_per_sensor, deal.arrival
    if isinstance(arrival, Threads):
        op_bytes = _PREPARED_BYTES
    elif isinstance(arrival, ThinkTime):
        op_bytes = _STREAMED_BYTES
    else:
        op_bytes = _PLANNED_BYTES
        if isinstance(arrival, Replay):  # a trace is in memory already, and sensors may have fewer operations
            ops = 0
    needed = ops * op_bytes + deal.sensors * _SENSOR_BYTES
    if needed <= _SMALL_BYTES:
        return
    available = find_available()
    if available is not None and needed > available:
        amount = format_count(ops, "operation") if ops else format_count(deal.sensors, "sensor")
        raise UsageError(
            f"experiment.run: {amount} would take about {_format_size(needed)} of memory, and this machine has "
            f"{_format_size(available)}; use fewer, or several runs one after the other"
        )


def _format_size(count_bytes: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if count_bytes < 1000:
            return f"{count_bytes:.3g} {unit}"
        count_bytes /= 1000
    return f"{count_bytes:,.0f} PB"
