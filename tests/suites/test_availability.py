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
from tests.fleet.harness import Ended, Lab

ROOT = Path(__file__).resolve().parents[2]
SUITE = str(ROOT / "suites" / "availability")
PROVIDER = ("--provider", "emulated:./mine.toml", "--cloudbench-seed", "fixed")


def profile(lab: Lab, text: str) -> None:
    meta = '[meta]\nname = "mine"\napi = "dropbox"\ndescription = "a test"\n'
    (lab.folder / "mine.toml").write_text(meta + text)


def entry(run: Ended) -> Mapping[str, Any]:
    assert run.status == 0, run.text
    assert run.leftovers == []
    return next(each["extra_info"] for each in run.document["benchmarks"] if "availability" in each["extra_info"])


def by_size(run: Ended) -> dict[int, Mapping[str, Any]]:
    return {each["params"]["size_kb"]: each["extra_info"] for each in run.document["benchmarks"]
            if each["params"] and "size_kb" in each["params"]}  # fmt: skip


def state_files(lab: Lab) -> list[Path]:
    return sorted(lab.folder.glob("results/*/series/*.jsonl"))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def planned(lab: Lab, count: int, *fed: dict[str, Any]) -> tuple[str, ...]:
    """Options for a series of this many rounds, however quick this machine is, with some existing lines."""
    suite = test_availability
    setup = {"files": suite.FILES["quick"], "sizes_kb": list(suite.SIZES_KB["quick"]), "read_back": suite.READ_BACK,
             "hash_calls": suite.HASH_CALLS, "threads": suite.THREADS, "time_scale": 1.0}  # fmt: skip
    key = {"test": "test_series", "provider": PROVIDER[1], "params": {}}
    header = {"schema": 1, "key": key, "setup": setup, "plan": asdict(SeriesPlan(count))}
    path = lab.folder / "planned.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in [header, *fed]))
    return "--resume", path.name, "-ocloudbench_max_lateness=5"  # a busy machine is not what is tested


def near(found: float, truth: float, count: int) -> bool:
    """Within four standard deviations: chance alone misses it in one of 16,000."""
    return abs(found - truth) <= 4 * sqrt(truth * (1 - truth) / count)


# --- what the emulator was told ---


@pytest.mark.slow
def test_errors_of_the_provider_are_counted_and_make_the_availability(lab: Lab) -> None:
    profile(lab, "[faults]\nerror_rate = 0.05\n")
    found = entry(lab.run(SUITE, *PROVIDER, *planned(lab, 12)))
    assert (found["rounds"], found["writes"], found["sessions"]) == (12, 216, 1)
    assert near(found["availability"], 0.95, found["writes"])
    assert found["availability_low"] < found["availability"] < found["availability_high"] < 1
    assert found["write_errors"] == {"server": found["writes"] - found["completed"]}
    assert (found["throttled"], found["doubts"]) == (0, [])
    assert (found["wrong_hashes"], found["wrong_hash_rate"]) == (0, 0.0)


@pytest.mark.slow
def test_wrong_hashes_are_found_at_their_rate_and_not_otherwise(lab: Lab) -> None:
    profile(lab, "[faults]\ncorrupt_rate = 0.2\n")
    found = entry(lab.run(SUITE, *PROVIDER, *planned(lab, 9)))
    assert 9 * 9 <= found["files_checked"] <= 9 * 11
    assert near(found["wrong_hash_rate"], 0.2, found["files_checked"])
    assert found["wrong_digests"] > 0 < found["digests_compared"]
    assert found["availability"] == 1.0
    profile(lab, "[latency]\nmedian_s = 0.15\nsigma = 0\n")
    run = lab.run(SUITE, *PROVIDER, "-n", "3")
    sound = entry(run)
    assert (sound["wrong_hashes"], sound["errors"], sound["writes"], sound["agents"]) == (0, "none", 54, 3)
    assert 0.15 <= sound["hash_call_p50"] <= 0.19
    assert {size for size, each in by_size(run).items() if 0.15 <= each["hash_call_p50"] <= 0.19} == {100, 1024, 4096}
    assert by_size(run)[4096]["local_hash_s"] > by_size(run)[100]["local_hash_s"] > 0
    assert sound["size_matters"] in {"no", "unknown"}
    assert sound["time_of_day"] == "unknown"


@pytest.mark.slow
def test_throttled_writes_stand_apart(lab: Lab) -> None:
    profile(lab, "[throttle]\nrate_per_s = 1\nburst = 10\n")
    run = lab.run(SUITE, *PROVIDER)
    found = entry(run)
    assert found["throttled"] == found["write_errors"]["throttled"] == found["writes"] - found["completed"] > 0
    assert found["availability"] < 1 == found["availability_unthrottled"]
    assert run.lines_with("writes were throttled; without them 100.00% completed")


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
    found = entry(run)
    assert state_files(lab) == [state]
    done = [line for line in lines(state)[1:] if "round" in line]
    assert [line["round"] for line in done] == [0, 1, 2]
    assert found["rounds"] == 3
    assert found["writes"] == sum(line["writes"]["tried"] for line in done) == 54
    assert found["hash_calls"] == sum(calls["answered"] for line in done for calls in line["hash"].values()) == 27
    assert (found["sessions"], found["earlier_rounds"], found["availability"]) == (2, 1, 1.0)
    assert 0 < found["gap_s"] < 60
    assert run.lines_with("resumed: 1 round of an earlier run, stopped for ")
    assert run.lines_with("the stop cut off the state file's last line")
    again = lab.run(SUITE, *PROVIDER, "--resume")
    assert (again.status, again.counts()) == (1, {"failed": 1})
    assert again.lines_with("has no unfinished series of test_series")


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


def synthetic(swing: float, days: int = 3) -> list[dict[str, Any]]:
    """A session with a round in each hour, whose hash calls take 0.1 s, and more or less by the hour."""
    chance, began_s = Random(7), 1_350_000_000.0
    made: list[dict[str, Any]] = [{"session": {"at_s": began_s, "run_id": "synthetic"}}]
    none = {"tried": 10, "ok": 10, "compared": 1, "wrong": 0, "errors": {}}
    for number in range(24 * days):
        at_s = began_s + 3600 * number
        level_s = 0.1 * (1 + swing * cos(at_s / 86400 * 2 * pi))
        calls = sorted(level_s * chance.lognormvariate(0, 0.1) for _ in range(5))
        told = {"answered": 5, "total_s": sum(calls), "call_s": calls, "at_s": [at_s + rank for rank in range(5)]}
        made.append({"round": number, "began_s": at_s, "ended_s": at_s + 60, "writes": none, "reads": none,
                     "calls": none, "files": {"checked": 2, "wrong": 0}, "hash": {"100": told, "1024": told},
                     "doubts": [], "ops_files": []})  # fmt: skip
    return made


@pytest.mark.slow
def test_a_daily_course_is_seen_in_a_state_file_of_days_and_its_absence_too(lab: Lab) -> None:
    profile(lab, "")
    answers = {}
    for name, swing in (("swinging", 0.4), ("flat", 0.0)):
        fed = synthetic(swing)
        run = lab.run(SUITE, *PROVIDER, *planned(lab, len(fed) - 1, *fed))
        found = entry(run)
        answers[name] = found["time_of_day"]
        assert (found["rounds"], found["writes"], found["hash_calls"]) == (72, 720, 720)
        assert 0.09 < found["hash_call_p50"] < 0.11
        assert bool(run.lines_with("hash calls depend on the time of day: hours differ by")) == (name == "swinging")
    assert answers == {"swinging": "yes", "flat": "no"}


# --- pure parts ---


def test_bounded_samples_keep_maximum_and_mean_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "SAMPLE_CALLS", 50)
    told = rounds.fold_series(synthetic(0.0))
    times = told["by_size"]["100"]
    assert (times["hash_calls"], times["hash_calls_kept"]) == (360, 50)
    everything = [call_s for line in synthetic(0.0)[1:] for call_s in line["hash"]["100"]["call_s"]]
    assert times["hash_call_max"] == max(everything)
    assert times["hash_call_s"] == pytest.approx(sum(everything) / 360)
    assert abs(times["hash_call_p50"] - 0.1) < 0.01


def test_a_gap_between_sessions_is_neither_time_nor_unavailability() -> None:
    first = synthetic(0.0, days=1)
    later = [{"session": {"at_s": first[-1]["ended_s"] + 10_920, "run_id": "second"}}]
    told = rounds.fold_series([*first, *later])
    assert (told["gap_s"], told["sessions"], told["earlier_rounds"]) == (10_920, 2, 24)
    assert told["availability"] == 1.0
    assert told["observed_s"] == 23 * 3600 + 60
    assert test_availability._format_duration(told["gap_s"]) == "3 h 2 min"
    assert rounds.fold_series([])["availability"] is None


def test_a_file_that_is_wrong_by_content_and_digest_counts_once() -> None:
    down: dict[str, list[Any]] = {"sensor": [1, 2, 3], "outcome": ["corrupt", "ok", "failed"]}
    calls: dict[str, list[Any]] = {"sensor": [1, 2, 4, 5], "outcome": ["corrupt", "corrupt", "ok", "throttled"]}
    assert rounds.count_compared([down, calls]) == {"checked": 3, "wrong": 2}
    assert rounds.count_outcomes({**calls, "kind": ["corrupt", "corrupt", None, "throttled"]}) == {
        "tried": 4, "ok": 1, "compared": 3, "wrong": 2, "errors": {"corrupt": 2, "throttled": 1},
    }  # fmt: skip
    assert rounds.count_outcomes({}) == {"tried": 0, "ok": 0, "compared": 0, "wrong": 0, "errors": {}}


@given(st.lists(st.floats(0, 1e6), max_size=300).map(sorted), st.integers(2, 64))
def test_thinning_keeps_the_ends_and_ranks(ordered: list[float], most: int) -> None:
    kept = rounds.sample_evenly(ordered, most)
    assert len(kept) == min(len(ordered), most)
    assert list(kept) == sorted(kept)
    if ordered:
        assert (kept[0], kept[-1]) == (ordered[0], ordered[-1])


def test_growth_of_hash_calls_with_the_size_is_judged() -> None:
    def lines_of(per_kb_s: float) -> list[dict[str, Any]]:
        chance = Random(3)
        made = synthetic(0.0, days=1)
        for line in made[1:]:
            line["hash"] = {}
            for size_kb in (100, 1024, 10_240, 102_400):
                calls = sorted(0.1 * chance.lognormvariate(0, 0.1) + per_kb_s * size_kb for _ in range(3))
                line["hash"][str(size_kb)] = {"answered": 3, "total_s": sum(calls), "call_s": calls,
                                              "at_s": [line["began_s"]] * 3}  # fmt: skip
        return made

    assert rounds.fold_series(lines_of(0.0))["size_matters"] == "no"
    assert rounds.fold_series(lines_of(5e-6))["size_matters"] == "yes"
    assert rounds.fold_series(synthetic(0.0))["size_matters"] == "unknown"


def test_the_range_beside_the_numbers_is_that_of_the_published_table() -> None:
    paper = tomllib.loads((ROOT / "results" / "published" / "cloud-raid-2012.toml").read_text("utf-8"))
    rows = next(table["rows"] for table in paper["table"] if table["name"] == "table-1")
    for size_kb, bounds in test_availability.TABLE_I_MS.items():
        times_ms = [int(call) for _, size, call, _ in rows if int(size) == size_kb]
        assert (min(times_ms), max(times_ms)) == bounds
