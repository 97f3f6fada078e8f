"""The regression gate's choice of stored runs, and its offer to a test that has none."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.judge.gate import judge
from pytest_cloudbench.judge.watched import FOLLOWED_ONLY, TIMES_DOUBTED, checks_of
from pytest_cloudbench.load.gate.history import FormerRuns, GateHistory
from pytest_cloudbench.results.acceptance import Accepted, write_acceptance, write_rename
from pytest_cloudbench.results.index import Index
from tests.results.stored_runs import DAY_MS, START_MS, info, store

LATE: dict[str, Any] = {"doubts": ["engine saturated (lateness p99 310 ms is over 200 ms)"]}
BROKEN: dict[str, Any] = {"outcome": "failed", "gate": {"answer": "broken"}}
OUTLIER: dict[str, Any] = {"gate": {"answer": "met", "quarantined": ["quiet_p50"]}}


def store_runs(storage: Path, test: str, count: int, first: int = 1, **extra: Any) -> None:
    for number in range(first, first + count):
        store(storage, number, {test: info(start_wall_ms=START_MS + number * DAY_MS, **extra)}, commit="unknown")


def history(storage: Path) -> GateHistory:
    return GateHistory(Index.open(storage), storage, "")


def test_runs_are_marked_with_their_use(tmp_path: Path) -> None:
    for number, extra in enumerate(
        [{}, LATE, BROKEN, LATE | BROKEN, OUTLIER, LATE | OUTLIER, LATE | {"outcome": "failed"}]
    ):
        store_runs(tmp_path, "t.py::test", 1, 1 + number, **extra)
    former = history(tmp_path).former_runs("t.py::test", info(), ())
    marks = {run["run"]: (bool(run.get(FOLLOWED_ONLY)), bool(run.get(TIMES_DOUBTED))) for run in former.numbers}
    assert marks == {
        "0001_run": (False, False), "0002_run": (False, True), "0003_run": (True, False), "0004_run": (True, True),
        "0005_run": (True, False), "0006_run": (True, True),
    }  # fmt: skip
    assert former.remark == (
        "of 5 stored runs 2 failed only at the gate, 2 was an outlier that did not come again, 1 did not pass"
    )


def test_runs_that_are_yet_to_come_are_named(tmp_path: Path) -> None:
    """The clock was ahead when they were measured, or it has gone back since."""
    store_runs(tmp_path, "t.py::test", 3)
    past = history(tmp_path)
    past.former_runs("t.py::test", info(), ())
    assert past.describe_clock() == ""
    for number in (4, 5):
        late_info = info(start_wall_ms=32_503_680_000_000 - number)  # the year 3000
        store(tmp_path, number, {"t.py::test": late_info}, commit="unknown")
    mixed = history(tmp_path)
    assert len(mixed.former_runs("t.py::test", info(), ()).numbers) == 5
    assert mixed.describe_clock().startswith(
        "2 runs in the storage began later than now (the last: 0004_run, 2999-12-31 23:59+00:00): a clock was ahead"
    )


def test_late_run_before_an_accepted_one_is_ignored(tmp_path: Path) -> None:
    store_runs(tmp_path, "t.py::test", 3, **LATE)
    store_runs(tmp_path, "t.py::test", 3, 4)
    run = Index.open(tmp_path).find("4")
    write_acceptance(tmp_path, Accepted(run.place, run.time_ms, until_ms=run.time_ms))
    former = history(tmp_path).former_runs("t.py::test", info(), ())
    assert [run["run"] for run in former.numbers] == ["0004_run", "0005_run", "0006_run"]


@pytest.mark.parametrize(("accepted", "answer"), [("4", "broken"), ("5", "met")])
def test_only_the_accepted_run_itself_allows_what_happened_in_it(tmp_path: Path, accepted: str, answer: str) -> None:
    clean: dict[str, Any] = {"files": 300, "silently_lost": 0, "silent_loss_rate": 0.0}
    lost = clean | {"silently_lost": 1, "silent_loss_rate": 1 / 300}
    store_runs(tmp_path, "t.py::test", 4, **clean)
    store_runs(tmp_path, "t.py::test", 1, 5, **lost, **BROKEN)
    run = Index.open(tmp_path).find(accepted)
    write_acceptance(tmp_path, Accepted(run.place, run.time_ms, until_ms=START_MS + 9 * DAY_MS))
    former = history(tmp_path).former_runs("t.py::test", info(), ())
    checks = checks_of("t.py::test", info(quiet_ops=0, **lost), (), former.numbers, {})
    answers = {ruling.check.metric: ruling.answer for ruling in judge(checks)}
    assert answers["silent_loss_rate"] == answer


@pytest.mark.parametrize(
    ("old", "new", "renamed"),
    [
        ("t.py::test_a", "t.py::test_b", ("t.py::test_a", "t.py::test_b")),
        ("t.py::test_a[x]", "u.py::test_b[x]", ("t.py::test_a", "u.py::test_b")),
        ("t.py::test_a[x-5]#up", "t.py::test_b[x-5]#up", ("t.py::test_a", "t.py::test_b")),
        ("t.py::test_a#2", "t.py::test_b#2", ("t.py::test_a", "t.py::test_b")),
        ("a[1]#b/t.py::test_a#2", "a[1]#b/t.py::test_b#2", ("a[1]#b/t.py::test_a", "a[1]#b/t.py::test_b")),
        ("t.py::test_a[x]", "u.py::test_a[y]", ("t.py::test_a[x]", "u.py::test_a[y]")),
        ("t.py::TestA::test[x]", "t.py::TestB::test[x]", ("t.py::TestA::test", "t.py::TestB::test")),
        ("t.py::test_a[it's $HOME]", "t.py::test_b[x y]", ("t.py::test_a[it's $HOME]", "t.py::test_b[x y]")),
    ],
)
def test_offered_command_gives_a_test_its_former_runs_in_order(
    tmp_path: Path, old: str, new: str, renamed: tuple[str, str]
) -> None:
    store_runs(tmp_path, old, 4)
    offer = history(tmp_path).offer_renamed(new, info(), [new])
    assert offer.startswith(
        f"4 runs of {old} had the same conditions; if that was its name: cloudbench baseline rename "
    )
    assert "\n" not in offer
    words = shlex.split(offer.partition(": ")[2])
    assert words == ["cloudbench", "baseline", "rename", *renamed]
    write_rename(tmp_path, *renamed)
    store_runs(tmp_path, new, 2, 5)
    renamed_history = history(tmp_path)
    assert [run["run"][:4] for run in renamed_history.former_runs(new, info(), [new]).numbers] == [
        "0001",
        "0002",
        "0003",
        "0004",
        "0005",
        "0006",
    ]
    assert renamed_history.offer_renamed(new, info(), [new]) == ""


def numbers_of(former: FormerRuns) -> list[str]:
    return [run["run"][:4] for run in former.numbers]


@pytest.mark.parametrize("remainder", ["", "[x]#up"])
def test_a_new_test_under_a_former_name_is_not_the_one_that_was_renamed(tmp_path: Path, remainder: str) -> None:
    """Neither is compared with the runs of the other. On a branch from before, the former name is still the test's."""
    old, new = f"t.py::test_a{remainder}", f"t.py::test_b{remainder}"
    store_runs(tmp_path, old, 3)
    write_rename(tmp_path, "t.py::test_a", "t.py::test_b")
    store_runs(tmp_path, new, 2, 4)
    both, branch = [old, new], [old]
    assert numbers_of(history(tmp_path).former_runs(new, info(), both)) == ["0001", "0002", "0003", "0004", "0005"]
    nothing = history(tmp_path).former_runs(old, info(), both)
    assert (numbers_of(nothing), nothing.remark) == (
        [], f"the 3 stored runs were of the test that is called {new} now"
    )  # fmt: skip
    assert numbers_of(history(tmp_path).former_runs(old, info(), branch)) == ["0001", "0002", "0003"]
    for number in (6, 7):
        entry = info(start_wall_ms=START_MS + number * DAY_MS)
        store(tmp_path, number, {old: entry, new: entry}, commit="unknown")
    store_runs(tmp_path, old, 1, 8)
    assert numbers_of(history(tmp_path).former_runs(old, info(), both)) == ["0006", "0007", "0008"]
    assert numbers_of(history(tmp_path).former_runs(new, info(), both)) == [f"000{number}" for number in range(1, 8)]


def test_most_similar_name_is_offered(tmp_path: Path) -> None:
    for number, name in enumerate(("t.py::test_zebra", "t.py::test_upload_small", "t.py::other")):
        store_runs(tmp_path, name, 1, 1 + number)
    assert "1 run of t.py::test_upload_small had" in history(tmp_path).offer_renamed(
        "t.py::test_upload_tiny", info(), []
    )


@pytest.mark.parametrize(
    "extra", [{"size_bytes": 1}, {"provider": "s3"}, {"machine": "another"}, {"outcome": "failed"}]
)
def test_runs_that_could_not_be_compared_are_not_offered(tmp_path: Path, extra: dict[str, Any]) -> None:
    store_runs(tmp_path, "t.py::test_a", 3, **extra)
    assert history(tmp_path).offer_renamed("t.py::test_b", info(), []) == ""


@pytest.mark.parametrize("here", [["t.py::test_a"], ["t.py::test_a[other]"]])
@pytest.mark.parametrize("remainder", ["[x]", "#2", "[x]#2"])
def test_runs_of_a_test_of_this_session_are_not_offered(tmp_path: Path, here: list[str], remainder: str) -> None:
    store_runs(tmp_path, f"t.py::test_a{remainder}", 3)
    assert history(tmp_path).offer_renamed(f"t.py::test_b{remainder}", info(), here) == ""
    assert list(history(tmp_path).last_runs(here)) == [f"t.py::test_a{remainder}"]


@pytest.mark.parametrize(
    ("source", "is_offered"),
    [
        ("def test_a(): pass", False),
        ("class TestX:\n    def test_a(self): pass", False),
        ("def test_ab(): pass", True),
        ("", True),
    ],
)
def test_runs_of_a_test_that_was_only_not_selected_are_not_offered(
    tmp_path: Path, source: str, is_offered: bool
) -> None:
    (tmp_path / "t.py").write_text(source)
    store_runs(tmp_path, "t.py::test_a[x]", 3)
    assert bool(history(tmp_path).offer_renamed("u.py::test_b[x]", info(), [])) is is_offered
