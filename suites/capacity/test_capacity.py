"""How much load can a provider take before too many files are lost or late?

The thesis (4.2.4) tries some numbers of sensors and intervals and reads the loss; this suite finds the limit itself. A
bracketing search raises the load until it fails, then halves the interval between passing and failing loads. A load
passes when the majority of its repeats stays below ``--capacity-loss`` and ``--capacity-p99``. A probe counts for
neither side if this machine was late, or if it is doubtful for another reason.

A provider may take more for a short time than for long: an answer holds for probes of ``--capacity-seconds``.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cloudbench import KIB, Bracket, BracketSearch, FixedInterval

if TYPE_CHECKING:
    from pytest_cloudbench import Experiment, Payloads, Result

FILE_BYTES = 5 * KIB
SENSORS = 10
"""The number of sources that make up a rate. Each keeps to its clock and starts at a random phase."""

INTERVAL_S = 1.0
PROBE_S = {"quick": 2.0, "paper": 60.0}
OPS = {"quick": 4_000, "paper": 200_000}
RESOLUTION = {"quick": 0.2, "paper": 0.05}
LOWEST, HIGHEST, REPEATS = 4.0, 4_096.0, 3


@pytest.fixture
def limits(request: pytest.FixtureRequest, grid: str) -> dict[str, Any]:
    """The bounds that a load must keep, the duration of a probe, and the operations that the search may take."""
    option = request.config.option
    return {
        "loss": option.cloudbench_capacity_loss,
        "p99_s": option.cloudbench_capacity_p99,
        "probe_s": option.cloudbench_capacity_seconds or PROBE_S[grid],
        "max_ops": option.cloudbench_capacity_ops or OPS[grid],
        "resolution": RESOLUTION[grid],
    }


def test_rate(experiment: Experiment, payloads: Payloads, limits: dict[str, Any]) -> None:
    """The largest rate of uploads of 5 KB."""

    def probe(rate_per_s: float) -> Result:
        interval_s = SENSORS / rate_per_s
        count = max(1, ceil(limits["probe_s"] / interval_s))
        return _run_probe(experiment, payloads, interval_s, SENSORS, count)

    _search_limit(experiment, limits, "capacity_per_s", probe, is_integer=False)


def test_sensors(experiment: Experiment, payloads: Payloads, limits: dict[str, Any]) -> None:
    """The largest number of sensors that upload 5 KB every second: the question of thesis 4.2.4, turned around."""

    def probe(sensors: float) -> Result:
        return _run_probe(experiment, payloads, INTERVAL_S, int(sensors), max(1, ceil(limits["probe_s"] / INTERVAL_S)))

    _search_limit(experiment, limits, "capacity_sensors", probe, is_integer=True)


def _run_probe(experiment: Experiment, payloads: Payloads, interval_s: float, sensors: int, count: int) -> Result:
    arrival = FixedInterval(interval_s, first_delay_max_s=interval_s)
    payload = payloads.random(FILE_BYTES)
    return experiment.run(payload, arrival=arrival, sensors=sensors, ops_per_sensor=count, store=False)


def _search_limit(experiment: Experiment, limits: dict[str, Any], metric: str, probe: Any, *, is_integer: bool) -> None:
    search = BracketSearch(
        LOWEST, HIGHEST, limits["resolution"], REPEATS, max_ops=limits["max_ops"], start=16.0, integer=is_integer
    )
    probes: list[dict[str, Any]] = []
    responses_s: list[float] = []
    while (level := search.next()) is not None:
        result = probe(level)
        passed = _judge_probe(result, limits)
        search.tell(level, passed, result["ops"])
        numbers = {
            key: result[key] for key in ("loss_rate", "response_p99", "ops", "ops_per_s", "lateness_p99", "ops_file")
        }
        doubts, notes = list(result.doubts), list(result.notes)
        probes.append({"level": level, "passed": passed, **numbers, "doubts": doubts, "notes": notes})
        responses_s += [result["response_p99"]] if passed and result["response_p99"] else []
    _conclude(experiment, limits, metric, search.result(), probes, responses_s)


def _judge_probe(result: Result, limits: dict[str, Any]) -> bool | None:
    if result.doubts or result["loss_rate"] is None:
        return None
    if result["loss_rate"] > limits["loss"]:
        return False
    return bool(result["response_p99"] is not None and result["response_p99"] <= limits["p99_s"])


def _conclude(
    experiment: Experiment, limits: dict[str, Any], metric: str, bracket: Bracket, probes: list[dict[str, Any]],
    responses_s: list[float],
) -> None:  # fmt: skip
    notes = [f"probes of {limits['probe_s']:g} s, loss <= {limits['loss']:g}, response p99 <= {limits['p99_s']:g} s"]
    if bracket.passes_at is None and bracket.fails_at is not None:
        notes.append(f"even {bracket.fails_at:g} is too much")
    elif bracket.fails_at is None and bracket.passes_at is not None:
        notes.append(f"at least {bracket.passes_at:g}: nothing failed ({bracket.ended})")
    if not bracket.is_monotonic:
        notes.append("a higher load passed where a lower one failed: the interval is wider for it")
    notes += dict.fromkeys(note for probe in probes for note in probe["notes"])
    doubts = [bracket.inconclusive] if bracket.inconclusive else []
    if bracket.ended == "budget":  # any claim about the limit might hold, or not, after a few more probes
        doubts.append(f"the budget of {limits['max_ops']} operations ended the search (--capacity-ops)")
    experiment.conclude(
        {metric: bracket.passes_at},
        responses_s or [0.0],
        stats_of="response p99 of the probes that passed" if responses_s else "nothing: no probe passed",
        of=[],  # the search left doubtful probes out, so they cast no doubt on the answer
        columns=(metric, "passes_at", "fails_at", "low", "high", "ended", "probe_count", "ops_used"),
        extra={
            "passes_at": bracket.passes_at, "fails_at": bracket.fails_at, "low": bracket.low, "high": bracket.high,
            "is_bounded": bracket.is_bounded, "ended": bracket.ended, "probe_count": len(probes),
            "ops_used": bracket.ops, "probes": probes, "limits": limits, "ops": bracket.ops,
            "ops_files": [probe["ops_file"] for probe in probes],
        },
        doubts=doubts,
        notes=notes,
    ).check()  # fmt: skip
