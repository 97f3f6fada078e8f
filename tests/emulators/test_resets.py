"""Tests of what a reset leaves of the clients of a former account: those that wait, and positions that they know."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from pytest_cloudbench.emulators import EmulatorService, start_emulator
from pytest_cloudbench.emulators.behaviour import EmulatorClock
from pytest_cloudbench.emulators.box.skin import Box
from pytest_cloudbench.emulators.dropbox.listing import Cursor
from pytest_cloudbench.emulators.dropbox.skin import Dropbox
from pytest_cloudbench.emulators.mega.skin import Mega
from pytest_cloudbench.emulators.profile import find_profile
from pytest_cloudbench.emulators.server import Emulator
from pytest_cloudbench.emulators.skin import Answer, Call, Skin
from tests.limits import HANG_S

from .box_wire import BoxWire
from .graph_wire import GraphWire


def call_for_news(skin: Skin, now_s: float) -> Call:
    """Return a call that waits for the next change of an account."""
    method, path, query, body = "GET", "", "", {}
    if isinstance(skin, Box):
        path, query = "/subscribe", f"channel={skin.state.secret}"
    elif isinstance(skin, Mega):
        path = f"/wsc/{skin.state.current_cursor(0.0)}"
    else:
        assert isinstance(skin, Dropbox)
        tree = skin.state.tree
        log = tree.paths.log.number
        cursor = Cursor(tree.store.root.id, True, False, limit=10, log=log, place=0, begun_s=0.0, after=None)
        method, path, body = "POST", "/2/files/list_folder/longpoll", {"cursor": cursor.encode(), "timeout": 480}
    match = skin.route(method, path, query.encode())
    assert match is not None
    headers = {b"content-type": b"application/json"}
    return Call(match.route, method, path, match.parameters, query.encode(), headers, now_s, json.dumps(body).encode())


async def answer_to_waiting_client(emulator: Emulator, number: int) -> bytes:
    """Return the answer to a client that waits for a change of an account when a reset comes."""
    skin = emulator.accounts.open(number)
    assert skin is not None
    call = call_for_news(skin, EmulatorClock(1.0).now_s())
    waiting = asyncio.create_task(cast("Coroutine[Any, Any, Answer]", call.route.handler(call)))
    await asyncio.sleep(0)
    assert not waiting.done()
    assert emulator.control({"reset": True}) == {"ok": True}
    answer = await asyncio.wait_for(waiting, HANG_S)
    return bytes(answer.body)


@pytest.mark.parametrize(
    ("api", "number", "expected"),
    [
        ("box", 1, b'{"message": "reconnect"}'),
        ("box", 2, b'{"message": "reconnect"}'),
        ("mega", 1, b"0"),
        ("dropbox", 1, b'"error": {".tag": "reset"}'),
        ("dropbox", 2, b'"error": {".tag": "reset"}'),
    ],
)
def test_reset_answers_clients_that_wait(api: str, number: int, expected: bytes) -> None:
    emulator = Emulator(find_profile("ideal", api))
    answer = asyncio.run(answer_to_waiting_client(emulator, number))
    assert expected in answer.replace(b'":', b'": ').replace(b":  ", b": ")


def all_events(box: BoxWire, position: object = 0) -> Any:
    return box("GET", f"/events?stream_position={position}").value


def test_box_events_after_a_reset_are_new_to_clients_that_know_the_former_ones() -> None:
    with start_emulator("ideal", api="box") as service:
        box = BoxWire(service.endpoint)
        names = []
        for _ in range(2):
            box.file("a")
            box.file("b")
            page = all_events(box)
            names.append([event["event_id"] for event in page["entries"]])
            known_position = page["next_stream_position"]
            service.reset()
        assert len({name for page_names in names for name in page_names}) == 4
        assert all_events(box, known_position)["entries"] == []
        file = box.file("c")["id"]
        page = all_events(box, known_position)
        assert [event["source"]["id"] for event in page["entries"]] == [file]
        assert page["next_stream_position"] > known_position
        assert all_events(box, page["next_stream_position"])["entries"] == []
        box.close()


def test_delta_link_of_onedrive_ends_with_a_reset(graph: GraphWire, onedrive: EmulatorService) -> None:
    graph.put("a")
    link = graph("GET", "/v1.0/me/drive/root/delta").value["@odata.deltaLink"]
    assert graph("GET", link).status == 200
    onedrive.reset()
    graph.put("b")
    for _ in range(5):
        graph.put("a", b"changed")  # so that the log is longer than it was
    reply = graph("GET", link)
    assert (reply.status, reply.code) == (410, "resyncRequired")
