"""The index of stored runs agrees with the files after any order of events, and survives any file in the folder."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.commands import cli
from pytest_cloudbench.judge import metrics
from pytest_cloudbench.judge.gate import judge
from pytest_cloudbench.judge.watched import checks_of
from pytest_cloudbench.model import UsageError
from pytest_cloudbench.results import parquet, recovery, stored
from pytest_cloudbench.results.acceptance import Accepted, write_acceptance
from pytest_cloudbench.results.index import INDEX_NAME, Index
from pytest_cloudbench.support import opening
from tests.results.stored_runs import MACHINE, START_MS, info, store, store_series

FIXTURES = Path(__file__).parents[2] / "fixtures"
TEST = "test_it.py::test_put"


def read_all(index: Index) -> Any:
    """Return all answers of an index, so that two indexes can be compared."""
    runs = index.runs()
    points = [
        (name, index.series(name, "response_p50"), index.series(name, "failed")) for name in sorted(index.tests())
    ]
    return runs, points, [index.brief_entries(run.place) for run in runs]


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    store_series(tmp_path, [0.1, 0.2, 0.3])
    return tmp_path


def test_series_lists_stored_values_in_order_of_time(storage: Path) -> None:
    points = Index.open(storage).series(TEST, "response_p50")
    assert [point.value for point in points] == [0.1, 0.2, 0.3]
    assert [point.commit for point in points] == ["c001", "c002", "c003"]
    assert [point.run for point in points] == [f"{MACHINE}/{number:04}_run.json" for number in (1, 2, 3)]
    assert {point.branch for point in points} == {"main"}
    assert {point.unfit_reason for point in points} == {""}
    assert points[0].fingerprint == points[1].fingerprint
    assert points[0].fingerprint["size_bytes"] == 5120
    assert points[0].time_ms - START_MS == 86_400_000


def test_run_summarizes_its_entries(storage: Path) -> None:
    store(storage, 4, {
        TEST: info(start_wall_ms=START_MS, doubts=["engine saturated"]),
        f"{TEST}#upload": info(provider="folder:x", emulated=False, outcome="failed", ops=None),
    })  # fmt: skip
    first, *_ = Index.open(storage).runs()
    assert (first.name, first.entries, first.doubtful, first.ops) == ("0004_run", 2, 1, 300)
    assert (first.outcome, first.emulated, first.providers) == ("failed", "some", ("emulated:dropbox", "folder:x"))


def test_why_a_point_may_be_no_baseline(storage: Path) -> None:
    unfit: list[dict[str, Any]] = [
        {"doubts": ["x"]}, {"outcome": "interrupted"}, {"response_p50": None}, {"missing_agents": {"gw0": "gone"}},
    ]  # fmt: skip
    for number, values in enumerate(unfit, 4):
        store(storage, number, {TEST: info(start_wall_ms=START_MS * 2 + number, **values)})
    points = Index.open(storage).series(TEST, "response_p50")[3:]
    fits = ["had doubts", "ended in an interruption", "held no number for response_p50", "had doubts"]
    assert [point.unfit_reason for point in points] == fits
    assert points[2].value is None


LATE: dict[str, Any] = {"doubts": ["engine saturated (lateness p99 310 ms is over 200 ms)"]}
BROKEN: dict[str, Any] = {"outcome": "failed", "gate": {"answer": "broken"}}
OUTLIER: dict[str, Any] = {"gate": {"answer": "met", "quarantined": ["quiet_p50"]}}


def test_a_late_engine_makes_no_baseline_of_a_run_that_is_none_for_another_reason(storage: Path) -> None:
    unfit = [LATE, LATE | BROKEN, LATE | {"outcome": "failed"}, LATE | OUTLIER, OUTLIER]
    for number, values in enumerate(unfit, 4):
        store(storage, number, {TEST: info(**{"start_wall_ms": START_MS * 2 + number, **values})})
    for _ in range(2):  # first from the files, then from the index that was written
        points = Index.open(storage).series(TEST, "response_p50")[3:]
        assert [point.unfit_reason for point in points] == [
            "had doubts about its times", "failed only at the gate", "did not pass",
            "was an outlier that did not come again", "was an outlier that did not come again",
        ]  # fmt: skip
        assert [point.has_doubtful_times for point in points] == [True] * 4 + [False]
        assert not any(point.counts for point in points), "its time is not what the history is to show"


def test_accepted_run_supersedes_earlier_ones_and_pardons_gate_failures(storage: Path) -> None:
    for number, values in enumerate([LATE, OUTLIER, BROKEN, LATE | BROKEN, OUTLIER], 4):
        store(storage, number, {TEST: info(**{"start_wall_ms": START_MS * 2 + number, **values})})
    accepted = Index.open(storage).find("6")
    assert Index.open(storage).not_passed(accepted.place, []) == []
    assert Index.open(storage).not_passed(Index.open(storage).find("7").place, []) == []
    write_acceptance(storage, Accepted(accepted.place, accepted.time_ms, until_ms=START_MS * 3))
    points = Index.open(storage).series(TEST, "response_p50")[3:]
    assert [point.is_superseded for point in points] == [True, True, False, False, False]
    assert [point.unfit_reason for point in points[2:]] == ["", "had doubts about its times", ""]
    assert [point.counts for point in points] == [False, False, True, False, True]


def test_all_numbers_are_kept_and_nothing_else(storage: Path) -> None:
    index = Index.open(storage)
    assert index.series(TEST, "failed")[0].value == 0.0
    assert index.series(TEST, "no_such_metric")[0].value is None
    assert index.series(TEST, "provider")[0].value is None, "a text is not a number"
    assert index.series("no_such_test", "failed") == []
    (brief,) = index.brief_entries(index.runs()[0].place)
    (entry,) = index.entries(index.runs()[0].place)
    assert entry.info["versions"] == {"pytest-cloudbench": "0.1.0"}
    missing_keys = {key for key in entry.info if entry.info[key] is not None and brief.info.get(key) != entry.info[key]}
    assert missing_keys == {"versions", "seed", "notes"}


@pytest.mark.parametrize(
    ("stored_columns", "columns"),
    [(["tue", "delta"], ("tue", "delta")), ([], ()), (None, ()), ("tue", ()), (["tue", 1, None], ("tue",))],
)
def test_metrics_in_the_table_of_a_conclusion_are_kept(
    storage: Path, stored_columns: Any, columns: tuple[str, ...]
) -> None:
    store(storage, 4, {TEST: info(columns=stored_columns, start_wall_ms=START_MS * 2)})
    for _ in range(2):  # first from the files, then from the index that was written
        assert [point.columns for point in Index.open(storage).series(TEST, "ops")] == [(), (), (), columns]


def test_a_comparison_of_two_sides_is_in_no_series_and_stays_one_without_the_file(storage: Path) -> None:
    """A comparison with the name of a test of one side is in no series either. Nor is a recovered block."""
    versus = {"A": "s3://old", "B": "s3://new", "pairs": 12, "differences": {}, "blocks": [{"number": 0}] * 24}
    later = {"start_wall_ms": START_MS * 2}
    store(storage, 4, {TEST: info(versus=versus, **later), "pair": info(versus=versus, **later)})
    store(storage, 5, {TEST: info(block={"side": "A", "number": 1}, outcome="interrupted", **later)})
    for has_file in (True, False):
        index = Index.open(storage)
        assert index.tests() == [TEST]
        assert [point.value for point in index.series(TEST, "response_p50")] == [0.1, 0.2, 0.3]
        assert len(index.numbers(TEST, ["ops"])) == 3
        (same, other) = index.comparisons()
        assert (same.fullname, other.fullname, same.run) == (TEST, "pair", f"{MACHINE}/0004_run.json")
        assert same.comparison == {key: value for key, value in versus.items() if key != "blocks"}
        assert index.not_passed(f"{MACHINE}/0005_run.json", []) == []
        if has_file:
            index.write()
            (storage / INDEX_NAME).unlink()


@pytest.mark.parametrize("strange", [None, "two", [], 7])
def test_a_strange_comparison_is_one_of_nothing(storage: Path, strange: Any) -> None:
    store(storage, 4, {TEST: info(versus=strange)})
    index = Index.open(storage)
    assert [dict(comparison.comparison) for comparison in index.comparisons()] == [{}]
    assert len(index.series(TEST, "ops")) == 3


def test_the_file_is_read_again_and_says_the_same(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = read_all(Index.open(storage))
    assert (storage / INDEX_NAME).exists()
    read_paths: list[Path] = []
    monkeypatch.setattr(stored, "read_run", read_paths.append)
    again = Index.open(storage)
    assert read_all(again) == answers
    assert read_paths == []


def test_index_rereads_only_changed_files(storage: Path) -> None:
    Index.open(storage)
    store(storage, 2, {TEST: info(response_p50=0.7, start_wall_ms=START_MS + 2 * 86_400_000)}, commit="changed")
    (storage / MACHINE / "0001_run.json").unlink()
    store(storage, 4, {"other": info(start_wall_ms=START_MS)})
    index = Index.open(storage)
    assert [(point.value, point.commit) for point in index.series(TEST, "response_p50")] == [
        (0.7, "changed"),
        (0.3, "c003"),
    ]
    assert [run.name for run in index.runs()] == ["0004_run", "0002_run", "0003_run"]
    answers = read_all(index)
    (storage / INDEX_NAME).unlink()
    assert read_all(Index.open(storage)) == answers, "deleting what is derived loses nothing"


def test_few_new_runs_are_read_without_writing_many_old_ones_again(tmp_path: Path) -> None:
    store_series(tmp_path, [0.1] * 40)
    Index.open(tmp_path)
    before = (tmp_path / INDEX_NAME).stat().st_mtime_ns
    store(tmp_path, 41, {TEST: info(start_wall_ms=START_MS * 2)})
    index = Index.open(tmp_path)
    assert len(index.series(TEST, "failed")) == 41
    assert (tmp_path / INDEX_NAME).stat().st_mtime_ns == before
    assert index.write()
    assert len(parquet.read((tmp_path / INDEX_NAME).read_bytes())[0]["place"]) == 41


def test_unreadable_runs_are_reported_in_one_line_and_left_out(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = storage / MACHINE
    (folder / "0010_torn.json").write_text('{"benchmarks": [{"full')
    (folder / "0011_foreign.json").write_text("[1, 2]")
    (folder / "0012_empty.json").write_text("")
    (folder / "0013_binary.json").write_bytes(b"\xff\xfe\x00\x80")
    (folder / "0014_deep.json").write_text("[" * 200_000)
    store(storage, 15, {TEST: info(schema=99)})
    store(storage, 16, {TEST: info(schema="two")})
    os.mkfifo(folder / "0017_fifo.json")
    (folder / "0018_folder.json").mkdir()
    (folder / "0019_nothing.json").symlink_to(folder / "nowhere")
    (folder / "0020_huge.json").write_text("{" + " " * 50_000)
    (folder / "0021_unnamed.json").write_text('{"benchmarks": [{"name": 5}]}')
    (folder / "notes.json").write_text("not a run at all")
    monkeypatch.setattr(stored, "LARGEST_BYTES", 50_000)
    index = Index.open(storage)
    assert [point.value for point in index.series(TEST, "response_p50")] == [0.1, 0.2, 0.3]
    problems = {line.partition("_")[2].partition(".json: ")[0].rpartition("_")[2]: line for line in index.problems}
    assert sorted(problems) == sorted(
        ["torn", "foreign", "empty", "binary", "deep", "run", "fifo", "folder", "huge", "unnamed"]
    ), "one line each; two are called run"
    assert len(index.problems) == 11
    assert all("\n" not in line for line in index.problems)
    assert "has entry schema 99; this version reads 1 to 2" in "".join(index.problems)
    assert "is larger than 50,000 bytes" in problems["huge"]
    assert Index.open(storage).problems == index.problems, "they are told again without being read again"


def test_a_file_that_cannot_be_read_for_a_moment_counts_later(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Path) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", fail)
        problems = Index.open(storage).problems
    assert [line.rpartition(": ")[2] for line in problems] == ["Too many open files"] * 3
    again = Index.open(storage)
    assert (len(again.runs()), again.problems) == (3, [])


def test_a_torn_file_counts_once_it_is_whole(storage: Path) -> None:
    path = store(storage, 4, {TEST: info(response_p50=0.4, start_wall_ms=START_MS * 2)})
    data = path.read_bytes()
    path.write_bytes(data[:500])
    assert len(Index.open(storage).series(TEST, "failed")) == 3
    path.write_bytes(data)
    assert [point.value for point in Index.open(storage).series(TEST, "response_p50")] == [0.1, 0.2, 0.3, 0.4]


@pytest.mark.parametrize(
    "harm", ["torn", "foreign", "other schema", "fewer conditions", "other column", "missing column"]
)
def test_a_harmed_index_is_made_again(storage: Path, harm: str) -> None:
    answers = read_all(Index.open(storage))
    path = storage / INDEX_NAME
    data = path.read_bytes()
    if harm == "torn":
        path.write_bytes(data[: len(data) // 2])
    elif harm == "foreign":
        path.write_bytes(b"PAR1 what is this? PAR1")
    elif harm in ("other schema", "fewer conditions", "other column"):
        replaced = {
            "other schema": b"8 agents ",
            "fewer conditions": b" suite_options",
            "other column": b"missing_agents",
        }
        old, new = replaced[harm], replaced[harm].replace(b"agents", b"hosts ").replace(b"suite", b"other")
        path.write_bytes(data.replace(old, new))
        assert path.read_bytes() != data
    else:
        with path.open("wb") as file:
            columns = [parquet.Column(name, parquet.TEXT) for name in ("place", "run")]
            parquet.write(file, columns, [[["x"], ["x"]]], {"cloudbench_index": "6", "files": "{}"})
    assert read_all(Index.open(storage)) == answers


FIRST_QUESTIONS: dict[str, Callable[[Index], Any]] = {
    "all": read_all,
    "brief entries": lambda index: index.brief_entries(f"{MACHINE}/0001_run.json"),
    "numbers": lambda index: index.numbers(TEST, ["ops", "failed", "response_p50"]),
    "write": lambda index: index.write(),
}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("has_new_run", [False, True])
@pytest.mark.parametrize("question", FIRST_QUESTIONS)
def test_an_index_with_a_bad_byte_in_any_column_is_made_again(storage: Path, question: str, has_new_run: bool) -> None:
    store_series(storage, [0.1] * 20)
    Index.open(storage).write()
    path = storage / INDEX_NAME
    data = path.read_bytes()
    starts = [offset for offset in range(len(data) - 3) if data[offset : offset + 3] == b"\x1f\x8b\x08"]
    assert len(starts) == len(parquet.column_names(data))
    if has_new_run:
        store(storage, 21, {TEST: info(start_wall_ms=START_MS * 2)})
    expected = FIRST_QUESTIONS[question](Index.open(storage)), read_all(Index.open(storage))
    for start in starts:
        path.write_bytes(data[: start + 15] + bytes([data[start + 15] ^ 0xFF]) + data[start + 16 :])
        index = Index.open(storage)
        assert (FIRST_QUESTIONS[question](index), read_all(index)) == expected
        assert read_all(Index.open(storage)) == expected[1]


def test_runs_from_elsewhere_stay_in_an_index_that_is_made_again(storage: Path, tmp_path_factory: Any) -> None:
    other = store(tmp_path_factory.mktemp("other"), 9, {TEST: info(response_p50=0.9, start_wall_ms=START_MS * 2)})
    expected = [0.1, 0.2, 0.3, 0.9]
    Index.open(storage)
    path = storage / INDEX_NAME
    data = path.read_bytes()
    starts = [offset for offset in range(len(data) - 3) if data[offset : offset + 3] == b"\x1f\x8b\x08"]
    for start in starts:
        path.write_bytes(data[: start + 15] + bytes([data[start + 15] ^ 0xFF]) + data[start + 16 :])
        index = Index.open(storage)
        index.add_file(other)
        assert [point.value for point in index.series(TEST, "response_p50")] == expected
        assert len(index.brief_entries(other.as_posix())) == 1


def test_writers_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    def session(first: int) -> None:
        for number in range(first, first + 6):
            store(tmp_path, number, {TEST: info(start_wall_ms=START_MS + number)}, name=f"s{first}")
            Index.open(tmp_path).write()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(session, (100, 200, 300, 400)))
    index = Index.open(tmp_path)
    assert len(index.series(TEST, "failed")) == 24
    assert index.problems == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [MACHINE, INDEX_NAME], "nothing is left over"


def test_a_storage_that_nobody_may_write_is_read(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(opening, "write_whole", refuse)
    index = Index.open(storage)
    assert len(index.runs()) == 3
    assert not index.write()
    assert not (storage / INDEX_NAME).exists()


def test_missing_storage_has_no_runs(tmp_path: Path) -> None:
    assert Index.open(tmp_path / "none").runs() == []
    assert Index.open(tmp_path / "none").problems == []


def test_runs_of_all_schemas_are_read(tmp_path: Path) -> None:
    for schema in (1, 2):
        target = tmp_path / MACHINE / f"000{schema}_worst-case.json"
        target.parent.mkdir(exist_ok=True)
        shutil.copy(FIXTURES / f"results-schema-{schema}" / "0001_worst-case.json", target)
    index = Index.open(tmp_path)
    assert index.problems == []
    assert [run.outcome for run in index.runs()] == ["unknown", "passed"], "schema 1 did not say"
    old, new = (index.brief_entries(run.place)[0].info for run in index.runs())
    assert (old["loss_rate"], new["loss_rate"]) == (0.278, 0.905)
    assert (old["ops"], new["ops"]) == (500, 200)


def test_recovered_entries_of_a_killed_run_are_one_interrupted_run(tmp_path: Path) -> None:
    folder = tmp_path / MACHINE / "20261122T071148Z-ec62"
    folder.mkdir(parents=True)
    for name in ("a", "b"):
        (folder / f"{name}.json").write_text(
            json.dumps({"benchmarks": [{"fullname": name, "extra_info": info(outcome="interrupted")}]})
        )
    (folder / "run.json").write_text("{}")
    (folder / "a.parquet").write_text("records")
    (run,) = Index.open(tmp_path).runs()
    assert (run.name, run.outcome, run.entries) == ("20261122T071148Z-ec62", "interrupted", 2)
    assert [entry.fullname for entry in Index.open(tmp_path).entries(run.place)] == ["a", "b"]
    assert recovery._NOTE == "run.json"


def test_run_is_found_by_number_name_or_path(storage: Path) -> None:
    index = Index.open(storage)
    third = index.runs()[2]
    for text in ("last", "3", "0003", "0003_run", "0003_run.json", third.place, str(storage / third.place)):
        assert index.find(text) == third, text
    for text, message in {
        "9": "there is no such run",
        "": "there is no such run",
        "0": "matches 3 runs",
    }.items():
        with pytest.raises(UsageError, match=message):
            index.find(text)
    shutil.copytree(storage / MACHINE, storage / "Linux-CPython-3.12-64bit")
    with pytest.raises(UsageError, match="matches 2 runs"):
        Index.open(storage).find("3")


def test_lone_surrogates_in_names_are_escaped(tmp_path: Path) -> None:
    store(tmp_path, 1, {"test_\ud800[\x1b[31m]": info(provider="\udfff")})
    index = Index.open(tmp_path)
    assert index.problems == []
    assert len(Index.open(tmp_path).runs()) == 1
    assert index.tests() == ["test_\\ud800[\x1b[31m]"]


def test_a_run_that_is_named_by_its_place_in_the_working_folder_is_one(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(storage)
    index = Index.open(Path())
    assert index.find(f"{MACHINE}/0003_run.json") == index.runs()[2]


# --- what suites declare ---


@pytest.fixture
def forget() -> Iterator[Callable[[], None]]:
    """A function that makes the process forget the metrics that it learns in the test."""
    before = dict(metrics.METRICS)

    def forget() -> None:
        metrics.METRICS.clear()
        metrics.METRICS.update(before)

    yield forget
    forget()


def carrying(unit: str) -> dict[str, Any]:
    fields = {"unit": unit, "better": "higher", "time_like": False, "gated": ""}
    return {"name": "albums", "conclusions": {"album_cost": fields}}


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 3, 1)])
def test_a_conclusion_has_the_meaning_that_the_latest_entry_carries(
    tmp_path: Path, forget: Callable[[], None], order: tuple[int, ...]
) -> None:
    for place, number in enumerate(order, 1):
        entry = info(start_wall_ms=START_MS + number, suite=carrying(f"unit {number}"), album_cost=1.0)
        store(tmp_path, place, {TEST: entry})
    store(tmp_path, 4, {TEST: info(start_wall_ms=START_MS + 4)})
    for _ in range(2):  # first from the files, then from the index that was written
        Index.open(tmp_path)
        assert metrics.METRICS["album_cost"].unit == "unit 3"
        forget()
        assert "album_cost" not in metrics.METRICS


def test_a_number_in_another_unit_is_no_number_of_the_metric(tmp_path: Path, forget: Callable[[], None]) -> None:
    """A suite that goes over from milliseconds to seconds would be a thousand times better."""
    for number, (unit, value) in enumerate([*[("ms", 2000.0)] * 12, ("s", 2.0)], 1):
        entry = info(start_wall_ms=START_MS + number, suite=carrying(unit), album_cost=value, columns=["album_cost"])
        store(tmp_path, number, {TEST: entry})
    for _ in range(2):  # first from the files, then from the index that was written
        index = Index.open(tmp_path)
        assert [point.value for point in index.series(TEST, "album_cost")] == [None] * 12 + [2.0]
        reasons = [point.unfit_reason for point in index.series(TEST, "album_cost")]
        assert reasons == ["held album_cost in another unit"] * 12 + [""]
        *former, now = index.numbers(TEST, ["album_cost", "ops"])
        assert former == [{"album_cost": None, "ops": 300}] * 12
        (ruling,) = judge(checks_of(TEST, now, ("album_cost",), former, {}))
        assert (ruling.answer, ruling.why) == ("inconclusive", "baseline 0 of 10")
        assert index.write()
        forget()


@pytest.mark.usefixtures("forget")
@pytest.mark.parametrize(
    "command", ["show 1 --metric album_cost", "export 1 2 --format csv", "report 1 2",
                "export 1 2 --format markdown --metric album_cost"],
)  # fmt: skip
def test_a_number_in_another_unit_is_shown_nowhere_in_the_present_one(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for number, (unit, value) in enumerate([("cents", 2345.0), ("euros", 3.25)], 1):
        entry = info(start_wall_ms=START_MS + number, suite=carrying(unit), album_cost=value, columns=["album_cost"])
        store(tmp_path / "results", number, {TEST: entry})
    metrics.declare({"album_cost": metrics.Metric("euros")})
    assert cli.main(command.split()) == 0
    shown = capsys.readouterr().out + "".join(page.read_text() for page in tmp_path.glob("*.html"))
    assert "album" in shown
    assert "2345" not in shown
    assert "2,345" not in shown
    assert ("3.25" in shown) is not command.startswith("show 1")


def test_what_a_suite_declares_itself_replaces_what_entries_carry(tmp_path: Path, forget: Callable[[], None]) -> None:
    store(tmp_path, 1, {TEST: info(suite=carrying("s"), album_cost=1.0)})
    Index.open(tmp_path)
    own = metrics.Metric("ms")
    assert metrics.declare({"album_cost": own}) == []
    forget()
    assert metrics.declare({"album_cost": own}) == []
    Index.open(tmp_path)
    assert metrics.METRICS["album_cost"] == own
    assert metrics.declare({"album_cost": metrics.Metric("euros")}) == ["album_cost"], "this is another suite"


@pytest.mark.parametrize("damaged", [5, [1], {"album_cost": 5}, {"album_cost": {}}, {"album_cost": {"time_ms": "x"}}])
def test_an_index_with_damaged_conclusions_is_made_again(
    tmp_path: Path, forget: Callable[[], None], damaged: Any
) -> None:
    store(tmp_path, 1, {TEST: info(suite=carrying("s"), album_cost=1.0)})
    index = Index.open(tmp_path)
    index._conclusions = damaged
    assert index.write()
    forget()
    assert read_all(Index.open(tmp_path)) == read_all(index)
    assert metrics.METRICS["album_cost"].unit == "s"
