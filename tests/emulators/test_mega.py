"""Tests of the MEGA emulator with a raw client that has its own cryptography."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_cloudbench.emulators import EmulatorService, start_emulator
from tests.limits import HANG_S

from .mega_wire import MegaWire, attributes, chunks, ctr, decode, ecb, encode, hash_v1, key_v1, mac_of, solve, xor
from .skin_connection import SetClock, connect_mega

EARGS, ETOOMANY, ERANGE, EEXPIRED, ENOENT, ECIRCULAR, EACCESS, ESID, EOVERQUOTA = -2, -6, -7, -8, -9, -10, -11, -15, -17


@pytest.fixture(scope="module")
def shared() -> Iterator[EmulatorService]:
    with start_emulator("mega-ideal") as running:
        yield running


@pytest.fixture
def emulator(shared: EmulatorService) -> Iterator[EmulatorService]:
    before = shared.control(get="profile")["profile"]
    shared.control(reset=True)
    yield shared
    shared.control(set=before)


@pytest.fixture
def stranger(emulator: EmulatorService) -> Iterator[MegaWire]:
    wire = MegaWire(emulator.endpoint)
    yield wire
    wire.connection.close()


@pytest.fixture(scope="module")
def logged_in(shared: EmulatorService) -> MegaWire:
    """A client whose login serves all tests. Its session outlives resets, as the tokens of other services do."""
    wire = MegaWire(shared.endpoint)
    wire.login()
    wire.connection.close()
    return wire


@pytest.fixture
def wire(stranger: MegaWire, logged_in: MegaWire) -> MegaWire:
    stranger.session, stranger.master_key, stranger.tops = logged_in.session, logged_in.master_key, logged_in.tops
    return stranger


# --- the tests' own cryptography against published vectors ---


def counting_bytes(length: int) -> bytes:
    return bytes(number % 255 for number in range(length))


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (8, "c4589a459956887caf0b408635c3c03b"),
        (10, "59930b1c55d783ac77df4c4ff261b0f1"),
        (64, "83bd84689f057f9ed9834b3ecb81d80e"),
    ],
)
def test_password_keys_of_version_1(length: int, expected: str) -> None:
    """The vectors are from megajs (github.com/qgustavor/mega, test/prepareKey.test.mjs, August 2025)."""
    assert key_v1(counting_bytes(length)).hex() == expected


def test_hashes_and_macs() -> None:
    """The vectors are from megajs (test/stringhash.test.mjs and test/verify.test.mjs, August 2025)."""
    key = bytes.fromhex("c4589a459956887caf0b408635c3c03b")
    hashes = {10: "9e791646c66840b5", 16: "6ba07aca224e84a4", 32: "6a1e6c5539c0ed48"}
    assert {length: decode(hash_v1(counting_bytes(length), key)).hex() for length in hashes} == hashes
    assert mac_of(bytes(16), bytes(8), counting_bytes(151_511)).hex() == "671427db245c00c7"


def test_chunks_grow_to_one_mebibyte() -> None:
    sizes = [end - begin for begin, end in chunks(6 * 2**20)]
    assert [size // 2**17 for size in sizes] == [1, 2, 3, 4, 5, 6, 7, 8, 8, 4]


# --- logins and sessions ---


@pytest.mark.parametrize("version", ["v1", "v2-hashcash"])
def test_login(emulator: EmulatorService, stranger: MegaWire, version: str) -> None:
    emulator.control(set={"account.type": version})
    stranger.login()
    user = stranger("ug")
    assert (user["email"], user["u"]) == (stranger.email, stranger("f")["u"][0]["u"])
    stats: Any = emulator.control(get="stats")["stats"]
    assert stats["routes"]["cs"].get("402", 0) == version.count("hashcash")
    again = MegaWire(emulator.endpoint)
    again.login()
    assert again.session != stranger.session
    assert again.master_key == stranger.master_key
    again.connection.close()


def test_wrong_names_and_passwords(stranger: MegaWire) -> None:
    assert stranger("us0", user="nobody@example.com") == ENOENT
    assert stranger("us", user=stranger.email, uh="wrong") == ENOENT
    assert stranger("us", user=stranger.email) == ENOENT


def test_work_counts_once_and_for_its_own_challenge(emulator: EmulatorService, stranger: MegaWire) -> None:
    emulator.control(set={"account.type": "v2-hashcash"})
    body = json.dumps([{"a": "us", "user": stranger.email, "uh": "wrong"}]).encode()
    refusal = stranger.raw(body)
    challenge = refusal.headers["x-hashcash"]
    assert (refusal.status, challenge.split(":")[0], len(decode(challenge.split(":")[3]))) == (402, "1", 48)
    solution = solve(challenge)
    assert stranger.raw(body, **{"X-Hashcash": solution}).body == b"[-9]"
    assert stranger.raw(body, **{"X-Hashcash": solution}).status == 402
    other = stranger.raw(body).headers["x-hashcash"].split(":")[3]
    for wrong in (f"1:{other}:AAA", f"2:{other}:AAAAAA", f"1:{other}:!", "1", ""):
        assert stranger.raw(body, **{"X-Hashcash": wrong}).status == 402


def test_a_session_is_needed_and_ends(emulator: EmulatorService, wire: MegaWire) -> None:
    session = wire.session
    for wrong in ("", "x", "A" * 58, session[:-1] + ("A" if session[-1] != "A" else "B") + "AA"):
        wire.session = wrong
        assert wire("f", c=1) == ESID
        assert json.loads(wire.request("POST", f"/sc?sn=x&sid={wrong}").body) == ESID
    wire.session = session
    assert wire("f", c=1)["f"]
    assert wire("sml") == 0
    assert wire("f", c=1) == ESID


# --- content ---


@pytest.mark.parametrize("size_bytes", [0, 1, 16, 5 * 1024, 128 * 1024, 128 * 1024 + 1, 5 * 2**20 + 7])
def test_uploaded_content_comes_back_and_is_stored_encrypted(wire: MegaWire, size_bytes: int) -> None:
    data = os.urandom(size_bytes)
    node = wire.upload("a file", data)
    assert wire.nodes()["a file"] == node
    assert wire.download(node) == data
    stored = wire.request("GET", wire("g", g=1, n=node["h"])["g"]).body
    assert stored != data or not data
    assert "g" not in wire("g", n=node["h"])


def test_ranges_are_answered_with_200(wire: MegaWire) -> None:
    data = os.urandom(1000)
    node = wire.upload("a", data)
    url, (key, nonce, _) = wire("g", g=1, n=node["h"])["g"], wire.keys_of(node)
    encrypted = ctr(key, nonce, data)
    for text, expected in {
        "0-9": encrypted[:10],
        "990-2000": encrypted[990:],
        "16-": encrypted[16:],
        "2000-3000": b"",
    }.items():
        reply = wire.request("GET", f"{url}/{text}")
        assert (reply.status, reply.body) == (200, expected)
    assert wire.request("POST", f"{url}/0-9").body == encrypted[:10]
    assert [wire.request("GET", f"{url}/{text}").status for text in ("x-9", "9", "-9")] == [400] * 3
    wire("d", n=node["h"])
    assert wire.request("GET", url).status == 404


def test_pieces_may_come_in_any_order_and_again(wire: MegaWire) -> None:
    """An interrupted upload continues with the missing pieces."""
    size = 400 * 1024
    url = wire("u", s=size)["p"]
    data, bounds = os.urandom(size), chunks(size)
    answers = [wire.request("POST", f"{url}/{begin}", data[begin:end]).body for begin, end in [*bounds[1:], bounds[1]]]
    assert answers == [b""] * 3
    handle = wire.request("POST", f"{url}/0", data[: bounds[0][1]]).body.decode()
    assert len(decode(handle)) == 36
    assert wire.request("POST", f"{url}/0", data[: bounds[0][1]]).body == b"%d" % EEXPIRED
    key = bytes(16)
    entry = {"h": handle, "t": 0, "a": attributes(key, "a"), "k": encode(ecb(wire.master_key, bytes(32)))}
    node = wire("p", t=wire.tops[2], n=[entry])["f"][0]
    assert wire.request("GET", wire("g", g=1, n=node["h"])["g"]).body == data
    assert wire("p", t=wire.tops[2], n=[entry]) == ENOENT, "a handle is for one node"


def test_an_upload_of_version_2_ends_with_bytes(wire: MegaWire) -> None:
    url = wire("u", s=3, v=2)["p"]
    raw = wire.request("POST", f"{url}/0?c=checksum", b"abc").body
    assert len(raw) == 36
    entry = {"h": encode(raw), "t": 0, "a": attributes(bytes(16), "a"), "k": encode(bytes(32))}
    assert wire("p", t=wire.tops[2], n=[entry])["f"][0]["s"] == 3


@pytest.mark.parametrize(
    ("offset", "length"), [("1", 10), ("0", 10), ("0", 300_001), ("131072", 10), ("x", 10), ("-1", 10)]
)
def test_upload_pieces_must_end_at_chunk_boundaries(wire: MegaWire, offset: str, length: int) -> None:
    url = wire("u", s=300_000)["p"]
    assert wire.request("POST", f"{url}/{offset}", bytes(length)).body == b"%d" % ERANGE
    assert wire.request("POST", f"{url}x/0", b"").body == b"%d" % EEXPIRED


def test_an_upload_of_a_wrong_size(wire: MegaWire) -> None:
    assert [wire("u", s=size) for size in (-1, "3", None, True)] == [EARGS] * 4


# --- nodes ---


def test_an_account_begins_with_three_folders(wire: MegaWire) -> None:
    listing = wire("f", c=1, r=1)
    assert [(node["t"], node["p"], node["k"], node["a"]) for node in listing["f"]] == [
        (number, "", "", "") for number in (2, 3, 4)
    ]
    assert listing["ok"] == listing["s"] == listing["ph"] == []
    assert wire("uq", strg=1)["cstrg"] == 0


def test_several_nodes_may_have_one_name(wire: MegaWire) -> None:
    twins = [wire.upload("a", data) for data in (b"1", b"22")]
    assert twins[0]["h"] != twins[1]["h"]
    assert [wire.download(node) for node in twins] == [b"1", b"22"]


def test_rename_move_and_delete(wire: MegaWire) -> None:
    folder, second_folder = wire.mkdir("folder"), wire.mkdir("below")
    file = wire.upload("a", b"abc", folder["h"])
    assert wire("a", n=file["h"], attr=attributes(wire.keys_of(file)[0], "b"), key="AAAA") == 0
    assert wire("m", n=folder["h"], t=second_folder["h"]) == 0
    nodes = wire.nodes()
    assert {name: node["p"] for name, node in nodes.items()} == {
        "below": wire.tops[2], "folder": second_folder["h"], "b": folder["h"],
    }  # fmt: skip
    assert wire.download(nodes["b"]) == b"abc"
    assert wire("m", n=second_folder["h"], t=folder["h"]) == ECIRCULAR
    assert wire("m", n=file["h"], t=wire.tops[4]) == 0, "into the rubbish bin"
    assert wire("uq", strg=1)["cstrgn"][wire.tops[4]] == [3, 1, 0, 0, 0]
    assert wire("d", n=second_folder["h"]) == 0
    assert [*wire.nodes()] == ["b"]
    assert (
        wire("d", n=second_folder["h"])
        == wire("m", n=second_folder["h"], t=wire.tops[2])
        == wire("g", n=second_folder["h"])
        == ENOENT
    )


def test_impossible_node_commands_are_refused(wire: MegaWire) -> None:
    file = wire.upload("a", b"abc")
    assert wire("d", n=wire.tops[2]) == wire("m", n=wire.tops[4], t=wire.tops[2]) == EACCESS
    assert wire("m", n=file["h"], t=file["h"]) == wire.upload("b", b"", file["h"]) == EARGS
    assert wire.upload("b", b"x", "AAAAAAAA") == ENOENT
    assert wire("a", n=file["h"]) == wire("a", n=file["h"], at="!") == EARGS
    good: dict[str, Any] = {"h": "xxxxxxxx", "t": 1, "a": "AAAA", "k": encode(bytes(16))}
    wrong: list[dict[str, Any]] = [
        {"t": 5},
        {"t": True},
        {"k": "AAAA"},
        {"k": None},
        {"a": 3},
        {"t": 0, "k": encode(bytes(16))},
    ]
    for change in wrong:
        assert wire("p", t=wire.tops[2], n=[{**good, **change}]) == EARGS, change
    assert wire("p", t=wire.tops[2], n=[{**good, "p": "yyyyyyyy"}]) == ENOENT
    assert wire("p", t=wire.tops[2], n=[{**good, "t": 0, "k": encode(bytes(32))}]) == ENOENT
    assert wire("p", t=wire.tops[2], n=[]) == wire("p", t=wire.tops[2], n=[3]) == EARGS
    assert [*wire.nodes()] == ["a"]


def test_a_tree_is_made_and_copied_by_one_command(wire: MegaWire) -> None:
    file = wire.upload("a", b"abc")
    full = ecb(wire.master_key, decode(file["k"].partition(":")[2]), decrypt=True)
    folder = {"h": "folder00", "t": 1, "a": attributes(bytes(16), "new"), "k": encode(ecb(wire.master_key, bytes(16)))}
    entry = {"h": file["h"], "p": "folder00", "t": 0, "a": attributes(xor(full[:16], full[16:]), "copy"),
             "k": encode(ecb(wire.master_key, full))}  # fmt: skip
    nodes = wire("p", t=wire.tops[2], n=[folder, entry])["f"]
    assert (nodes[1]["p"], wire.name_of(nodes[1])) == (nodes[0]["h"], "copy")
    assert wire.download(nodes[1]) == b"abc"
    answer = wire("p", t=wire.tops[2], n=[{**entry, "h": nodes[1]["h"], "p": "x", "ov": file["h"]}])
    assert answer == ENOENT
    del entry["p"]
    wire("p", t=wire.tops[2], n=[{**entry, "ov": file["h"]}])
    assert file["h"] not in {node["h"] for node in wire("f", c=1)["f"]}


def test_commands_in_a_list_are_done_in_order(wire: MegaWire) -> None:
    folder = wire.mkdir("folder")
    batch = [{"a": "d", "n": folder["h"]}, {"a": "d", "n": folder["h"]}, {"a": "nonsense"}, 3, {"a": ["x"]}]
    assert json.loads(wire.raw(json.dumps(batch).encode()).body) == [0, ENOENT, EARGS, EARGS, EARGS]
    assert wire.raw(b"[]").body == b"[]"
    for body in (b"", b"{}", b"nonsense", b"[" * 100_000, b"\xff"):
        assert wire.raw(body).body == b"%d" % EARGS


def test_space(emulator: EmulatorService, wire: MegaWire) -> None:
    emulator.control(set={"quota.bytes": 1000})
    node = wire.upload("a", bytes(600))
    assert (wire("uq")["mstrg"], wire("uq")["cstrg"]) == (1000, 600)
    assert wire("u", s=500) == EOVERQUOTA
    assert wire("p", t=wire.tops[2], n=[{**node, "k": encode(bytes(32))}]) == EOVERQUOTA, "a copy counts"
    url = wire("u", s=300)["p"]
    wire.upload("b", bytes(300))
    handle = wire.request("POST", f"{url}/0", bytes(300)).body.decode()
    entry = {"h": handle, "t": 0, "a": "AAAA", "k": encode(bytes(32))}
    assert wire("p", t=wire.tops[2], n=[entry]) == EOVERQUOTA
    wire("d", n=node["h"])
    assert wire("p", t=wire.tops[2], n=[entry])["f"]


# --- links and shares ---


def test_links_of_files(wire: MegaWire) -> None:
    node = wire.upload("a", b"abc")
    link = wire("l", n=node["h"])
    assert wire("l", n=node["h"]) == link
    assert wire("f")["ph"] == [{"h": node["h"], "ph": link}]
    session, wire.session = wire.session, ""
    answer = wire("g", g=1, p=link)
    assert (answer["s"], answer["at"], len(wire.request("GET", answer["g"]).body)) == (3, node["a"], 3)
    assert wire("f", f=1, p=link)["f"][0]["h"] == node["h"]
    assert wire("g", g=1, n=node["h"]) == ESID
    wire.session = session
    assert wire("p", t=wire.tops[2], n=[{"ph": link, "t": 0, "a": node["a"], "k": encode(bytes(32))}])["f"][0]["s"] == 3
    assert wire("l", n=node["h"], d=1) == 0
    assert wire("l", n=node["h"], d=1) == wire("g", g=1, p=link) == ENOENT
    assert wire("f")["ph"] == []


def test_links_of_folders_need_a_share(wire: MegaWire) -> None:
    folder = wire.mkdir("folder")
    file, other = wire.upload("a", b"abc", folder["h"]), wire.upload("b", b"abc")
    assert wire("l", n=folder["h"]) == EACCESS
    keys = [[folder["h"]], [folder["h"], file["h"]], [0, 0, encode(bytes(16)), 0, 1, encode(bytes(32))]]
    share: dict[str, Any] = {"n": folder["h"], "ok": encode(bytes(16)), "ha": encode(bytes(16)), "cr": keys}
    assert wire("s2", s=[{"u": "EXP", "r": 0}], **share) == {"r": [0]}
    link = wire("l", n=folder["h"])
    listing = wire("f", c=1)
    assert ([entry["h"] for entry in listing["ok"]], listing["s"][0]["u"]) == ([folder["h"]], "EXP")
    assert wire.name_of(wire.nodes()["a"]) == "a", "the owner's key is there as well"
    session, wire.session = wire.session, ""
    public = wire("f", c=1, ca=1, r=1, query=f"n={link}")["f"]
    assert [(node["h"], node["p"], node["k"].partition(":")[0]) for node in public] == [
        (folder["h"], "", folder["h"]), (file["h"], folder["h"], folder["h"]),
    ]  # fmt: skip
    assert wire("g", g=1, n=file["h"], query=f"n={link}")["s"] == 3
    assert wire("g", g=1, n=other["h"], query=f"n={link}") == ENOENT
    assert wire("d", n=file["h"], query=f"n={link}") == ESID
    wire.session = session
    assert wire("s2", n=folder["h"], s=[{"u": "EXP", "r": ""}]) == {"r": [0]}
    assert "/" not in wire.nodes()["a"]["k"]
    assert wire("s2", s=[{"u": "friend", "r": 0}], **share) == ENOENT
    assert wire("s2", s=[], **share) == wire("s2", n=file["h"], s=[{"u": "EXP", "r": 0}]) == EARGS
    for wrong in ([], [[], [], [0]], [[folder["h"]], [file["h"]], [0, 0, "!"]], 3):
        assert wire("s2", s=[{"u": "EXP", "r": 0}], **{**share, "cr": wrong}) == EARGS


# --- events ---


def test_events_tell_all_that_changed(wire: MegaWire) -> None:
    sequence_number = wire("f", c=1)["sn"]
    waiting = wire.events(sequence_number)
    assert set(waiting) == {"w", "sn"}
    folder = wire.mkdir("folder", i="mine")
    file = wire.upload("a", b"abc", i="mine")
    wire("m", n=file["h"], t=folder["h"])
    wire("a", n=file["h"], at=file["a"])
    wire("l", n=file["h"])
    wire("d", n=folder["h"])
    answer = wire.events(sequence_number)
    assert [(event["a"], event.get("n", ""), event.get("i")) for event in answer["a"]] == [
        ("t", "", "mine"), ("t", "", "mine"), ("d", file["h"], None), ("t", "", None), ("u", file["h"], None),
        ("ph", "", None), ("d", folder["h"], None),
    ]  # fmt: skip
    assert answer["a"][2]["m"] == 1, "it was moved, and not removed"
    assert answer["a"][3]["t"]["f"][0]["p"] == folder["h"]
    assert "w" in wire.events(answer["sn"])
    assert wire.request("GET", waiting["w"]).body == b"0", "there is something already"


def test_a_client_that_waits_is_woken(emulator: EmulatorService, wire: MegaWire) -> None:
    url = wire.events(wire("f", c=1)["sn"])["w"]
    other = MegaWire(emulator.endpoint)
    other.connection.connect()
    answers: list[bytes] = []
    thread = threading.Thread(target=lambda: answers.append(other.request("POST", url).body))
    thread.start()
    wire.mkdir("folder")
    thread.join(HANG_S)
    other.connection.close()
    assert answers == [b"0"]


def test_unknown_log_positions_are_refused(emulator: EmulatorService, wire: MegaWire) -> None:
    sequence_number = wire("f", c=1)["sn"]
    emulator.control(reset=True)
    for wrong, code in {sequence_number: ETOOMANY, "": EARGS, "x": EARGS, "!": EARGS}.items():
        assert json.loads(wire.request("POST", f"/sc?sn={wrong}&sid={wire.session}").body) == code


def test_upload_not_ready_is_neither_listed_nor_reported(emulator: EmulatorService, wire: MegaWire) -> None:
    sequence_number = wire("f", c=1)["sn"]
    emulator.control(set={"readiness.delay_s": 3600})
    node = wire.upload("a", b"abc")
    assert wire.nodes() == {}
    assert wire("g", g=1, n=node["h"]) == ENOENT
    assert "w" in wire.events(sequence_number)
    assert wire("d", n=node["h"]) == 0, "a write sees it"


READY_LATER = "[readiness]\ndelay_s = 10"


def node_events(wire: MegaWire, sequence_number: str) -> list[tuple[str, str]]:
    """Return the kind of each event after a position in the log, and the node that it is about."""
    events = wire.events(sequence_number).get("a", [])
    return [
        (event["a"], event["t"]["f"][0]["h"] if event["a"] == "t" else event.get("n") or event["h"]) for event in events
    ]


def test_file_that_was_removed_before_it_was_ready_does_not_come_back() -> None:
    clock = SetClock()
    wire = connect_mega(clock, READY_LATER)
    sequence_number = wire("f", c=1)["sn"]
    node = wire.upload("a", b"abc")
    clock.at_s += 2
    assert wire("d", n=node["h"]) == 0
    assert "w" in wire.events(sequence_number), "clients do not know it yet"
    clock.at_s += 10
    assert wire.nodes() == {}
    assert wire("g", g=1, n=node["h"]) == wire("d", n=node["h"]) == ENOENT
    assert node_events(wire, sequence_number) == [("t", node["h"]), ("d", node["h"])]


def test_file_that_was_replaced_before_it_was_ready_does_not_come_back() -> None:
    clock = SetClock()
    wire = connect_mega(clock, READY_LATER)
    sequence_number = wire("f", c=1)["sn"]
    old = wire.upload("a", b"old")
    clock.at_s += 2
    new = wire.upload("a", b"newer", replaces=old["h"])
    clock.at_s += 20
    assert [node["h"] for node in wire("f", c=1)["f"] if node["t"] == 0] == [new["h"]]
    assert wire.download(new) == b"newer"
    assert node_events(wire, sequence_number) == [("t", old["h"]), ("d", old["h"]), ("t", new["h"])]


def test_folder_that_was_removed_before_its_file_was_ready_takes_the_file_along() -> None:
    clock = SetClock()
    wire = connect_mega(clock, READY_LATER)
    sequence_number = wire("f", c=1)["sn"]
    folder = wire.mkdir("folder")
    file = wire.upload("a", b"abc", folder["h"])
    assert wire("d", n=folder["h"]) == 0
    clock.at_s += 20
    assert wire.nodes() == {}
    assert node_events(wire, sequence_number) == [("t", folder["h"]), ("t", file["h"]), ("d", folder["h"])]


def test_removed_file_that_was_never_ready_is_not_listed() -> None:
    wire = connect_mega(SetClock(), f"{READY_LATER}\ndelete_delay_s = 100")
    node = wire.upload("a", b"abc")
    assert wire("d", n=node["h"]) == 0
    assert wire.nodes() == {}
    assert wire("g", g=1, n=node["h"]) == ENOENT


def test_clients_hear_of_changes_to_a_file_after_they_hear_of_the_file() -> None:
    clock = SetClock()
    wire = connect_mega(clock, READY_LATER)
    folder = wire.mkdir("folder")
    sequence_number = wire("f", c=1)["sn"]
    file = wire.upload("a", b"abc")
    clock.at_s += 2
    assert wire("m", n=file["h"], t=folder["h"]) == 0
    assert wire("a", n=file["h"], at=file["a"]) == 0
    assert wire("l", n=file["h"])
    assert "w" in wire.events(sequence_number)
    clock.at_s += 10
    assert node_events(wire, sequence_number) == [(kind, file["h"]) for kind in ("t", "d", "t", "u", "ph")]
    assert wire.events(sequence_number)["a"][2]["t"]["f"][0]["p"] == folder["h"]


# --- throttling and faults ---


@pytest.mark.parametrize(("reason", "code"), [("EAGAIN", -3), ("ERATELIMIT", -4), ("ETOOMANY", -6)])
def test_too_many_requests(emulator: EmulatorService, wire: MegaWire, reason: str, code: int) -> None:
    url = wire("u", s=1)["p"]
    emulator.control(set={"throttle.rate_per_s": 1e-9, "throttle.burst": 1, "throttle.reason": reason})
    assert wire("f", c=1)["f"]
    assert wire("f", c=1) == code
    assert wire.request("POST", f"{url}/0", b"x").body == b"%d" % code


def test_too_many_downloads(emulator: EmulatorService, wire: MegaWire) -> None:
    url = wire("g", g=1, n=wire.upload("a", b"abc")["h"])["g"]
    half = wire("u", s=2)["p"]
    emulator.control(set={"throttle.max_in_flight": 1, "throttle.retry_after_s": 17})
    other = MegaWire(emulator.endpoint).connection
    other.putrequest("POST", half[half.index("/ul/") :] + "/0")
    other.putheader("content-length", "2")
    other.endheaders(b"x")  # one byte of two, so the request stays in flight
    while (refusal := wire.request("GET", url)).status == 200:
        pass  # the other request has not arrived yet
    assert (refusal.status, refusal.headers["x-mega-time-left"]) == (509, "17")
    other.close()


def test_corrupted_download_breaks_the_mac(emulator: EmulatorService, wire: MegaWire) -> None:
    emulator.control(set={"faults.corrupt_rate": 1.0})
    node = wire.upload("a", os.urandom(1000))
    with pytest.raises(AssertionError, match="the MAC is wrong"):
        wire.download(node)


def test_one_request_decides_whether_an_upload_is_corrupted(emulator: EmulatorService, wire: MegaWire) -> None:
    """So a large file of many requests is corrupted no more often than a small one."""
    data, key = os.urandom(400 * 1024), bytes(16)
    encrypted, bounds = ctr(key, bytes(8), data), chunks(len(data))
    url = wire("u", s=len(data))["p"]
    emulator.control(set={"faults.corrupt_rate": 1.0})
    for begin, end in bounds[:-1]:
        assert wire.request("POST", f"{url}/{begin}", encrypted[begin:end]).body == b""
    emulator.control(set={"faults.corrupt_rate": 0.0})
    begin, end = bounds[-1]
    handle = wire.request("POST", f"{url}/{begin}", encrypted[begin:end]).body.decode()
    mac = mac_of(key, bytes(8), data)
    full = xor(key, bytes(8) + mac) + bytes(8) + mac
    entry = {"h": handle, "t": 0, "a": attributes(key, "a"), "k": encode(ecb(wire.master_key, full))}
    assert wire.download(wire("p", t=wire.tops[2], n=[entry])["f"][0]) == data


def test_broken_and_unknown(emulator: EmulatorService, wire: MegaWire) -> None:
    assert [wire.request("POST", path).status for path in ("/", "/nothing", "/ul/x")] == [404] * 3
    refusal = wire.request("GET", "/cs")
    assert (refusal.status, refusal.headers["allow"]) == (405, "POST")
    emulator.control(set={"faults.error_rate": 1.0})
    assert wire.raw(b"[]").status == 500


def test_upload_address_matches_the_host_of_the_request(wire: MegaWire) -> None:
    body = json.dumps([{"a": "u", "s": 1}]).encode()
    direct, real = (
        json.loads(wire.raw(body, **headers).body)[0]["p"] for headers in ({}, {"Host": "g.api.mega.co.nz"})
    )
    assert direct.startswith(f"https://127.0.0.1:{wire.connection.port}/ul/")
    assert real.startswith("https://emulated.userstorage.mega.co.nz/ul/")
