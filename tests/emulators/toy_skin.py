"""A made-up API of notes on shelves, for tests of the server's features for skins.

Dropbox does not use these features: parameters in paths, several methods on one path, a route that the query chooses,
bodies that are read while they arrive, and answers without a body.
"""

from __future__ import annotations

import hashlib
import json

from pytest_cloudbench.emulators.blob import Blob, BlobWriter
from pytest_cloudbench.emulators.core import NodeStore, Tokens
from pytest_cloudbench.emulators.http import parse_form
from pytest_cloudbench.emulators.keys import KeyView
from pytest_cloudbench.emulators.nodes import Folder, StoreError
from pytest_cloudbench.emulators.profile import Profile
from pytest_cloudbench.emulators.routing import RouteTable
from pytest_cloudbench.emulators.skin import Answer, Call, Clock, Kind, Match, Route
from pytest_cloudbench.emulators.throttle import Refusal

__all__ = ["CHOICES", "DEFAULTS", "create"]

CHOICES = {"throttle.reason": ("too_fast", "too_much")}
DEFAULTS = {"throttle.reason": "too_fast"}

_SHELF = "/v1/shelves/{shelf}"
_NOTE = "/v1/shelves/{shelf}/notes/{note*}"


class _Counting(BlobWriter):
    """A writer that counts the pieces of a body."""

    def __init__(self) -> None:
        super().__init__(hashlib.md5(usedforsecurity=False))
        self.pieces = 0

    def feed(self, piece: bytes | memoryview) -> None:
        self.pieces += 1
        super().feed(piece)

    def finish(self) -> tuple[Blob, int]:  # type: ignore[override]  # a sink may return any value for the handler
        return super().finish(), self.pieces


def _answer(status: int, **value: object) -> Answer:
    return Answer(status, [(b"content-type", b"application/json")], json.dumps(value).encode())


def _refuse_without_key(call: Call) -> Answer | None:
    return None if call.headers.get(b"x-key") == b"toy" else _answer(401, asked=call.method, shelf=call.parameters)


class Toy:
    """The skin of the made-up API."""

    roles = ("api",)
    host_names = ()

    def __init__(self, profile: Profile, seed: int) -> None:
        tokens = Tokens(seed)
        self.credentials = {"key": "toy"}
        self.store = NodeStore(lambda: tokens.next("", 12), lambda: tokens.next("", 12))
        self._shelves: dict[str, KeyView] = {}
        self.configure(profile)
        self._routes = RouteTable(
            [
                ("GET", _SHELF, Route("list", Kind.META, self._list, denied=_refuse_without_key)),
                ("DELETE", _SHELF, Route("clear", Kind.WRITE, self._clear, denied=_refuse_without_key)),
                ("GET", _NOTE, Route("read", Kind.READ, self._read, denied=_refuse_without_key)),
                ("HEAD", _NOTE, Route("look", Kind.META, self._read, denied=_refuse_without_key)),
                (
                    "PUT",
                    _NOTE,
                    Route("write", Kind.WRITE, self._write, sink=lambda _: _Counting(), denied=_refuse_without_key),
                ),
                ("DELETE", _NOTE, Route("remove", Kind.WRITE, self._remove, denied=_refuse_without_key)),
            ]
        )
        self._echo = Route("echo", Kind.META, self._send_echo)

    def configure(self, profile: Profile) -> None:
        self.store.quota_bytes = profile.quota.bytes

    def route(self, method: str, path: str, query: bytes) -> Match | None:
        if query == b"echo":
            return Match(self._echo, {})
        return self._routes.find(method, path)

    def refused(self, call: Call, refusal: Refusal) -> Answer:
        return _answer(503, slow_down=call.parameters, reason=refusal.reason)

    def broken(self, call: Call) -> Answer:
        return _answer(500, broken=call.path)

    def unknown(self, method: str, path: str) -> Answer:
        methods = self._routes.methods(path)
        return _answer(405, allowed=methods) if methods else _answer(404, nothing=path)

    def _shelf(self, call: Call) -> KeyView:
        name = call.parameters["shelf"]
        if name not in self._shelves:
            folder: Folder = self.store.add_folder(self.store.root, name, call.now_s)
            self._shelves[name] = KeyView(self.store, folder)
        return self._shelves[name]

    def _list(self, call: Call) -> Answer:
        prefix = parse_form(call.query).get("prefix", "")
        return _answer(200, notes=[key for key, _ in self._shelf(call).page(call.now_s, prefix=prefix).keys])

    def _clear(self, call: Call) -> Answer:
        for key, _ in self._shelf(call).page(call.now_s).keys:
            self._shelf(call).remove(key, call.now_s)
        return Answer(204, [], b"")

    def _write(self, call: Call) -> Answer:
        blob, pieces = call.body
        try:
            self._shelf(call).put(call.parameters["note"], blob, call.now_s)
        except StoreError as error:
            return _answer(507, reason=error.reason)
        return _answer(201, md5=blob.hash_hex, pieces=pieces)

    def _read(self, call: Call) -> Answer:
        try:
            blob = self._shelf(call).get(call.parameters["note"], call.now_s).blob
        except StoreError as error:
            return _answer(404, reason=error.reason)
        return Answer(200, [(b"etag", blob.hash_hex.encode())], blob)

    def _remove(self, call: Call) -> Answer:
        return Answer(204 if self._shelf(call).remove(call.parameters["note"], call.now_s) else 404, [], b"")

    def _send_echo(self, call: Call) -> Answer:
        text = call.body.decode()
        return _answer(200, method=call.method, path=call.path, said=text, header=call.headers[b"x-word"].decode())


def create(profile: Profile, clock: Clock, seed: int) -> Toy:
    """Create the skin with no shelves."""
    return Toy(profile, seed)
