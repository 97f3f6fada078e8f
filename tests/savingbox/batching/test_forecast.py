"""What a load would cost: the numbers of docs/reference/savingbox.md, and the two curves against each other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_cloudbench.savingbox.batching.batcher import BatchRules, Change
from pytest_cloudbench.savingbox.batching.forecast import SESSION_BYTES, Forecast, curve, forecast_batching

S = 1_000_000_000
DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "reference" / "savingbox.md"
UPDATES = Path(__file__).resolve().parents[3] / "suites" / "batching" / "updates.csv"
RULES = BatchRules()


def every(gap_s: float, count: int = 1024, size_bytes: int = 1) -> list[Change]:
    return [Change(round(number * gap_s * S), "log", size_bytes) for number in range(count)]


def log() -> list[Change]:
    lines = UPDATES.read_text("ascii").split()[1:]
    return [Change(round(float(due_s) * S), "log", int(size)) for due_s, size in (line.split(",") for line in lines)]


LOADS = {
    "1,024 appends, every 0.2 s": every(0.2), "1,024 appends, every second": every(1),
    "1,024 appends, every 10 s": every(10), "1,024 appends, every 90 s": every(90), "the log": log(),
}  # fmt: skip


@pytest.mark.parametrize("load", LOADS)
def test_the_document_has_these_numbers(load: str) -> None:
    (row,) = re.findall(rf"^\| {re.escape(load)}.*? \|(.*)\|$", DOCUMENT.read_text("utf-8"), re.MULTILINE)
    cells = [int(re.sub(r"\D", "", cell)) for cell in row.split("|")]
    found = curve(LOADS[load], RULES, (60, 300))
    assert cells == [number for each in found for number in (each.pushes, round(each.longest_wait_s))]


def curve_row(cells: str) -> tuple[str, Forecast]:
    """A row of the table, and what its rules give for the log."""
    rules, *rest = (cell.strip() for cell in cells.split("|"))
    times_ns = {name: int(seconds) * S for name, seconds in re.findall(r"--([a-z-]+) (\d+)s", rules)}
    if bound_ns := times_ns.get("delay-at-most"):
        found = forecast_batching(log(), RULES, bound_ns / S)
    else:
        found = forecast_batching(log(), BatchRules(quiet_ns=times_ns["quiet"], at_most_ns=times_ns["at-most"]))
    return " | ".join(rest), found


def test_the_curve_of_the_document_is_the_one_of_the_rules() -> None:
    rows = re.findall(r"^\| ((?:UDS|adaptive), `.*?) \|$", DOCUMENT.read_text("utf-8"), re.MULTILINE)
    assert len(rows) == 9
    for said, found in map(curve_row, rows):
        traffic_mb = f"{found.traffic_bytes / 1e6:.1f} MB"
        assert said == f"{found.pushes} | {traffic_mb} | {found.mean_wait_s:.1f} s | {found.longest_wait_s:.0f} s"


@pytest.mark.parametrize("bound_s", [120, 300])
def test_the_adaptive_wait_beats_a_longer_timer_of_the_same_bound(bound_s: int) -> None:
    adaptive = forecast_batching(log(), RULES, bound_s)
    timed = [
        forecast_batching(log(), BatchRules(quiet_ns=quiet_s * S, at_most_ns=bound_s * S))
        for quiet_s in range(10, 121, 10)
    ]
    assert not [each for each in timed if each.pushes <= adaptive.pushes and each.mean_wait_s <= adaptive.mean_wait_s]


@pytest.mark.slow
def test_the_adaptive_wait_trades_delay_for_traffic_and_keeps_the_bound() -> None:
    found = curve(log(), RULES, (10, 30, 60, 120, 300))
    adaptive = found[1:]
    assert [each.traffic_bytes for each in adaptive] == sorted((each.traffic_bytes for each in adaptive), reverse=True)
    assert [each.mean_wait_s for each in adaptive] == sorted(each.mean_wait_s for each in adaptive)
    for each in adaptive:
        assert each.bound_s is not None
        assert each.longest_wait_s <= each.bound_s


def test_figure_21_by_the_papers_own_numbers() -> None:
    """5 MB at 80 kbit/s: 6.2 MB with UDS."""
    writes = [Change(round((number + 1) * 4096 / 10_000 * S), "file", 4096) for number in range(1280)]
    found = forecast_batching(writes, RULES)
    assert found.pushes == 21
    assert found.traffic_bytes == pytest.approx(6.2e6, rel=0.1)
    assert found.tue == found.traffic_bytes / (5 * 1024**2)


def test_every_change_waits_for_its_own_push() -> None:
    assert forecast_batching(every(1, 2), RULES) == Forecast(None, 1, 2, (6 + 5) / 2, 6)
    assert forecast_batching(every(10, 3), RULES).mean_wait_s == 5
    large = forecast_batching(every(1, 4, 150_000), RULES)
    assert (large.pushes, large.mean_wait_s) == (2, (1 + 0 + 1 + 0) / 4)
    assert large.traffic_bytes == pytest.approx(2 * SESSION_BYTES + 1.13 * 600_000)
