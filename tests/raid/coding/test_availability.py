"""The Poisson-binomial distribution against brute force, and the joint availability of Table III's clouds."""

from __future__ import annotations

import json
from itertools import product
from math import prod
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cloudbench.raid.coding.availability import chance_of_at_least, chance_of_fewer_than, up_count_chances

ROOT = Path(__file__).resolve().parents[3]


def table_3_failures() -> list[float]:
    """Return each cloud's errors over writes, as published."""
    entries = json.loads((ROOT / "results/published/cloud-raid-2012-table-3.json").read_text())["benchmarks"]
    return [entry["extra_info"]["errors"] / entry["extra_info"]["writes"] for entry in entries]


def brute_force_chances(failures: list[float]) -> list[float]:
    """Add up every combination of children that are up and down."""
    counts = [0.0] * (len(failures) + 1)
    for ups in product((False, True), repeat=len(failures)):
        counts[sum(ups)] += prod(
            1 - failure if is_up else failure for is_up, failure in zip(ups, failures, strict=True)
        )
    return counts


def test_chances_of_all_six_and_of_five_clouds_match_table_3() -> None:
    failures = table_3_failures()
    assert chance_of_at_least(6, failures) == pytest.approx(0.99626, abs=5e-6)
    assert chance_of_fewer_than(5, failures) == pytest.approx(1.0e-6, abs=5e-8)


def test_chance_of_fewer_than_four_of_six_at_99_percent() -> None:
    assert chance_of_fewer_than(4, [0.01] * 6) == pytest.approx(1.96e-5, abs=5e-8)


def test_more_children_do_not_help_against_a_shared_outage() -> None:
    assert chance_of_fewer_than(4, [0.01] * 6, shared=0.001) == pytest.approx(
        0.001 + 0.999 * chance_of_fewer_than(4, [0.01] * 6)
    )
    assert chance_of_fewer_than(1, [1e-9] * 20, shared=0.001) == pytest.approx(0.001)


def test_small_probabilities_are_exact() -> None:
    assert chance_of_fewer_than(1, [1e-6] * 5) == pytest.approx(1e-30, rel=1e-12)


@given(st.lists(st.floats(0, 1), max_size=8), st.data())
def test_chances_equal_brute_force(failures: list[float], data: st.DataObject) -> None:
    needed = data.draw(st.integers(0, len(failures)))
    counts = brute_force_chances(failures)
    assert up_count_chances(failures) == pytest.approx(counts, abs=1e-12)
    assert chance_of_at_least(needed, failures) == pytest.approx(sum(counts[needed:]), abs=1e-12)
    assert chance_of_fewer_than(needed, failures) == pytest.approx(sum(counts[:needed]), abs=1e-12)


@pytest.mark.parametrize(
    ("needed", "failures", "shared"), [(3, [0.1, 0.1], 0.0), (1, [1.5], 0.0), (1, [0.5], -0.1), (-1, [0.5], 0.0)]
)
def test_impossible_arguments_are_refused(needed: int, failures: list[float], shared: float) -> None:
    with pytest.raises(ValueError):
        chance_of_at_least(needed, failures, shared)
