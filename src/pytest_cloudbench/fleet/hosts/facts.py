"""Facts about the hosts of a session: each agent elsewhere describes its own host, and entries state all facts."""

from __future__ import annotations

import platform
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.fleet.messages import Message
from pytest_cloudbench.results.lines import find_line, read_lines
from pytest_cloudbench.results.machine import THIS_MACHINE, describe_machine, read_memory_bytes
from pytest_cloudbench.results.rows import identify

if TYPE_CHECKING:
    from pytest_cloudbench.fleet.agent import Agent
    from pytest_cloudbench.fleet.coordinator import Item
    from pytest_cloudbench.fleet.hosts.table import Host

_FAR_AWAY = ("192.0.2.1", 9)
"""An address for documentation (RFC 5737). Asking for the route to it sends nothing."""


class HostFacts(Message, frozen=True):
    """The facts that an agent reports about the host that it runs on.

    Attributes:
        machine: its system, processors and Python, as ``results.machine`` describes them.
        kernel: the system and its release.
        memory_bytes: the memory that it has, None if the system does not tell.
        address: its own address on the way to other networks, which a router may change. Empty if there is no such way.
        clock_offset_ns: what is added to the times of this agent's records to get the controller's.
        clock_error_ns: the bound on the error of ``clock_offset_ns``.
    """

    machine: str
    kernel: str
    memory_bytes: int | None = None
    address: str = ""
    clock_offset_ns: int = 0
    clock_error_ns: int = 0


def read_facts(agent: Agent | None = None) -> HostFacts:
    """Return the facts about this host, with the clock as an agent has measured it."""
    clock = (agent.clock_offset_ns, agent.clock_error_ns) if agent is not None else (0, 0)
    kernel = f"{platform.system()} {platform.release()}"
    return HostFacts(describe_machine(), kernel, read_memory_bytes(), _find_address(), *clock)


def _find_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_FAR_AWAY)
            return str(probe.getsockname()[0])
        except OSError:
            return ""


class SessionHosts:
    """The hosts of one session, as the controller knows them.

    Args:
        find_host: returns the name of an agent's host, empty for an agent on this machine.
        list_planned: returns the hosts of the user's table, each with why it was given up, or an empty text.
        results: the folder with the access lines that were measured, if there may be any.
    """

    def __init__(
        self,
        find_host: Callable[[str], str] = lambda agent: "",
        list_planned: Callable[[], Sequence[tuple[Host, str]]] = lambda: (),
        results: Path | None = None,
    ) -> None:
        self._find_host, self._list_planned, self._results = find_host, list_planned, results
        self._facts: dict[str, dict[str, HostFacts]] = {}

    @property
    def are_planned(self) -> bool:
        """True if the user named hosts for agents of this session."""
        return bool(self._list_planned())

    def add_facts(self, agent: str, facts: HostFacts) -> None:
        """Note what an agent says of its host, in place of what it said before."""
        self._facts.setdefault(self._find_host(agent), {})[agent] = facts

    @cached_property
    def _lines(self) -> Sequence[Mapping[str, Any]]:
        return read_lines(self._results) if self._results is not None else ()

    def own_line(self, provider: str) -> dict[str, Any]:
        """Return the access line of this machine, if it was measured: to a provider, or else to another one."""
        return find_line(self._lines, "", identify(), provider)

    def describe(self, item: Item, provider: str = "") -> list[dict[str, Any]]:
        """Return the hosts that carried an item's agents or should have, for its entry. Empty if only this machine did.

        A row counts the ``agents`` that took part from the beginning, the ``lost_agents`` among these, and the
        ``absent_agents`` that never began.
        """
        agents: dict[str, list[str]] = {}
        for agent in item.entered:
            agents.setdefault(self._find_host(agent), []).append(agent)
        planned = {host.name: (host, why) for host, why in self._list_planned()}
        names = [*([""] if "" in agents else []), *planned, *(agents.keys() - planned.keys() - {""})]
        if not any(names):
            return []
        rows = []
        for name in names:
            host, given_up = planned.get(name, (None, ""))
            line = self.own_line(provider) if not name else {}
            if host is not None:
                line = find_line(self._lines, name, identify(host.command), provider)
            row = self._describe_host(name, agents.get(name, []), item.missing, host, given_up)
            rows.append(row | ({"line": line} if line else {}))
        return rows

    def _describe_host(
        self, name: str, agents: Sequence[str], missing: Mapping[str, str], host: Host | None, given_up: str
    ) -> dict[str, Any]:  # fmt: skip
        lost = [missing[agent] for agent in agents if agent in missing]
        absent = max(0, host.agents - len(agents)) if host is not None else 0
        reasons = [given_up, *lost, "its agents did not begin"] if lost or absent else [""]
        facts = list(self._facts.get(name, {}).values()) if name else [read_facts()]
        return {
            "name": name or THIS_MACHINE, "labels": dict(host.labels) if host is not None else {},
            "agents": len(agents), "lost_agents": len(lost), "absent_agents": absent,
            "lost_because": next(filter(None, reasons), ""),
            **(_merge_facts(facts) if facts else {}),
        }  # fmt: skip


def _merge_facts(facts: Sequence[HostFacts]) -> dict[str, Any]:
    """Return the facts of the agent that measured its clock best, with the largest error bound of all agents."""
    best = min(facts, key=lambda report: report.clock_error_ns)
    return {**best.plain(), "clock_error_ns": max(report.clock_error_ns for report in facts)}
