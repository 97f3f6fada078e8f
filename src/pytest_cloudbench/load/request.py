"""The arguments of ``experiment.run``: a load, and options for its entry.

Imported by fifty agents: keep it light.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from functools import cache, lru_cache
from math import inf
from typing import Any, TypedDict

from pytest_cloudbench.judge.expect import Expectation
from pytest_cloudbench.judge.metrics import METRICS
from pytest_cloudbench.judge.steady import Stable
from pytest_cloudbench.load.names import FileNames
from pytest_cloudbench.model import Content, UsageError, Verb
from pytest_cloudbench.workload.arrival import Arrival, Closed, Threads
from pytest_cloudbench.workload.payload import Generator


@dataclass(frozen=True, slots=True)
class Files:
    """The files that one run has written into a folder on the provider.

    Attributes:
        folder: absolute path.
        payload: makes their content.
        members: (sensor, sequence number) of each file.
        named: their names. None for sensor and sequence number, with the payload's suffix if it has one.
        limits: the number of files of each sensor, if the run that wrote them ended early.
        cycle: the number of files of each sensor that are used in turn, if operations may outnumber them.
    """

    folder: str
    payload: Generator
    members: Sequence[tuple[int, int]] = ()
    named: FileNames | None = None
    limits: Sequence[int] | None = None
    cycle: Sequence[int] = ()
    _template: str = field(init=False, repr=False, compare=False)
    """A template that makes a path in one step, because paths are a fifth of the work of an operation."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_template", _path_template(self.names, self.folder))

    @property
    def names(self) -> FileNames:
        """The names of the files."""
        return self.named or _names_with_suffix(getattr(self.payload, "suffix", ""))

    def path(self, sensor: int, seq: int) -> str:
        """Return the path of the file of a sensor and sequence number."""
        if self.cycle:
            seq = self._cycled_number(sensor, seq)
        return self._template % (sensor, seq) if self._template else f"{self.folder}/{self.names.path(sensor, seq)}"

    def file(self, sensor: int, seq: int) -> tuple[str, Content]:
        """Return the path and the content of the file of a sensor and sequence number."""
        if self.cycle:
            seq = self._cycled_number(sensor, seq)
        return self.path(sensor, seq), self.payload.content(sensor, seq)

    def in_turn(self) -> Files:
        """Return the same files, such that a sensor's operation after the last file uses the first one again."""
        counts = Counter(sensor for sensor, _ in self.members)
        return replace(self, cycle=[counts[sensor] for sensor in range(max(counts, default=-1) + 1)], limits=None)

    def _cycled_number(self, sensor: int, seq: int) -> int:
        return seq % self.cycle[sensor] if sensor < len(self.cycle) and self.cycle[sensor] else seq


@cache
def _names_with_suffix(suffix: str) -> FileNames:
    """Return file names made of sensor and sequence number. Called for every operation."""
    return FileNames(suffix) if suffix else FileNames()


@lru_cache(maxsize=64)
def _path_template(names: FileNames, folder: str) -> str:
    """Return the template of paths. Called by every operation of a trace, whose files differ in size only."""
    return names.template(folder)


@dataclass(frozen=True, slots=True)
class Load:
    """Operations on a provider: one file per operation, on all agents together.

    Attributes:
        payload: makes the content of each file, unless ``on`` names files.
        arrival: when operations are due. ``ThinkTime`` and ``Threads`` are closed loops, everything else is an open
            one. A ``Replay`` also specifies the verb and size of each operation. Sensors may have fewer operations.
        sensors: logical sensors, divided evenly among the agents.
        ops_per_sensor: operations of each sensor.
        for_s: seconds from the start. An open loop does the operations that are due in this time, instead of
            ``ops_per_sensor``. A closed loop begins none after it, and does ``ops_per_sensor`` (or ``files``) at most.
        files: with ``Threads``, the number of files, instead of ``sensors`` and ``ops_per_sensor``.
        operation: the measured operation. All but an upload need files. Without ``on``, they are uploaded first,
            unmeasured. A download is compared with the uploaded content.
        on: files that an earlier run kept. With ``Threads`` all of them are used, or a random ``sample``.
        in_turn: with ``on`` and sensors, use a sensor's files again from the first one, so that operations may
            outnumber files. A sensor that has no file does nothing, unless it uploads or lists.
        sample: with ``on`` and ``Threads``, the share of the files that is used, chosen anew by each run.
        keep: leave the files for another run of this test. They are removed at its end. Not with a ``Replay`` or a
            ``Mixture``.
        verify: after uploads and deletions, compare the provider's listing.
        mkdir: make the folder first. If False, the first upload makes it, and an emulator is emptied only before the
            test's first run, so that a provider in trouble is measured as it is.
        names: the names of new files, if they matter.
        warm_up_s: operations that are due in the first ``warm_up_s`` seconds are recorded, and left out of all metrics.
        until: end the run on all agents when a metric has been steady, and after the planned operations at the latest.
        may_drift: a steady rise or fall of times is a note and not a doubt.
        detail: return every operation's times (``Result.ops``). Meant for up to a few thousand operations.
    """

    payload: Generator | None = None
    _: KW_ONLY
    arrival: Arrival | Closed
    sensors: int = 0
    ops_per_sensor: int = 1
    for_s: float = 0.0
    files: int = 0
    operation: Verb = Verb.PUT
    on: Files | None = None
    in_turn: bool = False
    sample: float = 1.0
    keep: bool = False
    verify: bool = True
    mkdir: bool = True
    names: FileNames | None = None
    warm_up_s: float = 0.0
    until: Stable | None = None
    may_drift: bool = False
    detail: bool = False

    def check(self) -> None:
        """Raise UsageError for fields that contradict each other or have no meaning."""
        if self.payload is None and self.on is None:
            raise UsageError("experiment.run: expected a payload, or on=files of a former run")
        if self.on is not None and not self.sample > 0:
            raise UsageError(f"experiment.run: sample={self.sample!r}: expected a share above 0, such as 0.5")
        times: dict[str, object] = {"warm_up_s": self.warm_up_s, "for_s": self.for_s}
        for name, seconds in times.items():
            if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not 0 <= seconds < inf:
                raise UsageError(f"experiment.run: {name}={seconds!r}: expected seconds, 0 or more")
        if self.in_turn and (self.on is None or isinstance(self.arrival, Threads)):
            raise UsageError("experiment.run: in_turn expects on=files of a former run, and sensors")
        if self.keep and not isinstance(self.arrival, Closed) and self.arrival.steps(0, 0) is not None:
            raise UsageError(
                f"experiment.run: keep=True: {self.arrival!r} sets the size of each file, which a later run does not "
                "know"
            )
        self._check_time()
        until = self.until
        if until is not None and (about := METRICS[until.metric].about) and self.operation not in about:
            raise UsageError(f"experiment.run: until: {until.metric} says nothing about {self.operation.value}")

    def _check_time(self) -> None:
        """Raise UsageError for a ``for_s`` that contradicts the number of operations, or lacks it in a closed loop."""
        if not self.for_s:
            return
        if self.for_s <= self.warm_up_s:
            raise UsageError(f"experiment.run: for_s={self.for_s:g}: expected more than warm_up_s={self.warm_up_s:g}")
        if not isinstance(self.arrival, Closed):
            if self.ops_per_sensor != 1:
                raise UsageError("experiment.run: expected for_s or ops_per_sensor in an open loop, not both")
        elif self.ops_per_sensor == 1 and not self.files:
            bound = "files" if isinstance(self.arrival, Threads) else "ops_per_sensor"
            raise UsageError(f"experiment.run: for_s in a closed loop also expects {bound}, the most that it does")
        elif self.on is None and self.operation is not Verb.PUT:
            raise UsageError(
                f"experiment.run: for_s of a closed loop that does {self.operation.value} expects on=files"
            )


@dataclass(frozen=True, slots=True)
class EntryOptions:
    """Options for the entry of a load or of a conclusion: how it is named, judged and shown.

    Attributes:
        label: names the entry if a test makes several. The second one with a label ``x`` is ``x-2``.
        store: make an entry, judge its expectations and show it. Otherwise the load is part of a conclusion.
        extra: further values for the entry (plain data).
        notes: remarks to show with the numbers.
        published: figures by metric to show beside the measured ones, with their ``source``.
        expect: expectations besides those that are recorded in a file.
        gate: margins of the regression gate by metric, such as ``{"p50": 0.05, "p99": None}`` (docs/gates.md).
    """

    label: str = ""
    store: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    published: Mapping[str, Any] = field(default_factory=dict)
    expect: tuple[Expectation, ...] = ()
    gate: Mapping[str, float | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        refuse_stated(self.extra)
        for name, values in (("extra", self.extra), ("published", self.published)):
            try:  # else the whole session could not be stored at its end
                json.dumps(values, default=_describe, ensure_ascii=False).encode()
            except (TypeError, ValueError, RecursionError) as error:
                raise UsageError(f"{name}: cannot be stored as JSON: {error}") from error


def _describe(value: object) -> str:
    """Return a text for a value that becomes plain on its way to the controller. Raises TypeError for bytes."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError("bytes are no text")
    return repr(value)


_STATED = frozenset({
    "schema", "outcome", "machine", "agents", "missing_agents", "hosts", "by_host", "provider", "profile_digest",
    "emulated", "published", "time_scale", "run_id", "suite", "suite_options", "block", "versus", "gate",
})  # fmt: skip
"""Names under which an entry states how it was measured, and what was judged. No value of a test may replace these."""


def refuse_stated(names: Iterable[str]) -> None:
    """Raise UsageError for names of a test's own values under which each entry states something itself."""
    if taken := sorted(_STATED.intersection(names)):
        raise UsageError(f"{', '.join(taken)}: each entry says this itself; give your value another name")


class RunKeywords(TypedDict, total=False):
    """The fields of ``Load`` and ``EntryOptions``, as keywords of ``experiment.run``."""

    payload: Generator | None
    arrival: Arrival | Closed
    sensors: int
    ops_per_sensor: int
    for_s: float
    files: int
    operation: Verb
    on: Files | None
    in_turn: bool
    sample: float
    keep: bool
    verify: bool
    mkdir: bool
    names: FileNames | None
    warm_up_s: float
    until: Stable | None
    may_drift: bool
    detail: bool
    label: str
    store: bool
    extra: Mapping[str, Any] | None
    notes: Sequence[str]
    published: Mapping[str, Any] | None
    expect: Sequence[Expectation]
    gate: Mapping[str, Any] | None


_ENTRY_FIELDS = frozenset(entry_field.name for entry_field in fields(EntryOptions))


def parse_request(
    load: Load | Generator | None, entry: EntryOptions | None, keywords: Mapping[str, Any]
) -> tuple[Load, EntryOptions]:
    """Return the load and the entry options of a call of ``experiment.run``. Keywords take the place of fields.

    Raises TypeError for a keyword that neither has, and UsageError like ``Load.check``.
    """
    load_fields = {name: value for name, value in keywords.items() if name not in _ENTRY_FIELDS}
    entry_fields = {name: value for name, value in keywords.items() if name in _ENTRY_FIELDS and value is not None}
    entry_fields |= {name: tuple(entry_fields[name]) for name in ("notes", "expect") if name in entry_fields}
    if not isinstance(load, Load):
        load = Load(**({} if load is None else {"payload": load}) | load_fields)
    elif load_fields:
        load = replace(load, **load_fields)
    load.check()
    return load, replace(entry or EntryOptions(), **entry_fields)
