"""MEGA's API over HTTP: its addresses, and the envelope around commands.

MEGA publishes no specification. This is written from what its SDK (github.com/meganz/sdk, April 2026) and other clients
send and read, with the names and numbers of that SDK.

Clients post lists of commands to ``/cs``, move content through the addresses that these commands return, and read from
``/sc`` what has changed. Everything is served over TLS, even to clients that would accept unencrypted content.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from pytest_cloudbench.emulators.blob import Blob, BytePieces, PieceWriter
from pytest_cloudbench.emulators.core import NodeStore, Tokens
from pytest_cloudbench.emulators.http import parse_form
from pytest_cloudbench.emulators.mega.commands import COMMANDS, SESSIONLESS, CommandContext
from pytest_cloudbench.emulators.mega.errors import Code, Failure
from pytest_cloudbench.emulators.mega.login import Hashcash, User, decode
from pytest_cloudbench.emulators.mega.state import AccountState
from pytest_cloudbench.emulators.nodes import File
from pytest_cloudbench.emulators.profile import Profile
from pytest_cloudbench.emulators.routing import RouteTable
from pytest_cloudbench.emulators.skin import Answer, Call, Clock, Kind, Match, Route
from pytest_cloudbench.emulators.throttle import Refusal
from pytest_cloudbench.support.json_text import json_writer

_API, _CONTENT = "g.api.mega.co.nz", "emulated.userstorage.mega.co.nz"
_JSON = [(b"content-type", b"application/json")]
_BYTES = [(b"content-type", b"application/octet-stream")]
_WAIT_S = 40.0
"""MEGA's own client asks again after this many seconds without an answer (SCREQUESTTIMEOUT of its SDK)."""


class Mega:
    """The skin of MEGA, as described by ``skin.Skin``."""

    roles = ("api",)
    host_names = (_API, "*.userstorage.mega.co.nz")

    def __init__(self, profile: Profile, clock: Clock, seed: int) -> None:
        tokens = Tokens(seed)
        self._clock = clock
        self.account = User(tokens, 1)
        self.credentials = {"email": self.account.email, "password": self.account.password}
        self.state = AccountState(tokens, self.account.user)
        self._hashcash = Hashcash(Tokens(seed + 1))
        self.configure(profile)
        download = Route("download", Kind.READ, self._send_content)
        wait = Route("wsc", Kind.FREE, self._wait_for_events)
        self._routes = RouteTable(
            [
                ("POST", "/cs", Route("cs", Kind.WRITE, self._run_commands)),
                ("POST", "/sc", Route("sc", Kind.META, self._list_events)),
                *((method, "/wsc/{cursor}", wait) for method in ("GET", "POST")),
                (
                    "POST",
                    "/ul/{name}/{offset}",
                    Route("upload", Kind.WRITE, self._receive_piece, sink=lambda _: PieceWriter()),
                ),
                *((method, "/dl/{name}", download) for method in ("GET", "POST")),
                *((method, "/dl/{name}/{range}", download) for method in ("GET", "POST")),
            ]
        )

    @property
    def store(self) -> NodeStore:
        """The account's files."""
        return self.state.store

    def configure(self, profile: Profile) -> None:
        """Apply a changed profile."""
        self.state.store.quota_bytes = profile.quota.bytes
        self.state.store.readiness_s = profile.readiness.delay_s
        self.state.store.delete_delay_s = profile.readiness.delete_delay_s
        version, _, extra = profile.account.type.partition("-")
        self.account.version, self._wants_hashcash = int(version[1:]), extra == "hashcash"

    def end_waits(self) -> None:
        """Answer the clients that wait for events, because a reset is about to replace the account."""
        self.state.log.finish()

    def route(self, method: str, path: str, query: bytes) -> Match | None:
        """Return the route of a request."""
        return self._routes.find(method, path)

    def refused(self, call: Call, refusal: Refusal) -> Answer:
        """Answer with the error's number. A download gets status 509 and the seconds to wait."""
        if call.route.kind is Kind.READ:
            return Answer(509, [*_BYTES, (b"x-mega-time-left", b"%d" % refusal.retry_after_s)], b"")
        return _number_answer(Code[refusal.reason])

    def broken(self, call: Call) -> Answer:
        """Answer with status 500, which MEGA's SDK takes for an overloaded server."""
        return Answer(500, [(b"content-type", b"text/html")], b"")

    def unknown(self, method: str, path: str) -> Answer:
        """Answer that there is no such address, or that it does not accept the method."""
        if expected := self._routes.methods(path):
            return Answer(405, [(b"allow", ", ".join(expected).encode())], b"")
        return Answer(404, [(b"content-type", b"text/html")], b"")

    # ---------------------------------------------------------------- commands

    def _run_commands(self, call: Call) -> Answer:
        query = _parse_query(call.query)
        session = query.get("sid", "")
        if session and not self.account.is_open(session):
            return _number_answer(Code.ESID)
        try:
            commands = json.loads(call.body)
        except (ValueError, RecursionError):
            return _number_answer(Code.EARGS)
        if not isinstance(commands, list):
            return _number_answer(Code.EARGS)
        logs_in = any(isinstance(command, dict) and command.get("a") == "us" for command in commands)
        if logs_in and self._wants_hashcash and not self._hashcash.accepts_proof(call.headers.get(b"x-hashcash", b"")):
            return Answer(402, [*_JSON, (b"x-hashcash", self._hashcash.new_challenge(call.now_s))], b"")
        base_url = _base_url(call.headers, is_content=True)
        context = CommandContext(self.state, self.account, call.now_s, base_url, query.get("n", ""), session)
        if not session and not all(_needs_no_session(context, command) for command in commands):
            return _number_answer(Code.ESID)
        return _json_answer([_run_command(context, command) for command in commands])

    # ---------------------------------------------------------------- content

    def _receive_piece(self, call: Call) -> Answer:
        """Store one piece of an upload, and answer the piece that completes it with the handle of the upload."""
        upload_id, upload = call.parameters["name"], self.state.uploads.get(call.parameters["name"])
        offset = call.parameters["offset"]
        if upload is None:
            return _content_error(Code.EEXPIRED)
        try:
            if not (offset.isascii() and offset.isdigit()):
                raise Failure(Code.ERANGE)
            upload.add(int(offset), call.body)
        except Failure as failure:
            return _content_error(failure.code)
        content = upload.content() if upload.size_bytes else BytePieces()
        if content is None:
            return Answer(200, _BYTES, b"")
        if call.damage is not None:  # drawn once for a file, however many requests brought its content
            content = content.flip_bit(call.damage)
        del self.state.uploads[upload_id]
        handle = self.state.tokens.next("", 48)
        self.state.finished[handle] = Blob(content.pieces, "")
        return Answer(200, _BYTES, decode(handle) if upload.is_raw else handle.encode())

    def _send_content(self, call: Call) -> Answer:
        """Answer with the content of a file, or with a range of it."""
        node = self.state.store.by_id(self.state.downloads.get(call.parameters["name"], ""))
        if not isinstance(node, File) or self.state.is_removed(node, call.now_s):
            return Answer(404, _BYTES, b"")
        blob = node.versions[-1].blob
        range_text = call.parameters.get("range")
        if range_text is None:
            return Answer(200, _BYTES, blob)
        first, dash, last = range_text.partition("-")
        if not (dash and first.isdigit() and (last.isdigit() or not last)) or not range_text.isascii():
            return Answer(400, _BYTES, b"")
        end = int(last) + 1 if last else blob.size_bytes
        return Answer(200, _BYTES, blob.part(int(first), end))

    # ---------------------------------------------------------------- events

    def _list_events(self, call: Call) -> Answer:
        query = _parse_query(call.query)
        if not self.account.is_open(query.get("sid", "")):
            return _number_answer(Code.ESID)
        cursor = query.get("sn", "")
        try:
            events, new_cursor = self.state.events_since(cursor, call.now_s)
        except Failure as failure:
            return _number_answer(failure.code)
        if not events:
            return _json_answer({"w": f"{_base_url(call.headers)}/wsc/{cursor}", "sn": cursor})
        return _json_answer({"a": list(events), "sn": new_cursor})

    async def _wait_for_events(self, call: Call) -> Answer:
        """Answer as soon as there are events after the cursor in the address, or after ``_WAIT_S``."""
        log, end_s = self.state.log, call.now_s + _WAIT_S
        wake_up = asyncio.Event()
        log.listeners.append(wake_up.set)
        try:
            while (now_s := self._clock.now_s()) < end_s and not log.has_ended:
                try:
                    if self.state.events_since(call.parameters["cursor"], now_s)[0]:
                        break
                except Failure:
                    break
                wake_up.clear()
                until_s = min(end_s, log.next_change_s())
                try:
                    await asyncio.wait_for(wake_up.wait(), self._clock.real_s(max(0.0, until_s - now_s)))
                except TimeoutError:
                    continue
        finally:
            log.listeners.remove(wake_up.set)
        return Answer(200, [(b"content-type", b"text/html")], b"0")


def _needs_no_session(context: CommandContext, command: Any) -> bool:
    """Return whether a command may be sent without a session."""
    if not isinstance(command, dict) or command.get("a") in SESSIONLESS:
        return True
    return command.get("a") in ("f", "g") and ("p" in command or bool(context.public))


def _run_command(context: CommandContext, command: Any) -> Any:
    function = COMMANDS.get(command["a"]) if isinstance(command, dict) and isinstance(command.get("a"), str) else None
    if function is None:
        return Code.EARGS.value
    try:
        return function(context, command)
    except Failure as failure:
        return failure.code.value


def _base_url(headers: Mapping[bytes, bytes], *, is_content: bool = False) -> str:
    """Return the scheme and host for addresses in answers.

    It is the host that the client used, except that content has its own host if the client used a real name.
    """
    host = headers.get(b"host", b"").decode("latin-1")
    return f"https://{_CONTENT}" if host.partition(":")[0] == _API and is_content else f"https://{host}"


_encode_json = json_writer()


def _json_answer(value: Any) -> Answer:
    return Answer(200, _JSON, _encode_json(value))


def _parse_query(query: bytes) -> Mapping[str, str]:
    """Return the fields of a query. The clients' own queries need no decoding, and take a faster way."""
    if b"%" in query or b"+" in query:
        return parse_form(query)
    parts = (part.partition("=") for part in query.decode("latin-1").split("&"))
    return {name: value for name, _, value in parts}


def _number_answer(code: Code) -> Answer:
    return Answer(200, _JSON, b"%d" % code)


def _content_error(code: Code) -> Answer:
    return Answer(200, _BYTES, b"%d" % code)
