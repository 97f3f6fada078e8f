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
"""The faults of a session's driver by name, each a value of ``CHANGE``."""

_METRIC = "cloudbench.gate."
"""The prefix of JUnit properties with a metric's answer."""

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
    """The kind of a session.

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
        """Return the kind of a recorded session. Older ones have neither loop nor load."""
        aside = bool(session.get("aside", session["change"]))
        return cls(session["change"], session.get("loop", "open"), session.get("under", "calm"), aside)

    def __str__(self) -> str:
        words = [self.change or "nothing changed"]
        words += [f"{self.loop} loop"] if self.loop != "open" else []
        words += [f"under {self.under}"] if self.under != "calm" else []
        return ", ".join(words + ["which no earlier session was"] * (self.aside and not self.change))


def main() -> int:
    """Run sessions until there are as many as requested, and print their sums."""
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
    if loops := {Kind.of(earlier).loop for earlier in before} - {kind.loop}:
        parser.error(f"{folder} has the history of the {loops.pop()} loop")
    history = before[0]["history"] if before else name_history()
    for _ in range(options.count - sum(Kind.of(earlier) == kind for earlier in before)):
        session = {"history": history, **_session(folder, kind)}
        for record in filter(None, (log, options.record)):
            with record.open("a", encoding="utf-8") as file:
                file.write(json.dumps(session) + "\n")
        print(json.dumps(session), flush=True)
    sessions = read_sessions(options.record or log)
    print(json.dumps(summary(sessions)), *table(sessions), sep="\n")
    return 0


def name_history() -> str:
    """Return a name for a history. Two may begin in the same second, so it has a random part."""
    return f"{_now_text()} {secrets.token_hex(4)}"


def _now_text() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def read_sessions(log: Path) -> list[dict[str, Any]]:
    """Return one mapping for each session of a record, or none if there is no such file."""
    return [json.loads(line) for line in log.read_text("utf-8").splitlines()] if log.exists() else []


def _session(folder: Path, kind: Kind) -> dict[str, Any]:
    """Run one session. Return the counts of answers of its experiments and metrics, and the broken metrics."""
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
    answers, metrics, broken = count_answers(report)
    return {
        **asdict(kind), "start": started, "load": load_average,
        "machine": f"{platform.machine()}, {os.cpu_count()} processors",
        "duration_s": round((now_ns() - start_ns) / 1e9), "answers": answers, "metrics": metrics, "broken": broken,
    }  # fmt: skip


def count_answers(report: Path) -> tuple[dict[str, int], dict[str, int], list[str]]:
    """Return the counts of answers of a JUnit report's experiments and metrics, and the broken metrics."""
    answers, metrics, broken = Counter[str](), Counter[str](), list[str]()
    for case in ElementTree.parse(report).iter("testcase"):
        properties = {str(element.get("name")): str(element.get("value")) for element in case.iter("property")}
        answers[properties.get("cloudbench.gate", "none")] += 1
        for name, answer in properties.items():
            if name.startswith(_METRIC):
                metrics[answer.partition(" ")[0]] += 1
            if name.startswith(_METRIC) and answer.startswith("broken"):
                broken.append(f"{case.get('name')}: {name.removeprefix(_METRIC)} {answer}")
    return dict(answers), dict(metrics), broken


def summary(sessions: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the sums of all sessions: false alarms of judged unchanged ones, and the answers of session kind."""
    kinds = _group_judged(sessions)
    unchanged = [session for kind, those in kinds.items() if not kind.change for session in those]
    alarmed = _count_red(unchanged)
    return {
        "dates": [
            min(session["start"] for session in sessions)[:10], max(session["start"] for session in sessions)[:10],
        ],
        "machines": sorted({session["machine"] for session in sessions}),
        "load": [min(session["load"] for session in sessions), max(session["load"] for session in sessions)],
        "judged_sessions": len(unchanged),
        "alarmed_sessions": alarmed,
        "alarmed_interval": _interval(alarmed, len(unchanged)),
        "kinds": {str(kind): {"judged": len(those), "red": _count_red(those),
                              "interval": _interval(_count_red(those), len(those)),
                              "experiments": _sum(those, "answers"), "metrics": _sum(those, "metrics")}
                  for kind, those in kinds.items()},
    }  # fmt: skip


def _interval(red: int, judged: int) -> list[float]:
    return [round(limit, 3) for limit in wilson(red / judged if judged else 0.0, judged)]


def _group_judged(sessions: list[dict[str, Any]]) -> dict[Kind, list[dict[str, Any]]]:
    """Return the judged sessions of session kind: those whose history was long enough. Unchanged ones come first."""
    runs, kinds = Counter[str](), dict[Kind, list[dict[str, Any]]]()
    for session in sessions:
        kind = Kind.of(session)
        if runs[session["history"]] >= _LEAST_RUNS and session["answers"]:
            kinds.setdefault(kind, []).append(session)
        runs[session["history"]] += not kind.aside
    return dict(sorted(kinds.items(), key=lambda item: bool(item[0].change)))


def _sum(sessions: Iterable[dict[str, Any]], key: str) -> dict[str, int]:
    return dict(sum((Counter(session.get(key, {})) for session in sessions), Counter[str]()))


def _count_red(sessions: Iterable[dict[str, Any]]) -> int:
    return sum("broken" in session["answers"] for session in sessions)


def table(sessions: list[dict[str, Any]]) -> list[str]:
    """Return the lines of a Markdown table: sessions of each kind, red ones, and the answers in them."""
    lines = [
        "| real sessions | judged | red | experiments: met | inconclusive | broken | metrics decided |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind, those in _group_judged(sessions).items():
        answers, metrics = _sum(those, "answers"), _sum(those, "metrics")
        counts = " | ".join(str(answers.get(answer, 0)) for answer in ("met", "inconclusive", "broken"))
        decided, judged = metrics.get("met", 0) + metrics.get("broken", 0), sum(metrics.values())
        share = f"{decided / judged * 100:.0f} %" if judged else "not recorded"
        lines.append(f"| {kind} | {len(those)} | {_count_red(those)} | {counts} | {share} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
