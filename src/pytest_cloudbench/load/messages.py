"""What the agents of an experiment and the controller say to each other.

One class per message or answer; ``fleet.messages`` sends them over a channel. A single number, a text or a list of
texts needs no class: it is sent as it is. Imported by fifty agents: keep it light.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from msgspec import field

from pytest_cloudbench.fleet.messages import Message
from pytest_cloudbench.fleet.offsets import Offset
from pytest_cloudbench.judge.steady import Stable
from pytest_cloudbench.load.names import FileNames
from pytest_cloudbench.load.request import EntryOptions
from pytest_cloudbench.model import Verb


class Turn(Message, frozen=True):
    """Whose turn it is where two sides are measured by one test; one turn is one block (``load.versus.turns``).

    Attributes:
        number: of the block, from 0.
        side: ``A`` or ``B``.
        pair: of two blocks that stand together, from 0; the first one warms up and is not compared.
        is_over: there is no such block: the comparison is made.
        properties: then, what machine-readable reports say about it.
    """

    number: int
    side: str
    pair: int
    is_over: bool = False
    properties: Mapping[str, Any] = field(default_factory=dict)


class BlockEnded(Message, frozen=True):
    """An agent is done with a block, and did not fail; the answer, when all are, is the next ``Turn``."""

    is_skipped: bool = False


class Subject(Message, frozen=True):
    """Who an entry is about.

    Attributes:
        run: names the run, or the conclusion, within the session.
        nodeid, name, test, params: pytest's names for the item.
        fullname: the entry's name.
        folder: the folder of the run's logs, below the session's records.
        provider: the provider's spec, or the sync client's.
        profile: the emulator's behaviour profile, or None for a real service.
        is_kept: whether the files written outlive the run.
        versions: versions of the libraries that do the work.
        emulated: whether ``all``, ``some`` or ``none`` of the provider's parts are emulators.
        turn: which block of a comparison of two sides it is; None for an ordinary run.
        suite: what the test's suite declares about its entries, as plain data; empty if it declares nothing.
    """

    run: str
    nodeid: str
    fullname: str
    name: str
    test: str
    params: Mapping[str, Any]
    folder: str
    provider: str
    profile: str | None
    is_kept: bool
    versions: Mapping[str, str]
    emulated: str = "none"
    turn: Turn | None = None
    suite: Mapping[str, Any] = field(default_factory=dict)


class LoadShape(Message, frozen=True):
    """What a run is going to do; a field is None if it is not known or does not apply.

    Attributes:
        ops, bytes: planned operations, and bytes that they move.
        prepared: unmeasured uploads before the run.
        sensors, ops_per_sensor, threads, arrival, loop: who runs operations, and when they are due.
        size_bytes, payload: of each file.
        names: what files are called.
        operation: what is measured.
        warm_up_s: seconds from the start; operations due in it are left out of metrics.
        for_s: when a run ends that is bounded by time, in seconds from the start; 0 if its operations bound it.
        until: what ends the run early.
        may_drift: whether a drift is no surprise, and therefore no doubt.
        detail: whether every operation's times are asked for.
        keeps: whether its files are for another run.
    """

    ops: int
    bytes: int
    prepared: int = 0
    sensors: int | None = None
    ops_per_sensor: int | None = None
    threads: int | None = None
    arrival: str | None = None
    loop: str | None = None
    size_bytes: int | None = None
    payload: str | None = None
    names: FileNames = field(default_factory=FileNames)
    operation: Verb = Verb.PUT
    warm_up_s: float = 0.0
    for_s: float = 0.0
    until: Stable | None = None
    may_drift: bool = False
    detail: bool = False
    keeps: bool = False

    @property
    def ends_by_time(self) -> bool:
        """Whether it is a closed loop that a time ends: ``ops`` is then the most that it may do."""
        return self.for_s > 0 and self.loop == "closed"


class Start(Message, frozen=True):
    """An agent is ready for a run; the answer, when all are, is ``Started``.

    Attributes:
        subject: whose run it is.
        load: of all agents together.
        entry: what becomes of its numbers.
        planned_s: how long this agent takes at least.
        addresses: host and port of the provider's services; none if it has none, None if only parts of it have.
        pid: this agent's process; 0 on another host.
    """

    subject: Subject
    load: LoadShape
    entry: EntryOptions
    planned_s: float = 0.0
    addresses: tuple[tuple[str, int], ...] | None = None
    pid: int = 0


class Started(Message, frozen=True):
    """The common start, on the controller's clock."""

    start_ns: int


class HandedIn(Message, frozen=True):
    """An agent is done with a run; the answer, when all are, is ``Merged``.

    Attributes:
        run: which one.
        log_path: the agent's log, or an empty text if it was sent in pieces.
        notes: what the log has to say.
        cpu_s: the agent's own CPU time without that of a warm-up, None if it was not measured.
        stopped: why it ended early, or an empty text.
        verified: whether the provider's listing was sent.
        clock_offset_ns: add it to the log's times to get the controller's.
    """

    run: str
    log_path: str
    notes: tuple[str, ...]
    cpu_s: float | None
    stopped: str
    verified: bool
    clock_offset_ns: int


class Merged(Message, frozen=True):
    """What the controller has made of a run or of a conclusion; see ``Experiment.Result``.

    ``tried`` has the number of operations of each sensor (unsigned, 4 bytes each) if a run that keeps its files ended
    early; otherwise it is empty.
    """

    info: Mapping[str, Any]
    judgements: tuple[tuple[str, str], ...]
    doubts: tuple[str, ...]
    notes: tuple[str, ...]
    ops: Mapping[str, Any] = field(default_factory=dict)
    tried: bytes = b""


class Conclusion(Message, frozen=True):
    """What a test concludes from several runs, or from something else it measured; the answer is ``Merged``.

    Attributes:
        subject: whose conclusion it is.
        entry: how it is called, judged and shown.
        metrics, rounds_s, stats_of, columns, doubts, spread: see ``Experiment.conclude``.
        shown: further values; they hide metrics of the same name from readers, but not from expectations.
        ops: operations of all runs that it is made of.
        ops_files: their records.
        loop: ``open`` or ``closed``, None if there was no load.
        own: what the runs say together, by the entry's key names: how busy the machine was, and errors.
    """

    subject: Subject
    entry: EntryOptions
    metrics: Mapping[str, int | float | None]
    rounds_s: tuple[float, ...]
    stats_of: str
    columns: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    shown: Mapping[str, Any] = field(default_factory=dict)
    ops: int = 0
    ops_files: tuple[str, ...] = ()
    loop: str | None = None
    own: Mapping[str, Any] = field(default_factory=dict)
    spread: Mapping[str, Any] = field(default_factory=dict)


# --- while a run lasts ----------------------------------------------------------------------------


class SwitchFaults(Message, frozen=True):
    """Switch an emulated provider's faults on or off."""

    provider: str
    are_on: bool


class ListingPage(Message, frozen=True):
    """Some of the files that the provider lists in a run's folder, as columns. The answer is how many were received."""

    run: str
    names: tuple[str, ...]
    sizes_bytes: tuple[int, ...]
    digests: tuple[str | None, ...]


class LogPiece(Message, frozen=True):
    """A piece of the log of an agent on another host."""

    run: str
    piece: bytes


class LogMoved(Message, frozen=True):
    """An agent's log continues elsewhere."""

    run: str
    path: str


class ProgressReport(Message, frozen=True):
    """How far an agent is: operations so far; since its last report a sample of response times, and the lateness.

    ``in_flight``: operations that have begun and not ended.
    """

    done: int
    throttled: int
    failed: int
    sample_s: tuple[float, ...]
    late_s: float | None = None
    in_flight: int = 0


class Watched(Message, frozen=True):
    """Successful operations after the warm-up, for a run that may end early: 8 bytes each, signed.

    Attributes:
        run: which one.
        ends_ns: when each ended, on the controller's clock.
        amounts: see ``judge.steady.amount_of``.
    """

    run: str
    ends_ns: bytes
    amounts: bytes


class EndOfRun(Message, frozen=True):
    """The controller ends a run: operations that are due at this time of its clock, or later, are not begun."""

    run: str
    end_ns: int


class TextReport(Message, frozen=True):
    """A text for the end of the session, and what to keep in a file; ``path`` is empty if there is no file."""

    text: str
    path: str
    content: str


# --- a series of rounds ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SeriesPlan:
    """How long a series lasts.

    Attributes:
        rounds: the number of rounds if no duration is given.
        duration_s: no round except the first begins later than this; the time between sessions does not count.
        pause_s: between the end of a round and the next one. ``--time-scale`` divides both times.
    """

    rounds: int
    duration_s: float | None = None
    pause_s: float = 0.0


class SeriesOpen(Message, frozen=True):
    """Begin a series, or continue one; see ``load.series.Series`` for what the fields mean."""

    name: str
    key: Mapping[str, Any]
    setup: Mapping[str, Any]
    plan: SeriesPlan
    resume: str | None
    keeps_plan: bool


class SeriesNext(Message, frozen=True):
    """Is there another round? ``is_later``: after one of this session. The answer is a ``SeriesRound``."""

    name: str
    is_later: bool


class SeriesRound(Message, frozen=True):
    """The number of the next round, or None if there is none; and how long to wait before it."""

    number: int | None
    pause_s: float


class SeriesAdd(Message, frozen=True):
    """Write down a round."""

    name: str
    line: Mapping[str, Any]


class SeriesPage(Message, frozen=True):
    """Some lines from a byte offset; the answer is ``SeriesLines``."""

    name: str
    offset: int


class SeriesLines(Message, frozen=True):
    """Lines of a series.

    Attributes:
        lines: in order.
        offset: where the next ones begin, 0 if there are none.
        file: the name of the state file.
        was_torn: whether its last line was incomplete when it was opened.
    """

    lines: tuple[Any, ...]
    offset: int
    file: str
    was_torn: bool


# --- readiness: agents to each other ----------------------------------------------------------------


class Whereabouts(Message, frozen=True):
    """An agent's index, and its host."""

    index: int
    host: str


class ClockReading(Message, frozen=True):
    """An agent's clock against the controller's, None if the agent takes no part."""

    index: int
    offset: Offset | None


class UploadSeen(Message, frozen=True):
    """One upload on the writer's clock; ``problem`` is the kind of error, or an empty text."""

    start_ns: int
    end_ns: int
    problem: str
