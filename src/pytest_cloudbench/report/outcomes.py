"""What was expected of the experiments of a page, and what came of it: expectations, and the regression gate.

What may live here: stored lines into one answer each. Entries may come from anybody, and from versions
that stored less.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_cloudbench.report.gathering import Measurement

ANSWERS = {"broken": "Broken", "unknown": "Unknown", "inconclusive": "Inconclusive", "note": "Without a baseline",
           "met": "Met"}  # fmt: skip
"""What a claim can come to, and its title, in the order in which a reader wants to know."""

MARKS = {"met": "\u2713 met", "broken": "\u2717 broken", "unknown": "? unknown", "inconclusive": "? inconclusive",
         "note": "\u2013 no baseline"}  # fmt: skip

_OF_GATE = frozenset({"met", "broken", "inconclusive"})


@dataclass(frozen=True, slots=True)
class Claimed:
    """One claim about an experiment, and what it came to: a key of ``ANSWERS``."""

    status: str
    claim: str
    about: Measurement


def claims(found: Sequence[Measurement]) -> list[Claimed]:
    """Return all claims about some experiments."""
    return [claim for each in found for claim in _claims(each)]


def _claims(each: Measurement) -> Iterator[Claimed]:
    known = [*_expected(each), *gated(each)]
    yield from known
    if any(claim.status == "broken" for claim in known):  # which says why the test failed
        return
    if each.info.get("outcome") == "failed":
        yield Claimed("broken", "the test failed", each)
    elif each.info.get("outcome") == "interrupted":
        yield Claimed("unknown", "the run was interrupted", each)


def _expected(each: Measurement) -> Iterator[Claimed]:
    lines, statuses = each.info["expectations"], each.info["statuses"]
    unmet = set(each.info["expectations_unmet"])
    for place, line in enumerate(lines):
        if line == "no expectation":
            continue
        if len(statuses) == len(lines) and statuses[place] in MARKS:
            status = statuses[place]
        elif line in unmet:  # of a run that did not store it
            status = "broken" if ": broken, " in line or " breaks the bound " in line else "unknown"
        else:
            status = "met"
        yield Claimed(status, line, each)


def gated(each: Measurement) -> Iterator[Claimed]:
    """Yield the lines of the regression gate, all of which gave its answer."""
    answer, lines = each.info["gate"].get("answer"), each.info["gate"].get("lines")
    if isinstance(answer, str) and answer in _OF_GATE:
        told = [str(line) for line in lines] if isinstance(lines, list) else []
        yield from (Claimed(answer, line, each) for line in told or [f"gate {answer}"])
