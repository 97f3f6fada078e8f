"""Tests of where the Box emulator restores an item from the trash. The tests set the emulator's time."""

from __future__ import annotations

import pytest

from .box_wire import BoxWire
from .skin_connection import SetClock, connect_box


@pytest.fixture
def box() -> BoxWire:
    return connect_box(SetClock(), "")


def test_item_is_restored_to_its_former_folder_while_that_exists(box: BoxWire) -> None:
    former, other = box.folder("former")["id"], box.folder("other")["id"]
    file, folder = box.file("a", parent=former)["id"], box.folder("f", former)["id"]
    for path in (f"/files/{file}", f"/folders/{folder}"):
        assert box("DELETE", path).status == 204
        reply = box("POST", path, {"parent": {"id": other}, "name": "restored"})
        assert (reply.status, reply.value["parent"]["id"], reply.value["name"]) == (201, former, "restored")
        assert box("PUT", path, {"name": path.rpartition("/")[2]}).status == 200


@pytest.mark.parametrize("is_purged", [False, True])
def test_item_is_restored_to_another_folder_if_its_former_one_is_gone(box: BoxWire, is_purged: bool) -> None:
    former, other = box.folder("former")["id"], box.folder("other")["id"]
    file = box.file("a", parent=former)["id"]
    box("DELETE", f"/files/{file}")
    box("DELETE", f"/folders/{former}")
    if is_purged:
        box("DELETE", f"/folders/{former}/trash")
    assert box("POST", f"/files/{file}", {}).status == 403
    reply = box("POST", f"/files/{file}", {"parent": {"id": other}})
    assert (reply.status, reply.value["parent"]["id"]) == (201, other)
