"""Deferred pushes: waiting for the next change pays if there is a rhythm, and never exceeds the bound."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cloudbench.savingbox.batching.batcher import Batcher, BatchRules, Change, pushes
from pytest_cloudbench.savingbox.batching.deferral import AdaptiveBatcher, Deferral

S = 1_000_000_000
RULES = BatchRules()
Load = Sequence[tuple[float, str]]


def push_adaptively(load: Load, bound_s: float = 60, size_bytes: int = 1) -> list[tuple[float, float]]:
    """Return the time of each push, in virtual seconds, and the seconds that its oldest change has waited."""
    changes = [Change(round(at_s * S), path, size_bytes) for at_s, path in load]
    batches = pushes(AdaptiveBatcher(RULES, round(bound_s * S)), changes)
    return [(batch.taken_ns / S, batch.waited_ns / S) for batch in batches]


def push_by_uds(load: Load) -> list[tuple[float, float]]:
    batches = pushes(Batcher(RULES), [Change(round(at_s * S), path, 1) for at_s, path in load])
    return [(batch.taken_ns / S, batch.waited_ns / S) for batch in batches]


def every(gap_s: float, count: int, path: str = "log") -> list[tuple[float, str]]:
    return [(number * gap_s, path) for number in range(count)]


def test_appends_that_come_slower_than_t_are_batched_all_the_same() -> None:
    """1,024 appends of one byte, one every 10 s: 1,024 pushes with UDS."""
    assert len(push_by_uds(every(10, 1024))) == 1024
    push_times = push_adaptively(every(10, 1024))
    assert len(push_times) == 2 + -(-1022 // 6), "two gaps make a rhythm; six appends fit into a minute"
    assert max(waited_s for _, waited_s in push_times) == 55
    assert len(push_adaptively(every(10, 1024), bound_s=300)) == 2 + -(-1022 // 30)


def test_appends_that_come_faster_than_t_wait_for_the_bound_and_not_for_the_fail_safe() -> None:
    assert len(push_by_uds(every(1, 1024))) == 35
    push_times = push_adaptively(every(1, 1024), bound_s=300)
    assert (len(push_times), max(waited_s for _, waited_s in push_times)) == (4, 300)


def test_large_changes_are_pushed_at_once_despite_a_rhythm() -> None:
    assert [waited_s for _, waited_s in push_adaptively(every(10, 9), size_bytes=100_000)][2:] == [20, 20, 12.5]


def test_a_change_that_comes_alone_waits_no_longer_than_with_uds() -> None:
    assert push_adaptively([(0, "letter"), (1000, "photo")]) == [(5, 5), (1005, 5)]


def test_deferral_does_not_wait_beyond_its_bound() -> None:
    assert [waited_s for _, waited_s in push_adaptively(every(90, 20))] == [5] * 20


def test_a_rhythm_that_stops_is_not_waited_for_to_the_end() -> None:
    pushed_s, waited_s = push_adaptively([*every(10, 5), (1000, "log")], bound_s=600)[-2]
    assert pushed_s == 40 + 12.5, "a quarter longer than the longest gap"
    assert waited_s == 52.5 - 20, "two changes were pushed before the rhythm was known"


def test_new_files_of_a_folder_have_its_rhythm() -> None:
    regular = [(10.0 * number, f"photos/{number}.jpg") for number in range(60)]
    scattered = [(at_s, f"folder{at_s}/one.jpg") for at_s, _ in regular]
    assert len(push_adaptively(regular)) == 2 + -(-58 // 6)
    assert len(push_adaptively(scattered)) == 60


def test_waiting_file_does_not_delay_another() -> None:
    letter = (102.0, "letters/mum")
    push_times = push_adaptively(sorted([*every(10, 30, "box/log"), letter]))
    assert any(pushed_s == 107 for pushed_s, _ in push_times), (
        "five seconds after the letter, and the log is pushed with it"
    )
    busy = push_adaptively(sorted([*every(1, 300, "box/log"), (102.5, "letters/mum")]), bound_s=300)
    assert min(pushed_s for pushed_s, _ in busy if pushed_s >= 102.5) == 132.5, "as with UDS: its fail-safe"


LOADS = st.lists(st.tuples(st.floats(0, 40), st.sampled_from(["a", "b", "c/d", "c/e"])), max_size=60)


@given(LOADS, st.floats(5, 120))
def test_nothing_ever_waits_longer_than_the_bound(gaps: list[tuple[float, str]], bound_s: float) -> None:
    now_s, load = 0.0, []
    for gap_s, path in gaps:
        now_s += gap_s
        load.append((now_s, path))
    push_times = push_adaptively(load, bound_s)
    assert all(waited_s <= bound_s + 1e-6 for _, waited_s in push_times)
    assert bool(push_times) == bool(load)


def test_a_bound_below_the_fail_safe_takes_its_place() -> None:
    assert [waited_s for _, waited_s in push_adaptively(every(1, 12), bound_s=6)] == [6, 6]


def test_deferral_remembers_a_limited_number_of_paths() -> None:
    deferral = Deferral(5, 60, most_paths=4)
    for number in range(100):
        for step in range(3):
            deferral.add_change(f"folder{number}/file", number * 100 + step * 12)
    assert deferral.due_ns("folder99/file", 9924) == 9924 + 15
    assert deferral.due_ns("folder1/file", 9924) is None, "forgotten: as if it were new"
    assert deferral.due_ns("folder99/new", 9924) == 9924 + 15, "the folder's"


@pytest.mark.parametrize(("quiet_ns", "bound_ns"), [(0, 10), (10, 5)])
def test_bound_below_the_quiet_time_is_refused(quiet_ns: int, bound_ns: int) -> None:
    with pytest.raises(ValueError, match="expected 0 < quiet_ns <= bound_ns"):
        Deferral(quiet_ns, bound_ns)
