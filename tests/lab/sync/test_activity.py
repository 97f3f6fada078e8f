"""Streams are written as specified, and a watched client shows its known behaviour."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.lab import clients
from pytest_cloudbench.lab.clients.base import Proof
from pytest_cloudbench.lab.sync.activity import Act, Activity, Window, event_gap_s
from pytest_cloudbench.lab.sync.changes import play_edits
from pytest_cloudbench.model import ClientError
from pytest_cloudbench.workload.payload import RandomContent
from pytest_cloudbench.workload.payload.edits import Edit, Insert, Overwrite, appends, http_download, two_users
from tests.lab.sync.links import open_session


def test_a_window_adds_up() -> None:
    steps = tuple((number, 10) for number in range(25))
    window = Window("a", changed_bytes=55, up_bytes=300, down_bytes=250, steps=steps)
    assert (window.wire_bytes, window.tue) == (550, 10.0)
    assert window.every(1.0) == [145, 245, 160]
    assert sum(window.every(0.3)) == 550
    assert window.between(0.31, 0.52) == 13 + 14
    assert window.between(0.0, 2.5) == 550


def test_unknown_values_give_no_tue_or_rate() -> None:
    assert Window("a", changed_bytes=55).tue is None
    assert Window("a", changed_bytes=0, up_bytes=1, down_bytes=1).tue is None
    assert Window("a", up_bytes=None, down_bytes=3, steps=((1, 2),)).between(0, 1) is None


def test_a_turn_is_within_one_event() -> None:
    assert event_gap_s(0.2) == pytest.approx(1.0)
    assert event_gap_s(0.001) == pytest.approx(0.1)


def test_appends_are_written(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.touch()
    stream = list(appends("seed", 0.001, 10, 95))
    calls: list[int] = []
    played = play_edits(stream, path, after=lambda: calls.append(path.stat().st_size))
    assert (played.updates, played.changed_bytes, played.size_bytes) == (10, 95, 95)
    assert calls == [*range(10, 91, 10), 95]
    assert path.read_bytes() == b"".join(edit.new.read(0, 10) for _, edit in stream if isinstance(edit, Insert))


def test_a_download_is_written(tmp_path: Path) -> None:
    path = tmp_path / "a"
    played = play_edits(http_download("seed", 10_000, 1e6, 4096), path)
    assert played.updates == 3
    assert path.read_bytes() == RandomContent("seed/download", 10_000).read(0, 10_000)


def test_a_document_is_edited_in_place(tmp_path: Path) -> None:
    path, start = tmp_path / "a", RandomContent("start", 5000)
    path.write_bytes(start.read(0, 5000))
    inode = path.stat().st_ino
    stream = list(two_users("seed", 0.2, 0.02))
    assert {type(edit) for _, edit in stream} == {Insert, Overwrite}
    expected: Any = start
    for _, edit in stream:
        expected = edit.apply(expected)
    played = play_edits(stream, path, start=start)
    assert path.read_bytes() == expected.read(0, expected.size_bytes)
    assert played.changed_bytes == sum(edit.size_bytes for _, edit in stream)
    assert path.stat().st_ino == inode


def test_a_writer_that_is_held_up_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.touch()
    edits: list[tuple[float, Edit]] = [(due_s, edit) for due_s, edit in appends("seed", 1e-9, 1, 5)]
    played = play_edits(edits, path)
    assert (played.updates, played.late) == (5, 4)


def test_a_client_is_watched(tmp_path: Path) -> None:
    pair: Any = clients.make_client("reference")
    with open_session(pair, tmp_path) as session:
        activity, path = Activity(session), pair.folder / "a.bin"

        def write() -> int:
            path.write_bytes(RandomContent("a", 50_000).read(0, 50_000))
            return 50_000

        def stay_idle(duration_s: float) -> int:
            pair.idle(duration_s)
            return 0

        quiet, new, many = activity.watch([
            Act("quiet", partial(stay_idle, 1.0), is_synced=False),
            Act("new", write),
            Act("many", lambda: play_edits(appends("b", 0.4, 1, 4), path).changed_bytes),
        ])  # fmt: skip
        counters, before = pair.counters(), activity.login
        (later,) = activity.watch([Act("later", partial(stay_idle, 0.5), is_synced=False)])
    assert [window.reasons for window in (quiet, new, many, later)] == [()] * 4
    assert (quiet.wire_bytes, quiet.events_s, quiet.tue) == (0, (), None)
    assert 50_000 < (new.up_bytes or 0) < 55_000
    assert len(new.events_s) == 1
    assert new.start_up_s == pytest.approx(new.events_s[0]), "the first that it sent"
    assert 0.1 <= (new.start_up_s or 0) <= (new.sync_delay_s or 0) + new.acted_s, "it waits for 0.1 s without a change"
    assert quiet.start_up_s is None
    assert counters["requests"]["/files"] == 1 + len(many.events_s), "each event is one upload"
    assert 1 <= len(many.events_s) <= 4
    assert (many.up_bytes or 0) > 50_000 * len(many.events_s), "without delta, all of the file goes each time"
    assert many.tue == pytest.approx(((many.up_bytes or 0) + (many.down_bytes or 0)) / 4)
    assert before is not None
    total_bytes = sum(window.up_bytes or 0 for window in (before, new, many))
    assert 0.9 * total_bytes < counters["received_bytes"] < total_bytes, (
        "the server's kernel counts the same, without headers"
    )
    assert before.syns == 1
    assert (before.wire_bytes or 0) > 1000
    assert activity.login is before, "the client was started once"


def test_traffic_between_start_and_first_act_is_in_a_window(tmp_path: Path) -> None:
    pair: Any = clients.make_client("reference?polling=0.02")
    received_bytes: list[int] = []

    def look() -> int:
        received_bytes.append(pair.counters()["received_bytes"])
        return 0

    with open_session(pair, tmp_path) as session:
        activity = Activity(session)
        activity.watch([Act("look", look, is_synced=False)])
    assert activity.login is not None
    assert 1000 < received_bytes[0] < (activity.login.up_bytes or 0), "the frames of the login have headers, too"


def test_a_client_that_ends_gives_no_number(tmp_path: Path) -> None:
    pair: Any = clients.make_client("reference")
    with open_session(pair, tmp_path, timeout_s=0.5) as session:

        def end() -> int:
            pair.stop()
            (pair.folder / "a").write_bytes(b"a")
            return 1

        ended, after = Activity(session).watch([Act("ended", end), Act("after", lambda: 1)])
    assert "did not carry it out" in ended.reasons[0]
    assert after.reasons == (
        f"the client has been out of sync since an earlier act: {ended.reasons[0].partition(': ')[2]}",
    )


def test_change_without_captured_packets_gives_a_reason(tmp_path: Path) -> None:
    """The client brings files another way, which the test simulates by reporting them as synced."""
    pair: Any = clients.make_client("reference")
    with open_session(pair, tmp_path) as session:
        activity = Activity(session)
        activity.watch([])
        pair.after_change, pair.wait_synced = list, lambda timeout_s: Proof.QUIET
        (window,) = activity.watch([Act("elsewhere", lambda: 1)])
    assert window.reasons == ("it counts as in sync, but no packet was captured",)


def test_an_act_that_fails_is_an_error(tmp_path: Path) -> None:
    pair: Any = clients.make_client("reference")

    def fail() -> int:
        raise ClientError("not this one")

    with (
        open_session(pair, tmp_path) as session,
        pytest.raises(ClientError, match="not this one"),
    ):
        Activity(session).watch([Act("fails", fail)])


def test_a_silent_client_is_seen_to_be_silent(tmp_path: Path) -> None:
    """A separate capture in which the client has no packet is neither an error nor a doubt."""
    pair: Any = clients.make_client("reference")
    with open_session(pair, tmp_path) as session:
        activity = Activity(session)
        activity.watch([])
        (window,) = activity.watch([Act("idle", lambda: 0, is_synced=False)])
    assert (window.reasons, window.wire_bytes, window.events_s) == ((), 0, ())
