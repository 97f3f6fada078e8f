"""The uploads of ``bench_freeze.py`` without the engine: threads that wait for due times and call the bare Dropbox SDK.

``python -m benchmarks.freeze_bare PROFILE SEED`` starts an emulator, and prints ``[[due_ns, start_ns, end_ns], ...]``.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
from collections.abc import Callable

from benchmarks.bare_sdks import bare_dropbox
from pytest_cloudbench.emulators import EmulatorService
from pytest_cloudbench.support.clock import now_ns, sleep_until_ns
from pytest_cloudbench.workload.arrival import FixedInterval, plan

SENSORS, OPS_PER_SENSOR = 100, 40
ARRIVAL = FixedInterval(1.0, first_delay_max_s=1.0)
"""Also of the engine's experiment: the order in which both end is compared."""
_THREADS = 256
"""More than the operations that one freeze holds."""
_MARGIN_NS = 50_000_000


def main(profile: str, seed: str) -> None:
    schedule = plan(ARRIVAL, range(SENSORS), OPS_PER_SENSOR, seed)
    with EmulatorService(profile) as emulator:
        put = bare_dropbox(emulator.start(), connections=_THREADS).put
        emulator.refill()
        begun_ns = now_ns() + _MARGIN_NS
        json.dump(_upload_all(put, [begun_ns + due_ns for due_ns in schedule.due_ns]), sys.stdout)


def _upload_all(put: Callable[[str], object], due_ns: list[int]) -> list[tuple[int, int, int]]:
    """Return due time, start and end of each upload, in nanoseconds."""
    tickets, done = itertools.count(), list[tuple[int, int, int]]()

    def upload() -> None:
        while (number := next(tickets)) < len(due_ns):
            sleep_until_ns(due_ns[number])
            start_ns = now_ns()
            put(f"/bare/{number}.bin")
            done.append((due_ns[number], start_ns, now_ns()))

    threads = [threading.Thread(target=upload) for _ in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return done


if __name__ == "__main__":
    main(*sys.argv[1:])
