"""Tests of the ranking: known differences are found, and equal candidates are not told apart."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from statistics import fmean, median
from typing import Any

import pytest

from pytest_cloudbench.judge.ranking import FEWEST_OPS, Candidate, distance, group_values, rank, spread_of
from pytest_cloudbench.judge.records import OpTable
from pytest_cloudbench.model import Op, Outcome, Verb


def operations(
    seed: int, middle_s: float, count: int = 200, drift: float = 0.3, ok_share: float = 1.0
) -> tuple[OpTable, list[float]]:
    """Return operations of one run and their times, which follow a slow walk with a spread around it."""
    random, walk, ops, times_s = Random(seed), 0.0, [], []
    for number in range(count):
        walk = 0.9 * walk + random.gauss(0.0, drift * 0.4)
        taken_s = middle_s * 2.0 ** (walk + random.gauss(0.0, 0.2))
        is_ok = random.random() < ok_share
        begin_ns = number * 10_000_000
        ops.append(
            Op(Verb.PUT, number, 0, 0, begin_ns, begin_ns, 0, begin_ns + round(taken_s * 1e9), 1000,
               Outcome.OK if is_ok else Outcome.THROTTLED)
        )  # fmt: skip
        times_s += [taken_s] if is_ok else []
    return OpTable.of(ops), times_s


def candidate(seed: int, middle_s: float, metric: str = "response_p50") -> Candidate:
    table, times_s = operations(seed, middle_s)
    return Candidate(median(times_s), spread_of(table, times_s)[metric])


def test_a_set_difference_is_found() -> None:
    ranking = rank("response_p50", {"slow": candidate(1, 0.2), "fast": candidate(2, 0.1), "slower": candidate(3, 0.3)})
    assert (ranking.verdict, ranking.leaders) == ("best", ("fast",))


def test_equal_providers_seldom_differ() -> None:
    """A significance test alone would find differences, because operations of one run depend on each other."""
    verdicts = [
        rank("response_p50", {"one": candidate(seed, 0.1), "other": candidate(seed + 1000, 0.1)}).verdict
        for seed in range(200)
    ]
    assert verdicts.count("best") <= 2


def test_leaders_that_do_not_differ_are_named_together() -> None:
    ranking = rank("response_p50", {"a": candidate(1, 0.1), "far": candidate(2, 0.4), "b": candidate(3, 0.1)})
    assert ranking.verdict == "among the best"
    assert set(ranking.leaders) == {"a", "b"}


def test_ranking_prefers_more_if_the_metric_does() -> None:
    many = {
        name: Candidate(rate, [rate * (1 + step / 50) for step in range(10)]) for name, rate in (("a", 5), ("b", 9))
    }
    assert rank("throughput", many).leaders == ("b",)


def test_refusals_are_found_and_a_percentage_point_is_not() -> None:
    def refusing(seed: int, share: float) -> Candidate:
        table, times_s = operations(seed, 0.1, count=500, ok_share=1 - share)
        return Candidate(1 - len(times_s) / 500, spread_of(table, times_s)["loss_rate"])

    assert rank("loss_rate", {"all": refusing(1, 0.0), "some": refusing(2, 0.2)}).leaders == ("all",)
    assert rank("loss_rate", {"all": refusing(1, 0.0), "few": refusing(2, 0.004)}).verdict == "close"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"samples": [0.1] * 4}, "too few repeats"), ({"value": None}, "only one value is known"),
        ({"exclusion": "all others have doubts"}, "all others have doubts"),
    ],
)  # fmt: skip
def test_ranking_has_no_leader_if_one_candidate_cannot_be_judged(changes: dict[str, Any], why: str) -> None:
    fast, slow = candidate(1, 0.1), candidate(2, 0.4)
    ranking = rank("response_p50", {"fast": fast, "slow": replace(slow, **changes)})
    assert (ranking.verdict, ranking.leaders, ranking.why) == ("not judged", (), why)


def test_a_difference_has_to_be_large_too() -> None:
    """It must be a quarter for one run each, a tenth for several runs, twice on a busy machine, and more than the
    generator's own error."""
    steady = {"a": Candidate(1.0, [1.0] * 10), "b": Candidate(1.2, [1.2] * 10)}
    assert rank("response_p50", steady).verdict == "close"
    assert rank(
        "response_p50", {name: replace(provider, is_of_runs=True) for name, provider in steady.items()}
    ).leaders == ("a",)
    far = {"a": Candidate(1.0, [1.0] * 10, is_busy=True), "b": Candidate(1.9, [1.9] * 10)}
    assert rank("response_p50", far).verdict == "close"
    assert rank("response_p50", {**far, "a": Candidate(1.0, [1.0] * 10)}).leaders == ("a",)
    assert rank("response_p50", {**far, "a": Candidate(1.0, [1.0] * 10, margin=1.0)}).verdict == "close"
    assert rank(
        "response_p50", {"a": Candidate(0.0002, [0.0002] * 10), "b": Candidate(0.0009, [0.0009] * 10)}
    ).verdict == ("close"), "less than a millisecond is the machine's"


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([1.0, 1.1, 0.9, 1.2, 0.8], "no difference found"),
        ([1.2, 1.21, 1.19, 1.2, 1.2], "differs by less than 25 %"),
        ([1.0, 1.9, 1.2, 1.8, 1.6], "differs, but not certain enough to mark"),
    ],
)
def test_close_providers_are_told_from_equal_ones(values: list[float], why: str) -> None:
    candidates = {"a": Candidate(1.0, [1.0, 1.01, 0.99, 1.0, 1.0]), "b": Candidate(fmean(values), values)}
    ranking = rank("response_p50", candidates)
    assert (ranking.verdict, ranking.why) == ("close", why)


def test_close_providers_differ_by_less_than_the_bound_of_the_farthest() -> None:
    """The bound of the nearer one is that of several runs, which is lower."""
    candidates = {
        "a": Candidate(1.0, [1.0, 1.001, 0.999, 1.0, 1.0], is_of_runs=True),
        "b": Candidate(1.05, [1.05, 1.051, 1.049, 1.05, 1.05], is_of_runs=True),
        "c": Candidate(1.2, [1.2, 1.21, 1.19, 1.2, 1.2]),
    }
    ranking = rank("response_p50", candidates)
    assert (ranking.verdict, ranking.why) == ("close", "differs by less than 25 %")


def test_more_providers_need_more_evidence() -> None:
    five = {str(number): Candidate(1.0 + number, [1.0 + number] * 5) for number in range(6)}
    assert rank("response_p50", dict(list(five.items())[:2])).verdict == "best"
    assert rank("response_p50", five).verdict == "close"


def test_a_metric_without_a_better_direction_is_not_judged() -> None:
    assert rank("polling", {"a": Candidate(1.0), "b": Candidate(2.0)}).verdict == "not judged"


def test_groups_are_consecutive_and_few() -> None:
    assert group_values(range(FEWEST_OPS - 1), fmean) == []
    assert group_values(range(FEWEST_OPS), fmean) == [2.0, 7.0, 12.0, 17.0, 22.0]
    assert len(group_values(range(100_000), fmean)) == 10


def test_a_rate_is_that_of_its_group() -> None:
    ops = [
        Op(Verb.PUT, number, 0, 0, 0, 0, 0, (number + 1) * 100_000_000, 1000, Outcome.OK) for number in range(50)
    ]  # fmt: skip
    assert spread_of(OpTable.of(ops), [])["throughput"] == pytest.approx([10_000.0] * 10)


def test_the_interval_of_a_distance_covers_the_truth_in_95_percent() -> None:
    random, covered_count = Random(5), 0
    for _ in range(400):
        one, other = ([centre * random.lognormvariate(0, 0.1) for _ in range(8)] for centre in (0.13, 0.1))
        result = distance("response_p50", Candidate(median(one), one), Candidate(median(other), other))
        assert result is not None
        assert not result.is_points
        assert result.low < result.value < result.high
        covered_count += result.low < 0.3 < result.high
    assert 368 <= covered_count <= 392  # 95 %, and three standard errors


def test_a_distance_of_shares_is_in_points() -> None:
    one, other = [0.10, 0.12, 0.11, 0.10, 0.12], [0.02, 0.01, 0.02, 0.01, 0.02]
    result = distance("failed_rate", Candidate(0.11, one), Candidate(0.016, other))
    assert result is not None
    assert result.is_points
    assert result.value == pytest.approx(0.094)
    assert 0.08 < result.low < result.value < result.high < 0.11
    far = distance("failed_rate", Candidate(0.96, [0.9, 1.0, 0.9, 1.0, 1.0]), Candidate(0.0, [0.0] * 5))
    assert far is not None
    assert far.high == 1.0, "no share can differ by more"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Candidate(0.1, [0.1] * 4), Candidate(0.2, [0.2] * 8)),  # too few
        (Candidate(0.1, [0.1] * 8, exclusion="doubts"), Candidate(0.2, [0.2] * 8)),
        (Candidate(0.0, [0.0] * 8), Candidate(0.2, [0.2] * 8)),  # no ratio to nothing
    ],
)
def test_candidates_that_cannot_be_judged_have_no_distance(one: Candidate, other: Candidate) -> None:
    assert distance("response_p50", one, other) is None


def test_known_first_byte_times_have_a_spread() -> None:
    ops = [
        Op(Verb.GET, 0, seq, 0, seq, seq + 10, seq + 10 + 2_000_000 * (1 + seq // 5), seq + 90_000_000, 9,
           Outcome.OK if seq % 5 else Outcome.FAILED)
        for seq in range(50)
    ]  # fmt: skip
    ops += [Op(Verb.PUT, 0, seq, 0, seq, seq + 10, 0, seq + 90_000_000, 9, Outcome.OK) for seq in range(50)]
    assert spread_of(OpTable.of(ops), [])["first_byte_p50"][0] == pytest.approx(0.002)
    assert spread_of(OpTable.of(ops[:50]), [])["first_byte_p50"][-1] == pytest.approx(0.02)
    assert "first_byte_p50" not in spread_of(OpTable.of(ops[50:]), [])
