"""Retransmissions in many connections at once: the same as step by step, or left to that."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_cloudbench.net.traffic import resent, verdicts
from tests.limits import scale_examples
from tests.net.traffic.test_resent import BEGIN, Row, judge_rows, segment, story


def judge_at_once(stories: Sequence[Sequence[Row]]) -> tuple[list[list[int]], set[int]]:
    """Return the verdicts on each connection, and those that are undecided."""
    kinds = (np.int64, bool, np.uint32, np.uint32, np.uint8, np.uint16, np.uint32)
    rows = [row for rows in stories for row in rows]
    columns = [np.array(column, kind) for column, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
    group = np.repeat(np.arange(len(stories)), [len(rows) for rows in stories])
    time_ns, side, *other_columns = columns
    judged_rows, undecided = verdicts.judge_connections(verdicts.Connections(group, time_ns, ~side, *other_columns))
    return [judged_rows[group == number].tolist() for number in range(len(stories))], set(undecided.tolist())


def lossy_story(draw: random.Random) -> list[Row]:
    """Return a connection whose segments are lost and sent again, with duplicate acknowledgements and keep-alives."""
    base = draw.choice([5_000, 0xFFFFFFD0])
    rows = [segment(0, True, base - 1, flags=2, ack=0), segment(draw.choice([0, 9]), False, 4, flags=18, ack=base)]
    rows = [] if draw.random() < 0.3 else [*rows, segment(9, True, base, ack=5)]
    next_seq, holes, now_ms = base, list[int](), 10.0
    for _ in range(draw.randrange(5, 90)):
        now_ms += draw.choice([0.1, 1, 30])
        kind = draw.random()
        if kind < 0.1:
            holes.append(next_seq)
            next_seq += 100
        elif kind < 0.2 and holes:
            rows.append(segment(now_ms, True, holes.pop(draw.randrange(len(holes))), 100, 5))
        elif kind < 0.25:
            rows.append(segment(now_ms, True, next_seq - draw.choice([1, 50, 100, 250]), draw.choice([0, 1, 100]), 5))
        elif kind < 0.6:
            rows.append(segment(now_ms, True, next_seq, 100, 5))
            next_seq += 100
        else:
            ack = min(holes, default=next_seq)
            rows += [segment(now_ms, False, 5, ack=min(ack, next_seq - 100) % 2**32)] * draw.randrange(1, 5)
    return rows or [segment(now_ms, True, base)]


@settings(deadline=None, max_examples=scale_examples(100))
@given(st.integers(0, 2**32))
@example(598)  # the first segment is a zero-window probe with sequence number 0
def test_connections_at_once_and_single_steps_agree(seed: int) -> None:
    draw = random.Random(seed)
    stories = [draw.choice([story, lossy_story])(draw) for _ in range(30)]
    results, undecided = judge_at_once(stories)
    assert all(
        results[number] == judge_rows(rows, stepwise=True)
        for number, rows in enumerate(stories)
        if number not in undecided
    )


def test_lossy_connections_are_decided_at_once_with_each_verdict() -> None:
    draw = random.Random(1)
    results, undecided = judge_at_once([lossy_story(draw) for _ in range(300)])
    assert len(undecided) < 100
    decided = {kind for number, kinds in enumerate(results) if number not in undecided for kind in kinds}
    assert decided == {0, resent.RETRANSMITTED, resent.FAST, resent.SPURIOUS, resent.OUT_OF_ORDER, resent.KEEP_ALIVE}


def test_connections_with_a_state_of_their_own_are_left_to_steps() -> None:
    opening = [*BEGIN, segment(30, True, 100, 100)]
    beyond = [*opening, segment(40, False, 1, 10, 900), segment(41, False, 11, 10, 900), segment(42, True, 200, 0, 11)]
    counted = [*beyond, segment(43, False, 11, 10, 900)]
    probed = [*opening, segment(40, False, 1, ack=200, window=0), segment(50, True, 200, 1)]
    reopened = [*opening, segment(31, True, 300, 100), segment(60, True, 99, flags=2, ack=0)]
    leaping = [*opening, segment(60, True, 100 + 2**31 - 50, 100)]
    first_probe = [segment(0, False, 5, window=0), segment(1, True, 0, 1), segment(2, True, 2**32 - 9, 1)]
    assert judge_at_once([opening, counted, probed, reopened, leaping, beyond, first_probe])[1] == {1, 2, 3, 4, 6}
