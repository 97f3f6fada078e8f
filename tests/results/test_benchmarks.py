"""The adapter to pytest-benchmark: the private names that it uses exist, and its entries are ordinary ones."""

from __future__ import annotations

import errno
import inspect
import json
import os
import re
import shlex
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_cloudbench.commands import cli
from pytest_cloudbench.model import ResultsError, UsageError
from pytest_cloudbench.results import benchmarks
from tests.limits import scale_examples
from tests.results.stored_runs import MACHINE, info, store

pytest_plugins = ["pytester"]

ENTRY: dict[str, Any] = {
    "name": "test_it[5-a[0]]", "fullname": "suites/test_it.py::test_it[5-a[0]]", "params": {"sensors": 5},
    "extra_info": {"loss_rate": 0.25, "refused_p99": None, "errors": {"server": 1}}, "data_s": [0.5, 0.25, 1.0],
}  # fmt: skip


@pytest.fixture(autouse=True)
def _no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that does not look like a worker's, in which pytest-benchmark would switch itself off."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)


@pytest.fixture
def config(pytester: pytest.Pytester) -> pytest.Config:
    return configure(pytester)


def configure(pytester: pytest.Pytester, *options: str) -> pytest.Config:
    """Configure a run of both plugins that keeps its files in ``store``."""
    return pytester.parseconfigure("-p", "no:cacheprovider", "--benchmark-storage=store", *options)


def session_of(config: pytest.Config) -> Any:
    return config._benchmarksession  # type: ignore[attr-defined]  # the private name that these tests are about


def list_stored(pytester: pytest.Pytester) -> list[Path]:
    return sorted((pytester.path / "store").rglob("*"))


# --- the private names: a failure means that a release of pytest-benchmark has changed them ---


def test_the_session_has_every_name_that_the_adapter_uses(config: pytest.Config) -> None:
    session = session_of(config)
    assert session.benchmarks == []
    assert (session.save, session.autosave, session.json) == (None, None, None)
    assert not session.compare
    assert session.disabled is False
    assert callable(session.handle_saving)
    assert isinstance(session.machine_id, str)
    assert isinstance(session.storage.path, Path)
    assert list(session.storage.load()) == []
    assert list(session.storage.query()) == []


def test_machine_id_comes_from_pytest_benchmark(config: pytest.Config) -> None:
    from pytest_benchmark.utils import get_machine_id

    assert get_machine_id() == session_of(config).machine_id


def test_adapter_provides_attributes_read_by_benchmark_metadata() -> None:
    from pytest_benchmark.stats import Metadata

    assert list(inspect.signature(Metadata).parameters) == ["fixture", "iterations", "options"]
    body = inspect.getsource(Metadata)
    assert set(re.findall(r"fixture\.(\w+)", body)) == {
        "name", "fullname", "group", "param", "params", "extra_info", "cprofile_stats", "has_error",
    }  # fmt: skip


def test_the_stock_fixture_still_has_the_names_that_stand_in_for_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_it(benchmark):
            benchmark(int)
            for name in "name fullname group param params extra_info cprofile_stats has_error".split():
                getattr(benchmark, name)
        """
    )
    result = pytester.runpytest_subprocess("--benchmark-max-time=0.001", "--benchmark-min-rounds=1")
    result.assert_outcomes(passed=1)


# --- entries ---


def test_an_entry_is_an_ordinary_one(config: pytest.Config) -> None:
    benchmarks.add_entry(config, **ENTRY)
    (entry,) = session_of(config).benchmarks
    assert bool(entry)
    assert not entry.has_error
    document = json.loads(json.dumps(entry.as_dict()))
    assert document["stats"].pop("data") == [0.5, 0.25, 1.0]
    stats = document.pop("stats")
    assert (stats["rounds"], stats["iterations"], stats["min"], stats["max"]) == (3, 1, 0.25, 1.0)
    assert document == {
        "group": None, "name": "test_it[5-a[0]]", "fullname": "suites/test_it.py::test_it[5-a[0]]",
        "params": {"sensors": 5}, "param": "5-a[0]", "options": {},
        "extra_info": {"loss_rate": 0.25, "refused_p99": None, "errors": {"server": 1}},
    }  # fmt: skip


@settings(deadline=None, max_examples=scale_examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data_s=st.lists(st.floats(0, 1e6), min_size=1, max_size=30))
def test_statistics_are_pytest_benchmarks_own(config: pytest.Config, data_s: list[float]) -> None:
    """The adapter computes statistics from an array. The stock class sorts a list, and has exact fractions."""
    from pytest_benchmark.stats import Stats

    benchmarks.add_entry(config, **{**ENTRY, "data_s": data_s})
    stock = Stats()
    stock.data = data_s
    ours, expected = session_of(config).benchmarks[-1].stats.as_dict(), stock.as_dict()
    rounded = {
        "mean": pytest.approx(expected["mean"], rel=1e-15, abs=1e-300),
        "stddev": pytest.approx(expected["stddev"], rel=1e-12, abs=1e-150),  # smaller squares are 0
    }
    borders = {name: ours.pop(name) for name in ("stddev_outliers", "outliers")}
    assert ours == {name: value for name, value in expected.items() if name not in borders} | rounded
    low, high = ours["mean"] - ours["stddev"], ours["mean"] + ours["stddev"]
    outliers = sum(value < low or value > high for value in data_s)
    assert borders == {"stddev_outliers": outliers, "outliers": f"{outliers};{expected['iqr_outliers']}"}


@pytest.mark.parametrize("value_s", [0.1, 1 / 3, 1e6 + 0.1])
def test_equal_values_are_their_own_mean_without_deviation(config: pytest.Config, value_s: float) -> None:
    benchmarks.add_entry(config, **{**ENTRY, "data_s": [value_s] * 7})
    stats = session_of(config).benchmarks[-1].stats.as_dict()
    assert (stats["mean"], stats["stddev"], stats["outliers"]) == (value_s, 0.0, "0;0")


def test_an_entry_without_a_round_is_refused(config: pytest.Config) -> None:
    """An entry without rounds breaks pytest-benchmark's table, after everything was measured."""
    with pytest.raises(ResultsError, match=r"test_it.*at least one round"):
        benchmarks.add_entry(config, **{**ENTRY, "data_s": []})
    assert session_of(config).benchmarks == []


def test_entries_of_stock_benchmarks_travel_as_plain_data(pytester: pytest.Pytester) -> None:
    sender = configure(pytester)
    benchmarks.add_entry(sender, **ENTRY, group="g", iterations=7, options={"min_rounds": 5})
    (former,) = [entry.as_dict() for entry in session_of(sender).benchmarks]
    entries = json.loads(json.dumps(benchmarks.take_entries(sender)))
    assert session_of(sender).benchmarks == []
    receiver = configure(pytester)
    for entry in entries:
        benchmarks.add_entry(receiver, **entry)
    assert [entry.as_dict() for entry in session_of(receiver).benchmarks] == [former]


def test_entries_of_failed_benchmarks_do_not_travel(config: pytest.Config) -> None:
    benchmarks.add_entry(config, **ENTRY)
    session_of(config).benchmarks[0].fixture.has_error = True
    assert benchmarks.take_entries(config) == []


def test_stock_benchmarks_are_switched_on_for_a_while(config: pytest.Config) -> None:
    session = session_of(config)
    session.disabled = True
    with benchmarks.enabled_here(config):
        assert session.disabled is False
    assert session.disabled is True


def test_stock_benchmarks_are_switched_off_again_after_a_failure(config: pytest.Config) -> None:
    session = session_of(config)
    session.disabled = True
    with pytest.raises(ZeroDivisionError), benchmarks.enabled_here(config):
        raise ZeroDivisionError
    assert session.disabled is True


def test_without_pytest_benchmark_nothing_is_kept_and_nothing_breaks() -> None:
    config: Any = SimpleNamespace()
    benchmarks.add_entry(config, **ENTRY)
    benchmarks.save_entries(config, "r1")
    with benchmarks.enabled_here(config):
        assert benchmarks.take_entries(config) == []
    assert (benchmarks.is_loaded(config), benchmarks.storage_folder(config)) == (False, None)
    assert benchmarks.stored_runs(config) == benchmarks.Runs()


# --- saving ---


def test_a_run_is_saved_under_its_name_and_only_once(pytester: pytest.Pytester, config: pytest.Config) -> None:
    benchmarks.add_entry(config, **ENTRY)
    benchmarks.save_entries(config, "r1")
    session_of(config).handle_saving()
    assert benchmarks.storage_folder(config) == pytester.path / "store"
    (path,) = [path for path in list_stored(pytester) if path.is_file()]
    assert path.name == "0001_r1.json"
    (entry,) = json.loads(path.read_text())["benchmarks"]
    assert entry["extra_info"] == ENTRY["extra_info"]
    assert entry["stats"]["rounds"] == 3


def test_name_given_by_the_user_replaces_the_default_name(pytester: pytest.Pytester) -> None:
    config = configure(pytester, "--benchmark-save=mine", "--benchmark-json=out.json")
    benchmarks.add_entry(config, **ENTRY)
    benchmarks.save_entries(config, "r1")
    assert [path.name for path in list_stored(pytester) if path.is_file()] == ["0001_mine.json"]
    assert json.loads((pytester.path / "out.json").read_text())["benchmarks"][0]["stats"]["data"] == ENTRY["data_s"]


@pytest.mark.parametrize(("name", "entries"), [("r1", 0), (None, 1)])
def test_nothing_is_saved_without_entries_or_a_wish(
    pytester: pytest.Pytester, config: pytest.Config, name: str | None, entries: int
) -> None:
    for _ in range(entries):
        benchmarks.add_entry(config, **ENTRY)
    benchmarks.save_entries(config, name)
    assert not [path for path in list_stored(pytester) if path.is_file()]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, as Linux has it")
def test_full_disk_is_reported_in_one_line(pytester: pytest.Pytester) -> None:
    config = configure(pytester, "--benchmark-json=/dev/full")
    benchmarks.add_entry(config, **ENTRY)
    with pytest.raises(ResultsError) as caught:
        benchmarks.save_entries(config, None)
    store = pytester.path / "store"
    message = "cannot save the entries: No space left on device; free some space, or choose another place"
    assert str(caught.value) == f"{store}: {message}"
    session_of(config).handle_saving()  # pytest-benchmark's own attempt at the end of the run: nothing is left to do


def test_a_torn_file_is_not_left_for_the_next_run_to_stumble_over(
    pytester: pytest.Pytester, config: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmarks.add_entry(config, **ENTRY)
    benchmarks.save_entries(config, "good")
    session = session_of(config)

    def fail_to_save(document: Any, name: str) -> None:
        session.storage.get(f"0002_{name}.json").write_text('{"benchmarks": [')
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(session.storage, "save", fail_to_save)
    with pytest.raises(ResultsError, match="No space left on device"):
        benchmarks.save_entries(config, "torn")
    assert [path.name for path in list_stored(pytester) if path.is_file()] == ["0001_good.json"]


@pytest.mark.parametrize("odd", ["a tuple as key", "a circle"])
def test_entries_that_json_cannot_hold_are_reported_in_one_line(
    pytester: pytest.Pytester, config: pytest.Config, odd: str
) -> None:
    circle: list[Any] = []
    circle.append(circle)
    extra_info = {"odd": {(1, 2): 3} if odd == "a tuple as key" else circle}
    benchmarks.add_entry(config, **{**ENTRY, "extra_info": extra_info})
    with pytest.raises(ResultsError, match="cannot save the entries as JSON: "):
        benchmarks.save_entries(config, "odd")
    assert not [path for path in list_stored(pytester) if path.is_file()]


# --- the compared run ---


def save_run(pytester: pytest.Pytester, name: str, loss_rate: float, *fullnames: str) -> None:
    config = configure(pytester)
    for fullname in fullnames:
        benchmarks.add_entry(config, **{**ENTRY, "fullname": fullname, "extra_info": {"loss_rate": loss_rate}})
    benchmarks.save_entries(config, name)


@pytest.mark.parametrize(
    ("option", "first", "both"),
    [
        ((), [("0001_one.json", 0.1)], [("0001_one.json", 0.1), ("0002_two.json", 0.2)]),
        (("--benchmark-compare",), [("0001_one.json", 0.1)], [("0001_one.json", 0.1), ("0002_two.json", 0.2)]),
        (("--benchmark-compare=0001",), [("0001_one.json", 0.1)], [("0001_one.json", 0.1)]),
        (("--benchmark-compare=0002",), [], [("0002_two.json", 0.2)]),
    ],
)
def test_gates_see_the_runs_asked_for_or_all(
    pytester: pytest.Pytester, option: tuple[str, ...], first: list[Any], both: list[Any]
) -> None:
    save_run(pytester, "one", 0.1, "first", "both")
    save_run(pytester, "two", 0.2, "both")
    runs = benchmarks.stored_runs(configure(pytester, *option))
    loss_rates = {
        name: [(entry.run, entry.info["loss_rate"]) for entry in runs.entries_of(name)] for name in ("first", "both")
    }
    assert loss_rates == {"first": first, "both": both}


def test_gates_see_runs_in_the_order_in_which_they_were_stored_whatever_their_numbers(
    pytester: pytest.Pytester,
) -> None:
    for number, day in ((1, 22), (2, 23), (90, 21)):  # the last one was imported
        path = store(pytester.path / "store", number, {"it": info(loss_rate=number / 100)})
        path.write_text(path.read_text().replace("2026-11-22T", f"2026-11-{day}T"))
    runs = benchmarks.stored_runs(configure(pytester))
    assert [entry.info["loss_rate"] for entry in runs.entries_of("it")] == [0.9, 0.01, 0.02]


def test_gates_see_runs_beyond_the_9999th(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, name in ((1001, "a"), (9999, "b"), (10000, "c"), (10000, "d")):
        store(pytester.path / "store", number, {"it": info(run_id=name)}, name=name)
    size_bytes = (pytester.path / "store" / MACHINE / "9999_b.json").stat().st_size
    monkeypatch.setattr(benchmarks, "_READ_BYTES", size_bytes * 3 // 2)
    runs = benchmarks.stored_runs(configure(pytester))
    assert [entry.run for entry in runs.entries_of("it")] == ["10000_c.json", "10000_d.json"]


@pytest.mark.slow
def test_only_the_latest_of_very_many_runs_are_read(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1, 6):
        save_run(pytester, "many", number / 10, "it")
    machine = session_of(configure(pytester)).machine_id
    write_bad_run(pytester.path / "store" / machine / "0006_bad.json", "huge")
    size_bytes = (pytester.path / "store" / machine / "0001_many.json").stat().st_size
    monkeypatch.setattr(benchmarks, "_READ_BYTES", size_bytes * 3 // 2)
    runs = benchmarks.stored_runs(configure(pytester))
    assert [entry.info["loss_rate"] for entry in runs.entries_of("it")] == [0.4, 0.5]
    assert runs.unreadable == ["0006_bad.json"]
    compared_runs = benchmarks.stored_runs(configure(pytester, "--benchmark-compare=0001"))
    assert [entry.info["loss_rate"] for entry in compared_runs.entries_of("it")] == [0.1]


def test_the_first_run_has_nothing_to_compare_with(config: pytest.Config) -> None:
    assert benchmarks.stored_runs(config) == benchmarks.Runs()


BAD = {
    "truncated": ('{"benchmarks": [', "is not JSON"),
    "foreign": ('{"results": []}', "has no list of benchmarks"),
    "list": ("[1, 2]", "has no list of benchmarks"),
    "text": ("not JSON at all", "is not JSON"),
    "empty": ("", "is not JSON"),
    "deep": ("[" * 100_000, "is not JSON"),
    "nameless": ('{"benchmarks": [{"extra_info": {}}]}', "an entry without a name"),
    "odd": ('{"benchmarks": [{"fullname": "x", "extra_info": [1]}]}', "an entry without a name"),
}


def write_bad_run(path: Path, kind: str) -> str:
    """Write something other than a run to the path of a stored run. Return the message about it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "folder":
        path.mkdir()
        return "expected a file"
    if kind == "fifo":
        os.mkfifo(path)
        return "expected a file"
    if kind == "huge":
        with path.open("wb") as file:
            file.truncate(10**12)
        return "is larger than"
    if kind == "binary":
        path.write_bytes(b"\xff\xfe\x00")
        return "is not JSON"
    text, message = BAD[kind]
    path.write_text(text)
    return message


def configure_comparison(pytester: pytest.Pytester, name: str) -> pytest.Config:
    """Configure a run with ``--benchmark-compare``.

    The option itself would bring warnings of pytest-benchmark, which are errors in this checkout.
    """
    config = configure(pytester)
    session_of(config).compare = name
    return config


@pytest.mark.parametrize("storage", ["store", "my runs", "results"])
def test_missing_named_run_is_answered_by_a_command_that_lists_those_there(
    pytester: pytest.Pytester, capfd: pytest.CaptureFixture[str], storage: str
) -> None:
    store(pytester.path / storage, 1, {"test_it.py::test_it": info()})
    config = configure_comparison(pytester, "0009")
    session_of(config).storage.path = pytester.path / storage
    with pytest.raises(UsageError, match=r"^--benchmark-compare=0009: there is no such run in ") as caught:
        benchmarks.stored_runs(config)
    command = shlex.split(str(caught.value).partition("; ")[2].removesuffix(" shows those that are"))
    assert command[0] == "cloudbench"
    assert cli.main(command[1:]) == 0
    assert "0001_run" in capfd.readouterr().out


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("kind", [*BAD, "folder", "fifo", "huge", "binary"])
def test_named_file_that_is_not_a_run_is_refused_in_one_line(pytester: pytest.Pytester, kind: str) -> None:
    save_run(pytester, "good", 0.1, "it")
    machine = session_of(configure(pytester)).machine_id
    message = write_bad_run(pytester.path / "store" / machine / "0002_bad.json", kind)
    with pytest.raises(UsageError, match=rf"^--benchmark-compare=0002: .*0002_bad.json.*{message}") as caught:
        benchmarks.stored_runs(configure_comparison(pytester, "0002"))
    assert "\n" not in str(caught.value)
    all_runs = benchmarks.stored_runs(configure(pytester))
    assert [entry.info["loss_rate"] for entry in all_runs.entries_of("it")] == [0.1]
    assert all_runs.unreadable == ["0002_bad.json"]


@pytest.mark.parametrize("name", ["0007", "nothing", "a/b/c", "/no/such/file.json"])
def test_missing_named_run_is_refused_in_one_line(pytester: pytest.Pytester, name: str) -> None:
    save_run(pytester, "good", 0.1, "it")
    with pytest.raises(UsageError, match=f"^--benchmark-compare={name}: ") as caught:
        benchmarks.stored_runs(configure_comparison(pytester, name))
    assert "\n" not in str(caught.value)


# --- whole runs of pytest-benchmark ---

CONFTEST = f"""
from pytest_cloudbench.results import benchmarks

def pytest_configure(config):
    global controller
    controller = None if hasattr(config, "workerinput") else config

def pytest_runtest_logreport(report):
    if controller and report.when == "call":
        benchmarks.add_entry(controller, **{ENTRY!r})
"""


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("agents", [(), ("-n1",)], ids=["one process", "fleet"])
def test_pytest_benchmark_saves_prints_and_compares_our_entries(
    pytester: pytest.Pytester, agents: tuple[str, ...]
) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile("def test_it(): pass")
    options = ("-p", "no:cacheprovider", "--benchmark-storage=store", "--benchmark-autosave", *agents)
    pytester.runpytest_subprocess(*options).assert_outcomes(passed=1)
    result = pytester.runpytest_subprocess(*options, "--benchmark-compare", "--benchmark-compare-fail=mean:1%")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*Name (time in ms)*", "test_it?5-a?0?? (0001_*)*", "test_it?5-a?0?? (NOW)*"])
    assert len([path for path in list_stored(pytester) if path.suffix == ".json"]) == 2


def test_sessions_that_save_under_one_name_at_the_same_time_lose_nothing(pytester: pytest.Pytester) -> None:
    """pytest-benchmark looks for the next number and then writes: the second of two would take the same one."""
    configs = [configure(pytester, "--benchmark-save=nightly") for _ in range(4)]
    for config in configs:
        benchmarks.add_entry(config, **ENTRY)
    with ThreadPoolExecutor(len(configs)) as pool:
        assert list(pool.map(lambda config: benchmarks.save_entries(config, None), configs)) == [True] * len(configs)
    names = [path.name for path in list_stored(pytester) if path.is_file()]
    assert names == [f"000{number}_nightly.json" for number in range(1, len(configs) + 1)]
