"""The seconds that a service asks its clients to wait."""

from __future__ import annotations

import pytest

from pytest_cloudbench import seconds_of

NOON = "Fri, 20 Nov 2026 12:00:00 GMT"


@pytest.mark.parametrize(
    ("header", "date", "seconds"),
    [
        ("7", None, 7.0),
        (" 0 ", NOON, 0.0),
        ("Fri, 20 Nov 2026 12:00:30 GMT", NOON, 30.0),
        ("Friday, 20-Nov-26 12:01:00 GMT", NOON, 60.0),
        ("Fri Nov 20 12:00:05 2026", "Fri Nov 20 12:00:00 2026", 5.0),
        ("Fri, 20 Nov 2026 11:00:00 GMT", NOON, 0.0),
        (NOON, None, None),
        (NOON, "today", None),
        (NOON, "Fri, 20 Nov 2026 12:00:00 -0000", None),
        (None, NOON, None),
        ("", NOON, None),
        ("soon", NOON, None),
        ("-1", NOON, None),
        ("\u0667", NOON, None),
    ],
)
def test_wait_is_a_number_or_a_date_after_that_of_the_answer(
    header: str | None, date: str | None, seconds: float | None
) -> None:
    assert seconds_of(header, date) == seconds
