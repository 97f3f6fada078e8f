"""The availability suite finds the faults that the emulator was told to make, and none without them."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict
from math import cos, pi, sqrt
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cloudbench.load.messages import SeriesPlan
from suites.availability import rounds, test_availability
from tests.fleet.harness import FOLDER, FinishedRun, Lab

ROOT = Path(__file__).resolve().parents[2]
SUITE = str(ROOT / "suites" / "availability")
PROVIDER = ("--provider", "emulated:./mine.toml", "--cloudbench-seed", "fixed")


def profile(lab: Lab, text: str) -> None:
    meta = '[meta]\nname = "mine"\napi = "dropbox"\ndescription = "a test"\n'
    (lab.folder / "mine.toml").write_text(meta + text)


def entry(run: FinishedRun) -> Mapping[str, Any]:
    assert run.status == 0, run.text
    assert run.leftovers == []
    return next(
        benchmark["extra_info"] for benchmark in run.document["benchmarks"] if "availability" in benchmark["extra_info"]
    )


def by_size(run: FinishedRun) -> dict[int, Mapping[str, Any]]:
    return {benchmark["params"]["size_kb"]: benchmark["extra_info"] for benchmark in run.document["benchmarks"]
            if benchmark["params"] and "size_kb" in benchmark["params"]}  # fmt: skip


def state_files(lab: Lab) -> list[Path]:
    return sorted(lab.folder.glob("results/*/series/*.jsonl"))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def plan_series(lab: Lab, count: int, *existing: dict[str, Any]) -> tuple[str, ...]:
    """Write the state file of a series of this many rounds, with some existing lines. Return the options for it."""
    suite = test_availability
    setup = {"files": suite.FILES["quick"], "sizes_kb": list(suite.SIZES_KB["quick"]), "read_back": suite.READ_BACK,
             "hash_calls": suite.HASH_CALLS, "threads": suite.THREADS, "time_scale": 1.0}  # fmt: skip
    key = {"test": "test_series", "provider": PROVIDER[1], "params": {}}
    header = {"schema": 1, "key": key, "setup": setup, "plan": asdict(SeriesPlan(count))}
    path = lab.folder / "planned.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in [header, *existing]))
    return "--resume", path.name, "-ocloudbench_max_lateness=5"  # the test is not about a busy machine


def is_near(share: float, truth: float, count: int) -> bool:
    """Return whether a share is within four standard deviations of the truth, which chance misses once in 16,000."""
    return abs(share - truth) <= 4 * sqrt(truth * (1 - truth) / count)


# --- faults that are set in the emulator ---


@pytest.mark.slow
def test_errors_of_the_provider_are_counted_and_make_the_availability(lab: Lab) -> None:
    profile(lab, "[faults]\nerror_rate = 0.05\n")
    info = entry(lab.run(SUITE, *PROVIDER, *plan_series(lab, 12)))
    assert (info["rounds"], info["writes"], info["sessions"]) == (12, 216, 1)
    assert is_near(info["availability"], 0.95, info["writes"])
    assert info["availability_low"] < info["availability"] < info["availability_high"] < 1
    assert info["write_errors"] == {"server": info["writes"] - info["completed"]}
    assert (info["throttled"], info["doubts"]) == (0, [])
    assert (info["wrong_hashes"], info["wrong_hash_rate"]) == (0, 0.0)


@pytest.mark.slow
def test_wrong_hashes_are_found_at_their_rate_and_not_otherwise(lab: Lab) -> None:
    profile(lab, "[faults]\ncorrupt_rate = 0.2\n")
    faulty = entry(lab.run(SUITE, *PROVIDER, *plan_series(lab, 9)))
    assert 9 * 9 <= faulty["files_checked"] <= 9 * 11
    assert is_near(faulty["wrong_hash_rate"], 0.2, faulty["files_checked"])
    assert faulty["wrong_digests"] > 0 < faulty["digests_compared"]
    assert faulty["availability"] == 1.0
    profile(lab, "[latency]\nmedian_s = 0.15\nsigma = 0\n")
    run = lab.run(SUITE, *PROVIDER, "-n", "3")
    sound = entry(run)
    assert (sound["wrong_hashes"], sound["errors"], sound["writes"], sound["agents"]) == (0, "none", 54, 3)
    assert 0.15 <= sound["hash_call_p50"] <= 0.19
    assert {size for size, info in by_size(run).items() if 0.15 <= info["hash_call_p50"] <= 0.19} == {100, 1024, 4096}
    assert by_size(run)[4096]["local_hash_s"] > by_size(run)[100]["local_hash_s"] > 0
    assert sound["size_matters"] in {"no", "unknown"}
    assert sound["time_of_day"] == "unknown"


@pytest.mark.slow
def test_throttled_writes_stand_apart(lab: Lab) -> None:
    profile(lab, "[throttle]\nrate_per_s = 1\nburst = 10\n")
    run = lab.run(SUITE, *PROVIDER)
    info = entry(run)
    assert info["throttled"] == info["write_errors"]["throttled"] == info["writes"] - info["completed"] > 0
    assert info["availability"] < 1 == info["availability_unthrottled"]
    assert run.lines_with("writes were throttled; without them 100.00% completed")


@pytest.mark.parametrize("limit_bytes", [200_000, None], ids=["small files only", "all files"])
def test_only_files_whose_digest_is_listed_count_as_compared(lab: Lab, limit_bytes: int | None) -> None:
    lab.write(
        f"""
        from dataclasses import replace
        from pytest_cloudbench.drivers.folder import FolderDriver

        FolderDriver.capabilities = replace(FolderDriver.capabilities, max_digest_bytes={limit_bytes})
        """,
        "conftest.py",
    )
    run = lab.run(SUITE, ".", *FOLDER, "--duration", "10ms")
    info = entry(run)
    calls = {size_kb: times["hash_calls"] for size_kb, times in by_size(run).items()}
    listed = calls.get(100, 0) if limit_bytes else sum(calls.values())
    assert (sum(calls.values()), info["digests_compared"]) == (9, listed)
    assert max(info["downloads_compared"], listed) <= info["files_checked"] <= info["downloads_compared"] + listed
    assert info["wrong_hashes"] == 0


# --- stops ---


@pytest.mark.slow
def test_killed_series_resumes_after_its_last_round(lab: Lab) -> None:
    profile(lab, "")
    running = lab.start(SUITE, *PROVIDER, "--pause", "1h")
    running.wait_for("one round", lambda: any('"round"' in path.read_text() for path in state_files(lab)))
    running.process.kill()
    assert running.end().status != 0
    (state,) = state_files(lab)
    with state.open("ab") as file:
        file.write(b'{"round":1,"writes":{"tri')
    run = lab.run(SUITE, *PROVIDER, "--pause", "0s", "--resume")
    info = entry(run)
    assert state_files(lab) == [state]
    done = [line for line in lines(state)[1:] if "round" in line]
    assert [line["round"] for line in done] == [0, 1, 2]
    assert info["rounds"] == 3
    assert info["writes"] == sum(line["writes"]["tried"] for line in done) == 54
    assert info["hash_calls"] == sum(calls["answered"] for line in done for calls in line["hash"].values()) == 27
    assert (info["sessions"], info["earlier_rounds"], info["availability"]) == (2, 1, 1.0)
    assert 0 < info["gap_s"] < 60
    assert run.lines_with("resumed: 1 round of an earlier run, stopped for ")
    assert run.lines_with("the stop cut off the state file's last line")
    again = lab.run(SUITE, *PROVIDER, "--resume")
    assert (again.status, again.counts()) == (1, {"failed": 1})
    assert again.lines_with("has no unfinished series of test_series")


@pytest.mark.slow
@pytest.mark.usefixtures("ctrl_c")
def test_interrupted_series_says_how_it_goes_on(lab: Lab) -> None:
    profile(lab, "")
    running = lab.start(SUITE, *PROVIDER, "--pause", "1h")
    running.wait_for("one round", lambda: any('"round"' in path.read_text() for path in state_files(lab)))
    running.interrupt(group=False)
    run = running.end()
    assert run.status == 2, run.text
    assert run.lines_with("stopped after 1 round; to continue: --resume results")


@pytest.mark.slow
def test_options_that_cannot_work_are_refused_in_one_line(lab: Lab) -> None:
    profile(lab, "")
    run = lab.run(SUITE, *PROVIDER, "--resume", "nothing.jsonl")
    assert run.lines_with("nothing.jsonl: expected the state file of a series")
    assert run.status == 1
    run = lab.run(SUITE, "--duration", "soon")
    assert run.status == 4
    assert run.lines_with("duration 'soon': expected a number with ms, s, m, h or d")


# --- the time of day ---


def make_series(swing: float, days: int = 3) -> list[dict[str, Any]]:
    """Return a session with a round in each hour. Its hash calls take 0.1 s, and more or less by the hour."""
    chance, began_s = Random(7), 1_350_000_000.0
    series: list[dict[str, Any]] = [{"session": {"at_s": began_s, "run_id": "synthetic"}}]
    none = {"tried": 10, "ok": 10, "compared": 1, "wrong": 0, "errors": {}}
    for number in range(24 * days):
        at_s = began_s + 3600 * number
        level_s = 0.1 * (1 + swing * cos(at_s / 86400 * 2 * pi))
        calls = sorted(level_s * chance.lognormvariate(0, 0.1) for _ in range(5))
        timing = {"answered": 5, "total_s": sum(calls), "call_s": calls, "at_s": [at_s + rank for rank in range(5)]}
        series.append({"round": number, "began_s": at_s, "ended_s": at_s + 60, "writes": none, "reads": none,
                       "calls": none, "files": {"checked": 2, "wrong": 0}, "hash": {"100": timing, "1024": timing},
                       "doubts": [], "ops_files": []})  # fmt: skip
    return series


@pytest.mark.slow
def test_a_daily_course_is_seen_in_a_state_file_of_days_and_its_absence_too(lab: Lab) -> None:
    profile(lab, "")
    answers = {}
    for name, swing in (("swinging", 0.4), ("flat", 0.0)):
        series = make_series(swing)
        run = lab.run(SUITE, *PROVIDER, *plan_series(lab, len(series) - 1, *series))
        info = entry(run)
        answers[name] = info["time_of_day"]
        assert (info["rounds"], info["writes"], info["hash_calls"]) == (72, 720, 720)
        assert 0.09 < info["hash_call_p50"] < 0.11
        assert bool(run.lines_with("hash calls depend on the time of day: hours differ by")) == (name == "swinging")
    assert answers == {"swinging": "yes", "flat": "no"}


# --- pure parts ---


def test_a_few_hours_of_the_day_do_not_show_that_all_are_alike() -> None:
    def judge_hours(hours: int) -> tuple[str, str]:
        points = [(3600.0 * hour + call, 1 + call / 100) for hour in range(hours) for call in range(10)]
        answer = rounds._describe_drift(points)
        return answer["answer"], answer["reason"]

    assert judge_hours(2) == ("unknown", "only 2 hours of the day were seen")
    assert judge_hours(11) == ("unknown", "only 11 hours of the day were seen")
    assert judge_hours(12) == ("no", "")


def test_bounded_samples_keep_maximum_and_mean_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "SAMPLE_CALLS", 50)
    summary = rounds.fold_series(make_series(0.0))
    times = summary["by_size"]["100"]
    assert (times["hash_calls"], times["hash_calls_kept"]) == (360, 50)
    everything = [call_s for line in make_series(0.0)[1:] for call_s in line["hash"]["100"]["call_s"]]
    assert times["hash_call_max"] == max(everything)
    assert times["hash_call_s"] == pytest.approx(sum(everything) / 360)
    assert abs(times["hash_call_p50"] - 0.1) < 0.01


def test_a_gap_between_sessions_is_neither_time_nor_unavailability() -> None:
    first = make_series(0.0, days=1)
    later = [{"session": {"at_s": first[-1]["ended_s"] + 10_920, "run_id": "second"}}]
    summary = rounds.fold_series([*first, *later])
    assert (summary["gap_s"], summary["sessions"], summary["earlier_rounds"]) == (10_920, 2, 24)
    assert summary["availability"] == 1.0
    assert summary["observed_s"] == 23 * 3600 + 60
    assert test_availability._format_duration(summary["gap_s"]) == "3 h 2 min"
    assert rounds.fold_series([])["availability"] is None


def test_a_file_that_is_wrong_by_content_and_digest_counts_once() -> None:
    down: dict[str, list[Any]] = {"sensor": [1, 2, 3], "outcome": ["corrupt", "ok", "failed"]}
    calls: dict[str, list[Any]] = {"sensor": [1, 2, 4, 5], "outcome": ["corrupt", "corrupt", "ok", "throttled"]}
    assert rounds.count_compared([down, calls]) == {"checked": 3, "wrong": 2}
    assert rounds.count_outcomes({**calls, "kind": ["corrupt", "corrupt", None, "throttled"]}) == {
        "tried": 4, "ok": 1, "compared": 3, "wrong": 2, "errors": {"corrupt": 2, "throttled": 1},
    }  # fmt: skip
    assert rounds.count_outcomes({}) == {"tried": 0, "ok": 0, "compared": 0, "wrong": 0, "errors": {}}


@pytest.mark.parametrize(
    ("tried", "throttled", "note"),
    [(4, 4, "4 writes were throttled; there was no other"),
     (4, 2, "2 writes were throttled; without them 50.00% completed")],
)  # fmt: skip
def test_writes_that_were_all_throttled_leave_no_share_without_them(tried: int, throttled: int, note: str) -> None:
    series = make_series(0.0, days=1)[:2]
    errors = {"throttled": throttled, **({"server": 1} if tried > throttled else {})}
    series[1]["writes"] = {"tried": tried, "ok": tried - sum(errors.values()), "compared": 0, "wrong": 0,
                           "errors": errors}  # fmt: skip
    summary = {**rounds.fold_series(series), "was_torn": False}
    assert note in test_availability._list_notes(summary)


@given(st.lists(st.floats(0, 1e6), max_size=300).map(sorted), st.integers(2, 64))
def test_thinning_keeps_the_ends_and_ranks(ordered: list[float], limit: int) -> None:
    sample = rounds.sample_evenly(ordered, limit)
    assert len(sample) == min(len(ordered), limit)
    assert list(sample) == sorted(sample)
    if ordered:
        assert (sample[0], sample[-1]) == (ordered[0], ordered[-1])


def test_growth_of_hash_calls_with_the_size_is_judged() -> None:
    def make_lines(per_kb_s: float) -> list[dict[str, Any]]:
        chance = Random(3)
        series = make_series(0.0, days=1)
        for line in series[1:]:
            line["hash"] = {}
            for size_kb in (100, 1024, 10_240, 102_400):
                calls = sorted(0.1 * chance.lognormvariate(0, 0.1) + per_kb_s * size_kb for _ in range(3))
                line["hash"][str(size_kb)] = {"answered": 3, "total_s": sum(calls), "call_s": calls,
                                              "at_s": [line["began_s"]] * 3}  # fmt: skip
        return series

    assert rounds.fold_series(make_lines(0.0))["size_matters"] == "no"
    assert rounds.fold_series(make_lines(5e-6))["size_matters"] == "yes"
    assert rounds.fold_series(make_series(0.0))["size_matters"] == "unknown"


@pytest.mark.parametrize(("spread", "calls", "is_told"), [(0.1, 10, True), (0.3, 40, True), (1.0, 10, False)])
def test_few_scattered_calls_do_not_show_that_the_size_does_not_matter(
    spread: float, calls: int, is_told: bool
) -> None:
    def judge_growth(factor: float, seed: int) -> str:
        chance, by_size = Random(seed), dict[int, Any]()
        for size_kb in (100, 1024, 4096):
            level_s = 0.1 * (1 + (factor - 1) * size_kb / 4096)
            calls_s = sorted(level_s * chance.lognormvariate(0, spread) for _ in range(calls))
            by_size[size_kb] = rounds._Calls()
            by_size[size_kb].add_calls(
                {"answered": calls, "total_s": sum(calls_s), "call_s": calls_s, "at_s": [0.0] * calls}, chance
            )
        return rounds._judge_size_influence(by_size)

    flat, steep = ([judge_growth(factor, seed) for seed in range(50)] for factor in (1.0, 1.5))
    assert steep.count("no") <= 1
    assert flat.count("yes") <= 2
    assert (flat.count("no") >= 45) == is_told


def test_the_range_beside_the_numbers_is_that_of_the_published_table() -> None:
    paper = tomllib.loads((ROOT / "results" / "published" / "cloud-raid-2012.toml").read_text("utf-8"))
    rows = next(table["rows"] for table in paper["table"] if table["name"] == "table-1")
    for size_kb, bounds in test_availability.TABLE_I_MS.items():
        times_ms = [int(call) for _, size, call, _ in rows if int(size) == size_kb]
        assert (min(times_ms), max(times_ms)) == bounds
