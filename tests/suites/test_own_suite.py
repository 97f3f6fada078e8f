"""A suite in somebody else's project: a figure, a conclusion, a title, a published table and an option of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fleet.harness import FOLDER, FinishedRun, Lab
from tests.results.test_suite import write_entry_points
from tests.runs import SPREAD, Spread

DECLARED = """
'''What does a photo cost?'''

from pytest_cloudbench import Curve, Metric, PublishedTable, Suite

CLOUDBENCH_SUITE = Suite(
    "photos",
    figures=(Curve(test="test_photo", x="photo_bytes", y="photo_cost", title="Cost over size", caption="Flat."),),
    conclusions={"photo_cost": Metric("s", "higher", time_like=True)},
    columns={"photo_cost": "costs so much"},
    published=(
        PublishedTable(
            name="album-2020-table-1", test="test_photo", metric="photo_cost", of="cost of a photo", unit="ms",
            source="An album", date="2020", rows=(({"times": 1}, 20.0), ({"times": 2}, 30.0)), scale=1000.0,
        ),
    ),
)
"""
OPTIONS = """
from pytest_cloudbench import Option, add_suite_options

def pytest_addoption(parser):
    option = Option("--photo-bytes", {"type": int, "default": 100, "help": "how large"}, "1 or more", lambda n: n > 0)
    add_suite_options(parser, "photos", (option,))
"""
TEST = """
import pytest
from pytest_cloudbench import Threads

@pytest.mark.parametrize("times", [1, 2])
def test_photo(experiment, payloads, pytestconfig, times):
    photo_bytes = times * pytestconfig.option.cloudbench_photo_bytes
    run = experiment.run(payloads.random(photo_bytes), arrival=Threads(2), files=4, store=False)
    experiment.conclude(
        {"photo_cost": run["response_p50"]}, [run["elapsed"]], stats_of="elapsed time",
        columns=("photo_bytes", "photo_cost"), extra={"photo_bytes": photo_bytes},
    ).check()
"""
PUT = """
from pytest_cloudbench import Threads

def test_put(experiment, payloads):
    experiment.run(payloads.random(10), arrival=Threads(2), files=4)
"""
MARGIN = """
[tool.cloudbench.gate]
photo_cost = 0.05
"""
CLAIM = """
[[expect]]
provider = "folder:objects"
metric = "photo_cost"
at_least = 0.0
source = "it cannot be quicker"
date = 2026-11-26
"""
ADOPT = """
from pathlib import Path
from pytest_cloudbench import adopt_suites

def pytest_configure(config):
    adopt_suites(config, Path(__file__).parent)
"""


def write_project(lab: Lab, declared: str = DECLARED) -> None:
    package = lab.folder / "photos"
    package.mkdir()
    for name, text in (("__init__", declared), ("conftest", OPTIONS), ("test_photo", TEST)):
        (package / f"{name}.py").write_text(text)
    (lab.folder / "claims.toml").write_text(CLAIM)


def run_command(lab: Lab, *words: str, path: str = "") -> str:
    """Return the output of a command, in the project's folder but without the project, unless ``path`` leads to it."""
    path = os.pathsep.join(filter(None, [path, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest_cloudbench.commands.cli", *words],
        cwd=lab.folder, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def entry(run: FinishedRun, times: int) -> dict[str, Any]:
    return {**run.info(f"test_photo[folder:objects-{times}]")}


@SPREAD
def test_own_suite_has_all_features_of_shipped_suites(lab: Lab, spread: Spread) -> None:
    write_project(lab)
    run = lab.run(
        "photos", *FOLDER, *spread, "--photo-bytes", "1000", "-ocloudbench_expectations=claims.toml",
        "--cloudbench-fail=photo_cost:0", "--cloudbench-report=now.html",
    )  # fmt: skip
    assert run.counts() == {"passed": 2}, run.text
    assert run.lines_with("costs so much"), run.text
    assert run.lines_with("2 expectations met"), run.text
    assert run.lines_with("gate photo_cost:0: "), run.text
    assert entry(run, 2)["photo_bytes"] == 2000
    suite = entry(run, 2)["suite"]
    assert suite["name"] == "photos"
    assert suite["published"][0]["rows"] == [[{"times": 2}, 30.0]]
    (lab.folder / "photos").rename(lab.folder / "gone")  # the report is made elsewhere, from the file alone
    run_command(lab, "report", "out.json", "--output", "later.html")
    for name in ("now.html", "later.html"):
        page = (lab.folder / name).read_text("utf-8")
        assert "Cost over size" in page
        assert "Published beside measured: cost of a photo" in page
        assert "An album (2020)" in page
    exported = run_command(lab, "export", "--format", "openmetrics", "--metric", "photo_cost", "out.json")
    assert "higher is better" in exported


@pytest.mark.parametrize("path", ["photos", "."])
def test_adopted_suites_are_judged_by_their_own_expectations(lab: Lab, path: str) -> None:
    """Whether pytest calls their ``pytest_configure`` before or after this plugin's, or only when it collects them."""
    write_project(lab)
    (lab.folder / "photos" / "conftest.py").write_text(OPTIONS + ADOPT)
    (lab.folder / "photos" / "expectations.toml").write_text(CLAIM.replace("0.0", "60.0"))
    albums = lab.folder / "albums"
    albums.mkdir()
    test = TEST.replace("pytestconfig.option.cloudbench_photo_bytes", "100").replace("photo", "album")
    for name, text in (("__init__", DECLARED.replace("photo", "album")), ("conftest", ADOPT), ("test_album", test)):
        (albums / f"{name}.py").write_text(text)
    (albums / "expectations.toml").write_text(CLAIM.replace("0.0", "70.0").replace("photo", "album"))
    run = lab.run(path, *FOLDER, *(["albums"] if path == "photos" else []))
    assert run.counts() == {"failed": 4}, run.text
    for claim in ("photo_cost >= 60", "album_cost >= 70"):
        assert run.lines_with(f"{claim} (it cannot be quicker, 2026-11-26): broken"), run.text


def test_wrong_expectations_of_a_suite_that_pytest_comes_to_late_are_named(lab: Lab) -> None:
    write_project(lab)
    (lab.folder / "photos" / "conftest.py").write_text(OPTIONS + ADOPT)
    (lab.folder / "photos" / "expectations.toml").write_text(CLAIM.replace("photo_cost", "photo_costs"))
    run = lab.run(".", *FOLDER, store=False)
    assert run.counts() == {"error": 1}, run.text
    assert run.lines_with("expect[0].metric: unknown metric 'photo_costs'; did you mean photo_cost?"), run.text


def test_workers_do_not_pass_a_suite_that_the_controller_cannot_judge(lab: Lab) -> None:
    write_project(lab)
    (lab.folder / "photos" / "conftest.py").write_text(OPTIONS + ADOPT)
    (lab.folder / "photos" / "expectations.toml").write_text(CLAIM.replace("0.0", "60.0"))
    run = lab.run(".", *FOLDER, "-n2", store=False)
    assert run.status == 1, run.text
    assert run.lines_with("with -n, nothing is judged by it unless the command line names its folder"), run.text
    run = lab.run("photos", *FOLDER, "-n2")
    assert run.counts() == {"failed": 2}, run.text


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("is_installed", [False, True])
def test_commands_know_a_suite_that_the_last_session_did_not_run(lab: Lab, is_installed: bool) -> None:
    write_project(lab)
    (lab.folder / "pyproject.toml").write_text(MARGIN)
    (lab.folder / "test_put.py").write_text(PUT)
    store = (*FOLDER, "--benchmark-autosave")
    assert lab.run("photos", *store, "-k", "1").counts()["passed"] == 1
    run_command(lab, "baseline", "list")  # which makes the index: the first run is not read again
    assert lab.run("test_put.py", *store).counts() == {"passed": 1}
    gated = lab.run("test_put.py", *FOLDER, "--cloudbench-gate")
    assert gated.counts() == {"skipped": 1}, gated.text  # one run is too few to judge
    assert not gated.lines_with("is not used"), "a stored run declares the metric of the margin"
    (lab.folder / "photos").rename(lab.folder / ("photos" if is_installed else "gone"))
    path = ""
    if is_installed:
        write_entry_points(lab.folder, "photos = photos:CLOUDBENCH_SUITE")
        path = str(lab.folder)
    test = "photos/test_photo.py::test_photo[folder:objects-1]"
    assert f"{test}: 1 run, and 10 are needed" in run_command(lab, "gate", "power", path=path)
    assert "0 of 0 sessions" in run_command(lab, "gate", "backtest", path=path)
    for words in (("history",), ("baseline", "show")):
        (line,) = [line for line in run_command(lab, *words, path=path).splitlines() if test in line]
        assert line.split()[1] == "photo_cost"
    run_command(lab, "report", "last", path=path)


def test_two_sides_can_be_compared_by_a_conclusion_of_its_own(lab: Lab) -> None:
    write_project(lab)
    versus = ("--cloudbench-versus", "folder:other", "--collect-only")
    compared = lab.run("photos", *FOLDER, *versus, "-ocloudbench_versus_metric=photo_cost", store=False)
    assert compared.status == 0, compared.text
    refused = lab.run("photos", *FOLDER, *versus, "-ocloudbench_versus_metric=photo_costs", store=False)
    assert refused.lines_with("photo_costs: no such metric; did you mean photo_cost?"), refused.text


def test_a_margin_of_a_suite_that_nothing_here_declares_is_named_and_not_used(lab: Lab) -> None:
    (lab.folder / "pyproject.toml").write_text(MARGIN)
    (lab.folder / "test_put.py").write_text(PUT)
    note = "tool.cloudbench.gate: photo_cost is not used: no loaded suite and no stored run has such a metric"
    gated = lab.run("test_put.py", *FOLDER, "--cloudbench-gate", "--benchmark-autosave")
    assert gated.counts() == {"skipped": 1}, gated.text
    assert gated.lines_with(note)
    assert "test_put[folder:objects]: 1 run, and 10 are needed" in run_command(lab, "gate", "power")


def test_a_suite_may_change_what_its_conclusion_means(lab: Lab) -> None:
    for better in ("higher", "lower"):
        text = DECLARED.replace("higher", better) + TEST.replace("pytestconfig.option.cloudbench_photo_bytes", "100")
        (lab.folder / "test_photo.py").write_text(text)
        run = lab.run("test_photo.py", *FOLDER, "--cloudbench-gate")
        assert run.counts() == {"skipped": 2}, run.text  # there are too few runs to judge
        assert entry(run, 1)["suite"]["conclusions"]["photo_cost"]["better"] == better


def test_options_are_known_if_the_suite_is_named_as_a_package(lab: Lab) -> None:
    write_project(lab)
    (lab.folder / "elsewhere").mkdir()
    arguments = ("--rootdir=elsewhere", "--pyargs", "photos.test_photo", *FOLDER, "--photo-bytes", "1000")
    path = os.pathsep.join(filter(None, [str(lab.folder), os.environ.get("PYTHONPATH")]))
    run = lab.run(*arguments, env={"PYTHONPATH": path})
    assert run.status == 0, run.text
    assert entry(run, 2)["photo_bytes"] == 2000


@pytest.mark.slow
def test_a_suite_is_stored_under_the_same_names_however_pytest_is_called(lab: Lab) -> None:
    write_project(lab)
    by_path = lab.run("photos", *FOLDER)
    elsewhere = lab.folder / "elsewhere"
    elsewhere.mkdir()
    installed = {"PYTHONPATH": str(lab.folder)}
    by_name = lab.run("--rootdir=elsewhere", "--pyargs", "photos", *FOLDER, env=installed)
    names = {"photos/test_photo.py::test_photo[folder:objects-1]", "photos/test_photo.py::test_photo[folder:objects-2]"}
    for run in (by_path, by_name):
        assert run.counts() == {"passed": 2}, run.text
        assert {stored["fullname"] for stored in run.document["benchmarks"]} == names


@pytest.mark.slow
def test_published_values_are_shown_beside_an_installed_suite(lab: Lab) -> None:
    """In a folder that contains neither a checkout nor the environment."""
    arguments = ("--pyargs", "pytest_cloudbench.suites.iot", "-k", "test_table_4_2", "--time-scale=50")
    run = lab.run(*arguments, "--cloudbench-report=now.html", "-o", "testpaths=")
    stored = [entry["fullname"] for entry in run.document["benchmarks"]]
    assert stored == ["suites/iot/test_iot.py::test_table_4_2[50-1s-emulated:dropbox-2014]"], run.text
    table = run_command(lab, "published", "thesis-2014-table-4.2", "--run", "out.json")
    measured = [line for line in table.splitlines() if line.split()[:2] == ["50", "1"]]
    assert len(measured) == 1
    assert not measured[0].rstrip().endswith("-"), table
    assert "Loss rate" in (lab.folder / "now.html").read_text("utf-8")


def test_a_stranger_may_not_redefine_a_metric(lab: Lab) -> None:
    write_project(lab, DECLARED.replace("photo_cost", "loss_rate"))
    run = lab.run("photos", *FOLDER)
    assert run.counts() == {"errors": 2}, run.text
    assert "suite photos: loss_rate: another metric has that name" in run.text


def test_single_test_file_declares_its_own_conclusions(lab: Lab) -> None:
    (lab.folder / "test_photo.py").write_text(
        DECLARED + TEST.replace("pytestconfig.option.cloudbench_photo_bytes", "100")
    )
    run = lab.run("test_photo.py", *FOLDER)
    assert run.counts() == {"passed": 2}, run.text
    assert entry(run, 1)["suite"]["conclusions"] == {
        "photo_cost": {"unit": "s", "better": "higher", "time_like": True, "gated": ""}
    }


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("suite", ["no dictionary", {"name": "photos", "figures": [{"kind": "Curve"}, 5]}])
def test_malformed_suite_in_a_results_file_is_tolerated(lab: Lab, suite: object) -> None:
    write_project(lab)
    run = lab.run("photos", *FOLDER, "-k", "2")
    document = json.loads((lab.folder / "out.json").read_text())
    document["benchmarks"][0]["extra_info"]["suite"] = suite
    (lab.folder / "odd.json").write_text(json.dumps(document))
    run_command(lab, "report", "odd.json", "--output", "odd.html")
    assert "test_photo" in Path(run.folder, "odd.html").read_text("utf-8")


@SPREAD
def test_a_margin_of_a_suite_that_is_named_nearly_like_a_metric_is_no_misspelt_one(lab: Lab, spread: Spread) -> None:
    """The suite is in no file that pytest loads before it collects, and no run of it is stored."""
    write_project(lab, DECLARED.replace("photo_cost", "quiet_p5"))
    (lab.folder / "photos" / "conftest.py").unlink()
    test = TEST.replace("photo_cost", "quiet_p5").replace("pytestconfig.option.cloudbench_photo_bytes", "100")
    (lab.folder / "photos" / "test_photo.py").write_text(test)
    (lab.folder / "broken.py").write_text("CLOUDBENCH_SUITE = 1 / 0\n")
    (lab.folder / "pyproject.toml").write_text('[tool.cloudbench.gate]\nquiet_p5 = "10%"\n')
    gated = lab.run(".", *FOLDER, *spread, "--cloudbench-gate")
    assert gated.counts() == {"skipped": 2}, gated.text  # one run is too few to judge
    assert not gated.lines_with("tool.cloudbench.gate"), gated.text
    (lab.folder / "pyproject.toml").write_text('[tool.cloudbench.gate]\nquiet_p05 = "10%"\n')
    refused = lab.run(".", *FOLDER, *spread, "--cloudbench-gate", store=False)
    assert refused.status == 4, refused.text
    assert refused.lines_with("tool.cloudbench.gate: quiet_p05: no such metric; did you mean quiet_p")


def test_a_run_with_other_options_of_its_suite_is_no_baseline(lab: Lab) -> None:
    """A conclusion does not have the load of its runs, but its suite's options and the grid decide on that."""
    write_project(lab)
    bounds = (*FOLDER, "--cloudbench-fail=photo_cost:99%", "-k", "objects-1")

    def remark(*options: str) -> str:
        run = lab.run("photos", *bounds, *options)
        return str(entry(run, 1)["expectations"][0]).removeprefix("gate photo_cost:99%: ")

    assert remark() == "no baseline yet"
    for given in ("--photo-bytes 5000", "--grid paper"):
        expected = f"no baseline: the stored run differed in suite_options (None, here {given})"
        assert remark(*given.split()) == expected
        (latest,) = lab.folder.glob("results/*/0002_*.json")
        latest.unlink()
    assert "of the compared run" in remark("--photo-bytes", "100")
