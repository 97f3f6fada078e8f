"""Sealed chunks and secrets. They do not open if cut, reordered, swapped, damaged or sealed with another key."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cloudbench.model import MIB
from pytest_cloudbench.raid.coding.sealing import TAG_BYTES, MasterKey, NotGenuine, Stream, chunk_count, sealed_bytes

KEY, OTHER, PREFIX, SALT = bytes(range(32)), bytes(32), b"prefix7", b"salt of 16 bytes"


def seal_chunk(stream: Stream, number: int, is_last: bool, plain: bytes) -> bytes:
    target = bytearray(len(plain) + TAG_BYTES)
    stream.seal(number, is_last, plain, memoryview(target))
    return bytes(target)


def test_chunks_open_only_in_their_place() -> None:
    stream = Stream(KEY, PREFIX)
    sealed = [seal_chunk(stream, n, n == 2, plain) for n, plain in enumerate([b"first", b"second", b"last"])]
    assert [stream.open(n, n == 2, chunk) for n, chunk in enumerate(sealed)] == [b"first", b"second", b"last"]
    wrong_openings: list[Callable[[], bytes]] = [
        lambda: stream.open(1, False, sealed[0]),  # reordered
        lambda: stream.open(1, True, sealed[1]),  # cut after the second: it was not the last
        lambda: stream.open(2, False, sealed[2]),  # something was appended
        lambda: Stream(OTHER, PREFIX).open(0, False, sealed[0]),  # another object's key
        lambda: Stream(KEY, b"another").open(0, False, sealed[0]),
        lambda: stream.open(0, False, sealed[0][:-1]),
        lambda: stream.open(0, False, b""),
    ]
    for action in wrong_openings:
        with pytest.raises(NotGenuine, match="it was changed, or sealed with another key"):
            action()


@given(st.integers(0, len(b"content") + TAG_BYTES - 1), st.integers(0, 7))
def test_every_flipped_bit_is_noticed(index: int, bit: int) -> None:
    stream = Stream(KEY, PREFIX)
    sealed = bytearray(seal_chunk(stream, 0, True, b"content"))
    sealed[index] ^= 1 << bit
    with pytest.raises(NotGenuine):
        stream.open(0, True, sealed)


@pytest.mark.parametrize(("size", "chunks"), [(0, 1), (1, 1), (MIB, 1), (MIB + 1, 2), (16 * MIB, 16)])
def test_sealed_sizes(size: int, chunks: int) -> None:
    assert (chunk_count(size), sealed_bytes(size)) == (chunks, size + 16 * chunks)


def test_a_secret_opens_only_with_its_key_and_context() -> None:
    master = MasterKey(KEY)
    sealed = master.seal(b"secret", SALT, b"place")
    assert master.open(sealed, b"place") == b"secret"
    assert b"secret" not in sealed
    for opener, context in ((MasterKey(OTHER), b"place"), (master, b"elsewhere")):
        with pytest.raises(NotGenuine):
            opener.open(sealed, context)
    assert master.seal(b"secret", b"another salt 16.", b"place")[16:] != sealed[16:]


def test_hidden_names_differ_in_each_part() -> None:
    master = MasterKey(KEY)
    names = {master.hide_name(b"version", child, segment) for child in range(3) for segment in range(3)}
    assert len(names) == 9
    assert all(len(name) == 32 and set(name) <= set("0123456789abcdef") for name in names)
    assert master.hide_name(b"ab", b"c") != master.hide_name(b"a", b"bc")
    assert MasterKey(OTHER).hide_name(b"version", 0, 0) not in names
    assert master.hide_name(b"version", 0, 0) == MasterKey(KEY).hide_name(b"version", 0, 0)


def test_names_and_secrets_of_earlier_versions_stay_known() -> None:
    master = MasterKey(KEY)
    assert (master.fingerprint, master.hide_name(b"version", 5)) == (
        "9820a295c6560217", "cfda4acb69959a0d3309c7eb3e8d8923",
    )  # fmt: skip
    assert master.seal(b"secret", SALT, b"here") == SALT + bytes.fromhex("cff619e3fa059128afa4ead447f3c3189bae2fb5d0bc")


def test_a_key_hides_its_bytes_and_checks_its_size() -> None:
    master = MasterKey(KEY)
    assert KEY.hex() not in repr(master)
    assert master.fingerprint in repr(master)
    with pytest.raises(ValueError, match="expected 32"):
        MasterKey(b"short")
    with pytest.raises(ValueError, match="expected 16"):
        master.seal(b"", b"short")
