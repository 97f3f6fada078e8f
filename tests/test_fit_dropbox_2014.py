from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from pytest_cloudbench.emulators.profile import change_profile, load_profile
from pytest_cloudbench.emulators.throttle import ThrottlePolicy
from tests.tool_scripts import load_tool

TOOL = Path(__file__).resolve().parents[1] / "tools" / "fit_dropbox_2014.py"


@pytest.fixture(scope="module")
def fit() -> ModuleType:
    return load_tool(TOOL.stem)


def test_tables_are_the_published_ones(fit: ModuleType) -> None:
    rows = fit.read_published()
    assert [row.table for row in rows] == ["4.2"] * 15 + ["4.3"] * 15
    assert all(row.files == 10 * row.sensors for row in rows)
    assert sum(row.lost for row in rows[:15]) == 5369
    assert sum(row.lost for row in rows[15:]) == 2781


@pytest.mark.slow
def test_check_prints_all_rows_and_keeps_the_bounds(fit: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert fit.main(["--check"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.lstrip().startswith(("4.2 ", "4.3 ")) for line in lines) == 30
    assert any(line.startswith("mean absolute error") for line in lines)
    assert any(line.startswith("ordering kept") for line in lines)


@pytest.mark.slow
def test_profile_reproduces_the_tables_even_when_bursts_arrive_spread(fit: ModuleType) -> None:
    profile = load_profile("dropbox-2014")
    for spread_s in (0.0, 0.3, 1.0):
        verdict = fit.judge(profile, runs=5, spread_s=spread_s)
        assert verdict.mean_error <= 4.0
        assert not verdict.violations


def test_desynchronised_sensors_lose_nothing_where_the_thesis_lost_nothing(fit: ModuleType) -> None:
    verdict = fit.judge(load_profile("dropbox-2014"), runs=5)
    losses = [
        simulated.loss
        for row, simulated in zip(verdict.rows, verdict.simulated, strict=True)
        if row.table == "4.3" and row.lost == 0
    ]
    assert len(losses) == 7
    assert max(losses) < 4.0


def test_profile_without_throttle_loses_nothing_and_fails(fit: ModuleType) -> None:
    profile = change_profile(load_profile("dropbox-2014"), {"throttle.rate_per_s": 0})
    verdict = fit.judge(profile, runs=1)
    assert {simulated.loss for simulated in verdict.simulated} == {0.0}
    assert verdict.mean_error > 30.0
    assert len(verdict.violations) == len(verdict.gaps)
    assert not verdict.passed


@pytest.mark.slow
def test_exit_status_tells_a_bad_profile(fit: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "idle.toml"
    path.write_text('[meta]\nname = "idle"\napi = "dropbox"\ndescription = "no throttle"\n')
    assert fit.main(["--check", "--profile", str(path)]) == 1


def test_simulation_is_deterministic_and_uses_the_policy(fit: ModuleType) -> None:
    rows = fit.read_published()[:6]
    profile = load_profile("dropbox-2014")
    assert fit.simulate_rows(rows, profile, 2) == fit.simulate_rows(rows, profile, 2)
    in_flight = ThrottlePolicy(max_in_flight=5)
    together = fit.Row("x", 10, 1000.0, 0.0, 100, 0)
    draws = fit.random.Random(1)
    latency = fit.Latency(median_s=1.0)
    assert fit.simulate(together, in_flight, latency, draws) == 50.0


def test_losses_differ_only_beyond_the_noise_of_one_run(fit: ModuleType) -> None:
    def row(lost: int, files: int) -> object:
        return fit.Row("x", 10, 1.0, 0.0, files, lost)

    assert not fit.differs(row(0, 100), row(5, 100))
    assert fit.differs(row(0, 100), row(7, 100))
    assert not fit.differs(row(656, 800), row(795, 1000))


@pytest.mark.slow
def test_search_improves_a_bad_start(
    fit: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = [row for row in fit.read_published() if row.sensors in (10, 30)]
    monkeypatch.setattr(fit, "read_published", lambda: few)
    start = change_profile(load_profile("dropbox-2014"), {"throttle.rate_per_s": 3.0})
    fitted = fit.search(start, tries=2, steps=3)
    assert fit.objective(fitted, 1) < fit.objective(start, 1)
    assert "Nelder-Mead" in capsys.readouterr().out
    assert fit.snippet(fitted).count(" = ") == len(fit.BOUNDS)
