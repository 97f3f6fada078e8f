"""The procedure: the steps to take, and the verdicts on all that they showed.

After the first series of steps, it decides what is still worth measuring. It calls the detectors so that a crash in one
becomes an unknown verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from pytest_cloudbench.lab.detect.bundling import bundling
from pytest_cloudbench.lab.detect.chunking import chunking
from pytest_cloudbench.lab.detect.sent import CHEAP, EditCosts, compression, deduplication, delta
from pytest_cloudbench.lab.detect.values import KINDS, Observation, Step, Verdict, unknown_verdict
from pytest_cloudbench.model import MIB

CAPABILITIES = ("chunking", "bundling", "deduplication", "delta", "compression")
"""The capabilities that are judged, in the order of IMC 2013, section 4."""

_DETECTORS: dict[str, Callable[[EditCosts, Sequence[Observation]], Verdict]] = {
    "chunking": chunking,
    "bundling": bundling,
    "deduplication": lambda sent, observations: deduplication(sent),
    "delta": lambda sent, observations: delta(sent),
    "compression": compression,
}

_FILE_BYTES = 16 * MIB
_BIG_BYTES = (48 * MIB, 160 * MIB)
"""The second size is used when the first shows pauses but too few pieces (one chunk and the rest). It shows three."""
_EDIT_BYTES = 64
_FIRST = ("idle", "new", "copy", "text", "append", "insert", "change", "few", "many")
_ORDER = (
    "idle", "new", "copy", "text", "text_in_jpeg", "text_as_jpeg", "fake_jpeg", "jpeg", "append", "insert", "change",
    "spliced", "twin_insert", "twin_change", "few", "many", "big", "delete", "restore",
)  # fmt: skip
_OF_BASE = ("copy", "append", "insert", "change", "spliced", "twin_insert", "twin_change", "delete", "restore")
_PLACES = 8
"""The number of random places of a file that are edited at once."""
_MOST = 3
"""The most times that a kind is measured, except ``new`` and ``big``: at most twice, the second time larger."""


def first_steps() -> tuple[Step, ...]:
    """Return the steps that are always measured."""
    return tuple(_make_step(kind) for kind in _FIRST)


def more_steps(observations: Sequence[Observation]) -> tuple[Step, ...]:
    """Return the steps that would tell more.

    Returns none when everything is known, or when repeating has not helped. Detectors say what they lack. Measuring a
    kind again on the same file tells little, so edits are repeated on a new file, three times as large. A pure function
    of the observations.
    """
    counts = {kind: sum(observation.kind == kind for observation in observations) for kind in KINDS}
    lacking = {kind for verdict in judge_capabilities(observations).values() for kind in verdict.wants}
    kinds = {kind for kind in lacking - {"idle"} if counts[kind] < (2 if kind in ("new", "big") else _MOST)}
    if not kinds:
        return ()
    if kinds & set(_OF_BASE) & _measured_kinds(observations):
        kinds.add("new")
    if "new" in kinds:
        if counts["new"] > 1:
            kinds -= {"new", *_OF_BASE}
        elif kinds & {"twin_insert", "twin_change"}:
            kinds |= {"copy", "insert", "change"}
    for pair in (("delete", "restore"), ("few", "many")):
        if kinds & set(pair):
            kinds |= set(pair)
    sizes = {"new": _FILE_BYTES * (3 if counts["new"] else 1), "big": _BIG_BYTES[min(counts["big"], 1)]}
    repeats = {"spliced": _PLACES}
    steps = tuple(
        _make_step(kind, sizes.get(kind, 0)) for kind in _ORDER if kind in kinds for _ in range(repeats.get(kind, 1))
    )
    return (_make_step("idle"), *steps) if steps else ()


def _measured_kinds(observations: Sequence[Observation]) -> set[str]:
    """Return the kinds of step already observed (validly) since the last new file."""
    kinds: set[str] = set()
    for observation in observations:
        if observation.kind == "new":
            kinds.clear()
        if observation.is_valid:
            kinds.add(observation.kind)
    return kinds


def _make_step(kind: str, size_bytes: int = 0) -> Step:
    if kind == "idle":
        return Step("idle", duration_s=4.0)
    if kind in ("few", "many"):
        return Step(kind, 1_000_000, 10 if kind == "few" else 100)
    sizes = {"new": _FILE_BYTES, "text": 4 * MIB}
    if kind in _OF_BASE:
        return Step(kind, _EDIT_BYTES if kind not in ("copy", "delete", "restore") else 0)
    return Step(kind, size_bytes or sizes.get(kind, 2 * MIB))


def judge_capabilities(observations: Sequence[Observation]) -> dict[str, Verdict]:
    """Return a verdict for each of CAPABILITIES. Never raises: a capability that cannot be judged is unknown."""
    observations = [_doubt_restart(observation) for observation in observations]
    verdicts = {}
    for name in CAPABILITIES:
        try:
            verdicts[name] = _DETECTORS[name](EditCosts.measure(observations), observations)
        except Exception as error:  # a crash is not an answer, and must not affect the others
            verdicts[name] = unknown_verdict(name, f"the detector failed: {type(error).__name__}: {error}")
        verdicts[name] = _add_causes(verdicts[name], observations)
    return verdicts


def _doubt_restart(observation: Observation) -> Observation:
    """Make the cost of an edit invalid if the client may have forgotten the file. A cheap one shows that it has not."""
    is_cheap = observation.up_bytes <= CHEAP * observation.size_bytes
    if not observation.is_restarted or not observation.is_valid or observation.kind not in _OF_BASE or is_cheap:
        return observation
    return replace(observation, reasons=("a process of the client that saw the file new has ended since",))


def _add_causes(verdict: Verdict, observations: Sequence[Observation]) -> Verdict:
    """Explain an unknown verdict that lacks observations: add the reasons why attempted ones were unusable."""
    valid = {observation.kind for observation in observations if observation.is_valid}
    lacking = set(verdict.wants) - valid
    causes = dict.fromkeys(
        f"{observation.kind}: {reason}"
        for observation in observations
        if observation.kind in lacking
        for reason in observation.reasons
    )
    if verdict.answer != "unknown" or not causes:
        return verdict
    first, *others = causes
    suffix = f" (and {len(others)} more)" if others else ""
    return replace(verdict, detail=f"{verdict.detail}; {first}{suffix}", evidence=(*verdict.evidence, *causes))
