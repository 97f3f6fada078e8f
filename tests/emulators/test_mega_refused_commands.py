"""Tests that a command which the MEGA emulator refuses changes nothing."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from .mega_wire import MegaWire, attributes, ctr, ecb, encode, mac_of, xor
from .skin_connection import SetClock, connect_mega

EARGS, ENOENT, EACCESS, ECIRCULAR = -2, -9, -11, -10
KEY = encode(bytes(16))


@pytest.fixture
def wire() -> MegaWire:
    return connect_mega(SetClock(), "")


def finish_upload(wire: MegaWire, name: str, data: bytes) -> dict[str, Any]:
    """Upload content, and return the entry with which a command makes a file of it."""
    key, nonce = hashlib.md5(name.encode(), usedforsecurity=False).digest(), b"12345678"
    reply = wire.request("POST", f"{wire('u', s=len(data))['p']}/0", ctr(key, nonce, data))
    mac = mac_of(key, nonce, data)
    full = xor(key, nonce + mac) + nonce + mac
    return {
        "h": reply.body.decode(), "t": 0, "a": attributes(key, name), "k": encode(ecb(wire.master_key, full)),
    }  # fmt: skip


def new_folder(wire: MegaWire, handle: str) -> dict[str, Any]:
    return {"h": handle, "t": 1, "a": attributes(bytes(16), handle), "k": encode(ecb(wire.master_key, bytes(16)))}


@pytest.mark.parametrize(
    ("flaw", "code"),
    [
        ("child before its folder", EARGS),
        ("unknown folder", ENOENT),
        ("replaces a top folder", EACCESS),
        ("replaces the folder it is in", ECIRCULAR),
        ("share key of an unknown node", ENOENT),
        ("wrong share key", EARGS),
        ("wrong share", EARGS),
    ],
)
def test_refused_command_adds_no_node(wire: MegaWire, flaw: str, code: int) -> None:
    top = wire.mkdir("top")["h"]
    cursor, nodes = wire("f", c=1)["sn"], wire.nodes()
    file, folder = finish_upload(wire, "file", b"content"), new_folder(wire, "folder00")
    entries: list[dict[str, Any]] = [folder, file]
    more: dict[str, Any] = {}
    if flaw == "child before its folder":
        entries = [new_folder(wire, "folder01"), {**file, "p": "folder00"}, folder]
    elif flaw == "unknown folder":
        entries = [folder, {**file, "p": "folder01"}]
    elif flaw == "replaces a top folder":
        entries = [folder, {**file, "ov": wire.tops[4]}]
    elif flaw == "replaces the folder it is in":
        entries = [folder, {**file, "ov": top}]
    else:
        handle = "AAAAAAAA" if flaw == "share key of an unknown node" else "folder00"
        share: object = [] if flaw == "wrong share" else "AAAAAAAA"
        more["cr"] = [[share], [handle], [0, 0, "!" if flaw == "wrong share key" else KEY]]
    assert wire("p", t=top, n=entries, **more) == code
    assert wire.nodes() == nodes
    assert "w" in wire.events(cursor)
    answer = wire("p", t=top, n=[file])
    assert wire.download(answer["f"][0]) == b"content", "the upload was not spent"


@pytest.mark.parametrize("name", [b"{}", b"[]", b"null", b"1", b'"unknown"'])
def test_a_command_whose_name_is_no_name_needs_a_session(wire: MegaWire, name: bytes) -> None:
    reply = wire.request("POST", "/cs?id=1", b'[{"a": %b}]' % name)
    assert (reply.status, reply.body) == (200, b"-15")


def test_refused_move_leaves_the_node_where_it_is(wire: MegaWire) -> None:
    folder, file = wire.mkdir("folder"), wire.upload("a", b"abc")
    cursor, nodes = wire("f", c=1)["sn"], wire.nodes()
    assert wire("m", n=file["h"], t=folder["h"], cr=[["AAAAAAAA"], ["AAAAAAAA"], [0, 0, KEY]]) == ENOENT
    assert wire.nodes() == nodes
    assert "w" in wire.events(cursor)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"cr": [["AAAAAAAA"], ["AAAAAAAA"], [0, 0, KEY]]}, ENOENT),
        ({"s": [{"u": "EXP", "r": 0}, {"u": "somebody", "r": 0}]}, ENOENT),
        ({"ha": "!"}, EARGS),
    ],
)
def test_refused_share_does_not_begin(wire: MegaWire, change: dict[str, Any], code: int) -> None:
    folder = wire.mkdir("folder")["h"]
    request = {"n": folder, "s": [{"u": "EXP", "r": 0}], "ok": KEY, "ha": KEY}
    assert wire("s2", **{**request, **change}) == code
    assert wire("f", c=1)["s"] == []
    assert wire("l", n=folder) == EACCESS
    assert wire("s2", **request) == {"r": [0]}
    assert isinstance(wire("l", n=folder), str)
