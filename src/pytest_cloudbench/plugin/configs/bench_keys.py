"""The keys of ``*.bench.toml`` files as tables, for the parser and for the JSON Schema that editors use.

The tables say what each key holds and what it is for. ``bench`` reads files by them, and ``tools/make_bench_schema.py``
writes ``bench.schema.json`` from them, so the two cannot disagree.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

from pytest_cloudbench.judge import metrics, steady
from pytest_cloudbench.model import Verb
from pytest_cloudbench.workload.payload.registry import GENERATORS, SIZES, Param

_Schema: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Key:
    """The type of a key's value, and what the key is for.

    Attributes:
        expected: what a value must be, for messages ("expected ...").
        schema: the same as JSON Schema, which the parser checks with ``matches_schema``.
        about: what the key is for, shown by editors.
        is_required: whether the key must be there, regardless of other keys.
    """

    expected: str
    schema: _Schema
    about: str
    is_required: bool = False


_TYPES: Mapping[str, tuple[type[Any], ...]] = {
    "integer": (int,), "number": (int, float), "string": (str,), "boolean": (bool,), "array": (list, tuple),
    "object": (dict,),
}  # fmt: skip


def matches_schema(value: Any, schema: Mapping[str, Any]) -> bool:
    """Return whether a TOML value matches a schema. Supports the keywords of JSON Schema that these tables use."""
    if "anyOf" in schema:
        return any(matches_schema(value, option) for option in schema["anyOf"])
    if "const" in schema:
        return value is schema["const"]
    if "enum" in schema:
        return isinstance(value, str) and value in schema["enum"]
    kind = schema["type"]
    is_of_kind: bool = isinstance(value, _TYPES[kind])  # on its own line, so that mypy does not narrow the value's type
    if not is_of_kind or (isinstance(value, bool) and kind != "boolean"):
        return False
    if kind == "array":
        all_match = all(matches_schema(item, schema["items"]) for item in value)
        has_duplicates = schema.get("uniqueItems") and any(item in value[:index] for index, item in enumerate(value))
        return all_match and not has_duplicates and len(value) >= schema.get("minItems", 0)
    if kind == "string":
        return len(value) >= schema.get("minLength", 0) and bool(re.fullmatch(schema.get("pattern", "(?s:.*)"), value))
    if kind in {"integer", "number"}:
        is_in_range = schema.get("minimum", value) <= value <= schema.get("maximum", value)
        return bool(is_in_range and abs(value) < math.inf and value > schema.get("exclusiveMinimum", -math.inf))
    return True


def _whole_number(maximum: int, about: str) -> Key:
    return Key(f"a whole number from 1 to {maximum}", {"type": "integer", "minimum": 1, "maximum": maximum}, about)


def _seconds(about: str, *, is_required: bool = False, is_positive: bool = False) -> Key:
    if is_positive:
        return Key("seconds, above 0", {"type": "number", "exclusiveMinimum": 0}, about, is_required)
    return Key("seconds, 0 or more", {"type": "number", "minimum": 0}, about, is_required)


def _one_of(names: Mapping[str, Any], about: str, *, is_required: bool = False) -> Key:
    return Key(f"one of {', '.join(names)}", {"enum": list(names)}, about, is_required)


def _list_of(items: _Schema) -> _Schema:
    return {"type": "array", "items": items, "minItems": 1, "uniqueItems": True}


_TEXT: _Schema = {"type": "string", "minLength": 1}
_TABLE: _Schema = {"type": "object"}


OPERATIONS: Mapping[str, Verb] = MappingProxyType(
    {
        "upload": Verb.PUT,
        "download": Verb.GET,
        "stat": Verb.STAT,
        "list": Verb.LIST,
        "share": Verb.SHARE,
        "delete": Verb.DELETE,
    }
)
"""What an experiment can do to files, in the words of bench files."""

EXPERIMENT: Mapping[str, Key] = MappingProxyType({
    "name": Key(
        "a-z, 0-9, _ and -, at most 60 of them, the first a letter or digit",
        {"type": "string", "pattern": "^[a-z0-9][a-z0-9_-]{0,59}$"},
        "Name of the test; each experiment of a file has another.", True,
    ),
    "description": Key("a text", _TEXT, "For the reader."),
    "provider": Key(
        "a provider such as 'folder:PATH', or a list of them, each once", {"anyOf": [_TEXT, _list_of(_TEXT)]},
        "The storage service under test; several make one test each. --provider on the command line wins.",
    ),
    "operations": Key(
        f"a list of {', '.join(OPERATIONS)}, each at most once", _list_of({"enum": list(OPERATIONS)}),
        "What is measured, one after the other: upload comes first, delete last. All but upload work on files that "
        "were uploaded before; where upload is not in the list, that is done but not measured. Default: upload.",
    ),
    "repeat": _whole_number(1000, "How often the whole is measured, each time with new files. Default: 1."),
    "sensors": _whole_number(1_000_000, "Independent sources, each with its own clock (see arrival)."),
    "ops_per_sensor": _whole_number(1_000_000, "Files of each sensor."),
    "threads": _whole_number(
        1000, "In place of sensors: number of threads; each takes the next file as soon as it is free."
    ),
    "files": _whole_number(10_000_000, "With threads: files of all threads together."),
    "pause_s": _seconds("With threads: seconds that a thread waits after each file. Default: 0."),
    "warm_up_s": _seconds(
        "Operations that are due in the first seconds are recorded, and left out of all metrics. Default: 0."
    ),
    "until": Key(
        "a table [experiment.until]", _TABLE,
        "Each operation of the list ends when this metric has been steady, or with its last file.",
    ),
    "gate": Key(
        "a table [experiment.gate]", _TABLE,
        "Margins of --cloudbench-gate for these tests: the smallest change that matters, by metric.",
    ),
    "may_drift": Key(
        "true or false", {"type": "boolean"},
        "Times may rise or fall steadily during a run: that is then a note, and no doubt. Default: false.",
    ),
    "payload": Key("a table [experiment.payload]", _TABLE, "What the files hold.", True),
    "arrival": Key("a table [experiment.arrival]", _TABLE, "With sensors: when operations are due."),
    "grid": Key("a table [experiment.grid]", _TABLE, "Lists of values; each combination of them is a test."),
    "expect": Key(
        "tables [[experiment.expect]], with two brackets on each side", {"type": "array", "items": _TABLE},
        "What must hold, or the test fails.",
    ),
})  # fmt: skip
"""Keys of an ``[[experiment]]``."""

SENSOR_KEYS = ("sensors", "ops_per_sensor", "arrival")
THREAD_KEYS = ("threads", "files", "pause_s")
"""Keys of the two kinds of load, sensors and threads. An experiment has keys of one kind only."""

GRID = ("sensors", "ops_per_sensor", "threads", "files", "pause_s")
"""Keys of an experiment that a grid can vary, besides those of payload and arrival."""

METRICS: Mapping[str, metrics.Metric] = MappingProxyType(
    {name: metric for name, metric in metrics.BUILT_IN.items() if metric.of is not None}
)
"""Metrics that a bench file can name: those of one run. Conclusions from several runs are drawn in Python."""

_BOUND: _Schema = {"type": "number", "minimum": 0}
EXPECT: Mapping[str, Key] = MappingProxyType(
    {
        "metric": _one_of(METRICS, "The number that is judged; docs/method.md says what each means.", is_required=True),
        "at_least": Key(
            "a number, 0 or more", _BOUND, "Lower bound. Rates are fractions: 5 % is 0.05; times are seconds."
        ),
        "at_most": Key(
            "a number, 0 or more", _BOUND, "Upper bound. Rates are fractions: 5 % is 0.05; times are seconds."
        ),
        "operation": _one_of(OPERATIONS, "Only for this operation. Default: each that the metric is about."),
        "provider": Key(
            "a provider, as --provider names it", _TEXT, "Only for this provider or emulator profile. Default: any."
        ),
        "where": Key(
            "a table of keys of the grid, each with one of its values", _TABLE, "Only for these tests of a grid."
        ),
        "source": Key("a text", _TEXT, "Where the bound comes from, shown with the verdict. Default: the file's name."),
    }
)
"""Keys of an ``[[experiment.expect]]``."""

UNTIL: Mapping[str, Key] = MappingProxyType({
    "metric": _one_of(steady.LEAST_OPS, "What is to be steady.", is_required=True),
    "within": Key(
        "a fraction above 0 and up to 1", {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        "How steady: 0.02 is 2 % to either side. Default: 0.02.",
    ),
    "min_ops": Key(
        "a whole number, 0 or more", {"type": "integer", "minimum": 0},
        "It does not end before this many successful operations. Default: the fewest that can tell, 1000 or more.",
    ),
})  # fmt: skip
"""Keys of ``[experiment.until]``."""

_MARGIN: _Schema = {
    "anyOf": [
        {"type": "number", "exclusiveMinimum": 0},
        {"type": "string", "pattern": r"^(?=.*[1-9])[0-9]+(\.[0-9]+)?%$"},
        {"const": False},
    ],
}
GATE: Mapping[str, Key] = MappingProxyType({
    name: Key('a margin such as 0.1 or "10%", or false', _MARGIN, f"{about} 0.1 is 10 %; false: not gated.")
    for name, about in {
        "p50": "For all metrics whose names end so.", "p99": "For all metrics whose names end so.",
        **dict.fromkeys(metrics.BUILT_IN, "For this metric."),
    }.items()
})  # fmt: skip
"""Keys of ``[experiment.gate]``."""

ONLY_OF: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        name: tuple(word for word, verb in OPERATIONS.items() if verb in metric.about)
        for name, metric in METRICS.items()
        if metric.about
    }
)
"""Metrics that apply to some operations only, with these operations. The others apply to all."""


# --- arrival: names and keys of arrival.arrival, which checks the values ---

_EVERY = _seconds("Seconds between two operations of a sensor.", is_required=True)
_MEAN = _seconds("Mean seconds between two operations of a sensor.", is_required=True, is_positive=True)
_FIRST = _seconds("Each sensor starts at a random time up to this; 0 starts all together. Default: 0.")
_WEIGHTS = {"type": "array", "items": {"type": "number", "minimum": 0, "maximum": 1e9}, "minItems": 1}

ARRIVALS: Mapping[str, Mapping[str, Key]] = MappingProxyType({
    "fixed": {"interval_s": _EVERY, "first_delay_max_s": _FIRST},
    "uniform": {
        "interval_s": _EVERY,
        "first_delay_max_s": _seconds("Each sensor starts at a random time up to this. Default: interval_s."),
    },
    "jittered": {
        "interval_s": _EVERY,
        "jitter_s": _seconds("Each operation is late by a random time up to this.", is_required=True),
        "first_delay_max_s": _FIRST,
    },
    "poisson": {"interval_s": _MEAN},
    "lognormal": {
        "interval_s": _MEAN,
        "sigma": Key(
            "a number from 0 to 10", {"type": "number", "minimum": 0, "maximum": 10},
            "How uneven: standard deviation of the logarithm of the times between operations.", True,
        ),
        "first_delay_max_s": _FIRST,
    },
    "bursts": {
        "interval_s": _seconds("Mean seconds between operations within a burst.", is_required=True, is_positive=True),
        "on_s": _seconds("Mean seconds that a burst lasts.", is_required=True, is_positive=True),
        "off_s": _seconds("Mean seconds between two bursts.", is_required=True),
    },
    "diurnal": {
        "interval_s": _MEAN,
        "curve": Key("a list of numbers", _WEIGHTS, "Relative load at equal steps of the period. Default: a day."),
        "period_s": _seconds("Seconds that the curve takes. Default: 86400.", is_positive=True),
        "start_s": _seconds("Where in the period the experiment starts. Default: 0."),
    },
    "trace": {
        "file": Key("the name of a CSV file", _TEXT, "A CSV file beside this one, or a trace that ships.", True),
        "scale": Key(
            "a number from 1e-9 to 1e9", {"type": "number", "minimum": 1e-9, "maximum": 1e9},
            "All times are divided by this. Default: 1.",
        ),
        "from_first": Key("true or false", {"type": "boolean"}, "Times count from the earliest row. Default: false."),
    },
    "think": {"interval_s": _seconds("Seconds a sensor sleeps after each operation.", is_required=True),
              "first_delay_max_s": _FIRST},
})  # fmt: skip
"""Arrival processes with their keys. docs/reference/arrivals.md has the formulas."""


# --- payload: names and parameters of payload.registry ---

PAYLOADS: Mapping[str, Mapping[str, Param]] = MappingProxyType({name: keys for name, (_, keys) in GENERATORS.items()})
"""Generators with their parameters, all but ``mixed``."""

MIXED: Mapping[str, Mapping[str, Param]] = MappingProxyType({name: keys for name, (_, keys) in SIZES.items()})
"""Distributions of ``mixed`` with their parameters; it also takes ``distribution`` and ``content``."""

ABOUT: Mapping[str, str] = MappingProxyType(
    {
        "generator": "How the content of the files is made; docs/reference/payloads.md says what each is for.",
        "process": "How operations are spread over time; docs/reference/arrivals.md has the formulas.",
        "size_bytes": "Size of each file: a number of bytes, 5 KiB is 5120.",
        "text": "The text that is repeated.",
        "percent": "Share of the file that all files have in common, from 0 to 1.",
        "where": "Where that share is.",
        "ratio": "Share that can be compressed, or repeats, from 0 to 1.",
        "chunk_bytes": "Size of the pieces that are compressible or not.",
        "block_bytes": "Size of the blocks that repeat.",
        "distribution": "How big the files are.",
        "content": "The generator of the files: its name, or a table of its name and parameters without size_bytes.",
        "min_bytes": "The smallest size.",
        "max_bytes": "The biggest size.",
        "median_bytes": "Half of the files are smaller.",
        "sigma": "How uneven: standard deviation of the logarithm.",
        "sizes_bytes": "Sizes, each as likely.",
        "file": "A text file beside this one: a size in bytes per line and, if wanted, its weight.",
    }
)
"""What each parameter of a generator is for, by name."""


def param_schema(param: Param) -> dict[str, Any]:
    """Return the JSON Schema of a generator's parameter, derived from its own check, so that the two cannot differ."""
    accepts = param.accepts
    if param.expected.startswith("one of "):
        return {"enum": [name for name in param.expected.removeprefix("one of ").split(", ") if accepts(name)]}
    if accepts("x"):
        return {"type": "string", "minLength": 0 if accepts("") else 1}
    if accepts([1]):
        return {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
    if accepts(0.5):
        low = {"minimum": 0} if accepts(0) else {"exclusiveMinimum": 0}
        is_bounded, numbers = not accepts(2**20), range(1, 2**20)
        largest = bisect_left(numbers, True, key=lambda number: not accepts(number))
        return {"type": "number", **low} | ({"maximum": largest} if is_bounded else {})
    return {"type": "integer", "minimum": bisect_left(range(2**20), True, key=accepts)}
