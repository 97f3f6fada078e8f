"""Transfers of sets of files by a sync client: their costs, and summaries of repeated ones.

Each transfer is a window of time within one capture. ``net.traffic.metrics`` defines what a number means. Nothing is
concluded here.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from pytest_cloudbench.lab.detect.observe import cut_window, observe
from pytest_cloudbench.lab.detect.values import Observation
from pytest_cloudbench.lab.sync.changes import Workload, put
from pytest_cloudbench.lab.sync.contacts import count_contacts, find_contacts
from pytest_cloudbench.lab.sync.lab import Lab
from pytest_cloudbench.lab.sync.usage import difference, energy_j, read_energy_uj, rss_bytes
from pytest_cloudbench.model import UsageError
from pytest_cloudbench.net.traffic import Analysis, Flow, FlowTable, metrics
from pytest_cloudbench.net.traffic.owners import nameless_doubt
from pytest_cloudbench.support.wording import format_count

_NEVER = 1 << 60
_SEEN_SHARE = 0.9
"""Random bytes cannot be compressed, so what is missing was not seen."""
_STORAGE_SHARE = 0.1
"""A server that receives a smaller share of the upload does not get the content."""


@dataclass(frozen=True, slots=True)
class PlannedInterruption:
    """An interruption of the link in the middle of a transfer, see ``Link.interrupt``."""

    how: Literal["reset", "drop", "black_hole"]
    at_byte: int
    duration_s: float | None = None


@dataclass(frozen=True, slots=True)
class Transfer:
    """The cost of one set of files. None is "not known". Sums are over all flows, including control flows.

    Attributes:
        files, content_bytes: of the set.
        start_up_s, completion_s, overhead, tue: see ``net.traffic.metrics`` (paper 001, section 5; 002: TUE).
        synced_s: from the change until the other side was seen to hold the content, looking every 20 ms.
        wire_bytes: whole frames, both ways.
        up_bytes, down_bytes: payload. Bytes that TCP sent twice count once.
        connections: attempts to open one.
        contacted_servers, contacted_names: how many servers, and how many names, the client was in contact with.
        cpu_s, server_cpu_s: CPU time of the two sides.
        peak_bytes: resident memory of the client's processes, the sum of each one's peak so far.
        energy_j: of the whole machine.
        interrupted: empty without an interruption, otherwise ``how``, ``at_byte``, ``duration_s``, ``happened`` and
            ``run_again`` (a client that is run for each change failed, and was run once more). If it happened, also
            ``passed_bytes`` to the server, ``sent_after_bytes`` by the client on connections that it opened then, and
            ``recovery_s`` until the last payload of the content.
        is_synced: whether the other side got the content.
        error: the client's report if it did not.
        nameless_bytes: bytes of flows that may or may not be the client's (``net.traffic.owners``). Not in any other
            count.
        reasons: the reasons why the numbers may be wrong, or empty if they may be used.
    """

    files: int
    content_bytes: int
    start_up_s: float | None = None
    completion_s: float | None = None
    synced_s: float | None = None
    wire_bytes: int | None = None
    up_bytes: int = 0
    down_bytes: int = 0
    connections: int = 0
    contacted_servers: int = 0
    contacted_names: int = 0
    turns: int = 0
    cpu_s: float | None = None
    server_cpu_s: float | None = None
    peak_bytes: int | None = None
    energy_j: float | None = None
    interrupted: Mapping[str, Any] = field(default_factory=dict)
    is_synced: bool = True
    error: str = ""
    nameless_bytes: int = 0
    reasons: tuple[str, ...] = ()

    @property
    def tue(self) -> float | None:
        """Wire bytes over bytes of content."""
        return None if self.wire_bytes is None else self.wire_bytes / self.content_bytes

    @property
    def overhead(self) -> float | None:
        """TUE minus one: 0.47 is the paper's "47 %"."""
        return None if self.tue is None else self.tue - 1

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        plain = {**asdict(self), "tue": self.tue, "overhead": self.overhead}
        return {**plain, "interrupted": dict(self.interrupted), "reasons": list(self.reasons)}


@dataclass(frozen=True, slots=True)
class _TransferWindow:
    """One transfer whose packets have not been read yet."""

    about: Transfer
    first_ns: int
    synced_ns: int
    last_ns: int
    is_random: bool
    interrupted_ns: int | None = None


class Transfers:
    """Runs transfers in the folder of an open lab, one after another."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self._count = 0

    def run(
        self, workload: Workload, times: int = 1, *, interruption: PlannedInterruption | None = None
    ) -> list[Transfer]:
        """Transfer a set ``times`` times in one capture, each time with new content.

        After a transfer that fails there are no further ones, so the list may be shorter. If the client was out of sync
        before, nothing is transferred. Raises CaptureUnavailable, and ClientError when the client does not start.
        """
        if reason := self.lab.out_of_sync:
            about = Transfer(workload.files, workload.total_bytes, is_synced=False, error=reason, reasons=(reason,))
            return [about]
        windows: list[_TransferWindow] = []
        with self.lab.capture(files=workload.files, size_bytes=workload.size_bytes):
            self.lab.start()
            self.lab.wait_quiet()
            for _ in range(times):
                windows.append(self._transfer(workload, interruption))
                if not windows[-1].about.is_synced:
                    break
        transfers, reasons = self.lab.read_capture(
            lambda analysis: [_fill_transfer(analysis, window) for window in windows]
        )
        return [replace(window.about, reasons=reasons) for window in windows] if transfers is None else transfers

    # --- one transfer ---

    def _transfer(self, workload: Workload, interruption: PlannedInterruption | None) -> _TransferWindow:
        """Bring a workload through the client, interrupted if planned, and return the window of the transfer."""
        lab, client, self._count = self.lab, self.lab.client, self._count + 1
        before = (client.cpu_s("client"), client.cpu_s("server"), read_energy_uj())
        if interruption is not None:
            lab.link.interrupt(interruption.how, at_byte=interruption.at_byte, duration_s=interruption.duration_s)
        folder = client.folder / f"set{self._count:04d}"
        client.before_change()
        first_ns = put(workload, folder, lab.workdir / "stage", f"{lab.seed}/{self._count}")
        error, is_run_again = lab.bring_change(), False
        if error and interruption is not None and not client.facts.watches_folder:
            error, is_run_again = lab.bring_change(), True
        if error:
            lab.out_of_sync = f"the client has been out of sync since an earlier transfer: {error}"
        synced_ns = time.time_ns()
        after = (client.cpu_s("client"), client.cpu_s("server"), read_energy_uj())
        peak_bytes = rss_bytes(client.pids("client"), peak=True)
        lab.wait_quiet()
        transfer = Transfer(
            workload.files, workload.total_bytes, synced_s=None if error else (synced_ns - first_ns) / 1e9,
            cpu_s=difference(after[0], before[0]), server_cpu_s=difference(after[1], before[1]), peak_bytes=peak_bytes,
            energy_j=energy_j(before[2], after[2]), is_synced=not error, error=error,
        )  # fmt: skip
        interrupted_ns, interruption_facts = self._read_interruption(interruption)
        transfer = replace(
            transfer, interrupted={**interruption_facts, "run_again": is_run_again} if interruption_facts else {}
        )
        return _TransferWindow(transfer, first_ns, synced_ns, time.time_ns(), workload.kind == "binary", interrupted_ns)

    def _read_interruption(self, planned: PlannedInterruption | None) -> tuple[int | None, dict[str, Any]]:
        """Return when the interruption happened, in nanoseconds since 1970, and a description of it."""
        if planned is None:
            return None, {}
        description: dict[str, Any] = {**asdict(planned), "happened": False}
        happened = self.lab.link.interruptions()[-1]
        if not happened["happened_ns"]:
            self.lab.link.interrupt("reset", at_byte=_NEVER)  # else the next transfer would be hit
            return None, description
        offset_ns = time.time_ns() - time.monotonic_ns()
        description |= {"happened": True, "passed_bytes": happened["passed_bytes"]}
        return happened["happened_ns"] + offset_ns, description


# --- what was seen ---


def _fill_transfer(analysis: Analysis, window: _TransferWindow) -> Transfer:
    """Return the transfer with the quantities computed from its window's packets."""
    observation = observe(analysis, Observation("new"), window.first_ns, window.last_ns, round_trip_s=None)
    # Traffic after the content has arrived (news, tear-down) is not part of the completion time.
    table = cut_window(analysis.table, window.first_ns, window.synced_ns)
    storage = _storage_flows(table)
    contacted = count_contacts(find_contacts(analysis, cut_window(analysis.table, window.first_ns, window.last_ns)))
    interrupted = dict(window.about.interrupted)
    start_up_s = metrics.start_up_s(table, storage, window.first_ns)
    completion_s = metrics.completion_s(table, storage, window.first_ns) if window.about.is_synced else None
    wire_bytes = observation.wire_bytes if observation.up_bytes else None
    doubt = nameless_doubt(observation.nameless_bytes, wire_bytes if wire_bytes is not None else observation.up_bytes)
    if not observation.up_bytes:
        doubt.append("nothing from the client was captured")
    elif (
        window.is_random and window.about.is_synced and observation.up_bytes < _SEEN_SHARE * window.about.content_bytes
    ):
        counts = f"only {observation.up_bytes:,} of {window.about.content_bytes:,} new random bytes were seen"
        doubt.append(f"{counts}: some of the client's servers are not known")
    if window.interrupted_ns is not None:
        interrupted["sent_after_bytes"] = _sent_on_new_flows(analysis, window.interrupted_ns, window.last_ns)
        if start_up_s is not None and completion_s is not None:
            interrupted["recovery_s"] = start_up_s + completion_s - (window.interrupted_ns - window.first_ns) / 1e9
    return replace(
        window.about,
        start_up_s=start_up_s,
        completion_s=completion_s,
        wire_bytes=wire_bytes,
        up_bytes=observation.up_bytes,
        down_bytes=observation.down_bytes,
        connections=observation.syns,
        contacted_servers=contacted["contacted_servers"],
        contacted_names=contacted["contacted_names"],
        turns=observation.turns,
        interrupted=interrupted,
        nameless_bytes=observation.nameless_bytes,
        reasons=tuple(dict.fromkeys((*observation.reasons, *doubt))),
    )


def _sent_on_new_flows(analysis: Analysis, first_ns: int, last_ns: int) -> int:
    """Return the payload that the client sent on connections whose first packet is in this time."""
    new_flows = [flow for flow in analysis.table.flows if first_ns <= flow.first_ns < last_ns]
    return sum(flow.up.unique_bytes for flow in new_flows)


def _storage_flows(table: FlowTable) -> list[Flow]:
    """Return the flows to servers that receive a large part of what the client sends in this window."""
    sent: dict[tuple[Any, int], int] = defaultdict(int)
    flows = [flow for flow in table.flows if len(table.rows(flow)) and not flow.server.is_multicast]
    for flow in flows:
        rows = table.rows(flow)
        sent[flow.server, flow.server_port] += int(table.packets.payload[rows][table.up[rows]].sum())
    total = sum(sent.values())
    return [flow for flow in flows if total and sent[flow.server, flow.server_port] >= _STORAGE_SHARE * total]


# --- repeated transfers as the numbers of one entry ---
# Means, because the papers print means. If one value is unknown, so is the mean.

_MEANS = {
    "start_up": "start_up_s", "completion": "completion_s", "overhead": "overhead", "tue": "tue",
    "wire_bytes": "wire_bytes", "connections": "connections",
    "contacted_servers": "contacted_servers", "contacted_names": "contacted_names", "cpu_s": "cpu_s",
    "server_cpu_s": "server_cpu_s", "energy_j": "energy_j", "synced_s": "synced_s",
}  # fmt: skip
"""Maps names in an entry to quantities of a transfer."""

_ALL, _NOTHING = 0.9, 0.1


def mean_of_known(values: Sequence[float | None]) -> float | None:
    """Return the mean, or None if one of the values is unknown, or if there are none."""
    known_values = [value for value in values if value is not None]
    return statistics.fmean(known_values) if known_values and len(known_values) == len(values) else None


def transfer_means(transfers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean of each quantity over the completed transfers, and the range of single ones."""
    completed = [transfer for transfer in transfers if transfer["is_synced"]]
    summary: dict[str, Any] = {
        name: mean_of_known([transfer[key] for transfer in completed]) for name, key in _MEANS.items()
    }
    for name in ("start_up", "completion", "overhead"):
        values = [transfer[_MEANS[name]] for transfer in completed]
        if values and None not in values:
            summary |= {f"{name}_min": min(values), f"{name}_max": max(values)}
    rate = [
        transfer["content_bytes"] * 8 / transfer["completion_s"] for transfer in completed if transfer["completion_s"]
    ]
    summary["upload_rate_bit_per_s"] = statistics.fmean(rate) if len(rate) == len(completed) and rate else None
    return summary


def transfer_doubts(transfers: Sequence[Mapping[str, Any]], repeats: int) -> list[str]:
    """Return the reasons why the numbers of repeated transfers may be wrong."""
    completed = sum(1 for transfer in transfers if transfer["is_synced"])
    doubts = []
    if completed < repeats:
        doubts.append(f"{repeats - completed} of {format_count(repeats, 'transfer')} did not finish")
    doubts += [transfer["error"] for transfer in transfers if transfer["error"]]
    return list(dict.fromkeys([*doubts, *(reason for transfer in transfers for reason in transfer["reasons"])]))


def recovery_cost(undisturbed: Mapping[str, Any], interrupted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cost of an interruption: the difference between two transfers of equally large sets.

    ``recovery_bytes``: wire bytes beyond those of the undisturbed one (paper 004, Figure 4: total traffic).
    ``recovery_overhead``: the same as a share of the content. ``again_bytes``: the same for payload that the client
    sent. ``repeated_share``: the share of the bytes before the interruption that was sent again on new connections: 0
    resumes, 1 starts over. ``recovery``: seconds from the interruption until the last payload of the content.
    ``how_recovered``: the outcome in words. None is "not known". Raises UsageError if the sets differ in size.
    """
    if undisturbed["content_bytes"] != interrupted["content_bytes"]:
        raise UsageError("a transfer is compared with one of an equally large set")
    interruption, content_bytes = interrupted["interrupted"], interrupted["content_bytes"]
    costs: dict[str, Any] = dict.fromkeys(
        ("recovery", "recovery_overhead", "recovery_bytes", "again_bytes", "repeated_share"), None
    )  # fmt: skip
    costs |= {"interrupted_at_byte": interruption.get("at_byte"), "passed_bytes": interruption.get("passed_bytes")}
    if interrupted["reasons"] or undisturbed["reasons"] or not undisturbed["is_synced"]:
        return costs | {"how_recovered": "unknown"}
    if not interrupted["is_synced"]:
        return costs | {"how_recovered": "never"}
    if interrupted["wire_bytes"] is not None and undisturbed["wire_bytes"] is not None:
        costs["recovery_bytes"] = interrupted["wire_bytes"] - undisturbed["wire_bytes"]
        costs["recovery_overhead"] = costs["recovery_bytes"] / content_bytes
    costs["again_bytes"] = interrupted["up_bytes"] - undisturbed["up_bytes"]
    if not interruption.get("happened"):
        return costs | {"how_recovered": "not interrupted"}
    costs["recovery"] = interruption.get("recovery_s")
    if not interruption["sent_after_bytes"]:
        return costs | {"how_recovered": "connection lived on"}
    missing_bytes = undisturbed["up_bytes"] - interruption["passed_bytes"]
    costs["repeated_share"] = share = (interruption["sent_after_bytes"] - missing_bytes) / interruption["passed_bytes"]
    return costs | {
        "how_recovered": "starts over" if share >= _ALL else "resumes" if share <= _NOTHING else "sends a part again"
    }  # fmt: skip
