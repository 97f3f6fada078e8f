"""Exports of all objects as plain files, where children lost packages, objects change, or names are impossible."""

from __future__ import annotations

import errno
import os
import tarfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.model import CloudError
from pytest_cloudbench.raid.costs import Costs
from pytest_cloudbench.raid.maintenance import export_objects
from pytest_cloudbench.raid.upkeep import delete_leftovers
from pytest_cloudbench.raid.writing import write_object
from pytest_cloudbench.support.opening import write_whole
from pytest_cloudbench.workload.payload.contents import Literal

from .harness import ArrayFolder
from .test_maintenance import FILES, opened_array, write_files

MakeArray = Callable[..., ArrayFolder]


def test_an_export_writes_plain_files(make_array: MakeArray, tmp_path: Path) -> None:
    with opened_array(write_files(make_array(2, 1))) as array:
        export = export_objects(array, tmp_path / "out")
    assert (export.objects, export.failed) == (3, {})
    exported = {f"/{path.relative_to(tmp_path / 'out').as_posix()}": path.read_bytes()
               for path in (tmp_path / "out").rglob("*") if path.is_file()}  # fmt: skip
    assert exported == FILES


def test_an_export_needs_only_the_key_and_k_children(make_array: MakeArray, tmp_path: Path) -> None:
    array_folder = write_files(make_array(2, 1))
    array_folder.lose_metadata()
    array_folder.lose_child(1)
    with opened_array(array_folder) as array:
        export = export_objects(array, tmp_path / "out.tar")
    assert (export.objects, export.failed) == (3, {})
    with tarfile.open(tmp_path / "out.tar") as archive:
        members = {f"/{member.name}": archive.extractfile(member) for member in archive}
        assert {path: file.read() for path, file in members.items() if file} == FILES


def test_an_unreadable_object_is_reported_and_leaves_no_file(make_array: MakeArray, tmp_path: Path) -> None:
    array_folder = write_files(make_array(2, 1))
    with opened_array(array_folder) as array:
        row = array.metadata.find("/folder/c")
        assert row is not None
        for child in (0, 1):
            name = array.package_names(row.version, child, row.segments)[0]  # of the last segment
            array_folder.children[child].packages[name].unlink()
        export = export_objects(array, tmp_path / "out")
        assert list(export.failed) == ["/folder/c"]
        assert {path.name for path in (tmp_path / "out").rglob("*") if path.is_file()} == {"a", "b"}
        assert list(export_objects(array, tmp_path / "out.tar").failed) == ["/folder/c"]
    with tarfile.open(tmp_path / "out.tar") as archive:
        assert archive.getnames() == ["a", "folder/b"]


@pytest.mark.parametrize("name", ["out", "out.tar"])
def test_an_export_follows_objects_that_are_replaced_or_deleted_meanwhile(
    make_array: MakeArray, tmp_path: Path, name: str
) -> None:
    array_folder = make_array(2, 1)
    with array_folder.opened() as driver:
        for path in ("/a", "/b", "/c", "/d"):
            driver.put(path, Literal(path.encode()))
    with opened_array(array_folder) as array:

        def change_objects(step: str, done: int, total: int) -> None:
            if done == 1:
                write_object(array, "/b", Literal(b"newer"), Costs())
                deleted = array.metadata.find("/c")
                assert deleted is not None
                array.metadata.remove_object(deleted, 3)
                assert not delete_leftovers(array, array.metadata.garbage(), Costs())

        export = export_objects(array, tmp_path / name, change_objects)
    assert (export.objects, export.content_bytes, export.failed) == (3, 9, {})
    if name == "out.tar":
        with tarfile.open(tmp_path / name) as archive:
            members = {member.name: archive.extractfile(member) for member in archive}
            exported = {path: file.read() for path, file in members.items() if file}
    else:
        exported = {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
    assert exported == {"a": b"/a", "b": b"newer", "d": b"/d"}


def test_a_file_and_a_folder_of_one_name_need_an_archive(make_array: MakeArray, tmp_path: Path) -> None:
    array_folder = make_array(2, 1)
    with array_folder.opened() as driver:
        for path in ("/x", "/x/y"):
            driver.put(path, Literal(path.encode()))
    with opened_array(array_folder) as array:
        assert list(export_objects(array, tmp_path / "out").failed) == ["/x/y"]
        assert export_objects(array, tmp_path / "out.tar").objects == 2


def test_an_impossible_file_name_does_not_end_an_export(make_array: MakeArray, tmp_path: Path) -> None:
    array_folder, long_path = make_array(2, 1), f"/{'n' * 300}"
    with array_folder.opened() as driver:
        for path in ("/a", long_path, "/z"):
            driver.put(path, Literal(path.encode()))
        with pytest.raises(CloudError, match="a NUL in a name"):
            driver.put("/b\0c", Literal(b""))
    with opened_array(array_folder) as array:
        export = export_objects(array, tmp_path / "out")
        assert export.objects == 2
        assert export.failed == {long_path: "this system does not allow such a long name; export to a .tar"}
        assert export_objects(array, tmp_path / "out.tar").objects == 3


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EILSEQ])
def test_a_name_that_a_file_system_refuses_does_not_end_an_export(
    make_array: MakeArray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    array_folder = make_array(2, 1)
    with array_folder.opened() as driver:
        for path in ("/a", "/b?", "/z"):
            driver.put(path, Literal(path.encode()))

    def refuse(path: Path, *arguments: Any, **options: Any) -> None:
        if path.name == "b?":
            raise OSError(number, os.strerror(number))
        write_whole(path, *arguments, **options)

    # As FAT and others do, which no test can mount everywhere.
    monkeypatch.setattr("pytest_cloudbench.raid.maintenance.write_whole", refuse)
    with opened_array(array_folder) as array:
        export = export_objects(array, tmp_path / "out")
    assert export.objects == 2
    assert export.failed == {"/b?": "this system does not allow such a file name; export to a .tar"}


def write_names(array_folder: ArrayFolder, *names: str) -> None:
    with array_folder.opened() as driver:
        for name in names:
            driver.put(f"/folder/{name}", Literal(name.encode()))


@pytest.mark.parametrize(
    ("first", "second"),
    [("README", "Readme"), ("e\u0301", "\u00e9"), ("STRASSE", "stra\u00dfe"), ("name", "name.")],
    ids=["case", "accent", "letters", "dot"],
)
def test_names_that_a_file_system_takes_for_one_need_an_archive(
    make_array: MakeArray, tmp_path: Path, first: str, second: str
) -> None:
    array_folder, folder = make_array(2, 1), tmp_path / "out" / "folder"
    write_names(array_folder, first, second)
    folder.mkdir(parents=True)
    with suppress(FileExistsError):
        (folder / second).symlink_to(first)  # so that both names lead to one file, where they do not do so anyway
    with opened_array(array_folder) as array:
        export = export_objects(array, tmp_path / "out")
        assert export.failed == {
            f"/folder/{second}": f"this system takes its name for that of /folder/{first}; export to a .tar"
        }
        assert export.objects == 1
        assert export_objects(array, tmp_path / "out.tar").objects == 2
    assert (folder / first).read_bytes() == first.encode()


def test_an_export_is_repeated_where_names_differ_in_case(make_array: MakeArray, tmp_path: Path) -> None:
    array_folder = make_array(2, 1)
    write_names(array_folder, "README", "Readme")
    with opened_array(array_folder) as array:
        if export_objects(array, tmp_path / "out").failed:
            pytest.skip("this file system takes both names for one")
        export = export_objects(array, tmp_path / "out")
    assert (export.objects, export.failed) == (2, {})
