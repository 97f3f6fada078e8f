"""The rows of the index: what it holds of an entry, as texts and numbers, and what several cells say together.

Schema 8 has a row for each entry of a run, in the order of their times. Columns: ``place`` and ``run`` (the entry's
file and its run, below the storage), ``fullname``, ``name``, ``params`` (JSON), ``time_ms`` (Unix epoch), ``commit``,
``branch``, ``is_dirty``, ``outcome``, ``gate`` (the regression gate's answer, and a word if the run was an outlier),
``schema``, ``doubts`` (JSON), ``missing_agents`` (JSON), ``fingerprint`` (JSON: conditions that must be equal in runs
that are compared), ``facts`` (JSON: provider, emulated, published, profile, location), ``run_id``, ``records`` (JSON:
ops_file or ops_files), ``sides`` (JSON: the result of a comparison of two sides, or the block of an entry, empty for
others), ``columns`` (JSON: the names that the table of a conclusion shows), ``units`` (JSON: by name, those that the
entry's suite declares, empty for others), and each number at the top level of any entry's extra_info, such as
``response_p50``, and some of each host's, such as ``response_p50@oslo``, as a double.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any

from pytest_cloudbench.judge.baseline import CONDITIONS, baseline_faults, conditions_of, is_finite
from pytest_cloudbench.results import stored
from pytest_cloudbench.results.suite import read_conclusions

SCHEMA = f"8 {' '.join(CONDITIONS)}"
"""The version of the index, which is made again if the conditions are others: rows are grouped by their text."""
TEXT_COLUMNS = (
    "place", "run", "fullname", "name", "params", "commit", "branch", "outcome", "gate", "doubts", "missing_agents",
    "fingerprint", "facts", "run_id", "records", "sides", "columns", "units",
)  # fmt: skip
INTEGER_COLUMNS = ("time_ms", "is_dirty", "schema")
FIXED_COLUMNS = frozenset({*TEXT_COLUMNS, *INTEGER_COLUMNS})
CONDITION_COLUMNS = ("schema", "outcome", "gate", "doubts", "missing_agents", "sides")
"""Columns that decide whether an entry may be a baseline, whatever the metric."""
_FACT_KEYS = ("provider", "emulated", "published", "profile", "location")
_RECORD_KEYS = ("ops_file", "ops_files")
_MAX_NAME_LENGTH = 100


@dataclass(slots=True)
class NewRows:
    """Rows that are not in the file of the index, as columns."""

    fixed: dict[str, list[Any]] = field(
        default_factory=lambda: {name: [] for name in (*TEXT_COLUMNS, *INTEGER_COLUMNS)}
    )
    numbers: list[dict[str, float]] = field(default_factory=list)


def make_row(
    file: stored.RunFile, commit: stored.Commit, stored_ms: int | None, entry: stored.StoredEntry
) -> tuple[dict[str, Any], dict[str, float]]:
    """Return the row of an entry: its cells in the fixed columns, and its numbers. Raises TypeError and ValueError.

    Args:
        file: the file of its run.
        commit: that of the code under test.
        stored_ms: when the run was stored, Unix epoch, milliseconds. None if unknown.
        entry: the entry.
    """
    info = entry.info
    units = {name: row.unit for name, row in read_conclusions(info.get("suite")).items()}
    fixed: dict[str, Any] = {
        "place": file.place,
        "run": file.run,
        "fullname": entry.fullname,
        "name": entry.name,
        "params": _encode_json(entry.params),
        "time_ms": stored.start_ms(info) or stored_ms or file.mtime_ns // 1_000_000,
        "commit": commit.id,
        "branch": commit.branch,
        "is_dirty": int(commit.is_dirty),
        "outcome": str(info.get("outcome", "")),
        "gate": _gate_text(info.get("gate")),
        "schema": entry.schema,
        "doubts": _encode_json(info.get("doubts", [])),
        "missing_agents": _encode_json(info.get("missing_agents", {})),
        "fingerprint": _encode_json({"schema": entry.schema, **conditions_of(info)}),
        "facts": _encode_json({key: info[key] for key in _FACT_KEYS if key in info}),
        "run_id": str(info.get("run_id", "")),
        "records": _encode_json({key: info[key] for key in _RECORD_KEYS if key in info}),
        "sides": _encode_json(sides) if (sides := stored.read_sides(info)) else "",
        "columns": _encode_json(stored.read_columns(info)),
        "units": _encode_json(units) if units else "",
    }
    numbers = {
        name: float(value) for name, value in {**info, **stored.read_host_numbers(info)}.items()
        if is_finite(value) and len(name) <= _MAX_NAME_LENGTH and name not in fixed
    }  # fmt: skip
    return {name: _escape_text(value) if name in TEXT_COLUMNS else value for name, value in fixed.items()}, numbers


def _escape_text(value: str) -> str:
    """Return a text that UTF-8 can hold, because JSON can have half of a surrogate pair."""
    return value.encode("utf-8", "backslashreplace").decode()


def _encode_json(value: Any) -> str:
    """Encode a value as short JSON."""
    return json.dumps(value, separators=(",", ":"))


@cache
def find_faults(schema: int, outcome: str, gate: str, doubts: str, missing: str, sides: str) -> tuple[str, ...]:
    """Return why an entry may not be a baseline. Cached, because many rows have the same cells."""
    return tuple(baseline_faults(decode_conditions(schema, outcome, gate, doubts, missing, sides)))


def decode_conditions(schema: int, outcome: str, gate: str, doubts: str, missing: str, sides: str) -> dict[str, Any]:
    """Return the fields of an entry that decide whether it may be a baseline."""
    gated = {"gate": {"answer": gate.partition(" ")[0], "quarantined": " " in gate}} if gate else {}
    return {
        "schema": schema, "outcome": outcome, **gated, "doubts": decode_json(doubts),
        "missing_agents": decode_json(missing), **(decode_json(sides) if sides else {}),
    }  # fmt: skip


def _gate_text(gate: Any) -> str:
    """Return the regression gate's answer, and a word if the run was an outlier."""
    answer = gate.get("answer") if isinstance(gate, dict) else None
    if not isinstance(answer, str):
        return ""
    return f"{answer} quarantined" if gate.get("quarantined") else answer


@cache
def decode_json(text: str) -> Any:
    """Decode JSON of the index. Cached, because many rows have the same text."""
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
