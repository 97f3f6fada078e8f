"""Names that keep both versions of an entry apart when both sides have changed it.

What may live here: pure functions of paths. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cloudbench.savingbox.listings import encode_name

_MOST_NAME_BYTES = 255
"""The longest name of most file systems. More of them count bytes than characters."""
_MOST_ENDING_BYTES = 100
_MOST_STEM_CHARS = 100
"""Enough to recognize a file. Some clients and encrypted file systems take no 255 bytes."""
_MOST_IN_A_SECOND = 999


def conflict_paths(path: str, stamp: str) -> Iterator[str]:
    """Yield names for the sync folder's version of an entry, the best first, for the caller to take a free one."""
    folder, slash, name = path.rpartition("/")
    stem, dot, extension = name.rpartition(".")
    if not stem:  # a name without an ending, or with only a leading dot
        stem, dot, extension = name, "", ""
    ending = cut_name(f"{dot}{extension}", _MOST_ENDING_BYTES)
    for count in range(1, _MOST_IN_A_SECOND + 1):
        number = "" if count == 1 else f" {count}"
        mark = f" (conflict {stamp}{number}){ending}"
        stem = cut_name(stem[:_MOST_STEM_CHARS], _MOST_NAME_BYTES - len(encode_name(mark)))
        yield f"{folder}{slash}{stem}{mark}"


def cut_name(name: str, most_bytes: int) -> str:
    """Return the beginning of a name, in whole characters, that is no longer than this."""
    while len(encode_name(name)) > most_bytes:
        name = name[:-1]
    return name
