"""Something acts on a sync client's folder while its traffic is captured: acts in, what each of them showed out.

What may live here: acts, the capture around them, and its packets cut into their times. What a verdict needs is in
``session``; this is for traffic that goes on in time: streams of updates, and a client that nobody touches.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_cloudbench.capture import CaptureResult
from pytest_cloudbench.detect.observe import nameless_bytes, window
from pytest_cloudbench.model import ClientError, Content, chunks
from pytest_cloudbench.payload.contents import Literal
from pytest_cloudbench.payload.edits import Edit, Insert
from pytest_cloudbench.systems.looking import difference, wait_quiet
from pytest_cloudbench.systems.session import SyncSession
from pytest_cloudbench.traffic import Analysis, metrics
from pytest_cloudbench.traffic.owners import nameless_doubt

__all__ = ["Act", "Activity", "Played", "Window", "event_gap_s", "play"]

_STEP_S = 0.1
_EVENT_TRIPS, _EVENT_LEAST_S = 5, 0.1
_MUCH_LATE = 0.5


@dataclass(frozen=True, slots=True)
class Act:
    """Something that takes its time, while the traffic of the client is watched.

    Attributes:
        label: what it is called.
        work: does it, and gives the bytes that the user changed.
        is_synced: whether the act lasts until the server has all of it and the network is quiet.
    """

    label: str
    work: Callable[[], int]
    is_synced: bool = True


@dataclass(frozen=True, slots=True)
class Window:
    """What the wire showed while an act lasted. Bytes are of whole frames, of all flows of the client.

    Attributes:
        label: of the act.
        changed_bytes: what the user changed.
        duration_s: from the beginning of the act until the client was in sync and quiet.
        acted_s: how much of it the act itself took.
        start_up_s: from the beginning of the act to the first payload that the client sent; None as below.
        sync_delay_s: from the end of the act to the last payload before the server was seen to hold all of it; None:
            there was none, or nobody waited for it.
        up_bytes, down_bytes: what the client sent and received; None: the capture does not have sizes of the wire.
        steps: (up, down) for each tenth of a second.
        syns: connections asked for.
        events_s: when the client began to send, each time after a silence (``event_gap_s``); from the beginning on.
        cpu_s: CPU time of the client's processes; None: unknown.
        nameless_bytes: of flows that may be the client's or not (``traffic.owners``); in no other count.
        reasons: why it may not be used; empty when it may.
    """

    label: str
    changed_bytes: int = 0
    duration_s: float = 0.0
    acted_s: float = 0.0
    start_up_s: float | None = None
    sync_delay_s: float | None = None
    up_bytes: int | None = None
    down_bytes: int | None = None
    steps: tuple[tuple[int, int], ...] = field(default=(), repr=False)
    syns: int = 0
    events_s: tuple[float, ...] = ()
    cpu_s: float | None = None
    nameless_bytes: int = 0
    reasons: tuple[str, ...] = ()

    @property
    def wire_bytes(self) -> int | None:
        """Both ways."""
        return None if self.up_bytes is None or self.down_bytes is None else self.up_bytes + self.down_bytes

    @property
    def tue(self) -> float | None:
        """Wire bytes, both ways, over the bytes the user changed (paper 002: alpha); None: not known."""
        return None if self.wire_bytes is None or not self.changed_bytes else self.wire_bytes / self.changed_bytes

    def between(self, first_s: float, last_s: float) -> int | None:
        """Wire bytes, both ways, from the tenth of a second with ``first_s`` to before that with ``last_s``."""
        if self.wire_bytes is None:
            return None
        return sum(up + down for up, down in self.steps[int(first_s / _STEP_S) : int(last_s / _STEP_S)])

    def every(self, interval_s: float) -> list[int]:
        """Wire bytes, both ways, in each interval; the last one may be shorter."""
        size = max(1, round(interval_s / _STEP_S))
        sums = [up + down for up, down in self.steps]
        return [sum(sums[start : start + size]) for start in range(0, len(sums), size)]


def event_gap_s(round_trip_s: float) -> float:
    """A longer silence of the client parts two events: five round trips, at least 0.1 s, so a turn is within one."""
    return max(_EVENT_LEAST_S, _EVENT_TRIPS * round_trip_s)


@dataclass(slots=True)
class _Seen:
    """A window while it lasts: its times on the wall clock, which is the capture's too."""

    window: Window
    first_ns: int
    acted_ns: int = 0
    synced_ns: int | None = None
    last_ns: int = 0


class Activity:
    """Acts on the folder of a session that has begun; the client is started, and watched, by the first of them.

    ``login`` is the window of that start, None where the client ran before, as one does that runs outside.
    """

    def __init__(self, session: SyncSession) -> None:
        self.session = session
        self.login: Window | None = None

    def watch(self, acts: Sequence[Act]) -> list[Window]:
        """Do the acts one after another in one capture; what each of them showed, in their order.

        An act that the client does not carry out gives a window with reasons, and so do those after it. Raises
        ClientError when the client does not start, and what ``SyncSession.try_out`` raises.
        """
        session = self.session
        if any(act.is_synced for act in acts):
            session.try_out()
        path = session.workdir / "captures" / f"{len(session.captures)}.pcapng"
        about = {"client": session.client.facts.name, "acts": [act.label for act in acts]}
        seen: list[_Seen] = []
        with session.network.capture(path, about) as capture:
            is_login = not session._started and session.client.facts.outside is None
            if is_login:
                seen.append(self._log_in(path))
            session._start()
            wait_quiet(path)
            seen += [self._act(act, path) for act in acts]
        assert capture.result is not None
        session.captures.append(capture.result)
        found = self._looked_at(capture.result, seen)
        if is_login:
            self.login = found.pop(0)
        return found

    def _log_in(self, path: Path) -> _Seen:
        session = self.session
        seen = _Seen(Window("login"), time.time_ns())
        session._start()
        seen.acted_ns = seen.synced_ns = time.time_ns()
        wait_quiet(path)
        seen.window = replace(seen.window, cpu_s=session.client.cpu_s("client"))
        seen.last_ns = time.time_ns()
        return seen

    def _act(self, act: Act, path: Path) -> _Seen:
        session, client = self.session, self.session.client
        before_s = client.cpu_s("client")
        seen = _Seen(Window(act.label), time.time_ns())
        if session._broken:
            seen.acted_ns = seen.last_ns = seen.first_ns
            seen.window = replace(seen.window, reasons=(session._broken,))
            return seen
        client.before_change()
        changed_bytes = act.work()
        seen.acted_ns = time.time_ns()
        seen.window = replace(seen.window, changed_bytes=changed_bytes)
        if act.is_synced:
            try:
                client.after_change()
                session.has_synced(client.wait_synced(session._timeout_s))
                seen.synced_ns = time.time_ns()
            except ClientError as error:
                line = session.has_failed(error)
                seen.window = replace(seen.window, reasons=(f"the client did not carry it out: {line}",))
                session._broken = f"the client was out of sync since an earlier act: {line}"
            wait_quiet(path)
        seen.window = replace(seen.window, cpu_s=difference(client.cpu_s("client"), before_s))
        seen.last_ns = time.time_ns()
        return seen

    def _looked_at(self, capture: CaptureResult, seen: Sequence[_Seen]) -> list[Window]:
        session = self.session

        def see(analysis: Analysis) -> list[Window]:
            session.metrics.append(analysis.as_dict())
            return [_measured(analysis, each, event_gap_s(session.network.round_trip_s or 0.0)) for each in seen]

        found, bad = session.network.look(capture, see)
        if found is None:
            return [replace(each.window, reasons=(*each.window.reasons, *bad)) for each in seen]
        return found


def _measured(analysis: Analysis, seen: _Seen, gap_s: float) -> Window:
    table = window(analysis.table, seen.first_ns, seen.last_ns)
    flows = [flow for flow in table.flows if len(table.rows(flow)) and not flow.server.is_multicast]
    steps = metrics.idle_traffic(table, flows, _STEP_S, seen.first_ns, seen.last_ns)
    is_whole, validity = analysis.validity.sizes_known, analysis.validity
    bursts = metrics.bursts(table, flows, gap_s)
    changed = replace(
        seen.window,
        duration_s=(seen.last_ns - seen.first_ns) / 1e9,
        acted_s=(seen.acted_ns - seen.first_ns) / 1e9,
        start_up_s=metrics.start_up_s(table, flows, seen.first_ns) if seen.synced_ns is not None else None,
        sync_delay_s=_delay_s(analysis, seen) if seen.synced_ns is not None else None,
        up_bytes=sum(step.up_bytes for step in steps) if is_whole else None,
        down_bytes=sum(step.down_bytes for step in steps) if is_whole else None,
        steps=tuple((step.up_bytes, step.down_bytes) for step in steps),
        syns=len(metrics.syn_times_ns(table, flows)),
        events_s=tuple((burst.first_ns - seen.first_ns) / 1e9 for burst in bursts),
        nameless_bytes=nameless_bytes(analysis, table),
    )
    unseen = changed.changed_bytes and seen.synced_ns is not None and not any(map(any, changed.steps))
    reasons = ["the server has it, and no packet was seen"] if unseen else []
    reasons += nameless_doubt(changed.nameless_bytes, sum(map(sum, changed.steps)))
    reasons += [] if validity.verdict == "valid" else validity.reasons
    return replace(changed, reasons=(*changed.reasons, *reasons))


def _delay_s(analysis: Analysis, seen: _Seen) -> float | None:
    """From the end of the act (a login: from its beginning) to the last payload before it was known to be in sync."""
    assert seen.synced_ns is not None
    first_ns = seen.first_ns if seen.acted_ns == seen.synced_ns else seen.acted_ns
    table = window(analysis.table, first_ns, seen.synced_ns)
    flows = [flow for flow in table.flows if len(table.rows(flow)) and not flow.server.is_multicast]
    last_ns = [each.last_ns for up in (True, False) for each in metrics.bursts(table, flows, 1e6, up=up)]
    return (max(last_ns) - first_ns) / 1e9 if last_ns else None


@dataclass(slots=True)
class Played:
    """What became of a stream.

    Attributes:
        updates: how many were written.
        changed_bytes: what they wrote.
        late: how many were written later than half of the time since the one before.
        size_bytes: of the file at the end.
    """

    updates: int = 0
    changed_bytes: int = 0
    late: int = 0
    size_bytes: int = 0


def play(
    stream: Iterable[tuple[float, Edit]], path: Path, *, start: Content | None = None,
    after: Callable[[], None] | None = None,
) -> Played:  # fmt: skip
    """Write a stream of edits into one file, each when it is due; the file is written to in place, as by an editor.

    Args:
        stream: (due_s, edit), in order of time.
        path: the file; it is there already where ``start`` is given.
        start: what it holds.
        after: called after each update, for a client that does not watch its folder.
    """
    played, content, began_s, former_s = Played(), start or Literal(b""), time.monotonic(), 0.0
    wait = threading.Event().wait
    for due_s, edit in stream:
        wait(max(0.0, began_s + due_s - time.monotonic()))
        content = edit.apply(content)
        if isinstance(edit, Insert) and edit.where == "back":
            _write(path, "ab", edit.new)
        else:
            _write(path, "r+b", content)
        played.late += played.updates > 0 and time.monotonic() - began_s - due_s > _MUCH_LATE * (due_s - former_s)
        played.updates += 1
        played.changed_bytes += edit.size_bytes
        former_s = due_s
        if after is not None:
            after()
    played.size_bytes = content.size_bytes
    return played


def _write(path: Path, mode: str, content: Content) -> None:
    with path.open(mode) as file:
        file.writelines(chunks(content))
