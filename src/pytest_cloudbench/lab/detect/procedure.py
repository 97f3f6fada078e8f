"""Which steps to take, and all verdicts of what they showed.

What may live here: the first series of steps, what is still worth measuring after each series, and calling the
detectors so that a crash in one becomes an unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from pytest_cloudbench.lab.detect.bundling import bundling
from pytest_cloudbench.lab.detect.chunking import chunking
from pytest_cloudbench.lab.detect.sent import EditCosts, compression, deduplication, delta
from pytest_cloudbench.lab.detect.values import KINDS, Observation, Step, Verdict, unknown
from pytest_cloudbench.model import MIB

CAPABILITIES = ("chunking", "bundling", "deduplication", "delta", "compression")
"""In the order of IMC 2013, section 4."""

_DETECTORS: dict[str, Callable[[EditCosts, Sequence[Observation]], Verdict]] = {
    "chunking": chunking,
    "bundling": bundling,
    "deduplication": lambda sent, observations: deduplication(sent),
    "delta": lambda sent, observations: delta(sent),
    "compression": compression,
}

_FILE_BYTES = 16 * MIB
_BIG_BYTES = (48 * MIB, 160 * MIB)
"""The second size is used when the first shows pauses but too few pieces (one chunk and the rest); it shows three."""
_EDIT_BYTES = 64
_FIRST = ("idle", "new", "copy", "text", "append", "insert", "change", "few", "many")
_ORDER = (
    "idle", "new", "copy", "text", "text_in_jpeg", "text_as_jpeg", "fake_jpeg", "jpeg", "append", "insert", "change",
    "spliced", "twin_insert", "twin_change", "few", "many", "big", "delete", "restore",
)  # fmt: skip
_OF_BASE = ("copy", "append", "insert", "change", "spliced", "twin_insert", "twin_change", "delete", "restore")
_PLACES = 8
"""How many random places of a file are edited at once."""
_MOST = 3
"""How often a kind is measured; new, larger bases twice."""


def first_steps() -> tuple[Step, ...]:
    """What is always measured."""
    return tuple(_step(kind) for kind in _FIRST)


def more_steps(observations: Sequence[Observation]) -> tuple[Step, ...]:
    """Steps that would tell more; none when everything is known, or when repeating has not helped.

    Detectors say what they lack. Measuring a kind again on the same file tells little, so edits are repeated on a new
    file, three times as large. A pure function of what was observed.
    """
    counts = {kind: sum(each.kind == kind for each in observations) for kind in KINDS}
    lacking = {kind for verdict in judge(observations).values() for kind in verdict.wants}
    wanted = {kind for kind in lacking - {"idle"} if counts[kind] < (2 if kind in ("new", "big") else _MOST)}
    if not wanted:
        return ()
    if wanted & set(_OF_BASE) & _measured(observations):
        wanted.add("new")
    if "new" in wanted:
        if counts["new"] > 1:
            wanted -= {"new", *_OF_BASE}
        elif wanted & {"twin_insert", "twin_change"}:
            wanted |= {"copy", "insert", "change"}
    for pair in (("delete", "restore"), ("few", "many")):
        if wanted & set(pair):
            wanted |= set(pair)
    sizes = {"new": _FILE_BYTES * (3 if counts["new"] else 1), "big": _BIG_BYTES[min(counts["big"], 1)]}
    times = {"spliced": _PLACES}
    steps = tuple(
        _step(kind, sizes.get(kind, 0)) for kind in _ORDER if kind in wanted for _ in range(times.get(kind, 1))
    )
    return (_step("idle"), *steps) if steps else ()


def _measured(observations: Sequence[Observation]) -> set[str]:
    """Kinds of which there is a valid observation since the last new file."""
    found: set[str] = set()
    for each in observations:
        found = set() if each.kind == "new" else found
        if each.is_valid:
            found.add(each.kind)
    return found


def _step(kind: str, size_bytes: int = 0) -> Step:
    if kind == "idle":
        return Step("idle", duration_s=4.0)
    if kind in ("few", "many"):
        return Step(kind, 1_000_000, 10 if kind == "few" else 100)
    sizes = {"new": _FILE_BYTES, "text": 4 * MIB}
    if kind in _OF_BASE:
        return Step(kind, _EDIT_BYTES if kind not in ("copy", "delete", "restore") else 0)
    return Step(kind, size_bytes or sizes.get(kind, 2 * MIB))


def judge(observations: Sequence[Observation]) -> dict[str, Verdict]:
    """A verdict for each of CAPABILITIES. Never raises: a capability that cannot be judged is unknown."""
    found = {}
    for name in CAPABILITIES:
        try:
            found[name] = _DETECTORS[name](EditCosts.of(observations), observations)
        except Exception as error:  # a crash is not an answer, and must not affect the others
            found[name] = unknown(name, f"the detector failed: {type(error).__name__}: {error}")
        found[name] = _with_cause(found[name], observations)
    return found


def _with_cause(verdict: Verdict, observations: Sequence[Observation]) -> Verdict:
    """A verdict that is unknown for lack of observations also says why the attempted ones were unusable."""
    valid = {each.kind for each in observations if each.is_valid}
    lacking = set(verdict.wants) - valid
    causes = dict.fromkeys(
        f"{each.kind}: {reason}" for each in observations if each.kind in lacking for reason in each.reasons
    )
    if verdict.answer != "unknown" or not causes:
        return verdict
    first, *others = causes
    more = f" (and {len(others)} more)" if others else ""
    return replace(verdict, detail=f"{verdict.detail}; {first}{more}", evidence=(*verdict.evidence, *causes))
