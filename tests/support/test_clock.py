"""Waits for a signal or a condition: a signal ends them at once, conditions are checked again, and a stop works."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from pytest_cloudbench.support.clock import due_ns, now_ns, parse_duration_s, sleep_until_ns, wait_for

FOR_EVER_S = 3600.0
"""Longer than any test may take, so a wait that nothing ends fails by pytest's own limit."""


@pytest.fixture
def signal() -> Iterator[threading.Event]:
    """A signal that another thread sets before or after the wait for it has begun."""
    event = threading.Event()
    thread = threading.Thread(target=event.set)
    thread.start()
    yield event
    thread.join()


def test_a_signal_ends_the_wait_at_once(signal: threading.Event) -> None:
    assert wait_for(signal, FOR_EVER_S)


def test_signal_ends_a_wait_with_a_stop_at_once(signal: threading.Event) -> None:
    assert wait_for(signal, FOR_EVER_S, poll_s=FOR_EVER_S, stop=threading.Event())


def test_a_stop_is_seen_while_a_signal_is_waited_for(signal: threading.Event) -> None:
    assert not wait_for(threading.Event(), FOR_EVER_S, poll_s=0.001, stop=signal)


def test_a_stop_ends_the_wait_for_an_answer_at_once(signal: threading.Event) -> None:
    assert not wait_for(lambda: False, FOR_EVER_S, poll_s=FOR_EVER_S, stop=signal)


def test_a_stop_may_be_a_question() -> None:
    answers = iter([False, False, True])
    assert not wait_for(threading.Event(), FOR_EVER_S, poll_s=0.001, stop=lambda: next(answers))
    assert not wait_for(lambda: False, FOR_EVER_S, poll_s=0.001, stop=lambda: True)


def test_wait_repeats_its_question_until_the_answer_is_true() -> None:
    calls: list[int] = []

    def is_third_call() -> bool:
        calls.append(1)
        return len(calls) == 3

    assert wait_for(is_third_call, FOR_EVER_S, poll_s=0.001)
    assert len(calls) == 3


def test_wait_returns_at_once_for_a_true_condition() -> None:
    event = threading.Event()
    event.set()
    assert wait_for(event, 0)
    assert wait_for(lambda: True, FOR_EVER_S, poll_s=FOR_EVER_S)
    assert wait_for(lambda: True, 0)
    assert wait_for(event, FOR_EVER_S, poll_s=1, stop=event), "what is wanted counts more than the stop"


def test_wait_gives_up_at_its_limit() -> None:
    answers = iter([False, False, True])
    assert not wait_for(threading.Event(), 0.01)
    assert not wait_for(lambda: next(answers), 0.01, poll_s=FOR_EVER_S)
    assert list(answers) == [True], "at the beginning and at the end"


def test_a_question_needs_an_interval() -> None:
    with pytest.raises(ValueError, match="poll_s=0: expected seconds above 0"):
        wait_for(lambda: False, 1)


def test_sleep_lasts_until_the_due_time() -> None:
    due = due_ns(0.01)
    sleep_until_ns(due)
    assert now_ns() >= due
    sleep_until_ns(now_ns() - 10**18)


@pytest.mark.parametrize(
    ("text", "truth_s"),
    [
        ("90s", 90), ("6h", 21_600), ("20d", 1_728_000), ("1d12h", 129_600), ("1.5m", 90), ("0s", 0), ("7", 7),
        ("500ms", 0.5), ("0.25", 0.25), ("1m500ms", 60.5), ("1min", 60),
        ("1h30min5s", 5405),
    ],
)  # fmt: skip
def test_durations(text: str, truth_s: float) -> None:
    assert parse_duration_s(text) == truth_s


@pytest.mark.parametrize(
    "text", ["", "s", "soon", "6 h", "-1s", "1h-2m", "1e3s", "6hh", "h6", "1s2", "٣s", "1mi", "1mins"]
)
def test_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a number with ms, s, m, h or d"):
        parse_duration_s(text)
