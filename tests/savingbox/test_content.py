"""Comparing, patching and counting differences without reading holes."""

from __future__ import annotations

import mmap
import os
import random
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_cloudbench.savingbox import content
from tests.limits import scale_examples

PAGE = content.PAGE_BYTES


class Files:
    def __init__(self, folder: Path) -> None:
        self.new, self.old = (os.open(folder / name, os.O_RDWR | os.O_CREAT) for name in ("new", "old"))

    def fill(self, new: bytes, old: bytes) -> None:
        for fd, data in ((self.new, new), (self.old, old)):
            os.ftruncate(fd, 0)
            content.write_at(fd, data, 0)

    def patch(self, ranges: list[tuple[int, int]] | None = None) -> int:
        written = 0
        for page in content.changed_pages(self.new, self.old, ranges):
            assert page.old == os.pread(self.old, len(page.new), page.offset)
            assert page.offset // PAGE == (page.offset + len(page.new) - 1) // PAGE
            content.write_at(self.old, page.new, page.offset)
            written += len(page.new)
        os.ftruncate(self.old, os.fstat(self.new).st_size)
        return written


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("content"))


DATA = st.lists(st.tuples(st.sampled_from([b"\0", b"a", b"b"]), st.integers(0, 2 * PAGE)), max_size=6).map(
    lambda parts: b"".join(letter * count for letter, count in parts)
)


@settings(max_examples=scale_examples(60), deadline=None)
@given(DATA, DATA)
def test_the_pages_that_differ_make_the_old_file_the_new_one(files: Files, new: bytes, old: bytes) -> None:
    files.fill(new, old)
    written = files.patch()
    assert os.pread(files.old, len(new) + 1, 0) == new
    assert content.are_equal(files.new, files.old)
    assert written <= sum(new[at : at + 1] != old[at : at + 1] for at in range(len(new))) * PAGE


@settings(max_examples=scale_examples(40), deadline=None)
@given(DATA, DATA)
def test_files_are_equal_exactly_if_their_bytes_are(files: Files, new: bytes, old: bytes) -> None:
    files.fill(new, old)
    assert content.are_equal(files.new, files.old) == (new == old)


def test_patch_copies_only_pages_of_the_ranges(files: Files) -> None:
    files.fill(b"x" * 5 * PAGE, b"y" * 5 * PAGE)
    files.patch([(PAGE + 10, PAGE + 11), (3 * PAGE - 1, 3 * PAGE + 1), (100 * PAGE, 100 * PAGE + 5)])
    assert os.pread(files.old, 5 * PAGE, 0) == b"y" * PAGE + b"x" * 3 * PAGE + b"y" * PAGE


def test_appended_byte_counts_as_one_changed_byte(files: Files) -> None:
    files.fill(b"x" * 100_001, b"x" * 100_000)
    (page,) = content.changed_pages(files.new, files.old)
    assert page == (100_000, b"x", b"")
    assert content.compressed_bytes(files.new, files.old, enough_bytes=1000) < 10


def test_the_counter_counts_deflated_bytes(files: Files) -> None:
    noise = random.Random(1).randbytes(100_000)
    files.fill(noise, b"")
    full_bytes = content.compressed_bytes(files.new, None, enough_bytes=10**9)
    assert 100_000 <= full_bytes <= 100_100
    assert content.compressed_bytes(files.new, files.old, enough_bytes=10**9) == full_bytes
    assert content.compressed_bytes(files.new, files.new, enough_bytes=10**9) == 0
    assert 5000 <= content.compressed_bytes(files.new, None, enough_bytes=5000) <= full_bytes
    written = content.compressed_bytes(files.new, files.new, [(100, 10_100), (50_000, 50_001)], enough_bytes=10**9)
    assert 10_001 <= written <= 10_100
    files.fill(b"x" * 100_000, b"")
    assert content.compressed_bytes(files.new, None, enough_bytes=10**9) < 1000


def test_a_file_that_only_became_shorter_has_something_to_push(files: Files) -> None:
    files.fill(b"x" * 10, b"x" * 20)
    assert content.compressed_bytes(files.new, files.old, enough_bytes=100) == 1


def test_holes_are_neither_read_nor_filled(tmp_path: Path) -> None:
    files = Files(tmp_path)
    size_bytes = 1 << 40
    for fd in (files.new, files.old):
        os.ftruncate(fd, size_bytes)
    os.pwrite(files.new, b"here", size_bytes // 2)
    began_s = time.thread_time()
    assert not content.are_equal(files.new, files.old)
    assert files.patch() <= PAGE
    assert content.are_equal(files.new, files.old)
    copy = os.open(tmp_path / "copy", os.O_RDWR | os.O_CREAT)
    content.copy_data(files.new, copy, os.fstat(files.new))
    assert content.are_equal(files.new, copy)
    assert content.compressed_bytes(files.new, None, enough_bytes=10**9) < 5000
    assert time.thread_time() - began_s < 1, "a terabyte was read"
    assert os.fstat(copy).st_blocks * 512 < 1 << 20
    for fd in (files.new, files.old, copy):
        os.close(fd)


@pytest.mark.skipif(sys.platform != "linux", reason="needs sync_file_range")
def test_every_store_into_a_mapping_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "mapped"
    path.write_bytes(bytes(2 * PAGE))
    missed = 0
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        for number in range(200):  # soon after one another: the page is still on its way to the disk
            content.notice_stores(file.fileno())
            os.utime(path, ns=(1, 1))
            mapping[0] = number % 256
            missed += path.stat().st_mtime_ns == 1
    assert missed == 0
