from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cloudbench.savingbox.batching.batcher import Batcher, BatchRules, Change, PushBatch, pushes

S = 1_000_000_000
KIB = 1024
RULES = BatchRules()


def load(count: int, added_bytes: int, gap_ns: int) -> Iterator[Change]:
    return (Change(index * gap_ns, "log", added_bytes) for index in range(count))


def count_pushes(rules: BatchRules, changes: Iterator[Change]) -> int:
    return len(list(pushes(Batcher(rules), changes)))


# --- loads with a known number of pushes ---


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # 10,000 bytes a second: the 63rd write of 4 KiB reaches 250 KiB after 25.4 s; 1280 writes.
        pytest.param(load(1280, 4 * KIB, 409_600_000), 21, id="5 MiB at 80 kbit/s"),
        # 125 writes are 250 KiB exactly.
        pytest.param(load(5000, 2 * KIB, S // 5), 40, id="2 KiB each 0.2 s"),
        # The fail-safe: 150 writes in 30 s.
        pytest.param(load(1024, 1, S // 5), 7, id="1 B each 0.2 s"),
        pytest.param(load(1024, 1, 10 * S), 1024, id="gaps longer than t gain nothing"),
        pytest.param(load(100, 1, 5 * S), 100, id="a gap of t pushes"),
        pytest.param(load(100, 1, 5 * S - 1), 15, id="a gap just below t: the fail-safe, 7 at a time"),
        pytest.param(load(1024, 1, S), 35, id="1 B a second: 30 at a time"),
        pytest.param(load(1, 1, S), 1, id="one change"),
        pytest.param(load(0, 1, S), 0, id="nothing"),
    ],
)
def test_the_number_of_pushes_is_the_analytic_one(changes: Iterator[Change], expected: int) -> None:
    assert count_pushes(RULES, changes) == expected


def test_fast_writes_are_pushed_only_by_the_byte_limit() -> None:
    batches = list(pushes(Batcher(RULES), load(1000, 4 * KIB, 1)))
    assert [batch.why for batch in batches] == ["bytes"] * 15 + ["quiet"]
    assert {batch.unpushed_bytes for batch in batches[:-1]} == {63 * 4 * KIB}


def test_a_small_limit_pushes_every_change() -> None:
    assert count_pushes(BatchRules(limit_bytes=1), load(300, 1, 1)) == 300


# --- the three rules ---


def test_every_change_of_any_file_resets_the_timer() -> None:
    batcher = Batcher(RULES)
    batcher.add_change("a", 1, 0)
    assert batcher.due_ns() == 5 * S
    batcher.add_change("b", 1, 3 * S)
    assert batcher.due_ns() == 8 * S
    batcher.add_removal("c", 4 * S)
    assert batcher.due_ns() == 9 * S


def test_the_fail_safe_begins_with_the_first_change_that_waits() -> None:
    batcher = Batcher(RULES)
    batcher.add_change("a", 1, 7 * S)
    for second in range(8, 37):
        batcher.add_change("b", 1, second * S)
    assert batcher.due_ns() == 37 * S
    batch = batcher.take_batch(37 * S)
    assert (batch.why, batch.waited_ns, list(batch.paths)) == ("at most", 30 * S, ["a", "b"])
    assert batcher.due_ns() is None


@pytest.mark.parametrize("late_ns", [0, 1, S, 3600 * S])
@pytest.mark.parametrize(
    ("quiet_ns", "at_most_ns", "unpushed_bytes", "why"),
    [(5 * S, 30 * S, 1, "quiet"), (5 * S, 3 * S, 1, "at most"), (5 * S, 30 * S, 250 * KIB, "bytes")],
)
def test_the_reason_of_a_push_is_the_rule_that_was_first_however_late_it_is_taken(
    late_ns: int, quiet_ns: int, at_most_ns: int, unpushed_bytes: int, why: str
) -> None:
    batcher = Batcher(BatchRules(quiet_ns=quiet_ns, at_most_ns=at_most_ns))
    batcher.add_change("a", unpushed_bytes, 0)
    due_ns = batcher.due_ns()
    assert due_ns is not None
    assert batcher.take_batch(due_ns + late_ns).why == why


def test_a_newer_difference_replaces_the_older_one() -> None:
    batcher = Batcher(RULES)
    for size in (100 * KIB, 200 * KIB, 249 * KIB):
        batcher.add_change("a", size, 0)
    assert batcher.unpushed_bytes == 249 * KIB
    assert batcher.due_ns() == 5 * S
    batcher.add_change("b", KIB, 1 * S)
    due_ns = batcher.due_ns()
    assert due_ns is not None
    assert due_ns <= 1 * S
    assert batcher.take_batch(1 * S).why == "bytes"


def test_a_deleted_file_has_no_bytes_and_its_deletion_waits() -> None:
    batcher = Batcher(RULES)
    batcher.add_change("a", 200 * KIB, 0)
    batcher.add_removal("a", 1 * S)
    assert (batcher.unpushed_bytes, batcher.due_ns(), "a" in batcher) == (0, 6 * S, True)


def test_reverted_file_is_forgotten() -> None:
    batcher = Batcher(RULES)
    batcher.add_change("a", 100, 0)
    batcher.add_change("b", 1, 1 * S)
    batcher.forget("a")
    batcher.forget("never there")
    assert (batcher.unpushed_bytes, len(batcher)) == (1, 1)
    for second in range(2, 32):
        batcher.add_change("b", 1, second * S)
    assert batcher.due_ns() == 31 * S


def test_an_early_push_is_asked_for() -> None:
    batcher = Batcher(RULES)
    batcher.add_change("a", 1, 0)
    assert batcher.take_batch(1).why == "asked"
    assert batcher.take_batch(2) == PushBatch({}, "asked", 2)


def test_failed_push_keeps_times_of_its_first_changes() -> None:
    batcher = Batcher(RULES)
    batcher.add_change("a", 10, 0)
    batcher.add_change("b", 20, 1 * S)
    batch = batcher.take_batch(6 * S)
    batcher.add_change("b", 5, 7 * S)  # while it was pushed
    batcher.add_change("c", 1, 8 * S)
    batcher.put_back(batch.paths)
    assert batcher.unpushed_bytes == 10 + 5 + 1
    assert batcher.due_ns() == 13 * S
    for second in range(9, 30):
        batcher.add_change("c", 1, second * S)
    assert batcher.due_ns() == 30 * S
    assert list(batcher.take_batch(30 * S).paths) == ["a", "b", "c"]


def test_better_known_bytes_reset_no_timer() -> None:
    batcher = Batcher(RULES)
    batcher.add_change("a", 10, 0)
    batcher.correct_bytes("a", 30)
    batcher.correct_bytes("b", 1)
    assert (batcher.unpushed_bytes, batcher.due_ns(), len(batcher)) == (30, 5 * S, 1)


@pytest.mark.parametrize("wrong", [{"limit_bytes": 0}, {"quiet_ns": 0}, {"at_most_ns": -1}])
def test_limits_of_nothing_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least 1 byte"):
        BatchRules(**wrong)


# --- any load ---


@given(
    st.lists(st.tuples(st.integers(0, 20), st.sampled_from("abc"), st.integers(0, 40)), max_size=60),
    st.builds(BatchRules, st.integers(1, 100), st.integers(1, 30), st.integers(1, 60)),
)
def test_nothing_waits_longer_than_the_fail_safe_and_every_byte_is_pushed_once(
    steps: list[tuple[int, str, int]], rules: BatchRules
) -> None:
    now_ns = 0
    changes = []
    for gap_ns, path, added_bytes in steps:
        now_ns += gap_ns
        changes.append(Change(now_ns, path, added_bytes))
    batches = list(pushes(Batcher(rules), changes))
    assert all(batch.waited_ns <= min(rules.at_most_ns, now_ns + rules.quiet_ns) for batch in batches)
    assert sum(batch.unpushed_bytes for batch in batches) == sum(change.added_bytes for change in changes)
    assert all(batch.unpushed_bytes >= rules.limit_bytes for batch in batches if batch.why == "bytes")
