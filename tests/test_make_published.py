"""The published tables: the committed files follow from the data, and the data are those of the papers.

The papers are not in this repository, so a mistyped digit is caught by what the papers themselves imply: sums,
ratios to the printed precision, and sentences that repeat a number.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.limits import HANG_S
from tests.runs import QUIET
from tests.tool_scripts import load_tool

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[1]
TOOL = ROOT / "tools" / "make_published.py"
PUBLISHED = ROOT / "results" / "published"
# Entries by file, so that an emptied folder cannot make a test pass.
COUNTS = {
    "cloud-raid-2012-table-1": 28, "cloud-raid-2012-table-2": 20, "cloud-raid-2012-table-3": 6,
    "imc-2013-data-centers": 5, "imc-2013-quoted": 30,
    "imc-2013-table-1": 25, "thesis-2014-table-2.1": 24, "thesis-2014-table-2.2": 35, "thesis-2014-table-4.2": 15,
    "thesis-2014-table-4.3": 15, "thesis-2014-table-4.5": 8,
    "thesis-2014-table-4.7": 1, "uds-2013-appends": 2, "uds-2013-cpu": 4, "uds-2013-download": 4, "uds-2013-log": 2,
    "uds-2013-quoted": 3, "uds-2013-ratios": 2, "uds-2013-table-1": 7, "uds-2013-thresholds": 3,
}  # fmt: skip

Entry = dict[str, Any]


@pytest.fixture(autouse=True)
def _no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset the variable of workers, because pytest-benchmark switches itself off in a worker and its child runs."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load_tool(TOOL.stem)


def entries(name: str) -> list[Entry]:
    records = json.loads((PUBLISHED / f"{name}.json").read_text("utf-8"))["benchmarks"]
    assert isinstance(records, list)
    assert len(records) == COUNTS[name]
    return records


def infos(name: str) -> list[Entry]:
    return [entry["extra_info"] for entry in entries(name)]


def all_entries() -> list[Entry]:
    return [entry for name in COUNTS for entry in entries(name)]


def round_half_up(value: float, places: int) -> float:
    """Return a rounded value. As people do, 0.5 is rounded away from zero."""
    return float(Decimal(repr(value)).quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP))


def parse_size(printed: str) -> float:
    """Return a printed size in bytes. Its units are decimal."""
    figure, unit = printed.split()
    return float(figure) * {"B": 1, "KB": 1e3, "MB": 1e6}[unit]


# --- the files follow from the data ---


def test_committed_files_match_output_of_the_tool(tool: ModuleType) -> None:
    documents = tool.documents(PUBLISHED)
    assert sorted(documents) == sorted(f"{name}.json" for name in COUNTS)
    assert {path.name: path.read_text("utf-8") for path in PUBLISHED.glob("*.json")} == documents


def test_check_names_differing_file(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(PUBLISHED, tmp_path / "published"))
    monkeypatch.setattr(tool, "FOLDER", folder)
    assert tool.main(["--check"]) == 0
    changed, stale = folder / "uds-2013-table-1.json", folder / "left.json"
    changed.write_text("{}")
    stale.write_text("{}")
    assert tool.main(["--check"]) == 1
    assert capsys.readouterr().out.split(": ")[0] == "left.json"
    assert changed.read_text() == "{}"
    assert tool.main([]) == 0
    assert not stale.exists()
    assert changed.read_text("utf-8") == (PUBLISHED / changed.name).read_text("utf-8")


@pytest.mark.parametrize("name", COUNTS)
def test_nothing_in_a_file_is_of_this_machine(name: str) -> None:
    document = json.loads((PUBLISHED / f"{name}.json").read_text("utf-8"))
    key = document["commit_info"]["id"]
    assert re.fullmatch(r"published:[a-z-]+-20\d\d", key)
    assert document["machine_info"].pop("node") == key
    assert not any(document["machine_info"].values())
    assert document["datetime"] in {"2013-10", "2013-12", "2014-07", "2012-11"}
    assert document["version"] == "none: transcribed"


def test_files_have_the_keys_of_an_ordinary_file_and_entries_too(pytester: pytest.Pytester) -> None:
    """The keys are those that pytest-benchmark itself writes for the same single round."""
    mine = entries("thesis-2014-table-4.5")[2]
    document, (theirs,) = store_run(pytester, mine["params"], {}, mine["stats"]["data"], "test_x[50MB]")
    assert mine["stats"] == theirs["stats"]
    assert mine.keys() == theirs.keys()
    published = json.loads((PUBLISHED / "thesis-2014-table-4.5.json").read_text("utf-8"))
    assert published.keys() == document.keys()
    assert published["machine_info"].keys() <= document["machine_info"].keys()
    assert published["commit_info"].keys() <= document["commit_info"].keys() | {"author_time", "branch"}


def test_every_entry_states_its_statistic_and_source() -> None:
    published_entries = all_entries()
    assert len({entry["fullname"] for entry in published_entries}) == len(published_entries) == sum(COUNTS.values())
    for entry in published_entries:
        info, stats = entry["extra_info"], entry["stats"]
        assert entry["group"].startswith(f"{info['stats_of']} (")
        assert entry["name"] == f"{entry['name'].partition('[')[0]}[{entry['param']}]"
        assert entry["fullname"].endswith(f"::{entry['name']}")
        assert entry["param"].endswith(f"-{info['provider']}")
        assert info["source"]
        assert info["date_of"] == ("measurement" if info["date"] == info["measured"] else "publication")
        assert info["emulated"] is False
        assert stats["data"] == [pytest.approx(info[info["stats_metric"]] * info["stats_scale"], rel=1e-12)]
        assert info["published"][info["stats_metric"]] == info[info["stats_metric"]]
        assert entry["params"].items() <= info.items()


def test_a_group_holds_one_quantity_of_one_table() -> None:
    groups: dict[str, set[tuple[str, str, str]]] = {}
    for entry in all_entries():
        info = entry["extra_info"]
        groups.setdefault(entry["group"], set()).add((info["stats_of"], info["stats_unit"], info["provider"]))
    assert all(len(quantities) == 1 for quantities in groups.values())


def test_times_are_seconds_and_nothing_else_is_called_so() -> None:
    for entry in all_entries():
        info = entry["extra_info"]
        assert (info["stats_unit"] == "s") == info["stats_of"].endswith(("seconds", " in s"))


# --- the data are those of the papers ---


@pytest.mark.parametrize(("table", "lost"), [("4.2", 5369), ("4.3", 2781)])
def test_loss_tables_are_the_suites_own(table: str, lost: int) -> None:
    """Transcribed twice: suites/iot/published.toml is the other transcript."""
    rows = tomllib.loads((ROOT / "suites/iot/published.toml").read_text("utf-8"))["row"]
    keys = ("sensors", "interval_s", "first_delay_max_s", "files", "lost", "loss_rate")
    published = infos(f"thesis-2014-table-{table}")
    assert [[info[key] for key in keys] for info in published] == [
        [row[key] for key in keys] for row in rows if row["table"] == table
    ]
    assert sum(info["lost"] for info in published) == lost
    for info in published:
        assert info["files"] == 10 * info["sensors"]
        assert round_half_up(info["lost"] / info["files"], 4) == info["loss_rate"]


def test_names_of_the_loss_tables_are_the_suites_own() -> None:
    command = [sys.executable, "-m", "pytest", "suites/iot", "--collect-only", "-q", "--grid", "paper", "-k", "table"]
    done = subprocess.run(
        command, cwd=ROOT, env=quiet_environment(), capture_output=True, text=True, check=True, timeout=HANG_S
    )
    suites = {line.removesuffix("-emulated:dropbox-2014]") for line in done.stdout.splitlines() if "::" in line}
    names = [entry["fullname"] for table in ("4.2", "4.3") for entry in entries(f"thesis-2014-table-{table}")]
    assert {name.removesuffix("-published:thesis-2014]") for name in names} == suites
    assert len(suites) == 30


def test_the_decrease_of_loss_follows_from_both_tables() -> None:
    """Printed in whole percent, which 2 % and 98 % match as closely as they can."""
    before, after = infos("thesis-2014-table-4.2"), infos("thesis-2014-table-4.3")
    for worst, average in zip(before, after, strict=True):
        printed = average["loss_rate_decrease"]
        if worst["lost"]:
            assert round_half_up(1 - average["lost"] / worst["lost"], 2) == printed
        else:
            assert printed is None


def test_readiness_is_within_half_a_second_as_the_text_says() -> None:
    rows = infos("thesis-2014-table-4.5")
    assert all(abs(info["readiness_s"]) < 0.5 for info in rows)
    assert sum(info["readiness_s"] < 0 for info in rows) == 3
    assert sum(info["readiness_s"] for info in rows) == pytest.approx(0.669)
    assert [info["size"] for info in rows] == "200 MB,100 MB,50 MB,10 MB,1 MB,100 KB,10 KB,1 KB".split(",")


def test_deduplicated_traffic_is_far_below_that_of_three_files() -> None:
    (info,) = infos("thesis-2014-table-4.7")
    assert (info["files"], info["size"]) == (3, "20 MB")
    assert round_half_up(info["traffic_mb"], 0) == 26
    assert info["traffic_mb"] < 60


def test_traffic_usage_follows_from_the_columns_and_a_little_beacon_traffic() -> None:
    for info in infos("uds-2013-table-1"):
        sent_bytes = parse_size(info["index_server_traffic"]) + parse_size(info["file_server_traffic"])
        total_bytes = info["tue"] * parse_size(info["size"])
        assert -0.015 < (total_bytes - sent_bytes) / total_bytes < 0.051, info["cells"]
        assert info["sync_delay_s"] >= 4.0
    assert sum(info["sync_delay_s"] for info in infos("uds-2013-table-1")) == pytest.approx(577.1)


def test_hash_calls_are_whole_milliseconds_of_seven_providers() -> None:
    published = infos("cloud-raid-2012-table-1")
    services = list(dict.fromkeys(info["service"] for info in published))
    assert services == ["Amazon [EU]", "Amazon [US]", "Azure", "Box", "Google", "Nirvanix", "Rackspace"]
    for service in services:
        rows = [info for info in published if info["service"] == service]
        assert [info["size_kb"] for info in rows] == [100, 1024, 10240, 102400]
        calls = [info["hash_call_s"] for info in rows]
        assert max(calls) < 1.5 * min(calls), "the text: the time is not affected by the size"
        assert rows[3]["local_hash_s"] > rows[3]["hash_call_s"] or service == "Amazon [US]"
        assert rows[3]["local_hash_s"] / rows[2]["local_hash_s"] == pytest.approx(10, rel=0.02)
    assert sum(info["hash_call_s"] for info in published) == pytest.approx(10.815)
    assert sum(info["local_hash_s"] for info in published) == pytest.approx(5.033)


def test_improvement_factors_follow_from_the_times() -> None:
    rows = infos("cloud-raid-2012-table-2")
    for info in rows:
        assert info["native"] / info["segmented"] == pytest.approx(info["improvement_factor"], abs=0.0101), info[
            "cells"
        ]
        assert info["size_mb"] / info["best_segments"] == pytest.approx(info["segment_mb"], abs=0.0051), info["cells"]
        assert info["single_chunk_mb"] == info["segment_mb"]
        assert info["single_chunk"] < info["segmented"] < info["native"]
        assert info["best_segments"] in range(5, 101, 5)
    sums = {"native": 8083.801, "segmented": 202.18, "single_chunk": 124.24, "best_segments": 1215}
    for key, expected in sums.items():
        assert sum(info[key] for info in rows) == pytest.approx(expected, rel=1e-9)


def test_availability_follows_from_errors_and_writes() -> None:
    for info in infos("cloud-raid-2012-table-3"):
        assert round_half_up(1 - info["errors"] / info["writes"], 5) == info["availability"]
    assert {info["service"]: info["wrong_hashes"] for info in infos("cloud-raid-2012-table-3")} == {
        "Google": 0, "Amazon": 0, "Nirvanix": 0, "Rackspace": 5, "Box": 40, "HP": 0,
    }  # fmt: skip


def test_capabilities_are_as_the_text_says() -> None:
    services: dict[str, set[str]] = {}
    for info in infos("imc-2013-table-1"):
        assert (info["has_capability"] == 1) == (info["verdict"] == "yes") == (info["printed"] != "no")
        services.setdefault(info["capability"], set()).update({info["service"]} if info["has_capability"] else set())
    assert services == {
        "Chunking": {"Dropbox", "SkyDrive", "Wuala", "Google Drive"},  # 4.1: only Cloud Drive does not
        "Bundling": {"Dropbox"},
        "Compression": {"Dropbox", "Google Drive"},
        "Deduplication": {"Dropbox", "Wuala"},
        "Delta-encoding": {"Dropbox"},
    }
    chunks = {
        info["service"]: info["printed"] for info in infos("imc-2013-table-1") if info["capability"] == "Chunking"
    }
    assert (chunks["Dropbox"], chunks["Google Drive"]) == ("4 MB", "8 MB")


def test_each_quoted_figure_is_in_its_quote() -> None:
    quoted = [name for name in COUNTS if name.endswith("quoted")]
    quoted += [f"uds-2013-{name}" for name in ("appends", "cpu", "download", "log", "ratios", "thresholds")]
    for info in [info for name in quoted for info in infos(name)]:
        assert re.search(rf"(?<![\d,.]){re.escape(info['cells']['value'])}(?![\d,.]\d)", info["quote"]), info["cells"]


def test_quoted_figures_agree_with_each_other() -> None:
    """The text gives some figures twice, as a time and as a rate."""
    value = {(info["service"], info["quantity"], info["condition"]): info["value"] for info in infos("imc-2013-quoted")}
    rate, time, load = "upload rate", "completion time", "100 x 10 kB"
    assert value["Google Drive", rate, load] * value["Google Drive", time, load] == pytest.approx(8e6, rel=0.01)
    assert value["Cloud Drive", rate, load] * value["Cloud Drive", time, load] == pytest.approx(8e6, rel=0.011)
    assert value["Dropbox", rate, load] / value["Google Drive", rate, load] == pytest.approx(4, rel=0.06)
    assert 8e6 / value["Google Drive", rate, "1 file"] == pytest.approx(0.3, rel=0.01)
    assert value["Cloud Drive", "background traffic", "idle"] * 86_400 / 8 == pytest.approx(65e6, rel=0.01)


def test_savings_of_uds_agree_with_the_text() -> None:
    traffic = {info["condition"]: info["value"] for info in infos("uds-2013-download") if info["quantity"] == "traffic"}
    overhead = {info["condition"]: info["value"] for info in infos("uds-2013-download") if info["unit"] == "share"}
    assert traffic["with UDS"] / 5e6 - 1 < overhead["with UDS"]
    assert traffic["Dropbox alone"] / 5e6 - 1 > 2 * overhead["Dropbox alone"], "the two disagree, and a note says so"
    cpu = {info["condition"]: info["value"] for info in infos("uds-2013-cpu")}
    assert cpu["Dropbox and UDS+ (written ranges)"] < cpu["Dropbox and UDS"] < cpu["Dropbox alone"]


# --- reading cells ---


@pytest.mark.parametrize(
    ("cell", "scale", "expected"),
    [
        ("99,978%", "0.01", 0.99978), ("0 ~ 5", None, 5), ("50!", None, 50), ("-125", "0.001", -0.125),
        ("NA", "0.01", None), ("0.00 %", "0.01", 0.0), ("4.0", None, 4.0), ("twice", "1", 2.0), ("no", None, None),
    ],
)  # fmt: skip
def test_numbers_are_read_as_printed(tool: ModuleType, cell: str, scale: str | None, expected: float | None) -> None:
    number = tool.scale_cell(cell, scale)
    assert number == expected
    assert type(number) is type(expected)


# --- comparisons with a run ---


def quiet_environment() -> dict[str, str]:
    """Return an environment in which this test run does not reach into a child."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")} | {
        "COLUMNS": "160",
        "PYTEST_ADDOPTS": QUIET,
    }


def store_run(
    pytester: pytest.Pytester, params: Entry, info: Entry, data_s: list[float], name: str
) -> tuple[Entry, list[Entry]]:
    """Let pytest-benchmark itself store a run with one entry. Return the file's content and its entries."""
    fullname = f"suites/iot/test_iot.py::{name}"
    arguments = {"name": name, "fullname": fullname, "params": params, "extra_info": info, "data_s": data_s}
    pytester.makeconftest(f"""
        from pytest_cloudbench.results import benchmarks

        def pytest_runtest_logreport(report):
            if report.when == "call":
                benchmarks.add_entry(config, **{arguments!r})

        def pytest_configure(config):
            globals()["config"] = config
    """)
    pytester.makepyfile("def test_it(): pass")
    pytester.runpytest_subprocess(
        "-p", "no:cacheprovider", "--benchmark-storage=store", "--benchmark-save=mine", "--benchmark-save-data"
    ).assert_outcomes(passed=1)
    (path,) = (pytester.path / "store").glob("*/0001_mine.json")
    document = json.loads(path.read_text("utf-8"))
    return document, document["benchmarks"]


MY_ROW: Entry = {"sensors": 30, "interval_s": 1, "first_delay_max_s": 0}
MY_NAME = "test_table_4_2[30-1s-emulated:dropbox]"


def compare(pytester: pytest.Pytester, *arguments: str) -> str:
    """Return the output of ``pytest-benchmark compare``, with this checkout's published files in ``published/``."""
    if not (pytester.path / "published").exists():
        shutil.copytree(PUBLISHED, pytester.path / "published")
    command = [sys.executable, "-m", "pytest_benchmark", "--storage", "store", "compare", *arguments]
    done = subprocess.run(
        command, cwd=pytester.path, env=quiet_environment(), capture_output=True, text=True, check=False, timeout=HANG_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Failed to load" not in done.stderr
    return done.stdout


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("name", COUNTS)
def test_pytest_benchmark_compares_every_published_file(pytester: pytest.Pytester, name: str) -> None:
    printed = compare(pytester, f"published/{name}.json", "--time-unit=s", "--columns=mean", "--name=normal")
    for entry in entries(name):
        assert entry["group"] in printed
        (row,) = re.findall(rf"^{re.escape(entry['name'])}.*? (-?[\d,]+\.\d{{4}})\b", printed, re.MULTILINE)
        assert float(row.replace(",", "")) == pytest.approx(entry["stats"]["mean"], abs=5.1e-5)


@pytest.mark.slow
def test_a_run_itself_is_listed_beside_but_never_in_one_table(pytester: pytest.Pytester) -> None:
    """Its rounds are response times, so only --group-by=func brings them together."""
    store_run(pytester, MY_ROW, {"loss_rate": 0.25}, [0.5, 0.7], MY_NAME)
    shutil.copytree(PUBLISHED, pytester.path / "store" / "published")
    both = ("published/thesis-2014-table-4.2", "*/0001")
    apart = compare(pytester, *both)
    assert "benchmark: 1 tests" in apart
    assert "benchmark 'loss rate in percent (thesis-2014, table-4.2)': 15 tests" in apart
    assert "benchmark 'test_table_4_2': 16 tests" in compare(pytester, *both, "--group-by=func")


@pytest.mark.slow
def test_published_files_are_no_runs(pytester: pytest.Pytester) -> None:
    """A comparison without a name does not load them, and gates do not take them as the latest run."""
    store_run(pytester, MY_ROW, {"loss_rate": 0.25}, [0.5], MY_NAME)
    shutil.copytree(PUBLISHED, pytester.path / "store" / "published")
    printed = compare(pytester)
    assert MY_NAME in printed
    assert "published" not in printed
    from pytest_cloudbench.results import benchmarks

    runs = benchmarks.stored_runs(pytester.parseconfigure("-p", "no:cacheprovider", "--benchmark-storage=store"))
    assert [list(entries.values()) for _, entries in runs.files] == [[{"loss_rate": 0.25}]]


def test_a_run_that_compares_with_another_machine_is_warned_and_not_ended() -> None:
    """This checkout turns warnings into errors, so pytest-benchmark's about the machine could end the session."""
    command = [sys.executable, "-m", "pytest", "suites/iot", "--collect-only", "-q", "-p", "no:cacheprovider"]
    options = ("--benchmark-storage=results", "--benchmark-compare=published/thesis-2014-table-4.2")
    done = subprocess.run(
        [*command, *options],
        cwd=ROOT,
        env=quiet_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "machine_info is different" in done.stderr
    assert "Can't compare" not in done.stderr
