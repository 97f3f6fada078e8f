"""Acts on a sync client's folder while its traffic is captured, and the traffic of each act.

Packets are divided among the times of acts. This is for traffic over time: streams of updates, and idle clients.
``session`` has what a verdict needs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from pytest_cloudbench.lab.clients.base import SyncClient
from pytest_cloudbench.lab.detect.observe import cut_window, nameless_bytes
from pytest_cloudbench.lab.sync.contacts import Contact, find_contacts
from pytest_cloudbench.lab.sync.session import SyncSession
from pytest_cloudbench.lab.sync.usage import difference
from pytest_cloudbench.net.traffic import Analysis, metrics
from pytest_cloudbench.net.traffic.owners import nameless_doubt

_STEP_S = 0.1
_EVENT_TRIPS, _EVENT_LEAST_S = 5, 0.1


@dataclass(frozen=True, slots=True)
class Act:
    """An action that takes some time, during which the client's traffic is watched.

    Attributes:
        label: its name.
        work: performs the act and returns the number of bytes that the user changed.
        is_synced: whether the act lasts until the server has all of it and the network is quiet.
    """

    label: str
    work: Callable[[], int]
    is_synced: bool = True


def rest(client: SyncClient, duration_s: float) -> Act:
    """Return an act that does nothing for this long. It shows what the client sends by itself."""

    def work() -> int:
        client.idle(duration_s)
        return 0

    return Act("idle", work, is_synced=False)


@dataclass(frozen=True, slots=True)
class Window:
    """The traffic while an act lasted. Bytes are of whole frames, of all flows of the client.

    Attributes:
        label: of the act.
        changed_bytes: the bytes that the user changed.
        duration_s: from the start of the act until the client was in sync and quiet.
        acted_s: the time that the act itself took.
        start_up_s: from the start of the act to the first payload that the client sent. None as for ``sync_delay_s``.
        sync_delay_s: from the end of the act to the last payload before the server was seen to hold everything. None if
            there was no payload, or if the act does not wait for the server.
        up_bytes, down_bytes: sent and received by the client, or None if the capture lacks the sizes on the wire.
        steps: (up, down) for each tenth of a second.
        syns: attempts to open a connection.
        events_s: when the client began to send after each silence (``event_gap_s``), in seconds since the start of the
            act.
        cpu_s: CPU time of the client's processes, or None if unknown.
        nameless_bytes: bytes of flows that may or may not be the client's (``net.traffic.owners``). Not in any other
            count.
        contacts: the servers that the client was in contact with.
        reasons: the reasons why the window must not be used, or empty if it may be used.
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
    contacts: tuple[Contact, ...] = ()
    reasons: tuple[str, ...] = ()

    @property
    def wire_bytes(self) -> int | None:
        """The bytes both ways."""
        return None if self.up_bytes is None or self.down_bytes is None else self.up_bytes + self.down_bytes

    @property
    def tue(self) -> float | None:
        """Wire bytes, both ways, over the bytes the user changed (paper 002: alpha), or None if unknown."""
        return None if self.wire_bytes is None or not self.changed_bytes else self.wire_bytes / self.changed_bytes

    def between(self, first_s: float, last_s: float) -> int | None:
        """Return the wire bytes, both ways, from ``first_s`` to before ``last_s``, both rounded down to 0.1 s."""
        if self.wire_bytes is None:
            return None
        return sum(up + down for up, down in self.steps[int(first_s / _STEP_S) : int(last_s / _STEP_S)])

    def every(self, interval_s: float) -> list[int]:
        """Return the wire bytes, both ways, in each interval. The last interval may be shorter."""
        size = max(1, round(interval_s / _STEP_S))
        sums = [up + down for up, down in self.steps]
        return [sum(sums[start : start + size]) for start in range(0, len(sums), size)]


def event_gap_s(round_trip_s: float) -> float:
    """Return the longest silence within one event: five round trips, at least 0.1 s, so a turn does not split it."""
    return max(_EVENT_LEAST_S, _EVENT_TRIPS * round_trip_s)


@dataclass(slots=True)
class _OpenWindow:
    """A window in progress. Its times are on the wall clock, as are the capture's."""

    window: Window
    first_ns: int
    acted_ns: int = 0
    synced_ns: int | None = None
    last_ns: int = 0


class Activity:
    """Acts on the folder of a session's lab. The first of them starts the client and watches the start.

    ``login`` is the window of that start. It is None if the client was already running, as a client outside the lab
    always is.
    """

    def __init__(self, session: SyncSession) -> None:
        self._session, self._lab = session, session.lab
        self.login: Window | None = None

    def watch(self, acts: Sequence[Act]) -> list[Window]:
        """Perform the acts one after another in one capture. Returns the traffic of each of them, in order.

        If the client does not carry out an act, the windows of this act and of all later acts have reasons. Raises
        ClientError when the client does not start, and what ``SyncSession.try_out`` raises.
        """
        lab = self._lab
        if any(act.is_synced for act in acts):
            self._session.try_out()
        open_windows: list[_OpenWindow] = []
        with lab.capture(acts=[act.label for act in acts]):
            if is_login := not lab.is_started:
                open_windows.append(self._log_in())
            else:
                lab.start()
                lab.wait_quiet()  # not after a login, which was quiet when its window ended
            open_windows += [self._act(act) for act in acts]
        windows = self._read_windows(open_windows)
        if is_login:
            self.login = windows.pop(0)
        return windows

    def _log_in(self) -> _OpenWindow:
        login = _OpenWindow(Window("login"), time.time_ns())
        self._lab.start()
        login.acted_ns = login.synced_ns = time.time_ns()
        self._lab.wait_quiet()
        login.window = replace(login.window, cpu_s=self._lab.client.cpu_s("client"))
        login.last_ns = time.time_ns()
        return login

    def _act(self, act: Act) -> _OpenWindow:
        """Let the client carry out one act, and return the window in which it happened."""
        lab, client = self._lab, self._lab.client
        before_s = client.cpu_s("client")
        open_window = _OpenWindow(Window(act.label), time.time_ns())
        if lab.out_of_sync:
            open_window.acted_ns = open_window.last_ns = open_window.first_ns
            open_window.window = replace(open_window.window, reasons=(lab.out_of_sync,))
            return open_window
        client.before_change()
        changed_bytes = act.work()
        open_window.acted_ns = time.time_ns()
        open_window.window = replace(open_window.window, changed_bytes=changed_bytes)
        if act.is_synced:
            if error := lab.bring_change():
                open_window.window = replace(open_window.window, reasons=(f"the client did not carry it out: {error}",))
                lab.out_of_sync = f"the client has been out of sync since an earlier act: {error}"
            else:
                open_window.synced_ns = time.time_ns()
            lab.wait_quiet()
        open_window.window = replace(open_window.window, cpu_s=difference(client.cpu_s("client"), before_s))
        open_window.last_ns = time.time_ns()
        return open_window

    def _read_windows(self, open_windows: Sequence[_OpenWindow]) -> list[Window]:
        network = self._lab.network

        def fill_all(analysis: Analysis) -> list[Window]:
            gap_s = event_gap_s(network.round_trip_s or 0.0)  # on the user's network, this capture shows it
            return [_fill_window(analysis, open_window, gap_s) for open_window in open_windows]

        windows, reasons = self._lab.read_capture(fill_all)
        if windows is None:
            return [
                replace(open_window.window, reasons=(*open_window.window.reasons, *reasons))
                for open_window in open_windows
            ]
        return windows


def _fill_window(analysis: Analysis, open_window: _OpenWindow, gap_s: float) -> Window:
    """Return a window with everything that a capture tells about it."""
    table = cut_window(analysis.table, open_window.first_ns, open_window.last_ns)
    flows = [flow for flow in table.flows if len(table.rows(flow)) and not flow.server.is_multicast]
    steps = metrics.idle_traffic(table, flows, _STEP_S, open_window.first_ns, open_window.last_ns)
    is_whole, validity = analysis.validity.sizes_known, analysis.validity
    bursts = metrics.bursts(table, flows, gap_s)
    filled = replace(
        open_window.window,
        duration_s=(open_window.last_ns - open_window.first_ns) / 1e9,
        acted_s=(open_window.acted_ns - open_window.first_ns) / 1e9,
        start_up_s=metrics.start_up_s(table, flows, open_window.first_ns)
        if open_window.synced_ns is not None
        else None,
        sync_delay_s=_sync_delay_s(analysis, open_window) if open_window.synced_ns is not None else None,
        up_bytes=sum(step.up_bytes for step in steps) if is_whole else None,
        down_bytes=sum(step.down_bytes for step in steps) if is_whole else None,
        steps=tuple((step.up_bytes, step.down_bytes) for step in steps),
        syns=len(metrics.syn_times_ns(table, flows)),
        events_s=tuple((burst.first_ns - open_window.first_ns) / 1e9 for burst in bursts),
        nameless_bytes=nameless_bytes(analysis, table),
        contacts=find_contacts(analysis, table),
    )
    is_unseen = filled.changed_bytes and open_window.synced_ns is not None and not any(map(any, filled.steps))
    reasons = ["it counts as in sync, but no packet was captured"] if is_unseen else []
    reasons += nameless_doubt(filled.nameless_bytes, sum(map(sum, filled.steps)))
    reasons += [] if validity.verdict == "valid" else validity.reasons
    return replace(filled, reasons=(*filled.reasons, *reasons))


def _sync_delay_s(analysis: Analysis, open_window: _OpenWindow) -> float | None:
    """Return the time from the end of the act to the last payload before the client was known to be in sync.

    For a login, it counts from the start of the act.
    """
    assert open_window.synced_ns is not None
    first_ns = open_window.first_ns if open_window.acted_ns == open_window.synced_ns else open_window.acted_ns
    table = cut_window(analysis.table, first_ns, open_window.synced_ns)
    flows = [flow for flow in table.flows if len(table.rows(flow)) and not flow.server.is_multicast]
    last_ns = [burst.last_ns for up in (True, False) for burst in metrics.bursts(table, flows, 1e6, up=up)]
    return (max(last_ns) - first_ns) / 1e9 if last_ns else None
