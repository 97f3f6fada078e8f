"""Real sessions through the regression gate: unchanged ones that must not alarm, changed ones that must.

``python benchmarks/real_sessions.py FOLDER --unchanged 40 --changed 10`` takes one to three minutes for each
session and goes on where it was stopped. FOLDER keeps the history. With ``--record FILE`` each session is also a line
of that file, where those of other histories may stand. The last lines sum up all of it, as a JSON object and as the
table in ``docs/gates.md``.

Every session is a pytest process of its own with 20 experiments of 300 uploads each, against an emulator with a latency
of 50 ms. A changed session works on a copy of the history, and all its experiments have the same change: the driver
takes 10 % longer for an upload, or a hundredth of all uploads fails. Only the first sessions, whose baselines are
too short, are not judged.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import secrets
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from pytest_cloudbench.clock import now_ns
from pytest_cloudbench.judge.significance import wilson

_LEAST_RUNS = 10
_LATENCY_S = 0.05
_CHANGES: Mapping[str, str] = {"p50 +10 %": f"time:{_LATENCY_S * 0.1}", "errors +1 point": "error:100"}

_METRIC = "cloudbench.gate."
"""How the names of those JUnit properties begin that have a metric's answer."""

_PROFILE = f"""[meta]
name = "real-sessions"
api = "dropbox"
description = "a steady service, to see how often the gate is wrong"

[latency]
median_s = {_LATENCY_S}
sigma = 0.1
"""

_CONFTEST = '''"""A regression of the client, if CHANGE asks for one."""

import itertools
import os
import time

from pytest_cloudbench.drivers.dropbox import DropboxDriver
from pytest_cloudbench.model import CloudError, ErrorKind

kind, _, size = os.environ.get("CHANGE", "").partition(":")
put, number = DropboxDriver.put, itertools.count(1)


def changed(self, path, content):
    if kind == "time":
        time.sleep(float(size))  # what the regression costs
    if kind == "error" and next(number) % int(size) == 0:
        raise CloudError(ErrorKind.SERVER, "put", path, detail="made to fail")
    return put(self, path, content)


if kind:
    DropboxDriver.put = changed
'''

_TESTS = '''"""Twenty experiments that differ in size and rate."""

import pytest

from pytest_cloudbench.arrival import FixedInterval


@pytest.mark.parametrize("interval_s", [0.1, 0.12, 0.15, 0.2])
@pytest.mark.parametrize("size_bytes", [100, 1000, 5000, 20000, 50000])
def test_upload(experiment, payloads, size_bytes, interval_s):
    sensors = round(100 * interval_s)
    experiment.run(
        payloads.random(size_bytes), arrival=FixedInterval(interval_s), sensors=sensors,
        ops_per_sensor=300 // sensors,
    )
'''


def main() -> int:
    """Run sessions until there are as many as were asked for, and print what they came to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--unchanged", type=int, default=40, metavar="N")
    parser.add_argument("--changed", type=int, default=10, metavar="N", help="of each change")
    parser.add_argument("--record", type=Path, metavar="FILE", help="sessions of this and other histories")
    options = parser.parse_args()
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {
        "service.toml": _PROFILE, "conftest.py": _CONFTEST, "test_upload.py": _TESTS, "pytest.ini": "[pytest]\n",
    }.items():  # fmt: skip
        (folder / name).write_text(text, "utf-8")
    log = folder / "sessions.jsonl"
    before = read_sessions(log)
    done, history = Counter(each["change"] for each in before), before[0]["history"] if before else new_history()
    wanted = [("", options.unchanged), *((change, options.changed) for change in _CHANGES)]
    for change, count in wanted:
        for _ in range(count - done[change]):
            found = {"history": history, **_session(folder, change)}
            for kept in filter(None, (log, options.record)):
                with kept.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(found) + "\n")
            print(json.dumps(found), flush=True)
    sessions = read_sessions(options.record or log)
    print(json.dumps(summary(sessions)), *table(sessions), sep="\n")
    return 0


def new_history() -> str:
    """Histories may begin in the same second, and are told apart by their names in one record."""
    return f"{_now_text()} {secrets.token_hex(4)}"


def _now_text() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def read_sessions(log: Path) -> list[dict[str, Any]]:
    """What a record says, one mapping for each session; nothing if there is no such file."""
    return [json.loads(line) for line in log.read_text("utf-8").splitlines()] if log.exists() else []


def _session(folder: Path, change: str) -> dict[str, Any]:
    """One session; returns how many experiments came to which answer, and what was called broken."""
    store, report = folder / "history", folder / "junit.xml"
    if change:
        shutil.rmtree(folder / "changed", ignore_errors=True)
        shutil.copytree(store, folder / "changed")
        store = folder / "changed"
    before = os.getloadavg()[0]
    command = [
        sys.executable, "-m", "pytest", "-q", "-n", "2", "test_upload.py", "--provider=emulated:service.toml",
        "--cloudbench-gate", f"--benchmark-storage={store}", f"--junitxml={report}", "-p", "no:cacheprovider",
    ]  # fmt: skip
    environment = {**os.environ, "CHANGE": _CHANGES.get(change, "")}
    started, start_ns = _now_text(), now_ns()
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if run.returncode not in (0, 1):
        raise SystemExit(f"the session ended with {run.returncode}:\n{run.stdout[-3000:]}{run.stderr[-2000:]}")
    answers, broken = answers_in(report)
    return {
        "change": change, "start": started, "load": round(before, 1),
        "machine": f"{platform.machine()}, {os.cpu_count()} processors",
        "duration_s": round((now_ns() - start_ns) / 1e9), "answers": answers, "broken": broken,
    }  # fmt: skip


def answers_in(report: Path) -> tuple[dict[str, int], list[str]]:
    """How many experiments of a JUnit report came to which answer, and each metric that was called broken."""
    found, broken = Counter[str](), list[str]()
    for case in ElementTree.parse(report).iter("testcase"):
        told = {str(each.get("name")): str(each.get("value")) for each in case.iter("property")}
        found[told.get("cloudbench.gate", "none")] += 1
        broken += [f"{case.get('name')}: {name.removeprefix(_METRIC)} {answer}" for name, answer in told.items()
                   if name.startswith(_METRIC) and answer.startswith("broken")]  # fmt: skip
    return dict(found), broken


def summary(sessions: list[dict[str, Any]]) -> dict[str, Any]:
    """What all sessions came to: false alarms of judged unchanged ones, and how often each change was found."""
    judged = _judged(sessions)
    alarmed = _red(judged)
    made: dict[str, Any] = {
        "dates": [min(each["start"] for each in sessions)[:10], max(each["start"] for each in sessions)[:10]],
        "machines": sorted({each["machine"] for each in sessions}),
        "load": [min(each["load"] for each in sessions), max(each["load"] for each in sessions)],
        "judged_sessions": len(judged),
        "alarmed_sessions": alarmed,
        "alarmed_interval": [round(each, 3) for each in wilson(alarmed / len(judged) if judged else 0.0, len(judged))],
        "experiments": sum(sum(each["answers"].values()) for each in judged),
        "answers": _answers_of(judged),
    }
    for change in _CHANGES:
        made[change] = _answers_of(each for each in sessions if each["change"] == change)
    return made


def _judged(sessions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The unchanged sessions whose history was long enough."""
    histories: dict[str, list[dict[str, Any]]] = {}
    for each in sessions:
        if not each["change"]:
            histories.setdefault(each["history"], []).append(each)
    return [each for unchanged in histories.values() for each in unchanged[_LEAST_RUNS:] if each["answers"]]


def _answers_of(sessions: Iterable[dict[str, Any]]) -> dict[str, int]:
    return dict(sum((Counter(each["answers"]) for each in sessions), Counter[str]()))


def _red(sessions: Iterable[dict[str, Any]]) -> int:
    return sum("broken" in each["answers"] for each in sessions)


def table(sessions: list[dict[str, Any]]) -> list[str]:
    """The lines of a Markdown table: sessions of each kind, red ones, and what their experiments came to."""
    lines = ["| real sessions | judged | red | experiments: met | inconclusive | broken |", "|---|---|---|---|---|---|"]
    kinds = {"nothing changed": _judged(sessions)}
    kinds |= {change: [each for each in sessions if each["change"] == change] for change in _CHANGES}
    for kind, those in kinds.items():
        answers, red = _answers_of(those), _red(those)
        counts = " | ".join(str(answers.get(answer, 0)) for answer in ("met", "inconclusive", "broken"))
        if those:
            lines.append(f"| {kind} | {len(those)} | {red} | {counts} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
