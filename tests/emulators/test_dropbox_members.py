"""Tests of members of shared folders in the Dropbox emulator, whose rights follow their current access level."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_cloudbench.emulators import EmulatorService

Wire = Any
FILE = "file.txt"


@pytest.fixture
def member(emulator: EmulatorService, wire: Wire) -> Iterator[Wire]:
    """A raw client of another account."""
    client = type(wire)(emulator.open_account(2))
    yield client
    client.connection.close()


def get_person(wire: Wire) -> Any:
    return wire("users/get_current_account").value


def share(wire: Wire, folder: str = "/shared") -> str:
    """Upload a file, share its folder, and return the folder's id."""
    assert wire("files/upload", {"path": f"{folder}/{FILE}"}, b"first").status == 200
    return str(wire("sharing/share_folder", {"path": folder}).value["shared_folder_id"])


def add(wire: Wire, folder_id: str, email: str, level: str) -> int:
    entry = {"member": {".tag": "email", "email": email}, "access_level": level}
    return int(wire("sharing/add_folder_member", {"shared_folder_id": folder_id, "members": [entry]}).status)


def read(wire: Wire, folder_id: str) -> tuple[int, Any]:
    reply = wire("files/download", {"path": f"ns:{folder_id}/{FILE}"})
    return reply.status, reply.value if reply.status == 200 else reply.value["error_summary"]


def write(wire: Wire, folder_id: str, content: bytes) -> tuple[int, str]:
    reply = wire("files/upload", {"path": f"ns:{folder_id}/{FILE}", "mode": "overwrite"}, content)
    return reply.status, reply.value.get("error_summary", "")


def test_a_viewer_reads_and_an_editor_writes_until_it_is_removed(wire: Wire, member: Wire) -> None:
    folder_id, person = share(wire), get_person(member)
    write_refusal, read_refusal = (409, "path/no_write_permission/.."), (409, "path/not_found/..")
    assert (read(member, folder_id), write(member, folder_id, b"x")) == (read_refusal, write_refusal)
    assert add(wire, folder_id, person["email"], "viewer") == 200
    assert read(member, folder_id) == read_refusal  # not mounted yet
    folder = member("sharing/mount_folder", {"shared_folder_id": folder_id}).value
    assert (folder["path_lower"], folder["access_type"][".tag"]) == ("/shared", "viewer")
    assert read(member, folder_id) == (200, b"first")
    assert write(member, folder_id, b"x") == write_refusal
    selector = {".tag": "dropbox_id", "dropbox_id": person["account_id"]}
    update = {"shared_folder_id": folder_id, "member": selector, "access_level": "editor"}
    assert wire("sharing/update_folder_member", update).value == {"access_level": {".tag": "editor"}}
    assert write(member, folder_id, b"second") == (200, "")
    assert wire("files/download", {"path": f"/shared/{FILE}"}).value == b"second"
    removal = {"shared_folder_id": folder_id, "member": selector, "leave_a_copy": False}
    job = wire("sharing/remove_folder_member", removal).value["async_job_id"]
    status = wire("sharing/check_remove_member_job_status", {"async_job_id": job}).value
    assert status[".tag"] == "complete"
    assert (read(member, folder_id), write(member, folder_id, b"x")) == (read_refusal, write_refusal)


def test_a_long_poll_is_for_the_account_of_its_cursor(wire: Wire, member: Wire) -> None:
    name, headers = "files/list_folder/longpoll", {"Content-Type": "application/json"}  # the service takes no token
    for client in (wire, member):
        cursor = client("files/list_folder/get_latest_cursor", {"path": ""}).value["cursor"]
        client("files/upload", {"path": "/news"}, b"x")
        reply = client.request("POST", f"/2/{name}", json.dumps({"cursor": cursor}).encode(), headers, name)
        assert (reply.status, reply.value) == (200, {"changes": True})


def test_member_list_includes_invited_people(wire: Wire, member: Wire) -> None:
    folder_id, person = share(wire), get_person(member)
    add(wire, folder_id, person["email"], "viewer")
    add(wire, folder_id, "nobody@example.com", "editor")
    listed = wire("sharing/list_folder_members", {"shared_folder_id": folder_id, "actions": ["remove"]}).value
    users = [(user["user"]["email"], user["access_type"][".tag"]) for user in listed["users"]]
    assert users == [(get_person(wire)["email"], "owner"), (person["email"], "viewer")]
    assert [user["permissions"][0]["allow"] for user in listed["users"]] == [False, True]
    assert listed["users"][1]["user"]["account_id"] == person["account_id"] != get_person(wire)["account_id"]
    assert [guest["invitee"]["email"] for guest in listed["invitees"]] == ["nobody@example.com"]


def test_a_member_reaches_no_other_folder(wire: Wire, member: Wire) -> None:
    shared, other = share(wire), share(wire, "/other")
    add(wire, shared, get_person(member)["email"], "editor")
    member("sharing/mount_folder", {"shared_folder_id": shared})
    assert read(member, shared)[0] == 200
    assert read(member, other)[0] == 409
    assert member("sharing/mount_folder", {"shared_folder_id": other}).status == 409
    assert member("sharing/mount_folder", {"shared_folder_id": shared}).value["error_summary"] == "already_mounted/.."
    assert member("files/download", {"path": f"ns:{shared}/../other/{FILE}"}).status == 409


@pytest.mark.parametrize(
    ("function", "member", "why"),
    [
        ("sharing/remove_folder_member", "stranger@example.com", "member_error/not_a_member/.."),
        ("sharing/remove_folder_member", "emulated@example.com", "folder_owner/.."),
        ("sharing/update_folder_member", "stranger@example.com", "member_error/not_a_member/.."),
    ],
)
def test_changing_a_person_without_membership_is_refused(wire: Wire, function: str, member: str, why: str) -> None:
    more = {"leave_a_copy": False} if "remove" in function else {"access_level": "editor"}
    selector = {".tag": "email", "email": member}
    reply = wire(function, {"shared_folder_id": share(wire), "member": selector, **more})
    assert (reply.status, reply.value["error_summary"]) == (409, why)
