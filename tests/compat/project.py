"""A project of somebody else in a folder. Its tests run with and without this plugin, and both runs are compared.

The comparison is about every report that reaches the controller (node id, phase, outcome, keywords, traceback,
sections), its order if one process runs the tests, the exit status, and the output on the terminal.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.limits import HANG_S

WITHOUT = ("-p", "no:cloudbench")

_RECORDER = """
import json, os, sys

def tell(kind, **told):
    if "PYTEST_XDIST_WORKER" not in os.environ:
        with open(os.environ["RECORDED"], "a") as file:
            file.write(json.dumps({"kind": kind, **told}) + "\\n")

def pytest_runtest_logreport(report):
    tell("test", nodeid=report.nodeid, when=report.when, outcome=report.outcome, keywords=sorted(report.keywords),
         longrepr=report.longreprtext, sections=report.sections, properties=report.user_properties,
         wasxfail=getattr(report, "wasxfail", None))

def pytest_collectreport(report):
    if not report.passed:
        tell("collect", nodeid=report.nodeid, outcome=report.outcome, longrepr=report.longreprtext)

def pytest_warning_recorded(warning_message, when, nodeid):
    tell("warning", nodeid=nodeid, when=when, longrepr=str(warning_message.message))

def pytest_sessionfinish(session, exitstatus):
    tell("end", status=int(exitstatus))
"""

_ALWAYS_DIFFERENT = (
    (re.compile(r"0x[0-9a-f]{6,}"), "0x"),
    (re.compile(r"\b\d+\.\d+ ?m?s\b"), "TIME"),
    (re.compile(r"\(\d+:\d\d:\d\d\)"), ""),
    (re.compile(r"^(plugins: .*?)(, )?cloudbench-[\w.]+(, )?", re.M), r"\1\2"),  # the header may name it
    (re.compile(r"\bgw\d+\b"), "gwN"),
    (re.compile(r"\bpytest-\d+/"), "pytest-N/"),  # the folder of tmp_path
    (re.compile(r"\(\d{12,}\)"), "(THREAD)"),
    (re.compile(r"<TracebackEntry [^>]*>(, )?"), ""),  # flaky shows all frames, even those of hooks that only observe
    (re.compile(r"[-=]{3,}"), "---"),  # a line's length depends on the times in it
)


@dataclass(frozen=True)
class FinishedRun:
    """The exit status, the reports and the output of a finished run."""

    status: int
    reports: list[Mapping[str, Any]]
    text: str

    def outcomes(self) -> list[str]:
        """Return ``NODEID: OUTCOME`` of each test, with the outcome of the phase that decided it."""
        decided = [report for report in self.reports if report["kind"] == "test"]
        decided = [report for report in decided if report["when"] == "call" or report["outcome"] != "passed"]
        return [f"{report['nodeid']}: {report['outcome']}" for report in decided]


class Project:
    """A folder of files in which pytest runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "project"
        self.folder.mkdir()
        for name in ("objects", "one", "two", "three"):
            (self.folder / name).mkdir()
        self._recorder_folder = folder / "recorder"
        self._recorder_folder.mkdir()
        (self._recorder_folder / "compat_recorder.py").write_text(_RECORDER)

    def write(self, files: Mapping[str, str]) -> Project:
        """Write texts to files, which are given by their paths."""
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
        return self

    def run(self, *args: str, plugins: Sequence[Path] = (), env: Mapping[str, str] | None = None) -> FinishedRun:
        """Run pytest in the folder, with other people's plugins from these folders."""
        recorded = self._recorder_folder / "reports.jsonl"
        recorded.unlink(missing_ok=True)
        # Without asserts pytest itself warns, which is an error in some of these projects.
        dropped = ("PYTEST_", "CLOUDBENCH_", "COV_", "DJANGO_", "PYTHONOPTIMIZE")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        environment |= {"RECORDED": str(recorded),
                        "PYTHONPATH": os.pathsep.join(map(str, [self._recorder_folder, *plugins])),
                        "COLUMNS": "120", "PYTHONHASHSEED": "0", **(env or {})}  # fmt: skip
        in_order = () if plugins else ("-p", "no:randomly")  # pytest-randomly may be installed here, too
        command = [sys.executable, "-m", "pytest", "-p", "compat_recorder", "-p", "no:cacheprovider", *in_order, *args]
        done = subprocess.run(
            command, cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=HANG_S, check=False,
        )  # fmt: skip
        lines = recorded.read_text().splitlines() if recorded.exists() else []
        return FinishedRun(done.returncode, [json.loads(line) for line in lines], done.stdout)

    def check_same(self, *args: str, plugins: Sequence[Path] = (), env: Mapping[str, str] | None = None) -> FinishedRun:
        """Run with and without this plugin, compare both runs, and return the run with it."""
        without = self.run(*args, *WITHOUT, plugins=plugins, env=env)
        ran = self.run(*args, plugins=plugins, env=env)
        in_order = "-n" not in args
        former, latter = (_comparable(run, in_order) for run in (without, ran))
        assert ran.reports, ran.text
        different = "\n".join(difflib.unified_diff(former, latter, "without", "with", lineterm="", n=1))
        assert not different, different
        return ran


def _comparable(ran: FinishedRun, in_order: bool) -> list[str]:
    reports = [_steady(json.dumps(report, sort_keys=True)) for report in ran.reports]
    lines = _steady(ran.text).splitlines() if in_order else []
    return [f"status {ran.status}", *(reports if in_order else sorted(reports)), *lines]


def _steady(text: str) -> str:
    if "Different tests were collected" in text:  # which worker comes first decides the direction of the difference
        return " ".join(sorted(re.findall(r"test_\w+\.py::\w+", text)))
    for pattern, instead in _ALWAYS_DIFFERENT:
        text = pattern.sub(instead, text)
    return text
