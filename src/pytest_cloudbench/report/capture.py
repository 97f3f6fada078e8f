"""What ``cloudbench analyze`` prints for people: a verdict, totals and a table of flows.

What may live here: the analysis' JSON into lines of text. What is not known is a dash, never a zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["show", "size"]

_MOST_FLOWS = 40
_COLOURS = {"valid": "green", "invalid": "bold red", "unknown": "yellow"}


def size(count: float | None) -> str:
    """Bytes for people: four digits at most, decimal units."""
    if count is None:
        return "-"
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 999.5 or unit == "GB":
            return (
                f"{count:,.0f} B"
                if unit == "B"
                else f"{count:.3g} {unit}"
                if abs(count) < 100
                else f"{count:,.0f} {unit}"
            )
        count /= 1000
    raise AssertionError("not reached")


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:,.3f} s"


def show(facts: Mapping[str, Any], notes: Sequence[str] = (), console: Console | None = None) -> None:
    """Print an analysis (``Analysis.as_dict``)."""
    from rich.console import Console
    from rich.markup import escape

    console = console or Console(highlight=False)
    validity = facts["validity"]
    duration = _seconds(facts["duration_s"])
    console.print(f"[bold]{escape(facts['file'])}[/]  {facts['format']}, {facts['packets']:,} packets in {duration}")
    colour = _COLOURS[validity["verdict"]]
    console.print(f"[{colour}]{validity['verdict']}[/]" + (":" if validity["reasons"] else ""), end="")
    console.print(escape(" " + "; ".join(validity["reasons"])) if validity["reasons"] else "")
    for reason in validity["size_reasons"]:
        console.print(f"[yellow]overhead unknown[/]: {escape(reason)}")
    for note in notes:
        console.print(f"[yellow]note[/]: {escape(note)}")
    if facts["canary"] is not None:
        found = len(facts["canary"]["found"])
        console.print(f"canary sent in plain text: [bold]{facts['canary']['verdict']}[/] ({found} streams)")
    console.print()
    if facts["flows"]:
        console.print(_totals(facts))
        console.print(_flows(facts["flows"]))
    for line in _rest(facts):
        console.print(escape(line))


def _table(*columns: str, left: Sequence[str]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    for column in columns:
        table.add_column(
            column, justify="left" if column in left else "right", no_wrap=column != "server", overflow="fold"
        )
    return table


_COUNTS = ("payload_up_bytes", "payload_down_bytes", "unique_up_bytes", "wire_up_bytes", "wire_down_bytes")


def _totals(facts: Mapping[str, Any]) -> Table:
    table = _table(
        "role", "flows", "packets", "up", "down", "unique", "wire up", "wire down", "SYNs", "resent",
        left=("role",),
    )  # fmt: skip
    for name, sums in sorted(facts["roles"].items(), key=lambda each: -each[1]["wire_up_bytes"]):
        table.add_row(
            name, f"{sums['flows']:,}", f"{sums['packets']:,}", *(size(sums[key]) for key in _COUNTS),
            f"{sums['syns']:,}", f"{sums['retransmissions']:,}",
        )  # fmt: skip
    if len(facts["roles"]) > 1:
        table.add_section()
        table.add_row(
            "all", f"{len(facts['flows']):,}", f"{facts['flow_packets']:,}", *(size(facts[key]) for key in _COUNTS),
            f"{facts['syns']:,}", f"{facts['retransmissions']:,}", style="bold",
        )  # fmt: skip
    return table


def _flows(flows: Sequence[Mapping[str, Any]]) -> Table:
    from rich.markup import escape

    table = _table(
        "#", "role", "server", "kind", "start", "lasts", "up", "down", "resent", "RTT", left=("role", "server", "kind")
    )
    begin = min(flow["first_s"] for flow in flows)
    largest = sorted(flows, key=lambda flow: -(flow["wire_up_bytes"] + flow["wire_down_bytes"]))[:_MOST_FLOWS]
    for flow in sorted(largest, key=lambda flow: flow["number"]):
        kind = flow["tls_version"] or (f"quic {flow['quic_version']}" if flow["quic_version"] else flow["protocol"])
        table.add_row(
            str(flow["number"]), flow["role"], f"{escape(flow['name'])}:{flow['server_port']}", kind,
            _seconds(flow["first_s"] - begin), _seconds(flow["duration_s"]), size(flow["payload_up_bytes"]),
            size(flow["payload_down_bytes"]), f"{flow['retransmissions']:,}", _seconds(flow["initial_rtt_s"]),
        )  # fmt: skip
    return table


def _rest(facts: Mapping[str, Any]) -> list[str]:
    """What stands below the tables."""
    lines = []
    hidden = len(facts["flows"]) - _MOST_FLOWS
    if hidden > 0:
        lines.append(f"{hidden:,} smaller flows are not shown; --json has them all")
    for label, value in (
        ("start-up", _seconds(facts["start_up_s"])), ("completion", _seconds(facts["completion_s"])),
        ("headers", size(facts["header_bytes"])), ("TUE", _ratio(facts["tue"])),
        ("overhead", _ratio(facts["overhead"])),
    ):  # fmt: skip
        if value != "-":
            lines.append(f"{label}: {value}")
    aside = {name: count for name, count in facts["not_in_flows"].items() if count and name != "wire_bytes"}
    if aside:
        parts = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in aside.items())
        lines.append(f"packets in no flow: {parts}")
    if facts["foreign_flows"]:
        lines.append(f"{facts['foreign_flows']:,} flows of others are not counted")
    if facts["cut_packets"]:
        lines.append(f"{facts['cut_packets']:,} packets were cut by the snap length; sizes are those of the wire")
    return lines


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
