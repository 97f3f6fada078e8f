"""Transfers of the reference client over links with a known round trip and rate, from which the numbers follow.

Lower bounds of times are strict, as no machine is faster than the link. Upper bounds leave room for a busy machine.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_cloudbench.lab import clients
from pytest_cloudbench.lab.sync.changes import Workload
from pytest_cloudbench.lab.sync.lab import Lab
from pytest_cloudbench.lab.sync.transfers import PlannedInterruption, recovery_cost
from pytest_cloudbench.net.link import LinkUnavailable, Way

from .links import open_transfers

SLOW = Way(delay_ms=5, rate_bit_per_s=8e6)
"""A megabyte a second, and at most 0.1 s of it in the queue."""

SET = Workload(1, 600_000)
HALF = SET.total_bytes // 2


@pytest.mark.slow
def test_each_file_costs_a_round_trip_unless_they_are_bundled(tmp_path: Path) -> None:
    """Without bundling, each file is answered before the next one is sent (docs/reference/reference-client.md)."""
    files, round_trip_s = Workload(20, 1_000), 0.05
    with open_transfers("reference?settle_s=0.3", tmp_path / "one", Way(delay_ms=25), stream_s=0.0) as transfers:
        first, second = transfers.run(files, 2)
        assert transfers.lab.doubts() == []
    assert first.up_bytes == pytest.approx(second.up_bytes, abs=200)
    for transfer in (first, second):
        assert transfer.reasons == ()
        assert transfer.turns == 20
        assert transfer.completion_s is not None
        assert 20 * round_trip_s <= transfer.completion_s <= 20 * round_trip_s * 2
        assert transfer.start_up_s is not None
        assert 0.3 <= transfer.start_up_s <= 1, "changes are sent when there were none for settle_s"
    with open_transfers("reference?bundling=request", tmp_path / "all", Way(delay_ms=25), stream_s=None) as transfers:
        bundled = transfers.run(files)[0]
    assert bundled.completion_s is not None
    assert round_trip_s <= bundled.completion_s <= 8 * round_trip_s, "20 kB: one request, two flights"
    assert bundled.turns == 1


def test_a_large_file_takes_its_size_over_the_rate(tmp_path: Path) -> None:
    with open_transfers("reference", tmp_path, SLOW) as transfers:
        before = transfers.lab.link.stats()["devices"]["client"]
        transfer = transfers.run(Workload(1, 1_000_000))[0]
        after = transfers.lab.link.stats()["devices"]["client"]
        assert transfers.lab.captures[0].is_valid, transfers.lab.captures[0].reasons
        assert (
            transfers.lab.record()["congestion_control"]
            in Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text()
        )
    assert transfer.completion_s is not None
    assert transfer.wire_bytes is not None
    on_the_link_s = transfer.wire_bytes * 8 / 8e6
    assert on_the_link_s * 0.9 <= transfer.completion_s <= on_the_link_s * 1.5
    # According to the server's documents: the content, 22 bytes for each TLS record of 16 KiB, and a head.
    assert 1_000_000 + 61 * 22 <= transfer.up_bytes <= 1_003_000
    # The device has another counter than the capture, which also includes the connection's start and sentinels.
    carried = sum(after[key] - before[key] for key in ("sent_bytes", "received_bytes"))
    assert transfer.wire_bytes == pytest.approx(carried, rel=0.02)
    assert transfer.overhead == pytest.approx(transfer.wire_bytes / 1_000_000 - 1)
    assert transfer.overhead is not None
    assert 0.037 <= transfer.overhead <= 0.08, "52 bytes of headers for 1448 are 3.6 %, and acknowledgements"


@pytest.mark.slow
def test_without_resuming_all_that_had_passed_is_sent_again(tmp_path: Path) -> None:
    with open_transfers("reference?retry=1", tmp_path, SLOW, interruptible=True, stream_s=None) as transfers:
        undisturbed = transfers.run(SET)[0].as_dict()
        broken = transfers.run(SET, interruption=PlannedInterruption("reset", HALF))[0].as_dict()
        later, last = (
            transfers.run(SET, interruption=interruption)[0].as_dict()
            for interruption in (PlannedInterruption("reset", 3 * HALF), None)
        )
    assert broken["interrupted"]["passed_bytes"] == HALF
    cost = recovery_cost(undisturbed, broken)
    assert cost["how_recovered"] == "starts over"
    # All bytes that had passed or were on their way, of which the queue holds 100 kB.
    assert HALF <= cost["again_bytes"] <= HALF + 160_000
    assert HALF / SET.total_bytes <= cost["recovery_overhead"] <= 0.75
    assert 1.5 <= cost["recovery"] <= 4, "a second of patience, and 0.63 s for all of it"
    # The answer "no": nothing happened, so nothing is sent again.
    nothing = recovery_cost(undisturbed, later)
    assert nothing["how_recovered"] == "not interrupted"
    assert nothing["recovery"] is None
    assert abs(nothing["again_bytes"]) < 500
    assert abs(nothing["recovery_overhead"]) < 0.03
    assert (last["interrupted"], last["connections"]) == ({}, 0), "nor is the transfer after it interrupted"


@pytest.mark.slow
def test_small_chunks_make_it_resume(tmp_path: Path) -> None:
    with open_transfers(
        "reference?retry=1&chunking=1&chunk_bytes=20000", tmp_path, SLOW, interruptible=True, stream_s=None
    ) as transfers:
        undisturbed = transfers.run(SET)[0].as_dict()
        broken = transfers.run(SET, interruption=PlannedInterruption("reset", HALF))[0].as_dict()
    cost = recovery_cost(undisturbed, broken)
    assert cost["how_recovered"] == "resumes"
    assert 0 < cost["again_bytes"] <= 20_000 + 5_000, "a chunk at most, and another handshake"


@pytest.mark.slow
def test_a_black_hole_that_ends_costs_time_and_nothing_new_is_sent(tmp_path: Path) -> None:
    with open_transfers("reference", tmp_path, SLOW, interruptible=True, stream_s=None) as transfers:
        undisturbed = transfers.run(SET)[0].as_dict()
        broken = transfers.run(SET, interruption=PlannedInterruption("black_hole", HALF, 0.5))[0].as_dict()
    cost = recovery_cost(undisturbed, broken)
    assert cost["how_recovered"] == "connection lived on"
    assert abs(cost["again_bytes"]) < 500
    assert cost["recovery"] >= 0.5


def test_a_client_that_gives_up_has_no_times(tmp_path: Path) -> None:
    with open_transfers("reference", tmp_path, SLOW, interruptible=True, stream_s=None) as transfers:
        undisturbed = transfers.run(SET)[0].as_dict()
        broken = transfers.run(SET, 2, interruption=PlannedInterruption("reset", HALF))
    assert len(broken) == 1, "a client that has ended is not asked again"
    assert (broken[0].is_synced, broken[0].completion_s, broken[0].synced_s) == (False, None, None)
    assert "ended while it was needed" in broken[0].error
    assert broken[0].interrupted["run_again"] is False, "it watches its folder, and was left alone"
    cost = recovery_cost(undisturbed, broken[0].as_dict())
    assert (cost["how_recovered"], cost["recovery"], cost["recovery_overhead"]) == ("never", None, None)


RSYNC = """
name = "rsync"
[files]
"rsyncd.conf" = "use chroot = no\\nuid = {user}\\n[stored]\\npath = {stored}\\nread only = no\\n"
[server]
command = ["rsync", "--daemon", "--no-detach", "--config={workdir}/rsyncd.conf", "--address={server}", "--port={port}"]
[sync]
command = ["rsync", "-a", "{folder}/", "rsync://{server}:{port}/stored/"]
[verify]
folder = "{stored}"
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="an rsync daemon in a user's namespace cannot set its group")
def test_a_client_that_is_run_for_each_change_is_run_once_more(tmp_path: Path) -> None:
    """rsync without --partial discards an incomplete file, so it starts over."""
    (tmp_path / "rsync.toml").write_text(RSYNC, "utf-8")
    with open_transfers(str(tmp_path / "rsync.toml"), tmp_path, SLOW, interruptible=True, stream_s=None) as transfers:
        undisturbed = transfers.run(SET)[0].as_dict()
        broken = transfers.run(SET, interruption=PlannedInterruption("reset", HALF))[0].as_dict()
    assert "run_again" not in undisturbed["interrupted"]
    assert broken["interrupted"]["run_again"] is True
    cost = recovery_cost(undisturbed, broken)
    assert cost["how_recovered"] == "starts over"
    assert HALF * 0.9 <= cost["again_bytes"] <= HALF + 160_000


@pytest.mark.slow
def test_a_link_that_is_not_as_asked_is_a_doubt(tmp_path: Path) -> None:
    """Nothing here sends or forwards 500 Gbit/s."""
    with open_transfers("reference", tmp_path, Way(delay_ms=20, rate_bit_per_s=500e9), stream_s=0.05) as transfers:
        doubts = transfers.lab.doubts()
    assert any("up rate" in doubt for doubt in doubts), doubts


def test_a_client_that_is_not_on_the_link_cannot_be_transferred_on_it(tmp_path: Path) -> None:
    (tmp_path / "mirrored").mkdir()
    client = clients.make_client(f"external?folder={tmp_path / 'mirrored'}&verify=true")
    with (
        pytest.raises(LinkUnavailable, match="on the user's own network, which cannot be shaped here"),
        Lab(client, tmp_path, seed="known", up=SLOW),
    ):
        pass
    assert not list((tmp_path / "mirrored").iterdir())
