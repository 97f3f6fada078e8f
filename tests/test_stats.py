"""Summaries against known truths: percentiles by counting, and losses that were made on purpose found again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_cloudbench.expect import CONCLUSIONS, METRICS
from pytest_cloudbench.model import ErrorKind, Op, Outcome, Verb
from pytest_cloudbench.stats import PERCENTILES, OpTable, Verification, percentile, summarize, verify

FEW = settings(deadline=None, max_examples=60)
NS = 1_000_000_000
DIGEST = bytes(range(32))
GROUPS = ("response", "service", "refused", "first_byte", "lateness")


def op(sensor: int = 0, seq: int = 0, **changes: object) -> Op:
    first = Op(Verb.PUT, sensor, seq, 0, 10 * NS, 11 * NS, 12 * NS, 14 * NS, 5, Outcome.OK, digest=DIGEST)
    return replace(first, **changes)  # type: ignore[arg-type]  # the fields are typed where Op is


def table_of(*ops: Op) -> OpTable:
    table = OpTable()
    for each in ops:
        table.append(each)
    return table


def ops_of(table: OpTable) -> list[Op]:
    return [Op(**{name: getattr(table, name)[row] for name in OpTable.__slots__}) for row in range(len(table))]


def name_of(sensor: int, seq: int) -> str:
    return f"{sensor}-{seq}"


def by_counting(values: list[float], share: Fraction) -> float:
    """The least observed value that at least ``share`` of all values do not exceed."""
    return min(
        value for value in values if Fraction(sum(other <= value for other in values)) >= share * len(values)
    )  # fmt: skip


@FEW
@given(
    values=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=60),
    per_mille=st.integers(1, 1000),
)
def test_a_percentile_is_the_least_value_that_so_many_do_not_exceed(values: list[float], per_mille: int) -> None:
    assert percentile(sorted(values), per_mille / 1000) == by_counting(values, Fraction(per_mille, 1000))


@pytest.mark.parametrize("count", [1, 2, 3, 7, 99, 100, 101, 999, 1000, 1001, 123_456, 1_000_000])
def test_percentiles_have_the_exact_rank_at_any_count(count: int) -> None:
    """Ranks computed in fractions: 0.999 * 1000 must not become rank 1000 by a rounding error."""
    for label, share in PERCENTILES.items():
        exact = {"p50": Fraction(1, 2), "p90": Fraction(9, 10), "p99": Fraction(99, 100), "p99.9": Fraction(999, 1000)}
        rank = -(-exact.get(label, Fraction(1)) * count // 1)
        assert percentile(range(1, count + 1), share) == rank


times = st.integers(1, 10**6)
ops = st.builds(
    op,
    sensor=st.integers(0, 5), seq=st.integers(0, 5), scheduled_ns=times, start_ns=times, end_ns=times,
    first_byte_ns=st.one_of(st.just(0), times), outcome=st.sampled_from(Outcome),
    kind=st.one_of(st.none(), st.sampled_from(ErrorKind)),
)  # fmt: skip


@FEW
@given(records=st.lists(ops, max_size=40))
def test_a_summary_counts_every_record_and_keeps_refused_apart_from_ok(records: list[Op]) -> None:
    summary = summarize(table_of(*records), None)
    good = [each for each in records if each.outcome is Outcome.OK]
    refused = [each for each in records if each.outcome is not Outcome.OK]
    assert summary.ops == len(records) == sum(summary.outcomes.values())
    assert sum(summary.kinds.values()) == sum(each.kind is not None for each in records)
    assert sorted(summary.response_s) == sorted(each.response_ns / 1e9 for each in good)
    for group, values in {
        "response": [each.response_ns for each in good],
        "service": [each.service_ns for each in good],
        "refused": [each.response_ns for each in refused],
        "first_byte": [each.first_byte_ns - each.start_ns for each in good if each.first_byte_ns],
        "lateness": [each.lateness_ns for each in records],
    }.items():
        column = [summary.metrics[f"{group}_{label}"] for label in PERCENTILES]
        if not values:
            assert column == [None] * len(PERCENTILES)
            continue
        known = [value for value in column if value is not None]
        assert known == sorted(known)
        assert len(known) == len(PERCENTILES)
        assert known[-1] == max(values) / 1e9
        assert set(known) <= {value / 1e9 for value in values}


def test_the_metrics_are_those_that_claims_can_name() -> None:
    assert summarize(OpTable(), None).metrics.keys() == METRICS.keys() - CONCLUSIONS.keys()


def test_nothing_measured_is_none_never_zero() -> None:
    summary = summarize(OpTable(), None)
    assert set(summary.metrics.values()) == {None}
    assert (summary.ops, list(summary.response_s)) == (0, [])
    nothing_to_check = verify(OpTable(), {}, name_of)
    assert summarize(OpTable(), nothing_to_check).metrics["loss_rate"] is None


def test_only_refused_operations_leave_the_times_of_success_unknown() -> None:
    metrics = summarize(table_of(op(outcome=Outcome.THROTTLED, kind=ErrorKind.THROTTLED)), None).metrics
    assert {name: value for name, value in metrics.items() if name.startswith(("response", "service"))} == {
        f"{group}_{label}": None for group in ("response", "service") for label in PERCENTILES
    }
    assert metrics["refused_max"] == 4.0
    assert (metrics["throttled_rate"], metrics["failed_rate"], metrics["ok_rate"]) == (1.0, 0.0, 0.0)
    assert (metrics["throughput"], metrics["ops_per_s"]) == (0.0, 0.0)


def test_the_formulas_of_one_record() -> None:
    metrics = summarize(table_of(op()), None).metrics
    assert {name: metrics[f"{name}_max"] for name in GROUPS} == {
        "response": 4.0, "service": 3.0, "refused": None, "first_byte": 1.0, "lateness": 1.0,
    }  # fmt: skip
    assert (metrics["elapsed"], metrics["throughput"], metrics["ops_per_s"]) == (4.0, 1.25, 0.25)


def test_responses_are_in_the_order_they_were_due() -> None:
    late, soon = op(scheduled_ns=9 * NS, end_ns=10 * NS), op(scheduled_ns=1 * NS, end_ns=4 * NS)
    assert list(summarize(table_of(late, soon), None).response_s) == [3.0, 1.0]


@FEW
@given(left=st.lists(ops, max_size=10), right=st.lists(ops, max_size=10))
def test_extend_joins_the_records(left: list[Op], right: list[Op]) -> None:
    table = table_of(*left)
    table.extend(table_of(*right))
    assert ops_of(table) == [*left, *right]
    assert len(table) == len(left) + len(right)


@FEW
@given(records=st.lists(ops, max_size=10), offset=st.integers(-(10**12), 10**12))
def test_shift_moves_known_times_and_leaves_the_rest(records: list[Op], offset: int) -> None:
    table = table_of(*records)
    table.shift(offset)
    assert ops_of(table) == [
        replace(
            each,
            scheduled_ns=each.scheduled_ns + offset,
            start_ns=each.start_ns + offset,
            end_ns=each.end_ns + offset,
            first_byte_ns=each.first_byte_ns + offset if each.first_byte_ns else 0,
        )
        for each in records
    ]


Listing = dict[str, tuple[int, str | None]]


def everything(table: OpTable) -> Listing:
    return {name_of(each.sensor, each.seq): (each.size_bytes, each.digest.hex()) for each in ops_of(table)}


def test_nothing_is_lost_when_everything_is_listed() -> None:
    table = table_of(*(op(sensor, seq) for sensor in range(3) for seq in range(4)))
    assert verify(table, everything(table), name_of) == Verification(12, 0, 0, 0, True)
    assert table.outcome == [Outcome.OK] * 12
    assert summarize(table, Verification(12, 0, 0, 0, True)).metrics["loss_rate"] == 0.0


def _missing(listing: Listing, name: str) -> None:
    del listing[name]


def _wrong_size(listing: Listing, name: str) -> None:
    listing[name] = (4, listing[name][1])


def _wrong_digest(listing: Listing, name: str) -> None:
    listing[name] = (5, DIGEST[::-1].hex())


@pytest.mark.parametrize(
    ("damage", "outcome", "kind", "wrong"),
    [
        (_missing, Outcome.LOST, None, 0),
        (_wrong_size, Outcome.CORRUPT, ErrorKind.CORRUPT, 1),
        (_wrong_digest, Outcome.CORRUPT, ErrorKind.CORRUPT, 1),
    ],
)
def test_a_silent_loss_is_found_and_corrected_in_place(
    damage: Callable[[Listing, str], None], outcome: Outcome, kind: ErrorKind | None, wrong: int
) -> None:
    table = table_of(op(0, 0), op(1, 0), op(1, 1))
    listing = everything(table)
    damage(listing, "1-0")
    assert verify(table, listing, name_of) == Verification(3, 1, 1, wrong, True)
    assert table.outcome == [Outcome.OK, outcome, Outcome.OK]
    assert table.kind == [None, kind, None]


@pytest.mark.parametrize("outcome", [Outcome.THROTTLED, Outcome.FAILED, Outcome.CORRUPT])
def test_a_file_whose_upload_was_refused_and_is_not_listed_is_lost_but_not_silently(outcome: Outcome) -> None:
    table = table_of(op(outcome=outcome, kind=ErrorKind.SERVER))
    assert verify(table, {}, name_of) == Verification(1, 1, 0, 0, True)
    assert (table.outcome, table.kind) == ([outcome], [ErrorKind.SERVER])


def test_a_file_that_arrived_although_its_upload_failed_is_not_lost() -> None:
    """The answer was lost on its way, not the file."""
    table = table_of(op(outcome=Outcome.FAILED, kind=ErrorKind.NETWORK))
    assert verify(table, everything(table), name_of) == Verification(1, 0, 0, 0, True)
    assert table.outcome == [Outcome.FAILED]


def test_a_torn_file_of_a_failed_upload_is_lost_and_wrong() -> None:
    table = table_of(op(outcome=Outcome.FAILED, kind=ErrorKind.NETWORK))
    assert verify(table, {"0-0": (2, None)}, name_of) == Verification(1, 1, 0, 1, False)
    assert table.outcome == [Outcome.FAILED]


def test_without_digests_sizes_alone_are_compared_and_it_says_so() -> None:
    table = table_of(op(0), op(1))
    assert verify(table, {"0-0": (5, None), "1-0": (6, None)}, name_of) == Verification(2, 1, 1, 1, False)


def test_only_files_that_were_written_are_checked_and_others_in_the_folder_do_not_matter() -> None:
    table = table_of(op(0, verb=Verb.GET), op(1, verb=Verb.PUT), op(2, verb=Verb.LIST))
    assert verify(table, {"1-0": (5, DIGEST.hex()), "other": (1, None)}, name_of) == Verification(1, 0, 0, 0, True)


@FEW
@given(
    fates=st.lists(st.sampled_from(["there", "missing", "size", "digest", "throttled", "failed, there"]), max_size=40)
)
def test_losses_made_on_purpose_are_found_again(fates: list[str]) -> None:
    table, listing = OpTable(), Listing()
    for sensor, fate in enumerate(fates):
        outcome = {"throttled": Outcome.THROTTLED, "failed, there": Outcome.FAILED}.get(fate, Outcome.OK)
        table.append(op(sensor, outcome=outcome))
        if fate not in ("missing", "throttled"):
            digest = "00" if fate == "digest" else DIGEST.hex()
            listing[name_of(sensor, 0)] = (9 if fate == "size" else 5, digest)
    found = verify(table, listing, name_of)
    silent = sum(fates.count(fate) for fate in ("missing", "size", "digest"))
    assert found == Verification(
        len(fates), silent + fates.count("throttled"), silent, fates.count("size") + fates.count("digest"), True
    )
    metrics = summarize(table, found).metrics
    if fates:
        assert metrics["loss_rate"] == found.lost / len(fates)
        assert metrics["silent_loss_rate"] == silent / len(fates)
        assert metrics["throttled_rate"] == fates.count("throttled") / len(fates)
        assert metrics["failed_rate"] == fates.count("failed, there") / len(fates)


# --- uploads to one name ---


def same_name(sensor: int, seq: int) -> str:
    return "one"


def upload(number: int, start: int, end: int, outcome: Outcome = Outcome.OK) -> Op:
    return op(number, start_ns=start, end_ns=end, outcome=outcome, digest=bytes([number]) * 32)


def listed(number: int) -> dict[str, tuple[int, str | None]]:
    return {"one": (5, (bytes([number]) * 32).hex())}


@pytest.mark.parametrize(
    ("uploads", "there", "lost"),
    [
        ([(0, 1), (2, 3), (4, 5)], 2, []),
        ([(0, 1), (2, 3), (4, 5)], 1, [2]),  # the last one did not come to stay
        ([(0, 1), (2, 3), (4, 5)], None, [2]),
        ([(0, 9), (2, 8), (4, 7)], 0, []),  # at the same time: any of them may be the last
        ([(0, 9), (2, 8), (4, 7)], 2, []),
        ([(0, 9), (2, 8), (4, 7)], 3, [0]),
        ([(0, 3), (2, 4), (5, 6)], 0, [2]),
    ],
)
def test_of_uploads_to_one_name_only_the_last_one_must_be_there(
    uploads: list[tuple[int, int]], there: int | None, lost: list[int]
) -> None:
    table = table_of(*(upload(number, *times) for number, times in enumerate(uploads)))
    found = verify(table, listed(there) if there is not None else {}, same_name)
    assert (found.checked, found.lost, found.silent) == (3, len(lost), len(lost))
    assert [number for number in table.sensor if table.outcome[number] is not Outcome.OK] == lost
    assert {table.outcome[number] for number in lost} <= {Outcome.LOST if there is None else Outcome.CORRUPT}


def test_a_refused_upload_to_one_name_is_lost_unless_it_has_arrived_all_the_same() -> None:
    ops = [upload(0, 0, 1), upload(1, 2, 3), upload(2, 4, 5, Outcome.FAILED)]
    assert verify(table_of(*ops), listed(1), same_name) == Verification(3, 1, 0, 1, True)
    assert verify(table_of(*ops), listed(2), same_name) == Verification(3, 0, 0, 0, True)
    assert verify(table_of(*ops), listed(0), same_name).silent == 1
    first = [upload(0, 0, 1, Outcome.THROTTLED), upload(1, 2, 3), upload(2, 4, 5)]
    assert verify(table_of(*first), listed(2), same_name) == Verification(3, 1, 0, 1, True)
