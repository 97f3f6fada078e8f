"""Claims about the experiments of a page with their outcomes: expectations, and the lines of the regression gate.

Entries may come from anybody, and from versions that stored less.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_cloudbench.report.gathering import Measurement

ANSWERS = {"broken": "Broken", "unknown": "Unknown", "inconclusive": "Inconclusive", "note": "Without a baseline",
           "met": "Met"}  # fmt: skip
"""The possible outcomes of a claim with their titles, the most important ones first."""

MARKS = {"met": "\u2713 met", "broken": "\u2717 broken", "unknown": "? unknown", "inconclusive": "? inconclusive",
         "note": "\u2013 no baseline"}  # fmt: skip

_GATE_ANSWERS = frozenset({"met", "broken", "inconclusive"})


@dataclass(frozen=True, slots=True)
class ClaimOutcome:
    """One claim about an experiment, with its status, which is a key of ``ANSWERS``."""

    status: str
    claim: str
    about: Measurement


def list_claims(measurements: Sequence[Measurement]) -> list[ClaimOutcome]:
    """Return all claims about the experiments."""
    return [claim for measurement in measurements for claim in _measurement_claims(measurement)]


def _measurement_claims(measurement: Measurement) -> Iterator[ClaimOutcome]:
    outcomes = [*_expectation_claims(measurement), *gate_claims(measurement)]
    yield from outcomes
    if any(claim.status == "broken" for claim in outcomes):  # a broken claim already explains why the test failed
        return
    if measurement.info.get("outcome") == "failed":
        yield ClaimOutcome("broken", "the test failed", measurement)
    elif measurement.info.get("outcome") == "interrupted":
        yield ClaimOutcome("unknown", "the run was interrupted", measurement)


def _expectation_claims(measurement: Measurement) -> Iterator[ClaimOutcome]:
    lines, statuses = measurement.info["expectations"], measurement.info["statuses"]
    unmet = set(measurement.info["expectations_unmet"])
    for index, line in enumerate(lines):
        if line == "no expectation":
            continue
        if len(statuses) == len(lines) and statuses[index] in MARKS:
            status = statuses[index]
        elif line in unmet:  # older versions stored no status
            status = "broken" if ": broken, " in line or " breaks the bound " in line else "unknown"
        else:
            status = "met"
        yield ClaimOutcome(status, line, measurement)


def gate_claims(measurement: Measurement) -> Iterator[ClaimOutcome]:
    """Yield the lines of the regression gate, each with the gate's answer."""
    answer, lines = measurement.info["gate"].get("answer"), measurement.info["gate"].get("lines")
    if isinstance(answer, str) and answer in _GATE_ANSWERS:
        gate_lines = [str(line) for line in lines] if isinstance(lines, list) else []
        yield from (ClaimOutcome(answer, line, measurement) for line in gate_lines or [f"gate {answer}"])
