"""Is waiting counted as waiting? 100 requests/s for 40 s against servers that freeze 2 s in every 10 s.

In theory 20 % of the requests wait, evenly up to 2 s, and p99 is 1900 ms. 100 sensors, one request per
second each, give that rate with 100 random phases, and the 10th phase after a freeze begins decides p99: its
standard deviation is 30 ms, 1.6 % of 1900 ms. So the seed is fixed to one whose schedule has its true p99
within 0.6 % of 1900 ms wherever (40 to 100 ms before the first operation) the first period begins, and every run
is also compared with the truth of its own schedule: what each operation must wait for the next thaw.

Two servers: ``emulator`` is the Dropbox SDK over TLS to the embedded emulator, ``socket`` is a server and a
driver written by hand (``freeze_server.py``, ``freeze_driver.py``), so that the engine is tested without the SDK and
the emulator.

The emulator releases what it has held in order of arrival. A client that needs longer for its answers than the emulator
for theirs finishes them in another order, and how much longer depends on the machine. So the engine's order is compared
with that of the bare SDK in as many threads (``freeze_bare.py``), in the same run.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any

from benchmarks.freeze_bare import ARRIVAL, OPS_PER_SENSOR, SENSORS
from benchmarks.freeze_driver import request
from benchmarks.harness import ROOT, Figure, environment, median, python, run_tree, scratch
from pytest_cloudbench.judge.stats import percentile
from pytest_cloudbench.results.oplog import read_parquet

__all__ = ["measure"]

_PROFILE = Path(__file__).with_name("freeze.toml")
_PERIOD_NS, _DURATION_NS = 10_000_000_000, 2_000_000_000
_THEORY_MS = 1900.0
_SEED = "freeze-378"
_WAITED_NS = 1_000_000_000
"""Only a frozen server takes so long: from these operations the emulator's thaws are known."""

_TEST = f"""
    from pytest_cloudbench.workload.arrival import FixedInterval

    def test_freeze(experiment, payloads):
        experiment.run(
            payloads.random(5120), arrival={ARRIVAL!r}, sensors={SENSORS}, ops_per_sensor={OPS_PER_SENSOR},
            verify={{verify}},
        )
"""
_CONFTEST = """
    import pytest
    from benchmarks.freeze_driver import FreezeDriver
    from pytest_cloudbench.providers import Provider

    @pytest.fixture(scope="session")
    def provider():
        return Provider("socket", FreezeDriver({port}), profile="freeze")
"""


def measure(names: Sequence[str], runs: int) -> list[Figure]:
    """Measure ``freeze_p99_error`` and ``freeze_out_of_order``: the worst case's median, with each run's report.

    The error is against theory. Out of order are pairs of held operations that were finished in another order than
    they were due: 0.5 would be chance. The figure is the emulator's worst case over the bare SDK's. The server written
    by hand answers all at once, so the order depends on how a hundred threads wake.
    """
    cases: dict[str, list[dict[str, Any]]] = {}
    bare: list[float] = []
    for _ in range(runs):  # each takes 4 minutes
        for workers in (0, 2):
            label = f"-n {workers}" if workers else "no -n"
            with scratch(test_freeze=_TEST.format(verify=True)) as folder:
                measured = _run(folder, workers, ["--provider", f"emulated:{_PROFILE}"], None)
            cases.setdefault(f"emulator {label}", []).append(measured)
            with _server() as port:
                files = {"test_freeze": _TEST.format(verify=False), "conftest": _CONFTEST.format(port=port)}
                with scratch(**files) as folder:
                    measured = _run(folder, workers, [], port)
            cases.setdefault(f"socket {label}", []).append(measured)
        bare.append(_bare_out_of_order())
    errors = {name: median([abs(run["error"]) for run in measured]) for name, measured in cases.items()}
    disorder = {name: median([run["out_of_order"] for run in measured]) for name, measured in cases.items()}
    reference, worst = median(bare), max(share for name, share in disorder.items() if name.startswith("emulator"))
    figures = [
        Figure("freeze_p99_error", round(max(errors.values()), 5), "of 1900 ms", 0.02, details=cases),
        Figure("freeze_out_of_order", round(worst / reference, 3), "of the bare SDK's share of pairs", 1.05,
               details={"bare SDK": bare}, absolute={**disorder, "bare SDK": reference}),
    ]  # fmt: skip
    return [figure for figure in figures if figure.name in names]


def _bare_out_of_order() -> float:
    """Return the share for the bare SDK."""
    usage = run_tree(python("-m", "benchmarks.freeze_bare", str(_PROFILE), _SEED), ROOT, sampled=False).require()
    rows = json.loads(usage.output.splitlines()[-1])
    origin_ns = _origin_ns([end_ns for _, start_ns, end_ns in rows if end_ns - start_ns > _WAITED_NS])
    return round(_out_of_order([(due_ns, end_ns) for due_ns, _, end_ns in rows], origin_ns), 4)


def _out_of_order(ops: Sequence[tuple[int, int]], origin_ns: int) -> float:
    """Return the share of pairs of operations, held by the same freeze, in which the later one ended first.

    ``ops`` has the due time and the end of each operation, in nanoseconds.
    """
    freezes: dict[int, list[int]] = {}
    for due_ns, end_ns in sorted(ops):
        if _wait_ns(due_ns, origin_ns):
            freezes.setdefault((due_ns - origin_ns) // _PERIOD_NS, []).append(end_ns)
    pairs = [first_ns > second_ns for held in freezes.values() for first_ns, second_ns in combinations(held, 2)]
    return sum(pairs) / len(pairs)


def _run(folder: Path, workers: int, options: list[str], port: int | None) -> dict[str, Any]:
    """Run one experiment, and compute its true p99. ``port`` is that of the server written by hand."""
    command = python(
        "-m", "pytest", "test_freeze.py", "-p", "no:cacheprovider", "--cloudbench-seed", _SEED,
        "--benchmark-json", "entries.json", *(["-n", str(workers)] if workers else []), *options,
    )  # fmt: skip
    load = round(os.getloadavg()[0], 1)
    run_tree(command, folder, environment(PYTHONPATH=str(ROOT)), sampled=False).require()
    entry = json.loads((folder / "entries.json").read_text())["benchmarks"][0]["extra_info"]
    table = read_parquet(next(folder.rglob("*.parquet")))
    ops = list(table.ops())
    if port is None:
        origin_ns = _origin_ns([op.end_ns for op in ops if op.service_ns > _WAITED_NS])
    else:
        origin_ns = _ask_origin_ns(port)
    due_ns = sorted(table.scheduled_ns)
    truth_ms = percentile(sorted(_wait_ns(due, origin_ns) for due in due_ns), 0.99) / 1e6
    reported_ms = entry["response_p99"] * 1e3
    after_ms = sorted((op.response_ns - wait_ns) / 1e6
                      for op in ops if (wait_ns := _wait_ns(op.scheduled_ns, origin_ns)))  # fmt: skip
    return {
        "reported_p99_ms": round(reported_ms, 2),
        "truth_p99_ms": round(truth_ms, 2),
        "error": round((reported_ms - _THEORY_MS) / _THEORY_MS, 5),
        "error_against_truth": round((reported_ms - truth_ms) / truth_ms, 5),
        "first_due_after_origin_ms": round((due_ns[0] - origin_ns) / 1e6, 1),
        "ops": entry["ops"],
        "not_ok": entry["ops"] - entry["ok"],
        "lateness_p99_ms": round(entry["lateness_p99"] * 1e3, 3),
        "service_p50_ms": round(entry["service_p50"] * 1e3, 3),
        "answered_after_thaw_ms": {f"p{share * 100:g}": round(percentile(after_ms, share), 1)
                                   for share in (0.1, 0.5, 0.9, 1.0)},
        "out_of_order": round(_out_of_order([(op.scheduled_ns, op.end_ns) for op in ops], origin_ns), 4),
        "doubts": entry["doubts"],
        "load_average_before": load,
    }  # fmt: skip


def _wait_ns(due_ns: int, origin_ns: int) -> int:
    """Return how long the answer to a request of ``due_ns`` has to wait for the thaw."""
    phase_ns = (due_ns - origin_ns) % _PERIOD_NS
    return _PERIOD_NS - phase_ns if phase_ns >= _PERIOD_NS - _DURATION_NS else 0


def _origin_ns(ends_ns: Sequence[int]) -> int:
    """Return when the first period began.

    The earliest answer after any of the thaws is late by the service time at most.
    """
    first_ns = min(ends_ns)
    phase_ns = min((end_ns - first_ns + _PERIOD_NS // 2) % _PERIOD_NS - _PERIOD_NS // 2 for end_ns in ends_ns)
    return first_ns + phase_ns - _PERIOD_NS


def _ask_origin_ns(port: int) -> int:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        return int(request(connection, "GET /origin"))


@contextmanager
def _server() -> Iterator[int]:
    arguments = [str(Path(__file__).with_name("freeze_server.py")), f"{_PERIOD_NS / 1e9}", f"{_DURATION_NS / 1e9}"]
    with subprocess.Popen(python(*arguments), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.stdin.close()
