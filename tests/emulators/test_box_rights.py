"""Tests of the rights of tokens and members in the Box emulator, and of functions that it does not offer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from pytest_cloudbench.emulators import EmulatorService, start_emulator

from .box_wire import BoxReply, BoxWire

EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
CLIENT = {"client_id": "me", "client_secret": "secret"}
BACK = "http://localhost:1/"


@pytest.fixture(scope="module")
def emulator() -> Iterator[EmulatorService]:
    with start_emulator("ideal", api="box") as running:
        yield running


@pytest.fixture
def box(emulator: EmulatorService) -> Iterator[BoxWire]:
    emulator.control(reset=True)
    client = BoxWire(emulator.endpoint)
    yield client
    client.close()


def ask(box: BoxWire, **form: str) -> BoxReply:
    return box("POST", "/oauth2/token", urlencode(form).encode(), token="")


def downscope(box: BoxWire, scope: str, item: dict[str, Any] | None = None, *, token: str = "") -> BoxReply:
    """Request a token with fewer rights."""
    kind = {"file": "files", "folder": "folders"}
    resource = {"resource": f"https://api.box.com/2.0/{kind[item['type']]}/{item['id']}"} if item else {}
    return ask(box, grant_type=EXCHANGE, subject_token=token or box.token, scope=scope, **resource)


def statuses(box: BoxWire, token: str, file: str, folder: str) -> dict[str, int]:
    """Send one request of each kind with a token, and return the status of each."""
    former_token = box.token
    box.token = token
    try:
        return {
            "read": box("GET", f"/files/{file}").status,
            "list": box("GET", f"/folders/{folder}/items").status,
            "download": box("GET", f"/files/{file}/content").status,
            "upload": box.upload({"name": "new", "parent": {"id": folder}}, b"1").status,
            "session": box(
                "POST", "/files/upload_sessions", {"folder_id": folder, "file_name": "s", "file_size": 2**25}
            ).status,
            "rename": box("PUT", f"/files/{file}", {"description": "x"}).status,
            "restore": box("GET", "/events").status,
            "delete": box("DELETE", f"/files/{file}").status,
        }
    finally:
        box.token = former_token


READ = {"read": 200, "list": 200}


@pytest.mark.parametrize(
    ("scope", "allowed"),
    [
        ("item_preview", READ),
        ("base_explorer item_download", {**READ, "download": 302}),
        ("item_upload", {**READ, "upload": 201, "session": 201}),
        ("item_rename item_delete", {**READ, "rename": 200, "delete": 204}),
        ("root_readonly", {**READ, "download": 302}),
    ],
)
def test_downscoped_token_allows_only_actions_of_its_scopes(box: BoxWire, scope: str, allowed: dict[str, int]) -> None:
    folder = box.folder("folder")["id"]
    file = box.file("a.txt", parent=folder)["id"]
    reply = downscope(box, scope)
    assert reply.status == 200
    status_by_action = statuses(box, reply.value["access_token"], file, folder)
    assert status_by_action == {name: allowed.get(name, 403) for name in status_by_action}


def test_refused_action_names_insufficient_scope(box: BoxWire) -> None:
    token = downscope(box, "item_preview").value["access_token"]
    reply = box("DELETE", f"/files/{box.file('a.txt')['id']}", token=token)
    assert (reply.status, reply.value["code"]) == (403, "insufficient_scope")
    assert 'error="insufficient_scope"' in reply.headers["www-authenticate"]


def test_a_smaller_token_is_for_one_item(box: BoxWire) -> None:
    folder, other = box.folder("folder"), box.folder("other")
    inside, outside = box.file("in.txt", parent=folder["id"]), box.file("out.txt", parent=other["id"])
    answer = downscope(box, "base_explorer item_upload item_delete", folder).value
    assert {entry["object"]["id"] for entry in answer["restricted_to"]} == {folder["id"]}
    token = answer["access_token"]
    assert box("GET", f"/files/{inside['id']}", token=token).status == 200
    assert box("GET", f"/files/{outside['id']}", token=token).status == 403
    assert box("GET", "/folders/0/items", token=token).status == 403
    entries = box("GET", "/search?query=txt", token=token).value["entries"]
    assert [entry["id"] for entry in entries] == [inside["id"]]
    box.token, full_token = token, box.token
    assert box.upload({"name": "new", "parent": {"id": folder["id"]}}, b"1").status == 201
    assert box.upload({"name": "new", "parent": {"id": other["id"]}}, b"1").status == 403
    box.token = full_token
    box("DELETE", f"/files/{outside['id']}")
    assert box("DELETE", f"/files/{outside['id']}/trash", token=token).status == 403


def test_a_smaller_token_never_grows(box: BoxWire) -> None:
    folder = box.folder("folder")
    file = box.file("a.txt", parent=folder["id"])
    token = downscope(box, "item_download base_explorer", folder).value["access_token"]
    assert downscope(box, "item_upload", token=token).value["error"] == "invalid_scope"
    assert (
        downscope(box, "item_download", box("GET", "/folders/0").value, token=token).value["error"] == "invalid_scope"
    )
    smallest = downscope(box, "item_download", file, token=token).value["access_token"]
    assert box("GET", f"/files/{file['id']}/content", token=smallest).status == 302
    assert box("GET", f"/folders/{folder['id']}", token=smallest).status == 403


@pytest.mark.parametrize(
    ("form", "error"),
    [
        ({"subject_token": "made-up", "scope": "item_upload"}, "invalid_grant"),
        ({"scope": "item_eat"}, "invalid_scope"),
        ({"scope": ""}, "invalid_scope"),
        ({"scope": "item_upload", "resource": "https://api.box.com/2.0/web_links/1"}, "invalid_resource"),
        ({"scope": "item_upload", "resource": "https://api.box.com/2.0/files/4711"}, "invalid_resource"),
    ],
)
def test_token_exchange_refuses_wrong_requests(box: BoxWire, form: dict[str, str], error: str) -> None:
    reply = ask(box, **{"grant_type": EXCHANGE, "subject_token": box.token, **form})
    assert (reply.status, reply.value["error"]) == (400, error)


@pytest.mark.parametrize("wrong", ["other", "SECRET", "secret ", "invalid"])
def test_an_application_has_one_secret(box: BoxWire, wrong: str) -> None:
    form = {"grant_type": "client_credentials", "box_subject_type": "enterprise", "box_subject_id": "1"}
    token = ask(box, **form, **CLIENT).value["access_token"]
    other = {**CLIENT, "client_secret": wrong}
    assert ask(box, **form, **other).value["error"] == "invalid_client"
    revocation = urlencode({**other, "token": token}).encode()
    assert box("POST", "/oauth2/revoke", revocation, token="").status == 400
    assert box("GET", "/users/me", token=token).status == 200
    assert ask(box, **form, client_id="another", client_secret="other").status == 200


def test_a_refresh_token_belongs_to_one_application(box: BoxWire) -> None:
    tokens = ask(box, grant_type="refresh_token", refresh_token="made-up", **CLIENT).value
    renewal = {"grant_type": "refresh_token", "refresh_token": tokens["refresh_token"]}
    assert ask(box, **renewal, client_id="other", client_secret="x").value["error"] == "invalid_grant"
    assert ask(box, **renewal, **CLIENT).status == 200


def test_scopes_that_a_user_agreed_to_outlive_a_refresh(box: BoxWire) -> None:
    query = urlencode({"client_id": "me", "redirect_uri": BACK, "state": "s", "scope": "root_readonly"})
    location = box("GET", f"/api/oauth2/authorize?{query}", token="").headers["location"]
    code = location.partition("code=")[2].partition("&")[0]
    tokens = ask(box, grant_type="authorization_code", code=code, redirect_uri=BACK, **CLIENT).value
    renewed_tokens = ask(box, grant_type="refresh_token", refresh_token=tokens["refresh_token"], **CLIENT).value
    for token in (tokens["access_token"], renewed_tokens["access_token"]):
        assert box("GET", "/folders/0", token=token).status == 200
        assert box("POST", "/folders", {"name": "x", "parent": {"id": "0"}}, token=token).status == 403


@pytest.mark.parametrize(
    ("method", "path", "what"),
    [
        ("POST", "/web_links", "web links"),
        ("GET", "/web_links/12/trash", "web links"),
        ("GET", "/files/1/thumbnail.png", "thumbnails"),
        ("POST", "/files/1/metadata/global/properties", "metadata"),
        ("POST", "/webhooks", "webhooks"),
        ("GET", "/groups", "groups"),
        ("POST", "/tasks", "tasks"),
        ("POST", "/zip_downloads", "downloads as ZIP files"),
        ("PUT", "/folders/0/watermark", "watermarks"),
    ],
)
def test_unsupported_functions_are_refused_in_one_line(box: BoxWire, method: str, path: str, what: str) -> None:
    reply = box(method, path)
    assert (reply.status, reply.value["message"]) == (400, f"This emulator does not offer {what}.")


# --- members and links ---


@pytest.fixture
def other(emulator: EmulatorService, box: BoxWire) -> Iterator[BoxWire]:
    """A raw client of another account of the same service."""
    client = BoxWire(emulator.open_account(2))
    yield client
    client.close()


def invite(box: BoxWire, other: BoxWire, folder: str, role: str) -> str:
    login = other("GET", "/users/me").value["login"]
    invitation = {"item": {"type": "folder", "id": folder}, "accessible_by": {"type": "user", "login": login}}
    return str(box("POST", "/collaborations", {**invitation, "role": role}).value["id"])


@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        ("previewer", {"read": 200}),
        ("uploader", {}),
        ("viewer", {"read": 200, "download": 302}),
        ("viewer uploader", {"read": 200, "download": 302}),
        ("editor", {"read": 200, "download": 302, "rename": 200, "delete": 204}),
        ("co-owner", {"read": 200, "download": 302, "rename": 200, "delete": 204}),
    ],
)
def test_member_may_do_only_the_actions_of_its_role(
    box: BoxWire, other: BoxWire, role: str, allowed: dict[str, int]
) -> None:
    folder = box.folder("shared")["id"]
    file = box.file("a.txt", parent=folder)["id"]
    assert other("GET", f"/files/{file}").status == 404
    collaboration = invite(box, other, folder, role)
    statuses = {
        "read": other("GET", f"/files/{file}").status,
        "download": other("GET", f"/files/{file}/content").status,
        "rename": other("PUT", f"/files/{file}", {"name": "b.txt"}).status,
        "delete": other("DELETE", f"/files/{file}").status,
    }
    assert statuses == {name: allowed.get(name, 403) for name in statuses}
    assert box("GET", f"/collaborations/{collaboration}").value["status"] == "accepted"


def test_a_member_reaches_nothing_else_and_nothing_after_its_removal(box: BoxWire, other: BoxWire) -> None:
    folder, outside = box.folder("shared")["id"], box.file("beside.txt")["id"]
    deep = box.file("deep.txt", parent=box.folder("inside", folder)["id"])["id"]
    collaboration = invite(box, other, folder, "editor")
    assert other("GET", f"/files/{deep}/content").status == 302
    assert other("GET", f"/files/{outside}").status == 404
    assert box("DELETE", f"/collaborations/{collaboration}").status == 204
    assert other("GET", f"/files/{deep}/content").status == 404
    assert box("GET", f"/files/{deep}").status == 200
    assert box("GET", f"/files/{deep}", token="wrong").status == 401


def invite_person(box: BoxWire, folder: str, **person: str) -> BoxReply:
    invitation = {"item": {"type": "folder", "id": folder}, "accessible_by": {"type": "user", **person}}
    return box("POST", "/collaborations", {**invitation, "role": "editor"})


def test_collaboration_by_the_id_of_a_user_gives_that_user_its_role(box: BoxWire, other: BoxWire) -> None:
    folder, person = box.folder("shared")["id"], other("GET", "/users/me").value
    file = box.file("a.txt", parent=folder)["id"]
    collaboration = invite_person(box, folder, id=person["id"]).value
    assert collaboration["accessible_by"].items() >= {key: person[key] for key in ("id", "name", "login")}.items()
    assert (collaboration["status"], collaboration["invite_email"]) == ("accepted", None)
    assert other("PUT", f"/files/{file}", {"name": "b.txt"}).value["name"] == "b.txt"


@pytest.mark.parametrize("first_by", ["id", "login"])
@pytest.mark.parametrize("second_by", ["id", "login"])
def test_second_collaboration_of_an_item_and_a_person_is_refused(
    box: BoxWire, other: BoxWire, first_by: str, second_by: str
) -> None:
    person = other("GET", "/users/me").value
    folder, other_folder = box.folder("shared")["id"], box.folder("other")["id"]
    first = invite_person(box, folder, **{first_by: person[first_by]})
    refusal = invite_person(box, folder, **{second_by: person[second_by]})
    assert (first.status, refusal.status, refusal.value["code"]) == (201, 400, "user_already_collaborator")
    assert box("GET", f"/folders/{folder}/collaborations").value["total_count"] == 1
    assert invite_person(box, other_folder, **{second_by: person[second_by]}).status == 201
    box("DELETE", f"/collaborations/{first.value['id']}")
    assert invite_person(box, folder, **{second_by: person[second_by]}).status == 201


def test_people_without_an_account_are_collaborators_of_an_item_once(box: BoxWire) -> None:
    folder = box.folder("shared")["id"]
    for person in ({"id": "7"}, {"login": "x@example.com"}, {"id": "8"}):
        assert [invite_person(box, folder, **person).status for _ in range(2)] == [201, 400]


def share(box: BoxWire, item: str, **terms: object) -> Any:
    """Make or change the link of a file or folder, whose path is given, and return it."""
    return box("PUT", f"{item}?fields=shared_link", {"shared_link": terms}).value["shared_link"]


def open_link(box: BoxWire, url: str, password: str = "") -> BoxReply:
    link = f"shared_link={url}&shared_link_password={password}" if password else f"shared_link={url}"
    return box("GET", "/shared_items", headers={"BoxApi": link})


def test_open_link_shows_its_item_to_every_account(box: BoxWire, other: BoxWire) -> None:
    for owner, reader in ((box, other), (other, box)):
        for item in (f"/files/{owner.file('a.txt')['id']}", f"/folders/{owner.folder('f')['id']}"):
            link = share(owner, item, access="open")
            reply = open_link(reader, link["url"])
            assert (reply.status, reply.value["id"]) == (200, item.rpartition("/")[2])
            assert reply.value["owned_by"]["login"] == owner("GET", "/users/me").value["login"]
            share(owner, item, password="let me in")
            assert open_link(reader, link["url"]).value["code"] == "incorrect_shared_item_password"
            assert open_link(reader, link["url"], "let me in").status == 200
            owner("PUT", item, {"shared_link": None})
            assert open_link(reader, link["url"]).status == 404


def test_link_for_collaborators_shows_its_item_to_those_with_a_role(box: BoxWire, other: BoxWire) -> None:
    folder = box.folder("shared")["id"]
    url = share(box, f"/files/{box.file('a.txt', parent=folder)['id']}", access="collaborators")["url"]
    assert open_link(box, url).status == 200
    assert open_link(other, url).status == 404
    invite(box, other, folder, "viewer")
    assert open_link(other, url).status == 200


def test_link_for_a_company_shows_its_item_to_accounts_of_that_company(
    emulator: EmulatorService, box: BoxWire, other: BoxWire
) -> None:
    url = share(box, f"/files/{box.file('a.txt')['id']}", access="company")["url"]
    companies = [wire("GET", "/users/me?fields=enterprise").value["enterprise"]["id"] for wire in (box, other)]
    assert companies[0] == companies[1]
    assert open_link(other, url).status == 200
    emulator.control(set={"account.type": "personal"})
    try:
        assert "enterprise" not in box("GET", "/users/me?fields=enterprise").value
        assert (open_link(box, url).status, open_link(other, url).status) == (200, 404)
    finally:
        emulator.control(set={"account.type": "enterprise"})


def test_link_is_found_by_its_vanity_name(box: BoxWire, other: BoxWire) -> None:
    for wire, reader in ((box, other), (other, box)):
        file = wire.file("a.txt")["id"]
        link = share(wire, f"/files/{file}", vanity_name=f"a-name-of-{file}")
        assert link["vanity_url"].endswith(f"/v/a-name-of-{file}")
        for url in (link["url"], link["vanity_url"], link["download_url"]):
            assert open_link(reader, url).value["id"] == file
        page = wire("GET", urlsplit(link["vanity_url"]).path, token="")
        assert (page.status, b"a.txt" in page.value) == (200, True)
    assert open_link(box, "https://app.box.com/v/unknown").status == 404
    assert box("GET", "/v/unknown", token="").status == 404


def by_link(wire: BoxWire, path: str, url: str, password: str = "", method: str = "GET") -> BoxReply:
    """Send a request with the address of a link in its header."""
    body = {"name": "other"} if method == "PUT" else None
    return wire(
        method, path, body, headers={"BoxApi": urlencode({"shared_link": url, "shared_link_password": password})}
    )


@dataclass(frozen=True)
class LinkedTree:
    """A folder with an open link, what is in it, and a file beside it."""

    url: str
    folder: str
    inner: str
    file: str
    outside: str

    @property
    def reads(self) -> list[str]:
        items = [f"/folders/{folder}{part}" for folder in (self.folder, self.inner) for part in ("", "/items")]
        return [*items, f"/files/{self.file}", f"/files/{self.file}/content"]


@pytest.fixture
def linked(box: BoxWire) -> LinkedTree:
    folder = box.folder("linked")["id"]
    inner = box.folder("inner", folder)["id"]
    file, outside = box.file("deep.txt", parent=inner)["id"], box.file("beside.txt")["id"]
    return LinkedTree(share(box, f"/folders/{folder}", access="open")["url"], folder, inner, file, outside)


def test_link_in_the_header_lets_others_read_what_is_below_it(box: BoxWire, other: BoxWire, linked: LinkedTree) -> None:
    for path in linked.reads:
        assert other("GET", path).status == 404
        assert by_link(other, path, linked.url).status == (302 if path.endswith("content") else 200)
    listing = by_link(other, f"/folders/{linked.inner}/items", linked.url).value
    assert [entry["id"] for entry in listing["entries"]] == [linked.file]
    content = by_link(other, f"/files/{linked.file}/content", linked.url).headers["location"]
    assert other("GET", urlsplit(content).path, token="").value == b"content"
    assert by_link(other, f"/files/{linked.outside}", linked.url).status == 404
    box("DELETE", f"/files/{linked.file}")
    assert by_link(other, f"/files/{linked.file}", linked.url).status == 404
    box("PUT", f"/folders/{linked.folder}", {"shared_link": None})
    assert by_link(other, f"/folders/{linked.inner}", linked.url).status == 404


def test_link_in_the_header_lets_nobody_write(box: BoxWire, other: BoxWire, linked: LinkedTree) -> None:
    file, inner = f"/files/{linked.file}", f"/folders/{linked.inner}"
    others = (("PUT", file), ("DELETE", file), ("DELETE", inner), ("GET", f"{file}/collaborations"))
    for method, path in others:
        assert by_link(other, path, linked.url, method=method).status == 404
    assert by_link(other, file, linked.url).value["name"] == "deep.txt"
    assert by_link(box, file, linked.url, method="PUT").status == 200, "it takes no right away"
    assert other("GET", file, token="wrong", headers={"BoxApi": f"shared_link={linked.url}"}).status == 401


def test_link_in_the_header_asks_for_its_password(box: BoxWire, other: BoxWire, linked: LinkedTree) -> None:
    share(box, f"/folders/{linked.folder}", password="let me in")
    for path in linked.reads:
        assert by_link(other, path, linked.url).value["code"] == "incorrect_shared_item_password"
        assert by_link(other, path, linked.url, "let me in").status in (200, 302)


def test_link_in_the_header_without_downloads_shows_only_what_is_there(
    box: BoxWire, other: BoxWire, linked: LinkedTree
) -> None:
    share(box, f"/folders/{linked.folder}", permissions={"can_download": False})
    for path in linked.reads:
        assert by_link(other, path, linked.url).status == (403 if path.endswith("content") else 200)


def test_link_in_the_header_is_open_to_whom_its_access_names(
    emulator: EmulatorService, box: BoxWire, other: BoxWire, linked: LinkedTree
) -> None:
    item = f"/folders/{linked.folder}"
    share(box, item, access="collaborators")
    assert [by_link(other, path, linked.url).status for path in linked.reads] == [404] * len(linked.reads)
    share(box, item, access="company")
    assert by_link(other, item, linked.url).status == 200
    emulator.control(set={"account.type": "personal"})
    try:
        assert by_link(other, item, linked.url).status == 404
    finally:
        emulator.control(set={"account.type": "enterprise"})
    invite(box, other, linked.folder, "previewer")
    assert by_link(other, f"/files/{linked.file}/content", linked.url).status == 302, (
        "the link allows more than the role"
    )


def test_shared_item_that_is_known_is_not_sent_again(box: BoxWire) -> None:
    for item in (f"/files/{box.file('a')['id']}", f"/folders/{box.folder('f')['id']}"):
        entry = box("PUT", item, {"shared_link": {"access": "open", "password": "x"}}).value
        link = {"BoxApi": f"shared_link={entry['shared_link']['url']}&shared_link_password=x"}
        statuses = [
            box("GET", "/shared_items", headers={**link, "If-None-Match": etag}).status
            for etag in (entry["etag"], "99")
        ]
        assert statuses == [304, 200]
        wrong = {"BoxApi": link["BoxApi"] + "y", "If-None-Match": entry["etag"]}
        assert box("GET", "/shared_items", headers=wrong).status == 403
