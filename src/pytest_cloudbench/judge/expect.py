"""Compare results with claims: expectations from a file, and gates from the command line.

This module parses claims and judges them, as pure functions of metrics. A claim on an unknown number is ``unknown``,
never "met".
"""

from __future__ import annotations

import datetime
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Literal

from pytest_cloudbench.judge.baseline import BaselineValue, is_finite
from pytest_cloudbench.judge.metrics import FACTS, IS_YES, METRICS
from pytest_cloudbench.model import ConfigError, UsageError, did_you_mean

Status = Literal["met", "broken", "unknown", "note"]


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on a claim, and the line that states it."""

    status: Status
    line: str


_WORST_FIRST: tuple[Status, ...] = ("broken", "unknown", "note", "met")


def worst(statuses: Iterable[str]) -> str:
    """Return the verdict on an entry: ``broken``, ``inconclusive``, ``note``, ``met``, or ``none`` without a claim."""
    present = set(statuses)
    verdict = next((status for status in _WORST_FIRST if status in present), "none")
    return "inconclusive" if verdict == "unknown" else verdict


@dataclass(frozen=True, slots=True)
class Expectation:
    """A recorded claim: for this provider (and these parameters) the metric stays within its bounds.

    Attributes:
        provider: the spec as the command line has it, or ``emulated:`` with the name of the emulator's profile.
        metric: a key of ``metrics.METRICS``.
        at_least: lower bound, or None.
        at_most: upper bound, or None.
        source: where the bound comes from.
        date: when the bound was published or measured.
        where: test name (``test``) and parameters that the claim is limited to.
    """

    provider: str
    metric: str
    at_least: float | None
    at_most: float | None
    source: str
    date: datetime.date
    where: Mapping[str, Any] = field(default_factory=dict, hash=False)


_KEYS: dict[str, tuple[type, ...]] = {
    "provider": (str,),
    "metric": (str,),
    "at_least": (int, float),
    "at_most": (int, float),
    "source": (str,),
    "date": (datetime.date,),
    "where": (dict,),
}


def parse_expectations(text: str, source: str) -> list[Expectation]:
    """Read ``[[expect]]`` tables. Raises only ConfigError, which names file, key and what was expected."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # not TOML, or an integer of thousands of digits
        raise ConfigError(source, "", f"is not valid TOML: {error}") from error
    for key in document:
        if key != "expect":
            raise ConfigError(source, _format_key(key), "unknown key; expected only [[expect]] tables")
    tables = document.get("expect", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ConfigError(source, "expect", "expected [[expect]] tables")
    return [_parse_expectation(table, source, f"expect[{number}]") for number, table in enumerate(tables)]


def _parse_expectation(table: Mapping[str, Any], source: str, location: str) -> Expectation:
    for key, value in table.items():
        if key not in _KEYS:
            raise ConfigError(source, f"{location}.{_format_key(key)}", _unknown_name("key", key, _KEYS))
        if not isinstance(value, _KEYS[key]) or isinstance(value, bool):
            expected = " or ".join(kind.__name__ for kind in _KEYS[key])
            raise ConfigError(source, f"{location}.{key}", f"expected {expected}, found {_format_value(value)}")
        if isinstance(value, (int, float)) and not is_finite(value):
            raise ConfigError(source, f"{location}.{key}", f"expected a finite number, found {_format_value(value)}")
    for key in ("provider", "metric", "source", "date"):
        if key not in table:
            raise ConfigError(source, f"{location}.{key}", "is missing")
    if "*" in table["provider"].replace("=***", "").replace(":***@", ""):  # these stand in place of a secret
        expected = "expected one provider, as --provider names it, or emulated:PROFILE; patterns match nothing"
        raise ConfigError(source, f"{location}.provider", f"{expected}, found {_format_value(table['provider'])}")
    if table["metric"] not in METRICS:
        raise ConfigError(source, f"{location}.metric", _unknown_name("metric", table["metric"], METRICS))
    at_least, at_most = table.get("at_least"), table.get("at_most")
    if at_least is None and at_most is None:
        raise ConfigError(source, location, "expected at_least, at_most or both")
    if at_least is not None and at_most is not None and at_least > at_most:
        raise ConfigError(source, location, f"at_least {at_least} is above at_most {at_most}")
    return Expectation(
        table["provider"], table["metric"], at_least, at_most, table["source"], table["date"], table.get("where", {})
    )


def _unknown_name(kind: str, name: str, known_names: Iterable[str]) -> str:
    """Return the message for an unknown name: the most similar known one, or all of them."""
    return f"unknown {kind} {_format_value(name)}" + (
        did_you_mean(name, known_names) or f"; expected one of {', '.join(known_names)}"
    )


def _format_key(key: str) -> str:
    """Format a key for one line."""
    return key if key.isprintable() else _format_value(key)


def _format_value(value: Any) -> str:
    """Format a value for one short line."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print very long integers
        text = "a very long number"
    return text if len(text) <= 60 else f"{text[:57]}..."


def select(
    expectations: Iterable[Expectation], providers: Sequence[str], test: str, params: Mapping[str, Any]
) -> list[Expectation]:
    """Return the expectations for one experiment. ``providers`` are all names of its provider."""
    values = {**params, "test": test}  # a parameter may be called test, too
    return [
        claim
        for claim in expectations
        if claim.provider in providers and all(values.get(key) == value for key, value in claim.where.items())
    ]


def _format_bounds(claim: Expectation) -> str:
    parts = [f">= {claim.at_least:g}"] if claim.at_least is not None else []
    parts += [f"<= {claim.at_most:g}"] if claim.at_most is not None else []
    return " and ".join(parts)


@dataclass(frozen=True, slots=True)
class ClaimBounds:
    """The range that a claim allows. None is no bound on that side."""

    at_least: float | None
    at_most: float | None

    def times(self, factor: float) -> ClaimBounds:
        """Return the same bounds in another unit."""
        return ClaimBounds(*(None if bound is None else bound * factor for bound in (self.at_least, self.at_most)))


_CLAIM = re.compile(r"(\w[\w.]*)(?: >= (\S+))?(?: and)?(?: <= (\S+))? \(")


def find_bounds(lines: object, metric: str) -> ClaimBounds | None:
    """Return the bounds of a metric from the lines of ``judge_expectation``, which entries store."""
    for line in lines if isinstance(lines, list) else ():
        match = _CLAIM.match(str(line))
        if match and match[1] == metric and (match[2] or match[3]):
            try:
                return ClaimBounds(*(None if bound is None else float(bound) for bound in (match[2], match[3])))
            except ValueError:  # another program wrote the line
                continue
    return None


def judge_expectation(claim: Expectation, metrics: Mapping[str, float | None], doubts: Sequence[str]) -> Judgement:
    """Judge one expectation. ``doubts`` are reasons why this run's numbers may be wrong."""
    value = metrics.get(claim.metric)
    text = f"{claim.metric} {_format_bounds(claim)} ({claim.source}, {claim.date})"
    if value is None or not isfinite(value) or doubts:
        return Judgement("unknown", f"{text}: unknown, {'; '.join(doubts) or 'no value was measured'}")
    low_ok = claim.at_least is None or value >= claim.at_least
    met = low_ok and (claim.at_most is None or value <= claim.at_most)
    return Judgement("met" if met else "broken", f"{text}: {'met' if met else 'broken'}, measured {value:.6g}")


@dataclass(frozen=True, slots=True)
class Gate:
    """A bound from the command line: absolute, or relative to the compared run (then ``limit`` is a fraction)."""

    metric: str
    limit: float
    relative: bool

    @property
    def text(self) -> str:
        """The gate as the user would write it."""
        return f"{self.metric}:{self.limit * 100:g}%" if self.relative else f"{self.metric}:{self.limit:g}"


_ALSO_BOUNDED_BY = {"silent_loss_rate": "loss_rate"}
"""A bound on all losses is a bound on the silent ones."""


def allows(claim: Expectation, metrics: Mapping[str, float | None]) -> bool:
    """Return whether an expectation has an upper bound, and the measured value is known and within it."""
    value = metrics.get(claim.metric)
    return claim.at_most is not None and value is not None and value <= claim.at_most


def judge_facts(metrics: Mapping[str, float | None], bounded: Collection[str]) -> list[Judgement]:
    """Return a broken judgement for silent losses and corrupt content, except for metrics in ``bounded``.

    Doubts about a run do not matter here, because they undo no loss.
    """
    return [
        Judgement(
            "broken",
            f"gate {metric}: {value:.6g}, which no bound allows; --cloudbench-fail {metric}:BOUND would allow some",
        )
        for metric in FACTS
        if (value := metrics.get(metric)) and not {metric, _ALSO_BOUNDED_BY.get(metric, metric)} & set(bounded)
    ]


def parse_gate(text: str) -> Gate:
    """Read ``METRIC:BOUND``, such as ``loss_rate:0.01`` or ``response_p99:10%``. Raises UsageError."""
    head, mark, tail = text.strip().rpartition(":")
    metric, bound = (head, tail) if mark else (tail, "")
    if metric not in METRICS:
        near = did_you_mean(metric, METRICS)
        choice = f" with one of {', '.join(METRICS)}; or a suite's conclusion, if the command line names its folder"
        raise UsageError(f"gate {text!r}: expected METRIC:BOUND{near or choice}")
    relative = bound.endswith("%")
    try:
        limit = float(bound.removesuffix("%"))
    except ValueError:
        limit = float("nan")
    if not isfinite(limit) or limit < 0:
        raise UsageError(f"gate {text!r}: expected METRIC:BOUND with a bound such as 0.01 or 10%, found {bound!r}")
    if relative and limit >= 100 and METRICS[metric].better == "higher":
        raise UsageError(
            f"gate {text!r}: can never be broken, because a higher {metric} is better; expected less than 100%"
        )
    return Gate(metric, limit / 100 if relative else limit, relative)


def judge_gate(
    gate: Gate, metrics: Mapping[str, float | None], compared: BaselineValue | None, doubts: Sequence[str]
) -> Judgement:
    """Judge one gate. ``compared`` is the baseline of a relative gate. A run that the user named must exist."""
    value, unit = metrics.get(gate.metric), METRICS[gate.metric].unit
    shown_unit = f" {unit}" if unit not in ("", "fraction", IS_YES) else ""
    higher = METRICS[gate.metric].better == "higher"
    bound, comparison = gate.limit, ""
    if gate.relative:
        compared = compared or BaselineValue(None, "no baseline yet")
        if compared.value is None:
            status: Status = "unknown" if compared.fails else "note"
            return Judgement(status, f"gate {gate.text}: {'unknown, ' if compared.fails else ''}{compared.remark}")
        if higher and compared.value <= 0:
            reason = f"the compared run had {compared.value:g}, to which no percentage applies"
            return Judgement("unknown", f"gate {gate.text}: unknown, {reason}")
        bound = compared.value + (-1 if higher else 1) * gate.limit * abs(compared.value)
        side = "below" if higher else "above"
        comparison = f", {gate.limit * 100:g} % {side} the {compared.value:.6g} of the compared run"
        comparison += f" ({compared.remark})" if compared.remark else ""
    if value is None or not isfinite(value) or doubts:
        return Judgement("unknown", f"gate {gate.text}: unknown, {'; '.join(doubts) or 'no value was measured'}")
    met = value >= bound if higher else value <= bound
    relation = ("is within" if met else "breaks") + f" the bound {'>=' if higher else '<='} {bound:.6g}"
    return Judgement("met" if met else "broken", f"gate {gate.text}: {value:.6g}{shown_unit} {relation}{comparison}")
