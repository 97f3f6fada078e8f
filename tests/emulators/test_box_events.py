"""Tests of the positions from which a client of the Box emulator waits for events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from typing import Any
from urllib.parse import urlsplit

import pytest

from pytest_cloudbench.emulators.box.skin import Box
from pytest_cloudbench.emulators.profile import find_profile
from pytest_cloudbench.emulators.skin import Answer, Call
from tests.limits import HANG_S

from .skin_connection import SetClock, connect_box


@pytest.mark.parametrize("position", ["soon", "-1", "1.5"])
def test_wait_from_an_unknown_position_is_refused(position: str) -> None:
    box = connect_box(SetClock(), "")
    address = urlsplit(box("OPTIONS", "/events").value["entries"][0]["url"])
    channel = address.query.partition("&")[0]
    reply = box("GET", f"{address.path}?{channel}&stream_position={position}", token="")
    assert (reply.status, reply.value["code"]) == (400, "bad_request")


@pytest.mark.parametrize("position", ["&stream_position=now", ""])
def test_wait_from_now_ends_with_the_next_event(position: str) -> None:
    clock = SetClock()
    skin = Box(find_profile("ideal", "box"), clock, 0)
    root, query = skin.state.find_folder("0"), f"channel={skin.state.secret}{position}".encode()
    skin.state.add_folder(root, "before", clock.now_s())
    match = skin.route("GET", "/subscribe", query)
    assert match is not None
    call = Call(match.route, "GET", "/subscribe", {}, query, {}, clock.now_s())

    async def wait() -> Any:
        answer = call.route.handler(call)
        assert isinstance(answer, Awaitable)
        waiting = asyncio.ensure_future(answer)
        await asyncio.sleep(0)
        assert not waiting.done()
        skin.state.add_folder(root, "after", clock.now_s())
        reply: Answer = await asyncio.wait_for(waiting, HANG_S)
        return json.loads(bytes(reply.body))

    assert asyncio.run(wait()) == {"message": "new_change"}
