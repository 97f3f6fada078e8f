"""The words about the end of a run that had to go on until its metric is steady."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_cloudbench.judge.records import OpTable
from pytest_cloudbench.judge.steady import Stable
from pytest_cloudbench.load.engine.stopping import describe_end
from pytest_cloudbench.model import Op, Outcome, Verb

OPS = 1000
MS = 10**6


def describe_run(response_ms: Callable[[int], int]) -> str:
    """Describe the end of a run at its budget, one operation after the other."""
    ops, now_ns = list[Op](), 0
    for seq in range(OPS):
        start_ns, now_ns = now_ns, now_ns + response_ms(seq) * MS
        ops.append(Op(Verb.PUT, 0, seq, 0, start_ns, start_ns, 0, now_ns, 1, Outcome.OK))
    (note,) = describe_end(OpTable.of(ops, {}), Stable("response_p50"), (OPS, OPS), 0, None).notes
    return note


@pytest.mark.parametrize(
    ("response_ms", "words"),
    [
        (lambda seq: 5, "response_p50 not steady for long enough, known to ±0.0% (±2.0% was asked for)"),
        (lambda seq: 5 + seq // 100 % 2, "response_p50 not steady, known to ±6.9% (±2.0% was asked for)"),
        (lambda seq: 1000 + seq * 8 // 100, "response_p50 not steady, known to ±1.7% (±2.0% was asked for)"),
    ],
    ids=["steady once", "wandering", "rising, but precise"],
)
def test_a_run_at_its_budget_says_if_it_was_steady_at_its_end(response_ms: Callable[[int], int], words: str) -> None:
    assert describe_run(response_ms) == f"ended at its budget of 1,000 operations: {words}"
