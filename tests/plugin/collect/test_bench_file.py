"""Bench files in real sessions of pytest, in one process and on several agents."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pytest_cloudbench.commands import cli
from pytest_cloudbench.model import ConfigError
from pytest_cloudbench.plugin.collect import has_only_config_files
from pytest_cloudbench.plugin.configs.bench import parse_bench
from pytest_cloudbench.plugin.configs.bench_keys import METRICS, OPERATIONS
from pytest_cloudbench.results.oplog import read_parquet
from tests.fleet.harness import FOLDER, IDEAL, FinishedRun, Lab, grid, keys, lab_in, outcomes
from tests.plugin.configs.bench_documents import FILES, GONE, PAYLOADS, toml, with_changes
from tests.provider_folders import make_folders
from tests.runs import SPREAD, Spread

FILE = "x.bench.toml"
RANDOM = {"generator": "random", "size_bytes": 300}
POOL: dict[str, Any] = {"name": "pool", "threads": 2, "files": 6, "payload": RANDOM}
SENSORS: dict[str, Any] = {
    "name": "sensors",
    "sensors": 5,
    "ops_per_sensor": 2,
    "payload": RANDOM,
    "arrival": {"process": "jittered", "interval_s": 0.02, "jitter_s": 0.01},
}


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with lab_in(tmp_path) as new_lab:
        (tmp_path / "pytest.ini").write_text("[pytest]\ncloudbench_files = *.bench.toml\n")
        yield new_lab


def document(*experiments: Mapping[str, Any]) -> str:
    """Return a bench file as people write it, but with inline tables."""
    return "\n".join(
        "[[experiment]]\n" + "".join(f"{key} = {toml(value)}\n" for key, value in experiment.items())
        for experiment in experiments
    )


def write(lab: Lab, *experiments: Mapping[str, Any], name: str = FILE) -> Lab:
    path = lab.folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(document(*experiments), "utf-8")
    make_folders(lab.folder, [path.read_text("utf-8")])
    return lab


def entries(run: FinishedRun) -> dict[str, Mapping[str, Any]]:
    """Return each entry's extra_info and parameters, by its full name without the name of the file."""
    return {
        entry["fullname"].rpartition("::")[2]: entry["extra_info"] | {"params": entry["params"]}
        for entry in run.document["benchmarks"]
    }


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


# --- operations ---


@pytest.mark.slow
@SPREAD
def test_operations_are_measured_one_after_the_other_on_the_same_files(lab: Lab, spread: Spread) -> None:
    words = ["upload", "download", "stat", "list", "delete"]
    write(lab, {**POOL, "operations": words}, {**SENSORS, "operations": words})
    run = lab.run(FILE, *FOLDER, *spread)
    assert (run.counts(), run.leftovers) == ({"passed": 2}, []), run.text
    infos = entries(run)
    assert list(infos) == [f"{name}[folder:objects]#{word}" for name in ("pool", "sensors") for word in words]
    assert [info["operation"] for info in infos.values()] == [OPERATIONS[word].value for word in words] * 2
    assert [info["ok"] for info in infos.values()] == [6] * 5 + [10] * 5
    assert not any(info["errors"] or info["doubts"] for info in infos.values())
    totals = ["operations, 1,800 bytes up", "operations, 1,800 bytes down", *(f"operations ({verb})" for verb in
            ("stat", "list", "delete"))]  # fmt: skip
    assert [line.partition("about 6 ")[2] for line in run.lines_with("about 6 ")] == totals
    assert files_in(lab.folder / "objects") == []
    tables = [read_parquet(path) for path in run.folder.rglob("*sensors*.parquet")]
    assert [keys(table) for table in tables] == [grid(5, 2)] * 5


@pytest.mark.slow
def test_files_are_uploaded_once_and_unmeasured_if_upload_is_no_operation(lab: Lab) -> None:
    write(lab, {**POOL, "operations": ["stat", "share", "delete"]}, {**SENSORS, "operations": ["download", "delete"]})
    run = lab.run(FILE, *IDEAL)
    assert run.counts() == {"passed": 2}, run.text
    infos = entries(run)
    assert [name.partition("#")[2] for name in infos] == ["stat", "share", "delete", "download", "delete"]
    assert [(info["ok"], info["errors"]) for info in infos.values()] == [(6, {})] * 3 + [(10, {})] * 2


def test_an_operation_that_is_not_offered_fails_before_anything_is_measured(lab: Lab) -> None:
    run = write(lab, {**POOL, "operations": ["upload", "share"]}).run(FILE, *FOLDER)
    assert run.counts() == {"failed": 1}
    assert run.lines_with(
        f"{FILE}: experiment[0].operations: expected what folder:objects offers "
        "(upload, download, stat, list, delete), found 'share'"
    )
    assert "benchmarks" not in run.document


def test_each_round_has_new_files(lab: Lab) -> None:
    run = write(lab, {**POOL, "repeat": 3, "operations": ["upload", "download"]}).run(FILE, *FOLDER)
    assert run.counts() == {"passed": 1}, run.text
    labels = ["upload", "download", "upload-2", "download-2", "upload-3", "download-3"]
    assert list(entries(run)) == [f"pool[folder:objects]#{label}" for label in labels]
    digests = [digest for path in run.folder.rglob("*.parquet") for digest in read_parquet(path).digest if digest]
    assert len(digests) == len(set(digests)) == 3 * 6
    assert files_in(lab.folder / "objects") == []


@pytest.mark.slow
def test_each_operation_ends_when_it_is_steady_and_the_next_one_has_the_files_that_there_are(lab: Lab) -> None:
    few = "from pytest_cloudbench.judge import steady\nsteady.LEAST_OPS = dict.fromkeys(steady.LEAST_OPS, 100)\n"
    (lab.folder / "conftest.py").write_text(few)
    until = {"metric": "response_p50", "within": 1.0}
    load = {**SENSORS, "ops_per_sensor": 400, "warm_up_s": 0.1, "until": until}
    run = write(lab, {**load, "operations": ["upload", "stat"]}).run(FILE, *FOLDER)
    assert run.counts() == {"passed": 1}, run.text
    up, stat = entries(run).values()
    assert up["ended"] == "steady"
    assert stat["planned_ops"] == up["ops"] + up["warm_up_ops"] < 2000
    assert stat["errors"] == {}
    assert up["until"] == {**until, "min_ops": 0}


def test_a_download_of_a_file_that_was_not_uploaded_fails(lab: Lab) -> None:
    """A lost upload makes later operations on its file fail, and their numbers show it."""
    (lab.folder / "full.toml").write_text(
        '[meta]\nname = "full"\napi = "dropbox"\ndescription = "x"\n[quota]\nbytes = 1500\n'
    )
    run = write(lab, {**POOL, "operations": ["upload", "download"]}).run(FILE, "--provider", "emulated:./full.toml")
    assert run.counts() == {"passed": 1}, run.text
    up, down = entries(run).values()
    assert (up["ok"], up["lost"], down["ok"], down["errors"]) == (5, 1, 5, {"not_found": 1})


def test_an_operation_that_never_succeeds_fails_the_test(lab: Lab) -> None:
    profile = '[meta]\nname = "down"\napi = "dropbox"\ndescription = "x"\n[faults]\nerror_rate = 1.0\n'
    (lab.folder / "down.toml").write_text(profile)
    run = write(lab, {**POOL, "operations": ["upload", "download"]}).run(FILE, "--provider", "emulated:./down.toml")
    assert run.counts() == {"failed": 1}, run.text
    assert run.lines_with("upload: none of 6 operations succeeded: server 6")
    assert [info["ok"] for info in entries(run).values()] == [0, 0], "what failed is stored"


# --- grids, names, providers ---


@pytest.mark.slow
@SPREAD
def test_a_grid_is_a_test_of_each_combination(lab: Lab, spread: Spread) -> None:
    payload = {"generator": "text"}
    sizes = {"sensors": [2, 3], "payload": {"size_bytes": [10, 20]}}
    write(lab, {**with_changes(SENSORS, ("sensors", GONE)), "payload": payload, "grid": sizes})
    run = lab.run(FILE, *FOLDER, *spread)
    assert run.counts() == {"passed": 4}, run.text
    infos = entries(run)
    assert [info["params"] for info in infos.values()] == [
        {"provider": "folder:objects", "sensors": sensors, "size_bytes": size}
        for sensors in (2, 3)
        for size in (10, 20)
    ]
    assert [(info["sensors"], info["size_bytes"], info["ok"]) for info in infos.values()] == [
        (sensors, size, 2 * sensors) for sensors in (2, 3) for size in (10, 20)
    ]
    title = run.lines_with("loss rate")[0].split("  ")
    assert title[0].strip() == "size", "rows can be told apart"
    assert lab.run(FILE, *FOLDER, *spread, "-k", "sensors:3 and size_bytes:10").counts()["passed"] == 1


@pytest.mark.slow
def test_test_names_do_not_depend_on_how_pytest_is_started(lab: Lab) -> None:
    write(lab, POOL, SENSORS, name=f"inner/{FILE}")
    (lab.folder / "pytest.ini").write_text(
        "[pytest]\npython_functions = check_*\ncollect_imported_tests = false\n"
        "cloudbench_files = *.bench.toml\naddopts = --strict-markers\n"
    )
    expected = [f"inner/{FILE}::{name}[folder:objects]" for name in ("pool", "sensors")]
    for target in (".", "inner", f"inner/{FILE}"):
        assert re.findall(r"^\S+::\S+$", lab.run(target, *FOLDER, "--collect-only", "-q").text, re.M) == expected
    for spread in ((), ("-n", "2")):
        run = lab.run(f"inner/{FILE}::pool", *FOLDER, "-v", *spread)
        assert run.lines_with(expected[0])
        assert run.counts() == {"passed": 1}


@pytest.mark.slow
def test_the_provider_option_overrides_the_files_provider(lab: Lab) -> None:
    write(lab, {**POOL, "provider": ["folder:one", "emulated:ideal"]}, {**POOL, "name": "any"})
    run = lab.run(FILE)
    assert run.counts() == {"passed": 3}, run.text
    expected = ["any[emulated:dropbox]", "pool[emulated:ideal]", "pool[folder:one]"]
    assert sorted(name.partition("#")[0] for name in entries(run)) == expected
    run = lab.run(FILE, *FOLDER, "-n", "2")
    assert [name.partition("#")[0] for name in entries(run)] == ["pool[folder:objects]", "any[folder:objects]"]


def test_other_tests_and_fixtures_of_the_folder_go_on_as_before(lab: Lab) -> None:
    lab.write(
        """
        import pytest

        @pytest.fixture(autouse=True)
        def seen(request):
            yield
            (request.path.parent / "seen.txt").open("a").write(request.node.name + "\\n")
    """,
        "conftest.py",
    )
    lab.write("def test_python(): pass")
    run = write(lab, POOL).run(*FOLDER)
    assert run.counts() == {"passed": 2}, run.text
    assert (lab.folder / "seen.txt").read_text().split() == ["test_python", "pool[folder:objects]"]


# --- traces ---

LOAD = "time,sensor,operation,size\n0,hall,put,100\n.4,hall,get,0\n0,roof,upload,200\n.4,roof,stat,0\n.5,roof,put,9\n"


@pytest.mark.slow
@SPREAD
def test_a_trace_beside_the_file_is_replayed(lab: Lab, spread: Spread) -> None:
    (lab.folder / "inner").mkdir()
    (lab.folder / "inner" / "load.csv").write_text(LOAD)
    claims = [{"metric": "loss_rate", "at_most": 0}, {"metric": "ok_rate", "at_least": 1}]
    arrival = {"process": "trace", "file": "load.csv"}
    mine = {"name": "mine", "payload": {"generator": "text"}, "arrival": arrival, "expect": claims, "repeat": 2}
    part = {**mine, "name": "part", "sensors": 1, "ops_per_sensor": 1, "repeat": 1}
    run = write(lab, mine, part, name=f"inner/{FILE}").run(f"inner/{FILE}", *FOLDER, *spread)
    assert run.counts() == {"passed": 2}, run.text
    infos = entries(run)
    assert list(infos) == ["mine[folder:objects]#trace", "mine[folder:objects]#trace-2", "part[folder:objects]#trace"]
    assert [(info["ops"], info["files"], info["ok"]) for info in infos.values()] == [(5, 3, 5), (5, 3, 5), (1, 1, 1)]
    assert all(len(info["expectations"]) == 2 and not info["expectations_unmet"] for info in infos.values())
    for path in run.folder.rglob("*mine*.parquet"):
        table = read_parquet(path)
        rows = sorted(zip(table.sensor, table.seq, [verb.value for verb in table.verb], table.size_bytes, strict=True))
        assert rows == [(0, 0, "put", 100), (0, 1, "get", 100), (1, 0, "put", 200), (1, 1, "stat", 0), (1, 2, "put", 9)]


def test_a_trace_of_another_style_is_replayed(lab: Lab) -> None:
    """It has calendar times, another order of columns and rows, Windows' mark and line ends, comments and blanks."""
    rows = ["# made by somebody", "size, operation, sensor, time", "7,put,cold store,1700000002.5", "",
            '9,PUT,"a, b",1700000000', "0,download,cold store,1700000006"]  # fmt: skip
    (lab.folder / "other.csv").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(rows).encode())
    arrival = {"process": "trace", "file": "other.csv", "scale": 10, "from_first": True}
    run = write(lab, {"name": "other", "payload": {"generator": "random"}, "arrival": arrival}).run(FILE, *FOLDER)
    assert run.counts() == {"passed": 1}, run.text
    [info] = entries(run).values()
    assert (info["ops"], info["ok"], info["files"], info["lost"]) == (3, 3, 2, 0)
    assert 0.6 <= info["elapsed"] < 5


def test_a_trace_that_ships_is_replayed(lab: Lab) -> None:
    arrival = {"process": "trace", "file": "iot-hour", "scale": 1e6}
    experiment = {"name": "hour", "sensors": 4, "ops_per_sensor": 3, "payload": {"generator": "random"}}
    run = write(lab, {**experiment, "arrival": arrival}).run(FILE, *FOLDER)
    assert run.counts() == {"passed": 1}, run.text
    [info] = entries(run).values()
    assert info["ops"] == 12
    assert "iot-hour" in info["arrival"]


# --- expectations ---


@pytest.mark.slow
@SPREAD
def test_broken_expectations_are_one_report_after_all_is_measured(lab: Lab, spread: Spread) -> None:
    claims = [
        {"metric": "ok_rate", "at_most": 0.5, "operation": "upload", "source": "our contract"},
        {"metric": "loss_rate", "at_most": 0.5},
        {"metric": "first_byte_p50", "at_most": 0},
        {"metric": "ok_rate", "at_most": 0.25, "operation": "delete"},
        {"metric": "ok_rate", "at_most": 0.1, "provider": "emulated:ideal"},
    ]
    write(lab, {**POOL, "operations": ["upload", "download", "delete"], "repeat": 2, "expect": claims})
    run = lab.run(FILE, *FOLDER, *spread)
    assert (run.counts(), run.status) == ({"failed": 1}, 1)
    report = run.text.partition("= FAILURES =")[2].partition("= cloudbench =")[0]
    broken = re.findall(r"^([a-z]+(?:-2)?): (\S+ <= \S+) \((.*?), 2\d\d\d-\d\d-\d\d\): broken, measured", report, re.M)
    first = [("upload", "ok_rate <= 0.5", "our contract"), ("download", "first_byte_p50 <= 0", FILE),
             ("delete", "ok_rate <= 0.25", FILE)]  # fmt: skip
    assert broken == [*first, *[(f"{label}-2", claim, source) for label, claim, source in first]]
    infos = entries(run)
    assert len(infos) == 6
    met = [line for info in infos.values() for line in info["expectations"] if line.endswith("met, measured 0")]
    assert len(met) == 2, "loss_rate, which holds in both rounds"
    assert "Traceback" not in run.text


@pytest.mark.slow
def test_an_expectation_that_cannot_be_judged_is_inconclusive(lab: Lab) -> None:
    claims = [{"metric": "ok_rate", "at_least": 0.5}, {"metric": "failed_rate", "at_most": 0.5}]
    write(lab, {**POOL, "expect": claims}, {**SENSORS, "operations": ["upload", "download"], "expect": claims})
    line = [number for number, text in enumerate((lab.folder / FILE).read_text().splitlines(), 1) if "[[" in text][1]
    run = lab.run(FILE, *FOLDER, "--max-ops", "8", "-rs")
    assert run.counts() == {"passed": 1, "skipped": 1}, run.text
    assert run.lines_with(f"{FILE}:{line}: inconclusive: upload: ok_rate >= 0.5")
    assert run.lines_with("upload: failed_rate <= 0.5")
    assert not run.lines_with("download: ok_rate"), "it reads the files that were uploaded, and no more"
    assert len(run.lines_with("--max-ops 8 is used up")) >= 2
    strict = lab.run(FILE, *FOLDER, "--max-ops", "8", "--cloudbench-fail", "ok_rate:0.5")
    assert strict.counts() == {"passed": 1, "failed": 1}, "a gate that cannot be judged fails"


def test_expectations_apply_only_to_their_provider_and_grid_point(lab: Lab) -> None:
    def limit_ok_rate(provider: str, where: dict[str, int]) -> dict[str, Any]:
        return {"metric": "ok_rate", "at_most": 0.5, "provider": provider, "where": where}

    claims = [limit_ok_rate("folder:objects", {"threads": 2}), limit_ok_rate("emulated:ideal", {"threads": 1})]
    write(lab, {**with_changes(POOL, ("threads", GONE)), "grid": {"threads": [1, 2]}, "expect": claims})
    run = lab.run(FILE, *FOLDER, *IDEAL)
    assert run.counts() == {"passed": 2, "failed": 2}, run.text
    failed = set(re.findall(r"^FAILED \S+::(\S+)", run.text, re.M))
    assert failed == {"pool[folder:objects-threads:2]", "pool[emulated:ideal-threads:1]"}


@pytest.mark.slow
def test_every_metric_that_can_be_expected_is_judged(lab: Lab) -> None:
    claims = [{"metric": metric, "at_least": 0} for metric in METRICS]
    write(lab, {**POOL, "operations": [*OPERATIONS], "expect": claims})
    run = lab.run(FILE, *IDEAL)
    judged = {line.partition(" ")[0] for info in entries(run).values() for line in info["expectations"]}
    assert judged == set(METRICS)
    assert run.counts() == {"skipped": 1}, "not everything has a value, such as the times of refused operations"


# --- stored results ---


@pytest.mark.slow
def test_named_files_are_stored_and_compared_without_further_options(lab: Lab) -> None:
    write(lab, POOL)
    first = lab.run(FILE, *FOLDER, "--cloudbench-fail", "response_p99:100000%")
    assert first.lines_with("gate response_p99:100000%: no baseline yet")
    assert "Legend:" not in first.text, "there is one table"
    [stored] = (lab.folder / "results").rglob("0001_*.json")
    assert json.loads(stored.read_text())["benchmarks"][0]["fullname"] == f"{FILE}::pool[folder:objects]#upload"
    second = lab.run(FILE, *FOLDER, "--cloudbench-fail", "response_p99:100000%")
    assert second.lines_with("of the compared run")
    assert second.status == 0
    (lab.folder / "expectations.toml").write_text("this is somebody else's\n")
    assert lab.run(FILE, *FOLDER).status == 0


@pytest.mark.parametrize(
    ("pattern", "is_collected"),
    [("*.bench.toml", True), ("loads/*.bench.toml", True), ("*/loads/x.*", True), ("other/*.bench.toml", False),
     ("*.toml other/*", True), ("loads", False)],
)  # fmt: skip
def test_files_are_found_by_patterns_of_names_and_of_paths(lab: Lab, pattern: str, is_collected: bool) -> None:
    write(lab, POOL, name=f"loads/{FILE}")
    run = lab.run("loads", *FOLDER, "--collect-only", "-q", "-o", f"cloudbench_files={pattern}", store=False)
    assert bool(run.lines_with(f"loads/{FILE}::pool")) == is_collected, run.text


@pytest.mark.parametrize(
    ("args", "is_so"),
    [([], False), (["."], False), (["a.bench.toml"], True), (["a.bench.toml::x[p]", "b/c.bench.toml"], True),
     (["a.bench.toml", "test_b.py"], False), (["bench.toml"], False), (["old.conf"], True), (["setup.cfg"], False),
     (["old.conf::x", "setup.cfg"], False)],
)  # fmt: skip
def test_command_line_with_only_config_files_is_recognized(args: list[str], is_so: bool, tmp_path: Path) -> None:
    (tmp_path / "old.conf").write_text("[test]\n[driver]\n")
    (tmp_path / "setup.cfg").write_text("[metadata]\n")
    assert has_only_config_files(args, tmp_path) == is_so


def test_a_session_without_bench_files_imports_no_collector() -> None:
    code = (
        "import sys, pytest_cloudbench.plugin as plugin, pathlib\n"
        "print([plugin.pytest_collect_file(pathlib.Path(name), None) for name in ('bench.toml', 'test_x.py')])\n"
        "print(*sorted(name for name in sys.modules if name.startswith('pytest_cloudbench')))\n"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    collected, loaded = output.splitlines()
    assert collected == "[None, None]"
    assert loaded.split() == [
        f"pytest_cloudbench{name}" for name in ("", ".plugin", ".plugin.collect", ".plugin.options")
    ]


# --- invalid files ---

TRACED = {"name": "t", "payload": {"generator": "text"}, "arrival": {"process": "trace", "file": "t.csv"}}
HEAD = "time,sensor,operation,size\n"
WRONG: dict[str, tuple[str | bytes, str, str]] = {
    # file: its text, the text of t.csv, the message
    "key": (document({**POOL, "threads": "2"}), "", "experiment[0].threads: expected a whole number from 1 to 1000, "
            "found '2'; write it without quotes"),
    "process": (document({**SENSORS, "arrival": {"process": "threads", "count": 4}}), "",
                "experiment[0].arrival.process: expected no table arrival with threads; write threads = 4"),
    "metric": (document({**POOL, "expect": [{"metric": "knee_threads", "at_most": 4}]}), "",
               "experiment[0].expect[0].metric: expected one of loss_rate"),
    "profile": (document(POOL, {**POOL, "name": "b", "provider": ["folder:x", "emulated:nope"]}), "",
                "experiment[1].provider: profile 'nope': expected one of"),
    "driver": (document({**POOL, "provider": "nope:x"}), "", "experiment[0].provider: provider 'nope': no driver"),
    "claim": (document({**POOL, "expect": [{"metric": "ok_rate", "at_least": 1, "provider": "emulated:nope"}]}), "",
              "experiment[0].expect[0].provider: profile 'nope'"),
    "name": (document({**POOL, "name": "pytestmark"}), "", "expected a name that does not begin with pytest"),
    "toml": ("[[experiment]\n", "", "is not valid TOML"),
    "utf16": (document(POOL).encode("utf-16"), "", "expected a text in UTF-8, it is UTF-16; save it as UTF-8"),
    "latin1": (b"# gr\xfc\xdfe\n" + document(POOL).encode(), "", "expected a text in UTF-8, byte 4 does not belong"),
    "gone": (document({**TRACED, "arrival": {"process": "trace", "file": "no.csv"}}), "",
             "experiment[0].arrival.file: no.csv: cannot be read"),
    "sizes": (document({**POOL, "payload": {"generator": "mixed", "distribution": "empirical", "file": "no.txt"}}), "",
              "experiment[0].payload.file: expected a payload: no.txt: cannot be read"),
    "row": (document(TRACED), HEAD + "0,a,put,5\n1,a,fly,0\n",
            "experiment[0].arrival.file: t.csv: line 3, column 3 (operation): 'fly': expected one of"),
    "delete": (document(TRACED), HEAD + "0,a,put,5\n1,a,delete,0\n", "operation 2 of sensor 0 is delete; only put"),
    "epoch": (document(TRACED), HEAD + "1700000000,a,put,5\n", "experiment[0].arrival.from_first: <t.csv, "),
    "get": (document(TRACED), HEAD + "0,a,get,5\n1,a,put,5\n", "operation 1 of sensor 0 is get, but the sensor"),
}  # fmt: skip


@SPREAD
def test_wrong_file_is_refused_in_one_line_and_others_are_collected(lab: Lab, spread: Spread) -> None:
    for name, (text, trace, _) in WRONG.items():
        folder = lab.folder / name
        folder.mkdir()
        (folder / f"{name}.bench.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
        (folder / "t.csv").write_text(trace)
    write(lab, POOL)
    run = lab.run(*spread, "--collect-only")
    assert run.counts()["errors"] == len(WRONG), run.text
    assert run.status == pytest.ExitCode.INTERRUPTED, "as for any error of collection"
    for name, (_, _, words) in WRONG.items():
        [line] = run.lines_with(f"{name}.bench.toml: ")
        assert words in line
        assert line.startswith(f"{name}.bench.toml: ")
    assert "Traceback" not in run.text
    assert not re.findall(r"^E  ", run.text, re.M)


def test_the_files_provider_is_not_checked_if_the_command_line_has_one(lab: Lab) -> None:
    run = write(lab, {**POOL, "provider": "emulated:nope"}).run(FILE, *FOLDER)
    assert run.counts() == {"passed": 1}, run.text


def test_unused_rows_of_a_trace_are_not_checked(lab: Lab) -> None:
    (lab.folder / "t.csv").write_text(HEAD + "0,0,put,5\n1,0,delete,0\n")
    run = write(lab, {**TRACED, "sensors": 1, "ops_per_sensor": 1}).run(FILE, *FOLDER)
    assert run.counts() == {"passed": 1}, run.text


@pytest.mark.slow
def test_missing_credentials_fail_only_the_tests_that_need_them(lab: Lab) -> None:
    write(lab, {**POOL, "provider": "dropbox"}, {**POOL, "name": "other", "provider": "folder:objects"})
    run = lab.run(FILE, env={"XDG_CONFIG_HOME": str(lab.folder), "HOME": str(lab.folder)})
    assert run.counts() == {"passed": 1, "failed": 1}, run.text
    assert run.lines_with("dropbox: no credentials found")
    assert lab.run(FILE, "-k", "other").status == 0


# --- generated files ---


def random_experiment(chance: Random, number: int) -> dict[str, Any]:
    """Return an experiment with a random generator, load, operations and claims that takes less than a second."""
    interval = {"interval_s": chance.choice([0.001, 0.01, 0.03])}
    arrival = chance.choice([
        {"process": "fixed", **interval, "first_delay_max_s": chance.choice([0, 0.02])},
        {"process": "uniform", **interval},
        {"process": "jittered", **interval, "jitter_s": 0.01},
        {"process": "poisson", **interval},
        {"process": "lognormal", **interval, "sigma": chance.choice([0, 1])},
        {"process": "bursts", **interval, "on_s": 0.05, "off_s": 0.05},
        {"process": "diurnal", **interval, "curve": [1, 3, 2], "period_s": 0.5},
        {"process": "think", **interval},
        {"process": "trace", "file": "load.csv", "scale": 3, "from_first": chance.random() < 0.5},
    ])  # fmt: skip
    payload = dict(chance.choice(PAYLOADS))
    experiment: dict[str, Any] = {"name": f"any-{number}", "payload": payload, "repeat": chance.choice([1, 1, 2])}
    if arrival["process"] == "trace":
        payload.pop("size_bytes", None)
        return {**experiment, "arrival": arrival}
    words = chance.sample([*OPERATIONS], chance.randint(1, 4))
    experiment["operations"] = sorted(words, key=[*OPERATIONS].index)
    claims = chance.sample([*METRICS], 2)
    experiment["expect"] = [{"metric": metric, "at_least": 0} for metric in claims]
    if chance.random() < 0.3:
        return {**experiment, "threads": chance.randint(1, 9), "files": chance.randint(1, 9)}
    sensors: dict[str, Any] = {"ops_per_sensor": chance.randint(1, 3), "arrival": arrival}
    if chance.random() < 0.3:
        return {**experiment, **sensors, "grid": {"sensors": chance.sample(range(1, 9), 2)}}
    return {**experiment, **sensors, "sensors": chance.randint(1, 9)}


def is_valid(experiment: Mapping[str, Any]) -> bool:
    try:
        parse_bench(document(experiment), FILE, FILES.__getitem__)
    except ConfigError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "spread"), [(3, ()), (2, ("-n", "2"))], ids=["alone", "two"])
def test_random_files_run_or_are_refused(lab: Lab, seed: int, spread: Spread) -> None:
    for name, text in FILES.items():
        (lab.folder / name).write_text(text)
    chance = Random(seed)
    experiments = [random_experiment(chance, number) for number in range(20)]
    valid_experiments = [experiment for experiment in experiments if is_valid(experiment)]
    assert len(valid_experiments) >= 10
    run = write(lab, *valid_experiments).run(FILE, *IDEAL, "-rA", *spread)
    assert run.leftovers == []
    counts = outcomes(run.text)
    tests = sum(len(experiment.get("grid", {"": [1]}).popitem()[1]) for experiment in valid_experiments)
    assert run.counts().get("failed", 0) == run.counts().get("errors", 0) == 0, run.text
    assert sum(run.counts().values()) == tests, "each has passed, or is inconclusive"
    assert counts["PASSED"] >= tests // 4
    for info in entries(run).values():
        assert info["ops"] == info["ok"] + info["throttled"] + info["failed"] + info["corrupt"]
        assert info["failed"] == info["corrupt"] == 0, info


@pytest.mark.slow  # docs/reference/bench-files.md has its command, which is tested in every run
def test_the_example_runs_as_it_is_written(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(lab.folder)
    assert cli.main(["new"]) == 0
    run = lab.run("experiment.bench.toml", *IDEAL)
    assert run.counts() == {"passed": 3}, run.text
    assert run.lines_with("2 expectations met")
    shutil.copy("experiment.bench.toml", "second.bench.toml")
    assert lab.run("--collect-only", "-q").text.count("readings[emulated:dropbox]") == 2
