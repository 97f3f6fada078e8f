"""The figures of each host in an entry: those of its agents, as if they were an experiment of their own.

Entries are not trusted: what has another form than ``load.merging`` writes is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pytest_cloudbench.judge.baseline import is_finite
from pytest_cloudbench.judge.metrics import METRICS
from pytest_cloudbench.report.finding import ReportedFinding
from pytest_cloudbench.report.quantities import UNKNOWN, format_bytes, format_milliseconds

ALL_HOSTS = "all hosts"
"""The name of the row over all hosts."""
_WAY_COUNTS = "times include the way through the controller's connections"
_AGENTS_DIFFER = "hosts have different numbers of agents"
_BY_AGENTS = ("throughput", "ops_per_s")
"""Metrics that grow with the number of agents, so that hosts with different numbers cannot be compared by them."""


class _Finding(ReportedFinding, Protocol):
    @property
    def experiment(self) -> str: ...


@dataclass(frozen=True, slots=True)
class HostFinding:
    """One experiment on one provider, as one host measured it.

    Attributes:
        nodeid, provider, experiment: of the whole experiment.
        info: of the whole experiment, with the host's own figures in place of those of all hosts.
        spread: the host's own values in parts of the run.
        exclusions: by metric, why hosts cannot be compared by it.
        columns: empty, because the figures of one host are never a conclusion.
    """

    nodeid: str
    provider: str
    experiment: str
    info: Mapping[str, Any]
    spread: Mapping[str, Sequence[float]]
    exclusions: Mapping[str, str]
    columns: Sequence[str] = ()


def way_notes(info: Mapping[str, Any]) -> list[str]:
    """Return a remark if times of hosts cannot be compared, because some agents use the controller's connections."""
    return [f"Some {_WAY_COUNTS}."] if info.get("through_controller") else []


def list_hosts(info: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the hosts that an entry names. Empty if all was done on one machine."""
    stored = info.get("hosts")
    rows = stored if isinstance(stored, list) else []
    return [row for row in rows if isinstance(row, Mapping) and isinstance(row.get("name"), str)]


def describe_host(host: Mapping[str, Any]) -> list[str]:
    """Return in words what an entry says of one of its hosts.

    Its name, place, agents, machine, kernel, memory, address, clock, and access line. A dash is an unknown value.
    """
    labels = host.get("labels")
    where = ", ".join(str(label) for label in labels.values()) if isinstance(labels, Mapping) else ""
    numbers: dict[str, Any] = {key: value for key, value in host.items() if is_finite(value)}
    counts = {key: numbers.get(key, 0) for key in ("agents", "lost_agents", "absent_agents")}
    agents = f"{counts['agents']}" + "".join(
        f", {counts[key]} {word}" for key, word in (("lost_agents", "lost"), ("absent_agents", "absent")) if counts[key]
    )
    clock, memory = UNKNOWN, UNKNOWN
    if {"clock_error_ns", "clock_offset_ns"} <= numbers.keys():
        bound_ns = numbers["clock_error_ns"]
        offset = f"{numbers['clock_offset_ns'] / 1e9:+.6g} s within {bound_ns / 1e6:.2g} ms"
        clock = offset if bound_ns else "the controller's"
    if "memory_bytes" in numbers:
        memory = format_bytes(numbers["memory_bytes"])
    machine, kernel, address = (str(host.get(key) or UNKNOWN) for key in ("machine", "kernel", "address"))
    return [
        str(host["name"]), where or UNKNOWN, agents, machine, kernel, memory, address, clock,
        describe_line(host.get("line")),
    ]  # fmt: skip


def format_rate(bytes_per_s: float) -> str:
    """Return the rate of a line in Mbit/s."""
    rate = bytes_per_s * 8 / 1e6
    return f"{rate:,.0f} Mbit/s" if rate >= 100 else f"{rate:.3g} Mbit/s"


def describe_line(line: Any) -> str:
    """Return in words what an entry says of an access line: how far, how fast, to what, and when it was measured."""
    if not isinstance(line, Mapping):
        return UNKNOWN
    parts = [f"{format_milliseconds(line['round_trip_min_s'])} ms"] if is_finite(line.get("round_trip_min_s")) else []
    for direction in ("up", "down"):
        way = line.get(direction)
        if isinstance(way, Mapping) and is_finite(way.get("bytes_per_s")):
            parts.append(f"{direction} {format_rate(way['bytes_per_s'])}")
    where = f"to {line.get('provider')}, {str(line.get('date'))[:10]}"
    return f"{', '.join(parts)} ({where})" if parts else UNKNOWN


def describe_location(location: Any) -> str:
    """Return in words where the servers of an entry's provider are, and when they were located."""
    if not isinstance(location, Mapping) or not isinstance(location.get("place"), str):
        return UNKNOWN
    operator, away = str(location.get("operator") or ""), format_distance(location)
    parts = [operator if operator != "unknown" else "", location["place"]]
    parts += [f"{away} km away" if away != UNKNOWN else ""]
    return f"{', '.join(filter(None, parts))} (located {str(location.get('date'))[:10]})"


def format_distance(location: Any) -> str:
    """Return the least and the greatest distance of an entry's servers in kilometers, or a dash if it is unknown."""
    bounds = [location.get(key) for key in ("nearest_km", "farthest_km")] if isinstance(location, Mapping) else [None]
    return "-".join(f"{bound:.0f}" for bound in bounds) if all(map(is_finite, bounds)) else UNKNOWN


def list_locations(entries: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, list[str]]:
    """Return the descriptions of each provider's server locations, without repetitions, from providers and entries."""
    known: dict[str, dict[str, None]] = {}
    for provider, info in entries:
        if (text := describe_location(info.get("location"))) != UNKNOWN:
            known.setdefault(provider, {})[text] = None
    return {provider: [*texts] for provider, texts in known.items()}


def read_figures(info: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the figures of each host of an entry, by its name. Empty unless there are several. Unknown is None."""
    stored = info.get("by_host")
    hosts = stored if isinstance(stored, Mapping) else {}
    return {
        str(name): {str(key): value if is_finite(value) else None for key, value in figures.items() if key != "spread"}
        for name, figures in hosts.items() if isinstance(figures, Mapping)
    }  # fmt: skip


def split_by_host(finding: _Finding) -> dict[str, HostFinding]:
    """Return an experiment as each host measured it, by the host's name. Empty unless several hosts did."""
    counts = {row.get("agents") for row in list_hosts(finding.info) if row.get("agents")}
    exclusions = dict.fromkeys(_BY_AGENTS, _AGENTS_DIFFER) if len(counts) > 1 else {}
    if finding.info.get("through_controller"):
        exclusions |= {name: _WAY_COUNTS for name, metric in METRICS.items() if metric.time_like}
    return {
        name: HostFinding(
            finding.nodeid, finding.provider, finding.experiment, {**finding.info, "loss_rate": None, **figures},
            _read_spread(finding.info["by_host"][name].get("spread")), exclusions,
        )
        for name, figures in read_figures(finding.info).items()
    }  # fmt: skip


def _read_spread(stored: Any) -> dict[str, list[float]]:
    return {
        str(metric): [float(value) for value in values if is_finite(value)]
        for metric, values in (stored.items() if isinstance(stored, Mapping) else ()) if isinstance(values, list)
    }  # fmt: skip
