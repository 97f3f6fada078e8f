"""Which steps to take, and all verdicts of what they showed.

What may live here: the first series of steps, what is still worth measuring after each series, and calling the
detectors so that a crash of one is an unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pytest_cloudbench.detect.sent import Sent, compression, deduplication, delta
from pytest_cloudbench.detect.values import KINDS, Observation, Step, Verdict, unknown
from pytest_cloudbench.detect.waits import bundling, chunking
from pytest_cloudbench.model import KIB, MIB

__all__ = ["CAPABILITIES", "first_steps", "judge", "more_steps"]

CAPABILITIES = ("chunking", "bundling", "deduplication", "delta", "compression")
"""In the order of IMC 2013, section 4."""

_DETECTORS: dict[str, Callable[[Sent, Sequence[Observation]], Verdict]] = {
    "chunking": chunking,
    "bundling": bundling,
    "deduplication": lambda sent, observations: deduplication(sent),
    "delta": lambda sent, observations: delta(sent),
    "compression": compression,
}

_FILE_BYTES, _BIG_BYTES = 16 * MIB, 48 * MIB
_EDIT_BYTES = 64
_FIRST = ("idle", "new", "copy", "text", "append", "insert", "change", "few", "many")
_ORDER = (
    "idle", "new", "copy", "text", "text_in_jpeg", "text_as_jpeg", "fake_jpeg", "jpeg", "append", "insert", "change",
    "twin_insert", "twin_change", "few", "many", "big", "delete", "restore",
)  # fmt: skip
_OF_BASE = ("copy", "append", "insert", "change", "twin_insert", "twin_change", "delete", "restore")
_MOST = 3
"""So often a kind is measured; new, larger bases twice."""
assert set(_ORDER) == set(KINDS)


def first_steps() -> tuple[Step, ...]:
    """What is always measured."""
    return tuple(_step(kind) for kind in _FIRST)


def more_steps(observations: Sequence[Observation]) -> tuple[Step, ...]:
    """What else would tell more; nothing when all is known, or when repeating has not helped.

    A pure function of what was observed: the same again gives the same steps.
    """
    wanted = {kind for verdict in judge(observations).values() for kind in verdict.wants}
    counts = {kind: sum(each.kind == kind for each in observations) for kind in KINDS}
    wanted = {kind for kind in wanted if counts[kind] < (2 if kind in ("new", "big") else _MOST)}
    if not wanted or "idle" in {kind for kind in wanted if counts[kind] > 1}:
        return ()
    since = [each.kind for each in observations]
    since = since[len(since) - since[::-1].index("new") :] if "new" in since else []
    if "new" not in wanted and any(kind in since for kind in wanted & set(_OF_BASE) if _was_valid(observations, kind)):
        wanted.add("new")
    if "new" in wanted:
        if counts["new"] > 1:
            return ()
        wanted |= {kind for kind in ("copy",) if "twin_change" in wanted or "twin_insert" in wanted}
    if "restore" in wanted:
        wanted.add("delete")
    if {"few", "many"} & wanted:
        wanted |= {"few", "many"}
    size = _FILE_BYTES * (3 if counts["new"] else 1)
    steps = [_step(kind, size if kind == "new" else 0) for kind in _ORDER if kind in wanted | {"idle"}]
    return tuple(steps)


def _was_valid(observations: Sequence[Observation], kind: str) -> bool:
    return any(each.kind == kind and each.is_valid for each in observations)


def _step(kind: str, size_bytes: int = 0) -> Step:
    if kind == "idle":
        return Step("idle", duration_s=4.0)
    if kind in ("few", "many"):
        return Step(kind, 1_000_000, 10 if kind == "few" else 100)
    sizes = {"new": _FILE_BYTES, "big": _BIG_BYTES, "text": 4 * MIB}
    if kind in _OF_BASE:
        return Step(kind, _EDIT_BYTES if kind not in ("copy", "delete", "restore") else 0)
    return Step(kind, size_bytes or sizes.get(kind, 2 * MIB))


def judge(observations: Sequence[Observation]) -> dict[str, Verdict]:
    """A verdict for each of CAPABILITIES. Never raises: what cannot be judged is unknown."""
    found = {}
    for name in CAPABILITIES:
        try:
            found[name] = _DETECTORS[name](Sent.of(observations), observations)
        except Exception as error:  # noqa: BLE001 - a crash is no answer, and must not take the others with it
            found[name] = unknown(name, f"the detector failed: {type(error).__name__}: {error}")
    return found
