"""The CI files in examples/ci work: they keep their schemas, and their steps are run here one by one.

A runner is imitated as far as these files need one: conditions, a cache, a fresh checkout for each job.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from ruamel.yaml import YAML

from pytest_cloudbench.commands.cli import main
from tests.runs import QUIET
from tests.test_docs import commands

ROOT = Path(__file__).resolve().parent.parent
PROJECT = ROOT / "examples" / "ci"
GITHUB, GITLAB = PROJECT / ".github" / "workflows" / "storage.yml", PROJECT / ".gitlab-ci.yml"
WORKFLOWS = sorted(ROOT.glob("examples/*/.github/workflows/*.yml"))
BIN = Path(sys.executable).parent
INSTALLS = "pip install pytest-cloudbench"
BUSY = {"PYTEST_ADDOPTS": QUIET}
"""Other tests run at the same time, which is no reason to doubt these numbers."""
LEAKY = ("PYTEST", "CLOUDBENCH", "COV_", "GITHUB", "CI_")


def load_yaml(path: Path) -> Any:
    return YAML(typ="safe").load(path.read_text("utf-8"))


# --- their schemas ---


def check_schema(schema: str, path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command: list[str | Path] = [BIN / "check-jsonschema", "--builtin-schema", f"vendor.{schema}", *options, path]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("path", WORKFLOWS, ids=[path.relative_to(ROOT).parts[1] for path in WORKFLOWS])
def test_a_workflow_keeps_githubs_schema(path: Path, tmp_path: Path) -> None:
    result = check_schema("github-workflows", path)
    assert result.returncode == 0, result.stdout
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(path.read_text("utf-8").replace("runs-on:", "run-on:"), "utf-8")
    assert check_schema("github-workflows", wrong).returncode == 1


def test_the_pipeline_keeps_gitlabs_schema(tmp_path: Path) -> None:
    result = check_schema("gitlab-ci", GITLAB, "--data-transform", "gitlab-ci")
    assert result.returncode == 0, result.stdout
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(GITLAB.read_text("utf-8").replace("policy: $STORED", "policy: sometimes"), "utf-8")
    assert check_schema("gitlab-ci", wrong, "--data-transform", "gitlab-ci").returncode == 1


def test_no_line_of_a_shell_is_made_of_an_expression() -> None:
    """A branch's name could be a command."""
    steps = [step for path in WORKFLOWS for job in load_yaml(path)["jobs"].values() for step in job["steps"]]
    assert len([step for step in steps if "run" in step]) > 8
    assert not [step for step in steps if "${{" in step.get("run", "")]


def test_only_the_default_branch_writes() -> None:
    steps = load_yaml(GITHUB)["jobs"]["gate"]["steps"]
    writers = [
        step for step in steps if "cache/save" in step.get("uses", "") or "baseline export" in step.get("run", "")
    ]
    assert len(writers) == 2
    assert all("github.ref == 'refs/heads/main'" in step["if"] for step in writers)
    assert load_yaml(GITHUB)["permissions"] == {"contents": "read"}
    rules = load_yaml(GITLAB)["workflow"]["rules"]
    assert [rule["variables"]["STORED"] for rule in rules] == ["pull", "pull-push"]
    assert rules[1]["if"] == "$CI_COMMIT_BRANCH == $CI_DEFAULT_BRANCH"


# --- their steps ---


@dataclass
class Runner:
    """Runs jobs, each in a fresh checkout, and keeps their cache.

    Attributes:
        folder: the folder of the runner.
        cache: the paths that jobs have kept, by name.
        checkout: the folder in which the latest job ran.
        output: the output of its steps.
    """

    folder: Path
    cache: dict[str, Path] = field(default_factory=dict)
    checkout: Path = Path()
    output: str = ""

    def begin(self) -> None:
        self.checkout = Path(shutil.copytree(PROJECT, self.folder / f"job-{len(list(self.folder.iterdir()))}"))
        self.output = ""

    def shell(self, script: str, env: Mapping[str, str]) -> bool:
        """Run lines as both services do: the first that fails ends them. Return whether all succeeded."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(LEAKY)}
        clean |= {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "PYTHONDONTWRITEBYTECODE": "1", **env}
        done = subprocess.run(
            ["bash", "-eo", "pipefail", "-c", script.replace("-n 4", "-n 2")], cwd=self.checkout, env=clean,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300,
            check=False,
        )  # fmt: skip
        self.output += f"$ {script}\n{done.stdout}"
        return done.returncode == 0

    def keep(self, name: str) -> None:
        path = self.folder / f"cache-{len(self.cache)}-{name}"
        copy = shutil.copytree if (self.checkout / name).is_dir() else shutil.copy
        self.cache[name] = Path(copy(self.checkout / name, path))

    def fetch(self, name: str) -> None:
        copy = self.cache.get(name)
        if copy is not None:
            (shutil.copytree if copy.is_dir() else shutil.copy)(copy, self.checkout / name)

    def text(self, name: str) -> str:
        return (self.checkout / name).read_text("utf-8")


def run_on_github(runner: Runner, job: str, ref: str, env: Mapping[str, str] | None = None) -> bool:
    """Run a job of the workflow. Return whether it is green."""
    runner.begin()
    flow = load_yaml(GITHUB)
    variables = {**BUSY, "GITHUB_OUTPUT": str(runner.checkout / "output"), **(env or {})}
    variables["GITHUB_STEP_SUMMARY"] = str(runner.checkout / "summary.md")
    is_green = True
    for step in flow["jobs"][job]["steps"]:
        condition = step.get("if", "")
        assert re.fullmatch(r"(\$\{\{ !cancelled\(\)( && github\.ref == 'refs/heads/main')? \}\})?", condition)
        if not (condition or is_green) or ("github.ref" in condition and ref != "refs/heads/main"):
            continue
        if "run" in step:
            is_green &= step["run"] == INSTALLS or runner.shell(step["run"], variables)
        elif "cache/restore" in step["uses"]:
            runner.fetch(step["with"]["path"])
        elif "cache/save" in step["uses"]:
            assert (runner.checkout / step["with"]["path"]).exists(), runner.output
            runner.keep(step["with"]["path"])
    return is_green


def run_on_gitlab(runner: Runner, job: str, stored: str = "pull", env: Mapping[str, str] | None = None) -> bool:
    """Run a job of the pipeline. Return whether it is green."""
    runner.begin()
    pipeline = load_yaml(GITLAB)
    definition = pipeline[job]
    variables = {**BUSY, **pipeline["variables"], "STORED": stored, **(env or {})}
    for name in definition.get("cache", {}).get("paths", ()):
        runner.fetch(name)
    lines = [line for line in [*definition.get("before_script", ()), *definition["script"]] if line != INSTALLS]
    is_green = runner.shell("\n".join(lines), variables)
    runner.shell("\n".join(definition.get("after_script", ["true"])), variables)
    for name in definition.get("cache", {}).get("paths", ()) if stored == "pull-push" else ():
        runner.keep(name)
    return is_green


MAIN, PULL = "refs/heads/main", "refs/pull/7/merge"
TOO_FEW = "gate inconclusive: baseline {} of 10"
RUNS = 12


def count_runs(archive: Path) -> int:
    with zipfile.ZipFile(archive) as archive_file:
        return sum(name.endswith(".json") for name in archive_file.namelist())


def write_history(template: Path, folder: Path, requests_per_op: float) -> Path:
    """Write an archive of as many runs as a baseline may have, which differ from ``template`` only in this number."""
    folder.mkdir()
    assert main(["baseline", "import", str(template), "--storage", str(folder / "stored")]) == 0
    (first,) = (folder / "stored").rglob("0001_*.json")
    text = first.read_text("utf-8")
    first.unlink()
    for number in range(RUNS):
        document = json.loads(text)
        for entry in document["benchmarks"]:
            info = entry["extra_info"]
            info["start_wall_ms"] -= 60_000 * (RUNS - number)
            info["requests_per_op"] *= requests_per_op
        first.with_name(f"{number + 1:04d}_before.json").write_text(json.dumps(document), "utf-8")
    assert main(["baseline", "export", str(folder / "stored.zip"), "--storage", str(folder / "stored")]) == 0
    return folder / "stored.zip"


def cases(text: str) -> Sequence[ElementTree.Element]:
    return list(ElementTree.fromstring(text).iter("testcase"))


@pytest.mark.slow
def test_a_baseline_goes_from_the_default_branch_to_a_pull_request_on_github(tmp_path: Path) -> None:
    runner = Runner(tmp_path)
    assert run_on_github(runner, "gate", MAIN), runner.output
    assert TOO_FEW.format(0) in runner.output
    assert re.fullmatch(r"key=[a-z0-9.-]+\n", runner.text("output"))
    first = runner.cache["stored.zip"]
    assert count_runs(first) == 1

    runner.cache["stored.zip"] = same = write_history(first, tmp_path / "same", 1.0)
    assert run_on_github(runner, "gate", PULL), runner.output
    assert runner.cache["stored.zip"] == same, "a pull request has written"
    assert not (runner.checkout / "stored").with_suffix(".zip").samefile(same)
    assert "**2 experiments: 2 met**" in runner.text("summary.md")
    assert len(cases(runner.text("junit.xml"))) == 2
    assert runner.text("metrics.txt").endswith("# EOF\n")

    runner.cache["stored.zip"] = write_history(first, tmp_path / "half", 0.5)
    assert not run_on_github(runner, "gate", PULL), runner.output
    assert "**2 experiments: 2 broken**" in runner.text("summary.md")
    assert "gate broken: requests_per_op: +100 % worse than 12 runs" in runner.output

    runner.cache["stored.zip"] = first
    assert run_on_github(runner, "gate", MAIN), runner.output
    assert TOO_FEW.format(1) in runner.output
    assert count_runs(runner.cache["stored.zip"]) == 2


@pytest.mark.slow
def test_a_broken_gate_makes_the_job_red_and_is_shown_on_github(tmp_path: Path) -> None:
    runner = Runner(tmp_path)
    assert not run_on_github(runner, "gate", PULL, {"PYTEST_ADDOPTS": "--cloudbench-fail ok_rate:2"})
    assert "gate ok_rate:2: " in runner.text("summary.md")
    assert "cloudbench_ok_rate_ratio{" in runner.text("metrics.txt")


@pytest.mark.slow
@pytest.mark.parametrize("service", ["github", "gitlab"])
def test_the_job_that_checks_the_gate_is_green_only_if_the_gate_is_red(service: str, tmp_path: Path) -> None:
    runner = Runner(tmp_path)

    def is_green(**env: str) -> bool:
        if service == "github":
            return run_on_github(runner, "gate-can-fail", PULL, env)
        return run_on_gitlab(runner, "gate-can-fail", "pull", env)

    assert is_green(), runner.output
    assert not is_green(PYTEST_ADDOPTS="--collect-only"), "nothing was judged"
    assert not is_green(PYTEST_ADDOPTS="--unknown-option"), "red for another reason"


@pytest.mark.slow
def test_a_baseline_goes_from_the_default_branch_to_a_merge_request_on_gitlab(tmp_path: Path) -> None:
    runner = Runner(tmp_path)
    assert run_on_gitlab(runner, "gate", "pull-push"), runner.output
    folder = runner.cache["carried"]
    (archive,) = folder.iterdir()
    assert count_runs(archive) == 1
    assert run_on_gitlab(runner, "gate"), runner.output
    assert TOO_FEW.format(1) in runner.output
    assert runner.cache["carried"] == folder
    assert "**2 experiments: 2 inconclusive**" in runner.text("summary.md")
    assert runner.text("metrics.txt").endswith("# EOF\n")
    assert len(cases(runner.text("junit.xml"))) == 2


def test_gate_job_runs_the_commands_of_the_readme() -> None:
    first, *others = commands((PROJECT / "README.md").read_text("utf-8"))
    assert first == INSTALLS
    script = next(
        step["run"] for step in load_yaml(GITHUB)["jobs"]["gate"]["steps"] if step.get("name") == "Measure and judge"
    )
    for command in others:
        words = command.split()
        assert set(words) <= set(script.split()) | {"summary.md"}, command
    assert others
