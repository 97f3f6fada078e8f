"""Forecasts of the cost of a load: the numbers of docs/reference/savingbox.md, and a comparison of the two curves."""

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
    forecasts = curve(LOADS[load], RULES, (60, 300))
    assert cells == [number for forecast in forecasts for number in (forecast.pushes, round(forecast.longest_wait_s))]


def curve_row(cells: str) -> tuple[str, Forecast]:
    """Return the figures in a row of the table, and the forecast of its rules for the log."""
    rules, *figures = (cell.strip() for cell in cells.split("|"))
    times_ns = {name: int(seconds) * S for name, seconds in re.findall(r"--([a-z-]+) (\d+)s", rules)}
    if bound_ns := times_ns.get("delay-at-most"):
        forecast = forecast_batching(log(), RULES, bound_ns / S)
    else:
        forecast = forecast_batching(log(), BatchRules(quiet_ns=times_ns["quiet"], at_most_ns=times_ns["at-most"]))
    return " | ".join(figures), forecast


def test_the_curve_of_the_document_is_the_one_of_the_rules() -> None:
    rows = re.findall(r"^\| ((?:UDS|adaptive), `.*?) \|$", DOCUMENT.read_text("utf-8"), re.MULTILINE)
    assert len(rows) == 9
    for figures, forecast in map(curve_row, rows):
        traffic_mb = f"{forecast.traffic_bytes / 1e6:.1f} MB"
        assert (
            figures
            == f"{forecast.pushes} | {traffic_mb} | {forecast.mean_wait_s:.1f} s | {forecast.longest_wait_s:.0f} s"
        )


@pytest.mark.parametrize("bound_s", [120, 300])
def test_the_adaptive_wait_beats_a_longer_timer_of_the_same_bound(bound_s: int) -> None:
    adaptive = forecast_batching(log(), RULES, bound_s)
    timer_forecasts = [
        forecast_batching(log(), BatchRules(quiet_ns=quiet_s * S, at_most_ns=bound_s * S))
        for quiet_s in range(10, 121, 10)
    ]
    assert not [
        forecast
        for forecast in timer_forecasts
        if forecast.pushes <= adaptive.pushes and forecast.mean_wait_s <= adaptive.mean_wait_s
    ]


@pytest.mark.slow
def test_the_adaptive_wait_trades_delay_for_traffic_and_keeps_the_bound() -> None:
    forecasts = curve(log(), RULES, (10, 30, 60, 120, 300))
    adaptive = forecasts[1:]
    assert [forecast.traffic_bytes for forecast in adaptive] == sorted(
        (forecast.traffic_bytes for forecast in adaptive), reverse=True
    )
    assert [forecast.mean_wait_s for forecast in adaptive] == sorted(forecast.mean_wait_s for forecast in adaptive)
    for forecast in adaptive:
        assert forecast.bound_s is not None
        assert forecast.longest_wait_s <= forecast.bound_s


def test_figure_21_by_the_papers_own_numbers() -> None:
    """5 MB at 80 kbit/s: 6.2 MB with UDS."""
    writes = [Change(round((number + 1) * 4096 / 10_000 * S), "file", 4096) for number in range(1280)]
    forecast = forecast_batching(writes, RULES)
    assert forecast.pushes == 21
    assert forecast.traffic_bytes == pytest.approx(6.2e6, rel=0.1)
    assert forecast.tue == forecast.traffic_bytes / (5 * 1024**2)


def test_every_change_waits_for_its_own_push() -> None:
    assert forecast_batching(every(1, 2), RULES) == Forecast(None, 1, 2, (6 + 5) / 2, 6)
    assert forecast_batching(every(10, 3), RULES).mean_wait_s == 5
    large = forecast_batching(every(1, 4, 150_000), RULES)
    assert (large.pushes, large.mean_wait_s) == (2, (1 + 0 + 1 + 0) / 4)
    assert large.traffic_bytes == pytest.approx(2 * SESSION_BYTES + 1.13 * 600_000)


def test_changes_at_one_time_wait_for_different_pushes() -> None:
    changes = [Change(0, "a", 300 * 1024), Change(0, "b", 10)]
    forecast = forecast_batching(changes, RULES)
    assert (forecast.pushes, forecast.mean_wait_s, forecast.longest_wait_s) == (2, 2.5, 5.0)
