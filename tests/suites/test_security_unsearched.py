"""What could not be searched leaves an answer open: nothing readable in the rest does not mean that it is encrypted."""

from __future__ import annotations

import base64
import bz2
import gzip
import zlib
from collections.abc import Callable
from functools import reduce
from random import Random

import pytest

from pytest_cloudbench import Overheard, OverheardFlow, RandomContent
from suites.security import clients, convergence, transit
from suites.security.clients import Observed
from suites.security.rulings import Ruling, unknown
from suites.security.tap import TappedFlow

BAIT = transit.Bait.make("truth")
CONTENT = BAIT.names[0].data + b"".join(BAIT.files.values())
NOISE = RandomContent("noise", len(CONTENT)).read(0, len(CONTENT))
LINES = b"".join(b"%d\n" % (number * number) for number in range(150_000))
HTTP = b"PUT /a HTTP/1.1\r\nhost: server\r\n\r\n"


def nest(data: bytes, times: int) -> bytes:
    """Pack some bytes several times, so that none of them stays as it is."""
    return reduce(lambda packed, _: gzip.compress(base64.b64encode(packed)), range(times), data)


def break_off(data: bytes) -> bytes:
    """Pack some bytes, and put a mark of an unknown protocol into the stream."""
    packed = bz2.compress(base64.b64encode(data))
    return packed[:3000] + b"<next part>" + packed[3000:]


BROTLI = b"Content-Encoding: br\r\n\r\n"
"""The end of the head of a body that is packed by brotli, which nothing in the body itself shows."""
HIDDEN = {
    "too long": gzip.compress(LINES + base64.b64encode(CONTENT)),
    "too deep": nest(CONTENT, 3),
    "broken off": break_off(CONTENT),
}
READABLE = {
    "long": gzip.compress(LINES[:100_000] + base64.b64encode(CONTENT)),
    "deep": nest(CONTENT, 1),
    "a stream": zlib.compress(base64.b64encode(CONTENT)),
    "in lines": base64.encodebytes(CONTENT),
}
ANSWERS = {
    **{name: ("unknown", data) for name, data in HIDDEN.items()},
    **{name: ("no", data) for name, data in READABLE.items()},
    "readable beside what is too deep": ("no", HIDDEN["too deep"] + CONTENT),
    "nothing packed": ("yes", NOISE),
    "packed noise": ("yes", gzip.compress(NOISE)),
}


def judge_flow(up: bytes, down: bytes) -> Ruling:
    return transit.judge_protection([TappedFlow("server:22", bytearray(up), bytearray(down), "SSH")], BAIT)


def observe(*flows: OverheardFlow, stored: bytes | None = None) -> Observed:
    return Observed(BAIT, Overheard(flows), None if stored is None else [("object", stored)])


def send(data: bytes, protocol: str = "", *, is_whole: bool = True) -> OverheardFlow:
    return OverheardFlow("server:80", protocol, data, b"", is_whole)


JUDGES: dict[str, Callable[[bytes], Ruling]] = {
    "content": lambda data: transit.judge_content(data + NOISE, BAIT),
    "names": lambda data: transit.judge_names(data + NOISE, BAIT),
    "store": lambda data: transit.judge_at_rest([("new", data + NOISE)], BAIT),
    "flow": lambda data: judge_flow(data, b""),
    "answers in a flow": lambda data: judge_flow(NOISE, data),
    "client's content": lambda data: clients.judge_content(observe(send(HTTP + data + NOISE))),
    "client's names": lambda data: clients.judge_names(observe(send(HTTP + data + NOISE))),
    "client's content beside HTTP": lambda data: clients.judge_content(observe(send(HTTP + NOISE), send(data))),
    "client's names beside HTTP": lambda data: clients.judge_names(observe(send(HTTP + NOISE), send(data))),
    "client's store": lambda data: clients.judge_at_rest(observe(stored=data + NOISE)),
    "content in its store": lambda data: clients.judge_content(observe(send(HTTP + NOISE), stored=data + NOISE)),
    "names in its store": lambda data: clients.judge_names(observe(send(HTTP + NOISE), stored=data + NOISE)),
    "flow of a client": lambda data: clients.judge_transit(observe(send(data + NOISE, "SSH"))),
}


@pytest.mark.quick_cases(36)
@pytest.mark.parametrize("judge", JUDGES)
@pytest.mark.parametrize("name", ANSWERS)
def test_what_cannot_be_searched_is_not_called_encrypted(name: str, judge: str) -> None:
    answer, data = ANSWERS[name]
    ruling = JUDGES[judge](data)
    assert ruling.answer == answer, ruling
    assert (ruling.how == transit.UNSEARCHED) is (answer == "unknown")


@pytest.mark.parametrize("data", HIDDEN.values(), ids=HIDDEN)
def test_operator_access_is_open_if_not_all_could_be_searched(data: bytes) -> None:
    assert clients.judge_operator(observe(send(HTTP + data + NOISE))).answer == "unknown"
    assert clients.judge_operator(observe(send(HTTP + NOISE))).answer == "no"
    assert clients.judge_operator(observe(send(HTTP + CONTENT))).answer == "yes"


@pytest.mark.parametrize("data", HIDDEN.values(), ids=HIDDEN)
def test_operator_access_is_open_if_only_its_store_could_not_be_searched(data: bytes) -> None:
    received = transit.judge_content(NOISE, BAIT)
    stores = {
        name: transit.judge_at_rest([("new", stored)], BAIT)
        for name, stored in {"hidden": data + NOISE, "few": NOISE[:99], "noise": NOISE, "content": CONTENT}.items()
    }
    judged = {name: transit.judge_operator(received, stored) for name, stored in stores.items()}
    assert {name: ruling.answer for name, ruling in judged.items()} == {
        "hidden": "unknown", "few": "unknown", "noise": "no", "content": "yes"
    }  # fmt: skip
    assert judged["hidden"].how == transit.UNSEARCHED
    unseen = transit.judge_operator(received, unknown(transit.UNSEEN_STORE))
    assert (unseen.answer, "stores" in unseen.how) == ("no", False), "what it never receives it cannot store"


@pytest.mark.parametrize("data", HIDDEN.values(), ids=HIDDEN)
def test_what_was_stored_before_need_not_be_searched(data: bytes) -> None:
    old, new = ("old", data), ("new", NOISE)
    assert transit.judge_at_rest([old, new], BAIT, [old]).answer == "yes"
    assert transit.judge_at_rest([old, new], BAIT).answer == "unknown"
    assert transit.judge_at_rest([("old", data + b"more"), new], BAIT, [old]).answer == "unknown"


def test_names_in_what_brotli_has_packed_are_not_called_encrypted() -> None:
    head = HTTP.removesuffix(b"\r\n")
    packed, plain = head + BROTLI + NOISE, head + b"Accept-Encoding: gzip, br\r\n\r\n" + NOISE
    for data, answer in ((packed, "unknown"), (plain, "yes")):
        assert transit.judge_names(data, BAIT).answer == answer
        assert clients.judge_names(observe(send(data))).answer == answer


def test_plain_traffic_of_which_bytes_are_missing_is_not_called_encrypted() -> None:
    for judge in (clients.judge_content, clients.judge_names):
        assert judge(observe(send(HTTP + NOISE))).answer == "yes"
        assert judge(observe(send(HTTP + NOISE, is_whole=False))).answer == "unknown"
        assert judge(observe(send(HTTP + NOISE), send(b"more", is_whole=False))).answer == "unknown"
        assert judge(observe(send(HTTP + CONTENT, is_whole=False))).answer == "no"


@pytest.mark.parametrize("pack", [lambda data: nest(data, 3), break_off])
def test_uploads_that_cannot_be_compared_are_not_called_different(pack: Callable[[bytes], bytes]) -> None:
    first, second = (Random(number).randbytes(70_000) for number in (1, 2))
    judge = convergence.judge_convergence
    for ruling in (judge(first, first, pack(first), 65536), judge(first, pack(first), None, 65536)):
        assert (ruling.answer, ruling.how) == ("unknown", transit.UNSEARCHED)
    assert judge(first, pack(first), second, 65536).answer == "yes"
    assert judge(first, pack(first), first, 65536).answer == "no"
    assert judge(first, first, gzip.compress(first), 65536).answer == "no"
