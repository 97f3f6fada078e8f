"""Real sessions through the regression gate: unchanged ones that must not alarm, changed ones that must.

``python -m benchmarks.real_sessions FOLDER --loop closed --load calm --count 30`` runs sessions of one kind until
FOLDER has so many of them; each takes one to three minutes. FOLDER keeps the history of one loop, so use one for each.
Sessions with a fault (``--fault "p50 +10 %"``), or under a load that the history is not to have (``--aside``), work on
a copy of it. With ``--record FILE`` each session is also a line of that file, where those of other histories may stand.
The last lines sum up all of it, as a JSON object and as the table in ``docs/method/gate.md``.

Every session is a pytest process of its own with 20 experiments of 300 uploads each, against an emulator with a latency
of 50 ms. All its experiments have the same fault: the driver takes 10 % longer for an upload, a hundredth of all
uploads fails, or an upload takes one more request. A lost file is one of the session's first experiment, once. Only the
first sessions, whose baselines are too short, are not judged.
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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from benchmarks.gate_recorded import LOADS, busy_machine
from pytest_cloudbench.judge.significance import wilson
from pytest_cloudbench.support.clock import now_ns

_LEAST_RUNS = 10
_LATENCY_S = 0.05
_FAULTS: Mapping[str, str] = {
    "p50 +10 %": f"time:{_LATENCY_S * 0.1}", "p50 +25 %": f"time:{_LATENCY_S * 0.25}", "errors +1 point": "error:100",
    "one more request": "request:1", "one lost file": "lost:1",
}  # fmt: skip
"""What a session's driver does, by its name: the value of ``CHANGE``."""

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
    mine = next(number)
    if kind == "error" and mine % int(size) == 0:
        raise CloudError(ErrorKind.SERVER, "put", path, detail="made to fail")
    entry = put(self, path, content)
    if kind == "request":
        self.stat(path)
    if kind == "lost" and mine == 1 and os.environ.get("PYTEST_XDIST_WORKER") == "gw0":
        self.delete(path)
    return entry


if kind:
    DropboxDriver.put = changed
'''

_TESTS = '''"""Twenty experiments that differ in size and rate."""

import os

import pytest

from pytest_cloudbench.workload.arrival import FixedInterval, Threads


@pytest.mark.parametrize("interval_s", [0.1, 0.12, 0.15, 0.2])
@pytest.mark.parametrize("size_bytes", [100, 1000, 5000, 20000, 50000])
def test_upload(experiment, payloads, size_bytes, interval_s):
    if os.environ["LOOP"] == "closed":
        experiment.run(payloads.random(size_bytes), arrival=Threads(round(0.8 / interval_s)), files=300)
        return
    sensors = round(100 * interval_s)
    experiment.run(
        payloads.random(size_bytes), arrival=FixedInterval(interval_s), sensors=sensors,
        ops_per_sensor=300 // sensors,
    )
'''


@dataclass(frozen=True, slots=True)
class Kind:
    """What sessions are of.

    Attributes:
        change: the fault, or an empty text.
        loop: open or closed.
        under: what else the machine does (``gate_recorded.LOADS``).
        aside: whether the session works on a copy of the history, and does not become part of it.
    """

    change: str = ""
    loop: str = "open"
    under: str = "calm"
    aside: bool = False

    @classmethod
    def of(cls, session: Mapping[str, Any]) -> Kind:
        """Returns the kind of a recorded session; older ones say neither loop nor load."""
        aside = bool(session.get("aside", session["change"]))
        return cls(session["change"], session.get("loop", "open"), session.get("under", "calm"), aside)

    def __str__(self) -> str:
        words = [self.change or "nothing changed"]
        words += [f"{self.loop} loop"] if self.loop != "open" else []
        words += [f"under {self.under}"] if self.under != "calm" else []
        return ", ".join(words + ["which no earlier session was"] * (self.aside and not self.change))


def main() -> int:
    """Run sessions until there are as many as were asked for, and print what they came to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument(
        "--count", type=int, default=40, metavar="N", help="sessions of this kind, earlier ones included"
    )
    parser.add_argument("--loop", choices=["open", "closed"], default="open")
    parser.add_argument("--load", choices=LOADS, default="calm", help="what else the machine does meanwhile")
    parser.add_argument("--fault", choices=_FAULTS, default="")
    parser.add_argument("--aside", action="store_true", help="leave the history as it is; a fault always does")
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
    kind = Kind(options.fault, options.loop, options.load, options.aside or bool(options.fault))
    if loops := {Kind.of(session).loop for session in before} - {kind.loop}:
        parser.error(f"{folder} has the history of the {loops.pop()} loop")
    history = before[0]["history"] if before else new_history()
    for _ in range(options.count - sum(Kind.of(session) == kind for session in before)):
        found = {"history": history, **_session(folder, kind)}
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


def _session(folder: Path, kind: Kind) -> dict[str, Any]:
    """One session; returns how many experiments, and metrics, came to which answer, and what was called broken."""
    store, report = folder / "history", folder / "junit.xml"
    if kind.aside:
        shutil.rmtree(folder / "aside", ignore_errors=True)
        if store.exists():
            shutil.copytree(store, folder / "aside")
        store = folder / "aside"
    command = [
        sys.executable, "-m", "pytest", "-q", "-n", "2", "test_upload.py", "--provider=emulated:service.toml",
        "--cloudbench-gate", f"--benchmark-storage={store}", f"--junitxml={report}", "-p", "no:cacheprovider",
    ]  # fmt: skip
    settings = {**os.environ, "CHANGE": _FAULTS.get(kind.change, ""), "LOOP": kind.loop}
    started, start_ns = _now_text(), now_ns()
    with busy_machine(kind.under):
        run = subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, check=False)
        load_average = round(os.getloadavg()[0], 1)
    if run.returncode not in (0, 1):
        raise SystemExit(f"the session ended with {run.returncode}:\n{run.stdout[-3000:]}{run.stderr[-2000:]}")
    answers, metrics, broken = answers_in(report)
    return {
        **asdict(kind), "start": started, "load": load_average,
        "machine": f"{platform.machine()}, {os.cpu_count()} processors",
        "duration_s": round((now_ns() - start_ns) / 1e9), "answers": answers, "metrics": metrics, "broken": broken,
    }  # fmt: skip


def answers_in(report: Path) -> tuple[dict[str, int], dict[str, int], list[str]]:
    """Returns how many experiments of a JUnit report came to which answer, how many metrics, and what is broken."""
    found, metrics, broken = Counter[str](), Counter[str](), list[str]()
    for case in ElementTree.parse(report).iter("testcase"):
        told = {str(each.get("name")): str(each.get("value")) for each in case.iter("property")}
        found[told.get("cloudbench.gate", "none")] += 1
        for name, answer in told.items():
            if name.startswith(_METRIC):
                metrics[answer.partition(" ")[0]] += 1
            if name.startswith(_METRIC) and answer.startswith("broken"):
                broken.append(f"{case.get('name')}: {name.removeprefix(_METRIC)} {answer}")
    return dict(found), dict(metrics), broken


def summary(sessions: list[dict[str, Any]]) -> dict[str, Any]:
    """What all sessions came to: false alarms of judged unchanged ones, and the answers of each kind."""
    kinds = _kinds(sessions)
    unchanged = [each for kind, those in kinds.items() if not kind.change for each in those]
    alarmed = _red(unchanged)
    return {
        "dates": [min(each["start"] for each in sessions)[:10], max(each["start"] for each in sessions)[:10]],
        "machines": sorted({each["machine"] for each in sessions}),
        "load": [min(each["load"] for each in sessions), max(each["load"] for each in sessions)],
        "judged_sessions": len(unchanged),
        "alarmed_sessions": alarmed,
        "alarmed_interval": _interval(alarmed, len(unchanged)),
        "kinds": {str(kind): {"judged": len(those), "red": _red(those), "interval": _interval(_red(those), len(those)),
                              "experiments": _sum(those, "answers"), "metrics": _sum(those, "metrics")}
                  for kind, those in kinds.items()},
    }  # fmt: skip


def _interval(red: int, judged: int) -> list[float]:
    return [round(each, 3) for each in wilson(red / judged if judged else 0.0, judged)]


def _kinds(sessions: list[dict[str, Any]]) -> dict[Kind, list[dict[str, Any]]]:
    """Returns the judged sessions of each kind: those whose history was long enough. Unchanged ones come first."""
    runs, kinds = Counter[str](), dict[Kind, list[dict[str, Any]]]()
    for each in sessions:
        kind = Kind.of(each)
        if runs[each["history"]] >= _LEAST_RUNS and each["answers"]:
            kinds.setdefault(kind, []).append(each)
        runs[each["history"]] += not kind.aside
    return dict(sorted(kinds.items(), key=lambda item: bool(item[0].change)))


def _sum(sessions: Iterable[dict[str, Any]], key: str) -> dict[str, int]:
    return dict(sum((Counter(each.get(key, {})) for each in sessions), Counter[str]()))


def _red(sessions: Iterable[dict[str, Any]]) -> int:
    return sum("broken" in each["answers"] for each in sessions)


def table(sessions: list[dict[str, Any]]) -> list[str]:
    """The lines of a Markdown table: sessions of each kind, red ones, and what experiments and metrics came to."""
    lines = [
        "| real sessions | judged | red | experiments: met | inconclusive | broken | metrics decided |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind, those in _kinds(sessions).items():
        answers, metrics = _sum(those, "answers"), _sum(those, "metrics")
        counts = " | ".join(str(answers.get(answer, 0)) for answer in ("met", "inconclusive", "broken"))
        decided, judged = metrics.get("met", 0) + metrics.get("broken", 0), sum(metrics.values())
        share = f"{decided / judged * 100:.0f} %" if judged else "not recorded"
        lines.append(f"| {kind} | {len(those)} | {_red(those)} | {counts} | {share} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
