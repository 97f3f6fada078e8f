"""Commands read stored runs in which somebody, or another program, has replaced a value by any other."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.commands import cli
from pytest_cloudbench.results import parquet
from tests.report.stored import entry, operations, store
from tests.results.stored_runs import info

ODD: dict[str, Any] = {
    "a table": {"a": 1}, "a deep list": [[{}], None], "a text": "\udcff\x1b[31m<b>", "nothing": None,
    "no number": float("nan"), "a huge number": 10**400,
}  # fmt: skip
COMMANDS = (
    ["report", "last", "-o", "page.html"], ["show", "last"], ["compare", "1", "2"], ["history"], ["baseline", "list"],
    ["baseline", "show"], ["export", "last", "--format", "csv"], ["export", "last", "--format", "openmetrics"],
    ["gate", "power"], ["gate", "backtest"], ["published", "--run", "results/Linux/0001_run.json"],
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results" / "Linux").mkdir(parents=True)
    return tmp_path / "results" / "Linux"


def entries(folder: Path) -> list[dict[str, Any]]:
    """Return entries of a load, of a load with a gate's answer, and of two sides."""
    sides = {
             "A": "emulated:ideal", "B": "emulated:dropbox", "deciding": ["response_p50"], "stopped": "pairs",
             "minutes": 1.0, "pairs": 9, "emulated": {"A": True, "B": True},
             "differences": {"response_p50": {"difference": 0.1, "low": 0.0, "high": 0.2, "answer": "slower"}},
    }  # fmt: skip
    more = {name: value for name, value in info().items() if name not in ("ops", "ops_file")}
    more |= {"gate": {"answer": "broken", "lines": ["slower"], "runs": 9}}
    return [
        entry(folder, "test_it.py::test_put", "emulated:ideal", list(operations(20, 10)), {"count": 20}),
        entry(folder, "test_it.py::test_more", params={"count": 3}, **more),
        entry(folder, "test_it.py::test_two", "", versus=sides, versions={"A": {"x": "1"}, "B": {"x": "2"}}),
    ]


def value_paths(extra_info: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the paths of values to replace: the keys of an entry, and of its nested values."""
    for name, value in extra_info.items():
        yield (name,)
        yield from ((name, inner) for inner in (value if isinstance(value, dict) else ()))


def alter_entry(original: dict[str, Any], odd: Any) -> Iterator[dict[str, Any]]:
    """Yield copies of an entry, each with one odd value.

    The schema stays, since commands leave out a whole file of an unknown schema.
    """
    for number, (*parents, last) in enumerate(value_paths(original["extra_info"])):
        altered = copy.deepcopy(original)
        parent = altered["extra_info"]
        for name in parents:
            parent = parent[name]
        parent[last] = odd
        altered["extra_info"]["schema"] = 2
        yield {**altered, "fullname": f"{altered['fullname']}-{number}", "name": f"{altered['name']}-{number}"}


def run_all(capfd: pytest.CaptureFixture[str]) -> None:
    for command in COMMANDS:
        storage = [] if command[0] == "published" else ["--storage", "results"]
        assert cli.main([*command, *storage]) in {0, 1, 4}, command
        assert "Traceback" not in capfd.readouterr().err


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
def test_odd_values_of_entries_raise_no_traceback(odd: Any, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    odd_entries = [odd_entry for original in entries(folder) for odd_entry in alter_entry(original, odd)]
    odd_entries += [{**entries(folder)[0], name: odd} for name in ("params", "stats", "group", "name")]
    for number in (1, 2):
        store(folder / f"{number:04}_run.json", odd_entries)
    run_all(capfd)
    assert "test_more" in Path("page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("odd", [1e308, -1e308, 5e-324, 10**300], ids=["high", "low", "small", "long"])
def test_odd_numbers_among_former_runs_raise_no_traceback(
    odd: float, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for number in range(1, 25):
        value: Any = odd if number % 5 == 0 else number % 2
        numbers = dict.fromkeys(("loss_rate", "response_p50", "quiet_p50"), value)
        numbers |= {"quiet_ops": 300, "start_wall_ms": 10**12 + number}
        store(folder / f"{number:04}_run.json", [entry(folder, "test_it.py::test_put", "emulated:ideal", **numbers)])
    run_all(capfd)


@pytest.mark.parametrize("name", ["a" * 300, "a\0b", "\ud800", "records.parquet"])
def test_odd_files_of_records_are_named_and_not_drawn(
    name: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    columns = [parquet.Column(column, parquet.TEXT) for column in ("scheduled_ns", "end_ns", "outcome")]
    with (folder / "records.parquet").open("wb") as file:
        parquet.write(file, columns, [[["a"], ["b"], ["ok"]]], {})
    store(folder / "0001_run.json", [entry(folder, "test_it.py::test_put", "emulated:ideal", ops_file=name)])
    assert cli.main(["report", "last", "-o", "page.html", "--storage", "results"]) == 0
    assert "not drawn" in Path("page.html").read_text(encoding="utf-8")
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(("name", "number"), [("end_ns", -1), ("end_ns", 10**12), ("scheduled_ns", float("nan"))])
def test_records_with_an_odd_time_are_named_and_not_drawn(
    name: str, number: float, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import pyarrow
    from pyarrow import parquet as arrow

    measured = entry(folder, "test_it.py::test_put", "emulated:ideal", list(operations(40, 10)))
    store(folder / "0001_run.json", [measured])
    path = folder / measured["extra_info"]["ops_file"]
    table = arrow.read_table(path)
    values = table.to_pydict() | {name: [*table[name].to_pylist()[:-1], number]}
    arrow.write_table(pyarrow.table(values).replace_schema_metadata(table.schema.metadata), path)
    assert cli.main(["report", "last", "-o", "page.html", "--storage", "results"]) == 0
    assert "holds no records of operations" in Path("page.html").read_text(encoding="utf-8")
    assert "Traceback" not in capfd.readouterr().err


def test_records_that_windows_has_named_are_found(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    measured = entry(folder, "test_it.py::test_put", "emulated:ideal", list(operations(40, 10)))
    measured["extra_info"]["ops_file"] = measured["extra_info"]["ops_file"].replace("/", "\\")
    store(folder / "0001_run.json", [measured])
    assert cli.main(["report", "last", "-o", "page.html", "--storage", "results"]) == 0
    assert "not drawn" not in Path("page.html").read_text(encoding="utf-8")
    sql = ["--sql", "SELECT count(*) FROM ops", "--csv"]
    assert cli.main(["ops", "last", *sql, "--storage", "results", "--records", "results/Linux"]) == 0
    assert capfd.readouterr().out.splitlines()[-1] == "40"


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
def test_odd_values_around_entries_raise_no_traceback(
    odd: Any, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    paths: list[tuple[Any, ...]] = [
        ("benchmarks",), ("commit_info",), ("datetime",), ("machine_info",), ("version",), ("commit_info", "id"),
        ("commit_info", "branch"), ("benchmarks", 0), ("benchmarks", 0, "extra_info"), ("benchmarks", 0, "fullname"),
        ("benchmarks", 0, "extra_info", "schema"),
    ]  # fmt: skip
    for number, (*parents, last) in enumerate(paths, 2):
        path = store(folder / f"{number:04}_run.json", entries(folder))
        document = parent = json.loads(path.read_text())
        for name in parents:
            parent = parent[name]
        parent[last] = odd
        path.write_text(json.dumps(document))
    store(folder / "0001_run.json", entries(folder))
    run_all(capfd)
    assert cli.main(["report", "results", "-o", "page.html"]) == 0
