"""Flows as JSON types: totals over many, and a line for each, made from columns for some thousands at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.net.traffic import metrics
from pytest_cloudbench.net.traffic.facts import CaptureFacts
from pytest_cloudbench.net.traffic.replies import summarize_replies
from pytest_cloudbench.net.traffic.table import BY, NEVER, FlowTable, as_slice, to_list

if TYPE_CHECKING:
    from pytest_cloudbench.net.traffic.records import Ints

_FLOWS_AT_ONCE = 4096
_SUMS = ("payload_bytes", "unique_bytes", "wire_bytes", "missing_bytes", "unseen_bytes", "retransmissions")
_MARKS = {
    "syns": "syns", "syn_acks": "syn_acks", "fins": "fins", "resets": "resets", "retransmissions": "retransmissions",
    "fast_retransmissions": "fast", "spurious_retransmissions": "spurious", "out_of_order": "out_of_order",
    "keep_alives": "keep_alives",
}  # fmt: skip
"""Names of counts by JSON key, for counts that sum both directions."""


def _direction_keys(name: str) -> tuple[str, str]:
    stem, _, unit = name.partition("_")
    return (f"{stem}_up_{unit}", f"{stem}_down_{unit}") if unit else (f"{stem}_up", f"{stem}_down")


_KEYS = {name: _direction_keys(name) for name in _SUMS}


def get_counts(table: FlowTable, name: str, numbers: Ints) -> Any:
    """Return one count of these flows, up and down."""
    return table.sums[name][:, numbers]


def sum_counts(table: FlowTable, numbers: Ints, packets: str = "packets") -> dict[str, int]:
    """Return sums over flows. ``packets`` is the key of the number of packets."""
    selected = as_slice(numbers)

    def sums(name: str) -> list[int]:
        return list(get_counts(table, name, selected).sum(1).tolist())

    counts = {packets: sum(sums("packets"))}
    for name, keys in _KEYS.items():
        counts |= zip(keys, sums(name), strict=True)
    return counts | {key: sum(sums(name)) for key, name in _MARKS.items()}


def select_largest(table: FlowTable, numbers: Ints, max_flows: int) -> Ints:
    """Return the numbers of the flows with the most wire bytes, in ascending order."""
    import numpy as np

    wire_bytes = get_counts(table, "wire_bytes", numbers).sum(0)
    return np.sort(numbers[np.argsort(-wire_bytes, kind="stable")[: max(0, max_flows)]])


def make_flow_lines(table: FlowTable, facts: CaptureFacts, numbers: Ints) -> Iterator[dict[str, Any]]:
    """Yield the JSON object of each of these flows."""
    for columns in make_flow_columns(table, facts, numbers):
        for line in zip(*columns.values(), strict=True):
            yield dict(zip(columns, line, strict=True))


def make_flow_columns(table: FlowTable, facts: CaptureFacts, numbers: Ints) -> Iterator[dict[str, list[Any]]]:
    """Yield the JSON objects of these flows as columns, for some thousands at a time."""
    for begin in range(0, len(numbers), _FLOWS_AT_ONCE):
        yield _make_columns(table, facts, numbers[begin : begin + _FLOWS_AT_ONCE])


def _make_columns(table: FlowTable, facts: CaptureFacts, numbers: Ints) -> dict[str, list[Any]]:
    """Return all keys, each with the values of these flows."""
    who, times, texts = table.who, table.times, facts.texts
    facts_columns, flow_numbers = facts.make_columns(numbers), numbers.tolist()
    initial_ns = times.initial_rtt_ns[numbers]
    chunks: list[list[int] | None] = [None] * len(flow_numbers)
    for index, role in enumerate(facts_columns["role"]):
        if role == "storage":
            chunks[index] = metrics.chunks(table, table.flow(flow_numbers[index]))
    return {
        "number": flow_numbers,
        "protocol": facts_columns["protocol"],
        "client": [texts[index] for index in who.client[numbers].tolist()],
        "client_port": who.client_port[numbers].tolist(),
        "server": [texts[index] for index in who.server[numbers].tolist()],
        "server_port": who.server_port[numbers].tolist(),
        "client_by": [BY[index] for index in who.client_by[numbers].tolist()],
        "name": facts_columns["name"],
        "sni": facts_columns["sni"],
        "has_ech": facts_columns["has_ech"],
        "dns_names": facts_columns["dns_names"],
        "alpn_offered": facts_columns["alpn"],
        "tls_version": facts_columns["tls_version"],
        "quic_version": facts_columns["quic_version"],
        "role": facts_columns["role"],
        "first_s": (times.first_ns[numbers] / 1e9).tolist(),
        "duration_s": ((times.last_ns[numbers] - times.first_ns[numbers]) / 1e9).tolist(),
        **_make_count_columns(table, numbers),
        **_make_time_columns(table, numbers),
        "initial_rtt_s": to_list(initial_ns / 1e9, initial_ns != NEVER),
        **summarize_replies(table, flow_numbers),
        "chunks_bytes": chunks,
    }


def _make_count_columns(table: FlowTable, numbers: Ints) -> dict[str, list[int]]:
    """Return the counts of ``sum_counts`` for each flow."""
    counts = {"packets": get_counts(table, "packets", numbers).sum(0).tolist()}
    for name, keys in _KEYS.items():
        counts |= zip(keys, get_counts(table, name, numbers).tolist(), strict=True)
    return counts | {key: get_counts(table, name, numbers).sum(0).tolist() for key, name in _MARKS.items()}


def _make_time_columns(table: FlowTable, numbers: Ints) -> dict[str, list[float | None]]:
    columns = {}
    for row, direction in enumerate(("up", "down")):
        has_times = table.has_payload_times(numbers, row)
        for end in ("first", "last"):
            seconds = table.sums[f"{end}_payload_ns"][row][numbers] / 1e9
            columns[f"{end}_payload_{direction}_s"] = to_list(seconds, has_times)
    return columns
