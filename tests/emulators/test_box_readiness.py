"""Tests of what reads see of the Box emulator while a write is not ready. The tests set the emulator's time."""

from __future__ import annotations

from typing import Any

from .box_wire import BoxWire
from .skin_connection import SetClock, connect_box

READY_LATER = "[readiness]\ndelay_s = 10"
CHANGING = ("etag", "sequence_id", "sha1", "size", "file_version", "modified_at", "content_modified_at")
"""The keys of a file that differ between its versions."""


def changing_keys(file: Any) -> dict[str, Any]:
    return {key: file[key] for key in CHANGING}


def listed_file(box: BoxWire, name: str) -> dict[str, Any]:
    entries = box("GET", f"/folders/0/items?fields=name,{','.join(CHANGING)}").value["entries"]
    (entry,) = (entry for entry in entries if entry["name"] == name)
    return changing_keys(entry)


def replace(box: BoxWire, file_id: str, data: bytes) -> Any:
    """Upload a new version of a file, and return the entry of the answer."""
    return box.upload({}, data, file_id).value["entries"][0]


def listed_names(box: BoxWire) -> list[str]:
    return [entry["name"] for entry in box("GET", "/folders/0/items").value["entries"]]


def test_file_that_was_deleted_before_it_was_ready_does_not_come_back() -> None:
    clock = SetClock()
    box = connect_box(clock, READY_LATER)
    file = box.file("a")["id"]
    assert box("GET", f"/files/{file}").status == 404
    assert box("DELETE", f"/files/{file}").status == 204
    clock.at_s += 20
    assert listed_names(box) == []
    reply = box("GET", f"/files/{file}")
    assert (reply.status, reply.value["code"]) == (404, "trashed")


def test_writes_change_a_file_before_it_is_ready() -> None:
    clock = SetClock()
    box = connect_box(clock, READY_LATER)
    file = box.file("a", b"old")["id"]
    newest = replace(box, file, b"newer")
    assert changing_keys(box("PUT", f"/files/{file}", {"name": "b"}).value).items() >= {
        ("sha1", newest["sha1"]), ("size", 5), ("etag", "2")
    }  # fmt: skip
    copied = box("POST", f"/files/{file}/copy", {"parent": {"id": "0"}, "name": "c"})
    assert (copied.status, copied.value["sha1"]) == (201, newest["sha1"])
    shared = box("PUT", f"/files/{file}?fields=shared_link", {"shared_link": {}}).value["shared_link"]
    by_link = {"BoxApi": f"shared_link={shared['url']}"}
    assert box("GET", f"/files/{file}").status == box("GET", "/shared_items", headers=by_link).status == 404
    assert listed_names(box) == []
    clock.at_s += 20
    assert listed_names(box) == ["b", "c"]
    assert box("GET", "/shared_items", headers=by_link).value["id"] == file
    contents = [box.download(f"/files/{number}/content").value for number in (file, copied.value["id"])]
    assert contents == [b"newer", b"newer"]


def status_by_etag(box: BoxWire, file_id: str, known_etag: str) -> int:
    """Return the status of a request for a file unless its etag is the known one."""
    return box("GET", f"/files/{file_id}", headers={"If-None-Match": known_etag}).status


def test_overwritten_file_changes_as_a_whole_when_the_new_version_is_ready() -> None:
    clock = SetClock()
    box = connect_box(clock, READY_LATER)
    file = box.file("a", b"old")["id"]
    clock.at_s += 20
    before = box("GET", f"/files/{file}").value
    answer = replace(box, file, b"newer")
    assert answer["size"] == 5, "the answer to a write shows what it wrote"
    clock.at_s += 5
    during = box("GET", f"/files/{file}").value
    assert changing_keys(during) == listed_file(box, "a") == changing_keys(before)
    assert box("GET", f"/files/{file}/versions").value["total_count"] == 0
    assert box("GET", f"/files/{file}/versions/{answer['file_version']['id']}").status == 404
    assert box.download(f"/files/{file}/content?version={answer['file_version']['id']}").status == 404
    assert [status_by_etag(box, file, known["etag"]) for known in (before, answer)] == [304, 200]
    assert box("PUT", f"/files/{file}", {}, headers={"If-Match": before["etag"]}).status == 412
    clock.at_s += 5
    after = box("GET", f"/files/{file}").value
    assert changing_keys(after) == listed_file(box, "a") == changing_keys(answer)
    assert all(after[key] != before[key] for key in CHANGING)
    assert box("GET", f"/files/{file}/versions").value["total_count"] == 1
    assert [status_by_etag(box, file, known["etag"]) for known in (before, answer)] == [200, 304]


def test_etag_is_new_after_each_change_that_reads_see() -> None:
    clock = SetClock()
    box = connect_box(clock, READY_LATER)
    file = box.file("a", b"old")["id"]
    clock.at_s += 20
    etags = [box("GET", f"/files/{file}").value["etag"]]
    replace(box, file, b"newer")
    box("PUT", f"/files/{file}", {"name": "b"})
    etags.append(box("GET", f"/files/{file}").value["etag"])
    clock.at_s += 20
    etags.append(box("GET", f"/files/{file}").value["etag"])
    assert etags == ["0", "1", "2"]


def test_listings_that_lag_show_the_etag_of_the_version_they_list() -> None:
    clock = SetClock()
    box = connect_box(clock, "[readiness]\nlist_delay_s = 10")
    file = box.file("a", b"old")["id"]
    clock.at_s += 20
    before = box("GET", f"/files/{file}").value
    replace(box, file, b"newer")
    after = box("GET", f"/files/{file}").value
    assert after["etag"] != before["etag"]
    assert listed_file(box, "a") == changing_keys(before)
    clock.at_s += 20
    assert listed_file(box, "a") == changing_keys(after)


def test_listing_by_date_and_by_size_follows_what_it_shows() -> None:
    clock = SetClock()
    box = connect_box(clock, READY_LATER)
    files: list[str] = []
    for name in ("a", "b"):
        files.append(box.file(name, b"content" + name.encode() * len(files))["id"])
        clock.at_s += 20
    replace(box, files[0], b"longer than before")
    for names in (["a", "b"], ["b", "a"]):
        for key in ("date", "size"):
            page = box("GET", f"/folders/0/items?sort={key}")
            assert [entry["name"] for entry in page.value["entries"]] == names
        clock.at_s += 20
