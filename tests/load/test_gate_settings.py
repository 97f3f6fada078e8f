"""The user's settings of the regression gate."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from pytest_cloudbench.judge.watched import merge_margins
from pytest_cloudbench.load.gate.session import SessionGate
from pytest_cloudbench.load.gate.settings import (
    GateSettings,
    RepeatBudget,
    marked_margins,
    parse_budget,
    read_settings,
)
from pytest_cloudbench.load.messages import Subject
from pytest_cloudbench.model import ConfigError, UsageError


@pytest.mark.parametrize(
    ("text", "session_s", "budget_s"),
    [
        ("50%", 60.0, 30.0), ("150 %", 60.0, 90.0), (" 0.5% ", 600.0, 3.0), ("0%", 60.0, 0.0),
        ("90", 60.0, 90.0), (" 90.5 ", 1e9, 90.5), (90, 0.0, 90.0),
        (0.01, 60.0, 0.01), ("0", 60.0, 0.0), (0, 60.0, 0.0),
    ],
)  # fmt: skip
def test_a_budget_is_a_share_of_the_session_or_seconds(text: object, session_s: float, budget_s: float) -> None:
    assert parse_budget(text, "here").seconds(session_s) == pytest.approx(budget_s)


@pytest.mark.parametrize(
    "text", ["", "%", "half", "-1", "-1%", "1s", "nan", "nan%", "inf", "inf%", "5%%", True, None, [1]]
)
def test_invalid_budget_is_refused(text: object) -> None:
    with pytest.raises(UsageError, match=r'^here: expected a share of the session such as "50%", or seconds, found '):
        parse_budget(text, "here")


def settings(folder: Path, text: str, budget: str | None = None) -> GateSettings:
    (folder / "pyproject.toml").write_text(f"[tool.cloudbench.gate]\n{text}\n")
    return read_settings(folder, strict=False, budget=budget)


@pytest.mark.parametrize(
    ("text", "key"),
    [("[tool.cloudbench.gates]\nruns = 30\n", "gates"), ("[tool.cloudbench]\nruns = 30\n", "runs"),
     ("[tool.cloudbench.gate]\nruns = 30\n[tool.cloudbench.other]\n", "other")],
)  # fmt: skip
def test_settings_beside_the_table_are_refused(tmp_path: Path, text: str, key: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(ConfigError, match=rf"tool\.cloudbench\.{key}: no such setting; expected \[tool"):
        read_settings(tmp_path, strict=False)


def test_default_budget_is_half_of_the_session(tmp_path: Path) -> None:
    assert read_settings(tmp_path, strict=False).budget == RepeatBudget(0.5)
    assert settings(tmp_path, "").budget.seconds(60.0) == 30.0
    assert settings(tmp_path, 'budget = "20%"').budget == RepeatBudget(0.2)
    assert settings(tmp_path, "budget = 45").budget == RepeatBudget(None, 45.0)


def test_option_takes_precedence_over_the_file(tmp_path: Path) -> None:
    assert settings(tmp_path, 'budget = "20%"', "0").budget == RepeatBudget(None, 0.0)
    with pytest.raises(UsageError, match=r"^cloudbench_gate_budget: expected a share"):
        settings(tmp_path, 'budget = "20%"', "much")


@pytest.mark.parametrize("line", ['budget = "much"', "budget = true", "budget = -1", "budget = inf", "budget = [1]"])
def test_invalid_budget_in_the_file_is_refused_with_its_key(tmp_path: Path, line: str) -> None:
    with pytest.raises(UsageError, match=r"pyproject\.toml: tool\.cloudbench\.gate\.budget: expected a share"):
        settings(tmp_path, line)


@pytest.mark.parametrize("line", ["runs = 9", "runs = true", "apart_s = -1", "branch = 1", 'strict = "yes"'])
def test_invalid_settings_are_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigError, match=r"tool\.cloudbench\.gate"):
        settings(tmp_path, line)


PROJECT = {"quiet_p50": 0.2, "response_p99": 0.4, "p99": None, "failed_rate": 0.02}
"""Margins of a place that is less specific than another one."""


@pytest.mark.parametrize(
    ("nearer", "merged"),
    [
        ({}, PROJECT),
        ({"p50": 0.05}, {"p50": 0.05, "response_p99": 0.4, "p99": None, "failed_rate": 0.02}),
        ({"p99": 0.1}, {"quiet_p50": 0.2, "p99": 0.1, "failed_rate": 0.02}),
        ({"p50": None, "quiet_p50": 0.1}, PROJECT | {"p50": None, "quiet_p50": 0.1}),
        ({"response_p50": 0.1}, PROJECT | {"response_p50": 0.1}),
        ({"failed_rate": None}, PROJECT | {"failed_rate": None}),
    ],
)
def test_a_nearer_margin_replaces_all_that_it_stands_for(
    nearer: Mapping[str, float | None], merged: Mapping[str, float | None]
) -> None:
    assert merge_margins(PROJECT, nearer) == merged


@pytest.mark.cloudbench_gate(quiet_p50=0.2, quiet_p99=0.3)
class TestNearestMark:
    @pytest.mark.cloudbench_gate(p50="5%")
    def test_stands_for_all_metrics_with_its_ending(self, request: pytest.FixtureRequest) -> None:
        assert marked_margins(request.node) == {"p50": 0.05, "quiet_p99": 0.3}


def test_margins_of_a_test_stand_before_those_of_the_project(request: pytest.FixtureRequest) -> None:
    gate = SessionGate(request.config)
    gate.settings = GateSettings(PROJECT)
    subject = Subject("r", "t.py::test", "t.py::test", "test", "test", {}, "f", "folder:x", None, True, {})
    gate.take_entry(subject, {}, [], (), {"p50": 0.05, "p99": 0.1})
    (entry,) = gate.entries
    assert entry.margins == {"p50": 0.05, "p99": 0.1, "failed_rate": 0.02}
