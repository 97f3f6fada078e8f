"""Parsing of bench files, and the messages about invalid ones."""

from __future__ import annotations

import contextlib
import datetime
import math
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_cloudbench import data
from pytest_cloudbench.judge.expect import judge_expectation
from pytest_cloudbench.load.request import Load
from pytest_cloudbench.model import ConfigError, UsageError, Verb
from pytest_cloudbench.plugin.configs.bench import (
    BenchCase,
    BenchExperiment,
    BenchFile,
    parse_bench,
)
from pytest_cloudbench.plugin.configs.bench_keys import (
    ABOUT,
    ARRIVALS,
    EXPECT,
    EXPERIMENT,
    MIXED,
    OPERATIONS,
    PAYLOADS,
    matches_schema,
    param_schema,
)
from pytest_cloudbench.plugin.configs.bench_keys import GRID as GRID_KEYS
from pytest_cloudbench.workload.arrival import NAMES, FixedInterval, ThinkTime, Threads, arrival
from pytest_cloudbench.workload.payload.registry import GENERATORS, SIZES, Param
from pytest_cloudbench.workload.trace import Replay
from tests.limits import scale_examples
from tests.plugin.configs import bench_documents as documents
from tests.plugin.configs.bench_documents import (
    BASE,
    FILES,
    GONE,
    GRID,
    PATHS,
    THREADS,
    TRACE,
    VALID,
    document,
    read_file,
    with_changes,
)  # fmt: skip

EXAMPLE = Path(data.__file__).with_name("example.bench.toml")
DOCUMENT = (Path(__file__).parents[3] / "docs" / "reference" / "bench-files.md").read_text("utf-8")
TODAY = datetime.date(2026, 11, 20)


def parse(text: str) -> BenchFile:
    return parse_bench(text, "x.bench.toml", read_file)


def parse_one(experiment: dict[str, Any]) -> BenchExperiment:
    [result] = parse(document(experiment)).experiments
    return result


def parse_error(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert caught.value.source == "x.bench.toml"
    return caught.value


# --- valid files ---


def test_an_experiment_with_sensors() -> None:
    bench = parse_one({**BASE, "provider": "folder:x", "repeat": 3, "description": "why"})
    assert (bench.name, bench.description, bench.providers, bench.repeat) == ("readings", "why", ("folder:x",), 3)
    assert bench.operations == (Verb.PUT, Verb.GET)
    [case] = bench.cases
    assert (case.id, case.params) == ("", {})
    assert case.load == Load(arrival=FixedInterval(1), sensors=5, ops_per_sensor=2)
    assert case.payload.make("seed").size_bytes == 5120
    assert case.payload.make("a").content(0, 0).read(0, 9) != case.payload.make("b").content(0, 0).read(0, 9)


def test_defaults_of_optional_keys() -> None:
    bench = parse_one(with_changes(BASE, ("operations", GONE), ("expect", GONE)))
    assert (bench.description, bench.providers, bench.repeat, bench.expectations) == ("", (), 1, ())
    assert bench.operations == (Verb.PUT,)


def test_an_experiment_with_threads() -> None:
    assert parse_one(THREADS).cases[0].load == Load(arrival=Threads(4), files=10)
    assert parse_one({**THREADS, "pause_s": 2}).cases[0].load == Load(arrival=Threads(4, 2.0), files=10)


def test_trace_decides_number_of_sensors_and_operations() -> None:
    bench = parse_one(TRACE)
    load = bench.cases[0].load
    assert isinstance(load.arrival, Replay)
    assert (load.sensors, load.ops_per_sensor, bench.operations) == (2, 2, ())
    assert bench.cases[0].payload.make("s").size_bytes == 100, "its smallest upload"
    fewer = parse_one({**TRACE, "sensors": 1}).cases[0].load
    assert (fewer.sensors, fewer.ops_per_sensor) == (1, 2)


def test_a_grid_is_every_combination_in_order() -> None:
    cases = parse_one(GRID).cases
    assert [case.id for case in cases][:3] == [
        "sensors:10-size_bytes:1-percent:0.5-interval_s:1",
        "sensors:10-size_bytes:1-percent:0.5-interval_s:0.5",
        "sensors:10-size_bytes:2-percent:0.5-interval_s:1",
    ]
    assert len({case.id for case in cases}) == len(cases) == 12
    last = cases[-1]
    assert last.params == {"sensors": 50, "size_bytes": 3, "percent": 0.5, "interval_s": 0.5}
    assert last.load == Load(arrival=FixedInterval(0.5, 0.5), sensors=50, ops_per_sensor=1)
    assert last.payload.params == {"size_bytes": 3, "percent": 0.5}


def test_values_that_do_not_read_well_in_a_name_are_numbered() -> None:
    payload = {"generator": "sparse", "size_bytes": 1}
    bench = parse_one({**BASE, "payload": payload, "grid": {"payload": {"text": ["a b", "ok", "x" * 31]}}})
    assert [case.id for case in bench.cases] == ["text0", "text:ok", "text2"]


def test_a_grid_may_be_of_generators() -> None:
    bench = parse_one({**BASE, "payload": {"size_bytes": 9}, "grid": {"payload": {"generator": ["random", "text"]}}})
    assert [case.payload.generator for case in bench.cases] == ["random", "text"]


def test_the_texts_of_named_files_are_kept() -> None:
    payload = parse_one({**BASE, "payload": documents.PAYLOADS[-1]}).cases[0].payload
    assert payload.files == {"sizes.txt": FILES["sizes.txt"]}
    assert payload.make("s").size_bytes == 1525


@pytest.mark.parametrize(
    "experiment", VALID, ids=lambda experiment: f"{experiment['payload']}-{experiment.get('arrival')}"
)
def test_valid_experiments_are_read(experiment: dict[str, Any]) -> None:
    assert parse_one(experiment).cases


def test_valid_experiments_cover_all_generators_and_arrivals() -> None:
    assert {payload["generator"] for payload in documents.PAYLOADS} == {*GENERATORS, "mixed"}
    assert {payload.get("distribution") for payload in documents.PAYLOADS} - {None} == set(SIZES)
    assert {params["process"] for params in documents.ARRIVALS} | {"trace"} == set(ARRIVALS)


def test_a_byte_order_mark_and_windows_lines_are_no_trouble() -> None:
    text = EXAMPLE.read_text("utf-8")
    assert parse("\ufeff" + text.replace("\n", "\r\n")) == parse(text)


def test_the_example_is_read() -> None:
    names = [experiment.name for experiment in parse_bench(EXAMPLE.read_text("utf-8"), "x").experiments]
    assert names == ["readings", "batch"]


def test_the_example_of_the_document_is_read() -> None:
    [bench] = parse(re.findall(r"^```toml\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)[0]).experiments
    assert [case.id for case in bench.cases] == ["sensors:10", "sensors:20"]
    assert [len(bench.expectations_for(case, Verb.PUT, ["folder:x"], TODAY)) for case in bench.cases] == [2, 1]


def test_the_grid_of_the_document_is_read() -> None:
    grid = tomllib.loads(re.findall(r"^```toml\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)[1])["experiment"]
    bare = with_changes(BASE, ("sensors", GONE), ("payload.size_bytes", GONE), ("arrival.interval_s", GONE))
    cases = parse_one({**bare, **grid}).cases
    assert len(cases) == 3 * 2 * 2
    assert cases[1].params == {"sensors": 10, "size_bytes": 5120, "interval_s": 10}


def test_the_document_has_every_key() -> None:
    def row(first: str, keys: dict[str, bool]) -> str:
        needed = ", ".join(f"`{key}`" for key, is_needed in keys.items() if is_needed)
        others = ", ".join(f"`{key}`" for key, is_needed in keys.items() if not is_needed)
        return f"| {first} | {needed}{', ' * bool(needed and others)}{f'[{others}]' if others else ''} |\n"

    for name, params in PAYLOADS.items():
        assert row(f"`{name}`", {key: _is_needed(param) for key, param in params.items()}) in DOCUMENT
    for name, params in MIXED.items():
        if name != "empirical":  # either of two keys
            assert row(f"... `{name}`", {key: _is_needed(param) for key, param in params.items()}) in DOCUMENT
    for name, keys in ARRIVALS.items():
        assert row(f"`{name}`", {key: key_spec.is_required for key, key_spec in keys.items()}) in DOCUMENT
    for table in (EXPERIMENT, EXPECT):
        for name in table:
            assert f"\n| `{name}` |" in DOCUMENT
    assert all(f"`{name}`" in DOCUMENT for name in (*GRID_KEYS, *OPERATIONS))


def _is_needed(param: Param) -> bool:
    try:
        param.read("", "key", {})
    except UsageError:
        return True
    return False


def test_the_message_in_the_document_is_the_real_one() -> None:
    error = parse_error(document(with_changes(BASE, ("payload.size_bytes", "5 KiB"))))
    assert str(error).replace("x.bench", "experiment.bench") in DOCUMENT


# --- expectations ---


def test_expectations_are_selected_by_operation_provider_and_grid() -> None:
    expect = [
        {"metric": "loss_rate", "at_most": 0.1},
        {"metric": "ok_rate", "at_least": 0.9, "operation": "download", "source": "our contract"},
        {"metric": "elapsed", "at_most": 9, "provider": "emulated:one"},
        {"metric": "throughput", "at_least": 1, "where": {"sensors": 50}},
    ]
    bench = parse_one({**with_changes(GRID, ("operations", ["upload", "download"])), "expect": expect})
    few, many = bench.cases[0], bench.cases[-1]

    def metrics(case: BenchCase, operation: Verb, providers: list[str]) -> list[str]:
        return [claim.metric for claim in bench.expectations_for(case, operation, providers, TODAY)]

    assert metrics(few, Verb.PUT, ["folder:x"]) == ["loss_rate"]
    assert metrics(few, Verb.GET, ["folder:x"]) == ["ok_rate"], "files are lost by uploads"
    assert metrics(few, Verb.PUT, ["spec", "emulated:one"]) == ["loss_rate", "elapsed"]
    assert metrics(many, Verb.PUT, ["folder:x"]) == ["loss_rate", "throughput"]
    [loss] = bench.expectations_for(few, Verb.PUT, ["folder:x"], TODAY)
    [ok] = bench.expectations_for(few, Verb.GET, ["folder:x"], TODAY)
    assert (loss.provider, loss.source, ok.source) == ("folder:x", "x.bench.toml", "our contract")
    assert judge_expectation(loss, {"loss_rate": 0.2}, []).status == "broken"
    assert judge_expectation(loss, {"loss_rate": 0.1}, []).status == "met"


def test_a_trace_is_judged_as_a_whole() -> None:
    claims = [{"metric": "loss_rate", "at_most": 0.1}, {"metric": "ok_rate", "at_least": 0.9, "provider": "other"}]
    bench = parse_one({**TRACE, "expect": claims})
    assert [claim.metric for claim in bench.expectations_for(bench.cases[0], None, ["folder:x"], TODAY)] == [
        "loss_rate"
    ]


def test_expectations_apply_to_the_operations_of_their_metric() -> None:
    names = ["loss_rate", "throughput", "first_byte_p50", "ok_rate"]
    claims = [{"metric": name, "at_most": 1} for name in names]
    bench = parse_one({**BASE, "operations": ["upload", "download", "list"], "expect": claims})
    assert [claim.operations for claim in bench.expectations] == [
        (Verb.PUT,),
        (Verb.PUT, Verb.GET),
        (Verb.GET,),
        (Verb.PUT, Verb.GET, Verb.LIST),
    ]


# --- invalid files ---

WRONG: list[tuple[str, dict[str, Any], list[tuple[str, Any]], str]] = [
    # key of the error, experiment, changes, part of the message
    ("name", BASE, [("name", GONE)], "is missing; expected a-z"),
    ("name", BASE, [("name", "Öl")], "expected a-z, 0-9, _ and -"),
    ("name", BASE, [("name", "a\n")], "found 'a\\n'"),
    ("provider", BASE, [("provider", "?")], "expected SCHEME"),
    ("provider", BASE, [("provider", 5)], "expected a provider such as 'folder:PATH', or a list"),
    ("provider", BASE, [("provider", ["folder:x", "folder:x"])], "each once"),
    ("operations", BASE, [("operations", "upload")], "expected a list of upload, download"),
    ("operations", BASE, [("operations", ["put"])], "expected a list of upload, download"),
    ("operations", BASE, [("operations", ["list", "upload"])], "expected upload first"),
    ("operations", BASE, [("operations", ["delete", "list"])], "expected delete last"),
    ("repeat", BASE, [("repeat", 0)], "expected a whole number from 1 to 1000, found 0"),
    ("repeat", BASE, [("repeat", True)], "expected a whole number from 1 to 1000, found True"),
    ("sensors", BASE, [("sensors", "50")], "found '50'; write it without quotes"),
    ("sensors", BASE, [("sensors", GONE)], "is missing; expected a whole number"),
    ("sensors", BASE, [("sensors", 1.5)], "expected a whole number"),
    ("sensors", BASE, [("sensors", 10**19)], "at most 64 bits"),
    ("sensor", BASE, [("sensor", 5)], "unknown key; did you mean sensors?; expected one of name"),
    ("interval_s", BASE, [("interval_s", 5)], "it belongs below [experiment.arrival]"),
    ("size_bytes", BASE, [("size_bytes", 5)], "it belongs below [experiment.payload]"),
    ("threads", BASE, [("threads", 5)], "expected either sensors, ops_per_sensor and arrival, or threads and files"),
    ("files", THREADS, [("files", GONE)], "is missing; expected a whole number"),
    ("threads", THREADS, [("threads", GONE)], "is missing; expected a whole number"),
    ("pause_s", THREADS, [("pause_s", -1)], "expected seconds, 0 or more, found -1"),
    ("pause_s", THREADS, [("pause_s", float("nan"))], "expected a finite number, found nan"),
    ("sensors", THREADS, [("threads", GONE), ("files", GONE)], "is missing; expected sensors, ops_per_sensor and"),
    ("arrival", BASE, [("arrival", GONE)], "is missing; expected sensors, ops_per_sensor and arrival"),
    ("warm_up_s", BASE, [("warm_up_s", -1)], "expected seconds, 0 or more, found -1"),
    ("gate", BASE, [("gate", 0.1)], "expected a table [experiment.gate]"),
    ("gate.quiet_p5", BASE, [("gate", {"quiet_p5": 0.1})], "unknown key; did you mean quiet_p50?"),
    ("gate.p50", BASE, [("gate", {"p50": 0})], "expected a margin such as 0.1"),
    ("gate.p50", BASE, [("gate", {"p50": "0%"})], "expected a margin such as 0.1"),
    ("gate.p50", BASE, [("gate", {"p50": True})], "expected a margin such as 0.1"),
    ("may_drift", BASE, [("may_drift", "yes")], "expected true or false, found 'yes'"),
    ("until", BASE, [("until", "response_p50")], "expected a table [experiment.until]"),
    ("until.metric", BASE, [("until", {"within": 0.1})], "is missing; expected one of response_p50"),
    ("until.metric", BASE, [("until", {"metric": "response_max"})], "expected one of response_p50"),
    ("until.within", BASE, [("until", {"metric": "ops_per_s", "within": 5})], "expected a fraction above 0"),
    ("until.least", BASE, [("until", {"metric": "ops_per_s", "least": 5})], "unknown key"),
    ("until.metric", BASE, [("operations", ["upload", "stat"]), ("until", {"metric": "throughput"})],
     "expected a metric of stat: throughput is about upload or download"),
    ("payload", BASE, [("payload", GONE)], "is missing; expected a table [experiment.payload]"),
    ("payload.generator", BASE, [("payload.generator", GONE)], "is missing; expected one of random, identical"),
    ("payload.generator", BASE, [("payload.generator", "randon")], "found 'randon'; did you mean random?"),
    ("payload.size_bytes", BASE, [("payload.size_bytes", GONE)], "is missing; expected 0 or more (a whole number)"),
    ("payload.size_bytes", BASE, [("payload.size_bytes", "5 KiB")], "found '5 KiB'; write 5120"),
    ("payload.size_bytes", BASE, [("payload.size_bytes", "1.5MB")], "found '1.5MB'; write 1500000"),
    ("payload.size_bytes", BASE, [("payload.generator", "jpeg"), ("payload.size_bytes", 3)], "found 3"),
    ("payload.size_byte", BASE, [("payload.size_byte", 3)], "did you mean size_bytes?"),
    ("payload.sensors", BASE, [("payload.sensors", 3)], "it belongs below [[experiment]], before the next line"),
    ("payload.ratio", BASE, [("payload.ratio", 1)], "unknown key; expected one of generator, size_bytes"),
    ("payload.distribution", BASE, [("payload", {"generator": "mixed"})], "is missing; expected one of fixed, uni"),
    ("payload", BASE, [("payload", {"generator": "mixed", "distribution": "uniform", "min_bytes": 5, "max_bytes": 4})],
     "max_bytes is 4; expected 5"),
    ("payload", BASE, [("payload", {"generator": "mixed", "distribution": "empirical"})], "either sizes_bytes or file"),
    ("payload.file", BASE, [("payload", {"generator": "mixed", "distribution": "empirical", "file": "load.csv"})],
     "load.csv, line 1"),
    ("payload.file", BASE, [("payload", {"generator": "mixed", "distribution": "empirical", "file": "no"})],
     "'no' cannot be read"),
    ("payload.content.text", BASE, [("payload", {**documents.PAYLOADS[11], "content": {"generator": "sparse",
     "text": ""}})], "expected a text that is not empty, found ''"),
    ("payload.content", BASE, [("payload", {**documents.PAYLOADS[11], "content": "no"})], "expected one of random"),
    ("payload.content.size_bytes", BASE, [("payload", {**documents.PAYLOADS[11],
     "content": {"generator": "text", "size_bytes": 1}})], "unknown key"),
    ("payload.sigma", BASE, [("payload", {**documents.PAYLOADS[11], "sigma": 11})], "expected a number from 0 to 10"),
    ("arrival.process", BASE, [("arrival.process", "Poison")], "did you mean poisson?"),
    ("arrival.interval_s", BASE, [("arrival.interval_s", GONE)], "is missing; expected seconds, 0 or more"),
    ("arrival.interval_s", BASE, [("arrival.interval_s", -1)], "-1: expected 0 or more seconds"),
    ("arrival.interval_s", BASE, [("arrival.interval_s", "1")], "'1': expected 0 or more seconds; write it without"),
    ("arrival.intervall", BASE, [("arrival.intervall", 1)], "did you mean interval_s?"),
    ("arrival.curve", BASE, [("arrival", {"process": "diurnal", "interval_s": 1, "curve": ["a"]})], "value 1 of 1"),
    ("arrival.file", TRACE, [("arrival.file", "sizes.txt")], "sizes.txt: line 1: '100': expected the header"),
    ("arrival.file", TRACE, [("arrival.file", "no.csv")], "'no.csv' cannot be read"),
    ("arrival.file", TRACE, [("arrival.file", "")], "expected the name of a CSV file"),
    ("operations", TRACE, [("operations", ["upload"])], "not allowed with a trace"),
    ("payload.size_bytes", TRACE, [("payload.size_bytes", 5)], "whose rows specify each size"),
    ("payload.generator", TRACE, [("payload", documents.PAYLOADS[9])], "expected any but mixed"),
    ("payload.size_bytes", TRACE, [("payload.generator", "jpeg")], "found 100"),
    ("grid.sensors", GRID, [("grid.sensors", 5)], "expected a list of numbers or texts, each once, found 5"),
    ("grid.sensors", GRID, [("grid.sensors", [])], "expected a list of numbers or texts, each once, found []"),
    ("grid.sensors", GRID, [("grid.sensors", [5, 5])], "each once"),
    ("grid.sensors[1]", GRID, [("grid.sensors", [5, 0])], "expected a whole number from 1 to 1000000, found 0"),
    ("grid.payload.percent[0]", GRID, [("grid.payload.percent", [2])], "expected a share from 0 to 1, found 2"),
    ("grid.arrival.interval_s[0]", GRID, [("grid.arrival.interval_s", ["1"])], "'1': expected 0 or more seconds"),
    ("grid.payload.ratio[0]", GRID, [("grid.payload.ratio", [1])], "unknown key"),
    ("grid.payload", GRID, [("grid.payload", [1])], "expected keys of payload such as grid.payload.NAME = [...]"),
    ("grid.interval_s", GRID, [("grid.interval_s", [1])], "did you mean arrival.interval_s?"),
    ("grid.repeat", GRID, [("grid.repeat", [1])], "unknown key"),
    ("sensors", GRID, [("sensors", 5)], "expected it here or as grid.sensors, not both"),
    ("payload.size_bytes", GRID, [("payload.size_bytes", 5)], "not both"),
    ("grid.payload.file", GRID, [("grid.payload.file", ["a"]), ("grid.arrival.file", ["b"])], "in the grid twice"),
    ("grid", GRID, [("grid.sensors", [*range(1, 501)])], "expected at most 1000 combinations, found 3000"),
    ("expect", BASE, [("expect", {"metric": "loss_rate"})], "expected tables [[experiment.expect]], with two brackets"),
    ("expect[0].metric", BASE, [("expect.0.metric", "loss")], "expected one of loss_rate"),
    ("expect[0].metric", BASE, [("expect.0.metric", GONE)], "is missing; expected one of loss_rate"),
    ("expect[0]", BASE, [("expect.0.at_most", GONE)], "expected at_least, at_most or both"),
    ("expect[0].at_most", BASE, [("expect.0.at_most", 5)], "expected a fraction from 0 to 1, found 5; 5 % is 0.05"),
    ("expect[0].at_most", BASE, [("expect.0.at_most", -1)], "expected a number, 0 or more"),
    ("expect[0].at_least", BASE, [("expect.0.at_least", 0.5)], "expected at most 0.1 (at_most), found 0.5"),
    ("expect[0].at_mots", BASE, [("expect.0.at_mots", 0.5)], "did you mean at_most?"),
    ("expect[0].operation", BASE, [("expect.0.operation", "list")], "expected one of upload, found 'list'"),
    ("expect[0].operation", BASE, [("expect.0.operation", "download")], "expected one of upload, found 'download'"),
    ("expect[0].metric", BASE, [("operations", ["list"]), ("expect.0.operation", GONE)], "loss_rate is about upload"),
    ("expect[0].operation", TRACE, [("expect", BASE["expect"])], "not allowed with a trace"),
    ("expect[0].where.sensors", BASE, [("expect.0.where", {"sensors": 5})], "[experiment.grid], which is not there"),
    ("expect[0].where.files", GRID, [("expect.0.where", {"files": 5})], "expected one of sensors, size_bytes"),
    ("expect[0].where.sensors", GRID, [("expect.0.where", {"sensors": 5})], "expected one of [10, 50], found 5"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "experiment", "changes", "words"), WRONG, ids=[f"{case[0]}" for case in WRONG])
def test_config_error_names_key_and_expected_value(
    key: str, experiment: dict[str, Any], changes: list[tuple[str, Any]], words: str
) -> None:
    error = parse_error(document(with_changes(experiment, *changes)))
    assert error.key == f"experiment[0].{key}"
    assert words in error.expected
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ("", "experiment", "expected [[experiment]] tables, with two brackets on each side"),
        ("[experiment]\nname = 'x'", "experiment", "with two brackets"),
        ("experiment = 5", "experiment", "with two brackets"),
        ("experiment = []", "experiment", "with two brackets"),
        ("name = 'x'", "name", "it belongs below a line [[experiment]]"),
        ("'a\\tb c' = 1", "'a\\\\tb c'", "unknown key"),
        ("x = ", "", "is not valid TOML"),
        ("x = 1979-13-01", "", "is not valid TOML"),
        ("x = 0x" + "f" * 5000, "x", "at most 64 bits"),
        ("x = " + "9" * 5000, "", "is not valid TOML"),
        (".".join("a" * 5000) + " = 1", ".".join("a" * 13), "nested at most 12 deep"),
        ("x = " + "[" * 5000, "", "is not valid TOML"),
        (document(BASE, THREADS, BASE), "experiment[2].name", "another name, experiment[0] has readings already"),
        (document(BASE, with_changes(THREADS, ("files", 0))), "experiment[1].files", "from 1 to"),
    ],
)
def test_a_file_with_a_wrong_structure_is_refused(text: str, key: str, words: str) -> None:
    error = parse_error(text)
    assert error.key == key
    assert words in error.expected


def test_without_a_reader_files_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"arrival.file: .*'load.csv' cannot be read here"):
        parse_bench(document(TRACE), "x")


def test_a_file_is_read_once() -> None:
    file_names: list[str] = []

    def count_read(file: str) -> str:
        file_names.append(file)
        return FILES[file]

    traced = {**TRACE, "arrival": {"process": "trace"}, "grid": {"arrival": {"file": ["load.csv"], "scale": [1, 2]}}}
    cases = parse_bench(document({**traced, "payload": {"generator": "text"}}), "x", count_read).experiments[0].cases
    assert [case.id for case in cases] == ["file:load.csv-scale:1", "file:load.csv-scale:2"]
    assert file_names == ["load.csv"]


# --- only ConfigError is raised ---

VALUES = st.one_of(
    st.just(GONE),
    st.integers(),
    st.floats(),
    st.booleans(),
    st.text(max_size=8),
    st.dates(),
    st.sampled_from(
        [0, 1, -1, 2**62, 2**70, 1e300, "5 KiB", "mixed", "trace", "jpeg", "diurnal", "load.csv", "upload"]
    ),
    st.sampled_from([*documents.PAYLOADS, *documents.ARRIVALS, ["upload", "list"], [], {}, [{}], [1, 2], [[1]]]),
    st.recursive(
        st.integers(0, 3), lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(PATHS[1:9]), inner)
    ),
)
LIKELY = st.one_of(
    st.tuples(st.just("payload"), st.sampled_from(documents.PAYLOADS)),
    st.tuples(st.just("arrival"), st.sampled_from(documents.ARRIVALS)),
    st.tuples(st.sampled_from(["sensors", "files", "payload.size_bytes", "arrival.interval_s"]), st.integers(1, 9)),
    st.tuples(st.just("operations"), st.lists(st.sampled_from(list(OPERATIONS)), min_size=1, unique=True)),
    st.tuples(st.just("provider"), st.just("folder:x") | st.just(["folder:x", "folder:y"])),
    st.tuples(st.just("arrival.first_delay_max_s"), st.floats(0, 9)),
    st.tuples(st.sampled_from(["expect", "sensors", "payload.size_bytes", "arrival.interval_s"]), st.just(GONE)),
    st.tuples(
        st.sampled_from(["grid.sensors", "grid.payload.size_bytes", "grid.arrival.interval_s", "grid.threads"]),
        st.lists(st.integers(1, 9), min_size=1, max_size=3, unique=True),
    ),
)
CHANGES = st.lists(st.tuples(st.sampled_from(PATHS[1:]), VALUES), min_size=1, max_size=4) | st.lists(LIKELY, max_size=4)


def apply_possible(experiment: dict[str, Any], changes: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the experiment with all changes that can be made to it."""
    for change in changes:
        try:
            experiment = with_changes(experiment, change)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):
            continue
    return experiment


@settings(max_examples=scale_examples(300), deadline=None)
@given(st.sampled_from(VALID), CHANGES)
def test_slightly_changed_experiments_are_read_or_refused(
    experiment: dict[str, Any], changes: list[tuple[str, Any]]
) -> None:
    with contextlib.suppress(ConfigError):
        for case in parse(document(apply_possible(experiment, changes))).experiments[0].cases:
            assert case.payload.make("s").content(0, 0).size_bytes >= 0


@settings(deadline=None)
@given(st.text(alphabet="[]{}=.,\"'#\n\\ experimnt019-_eE:\t\r\ud800é", max_size=60) | st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert parse(text).experiments


# --- the tables agree with the registries ---


def test_arrivals_and_their_keys_are_the_registrys() -> None:
    assert set(ARRIVALS) == set(NAMES) - {"threads"}, "threads are a key of the experiment"
    for process, keys in ARRIVALS.items():
        with pytest.raises(ConfigError, match="unknown key, expected one of ") as caught:
            arrival(process, {"": 0})
        assert set(str(caught.value).rpartition("one of ")[2].split(", ")) == set(keys)
        for name, key in keys.items():
            if key.is_required:
                others = {sibling: 1 for sibling, other in keys.items() if other.is_required and sibling != name}
                with pytest.raises(ConfigError, match=f"{name}: is missing"):
                    arrival(process, others)


@pytest.mark.parametrize("process", [process for process in ARRIVALS if process != "trace"])
@pytest.mark.parametrize("value", [-1, 0, 0.5, 10, 11, True, "1", [1], [], [-1], ["a"], {}])
def test_schema_accepts_every_valid_arrivals_parameter(process: str, value: Any) -> None:
    right = next(entry for entry in documents.ARRIVALS if entry["process"] == process)
    params = {key: param for key, param in right.items() if key != "process"}
    for name, key in ARRIVALS[process].items():
        try:
            result = arrival(process, {**params, name: value})
        except ConfigError:
            continue
        assert matches_schema(value, key.schema), (name, result)


@pytest.mark.parametrize(
    "value", [-1, 0, 1, 2, 0.5, 1.5, 5000, True, "", "x", "front", "text", [1], [], [-1], ["a"], {}]
)
def test_schema_accepts_exactly_the_valid_generator_parameters(value: Any) -> None:
    for params in (*PAYLOADS.values(), *MIXED.values()):
        for name, param in params.items():
            assert matches_schema(value, param_schema(param)) == param.accepts(value), (name, value)
            assert name in ABOUT


@pytest.mark.parametrize("value", [1e16, 2.0**53, 2**70])
def test_schema_accepts_numbers_of_any_size(value: float) -> None:
    assert matches_schema(value, {"type": "number", "minimum": 0})
    assert matches_schema(value, {"type": "number", "exclusiveMinimum": 0})
    assert not matches_schema(value, {"type": "number", "maximum": 1e9})


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_schema_accepts_only_finite_numbers(value: float) -> None:
    assert not matches_schema(value, {"type": "number"})
    assert not matches_schema(value, {"type": "number", "exclusiveMinimum": 0})


def test_think_time_makes_a_closed_loop_of_sensors() -> None:
    load = parse_one({**BASE, "arrival": documents.ARRIVALS[-1]}).cases[0].load
    assert load == Load(arrival=ThinkTime(1), sensors=5, ops_per_sensor=2)
