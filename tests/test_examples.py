"""The projects in examples/ work as their READMEs say: each command is run, in a copy of its own."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.limits import HANG_S
from tests.provider_folders import make_folders
from tests.runs import QUIET
from tests.test_docs import broken_links, commands

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
BIN = Path(sys.executable).parent
INSTALLS = "pip install pytest-cloudbench"


def run(command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    leaky = ("PYTEST", "CLOUDBENCH", "COV_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(leaky)}
    environment |= {
        "PATH": f"{BIN}{os.pathsep}{environment['PATH']}",
        "COLUMNS": "160",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_ADDOPTS": QUIET,
    }
    words = shlex.split(command)
    make_folders(cwd, words)
    return subprocess.run(
        [*words, "-p", "no:cacheprovider"] if words[0] == "pytest" else words,
        cwd=cwd, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip


@pytest.fixture
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the example that the test's parameter names."""
    return Path(shutil.copytree(EXAMPLES / request.param, tmp_path / request.param))


def list_commands(project: Path) -> list[str]:
    """Return the commands of the project's README except the first, which installs this package."""
    first, *others = commands((project / "README.md").read_text("utf-8"))
    assert first == INSTALLS
    return others


def test_the_list_of_examples_is_complete() -> None:
    text = (EXAMPLES / "README.md").read_text("utf-8")
    assert set(re.findall(r"^\| \[([\w-]+)\]", text, re.MULTILINE)) == {
        path.name for path in EXAMPLES.iterdir() if path.is_dir()
    }
    for readme in EXAMPLES.rglob("README.md"):
        assert broken_links(readme, readme.read_text("utf-8")) == []


@pytest.mark.slow
@pytest.mark.parametrize("project", ["iot-gate"], indirect=True)
def test_gate_of_a_team_passes_and_fails_as_documented(project: Path) -> None:
    passing_command, failing_command = list_commands(project)
    done = run(passing_command, project)
    assert done.returncode == 0, done.stdout + done.stderr
    cases = list(ElementTree.parse(project / "junit.xml").getroot().iter("testcase"))
    case_properties = [
        {entry.attrib["name"]: entry.attrib["value"] for entry in case.iter("property")} for case in cases
    ]
    assert len(case_properties) == 2
    for entry in case_properties:  # on a machine that is too busy, the product says so and judges nothing
        doubts = entry["cloudbench.doubts"]
        assert entry["cloudbench.verdict"] == ("met" if doubts == "none" else "inconclusive"), doubts
    done = run(failing_command, project)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"gate response_p99:1e-06: (.* breaks the bound <= 1e-06|unknown, engine saturated)", done.stdout)


@pytest.mark.parametrize("project", ["iot-gate"], indirect=True)
def test_workflow_runs_the_commands_of_the_readme(project: Path) -> None:
    steps = re.findall(r"- run: (.*)", (project / ".github" / "workflows" / "storage.yml").read_text("utf-8"))
    assert steps == [INSTALLS, list_commands(project)[0]]


@pytest.mark.slow
@pytest.mark.parametrize("project", ["compare-services"], indirect=True)
def test_services_stand_side_by_side(project: Path) -> None:
    make_folder, measure, compare = list_commands(project)
    assert make_folder == "mkdir nas"
    (project / "nas").mkdir()
    done = run(measure, project)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout
    table = run(compare, project)
    assert table.returncode == 0, table.stderr
    rows = set(re.findall(r"^photos#upload\[(\S+?)-threads:(\d)\]", table.stdout, re.MULTILINE))
    assert rows == {(service, threads) for service in ("folder:nas", "emulated:ideal") for threads in "14"}


@pytest.mark.parametrize("project", ["client-tests"], indirect=True)
def test_a_client_is_tested_against_a_service_that_misbehaves(project: Path) -> None:
    (tests,) = list_commands(project)
    done = run(tests, project)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout
    steps = re.findall(r"- run: (.*)", (project / ".github" / "workflows" / "tests.yml").read_text("utf-8"))
    assert steps == [INSTALLS, tests]


UNIT = EXAMPLES / "savingbox" / "savingbox@.service"


def test_batching_folder_unit_works_with_options_of_its_head(tmp_path: Path) -> None:
    text = UNIT.read_text("utf-8")
    (command,) = re.findall(r"^ExecStart=/usr/bin/env (.+)$", text, re.MULTILINE)
    (options,) = re.findall(r"^#\s+OPTIONS=(.+)$", text, re.MULTILINE)
    (source := tmp_path / "source").mkdir()
    (synced := tmp_path / "synced").mkdir()
    (source / "a.txt").write_text("kept")
    variables = {"${SAVINGBOX}": str(source), "${SYNC_FOLDER}": str(synced), "$OPTIONS": options}
    for name, value in variables.items():
        command = command.replace(name, value)
    done = run(f"{command} --once", tmp_path)
    assert done.returncode == 0, done.stderr
    assert (synced / "a.txt").read_text() == "kept"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    def verify(unit: Path) -> subprocess.CompletedProcess[str]:
        words = ["systemd-analyze", "verify", "--user", "--man=no", str(unit)]
        with tempfile.TemporaryDirectory(dir="/tmp") as short:  # names of sockets must be short
            environment = {**os.environ, "XDG_RUNTIME_DIR": short}
            return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=HANG_S, check=False)

    wrong = tmp_path / "wrong@.service"
    wrong.write_text(UNIT.read_text("utf-8").replace("ExecStart=/usr/bin/env", "ExecStart=no/such/program"))
    assert verify(wrong).returncode != 0
    accepted = verify(UNIT)
    assert (accepted.returncode, accepted.stderr) == (0, "")
