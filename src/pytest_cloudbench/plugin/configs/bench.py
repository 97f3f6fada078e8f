"""Experiments without Python: ``*.bench.toml`` files into frozen values that a collector turns into tests.

What may live here: reading such a text, and the checks that name file, key and what was expected. Everything that
an experiment needs is built here, so a file that parses can run. The keys are tables in
``bench_keys``; docs/reference/bench-files.md explains them to users.
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
from pytest_cloudbench.plugin.configs.bench_errors import Locator, NamedFiles, check_values, hint, named, shown
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
    fits,
)
from pytest_cloudbench.workload.arrival import Arrival, ThinkTime, Threads, arrival
from pytest_cloudbench.workload.payload import Generator, generator
from pytest_cloudbench.workload.payload.registry import Param
from pytest_cloudbench.workload.trace import VERBS, Replay

_MOST_CASES = 1000
_SEED = "check"


# --- what a file says ---


@dataclass(frozen=True, slots=True)
class BenchPayload:
    """How the files are made.

    Attributes:
        generator: a name of the payload registry.
        params: its parameters. For a trace, ``size_bytes`` is that of its smallest upload.
        files: the texts of the files that parameters name.
    """

    generator: str
    params: Mapping[str, Any]
    files: Mapping[str, str] = field(default_factory=dict, repr=False)

    def make(self, seed: str) -> Generator:
        """The generator for a run; ``seed`` decides its bytes."""
        return generator(self.generator, self.params, seed, self.files.__getitem__)


@dataclass(frozen=True, slots=True)
class BenchExpectation:
    """A claim of an experiment, for those of its tests that it is limited to.

    Attributes:
        metric: a key of ``bench_keys.METRICS``.
        at_least, at_most: the bounds; one of them may be None.
        operations: what it is about; empty for a trace, which is judged as a whole.
        provider: a provider's spec or profile it is limited to, None for any.
        where: values of the grid it is limited to.
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
    """One combination of the grid, or all there is without one: one test per provider.

    Attributes:
        id: for the test's name, unique in the experiment; empty without a grid.
        params: the values of the grid by the last word of their keys.
        load: who does how much, and when; its payload is made for each run.
        payload: what the files hold.
    """

    id: str
    params: Mapping[str, Any]
    load: Load
    payload: BenchPayload


@dataclass(frozen=True, slots=True)
class BenchExperiment:
    """One ``[[experiment]]``.

    Attributes:
        name: unique in its file.
        description: for a reader; may be empty.
        providers: specs; empty where the command line or its default says it. The command line wins.
        operations: what is measured, in this order; empty for a trace, whose rows say it. Where it does not begin
            with ``Verb.PUT``, files are uploaded before, unmeasured.
        repeat: how often each case is measured, each time with new files.
        cases: the combinations of the grid, in the file's order, the last key changing fastest.
        expectations: what must hold.
        warm_up_s, until, may_drift: what is left out, when it ends early, and whether times may drift; see
            ``Load``.
        gate: margins of the regression gate, by metric; None: not gated.
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

    def claims(
        self, case: BenchCase, operation: Verb | None, providers: Sequence[str], date: datetime.date
    ) -> tuple[Expectation, ...]:
        """What is expected of one operation of one case; judge it with ``expect.judge_expectation``.

        Args:
            case: one of ``cases``.
            operation: what was measured; None for a trace.
            providers: the names that the provider goes by: its spec, and "emulated:" and its profile.
            date: when the file says so, for the line of the verdict: the day of the run, or of the file.
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
    """Read a bench file. Raises ConfigError that names file, key and what was expected; never anything else.

    Args:
        text: the TOML text.
        source: what errors call the file.
        read: gives the text of a file that the text names (a trace, or sizes), by its name as it stands there; it may
            raise OSError, ValueError or UsageError. Without it such files are refused.
    """
    try:
        document = tomllib.loads(text.removeprefix("\ufeff"))  # some editors of Windows begin files with this
    except (ValueError, RecursionError) as error:  # not TOML, or an integer of thousands of digits
        raise ConfigError(source, "", f"is not valid TOML: {error}") from error
    check_values(document, source)
    for key in document:
        if key != "experiment":
            below = "; it belongs below a line [[experiment]]" if key in EXPERIMENT else ""
            raise ConfigError(source, named(key), f"unknown key; expected only [[experiment]] tables{below}")
    tables = document.get("experiment", [])
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise ConfigError(source, "experiment", "expected [[experiment]] tables, with two brackets on each side")
    files = NamedFiles(read)
    experiments = [_experiment(table, Locator(source, f"experiment[{at}]"), files) for at, table in enumerate(tables)]
    names = [experiment.name for experiment in experiments]
    for at, name in enumerate(names):
        if name in names[:at]:
            first = f"experiment[{names.index(name)}]"
            raise ConfigError(source, f"experiment[{at}].name", f"expected another name, {first} has {name} already")
    return BenchFile(source, tuple(experiments))


# --- an experiment ---


def _experiment(table: Mapping[str, Any], locator: Locator, files: NamedFiles) -> BenchExperiment:
    locator.fitting(table, EXPERIMENT)
    providers = table.get("provider", [])
    providers = [providers] if isinstance(providers, str) else providers
    for spec in providers:
        try:
            ProviderSpec.parse(spec)
        except SpecError as error:
            raise locator.error("provider", str(error)) from None
    grid = _grid(table, locator)
    cases = tuple(_cases(table, grid, locator, files))
    operations = _operations(table, locator, is_trace=any(_replay(case.load) is not None for case in cases))
    expectations = tuple(
        _expectation(claim, f"expect[{at}]", operations, grid, locator)
        for at, claim in enumerate(table.get("expect", []))
    )
    return BenchExperiment(
        table["name"], table.get("description", ""), tuple(providers), tuple(OPERATIONS[name] for name in operations),
        table.get("repeat", 1), cases, expectations, float(table.get("warm_up_s", 0.0)),
        _until(table, operations, locator), _gate(table, locator), table.get("may_drift", False),
    )  # fmt: skip


def _gate(table: Mapping[str, Any], locator: Locator) -> Mapping[str, float | None]:
    given = table.get("gate", {})
    locator.fitting(given, GATE, "gate")
    margins: dict[str, float | None] = {}
    for name, value in given.items():
        try:
            margins |= parse_margins({name: value}, "gate")
        except UsageError as error:
            raise locator.error(f"gate.{name}", str(error).partition(f"{name}: ")[2]) from None
    return margins


def _until(table: Mapping[str, Any], operations: Sequence[str], locator: Locator) -> Stable | None:
    """What ends an experiment early, which must mean something for each of its operations."""
    given = table.get("until")
    if given is None:
        return None
    locator.fitting(given, UNTIL, "until")
    until = Stable(**given)
    about = ONLY_OF.get(until.metric, operations)
    if others := [name for name in operations if name not in about]:
        expected = f"expected a metric of {others[0]}: {until.metric} is about {' or '.join(about)}"
        raise locator.error("until.metric", expected)
    return until


def _operations(table: Mapping[str, Any], locator: Locator, *, is_trace: bool) -> Sequence[str]:
    if is_trace:
        if "operations" in table:
            raise locator.error(
                "operations", "expected no such key with a trace, whose rows say what each operation is"
            )
        return ()
    names: Sequence[str] = table.get("operations", ["upload"])
    if "upload" in names[1:]:
        raise locator.error("operations", "expected upload in the first place: the others work on what it uploads")
    if "delete" in names[:-1]:
        raise locator.error("operations", "expected delete in the last place: nothing is left for what follows")
    return names


# --- its grid ---

_Grid = Mapping[tuple[str, ...], Sequence[Any]]


def _grid(table: Mapping[str, Any], locator: Locator) -> _Grid:
    """The keys that a grid varies, as paths such as ("payload", "size_bytes"), with their values."""
    given = table.get("grid", {})
    locator.known(given, (*GRID, "payload", "arrival"), "grid")
    grid: dict[tuple[str, ...], Sequence[Any]] = {}
    for key, value in given.items():
        if key in GRID:
            grid[key,] = value
        elif isinstance(value, dict):
            grid |= {(key, inner): values for inner, values in value.items()}
        else:
            raise locator.wrong(f"grid.{key}", f"keys of {key} such as grid.{key}.NAME = [...]", value)
    lasts = [path[-1] for path in grid]
    for path, values in grid.items():
        dotted = ".".join(map(named, path))
        if not fits(values, {"type": "array", "items": {"anyOf": _GRID_VALUES}, "minItems": 1, "uniqueItems": True}):
            raise locator.wrong(f"grid.{dotted}", "a list of numbers or texts, each once", values)
        holder = table if len(path) == 1 else table.get(path[0], {})
        if path[-1] in holder:
            raise locator.error(dotted, f"expected it here or as grid.{dotted}, not both")
        if lasts.count(path[-1]) > 1:
            raise locator.error(f"grid.{dotted}", "expected a key whose last word is not in the grid twice")
    if (count := prod(map(len, grid.values()))) > _MOST_CASES:
        raise locator.error("grid", f"expected at most {_MOST_CASES} combinations, found {count}")
    return grid


_GRID_VALUES = [{"type": "string"}, {"type": "number"}, {"type": "boolean"}]


def _cases(table: Mapping[str, Any], grid: _Grid, locator: Locator, files: NamedFiles) -> Iterator[BenchCase]:
    for chosen in product(*(enumerate(values) for values in grid.values())):
        own = {key: dict(value) if isinstance(value, dict) else value for key, value in table.items()}
        moved, words, params = {}, [], {}
        for path, (at, value) in zip(grid, chosen, strict=True):
            (own if len(path) == 1 else own.setdefault(path[0], {}))[path[-1]] = value
            moved[".".join(map(named, path))] = f"grid.{'.'.join(map(named, path))}[{at}]"
            words.append(_word(path[-1], value, at))
            params[path[-1]] = value
        here = Locator(locator.source, locator.prefix, moved)
        load = _load(own, here, files)
        yield BenchCase("-".join(words), params, load, _payload(own["payload"], load, here, files))


def _word(key: str, value: Any, at: int) -> str:
    """A value's part of a test's name, as ``-k`` takes it; its number in the list where it does not read well there."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"{key}:{text}" if re.fullmatch(r"[A-Za-z0-9_.+-]{1,30}", text) else f"{key}{at}"


# --- who does how much, and when ---


def _load(table: Mapping[str, Any], locator: Locator, files: NamedFiles) -> Load:
    of_sensors, of_threads = ([key for key in keys if key in table] for keys in (SENSOR_KEYS, THREAD_KEYS))
    if of_sensors and of_threads:
        either = "either sensors, ops_per_sensor and arrival, or threads and files"
        raise locator.error(of_threads[0], f"expected {either}; this file also has {of_sensors[0]}")
    for key in GRID:
        if key in table and not fits(table[key], EXPERIMENT[key].schema):
            raise locator.wrong(key, EXPERIMENT[key].expected, table[key])
    if of_threads:
        _needs(table, ("threads", "files"), locator)
        return Load(arrival=Threads(table["threads"], float(table.get("pause_s", 0.0))), files=table["files"])
    if "arrival" not in table:
        missing = "arrival" if of_sensors else "sensors"
        raise locator.error(missing, "is missing; expected sensors, ops_per_sensor and arrival, or threads and files")
    made = _arrival(table["arrival"], locator, files)
    if isinstance(made, Replay):  # without numbers, all of it
        table = {"sensors": made.sensors, "ops_per_sensor": made.ops_per_sensor, **table}
    _needs(table, ("sensors", "ops_per_sensor"), locator)
    return Load(arrival=made, sensors=table["sensors"], ops_per_sensor=table["ops_per_sensor"])


def _replay(load: Load) -> Replay | None:
    """The trace that is replayed, if one is."""
    return load.arrival if isinstance(load.arrival, Replay) else None


def _needs(table: Mapping[str, Any], keys: Sequence[str], locator: Locator) -> None:
    for key in keys:
        if key not in table:
            raise locator.error(key, f"is missing; expected {EXPERIMENT[key].expected}")


def _arrival(table: Mapping[str, Any], locator: Locator, files: NamedFiles) -> Arrival | ThinkTime:
    if table.get("process") == "threads":
        wanted = "expected no table arrival with threads; write threads = 4 and files = 20 below [[experiment]]"
        raise locator.error("arrival.process", wanted)
    process = locator.one_of("arrival.process", table, ARRIVALS)
    params = {key: value for key, value in table.items() if key != "process"}
    locator.known(params, ARRIVALS[process], "arrival")
    for name, key in ARRIVALS[process].items():
        if key.is_required and name not in params:
            raise locator.error(f"arrival.{name}", f"is missing; expected {key.expected}")
    try:
        return cast("Arrival | ThinkTime", arrival(process, params, files.text))  # threads are not in ARRIVALS
    except ConfigError as error:
        if error.source == f"arrival {process}":
            meant = hint(error.key, params.get(error.key))
            raise locator.error(f"arrival.{error.key}", f"{error.expected}{meant}") from None
        raise locator.error("arrival.file", str(error)) from None  # a line of the trace
    except UsageError as error:
        raise locator.error("arrival.file", f"expected a trace: {error}") from None


# --- what the files hold ---


def _payload(given: Mapping[str, Any], load: Load, locator: Locator, files: NamedFiles) -> BenchPayload:
    table = dict(given)
    if (replay := _replay(load)) is not None:
        if table.get("generator") == "mixed":
            raise locator.error("payload.generator", "expected any but mixed: the trace has each file's size")
        if "size_bytes" in table:
            raise locator.error("payload.size_bytes", "expected no such key: the trace has each file's size")
        table["size_bytes"] = _smallest_upload(replay)
    name = locator.one_of("payload.generator", table, (*PAYLOADS, "mixed"))
    if name == "mixed":
        keys = MIXED[locator.one_of("payload.distribution", table, MIXED)]
        _params(table, keys, locator, "payload", ("generator", "distribution", "content"))
        if (table.get("sizes_bytes") is None) == (table.get("file") is None) and "file" in keys:
            raise locator.error("payload", "expected either sizes_bytes or file")
        _content(table, locator)
    else:
        _params(table, PAYLOADS[name], locator, "payload", ("generator",))
    file = table.get("file")
    try:
        texts = {} if file is None else {file: files.text(file)}
        payload = BenchPayload(name, {key: value for key, value in table.items() if key != "generator"}, texts)
        if payload.make(_SEED).size_bytes < 0:
            raise UsageError("sizes below 0")
    except (UsageError, ArithmeticError, ValueError) as error:  # a mean size that no number can hold
        raise locator.error("payload" if file is None else "payload.file", f"expected a payload: {error}") from None
    return payload


def _smallest_upload(replay: Replay) -> int:
    """The size that is hardest for a generator: an image has a minimum size."""
    rows = zip(replay.trace.code, replay.trace.size_bytes, strict=True)
    return min((size for code, size in rows if VERBS[code] is Verb.PUT), default=0)


def _params(
    table: Mapping[str, Any], keys: Mapping[str, Param], locator: Locator, within: str, names: Collection[str]
) -> None:
    """Raise for a parameter that is unknown, missing or refused by the registry; ``names`` are looked at elsewhere."""
    locator.known(table, (*names, *keys), within)
    for key, param in keys.items():
        try:
            param.read("", key, table)
        except UsageError:
            dotted = f"{within}.{key}"
            if key in table:
                raise locator.wrong(dotted, param.expected, table[key]) from None
            raise locator.error(dotted, f"is missing; expected {param.expected}") from None


def _content(table: Mapping[str, Any], locator: Locator) -> None:
    """Check the generator that makes the files of ``mixed``."""
    content = table.get("content", "random")
    if isinstance(content, dict):
        keys = dict(PAYLOADS[locator.one_of("payload.content.generator", content, PAYLOADS)])
        keys.pop("size_bytes", None)
        _params(content, keys, locator, "payload.content", ("generator",))
    else:
        locator.one_of("payload.content", {"content": content}, PAYLOADS)


# --- what must hold ---


def _expectation(
    table: Mapping[str, Any], at: str, operations: Sequence[str], grid: _Grid, locator: Locator
) -> BenchExpectation:
    locator.fitting(table, EXPECT, at)
    low, high = table.get("at_least"), table.get("at_most")
    if low is None and high is None:
        raise locator.error(at, "expected at_least, at_most or both")
    if low is not None and high is not None and low > high:
        raise locator.error(f"{at}.at_least", f"expected at most {high} (at_most), found {low}")
    for key, bound in (("at_least", low), ("at_most", high)):
        if bound is not None and bound > 1 and METRICS[table["metric"]].unit == "fraction":
            raise locator.error(f"{at}.{key}", f"expected a fraction from 0 to 1, found {bound}; 5 % is 0.05")
    judged = _judged(table, at, operations, locator)
    values = {path[-1]: list(given) for path, given in grid.items()}
    where = table.get("where", {})
    for key, value in where.items():
        if key not in values:
            known = f"one of {', '.join(values)}" if values else "a key of [experiment.grid], which is not there"
            raise locator.error(f"{at}.where.{named(key)}", f"unknown key; expected {known}")
        if value not in values[key]:
            raise locator.error(f"{at}.where.{key}", f"expected one of {shown(values[key])}, found {shown(value)}")
    source = table.get("source", locator.source)
    return BenchExpectation(table["metric"], low, high, judged, table.get("provider"), where, source)


def _judged(table: Mapping[str, Any], at: str, operations: Sequence[str], locator: Locator) -> tuple[Verb, ...]:
    """The operations that a claim is about."""
    metric, operation = table["metric"], table.get("operation")
    if not operations:
        if operation is not None:
            raise locator.error(f"{at}.operation", "expected no such key with a trace, which is judged as a whole")
        return ()
    possible = [name for name in operations if name in ONLY_OF.get(metric, OPERATIONS)]
    if not possible:
        about = " or ".join(ONLY_OF[metric])
        raise locator.error(
            f"{at}.metric", f"expected another metric: {metric} is about {about}, which is not measured here"
        )
    if operation is not None and operation not in possible:
        raise locator.error(f"{at}.operation", f"expected one of {', '.join(possible)}, found {operation!r}")
    return tuple(OPERATIONS[name] for name in possible if operation in {None, name})
