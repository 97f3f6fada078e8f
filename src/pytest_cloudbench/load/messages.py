"""The messages between the agents of an experiment and the controller.

One class per message or answer, which ``fleet.messages`` sends over a channel. A single number, a text or a list of
texts is sent as it is, without a class. Imported by fifty agents: keep it light.
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
from pytest_cloudbench.load.request import EntryOptions, refuse_stated
from pytest_cloudbench.model import Verb
from pytest_cloudbench.providers.for_agents import Provided
from pytest_cloudbench.support import redact


class Turn(Message, frozen=True):
    """The next turn of a test that measures two sides. One turn is one block (``load.versus.turns``).

    Attributes:
        number: the number of the block, from 0.
        side: ``A`` or ``B``.
        pair: the number of the pair of blocks, from 0. The first pair warms up and is not compared.
        is_over: True if the comparison is finished, and there is no such block.
        properties: properties of the finished comparison, for machine-readable reports.
    """

    number: int
    side: str
    pair: int
    is_over: bool = False
    properties: Mapping[str, Any] = field(default_factory=dict)


class BlockEnded(Message, frozen=True):
    """The end of a block on an agent that did not fail.

    The answer, once all agents have sent it, is the next ``Turn``.
    """

    is_skipped: bool = False


class Subject(Message, frozen=True):
    """The test and the provider of an entry.

    Attributes:
        run: the name of the run, or of the conclusion, within the session.
        nodeid, name, test, params: pytest's names for the item.
        fullname: the entry's name.
        folder: the folder of the run's logs, below the session's records.
        provider: the provider's spec, or the sync client's.
        profile: the emulator's behaviour profile, or None for a real service.
        is_kept: whether written files outlive the run.
        versions: versions of the libraries that do the work.
        emulated: whether ``all``, ``some`` or ``none`` of the provider's parts are emulators.
        turn: the block of a comparison of two sides, None for an ordinary run.
        suite: the declarations of the test's suite about its entries, as plain data. Empty if there are none.
        server: the name or address of the server that requests go to. Empty if that is not known.
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
    server: str = ""

    @property
    def shown_provider(self) -> str:
        """The provider as people see it and as it is stored: its spec without secrets."""
        return redact.mask_named(self.provider)


class AccountRequest(Message, frozen=True):
    """A request for another account of a provider, by its number from 1. The answer is an ``OpenedAccount``."""

    provider: str
    number: int


class OpenedAccount(Message, frozen=True):
    """Another account: the spec that names it, and what an agent needs to connect to it."""

    spec: str
    provided: Provided


class LoadShape(Message, frozen=True):
    """The plan of a run. A field is None if it is unknown or does not apply.

    Attributes:
        ops, bytes: planned operations, and bytes that they move, up and down.
        prepared: unmeasured uploads before the run.
        sensors, ops_per_sensor, threads, arrival, loop: the sources of operations, and their due times.
        size_bytes, payload: the size of each file, and the name of its generator's class.
        names: the names of the files.
        operation: the measured operation.
        warm_up_s: seconds from the start. Operations that are due in this time are left out of metrics.
        for_s: the end of a run with a time limit, in seconds from the start. 0 without such a limit.
        until: the metric that ends the run early when it is steady.
        may_drift: whether a drift is expected, and therefore no doubt.
        detail: whether every operation's times are returned.
        keeps: whether its files are kept for another run.
        counts, down_bytes: operations of each verb, and bytes that they download, if a trace sets them.
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
    counts: Mapping[Verb, int] = field(default_factory=dict)
    down_bytes: int = 0

    @property
    def ends_by_time(self) -> bool:
        """True for a closed loop with a time limit. ``ops`` is then the most that it may do."""
        return self.for_s > 0 and self.loop == "closed"


UNKNOWN_LOAD = LoadShape(0, 0)
"""The plan of work that ends when something is known, after as many operations as that takes."""


class Start(Message, frozen=True):
    """The request of an agent to begin a run. The answer, once all agents have sent it, is ``Started``.

    Attributes:
        subject: the test and the provider.
        load: the plan of all agents together.
        entry: options for its entry.
        planned_s: the shortest time that this agent takes.
        addresses: host and port of the provider's services. Empty without services, None if only parts of it have some.
        pid: this agent's process, 0 on another host.
        start_s: the time that this agent needs between the answer and the common start, to make threads.
        reach_s: the longest time that a message takes to another host. 0 on the controller's.
    """

    subject: Subject
    load: LoadShape
    entry: EntryOptions
    planned_s: float = 0.0
    addresses: tuple[tuple[str, int], ...] | None = None
    pid: int = 0
    start_s: float = 0.0
    reach_s: float = 0.0


class Started(Message, frozen=True):
    """The common start, on the controller's clock."""

    start_ns: int


class HandedIn(Message, frozen=True):
    """The end of a run on one agent. The answer, once all agents have sent it, is ``Merged``.

    Attributes:
        run: the run's name.
        log_path: the agent's log, or an empty text if it was sent while it grew.
        notes: remarks about the log.
        cpu_s: the agent's own CPU time without that of a warm-up, None if it was not measured.
        stopped: the reason if it ended early, or an empty text.
        verified: whether the provider's listing was sent.
        doubts: reasons to distrust the agent's times, or the outcomes of its operations.
    """

    run: str
    log_path: str
    notes: tuple[str, ...]
    cpu_s: float | None
    stopped: str
    verified: bool
    doubts: tuple[str, ...] = ()


class Merged(Message, frozen=True):
    """The merged result of a run or of a conclusion. See ``experiment.Result``.

    ``tried`` has the number of operations of each sensor (unsigned, 4 bytes each) if a run that keeps its files ended
    early, for whatever reason. It is empty if nothing was tried, and None if the run did all.
    """

    info: Mapping[str, Any]
    judgements: tuple[tuple[str, str], ...]
    doubts: tuple[str, ...]
    notes: tuple[str, ...]
    ops: Mapping[str, Any] = field(default_factory=dict)
    tried: bytes | None = None


class Conclusion(Message, frozen=True):
    """A test's conclusion from several runs, or from other measurements. The answer is ``Merged``.

    Attributes:
        subject: the test and the provider.
        entry: options for its entry.
        metrics, rounds_s, stats_of, columns, doubts, spread: see ``Experiment.conclude``.
        shown: further values. They hide metrics of the same name from readers, but not from expectations.
        ops: operations of all its runs.
        ops_files: their records.
        loop: ``open`` or ``closed``, None if there was no load.
        own: values of all its runs together, by the entry's key names: how busy the machine was, and errors.
        losses: metrics that say what its runs have lost, which its test may replace and need not show.
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
    losses: Mapping[str, float] = field(default_factory=dict)
    spread: Mapping[str, Any] = field(default_factory=dict)


def plain_numbers(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of a conclusion with 1 and 0 for True and False, which tests may give as yes and no.

    Raises UsageError for a name under which each entry states something itself.
    """
    refuse_stated(metrics)
    return {name: int(value) if isinstance(value, bool) else value for name, value in metrics.items()}


# --- while a run lasts ----------------------------------------------------------------------------


class SwitchFaults(Message, frozen=True):
    """Switch an emulated provider's faults on or off."""

    provider: str
    are_on: bool


class ListingPage(Message, frozen=True):
    """Some of the files that the provider lists in a run's folder, as columns.

    The answer is the number received so far. The first page of a listing replaces one that broke off.
    """

    run: str
    names: tuple[str, ...]
    sizes_bytes: tuple[int, ...]
    digests: tuple[str | None, ...]
    is_first: bool = False


class LogPiece(Message, frozen=True):
    """The next piece of the log of an agent on another host, sent while the agent runs.

    Attributes:
        run: the run's name.
        piece: a part of the log.
        sent_ns: when it was sent, by the controller's clock.
    """

    run: str
    piece: bytes
    sent_ns: int


class LogMoved(Message, frozen=True):
    """The new path of an agent's log."""

    run: str
    path: str


class ProgressReport(Message, frozen=True):
    """The progress of an agent: operations so far, and a sample of response times and lateness since its last report.

    ``in_flight`` is the number of operations that have begun and not ended.
    """

    done: int
    throttled: int
    failed: int
    sample_s: tuple[float, ...]
    late_s: float | None = None
    in_flight: int = 0


class Watched(Message, frozen=True):
    """Successful operations after the warm-up, for a run that may end early. Numbers are signed, with 8 bytes each.

    Attributes:
        run: the run's name.
        ends_ns: the end of each, on the controller's clock.
        amounts: see ``judge.steady.amount_of``.
    """

    run: str
    ends_ns: bytes
    amounts: bytes


class EndOfRun(Message, frozen=True):
    """The early end of a run.

    Operations that are due at this time of the controller's clock, or later, are not begun.
    """

    run: str
    end_ns: int


class TextReport(Message, frozen=True):
    """A text for the end of the session, and the content of a file. ``path`` is empty without a file."""

    text: str
    path: str
    content: str


# --- a series of rounds ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SeriesPlan:
    """The length of a series.

    Attributes:
        rounds: the number of rounds if there is no duration.
        duration_s: no round except the first begins later than this. The time between sessions does not count.
        pause_s: the pause between the end of a round and the next one. ``--time-scale`` divides both times.
    """

    rounds: int
    duration_s: float | None = None
    pause_s: float = 0.0


class SeriesOpen(Message, frozen=True):
    """The request to begin a series, or to continue one. ``load.series.Series`` explains the fields."""

    name: str
    key: Mapping[str, Any]
    setup: Mapping[str, Any]
    plan: SeriesPlan
    resume: str | None
    keeps_plan: bool


class SeriesNext(Message, frozen=True):
    """The request for another round. The answer is a ``SeriesRound``.

    ``is_later`` is True if this session has already done a round.
    """

    name: str
    is_later: bool


class SeriesRound(Message, frozen=True):
    """The number of the next round, None if there is none, and the pause before it."""

    number: int | None
    pause_s: float


class SeriesAdd(Message, frozen=True):
    """A round to write into the state file."""

    name: str
    provider: str
    line: Mapping[str, Any]


class SeriesPage(Message, frozen=True):
    """The request for some lines from a byte offset. The answer is ``SeriesLines``."""

    name: str
    offset: int


class SeriesLines(Message, frozen=True):
    """Lines of a series.

    Attributes:
        lines: in order.
        offset: the byte offset of the next ones, 0 if there are none.
        file: the name of the state file.
        was_torn: whether its last line was incomplete when it was opened.
    """

    lines: tuple[Any, ...]
    offset: int
    file: str
    was_torn: bool


# --- readiness: agents to each other ----------------------------------------------------------------


class Whereabouts(Message, frozen=True):
    """An agent's index and host.

    ``host`` identifies the kernel that keeps the agent's clock. ``host_name`` is empty on the controller's host.
    """

    index: int
    host: str
    host_name: str = ""


class ClockReading(Message, frozen=True):
    """The offset of an agent's clock from the controller's, None if the agent takes no part."""

    index: int
    offset: Offset | None


class UploadSeen(Message, frozen=True):
    """One upload on the writer's clock. ``problem`` is the kind of error, or an empty text."""

    start_ns: int
    end_ns: int
    problem: str
