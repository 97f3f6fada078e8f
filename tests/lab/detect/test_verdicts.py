"""Verdicts on made-up clients: each capability is found where it is, and only there."""

from __future__ import annotations

import bisect
import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_cloudbench.lab.detect import CAPABILITIES, KINDS, Observation, first_steps, judge_capabilities, more_steps
from pytest_cloudbench.lab.detect.sent import EditCosts, find_blocks
from pytest_cloudbench.lab.detect.values import Step
from tests.lab.detect.synthetic import KIB, MIB, Made

SETTINGS = list(itertools.product([False, True], repeat=5))


def answers(observations: list[Observation]) -> dict[str, str]:
    return {name: verdict.answer for name, verdict in judge_capabilities(observations).items()}


def made(chunking: bool, bundling: bool, dedup: bool, delta: bool, compression: bool) -> Made:
    return Made(
        chunk_bytes=MIB if chunking else 0,
        bundles=bundling,
        dedup="file" if dedup else "no",
        delta="rolling" if delta else "no",
        compresses="always" if compression else "no",
    )


@pytest.mark.parametrize("switches", SETTINGS, ids=lambda bits: "".join(str(int(bit)) for bit in bits))
def test_every_combination_is_told_apart(switches: tuple[bool, ...]) -> None:
    wanted = ["yes" if switch else "no" for switch in switches]
    assert list(answers(made(*switches).measured()).values()) == wanted


@settings(deadline=None)
@given(
    st.builds(
        Made,
        chunk_bytes=st.sampled_from([0, 256 * KIB, MIB, 4 * MIB]),
        bundles=st.booleans(),
        dedup=st.sampled_from(["no", "file", "block", "content"]),
        forgets_deleted=st.booleans(),
        delta=st.sampled_from(["no", "fixed", "rolling"]),
        compresses=st.sampled_from(["no", "always", "smart", "name"]),
        overhead=st.floats(1.0, 1.05),
        block_bytes=st.sampled_from([128 * KIB, MIB, 4 * MIB]),
        delta_block_bytes=st.sampled_from([KIB, 4 * KIB, 16 * KIB]),
        idle_bytes_per_s=st.sampled_from([0.0, 100.0, 50_000.0]),
        inflation=st.sampled_from([1.0, 1.34, 3.4]),
    )
)
def test_no_verdict_is_ever_wrong(client: Made) -> None:
    truth = {
        "chunking": bool(client.chunk_bytes) or client.dedup == "content",
        "bundling": client.bundles,
        "deduplication": client.dedup != "no",
        "delta": client.delta != "no",
        "compression": client.compresses != "no",
    }
    found = answers(client.measured())
    wrong = {name: answer for name, answer in found.items() if answer == ("no" if truth[name] else "yes")}
    assert not wrong, (client, wrong)
    assert found["deduplication"] != "unknown"
    assert found["compression"] != "unknown" or client.inflation > 2


@pytest.mark.parametrize(
    ("client", "capability", "words"),
    [
        (Made(chunk_bytes=4 * MIB), "chunking", "chunks of 4 MiB"),
        (Made(chunk_bytes=8 * MIB), "chunking", "chunks of 8 MiB"),
        (Made(chunk_bytes=10_000_000), "chunking", "chunks of 9.54 MiB, in files of 16 MiB and 48 MiB"),
        (Made(chunk_bytes=20 * MIB), "chunking", "chunks of 20 MiB, in files of 16 MiB and 48 MiB and 160 MiB"),
        (Made(chunk_bytes=47 * MIB), "chunking", "chunks of 47 MiB"),
        (Made(chunk_bytes=61 * MIB), "chunking", "one piece, up to 48 MiB"),
        (Made(dedup="content"), "chunking", "cut by content"),
        (Made(dedup="file"), "deduplication", "whole files"),
        (Made(dedup="file", delta="rolling"), "deduplication", "whole files; also after"),
        (Made(dedup="content", block_bytes=2 * MIB), "deduplication", "blocks cut by content, 1.19 MiB to"),
        (Made(dedup="block"), "deduplication", "blocks, 806 KiB to 2.13 MiB each;"),
        (Made(dedup="block", forgets_deleted=True), "deduplication", "not after all copies were deleted"),
        (Made(delta="fixed"), "delta", "if it is at its old place"),
        (Made(delta="rolling"), "delta", "even if it has moved"),
        (Made(compresses="always"), "compression", "always"),
        (Made(compresses="smart"), "compression", "smart: by content"),
        (Made(compresses="name"), "compression", "by name"),
        (Made(per_file_connection=True), "bundling", "a connection for each file"),
    ],
)
def test_verdict_describes_the_method_of_a_client(client: Made, capability: str, words: str) -> None:
    assert words in judge_capabilities(client.measured())[capability].detail


def test_deduplicated_blocks_are_no_delta_encoding() -> None:
    verdict = judge_capabilities(Made(dedup="block").measured())["delta"]
    assert (verdict.answer, "another name" in verdict.detail) == ("no", True)


def test_small_deduplicated_blocks_may_be_either() -> None:
    assert judge_capabilities(Made(dedup="block", block_bytes=8 * KIB).measured())["delta"].answer == "unknown"


def test_windows_of_http_2_are_no_chunks() -> None:
    assert judge_capabilities(Made(chunk_bytes=65_535).measured())["chunking"].answer == "unknown"
    found = Made(chunk_bytes=MIB).measured()
    larger = [replace(each, offers_h2=True, down_bytes=40 * len(each.chunks_bytes)) for each in found]
    assert judge_capabilities(larger)["chunking"].answer == "unknown"


def test_short_answers_leave_chunking_unknown_because_of_windows() -> None:
    seen = [replace(each, down_bytes=40 * len(each.chunks_bytes)) for each in Made(chunk_bytes=MIB).measured()]
    verdict = judge_capabilities(seen)["chunking"]
    assert (verdict.answer, "window" in verdict.detail) == ("unknown", True)


def test_windows_that_are_opened_often_are_no_answers_to_chunks() -> None:
    """As rsync --bwlimit over SSH does it: bursts by a clock, and ten windows opened for each."""
    seen = [
        replace(each, answers=10 * len(each.chunks_bytes), down_bytes=520 * len(each.chunks_bytes))
        for each in Made(chunk_bytes=MIB).measured()
    ]
    verdict = judge_capabilities(seen)["chunking"]
    assert (verdict.answer, "often sends 52 bytes" in verdict.detail) == ("unknown", True)


@pytest.mark.parametrize(
    ("resume_s", "spread_s", "answer"),
    [(0.05, 0.05, "unknown"), (0.4, 0.05, "yes"), (0.002, 0.01, "yes"), (None, None, "yes")],
)
def test_clocked_pauses_are_told_from_waits_for_answers(
    resume_s: float | None, spread_s: float | None, answer: str
) -> None:
    """A slow client that hashes before each chunk is steady; a bound on the rate with progress reports is not."""
    seen = [replace(each, resume_s=resume_s, resume_spread_s=spread_s) for each in Made(chunk_bytes=MIB).measured()]
    assert judge_capabilities(seen)["chunking"].answer == answer


def several(observations: list[Observation], count: int, share: float) -> list[Observation]:
    """The same, with each large file sent in ``count`` pieces of this share of it."""
    return [
        replace(each, up_bytes=round(each.up_bytes * max(1.0, count * share)), down_bytes=200 * count,
                chunks_bytes=(round(each.size_bytes * share),) * count)
        if each.files == 1 and each.size_bytes else each
        for each in observations
    ]  # fmt: skip


@pytest.mark.parametrize(("count", "share"), [(2, 1.0), (3, 1.0), (5, 1.0), (3, 1 / 3), (4, 0.25), (4, 0.5)])
def test_copies_and_shares_of_a_file_are_no_chunks(count: int, share: float) -> None:
    """To several servers, or over several connections: the file, not the client, decides how large parts are."""
    seen: list[Observation] = []
    while steps := more_steps(seen) if seen else first_steps():
        base = 0
        for step in steps:
            base = step.size_bytes if step.kind == "new" else base
            seen += several([Made().observe(step, base)], count, share)
    verdict = judge_capabilities(seen)["chunking"]
    assert (verdict.answer, "big" in {each.kind for each in seen}) == ("unknown", True)


@pytest.mark.parametrize(("every", "size"), [(MIB, 230), (4 * MIB, 20), (32 * KIB, 230)])
def test_answers_to_parts_that_are_not_waited_for_may_mean_chunks(every: int, size: int) -> None:
    def spoken(each: Observation, every: int, size: int) -> Observation:
        count = each.up_bytes // every
        return replace(each, asides=count, aside_bytes=count * size)

    seen = Made().measured()
    verdict = judge_capabilities([spoken(each, every, size) for each in seen])["chunking"]
    assert (verdict.answer, "does not wait for" in verdict.detail) == ("unknown", True)
    windows = judge_capabilities([spoken(each, 32 * KIB, 48) for each in seen])["chunking"]
    assert windows.answer == "no"


def test_pauses_at_irregular_places_are_not_chunks() -> None:
    def paused(each: Observation) -> Observation:
        first = each.up_bytes // 3
        return replace(each, chunks_bytes=(first, each.up_bytes - first)) if each.kind in ("new", "big") else each

    assert judge_capabilities([paused(each) for each in Made().measured()])["chunking"].answer == "unknown"


def test_a_stream_with_answers_may_be_either() -> None:
    def streamed(each: Observation) -> Observation:
        return replace(each, exchanges=1, down_bytes=230 * each.files) if each.files > 1 else each

    assert judge_capabilities([streamed(each) for each in Made().measured()])["bundling"].answer == "unknown"


LISTED = (0, 9_000)
"""What is sent before any file: names."""
ROUNDS = {
    # what the server said and what the client sent then; the answer, and words of it
    "asked for, ten at a time": ([LISTED, *[(1_200, 100_000)] * 10, (9_000, 0)], "no", "the server requests each file"),
    "asked for, by much and by little": (
        [LISTED, (1_200, 40_000), (600, 80_000), (3_600, 350_000), (3_000, 250_000), (3_600, 280_000)],
        "no", "requests",
    ),
    "answered, and ahead": ([(0, 300_000), *[(2_400, 200_000)] * 3, (2_400, 100_000), (2_400, 0)], "unknown", ""),
    "answered, each a while after its file": (
        [(0, 20_000), (300, 100_000), *[(1_000, 100_000)] * 8, (1_000, 80_000), (10_700, 0)], "unknown", "",
    ),
    "a list first, then all": ([LISTED, (12_000, 1_000_000), (500, 0)], "unknown", ""),
    "a list first, then slowly": ([LISTED, (12_000, 200_000), *[(40, 200_000)] * 4], "unknown", ""),
    "asked in few words": ([LISTED, *[(200, 100_000)] * 10, (22_000, 0)], "unknown", ""),
    "two large rounds": ([LISTED, (6_000, 500_000), (6_000, 500_000)], "unknown", ""),
    "nothing is known of rounds": ([], "unknown", ""),
}  # fmt: skip


@pytest.mark.parametrize("case", ROUNDS)
def test_files_that_are_asked_for_one_by_one_are_no_bundle(case: str) -> None:
    rounds, answer, words = ROUNDS[case]

    def streamed(each: Observation) -> Observation:
        if each.files == 1:
            return each
        return replace(each, exchanges=1, down_bytes=230 * each.files, rounds_bytes=tuple(rounds))

    verdict = judge_capabilities([streamed(each) for each in Made().measured()])["bundling"]
    assert verdict.answer == answer
    assert words in verdict.detail


BATCHES = {
    # files in one request, answers to it (packets), their bytes, asides amid large files; the answer, and words of it
    "ten files in a request": (10, 1, 136, 0, "yes", "about 10 files at a time"),
    "five files in a request": (5, 1, 110, 0, "yes", "about 5 files at a time"),
    "ten files, each with an answer": (10, 10, 200, 8, "unknown", "not one for each"),
    "ten files, each with an answer, of few packets": (10, 2, 400, 0, "unknown", "not one for each"),
    "three files in a request": (3, 1, 60, 0, "unknown", "not one for each"),
    "one file in a request": (1, 1, 136, 0, "no", "an exchange for each file"),
}


@pytest.mark.parametrize("case", BATCHES)
def test_requests_of_several_files(case: str) -> None:
    files, packets, size, asides, answer, words = BATCHES[case]

    def batched(each: Observation) -> Observation:
        if each.files == 1:
            return each
        requests = -(-each.files // files)
        back = requests * size
        return replace(
            each, exchanges=requests - 1, down_bytes=back, late_bytes=back, late=requests * packets, asides=asides,
        )  # fmt: skip

    verdict = judge_capabilities([batched(each) for each in Made().measured()])["bundling"]
    assert (verdict.answer, words in verdict.detail) == (answer, True), verdict


@pytest.mark.parametrize(
    ("before", "late_bytes", "packets", "answer"),
    [
        (19, 0, 0, "yes"),
        (19, 20, 0.3, "yes"),
        (19, 20, 1, "unknown"),
        (0, 10, 1.5, "unknown"),
        (120, 0, 0, "unknown"),
        (19, 60, 0.3, "unknown"),
    ],
)
def test_bytes_received_before_the_files_are_no_answers(
    before: int, late_bytes: int, packets: float, answer: str
) -> None:
    """As rsync's server lists files, with 19 bytes each; more bytes may be questions, and later ones may be answers."""

    def streamed(each: Observation) -> Observation:
        if each.files == 1:
            return each
        back = each.files * late_bytes
        return replace(
            each, exchanges=1, down_bytes=each.files * before + back, late_bytes=back, late=round(each.files * packets)
        )

    assert judge_capabilities([streamed(each) for each in Made().measured()])["bundling"].answer == answer


def test_a_list_that_comes_earlier_for_more_files_is_no_question() -> None:
    """As restic over S3 once had it: as much came back, but less of it late."""

    def packed(each: Observation) -> Observation:
        late = 15_800 if each.files == 10 else 3_500
        return replace(each, exchanges=15, down_bytes=20_000, late=5, late_bytes=late) if each.files > 1 else each

    assert judge_capabilities([packed(each) for each in Made(bundles=True).measured()])["bundling"].answer == "yes"


def test_udp_leaves_chunking_and_bundling_unknown() -> None:
    seen = [replace(each, udp_up_bytes=each.up_bytes, exchanges=0) for each in Made(bundles=True).measured()]
    found = answers(seen)
    assert found["chunking"] == found["bundling"] == "unknown"
    assert found["deduplication"] == "no"


def test_a_loud_idle_client_is_heard_through() -> None:
    loud = Made(dedup="file", delta="rolling", idle_bytes_per_s=4_000_000)
    assert list(answers(loud.measured()).values())[2:] == ["yes", "yes", "no"]


@pytest.mark.parametrize("factor", [0.02, 0.5, 20.0])
def test_traffic_that_is_not_the_files_makes_all_unknown(factor: float) -> None:
    seen = [replace(each, up_bytes=round(each.up_bytes * factor)) for each in Made().measured()]
    assert set(answers(seen).values()) == {"unknown"}


def test_compression_is_unknown_for_a_client_that_sends_all_again() -> None:
    sent = 0
    seen = []
    for each in Made(compresses="always").measured():
        sent += each.up_bytes
        seen.append(each if each.kind == "idle" else replace(each, up_bytes=sent))
    found = answers(seen)
    assert (found["compression"], found["delta"], found["deduplication"]) == ("unknown", "no", "no")


@pytest.mark.parametrize("inflation", [1.34, 2.0])
def test_an_encoding_that_spares_text_is_no_compression(inflation: float) -> None:
    """Random bytes as base64, text as it is: text costs less, yet as much as it has."""
    seen = [
        each if each.zlib_bytes else replace(each, up_bytes=round(each.up_bytes * inflation))
        for each in Made().measured()
    ]
    verdict = judge_capabilities(seen)["compression"]
    assert (verdict.answer, "encoded or padded" in verdict.detail) == ("unknown", True)
    packed = Made(compresses="always", inflation=inflation).measured()
    assert judge_capabilities(packed)["compression"].answer == "yes"


def test_half_sent_copies_are_unknown() -> None:
    seen = [replace(each, up_bytes=each.size_bytes // 2) if each.kind == "copy" else each for each in Made().measured()]
    assert judge_capabilities(seen)["deduplication"].answer == "unknown"


def test_only_appending_is_not_delta_encoding_yet() -> None:
    seen = [replace(each, up_bytes=600) if each.kind == "append" else each for each in Made().measured()]
    assert judge_capabilities(seen)["delta"].answer == "unknown"


def test_invalid_observations_count_for_nothing() -> None:
    seen = [replace(each, reasons=("capture: 3 packets were dropped",)) for each in Made(dedup="file").measured()]
    verdicts = judge_capabilities(seen)
    assert {verdict.answer for verdict in verdicts.values()} == {"unknown"}
    assert all(verdict.detail for verdict in verdicts.values())


def test_an_invalid_step_takes_only_its_own_verdicts_with_it() -> None:
    def failed(each: Observation, kind: str) -> Observation:
        return replace(each, reasons=("the client did not carry it out",)) if each.kind == kind else each

    seen = Made().measured()
    for kind, lost in (("copy", {"deduplication", "chunking"}), ("text", {"compression"}), ("insert", {"delta"})):
        found = answers([failed(each, kind) for each in seen])
        assert {name for name, answer in found.items() if answer == "unknown"} == lost


def test_a_crash_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_cloudbench.lab.detect import procedure

    monkeypatch.setitem(procedure._DETECTORS, "delta", lambda sent, observations: 1 / 0)
    verdicts = judge_capabilities(Made().measured())
    assert (verdicts["delta"].answer, "ZeroDivisionError" in verdicts["delta"].detail) == ("unknown", True)
    assert verdicts["deduplication"].answer == "no"


def observations() -> st.SearchStrategy[list[Observation]]:
    counts = st.integers(0, 1 << 25)
    return st.lists(
        st.builds(
            Observation,
            kind=st.sampled_from(sorted(KINDS)),
            size_bytes=counts,
            changed_bytes=counts,
            files=st.integers(0, 100),
            zlib_bytes=st.none() | counts,
            up_bytes=counts,
            down_bytes=counts,
            udp_up_bytes=counts,
            syns=st.integers(0, 500),
            exchanges=st.integers(0, 500),
            chunks_bytes=st.lists(counts, max_size=8).map(tuple),
            offers_h2=st.booleans(),
            duration_s=st.floats(0, 100),
            reasons=st.sampled_from([(), ("capture: cut",)]),
        ),
        max_size=30,
    )


@given(observations())
def test_any_observations_are_judged_without_a_crash(seen: list[Observation]) -> None:
    verdicts = judge_capabilities(seen)
    assert tuple(verdicts) == CAPABILITIES
    for verdict in verdicts.values():
        assert "detector failed" not in verdict.detail
        assert verdict.answer in ("yes", "no", "unknown")
        assert 0 <= verdict.confidence <= 1
        assert (verdict.answer == "unknown") <= (verdict.confidence == 0)


@given(observations())
def test_measuring_more_comes_to_an_end(seen: list[Observation]) -> None:
    series = 0
    while steps := more_steps(seen):
        seen = [*seen, *(Observation(step.kind, reasons=("never valid",)) for step in steps)]
        series += 1
        assert series < 12


def test_known_chunk_size_needs_no_further_steps() -> None:
    client = Made(chunk_bytes=MIB)
    seen = [client.observe(step, 16 * MIB) for step in first_steps()]
    assert more_steps(seen) == ()


def test_block_size_is_cost_of_an_edit_minus_cost_of_a_copy() -> None:
    """A client whose list of blocks costs 300 kB for any file of this size."""
    seen = [
        replace(each, up_bytes=each.up_bytes + 300_000) if each.kind not in ("idle", "few", "many") else each
        for each in Made(dedup="block", block_bytes=256 * KIB).measured()
    ]
    blocks = find_blocks(EditCosts.measure(seen))
    assert blocks is not None
    assert blocks.bounds_bytes is not None
    assert blocks.bounds_bytes[0] < 256 * KIB < blocks.bounds_bytes[1] < 700 * KIB


@pytest.mark.parametrize("is_cut_by_content", [False, True], ids=["fixed", "by content"])
@pytest.mark.parametrize("mean_bytes", [16 * KIB, 64 * KIB, 100_000, 128 * KIB, 700_000, MIB, 2_500_000])
def test_the_bounds_of_block_sizes_hold_the_true_size(mean_bytes: int, is_cut_by_content: bool) -> None:
    known = 0
    for seed in range(40):
        client = Cutting(mean_bytes, is_cut_by_content, random.Random(seed))
        blocks = find_blocks(EditCosts.measure(client.measured()))
        if blocks is not None and blocks.bounds_bytes is not None:
            known += 1
            least, most = blocks.bounds_bytes
            assert least < mean_bytes < most, (seed, blocks)
            assert is_cut_by_content or most < 2.5 * mean_bytes + 100 * KIB
    assert known >= (30 if is_cut_by_content else 40), "few may be left away"


class Cutting:
    """A client that deduplicates blocks, and whose other traffic varies by 30 kB for each file that it sends.

    Blocks that are cut by content have a least size, and beyond it a geometric distribution, as rolling hashes give it.
    """

    def __init__(self, mean_bytes: int, is_cut_by_content: bool, noise: random.Random) -> None:
        self.noise, self.is_cut_by_content = noise, is_cut_by_content
        least = mean_bytes / 4
        self.ends: list[float] = [0.0]
        while self.ends[-1] < 48 * MIB:
            drawn = least + noise.expovariate(1 / (mean_bytes - least))
            self.ends.append(self.ends[-1] + (drawn if is_cut_by_content else mean_bytes))

    def measured(self) -> list[Observation]:
        seen: list[Observation] = []
        base_bytes = 0
        steps = first_steps()
        while steps:
            for step in steps:
                base_bytes = step.size_bytes if step.kind == "new" else base_bytes
                seen.append(self.observe(step, base_bytes))
            steps = more_steps(seen)
        return seen

    def observe(self, step: Step, base_bytes: int) -> Observation:
        sent = self.sent(step, base_bytes)
        made = Made().observe(step, base_bytes)
        if sent is None:
            return made
        return replace(made, up_bytes=round(sent * 1.04 + 40_000 + self.noise.uniform(-15_000, 15_000)))

    def sent(self, step: Step, base_bytes: int) -> float | None:
        last = base_bytes - self.block(base_bytes)[0]
        edit = step.kind.removeprefix("twin_")
        if edit in ("copy", "restore", "delete"):
            return 0.0
        if edit == "append":
            return last + step.size_bytes
        if edit == "change":
            begin, end = self.block(0.4 * base_bytes)
            return end - begin + last
        if edit in ("insert", "spliced"):
            begin, end = self.block(0.5 * base_bytes if edit == "insert" else self.noise.uniform(0, base_bytes))
            return end - begin if self.is_cut_by_content else base_bytes - begin
        return None

    def block(self, at: float) -> tuple[float, float]:
        index = bisect.bisect_left(self.ends, at)
        return self.ends[max(0, index - 1)], self.ends[max(1, index)]


def test_blocks_that_may_be_fixed_or_not_have_no_size() -> None:
    """A block cut by content may be nearly half of the file; then one edit says nothing about the other blocks."""
    seen = [
        replace(each, up_bytes=round(0.47 * each.size_bytes)) if each.kind == "twin_insert" else each
        for each in Made(dedup="block").measured()
    ]
    assert judge_capabilities(seen)["deduplication"].detail == "blocks; also after all copies were deleted"


def test_a_size_that_few_edits_of_blocks_cut_by_content_show_is_left_away() -> None:
    seen = [each for each in Made(dedup="content").measured() if each.kind != "spliced"]
    verdict = judge_capabilities(seen)["deduplication"]
    assert verdict.detail == "blocks cut by content; also after all copies were deleted"
    assert "spliced" in verdict.wants
