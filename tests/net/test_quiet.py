"""A client counts as done when its traffic has ended, and not before it has begun."""

from __future__ import annotations

import pytest

from pytest_cloudbench.net.quiet import QuietWatch


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([(1, 1000), (6, 1000), (60, 1000)], None),  # no traffic yet: the client may not have noticed
        ([(1, 5_000), (6, 9_000), (12, 13_000)], None),  # chatter
        ([(1, 50_000), (5, 50_000), (6, 50_000)], 6),
        ([(40, 50_000), (44, 50_000), (45, 50_000)], 45),  # late
        ([(1, 50_000), (5, 90_000), (6, 90_000), (10, 95_000)], 10),  # the traffic went on, and chatter does not count
        ([(second, 50_000 * second) for second in range(100)], None),
    ],
)
def test_quiet_is_a_sign_only_after_traffic(counts: list[tuple[float, int]], expected: float | None) -> None:
    watch = QuietWatch(5.0, 20_000, 1000, 0.0)
    quiet_s = [now_s for now_s, carried_bytes in counts if watch.is_quiet(carried_bytes, now_s)]
    assert (quiet_s[0] if quiet_s else None) == expected
    assert watch.was_busy is (counts[-1][1] > 21_000)
