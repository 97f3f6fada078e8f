"""The names that keep both versions of a conflict apart, which every file system must take."""

from __future__ import annotations

import itertools
import os

import pytest

from pytest_cloudbench.savingbox.conflicts import conflict_paths

STAMP = "2026-11-28 23-59-59"
WIDE, RAW = "\u6f22", "\udcff"
"""A character of three bytes, and a byte that is no character."""


@pytest.mark.parametrize(
    ("path", "first"),
    [
        ("d/a.txt", f"d/a (conflict {STAMP}).txt"),
        ("a.tar.gz", f"a.tar (conflict {STAMP}).gz"),
        ("d/no ending", f"d/no ending (conflict {STAMP})"),
        ("d.d/.conf", f"d.d/.conf (conflict {STAMP})"),
        ("ends.", f"ends (conflict {STAMP})."),
        ("x" * 251 + ".txt", f"{'x' * 100} (conflict {STAMP}).txt"),
        (WIDE * 80, f"{WIDE * 74} (conflict {STAMP})"),
        (f"{WIDE * 80}.xyz", f"{WIDE * 73} (conflict {STAMP}).xyz"),
        (f"a.{'x' * 240}", f"a (conflict {STAMP}).{'x' * 99}"),
        (f"a.{WIDE * 80}", f"a (conflict {STAMP}).{WIDE * 33}"),
        (f"{RAW * 250}.a", f"{RAW * 100} (conflict {STAMP}).a"),
    ],
    ids=itertools.count(),
)
def test_each_name_is_recognizable_and_short_enough(path: str, first: str) -> None:
    paths = list(conflict_paths(path, STAMP))
    assert paths[0] == first
    assert len(set(paths)) == len(paths) == 999
    assert max(len(os.fsencode(name.rpartition("/")[2])) for name in paths) <= 255


def test_the_names_of_one_second_are_numbered() -> None:
    numbered = itertools.islice(conflict_paths("d/a.txt", STAMP), 3)
    assert list(numbered) == [f"d/a (conflict {STAMP}{number}).txt" for number in ("", " 2", " 3")]
