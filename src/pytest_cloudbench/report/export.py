"""Stored runs for other programs: OpenMetrics, CSV, github-action-benchmark, Bencher.

What may live here: which numbers are handed on, what is left out and why, and each program's form. A number that is
unknown is never handed on (github-action-benchmark reads ``null`` as 0), and one with doubts says so wherever the form
has room for it. ``summary`` writes the same for people.
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

from pytest_cloudbench.judge.baseline import is_finite
from pytest_cloudbench.judge.metrics import METRICS
from pytest_cloudbench.model import UsageError, did_you_mean

_COLUMNS = (
    "run", "time", "commit", "branch", "test", "provider", "emulated", "outcome", "doubts", "metric", "value", "unit",
    "better",
)  # fmt: skip
_FORMULA = re.compile(r"[=+\-@\t\r]")
"""What a spreadsheet takes for the beginning of a formula."""

_BASE_UNITS = {"s": "seconds", "bytes": "bytes", "fraction": "ratio", "bytes/s": "bytes_per_second"}
"""Units that OpenMetrics has a word for; the others stand in the help of their metric."""

_BENCHER_IGNORES = "-bencher-ignore"
"""A benchmark whose name ends in this raises no alert in Bencher, which cuts it off the name."""
_BENCHER_LONGEST = 1024
_EMULATED = {True: "emulated", "some": "partly emulated"}


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run as it is handed on.

    Attributes:
        name: of its file or its session.
        time_ms: when it was stored, Unix epoch, milliseconds; None if unknown.
        commit, branch: of the code under test; empty if unknown.
        entries: full name and extra_info of each experiment.
    """

    name: str
    time_ms: int | None
    commit: str
    branch: str
    entries: Sequence[tuple[str, Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class Number:
    """A metric of an experiment, known and finite, in the unit of its row in ``METRICS``."""

    run: StoredRun
    fullname: str
    info: Mapping[str, Any]
    metric: str
    value: float

    @property
    def better(self) -> str:
        """Which direction is better, in words."""
        return f"{METRICS[self.metric].better} is better"

    @property
    def doubts(self) -> list[str]:
        """Why the number may be wrong."""
        return doubts_of(self.info, self.metric)


@dataclass(slots=True)
class Chosen:
    """The numbers that are handed on, and how many are not, by the reason."""

    numbers: list[Number] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    def told(self) -> str:
        """Return what was chosen and what was left out, in one line."""
        tests = len({(number.run.name, number.fullname) for number in self.numbers})
        line = f"{len(self.numbers)} numbers of {tests} {'experiment' if tests == 1 else 'experiments'}"
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.left_out.items())
        return f"{line}; left out: {reasons}" if reasons else line


def known_metric(name: str) -> str:
    """Return ``name`` if it is a metric. Raises UsageError."""
    if name not in METRICS:
        near = did_you_mean(name, METRICS) or f"; expected one of {', '.join(METRICS)}"
        raise UsageError(f"--metric {name}: there is no such metric{near}")
    return name


def doubts_of(info: Mapping[str, Any], metric: str = "") -> list[str]:
    """Return why an entry's numbers, or its number for one metric, may be wrong. Entries are not trusted."""
    told = info.get("doubts")
    found = [str(each) for each in told] if isinstance(told, list) else []
    if info.get("outcome") in ("interrupted", "unfinished"):
        found.append(f"the test was {info['outcome']}")
    scale = info.get("time_scale", 1.0)
    if metric and METRICS[metric].time_like and scale != 1.0:
        found.append(f"--time-scale {scale} distorts times")
    return found


def emulated_text(info: Mapping[str, Any]) -> str:
    """Return ``emulated``, ``partly emulated``, or an empty text."""
    emulated = info.get("emulated")
    return _EMULATED.get(emulated, "") if isinstance(emulated, (bool, str)) else ""


def is_comparison(info: Mapping[str, Any]) -> bool:
    """Return whether an entry is of two sides that were measured in turns: it has no metric of its own."""
    return isinstance(info.get("versus"), dict)


def choose(runs: Sequence[StoredRun], metrics: Sequence[str] = (), *, doubted: bool = True) -> Chosen:
    """Choose the numbers that are handed on. A test that was measured twice in a run counts with its last entry.

    Args:
        runs: stored runs.
        metrics: names in ``METRICS``, the headline first; empty: all that an entry has.
        doubted: also those that may be wrong.
    """
    chosen = Chosen()
    for run in runs:
        latest = dict(run.entries)
        if len(latest) < len(run.entries):
            chosen.left_out["measured again later in the run"] += len(run.entries) - len(latest)
        for fullname, info in latest.items():
            if is_comparison(info):
                chosen.left_out["of two sides (only Markdown has them)"] += 1
                continue
            for metric in metrics or [name for name in METRICS if name in info]:
                value = info.get(metric)
                if metric not in info:
                    chosen.left_out[f"without {metric}"] += 1
                elif not is_finite(value):
                    chosen.left_out["unknown"] += 1
                elif not doubted and doubts_of(info, metric):
                    chosen.left_out["with doubts"] += 1
                else:
                    chosen.numbers.append(Number(run, fullname, info, metric, float(info[metric])))
    return chosen


# --- CSV ---


def _as_csv(chosen: Chosen) -> str:
    """A row for each number."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for number in chosen.numbers:
        run, info, metric = number.run, number.info, METRICS[number.metric]
        told = (
            run.name, _iso(run.time_ms), run.commit, run.branch, number.fullname, str(info.get("provider", "")),
            emulated_text(info), str(info.get("outcome", "")), "; ".join(number.doubts), number.metric,
        )  # fmt: skip
        writer.writerow([*map(_cell, told), repr(number.value), metric.unit, metric.better])
    return text.getvalue()


def _cell(text: str) -> str:
    """Return a text that no spreadsheet takes for a formula."""
    return f"'{text}" if _FORMULA.match(text) else text


def _iso(time_ms: int | None) -> str:
    return "" if time_ms is None else datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")


# --- OpenMetrics ---


def _as_openmetrics(chosen: Chosen) -> str:
    """A gauge for each metric; what its doubts say, and how many numbers are unknown, in families of their own.

    Texts are in one family only, for each other text begins another series. Samples have a time only if there are
    several runs: Pushgateway and node_exporter take none with a time.
    """
    runs = {id(number.run): number.run for number in chosen.numbers}
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
        family, unit = _family(metric)
        help_text = f"{metric} in {METRICS[metric].unit}; {METRICS[metric].better} is better."
        lines += _head(family, unit, help_text)
        lines += _samples(family, [(_labels(each), each.value, each.run.time_ms) for each in numbers], has_time)
    entries = {(number.run.time_ms, number.fullname): number for number in chosen.numbers}.values()
    unknown = "cloudbench_unknown_numbers"
    lines += _head(unknown, "", "How many of an experiment's metrics are unknown, and left out.")
    lines += _samples(unknown, [(_labels(each), _unknown(each.info), each.run.time_ms) for each in entries], has_time)
    lines += _head("cloudbench_experiment", "", "How a test ended, and why its numbers may be wrong.", "info")
    told = [(_labels(each, **_told(each.info)), 1.0, each.run.time_ms) for each in entries]
    return "\n".join([*lines, *_samples("cloudbench_experiment_info", told, has_time), "# EOF"]) + "\n"


def _unknown(info: Mapping[str, Any]) -> float:
    return float(sum(name in info and not is_finite(info[name]) for name in METRICS))


def _told(info: Mapping[str, Any]) -> dict[str, str]:
    return {"outcome": str(info.get("outcome", "unknown")), "doubts": "; ".join(doubts_of(info)) or "none"}


def _family(metric: str) -> tuple[str, str]:
    """Return a metric's name and unit in OpenMetrics; the unit is empty, or the name ends with it."""
    unit = _BASE_UNITS.get(METRICS[metric].unit, "")
    name = "cloudbench_" + re.sub(r"[^a-zA-Z0-9_]", "_", re.sub(r"_per_s$", "_per_second", metric))
    return (f"{name}_{unit}" if unit and not name.endswith(f"_{unit}") else name), unit


def _head(family: str, unit: str, help_text: str, kind: str = "gauge") -> list[str]:
    found = [f"# TYPE {family} {kind}", *([f"# UNIT {family} {unit}"] if unit else [])]
    return [*found, f"# HELP {family} {_escaped(help_text)}"]


def _labels(number: Number, **more: str) -> str:
    told = {
        "test": number.fullname, "provider": str(number.info.get("provider", "")),
        "emulated": {"emulated": "yes", "": "no"}.get(emulated := emulated_text(number.info), emulated),
        **(more or {"doubted": "yes" if number.doubts else "no"}),
    }  # fmt: skip
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in told.items())


def _samples(family: str, samples: Sequence[tuple[str, float, int | None]], has_time: bool) -> Iterator[str]:
    """Yield lines; those of one series stand together."""
    for labels, value, time_ms in sorted(samples, key=lambda sample: (sample[0], sample[2] or 0)):
        time = f" {time_ms / 1000:.3f}" if has_time and time_ms is not None else ""
        yield f"{family}{{{labels}}} {value!r}{time}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


# --- JSON ---


def _as_github_action_benchmark(chosen: Chosen) -> str:
    """One list, all of one direction, as its tools ``customSmallerIsBetter`` and ``customBiggerIsBetter`` read it."""
    _one_run(chosen)
    if len({METRICS[number.metric].better for number in chosen.numbers}) > 1:
        raise UsageError(
            "--format github-action-benchmark: a file holds metrics of one direction, for customSmallerIsBetter or "
            "customBiggerIsBetter; export those where higher is better into another file"
        )
    found = [
        {
            "name": f"{number.fullname} {number.metric}",
            "unit": METRICS[number.metric].unit,
            "value": number.value,
            "extra": "\n".join(_remarks(number)),
        }
        for number in chosen.numbers
    ]
    return json.dumps(found, indent=1) + "\n"


def _remarks(number: Number) -> list[str]:
    info, emulated = number.info, emulated_text(number.info)
    found = [number.better, f"provider: {info.get('provider', 'unknown')}"]
    found += [f"{emulated}: measures the client and the loopback, not the service"] if emulated else []
    found += [f"test {info['outcome']}"] if info.get("outcome", "passed") != "passed" else []
    return found + [f"doubt: {doubt}" for doubt in number.doubts]


def _as_bencher(chosen: Chosen) -> str:
    """Bencher Metric Format; its names are the only place for words, and tell unit, direction and emulation."""
    _one_run(chosen)
    found: dict[str, dict[str, dict[str, float]]] = {}
    for number in chosen.numbers:
        emulated, metric = emulated_text(number.info), METRICS[number.metric]
        name = number.fullname + (f" ({emulated})" if emulated else "")
        name += _BENCHER_IGNORES if number.doubts else ""
        if len(name.encode(errors="backslashreplace")) > _BENCHER_LONGEST:
            raise UsageError(f"--format bencher: {name[:60]}... is longer than {_BENCHER_LONGEST} bytes; rename it")
        measure = f"{number.metric} ({metric.unit}, {number.better})"
        found.setdefault(name, {})[measure] = {"value": number.value}
    return json.dumps(found, indent=1) + "\n"


def _one_run(chosen: Chosen) -> None:
    if len({id(number.run) for number in chosen.numbers}) > 1:
        raise UsageError("this format holds one run; export each run into a file of its own")


FORMATS: Mapping[str, Callable[[Chosen], str]] = {
    "openmetrics": _as_openmetrics,
    "csv": _as_csv,
    "github-action-benchmark": _as_github_action_benchmark,
    "bencher": _as_bencher,
}
"""Forms for programs, by the name of the format. Each raises UsageError for what its form cannot hold."""
