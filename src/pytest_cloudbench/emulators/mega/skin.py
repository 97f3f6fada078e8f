"""MEGA's API on top of the core, written from what MEGA's own SDK and other clients send and read.

What may live here: the addresses, the envelope of commands, and what HTTP adds to it. MEGA publishes no specification;
names and numbers of the protocol are those of its SDK (github.com/meganz/sdk, April 2026).

Commands come in lists to ``/cs``; content goes to and comes from addresses that commands give; ``/sc`` tells what has
changed. Everything is served over TLS, even to clients that would accept content in the clear.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from pytest_cloudbench.emulators.blob import Blob, BytePieces, PieceWriter
from pytest_cloudbench.emulators.core import Tokens
from pytest_cloudbench.emulators.http import fields
from pytest_cloudbench.emulators.mega.commands import COMMANDS, OPEN, Asked
from pytest_cloudbench.emulators.mega.errors import Code, Failure
from pytest_cloudbench.emulators.mega.login import Hashcash, User, decode
from pytest_cloudbench.emulators.mega.state import AccountState
from pytest_cloudbench.emulators.nodes import File
from pytest_cloudbench.emulators.profile import Profile
from pytest_cloudbench.emulators.routing import RouteTable
from pytest_cloudbench.emulators.skin import Answer, Call, Clock, Kind, Match, Route
from pytest_cloudbench.emulators.throttle import Refusal

_API, _CONTENT = "g.api.mega.co.nz", "emulated.userstorage.mega.co.nz"
_JSON = [(b"content-type", b"application/json")]
_BYTES = [(b"content-type", b"application/octet-stream")]
_WAIT_S = 40.0
"""MEGA's own client asks again after this many seconds without an answer (SCREQUESTTIMEOUT of its SDK)."""


class Mega:
    """The skin: see ``skin.Skin``."""

    roles = ("api",)
    host_names = (_API, "*.userstorage.mega.co.nz")

    def __init__(self, profile: Profile, clock: Clock, seed: int) -> None:
        tokens = Tokens(seed)
        self._clock = clock
        self.account = User(tokens, 1)
        self.credentials = {"email": self.account.email, "password": self.account.password}
        self.state = AccountState(tokens, self.account.user)
        self._cash = Hashcash(Tokens(seed + 1))
        self.configure(profile)
        download = Route("download", Kind.READ, self._give)
        wait = Route("wsc", Kind.FREE, self._wait)
        self._routes = RouteTable(
            [
                ("POST", "/cs", Route("cs", Kind.WRITE, self._commands)),
                ("POST", "/sc", Route("sc", Kind.META, self._events)),
                *((method, "/wsc/{place}", wait) for method in ("GET", "POST")),
                ("POST", "/ul/{name}/{offset}", Route("upload", Kind.WRITE, self._take, sink=lambda _: PieceWriter())),
                *((method, "/dl/{name}", download) for method in ("GET", "POST")),
                *((method, "/dl/{name}/{range}", download) for method in ("GET", "POST")),
            ]
        )

    def configure(self, profile: Profile) -> None:
        """The profile changed."""
        self.state.store.quota_bytes = profile.quota.bytes
        self.state.store.readiness_s = profile.readiness.delay_s
        self.state.store.delete_delay_s = profile.readiness.delete_delay_s
        version, _, extra = profile.account.type.partition("-")
        self.account.version, self._asks_for_work = int(version[1:]), extra == "hashcash"

    def route(self, method: str, path: str, query: bytes) -> Match | None:
        """What a request is for."""
        return self._routes.find(method, path)

    def refused(self, call: Call, refusal: Refusal) -> Answer:
        """A number instead of an answer; for a download, only the status and how many seconds to wait."""
        if call.route.kind is Kind.READ:
            return Answer(509, [*_BYTES, (b"x-mega-time-left", b"%d" % refusal.retry_after_s)], b"")
        return _number(Code[refusal.reason])

    def broken(self, call: Call) -> Answer:
        """Status 500, which the SDK of the service takes for a server that is too busy."""
        return Answer(500, [(b"content-type", b"text/html")], b"")

    def unknown(self, method: str, path: str) -> Answer:
        """No such address."""
        if expected := self._routes.methods(path):
            return Answer(405, [(b"allow", ", ".join(expected).encode())], b"")
        return Answer(404, [(b"content-type", b"text/html")], b"")

    # ---------------------------------------------------------------- commands

    def _commands(self, call: Call) -> Answer:
        query = _query(call.query)
        session = query.get("sid", "")
        if session and not self.account.is_open(session):
            return _number(Code.ESID)
        try:
            commands = json.loads(call.body)
        except (ValueError, RecursionError):
            return _number(Code.EARGS)
        if not isinstance(commands, list):
            return _number(Code.EARGS)
        logs_in = any(isinstance(each, dict) and each.get("a") == "us" for each in commands)
        if logs_in and self._asks_for_work and not self._cash.accepts(call.headers.get(b"x-hashcash", b"")):
            return Answer(402, [*_JSON, (b"x-hashcash", self._cash.challenge(call.now_s))], b"")
        base_url = _base_url(call.headers, is_content=True)
        asked = Asked(self.state, self.account, call.now_s, base_url, query.get("n", ""), session)
        if not session and not all(_is_open(asked, each) for each in commands):
            return _number(Code.ESID)
        return _answer([_result(asked, command) for command in commands])

    # ---------------------------------------------------------------- content

    def _take(self, call: Call) -> Answer:
        """One piece of an upload; the piece that completes it is answered with the upload's handle."""
        name, upload = call.parameters["name"], self.state.uploads.get(call.parameters["name"])
        offset = call.parameters["offset"]
        if upload is None:
            return _text(Code.EEXPIRED)
        try:
            if not (offset.isascii() and offset.isdigit()):
                raise Failure(Code.ERANGE)
            data = call.body if call.damage is None else call.body.flipped(call.damage)
            upload.add(int(offset), data)
        except Failure as failure:
            return _text(failure.code)
        content = upload.content() if upload.size_bytes else BytePieces()
        if content is None:
            return Answer(200, _BYTES, b"")
        del self.state.uploads[name]
        handle = self.state.tokens.next("", 48)
        self.state.finished[handle] = Blob(content.pieces, "")
        return Answer(200, _BYTES, decode(handle) if upload.is_raw else handle.encode())

    def _give(self, call: Call) -> Answer:
        """The content of a file, or a range of it."""
        node = self.state.store.by_id(self.state.downloads.get(call.parameters["name"], ""))
        if not isinstance(node, File) or self.state.is_gone(node, call.now_s):
            return Answer(404, _BYTES, b"")
        blob = node.versions[-1].blob
        wanted = call.parameters.get("range")
        if wanted is None:
            return Answer(200, _BYTES, blob)
        first, dash, last = wanted.partition("-")
        if not (dash and first.isdigit() and (last.isdigit() or not last)) or not wanted.isascii():
            return Answer(400, _BYTES, b"")
        end = int(last) + 1 if last else blob.size_bytes
        return Answer(200, _BYTES, blob.part(int(first), end))

    # ---------------------------------------------------------------- events

    def _events(self, call: Call) -> Answer:
        query = _query(call.query)
        if not self.account.is_open(query.get("sid", "")):
            return _number(Code.ESID)
        place = query.get("sn", "")
        try:
            events, now = self.state.since(place, call.now_s)
        except Failure as failure:
            return _number(failure.code)
        if not events:
            return _answer({"w": f"{_base_url(call.headers)}/wsc/{place}", "sn": place})
        return _answer({"a": list(events), "sn": now})

    async def _wait(self, call: Call) -> Answer:
        """Answer as soon as there are events after a place."""
        log, end_s = self.state.log, call.now_s + _WAIT_S
        woken = asyncio.Event()
        log.listeners.append(woken.set)
        try:
            while (now_s := self._clock.now_s()) < end_s:
                try:
                    if self.state.since(call.parameters["place"], now_s)[0]:
                        break
                except Failure:
                    break
                woken.clear()
                until_s = min(end_s, log.next_change_s())
                try:
                    await asyncio.wait_for(woken.wait(), self._clock.real_s(max(0.0, until_s - now_s)))
                except TimeoutError:
                    continue
        finally:
            log.listeners.remove(woken.set)
        return Answer(200, [(b"content-type", b"text/html")], b"0")


def _is_open(asked: Asked, command: Any) -> bool:
    """Returns whether a command needs no session."""
    if not isinstance(command, dict) or command.get("a") in OPEN:
        return True
    return command.get("a") in ("f", "g") and ("p" in command or bool(asked.public))


def _result(asked: Asked, command: Any) -> Any:
    function = COMMANDS.get(command["a"]) if isinstance(command, dict) and isinstance(command.get("a"), str) else None
    if function is None:
        return Code.EARGS.value
    try:
        return function(asked, command)
    except Failure as failure:
        return failure.code.value


def _base_url(headers: Mapping[bytes, bytes], *, is_content: bool = False) -> str:
    """Returns the beginning of addresses: the host that the client used, or for a real name the host of content."""
    host = headers.get(b"host", b"").decode("latin-1")
    return f"https://{_CONTENT}" if host.partition(":")[0] == _API and is_content else f"https://{host}"


_encoded = json.JSONEncoder(separators=(",", ":")).encode


def _answer(value: Any) -> Answer:
    return Answer(200, _JSON, _encoded(value).encode())


def _query(query: bytes) -> Mapping[str, str]:
    """Returns the fields of a query; clients send nothing that needs decoding."""
    if b"%" in query or b"+" in query:
        return fields(query)
    parts = (part.partition("=") for part in query.decode("latin-1").split("&"))
    return {name: value for name, _, value in parts}


def _number(code: Code) -> Answer:
    return Answer(200, _JSON, b"%d" % code)


def _text(code: Code) -> Answer:
    return Answer(200, _BYTES, b"%d" % code)
