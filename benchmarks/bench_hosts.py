"""Measure the controller's CPU for each operation of agents on other hosts, over that of agents of this machine.

Hosts are commands that give a Python on a pipe, so agents send their records through relays. The driver does nothing.
Two sizes of the same session. The difference of the controller's CPU over the difference in operations includes
everything from the first record to the stored file and the table. The cost of an agent is measured in the same way, on
20 hosts with one agent each, and with ten.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from benchmarks.harness import MIB, Figure, measure_growth, median, python
from benchmarks.many_operations import run_session

__all__ = ["measure"]

_FEW, _MANY = 20_000, 220_000
_SENSORS = 200


def measure(names: Sequence[str], runs: int) -> list[Figure]:
    """``hosts_controller_ratio``."""
    turns = max(1, runs // 3)
    tables = {"3 hosts": _describe_hosts(3, 2), "this machine": ""}
    cpu_s: dict[tuple[str, int], list[float]] = {
        (place_name, ops): [] for place_name in tables for ops in (_FEW, _MANY)
    }
    crowds = {agents: list[tuple[float, float]]() for agents in (20, 200)}
    for _ in range(turns):
        for (place_name, ops), series in cpu_s.items():
            series.append(_run(tables[place_name], ops)[0])
        for agents, used in crowds.items():
            used.append(_run(_describe_hosts(20, agents // 20), _FEW))
    per_op_us = {
        place_name: (median(cpu_s[place_name, _MANY]) - median(cpu_s[place_name, _FEW])) / (_MANY - _FEW) * 1e6
        for place_name in tables
    }
    more = [(median([pair[column] for pair in crowds[200]]) - median([pair[column] for pair in crowds[20]])) / 180
            for column in (0, 1)]  # fmt: skip
    absolute = {
        f"CPU of an operation, agents on {place_name}, us": round(value, 2) for place_name, value in per_op_us.items()
    }
    absolute |= {"CPU of an agent on a host, ms": round(more[0] * 1e3, 2),
                 "memory of an agent on a host, KiB": round(more[1] / MIB * 1024, 1)}  # fmt: skip
    ratio = round(per_op_us["3 hosts"] / per_op_us["this machine"], 3)
    unit = "controller's CPU for an operation on 3 hosts / on this machine"
    growth = measure_growth("operations on 3 hosts", _FEW // 10, lambda ops: _run(tables["3 hosts"], ops)[0])
    return [Figure("hosts_controller_ratio", ratio, unit, 1.5, absolute=absolute, growth=growth)]


def _describe_hosts(hosts: int, agents: int) -> str:
    command = json.dumps(python())
    rows = (f'[[host]]\nname = "h{number}"\nagents = {agents}\ncommand = {command}' for number in range(hosts))
    return "\n".join(rows)


def _run(table: str, ops: int) -> tuple[float, float]:
    """Return the controller's CPU in seconds, and its peak of memory in bytes."""
    where = ["--cloudbench-hosts", "hosts.toml"] if table else ["-n", "6"]
    used = run_session(_SENSORS, ops, *where, hosts=table)
    return used.controller_cpu_s, used.controller_peak_bytes
