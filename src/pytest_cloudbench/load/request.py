"""What a test asks of ``experiment.run``: a load, and what becomes of its entry.

Imported by fifty agents: keep it light.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from math import inf
from typing import Any, TypedDict

from pytest_cloudbench.judge.expect import Expectation
from pytest_cloudbench.judge.metrics import METRICS
from pytest_cloudbench.judge.steady import Stable
from pytest_cloudbench.load.names import FileNames
from pytest_cloudbench.model import Content, UsageError, Verb
from pytest_cloudbench.workload.arrival import Arrival, Closed
from pytest_cloudbench.workload.payload import Generator


@dataclass(frozen=True, slots=True)
class Files:
    """Files in a folder on the provider, as one run has written them.

    Attributes:
        folder: absolute path.
        payload: what is in them.
        members: (sensor, sequence number) of each.
        named: what they are called; None for sensor and sequence number, with the payload's suffix if it has one.
        limits: how many files each sensor has, if the run that wrote them ended early.
    """

    folder: str
    payload: Generator
    members: Sequence[tuple[int, int]] = ()
    named: FileNames | None = None
    limits: Sequence[int] | None = None

    @property
    def names(self) -> FileNames:
        """What they are called."""
        return self.named or FileNames(getattr(self.payload, "suffix", "") or FileNames().suffix)

    def path(self, sensor: int, seq: int) -> str:
        """Return the path of the file of a sensor and sequence number."""
        return f"{self.folder}/{self.names.path(sensor, seq)}"

    def file(self, sensor: int, seq: int) -> tuple[str, Content]:
        """Return the path and the content of the file of a sensor and sequence number."""
        return self.path(sensor, seq), self.payload.content(sensor, seq)


@dataclass(frozen=True, slots=True)
class Load:
    """Operations on a provider: one file per operation, on all agents together.

    Attributes:
        payload: makes the content of each file; not needed with ``on``.
        arrival: when operations are due. ``ThinkTime`` and ``Threads`` are closed loops, everything else is an open
            one. A ``Replay`` also says what each operation is and its size, and sensors may have fewer operations.
        sensors: logical sensors, shared out evenly among the agents.
        ops_per_sensor: operations of each sensor.
        files: with ``Threads``, the number of files instead of the two above.
        operation: what is measured. All but an upload need files; if ``on`` names none, they are uploaded first,
            unmeasured. A download is compared with what was uploaded.
        on: files that an earlier run kept; with ``Threads`` all of them, or a random ``sample``.
        sample: with ``on`` and ``Threads``, the share of the files that is used, chosen anew by each run.
        keep: leave the files for another run of this test; they are removed at its end.
        verify: after uploads and deletions, compare the provider's listing.
        mkdir: make the folder first. If False, the first upload makes it, and an emulator is not emptied: a
            provider in trouble is then measured instead of waited for.
        names: what new files are called, if that matters.
        warm_up_s: operations that are due in the first seconds are recorded, and left out of all metrics.
        until: end the run on all agents when a metric has been steady, with that many operations at most.
        may_drift: times may rise or fall steadily: that is then a note and not a doubt.
        detail: return every operation's times (``Result.ops``); meant for up to a few thousand operations.
    """

    payload: Generator | None = None
    _: KW_ONLY
    arrival: Arrival | Closed
    sensors: int = 0
    ops_per_sensor: int = 1
    files: int = 0
    operation: Verb = Verb.PUT
    on: Files | None = None
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
        warm: object = self.warm_up_s
        if not isinstance(warm, (int, float)) or isinstance(warm, bool) or not 0 <= warm < inf:
            raise UsageError(f"experiment.run: warm_up_s={warm!r}: expected seconds, 0 or more")
        until = self.until
        if until is not None and (about := METRICS[until.metric].about) and self.operation not in about:
            raise UsageError(f"experiment.run: until: {until.metric} says nothing about {self.operation.value}")


@dataclass(frozen=True, slots=True)
class EntryOptions:
    """What becomes of the numbers of a load, or of a conclusion: how its entry is called, judged and shown.

    Attributes:
        label: names the entry if a test makes several; the second one with a label ``x`` is ``x-2``.
        store: make an entry, judge its expectations and show it. Otherwise the load is part of a conclusion.
        extra: what else the entry should hold (plain data).
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


class RunKeywords(TypedDict, total=False):
    """The fields of ``Load`` and ``EntryOptions``, as keywords of ``experiment.run``."""

    payload: Generator | None
    arrival: Arrival | Closed
    sensors: int
    ops_per_sensor: int
    files: int
    operation: Verb
    on: Files | None
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


_OF_ENTRY = frozenset(each.name for each in fields(EntryOptions))


def parse_request(
    load: Load | Generator | None, entry: EntryOptions | None, keywords: Mapping[str, Any]
) -> tuple[Load, EntryOptions]:
    """Return the load and the entry that a call of ``experiment.run`` asks for: keywords take the place of fields.

    Raises TypeError for a keyword that neither has, and UsageError as ``Load.check`` does.
    """
    of_load = {name: value for name, value in keywords.items() if name not in _OF_ENTRY}
    of_entry = {name: value for name, value in keywords.items() if name in _OF_ENTRY and value is not None}
    of_entry |= {name: tuple(of_entry[name]) for name in ("notes", "expect") if name in of_entry}
    if not isinstance(load, Load):
        load = Load(**({} if load is None else {"payload": load}) | of_load)
    elif of_load:
        load = replace(load, **of_load)
    load.check()
    return load, replace(entry or EntryOptions(), **of_entry)
