"""Metadata that is an old copy, damaged or locked. The children know more, and nothing acknowledged is lost."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from pytest_cloudbench.model import MIB, CloudError, CredentialsError, ErrorKind, UsageError
from pytest_cloudbench.raid import database
from pytest_cloudbench.raid.coding.manifest import CodedSegment, Manifest
from pytest_cloudbench.raid.coding.policies import Split
from pytest_cloudbench.raid.driver import RaidDriver
from pytest_cloudbench.raid.maintenance import discard_incomplete_versions, repair_array
from pytest_cloudbench.raid.metadata import EndedWrite, Metadata
from pytest_cloudbench.raid.recovery import find_versions
from pytest_cloudbench.raid.survey import survey_array
from pytest_cloudbench.workload.payload.contents import Literal
from tests.limits import HANG_S

from .harness import ArrayFolder
from .test_kills import apply_operation, run_until_killed

MakeArray = Callable[..., ArrayFolder]
pytestmark = pytest.mark.filterwarnings("ignore:.*was older than what the children hold")


def write_all(driver: RaidDriver, **contents: str) -> None:
    for name, content in contents.items():
        driver.put(f"/{name}", Literal(content.encode()))
    assert driver.settle(HANG_S)


def contents_of(driver: RaidDriver) -> dict[str, str]:
    return {entry.path[1:]: b"".join(driver.get(entry.path)).decode() for entry in driver.list("/")}


def back_up_metadata(array_folder: ArrayFolder) -> Path:
    copy = array_folder.folder / "backup"
    with closing(sqlite3.connect(array_folder.metadata)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    return copy


def restore_metadata(array_folder: ArrayFolder, copy: Path) -> None:
    array_folder.lose_metadata()
    shutil.copy(copy, array_folder.metadata)


def assert_healthy(driver: RaidDriver) -> None:
    assert driver.settle(HANG_S)
    assert repair_array(driver.array).is_complete
    state = survey_array(driver.array, deep=True)
    assert state.is_healthy
    assert state.garbage == 0


# --- an old copy ---


def test_changes_after_a_backup_are_taken_in_when_it_is_restored(make_array: MakeArray) -> None:
    array_folder = make_array()
    with array_folder.opened() as driver:
        write_all(driver, replaced="1", deleted="1", kept="1")
    copy = back_up_metadata(array_folder)
    with array_folder.opened() as driver:
        write_all(driver, replaced="2", new="1")
        driver.delete("/deleted")
        assert driver.settle(HANG_S)
    restore_metadata(array_folder, copy)
    for _ in range(2):
        with array_folder.opened() as driver:
            assert contents_of(driver) == {"replaced": "2", "new": "1", "kept": "1"}
            assert_healthy(driver)
        array_folder.lose_metadata()


def test_after_a_restored_backup_no_generation_is_used_twice(make_array: MakeArray) -> None:
    array_folder = make_array()
    with array_folder.opened() as driver:
        write_all(driver, first="1")
    copy = back_up_metadata(array_folder)
    with array_folder.opened() as driver:
        for number in range(6):
            write_all(driver, a=f"old {number}")
        row = driver.array.metadata.find("/a")
        assert row is not None
        driver.delete("/a")
        assert driver.settle(HANG_S)
    restore_metadata(array_folder, copy)
    with array_folder.opened() as driver:
        write_all(driver, a="new")
        new_row = driver.array.metadata.find("/a")
        assert new_row is not None
        assert new_row.generation > row.generation


def test_a_write_acknowledged_after_a_backup_is_kept(make_array: MakeArray, monkeypatch: pytest.MonkeyPatch) -> None:
    array_folder, commit_write = make_array(), Metadata.commit_write

    def commit_after_backup(*arguments: object, **options: object) -> EndedWrite:
        back_up_metadata(array_folder)
        return commit_write(*arguments, **options)  # type: ignore[arg-type]  # passed on as they came

    with array_folder.opened() as driver:
        write_all(driver, first="1")
        monkeypatch.setattr(Metadata, "commit_write", commit_after_backup)
        write_all(driver, a="acknowledged")
        monkeypatch.undo()
    restore_metadata(array_folder, array_folder.folder / "backup")
    with array_folder.opened() as driver:
        assert contents_of(driver) == {"first": "1", "a": "acknowledged"}
        assert_healthy(driver)


def test_a_copy_without_the_write_ahead_log_counts_as_old(make_array: MakeArray) -> None:
    array_folder = make_array()
    with array_folder.opened() as driver:
        write_all(driver, a="1")
    with array_folder.opened() as driver:
        write_all(driver, a="2", b="1")
        shutil.copy(array_folder.metadata, array_folder.folder / "backup")  # while the log holds the newer transactions
        write_all(driver, c="1")
    restore_metadata(array_folder, array_folder.folder / "backup")
    with array_folder.opened() as driver:
        assert contents_of(driver) == {"a": "2", "b": "1", "c": "1"}


def test_operations_of_an_open_process_fail_after_a_restore(make_array: MakeArray) -> None:
    array_folder = make_array()
    with array_folder.opened() as driver:
        write_all(driver, a="1")
        copy = back_up_metadata(array_folder)
        write_all(driver, a="2")
        restore_metadata(array_folder, copy)
        for operation in (lambda: write_all(driver, b="1"), lambda: driver.stat("/a"), lambda: driver.delete("/a")):
            with pytest.raises(CloudError, match="was replaced or removed while this process used it"):
                operation()
    with array_folder.opened() as driver:
        assert contents_of(driver) == {"a": "2"}


def test_an_old_copy_written_into_the_open_file_is_noticed(make_array: MakeArray) -> None:
    array_folder = make_array()
    with array_folder.opened() as driver:
        write_all(driver, a="1")
        copy = back_up_metadata(array_folder)
        write_all(driver, a="2")
        with closing(sqlite3.connect(copy)) as source, closing(sqlite3.connect(array_folder.metadata)) as target:
            source.backup(target)
        for operation in (lambda: write_all(driver, b="1"), lambda: driver.stat("/a")):
            with pytest.raises(CloudError, match="an older copy took the place of"):
                operation()
    with array_folder.opened() as driver:
        assert contents_of(driver) == {"a": "2"}


def test_recovery_refuses_while_a_silent_child_may_complete_newer_objects(make_array: MakeArray) -> None:
    array_folder = make_array(2, 1, durability="k+0", mends=False)
    with array_folder.opened() as driver:
        write_all(driver, a="1")
    copy = back_up_metadata(array_folder)
    with array_folder.opened() as driver:
        write_all(driver, a="2")
    for path in array_folder.children[0].packages.values():
        path.unlink()
    restore_metadata(array_folder, copy)
    with array_folder.opened() as driver:
        array_folder.children[1].fails = {"list": ErrorKind.NETWORK}
        with pytest.raises(CloudError, match="may be newer on children that do not answer"):
            driver.stat("/a")
        array_folder.children[1].fails.clear()
        assert contents_of(driver) == {"a": "2"}


def test_objects_unreadable_after_metadata_loss_are_reported(make_array: MakeArray) -> None:
    array_folder = make_array()
    with array_folder.opened() as driver:
        write_all(driver, a="1", b="1")
        row = driver.array.metadata.find("/a")
        assert row is not None
        for child in (0, 1):
            (name,) = driver.array.package_names(row.version, child, row.segments)
            array_folder.children[child].packages[name].unlink()
    array_folder.lose_metadata()
    with array_folder.opened() as driver:
        assert contents_of(driver) == {"b": "1"}
        state = survey_array(driver.array)
        assert state.unknown_paths == ["/a"]
        assert not state.is_healthy
        assert discard_incomplete_versions(driver.array) == 1
        assert_healthy(driver)


def test_new_metadata_reports_children_that_list_packages_and_do_not_return_them(make_array: MakeArray) -> None:
    array_folder = make_array()
    with array_folder.opened() as driver:
        write_all(driver, a="1")
    array_folder.lose_metadata()
    with array_folder.opened() as driver:
        for child in array_folder.children:
            child.fails = {"get": ErrorKind.THROTTLED}
        with pytest.raises(CloudError, match=r"3 of 3 children do not return their packages: .*throttled") as caught:
            contents_of(driver)
        assert caught.value.kind is ErrorKind.THROTTLED
        for child in array_folder.children:
            child.fails.clear()
        assert contents_of(driver) == {"a": "1"}


def test_a_manifest_of_a_large_object_is_taken_in(make_array: MakeArray) -> None:
    array_folder = make_array()
    with array_folder.opened() as driver:
        array = driver.array
        coded = CodedSegment(MIB, Split(170, (85, 85, 85)), (bytes(32),) * 255)
        manifest = Manifest(b"v" * 16, 1, "/large", 2100 * MIB, bytes(32), bytes(7), (coded,) * 2100)
        name = array.package_name(manifest, 0, 2099)
        head = array.make_head(manifest, name)
        assert len(head) > 16 * MIB
        array_folder.children[0].put(array.children.path_of(name), Literal(head))
        (version,), _ = find_versions(array, {0: {name: len(head)}}, {})
        assert version.manifest == manifest


def test_a_version_that_silent_children_may_complete_is_not_discarded(make_array: MakeArray) -> None:
    array_folder = make_array(2, 2)
    with array_folder.opened() as driver:
        write_all(driver, a="1")
    array_folder.lose_metadata()
    array_folder.lose_child(0)
    with array_folder.opened() as driver:
        for child in array_folder.children[2:]:
            child.fails = {"list": ErrorKind.NETWORK}
        assert contents_of(driver) == {}, "one package of two can be seen"
        assert discard_incomplete_versions(driver.array) == 0
        assert survey_array(driver.array).unknown_paths == ["/a"]
    with array_folder.opened() as driver:
        assert driver.recover().objects == 1
        assert contents_of(driver) == {"a": "1"}


def test_a_version_that_silent_children_cannot_complete_is_discarded(make_array: MakeArray) -> None:
    array_folder = make_array(3, 1)
    with array_folder.opened() as driver:
        write_all(driver, a="1")
    array_folder.lose_metadata()
    for child in (0, 1):
        array_folder.lose_child(child)
    with array_folder.opened() as driver:
        array_folder.children[3].fails = {"list": ErrorKind.NETWORK}
        assert contents_of(driver) == {}
        assert discard_incomplete_versions(driver.array) == 1


@pytest.mark.parametrize("count", [0, 1, 2])
def test_an_object_half_deleted_after_a_backup_is_reported(make_array: MakeArray, count: int) -> None:
    """A process that was killed while it deleted the object's three packages may have left some of them."""
    array_folder = make_array()
    with array_folder.opened() as driver:
        write_all(driver, deleted="1", kept="1")
        copy = back_up_metadata(array_folder)
        row = driver.array.metadata.find("/deleted")
        assert row is not None
        packages = [
            child.packages[name]
            for number, child in enumerate(array_folder.children)
            for name in driver.array.package_names(row.version, number, row.segments)
        ]
        contents = {path: path.read_bytes() for path in packages[:count]}
        driver.delete("/deleted")
        assert driver.settle(HANG_S)
    for path, data in contents.items():
        path.write_bytes(data)
    restore_metadata(array_folder, copy)
    for _ in range(2):
        with array_folder.opened() as driver:
            is_readable = count == 2
            assert contents_of(driver) == {"kept": "1", **({"deleted": "1"} if is_readable else {})}
            assert survey_array(driver.array).unknown_paths == ["/deleted"] * (count == 1)
            assert all(path.exists() for path in contents), "what is left is not deleted unasked"
    with array_folder.opened() as driver:
        assert set(contents_of(driver)) >= {"kept"}
        assert discard_incomplete_versions(driver.array) == (count == 1)
        assert_healthy(driver)


def test_deleted_objects_of_an_emptied_array_are_unreadable_after_a_backup(make_array: MakeArray) -> None:
    """Children without any package may have lost them, so the array does not forget what an old copy lists."""
    array_folder = make_array()
    with array_folder.opened() as driver:
        write_all(driver, deleted="1")
    copy = back_up_metadata(array_folder)
    with array_folder.opened() as driver:
        driver.delete("/deleted")
        assert driver.settle(HANG_S)
        assert not any(child.packages for child in array_folder.children)
    restore_metadata(array_folder, copy)
    with array_folder.opened() as driver:
        assert [entry.path for entry in driver.list("/")] == ["/deleted"]
        assert survey_array(driver.array).unreadable_paths == ["/deleted"]
        assert read_objects(array_folder, driver, {"/deleted"}) == {}
        assert_healthy(driver)


def read_objects(array_folder: ArrayFolder, driver: RaidDriver, deleted: set[str]) -> dict[str, bytes]:
    """Return the contents of all objects. Delete those that an old copy lists although they were deleted.

    There are such objects only if a child has no packages at all.
    """
    objects, has_empty_child = dict[str, bytes](), not all(child.packages for child in array_folder.children)
    for entry in [*driver.list("/")]:
        try:
            objects[entry.path] = b"".join(driver.get(entry.path))
        except CloudError as error:
            if error.kind is not ErrorKind.NOT_FOUND or not has_empty_child or entry.path not in deleted:
                raise
            driver.delete(entry.path)
    return objects


@pytest.mark.slow
def test_backups_and_kills_at_any_time_lose_nothing(make_array: MakeArray) -> None:
    """An object that was overwritten and deleted may come back, if the kill came before its packages were deleted.

    If everything was deleted, the old copy may list what nobody can read.
    """
    array_folder, rng, expected = make_array(), random.Random(7), dict[str, bytes]()
    for round_ in range(12):
        operation: list[str] = []
        deleted = set[str]()
        if array_folder.metadata.exists():
            back_up_metadata(array_folder)
        for words in run_until_killed(array_folder.folder, round_, rng.randrange(1, 30)):
            if words[0] == "done":
                expected = apply_operation(operation, round_, expected)
                deleted |= {operation[1]} if operation[0] == "delete" else set()
            operation = words if words[0] in ("put", "delete") else []
        if (array_folder.folder / "backup").exists() and rng.random() < 0.7:
            restore_metadata(array_folder, array_folder.folder / "backup")
        may_be_deleted = deleted | {operation[1] for _ in operation[:1] if operation[0] == "delete"}
        with array_folder.opened() as driver:
            objects = read_objects(array_folder, driver, may_be_deleted)
            without_resurrected = {
                path: content for path, content in objects.items() if path in expected or path not in deleted
            }
            assert without_resurrected in (expected, apply_operation(operation, round_, expected)), (round_, operation)
            expected = objects
            discard_incomplete_versions(driver.array)
            assert_healthy(driver)


# --- other children ---


def test_writes_with_outdated_children_fail(make_array: MakeArray) -> None:
    array_folder = make_array()
    with array_folder.opened() as driver:
        write_all(driver, before="1")
        old_children = array_folder.children
        text = array_folder.file.read_text("utf-8")
        array_folder.file.write_text(
            text.replace(f"folder:{array_folder.folder}/0", f"folder:{array_folder.folder}/new"), "utf-8"
        )
        shutil.move(array_folder.folder / "0", array_folder.folder / "gone")
        (array_folder.folder / "new").mkdir()
        (array_folder.folder / "0").symlink_to(array_folder.folder / "new")
        with array_folder.opened() as other:
            assert contents_of(other) == {"before": "1"}
            assert other.settle(HANG_S), "what it lacks was noted and rebuilt"
            for operation in (lambda: driver.put("/after", Literal(b"1")), lambda: driver.delete("/before")):
                with pytest.raises(CloudError, match="the array has other children since"):
                    operation()
            assert contents_of(driver) == {"before": "1"}, "reading harms nobody"
            assert_healthy(other)
        assert not old_children[0].fails


def test_a_slow_child_with_another_spec_keeps_its_packages(make_array: MakeArray) -> None:
    """A new parameter is another spec, too, and a listing may take longer than a read waits for a child."""
    array_folder = make_array(patience_s=0.001)
    with array_folder.opened() as driver:
        write_all(driver, **{f"{number}": "1" for number in range(20)})
    text = array_folder.file.read_text("utf-8")
    array_folder.file.write_text(text.replace('/0"', '/0?fsync=1"'), "utf-8")
    with array_folder.opened() as driver, ThreadPoolExecutor(1) as executor:
        slow = array_folder.children[0]
        slow.frozen = {"list"}
        stat = executor.submit(driver.stat, "/1")
        assert slow.has_frozen.wait(HANG_S)
        for _ in range(20):  # takes longer than the patience
            assert list(array_folder.children[1].list("/"))
        slow.thawed.set()
        stat.result(HANG_S)
        assert not driver.array.metadata.missing_packages()
        assert driver.settle(HANG_S)
        assert "put" not in slow.called_verbs


@pytest.mark.parametrize("lost", [0, 1, 20])
@pytest.mark.parametrize("silence", [["fails"], ["fails", "fails"], ["fails", "frozen"]])
def test_silent_child_with_another_spec_is_compared_once_it_answers(
    make_array: MakeArray, silence: list[str], lost: int
) -> None:
    """An error says nothing about a child's packages, which are neither there nor missing until it answers."""
    array_folder = make_array(patience_s=0.001)
    contents = {f"{number}": "1" for number in range(20)}
    with array_folder.opened() as driver:
        write_all(driver, **contents)
        packages = array_folder.children[0].packages
    text = array_folder.file.read_text("utf-8")
    array_folder.file.write_text(text.replace('/0"', '/0?fsync=1"'), "utf-8")
    for trouble in silence:
        with array_folder.opened() as driver:
            child = array_folder.children[0]
            setattr(child, trouble, {"list": ErrorKind.NETWORK})
            assert contents_of(driver) == contents
            child.thawed.set()
            assert driver.settle(HANG_S)
            assert "put" not in child.called_verbs
    for name in [*packages][:lost]:
        packages[name].unlink()
    array_folder.file.write_text(array_folder.file.read_text("utf-8").replace("0.001", "60"), "utf-8")
    with array_folder.opened() as earlier, array_folder.opened() as driver:
        assert driver.stat("/1").size_bytes == 1
        assert driver.settle(HANG_S)
        assert array_folder.children[0].called_verbs.count("put") == lost
        write_all(earlier, later="1")
        assert contents_of(driver) == {**contents, "later": "1"}
        assert_healthy(driver)


# --- the key ---


@pytest.mark.parametrize("keeps_metadata", [False, True])
def test_no_new_key_is_created_while_packages_need_the_missing_one(make_array: MakeArray, keeps_metadata: bool) -> None:
    array_folder = make_array()
    with array_folder.opened() as driver:
        write_all(driver, a="1")
    key = array_folder.folder / "array.key"
    key.rename(array_folder.folder / "copy")
    if not keeps_metadata:
        array_folder.lose_metadata()
    with pytest.raises(CredentialsError, match=r"missing, but .* put it back from your copy"), array_folder.opened():
        pass
    assert not key.exists()
    (array_folder.folder / "copy").rename(key)
    with array_folder.opened() as driver:
        assert contents_of(driver) == {"a": "1"}


def test_no_new_key_is_created_while_a_child_is_silent(make_array: MakeArray, monkeypatch: pytest.MonkeyPatch) -> None:
    from .harness import Child

    def refuse(child: Child, folder: str) -> None:
        raise CloudError(ErrorKind.NETWORK, "list", folder, detail="no route")

    array_folder = make_array()
    (array_folder.folder / "array.key").unlink()
    monkeypatch.setattr(Child, "list", refuse)
    with (
        pytest.raises(CredentialsError, match="no new key is created before every child confirms"),
        array_folder.opened(),
    ):
        pass
    monkeypatch.undo()
    with array_folder.opened() as driver:
        write_all(driver, a="1")
    assert (array_folder.folder / "array.key").exists()


# --- a lock, and damage ---

STOPPED_WRITER = """
import os, signal, sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN IMMEDIATE")
os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system does not say who holds a lock")
def test_a_timeout_names_the_process_that_holds_the_lock(
    make_array: MakeArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    array_folder = make_array()
    with array_folder.opened() as driver:
        write_all(driver, a="1")
        with subprocess.Popen([sys.executable, "-c", STOPPED_WRITER, str(array_folder.metadata)]) as process:
            try:
                os.waitpid(process.pid, os.WUNTRACED)
                driver.array.metadata._db.execute("PRAGMA busy_timeout = 100")
                assert contents_of(driver) == {"a": "1"}, "readers do not wait"
                with pytest.raises(CloudError) as caught:
                    driver.put("/b", Literal(b"1"))
                assert f"process {process.pid} (" in caught.value.detail
                assert "which is stopped" in caught.value.detail
                assert "\n" not in str(caught.value)
            finally:
                os.kill(process.pid, signal.SIGCONT)
        write_all(driver, b="1")
        assert contents_of(driver) == {"a": "1", "b": "1"}
    assert database._BUSY_S <= 10


def recover_and_read(array_folder: ArrayFolder) -> dict[str, str]:
    from pytest_cloudbench.commands import cli

    assert cli.main(["raid", "recover", str(array_folder.file)]) == 0
    with array_folder.opened() as driver:
        return contents_of(driver)


@pytest.mark.parametrize("seed", range(24))
def test_damaged_metadata_error_names_the_command_to_rebuild_it(
    make_array: MakeArray, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    array_folder, rng = make_array(), random.Random(seed)
    contents = {f"{number}": f"content {number}" for number in range(5)}
    with array_folder.opened() as driver:
        write_all(driver, **contents)
    data = bytearray(array_folder.metadata.read_bytes())
    page = rng.randrange(len(data) // 4096) * 4096
    match seed % 4:
        case 0:
            data[page : page + 4096] = bytes(4096)
        case 1:
            del data[rng.randrange(len(data)) :]
        case 2:
            data[page : page + 4096] = rng.randbytes(4096)
        case _:
            for _ in range(40):
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    array_folder.metadata.write_bytes(data)
    try:
        with array_folder.opened() as driver:
            assert contents_of(driver) == contents, "the damage was nowhere in use"
    except (UsageError, CloudError) as error:
        refusal = str(error)
    else:
        refusal = ""
    assert not refusal or f"rebuild it with: cloudbench raid recover {array_folder.file}" in refusal
    assert "\n" not in refusal
    assert recover_and_read(array_folder) == contents
    assert "5 objects" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "value"), [("layout", "490003f7ada153d5"), ("unverified", "12x")])
def test_a_setting_that_is_no_number_is_damage(make_array: MakeArray, name: str, value: str) -> None:
    array_folder = make_array()
    with array_folder.opened() as driver:
        write_all(driver, a="1")
        driver.array.metadata.put_setting(name, value)
    with pytest.raises(UsageError, match="rebuild it with: cloudbench raid recover"), array_folder.opened() as driver:
        contents_of(driver)
    assert recover_and_read(array_folder) == {"a": "1"}


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
def test_garbage_in_sqlite_s_side_files_is_ignored(make_array: MakeArray, suffix: str) -> None:
    array_folder = make_array()
    with array_folder.opened() as driver:
        write_all(driver, a="1", b="1")
    array_folder.metadata.with_name(f"array.sqlite{suffix}").write_bytes(random.Random(suffix).randbytes(40_000))
    with array_folder.opened() as driver:
        assert contents_of(driver) == {"a": "1", "b": "1"}


def test_pages_of_different_times_count_as_damage(make_array: MakeArray) -> None:
    array_folder = make_array()
    with array_folder.opened() as driver:
        write_all(driver, a="1")
    with closing(sqlite3.connect(array_folder.metadata)) as db, db:
        db.execute("DELETE FROM objects")
    with pytest.raises(UsageError, match="its pages are from different times"), array_folder.opened():
        pass
    assert recover_and_read(array_folder) == {"a": "1"}


def test_a_write_discarded_by_another_process_fails(make_array: MakeArray) -> None:
    array_folder = make_array()
    with array_folder.opened() as driver:
        write_all(driver, a="1")
        metadata = driver.array.metadata
        array_folder.children[0].after_put = lambda: metadata._db.execute("DELETE FROM writes")
        with pytest.raises(CloudError, match="another process has discarded this write"):
            driver.put("/a", Literal(b"2"))
        array_folder.children[0].after_put = None
        assert contents_of(driver) == {"a": "1"}
        assert_healthy(driver)
