"""Metadata that is an old copy, damaged or locked: the children know more, and nothing acknowledged is lost."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from pytest_cloudbench.model import CloudError, CredentialsError, ErrorKind, UsageError
from pytest_cloudbench.raid import database
from pytest_cloudbench.raid.driver import RaidDriver
from pytest_cloudbench.raid.maintenance import discard_incomplete_versions, repair_array
from pytest_cloudbench.raid.metadata import Metadata
from pytest_cloudbench.raid.survey import survey_array
from pytest_cloudbench.workload.payload.contents import Literal
from tests.limits import HANG_S

from .harness import Lab
from .test_kills import after, killed_after

Make = Callable[..., Lab]
pytestmark = pytest.mark.filterwarnings("ignore:.*was older than what the children hold")


def put(driver: RaidDriver, **contents: str) -> None:
    for name, content in contents.items():
        driver.put(f"/{name}", Literal(content.encode()))
    assert driver.settle(HANG_S)


def contents_of(driver: RaidDriver) -> dict[str, str]:
    return {entry.path[1:]: b"".join(driver.get(entry.path)).decode() for entry in driver.list("/")}


def back_up(made: Lab) -> Path:
    copy = made.folder / "backup"
    with closing(sqlite3.connect(made.metadata)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    return copy


def restore(made: Lab, copy: Path) -> None:
    made.lose_metadata()
    shutil.copy(copy, made.metadata)


def assert_all_is_well(driver: RaidDriver) -> None:
    assert driver.settle(HANG_S)
    assert repair_array(driver.array).is_complete
    found = survey_array(driver.array, deep=True)
    assert found.is_healthy
    assert found.garbage == 0


# --- an old copy ---


def test_what_was_written_and_deleted_after_a_backup_is_taken_in(lab: Make) -> None:
    made = lab()
    with made.opened() as driver:
        put(driver, replaced="1", deleted="1", kept="1")
    copy = back_up(made)
    with made.opened() as driver:
        put(driver, replaced="2", new="1")
        driver.delete("/deleted")
        assert driver.settle(HANG_S)
    restore(made, copy)
    for _ in range(2):
        with made.opened() as driver:
            assert contents_of(driver) == {"replaced": "2", "new": "1", "kept": "1"}
            assert_all_is_well(driver)
        made.lose_metadata()


def test_after_a_restored_backup_no_generation_is_used_twice(lab: Make) -> None:
    made = lab()
    with made.opened() as driver:
        put(driver, first="1")
    copy = back_up(made)
    with made.opened() as driver:
        for number in range(6):
            put(driver, a=f"old {number}")
        row = driver.array.metadata.find("/a")
        assert row is not None
        driver.delete("/a")
        assert driver.settle(HANG_S)
    restore(made, copy)
    with made.opened() as driver:
        put(driver, a="new")
        again = driver.array.metadata.find("/a")
        assert again is not None
        assert again.generation > row.generation


def test_a_write_under_way_at_the_backup_and_acknowledged_later_is_kept(
    lab: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, commit_write = lab(), Metadata.commit_write

    def commit_after_backup(*arguments: object, **options: object) -> bool:
        back_up(made)
        return commit_write(*arguments, **options)  # type: ignore[arg-type]  # passed on as they came

    with made.opened() as driver:
        put(driver, first="1")
        monkeypatch.setattr(Metadata, "commit_write", commit_after_backup)
        put(driver, a="acknowledged")
        monkeypatch.undo()
    restore(made, made.folder / "backup")
    with made.opened() as driver:
        assert contents_of(driver) == {"first": "1", "a": "acknowledged"}
        assert_all_is_well(driver)


def test_a_copy_without_the_write_ahead_log_is_an_old_copy(lab: Make) -> None:
    made = lab()
    with made.opened() as driver:
        put(driver, a="1")
    with made.opened() as driver:
        put(driver, a="2", b="1")
        shutil.copy(made.metadata, made.folder / "backup")  # while the log holds what is newer
        put(driver, c="1")
    restore(made, made.folder / "backup")
    with made.opened() as driver:
        assert contents_of(driver) == {"a": "2", "b": "1", "c": "1"}


def test_what_an_open_process_does_after_a_restore_is_not_acknowledged(lab: Make) -> None:
    made = lab()
    with made.opened() as driver:
        put(driver, a="1")
        copy = back_up(made)
        put(driver, a="2")
        restore(made, copy)
        for operation in (lambda: put(driver, b="1"), lambda: driver.stat("/a"), lambda: driver.delete("/a")):
            with pytest.raises(CloudError, match="was replaced or removed while this process used it"):
                operation()
    with made.opened() as driver:
        assert contents_of(driver) == {"a": "2"}


def test_an_old_copy_written_into_the_open_file_is_noticed(lab: Make) -> None:
    made = lab()
    with made.opened() as driver:
        put(driver, a="1")
        copy = back_up(made)
        put(driver, a="2")
        with closing(sqlite3.connect(copy)) as source, closing(sqlite3.connect(made.metadata)) as target:
            source.backup(target)
        for operation in (lambda: put(driver, b="1"), lambda: driver.stat("/a")):
            with pytest.raises(CloudError, match="an older copy took the place of"):
                operation()
    with made.opened() as driver:
        assert contents_of(driver) == {"a": "2"}


def test_newer_objects_that_silent_children_may_complete_are_waited_for(lab: Make) -> None:
    made = lab(2, 1, durability="k+0", mends=False)
    with made.opened() as driver:
        put(driver, a="1")
    copy = back_up(made)
    with made.opened() as driver:
        put(driver, a="2")
    for path in made.children[0].packages.values():
        path.unlink()
    restore(made, copy)
    with made.opened() as driver:
        made.children[1].fails = {"list": ErrorKind.NETWORK}
        with pytest.raises(CloudError, match="may be newer on children that do not answer"):
            driver.stat("/a")
        made.children[1].fails.clear()
        assert contents_of(driver) == {"a": "2"}


def test_objects_that_lost_too_much_with_the_metadata_are_not_passed_over(lab: Make) -> None:
    made = lab()
    with made.opened() as driver:
        put(driver, a="1", b="1")
        row = driver.array.metadata.find("/a")
        assert row is not None
        for child in (0, 1):
            (name,) = driver.array.package_names(row.version, child, row.segments)
            made.children[child].packages[name].unlink()
    made.lose_metadata()
    with made.opened() as driver:
        assert contents_of(driver) == {"b": "1"}
        found = survey_array(driver.array)
        assert found.unknown_paths == ["/a"]
        assert not found.is_healthy
        assert discard_incomplete_versions(driver.array) == 1
        assert_all_is_well(driver)


@pytest.mark.slow
def test_nothing_is_lost_by_backups_at_any_moment_and_kills(lab: Make) -> None:
    """What was overwritten and then deleted may come back, if the kill came before the older version was deleted."""
    made, chosen, wanted = lab(), random.Random(7), dict[str, bytes]()
    for round_ in range(12):
        begun: list[str] = []
        deleted = set[str]()
        if made.metadata.exists():
            back_up(made)
        for words in killed_after(made.folder, round_, chosen.randrange(1, 30)):
            if words[0] == "done":
                wanted = after(begun, round_, wanted)
                deleted |= {begun[1]} if begun[0] == "delete" else set()
            begun = words if words[0] in ("put", "delete") else []
        if (made.folder / "backup").exists() and chosen.random() < 0.7:
            restore(made, made.folder / "backup")
        with made.opened() as driver:
            found = {entry.path: b"".join(driver.get(entry.path)) for entry in driver.list("/")}
            kept = {path: content for path, content in found.items() if path in wanted or path not in deleted}
            assert kept in (wanted, after(begun, round_, wanted)), (round_, begun)
            wanted = found
            discard_incomplete_versions(driver.array)
            assert_all_is_well(driver)


# --- other children ---


def test_a_process_with_the_old_children_acknowledges_nothing_after_one_is_replaced(lab: Make) -> None:
    made = lab()
    with made.opened() as driver:
        put(driver, before="1")
        old = made.children
        text = made.file.read_text("utf-8")
        made.file.write_text(text.replace(f"folder:{made.folder}/0", f"folder:{made.folder}/new"), "utf-8")
        shutil.move(made.folder / "0", made.folder / "gone")
        (made.folder / "new").mkdir()
        (made.folder / "0").symlink_to(made.folder / "new")
        with made.opened() as other:
            assert contents_of(other) == {"before": "1"}
            assert other.settle(HANG_S), "what it lacks was noted and rebuilt"
            for operation in (lambda: driver.put("/after", Literal(b"1")), lambda: driver.delete("/before")):
                with pytest.raises(CloudError, match="the array has other children since"):
                    operation()
            assert contents_of(driver) == {"before": "1"}, "reading harms nobody"
            assert_all_is_well(other)
        assert not old[0].fails


# --- the key ---


@pytest.mark.parametrize("keeps_metadata", [False, True])
def test_no_key_is_made_where_another_one_belongs(lab: Make, keeps_metadata: bool) -> None:
    made = lab()
    with made.opened() as driver:
        put(driver, a="1")
    key = made.folder / "array.key"
    key.rename(made.folder / "copy")
    if not keeps_metadata:
        made.lose_metadata()
    with pytest.raises(CredentialsError, match=r"missing, but .* put it back from your copy"), made.opened():
        pass
    assert not key.exists()
    (made.folder / "copy").rename(key)
    with made.opened() as driver:
        assert contents_of(driver) == {"a": "1"}


def test_no_key_is_made_while_a_child_does_not_answer(lab: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    from .harness import Child

    def refuse(child: Child, folder: str) -> None:
        raise CloudError(ErrorKind.NETWORK, "list", folder, detail="no route")

    made = lab()
    (made.folder / "array.key").unlink()
    monkeypatch.setattr(Child, "list", refuse)
    with pytest.raises(CredentialsError, match="no new key is made before every child says"), made.opened():
        pass
    monkeypatch.undo()
    with made.opened() as driver:
        put(driver, a="1")
    assert (made.folder / "array.key").exists()


# --- a lock, and damage ---

STOPS = """
import os, signal, sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN IMMEDIATE")
os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system does not say who holds a lock")
def test_a_stopped_process_is_named_by_those_that_wait_for_it(lab: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    made = lab()
    with made.opened() as driver:
        put(driver, a="1")
        with subprocess.Popen([sys.executable, "-c", STOPS, str(made.metadata)]) as process:
            try:
                os.waitpid(process.pid, os.WUNTRACED)
                driver.array.metadata._db.execute("PRAGMA busy_timeout = 100")
                assert contents_of(driver) == {"a": "1"}, "readers do not wait"
                with pytest.raises(CloudError) as refused:
                    driver.put("/b", Literal(b"1"))
                assert f"process {process.pid} (" in refused.value.detail
                assert "which is stopped" in refused.value.detail
                assert "\n" not in str(refused.value)
            finally:
                os.kill(process.pid, signal.SIGCONT)
        put(driver, b="1")
        assert contents_of(driver) == {"a": "1", "b": "1"}
    assert database._BUSY_S <= 10


def rebuilt(made: Lab) -> dict[str, str]:
    from pytest_cloudbench.commands import cli

    assert cli.main(["raid", "recover", str(made.file)]) == 0
    with made.opened() as driver:
        return contents_of(driver)


@pytest.mark.parametrize("seed", range(24))
def test_damage_of_any_kind_is_one_line_that_says_how_to_rebuild(
    lab: Make, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    made, chosen = lab(), random.Random(seed)
    wanted = {f"{number}": f"content {number}" for number in range(5)}
    with made.opened() as driver:
        put(driver, **wanted)
    data = bytearray(made.metadata.read_bytes())
    page = chosen.randrange(len(data) // 4096) * 4096
    match seed % 4:
        case 0:
            data[page : page + 4096] = bytes(4096)
        case 1:
            del data[chosen.randrange(len(data)) :]
        case 2:
            data[page : page + 4096] = chosen.randbytes(4096)
        case _:
            for _ in range(40):
                data[chosen.randrange(len(data))] ^= 1 << chosen.randrange(8)
    made.metadata.write_bytes(data)
    try:
        with made.opened() as driver:
            assert contents_of(driver) == wanted, "the damage was nowhere in use"
    except (UsageError, CloudError) as error:
        refusal = str(error)
    else:
        refusal = ""
    assert not refusal or f"rebuild it with: cloudbench raid recover {made.file}" in refusal
    assert "\n" not in refusal
    assert rebuilt(made) == wanted
    assert "5 objects" in capsys.readouterr().out


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
def test_rubbish_beside_the_metadata_harms_nothing(lab: Make, suffix: str) -> None:
    made = lab()
    with made.opened() as driver:
        put(driver, a="1", b="1")
    made.metadata.with_name(f"array.sqlite{suffix}").write_bytes(random.Random(suffix).randbytes(40_000))
    with made.opened() as driver:
        assert contents_of(driver) == {"a": "1", "b": "1"}


def test_pages_of_different_moments_are_damage(lab: Make) -> None:
    made = lab()
    with made.opened() as driver:
        put(driver, a="1")
    with closing(sqlite3.connect(made.metadata)) as db, db:
        db.execute("DELETE FROM objects")
    with pytest.raises(UsageError, match="its pages are of different moments"), made.opened():
        pass
    assert rebuilt(made) == {"a": "1"}


def test_a_write_that_another_process_has_discarded_is_not_acknowledged(lab: Make) -> None:
    made = lab()
    with made.opened() as driver:
        put(driver, a="1")
        mine = driver.array.metadata
        made.children[0].after_put = lambda: mine._db.execute("DELETE FROM writes")
        with pytest.raises(CloudError, match="another process has discarded this write"):
            driver.put("/a", Literal(b"2"))
        made.children[0].after_put = None
        assert contents_of(driver) == {"a": "1"}
        assert_all_is_well(driver)
