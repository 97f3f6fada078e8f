"""The JSON Schema of bench files is made from the parser's tables, and is as strict as a schema can be."""

from __future__ import annotations

import json
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_cloudbench.model import ConfigError
from pytest_cloudbench.plugin import configs
from pytest_cloudbench.plugin.configs.bench import parse_bench
from pytest_cloudbench.plugin.configs.bench_keys import ARRIVALS, EXPECT, EXPERIMENT, PAYLOADS
from tests.limits import scale_examples
from tests.plugin.configs.bench_documents import VALID, document, read_file, with_changes
from tests.plugin.configs.test_bench import CHANGES, EXAMPLE, WRONG, apply_possible
from tests.tool_scripts import load_tool

SCHEMA: dict[str, Any] = json.loads(Path(configs.__file__).with_name("bench.schema.json").read_text("utf-8"))
NOT_IN_SCHEMA = {
    ("name", "found 'a\\n'"),  # in Python's patterns, $ also matches before a last line end
    ("pause_s", "expected a finite number, found nan"),  # JSON has no such number
    ("provider", "expected SCHEME"),
    ("operations", "expected upload first"),
    ("operations", "expected delete last"),
    ("payload", "max_bytes is 4; expected 5"),
    ("payload", "expected a payload"),
    ("payload.size_bytes", "found 100"),
    ("payload.file", "load.csv, line 1"),
    ("payload.file", "'no' cannot be read"),
    ("arrival.file", "sizes.txt: line 1: '100': expected the header"),
    ("arrival.file", "'no.csv' cannot be read"),
    ("sensors", "expected it here or as grid.sensors, not both"),
    ("payload.size_bytes", "not both"),
    ("grid", "expected at most 1000 combinations, found 3000"),
    ("expect[0].at_least", "expected at most 0.1 (at_most), found 0.5"),
    ("expect[0].operation", "expected one of upload, found 'list'"),
    ("expect[0].operation", "expected one of upload, found 'download'"),
    ("expect[0].metric", "loss_rate is about upload"),
    ("expect[0].operation", "not allowed with a trace"),
    ("expect[0].where.sensors", "[experiment.grid], which is not there"),
    ("expect[0].where.files", "expected one of sensors, size_bytes"),
    ("expect[0].where.sensors", "expected one of [10, 50], found 5"),
}
"""Mistakes of WRONG, by key and words, that no schema can find: in order, in values of other keys, in other files."""


@cache
def validator() -> Any:
    jsonschema = pytest.importorskip("jsonschema", reason="an extra of development: pip install -e .[dev]")
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    return jsonschema.Draft202012Validator(SCHEMA)


def accepts(text: str) -> bool:
    return bool(validator().is_valid(tomllib.loads(text)))


def test_committed_schema_matches_the_tables(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = load_tool("make_bench_schema")
    assert tool.main(["--check"]) == 0
    monkeypatch.setattr(tool, "FILE", tmp_path / "bench.schema.json")
    assert tool.main(["--check"]) == 1
    assert "python tools/make_bench_schema.py" in capsys.readouterr().err
    assert tool.main([]) == 0
    assert tool.main(["--check"]) == 0
    tool.FILE.write_text(tool.FILE.read_text("utf-8").replace("random", "randon"), "utf-8")
    assert tool.main(["--check"]) == 1


def test_the_schema_offers_every_key_with_a_description() -> None:
    experiment = SCHEMA["properties"]["experiment"]["items"]
    offered = experiment["properties"]
    assert set(offered) == set(EXPERIMENT)
    assert set(offered["expect"]["items"]["properties"]) == set(EXPECT)
    assert offered["payload"]["properties"]["generator"]["enum"] == [*PAYLOADS, "mixed"]
    assert offered["arrival"]["properties"]["process"]["enum"] == list(ARRIVALS)
    assert not experiment["additionalProperties"]
    tables = [offered, offered["expect"]["items"]["properties"], offered["payload"]["properties"]]
    for table in (*tables, offered["arrival"]["properties"]):
        assert all(len(key["description"]) > 5 for key in table.values())


def test_the_schema_accepts_the_example_and_all_valid_experiments() -> None:
    assert accepts(EXAMPLE.read_text("utf-8"))
    for experiment in VALID:
        text = document(experiment)
        assert accepts(text), [error.message for error in validator().iter_errors(tomllib.loads(text))]


@pytest.mark.parametrize(("key", "experiment", "changes", "words"), WRONG, ids=[f"{case[0]}" for case in WRONG])
def test_schema_refuses_documents_refused_by_the_parser(
    key: str, experiment: dict[str, Any], changes: list[tuple[str, Any]], words: str
) -> None:
    text = document(with_changes(experiment, *changes))
    with pytest.raises(ConfigError):
        parse_bench(text, "x", read_file)
    assert accepts(text) == ((key, words) in NOT_IN_SCHEMA)


@settings(max_examples=scale_examples(300), deadline=None)
@given(st.sampled_from(VALID), CHANGES)
def test_schema_accepts_documents_accepted_by_the_parser(
    experiment: dict[str, Any], changes: list[tuple[str, Any]]
) -> None:
    text = document(apply_possible(experiment, changes))
    try:
        parse_bench(text, "x", read_file)
    except ConfigError:
        return
    assert accepts(text), text
