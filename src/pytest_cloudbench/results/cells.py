"""The cells of the index: texts that stand for values of an entry, and what several of them say together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from types import MappingProxyType
from typing import Any

from pytest_cloudbench.judge.baseline import baseline_faults


def escape_text(value: str) -> str:
    """Return a text that UTF-8 can hold, because JSON can have half of a surrogate pair."""
    return value.encode("utf-8", "backslashreplace").decode()


def encode_json(value: Any) -> str:
    """Encode a value as short JSON."""
    return json.dumps(value, separators=(",", ":"))


@cache
def find_faults(schema: int, outcome: str, gate: str, doubts: str, missing: str, sides: str) -> tuple[str, ...]:
    """Return why an entry may not be a baseline, once for each combination of cells, since many rows have the same."""
    return tuple(baseline_faults(decode_conditions(schema, outcome, gate, doubts, missing, sides)))


def decode_conditions(schema: int, outcome: str, gate: str, doubts: str, missing: str, sides: str) -> dict[str, Any]:
    """Return the fields of an entry that decide whether it may be a baseline."""
    gated = {"gate": {"answer": gate.partition(" ")[0], "quarantined": " " in gate}} if gate else {}
    return {
        "schema": schema, "outcome": outcome, **gated, "doubts": decode_json(doubts),
        "missing_agents": decode_json(missing), **(decode_json(sides) if sides else {}),
    }  # fmt: skip


def gate_text(gate: Any) -> str:
    """Return the regression gate's answer, and a word if the run was an outlier."""
    answer = gate.get("answer") if isinstance(gate, dict) else None
    return answer + " quarantined" * bool(gate.get("quarantined")) if isinstance(answer, str) else ""


@cache
def decode_json(text: str) -> Any:
    """Decode JSON of the index, once for each text, since many rows have the same."""
    value = json.loads(text)
    return MappingProxyType(value) if isinstance(value, dict) else value


def combine_outcomes(outcomes: Sequence[str]) -> str:
    """Return the outcome of a run with entries of these outcomes."""
    if any(outcome in ("interrupted", "unfinished") for outcome in outcomes):
        return "interrupted"
    if any(outcome in ("failed", "error") for outcome in outcomes):
        return "failed"
    return "passed" if all(outcomes) else "unknown"


def describe_emulated(flags: Sequence[Any]) -> str:
    """Return whether all, some or none of the entries with these flags were of emulated providers."""
    if all(flag is True for flag in flags):
        return "all"
    return "some" if any(flags) else "none"
