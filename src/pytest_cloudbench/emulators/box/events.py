"""The stream of events of an account, and the long poll of its realtime server.

A position is an index into the log of events plus ``first_position``. An event shows its item as it is when the event
is read.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Mapping
from typing import Any

from pytest_cloudbench.emulators.box.answers import answer_json, bad_parameter, host_url, timestamp
from pytest_cloudbench.emulators.box.items import read_number, read_query, standard_item
from pytest_cloudbench.emulators.box.state import BoxFunction, BoxState, Event
from pytest_cloudbench.emulators.skin import Answer, Call, Kind

_STREAMS = ("all", "changes", "sync", "admin_logs", "admin_logs_streaming")
_RETRY_S = 610
"""How long a client waits for the realtime server before it asks again (the specification's example)."""
_RECONNECT = answer_json({"message": "reconnect"})


def _event_item(state: BoxState, position: int, event: Event, now_s: float) -> dict[str, Any]:
    time = timestamp(event.at_s)
    name = hashlib.sha1(f"{state.secret} {position}".encode(), usedforsecurity=False).hexdigest()
    source = standard_item(state, event.node, now_s)
    if event.node.deleted_s is not None:
        source["item_status"] = "deleted"
    return {
        "type": "event", "event_id": name, "created_by": state.user, "created_at": time, "recorded_at": time,
        "event_type": event.kind, "session_id": state.secret[:22], "source": source,
    }  # fmt: skip


def _list_events(state: BoxState, call: Call) -> Answer:
    query, base, end = read_query(call), state.first_position, _end_position(state, call.now_s)
    stream = query.get("stream_type", "all")
    if stream not in _STREAMS:
        raise bad_parameter("stream_type", f"Invalid value '{stream}'.")
    first = min(max(base, _read_position(state, query, call.now_s, default=0)), end)
    next_position = min(end, first + min(read_number(query, "limit", 100), 500))
    kinds = set(query["event_type"].split(",")) if query.get("event_type") else None
    entries = [
        _event_item(state, position, event, call.now_s)
        for position, event in enumerate(state.events.keys[first - base : next_position - base], first)
        if (kinds is None or event.kind in kinds) and event.node.is_seen(call.now_s)
    ]
    return answer_json({"chunk_size": len(entries), "next_stream_position": next_position, "entries": entries})


def _end_position(state: BoxState, now_s: float) -> int:
    return state.first_position + state.events.end(now_s)


def _read_position(state: BoxState, query: Mapping[str, str], now_s: float, *, default: int) -> int:
    """Return the position that a request names as a number, or as ``now`` for the present end. Raises BoxError."""
    text = query.get("stream_position", "")
    if text == "now":
        return _end_position(state, now_s)
    if text and not (text.isascii() and text.isdigit()):
        raise bad_parameter("stream_position", f"Invalid value '{text}'.")
    return int(text) if text else default


def _list_realtime_servers(state: BoxState, call: Call) -> Answer:
    stream = read_query(call).get("stream_type", "all")
    end = _end_position(state, call.now_s)
    home = host_url(call, "2.realtime.services.box.net")
    url = f"{home}/subscribe?channel={state.secret}&stream_type={stream}&stream_position={end}"
    server = {"type": "realtime_server", "url": url, "ttl": "10", "max_retries": "10", "retry_timeout": _RETRY_S}
    return answer_json({"chunk_size": 1, "entries": [server]})


def _subscribe(state: BoxState, call: Call) -> Answer | Awaitable[Answer]:
    """Answer as soon as there is an event after the position that the client knows, by default the present end."""
    query = read_query(call)
    if query.get("channel") != state.secret:
        return _RECONNECT
    end = _end_position(state, call.now_s)
    return _wait_for_event(state, call, _read_position(state, query, call.now_s, default=end))


async def _wait_for_event(state: BoxState, call: Call, known_position: int) -> Answer:
    """Answer as soon as there is an event after a position, or ask the client to reconnect."""
    clock, log = state.clock, state.events
    until_s = call.now_s + _RETRY_S
    wake_up = asyncio.Event()
    log.listeners.append(wake_up.set)
    try:
        while True:
            now_s = clock.now_s()
            if _end_position(state, now_s) > known_position:
                return answer_json({"message": "new_change"})
            if now_s >= until_s or log.has_ended:
                return _RECONNECT
            wake_up.clear()
            try:
                await asyncio.wait_for(
                    wake_up.wait(), clock.real_s(max(0.0, min(until_s, log.next_change_s()) - now_s))
                )
            except TimeoutError:
                continue
    finally:
        log.listeners.remove(wake_up.set)


FUNCTIONS = (
    BoxFunction("GET", "/2.0/events", "events", Kind.META, _list_events),
    BoxFunction("OPTIONS", "/2.0/events", "realtime_servers", Kind.META, _list_realtime_servers),
    BoxFunction("GET", "/subscribe", "subscribe", Kind.FREE, _subscribe, is_open=True),
)
