"""Tests of several accounts in one emulated service, each with its own token, files and links."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from pytest_cloudbench import (
    CloudError,
    EmulatorService,
    ErrorKind,
    LiteralContent,
    ProviderSpec,
    RandomContent,
    ServiceError,
    Stranger,
    connect_driver,
    start_emulator,
)

from .box_wire import BoxWire
from .drive_wire import DriveWire
from .graph_wire import GraphWire

LARGE = RandomContent("large", 9 * 1024 * 1024).read(0, 9 * 1024 * 1024)
"""Content too large for one request, so that an upload session is used."""


def connect(service: EmulatorService, api: str, number: int) -> Any:
    return connect_driver(ProviderSpec.parse(api), service.open_account(number))


def read(driver: Any, path: str) -> bytes:
    return b"".join(driver.get(path))


@pytest.mark.parametrize("api", ["dropbox", "onedrive", "box", "gdrive"])
def test_accounts_of_one_service_know_nothing_of_each_other(api: str) -> None:
    with start_emulator("ideal", api=api) as service:
        first, second, third = (connect(service, api, number) for number in (1, 2, 3))
        first.put("/same", LiteralContent(b"first"))
        second.put("/same", LiteralContent(b"second"))
        second.put("/large", LiteralContent(LARGE))
        assert (read(first, "/same"), read(second, "/same")) == (b"first", b"second")
        assert read(second, "/large") == LARGE
        assert [[entry.path for entry in driver.list("/")] for driver in (first, third)] == [["/same"], []]
        with pytest.raises(CloudError) as caught:
            third.stat("/same")
        assert caught.value.kind is ErrorKind.NOT_FOUND
        links = [driver.share("/same") for driver in (first, second)]
        contents = [second.open_link(url, Stranger(service.endpoint)) for url in links]
        assert contents == [b"first", b"second"]
        assert {content for _, content in service.stored()} == {b"first", b"second", LARGE}
        for driver in (first, second, third):
            driver.close()


def test_long_polls_without_a_token_are_for_the_account_that_issued_their_address() -> None:
    with start_emulator("ideal", api="box") as service:
        boxes = [BoxWire(service.open_account(number)) for number in (1, 2)]
        for box in boxes:
            server = urlsplit(box("OPTIONS", "/events").value["entries"][0]["url"])
            box.folder("news")
            assert box("GET", f"{server.path}?{server.query}", token="").value == {"message": "new_change"}
            box.close()


def test_an_account_has_the_same_token_after_a_reset_and_no_files() -> None:
    with start_emulator("ideal", api="dropbox") as service:
        second = connect(service, "dropbox", 2)
        second.put("/file", LiteralContent(b"x"))
        before = service.open_account(2)
        service.reset()
        with pytest.raises(CloudError) as caught:
            second.stat("/file")
        assert caught.value.kind is ErrorKind.AUTH
        assert service.open_account(2).credentials == before.credentials != service.endpoint.credentials
        assert [*second.list("/")] == []
        second.close()


@pytest.mark.slow
@pytest.mark.parametrize(("api", "number"), [("mega", 2), ("dropbox", 0), ("dropbox", 101)])
def test_an_account_that_an_emulator_cannot_have_is_refused(api: str, number: int) -> None:
    with start_emulator("ideal", api=api) as service, pytest.raises(ServiceError, match=f"no account {number}"):
        service.open_account(number)


@pytest.mark.parametrize(
    ("api", "proof"), [("onedrive", "refresh_token"), ("gdrive", "refresh_token"), ("box", "user_id")]
)
def test_a_token_that_has_ended_is_refused_for_own_and_for_shared_files(api: str, proof: str) -> None:
    with start_emulator("ideal", api=api) as service:
        first, second = (connect(service, api, number) for number in (1, 2))
        for driver in (first, second):
            driver.mkdir("/shared")
            driver.put("/shared/file", LiteralContent(b"content"))
        second.admit("/shared", first.address(), "write")
        references = [driver.refer("/shared/file") for driver in (first, second)]
        assert [first.read_shared(reference) for reference in references] == [b"content"] * 2
        service.control(set={"account.token_lifetime_s": 0})
        proofs = {proof: "1", "client_id": "app", "client_secret": "secret"}
        expired_driver: Any = connect_driver(ProviderSpec.parse(api), replace(service.endpoint, credentials=proofs))
        for reference in references:
            for access in (
                expired_driver.read_shared,
                lambda target: expired_driver.write_shared(target, LiteralContent(b"changed")),
            ):
                with pytest.raises(CloudError) as caught:
                    access(reference)
                assert caught.value.kind is ErrorKind.AUTH, caught.value
        assert [first.read_shared(reference) for reference in references] == [b"content"] * 2
        for driver in (first, second, expired_driver):
            driver.close()


RENEWAL = {"grant_type": "refresh_token", "refresh_token": "1", "client_id": "app", "client_secret": "secret"}
READING: dict[str, tuple[str, dict[str, str]]] = {
    "gdrive": (
        "https://oauth2.googleapis.com/token",
        {**RENEWAL, "scope": "https://www.googleapis.com/auth/drive.readonly"},
    ),
    "onedrive": ("https://login.microsoftonline.com/common/oauth2/v2.0/token", {**RENEWAL, "scope": "Files.Read"}),
    "box": ("https://api.box.com/oauth2/token", {**RENEWAL, "scope": "item_download"}),
}
"""For each API, the URL and the form of a request for a read-only token."""


@pytest.mark.parametrize("api", [*READING])
def test_a_token_that_may_only_read_does_no_more_with_the_file_of_another_account(api: str) -> None:
    with start_emulator("ideal", api=api) as service:
        full_member, owner = (connect(service, api, number) for number in (1, 2))
        owner.mkdir("/shared")
        owner.put("/shared/file", LiteralContent(b"content"))
        owner.admit("/shared", full_member.address(), "write")
        url, form = READING[api]
        headers = {"content-type": "application/x-www-form-urlencoded"}
        if api == "box":
            subject = service.endpoint.credentials["access_token"]
            form = {**form, "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange", "subject_token": subject}
        _, answer = Stranger(service.endpoint).send(url, urlencode(form).encode(), headers)
        token = {"access_token": json.loads(answer)["access_token"]}
        read_only_member: Any = connect_driver(ProviderSpec.parse(api), replace(service.endpoint, credentials=token))
        reference = owner.refer("/shared/file")
        assert read_only_member.read_shared(reference) == b"content"
        with pytest.raises(CloudError) as caught:
            read_only_member.write_shared(reference, LiteralContent(b"changed"))
        assert (caught.value.kind, read(owner, "/shared/file")) == (ErrorKind.AUTH, b"content")
        full_member.write_shared(reference, LiteralContent(b"changed"))
        assert read(owner, "/shared/file") == b"changed"
        for driver in (full_member, owner, read_only_member):
            driver.close()


def try_out(member: Any, third: Any, owner: Any, folder: str) -> set[str]:
    """Try each action on the file of its name, and return the actions that took effect for the other accounts."""
    actions = {
        "write": lambda target: member.write_shared(target, LiteralContent(b"changed")),
        "delete": member.delete_shared,
        "share": lambda target: member.share_on(target, third.address()),
    }
    references = {name: owner.refer(f"{folder}/{name}") for name in actions}
    member.read_shared(references["write"])
    for name, action in actions.items():
        try:
            action(references[name])
        except CloudError as error:
            if error.kind is not ErrorKind.AUTH:
                raise
    try:
        is_shared = third.read_shared(references["share"]) == b"content"
    except CloudError as error:
        if error.kind is not ErrorKind.NOT_FOUND:
            raise
        is_shared = False
    paths = {entry.path for entry in owner.list(folder)}
    is_done = {
        "write": read(owner, f"{folder}/write") == b"changed",
        "delete": f"{folder}/delete" not in paths,
        "share": is_shared,
    }
    return {name for name, is_performed in is_done.items() if is_performed}


@pytest.mark.parametrize("api", ["gdrive", "onedrive", "box", "dropbox"])
def test_level_and_account_flaws_limit_actions_of_members(api: str) -> None:
    with start_emulator("ideal", api=api) as service:
        owner, member, third = drivers = [connect(service, api, number) for number in (1, 2, 3)]
        highest = "full" if "full" in owner.member_roles.values() else "write"
        allowed = []
        for level in ("read", highest):
            for flaw in ("", "readers_delete", "no_sharing_on"):
                switches = {f"account.{name}": int(name == flaw) for name in ("readers_delete", "no_sharing_on")}
                service.control(set=switches)
                folder = f"/{level}-{flaw}"
                owner.mkdir(folder)
                for name in ("write", "delete", "share"):
                    owner.put(f"{folder}/{name}", LiteralContent(b"content"))
                owner.admit(folder, member.address(), level)
                allowed.append(try_out(member, third, owner, folder))
        full = owner.full_promises
        assert allowed == [set(), {"delete"}, set(), full, full | {"delete"}, full - {"share"}]
        for driver in drivers:
            driver.close()


def test_owners_of_files_on_drive_are_the_accounts_themselves() -> None:
    with start_emulator("ideal", api="gdrive") as service:
        wires = [DriveWire(service.open_account(number)) for number in (1, 2)]
        owners, people = [], []
        for wire in wires:
            file = wire.upload("a")
            people.append(wire("GET", "about?fields=user").value["user"])
            [owner] = wire("GET", f"files/{file}?fields=owners").value["owners"]
            owners.append(owner)
        assert owners == people
        assert people[0]["emailAddress"] == "emulated@example.com"
        for name in ("emailAddress", "permissionId", "displayName"):
            assert people[0][name] != people[1][name]
        invitation = {"type": "user", "role": "reader", "emailAddress": people[0]["emailAddress"]}
        wires[1]("POST", f"files/{file}/permissions", invitation)
        entries = wires[1]("GET", f"files/{file}/permissions?fields=*").value["permissions"]
        assert [(entry["role"], entry["emailAddress"]) for entry in entries] == [
            ("owner", people[1]["emailAddress"]), ("reader", people[0]["emailAddress"]),
        ]  # fmt: skip
        for wire in wires:
            wire.connection.close()


def test_owners_of_files_on_box_are_the_accounts_themselves() -> None:
    with start_emulator("ideal", api="box") as service:
        wires = [BoxWire(service.open_account(number)) for number in (1, 2)]
        people = []
        for wire in wires:
            person = wire("GET", "/users/me").value
            file = wire.file("a.txt")
            for name in ("id", "name", "login"):
                assert file["owned_by"][name] == file["created_by"][name] == person[name]
            people.append(person)
            assert wire("GET", f"/users/{person['id']}").status == 200
        assert [person["login"].partition("@")[2] for person in people] == ["example.com"] * 2
        for name in ("id", "name", "login"):
            assert people[0][name] != people[1][name]
        for wire in wires:
            wire.close()


def test_only_the_owner_of_a_file_on_drive_gives_its_ownership_away() -> None:
    with start_emulator("ideal", api="gdrive") as service:
        owner, writer = wires = [DriveWire(service.open_account(number)) for number in (2, 1)]
        file = owner.upload("a")
        owned, me = (wire("GET", "about?fields=user").value["user"] for wire in wires)
        invitation = {"type": "user", "role": "writer", "emailAddress": me["emailAddress"]}
        permission_id = owner("POST", f"files/{file}/permissions", invitation).value["id"]
        before = owner("GET", f"files/{file}/permissions?fields=*").value["permissions"]
        permissions = f"files/{file}/permissions"
        for method, path, body in (
            ("POST", f"{permissions}?transferOwnership=true", {**invitation, "role": "owner"}),
            ("PATCH", f"{permissions}/{permission_id}?transferOwnership=true", {"role": "owner"}),
            ("PATCH", f"{permissions}/{owned['permissionId']}", {"role": "reader"}),
        ):
            refusal = writer(method, path, body)
            assert (refusal.status, refusal.reason) == (403, "insufficientFilePermissions")
        assert owner("GET", f"{permissions}?fields=*").value["permissions"] == before
        assert writer("PATCH", f"{permissions}/{permission_id}", {"role": "reader"}).status == 200
        assert owner("PATCH", f"{permissions}/{permission_id}", {"role": "owner"}).status == 403
        reply = owner("PATCH", f"{permissions}/{permission_id}?transferOwnership=true", {"role": "owner"})
        assert (reply.status, reply.value["role"]) == (200, "owner")
        for wire in wires:
            wire.connection.close()


def test_a_box_token_for_one_item_is_of_no_use_for_items_of_another_account() -> None:
    with start_emulator("ideal", api="box") as service:
        first, second, *_ = wires = [BoxWire(service.open_account(number)) for number in (1, 2, 3)]
        logins = [wire("GET", "/users/me").value["login"] for wire in wires]
        own, shared, others = first.file("own.txt"), first.file("shared.txt"), second.file("others.txt")

        def invite(wire: BoxWire, file: Mapping[str, Any], login: str) -> int:
            people = {"accessible_by": {"type": "user", "login": login}, "role": "editor"}
            return wire("POST", "/collaborations", {"item": {"type": "file", "id": file["id"]}, **people}).status

        assert (invite(second, others, logins[0]), invite(first, shared, logins[1])) == (201, 201)
        form = {
            "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange", "subject_token": first.token,
            "scope": "base_explorer item_rename", "resource": f"https://api.box.com/2.0/files/{own['id']}",
        }  # fmt: skip
        limited = first("POST", "/oauth2/token", urlencode(form).encode(), token="").value["access_token"]
        for token, statuses in ((limited, [200, 403, 403]), (first.token, [200, 200, 200])):
            assert [
                first("GET", f"/files/{own['id']}", token=token).status,
                first("GET", f"/files/{others['id']}", token=token).status,
                first("PUT", f"/files/{others['id']}", {"description": "x"}, token=token).status,
            ] == statuses
        # The limits of the owner's last token do not apply to the people whom the owner shares with.
        assert first("GET", f"/files/{shared['id']}", token=limited).status == 403
        assert invite(second, shared, logins[2]) == 201
        for wire in wires:
            wire.close()


@pytest.mark.parametrize("kind", ["personal", "business"])
def test_owners_of_files_on_onedrive_are_the_accounts_themselves(kind: str) -> None:
    with start_emulator("ideal", api="onedrive") as service:
        service.control(set={"account.type": kind})
        wires = [GraphWire(service.open_account(number)) for number in (1, 2)]
        people = []
        for wire in wires:
            me = wire("GET", "/v1.0/me").value
            person = {"email": me["mail"], "id": me["id"], "displayName": me["displayName"]}
            people.append(person)
            item = wire.put("a.txt")
            assert item["createdBy"]["user"] == item["lastModifiedBy"]["user"] == person
            assert wire("GET", "/v1.0/me/drive").value["owner"]["user"] == person
            [owner] = wire("GET", f"/v1.0/me/drive/items/{item['id']}/permissions").value["value"]
            assert owner["grantedToV2"]["user"].items() >= person.items()
        for name in ("email", "id", "displayName"):
            assert people[0][name] != people[1][name]
        for wire in wires:
            wire.connection.close()


def test_people_of_dropbox_have_names_of_their_own() -> None:
    with start_emulator("ideal", api="dropbox") as service:
        drivers = [connect(service, "dropbox", number) for number in (1, 2)]
        names = []
        for driver in drivers:
            account = driver._client.users_get_current_account()
            names.append((account.name.display_name, account.account_id, account.team_member_id))
        assert names[0][0] == "Emulated User"
        assert all(first != second for first, second in zip(*names, strict=True))
        for driver in drivers:
            driver.close()
