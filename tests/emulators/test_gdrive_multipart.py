"""Tests that the Drive emulator reads a multipart body alike in pieces of any size."""

from __future__ import annotations

import pytest

from pytest_cloudbench.emulators.gdrive.multipart import MultipartReader

_HEAD = b"Content-Type: application/json"


def body(content: bytes, end: bytes = b"\r\n", start: bytes = b"") -> bytes:
    parts = [_HEAD, b"", b'{"name": "x"}', b"--b", b"Content-Type: a/b", b"", content, b"--b--"]
    return start + b"--b" + end + end.join(parts) + end


def read(text: bytes, step: int, kind: bytes = b"multipart/related; boundary=b") -> MultipartReader:
    reader = MultipartReader(kind)
    for start in range(0, len(text), step):
        reader.feed(text[start : start + step])
    return reader.finish()


@pytest.mark.parametrize("end", [b"\r\n", b"\n"], ids=["CRLF", "LF"])
@pytest.mark.parametrize(
    "start", [b"", b"\r\n", b"a preamble\r\n"], ids=["at once", "after a line", "after a preamble"]
)
@pytest.mark.parametrize(
    "content",
    [b"", b"x", b"ends with\r", b"--", b"\r\n--", b"\n--c\r\n\r\n", bytes(range(256)) * 9, b"\n" * 50],
    ids=["none", "one", "CR", "dashes", "line and dashes", "another boundary", "all bytes", "lines"],
)
def test_the_same_however_it_arrives(content: bytes, start: bytes, end: bytes) -> None:
    for step in (1, 2, 3, 7, 64, 10_000):
        reader = read(body(content, end, start), step)
        assert reader.blob is not None
        assert (reader.blob.data, reader.metadata.strip()) == (content, b'{"name": "x"}')
        assert reader.headers == {"content-type": "a/b"}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"no boundary at all",
        body(b"content")[:-7],
        body(b"content").replace(b"\r\n--b--", b""),
        body(b"content").replace(b"--b--", b"--b\r\n\r\nthird\r\n--b--"),
        b"--b\r\n\r\nonly one\r\n--b--\r\n",
        b"--b\r\nno gap\r\n--b\r\n\r\ncontent\r\n--b--\r\n",
    ],
)
def test_a_body_without_two_parts_has_no_content(text: bytes) -> None:
    assert [read(text, step).blob for step in (1, 5, 10_000)] == [None] * 3


def test_a_head_without_end_is_not_kept() -> None:
    reader = MultipartReader(b"multipart/related; boundary=b")
    for _ in range(100):
        reader.feed(b"x" * 100_000)
    assert len(reader._buffer) < 2_000_000
    assert reader.finish().blob is None
