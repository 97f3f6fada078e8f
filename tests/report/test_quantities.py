"""Numbers have the same rounding and format in all texts for people."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_cloudbench.report import quantities
from pytest_cloudbench.report.hosts import describe_line
from pytest_cloudbench.report.table import column_of


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"), (2.137e4, "21,370"), (1e12, "1,000,000,000,000"), (999.96, "1,000"), (215.49, "215"),
        (0.06171, "0.0617"), (1.2e-5, "0.000012"), (-0.5, "-0.5"),
    ],
)  # fmt: skip
def test_numbers_have_no_exponent(value: float, shown: str) -> None:
    assert quantities.format_number(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0.00 %"),
        (1, "100.00 %"),
        (0.586666, "58.67 %"),
        (0.99998, "99.998 %"),
        (0.00002, "0.002 %"),
        (0.99655, "99.655 %"),
        (3e-7, "0.00003 %"),
        (0.9999997, "99.99997 %"),
    ],
)
def test_shares_near_zero_and_one_are_distinct(value: float, shown: str) -> None:
    assert quantities.format_share(value) == shown
    assert quantities.format_short_share(value) == shown.replace(".00 %", " %")


@pytest.mark.parametrize(
    ("difference", "shown"),
    [
        (0, "+0.00"), (0.06, "+6.00"), (-0.1234, "-12.34"), (0.00002, "+0.002"), (-0.0000123, "-0.001"),
        (0.58 - 58 / 100 - 1e-16, "+0.00"), (0.1 + 0.2 - 0.3, "+0.00"), (-1e-17, "+0.00"),
    ],
)  # fmt: skip
def test_a_difference_in_points_is_zero_only_if_there_is_none(difference: float, shown: str) -> None:
    assert quantities.format_points(difference) == f"{shown} points"


@pytest.mark.parametrize(
    ("size_bytes", "shown"),
    [(512 * 1024, "512 KiB"), (10**7, "10 MB"), (8 << 20, "8 MiB"), (1 << 30, "1 GiB"), (10_001, "10,001 B"),
     (0, "0 B")],
)  # fmt: skip
def test_chosen_sizes_are_exact(size_bytes: int, shown: str) -> None:
    assert quantities.format_chosen_size(size_bytes) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [({}, "-"), ([], "-"), (None, "-"), ({"one": 2, "two": []}, "one 2, two -"), ([1.5, "a"], "1.5, a"), (True, "yes"),
     (21_370.4, "21,370"), (1.0036, "1.004")],
)  # fmt: skip
def test_cells_are_readable_values(value: Any, shown: str) -> None:
    assert quantities.format_value(value) == shown
    assert column_of("an_extra_value")[2](value) == shown


def test_bytes_have_a_suitable_unit() -> None:
    assert quantities.format_with_unit(21_370.4, "bytes") == "21.4 kB"
    title, _, show = column_of("wire_bytes_per_op")
    assert (title, show(21_370.4)) == ("wire bytes per op", "21.4 kB")


def test_long_round_trips_have_no_exponent() -> None:
    line = {"round_trip_min_s": 1.5, "provider": "s3", "date": "2026-11-29"}
    assert describe_line(line).startswith("1,500 ms ")


@pytest.mark.parametrize("seconds", [0.0061712, 0.059321, 0.21549, 0.2155, 0.99])
def test_columns_and_sentences_round_alike(seconds: float) -> None:
    assert f"{column_of('response_p50')[2](seconds)} ms" == quantities.format_seconds(seconds)
