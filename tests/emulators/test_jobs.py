"""Tests that jobs take exactly the time of the profile. The tests set the emulator's time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from typing import Any

import dropbox
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cloudbench.emulators import EmulatorService
from pytest_cloudbench.emulators.dropbox.skin import Dropbox
from pytest_cloudbench.emulators.jobs import Jobs
from pytest_cloudbench.emulators.profile import parse_profile
from pytest_cloudbench.emulators.skin import Answer, Call

from .clocks import SkippingClock

_META = '[meta]\nname = "x"\napi = "dropbox"\ndescription = "d"\n'


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4)), max_size=5),
    st.integers(0, 5),
    st.integers(0, 5),
    st.lists(st.integers(0, 4), max_size=40),
)
def test_every_entry_is_done_when_it_is_due(
    plans: list[tuple[int, int]], start_s: int, entry_s: int, looks: list[int]
) -> None:
    """At every look, exactly the due entries are done, each at its own time and in the order of these times."""
    jobs, now_s = Jobs(), 0
    done_at_s: list[float] = []

    def step(at_s: float) -> float:
        done_at_s.append(at_s)
        return at_s

    started: list[tuple[int, int]] = []
    for number, (pause_s, count) in enumerate(plans):
        now_s += pause_s
        jobs.advance(now_s)
        jobs.start(str(number), "kind", [step] * count, now_s, start_s=start_s, entry_s=entry_s)
        started.append((now_s, count))
    for pause_s in looks:
        now_s += pause_s
        jobs.advance(now_s)
        for number, (at_s, count) in enumerate(started):
            due = [at_s + start_s + entry_s * (index + 1) for index in range(count)]
            job = jobs.find(str(number), "kind")
            assert job is not None
            assert job.results == [due_s for due_s in due if due_s <= now_s]
            assert job.is_complete == ((due[-1] if due else at_s + start_s) <= now_s)
        assert jobs.next_s() > now_s
    assert done_at_s == sorted(done_at_s)


def test_a_job_of_another_kind_is_not_found() -> None:
    jobs = Jobs()
    jobs.start("1", "copy", [], 0.0, start_s=0.0, entry_s=0.0)
    assert jobs.find("1", "copy") is not None
    assert jobs.find("1", "move") is None
    assert jobs.find("2", "copy") is None


class _Api:
    """A client that calls functions of the Dropbox skin at a given time."""

    def __init__(self, jobs: str) -> None:
        self.clock = SkippingClock()
        self.skin = Dropbox(parse_profile(f"{_META}[jobs]\n{jobs}", "x.toml"), self.clock, 0)

    def __call__(self, at_s: float, name: str, arg: Any, content: bytes | None = None) -> Any:
        self.clock.at_s = at_s
        path, text = f"/2/{name}", json.dumps(arg).encode()
        match = self.skin.route("POST", path, b"")
        assert match is not None
        kind = b"application/json" if content is None else b"application/octet-stream"
        headers = {b"content-type": kind} | ({} if content is None else {b"dropbox-api-arg": text})
        call = Call(match.route, "POST", path, {}, b"", headers, at_s, text)
        if content is not None:
            assert match.route.sink is not None
            sink = match.route.sink(call)
            sink.feed(content)
            call.body = sink.finish()
        answer = match.route.handler(call)
        if isinstance(answer, Awaitable):
            answer = asyncio.run(_await_answer(answer))
        assert answer.status == 200, bytes(answer.body)
        return json.loads(bytes(answer.body))

    def names(self, at_s: float) -> list[str]:
        return [entry["name"] for entry in self(at_s, "files/list_folder", {"path": ""})["entries"]]


async def _await_answer(answer: Awaitable[Answer]) -> Answer:
    return await answer


def test_a_job_takes_the_profiles_time_entry_by_entry() -> None:
    api = _Api("start_s = 2\nentry_s = 0.5")
    for name in "abcd":
        api(0, "files/upload", {"path": f"/{name}"}, b"x")
    entries = [{"path": f"/{name}"} for name in "abxd"]
    poll = {"async_job_id": api(100, "files/delete_batch", {"entries": entries})["async_job_id"]}
    states = {}
    for at_s in (100, 102.25, 102.5, 103, 103.75):
        states[at_s] = api.names(at_s)
        assert api(at_s, "files/delete_batch/check", poll) == {".tag": "in_progress"}
    assert states == {
        100: ["a", "b", "c", "d"],
        102.25: ["a", "b", "c", "d"],
        102.5: ["b", "c", "d"],
        103: ["c", "d"],
        103.75: ["c", "d"],
    }
    result = api(104, "files/delete_batch/check", poll)
    assert [entry[".tag"] for entry in result["entries"]] == ["success", "success", "failure", "success"]
    assert result[".tag"] == "complete"
    assert api.names(104) == ["c"]
    assert api(999, "files/delete_batch/check", poll) == result


def test_file_stored_by_a_job_carries_its_due_time() -> None:
    api = _Api("start_s = 10\nentry_s = 5")
    entries = []
    for name in "ab":
        session = api(0, "files/upload_session/start", {"close": True}, b"1234")["session_id"]
        entries.append({"cursor": {"session_id": session, "offset": 4}, "commit": {"path": f"/{name}"}})
    poll = {"async_job_id": api(0, "files/upload_session/finish_batch", {"entries": entries})["async_job_id"]}
    assert api(19.9, "files/upload_session/finish_batch/check", poll) == {".tag": "in_progress"}
    result = api(60, "files/upload_session/finish_batch/check", poll)
    assert [entry["server_modified"] for entry in result["entries"]] == ["1970-01-01T00:00:15Z", "1970-01-01T00:00:20Z"]


@pytest.mark.parametrize(
    ("sync_entries", "count", "force", "is_job"),
    [
        (2, 2, False, False),
        (2, 3, False, True),
        (2, 1, True, True),
        (0, 9, False, False),
        (0, 1, True, True),
        (0, 21, False, True),
    ],
)
def test_many_folders_are_a_job(sync_entries: int, count: int, force: bool, is_job: bool) -> None:
    api = _Api(f"start_s = 1\nsync_entries = {sync_entries}")
    paths = [f"/{number}" for number in range(count)]
    answer = api(0, "files/create_folder_batch", {"paths": paths, "force_async": force})
    assert answer[".tag"] == ("async_job_id" if is_job else "complete")
    assert len(api.names(0)) == (0 if is_job else count)
    assert len(api.names(1)) == count


@pytest.mark.parametrize("verb", ["copy", "move"])
def test_relocations_are_jobs(verb: str) -> None:
    api = _Api("entry_s = 1")
    api(0, "files/upload", {"path": "/a"}, b"x")
    pairs = [{"from_path": "/a", "to_path": "/b"}, {"from_path": "/none", "to_path": "/c"}]
    poll = {"async_job_id": api(0, f"files/{verb}_batch_v2", {"entries": pairs})["async_job_id"]}
    assert api.names(0.5) == ["a"]
    assert api.names(1) == (["a", "b"] if verb == "copy" else ["b"])
    assert api(1.5, f"files/{verb}_batch/check_v2", poll) == {".tag": "in_progress"}
    assert [entry[".tag"] for entry in api(2, f"files/{verb}_batch/check_v2", poll)["entries"]] == [
        "success",
        "failure",
    ]


def test_jobs_take_no_time_without_settings() -> None:
    api = _Api("")
    poll = {"async_job_id": api(5, "files/delete_batch", {"entries": []})["async_job_id"]}
    assert api(5, "files/delete_batch/check", poll) == {".tag": "complete", "entries": []}


@pytest.mark.parametrize(("due_s", "told_s"), [(7.0, 7.0), (900.0, 30.0)])
def test_a_long_poll_hears_of_a_job_when_it_is_due(due_s: float, told_s: float) -> None:
    api = _Api(f"start_s = {due_s}")
    cursor = api(0, "files/list_folder/get_latest_cursor", {"path": ""})["cursor"]
    api(0, "files/create_folder_batch", {"paths": ["/new"], "force_async": True})
    answer = api(0, "files/list_folder/longpoll", {"cursor": cursor, "timeout": 30})
    assert (answer, api.clock.at_s) == ({"changes": due_s == told_s}, told_s)


def test_the_sdk_polls_a_job(sdk: dropbox.Dropbox, emulator: EmulatorService) -> None:
    emulator.control(set={"jobs.start_s": 80_000.0})
    slow = sdk.files_create_folder_batch(["/a"], force_async=True).get_async_job_id()
    emulator.control(set={"jobs.start_s": 0.0})
    quick = sdk.files_create_folder_batch(["/b"], force_async=True).get_async_job_id()
    assert sdk.files_create_folder_batch_check(slow).is_in_progress()
    assert sdk.files_create_folder_batch_check(quick).is_complete()
    assert [entry.name for entry in sdk.files_list_folder("").entries] == ["b"]
