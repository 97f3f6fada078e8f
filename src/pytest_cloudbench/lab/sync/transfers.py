"""Runs a sync client's transfers of sets of files, measures what each one cost, and summarizes repeated ones.

What may live here: windows of time within one capture, and the quantities of one window. ``net.traffic.metrics``
    defines
what a number means; nothing is concluded here.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from pytest_cloudbench.lab.detect.observe import observe, window
from pytest_cloudbench.lab.detect.values import Observation
from pytest_cloudbench.lab.sync.changes import Workload, put
from pytest_cloudbench.lab.sync.lab import Lab
from pytest_cloudbench.lab.sync.usage import difference, energy_j, read_energy_uj, rss_bytes
from pytest_cloudbench.model import UsageError
from pytest_cloudbench.net.traffic import Analysis, Flow, FlowTable, metrics
from pytest_cloudbench.net.traffic.owners import nameless_doubt

_NEVER = 1 << 60
_SEEN_SHARE = 0.9
"""Random bytes cannot be compressed, so what is missing was not seen."""
_STORAGE_SHARE = 0.1
"""A server that receives a smaller share of what the client sends does not get the content."""


@dataclass(frozen=True, slots=True)
class PlannedInterruption:
    """What happens to the link in the middle of a transfer; see ``Link.interrupt``."""

    how: Literal["reset", "drop", "black_hole"]
    at_byte: int
    duration_s: float | None = None


@dataclass(frozen=True, slots=True)
class Transfer:
    """What one set of files cost. None is "not known". Sums are over all flows, including control flows.

    Attributes:
        files, content_bytes: of the set.
        start_up_s, completion_s, overhead, tue: see ``net.traffic.metrics`` (paper 001, section 5; 002: TUE).
        synced_s: from the change until the other side was seen to hold the content, looking every 20 ms.
        wire_bytes: whole frames, both ways.
        up_bytes, down_bytes: payload; what TCP sent twice counts once.
        connections: attempts to open one.
        cpu_s, server_cpu_s: CPU time of the two sides.
        peak_bytes: resident memory of the client's processes, the sum of each one's peak so far.
        energy_j: of the whole machine.
        interrupted: empty without an interruption; otherwise ``how``, ``at_byte``, ``duration_s``, ``happened`` and
            ``run_again`` (a client that is run for each change failed, and was run once more). If it happened, also
            ``passed_bytes`` to the server, ``sent_after_bytes`` by the client on connections that it opened then, and
            ``recovery_s`` until the last payload of the content.
        is_synced: whether the other side got the content.
        error: what the client reported if it did not.
        nameless_bytes: bytes of flows that may or may not be the client's (``net.traffic.owners``); not in any other
            count.
        reasons: why the numbers may be wrong; empty if they may be used.
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
        """As plain data."""
        plain = {**asdict(self), "tue": self.tue, "overhead": self.overhead}
        return {**plain, "interrupted": dict(self.interrupted), "reasons": list(self.reasons)}


@dataclass(frozen=True, slots=True)
class _Window:
    """One transfer whose packets have not been looked at yet."""

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

        After a transfer that fails there are no further ones, so the list may be shorter. Raises
        CaptureUnavailable, and ClientError when the client does not start.
        """
        windows: list[_Window] = []
        with self.lab.capture(files=workload.files, size_bytes=workload.size_bytes):
            self.lab.start()
            self.lab.wait_quiet()
            for _ in range(times):
                windows.append(self._transfer(workload, interruption))
                if not windows[-1].about.is_synced:
                    break
        found, bad = self.lab.look(lambda analysis: [_measured(analysis, each) for each in windows])
        return [replace(each.about, reasons=bad) for each in windows] if found is None else found

    # --- one transfer ---

    def _transfer(self, workload: Workload, interruption: PlannedInterruption | None) -> _Window:
        lab, client, self._count = self.lab, self.lab.client, self._count + 1
        before = (client.cpu_s("client"), client.cpu_s("server"), read_energy_uj())
        if interruption is not None:
            lab.link.interrupt(interruption.how, at_byte=interruption.at_byte, duration_s=interruption.duration_s)
        folder = client.folder / f"set{self._count:04d}"
        client.before_change()
        first_ns = put(workload, folder, lab.workdir / "stage", f"{lab.seed}/{self._count}")
        error, is_run_again = lab.bring(), False
        if error and interruption is not None and not client.facts.watches_folder:
            error, is_run_again = lab.bring(), True
        synced_ns = time.time_ns()
        after = (client.cpu_s("client"), client.cpu_s("server"), read_energy_uj())
        peak_bytes = rss_bytes(client.pids("client"), peak=True)
        lab.wait_quiet()
        done = Transfer(
            workload.files, workload.total_bytes, synced_s=None if error else (synced_ns - first_ns) / 1e9,
            cpu_s=difference(after[0], before[0]), server_cpu_s=difference(after[1], before[1]), peak_bytes=peak_bytes,
            energy_j=energy_j(before[2], after[2]), is_synced=not error, error=error,
        )  # fmt: skip
        interrupted_ns, told = self._happened(interruption)
        done = replace(done, interrupted={**told, "run_again": is_run_again} if told else {})
        return _Window(done, first_ns, synced_ns, time.time_ns(), workload.kind == "binary", interrupted_ns)

    def _happened(self, asked: PlannedInterruption | None) -> tuple[int | None, dict[str, Any]]:
        """Returns when the interruption happened, in nanoseconds since 1970, and what is known of it."""
        if asked is None:
            return None, {}
        told: dict[str, Any] = {**asdict(asked), "happened": False}
        seen = self.lab.link.interruptions()[-1]
        if not seen["happened_ns"]:
            self.lab.link.interrupt("reset", at_byte=_NEVER)  # else the next transfer would be hit
            return None, told
        offset_ns = time.time_ns() - time.monotonic_ns()
        told |= {"happened": True, "passed_bytes": seen["passed_bytes"]}
        return seen["happened_ns"] + offset_ns, told


# --- what was seen ---


def _measured(analysis: Analysis, one: _Window) -> Transfer:
    """Returns the transfer with the quantities computed from its window's packets."""
    seen = observe(analysis, Observation("new"), one.first_ns, one.last_ns, round_trip_s=None)
    # What comes after the content has arrived (news, tear-down) is not part of the completion time.
    table = window(analysis.table, one.first_ns, one.synced_ns)
    storage = _storage(table)
    interrupted = dict(one.about.interrupted)
    start_up_s = metrics.start_up_s(table, storage, one.first_ns)
    completion_s = metrics.completion_s(table, storage, one.first_ns) if one.about.is_synced else None
    wire_bytes = seen.wire_bytes if seen.up_bytes else None
    doubt = nameless_doubt(seen.nameless_bytes, wire_bytes if wire_bytes is not None else seen.up_bytes)
    if not seen.up_bytes:
        doubt.append("nothing from the client was captured")
    elif one.is_random and one.about.is_synced and seen.up_bytes < _SEEN_SHARE * one.about.content_bytes:
        what = f"only {seen.up_bytes:,} of {one.about.content_bytes:,} new random bytes were seen"
        doubt.append(f"{what}: some of the client's servers are not known")
    if one.interrupted_ns is not None:
        interrupted["sent_after_bytes"] = _sent_on_new_flows(analysis, one.interrupted_ns, one.last_ns)
        if start_up_s is not None and completion_s is not None:
            interrupted["recovery_s"] = start_up_s + completion_s - (one.interrupted_ns - one.first_ns) / 1e9
    return replace(
        one.about,
        start_up_s=start_up_s,
        completion_s=completion_s,
        wire_bytes=wire_bytes,
        up_bytes=seen.up_bytes,
        down_bytes=seen.down_bytes,
        connections=seen.syns,
        turns=seen.turns,
        interrupted=interrupted,
        nameless_bytes=seen.nameless_bytes,
        reasons=tuple(dict.fromkeys((*seen.reasons, *doubt))),
    )


def _sent_on_new_flows(analysis: Analysis, first_ns: int, last_ns: int) -> int:
    """Payload in bytes that the client sent on connections whose first packet is in this time."""
    new = [flow for flow in analysis.table.flows if first_ns <= flow.first_ns < last_ns]
    return sum(flow.up.unique_bytes for flow in new)


def _storage(table: FlowTable) -> list[Flow]:
    """The flows to servers that receive a large part of what the client sends in this window."""
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
    "wire_bytes": "wire_bytes", "connections": "connections", "cpu_s": "cpu_s", "server_cpu_s": "server_cpu_s",
    "energy_j": "energy_j", "synced_s": "synced_s",
}  # fmt: skip
"""Maps names in an entry to quantities of a transfer."""

_ALL, _NOTHING = 0.9, 0.1


def mean_of(values: Sequence[float | None]) -> float | None:
    """The mean; None if one of the values is not known, or if there are none."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None


def means(transfers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The mean of each quantity over the completed transfers, and the range of single ones."""
    ended = [each for each in transfers if each["is_synced"]]
    found: dict[str, Any] = {name: mean_of([each[key] for each in ended]) for name, key in _MEANS.items()}
    for name in ("start_up", "completion", "overhead"):
        values = [each[_MEANS[name]] for each in ended]
        if values and None not in values:
            found |= {f"{name}_min": min(values), f"{name}_max": max(values)}
    rate = [each["content_bytes"] * 8 / each["completion_s"] for each in ended if each["completion_s"]]
    found["upload_rate_bit_per_s"] = statistics.fmean(rate) if len(rate) == len(ended) and rate else None
    return found


def doubts_of(transfers: Sequence[Mapping[str, Any]], repeats: int) -> list[str]:
    """Why the numbers of repeated transfers may be wrong."""
    ended = sum(1 for each in transfers if each["is_synced"])
    doubts = [f"{repeats - ended} of {repeats} transfers did not finish"] if ended < repeats else []
    doubts += [each["error"] for each in transfers if each["error"]]
    return list(dict.fromkeys([*doubts, *(reason for each in transfers for reason in each["reasons"])]))


def recovery(undisturbed: Mapping[str, Any], interrupted: Mapping[str, Any]) -> dict[str, Any]:
    """What an interruption cost: the difference between two transfers of equally large sets.

    ``recovery_bytes``: wire bytes beyond those of the undisturbed one (paper 004, Figure 4: total traffic).
    ``recovery_overhead``: the same as a share of the content. ``again_bytes``: the same for payload that the client
    sent. ``repeated_share``: the share of what had passed before that was sent again on new connections: 0 resumes, 1
    starts over. ``recovery``: seconds from the interruption until the last payload of the content. ``how_recovered``:
    the same in words. None is "not known". Raises UsageError if the sets differ in size.
    """
    if undisturbed["content_bytes"] != interrupted["content_bytes"]:
        raise UsageError("a transfer is compared with one of an equally large set")
    told, size = interrupted["interrupted"], interrupted["content_bytes"]
    found: dict[str, Any] = dict.fromkeys(
        ("recovery", "recovery_overhead", "recovery_bytes", "again_bytes", "repeated_share"), None
    )  # fmt: skip
    found |= {"interrupted_at_byte": told.get("at_byte"), "passed_bytes": told.get("passed_bytes")}
    if interrupted["reasons"] or undisturbed["reasons"] or not undisturbed["is_synced"]:
        return found | {"how_recovered": "unknown"}
    if not interrupted["is_synced"]:
        return found | {"how_recovered": "never"}
    if interrupted["wire_bytes"] is not None and undisturbed["wire_bytes"] is not None:
        found["recovery_bytes"] = interrupted["wire_bytes"] - undisturbed["wire_bytes"]
        found["recovery_overhead"] = found["recovery_bytes"] / size
    found["again_bytes"] = interrupted["up_bytes"] - undisturbed["up_bytes"]
    if not told.get("happened"):
        return found | {"how_recovered": "not interrupted"}
    found["recovery"] = told.get("recovery_s")
    if not told["sent_after_bytes"]:
        return found | {"how_recovered": "connection lived on"}
    lacking = undisturbed["up_bytes"] - told["passed_bytes"]
    found["repeated_share"] = share = (told["sent_after_bytes"] - lacking) / told["passed_bytes"]
    return found | {
        "how_recovered": "starts over" if share >= _ALL else "resumes" if share <= _NOTHING else "sends a part again"
    }  # fmt: skip
