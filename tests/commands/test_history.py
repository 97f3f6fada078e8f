"""The commands about stored runs, on runs with known changes."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import time
import zipfile
from math import exp, sin
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.commands import cli
from pytest_cloudbench.load.gate.history import GateHistory
from pytest_cloudbench.report.history import render_side_by_side
from pytest_cloudbench.results.acceptance import Accepted, write_acceptance
from pytest_cloudbench.results.index import INDEX_NAME, Index
from pytest_cloudbench.results.oplog import read_parquet, write_parquet
from pytest_cloudbench.support.extras import install_command
from tests.results.stored_runs import DAY_MS, MACHINE, START_MS, info, store, store_series

FIXTURES = Path(__file__).parents[2] / "fixtures"
TEST = "test_it.py::test_put"


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    (tmp_path / "results").mkdir()
    return tmp_path / "results"


@pytest.fixture
def other_storage(storage: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go into the project of ``storage``, and return where its runs are stored without the option ``--storage``."""
    (storage.parent / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.chdir(storage.parent)
    return storage.parent / ".benchmarks"


@pytest.fixture
def run(storage: Path, capfd: pytest.CaptureFixture[str]) -> Any:
    def run(*argv: str, status: int = 0) -> tuple[str, str]:
        assert cli.main([*argv, "--storage", str(storage)]) == status, capfd.readouterr()
        output = capfd.readouterr()
        return output.out, output.err

    return run


def store_changed_runs(storage: Path, change: float = 0.2) -> None:
    """Store thirty runs, the last eight of them slower."""
    rng = random.Random(1)
    levels = [0.1 * exp(rng.gauss(0, 0.02)) * (1 + change * (number >= 22)) for number in range(30)]
    store_series(storage, levels)


# --- history ---


def test_a_folder_that_was_copied_into_the_storage_changes_no_history(storage: Path, run: Any) -> None:
    rng = random.Random(7)
    store_series(storage, [0.1 * exp(rng.gauss(0, 0.05)) * (1.08 if number > 9 else 1) for number in range(18)])
    commands = (("history",), ("history", "test_put"), ("baseline", "show"))
    before = [run(*command)[0] for command in commands]
    assert "no change found" in before[1]
    shutil.copytree(storage / MACHINE, storage / "copied")
    assert [run(*command)[0] for command in commands] == before


def test_the_overview_marks_a_last_number_that_may_be_wrong(storage: Path, run: Any) -> None:
    store_series(storage, [0.1] * 3)
    assert "100 ms?" not in run("history")[0]
    late = info(start_wall_ms=START_MS + 9 * DAY_MS, doubts=["engine saturated (lateness p99 310 ms is over 200 ms)"])
    store(storage, 4, {TEST: late})
    out, _ = run("history")
    (line,) = [line for line in out.splitlines() if line.startswith(TEST)]
    assert "  3 of 4  100 ms?  " in line
    assert out.splitlines()[-1] == "?: the run had doubts about this entry, see cloudbench show"


@pytest.mark.parametrize("outcome", ["interrupted", "unfinished"])
def test_the_number_of_an_interrupted_run_is_marked(outcome: str, storage: Path, run: Any) -> None:
    store(storage, 1, {TEST: info(start_wall_ms=START_MS)})
    store(storage, 2, {TEST: info(start_wall_ms=START_MS + DAY_MS, outcome=outcome)})
    assert "  1 of 2  100 ms?  " in run("history")[0]
    rows = [line.split()[:4] for line in run("compare", "all")[0].splitlines() if "_run" in line]
    assert rows == [["0001_run", "abc", "100", "ms"], ["0002_run", "abc", "100", "ms?"]]
    assert f"! {TEST}: the test was {outcome}" in run("show", "2")[0]


def test_a_change_of_a_number_without_a_direction_is_neither_better_nor_worse(storage: Path, run: Any) -> None:
    for number in range(1, 21):
        store(storage, number, {TEST: info(ok=300 + 10 * (number > 10), start_wall_ms=START_MS + number * DAY_MS)})
    out, _ = run("history", "test_put", "--metric", "ok")
    (change,) = [line for line in out.splitlines() if line.startswith("change: ")]
    assert change.startswith("change: +3.3 % (300 to 310, certain) since 0011_run")


def test_history_shows_a_change_and_the_first_run_after_it(storage: Path, run: Any) -> None:
    store_changed_runs(storage)
    out, _ = run("history")
    (line,) = [line for line in out.splitlines() if line.startswith(TEST)]
    assert " % since 0023_run" in line
    assert {"▁", "█"} <= set(line)
    out, _ = run("history", "test_put")
    (change,) = [line for line in out.splitlines() if line.startswith("change: ")]
    assert "worse, p " in change
    assert "since 0023_run (c023, 2026-" in change
    assert sum("first run after a change" in line for line in out.splitlines()) == 1


def test_a_change_among_equal_runs_is_marked_doubtful(storage: Path, run: Any) -> None:
    """Their level varies slowly, and then it is 50 % higher."""
    store_series(storage, [0.1 * (1 + 0.05 * sin(number / 2)) * (1.5 if number >= 20 else 1) for number in range(40)])
    out, _ = run("history")
    assert " since 0021_run (may be chance)" in out
    out, _ = run("history", "test_put")
    (change,) = [line for line in out.splitlines() if line.startswith("change: ")]
    assert "; may be chance: successive runs are alike (correlation 0." in change


@pytest.mark.parametrize("command", [
    ["history"], ["show", "last"], ["baseline", "list"], ["export", "last", "--format", "csv"], ["report", "last"],
    ["gate", "power"],
])  # fmt: skip
@pytest.mark.parametrize("folder", ["results", ".benchmarks"])
def test_runs_are_found_in_the_storage_that_pytest_uses(
    command: list[str], folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Records are always in results. Runs are in .benchmarks, except those of suites."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results" / MACHINE / "20261122T071148Z-ec62").mkdir(parents=True)
    (tmp_path / ".benchmarks").mkdir()
    store_series(tmp_path / folder, [0.1])
    assert cli.main(command) == 0
    out, _ = capfd.readouterr()
    assert "1 experiment of" in out if command[0] == "report" else "test_put" in out or "0001_run" in out


def test_history_of_steady_runs_finds_nothing(storage: Path, run: Any) -> None:
    store_changed_runs(storage, 0.0)
    out, _ = run("history", "test_put")
    assert "no change found" in out
    assert "change:" not in out
    assert run("history")[0].splitlines()[-1].endswith("none")


def test_history_of_few_runs_says_that_nothing_can_be_found(storage: Path, run: Any) -> None:
    store_series(storage, [0.1, 0.1, 0.1, 0.4])
    assert "no change can be found yet: 4 runs, 8 are needed" in run("history", TEST)[0]


def test_history_keeps_other_conditions_apart(storage: Path, run: Any) -> None:
    store_series(storage, [0.1] * 10)
    for number in range(11, 21):
        entry = info(response_p50=0.9, start_wall_ms=START_MS + number * DAY_MS, provider="dropbox", emulated=False)
        store(storage, number, {TEST: entry})
    out, _ = run("history", TEST)
    assert "apart: differed in provider (emulated:dropbox, here dropbox)" in out
    assert "change:" not in out, "between an emulated and a real service there is no change to be found"
    assert "1 of 1 test also has runs under other conditions" in run("history")[0]


def test_interrupted_and_doubtful_runs_are_shown_and_not_counted(storage: Path, run: Any) -> None:
    store_series(storage, [0.1] * 9)
    for number, changes in enumerate([{"outcome": "interrupted"}] * 4 + [{"doubts": ["late"]}] * 4, 10):
        store(storage, number, {TEST: info(response_p50=0.9, start_wall_ms=START_MS + number * DAY_MS, **changes)})
    out, _ = run("history", TEST)
    assert out.count("ended in an interruption") == 4
    assert out.count("had doubts") == 4
    assert "no change found" in out
    assert run("baseline", "list")[0].count("interrupted") == 4
    out, _ = run("baseline", "show")
    assert "4 ended in an interruption; 4 had doubts" in out


def test_runs_of_other_commits_than_the_gate_compares_with_are_not_shown_as_fit(
    storage: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*args: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *args]
        return subprocess.run(command, cwd=storage.parent, capture_output=True, text=True, check=True).stdout.strip()

    git("init", "--initial-branch=main")
    for number, branch in enumerate(("main", "main", "mine"), 1):
        if branch != "main":
            git("checkout", "-b", branch)
        git("commit", "--allow-empty", "--no-gpg-sign", "-m", f"change {number}")
        entry = info(start_wall_ms=START_MS + number * DAY_MS)
        store(storage, number, {TEST: entry}, commit=git("rev-parse", "HEAD"), branch=branch)
    monkeypatch.chdir(storage.parent)
    out, _ = run("baseline", "show")
    assert out.splitlines()[-1].split(maxsplit=4)[2:] == [
        "3", "2", "1 were of commits that were not on the default branch when this work left it"
    ]  # fmt: skip


def test_a_missing_value_is_a_dash(storage: Path, run: Any) -> None:
    store(storage, 1, {TEST: info(response_p50=None, ops=None)}, commit="unknown", branch="(unknown)")
    line = run("history", TEST, "--metric", "response_p99")[0].splitlines()[-2]
    assert line.split()[3:6] == ["-", "-", "200"]
    assert " - " in run("baseline", "list")[0].splitlines()[2]
    out, _ = run("show", "last", "--metric", "response_p99", "--metric", "failed")
    assert "200 ms" in out


def test_a_killed_run_is_reported_and_recovered_as_interrupted(storage: Path, run: Any) -> None:
    store_series(storage, [0.1])
    folder = storage / MACHINE / "20261122T071148Z-ec62" / "test_put_1"
    folder.mkdir(parents=True)
    shutil.copy(FIXTURES / "results-schema-2" / "gw0.oplog", folder / "gw0.oplog")
    fields = {"fullname": TEST, "name": "test_put", "run": "r", "run_id": "20261122T071148Z-ec62", "params": {}}
    note = {**fields, "info": info(outcome="unfinished"), "owner": json.dumps(["elsewhere", "b", "n", 1, 1])}
    (folder / "run.json").write_text(json.dumps(note))
    out, _ = run("baseline", "list")
    assert f"not in the list: {TEST} of 20261122T071148Z-ec62 was killed" in out
    assert cli.main(["recover", str(storage), "--force"]) == 0
    out, _ = run("baseline", "list")
    (line,) = [line for line in out.splitlines() if "20261122T071148Z-ec62" in line and "recovered" not in line]
    assert " interrupted " in line
    assert " 100 " in line
    assert "100" in run("ops", "20261122T071148Z-ec62", "--sql", "SELECT count(*) FROM ops")[0]


# --- compare, show ---


def test_compare_shows_differences_in_their_units(storage: Path, run: Any) -> None:
    store(storage, 1, {TEST: info(response_p50=0.1, failed_rate=0.0), "only": info()})
    store(storage, 2, {TEST: info(response_p50=0.125, failed_rate=0.01, doubts=["late"])})
    out, _ = run("compare", "1", "2")
    assert "+25.0 %" in out
    assert "+1.00 points" in out
    assert "125 ms?" in out
    assert "no entry in 0002_run" in out
    out, _ = run("compare", "2", "1", "--metric", "throughput")
    assert "1 MB/s" in out
    assert "response_p50" not in out


def test_compare_shows_a_difference_beside_its_metric(storage: Path) -> None:
    for number in (1, 2):
        store(storage, number, {TEST: info(response_p95=0.15), f"only {number}": info()})
    index = Index.open(storage)
    lines = render_side_by_side(index, index.runs(), [], 80)
    titles = [line.split() for line in lines if line.split()[:1] == ["run"]]
    assert max(map(len, lines)) <= 80
    assert [words for words in titles if words[1] == "difference"] == []
    alone = lines[lines.index("only 1") + 1 : lines.index("no entry in 0002_run")]
    assert "difference" not in " ".join(alone), "there is no second run"
    assert sum("difference" in words for words in titles) == 3


def test_show_says_that_a_time_scale_distorts_times(storage: Path, run: Any) -> None:
    store(storage, 1, {TEST: info(time_scale=10.0, doubts=["late"]), "real": info()})
    remarks = [line for line in run("show", "1")[0].splitlines() if line.startswith("!")]
    assert remarks == [f"! {TEST}: late", f"! {TEST}: --time-scale 10 distorts times"]


def test_compare_shows_the_doubts_of_a_run(storage: Path, run: Any) -> None:
    store(storage, 1, {TEST: info()})
    store(storage, 2, {TEST: info(outcome="interrupted", doubts=["late"])})
    store(storage, 3, {TEST: info(outcome="failed", missing_agents={"gw1": "lost"})})
    store(storage, 4, {TEST: info(outcome="failed", gate={"answer": "broken"})})
    lines = {line.split()[0]: line for line in run("compare", "all")[0].splitlines() if "_run" in line}
    assert not lines["0001_run"].endswith(("interruption", "doubts", "pass", "gate"))
    assert lines["0002_run"].endswith("ended in an interruption; had doubts")
    assert lines["0003_run"].endswith("had doubts; did not pass")
    assert lines["0004_run"].endswith("failed only at the gate")
    store(storage, 5, {TEST: info()})
    assert "remark" not in run("compare", "1", "5")[0]


def test_compare_tells_an_unknown_value_from_a_missing_entry(storage: Path, run: Any) -> None:
    store(storage, 1, {TEST: info(response_p50=0.1), "only": info()})
    store(storage, 2, {TEST: info(response_p50=None)})
    out, _ = run("compare", "1", "2", "--metric", "response_p50")
    first, _, _ = out.partition("only")
    assert "no entry in" not in first
    assert next(line for line in first.splitlines() if "0002_run" in line).split()[-2:] == ["-", "-"]
    assert out.endswith("no entry in 0002_run\n")
    assert "first_byte_p50" not in run("compare", "1", "2")[0]


def test_show_has_a_dash_for_values_unknown_in_all_entries(storage: Path, run: Any) -> None:
    store(storage, 1, {TEST: info(response_p99=None)})
    head, _, row = run("show", "1")[0].splitlines()[4:7]
    values = dict(zip(re.split(r"  +", head.strip()), re.split(r"  +", row.strip()), strict=True))
    assert (values["response_p99"], values["response_p50"]) == ("-", "100 ms")


def test_answers_in_words_have_a_history(storage: Path, run: Any) -> None:
    answers = [(1, "yes"), (0, "no"), (None, "unknown")]
    for number, (value, word) in enumerate(answers, 1):
        entry = info(response_p50=None, response_p99=None, throughput=None, delta=word, is_delta=value,
                     start_wall_ms=START_MS + number * DAY_MS)  # fmt: skip
        del entry["failed_rate"]
        store(storage, number, {TEST: entry})
    for number, text in ((1, "yes"), (2, "no"), (3, "-")):
        head, _, row = run("show", str(number), "--metric", "delta")[0].splitlines()[4:7]
        assert (head.split()[-1], row.split()[-1]) == ("delta", text)
    out, _ = run("history", TEST)
    assert f"{TEST}: delta" in out
    rows = [line.split() for line in out.splitlines() if "_run " in line]
    assert [row[5] for row in rows] == ["yes", "no", "-"]
    assert [row[6:] for row in rows] == [[], [], ["held", "no", "number", "for", "delta"]]
    out, _ = run("compare", "all", "--metric", "delta")
    assert [line.split()[2:4] for line in out.splitlines() if "_run " in line] == [["yes"], ["no", "other"], ["-", "-"]]


def test_compare_never_puts_emulated_beside_real(storage: Path, run: Any) -> None:
    store(storage, 1, {TEST: info(response_p50=0.1)})
    store(storage, 2, {TEST: info(response_p50=0.9, provider="dropbox", profile_digest=None, emulated=False)})
    out, _ = run("compare", "1", "2")
    assert "some of these runs were emulated and some real" in out
    assert "apart: differed in provider (dropbox, here emulated:dropbox), profile_digest (None" in out
    assert "+800" not in out


def test_compare_of_one_run_and_of_unknown_metrics_is_refused(storage: Path, run: Any) -> None:
    store_series(storage, [0.1, 0.2])
    assert "at least two different runs" in run("compare", "1", "0001_run", status=4)[1]
    assert (
        "--metric no_such: no stored run has such a number"
        in run("compare", "1", "2", "--metric", "no_such", status=4)[1]
    )
    assert "there is no such run" in run("compare", "1", "99", status=4)[1]
    assert "no stored run has a test with this" in run("history", "nothing", status=4)[1]


def test_show_has_published_values_and_doubts(storage: Path, run: Any) -> None:
    published = {"loss_rate": 0.278, "source": "Table 4.2"}
    store(storage, 1, {TEST: info(loss_rate=0.3, published=published, doubts=["engine saturated"])})
    out, _ = run("show", "1")
    assert "30.00 % (published 27.80 %)" in out
    assert "failed_rate" in out, "zero is not missing"
    assert " 0.00 % " in out
    assert "published: Table 4.2" in out
    assert f"! {TEST}: engine saturated" in out
    assert "an emulated run measures the client and the loopback" in out


SIDES = {
    "A": "s3://old", "B": "s3://new", "deciding": ["quiet_p50"], "pairs": 31, "minutes": 6.4, "stopped": "decided",
    "blocks": [{"ops": 80, "is_warm_up": False}],
    "differences": {
        "quiet_p50": {"a": 0.1, "b": 0.11, "change": 0.1, "low": 0.02, "high": 0.19, "answer": "A better",
                      "margin": 0.1, "is_points": False},
        "failed_rate": {"a": 0.0, "b": 0.0, "change": 0.0, "low": -0.001, "high": 0.001, "answer": "no difference",
                        "margin": 0.005, "is_points": True},
    },
}  # fmt: skip


def test_a_comparison_of_two_sides_is_no_row_of_a_series(storage: Path, run: Any) -> None:
    """It is none even under the name of a test of one side, and after the index is made again."""
    for number in range(1, 4):
        later = {"start_wall_ms": START_MS + number * DAY_MS}
        entries = {TEST: info(**later)} if number < 3 else {TEST: info(versus=SIDES, response_p50=9.0, **later)}
        store(storage, number, entries)
    commands = (["history"], ["history", TEST], ["compare", "all"], ["show", "3"], ["baseline", "show"])
    outputs = {" ".join(words): run(*words)[0] for words in commands}
    assert "9,000 ms" not in "".join(outputs.values())
    for name in ("history", "history test_it.py::test_put"):
        plain, _, sides = outputs[name].partition("two sides in turns")
        assert "0003_run" not in plain
        (line,) = sides.splitlines()[2:]
        assert re.split(r"  +", line.strip())[1] == "0003_run"
        assert "s3://old  s3://new" in line
        assert line.endswith("quiet_p50 +10.0 % [+2.0, +19.0]: A better")
    assert outputs["compare all"].endswith("left out: comparisons of two sides (1, see cloudbench show 0003_run)\n")
    assert "  A = s3://old   B = s3://new\n  31 pairs of blocks, 80 operations a block, in 6.4 min" in outputs["show 3"]
    assert "no difference above 0.5 points" in outputs["show 3"]
    assert run("history", "--metric", "failed_rate")[0].rstrip().endswith("no difference above 0.5 points")
    (storage / INDEX_NAME).unlink()
    assert {" ".join(words): run(*words)[0] for words in commands} == outputs


def test_a_storage_of_comparisons_alone_has_a_history(storage: Path, run: Any) -> None:
    store(storage, 1, {TEST: info(versus=SIDES), "torn": info(versus={"A": 3})})
    out, _ = run("history")
    assert out.lstrip().startswith("two sides in turns")
    assert [line.split()[:2] for line in out.splitlines()[2:]] == [[TEST, "0001_run"], ["torn", "0001_run"]]
    assert "compared two sides only" in run("baseline", "show", status=4)[1]
    assert "A = s3://old" in run("show", "1")[0]


def test_hostile_names_do_nothing_to_a_terminal(storage: Path, run: Any) -> None:
    evil = "test_\x1b]0;x\x07\x1b[2J.py::t[\u202e]"
    store(
        storage,
        1,
        {evil: info(provider="\x1b[31m", doubts=["\x1b[1m"], published={"source": "\x1b[5m"})},
        branch="\x1b",
    )
    store(storage, 2, {evil: info(provider="\x9b31m")}, commit="\x1b[0m")
    for command in (["history"], ["history", "test_"], ["compare", "1", "2"], ["show", "1"], ["baseline", "list"],
                    ["baseline", "show"]):  # fmt: skip
        out, err = run(*command)
        assert "test_" in out or "list" in command
        assert not set(out + err) & set("\x1b\x07\x9b\u202e"), command


def test_files_left_out_are_reported_in_a_line_each(storage: Path, run: Any) -> None:
    store_series(storage, [0.1])
    (storage / MACHINE / "0002_torn.json").write_text("{")
    out, err = run("baseline", "list")
    assert err.startswith("cloudbench: left out: ")
    assert "0002_torn.json: is not JSON" in err
    assert "0001_run" in out


def test_storage_without_runs_is_reported_in_one_line(
    tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    assert "there are no stored runs in" in run("history", status=4)[1]
    monkeypatch.chdir(tmp_path / "results")
    assert cli.main(["history"]) == 4
    assert "no stored runs in results or .benchmarks" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("folder", "loss", "ops"), [("1", "27.80 %", "500"), ("2", "90.50 %", "200"), ("3", "0.00 %", "50")]
)
def test_runs_of_old_schemas_are_shown(storage: Path, run: Any, folder: str, loss: str, ops: str) -> None:
    (storage / MACHINE).mkdir()
    (file,) = (FIXTURES / f"results-schema-{folder}").glob("0001_*.json")
    shutil.copy(file, storage / MACHINE)
    assert loss in run("show", "1", "--metric", "loss_rate")[0]
    assert f" {ops} " in run("baseline", "list")[0]
    assert "test_worst" in run("history")[0]


def test_runs_elsewhere_are_compared_and_shown_by_their_files(storage: Path, tmp_path: Path, run: Any) -> None:
    store(storage, 1, {TEST: info(response_p50=0.1)})
    here = str(storage / MACHINE / "0001_run.json")
    other = str(store(tmp_path / "a", 1, {TEST: info(response_p50=0.2, start_wall_ms=2 * START_MS)}))
    for names, change in (
        (("last", other), "+100.0 %"), ((here, other), "+100.0 %"), (("1", other, here), "+100.0 %"),
        ((other, "last"), "-50.0 %"), ((other, "1"), "-50.0 %"),
    ):  # fmt: skip
        out, _ = run("compare", *names)
        assert change in out, names
        assert f"{MACHINE}/0001_run.json" in out, "two of one name are told apart"
    assert other in run("show", other)[0]
    assert "200 ms" in run("show", other)[0]
    assert [row.place for row in Index.open(storage).runs()] == [f"{MACHINE}/0001_run.json"], "it was only looked at"


def test_files_are_compared_without_any_stored_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names = [str(store(tmp_path / name, 1, {TEST: info(response_p50=value)})) for name, value in (("a", 1), ("b", 2))]
    assert cli.main(["compare", *names]) == 0
    assert "+100.0 %" in capfd.readouterr().out
    (tmp_path / "torn.json").write_text("{")
    assert cli.main(["show", "torn.json"]) == 1
    assert "torn.json: is not JSON" in capfd.readouterr().err
    assert cli.main(["show", "gone.json"]) == 4
    assert not list(tmp_path.rglob(INDEX_NAME))


# --- ops ---


@pytest.fixture
def recorded_run(storage: Path) -> Path:
    """A run with the records of each schema, as two entries with parameters."""
    pytest.importorskip("duckdb")
    folder = storage / MACHINE / "20261122T071148Z-ec62"
    folder.mkdir(parents=True)
    entries = {}
    for schema in (1, 2):
        (stored,) = json.loads((FIXTURES / f"results-schema-{schema}" / "0001_worst-case.json").read_text())[
            "benchmarks"
        ]
        shutil.copy(FIXTURES / f"results-schema-{schema}" / "worst-case.parquet", folder / f"of'{schema}.parquet")
        entries[f"{TEST}[{schema}]"] = {**stored["extra_info"], "ops_file": f"{folder.name}/of'{schema}.parquet",
                                        "start_wall_ms": START_MS}  # fmt: skip
    path = store(storage, 1, entries)
    document = json.loads(path.read_text())
    for number, entry in enumerate(document["benchmarks"], 1):
        entry["params"] = {"sensors": number * 10, "mode": "fast", "odd name": None}
    path.write_text(json.dumps(document))
    return path


def test_ops_joins_operations_with_columns_of_their_entries(recorded_run: Path, run: Any) -> None:
    columns = "test, provider, param_sensors, outcome"
    sql = f"SELECT {columns}, count(*) AS n FROM ops GROUP BY ALL ORDER BY param_sensors, outcome"
    out, _ = run("ops", "1", "--csv", "--sql", sql)
    assert out.splitlines() == [
        "test,provider,param_sensors,outcome,n",
        f"{TEST},emulated:dropbox,10.0,ok,361",
        f"{TEST},emulated:dropbox,10.0,throttled,139",
        f"{TEST},emulated:./tight.toml,20.0,ok,19",
        f"{TEST},emulated:./tight.toml,20.0,throttled,181",
    ]


def test_ops_have_the_metrics_of_their_entries_and_the_time_of_day(recorded_run: Path, run: Any) -> None:
    out, _ = run("ops", "1", "--csv", "--sql", """
        SELECT e.entry, abs(max(o.response_s) FILTER (o.outcome = 'ok') - any_value(e.response_max)) < 1e-9 AS same,
            epoch_ms(min(o.scheduled_at)) AS first_ms, min(o.ended_at - o.started_at) >= INTERVAL 0 SECOND AS forward,
            count(requests) AS known
        FROM ops o JOIN entries e USING (entry) GROUP BY ALL ORDER BY ALL""")  # fmt: skip
    assert out.splitlines()[1:] == [f"{TEST}[1],True,{START_MS},True,0", f"{TEST}[2],True,{START_MS},True,200"]


def change_recorded_entries(path: Path, infos: list[dict[str, Any]], **fields: Any) -> None:
    """Update the extra_info of each entry of a run, and the same other fields of all."""
    document = json.loads(path.read_text())
    for entry, values in zip(document["benchmarks"], infos, strict=True):
        entry.update(fields)
        entry["extra_info"].update(values)
    path.write_text(json.dumps(document))


def test_ops_have_no_number_where_an_entry_holds_a_text(recorded_run: Path, run: Any) -> None:
    change_recorded_entries(recorded_run, [{"knee": 3}, {"knee": "none"}])
    out, _ = run("ops", "1", "--csv", "--sql", "SELECT knee FROM entries ORDER BY entry")
    assert out.splitlines()[1:] == ["3.0", '""']


def test_ops_take_the_first_of_names_that_sql_cannot_tell_apart(recorded_run: Path, run: Any) -> None:
    """A number never stands for a column that each entry has."""
    names = {"Machine": 1, "test": 2, "": 3, "param_n": 4, "size": 5, "Size": 6}
    change_recorded_entries(recorded_run, [names, names], params={"n": 10, "N": 20})
    sql = "SELECT DISTINCT test, param_n, size, typeof(machine) FROM entries"
    out, _ = run("ops", "1", "--csv", "--sql", sql)
    assert out.splitlines()[1:] == [f"{TEST},10.0,5.0,VARCHAR"]
    assert run("ops", "1", "--csv", "--sql", "SELECT DISTINCT param_n FROM ops")[0].splitlines()[1:] == ["10.0"]


def test_operations_of_a_warm_up_are_told_apart(storage: Path, run: Any) -> None:
    pytest.importorskip("duckdb")
    shutil.copytree(FIXTURES / "results-schema-3", storage / MACHINE)
    (storage / MACHINE / "warm").mkdir()
    shutil.copy(FIXTURES / "results-schema-3" / "warm-up.parquet", storage / MACHINE / "warm")
    path = storage / MACHINE / "0001_warm-up.json"
    document = json.loads(path.read_text())
    document["benchmarks"][0]["extra_info"]["ops_file"] = "warm/warm-up.parquet"
    path.write_text(json.dumps(document))
    out, _ = run("ops", "1", "--csv", "--sql", "SELECT phase, count(*) FROM ops GROUP BY ALL ORDER BY ALL")
    assert out.splitlines()[1:] == ["measured,50", "warm_up,50"]


def test_operations_of_two_sides_know_their_side_and_block(storage: Path, run: Any) -> None:
    pytest.importorskip("duckdb")
    folder = storage / MACHINE / "20261122T071148Z-ec62"
    folder.mkdir(parents=True)
    source = FIXTURES / "results-schema-2" / "worst-case.parquet"
    for block, side in enumerate("ABBA"):
        target = folder / f"block-{block}.parquet"
        write_parquet(read_parquet(source), target, {"nodeid": TEST, "side": side, "block": str(block)})
    shutil.copy(source, folder / "alone.parquet")
    files = [f"{folder.name}/block-{block}.parquet" for block in range(4)]
    entry = info(ops_files=files, versus={"A": "x", "B": "y"})
    del entry["ops_file"]
    store(storage, 1, {TEST: entry, "alone": info(ops_file=f"{folder.name}/alone.parquet")})
    sql = "SELECT side, block, count(*) FROM ops GROUP BY ALL ORDER BY block"
    out, _ = run("ops", "1", "--csv", "--sql", sql)
    assert out.splitlines()[1:] == ["A,0,200", "B,1,200", "B,2,200", "A,3,200", ",,200"]


@pytest.mark.parametrize("sql", ["", "  ", "-- nothing", ";"])
def test_empty_query_is_refused_in_one_line(recorded_run: Path, run: Any, sql: str) -> None:
    err = run("ops", "1", "--sql", sql, status=4)[1]
    assert err == "cloudbench: --sql: expected a query, such as: FROM ops LIMIT 5\n"


def test_wrong_query_and_lost_records_are_reported_in_one_line(recorded_run: Path, run: Any) -> None:
    err = run("ops", "1", "--sql", "SELECT nothing FROM ops", status=4)[1]
    assert err.startswith("cloudbench: --sql: Binder Error")
    assert err.count("\n") == 1
    assert "only the first 1,000 rows" in run("ops", "1", "--sql", "FROM range(2000)")[0]
    (recorded_run.parent / "20261122T071148Z-ec62" / "of'1.parquet").unlink()
    err = run("ops", "1", "--records", str(recorded_run.parent), "--sql", "FROM ops", status=1)[1]
    assert err.endswith(f"are not in {recorded_run.parent}; give their folder with --records\n")


def test_records_outside_of_the_results_are_not_opened(storage: Path, tmp_path: Path, run: Any) -> None:
    pytest.importorskip("duckdb")
    shutil.copy(FIXTURES / "results-schema-2" / "worst-case.parquet", tmp_path / "secret.parquet")
    for number, name in enumerate(["../../secret.parquet", str(tmp_path / "secret.parquet")], 1):
        store(storage, number, {TEST: info(ops_file=name)})
        assert "give their folder with --records" in run("ops", str(number), "--sql", "FROM ops", status=1)[1]


def test_ops_without_duckdb_names_command_to_install_it(
    recorded_run: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    err = run("ops", "1", "--sql", "FROM ops", status=4)[1]
    assert err == f"cloudbench: ops: duckdb is not installed: run {install_command('sql')}\n"


# --- baselines ---


def test_runs_travel_in_one_file_and_are_never_overwritten(storage: Path, tmp_path: Path, run: Any, capfd: Any) -> None:
    store_series(storage, [0.1, 0.2, 0.3])
    store(storage, 4, {TEST: info(start_wall_ms=START_MS * 2)}, branch="topic")
    bundle, target = str(tmp_path / "runs.zip"), tmp_path / "there"
    (line,) = run("baseline", "export", bundle, "--last", "2", "--branch", "main")[0].splitlines()
    assert line == f"{bundle}: 2 runs, without the records of their operations"
    store(target, 3, {"mine": info()})
    for message in ("2 files are new, 0 were there", "0 files are new, 2 were there"):
        assert cli.main(["baseline", "import", bundle, "--storage", str(target)]) == 0
        assert message in capfd.readouterr().out
    index = Index.open(target)
    assert [point.value for point in index.series(TEST, "response_p50")] == [0.2, 0.3]
    assert len(index.series("mine", "failed")) == 1


def test_import_rejects_hostile_archives(storage: Path, tmp_path: Path, run: Any) -> None:
    store_series(storage, [0.1])
    bundle = tmp_path / "evil.zip"
    with zipfile.ZipFile(bundle, "w") as archive:
        for name in ("../0001_x.json", "/0001_x.json", "a/b/0001_x.json", "a/evil.py", "conftest.py", INDEX_NAME,
                     "..\\0001_x.json", ".git/0001_x.json", "a/20261122T071148Z-ec62/../0001_x.json"):  # fmt: skip
            archive.writestr(name, "{}")
    before = sorted(tmp_path.rglob("*"))
    _, err = run("baseline", "import", str(bundle), status=1)
    assert err.count("not the name of a run") == 9
    assert sorted(path for path in tmp_path.rglob("*") if path.name != INDEX_NAME) == before
    bundle.write_bytes(b"no zip")
    assert "not an archive of runs" in run("baseline", "import", str(bundle), status=1)[1]


def test_import_says_why_a_file_cannot_be_opened(tmp_path: Path, run: Any) -> None:
    for path, why in ((tmp_path / "no.zip", "No such file or directory"), (tmp_path, "a folder, not a regular file")):
        _, err = run("baseline", "import", str(path), status=4)
        assert err == f"cloudbench: {path}: {why}; expected what cloudbench baseline export wrote\n"


def test_dropped_runs_are_gone_and_others_stay(storage: Path, run: Any) -> None:
    store_series(storage, [0.1, 0.2, 0.3])
    assert "would be deleted" in run("baseline", "drop", "2", "--dry-run")[0]
    assert len(Index.open(storage).runs()) == 3
    run("baseline", "drop", "2")
    assert [point.value for point in Index.open(storage).series(TEST, "response_p50")] == [0.1, 0.3]


def test_baselines_begin_with_an_accepted_run(storage: Path, run: Any) -> None:
    store_series(storage, [0.1, 0.1, 0.2, 0.2])
    store(storage, 5, {"test_it.py::other": info(start_wall_ms=START_MS), TEST: info(outcome="failed")})
    run("baseline", "accept", "3", "--test", "test_put", "--reason", "a better cipher")
    index = Index.open(storage)
    fits = [point.unfit_reason for point in index.series(TEST, "response_p50")]
    assert f"came before {MACHINE}/0003_run.json, which was accepted as the new baseline" in fits
    assert [fit == "" for fit in fits if "did not pass" not in fit] == [False, False, True, True]
    assert index.series("test_it.py::other", "failed")[0].unfit_reason == ""
    assert "is failed, and no baseline can begin with it" in run("baseline", "accept", "5", status=1)[1]
    (storage / "cloudbench-accepted" / "junk.accepted").write_text("{")
    assert "2 came before" in run("baseline", "show", "test_put")[0]


@pytest.mark.parametrize("words", [(), ("--test", "test_put")])
@pytest.mark.parametrize("earlier", ["2", "3", "4"])
def test_accepting_a_run_names_a_later_one_that_was_accepted(
    storage: Path, run: Any, earlier: str, words: tuple[str]
) -> None:
    store_series(storage, [0.1] * 6)
    assert "was accepted" not in run("baseline", "accept", "5", *words)[0]
    output = run("baseline", "accept", earlier, "--yes")[0]
    later = f"{MACHINE}/0005_run.json"
    assert f"but {later} was accepted, too, and is later: where both count, baselines begin with it" in output
    run(*shlex.split(output.strip().rpartition("; to undo it: cloudbench ")[2]))
    assert f"came before {MACHINE}/000{earlier}_run.json" in run("history", TEST)[0]
    assert "was accepted" not in run("baseline", "accept", earlier)[0]


def store_broken(storage: Path, first: int, runs: int, level: float, **changes: Any) -> None:
    """Store runs whose tests passed, but which failed at the regression gate."""
    for number in range(first, first + runs):
        fields = {"outcome": "failed", "gate": {"answer": "broken"}, "start_wall_ms": START_MS + number * DAY_MS}
        value = level * (1 + number % 3 / 1000)
        store(storage, number, {TEST: info(**{**fields, "response_p50": value, **changes})}, commit=f"c{number:03}")


def test_runs_that_only_the_gate_failed_stay_in_the_history(storage: Path, run: Any) -> None:
    """Broken runs are no baseline, but the history must show them."""
    store_series(storage, [0.1 * (1 + number % 3 / 1000) for number in range(12)])
    store_broken(storage, 13, 6, 0.15)
    out, _ = run("history", TEST)
    assert out.count("failed only at the gate") == 6
    (line,) = [line for line in out.splitlines() if line.startswith("change: ")]
    assert line.startswith("change: +50.")
    assert "since 0013_run" in line
    assert "first run after a change" in next(line for line in out.splitlines() if "0013_run" in line)
    assert "since 0013_run" in run("history")[0]
    assert "6 failed only at the gate" in run("baseline", "show")[0]


def test_a_run_that_only_the_gate_failed_can_be_accepted_with_those_after_it(storage: Path, run: Any) -> None:
    """The change was intended. A run that the gate breaks after the new baseline exists is again not a baseline."""
    store_series(storage, [0.1] * 3)
    store_broken(storage, 4, 3, 0.2)
    store(storage, 7, {TEST: info(outcome="failed", start_wall_ms=START_MS + 7 * DAY_MS)})
    assert "begin with" in run("baseline", "accept", "5")[0]
    store_broken(storage, 8, 1, 0.4)
    fits = [point.unfit_reason for point in Index.open(storage).series(TEST, "response_p50")]
    assert [fit[:11] for fit in fits[:3]] == ["came before"] * 3
    assert fits[3:] == ["failed only at the gate", "", "", "did not pass", "failed only at the gate"]
    assert "first run after a change" not in run("history", TEST)[0]
    assert "is failed, and no baseline can begin with it" in run("baseline", "accept", "7", status=1)[1]


@pytest.mark.parametrize("words", [(), ("--test", TEST)])
def test_an_acceptance_can_be_undone_by_the_command_that_it_names(storage: Path, run: Any, words: tuple[str]) -> None:
    store_series(storage, [0.1] * 6)

    def fits() -> list[str]:
        return [point.unfit_reason for point in Index.open(storage).series(TEST, "response_p50")]

    before = fits()
    output = run("baseline", "accept", "5", *words)[0]
    assert fits() != before
    undo = shlex.split(output.strip().rpartition("; to undo it: cloudbench ")[2])
    assert undo[-1] == "--undo"
    assert "baselines are as they were before " in run(*undo)[0]
    assert fits() == before
    assert "was not accepted" in run(*undo, status=4)[1]


def test_on_a_terminal_all_tests_are_accepted_only_if_the_user_agrees(
    storage: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_series(storage, [0.1] * 6)
    questions: list[str] = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)

    def ask(question: str) -> str:
        questions.append(question)
        return ""

    monkeypatch.setattr("builtins.input", ask)
    assert "nothing is changed" in run("baseline", "accept", "5", status=1)[0]
    (question,) = questions
    assert question.startswith("let the baselines of 1 test begin with ")
    assert "begin with" in run("baseline", "accept", "5", "--yes")[0]
    assert "begin with" in run("baseline", "accept", "5", "--test", TEST)[0]
    assert len(questions) == 1


def test_only_the_tests_that_are_accepted_must_have_passed(storage: Path, run: Any) -> None:
    fields = {"outcome": "failed", "gate": {"answer": "broken"}}
    store(storage, 1, {TEST: info(**fields), "test_it.py::other": info(outcome="failed")})
    assert "test_it.py::other is failed" in run("baseline", "accept", "1", status=1)[1]
    assert "begin with" in run("baseline", "accept", "1", "--test", TEST)[0]


def test_runs_before_an_accepted_one_stay_in_the_history(storage: Path, run: Any) -> None:
    store_series(storage, [0.1 * (1 + number % 3 / 1000) for number in range(8)])
    store_broken(storage, 9, 8, 0.15)
    run("baseline", "accept", "9")
    out, _ = run("history", TEST)
    assert out.count("came before") == 8
    assert "since 0009_run" in out


# --- pytest-benchmark's own command ---


def test_the_stock_compare_tells_labels_apart_and_ignores_our_files(storage: Path, run: Any) -> None:
    names = [f"{TEST}[a]#upload", f"{TEST}[a]#download", f"{TEST}[a]", f"{TEST}[a]-2"]
    for number in (1, 2):
        store(storage, number, {name: info() for name in names})
    run("history")
    run("baseline", "accept", "2")
    command = [sys.executable, "-m", "pytest_benchmark", "--storage", f"file://{storage}", "compare"]
    command += ["--columns=median", "--group-by=fullname"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=storage)
    assert "Failed to load" not in done.stdout + done.stderr
    for name in names:
        test = name.partition("::")[2]
        assert f"benchmark '{name}': 2 tests" in done.stdout, name
        assert f"{test} (0001_run)" in done.stdout, name


def test_accepting_a_run_changes_no_test_that_it_did_not_measure(storage: Path, run: Any) -> None:
    store_series(storage, [0.1] * 3)
    store_broken(storage, 4, 2, 0.2)
    entry = info(start_wall_ms=START_MS + 3 * DAY_MS + 1)
    store(storage, 9, {"test_it.py::other": entry})
    assert "baselines of its 1 test begin with " in run("baseline", "accept", "9")[0]
    fits = [point.unfit_reason for point in Index.open(storage).series(TEST, "response_p50")]
    assert fits == ["", "", "", "failed only at the gate", "failed only at the gate"]


def test_accepting_a_run_for_some_tests_changes_none_that_it_did_not_measure(storage: Path, run: Any) -> None:
    for number in range(1, 4):
        entry = info(start_wall_ms=START_MS + number * DAY_MS)
        store(storage, number, {f"{TEST}[a]": entry, f"{TEST}[b]": entry})
    store(storage, 4, {f"{TEST}[a]": info(start_wall_ms=START_MS + 4 * DAY_MS)})
    assert "baselines of 1 of its tests begin with " in run("baseline", "accept", "4", "--test", "test_put")[0]
    fits = {name: [not point.unfit_reason for point in Index.open(storage).series(f"{TEST}[{name}]", "response_p50")]
            for name in "ab"}  # fmt: skip
    assert fits == {"a": [False, False, False, True], "b": [True, True, True]}
    message = run("baseline", "accept", "4", "--test", "put[b]", status=4)[1]
    assert "measured no test with this in its name" in message


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("options", [(), ("--test", "test_new")])
@pytest.mark.parametrize("remainder", ["", "[a]", "#2"])
@pytest.mark.parametrize("is_renamed_first", [True, False])
def test_an_accepted_run_begins_the_baseline_of_a_renamed_test(
    storage: Path, run: Any, remainder: str, options: tuple[str, ...], is_renamed_first: bool
) -> None:
    for number in range(1, 5):
        store(storage, number, {f"t.py::test_old{remainder}": info(start_wall_ms=START_MS + number * DAY_MS)})
    store(storage, 5, {f"t.py::test_new{remainder}": info(start_wall_ms=START_MS + 5 * DAY_MS)})
    rename, accept = ("rename", "t.py::test_old", "t.py::test_new"), ("accept", "last", "--yes", *options)
    for words in (rename, accept) if is_renamed_first else (accept, rename):
        run("baseline", *words)
    former_runs = GateHistory(Index.open(storage), storage.parent, "").former_runs(
        f"t.py::test_new{remainder}", info(), ()
    )
    assert [former["run"][:4] for former in former_runs.numbers] == ["0005"]
    assert "was accepted as the new baseline" in former_runs.remark


@pytest.mark.parametrize("words", [("baseline", "drop", "1"), ("baseline", "export", "runs.zip", "1")])
def test_a_run_of_another_storage_is_neither_dropped_nor_exported_in_silence(
    storage: Path, other_storage: Path, capfd: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    store(other_storage, 1, {TEST: info()})
    store(storage, 2, {TEST: info()})
    assert cli.main([*words]) in (1, 4)
    assert "name the folder that it is in by --storage" in capfd.readouterr().err
    assert len(list(other_storage.rglob("0001_*.json"))) == 1


def test_runs_with_times_before_1980_are_exported(storage: Path, run: Any, tmp_path: Path) -> None:
    store(storage, 1, {TEST: info()})
    for path in storage.rglob("*.json"):
        os.utime(path, (0, 0))
    assert "1 run" in run("baseline", "export", str(tmp_path / "runs.zip"))[0]


def test_run_with_a_future_time_cannot_be_accepted(storage: Path, run: Any) -> None:
    store_series(storage, [0.1] * 3)
    store(storage, 4, {TEST: info(start_wall_ms=2 * START_MS)})
    assert "which is in the future" in run("baseline", "accept", "4", status=1)[1]
    run("baseline", "accept", "2")
    now_ms = time.time_ns() // 1_000_000
    store(storage, 5, {TEST: info(outcome="failed", gate={"answer": "broken"}, start_wall_ms=now_ms)})
    assert "failed only at the gate" in [
        point.unfit_reason for point in Index.open(storage).series(TEST, "response_p50")
    ]


def test_tests_measured_in_one_run_cannot_be_renamed_into_each_other(storage: Path, run: Any) -> None:
    store(storage, 1, {TEST: info(), "test_it.py::other[x]": info()})
    for words in ((TEST, "test_it.py::other"), ("test_it.py::other", TEST)):
        assert "so these are two tests" in run("baseline", "rename", *words, status=4)[1]


def test_an_accepted_run_begins_the_baselines_of_all_its_tests(storage: Path, run: Any) -> None:
    """The second test of the last run began a minute after the first."""
    names = [f"{TEST}[a]", f"{TEST}[b]"]
    for number in (1, 2):
        fields = {"outcome": "failed", "gate": {"answer": "broken"}} if number == 2 else {}
        starts = [START_MS + number * DAY_MS + minute * 60_000 for minute in (0, 1)]
        store(storage, number, {
            name: info(start_wall_ms=start_ms, **fields) for name, start_ms in zip(names, starts, strict=True)
        })  # fmt: skip
    run("baseline", "accept", "last")
    index = Index.open(storage)
    assert [index.series(name, "response_p50")[-1].unfit_reason for name in names] == ["", ""]


@pytest.mark.parametrize("words", [("baseline", "accept", "last", "--yes"), ("baseline", "drop", "last", "--dry-run")])
def test_a_run_of_another_storage_is_neither_accepted_nor_said_to_be_deleted(
    storage: Path, other_storage: Path, capfd: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    store_series(storage, [0.1] * 3)
    store(other_storage, 9, {TEST: info(start_wall_ms=START_MS + 9 * DAY_MS)})
    assert cli.main([*words]) == 4
    output = capfd.readouterr()
    assert "name the folder that it is in by --storage" in output.err
    assert output.out == ""
    assert [point.unfit_reason for point in Index.open(storage).series(TEST, "response_p50")] == [""] * 3


def test_no_run_is_dropped_if_another_of_them_cannot_be(
    storage: Path, other_storage: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store_series(storage, [0.1])
    store(other_storage, 9, {TEST: info(start_wall_ms=START_MS + 9 * DAY_MS)})
    assert cli.main(["baseline", "drop", "1", "9"]) == 4
    assert "name the folder that it is in by --storage" in capfd.readouterr().err
    assert len(Index.open(storage).runs()) == 1


def test_an_acceptance_of_a_run_of_another_storage_can_be_undone(
    storage: Path, other_storage: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A former version wrote such acceptances, under the path of the run."""
    store_series(storage, [0.1] * 3)
    path = store(other_storage, 9, {TEST: info(start_wall_ms=START_MS + 9 * DAY_MS)}).as_posix()
    write_acceptance(storage, Accepted(path, START_MS + 9 * DAY_MS))
    assert cli.main(["baseline", "accept", path, "--undo"]) == 0, capfd.readouterr()
    assert [point.unfit_reason for point in Index.open(storage).series(TEST, "response_p50")] == [""] * 3


def test_baselines_are_counted_in_the_storage_that_the_gate_reads(
    storage: Path, other_storage: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store_series(storage, [0.1] * 3)
    store_series(other_storage, [0.1] * 9, run_id="another")
    outputs = []
    for options in ((), ("--storage", str(storage))):
        assert cli.main(["baseline", "show", *options]) == 0
        outputs.append(capfd.readouterr().out)
    assert outputs[0] == outputs[1]


def test_compare_shows_the_conclusions_of_a_suite(storage: Path, run: Any) -> None:
    rows = {"is_bent": {"unit": "1 is yes", "better": "higher"}, "bend": {"unit": "threads", "better": "lower"}}
    suite = {"name": "bends", "conclusions": {name: {**row, "time_like": False} for name, row in rows.items()}}
    for number, is_bent in ((1, 0), (2, 1)):
        entry = info(suite=suite, is_bent=is_bent, bend=3 * number, columns=["is_bent", "bend"], response_p50=None)
        store(storage, number, {TEST: entry})
    lines = run("compare", "1", "2")[0].splitlines()
    assert any("is_bent" in line and "bend" in line for line in lines), lines
    assert [line.split()[-4:] for line in lines if line.startswith("0002_run")][-1] == ["6", "threads", "+100.0", "%"]


@pytest.mark.parametrize("arguments", [("show", "1"), ("baseline", "accept", "1", "--yes")])
def test_lines_fit_the_terminal(
    storage: Path, run: Any, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    store(storage, 1, {TEST: info()}, name="20261122T071148Z-of-a-long-name")
    whole, _ = run(*arguments)
    assert max(map(len, whole.splitlines())) > 80
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    fitted = run(*arguments)[0].splitlines()
    assert [line for line in fitted if len(line) > 80 and "  cloudbench baseline accept " not in line] == []
