"""Tests of clients that meet several replicas, of which one shows changes later than the others.

Most tests set the emulator's time. A read that a leading replica answers has a later time, as in the emulator's server.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from pytest_cloudbench.emulators import EmulatorService
from pytest_cloudbench.emulators.dropbox.skin import Dropbox
from pytest_cloudbench.emulators.gdrive.skin import GoogleDrive
from pytest_cloudbench.emulators.profile import Profile, parse_profile
from pytest_cloudbench.emulators.skin import Answer, Call, Skin

from .clocks import SkippingClock

LAG_S = 5.0
_JSON = {b"content-type": b"application/json"}


def lagging_profile(api: str) -> Profile:
    """Return the profile by which the server makes a skin imitate the lagging replica."""
    lines = (
        f'[meta]\nname = "x"\napi = "{api}"\ndescription = "x"\n[readiness]\nreplicas = 2\nreplica_lag_s = {LAG_S}\n'
    )
    profile = parse_profile(lines, "x.toml")
    return replace(profile, readiness=profile.readiness.of_last_replica())


async def _await_answer(answer: Awaitable[Answer]) -> Answer:
    return await answer


def ask(
    skin: Skin, at_s: float, method: str, path: str, body: bytes, headers: Mapping[bytes, bytes], query: str = ""
) -> Any:
    """Send a request that a replica answers as it is at a time, and return the decoded answer."""
    match = skin.route(method, path, query.encode())
    assert match is not None
    call = Call(match.route, method, path, match.parameters, query.encode(), headers, at_s, body)
    if match.route.sink is not None:
        sink = match.route.sink(call)
        sink.feed(body)
        call.body = sink.finish()
    answer = match.route.handler(call)
    if isinstance(answer, Awaitable):
        answer = asyncio.run(_await_answer(answer))
    assert answer.status == 200, bytes(answer.body)
    return json.loads(bytes(answer.body))


class _Folder:
    """The root folder of Dropbox, with a file that was uploaded after ``cursor``."""

    def __init__(self) -> None:
        self.clock = SkippingClock()
        self.skin = Dropbox(lagging_profile("dropbox"), self.clock, 0)
        self.cursor: str = self.ask(0.0, "list_folder/get_latest_cursor", {"path": ""})["cursor"]
        argument = {b"dropbox-api-arg": b'{"path": "/new"}', b"content-type": b"application/octet-stream"}
        ask(self.skin, 0.0, "POST", "/2/files/upload", b"x", argument)

    def ask(self, at_s: float, function: str, argument: Mapping[str, object]) -> Any:
        return ask(self.skin, at_s, "POST", f"/2/files/{function}", json.dumps(argument).encode(), _JSON)

    def list_changes(self, at_s: float, cursor: str) -> tuple[list[str], str]:
        page = self.ask(at_s, "list_folder/continue", {"cursor": cursor})
        return [entry["name"] for entry in page["entries"]], page["cursor"]


def test_a_cursor_of_the_lagging_replica_passes_no_change_that_another_one_has_shown() -> None:
    folder = _Folder()
    names, leading_cursor = folder.list_changes(1.0 + LAG_S, folder.cursor)
    assert names == ["new"]
    names, lagging_cursor = folder.list_changes(2.0, folder.cursor)
    assert names == []
    assert folder.list_changes(2.0 + LAG_S, lagging_cursor)[0] == ["new"]
    assert folder.list_changes(3.0, leading_cursor) == ([], leading_cursor)
    assert folder.list_changes(3.0 + LAG_S, leading_cursor) == ([], leading_cursor)


def test_pages_of_a_listing_are_no_older_than_its_first_one() -> None:
    folder = _Folder()
    argument = {b"dropbox-api-arg": b'{"path": "/a"}', b"content-type": b"application/octet-stream"}
    ask(folder.skin, 0.0, "POST", "/2/files/upload", b"x", argument)
    first = folder.ask(1.0 + LAG_S, "list_folder", {"path": "", "limit": 1})
    names = [entry["name"] for entry in first["entries"]]
    more, cursor = folder.list_changes(2.0, first["cursor"])
    assert names + more + folder.list_changes(2.0 + LAG_S, cursor)[0] == ["a", "new"]


def test_a_long_poll_hears_of_a_change_that_a_leading_replica_has_shown_before() -> None:
    folder = _Folder()
    folder.list_changes(1.0 + LAG_S, folder.cursor)
    folder.clock.at_s = 1.0
    assert folder.ask(1.0, "list_folder/longpoll", {"cursor": folder.cursor}) == {"changes": True}
    assert folder.clock.at_s == LAG_S


def test_a_page_token_of_drive_passes_no_change_that_it_has_not_shown() -> None:
    skin = GoogleDrive(lagging_profile("gdrive"), SkippingClock(), 0)
    first_token = ask(skin, 0.0, "GET", "/drive/v3/changes/startPageToken", b"", {})["startPageToken"]
    ask(skin, 0.0, "POST", "/upload/drive/v3/files", b"x", {}, "uploadType=media")

    def list_changes(at_s: float, token: str) -> tuple[list[bool], str]:
        page = ask(skin, at_s, "GET", "/drive/v3/changes", b"", {}, f"pageToken={token}")
        return [change["removed"] for change in page["changes"]], page["newStartPageToken"]

    is_removed, leading_token = list_changes(1.0 + LAG_S, first_token)
    assert (is_removed, leading_token > first_token) == ([False], True)
    assert list_changes(2.0, first_token) == ([], first_token)
    assert list_changes(2.0 + LAG_S, first_token) == ([False], leading_token)
    assert list_changes(3.0, leading_token) == ([], leading_token)


def test_followers_of_drive_learn_when_a_file_is_seen_in_the_trash() -> None:
    skin = GoogleDrive(lagging_profile("gdrive"), SkippingClock(), 0)
    file_id = ask(skin, 0.0, "POST", "/upload/drive/v3/files", b"x", {}, "uploadType=media")["id"]
    token = ask(skin, LAG_S, "GET", "/drive/v3/changes/startPageToken", b"", {})["startPageToken"]
    ask(skin, LAG_S, "PATCH", f"/drive/v3/files/{file_id}", b'{"trashed": true}', {})
    fields = "fields=newStartPageToken,changes/file(trashed,explicitlyTrashed)"
    is_trashed = list[bool]()
    for at_s in (LAG_S, 2 * LAG_S, 3 * LAG_S):
        page = ask(skin, at_s, "GET", "/drive/v3/changes", b"", {}, f"pageToken={token}&{fields}")
        token = page["newStartPageToken"]
        for change in page["changes"]:
            assert change["file"]["trashed"] == change["file"]["explicitlyTrashed"]
            is_trashed.append(change["file"]["trashed"])
    assert is_trashed == [False, True]


@pytest.fixture
def replicas(emulator: EmulatorService) -> EmulatorService:
    """The shared emulator with many replicas, of which all but one are an hour ahead. Its jobs begin after a minute."""
    lag = {"readiness.replicas": 1000, "readiness.replica_lag_s": 3600, "jobs.start_s": 60}
    assert emulator.control(set=lag)["ok"]
    return emulator


def test_a_job_takes_its_time_whichever_replica_is_asked(replicas: EmulatorService, wire: Any) -> None:
    wire("files/upload", {"path": "/a"}, b"x")
    job = wire("files/delete_batch", {"entries": [{"path": "/a"}]}).value["async_job_id"]
    states = [wire("files/delete_batch/check", {"async_job_id": job}).value[".tag"] for _ in range(20)]
    assert states == ["in_progress"] * 20


def test_reads_of_a_member_do_not_hurry_the_owners_job(replicas: EmulatorService, wire: Any) -> None:
    replicas.control(set={"jobs.start_s": 0})
    wire("files/upload", {"path": "/shared/a"}, b"x")
    folder_id = wire("sharing/share_folder", {"path": "/shared"}).value["shared_folder_id"]
    member = type(wire)(replicas.open_account(2))
    try:
        email = member("users/get_current_account").value["email"]
        members = [{"member": {".tag": "email", "email": email}, "access_level": "viewer"}]
        assert wire("sharing/add_folder_member", {"shared_folder_id": folder_id, "members": members}).status == 200
        assert member("sharing/mount_folder", {"shared_folder_id": folder_id}).status == 200
        replicas.control(set={"jobs.start_s": 60})
        job = wire("files/delete_batch", {"entries": [{"path": "/shared/a"}]}).value["async_job_id"]
        for _ in range(20):
            member("files/get_metadata", {"path": f"ns:{folder_id}/a"})
        check = wire("files/delete_batch/check", {"async_job_id": job}).value
        assert check == {".tag": "in_progress"}
    finally:
        member.connection.close()
