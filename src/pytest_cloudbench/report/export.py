"""Export of stored runs to other programs: OpenMetrics, CSV, github-action-benchmark, Bencher.

An unknown number is never exported (github-action-benchmark reads ``null`` as 0). A doubted one is marked wherever the
format allows it. ``summary`` writes the same for people.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pytest_cloudbench.judge.baseline import find_number, is_finite, list_doubts
from pytest_cloudbench.judge.metrics import METRICS
from pytest_cloudbench.model import UsageError, did_you_mean
from pytest_cloudbench.report.hosts import read_figures
from pytest_cloudbench.support.wording import format_count

_COLUMNS = (
    "run", "time", "commit", "branch", "test", "provider", "emulated", "outcome", "doubts", "metric", "value", "unit",
    "better", "host",
)  # fmt: skip
_FORMULA = re.compile(r"[=+\-@\t\r]")
"""Characters that begin a formula in a spreadsheet."""

_BASE_UNITS = {"s": "seconds", "bytes": "bytes", "fraction": "ratio", "bytes/s": "bytes_per_second"}
"""Units that OpenMetrics has names for. Other units are in the help text of their metric."""

_BENCHER_IGNORES = "-bencher-ignore"
"""A suffix of a benchmark's name, which Bencher removes. Such a benchmark raises no alert."""
_BENCHER_LONGEST = 1024
_EMULATED = {True: "emulated", "some": "partly emulated"}


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run for export.

    Attributes:
        name: the name of its file or its session.
        time_ms: when its first entry began, or else when it was stored, Unix epoch, milliseconds. None if unknown.
        commit, branch: those of the code under test, or ``""`` if unknown.
        entries: the full name and extra_info of each experiment.
    """

    name: str
    time_ms: int | None
    commit: str
    branch: str
    entries: Sequence[tuple[str, Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class Number:
    """A known and finite metric of an experiment, in the unit of its row in ``METRICS``.

    ``host`` names the host whose figure it is, and is empty for one of all hosts.
    """

    run: StoredRun
    fullname: str
    info: Mapping[str, Any]
    metric: str
    value: float
    host: str = ""

    @property
    def name(self) -> str:
        """The experiment's full name, with the host if it is one host's."""
        return f"{self.fullname} from {self.host}" if self.host else self.fullname

    @property
    def better(self) -> str:
        """The better direction in words, such as ``lower is better``."""
        return f"{METRICS[self.metric].better} is better"

    @property
    def doubts(self) -> list[str]:
        """The reasons why the number may be wrong."""
        return entry_doubts(self.info, self.metric)


@dataclass(slots=True)
class ChosenNumbers:
    """The numbers to export, and the counts of the others by the reason why they are left out.

    ``experiments`` are those of all runs, each with its run, full name and extra_info, even if no number is left.
    """

    numbers: list[Number] = field(default_factory=list)
    experiments: list[tuple[StoredRun, str, Mapping[str, Any]]] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    def describe(self) -> str:
        """Return the numbers of chosen and omitted values in one line."""
        tests = len({(number.run.name, number.fullname) for number in self.numbers})
        line = f"{format_count(len(self.numbers), 'number')} of {format_count(tests, 'experiment')}"
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.left_out.items())
        return f"{line}; left out: {reasons}" if reasons else line


def check_metric(name: str) -> str:
    """Return ``name`` if it is a metric. Raises UsageError."""
    if name not in METRICS:
        near = did_you_mean(name, METRICS) or f"; expected one of {', '.join(METRICS)}"
        raise UsageError(f"--metric {name}: there is no such metric{near}")
    return name


def entry_doubts(info: Mapping[str, Any], metric: str = "") -> list[str]:
    """Return the doubts about an entry's numbers, or about its number for one metric. Entries are not trusted."""
    return list_doubts(info, is_time=metric != "" and METRICS[metric].time_like)


def emulated_text(info: Mapping[str, Any]) -> str:
    """Return ``emulated``, ``partly emulated``, or ``""``."""
    emulated = info.get("emulated")
    return _EMULATED.get(emulated, "") if isinstance(emulated, (bool, str)) else ""


def is_comparison(info: Mapping[str, Any]) -> bool:
    """Return whether an entry is about two sides that were measured in turns. It then has no metrics of its own."""
    return isinstance(info.get("versus"), Mapping)


def choose_numbers(runs: Sequence[StoredRun], metrics: Sequence[str] = (), *, doubted: bool = True) -> ChosenNumbers:
    """Choose the numbers to export. If a test was measured twice in a run, its last entry counts.

    Args:
        runs: stored runs.
        metrics: names in ``METRICS``, the headline first. If there are none, all metrics of an entry are chosen.
        doubted: whether to include numbers with doubts.
    """
    chosen = ChosenNumbers()
    for run in runs:
        latest = dict(run.entries)
        if len(latest) < len(run.entries):
            chosen.left_out["measured again later in the run"] += len(run.entries) - len(latest)
        for fullname, info in latest.items():
            if is_comparison(info):
                chosen.left_out["of two sides (only Markdown has them)"] += 1
                continue
            chosen.experiments.append((run, fullname, info))
            for metric in metrics or [name for name in METRICS if name in info]:
                value = find_number(info, metric)
                if metric not in info:
                    chosen.left_out[f"without {metric}"] += 1
                elif value is None:
                    chosen.left_out["unknown"] += 1
                elif not doubted and entry_doubts(info, metric):
                    chosen.left_out["with doubts"] += 1
                else:
                    chosen.numbers.append(Number(run, fullname, info, metric, value))
            chosen.numbers += [
                Number(run, fullname, info, metric, float(figures[metric]), host)
                for host, figures in read_figures(info).items()
                for metric in metrics or METRICS
                if is_finite(figures.get(metric)) and (doubted or not entry_doubts(info, metric))
            ]  # fmt: skip
    return chosen


# --- CSV ---


def format_csv_row(row: Sequence[object]) -> str:
    """Return a line of CSV that ends in a line feed. A cell with any kind of line break is quoted."""
    text = io.StringIO()
    csv.writer(text).writerow(row)  # with ``lineterminator``, Python 3.12 and older quote no carriage return
    return text.getvalue().removesuffix("\r\n") + "\n"


def _as_csv(chosen: ChosenNumbers) -> str:
    """Return a row for each number."""
    lines = [format_csv_row(_COLUMNS)]
    for number in chosen.numbers:
        run, info, metric = number.run, number.info, METRICS[number.metric]
        texts = (
            run.name, _format_time(run.time_ms), run.commit, run.branch, number.fullname, str(info.get("provider", "")),
            emulated_text(info), str(info.get("outcome", "")), "; ".join(number.doubts), number.metric,
        )  # fmt: skip
        row = [*map(_escape_formula, texts), repr(number.value), metric.unit, metric.better]
        lines.append(format_csv_row([*row, _escape_formula(number.host)]))
    return "".join(lines)


def _escape_formula(text: str) -> str:
    """Return a text that is not a formula for a spreadsheet."""
    return f"'{text}" if _FORMULA.match(text) else text


def _format_time(time_ms: int | None) -> str:
    return "" if time_ms is None else datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")


# --- OpenMetrics ---


def _as_openmetrics(chosen: ChosenNumbers) -> str:
    """Return a gauge for each metric, and families for doubts and for the counts of unknown numbers.

    Free texts are labels of one family only, because each different text begins a new series. Samples have a time only
    if there are several runs, because Pushgateway and node_exporter accept no samples with a time. The last two
    families have experiments without any known number, too.
    """
    runs = {id(run): run for run, _, _ in chosen.experiments}
    has_time = len(runs) > 1
    if has_time and any(run.time_ms is None for run in runs.values()):
        raise UsageError("--format openmetrics: one of several runs does not say when it was stored; give it alone")
    if len({run.time_ms for run in runs.values()}) < len(runs):
        raise UsageError("--format openmetrics: two of the runs were stored at the same time; give each run once")
    families: dict[str, list[Number]] = {}
    for number in chosen.numbers:
        families.setdefault(number.metric, []).append(number)
    lines = []
    for metric, numbers in families.items():
        family, unit = _metric_family(metric)
        help_text = f"{metric} in {METRICS[metric].unit}; {METRICS[metric].better} is better."
        lines += _family_header(family, unit, help_text)
        lines += _sample_lines(
            family, [(_number_labels(number), number.value, number.run.time_ms) for number in numbers], has_time
        )
    unknown = "cloudbench_unknown_numbers"
    lines += _family_header(unknown, "", "How many of an experiment's metrics are unknown, and left out.")
    counts = [
        (_format_labels(fullname, info, doubted=_doubted_label(entry_doubts(info))), _count_unknown(info), run.time_ms)
        for run, fullname, info in chosen.experiments
    ]
    lines += _sample_lines(unknown, counts, has_time)
    lines += _family_header("cloudbench_experiment", "", "How a test ended, and why its numbers may be wrong.", "info")
    samples = [
        (_format_labels(fullname, info, **_outcome_labels(info)), 1.0, run.time_ms)
        for run, fullname, info in chosen.experiments
    ]
    return "\n".join([*lines, *_sample_lines("cloudbench_experiment_info", samples, has_time), "# EOF"]) + "\n"


def _count_unknown(info: Mapping[str, Any]) -> float:
    return float(sum(name in info and find_number(info, name) is None for name in METRICS))


def _outcome_labels(info: Mapping[str, Any]) -> dict[str, str]:
    return {"outcome": str(info.get("outcome", "unknown")), "doubts": "; ".join(entry_doubts(info)) or "none"}


def _metric_family(metric: str) -> tuple[str, str]:
    """Return a metric's name and unit in OpenMetrics. The unit is either ``""`` or a suffix of the name."""
    unit = _BASE_UNITS.get(METRICS[metric].unit, "")
    name = "cloudbench_" + re.sub(r"[^a-zA-Z0-9_]", "_", re.sub(r"_per_s$", "_per_second", metric))
    return (f"{name}_{unit}" if unit and not name.endswith(f"_{unit}") else name), unit


def _family_header(family: str, unit: str, help_text: str, kind: str = "gauge") -> list[str]:
    lines = [f"# TYPE {family} {kind}", *([f"# UNIT {family} {unit}"] if unit else [])]
    return [*lines, f"# HELP {family} {_escape_label(help_text)}"]


def _number_labels(number: Number) -> str:
    host = {"host": number.host} if number.host else {}
    return _format_labels(number.fullname, number.info, **host, doubted=_doubted_label(number.doubts))


def _doubted_label(doubts: Sequence[str]) -> str:
    return "yes" if doubts else "no"


def _format_labels(fullname: str, info: Mapping[str, Any], **more_labels: str) -> str:
    labels = {
        "test": fullname, "provider": str(info.get("provider", "")),
        "emulated": {"emulated": "yes", "": "no"}.get(emulated := emulated_text(info), emulated), **more_labels,
    }  # fmt: skip
    return ",".join(f'{name}="{_escape_label(value)}"' for name, value in labels.items())


def _sample_lines(family: str, samples: Sequence[tuple[str, float, int | None]], has_time: bool) -> Iterator[str]:
    """Yield the lines of samples, grouped by series."""
    for labels, value, time_ms in sorted(samples, key=lambda sample: (sample[0], sample[2] or 0)):
        time = f" {time_ms / 1000:.3f}" if has_time and time_ms is not None else ""
        yield f"{family}{{{labels}}} {value!r}{time}"


def _escape_label(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


# --- JSON ---


def _as_github_action_benchmark(chosen: ChosenNumbers) -> str:
    """Return a list of metrics with one better direction, for ``customSmallerIsBetter`` or ``customBiggerIsBetter``."""
    _require_one_run(chosen)
    if len({METRICS[number.metric].better for number in chosen.numbers}) > 1:
        raise UsageError(
            "--format github-action-benchmark: a file holds metrics of one direction, for customSmallerIsBetter or "
            "customBiggerIsBetter; export those where higher is better into another file"
        )
    benchmarks = [
        {
            "name": f"{number.name} {number.metric}",
            "unit": METRICS[number.metric].unit,
            "value": number.value,
            "extra": "\n".join(_number_remarks(number)),
        }
        for number in chosen.numbers
    ]
    return json.dumps(benchmarks, indent=1) + "\n"


def _number_remarks(number: Number) -> list[str]:
    info, emulated = number.info, emulated_text(number.info)
    remarks = [number.better, f"provider: {info.get('provider', 'unknown')}"]
    remarks += [f"{emulated}: measures the client and the loopback, not the service"] if emulated else []
    remarks += [f"test {info['outcome']}"] if info.get("outcome", "passed") != "passed" else []
    return remarks + [f"doubt: {doubt}" for doubt in number.doubts]


def _as_bencher(chosen: ChosenNumbers) -> str:
    """Return Bencher Metric Format. It has names only, so that these contain unit, direction and emulation."""
    _require_one_run(chosen)
    benchmarks: dict[str, dict[str, dict[str, float]]] = {}
    for number in chosen.numbers:
        emulated, metric = emulated_text(number.info), METRICS[number.metric]
        name = number.name + (f" ({emulated})" if emulated else "")
        name += _BENCHER_IGNORES if number.doubts else ""
        if len(name.encode(errors="backslashreplace")) > _BENCHER_LONGEST:
            raise UsageError(f"--format bencher: {name[:60]}... is longer than {_BENCHER_LONGEST} bytes; rename it")
        measure = f"{number.metric} ({metric.unit}, {number.better})"
        benchmarks.setdefault(name, {})[measure] = {"value": number.value}
    return json.dumps(benchmarks, indent=1) + "\n"


def _require_one_run(chosen: ChosenNumbers) -> None:
    if len({id(number.run) for number in chosen.numbers}) > 1:
        raise UsageError("this format holds one run; export each run into a file of its own")


FORMATS: Mapping[str, Callable[[ChosenNumbers], str]] = {
    "openmetrics": _as_openmetrics,
    "csv": _as_csv,
    "github-action-benchmark": _as_github_action_benchmark,
    "bencher": _as_bencher,
}
"""Functions for exporting, by the name of the format. They raise UsageError for numbers that a format cannot hold."""
