"""Hosts that are a Python process on this machine, and the tests and processes of a session on them."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil

from tests.fleet.harness import Lab, RunningSession

HERE = f'command = ["{sys.executable}"]'


def describe_hosts(*rows: str) -> str:
    """Return a table of hosts with two agents each. Each row says how to reach one."""
    return "\n".join(f'[[host]]\nname = "host{number}"\nagents = 2\n{row}\n' for number, row in enumerate(rows, 1))


def write_tests(sensors: int, count: int, interval_s: float) -> str:
    """Return a test of some seconds, whose agents leave their process ids, and a short one."""
    return f"""
    from pytest_cloudbench import FixedInterval

    def test_first(experiment, payloads, fleet):
        (pathlib.Path(os.environ["PIDS"]) / f"pid-{{fleet.name}}").write_text(str(os.getpid()))
        experiment.run(
            payloads.random(50), arrival=FixedInterval({interval_s}), sensors={sensors}, ops_per_sensor={count}
        ).check()

    def test_second(experiment, payloads):
        experiment.run(payloads.random(50), arrival=FixedInterval(0.01), sensors={sensors}, ops_per_sensor=2).check()
"""


def find_temporary(lab: Lab) -> Path:
    """Return the folder that hosts write to, which is outside the project."""
    return lab.folder.with_name(f"{lab.folder.name}-tmp")


def temporary(lab: Lab) -> dict[str, str]:
    """Return variables that make hosts write to that folder, and agents leave their process ids in the project."""
    return {"TMPDIR": str(find_temporary(lab)), "PIDS": str(lab.folder)}


def find_relay(running: RunningSession, agent: str) -> psutil.Process:
    """Return the relay that has started an agent, or the process that the agent was forked from."""
    [relay] = [parent for parent in running.workers()[agent].parents() if parent.cmdline()[-2:] == ["-m", "code"]]
    return relay
