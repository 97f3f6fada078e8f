"""The commands about the regression gate, on runs with known changes."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from math import exp
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.commands import cli
from pytest_cloudbench.judge import changepoints, watched
from pytest_cloudbench.judge.baseline import FOLLOWED
from pytest_cloudbench.judge.checks import Check
from pytest_cloudbench.judge.gate import AGAIN, FEWEST_RUNS, is_suspect, judge
from pytest_cloudbench.judge.metrics import IS_YES
from pytest_cloudbench.judge.watched import FOLLOWED_ONLY, checks_of, needed_numbers
from pytest_cloudbench.load.gate.text import ruling_text
from pytest_cloudbench.results.acceptance import Accepted, write_acceptance, write_rename
from pytest_cloudbench.results.index import Index
from tests.results.stored_runs import DAY_MS, START_MS, info, store

TEST = "test_it.py::test_put"
ASSUMED = (f"in {AGAIN} of {AGAIN} repetitions, too", "assumed to come again")
Run = Callable[..., list[str]]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(folder: Path, capfd: pytest.CaptureFixture[str]) -> Run:
    def run(*argv: str) -> list[str]:
        assert cli.main(["gate", *argv, "--storage", str(folder)]) == 0
        return capfd.readouterr().out.splitlines()

    return run


def store_runs(folder: Path, first: int, runs: int, spread: float = 0.01, p50: float = 0.1, **changes: Any) -> None:
    """Store one run a day, with quiet times that vary by ``spread``."""
    source = random.Random(first)
    for number in range(first, first + runs):
        fields = {
            "quiet_ops": 300, "quiet_p50": p50 * exp(source.gauss(0, spread)), "quiet_p99": 0.2, "quiet_kept": 300,
            "start_wall_ms": START_MS + number * DAY_MS, "quiet_share": 1.0, **changes,
        }  # fmt: skip
        store(folder, number, {TEST: info(**fields)})


def test_power_gives_no_figure_for_metrics_that_the_gate_refuses(folder: Path, run: Run) -> None:
    store_runs(folder, 1, 12, quiet_ops=50)
    (line,) = [line for line in run("power") if "quiet_p99" in line]
    assert line == "  quiet_p99: 300 quiet operations are needed, found 50"
    assert any(line.startswith("  quiet_p50: changes from ") for line in run("power"))


@pytest.mark.parametrize("command", ["power", "backtest"])
def test_lines_fit_the_terminal_and_are_whole_in_a_pipe(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    store_runs(folder, 1, 12, spread=0.1)
    whole = run(command)
    assert max(map(len, whole)) > 80
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    fitted = run(command)
    assert max(map(len, fitted)) <= 80
    assert " ".join(fitted).split() == " ".join(whole).split()


@pytest.mark.parametrize("quiet_ops", [1, 20, 39])
def test_power_gives_no_figure_for_a_replaced_metric_that_the_gate_refuses(
    folder: Path, run: Run, quiet_ops: int
) -> None:
    busy = {"starved_share": 0.3, "unstarved_p50": 0.1, "cpu_per_op": 0.001, "reference_cpu_s": 1.0, "ok": 60}
    store_runs(folder, 1, 12, quiet_ops=quiet_ops, **busy)
    lines = run("power")
    assert f"  quiet_p50: 40 quiet operations are needed, found {quiet_ops}" in lines
    assert any(line.startswith("  unstarved_p50: changes from ") for line in lines)


@pytest.mark.parametrize("command", ["power", "backtest"])
def test_runs_of_a_storage_that_the_gate_does_not_read_do_not_count(
    folder: Path, capfd: pytest.CaptureFixture[str], command: str
) -> None:
    (folder / "pytest.ini").write_text("[pytest]\n")
    store_runs(folder / "results", 1, 12)
    store_runs(folder / ".benchmarks", 13, 9, p50=0.3)
    outputs = []
    for options in ((), ("--storage", "results")):
        assert cli.main(["gate", command, *options]) == 0
        outputs.append(capfd.readouterr().out)
    assert outputs[0] == outputs[1]


def test_margins_of_the_project_count_in_its_subfolders_too(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "pyproject.toml").write_text("[tool.pytest.ini_options]\n[tool.cloudbench.gate]\np50 = 0.07\n", "utf-8")
    store_runs(folder, 1, 12)
    (folder / "inner").mkdir()
    monkeypatch.chdir(folder / "inner")
    (line,) = [line for line in run("power") if "quiet_p50" in line]
    assert "(margin 7 %)" in line


def test_power_writes_large_changes_without_an_exponent(folder: Path, run: Run) -> None:
    store_runs(folder, 1, 12, spread=0.6)
    (line,) = [line for line in run("power") if "quiet_p50" in line]
    assert "e+0" not in line
    assert " % would be seen (margin 10 %)" in line


@pytest.mark.parametrize("runs", [1, 3, 4, 9])
def test_power_gives_no_figure_before_there_are_enough_runs(folder: Path, run: Run, runs: int) -> None:
    """Student's t of so few runs may be beyond all numbers."""
    store_runs(folder, 1, runs, spread=0.3)
    assert run("power") == [f"{TEST}: {runs} run{'s' * (runs > 1)}, and 10 are needed"]


def test_power_names_operations_needed_to_find_a_rise_of_a_rate(folder: Path, run: Run) -> None:
    store_runs(folder, 1, 12, ops=60)
    (line,) = [line for line in run("power") if "failed_rate" in line]
    assert " points would be seen (margin 1 point): about " in line
    assert line.endswith(" operations and 15 runs would suffice")


def test_power_says_why_other_runs_are_no_baseline(folder: Path, run: Run) -> None:
    store_runs(folder, 1, 13)
    store_runs(folder, 14, 1, machine="Another")
    assert run("power")[0] == (
        f"{TEST}: 1 run, and 10 are needed (the 13 stored runs differed in machine "
        "(Linux x86_64, 2 x A CPU, CPython 3.11, here Another))"
    )


def test_power_names_the_run_of_the_last_improvement(folder: Path, run: Run) -> None:
    store_runs(folder, 1, 12)
    store_runs(folder, 13, 4, p50=0.05)
    (line,) = [line for line in run("power") if "quiet_p50" in line]
    assert line.endswith("; it improved at 0013_run, and there are too few runs since then")


def test_as_many_runs_are_searched_for_a_change_as_in_the_gate(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_runs(folder, 1, 70)
    lengths = set[int]()

    def find_changes(values: list[float]) -> list[changepoints.ChangePoint]:
        lengths.add(len(values))
        return changepoints.find_changes(values)

    monkeypatch.setattr(watched, "find_changes", find_changes)
    run("power")
    assert max(lengths) == 60
    lengths.clear()
    assert run("backtest")[-1].startswith("60 of 60 sessions had 10 runs before them")
    assert max(lengths) == 60


def store_conclusions(folder: Path, changes: dict[str, Any]) -> None:
    """Store twelve conclusions of a sync client, with changes in the last one. Their table shows one of the times."""
    usual = {"completion": 2.0, "start_up": 1.0, "delta": "yes", "is_delta": 1, "columns": ["delta", "completion"]}
    for number in range(1, 13):
        fields = usual | {"start_wall_ms": START_MS + number * DAY_MS} | (changes if number == 12 else {})
        store(folder, number, {TEST: info(**fields)})


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"delta": "no", "is_delta": 0}, "delta: was yes in 11 runs, and is no"),
        ({"completion": 3.0}, "completion: +50 % (+48 to +52 %) worse than 11 runs"),
        ({"start_up": 1.5, "response_p99": 0.4, "throughput": 1e5}, ""),
    ],
    ids=["capability", "in the table", "not in the table"],
)
def test_backtest_judges_the_metrics_of_a_conclusion_that_the_gate_judges(
    folder: Path, run: Run, changes: dict[str, Any], line: str
) -> None:
    store_conclusions(folder, changes)
    *broken, summary = run("backtest")
    assert [text.partition(f"{TEST}: ")[2] for text in broken] == ([line] if line else [])
    assert summary.endswith(f"at most {'1 session' if line else '0 sessions'} would have been red")


def test_backtest_says_of_no_repetition_that_it_was_made(folder: Path, run: Run) -> None:
    for number in range(1, 13):
        store(folder, number, {TEST: info(requests_per_op=1.0 + (number == 12), start_wall_ms=START_MS + number)})
    *broken, summary = run("backtest")
    assert [text.partition(f"{TEST}: ")[2] for text in broken] == [
        "requests_per_op: +100 % worse than 11 runs: assumed to come again"
    ]
    assert summary.endswith("at most 1 session would have been red")


def test_power_says_what_the_users_margin_hides_of_a_number_that_never_varied(folder: Path, run: Run) -> None:
    store_runs(folder, 1, 12, requests_per_op=3.0, payload_bytes_per_op=100.0)
    (folder / "pyproject.toml").write_text("[tool.pytest.ini_options]\n[tool.cloudbench.gate]\nrequests_per_op = 0.2\n")
    lines = [line.strip() for line in run("power") if "never varied" in line]
    assert lines == [
        "requests_per_op: never varied: more than 20 % worse would be seen",
        "payload_bytes_per_op: never varied: more than 0.5 % worse would be seen",
    ]


def test_power_has_figures_for_the_metrics_in_the_table_of_a_conclusion(folder: Path, run: Run) -> None:
    store_conclusions(folder, {})
    assert [line.partition(":")[0].strip() for line in run("power")[1:]] == ["completion"]


def store_varied_runs(folder: Path, runs: int, tests: int) -> None:
    """Store a history of changing levels, errors and two machines. Some runs fail, break the gate or have doubts."""
    source = random.Random("varied")
    for number in range(1, runs + 1):
        entries = {}
        for test in range(tests):
            level = 0.1 * (1.3 if number > 60 + test else 1.0) * exp(source.gauss(0, 0.01 + 0.01 * test))
            failed = sum(source.random() < (0.05 if number % 29 == 0 else 0.002) for _ in range(300))
            fields: dict[str, Any] = {
                "quiet_ops": 300, "quiet_p50": level, "quiet_p99": 2 * level * exp(source.gauss(0, 0.03)),
                "quiet_kept": 300 - number % 7, "quiet_share": 0.99, "failed": failed, "failed_rate": failed / 300,
                "requests_per_op": 1.0 + (number == 77), "cpu_per_op": 0.001 * exp(source.gauss(0, 0.05)),
                "reference_cpu_s": 0.01 if number % 31 else 0.03, "start_wall_ms": START_MS + number * DAY_MS,
                "machine": "Another" if number % 10 == 3 else "The usual one",
            }  # fmt: skip
            if source.random() < 0.06:
                fields |= source.choice([
                    {"outcome": "failed"}, {"doubts": ["late"]}, {"outcome": "failed", "gate": {"answer": "broken"}},
                ])  # fmt: skip
            entries[f"{TEST}[{test}]"] = info(**fields)
        store(folder, number, entries)


def judge_one_by_one(folder: Path) -> list[str]:
    """Return the lines of a backtest that compares each run with all earlier ones and judges everything."""
    index, sessions = Index.open(folder), dict[str, list[Check]]()
    for test in index.tests():
        rows = zip(index.series(test, "ops"), index.numbers(test, sorted(needed_numbers())), strict=True)
        runs = [(point, {
            "run": point.name, FOLLOWED_ONLY: point.unfit_reason if point.unfit_reason in FOLLOWED else "",
            **{name: number for name, number in row.items() if number is not None},
        }) for point, row in rows]  # fmt: skip
        for end, (now, numbers) in enumerate(runs):
            if end >= FEWEST_RUNS and "doubts" not in now.unfit_reason:
                usable = [
                    former
                    for point, former in runs[:end]
                    if point.unfit_reason in ("", *FOLLOWED) and point.fingerprint == now.fingerprint
                ]
                sessions.setdefault(now.run, []).extend(checks_of(test, numbers, now.columns, usable, {}))
    judged = suspects = red = 0
    lines = []
    for run, checks in sorted(sessions.items()):
        rulings = judge([replace(check, again=(check.now,) * AGAIN) for check in checks])
        broken = [ruling for ruling in rulings if ruling.answer == "broken"]
        lines += [f"{run}: {ruling.check.experiment}: {ruling_text(ruling)}".replace(*ASSUMED) for ruling in broken]
        judged += any(len(check.baseline) >= FEWEST_RUNS for check in checks)
        suspects, red = suspects + sum(map(is_suspect, checks)), red + bool(broken)
    return [
        *lines,
        f"{judged} of {len(sessions)} sessions had {FEWEST_RUNS} runs before them; {suspects} metrics would have been "
        f"measured again; at most {red} sessions would have been red",
    ]


@pytest.mark.slow
def test_a_backtest_agrees_with_judging_each_run_alone(folder: Path, run: Run) -> None:
    """The backtest reuses its facts about former runs, and this must change no answer."""
    store_varied_runs(folder, 120, 3)
    lines, expected = run("backtest"), judge_one_by_one(folder)
    assert sorted(lines) == sorted(expected)
    assert len(lines) > 5, "a history without a broken run compares nothing"


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("fields", "key", "usual", "worse"),
    [
        ({"unit": "s", "better": "higher", "gated": ""}, "album_cost", 1.0, 0.5),
        ({"unit": "albums", "better": "lower", "gated": "fact"}, "album_cost", 0, 2),
        ({"unit": IS_YES, "better": "higher", "gated": ""}, "is_album_cost", 1, 0),
    ],
)
def test_conclusions_are_judged_if_the_last_run_did_not_measure_their_suite(
    folder: Path, fields: dict[str, str], key: str, usual: float, worse: float
) -> None:
    """In other processes, which know no suite yet."""
    suite = {"name": "albums", "conclusions": {"album_cost": {**fields, "time_like": False}}}
    for number in range(1, 14):
        entry = info(
            start_wall_ms=START_MS + number * DAY_MS, suite=suite, columns=["album_cost"],
            **{key: worse if number == 13 else usual},
        )  # fmt: skip
        store(folder, number, {"test_album.py::test_album": entry})
    backtest = ("gate", "backtest", "-k", "album", "--storage", str(folder))
    expected = run_elsewhere(folder, *backtest)
    assert "test_album: album_cost: " in expected
    store(folder, 14, {TEST: info(start_wall_ms=START_MS + 14 * DAY_MS)})
    assert run_elsewhere(folder, *backtest) == expected


def test_margins_may_name_conclusions_of_suites(folder: Path, run: Run) -> None:
    """In another process, which knows no suite yet."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    suite = {"name": "albums", "conclusions": {"album_size": {"unit": "bytes"}}}
    for number in range(1, 13):
        entry = info(
            start_wall_ms=START_MS + number * DAY_MS, suite=suite, columns=["album_size", "idle_traffic"],
            album_size=1000, idle_traffic=8.0,
        )  # fmt: skip
        store(folder / "results", number, {"test_album.py::test_album": entry})
    margins = "album_size = 0.03\nidle_traffic = 0.04\n"
    (folder / "pyproject.toml").write_text(f"[tool.cloudbench.gate]\n{margins}", "utf-8")
    outputs = {words: run_elsewhere(folder, *words) for words in (("gate", "power"), ("report", "12"))}
    assert "album_size: changes from " in outputs["gate", "power"]
    assert "(margin 3 %)" in outputs["gate", "power"]
    assert "(margin 4 %)" in outputs["gate", "power"]
    assert "1 experiment of 1 run" in outputs["report", "12"]


def run_elsewhere(folder: Path, *words: str) -> str:
    command = [sys.executable, "-P", "-m", "pytest_cloudbench.commands.cli", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("remainder", ["", "[a]", "#2"])
def test_a_renamed_test_keeps_its_former_runs(folder: Path, run: Run, remainder: str) -> None:
    for number in range(1, 14):
        name = "test_it.py::test_old" if number < 12 else TEST
        entry = info(quiet_ops=300, quiet_p50=0.1, start_wall_ms=START_MS + number * DAY_MS)
        store(folder, number, {f"{name}{remainder}": entry})
    write_rename(folder, "test_it.py::test_old", TEST)
    assert run("power", "-k", "test_old")[0] == f"{TEST}{remainder}: 13 runs"
    assert not any("test_old" in line for line in run("power"))
    assert run("backtest")[-1].startswith("3 of 3 sessions had 10 runs before them")
    write_acceptance(folder, Accepted("0012_run", START_MS + 12 * DAY_MS, f"{TEST}{remainder}"))
    (line,) = [line for line in run("power") if line.startswith(TEST)]
    assert line.startswith(f"{TEST}{remainder}: 2 runs, and 10 are needed (the 11 stored runs came before 0012_run")


@pytest.mark.parametrize("remainder", ["", "[a]", "#2"])
def test_a_new_test_under_a_former_name_is_judged_by_itself(folder: Path, run: Run, remainder: str) -> None:
    """Since a run measured both, they are two tests, as the gate says."""
    old, new = f"test_it.py::test_old{remainder}", f"{TEST}{remainder}"
    write_rename(folder, "test_it.py::test_old", TEST)
    for number in range(1, 21):
        entry = info(quiet_ops=300, quiet_p50=0.1, start_wall_ms=START_MS + number * DAY_MS)
        names = [old] if number < 5 else [new] if number < 9 else [old, new] if number < 19 else [old]
        store(folder, number, dict.fromkeys(names, entry))
    lines = run("power")
    assert f"{new}: 18 runs" in lines  # 4 as test_old, 4, and 10 beside the new test
    assert f"{old}: 12 runs" in lines
    assert run("power", "-k", "test_old") == lines
    assert run("backtest")[-1].startswith("10 of 10 sessions had 10 runs before them")


def test_runs_under_the_oldest_name_are_not_of_a_new_test_under_the_middle_one(folder: Path, run: Run) -> None:
    first, middle = "test_it.py::test_first", "test_it.py::test_middle"
    write_rename(folder, first, middle)
    write_rename(folder, middle, TEST)
    for number in range(1, 21):
        entry = info(quiet_ops=300, quiet_p50=0.1, start_wall_ms=START_MS + number * DAY_MS)
        names = [first] if number < 4 else [middle] if number < 7 else [TEST, middle]
        store(folder, number, dict.fromkeys(names, entry))
    lines = run("power")
    assert f"{TEST}: 20 runs" in lines
    assert f"{middle}: 14 runs" in lines
