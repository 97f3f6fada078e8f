"""Tests of the gate on two sides, which is broken if B is certainly worse and its measured change exceeds the margin.

It is met if that is certainly not so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, log, nan
from random import Random

import pytest

from pytest_cloudbench.judge.paired import DECIDING, BlockValues, Difference, compare, margin_of
from pytest_cloudbench.judge.paired_gate import judge_pairs
from pytest_cloudbench.judge.watched import paired_margin


def make_difference(
    change: float, low: float, high: float, metric: str = "service_p50", margin: float = 0.1
) -> Difference:
    return Difference(metric, 1.0, 1.0, False, change, low, high, 9, margin, "inconclusive")


@pytest.mark.parametrize(
    ("difference", "answer"),
    [
        (make_difference(0.98, 0.80, 1.18), "broken"),
        (make_difference(0.12, 0.01, 0.24), "broken"),
        (make_difference(0.08, 0.01, 0.16), "inconclusive"),
        (make_difference(0.12, -0.01, 0.26), "inconclusive"),
        (make_difference(0.00, -0.20, 0.20), "inconclusive"),
        (make_difference(0.05, 0.02, 0.09), "met"),
        (make_difference(0.00, -0.05, 0.05), "met"),
        (make_difference(-0.30, -0.40, -0.10), "met"),
        (make_difference(nan, -inf, inf), "inconclusive"),
        (make_difference(-0.30, -0.40, -0.10, "throughput"), "broken"),
        (make_difference(0.30, 0.10, 0.50, "throughput"), "met"),
        (make_difference(-0.08, -0.16, -0.01, "throughput"), "inconclusive"),
        (make_difference(0.03, 0.01, 0.05, "failed_rate", 0.01), "broken"),
        (make_difference(0.03, 0.01, 0.05, "failed_rate", 0.06), "met"),
    ],
)
def test_the_answer_about_one_metric(difference: Difference, answer: str) -> None:
    ruling = judge_pairs({difference.metric: difference}, [difference.metric], {}, ())
    assert (ruling.answer, ruling.answers) == (answer, {difference.metric: answer})
    assert list(ruling.giving) == [difference.metric]


MET, WORSE, OPEN = make_difference(0, -0.01, 0.01), make_difference(0.9, 0.8, 1.0), make_difference(0.05, -0.3, 0.4)
LEANING = make_difference(0.3, -0.3, 1.0)


def by_metric(**differences: Difference) -> dict[str, Difference]:
    return differences


@pytest.mark.parametrize(
    ("differences", "margins", "answer", "giving"),
    [
        (by_metric(service_p50=MET, quiet_p99=OPEN), {}, "met", ["service_p50"]),
        (by_metric(service_p50=MET, quiet_p99=LEANING), {}, "inconclusive", ["quiet_p99"]),
        (by_metric(service_p50=MET, quiet_p99=LEANING), {"quiet_p99": None}, "met", ["service_p50"]),
        (by_metric(service_p50=MET, quiet_p99=WORSE), {}, "broken", ["quiet_p99"]),
        (by_metric(service_p50=OPEN, quiet_p99=WORSE), {}, "broken", ["quiet_p99"]),
        (by_metric(service_p50=MET, response_p99=WORSE), {}, "met", ["service_p50"]),
        (by_metric(service_p50=MET, response_p99=WORSE), {"response_p99": 0.1}, "broken", ["response_p99"]),
        (by_metric(service_p50=OPEN, quiet_p50=MET), {}, "inconclusive", ["service_p50"]),
        (by_metric(service_p50=MET, service_p25=OPEN), {}, "met", ["service_p50"]),
        (by_metric(service_p50=MET, service_p25=LEANING), {}, "inconclusive", ["service_p25"]),
        (by_metric(service_p50=OPEN, service_p25=WORSE), {}, "broken", ["service_p25"]),
        (by_metric(service_p50=OPEN, quiet_p50=MET), {"service_p50": None}, "met", ["quiet_p50"]),
        (by_metric(service_p50=WORSE, quiet_p50=WORSE), {"p50": None}, "inconclusive", []),
        (by_metric(knee_threads=OPEN, tue=MET), {}, "inconclusive", ["knee_threads"]),
        (by_metric(knee_threads=MET, tue=MET), {}, "met", ["knee_threads", "tue"]),
        ({}, {}, "inconclusive", []),
    ],
)
def test_the_answer_about_an_experiment(
    differences: Mapping[str, Difference], margins: Mapping[str, float | None], answer: str, giving: list[str]
) -> None:
    renamed = {
        name: make_difference(difference.change, difference.low, difference.high, name)
        for name, difference in differences.items()
    }
    ruling = judge_pairs(renamed, DECIDING, margins, ())
    assert (ruling.answer, list(ruling.giving)) == (answer, giving)


@pytest.mark.parametrize(
    ("margins", "expected"),
    [
        ({}, 0.1),
        ({"service_p50": 5.0}, 5.0),
        ({"p50": 0.2}, 0.2),
        ({"service_p50": 5.0, "service_p25": 0.3}, 0.3),
        ({"service_p50": None}, None),
        ({"quiet_p50": 5.0}, 0.1),
    ],
)
def test_the_lower_quartile_takes_the_margin_of_the_median(
    margins: Mapping[str, float | None], expected: float | None
) -> None:
    assert paired_margin("service_p25", margins) == expected


@pytest.mark.parametrize(
    ("metric", "margin"),
    [
        ("service_p50", 0.10),
        ("service_p95", 0.25),
        ("service_p99", 0.25),
        ("service_p99.9", 0.25),
        ("service_max", 0.25),
    ],
)
def test_the_tail_has_a_wider_margin(metric: str, margin: float) -> None:
    assert margin_of(metric) == margin


def compare_corrupt(a: Sequence[float], b: Sequence[float]) -> tuple[str, str]:
    """Return the gate's answer on corrupt files, and that of the comparison, from the shares of each pair."""
    pairs = [
        (BlockValues({"corrupt_rate": share_a}, 400), BlockValues({"corrupt_rate": share_b}, 400))
        for share_a, share_b in zip(a, b, strict=True)
    ]
    differences = compare(pairs, (), lambda name: paired_margin(name, {}) or 0.0)
    ruling = judge_pairs(differences, (), {}, [b for _, b in pairs])
    return ruling.answers["corrupt_rate"], differences["corrupt_rate"].answer


CLEAN = (0.0,) * 12


def test_facts_have_no_margin_between_two_sides_either() -> None:
    assert [paired_margin(name, {}) for name in ("corrupt_rate", "silent_loss_rate")] == [0.0, 0.0]
    assert paired_margin("corrupt_rate", {"corrupt_rate": 0.01}) == 0.01
    assert compare_corrupt(CLEAN, (0.05,) * 12) == ("broken", "A better")
    assert compare_corrupt((0.05,) * 12, CLEAN) == ("met", "B better")


def test_two_sides_without_any_fact_are_met() -> None:
    assert compare_corrupt(CLEAN, CLEAN) == ("met", "no difference")
    assert compare_corrupt(CLEAN[:1], CLEAN[:1]) == ("inconclusive", "inconclusive"), "one pair shows nothing"


def test_a_fact_of_b_breaks_even_if_it_is_rare_or_a_has_as_much() -> None:
    rare = (*CLEAN[1:], 0.0025)
    assert compare_corrupt(CLEAN, rare) == ("broken", "inconclusive")
    assert compare_corrupt((0.05,) * 12, (0.05,) * 12) == ("broken", "no difference")
    assert compare_corrupt(rare, CLEAN) == ("met", "inconclusive")
    assert compare_corrupt(CLEAN[:1], (0.05,)) == ("broken", "inconclusive"), "one pair shows it"


def test_a_share_that_the_user_allows_does_not_break() -> None:
    margins = {"corrupt_rate": 0.01}
    for share, answer in ((0.002, "met"), (0.02, "broken")):
        pairs = [(BlockValues({"corrupt_rate": share}, 40_000), BlockValues({"corrupt_rate": share}, 40_000))] * 12
        ruling = judge_pairs(compare(pairs, (), lambda name: 0.01), (), margins, [b for _, b in pairs])
        assert ruling.answers["corrupt_rate"] == answer
        assert ruling.losses == ({} if answer == "met" else {"corrupt_rate": pytest.approx(share)})


def judge_losses(pairs: int, losing: int, a: float | None, b: float | None) -> tuple[str, str | None]:
    """Return the answer on two sides that differ in nothing but losses, which some pairs have, and that on losses."""
    rates = [(0.0, 0.0)] * (pairs - losing) + [(a, b)] * losing
    blocks = [
        (BlockValues({"service_p50": 0.1, "silent_loss_rate": a}, 100),
         BlockValues({"service_p50": 0.1, "silent_loss_rate": b}, 100))
        for a, b in rates
    ]  # fmt: skip
    differences = compare(blocks, ["service_p50"], lambda name: paired_margin(name, {}) or 0.0)
    ruling = judge_pairs(differences, ["service_p50"], {}, [b for _, b in blocks])
    return ruling.answer, ruling.answers.get("silent_loss_rate")


@pytest.mark.parametrize("losing", [1, 20])
def test_a_fact_that_is_not_known_of_each_block_is_not_met(losing: int) -> None:
    """As where a listing failed."""
    assert judge_losses(20, losing, 0.0, 0.0) == ("met", "met")
    assert judge_losses(20, losing, 0.0, None) == ("inconclusive", "inconclusive")
    assert judge_losses(20, losing, None, 0.05) == ("broken", "broken"), "whatever A has lost"
    assert judge_losses(20, losing, None, 0.0) == ("met", None), "B has none, so it has no more than A"
    assert judge_losses(20, 20, None, None) == ("met", None), "nobody has looked for it"


def session(random: Random, change: float, pairs: int = 60, sd: float = 0.1) -> str:
    """Return the answer of a session that checks after every pair, as a comparison does."""
    blocks = []
    for _ in range(pairs):
        a, b = random.gauss(0, sd / 2**0.5), log(1 + change) + random.gauss(0, sd / 2**0.5)
        blocks.append((BlockValues({"service_p50": 2.718**a}), BlockValues({"service_p50": 2.718**b})))
        ruling = judge_pairs(compare(blocks, ["service_p50"], lambda name: 0.1), ["service_p50"], {}, ())
        if ruling.answer != "inconclusive":
            return ruling.answer
    return "inconclusive"


def test_equal_sides_are_never_broken_and_a_quarter_always_is() -> None:
    random = Random(12)
    equal = [session(random, 0.0) for _ in range(60)]
    assert equal.count("broken") == 0
    assert equal.count("met") >= 55
    assert [session(random, 0.25) for _ in range(40)].count("broken") >= 39
