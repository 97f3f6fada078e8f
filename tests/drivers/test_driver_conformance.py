"""The shipped conformance suite on every driver of the package, as a user runs it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench import drivers, providers
from pytest_cloudbench.model import ProviderSpec, SpecError, UsageError
from tests.fleet.harness import FinishedRun, Lab, lab_in
from tests.suites.harness import profile

from .conformance_table import ALSO, TABLE, WEBDAV_SERVERS

ALWAYS = frozenset(
    "driver_has_the_interface_and_names_its_versions capabilities_make_sense_together unknown_parameter_is_refused "
    "round_trip names malformed_paths_are_invalid the_root_is_listed every_page_of_a_listing_is_read "
    "delete_removes_a_tree not_found sixteen_threads any_order".split()
)
"""Tests that run for every driver."""

SLOW = frozenset({"azure", "opendal", "raid", "rclone", "s3+fast", "swift", "tahoe"})
"""Drivers whose conformance tests take long. They have quick tests of their own that use each verb once."""

SUITE = str(Path(__file__).resolve().parents[2] / "suites" / "conformance")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with lab_in(tmp_path) as new_lab:
        yield new_lab


def spec_of(scheme: str, lab: Lab) -> str:
    """Return the provider of a scheme's row. Skip the test where its server is not installed."""
    return require_installed(TABLE[scheme].format(folder=lab.folder, here=Path(__file__).parent))


def require_installed(spec: str) -> str:
    """Return the provider. Skip the test where the server that stands in for it is not installed."""
    try:
        providers.resolve(spec)
    except UsageError as error:
        if "not installed" not in str(error):
            raise
        pytest.skip(str(error))
    return spec


def conform(lab: Lab, *args: str, env: dict[str, str | None] | None = None, timeout_s: float = 300) -> FinishedRun:
    """Run the suite to its end, with a journal of its own."""
    journal = {"CLOUDBENCH_JOURNAL": str(lab.folder / "journal.jsonl")}
    timeout_option = ("-o", f"faulthandler_timeout={timeout_s:g}")  # the repository's own limit is for its own tests
    return lab.run(
        SUITE, "-rA", "--tb=short", *timeout_option, *args, env={**journal, **(env or {})}, timeout_s=timeout_s
    )


def conformance_runs() -> Iterator[Any]:
    """Yield every driver without workers, and with two of them.

    Runs without workers are the cheapest. With workers, only one driver without an SDK and one with an SDK are quick.
    """
    for scheme in drivers.schemes():
        yield pytest.param(scheme, "0", marks=pytest.mark.slow if scheme in SLOW else ())
        yield pytest.param(scheme, "2", marks=() if scheme in ("dropbox", "folder") else pytest.mark.slow)


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize(("scheme", "workers"), [*conformance_runs()])
def test_conformance(scheme: str, workers: str, lab: Lab) -> None:
    spec = spec_of(scheme, lab)
    patience_s = 3000 if scheme == "tahoe" else 120  # a grid makes a key for each folder: 20 minutes on a busy machine
    run = conform(
        lab, "--provider", spec, "-n", workers, f"-ocloudbench_patience={patience_s}", timeout_s=300 + patience_s
    )
    assert (run.status, run.leftovers) == (0, []), run.text
    # Tests of undeclared abilities and of large uploads may be skipped. Any other skip is a gap.
    reasons = {line.rpartition(": ")[0].rpartition(": ")[2] for line in run.lines_with("SKIPPED")}
    assert reasons <= {"not declared", "left to --grid paper"}, run.text
    assert set(re.findall(r"^PASSED \S+::test_(\w+)", run.text, re.M)) >= ALWAYS
    assert_nothing_is_left(run)


@pytest.mark.slow
@pytest.mark.parametrize("spec", ALSO)
def test_conformance_of_a_driver_for_many_services(spec: str, lab: Lab) -> None:
    """There are no random sequences, since some of rclone's pacers let only ten requests a second pass."""
    run = conform(lab, "--provider", require_installed(spec), "-n", "2", "-k", "not any_order", timeout_s=500)
    assert (run.status, run.leftovers) == (0, []), run.text
    assert set(re.findall(r"^PASSED \S+::test_(\w+)", run.text, re.M)) >= ALWAYS - {"any_order"}
    assert_nothing_is_left(run)


@pytest.mark.slow
@pytest.mark.parametrize("name", WEBDAV_SERVERS)
def test_conformance_on_other_webdav_servers(name: str, lab: Lab) -> None:
    if name == "sabre" and not Path("/usr/share/php/Sabre").is_dir():
        pytest.skip("sabre/dav is not installed: run cloudbench testbed install sabre")
    run = conform(lab, "--provider", require_installed(f"local:{name}"), "-n", "0")
    assert (run.status, run.leftovers) == (0, []), run.text
    assert set(re.findall(r"^PASSED \S+::test_(\w+)", run.text, re.M)) >= ALWAYS
    assert_nothing_is_left(run)


def assert_nothing_is_left(run: FinishedRun) -> None:
    """Check that no file, no note in the journal, no entry and no record is left, since nothing was measured."""
    assert run.entries == {}
    assert not [*run.folder.rglob("*.parquet"), *run.folder.rglob("*.oplog")]
    assert list((run.folder / "objects").rglob("*")) == []
    journal = run.folder / "journal.jsonl"
    assert not journal.exists() or journal.read_bytes() == b""


def test_a_real_account_is_journaled(lab: Lab) -> None:
    """Folders on a provider that outlives the run are in the journal as long as they exist."""
    (lab.folder / "test_it.py").write_text(
        "import json, os, pathlib\n"
        "def test_it(sandbox):\n"
        "    folder = sandbox.folder()\n"
        "    notes = pathlib.Path(os.environ['CLOUDBENCH_JOURNAL']).read_text().splitlines()\n"
        "    assert [json.loads(note)['folder'] for note in notes] == [folder.rpartition('/')[0]]\n"
        "    assert [entry.path for entry in sandbox.driver.list('/') if not entry.is_folder] == [\n"
        "        folder.rpartition('/')[0] + '/cloudbench-run'\n"
        "    ]\n"
        "    os._exit(7)\n"
    )
    journal = lab.folder / "journal.jsonl"
    run = lab.run("test_it.py", "--provider", "folder:objects", env={"CLOUDBENCH_JOURNAL": str(journal)}, store=False)
    assert run.status == 7, run.text
    (note,) = (json.loads(line) for line in journal.read_text().splitlines())
    assert (note["provider"], note["folder"][:12]) == (f"folder:{lab.folder}/objects", "/cloudbench-")


@pytest.mark.slow
def test_faults_and_throttling_of_an_emulator_are_no_fault_of_the_driver(lab: Lab) -> None:
    options = profile(lab, faults={"error_rate": 0.5}, throttle={"rate_per_s": 1, "burst": 2})
    run = conform(lab, *options, "-k", "round_trip", "--time-scale", "10")
    assert run.status == 0, run.text
    assert run.counts()["passed"] == 5
    (lab.folder / "test_it.py").write_text(
        "from pytest_cloudbench.workload.arrival import ThinkTime\n"
        "def test_it(experiment, payloads):\n"
        "    result = experiment.run(payloads.random(9), arrival=ThinkTime(0), sensors=4, ops_per_sensor=100)\n"
        "    assert result['failed'] > 0 < result['throttled']\n"
    )
    run = lab.run("test_it.py", *options, "--time-scale", "10")  # its faults and its throttling are real
    assert run.status == 0, run.text


def test_the_budget_holds(lab: Lab) -> None:
    run = conform(lab, "--provider", spec_of("folder", lab), "--max-ops", "40", "-k", "not any_order")
    assert run.status == 1
    assert run.lines_with("--max-ops 40 is used up")
    assert_nothing_is_left(run)


@pytest.mark.parametrize("scheme", drivers.schemes())
def test_unknown_parameter_is_refused(scheme: str, tmp_path: Path) -> None:
    target = f"folder:{tmp_path}" if scheme == "folder" else scheme
    with pytest.raises(Exception, match=r"unknown parameter 'colour'; \S+ knows: ") as caught:
        drivers.connect(ProviderSpec.parse(f"{target}?colour=red"))
    assert type(caught.value) is SpecError
