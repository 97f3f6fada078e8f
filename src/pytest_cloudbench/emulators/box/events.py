"""What happened in the account: the stream of events, and waiting for the next one.

What may live here: ``events`` and the long poll of its realtime server. A position is an index into the log of events;
an event shows its item as it is when the event is read.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

from pytest_cloudbench.emulators.box.answers import answer_json, bad_parameter, origin, timestamp
from pytest_cloudbench.emulators.box.items import USER, entry, number_of, query_of
from pytest_cloudbench.emulators.box.state import BoxFunction, BoxState, Event
from pytest_cloudbench.emulators.nodes import File, Node
from pytest_cloudbench.emulators.skin import Answer, Call, Kind

_STREAMS = ("all", "changes", "sync", "admin_logs", "admin_logs_streaming")
_RETRY_S = 610
"""How long a client waits for the realtime server before it asks again (the specification's example)."""


def _event(state: BoxState, place: int, event: Event, now_s: float) -> dict[str, Any]:
    at = timestamp(event.at_s)
    name = hashlib.sha1(f"{state.secret} {place}".encode(), usedforsecurity=False).hexdigest()
    source = entry(state, event.node, now_s)
    if event.node.deleted_s is not None:
        source["item_status"] = "deleted"
    return {
        "type": "event", "event_id": name, "created_by": USER, "created_at": at, "recorded_at": at,
        "event_type": event.kind, "session_id": state.secret[:22], "source": source,
    }  # fmt: skip


def _is_seen(node: Node, now_s: float) -> bool:
    return not isinstance(node, File) or node.seen(now_s) is not None


def _events(state: BoxState, call: Call) -> Answer:
    query, end = query_of(call), state.events.end(call.now_s)
    stream, position = query.get("stream_type", "all"), query.get("stream_position", "0")
    if stream not in _STREAMS:
        raise bad_parameter("stream_type", f"Invalid value '{stream}'.")
    if position == "now":
        return answer_json({"chunk_size": 0, "next_stream_position": end, "entries": []})
    if not position.isascii() or not position.isdigit():
        raise bad_parameter("stream_position", f"Invalid value '{position}'.")
    begin, limit = min(int(position), end), min(number_of(query, "limit", 100), 500)
    last = min(end, begin + limit)
    kinds = set(query["event_type"].split(",")) if query.get("event_type") else None
    entries = [
        _event(state, place, event, call.now_s)
        for place, event in enumerate(state.events.keys[begin:last], begin)
        if (kinds is None or event.kind in kinds) and _is_seen(event.node, call.now_s)
    ]
    return answer_json({"chunk_size": len(entries), "next_stream_position": last, "entries": entries})


def _servers(state: BoxState, call: Call) -> Answer:
    stream = query_of(call).get("stream_type", "all")
    end = state.events.end(call.now_s)
    home = origin(call, "2.realtime.services.box.net")
    url = f"{home}/subscribe?channel={state.secret}&stream_type={stream}&stream_position={end}"
    server = {"type": "realtime_server", "url": url, "ttl": "10", "max_retries": "10", "retry_timeout": _RETRY_S}
    return answer_json({"chunk_size": 1, "entries": [server]})


async def _subscribed(state: BoxState, call: Call) -> Answer:
    """Answer as soon as something happens, or ask the client to come again."""
    query, clock, log = query_of(call), state.clock, state.events
    if query.get("channel") != state.secret:
        return answer_json({"message": "reconnect"})
    known = number_of(query, "stream_position", log.end(call.now_s))
    until_s = call.now_s + _RETRY_S
    woken = asyncio.Event()
    log.listeners.append(woken.set)
    try:
        while True:
            now_s = clock.now_s()
            if log.end(now_s) > known:
                return answer_json({"message": "new_change"})
            if now_s >= until_s:
                return answer_json({"message": "reconnect"})
            woken.clear()
            try:
                await asyncio.wait_for(woken.wait(), clock.real_s(max(0.0, min(until_s, log.next_change_s()) - now_s)))
            except TimeoutError:
                continue
    finally:
        log.listeners.remove(woken.set)


FUNCTIONS = (
    BoxFunction("GET", "/2.0/events", "events", Kind.META, _events),
    BoxFunction("OPTIONS", "/2.0/events", "realtime_servers", Kind.META, _servers),
    BoxFunction("GET", "/subscribe", "subscribe", Kind.FREE, _subscribed, is_open=True),
)
