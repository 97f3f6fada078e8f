"""Verdicts on synthetic clients: each capability is found in the clients that have it, and in no others."""

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
from pytest_cloudbench.lab.detect.values import Step, Verdict
from tests.lab.detect.synthetic import KIB, MIB, FakeClient

KINDS_OF_BASE = {"copy", "append", "insert", "change", "spliced", "twin_insert", "twin_change", "restore"}
SETTINGS = list(itertools.product([False, True], repeat=5))


def find_answers(observations: list[Observation]) -> dict[str, str]:
    return {name: verdict.answer for name, verdict in judge_capabilities(observations).items()}


def make_client(chunking: bool, bundling: bool, dedup: bool, delta: bool, compression: bool) -> FakeClient:
    return FakeClient(
        chunk_bytes=MIB if chunking else 0,
        bundles=bundling,
        dedup="file" if dedup else "no",
        delta="rolling" if delta else "no",
        compresses="always" if compression else "no",
    )


@pytest.mark.parametrize("switches", SETTINGS, ids=lambda bits: "".join(str(int(bit)) for bit in bits))
def test_every_combination_is_told_apart(switches: tuple[bool, ...]) -> None:
    expected = ["yes" if switch else "no" for switch in switches]
    assert list(find_answers(make_client(*switches).measure()).values()) == expected


@settings(deadline=None)
@given(
    st.builds(
        FakeClient,
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
def test_no_verdict_is_ever_wrong(client: FakeClient) -> None:
    truth = {
        "chunking": bool(client.chunk_bytes) or client.dedup == "content",
        "bundling": client.bundles,
        "deduplication": client.dedup != "no",
        "delta": client.delta != "no",
        "compression": client.compresses != "no",
    }
    answers = find_answers(client.measure())
    wrong = {name: answer for name, answer in answers.items() if answer == ("no" if truth[name] else "yes")}
    assert not wrong, (client, wrong)
    assert answers["deduplication"] != "unknown"
    assert answers["compression"] != "unknown" or client.inflation > 2


@pytest.mark.parametrize(
    ("client", "capability", "words"),
    [
        (FakeClient(chunk_bytes=4 * MIB), "chunking", "chunks of 4 MiB"),
        (FakeClient(chunk_bytes=8 * MIB), "chunking", "chunks of 8 MiB"),
        (FakeClient(chunk_bytes=10_000_000), "chunking", "chunks of 9.54 MiB, in files of 16 MiB and 48 MiB"),
        (FakeClient(chunk_bytes=20 * MIB), "chunking", "chunks of 20 MiB, in files of 16 MiB and 48 MiB and 160 MiB"),
        (FakeClient(chunk_bytes=47 * MIB), "chunking", "chunks of 47 MiB"),
        (FakeClient(chunk_bytes=61 * MIB), "chunking", "one piece, up to 48 MiB"),
        (FakeClient(dedup="content"), "chunking", "cut by content"),
        (FakeClient(dedup="file"), "deduplication", "whole files"),
        (FakeClient(dedup="file", delta="rolling"), "deduplication", "whole files; also after"),
        (FakeClient(dedup="content", block_bytes=2 * MIB), "deduplication", "blocks cut by content, 1.19 MiB to"),
        (FakeClient(dedup="block"), "deduplication", "blocks, 806 KiB to 2.13 MiB each;"),
        (FakeClient(dedup="block", forgets_deleted=True), "deduplication", "not after all copies were deleted"),
        (FakeClient(delta="fixed"), "delta", "if it is at its old place"),
        (FakeClient(delta="rolling"), "delta", "even if it has moved"),
        (FakeClient(compresses="always"), "compression", "always"),
        (FakeClient(compresses="smart"), "compression", "smart: by content"),
        (FakeClient(compresses="name"), "compression", "by name"),
        (FakeClient(per_file_connection=True), "bundling", "a connection for each file"),
    ],
)
def test_verdict_describes_the_method_of_a_client(client: FakeClient, capability: str, words: str) -> None:
    assert words in judge_capabilities(client.measure())[capability].detail


def test_deduplicated_blocks_are_no_delta_encoding() -> None:
    verdict = judge_capabilities(FakeClient(dedup="block").measure())["delta"]
    assert (verdict.answer, "another name" in verdict.detail) == ("no", True)


def test_small_deduplicated_blocks_may_be_either() -> None:
    assert judge_capabilities(FakeClient(dedup="block", block_bytes=8 * KIB).measure())["delta"].answer == "unknown"


def test_windows_of_http_2_are_no_chunks() -> None:
    assert judge_capabilities(FakeClient(chunk_bytes=65_535).measure())["chunking"].answer == "unknown"
    observations = FakeClient(chunk_bytes=MIB).measure()
    http2_observations = [
        replace(observation, offers_h2=True, down_bytes=40 * len(observation.chunks_bytes))
        for observation in observations
    ]
    assert judge_capabilities(http2_observations)["chunking"].answer == "unknown"


def test_short_answers_leave_chunking_unknown_because_of_windows() -> None:
    observations = [
        replace(observation, down_bytes=40 * len(observation.chunks_bytes))
        for observation in FakeClient(chunk_bytes=MIB).measure()
    ]
    verdict = judge_capabilities(observations)["chunking"]
    assert (verdict.answer, "window" in verdict.detail) == ("unknown", True)


def test_windows_that_are_opened_often_are_no_answers_to_chunks() -> None:
    """rsync --bwlimit over SSH sends bursts by a clock, and its server opens ten windows for each burst."""
    observations = [
        replace(observation, answers=10 * len(observation.chunks_bytes), down_bytes=520 * len(observation.chunks_bytes))
        for observation in FakeClient(chunk_bytes=MIB).measure()
    ]
    verdict = judge_capabilities(observations)["chunking"]
    assert (verdict.answer, "often sends 52 bytes" in verdict.detail) == ("unknown", True)


@pytest.mark.parametrize(
    ("resume_s", "spread_s", "answer"),
    [(0.05, 0.05, "unknown"), (0.4, 0.05, "yes"), (0.002, 0.01, "yes"), (None, None, "yes")],
)
def test_clocked_pauses_are_told_from_waits_for_answers(
    resume_s: float | None, spread_s: float | None, answer: str
) -> None:
    """Pauses of a slow client that hashes before each chunk are steady, unlike those of a rate limit with reports."""
    observations = [
        replace(observation, resume_s=resume_s, resume_spread_s=spread_s)
        for observation in FakeClient(chunk_bytes=MIB).measure()
    ]
    assert judge_capabilities(observations)["chunking"].answer == answer


def send_in_pieces(observations: list[Observation], count: int, share: float) -> list[Observation]:
    """Return the observations as if each large file were sent in ``count`` pieces of this share of the file."""
    return [
        replace(observation, up_bytes=round(observation.up_bytes * max(1.0, count * share)), down_bytes=200 * count,
                chunks_bytes=(round(observation.size_bytes * share),) * count)
        if observation.files == 1 and observation.size_bytes else observation
        for observation in observations
    ]  # fmt: skip


@pytest.mark.parametrize(("count", "share"), [(2, 1.0), (3, 1.0), (5, 1.0), (3, 1 / 3), (4, 0.25), (4, 0.5)])
def test_copies_and_shares_of_a_file_are_no_chunks(count: int, share: float) -> None:
    """With several servers or several connections, the file and not the client decides the size of the parts."""
    observations: list[Observation] = []
    while steps := more_steps(observations) if observations else first_steps():
        base_bytes = 0
        for step in steps:
            base_bytes = step.size_bytes if step.kind == "new" else base_bytes
            observations += send_in_pieces([FakeClient().observe(step, base_bytes)], count, share)
    verdict = judge_capabilities(observations)["chunking"]
    assert (verdict.answer, "big" in {observation.kind for observation in observations}) == ("unknown", True)


@pytest.mark.parametrize(("every", "size"), [(MIB, 230), (4 * MIB, 20), (32 * KIB, 230)])
def test_answers_to_parts_that_are_not_waited_for_may_mean_chunks(every: int, size: int) -> None:
    def add_asides(observation: Observation, every: int, size: int) -> Observation:
        count = observation.up_bytes // every
        return replace(observation, asides=count, aside_bytes=count * size)

    observations = FakeClient().measure()
    verdict = judge_capabilities([add_asides(observation, every, size) for observation in observations])["chunking"]
    assert (verdict.answer, "does not wait for" in verdict.detail) == ("unknown", True)
    windows = judge_capabilities([add_asides(observation, 32 * KIB, 48) for observation in observations])["chunking"]
    assert windows.answer == "no"


def test_pauses_at_irregular_places_are_not_chunks() -> None:
    def split_unevenly(observation: Observation) -> Observation:
        first = observation.up_bytes // 3
        return (
            replace(observation, chunks_bytes=(first, observation.up_bytes - first))
            if observation.kind in ("new", "big")
            else observation
        )

    assert (
        judge_capabilities([split_unevenly(observation) for observation in FakeClient().measure()])["chunking"].answer
        == "unknown"
    )


def test_a_stream_with_answers_may_be_either() -> None:
    def stream_files(observation: Observation) -> Observation:
        return (
            replace(observation, exchanges=1, down_bytes=230 * observation.files)
            if observation.files > 1
            else observation
        )

    assert (
        judge_capabilities([stream_files(observation) for observation in FakeClient().measure()])["bundling"].answer
        == "unknown"
    )


def test_connections_that_the_idle_client_opens_are_none_of_its_files() -> None:
    """It asks for news once a second, each time on a new connection, and the batch of few files failed."""
    observations = [
        replace(observation, syns=round(observation.duration_s))
        for observation in FakeClient(bundles=True).measure()
        for observation in [replace(observation, duration_s=120.0)]
        if observation.kind != "few"
    ]
    verdict = judge_capabilities(observations)["bundling"]
    assert (verdict.answer, verdict.detail) == ("unknown", "two batches of files are needed")
    own = [replace(observation, syns=observation.syns + observation.files - 1) for observation in observations]
    assert judge_capabilities(own)["bundling"].detail == "a connection for each file (0.99)"


NAMES = (0, 9_000)
"""The round in which the client sends only the names of its files."""
ROUNDS = {
    # bytes from the server and then from the client in each round, expected answer, words of the verdict
    "asked for, ten at a time": ([NAMES, *[(1_200, 100_000)] * 10, (9_000, 0)], "no", "the server requests each file"),
    "asked for, by much and by little": (
        [NAMES, (1_200, 40_000), (600, 80_000), (3_600, 350_000), (3_000, 250_000), (3_600, 280_000)],
        "no", "requests",
    ),
    "answered, and ahead": ([(0, 300_000), *[(2_400, 200_000)] * 3, (2_400, 100_000), (2_400, 0)], "unknown", ""),
    "answered, each a while after its file": (
        [(0, 20_000), (300, 100_000), *[(1_000, 100_000)] * 8, (1_000, 80_000), (10_700, 0)], "unknown", "",
    ),
    "a list first, then all": ([NAMES, (12_000, 1_000_000), (500, 0)], "unknown", ""),
    "a list first, then slowly": ([NAMES, (12_000, 200_000), *[(40, 200_000)] * 4], "unknown", ""),
    "asked in few words": ([NAMES, *[(200, 100_000)] * 10, (22_000, 0)], "unknown", ""),
    "two large rounds": ([NAMES, (6_000, 500_000), (6_000, 500_000)], "unknown", ""),
    "nothing is known of rounds": ([], "unknown", ""),
}  # fmt: skip


@pytest.mark.parametrize("case", ROUNDS)
def test_files_that_are_asked_for_one_by_one_are_no_bundle(case: str) -> None:
    rounds, answer, words = ROUNDS[case]

    def stream_in_rounds(observation: Observation) -> Observation:
        if observation.files == 1:
            return observation
        return replace(observation, exchanges=1, down_bytes=230 * observation.files, rounds_bytes=tuple(rounds))

    verdict = judge_capabilities([stream_in_rounds(observation) for observation in FakeClient().measure()])["bundling"]
    assert verdict.answer == answer
    assert words in verdict.detail


BATCHES = {
    # files in one request, packets and bytes of its answer, asides amid large files, answer, words of the verdict
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

    def batch_files(observation: Observation) -> Observation:
        if observation.files == 1:
            return observation
        requests = -(-observation.files // files)
        back = requests * size
        return replace(
            observation, exchanges=requests - 1, down_bytes=back, late_bytes=back, late=requests * packets,
            asides=asides,
        )  # fmt: skip

    verdict = judge_capabilities([batch_files(observation) for observation in FakeClient().measure()])["bundling"]
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
    """rsync's server first lists the files with 19 bytes each. More bytes may be questions, later ones answers."""

    def add_list(observation: Observation) -> Observation:
        if observation.files == 1:
            return observation
        back = observation.files * late_bytes
        return replace(
            observation,
            exchanges=1,
            down_bytes=observation.files * before + back,
            late_bytes=back,
            late=round(observation.files * packets),
        )

    assert (
        judge_capabilities([add_list(observation) for observation in FakeClient().measure()])["bundling"].answer
        == answer
    )


def test_a_list_that_comes_earlier_for_more_files_is_no_question() -> None:
    """restic over S3 once received as many bytes for more files, but fewer of them late."""

    def add_list(observation: Observation) -> Observation:
        late = 15_800 if observation.files == 10 else 3_500
        return (
            replace(observation, exchanges=15, down_bytes=20_000, late=5, late_bytes=late)
            if observation.files > 1
            else observation
        )

    assert (
        judge_capabilities([add_list(observation) for observation in FakeClient(bundles=True).measure()])[
            "bundling"
        ].answer
        == "yes"
    )


def test_udp_leaves_chunking_and_bundling_unknown() -> None:
    observations = [
        replace(observation, udp_up_bytes=observation.up_bytes, exchanges=0)
        for observation in FakeClient(bundles=True).measure()
    ]
    answers = find_answers(observations)
    assert answers["chunking"] == answers["bundling"] == "unknown"
    assert answers["deduplication"] == "no"


def test_a_loud_idle_client_is_heard_through() -> None:
    loud = FakeClient(dedup="file", delta="rolling", idle_bytes_per_s=4_000_000)
    assert list(find_answers(loud.measure()).values())[2:] == ["yes", "yes", "no"]


@pytest.mark.parametrize("factor", [0.02, 0.5, 20.0])
def test_traffic_that_is_not_the_files_makes_all_unknown(factor: float) -> None:
    observations = [
        replace(observation, up_bytes=round(observation.up_bytes * factor)) for observation in FakeClient().measure()
    ]
    assert set(find_answers(observations).values()) == {"unknown"}


@pytest.mark.parametrize("times", [2, 3, 4, 5, 5.9])
def test_a_new_file_that_was_sent_again_and_again_makes_no_copy_or_edit_cheap(times: float) -> None:
    """A client that retries sends more for the file by which all others are divided."""
    observations = [
        replace(observation, up_bytes=round(times * observation.up_bytes)) if observation.kind == "new" else observation
        for observation in FakeClient().measure()
    ]
    answers = find_answers(observations)
    assert {answers[name] for name in ("deduplication", "delta", "compression")} == {"unknown"}


def test_a_client_that_stores_each_byte_several_times_is_judged() -> None:
    """Such as Tahoe-LAFS, which sends ten shares of which three are enough."""
    assert find_answers(FakeClient(inflation=3.4).measure())["deduplication"] == "no"
    answers = find_answers(FakeClient(inflation=3.4, dedup="file", delta="rolling").measure())
    assert (answers["deduplication"], answers["delta"]) == ("yes", "yes")


@pytest.mark.parametrize("late", ["copy", "append", "insert", "change"])
def test_what_is_sent_with_the_change_after_it_was_not_saved(late: str) -> None:
    """A client begins to send after a delay, and the network was quiet before it did."""
    observations, held_bytes = list[Observation](), 0
    for observation in FakeClient().measure():
        sent_bytes = observation.up_bytes + held_bytes
        held_bytes = sent_bytes - 5_000 if observation.kind == late else 0
        observations.append(replace(observation, up_bytes=sent_bytes - held_bytes))
    answers = find_answers(observations)
    assert (answers["deduplication"], answers["delta"]) == ("unknown", "unknown")


@pytest.mark.parametrize("loud", [0, -1], ids=["before", "between"])
def test_an_idle_client_that_is_loud_now_and_then_makes_no_slow_copy_cheap(loud: int) -> None:
    """What it sends meanwhile for other reasons, such as after a restart, is not known."""
    observations = FakeClient().measure()
    idle = [index for index, observation in enumerate(observations) if observation.kind == "idle"]
    for index, observation in enumerate(observations):
        if index == idle[loud]:
            observations[index] = replace(observation, up_bytes=8_000_000)
        elif observation.kind != "idle":
            is_slow = observation.kind in ("copy", "append", "insert", "change")
            observations[index] = replace(observation, duration_s=8.0 if is_slow else 0.3)
    answers = find_answers(observations)
    assert (answers["deduplication"], answers["delta"]) == ("unknown", "unknown")


def test_a_client_that_was_restarted_may_have_forgotten_what_it_deduplicates() -> None:
    """What it still knows counts, and the steps are done again with another file."""

    def restart(observations: list[Observation]) -> list[Observation]:
        return [replace(observation, is_restarted=observation.kind in KINDS_OF_BASE) for observation in observations]

    first = [row for row in FakeClient().measure() if row.kind in {"idle", "new", "copy", "append", "insert", "change"}]
    verdicts = judge_capabilities(restart(first))
    assert {name: verdicts[name].answer for name in ("deduplication", "delta")} == dict.fromkeys(
        ("deduplication", "delta"), "unknown"
    )
    assert verdicts["deduplication"].detail == (
        "no copy of a file was measured; copy: a process of the client that saw the file new has ended since"
    )
    assert {"new", "copy"} <= {step.kind for step in more_steps(restart(first))}
    assert find_answers([*restart(first), *first])["deduplication"] == "no"
    assert find_answers(restart(FakeClient(dedup="file").measure()))["deduplication"] == "yes"


@pytest.mark.parametrize("share", [0.55, 0.85])
def test_a_part_of_a_file_shows_nothing_of_the_whole(share: float) -> None:
    def cut(kind: str) -> list[Observation]:
        return [
            replace(
                observation, up_bytes=round(observation.size_bytes * share), exchanges=0, syns=0, answers=0,
                chunks_bytes=(round(observation.size_bytes * share),),
            ) if observation.kind == kind else observation
            for observation in FakeClient(bundles=True).measure()
        ]  # fmt: skip

    assert find_answers(FakeClient(bundles=True).measure())["chunking"] == "no"
    assert find_answers(cut("big"))["chunking"] == "unknown"
    for batch in ("few", "many"):
        assert find_answers(cut(batch))["bundling"] == "unknown"


def test_compression_is_unknown_for_a_client_that_sends_all_again() -> None:
    total_bytes = 0
    observations = []
    for observation in FakeClient(compresses="always").measure():
        total_bytes += observation.up_bytes
        observations.append(observation if observation.kind == "idle" else replace(observation, up_bytes=total_bytes))
    answers = find_answers(observations)
    assert (answers["compression"], answers["delta"], answers["deduplication"]) == ("unknown", "no", "no")


@pytest.mark.parametrize("inflation", [1.34, 2.0])
def test_an_encoding_that_spares_text_is_no_compression(inflation: float) -> None:
    """With random bytes as base64 and text as it is, text costs less than random bytes, but not less than its size."""
    observations = [
        observation
        if observation.zlib_bytes
        else replace(observation, up_bytes=round(observation.up_bytes * inflation))
        for observation in FakeClient().measure()
    ]
    verdict = judge_capabilities(observations)["compression"]
    assert (verdict.answer, "encoded or padded" in verdict.detail) == ("unknown", True)
    compressed = FakeClient(compresses="always", inflation=inflation).measure()
    assert judge_capabilities(compressed)["compression"].answer == "yes"


def test_less_than_compression_can_leave_shows_none() -> None:
    """Such as of a client that says it is in sync before it sends, or that sends to a server nobody named."""

    def hide(kind: str, share: float) -> Verdict:
        observations = [
            replace(observation, up_bytes=round(observation.size_bytes * share))
            if observation.kind == kind
            else observation
            for observation in FakeClient(compresses="always").measure()
        ]
        return judge_capabilities(observations)["compression"]

    assert [hide("text", share).answer for share in (0.01, 0.15, 0.21, 0.4)] == ["unknown", "unknown", "yes", "yes"]
    assert "not all of it was seen" in hide("text", 0.01).detail
    for kind in ("text_in_jpeg", "text_as_jpeg"):
        assert "which files are not compressed is not known" in hide(kind, 0.01).detail


def test_half_sent_copies_are_unknown() -> None:
    observations = [
        replace(observation, up_bytes=observation.size_bytes // 2) if observation.kind == "copy" else observation
        for observation in FakeClient().measure()
    ]
    assert judge_capabilities(observations)["deduplication"].answer == "unknown"


def test_only_appending_is_not_delta_encoding_yet() -> None:
    observations = [
        replace(observation, up_bytes=600) if observation.kind == "append" else observation
        for observation in FakeClient().measure()
    ]
    assert judge_capabilities(observations)["delta"].answer == "unknown"


def test_invalid_observations_count_for_nothing() -> None:
    observations = [
        replace(observation, reasons=("capture: 3 packets were dropped",))
        for observation in FakeClient(dedup="file").measure()
    ]
    verdicts = judge_capabilities(observations)
    assert {verdict.answer for verdict in verdicts.values()} == {"unknown"}
    assert all(verdict.detail for verdict in verdicts.values())


def test_an_invalid_step_takes_only_its_own_verdicts_with_it() -> None:
    def fail_step(observation: Observation, kind: str) -> Observation:
        return (
            replace(observation, reasons=("the client did not carry it out",))
            if observation.kind == kind
            else observation
        )

    observations = FakeClient().measure()
    for kind, lost in (("copy", {"deduplication", "chunking"}), ("text", {"compression"}), ("insert", {"delta"})):
        answers = find_answers([fail_step(observation, kind) for observation in observations])
        assert {name for name, answer in answers.items() if answer == "unknown"} == lost


def test_a_crash_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_cloudbench.lab.detect import procedure

    monkeypatch.setitem(procedure._DETECTORS, "delta", lambda costs, observations: 1 / 0)
    verdicts = judge_capabilities(FakeClient().measure())
    assert (verdicts["delta"].answer, "ZeroDivisionError" in verdicts["delta"].detail) == ("unknown", True)
    assert verdicts["deduplication"].answer == "no"


def observation_lists() -> st.SearchStrategy[list[Observation]]:
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


@given(observation_lists())
def test_any_observations_are_judged_without_a_crash(observations: list[Observation]) -> None:
    verdicts = judge_capabilities(observations)
    assert tuple(verdicts) == CAPABILITIES
    for verdict in verdicts.values():
        assert "detector failed" not in verdict.detail
        assert verdict.answer in ("yes", "no", "unknown")
        assert 0 <= verdict.confidence <= 1
        assert (verdict.answer == "unknown") <= (verdict.confidence == 0)


@given(observation_lists())
def test_measuring_more_comes_to_an_end(observations: list[Observation]) -> None:
    series = 0
    while steps := more_steps(observations):
        observations = [*observations, *(Observation(step.kind, reasons=("never valid",)) for step in steps)]
        series += 1
        assert series < 12


def test_known_chunk_size_needs_no_further_steps() -> None:
    client = FakeClient(chunk_bytes=MIB)
    observations = [client.observe(step, 16 * MIB) for step in first_steps()]
    assert more_steps(observations) == ()


def test_block_size_is_cost_of_an_edit_minus_cost_of_a_copy() -> None:
    """The client's list of blocks costs 300 kB for any file of this size."""
    observations = [
        replace(observation, up_bytes=observation.up_bytes + 300_000)
        if observation.kind not in ("idle", "few", "many")
        else observation
        for observation in FakeClient(dedup="block", block_bytes=256 * KIB).measure()
    ]
    blocks = find_blocks(EditCosts.measure(observations))
    assert blocks is not None
    assert blocks.bounds_bytes is not None
    assert blocks.bounds_bytes[0] < 256 * KIB < blocks.bounds_bytes[1] < 700 * KIB


@pytest.mark.parametrize("is_cut_by_content", [False, True], ids=["fixed", "by content"])
@pytest.mark.parametrize("mean_bytes", [16 * KIB, 64 * KIB, 100_000, 128 * KIB, 700_000, MIB, 2_500_000])
def test_the_bounds_of_block_sizes_hold_the_true_size(mean_bytes: int, is_cut_by_content: bool) -> None:
    bounded_count = 0
    for seed in range(40):
        client = BlockClient(mean_bytes, is_cut_by_content, random.Random(seed))
        blocks = find_blocks(EditCosts.measure(client.measure()))
        if blocks is not None and blocks.bounds_bytes is not None:
            bounded_count += 1
            low_bytes, high_bytes = blocks.bounds_bytes
            assert low_bytes < mean_bytes < high_bytes, (seed, blocks)
            assert is_cut_by_content or high_bytes < 2.5 * mean_bytes + 100 * KIB
    assert bounded_count >= (30 if is_cut_by_content else 40), "few may be left away"


class BlockClient:
    """A client that deduplicates blocks, with other traffic that varies by 30 kB for each file.

    Blocks cut by content have a minimum size, and beyond it a geometric distribution, as with rolling hashes.
    """

    def __init__(self, mean_bytes: int, is_cut_by_content: bool, noise: random.Random) -> None:
        self.noise, self.is_cut_by_content = noise, is_cut_by_content
        min_bytes = mean_bytes / 4
        self.ends: list[float] = [0.0]
        while self.ends[-1] < 48 * MIB:
            block_bytes = min_bytes + noise.expovariate(1 / (mean_bytes - min_bytes))
            self.ends.append(self.ends[-1] + (block_bytes if is_cut_by_content else mean_bytes))

    def measure(self) -> list[Observation]:
        observations: list[Observation] = []
        base_bytes = 0
        steps = first_steps()
        while steps:
            for step in steps:
                base_bytes = step.size_bytes if step.kind == "new" else base_bytes
                observations.append(self.observe(step, base_bytes))
            steps = more_steps(observations)
        return observations

    def observe(self, step: Step, base_bytes: int) -> Observation:
        sent_bytes = self.count_sent_bytes(step, base_bytes)
        observation = FakeClient().observe(step, base_bytes)
        if sent_bytes is None:
            return observation
        return replace(observation, up_bytes=round(sent_bytes * 1.04 + 40_000 + self.noise.uniform(-15_000, 15_000)))

    def count_sent_bytes(self, step: Step, base_bytes: int) -> float | None:
        last_block_bytes = base_bytes - self.block(base_bytes)[0]
        edit = step.kind.removeprefix("twin_")
        if edit in ("copy", "restore", "delete"):
            return 0.0
        if edit == "append":
            return last_block_bytes + step.size_bytes
        if edit == "change":
            begin, end = self.block(0.4 * base_bytes)
            return end - begin + last_block_bytes
        if edit in ("insert", "spliced"):
            begin, end = self.block(0.5 * base_bytes if edit == "insert" else self.noise.uniform(0, base_bytes))
            return end - begin if self.is_cut_by_content else base_bytes - begin
        return None

    def block(self, offset: float) -> tuple[float, float]:
        index = bisect.bisect_left(self.ends, offset)
        return self.ends[max(0, index - 1)], self.ends[max(1, index)]


def test_blocks_that_may_be_fixed_or_not_have_no_size() -> None:
    """A block cut by content may be nearly half of the file. One edit then says nothing about the other blocks."""
    observations = [
        replace(observation, up_bytes=round(0.47 * observation.size_bytes))
        if observation.kind == "twin_insert"
        else observation
        for observation in FakeClient(dedup="block").measure()
    ]
    assert judge_capabilities(observations)["deduplication"].detail == "blocks; also after all copies were deleted"


def test_a_size_that_few_edits_of_blocks_cut_by_content_show_is_left_away() -> None:
    observations = [
        observation for observation in FakeClient(dedup="content").measure() if observation.kind != "spliced"
    ]
    verdict = judge_capabilities(observations)["deduplication"]
    assert verdict.detail == "blocks cut by content; also after all copies were deleted"
    assert "spliced" in verdict.wants
