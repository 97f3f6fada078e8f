"""Declarations of suites: written to an entry and read back, read from malformed entries, and found by installation."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cloudbench import (
    Answers,
    Curve,
    Delays,
    LossGrid,
    Metric,
    Probes,
    PublishedTable,
    Quote,
    Rounds,
    Suite,
    TimeCourse,
    UsageError,
    Verb,
)
from pytest_cloudbench.commands.cli import main
from pytest_cloudbench.judge import metrics
from pytest_cloudbench.results import installed, published
from pytest_cloudbench.results.suite import read_declared, read_titles
from tests.report.stored import entry, store

ROOT = Path(__file__).resolve().parents[2]
TABLE = PublishedTable(
    "paper-2020-table-1", "test_photo", "photo_cost", "cost of a photo", "s", "A paper", "2020",
    (({"size": 1, "how": "whole"}, 2.0), ({"size": 2}, 3.5)), scale=0.001, notes=("read from a figure",),
)  # fmt: skip
ALL = Suite(
    "photos",
    figures=(
        Curve("test_photo", "size", "photo_cost", "Cost", "Look.", quotes=(Quote("t", "q", x="a", given={"n": 1}),)),
        TimeCourse("test_*", "y", "values", 1.5, "TimeCourse", "Look.", is_sum=False, published=(("a", "", "words"),)),
        Delays("test_photo", {"delays_s": "delay"}, shares={"share": (1.0, 4.0)}, shares_of="delay"),
        Probes("test_photo", {"photos_per_s": "photos per second"}),
        Rounds("test_photo", "table", "Look."),
        LossGrid("test_photo", "table"),
        Answers("test_other"),
    ),
    conclusions={
        "photo_cost": Metric("s", "lower", time_like=True),
        "photos_kept": Metric("1", "higher", gated="exact"),
    },
    columns={"photo_cost": "cost, ms"},
    published=(TABLE,),
)


def test_all_that_a_suite_declares_survives_a_file() -> None:
    declared = ALL.about("test_photo")
    assert [type(figure).__name__ for figure in declared.figures] == [
        "Curve", "TimeCourse", "Delays", "Probes", "Rounds", "LossGrid",
    ]  # fmt: skip
    assert read_declared(json.loads(json.dumps(declared.plain()))) == declared


def test_empty_texts_of_a_suite_survive_a_file() -> None:
    declared = Suite(
        "photos",
        figures=(
            Curve("test_photo", "size", "cost", "", "", beside="", quotes=(Quote("", ""),)),
            TimeCourse("test_photo", "y", "values", "", "", ""), Delays("test_photo", {}), Probes("test_photo", {}),
            Answers("test_photo", title="", question=""),
        ),
        published=(PublishedTable("table", "test_photo", "cost", "", "", "", "", ()),),
    ).about("test_photo")  # fmt: skip
    assert read_declared(json.loads(json.dumps(declared.plain()))) == declared


def test_captions_of_entries_from_before_the_first_release_are_read() -> None:
    declared = Suite("photos", (Curve("test_photo", "size", "cost", "Cost", "Flat is best."),)).about("test_photo")
    plain = declared.plain()
    plain["figures"][0]["told"] = plain["figures"][0].pop("caption")
    assert read_declared(plain) == declared


def test_declarations_apply_to_tests_by_name() -> None:
    assert [figure.test for figure in ALL.about("test_other").figures] == ["test_*", "test_other"]
    assert ALL.about("test_other").published == ()
    assert ALL.about("testing").figures == ()


def test_entry_carries_declarations_about_its_test() -> None:
    declared = ALL.about("test_photo").of_entry({"size": 2, "photo_cost": 0.1})
    assert declared.conclusions.keys() == {"photo_cost"}
    assert [*declared.published[0].rows] == [({"size": 2}, 3.5)]
    assert not ALL.about("test_photo").of_entry({"size": 3}).published
    assert read_titles({"suite": declared.plain()}) == {"photo_cost": "cost, ms"}


def test_a_conclusion_is_no_metric_of_single_runs() -> None:
    for row in (Metric("s", of=lambda run: 1.0), Metric("s", column="cost"), Metric("s", about=(Verb.PUT,))):
        with pytest.raises(UsageError, match="suite photos: cost: a conclusion takes no `of`, `column` or `about`"):
            Suite("photos", conclusions={"cost": row})


JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=True) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(["name", "figures", "conclusions", "columns", "published"])
FIELDS = st.sampled_from(
    ["kind", "test", "x", "y", "title", "caption", "quotes", "times", "values", "published", "rows"]
)


@pytest.mark.slow
@given(
    JSON
    | st.dictionaries(KEYS, JSON | st.lists(st.dictionaries(FIELDS, JSON | st.sampled_from(["Curve", "TimeCourse"])))),
    st.booleans(),
)
def test_any_stored_declarations_are_read_or_ignored(stored: Any, is_named: bool) -> None:
    declared = read_declared({**stored, "name": "x"} if is_named and isinstance(stored, dict) else stored)
    assert declared is None or read_declared(declared.plain()) == declared


def test_kinds_of_a_later_version_are_left_out() -> None:
    plain = ALL.about("test_photo").plain()
    plain["figures"][0]["kind"] = "Hologram"
    plain["figures"][1]["times"] = ["not", "a", "number"]
    del plain["figures"][2]["values"]
    plain["conclusions"]["photo_cost"]["better"] = "redder"
    plain["published"][0]["rows"] = [[{"size": 1}]]
    declared = read_declared(plain)
    assert declared is not None
    assert [type(figure).__name__ for figure in declared.figures] == ["Probes", "Rounds", "LossGrid"]
    assert declared.conclusions.keys() == {"photos_kept"}
    assert declared.published == ()


# --- installed suites ---


@pytest.fixture
def fresh() -> Iterator[None]:
    """A lookup of suites without caches, before and after the test. Names that the test declares are removed."""
    before = dict(metrics.METRICS)
    installed._load_suites.cache_clear()
    yield
    installed._load_suites.cache_clear()
    metrics.METRICS.clear()
    metrics.METRICS.update(before)


@pytest.mark.usefixtures("fresh")
def test_every_suite_that_ships_and_declares_something_is_found() -> None:
    declaring = {
        path.parent.name
        for path in (ROOT / "suites").glob("*/__init__.py")
        if installed.MARK in path.read_text("utf-8")
    }
    assert len(declaring) > 10
    assert {name: suite.name for name, suite in installed.installed_suites().items()} == {
        name: name for name in declaring
    }


@pytest.mark.usefixtures("fresh")
def test_broken_suites_do_not_change_the_number_of_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken_suite.py").write_text("1 / 0\n")
    (tmp_path / "skipping_suite.py").write_text("import pytest\npytest.importorskip('no_such_module')\n")
    (tmp_path / "leaving_suite.py").write_text("raise SystemExit(3)\n")
    names = ("broken", "missing", "skipping", "leaving")
    write_entry_points(tmp_path, *(f"{name} = {name}_suite" for name in names))
    monkeypatch.syspath_prepend(tmp_path)
    run = store(tmp_path / "0001_r.json", [entry(tmp_path, "test_it", "emulated:ideal", (), {"sensors": 3})])
    assert main(["report", str(run), "-o", str(tmp_path / "page.html")]) == 0
    output = capsys.readouterr().out
    assert output.count("left out: suite") == 4
    assert "1 experiment of 1 run," in output


@pytest.mark.usefixtures("fresh")
def test_a_distribution_brings_suites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "photos_suite.py").write_text(
        "from pytest_cloudbench import Metric, PublishedTable, Suite\n"
        "ROWS = (({'n': 1}, 2.0),)\n"
        "TABLE = PublishedTable('photo-table', 'test_photo', 'photo_price', 'price', 's', 'me', '2020', ROWS)\n"
        "CLOUDBENCH_SUITE = Suite('photos', conclusions={'photo_price': Metric('s')}, published=(TABLE,))\n"
    )
    (tmp_path / "broken_suite.py").write_text("1 / 0\n")
    (tmp_path / "empty_suite.py").write_text("")
    write_entry_points(tmp_path, "photos = photos_suite", "broken = broken_suite", "empty = empty_suite")
    monkeypatch.syspath_prepend(tmp_path)
    assert installed.installed_suites()["photos"].conclusions == {"photo_price": Metric("s")}
    assert installed.suite_problems() == [
        "suite pytest_cloudbench.suites:broken: cannot be imported: ZeroDivisionError: division by zero",
        "suite pytest_cloudbench.suites:empty: has no CLOUDBENCH_SUITE",
    ]
    assert "photo_price" not in metrics.METRICS
    installed.learn_installed()
    assert metrics.METRICS["photo_price"] == Metric("s")
    assert "photo-table" in published.table_names()
    assert [row.value for row in published.load_table("photo-table").rows] == [2.0]


@pytest.mark.usefixtures("fresh")
def test_a_suite_takes_no_name_and_no_table_of_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = published.table_names()[0]
    values = [row.value for row in published.load_table(shipped).rows]
    (tmp_path / "photos_suite.py").write_text(
        "from pytest_cloudbench import PublishedTable, Suite\n"
        f"TABLE = PublishedTable({shipped!r}, 'test_photo', 'price', 'price', 's', 'me', '2020', (({{}}, -1.0),))\n"
        "CLOUDBENCH_SUITE = Suite('photos', published=(TABLE,))\n"
    )
    (tmp_path / "iot_suite.py").write_text(
        "from pytest_cloudbench import Suite\nCLOUDBENCH_SUITE = Suite('iot', columns={'a': 'b'})\n"
    )
    write_entry_points(tmp_path, "photos = photos_suite", "again = photos_suite", "iot = iot_suite")
    monkeypatch.syspath_prepend(tmp_path)
    installed._load_suites.cache_clear()
    assert installed.suite_problems() == [
        "suite pytest_cloudbench.suites:iot: is not used, because another suite is called iot, too"
    ]
    assert "a" not in installed.installed_suites()["iot"].columns
    assert [row.value for row in published.load_table(shipped).rows] == values


def write_entry_points(folder: Path, *lines: str) -> None:
    about = folder / "photos-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: photos\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("\n".join([f"[{installed.ENTRY_POINTS}]", *lines, ""]))


@pytest.mark.usefixtures("fresh")
def test_a_name_keeps_the_meaning_that_it_had_first() -> None:
    assert metrics.declare({"loss_rate": Metric("files"), "photo_cost": Metric("s")}) == ["loss_rate"]
    assert metrics.METRICS["loss_rate"] == metrics.BUILT_IN["loss_rate"]
    assert metrics.declare({"photo_cost": Metric("s")}) == []
    assert metrics.declare({"photo_cost": Metric("bytes")}) == ["photo_cost"]


def test_a_suite_is_found_by_module_and_not_by_path(monkeypatch: pytest.MonkeyPatch) -> None:
    outer, inner, test = ModuleType("mine"), ModuleType("mine.photos"), ModuleType("mine.photos.test_photo")
    for module in (outer, inner, test):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    assert installed.suite_of("mine.photos.test_photo") is None
    outer.CLOUDBENCH_SUITE = ALL  # type: ignore[attr-defined]  # as the module's own text would set it
    assert installed.suite_of("mine.photos.test_photo") is ALL
    test.CLOUDBENCH_SUITE = Suite("nearer")  # type: ignore[attr-defined]  # the same
    assert installed.suite_of("mine.photos.test_photo") == Suite("nearer")
    assert installed.suite_of("test_somewhere_else") is None
