"""Listings and agreements as bytes, which hold any entry of a file system and are compared with in a scan."""

from __future__ import annotations

from functools import partial

import pytest

from pytest_cloudbench.savingbox.agreements import Agreed, AgreedFolder
from pytest_cloudbench.savingbox.listings import (
    FolderListing,
    FoundEntry,
    decode_row,
    encode_row,
    name_of,
    split_listing,
)
from pytest_cloudbench.savingbox.records import RecordFile
from pytest_cloudbench.support.watching import FileMark
from tests.savingbox.pairs import KilledError, Pair, write

AFTER_2262_NS = 1 << 63
ENTRIES = {
    "a": FoundEntry("file", 0o644, FileMark(12, 0, 1_700_000_000_000_000_000, 1_700_000_000_000_000_001)),
    "a b": FoundEntry("file", 0o4755, FileMark((1 << 64) - 1, 1 << 40, -1, AFTER_2262_NS - 1)),
    "a\udcff": FoundEntry("file", 0, FileMark(1, 1, AFTER_2262_NS, -AFTER_2262_NS - 1)),
    "ab": FoundEntry("folder", 0o700, FileMark(5, 0, 0, 0)),
    "\u00e4": FoundEntry("link", 0, FileMark(6, 3, 5, 7), target="to\udcff\u00e4"),
}


def encode(name: str, entry: FoundEntry) -> bytes:
    return encode_row(name, entry.kind, entry.mode, entry.mark, entry.target)


def test_listing_returns_the_encoded_entries() -> None:
    rows = [encode(name, entry) for name, entry in ENTRIES.items()]
    listing = FolderListing(b"".join(sorted(rows)))
    assert {name_of(row): decode_row(row) for row in split_listing(listing.data)} == ENTRIES
    assert {name: decode_row(listing.get(name) or b"") for name in ENTRIES} == ENTRIES
    assert [listing.get(name) for name in ("", "aa", "b", "\u00e4\u00e4")] == [None] * 4


def test_an_agreed_folder_has_its_newer_agreements_after_it_was_packed() -> None:
    mark, later = FileMark(1, 2, 3, 4), FileMark(1, 2, AFTER_2262_NS, 5)
    folder = AgreedFolder()
    folder.newer = {name: Agreed("file", 0o600, mark, mark) for name in "abc"}
    folder = AgreedFolder.unpack(folder.renewed().pack())
    folder.newer = {"b": None, "c": Agreed("file", 0o600, mark, later), "d": Agreed("link", 0, mark, mark, "there")}
    expected = {
        "a": Agreed("file", 0o600, mark, mark),
        "c": Agreed("file", 0o600, mark, later),
        "d": Agreed("link", 0, mark, mark, "there"),
    }
    for current in (folder, AgreedFolder.unpack(folder.renewed().pack())):
        assert dict(current.items()) == expected
        assert {name: current.get(name) for name in (*expected, "b", "e")} == {**expected, "b": None, "e": None}
        assert set(current.names()) == expected.keys()


def test_scan_yields_only_differences_from_the_agreed_state(pair: Pair) -> None:
    for name in ("a", "b", "d/a", "d/b", "e/a"):
        write(pair.box / name, name)
    pair.settle()
    agreed = partial(pair.store.entries.listing, side="ours")
    unchanged = pair.mirror.box.find_all_entries(lambda folder: None, agreed)
    assert (unchanged.entries, unchanged.gone, unchanged.compared) == ({}, set(), {"", "d", "e"})
    write(pair.box / "d/a", "changed")
    (pair.box / "d/b").unlink()
    changed = pair.mirror.box.find_all_entries(lambda folder: None, agreed)
    assert (list(changed.entries), changed.gone) == (["d/a"], {"d/b"})


def test_a_large_push_of_a_killed_process_is_known(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{number}" for number in range(100)]
    for name in names:
        write(pair.box / name, name)

    def kill() -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(pair.store, "flush", kill)
        with pytest.raises(KilledError):
            pair.advance(6)
    assert {path.name for path in pair.sync.iterdir()} == set(names)
    for name in names[::2]:
        (pair.box / name).unlink()
    pair.restart()
    pair.settle()
    assert pair.equal_texts() == {name: name for name in names[1::2]}


def test_intents_that_were_noted_together_stay_without_those_that_are_done(pair: Pair) -> None:
    names = [f"{number}" for number in range(100)]
    for name in names:
        write(pair.box / name, name)

    def fail(step: str, path: str) -> None:
        if step == "publish" and path == "50":
            raise OSError(28, "No space left on device")

    pair.fault = fail
    pair.advance(6)
    pair.fault = lambda step, path: None
    pair.end()
    pair.open()
    assert len(pair.store.entries) == 99
    pair.settle()
    assert pair.equal_texts() == {name: name for name in names}


def test_the_state_of_the_version_before_is_read(pair: Pair) -> None:
    for name in ("a", "d/b", "d/c"):
        write(pair.box / name, name)
    pair.settle()
    agreements = dict(pair.store.entries.items())
    pair.end()
    records = RecordFile(pair.store.path, lambda database: [])
    records.write(("folder", folder, None) for folder in ("", "d"))
    records.write([("meta", "schema", "3"), *(("agreed", path, agreed) for path, agreed in agreements.items())])
    records.close()
    (pair.box / "d/b").unlink()
    (pair.sync / "a").unlink()
    pair.open()
    assert dict(pair.store.entries.items()) == agreements
    pair.settle()
    assert pair.equal_texts() == {"d/c": "d/c"}
