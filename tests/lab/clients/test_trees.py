"""Digests of folders, and the differences between two of them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from pytest_cloudbench.lab.clients.trees import FolderTree, difference


def test_a_folder_by_content(tmp_path: Path) -> None:
    tree = FolderTree(tmp_path, frozenset({".own"}))
    assert tree.digests() == {}
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_bytes(b"1")
    (tmp_path / ".own").mkdir()
    (tmp_path / ".own" / "y").write_bytes(b"2")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("a")
    assert tree.digests() == {"a/x": hashlib.sha256(b"1").hexdigest()}
    assert tree.sizes_bytes() == {"a/x": 1}


def test_a_folder_that_is_missing_is_empty(tmp_path: Path) -> None:
    assert FolderTree(tmp_path / "none").digests() == {}


def test_a_change_of_the_same_size_and_time_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"1")
    status = path.stat()
    tree = FolderTree(tmp_path)
    before = tree.digests()
    path.write_bytes(b"2")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert tree.digests() == {"x": hashlib.sha256(b"2").hexdigest()} != before


def test_a_settled_file_is_not_read_again(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"1")
    tree = FolderTree(tmp_path)
    while not tree._certain:  # it is read until its time stamp is some milliseconds old
        digests = tree.digests()
    path.chmod(0)
    if os.geteuid():  # root may read everything
        assert tree.digests() == {}
    path.chmod(0o600)
    assert tree.digests() == digests


NAMES = st.dictionaries(st.sampled_from("abcd"), st.sampled_from("12"))


@given(NAMES, NAMES)
def test_difference_is_empty_exactly_when_there_is_none(expected: dict[str, str], actual: dict[str, str]) -> None:
    assert (difference(expected, actual) == "") == (expected == actual)


def test_difference_in_words() -> None:
    expected = {"a": "1", "b": "1", "c": "1", "d": "1", "e": "1"}
    assert difference(expected, {"a": "2", "x": "1"}) == "4 missing (b, c, d, ...); 1 too many (x); 1 different (a)"
