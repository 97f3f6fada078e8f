"""Offsets between clocks: each is measured within its bound, and only clocks that jumped are reported."""

from __future__ import annotations

from itertools import count

from execnet import dumps, loads
from hypothesis import given
from hypothesis import strategies as st

from pytest_cloudbench.fleet.messages import Tell, decode_from_agent, encode
from pytest_cloudbench.fleet.offsets import PINGS, Offset, Span, measure_offset

TIMES = st.integers(-(10**15), 10**15)
TRAVEL = st.lists(st.tuples(st.integers(0, 10**8), st.integers(0, 10**8)), min_size=PINGS, max_size=PINGS)


class World:
    """One true time, which passes while a question travels to the other clock and back."""

    def __init__(self, shift_ns: int, travel_ns: list[tuple[int, int]]) -> None:
        self.now_ns, self._shift_ns, self._travel_ns = 10**18, shift_ns, iter(travel_ns)

    def clock(self) -> int:
        return self.now_ns

    def ask(self) -> int:
        there_ns, back_ns = next(self._travel_ns)
        self.now_ns += there_ns
        answer = self.now_ns + self._shift_ns
        self.now_ns += back_ns
        return answer


@given(TIMES, TRAVEL)
def test_the_offset_is_within_its_bound_however_uneven_the_way(shift_ns: int, travel_ns: list[tuple[int, int]]) -> None:
    world = World(shift_ns, travel_ns)
    offset = measure_offset(world.ask, world.clock)
    assert abs(offset.offset_ns - shift_ns) <= offset.error_ns
    assert offset.error_ns <= min(map(sum, travel_ns)) // 2 + 1


@given(TIMES, TIMES, TRAVEL, TRAVEL)
def test_errors_add_up_over_a_third_clock(
    one_ns: int, two_ns: int, first: list[tuple[int, int]], second: list[tuple[int, int]]
) -> None:
    """Both shifts are relative to the third clock."""
    one, two = (measure_offset(world.ask, world.clock) for world in (World(one_ns, first), World(two_ns, second)))
    between = one.minus(two)
    assert abs(between.offset_ns - (one_ns - two_ns)) <= between.error_ns == one.error_ns + two.error_ns


def test_the_other_clock_sees_the_inverse() -> None:
    assert Offset(5, 2, 100).inverse() == Offset(-5, 2, 105)


@given(TIMES, TIMES, TIMES)
def test_an_offset_can_be_sent_to_the_controller(offset_ns: int, error_ns: int, at_ns: int) -> None:
    """Large negative numbers are not rare, since clocks of two hosts count from their boots."""
    offset = Offset(offset_ns, error_ns, at_ns)
    message = decode_from_agent(loads(dumps(encode(Tell("offset", offset)))))
    assert isinstance(message, Tell)
    assert Offset.from_plain(message.payload) == offset


@given(TIMES, st.integers(-(10**6), 10**6), st.floats(0, 1), TRAVEL, TRAVEL)
def test_a_steady_drift_is_within_the_bound_all_the_time(
    shift_ns: int, drift_ns: int, when: float, first: list[tuple[int, int]], second: list[tuple[int, int]]
) -> None:
    worlds = World(shift_ns, first), World(shift_ns + drift_ns, second)
    span = Span(*(measure_offset(world.ask, world.clock) for world in worlds))
    assert abs(span.offset_ns - (shift_ns + round(when * drift_ns))) <= span.error_ns


def test_a_jump_is_told_from_a_drift_and_from_an_error() -> None:
    """A kernel slews by 500 ppm at most: 5 ms in ten seconds."""
    second = 10**9
    before = Offset(0, 1000, 0)
    assert not Span(before, Offset(5_001_000, 1000, 10 * second)).has_jumped
    assert Span(before, Offset(5_003_000, 1000, 10 * second)).has_jumped
    assert Span(before, Offset(-400_000_000, 1000, 10 * second)).has_jumped
    assert not Span(before, Offset(1500, 1000, 0)).has_jumped


def test_all_pings_are_made() -> None:
    pings = count()
    measure_offset(lambda: next(pings), lambda: 0)
    assert next(pings) == PINGS
