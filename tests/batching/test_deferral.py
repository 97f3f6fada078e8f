"""Waiting for the next change pays where there is a rhythm, and never longer than the bound."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cloudbench.batching.deferral import Deferral

QUIET_S, BOUND_S = 5.0, 60.0


def pushes(changes: Sequence[tuple[float, str]], at_most_s: float = BOUND_S) -> list[tuple[float, float]]:
    """When everything that waits is pushed, in virtual time, and how long the oldest change has waited."""
    deferral, first_s, found = Deferral(QUIET_S, at_most_s), dict[str, float](), list[tuple[float, float]]()

    def push_until(now_s: float) -> None:
        while first_s and (due_s := min(deferral.due_s(path, at_s) for path, at_s in first_s.items())) <= now_s:
            found.append((due_s, due_s - min(first_s.values())))
            first_s.clear()

    for now_s, path in changes:
        push_until(now_s)
        deferral.tell(path, now_s)
        first_s.setdefault(path, now_s)
    push_until(float("inf"))
    return found


def every(gap_s: float, count: int, path: str = "log") -> list[tuple[float, str]]:
    return [(number * gap_s, path) for number in range(count)]


def test_appends_that_come_slower_than_t_are_batched_all_the_same() -> None:
    """The facts' own example: 1,024 appends of one byte, one every 10 s, are 1,024 pushes with UDS."""
    found = pushes(every(10, 1024))
    assert len(found) == 2 + -(-1022 // 6), "two gaps make a rhythm; six appends fit into a minute"
    assert max(waited_s for _, waited_s in found) == 55
    assert len(pushes(every(10, 1024), at_most_s=300)) == 2 + -(-1022 // 30)


def test_a_change_that_comes_alone_waits_no_longer_than_with_uds() -> None:
    assert pushes([(0, "letter"), (1000, "photo")]) == [(5, 5), (1005, 5)]


def test_what_comes_after_the_bound_is_not_waited_for() -> None:
    assert [waited_s for _, waited_s in pushes(every(90, 20))] == [QUIET_S] * 20


def test_a_rhythm_that_stops_is_not_waited_for_to_the_end() -> None:
    *_, (pushed_s, waited_s) = pushes([*every(10, 5), (1000, "log")], at_most_s=600)[:-1]
    assert pushed_s == 40 + 12.5, "a quarter longer than the longest gap"
    assert waited_s == 52.5 - 20, "two changes were pushed before the rhythm was known"


def test_new_files_of_a_folder_have_its_rhythm() -> None:
    regular = [(10.0 * number, f"photos/{number}.jpg") for number in range(60)]
    scattered = [(at_s, f"folder{at_s}/one.jpg") for at_s, _ in regular]
    assert len(pushes(regular)) == 2 + -(-58 // 6)
    assert len(pushes(scattered)) == 60


def test_changes_that_come_faster_than_t_wait_for_the_bound_as_they_do_with_uds() -> None:
    assert pushes(every(1, 100)) == [(60, 60), (104, 44)]


def test_one_that_waits_does_not_hold_back_another() -> None:
    found = pushes(sorted([*every(10, 30, "box/log"), (102.0, "letters/mum")]))
    assert (107.0, 107.0 - 101) not in found
    assert any(pushed_s == 107 for pushed_s, _ in found), "five seconds after the letter, and the log goes with it"


@given(st.lists(st.tuples(st.floats(0, 40), st.sampled_from(["a", "b", "c/d"])), max_size=60), st.floats(5, 120))
def test_nothing_ever_waits_longer_than_the_bound(gaps: list[tuple[float, str]], at_most_s: float) -> None:
    now_s, changes = 0.0, []
    for gap_s, path in gaps:
        now_s += gap_s
        changes.append((now_s, path))
    assert all(waited_s <= at_most_s + 1e-9 for _, waited_s in pushes(changes, at_most_s))


def test_what_is_remembered_has_a_limit() -> None:
    deferral = Deferral(QUIET_S, BOUND_S, most_paths=4)
    for number in range(100):
        for at_s in range(3):
            deferral.tell(f"folder{number}/file", number * 100 + at_s * 10)
    assert deferral.due_s("folder99/file", 9920) == 9920 + 12.5
    assert deferral.due_s("folder1/file", 9920) == 9925, "forgotten: as if it were new"
    deferral.forget("folder99/file")
    assert deferral.due_s("folder99/file", 9920) == 9920 + 12.5, "the folder's"


@pytest.mark.parametrize(("quiet_s", "at_most_s"), [(0, 10), (10, 5)])
def test_times_that_leave_no_room(quiet_s: float, at_most_s: float) -> None:
    with pytest.raises(ValueError, match="expected 0 < quiet_s <= at_most_s"):
        Deferral(quiet_s, at_most_s)
