"""Tests of summaries against known truths: percentiles by counting, and deliberate losses, which must be found."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_cloudbench.judge import stats
from pytest_cloudbench.judge.metrics import BUILT_IN, CONCLUSIONS, summarize
from pytest_cloudbench.judge.records import OpTable
from pytest_cloudbench.judge.stats import PERCENTILES, Listing, Verification, percentile, rows_in_order, verify
from pytest_cloudbench.model import ErrorKind, Op, Outcome, Verb
from tests.limits import scale_examples

FEW = settings(deadline=None, max_examples=scale_examples(60))
NS = 1_000_000_000
DIGEST = bytes(range(32))
GROUPS = ("response", "service", "refused", "first_byte", "lateness")


def op(sensor: int = 0, seq: int = 0, **changes: object) -> Op:
    first = Op(Verb.PUT, sensor, seq, 0, 10 * NS, 11 * NS, 12 * NS, 14 * NS, 5, Outcome.OK, digest=DIGEST)
    return first._replace(**changes)  # type: ignore[arg-type]  # the fields are typed where Op is


def table_of(*ops: Op) -> OpTable:
    return OpTable.of(ops)


Listed = dict[str, tuple[int, str | None]]


def verify_files(table: OpTable, files: Listed, name_of: Callable[[int, int], str]) -> Verification:
    listing = Listing()
    for name, (size_bytes, digest) in files.items():
        listing.add([name], [size_bytes], [digest])
    return verify(table, listing, name_of)


def name_of(sensor: int, seq: int) -> str:
    return f"{sensor}-{seq}"


def by_counting(values: list[float], share: Fraction) -> float:
    """Return the smallest observed value that at least ``share`` of all values do not exceed."""
    return min(
        value for value in values if Fraction(sum(other <= value for other in values)) >= share * len(values)
    )  # fmt: skip


@FEW
@given(
    values=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=60),
    per_mille=st.integers(1, 1000),
)
def test_a_percentile_is_the_smallest_value_of_its_rank(values: list[float], per_mille: int) -> None:
    assert percentile(sorted(values), per_mille / 1000) == by_counting(values, Fraction(per_mille, 1000))


@pytest.mark.parametrize("count", [1, 2, 3, 7, 99, 100, 101, 999, 1000, 1001, 123_456, 1_000_000])
def test_percentiles_have_the_exact_rank_at_any_count(count: int) -> None:
    """Ranks are computed in fractions: 0.999 * 1000 must not become rank 1000 by a rounding error."""
    for label, share in PERCENTILES.items():
        exact = {"p50": Fraction(1, 2), "p90": Fraction(9, 10), "p95": Fraction(19, 20), "p99": Fraction(99, 100),
                 "p99.9": Fraction(999, 1000)}  # fmt: skip
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
    good = [record for record in records if record.outcome is Outcome.OK]
    refused = [record for record in records if record.outcome is not Outcome.OK]
    assert summary.ops == len(records) == sum(summary.outcomes.values())
    assert sum(summary.kinds.values()) == sum(record.kind is not None for record in records)
    assert sorted(summary.response_s) == sorted(record.response_ns / 1e9 for record in good)
    for group, values in {
        "response": [record.response_ns for record in good],
        "service": [record.service_ns for record in good],
        "refused": [record.response_ns for record in refused],
        "first_byte": [record.first_byte_ns - record.start_ns for record in good if record.first_byte_ns],
        "lateness": [record.lateness_ns for record in records],
    }.items():
        column = [summary.metrics[f"{group}_{label}"] for label in PERCENTILES]
        if not values:
            assert column == [None] * len(PERCENTILES)
            continue
        numbers = [value for value in column if value is not None]
        assert numbers == sorted(numbers)
        assert len(numbers) == len(PERCENTILES)
        assert numbers[-1] == max(values) / 1e9
        assert set(numbers) <= {value / 1e9 for value in values}


def test_the_metrics_are_those_that_claims_can_name() -> None:
    assert summarize(OpTable(), None).metrics.keys() == BUILT_IN.keys() - CONCLUSIONS.keys()


def test_an_unknown_metric_is_none_never_zero() -> None:
    summary = summarize(OpTable(), None)
    assert set(summary.metrics.values()) == {None}
    assert (summary.ops, list(summary.response_s)) == (0, [])
    nothing_to_check = verify_files(OpTable(), {}, name_of)
    assert summarize(OpTable(), nothing_to_check).metrics["loss_rate"] is None


def test_only_refused_operations_leave_the_times_of_success_unknown() -> None:
    metrics = summarize(table_of(op(outcome=Outcome.THROTTLED, kind=ErrorKind.THROTTLED)), None).metrics
    names = [f"{group}_{label}" for group in ("response", "service") for label in PERCENTILES]
    time_metrics = {name: value for name, value in metrics.items() if name.startswith(("response", "service"))}
    assert time_metrics == dict.fromkeys([*names, "service_p25"])
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
@given(first=st.lists(ops, max_size=10), second=st.lists(ops, max_size=10))
def test_tables_of_tables_join_the_records(first: list[Op], second: list[Op]) -> None:
    table = OpTable(table_of(*first), OpTable(table_of(*second)))
    assert list(table.ops()) == [*first, *second]
    assert len(table) == len(first) + len(second)


def test_records_since_a_time_include_corrections() -> None:
    table = OpTable(*(table_of(*(op(seq=seq, scheduled_ns=seq) for seq in part)) for part in ([0, 1], [2, 5], [3, 7])))
    table.correct(bytes([0, 1, 2, 0, 1, 2]), bytes(6))
    later = table.since(2)
    assert (len(later), later.seq) == (4, [2, 5, 3, 7])
    assert later.codes("outcome") == bytes([2, 0, 1, 2])
    assert (len(table.since(9)), len(table.since(0)), len(table.since(2).since(6))) == (0, 6, 1)


def test_files_of_a_warm_up_count_neither_as_lost_nor_as_checked() -> None:
    """They are still corrected like all others, for downloads and metrics."""
    table = table_of(*(op(seq=seq, scheduled_ns=seq) for seq in range(6)))
    listing = Listing()
    listing.add([name_of(0, 5)], table.size_bytes[5:], [table.digest[5].hex()])
    verification = verify(table, listing, name_of, 2)
    assert (verification.checked, verification.lost, verification.silent, verification.wrong) == (4, 3, 3, 0)
    assert table.outcome == [Outcome.LOST] * 5 + [Outcome.OK]


def list_everything(table: OpTable) -> Listed:
    return {name_of(record.sensor, record.seq): (record.size_bytes, record.digest.hex()) for record in table.ops()}


def test_nothing_is_lost_when_everything_is_listed() -> None:
    table = table_of(*(op(sensor, seq) for sensor in range(3) for seq in range(4)))
    assert verify_files(table, list_everything(table), name_of) == Verification(12, 0, 0, 0, True)
    assert table.outcome == [Outcome.OK] * 12
    assert summarize(table, Verification(12, 0, 0, 0, True)).metrics["loss_rate"] == 0.0


@pytest.mark.parametrize("fault", ["", "swapped contents", "another file", "another size", "one digest less", "twice"])
def test_a_listing_that_is_not_exactly_right_is_looked_up_file_by_file(fault: str) -> None:
    table = table_of(*(op(seq=seq, digest=bytes([seq] * 32)) for seq in range(9)))
    names, sizes, digests = (
        [name_of(0, seq) for seq in range(9)],
        [5] * 9,
        [record.digest.hex() for record in table.ops()],
    )
    listed_digests: list[str | None] = [*digests]
    if fault == "swapped contents":
        listed_digests[2:4] = reversed(digests[2:4])
    elif fault == "another file":
        names[3] = "other"
    elif fault == "another size":
        sizes[3] += 1
    elif fault == "one digest less":
        listed_digests[3] = None
    elif fault == "twice":
        names, sizes, listed_digests = [*names, names[3]], [*sizes, 5], [*listed_digests, listed_digests[3]]
    listing = Listing()
    listing.add(names, sizes, listed_digests)
    expected = {
        "swapped contents": Verification(9, 2, 2, 2, True), "another file": Verification(9, 1, 1, 0, True),
        "another size": Verification(9, 1, 1, 1, True), "one digest less": Verification(9, 0, 0, 0, False),
        "twice": Verification(9, 0, 0, 0, True, listed_twice=1),
    }  # fmt: skip
    assert verify(table, listing, name_of) == expected.get(fault, Verification(9, 0, 0, 0, True))


def test_files_of_one_name_that_are_listed_as_often_count_as_listed_twice() -> None:
    table, listing = table_of(op(), op()), Listing()
    listing.add(["0-0"] * 2, [5] * 2, [DIGEST.hex()] * 2)
    assert verify(table, listing, name_of) == Verification(2, 0, 0, 0, True, listed_twice=1)


@pytest.mark.parametrize("different", [9, 1 << 40])
def test_rows_of_many_keys_are_in_order_and_those_of_equal_keys_stay_in_theirs(different: int) -> None:
    source = Random("rows")
    keys = array("q", (source.randrange(different) for _ in range(150_000)))
    assert list(rows_in_order(keys)) == sorted(range(len(keys)), key=keys.__getitem__)
    assert list(rows_in_order(array("q", [3, 3, 5]))) == [0, 1, 2]


def test_hashes_on_interpreters_of_32_bits_have_64_too() -> None:
    hashes = {stats._hash_slowly(value) for value in ("a", "\udcff", (5, None), (5, "aa"))}
    assert len(hashes) == 4
    assert all(-(1 << 63) <= number < 1 << 63 for number in hashes)
    assert max(map(abs, hashes)) > 1 << 32


def _missing(listing: Listed, name: str) -> None:
    del listing[name]


def _wrong_size(listing: Listed, name: str) -> None:
    listing[name] = (4, listing[name][1])


def _wrong_digest(listing: Listed, name: str) -> None:
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
    damage: Callable[[Listed, str], None], outcome: Outcome, kind: ErrorKind | None, wrong: int
) -> None:
    table = table_of(op(0, 0), op(1, 0), op(1, 1))
    listing = list_everything(table)
    damage(listing, "1-0")
    verification = verify_files(table, listing, name_of)
    assert verification == Verification(3, 1, 1, wrong, True)
    assert verification.silent_names == ("1-0",)
    assert table.outcome == [Outcome.OK, outcome, Outcome.OK]
    assert table.kind == [None, kind, None]


@pytest.mark.parametrize("outcome", [Outcome.THROTTLED, Outcome.FAILED, Outcome.CORRUPT])
def test_missing_file_of_refused_upload_is_not_lost_silently(outcome: Outcome) -> None:
    table = table_of(op(outcome=outcome, kind=ErrorKind.SERVER))
    assert verify_files(table, {}, name_of) == Verification(1, 1, 0, 0, True)
    assert (table.outcome, table.kind) == ([outcome], [ErrorKind.SERVER])


def test_a_file_that_arrived_although_its_upload_failed_is_not_lost() -> None:
    """The answer was lost on its way, but the file was not."""
    table = table_of(op(outcome=Outcome.FAILED, kind=ErrorKind.NETWORK))
    assert verify_files(table, list_everything(table), name_of) == Verification(1, 0, 0, 0, True)
    assert table.outcome == [Outcome.FAILED]


def test_a_torn_file_of_a_failed_upload_is_lost_and_wrong() -> None:
    table = table_of(op(outcome=Outcome.FAILED, kind=ErrorKind.NETWORK))
    assert verify_files(table, {"0-0": (2, None)}, name_of) == Verification(1, 1, 0, 1, False)
    assert table.outcome == [Outcome.FAILED]


def test_without_digests_sizes_alone_are_compared_and_it_says_so() -> None:
    table = table_of(op(0), op(1))
    assert verify_files(table, {"0-0": (5, None), "1-0": (6, None)}, name_of) == Verification(2, 1, 1, 1, False)


def test_only_files_that_were_written_are_checked_and_others_in_the_folder_do_not_matter() -> None:
    table = table_of(op(0, verb=Verb.GET), op(1, verb=Verb.PUT), op(2, verb=Verb.LIST))
    assert verify_files(table, {"1-0": (5, DIGEST.hex()), "other": (1, None)}, name_of) == Verification(
        1, 0, 0, 0, True
    )


@FEW
@given(
    fates=st.lists(st.sampled_from(["there", "missing", "size", "digest", "throttled", "failed, there"]), max_size=40)
)
def test_losses_made_on_purpose_are_found_again(fates: list[str]) -> None:
    outcomes = {"throttled": Outcome.THROTTLED, "failed, there": Outcome.FAILED}
    table = table_of(*(op(sensor, outcome=outcomes.get(fate, Outcome.OK)) for sensor, fate in enumerate(fates)))
    listing: Listed = {}
    for sensor, fate in enumerate(fates):
        if fate not in ("missing", "throttled"):
            digest = "00" if fate == "digest" else DIGEST.hex()
            listing[name_of(sensor, 0)] = (9 if fate == "size" else 5, digest)
    verification = verify_files(table, listing, name_of)
    silent = sum(fates.count(fate) for fate in ("missing", "size", "digest"))
    assert verification == Verification(
        len(fates), silent + fates.count("throttled"), silent, fates.count("size") + fates.count("digest"), True
    )
    metrics = summarize(table, verification).metrics
    if fates:
        assert metrics["loss_rate"] == verification.lost / len(fates)
        assert metrics["silent_loss_rate"] == silent / len(fates)
        assert metrics["throttled_rate"] == fates.count("throttled") / len(fates)
        assert metrics["failed_rate"] == fates.count("failed, there") / len(fates)


# --- uploads to one name ---


def same_name(sensor: int, seq: int) -> str:
    return "one"


def upload(number: int, start: int, end: int, outcome: Outcome = Outcome.OK) -> Op:
    return op(number, start_ns=start, end_ns=end, outcome=outcome, digest=bytes([number]) * 32)


def list_upload(number: int) -> dict[str, tuple[int, str | None]]:
    return {"one": (5, (bytes([number]) * 32).hex())}


@pytest.mark.parametrize(
    ("uploads", "stored", "lost"),
    [
        ([(0, 1), (2, 3), (4, 5)], 2, []),
        ([(0, 1), (2, 3), (4, 5)], 1, [2]),  # the last one was not stored
        ([(0, 1), (2, 3), (4, 5)], None, [2]),
        ([(0, 9), (2, 8), (4, 7)], 0, []),  # at the same time: any of them may be the last
        ([(0, 9), (2, 8), (4, 7)], 2, []),
        ([(0, 9), (2, 8), (4, 7)], 3, [0]),
        ([(0, 3), (2, 4), (5, 6)], 0, [2]),
    ],
)
def test_only_the_last_upload_to_a_name_must_be_there(
    uploads: list[tuple[int, int]], stored: int | None, lost: list[int]
) -> None:
    table = table_of(*(upload(number, *times) for number, times in enumerate(uploads)))
    verification = verify_files(table, list_upload(stored) if stored is not None else {}, same_name)
    assert (verification.checked, verification.lost, verification.silent) == (3, len(lost), len(lost))
    assert [number for number in table.sensor if table.outcome[number] is not Outcome.OK] == lost
    assert {table.outcome[number] for number in lost} <= {Outcome.LOST if stored is None else Outcome.CORRUPT}


def test_a_refused_upload_to_one_name_is_lost_unless_it_has_arrived_all_the_same() -> None:
    ops = [upload(0, 0, 1), upload(1, 2, 3), upload(2, 4, 5, Outcome.FAILED)]
    assert verify_files(table_of(*ops), list_upload(1), same_name) == Verification(3, 1, 0, 1, True)
    assert verify_files(table_of(*ops), list_upload(2), same_name) == Verification(3, 0, 0, 0, True)
    assert verify_files(table_of(*ops), list_upload(0), same_name).silent == 1
    first = [upload(0, 0, 1, Outcome.THROTTLED), upload(1, 2, 3), upload(2, 4, 5)]
    assert verify_files(table_of(*first), list_upload(2), same_name) == Verification(3, 1, 0, 1, True)


def naive(table: OpTable, listing: Listed) -> tuple[Verification, list[Outcome]]:
    """Return the verification and the outcomes, computed file by file."""
    ops, digest_checked = list(table.ops()), True
    outcomes, lost, silent, wrong = [record.outcome for record in ops], 0, 0, 0

    def is_right(record: Op) -> bool:
        size_bytes, digest = listing.get(file_of(record), (-1, None))
        return size_bytes == record.size_bytes and digest in (None, record.digest.hex())

    for row, record in enumerate(ops):
        is_listed, succeeded = file_of(record) in listing, record.outcome is Outcome.OK
        if record.verb is Verb.DELETE and succeeded and is_listed:
            outcomes[row] = Outcome.FAILED
        if record.verb is not Verb.PUT:
            continue
        rivals = [other for other in ops if other.verb is Verb.PUT and file_of(other) == file_of(record)]
        good = [other for other in rivals if other.outcome is Outcome.OK]
        if succeeded and len(rivals) > 1:
            began = max(other.start_ns for other in good)
            last = max(good, key=lambda other: (other.end_ns, [other is one for one in ops].index(True)))
            if record is not last or any(is_right(other) for other in rivals if other.end_ns >= began):
                continue
        digest_checked &= not is_listed or listing[file_of(record)][1] is not None
        if is_right(record):
            continue
        lost, silent, wrong = lost + 1, silent + succeeded, wrong + is_listed
        if succeeded:
            outcomes[row] = Outcome.CORRUPT if is_listed else Outcome.LOST
    return Verification(sum(record.verb is Verb.PUT for record in ops), lost, silent, wrong, digest_checked), outcomes


def file_of(record: Op) -> str:
    return f"{record.sensor % 3}-{record.seq % 2}"


short_times = st.integers(1, 6)
written_ops = st.builds(
    op, sensor=st.integers(0, 5), seq=st.integers(0, 5), start_ns=short_times, end_ns=short_times,
    size_bytes=st.integers(4, 5), verb=st.sampled_from([Verb.PUT, Verb.PUT, Verb.PUT, Verb.DELETE, Verb.GET]),
    outcome=st.sampled_from([Outcome.OK, Outcome.OK, Outcome.FAILED]), digest=st.sampled_from([b"\0" * 32, DIGEST]),
)  # fmt: skip


@pytest.mark.slow
@settings(deadline=None, max_examples=scale_examples(400))
@given(
    records=st.lists(written_ops, max_size=12),
    listing=st.dictionaries(
        st.sampled_from([f"{sensor}-{seq}" for sensor in range(3) for seq in range(2)]),
        st.tuples(st.integers(4, 5), st.sampled_from([None, DIGEST.hex(), "00" * 32])),
    ),
)
def test_verification_by_columns_agrees_with_single_lookups(records: list[Op], listing: Listed) -> None:
    table = table_of(*records)
    expected = naive(table, listing)
    verification = verify_files(table, listing, lambda sensor, seq: f"{sensor % 3}-{seq % 2}")
    assert (verification, table.outcome) == expected


def test_the_last_listed_of_several_files_with_one_name_counts() -> None:
    listing, table = Listing(), table_of(op())
    listing.add(["0-0", "0-0"], [5, 4], [None, None])
    assert verify(table, listing, name_of) == Verification(1, 1, 1, 1, False, listed_twice=1)


@pytest.mark.parametrize("times", [1, 2, 3])
def test_files_that_are_listed_more_than_once_are_counted_once_each(times: int) -> None:
    table = table_of(*(op(0, seq, scheduled_ns=seq) for seq in range(10)), op(0, 9, scheduled_ns=9), op(verb=Verb.GET))
    listing = Listing()
    for seq in range(10):
        for _ in range(times if seq in {2, 3, 9} else 1):
            listing.add([name_of(0, seq)], [5], [DIGEST.hex()])
    listing.add(["somebody else's"] * 2, [5, 5], [None, None])
    verification = verify(table, listing, name_of)
    assert (verification.listed_twice, verification.lost) == (0 if times == 1 else 3, 0)
    assert summarize(table, verification).metrics["duplicate_rate"] == verification.listed_twice / 11
    assert verify(table, listing, name_of, since_ns=3).listed_twice == (0 if times == 1 else 2)
