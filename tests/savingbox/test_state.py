"""The state file: it holds all attributes of a file, and damage costs at most a comparison at the next start."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from pytest_cloudbench.model import ResultsError, UsageError
from pytest_cloudbench.savingbox.agreements import Agreed
from pytest_cloudbench.savingbox.patching import Patching, WrittenPiece
from pytest_cloudbench.savingbox.records import Record, RecordFile
from pytest_cloudbench.savingbox.store import SCHEMA, AgreementStore
from pytest_cloudbench.support.watching import FileMark
from tests.savingbox.loop import own_file_system
from tests.savingbox.pairs import Pair, make_marks_certain, write

PAGE = 4096
S = 1_000_000_000

Damage = Callable[[random.Random, bytes], bytes]


# --- records ---


def test_a_removal_that_was_rolled_back_is_repeated(tmp_path: Path) -> None:
    def convert(database: sqlite3.Connection) -> list[Record]:
        return []

    records = RecordFile(tmp_path / "state.sqlite", convert)
    records.write([("agreed", "a", 1), ("agreed", "b", 2)])
    records._db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1000)
    with pytest.raises(OSError, match="too big"):
        records.write([("agreed", "a", None), ("agreed", "c", "long" * 1000)])
    records.write([("agreed", "a", None), ("agreed", "c", None)])
    records.close()
    records = RecordFile(tmp_path / "state.sqlite", convert)
    assert records.found == {"agreed": {"b": 2}}
    records.write([("agreed", "b", None)])  # written by an earlier process
    records.close()
    records = RecordFile(tmp_path / "state.sqlite", convert)
    assert records.found == {}
    records.close()


# --- damage ---


def zero_a_page(noise: random.Random, data: bytes) -> bytes:
    offset = noise.randrange(len(data) // PAGE) * PAGE
    return data[:offset] + bytes(PAGE) + data[offset + PAGE :]


def flip_a_bit(noise: random.Random, data: bytes, limit_bytes: int | None = None) -> bytes:
    offset = noise.randrange(limit_bytes or len(data))
    return data[:offset] + bytes([data[offset] ^ 1 << noise.randrange(8)]) + data[offset + 1 :]


def flip_a_bit_of_the_head(noise: random.Random, data: bytes) -> bytes:
    return flip_a_bit(noise, data, 100)


def truncate(noise: random.Random, data: bytes) -> bytes:
    return data[: noise.randrange(1, len(data))]


def swap_pages(noise: random.Random, data: bytes) -> bytes:
    pages = [data[offset : offset + PAGE] for offset in range(0, len(data), PAGE)]
    one, other = noise.sample(range(len(pages)), 2)
    pages[one], pages[other] = pages[other], pages[one]
    return b"".join(pages)


def write_junk(noise: random.Random, data: bytes) -> bytes:
    offset, size_bytes = noise.randrange(len(data)), noise.choice([1, 16, 512, PAGE])
    return (data[:offset] + noise.randbytes(size_bytes) + data[offset + size_bytes :])[: len(data)]


DAMAGES = [zero_a_page, flip_a_bit, flip_a_bit_of_the_head, truncate, swap_pages, write_junk]


def agreement(number: int) -> Agreed:
    mark = FileMark((1 << 64) - number, number, number - (1 << 70), number)
    if number % 3:
        return Agreed("file", 0o644, mark, mark)
    return Agreed("link", 0, mark, mark, "to\udcff")


def write_state_copies(home: Path) -> tuple[Path, dict[str, Agreed]]:
    """Write the state file of a killed process, and in ``closed`` that of an orderly end. Return its agreements."""
    store = AgreementStore(home / "live" / "state.sqlite", "pair")
    for number in range(300):
        store.replace(f"d{number % 7}/{number}", agreement(number))
    store.flush()
    store.close()
    shutil.copytree(home / "live", home / "closed")
    store = AgreementStore(home / "live" / "state.sqlite", "pair")
    for number in range(300, 400):
        store.replace(f"d{number % 7}/{number}", agreement(number))
    store.flush()
    store.begin_patch("d1/1", Patching(1, 2, 3, tuple(WrittenPiece(at, 1, 2, 3, 4) for at in range(500))))
    shutil.copytree(home / "live", home / "killed")
    store.close()
    return home, {f"d{number % 7}/{number}": agreement(number) for number in range(400)}


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["closed/state.sqlite", "killed/state.sqlite", "killed/state.sqlite-wal"])
def test_no_damage_stops_a_start_or_makes_a_wrong_agreement(tmp_path: Path, name: str, damage: Damage) -> None:
    home, agreements = write_state_copies(tmp_path)
    intact = (home / name).read_bytes()
    folder = (home / name).parent
    noticed = 0
    for seed in range(15):
        shutil.rmtree(home / "damaged", ignore_errors=True)
        shutil.copytree(folder, home / "damaged")
        (home / "damaged" / Path(name).name).write_bytes(damage(random.Random(seed), intact))
        store = AgreementStore(home / "damaged" / "state.sqlite", "pair")
        noticed += bool(store.problem)
        assert store.entries.items() <= agreements.items(), (seed, store.problem)
        assert not (store.problem and store.entries)
        store.replace("new", agreement(1))
        store.flush()
        store.close()
        store = AgreementStore(home / "damaged" / "state.sqlite", "pair")
        assert (store.problem, store.entries["new"]) == ("", agreement(1)), seed
        store.close()
    if name.startswith("closed") and damage is not flip_a_bit_of_the_head:
        assert noticed >= 8, "most damage of a file without a log is to be noticed"


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("page", [*range(8), None], ids=lambda page: "all" if page is None else f"page {page}")
def test_a_damaged_state_is_moved_aside_and_both_folders_are_merged(pair: Pair, page: int | None) -> None:
    for number in range(400):
        write(pair.box / f"{number}", f"{number}")
    pair.settle()
    pair.end()
    state = pair.store.path
    with contextlib.closing(sqlite3.connect(state)) as database:
        database.execute("VACUUM")  # removes unused pages, whose damage would have no effect
    data = state.read_bytes()
    assert len(data) > 8 * PAGE
    junk = b"this is no database " * 300
    state.write_bytes(junk if page is None else data[: page * PAGE] + bytes(PAGE) + data[(page + 1) * PAGE :])
    write(pair.box / "b", "2")
    (pair.sync / "7").unlink()
    pair.open()
    assert "damaged" in pair.store.problem
    assert state.with_name(f"{state.name}.damaged").exists()
    pair.settle()
    assert pair.equal_texts() == {f"{number}": f"{number}" for number in range(400)} | {"b": "2"}
    assert not pair.troubles("conflict")


def test_a_state_that_cannot_be_checked_is_not_taken_for_damaged(tmp_path: Path) -> None:
    with own_file_system(tmp_path, "tmpfs") as folder:
        subprocess.run(["mount", "-o", "remount,size=1m", str(folder)], check=True)
        path = folder / "state.sqlite"
        AgreementStore(path, "pair").close()
        before = path.read_bytes()
        with pytest.raises(OSError, match="No space"):
            (folder / "filler").write_bytes(bytes(1 << 20))
        with pytest.raises(ResultsError, match="full"):
            AgreementStore(path, "pair")
        assert path.read_bytes()[:100] == before[:100]
        assert not list(folder.glob("*.damaged"))


# --- the pair that owns it ---


def test_two_processes_do_not_share_a_pair(pair: Pair) -> None:
    with pytest.raises(UsageError, match="another savingbox is running"):
        AgreementStore(pair.store.path, "pair")


def test_the_state_of_another_pair_is_refused(pair: Pair) -> None:
    pair.end()
    with pytest.raises(UsageError, match="belongs to other folders"):
        AgreementStore(pair.store.path, "another")
    pair.open()


OLDER = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE agreed (
  path BLOB PRIMARY KEY, kind TEXT, mode INT, target BLOB,
  box_inode INT, box_bytes INT, box_modified_ns INT, box_changed_ns INT,
  sync_inode INT, sync_bytes INT, sync_modified_ns INT, sync_changed_ns INT) WITHOUT ROWID;
CREATE TABLE begun (path BLOB PRIMARY KEY, side TEXT) WITHOUT ROWID;
INSERT INTO begun VALUES (x'61', 'theirs');
"""


def write_older_state(path: Path, entries: Mapping[str, Agreed], schema: str, kind: str | None = None) -> None:
    path.unlink()
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.executescript(OLDER)
        database.executemany("INSERT INTO meta VALUES (?, ?)", [("pair", "pair"), ("schema", schema)])
        for name, agreed in entries.items():
            row = (
                os.fsencode(name),
                kind or agreed.kind,
                agreed.mode,
                os.fsencode(agreed.target),
                *agreed.box,
                *agreed.sync,
            )
            database.execute(f"INSERT INTO agreed VALUES ({', '.join('?' * 12)})", row)


@pytest.mark.parametrize("schema", ["1", "2"])
def test_a_state_of_an_older_version_is_read(pair: Pair, schema: str) -> None:
    write(pair.box / "a", "1")
    pair.settle()
    pair.end()
    write_older_state(pair.store.path, pair.store.entries, schema)
    (pair.sync / "a").unlink()
    pair.open()
    assert (pair.store.problem, pair.store.read_meta("schema")) == ("", str(SCHEMA))
    pair.settle()
    assert pair.equal_texts() == {}, "the agreements are still known"


def test_a_damaged_state_of_an_older_version_is_moved_aside(pair: Pair) -> None:
    write(pair.box / "a", "1")
    pair.settle()
    pair.end()
    write_older_state(pair.store.path, pair.store.entries, "2", kind="fole")
    (pair.sync / "a").unlink()
    pair.open()
    assert "damaged" in pair.store.problem
    pair.settle()
    assert pair.equal_texts() == {"a": "1"}


def test_a_state_of_a_later_version_is_refused(pair: Pair) -> None:
    pair.store.write_meta(schema=str(SCHEMA + 1))
    pair.end()
    with pytest.raises(UsageError, match="to another version"):
        pair.open()


# --- any time ---


def assert_times_pass(pair: Pair, modified_ns: int) -> None:
    for path in (pair.box / "ours", pair.sync / "theirs"):
        write(path, path.name)
        os.utime(path, ns=(modified_ns, modified_ns))
    write(pair.box / "other", "other")
    pair.settle()
    with (pair.box / "ours").open("a") as file:
        file.write(", longer")
    os.utime(pair.box / "ours", ns=(modified_ns, modified_ns))
    pair.settle()
    (pair.box / "theirs").rename(pair.box / "renamed")
    pair.restart()
    pair.settle()
    assert pair.equal_texts() == {"ours": "ours, longer", "renamed": "theirs", "other": "other"}
    assert not pair.troubles("failed")
    pair.restart()
    assert pair.engine.is_at_rest()


TIMES_S = [-(1 << 63), -(1 << 40), -2_147_483_648, -1, 0, 1 << 33, 10_413_792_000, 1 << 34, 1 << 62, (1 << 63) - 1]


@pytest.mark.parametrize("at_s", TIMES_S)
def test_any_time_stamp_passes(pair: Pair, at_s: int) -> None:
    assert_times_pass(pair, at_s * S)


@pytest.mark.parametrize("kind", ["tmpfs", "xfs", "btrfs"])
@pytest.mark.parametrize("side", ["box", "sync"])
def test_any_time_stamp_passes_to_and_from_a_file_system_that_holds_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, side: str
) -> None:
    make_marks_certain(monkeypatch)
    with own_file_system(tmp_path, kind) as folder:
        for at_s in TIMES_S:
            home = tmp_path / f"{at_s}"
            home.mkdir()
            (folder / f"{at_s}").mkdir()
            (home / side).symlink_to(folder / f"{at_s}")
            pair = Pair(home)
            assert_times_pass(pair, at_s * S)
            pair.end()
