"""Printed form of ``cloudbench analyze``: a verdict, totals and a table of flows.

An unknown value is a dash, never a zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import IO, TYPE_CHECKING, Any

from pytest_cloudbench.support.wording import format_count

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

MOST_FLOWS = 40
"""The number of flows that are printed, those with the most wire bytes."""
_FEW_FLOWS = 2000
"""With more flows than this, the import of a faster encoder is worth its time."""
_LINES_AT_ONCE = 64
"""Lines written at a time, few enough for the processor's cache."""
_COLOURS = {"valid": "green", "invalid": "bold red", "unknown": "yellow"}


def format_size(count: float | None) -> str:
    """Return a size with at most four digits, in decimal units."""
    if count is None:
        return "-"
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 999.5 or unit == "GB":
            is_whole = unit == "B" or abs(count) >= 100
            return f"{count:,.0f} {unit}" if is_whole else f"{count:.3g} {unit}"
        count /= 1000
    raise AssertionError("not reached")


def _format_seconds(value: float | None) -> str:
    if value is None:
        return "-"
    from pytest_cloudbench.report.quantities import format_number

    return f"{format_number(value * 1e3)} ms" if value < 0.9995 else f"{value:,.3f} s"


def write_json(
    summary: Mapping[str, Any], notes: Sequence[str], flows: Iterable[Mapping[str, Sequence[Any]]], to: IO[str]
) -> None:
    """Write an analysis as one JSON document. Flows are columns, some at a time since all may not fit into memory."""
    import json

    text = json.dumps({**summary, "comments": [], "notes": notes}, indent=1)[:-2]
    if summary["comments"]:  # there may be one for each packet, and indenting is slow
        comments = json.dumps(summary["comments"], separators=(",\n  ", ": "))
        text = text.replace('\n "comments": []', f'\n "comments": [\n  {comments[1:-1]}\n ]', 1)
    to.write(text)
    to.write(',\n "flows": [')
    separator = "\n  "
    for lines in _encode_flows(flows):
        while text := ",\n  ".join(islice(lines, _LINES_AT_ONCE)):
            to.write(separator)
            to.write(text)
            separator = ",\n  "
    to.write("\n ]\n}\n")


def _encode_flows(flows: Iterable[Mapping[str, Sequence[Any]]]) -> Iterator[Iterator[str]]:
    """Yield the lines of some flows at a time."""
    from pytest_cloudbench.support.json_rows import encode_rows, make_quick_number_encoder

    written, encode_numbers = 0, None
    for columns in flows:
        count = len(next(iter(columns.values())))
        few = min(count, max(0, _FEW_FLOWS - written))
        written += count
        if few:
            yield encode_rows({name: values[:few] for name, values in columns.items()})
        if few < count:
            encode_numbers = encode_numbers or make_quick_number_encoder()
            yield encode_rows({name: values[few:] for name, values in columns.items()}, encode_numbers)


def print_analysis(
    summary: Mapping[str, Any], notes: Sequence[str], flows: Sequence[Mapping[str, Any]], console: Console | None = None
) -> None:
    """Print the ``summary`` of an analysis and some of its ``flows``."""
    from rich.console import Console
    from rich.markup import escape

    class Pipe(Console):
        """A console that lets the caller handle a closed pipe instead of ending the program."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    console = console or Pipe(highlight=False, emoji=False)
    validity = summary["validity"]
    duration = _format_seconds(summary["duration_s"])
    packets = format_count(summary["packets"], "packet")
    console.print(f"[bold]{escape(summary['file'])}[/]  {summary['format']}, {packets} in {duration}")
    colour = _COLOURS[validity["verdict"]]
    reasons = escape(f": {'; '.join(validity['reasons'])}") if validity["reasons"] else ""
    console.print(f"[{colour}]{validity['verdict']}[/]{reasons}")
    for reason in validity["size_reasons"]:
        console.print(f"[yellow]overhead unknown[/]: {escape(reason)}")
    for note in notes:
        console.print(f"[yellow]note[/]: {escape(note)}")
    console.print(escape(_describe_encryption(summary["encryption"])))
    if summary["canary"] is not None:
        stream_count = len(summary["canary"]["found"])
        forms = sorted({str(occurrence["form"]) for occurrence in summary["canary"]["found"]})
        forms_text = f": {', '.join(forms)}" if forms not in ([], ["raw"]) else ""
        streams = f"({format_count(stream_count, 'stream')}{forms_text})"
        console.print(f"canary sent in plain text: [bold]{summary['canary']['verdict']}[/] {escape(streams)}")
    console.print()
    flow_count = sum(role["flows"] for role in summary["roles"].values())
    if flows:
        clients = sorted({flow["client"] for flow in flows})
        sender = clients[0] if len(clients) == 1 else f"each flow's client ({len(clients)} addresses)"
        console.print(f"up is what {sender} sent")
        console.print(_totals_table(summary, flow_count))
        console.print(_flows_table(flows, summary["first_s"]))
    if flow_count > len(flows):
        console.print(
            f"{format_count(flow_count - len(flows), 'smaller flow is', 'smaller flows are')} not shown; --json has all"
        )
    for line in _closing_lines(summary):
        console.print(escape(line))


def _describe_encryption(encryption: Mapping[str, Any]) -> str:
    """Return the verdict on encryption in one line, with its evidence."""
    parts = [f"{name} x {count:,}" for name, count in encryption["encrypted"].items()]
    parts += [f"plain: {', '.join(encryption['plain'])}"] if encryption["plain"] else []
    parts += [f"not recognised: {', '.join(encryption['unknown'])}"] if encryption["unknown"] else []
    return f"everything is encrypted: {encryption['verdict']}" + (f" ({'; '.join(parts)})" if parts else "")


def _new_table(*columns: str, left_aligned: Sequence[str]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    for column in columns:
        table.add_column(
            column, justify="left" if column in left_aligned else "right", no_wrap=column != "server", overflow="fold"
        )
    return table


_BYTE_COUNTS = ("payload_up_bytes", "payload_down_bytes", "unique_up_bytes", "wire_up_bytes", "wire_down_bytes")


def _totals_table(summary: Mapping[str, Any], flows: int) -> Table:
    table = _new_table(
        "role", "flows", "packets", "up", "down", "unique", "wire up", "wire down", "SYNs", "resent",
        left_aligned=("role",),
    )  # fmt: skip
    for name, sums in sorted(summary["roles"].items(), key=lambda role: -role[1]["wire_up_bytes"]):
        table.add_row(
            name, f"{sums['flows']:,}", f"{sums['packets']:,}", *(format_size(sums[key]) for key in _BYTE_COUNTS),
            f"{sums['syns']:,}", f"{sums['retransmissions']:,}",
        )  # fmt: skip
    if len(summary["roles"]) > 1:
        table.add_section()
        table.add_row(
            "all", f"{flows:,}", f"{summary['flow_packets']:,}", *(format_size(summary[key]) for key in _BYTE_COUNTS),
            f"{summary['syns']:,}", f"{summary['retransmissions']:,}", style="bold",
        )  # fmt: skip
    return table


def _flows_table(flows: Sequence[Mapping[str, Any]], begin: float) -> Table:
    """Return the table of flows. Times are counted from ``begin``."""
    from rich.text import Text

    table = _new_table(
        "#",
        "role",
        "server",
        "kind",
        "start",
        "lasts",
        "up",
        "down",
        "resent",
        "RTT",
        left_aligned=("role", "server", "kind"),
    )
    for flow in flows:
        kind = flow["tls_version"] or (f"quic {flow['quic_version']}" if flow["quic_version"] else flow["protocol"])
        cells = (
            str(flow["number"]), flow["role"], f"{flow['name']}:{flow['server_port']}", kind,
            _format_seconds(flow["first_s"] - begin), _format_seconds(flow["duration_s"]),
            format_size(flow["payload_up_bytes"]), format_size(flow["payload_down_bytes"]),
            f"{flow['retransmissions']:,}", _format_seconds(flow["initial_rtt_s"]),
        )  # fmt: skip
        table.add_row(*map(Text, cells))  # without markup, which takes longer
    return table


def _closing_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return the lines below the tables."""
    lines = []
    for label, value in (
        ("start-up", _format_seconds(summary["start_up_s"])), ("completion", _format_seconds(summary["completion_s"])),
        ("headers", format_size(summary["header_bytes"])), ("TUE", _format_ratio(summary["tue"])),
        ("overhead", _format_ratio(summary["overhead"])),
    ):  # fmt: skip
        if value != "-":
            lines.append(f"{label}: {value}")
    other_counts = {name: count for name, count in summary["not_in_flows"].items() if count and name != "wire_bytes"}
    if other_counts:
        parts = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in other_counts.items())
        lines.append(f"packets in no flow: {parts}")
    if summary["sentinels"]:
        lines.append(
            f"{summary['sentinels']:,} sentinels of this program, which mark the capture's ends, are not counted"
        )
    if summary["foreign_flows"]:
        flows = format_count(summary["foreign_flows"], "flow of others is", "flows of others are")
        lines.append(f"{flows} not counted")
    if summary["cut_packets"]:
        packets = format_count(summary["cut_packets"], "packet was", "packets were")
        lines.append(f"{packets} cut by the snap length; sizes are those of the wire")
    return lines


def _format_ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
