"""The measurements of a page, from stored runs or from the session that has just ended.

Files may come from anybody. They are converted to measurements with the types that a page relies on. Unusable parts are
left out, and reported in one line each.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol

from pytest_cloudbench.judge.baseline import is_finite, is_in_other_unit, list_doubts
from pytest_cloudbench.judge.metrics import METRICS, is_answer
from pytest_cloudbench.model import ResultsError
from pytest_cloudbench.report.finding import ReportedFinding
from pytest_cloudbench.results import stored
from pytest_cloudbench.results.entry_names import split_name
from pytest_cloudbench.results.installed import suite_problems
from pytest_cloudbench.results.places import RESULTS

if TYPE_CHECKING:
    from pytest_cloudbench.judge.watched import Margins
    from pytest_cloudbench.results.index import Index, RunRow

_TEXT_KEYS = ("doubts", "notes", "expectations", "expectations_unmet", "statuses", "columns", "ops_files")
_NAME_KEYS = ("arrival", "client", "loop", "machine", "operation", "outcome", "profile", "run_id", "verdict")
_TABLE_KEYS = ("published", "versions", "missing_agents", "error_details", "errors", "spread", "gate")


@dataclass(frozen=True, slots=True)
class PageRun:
    """A run: its name, when it was stored (Unix epoch, milliseconds), and its commit."""

    name: str
    stored_ms: int | None = None
    commit: str = ""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One experiment on one provider in one run. See ``load.merging.entries.Finding`` for the first attributes.

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
    run: PageRun
    records: Sequence[Path] = ()
    series: Path | None = None

    @property
    def test(self) -> str:
        """The name of the test function, without parameters."""
        return split_name(self.nodeid).test

    @property
    def kind(self) -> tuple[str, str]:
        """The last folder and the name of the test, which are the same in a checkout and in a wheel."""
        file, _, name = self.test.partition("::")
        return PurePosixPath(file).parent.name, name.rpartition("::")[2]

    @property
    def subject(self) -> str:
        """The provider, or the sync client if the test has no provider."""
        return self.provider or str(self.info.get("client") or "")

    @property
    def versus(self) -> Mapping[str, Any] | None:
        """The stored comparison, if two sides were measured in turns."""
        comparison = self.info.get("versus")
        return comparison if isinstance(comparison, dict) else None

    @property
    def gate_answer(self) -> str:
        """The regression gate's answer, or ``""`` if it gave none."""
        return _gate_answer(self.info)

    @property
    def nature(self) -> str:
        """A few words that say whether the service was emulated. If two sides differ, those for each."""
        sides = (self.versus or {}).get("emulated")
        if not isinstance(sides, dict) or len({*map(str, sides.values())}) < 2:
            return _describe_emulation(self.info["emulated"])
        return ", ".join(f"{side} {_describe_emulation(emulated)}" for side, emulated in sides.items())

    @property
    def label(self) -> str:
        """The experiment's parameters and label as text."""
        if self.versus is not None:
            return self.subject
        name = split_name(self.experiment)
        parameters = re.sub(r"(?<=[^-])-", ", ", name.parameters[1:-1])  # the second of two hyphens is a sign
        return ", ".join(filter(None, (parameters, name.label))) or name.short

    def number(self, key: str) -> float | None:
        """Return a metric, extra value or parameter, or None if it is not a number."""
        value = self.info.get(key, self.params.get(key))
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


@dataclass(slots=True)
class EarlierRuns:
    """Stored runs for the histories of a page.

    Attributes:
        index: all stored runs. The page's own runs are among them if they are stored.
        margins: the margins of the user's regression gate for additional metrics.
        last: the maximum number of runs in a history.
        runs: all runs by their places.
    """

    index: Index
    margins: Margins
    last: int = 100
    runs: Mapping[str, RunRow] = field(init=False)
    _answers: dict[str, Mapping[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.runs = {run.place: run for run in self.index.runs()}

    def gate_answer(self, run: str, fullname: str) -> str:
        """Return the gate's answer to an entry of a stored run, or ``""`` if there is none or it is unknown."""
        if run not in self._answers:
            try:
                entries = self.index.entries(run)
            except ResultsError:  # the run was deleted after it had been indexed
                entries = []
            self._answers[run] = {entry.fullname: _gate_answer(entry.info) for entry in entries}
        return self._answers[run].get(fullname, "")


@dataclass(slots=True)
class GatheredRuns:
    """All measurements of a page, a line for everything that was left out, and earlier runs if any are known.

    ``runs`` is the number of stored runs that have measurements.
    """

    measurements: list[Measurement] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    earlier: EarlierRuns | None = None
    runs: int = 0

    def add_earlier(self, earlier: EarlierRuns) -> None:
        """Add stored runs for histories, if there are any."""
        self.earlier = earlier if earlier.runs else None
        self.left_out += [line for line in earlier.index.problems if line not in self.left_out]


class _Finding(ReportedFinding, Protocol):
    @property
    def params(self) -> Mapping[str, Any]: ...
    @property
    def experiment(self) -> str: ...


def gather_runs(paths: Iterable[Path], records: Sequence[Path] = ()) -> GatheredRuns:
    """Read stored runs. An unusable file becomes a line in ``left_out``.

    Args:
        paths: the files of the runs.
        records: folders to search for record files, in addition to those around each file.
    """
    gathered = GatheredRuns(left_out=suite_problems())
    for path in paths:
        try:
            commit, stored_ms, entries = stored.read_run(path)
        except ResultsError as error:
            gathered.left_out.append(str(error))
            continue
        run = PageRun(path.name, stored_ms, format_commit(commit))
        # Runs in .benchmarks have their records in results.
        results_folder = path.parent.parent.parent / RESULTS / path.parent.name
        folders = [path.parent, path.parent.parent, *records, results_folder]
        # Entries with cells are rows of a published table.
        own_entries = [entry for entry in entries if "cells" not in entry.info]
        for entry in own_entries:
            stored_name = entry.info.get("experiment")
            experiment = stored_name if isinstance(stored_name, str) else _experiment_name(entry)
            gathered.measurements.append(
                _read_measurement(entry.fullname, experiment, entry.params, entry.info, run, folders)
            )
        if own_entries:
            gathered.runs += 1
        else:
            gathered.left_out.append(f"{path}: has no entry of an experiment")
    return gathered


def gather_session(findings: Iterable[_Finding], run: PageRun, folder: Path) -> GatheredRuns:
    """Return the measurements of a session that is not stored. ``folder`` contains its record files."""
    folders = [folder, folder.parent]
    return GatheredRuns(
        [
            _read_measurement(
                finding.nodeid, finding.experiment or finding.nodeid, finding.params, finding.info, run, folders
            )
            for finding in findings
        ]
    )


def format_commit(commit: stored.Commit) -> str:
    """Return a commit in a few characters, or ``""`` if it is unknown."""
    if not commit.id:
        return ""
    changed = " with changes" if commit.is_dirty else ""
    return f"{commit.id[:10]}{changed}" + (f" on {commit.branch}" if commit.branch else "")


def _experiment_name(entry: stored.StoredEntry) -> str:
    """Return an entry's name without its provider. Older versions did not store this name."""
    name = str(entry.info.get("provider") or "").encode("unicode_escape").decode()
    for inside, remainder in ((f"-{name}]", "]"), (f"[{name}-", "["), (f"[{name}]", "")):
        if name and inside in entry.fullname:
            return entry.fullname.replace(inside, remainder, 1)
    return entry.fullname


def _read_measurement(
    nodeid: str, experiment: str, params: Mapping[str, Any], info: Mapping[str, Any], run: PageRun,
    folders: Sequence[Path],
) -> Measurement:  # fmt: skip
    """Return a measurement from an entry that may be of any version, or from elsewhere."""
    clean = {str(key): _replace_unknown(value) for key, value in info.items()}
    for key in METRICS.keys() & clean.keys():
        is_value = is_finite(clean[key]) or (is_answer(key) and isinstance(clean[key], str))
        if not is_value or is_in_other_unit(info, key):
            clean[key] = None  # an entry from elsewhere may have any value under a metric's name
    for key in _TEXT_KEYS:
        value = clean.get(key)
        clean[key] = [str(item) for item in value] if isinstance(value, list) else []
    clean["doubts"] = list_doubts(clean, is_time=False)
    for key in _TABLE_KEYS:
        clean[key] = clean[key] if isinstance(clean.get(key), dict) else {}
    if not isinstance(clean.get("emulated"), (bool, str)):
        clean["emulated"] = None
    if isinstance(clean.get("versus"), dict):
        clean |= {
            "profile": ", ".join(_label_sides(clean.get("profile"))),
            "versions": _merge_versions(clean["versions"]),
        }
    for key in _NAME_KEYS:
        if clean.get(key) is not None and not isinstance(clean[key], str):
            clean[key] = str(clean[key])
    scale = clean.get("time_scale")
    clean["time_scale"] = float(scale) if isinstance(scale, (int, float)) else 1.0
    file_names = [clean["ops_file"]] if isinstance(clean.get("ops_file"), str) else clean["ops_files"]
    records = [path for name in dict.fromkeys(file_names) if (path := _find_file(folders, name)) is not None]
    state = clean.get("state_file")
    series = _find_file(folders, f"series/{state}") if state and isinstance(state, str) else None
    spread = {
        key: [float(value) for value in values if isinstance(value, (int, float))]
        for key, values in clean["spread"].items() if isinstance(values, list)
    }  # fmt: skip
    return Measurement(
        nodeid, str(clean.get("provider") or ""), experiment, _replace_unknown(params), clean, tuple(clean["columns"]),
        spread, run, records, series,
    )  # fmt: skip


def _gate_answer(info: Mapping[str, Any]) -> str:
    gate = info.get("gate")
    return str(gate.get("answer") or "") if isinstance(gate, dict) else ""


def _describe_emulation(emulated: object) -> str:
    if isinstance(emulated, bool):
        return "emulated" if emulated else "real"
    return "partly emulated" if emulated == "some" else "not known"


def _label_sides(by_side: Any) -> list[str]:
    """Return the values of the sides of a comparison, or only one value if they are equal."""
    texts = {side: str(text) for side, text in by_side.items() if text} if isinstance(by_side, dict) else {}
    is_same = len(texts) > 1 and len({*texts.values()}) == 1
    return [*texts.values()][:1] if is_same else [f"{text} ({side})" for side, text in texts.items()]


def _merge_versions(sides: Mapping[str, Any]) -> dict[str, str]:
    """Return the versions of libraries that both sides of a comparison used."""
    versions = {
        side: versions_of_side for side, versions_of_side in sides.items() if isinstance(versions_of_side, dict)
    }
    names = dict.fromkeys(name for versions_of_side in versions.values() for name in versions_of_side)
    return {
        name: ", ".join(_label_sides({side: versions_of_side.get(name) for side, versions_of_side in versions.items()}))
        for name in names
    }


def _find_file(folders: Sequence[Path], name: str) -> Path | None:
    """Return the path of a file that an entry names, in the first folder that has it, or in the first if none has.

    Return None for a path out of the folders.
    """
    relative = stored.records_path(name)
    if relative.is_absolute() or ".." in relative.parts:
        return None
    return next((path for folder in folders if _exists(path := folder / relative)), folders[0] / relative)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that no file can have, or a folder that may not be searched
        return False


def _replace_unknown(value: Any) -> Any:
    """Replace NaN, infinities and numbers that no float can represent with None, also in nested values."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and not is_finite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _replace_unknown(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_replace_unknown(item) for item in value]
    return value


def line_name(measurement: Measurement, group: Sequence[Measurement]) -> str:
    """Return the name of a line: the provider, and the run if the provider occurs more than once in the group."""
    twins = [other for other in group if other.subject == measurement.subject]
    name = measurement.subject or measurement.label
    if len(twins) == 1:
        return name
    number = next(number for number, twin in enumerate(twins, 1) if twin is measurement)
    return f"{name}, {measurement.run.name} ({number})"


def format_start(measurement: Measurement) -> str:
    """Return when an experiment began, or its run was stored, to the second in UTC. Unknown is a dash."""
    wall_ms = stored.start_ms(measurement.info) or measurement.run.stored_ms
    if wall_ms is None:
        return "-"
    return f"{datetime.datetime.fromtimestamp(wall_ms / 1000, datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"
