"""What a page is about: measurements of stored runs, or of the session that has just ended.

What may live here: entries into measurements that a page can rely on, whoever wrote the file. What cannot be used is
left out, with one line that says so.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol

from pytest_cloudbench.judge.baseline import is_finite
from pytest_cloudbench.judge.metrics import METRICS
from pytest_cloudbench.model import ResultsError
from pytest_cloudbench.results import stored
from pytest_cloudbench.results.installed import suite_problems
from pytest_cloudbench.results.places import RESULTS

if TYPE_CHECKING:
    from pytest_cloudbench.judge.watched import Margins
    from pytest_cloudbench.results.index import Index, RunRow

_TEXTS = ("doubts", "notes", "expectations", "expectations_unmet", "statuses", "columns", "ops_files")
_NAMES = ("arrival", "client", "loop", "machine", "operation", "outcome", "profile", "run_id", "verdict")
_TABLES = ("published", "versions", "missing_agents", "error_details", "errors", "spread", "gate")


@dataclass(frozen=True, slots=True)
class RunSeen:
    """One run as a whole: its name, when it was stored (Unix epoch, milliseconds), and of which commit."""

    name: str
    stored_ms: int | None = None
    commit: str = ""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One experiment on one provider in one run. See ``load.entries.Finding`` for what the first ones mean.

    Attributes:
        records: the files with its operations, if there are any.
        series: the state file of the series that it concludes, if it names one.
    """

    nodeid: str
    provider: str
    experiment: str
    params: Mapping[str, Any]
    info: Mapping[str, Any]
    columns: Sequence[str]
    spread: Mapping[str, Sequence[float]]
    run: RunSeen
    records: Sequence[Path] = ()
    series: Path | None = None

    @property
    def test(self) -> str:
        """The test function, without its parameters: what a kind of figure is for."""
        return self.nodeid.partition("[")[0].partition("#")[0]

    @property
    def kind(self) -> tuple[str, str]:
        """The last folder and the name of the test: the same in a checkout and in a wheel."""
        file, _, name = self.test.partition("::")
        return PurePosixPath(file).parent.name, name.rpartition("::")[2]

    @property
    def subject(self) -> str:
        """The provider; of a sync client, the client."""
        return self.provider or str(self.info.get("client") or "")

    @property
    def versus(self) -> Mapping[str, Any] | None:
        """What it says of two sides that were measured in turns, if it is about two sides."""
        found = self.info.get("versus")
        return found if isinstance(found, dict) else None

    @property
    def gate_answer(self) -> str:
        """The regression gate's answer; empty if it gave none."""
        return _gate_answer(self.info)

    @property
    def nature(self) -> str:
        """Whether it was emulated; of two sides that differ in it, each."""
        sides = (self.versus or {}).get("emulated")
        if not isinstance(sides, dict) or len({*map(str, sides.values())}) < 2:
            return _nature(self.info["emulated"])
        return ", ".join(f"{side} {_nature(each)}" for side, each in sides.items())

    @property
    def label(self) -> str:
        """The experiment's parameters and label, for people."""
        if self.versus is not None:
            return self.subject
        inside = self.experiment.rpartition("::")[2].partition("[")[2]
        shown = inside.replace("]#", ", ").replace("]", "").replace("-", ", ") if inside else ""
        return shown or self.experiment.rpartition("#")[2].rpartition("::")[2]

    def number(self, key: str) -> float | None:
        """Return a metric, extra value or parameter, if it is a number."""
        value = self.info.get(key, self.params.get(key))
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


@dataclass(slots=True)
class Earlier:
    """Stored runs for the histories of a page.

    Attributes:
        index: all of them, those of the page among them if they are stored.
        margins: what the user's regression gate watches besides the usual.
        last: how many runs a history shows at most.
        runs: all of them by their places.
    """

    index: Index
    margins: Margins
    last: int = 100
    runs: Mapping[str, RunRow] = field(init=False)
    _answers: dict[str, Mapping[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.runs = {run.place: run for run in self.index.runs()}

    def gate_answer(self, run: str, fullname: str) -> str:
        """Return what the gate said of an entry of a stored run; empty if nothing, or if that is not known."""
        if run not in self._answers:
            try:
                entries = self.index.entries(run)
            except ResultsError:  # it is gone since it was indexed
                entries = []
            self._answers[run] = {each.fullname: _gate_answer(each.info) for each in entries}
        return self._answers[run].get(fullname, "")


@dataclass(slots=True)
class Gathered:
    """All measurements of a page, a line for everything that is not among them, and earlier runs if any are known."""

    measurements: list[Measurement] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    earlier: Earlier | None = None

    def remember(self, earlier: Earlier) -> None:
        """Take stored runs for histories, if there are any."""
        self.earlier = earlier if earlier.runs else None
        self.left_out += [line for line in earlier.index.problems if line not in self.left_out]


class _Finding(Protocol):
    @property
    def nodeid(self) -> str: ...
    @property
    def provider(self) -> str: ...
    @property
    def params(self) -> Mapping[str, Any]: ...
    @property
    def info(self) -> Mapping[str, Any]: ...
    @property
    def experiment(self) -> str: ...


def gather(paths: Iterable[Path], records: Sequence[Path] = ()) -> Gathered:
    """Read stored runs. A file that cannot be used is one line in ``left_out``.

    Args:
        paths: their files.
        records: further folders that names of their records may start from, besides those around a file.
    """
    found = Gathered(left_out=suite_problems())
    for path in paths:
        try:
            commit, stored_ms, entries = stored.read_run(path)
        except ResultsError as error:
            found.left_out.append(str(error))
            continue
        run = RunSeen(path.name, stored_ms, commit_text(commit))
        beside = path.parent.parent.parent / RESULTS / path.parent.name  # runs in .benchmarks, records in results
        folders = [path.parent, path.parent.parent, *records, beside]
        mine = [entry for entry in entries if "cells" not in entry.info]  # those are rows of a published table
        for entry in mine:
            experiment = entry.info.get("experiment")
            found.measurements.append(
                _measurement(entry.fullname, experiment if isinstance(experiment, str) else _experiment(entry),
                             entry.params, entry.info, run, folders)
            )  # fmt: skip
        if not mine:
            found.left_out.append(f"{path}: has no entry of an experiment")
    return found


def of_session(findings: Iterable[_Finding], run: RunSeen, folder: Path) -> Gathered:
    """The measurements of a session that has not been stored; ``folder`` is what names of record files start from."""
    around = [folder, folder.parent]
    return Gathered(
        [
            _measurement(each.nodeid, each.experiment or each.nodeid, each.params, each.info, run, around)
            for each in findings
        ]
    )


def commit_text(found: stored.Commit) -> str:
    """Return a commit in a few characters; nothing if it is not known."""
    changed = " with changes" if found.is_dirty else ""
    return f"{found.id[:10]}{changed}" + (f" on {found.branch}" if found.branch else "") if found.id else ""


def _experiment(entry: stored.StoredEntry) -> str:
    """Return an entry's name without its provider, for versions that did not store it."""
    name = str(entry.info.get("provider") or "").encode("unicode_escape").decode()
    for inside, left in ((f"-{name}]", "]"), (f"[{name}-", "["), (f"[{name}]", "")):
        if name and inside in entry.fullname:
            return entry.fullname.replace(inside, left, 1)
    return entry.fullname


def _measurement(
    nodeid: str, experiment: str, params: Mapping[str, Any], info: Mapping[str, Any], run: RunSeen,
    folders: Sequence[Path],
) -> Measurement:  # fmt: skip
    clean = {str(key): _clean(value) for key, value in info.items()}
    for key in METRICS.keys() & clean.keys():
        if METRICS[key].unit != "1 is yes" and not is_finite(clean[key]):
            clean[key] = None  # an entry may hold anything under a metric's name
    for key in _TEXTS:
        value = clean.get(key)
        clean[key] = [str(each) for each in value] if isinstance(value, list) else []
    for key in _TABLES:
        clean[key] = clean[key] if isinstance(clean.get(key), dict) else {}
    if not isinstance(clean.get("emulated"), (bool, str)):
        clean["emulated"] = None
    if isinstance(clean.get("versus"), dict):
        clean |= {"profile": ", ".join(_of_sides(clean.get("profile"))), "versions": _versions_of(clean["versions"])}
    for key in _NAMES:
        if clean.get(key) is not None and not isinstance(clean[key], str):
            clean[key] = str(clean[key])
    scale = clean.get("time_scale")
    clean["time_scale"] = float(scale) if isinstance(scale, (int, float)) else 1.0
    names = [clean["ops_file"]] if isinstance(clean.get("ops_file"), str) else clean["ops_files"]
    records = [path for name in dict.fromkeys(names) if (path := _named(folders, name)) is not None]
    state = clean.get("state_file")
    series = _named(folders, f"series/{state}") if state and isinstance(state, str) else None
    spread = {
        key: [float(each) for each in values if isinstance(each, (int, float))]
        for key, values in clean["spread"].items() if isinstance(values, list)
    }  # fmt: skip
    return Measurement(
        nodeid, str(clean.get("provider") or ""), experiment, _clean(params), clean, tuple(clean["columns"]), spread,
        run, records, series,
    )  # fmt: skip


def _gate_answer(info: Mapping[str, Any]) -> str:
    gate = info.get("gate")
    return str(gate.get("answer") or "") if isinstance(gate, dict) else ""


def _nature(emulated: object) -> str:
    if isinstance(emulated, bool):
        return "emulated" if emulated else "real"
    return "partly emulated" if emulated == "some" else "not known"


def _of_sides(found: Any) -> list[str]:
    """Return what the sides of a comparison have, each with its side if they differ."""
    known = {side: str(each) for side, each in found.items() if each} if isinstance(found, dict) else {}
    is_same = len(known) > 1 and len({*known.values()}) == 1
    return [*known.values()][:1] if is_same else [f"{each} ({side})" for side, each in known.items()]


def _versions_of(sides: Mapping[str, Any]) -> dict[str, str]:
    """Return the versions of both sides of a comparison."""
    found = {side: each for side, each in sides.items() if isinstance(each, dict)}
    names = dict.fromkeys(name for each in found.values() for name in each)
    return {name: ", ".join(_of_sides({side: each.get(name) for side, each in found.items()})) for name in names}


def _named(folders: Sequence[Path], name: str) -> Path | None:
    """Return the file that an entry names, in the first folder that has it; None if it would lie elsewhere."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        return None
    return next((path for folder in folders if (path := folder / name).exists()), folders[0] / name)


def _clean(value: Any) -> Any:
    """Return a value in which numbers that no float can hold, NaN and infinities are unknown (None)."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and not is_finite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _clean(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(each) for each in value]
    return value


def line_name(each: Measurement, group: Sequence[Measurement]) -> str:
    """Return what a line is called: the provider, and the run if the same provider is there twice."""
    same = [other for other in group if other.subject == each.subject]
    name = each.subject or each.label
    return name if len(same) == 1 else f"{name}, {each.run.name} ({same.index(each) + 1})"


def moment(about: Measurement) -> str:
    """Return when an experiment began, to the second in UTC, or its run was stored; a dash if it is not known."""
    found = about.info.get("start_wall_ms")
    wall_ms = found if isinstance(found, (int, float)) and 0 < found < 1e14 else about.run.stored_ms
    if wall_ms is None:
        return "-"
    return f"{datetime.datetime.fromtimestamp(wall_ms / 1000, datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"
