"""Parse ``*.bench.toml`` files: experiments without Python, as frozen values that a collector turns into tests.

Errors name the file, the key and what was expected. Everything that an experiment needs is built here, so a file that
parses can run. The keys are tables in ``bench_keys``, and docs/reference/bench-files.md explains them to users.
"""

from __future__ import annotations

import datetime
import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any, cast

from pytest_cloudbench.judge.expect import Expectation
from pytest_cloudbench.judge.steady import Stable
from pytest_cloudbench.judge.watched import parse_margins
from pytest_cloudbench.load.request import Load
from pytest_cloudbench.model import ConfigError, ProviderSpec, SpecError, UsageError, Verb
from pytest_cloudbench.plugin.configs.bench_errors import (
    Locator,
    NamedFiles,
    check_values,
    format_key,
    format_value,
    suggest_value,
)
from pytest_cloudbench.plugin.configs.bench_keys import (
    ARRIVALS,
    EXPECT,
    EXPERIMENT,
    GATE,
    GRID,
    METRICS,
    MIXED,
    ONLY_OF,
    OPERATIONS,
    PAYLOADS,
    SENSOR_KEYS,
    THREAD_KEYS,
    UNTIL,
    matches_schema,
)
from pytest_cloudbench.workload.arrival import Arrival, ThinkTime, Threads, arrival
from pytest_cloudbench.workload.payload import Generator, generator
from pytest_cloudbench.workload.payload.registry import Param
from pytest_cloudbench.workload.trace import VERBS, Replay

_MAX_CASES = 1000
_CHECK_SEED = "check"


# --- a parsed file ---


@dataclass(frozen=True, slots=True)
class BenchPayload:
    """The payload settings of a case: how the content of its files is made.

    Attributes:
        generator: a name of the payload registry.
        params: its parameters. For a trace, ``size_bytes`` is the size of its smallest upload.
        files: the texts of the files that parameters name, by the name.
    """

    generator: str
    params: Mapping[str, Any]
    files: Mapping[str, str] = field(default_factory=dict, repr=False)

    def make(self, seed: str) -> Generator:
        """Return the generator for a run. ``seed`` decides its bytes."""
        return generator(self.generator, self.params, seed, self.files.__getitem__)


@dataclass(frozen=True, slots=True)
class BenchExpectation:
    """An expectation of an experiment, with the tests that it is limited to.

    Attributes:
        metric: a key of ``bench_keys.METRICS``.
        at_least, at_most: the bounds; one of them may be None.
        operations: the operations that it applies to. Empty for a trace, which is judged as a whole.
        provider: the provider's spec or profile that it is limited to. None for any.
        where: the values of the grid that it is limited to.
        source: where the bound comes from.
    """

    metric: str
    at_least: float | None
    at_most: float | None
    operations: tuple[Verb, ...]
    provider: str | None
    where: Mapping[str, Any]
    source: str


@dataclass(frozen=True, slots=True)
class BenchCase:
    """One combination of the grid, or the only case without a grid. Makes one test per provider.

    Attributes:
        id: for the test's name, unique in the experiment. Empty without a grid.
        params: the values of the grid by the last word of their keys.
        load: sensors or threads, their operations and arrival. Its payload is made for each run.
        payload: how the content of the files is made.
    """

    id: str
    params: Mapping[str, Any]
    load: Load
    payload: BenchPayload


@dataclass(frozen=True, slots=True)
class BenchExperiment:
    """One ``[[experiment]]`` table.

    Attributes:
        name: unique in its file.
        description: for a reader. May be empty.
        providers: specs of providers. Empty if the file names none. ``--provider`` overrides them.
        operations: the measured operations, in this order. Empty for a trace, whose rows name them. If the first is
            not ``Verb.PUT``, files are uploaded before, unmeasured.
        repeat: how often each case is measured, each time with new files.
        cases: the combinations of the grid, in the file's order, the last key changing fastest.
        expectations: the ``[[experiment.expect]]`` tables.
        warm_up_s, until, may_drift: see ``Load``.
        gate: margins of the regression gate by metric. None for a metric that is not gated.
    """

    name: str
    description: str
    providers: tuple[str, ...]
    operations: tuple[Verb, ...]
    repeat: int
    cases: tuple[BenchCase, ...]
    expectations: tuple[BenchExpectation, ...]
    warm_up_s: float = 0.0
    until: Stable | None = None
    gate: Mapping[str, float | None] = field(default_factory=dict)
    may_drift: bool = False

    def expectations_for(
        self, case: BenchCase, operation: Verb | None, providers: Sequence[str], date: datetime.date
    ) -> tuple[Expectation, ...]:
        """Return the expectations of one operation of one case, for ``expect.judge_expectation``.

        Args:
            case: one of ``cases``.
            operation: the measured operation. None for a trace.
            providers: the names of the provider: its spec, and ``emulated:`` with its profile.
            date: the date of the claim in the line of the verdict: the day of the run, or of the file.
        """
        return tuple(
            Expectation(providers[0], claim.metric, claim.at_least, claim.at_most, claim.source, date, claim.where)
            for claim in self.expectations
            if (operation is None or operation in claim.operations)
            and (claim.provider is None or claim.provider in providers)
            and all(case.params[key] == value for key, value in claim.where.items())
        )


@dataclass(frozen=True, slots=True)
class BenchFile:
    """A ``*.bench.toml`` file."""

    source: str
    experiments: tuple[BenchExperiment, ...]


def parse_bench(text: str, source: str, read: Callable[[str], str] | None = None) -> BenchFile:
    """Read a bench file. Raises only ConfigError, which names the file, the key and what was expected.

    Args:
        text: the TOML text.
        source: what errors call the file.
        read: returns the text of a file that the bench file names (a trace, or sizes). It takes the name as written
            there, and may raise OSError, ValueError or UsageError. Without it such files are refused.
    """
    try:
        document = tomllib.loads(text.removeprefix("\ufeff"))  # a byte order mark, which some editors on Windows write
    except (ValueError, RecursionError) as error:  # not TOML, or an integer of thousands of digits
        raise ConfigError(source, "", f"is not valid TOML: {error}") from error
    check_values(document, source)
    for key in document:
        if key != "experiment":
            advice = "; it belongs below a line [[experiment]]" if key in EXPERIMENT else ""
            raise ConfigError(source, format_key(key), f"unknown key; expected only [[experiment]] tables{advice}")
    tables = document.get("experiment", [])
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise ConfigError(source, "experiment", "expected [[experiment]] tables, with two brackets on each side")
    files = NamedFiles(read)
    experiments = [
        _parse_experiment(table, Locator(source, f"experiment[{index}]"), files) for index, table in enumerate(tables)
    ]
    names = [experiment.name for experiment in experiments]
    for index, name in enumerate(names):
        if name in names[:index]:
            first = f"experiment[{names.index(name)}]"
            raise ConfigError(source, f"experiment[{index}].name", f"expected another name, {first} has {name} already")
    return BenchFile(source, tuple(experiments))


# --- an experiment ---


def _parse_experiment(table: Mapping[str, Any], locator: Locator, files: NamedFiles) -> BenchExperiment:
    """Return one experiment of a bench file. Raises ConfigError."""
    locator.check_table(table, EXPERIMENT)
    providers = table.get("provider", [])
    providers = [providers] if isinstance(providers, str) else providers
    for spec in providers:
        try:
            ProviderSpec.parse(spec)
        except SpecError as error:
            raise locator.error("provider", str(error)) from None
    grid = _parse_grid(table, locator)
    cases = tuple(_build_cases(table, grid, locator, files))
    operations = _parse_operations(table, locator, is_trace=any(_replay_of(case.load) is not None for case in cases))
    expectations = tuple(
        _parse_expectation(claim, f"expect[{index}]", operations, grid, locator)
        for index, claim in enumerate(table.get("expect", []))
    )
    return BenchExperiment(
        table["name"], table.get("description", ""), tuple(providers), tuple(OPERATIONS[name] for name in operations),
        table.get("repeat", 1), cases, expectations, float(table.get("warm_up_s", 0.0)),
        _parse_until(table, operations, locator), _parse_gate(table, locator), table.get("may_drift", False),
    )  # fmt: skip


def _parse_gate(table: Mapping[str, Any], locator: Locator) -> Mapping[str, float | None]:
    gate_table = table.get("gate", {})
    locator.check_table(gate_table, GATE, "gate")
    margins: dict[str, float | None] = {}
    for name, value in gate_table.items():
        try:
            margins |= parse_margins({name: value}, "gate")
        except UsageError as error:
            raise locator.error(f"gate.{name}", str(error).partition(f"{name}: ")[2]) from None
    return margins


def _parse_until(table: Mapping[str, Any], operations: Sequence[str], locator: Locator) -> Stable | None:
    """Return the condition that ends an experiment early. Its metric must apply to each of the operations."""
    until_table = table.get("until")
    if until_table is None:
        return None
    locator.check_table(until_table, UNTIL, "until")
    until = Stable(**until_table)
    metric_operations = ONLY_OF.get(until.metric, operations)
    if other_operations := [name for name in operations if name not in metric_operations]:
        expected = (
            f"expected a metric of {other_operations[0]}: {until.metric} is about {' or '.join(metric_operations)}"
        )
        raise locator.error("until.metric", expected)
    return until


def _parse_operations(table: Mapping[str, Any], locator: Locator, *, is_trace: bool) -> Sequence[str]:
    if is_trace:
        if "operations" in table:
            raise locator.error("operations", "not allowed with a trace, whose rows specify each operation")
        return ()
    names: Sequence[str] = table.get("operations", ["upload"])
    if "upload" in names[1:]:
        raise locator.error("operations", "expected upload first: the other operations use its files")
    if "delete" in names[:-1]:
        raise locator.error("operations", "expected delete last: it leaves no files for other operations")
    return names


# --- its grid ---

_Grid = Mapping[tuple[str, ...], Sequence[Any]]


def _parse_grid(table: Mapping[str, Any], locator: Locator) -> _Grid:
    """Return the values that a grid varies, by the path of the key such as ``("payload", "size_bytes")``."""
    grid_table = table.get("grid", {})
    locator.check_names(grid_table, (*GRID, "payload", "arrival"), "grid")
    grid: dict[tuple[str, ...], Sequence[Any]] = {}
    for key, value in grid_table.items():
        if key in GRID:
            grid[key,] = value
        elif isinstance(value, dict):
            grid |= {(key, inner): values for inner, values in value.items()}
        else:
            raise locator.wrong_value(f"grid.{key}", f"keys of {key} such as grid.{key}.NAME = [...]", value)
    last_words = [path[-1] for path in grid]
    for path, values in grid.items():
        dotted = ".".join(map(format_key, path))
        if not matches_schema(
            values, {"type": "array", "items": {"anyOf": _GRID_VALUES}, "minItems": 1, "uniqueItems": True}
        ):
            raise locator.wrong_value(f"grid.{dotted}", "a list of numbers or texts, each once", values)
        target_table = table if len(path) == 1 else table.get(path[0], {})
        if path[-1] in target_table:
            raise locator.error(dotted, f"expected it here or as grid.{dotted}, not both")
        if last_words.count(path[-1]) > 1:
            raise locator.error(f"grid.{dotted}", "expected a key whose last word is not in the grid twice")
    if (count := prod(map(len, grid.values()))) > _MAX_CASES:
        raise locator.error("grid", f"expected at most {_MAX_CASES} combinations, found {count}")
    return grid


_GRID_VALUES = [{"type": "string"}, {"type": "number"}, {"type": "boolean"}]


def _build_cases(table: Mapping[str, Any], grid: _Grid, locator: Locator, files: NamedFiles) -> Iterator[BenchCase]:
    for combination in product(*(enumerate(values) for values in grid.values())):
        case_table = {key: dict(value) if isinstance(value, dict) else value for key, value in table.items()}
        grid_keys, name_parts, params = {}, [], {}
        for path, (index, value) in zip(grid, combination, strict=True):
            (case_table if len(path) == 1 else case_table.setdefault(path[0], {}))[path[-1]] = value
            grid_keys[".".join(map(format_key, path))] = f"grid.{'.'.join(map(format_key, path))}[{index}]"
            name_parts.append(_name_part(path[-1], value, index))
            params[path[-1]] = value
        case_locator = Locator(locator.source, locator.prefix, grid_keys)
        load = _parse_load(case_table, case_locator, files)
        yield BenchCase(
            "-".join(name_parts), params, load, _parse_payload(case_table["payload"], load, case_locator, files)
        )


def _name_part(key: str, value: Any, index: int) -> str:
    """Return a value's part of a test's name, as ``-k`` takes it, with its index if it does not read well there."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"{key}:{text}" if re.fullmatch(r"[A-Za-z0-9_.+-]{1,30}", text) else f"{key}{index}"


# --- load ---


def _parse_load(table: Mapping[str, Any], locator: Locator, files: NamedFiles) -> Load:
    """Return the load of one case: an open one with sensors, or a closed one with threads. Raises ConfigError."""
    sensor_keys, thread_keys = ([key for key in keys if key in table] for keys in (SENSOR_KEYS, THREAD_KEYS))
    if sensor_keys and thread_keys:
        alternatives = "either sensors, ops_per_sensor and arrival, or threads and files"
        raise locator.error(thread_keys[0], f"expected {alternatives}; this file also has {sensor_keys[0]}")
    for key in GRID:
        if key in table and not matches_schema(table[key], EXPERIMENT[key].schema):
            raise locator.wrong_value(key, EXPERIMENT[key].expected, table[key])
    if thread_keys:
        _require_keys(table, ("threads", "files"), locator)
        return Load(arrival=Threads(table["threads"], float(table.get("pause_s", 0.0))), files=table["files"])
    if "arrival" not in table:
        missing_key = "arrival" if sensor_keys else "sensors"
        raise locator.error(
            missing_key, "is missing; expected sensors, ops_per_sensor and arrival, or threads and files"
        )
    process = _parse_arrival(table["arrival"], locator, files)
    if isinstance(process, Replay):  # without numbers, the whole trace is replayed
        table = {"sensors": process.sensors, "ops_per_sensor": process.ops_per_sensor, **table}
    _require_keys(table, ("sensors", "ops_per_sensor"), locator)
    return Load(arrival=process, sensors=table["sensors"], ops_per_sensor=table["ops_per_sensor"])


def _replay_of(load: Load) -> Replay | None:
    """Return the trace that a load replays, or None."""
    return load.arrival if isinstance(load.arrival, Replay) else None


def _require_keys(table: Mapping[str, Any], keys: Sequence[str], locator: Locator) -> None:
    for key in keys:
        if key not in table:
            raise locator.error(key, f"is missing; expected {EXPERIMENT[key].expected}")


def _parse_arrival(table: Mapping[str, Any], locator: Locator, files: NamedFiles) -> Arrival | ThinkTime:
    if table.get("process") == "threads":
        expected = "expected no table arrival with threads; write threads = 4 and files = 20 below [[experiment]]"
        raise locator.error("arrival.process", expected)
    process = locator.read_name("arrival.process", table, ARRIVALS)
    params = {key: value for key, value in table.items() if key != "process"}
    locator.check_names(params, ARRIVALS[process], "arrival")
    for name, key in ARRIVALS[process].items():
        if key.is_required and name not in params:
            raise locator.error(f"arrival.{name}", f"is missing; expected {key.expected}")
    try:
        return cast("Arrival | ThinkTime", arrival(process, params, files.read_text))  # threads are not in ARRIVALS
    except ConfigError as error:
        if error.source == f"arrival {process}":
            suggestion = suggest_value(error.key, params.get(error.key))
            raise locator.error(f"arrival.{error.key}", f"{error.expected}{suggestion}") from None
        raise locator.error("arrival.file", str(error)) from None  # a line of the trace
    except UsageError as error:
        raise locator.error("arrival.file", f"expected a trace: {error}") from None


# --- payload ---


def _parse_payload(payload_table: Mapping[str, Any], load: Load, locator: Locator, files: NamedFiles) -> BenchPayload:
    """Return the payload of an experiment. Raises ConfigError, also for one that does not fit the load."""
    table = dict(payload_table)
    if (replay := _replay_of(load)) is not None:
        if table.get("generator") == "mixed":
            raise locator.error("payload.generator", "expected any but mixed: the trace has each file's size")
        if "size_bytes" in table:
            raise locator.error("payload.size_bytes", "not allowed with a trace, whose rows specify each size")
        table["size_bytes"] = _smallest_upload_bytes(replay)
    name = locator.read_name("payload.generator", table, (*PAYLOADS, "mixed"))
    if name == "mixed":
        keys = MIXED[locator.read_name("payload.distribution", table, MIXED)]
        _check_params(table, keys, locator, "payload", ("generator", "distribution", "content"))
        if (table.get("sizes_bytes") is None) == (table.get("file") is None) and "file" in keys:
            raise locator.error("payload", "expected either sizes_bytes or file")
        _check_content(table, locator)
    else:
        _check_params(table, PAYLOADS[name], locator, "payload", ("generator",))
    file = table.get("file")
    try:
        texts = {} if file is None else {file: files.read_text(file)}
        payload = BenchPayload(name, {key: value for key, value in table.items() if key != "generator"}, texts)
        if payload.make(_CHECK_SEED).size_bytes < 0:
            raise UsageError("sizes below 0")
    except (UsageError, ArithmeticError, ValueError) as error:  # such as weights whose sum no float can hold
        raise locator.error("payload" if file is None else "payload.file", f"expected a payload: {error}") from None
    return payload


def _smallest_upload_bytes(replay: Replay) -> int:
    """Return the size of a trace's smallest upload, the hardest for a generator: an image has a minimum size."""
    rows = zip(replay.trace.code, replay.trace.size_bytes, strict=True)
    return min((size for code, size in rows if VERBS[code] is Verb.PUT), default=0)


def _check_params(
    table: Mapping[str, Any], keys: Mapping[str, Param], locator: Locator, within: str, names: Collection[str]
) -> None:
    """Raise for a parameter that is unknown, missing or invalid. Skips ``names``, which other functions check."""
    locator.check_names(table, (*names, *keys), within)
    for key, param in keys.items():
        try:
            param.read("", key, table)
        except UsageError:
            dotted = f"{within}.{key}"
            if key in table:
                raise locator.wrong_value(dotted, param.expected, table[key]) from None
            raise locator.error(dotted, f"is missing; expected {param.expected}") from None


def _check_content(table: Mapping[str, Any], locator: Locator) -> None:
    """Check the generator that makes the files of ``mixed``."""
    content = table.get("content", "random")
    if isinstance(content, dict):
        keys = dict(PAYLOADS[locator.read_name("payload.content.generator", content, PAYLOADS)])
        keys.pop("size_bytes", None)
        _check_params(content, keys, locator, "payload.content", ("generator",))
    else:
        locator.read_name("payload.content", {"content": content}, PAYLOADS)


# --- expectations ---


def _parse_expectation(
    table: Mapping[str, Any], location: str, operations: Sequence[str], grid: _Grid, locator: Locator
) -> BenchExpectation:
    locator.check_table(table, EXPECT, location)
    low, high = table.get("at_least"), table.get("at_most")
    if low is None and high is None:
        raise locator.error(location, "expected at_least, at_most or both")
    if low is not None and high is not None and low > high:
        raise locator.error(f"{location}.at_least", f"expected at most {high} (at_most), found {low}")
    for key, bound in (("at_least", low), ("at_most", high)):
        if bound is not None and bound > 1 and METRICS[table["metric"]].unit == "fraction":
            raise locator.error(f"{location}.{key}", f"expected a fraction from 0 to 1, found {bound}; 5 % is 0.05")
    claimed = _claimed_operations(table, location, operations, locator)
    values = {path[-1]: list(choices) for path, choices in grid.items()}
    where = table.get("where", {})
    for key, value in where.items():
        if key not in values:
            expected = f"one of {', '.join(values)}" if values else "a key of [experiment.grid], which is not there"
            raise locator.error(f"{location}.where.{format_key(key)}", f"unknown key; expected {expected}")
        if value not in values[key]:
            raise locator.error(
                f"{location}.where.{key}", f"expected one of {format_value(values[key])}, found {format_value(value)}"
            )
    source = table.get("source", locator.source)
    return BenchExpectation(table["metric"], low, high, claimed, table.get("provider"), where, source)


def _claimed_operations(
    table: Mapping[str, Any], location: str, operations: Sequence[str], locator: Locator
) -> tuple[Verb, ...]:
    """Return the operations that an expectation applies to."""
    metric, operation = table["metric"], table.get("operation")
    if not operations:
        if operation is not None:
            raise locator.error(f"{location}.operation", "not allowed with a trace, which is judged as a whole")
        return ()
    possible = [name for name in operations if name in ONLY_OF.get(metric, OPERATIONS)]
    if not possible:
        about = " or ".join(ONLY_OF[metric])
        raise locator.error(
            f"{location}.metric", f"expected another metric: {metric} is about {about}, which is not measured here"
        )
    if operation is not None and operation not in possible:
        raise locator.error(f"{location}.operation", f"expected one of {', '.join(possible)}, found {operation!r}")
    return tuple(OPERATIONS[name] for name in possible if operation in {None, name})
