"""Flows as JSON types: totals over many, and a line for each.

What may live here: the keys of flows in JSON, and their values. Lines are made from columns, some thousands at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.net.traffic import metrics
from pytest_cloudbench.net.traffic.facts import CaptureFacts
from pytest_cloudbench.net.traffic.replies import answers
from pytest_cloudbench.net.traffic.table import BY, NEVER, FlowTable, listed

if TYPE_CHECKING:
    from pytest_cloudbench.net.traffic.records import Ints

_FLOWS_AT_ONCE = 4096
_SUMS = ("payload_bytes", "unique_bytes", "wire_bytes", "missing_bytes", "unseen_bytes", "retransmissions")
_MARKS = {
    "syns": "syns", "syn_acks": "syn_acks", "fins": "fins", "resets": "resets", "retransmissions": "retransmissions",
    "fast_retransmissions": "fast", "spurious_retransmissions": "spurious", "out_of_order": "out_of_order",
    "keep_alives": "keep_alives",
}  # fmt: skip
"""JSON keys and the names of the counts: some by direction, some of both together."""


def _by_way(name: str) -> tuple[str, str]:
    stem, _, unit = name.partition("_")
    return (f"{stem}_up_{unit}", f"{stem}_down_{unit}") if unit else (f"{stem}_up", f"{stem}_down")


_KEYS = {name: _by_way(name) for name in _SUMS}


def ways(table: FlowTable, name: str, numbers: Ints) -> Any:
    """One of the sides' counts of these flows, up and down."""
    return table.sums[name][:, numbers]


def totals(table: FlowTable, numbers: Ints, packets: str = "packets") -> dict[str, int]:
    """Sums over flows, by direction and together. ``packets``: the key of their number."""

    def sums(name: str) -> list[int]:
        return list(ways(table, name, numbers).sum(1).tolist())

    found = {packets: sum(sums("packets"))}
    for name, keys in _KEYS.items():
        found |= zip(keys, sums(name), strict=True)
    return found | {key: sum(sums(name)) for key, name in _MARKS.items()}


def largest(table: FlowTable, numbers: Ints, most: int) -> Ints:
    """Those of these flows with the most wire bytes, in the order of their numbers."""
    import numpy as np

    wire_bytes = ways(table, "wire_bytes", numbers).sum(0)
    return np.sort(numbers[np.argsort(-wire_bytes, kind="stable")[: max(0, most)]])


def flow_lines(table: FlowTable, facts: CaptureFacts, numbers: Ints) -> Iterator[dict[str, Any]]:
    """What is known of each of these flows."""
    for begin in range(0, len(numbers), _FLOWS_AT_ONCE):
        columns = _columns(table, facts, numbers[begin : begin + _FLOWS_AT_ONCE])
        for line in zip(*columns.values(), strict=True):
            yield dict(zip(columns, line, strict=True))


def _columns(table: FlowTable, facts: CaptureFacts, numbers: Ints) -> dict[str, list[Any]]:
    """Keys, and a value for each flow."""
    who, times, texts = table.who, table.times, facts.texts
    about, wanted = facts.columns(numbers), numbers.tolist()
    initial_ns = times.initial_rtt_ns[numbers]
    chunks: list[list[int] | None] = [None] * len(wanted)
    for place, role in enumerate(about["role"]):
        if role == "storage":
            chunks[place] = metrics.chunks(table, table.flow(wanted[place]))
    return {
        "number": wanted,
        "protocol": about["protocol"],
        "client": [texts[place] for place in who.client[numbers].tolist()],
        "client_port": who.client_port[numbers].tolist(),
        "server": [texts[place] for place in who.server[numbers].tolist()],
        "server_port": who.server_port[numbers].tolist(),
        "client_by": [BY[place] for place in who.client_by[numbers].tolist()],
        "name": about["name"],
        "sni": about["sni"],
        "has_ech": about["has_ech"],
        "dns_names": about["dns_names"],
        "alpn_offered": about["alpn"],
        "tls_version": about["tls_version"],
        "quic_version": about["quic_version"],
        "role": about["role"],
        "first_s": (times.first_ns[numbers] / 1e9).tolist(),
        "duration_s": ((times.last_ns[numbers] - times.first_ns[numbers]) / 1e9).tolist(),
        **_counts(table, numbers),
        **_payload_times(table, numbers),
        "initial_rtt_s": listed(initial_ns / 1e9, initial_ns != NEVER),
        **answers(table, wanted),
        "chunks_bytes": chunks,
    }


def _counts(table: FlowTable, numbers: Ints) -> dict[str, list[int]]:
    """What ``totals`` has, for each flow."""
    found = {"packets": ways(table, "packets", numbers).sum(0).tolist()}
    for name, keys in _KEYS.items():
        found |= zip(keys, ways(table, name, numbers).tolist(), strict=True)
    return found | {key: ways(table, name, numbers).sum(0).tolist() for key, name in _MARKS.items()}


def _payload_times(table: FlowTable, numbers: Ints) -> dict[str, list[float | None]]:
    found = {}
    for way, direction in enumerate(("up", "down")):
        said = table.sums["payload_bytes"][way][numbers] > 0
        for end in ("first", "last"):
            seconds = table.sums[f"{end}_payload_ns"][way][numbers] / 1e9
            found[f"{end}_payload_{direction}_s"] = listed(seconds, said)
    return found
