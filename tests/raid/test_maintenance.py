"""Surveys, repairs, moves and exports, with children that lost, changed or refuse things, and kills at every step."""

from __future__ import annotations

import json
import platform
import random
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.model import MIB, CloudError, ErrorKind
from pytest_cloudbench.raid import config
from pytest_cloudbench.raid import driver as driver_module
from pytest_cloudbench.raid.array import Array
from pytest_cloudbench.raid.coding.policies import Split
from pytest_cloudbench.raid.costs import Costs
from pytest_cloudbench.raid.driver import open_array, prepare_array
from pytest_cloudbench.raid.maintenance import export_objects, note_all_missing, rebalance_array, repair_array
from pytest_cloudbench.raid.reading import read_object
from pytest_cloudbench.raid.survey import survey_array
from pytest_cloudbench.raid.writing import write_object
from pytest_cloudbench.workload.payload.contents import Literal

from .harness import Child, Lab

Make = Callable[..., Lab]
FILES = {"/a": b"", "/folder/b": b"b" * 1000, "/folder/c": random.Random(3).randbytes(2 * MIB + 12345)}


def filled(lab: Lab) -> Lab:
    with lab.opened() as driver:
        for path, content in FILES.items():
            driver.put(path, Literal(content))
        assert driver.settle(10)
    return lab


@contextmanager
def array_of(lab: Lab, **policies: Any) -> Iterator[Array]:
    """The array without upkeep, so that only the repair rebuilds."""
    lab.children = [Child(lab.folder / str(number)) for number in range(lab.k + lab.m)]
    array = open_array(config.load(lab.file), lab.children, **policies)
    try:
        yield prepare_array(array, "test", "/")
    finally:
        array.children.close()
        array.metadata.close()


def read_all(lab: Lab, without: int | None = None) -> dict[str, bytes]:
    with lab.opened() as driver:
        if without is not None:
            lab.children[without].fails = {"get": ErrorKind.SERVER}
        return {entry.path: b"".join(driver.get(entry.path)) for entry in driver.list("/")}


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


# --- surveys ---


def test_nothing_is_found_where_nothing_is_wrong(lab: Make) -> None:
    with array_of(filled(lab(2, 2))) as array:
        for deep in (False, True):
            found = survey_array(array, deep=deep)
            assert found.is_healthy
            assert (found.objects, found.whole, found.content_bytes) == (3, 3, sum(map(len, FILES.values())))
            assert [(child.expected, child.held, child.strange) for child in found.children] == [(5, 5, 0)] * 4
        assert not array.metadata.missing_packages()


def test_an_emptied_child_is_found_by_its_listing(lab: Make) -> None:
    made = filled(lab(2, 2))
    made.lose_child(1)
    with array_of(made) as array:
        found = survey_array(array)
        assert [child.missing for child in found.children] == [0, 5, 0, 0]
        assert (found.whole, found.degraded, found.at_risk, found.unreadable) == (0, 3, 0, 0)
        assert len(array.metadata.missing_packages()) == 5


def test_a_child_that_does_not_answer_is_not_one_that_lost_everything(lab: Make) -> None:
    with array_of(filled(lab(2, 2))) as array:
        array.children.drivers[2].fails = {"list": ErrorKind.NETWORK}  # type: ignore[attr-defined]  # the test's own
        found = survey_array(array)
        assert found.children[2].unreachable == "network (trouble)"
        assert (found.children[2].held, found.children[2].missing) == (0, 0)
        assert not found.is_healthy
        assert not array.metadata.missing_packages(), "it may have everything"


def test_a_scrub_soon_stops_asking_a_child_that_returns_nothing(lab: Make) -> None:
    with array_of(filled(lab(2, 2))) as array:
        silent: Any = array.children.drivers[2]
        silent.fails = {"get": ErrorKind.NETWORK}
        found = survey_array(array, deep=True)
        assert [child.unread for child in found.children] == [0, 0, 5, 0]
        assert silent.asked.count("get") == 3, "each may take as long as its driver waits"
        assert not found.is_healthy
        assert not array.metadata.missing_packages(), "it may have everything"


def test_at_risk_is_what_no_further_child_may_lose(lab: Make) -> None:
    made = filled(lab(2, 2))
    made.lose_child(0)
    made.lose_child(3)
    with array_of(made) as array:
        assert survey_array(array).at_risk == 3
    made.lose_child(2)
    with array_of(made) as array:
        found = survey_array(array)
        assert found.unreadable == 3
        assert sorted(found.unreadable_paths) == sorted(FILES)


@pytest.mark.parametrize("at", [-1, 10], ids=["share", "manifest"])
def test_a_flipped_bit_names_its_child_and_only_a_scrub_sees_it(lab: Make, at: int) -> None:
    made = filled(lab(2, 1))
    with array_of(made) as array:
        name = next(name for name in sorted(made.children[2].packages) if name.startswith("m"))
        flip(made.children[2].packages[name], at)
        assert survey_array(array).is_healthy
        found = survey_array(array, deep=True)
        assert [child.damaged for child in found.children] == [0, 0, 1]
        assert repair_array(array).mended == 1
        assert survey_array(array, deep=True).is_healthy


def test_what_belongs_to_no_object_is_counted_and_left(lab: Make) -> None:
    made = filled(lab(2, 1))
    stranger = made.folder / "0" / "cloudraid" / "d00"
    stranger.write_bytes(b"another array's")
    with array_of(made) as array:
        found = survey_array(array)
        assert [child.strange for child in found.children] == [1, 0, 0]
        assert found.is_healthy
        repair_array(array)
    assert stranger.exists()


# --- repairs ---


def test_a_repair_makes_the_same_shares_again(lab: Make) -> None:
    made = filled(lab(2, 2))
    before = {name: path.read_bytes()[-100:] for name, path in Child(made.folder / "1").packages.items()}
    made.lose_child(1)
    with array_of(made) as array:
        survey_array(array)
        done = repair_array(array)
        assert (done.mended, done.is_complete) == (5, True)
        assert survey_array(array, deep=True).is_healthy
    after = {name: path.read_bytes()[-100:] for name, path in Child(made.folder / "1").packages.items()}
    assert after.keys() == before.keys()
    large = {name for name in before if name.startswith("d")}
    assert {name: after[name] for name in large} == {name: before[name] for name in large}
    assert read_all(made, without=0) == FILES


def test_a_child_that_refuses_is_told_and_the_others_are_mended(lab: Make) -> None:
    made = filled(lab(2, 2))
    made.lose_child(1)
    made.lose_child(2)
    with array_of(made) as array:
        survey_array(array)
        made.children[1].fails = {"put": ErrorKind.QUOTA}
        done = repair_array(array)
        assert done.mended == 5
        assert list(done.left.values()) == [5]
        assert "quota" in next(iter(done.reasons.values()))
        assert made.children[1].asked.count("put") == 1, "it is left alone after the first refusal"
        made.children[1].fails.clear()
        assert repair_array(array).is_complete
        assert survey_array(array).is_healthy


def test_too_few_shares_are_told_and_what_can_be_mended_is(lab: Make) -> None:
    made = filled(lab(2, 1))
    with array_of(made) as array:
        survey_array(array)
        for child in (0, 1):  # of one object two of three shares are gone
            row = array.metadata.find("/a")
            assert row is not None
            (name,) = array.package_names(row.version, child, row.segments)
            made.children[child].packages[name].unlink()
        found = survey_array(array)
        assert (found.unreadable, found.unreadable_paths) == (1, ["/a"])
        done = repair_array(array)
        assert done.lost_paths == ["/a"]
        assert not done.is_complete
    content = read_all_but(made, "/a")
    assert content == {path: FILES[path] for path in FILES if path != "/a"}


def read_all_but(lab: Lab, lost: str) -> dict[str, bytes]:
    with lab.opened() as driver:
        with pytest.raises(CloudError):
            b"".join(driver.get(lost))
        return {entry.path: b"".join(driver.get(entry.path)) for entry in driver.list("/") if entry.path != lost}


# --- kills at every step ---


class _Killed(BaseException):
    """The process ends here, without any notice."""


DEAD = json.dumps([platform.node(), "another boot", "", 1, 1])
"""A process that no longer exists, as the metadata describes it."""


@contextmanager
def killed_at(step: int, lab: Lab, **policies: Any) -> Iterator[tuple[Array, list[str]]]:
    """An array that stops after this many steps, and the steps that were taken."""
    steps: list[str] = []

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **options: Any) -> Any:
            if len(steps) >= step:
                raise _Killed
            steps.append(name)
            return call(*args, **options)

        return wrapper

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver_module, "owner_text", lambda: DEAD)
        with array_of(lab, **policies) as array:
            for name in ("put_package", "get_package", "delete_packages"):
                patch.setattr(array.children, name, counted(name, getattr(array.children, name)))
            for name in (
                "note_transfer_end",
                "note_missing",
                "note_deleted",
                "begin_write",
                "commit_write",
                "abandon_write",
            ):
                patch.setattr(array.metadata, name, counted(name, getattr(array.metadata, name)))
            with suppress(_Killed):
                yield array, steps


SMALL = {"/a": b"a" * 1000, "/b": b"b" * 2000}


def small(lab: Lab) -> Lab:
    with lab.opened() as driver:
        for path, content in SMALL.items():
            driver.put(path, Literal(content))
        assert driver.settle(10)
    return lab


def test_a_repair_that_ends_at_any_step_goes_on(lab: Make) -> None:
    made = small(lab(2, 2))
    all_steps: list[str] = []
    for step in range(40):
        made.lose_child(1)
        with killed_at(step, made) as (array, steps):
            survey_array(array)
            repair_array(array)
            all_steps = steps
        if len(steps) < step:
            break  # it came to its end
        assert read_all(made, without=0) == SMALL, step
        with array_of(made) as array:
            repair_array(array)
            found = survey_array(array, deep=True)
            assert found.is_healthy, (step, found)
            assert sum(child.strange for child in found.children) == 0
    else:
        pytest.fail("it never came to its end")
    assert {"note_missing", "get_package", "put_package", "note_transfer_end"} <= set(all_steps)


class _Only:
    """A placement that gives all shares to two children."""

    def __init__(self, *counts: int) -> None:
        self.counts = counts

    def split(self, size_bytes: int) -> Split:
        return Split(1, self.counts)

    def suits(self, split: Split, size_bytes: int) -> bool:
        return split == self.split(size_bytes)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # threads end with their process
def test_a_rebalance_that_ends_at_any_step_loses_nothing(lab: Make) -> None:
    made = small(lab(2, 2))
    wanted = _Only(0, 1, 1, 1)
    all_steps: list[str] = []
    for step in range(60):
        with killed_at(step, made, placement=wanted) as (array, steps):
            rebalance_array(array)
            all_steps = steps
        if len(steps) < step:
            break
        assert read_all(made) == SMALL, step
        with array_of(made) as array:
            assert repair_array(array).is_complete  # it deletes what the dead process had begun
            found = survey_array(array, deep=True)
            assert found.is_healthy, (step, found)
            assert sum(child.strange for child in found.children) == 0
            rebalance_array(array)  # back again, for the next step
            repair_array(array)
    else:
        pytest.fail("it never came to its end")
    assert {"begin_write", "get_package", "put_package", "commit_write"} <= set(all_steps)


# --- moves ---


def test_a_rebalance_moves_what_is_misplaced_and_nothing_else(lab: Make) -> None:
    made = filled(lab(2, 2))
    with array_of(made) as array:
        assert rebalance_array(array).moved == 0
    with array_of(made, placement=_Only(0, 1, 1, 1)) as array:
        assert rebalance_array(array, dry_run=True).moved == 3
        assert rebalance_array(array, dry_run=True).moved == 3, "nothing was moved"
        done = rebalance_array(array)
        assert (done.objects, done.moved, done.moved_bytes) == (3, 3, sum(map(len, FILES.values())))
        assert rebalance_array(array).moved == 0
        repair_array(array)
        assert not made.children[0].packages
        assert survey_array(array, deep=True).is_healthy
    assert read_all(made) == FILES


def test_a_write_that_comes_in_between_wins(lab: Make) -> None:
    made = small(lab(2, 1))
    with array_of(made, placement=_Only(0, 1, 1)) as array:
        is_first = [True]

        def meanwhile() -> None:
            if is_first[0]:
                is_first[0] = False
                write_object(array, "/a", Literal(b"newer"), Costs())

        made.children[1].after_put = meanwhile
        done = rebalance_array(array)
        assert (done.moved, done.overtaken) == (1, 1)
        assert read_without_upkeep(array) == SMALL | {"/a": b"newer"}


def test_a_copy_never_hides_a_write_that_began_before_it(lab: Make) -> None:
    made = small(lab(2, 1))
    with array_of(made, placement=_Only(0, 1, 1)) as array:
        began = array.metadata.begin_write(b"v" * 16, "/a", 1)
        assert rebalance_array(array).moved == 2
        copy = array.metadata.find("/a")
        assert copy is not None
        assert copy.generation < began, "a copy is as old as its original"


def test_a_child_that_is_another_one_gets_what_the_old_one_had(lab: Make) -> None:
    made = filled(lab(2, 1))
    made.lose_child(2)
    with array_of(made) as array:
        assert note_all_missing(array, 2) == 5
        assert read_without_upkeep(array) == FILES
        assert repair_array(array).mended == 5
        assert survey_array(array, deep=True).is_healthy


def read_without_upkeep(array: Array) -> dict[str, bytes]:
    rows = array.metadata.list_below("/", "/", 100)
    return {row.path: b"".join(read_object(array, array.manifest_of("get", row), 0, Costs())) for row in rows}


# --- exports ---


def test_an_export_is_plain_files(lab: Make, tmp_path: Path) -> None:
    with array_of(filled(lab(2, 1))) as array:
        done = export_objects(array, tmp_path / "out")
    assert (done.objects, done.failed) == (3, {})
    written = {f"/{path.relative_to(tmp_path / 'out').as_posix()}": path.read_bytes()
               for path in (tmp_path / "out").rglob("*") if path.is_file()}  # fmt: skip
    assert written == FILES


def test_an_export_with_the_key_alone(lab: Make, tmp_path: Path) -> None:
    made = filled(lab(2, 1))
    made.lose_metadata()
    made.lose_child(1)
    with array_of(made) as array:
        done = export_objects(array, tmp_path / "out.tar")
    assert (done.objects, done.failed) == (3, {})
    with tarfile.open(tmp_path / "out.tar") as archive:
        members = {f"/{member.name}": archive.extractfile(member) for member in archive}
        assert {path: file.read() for path, file in members.items() if file} == FILES


def test_what_cannot_be_exported_is_told_and_leaves_nothing(lab: Make, tmp_path: Path) -> None:
    made = filled(lab(2, 1))
    with array_of(made) as array:
        row = array.metadata.find("/folder/c")
        assert row is not None
        for child in (0, 1):
            name = array.package_names(row.version, child, row.segments)[0]  # of the last segment
            made.children[child].packages[name].unlink()
        done = export_objects(array, tmp_path / "out")
        assert list(done.failed) == ["/folder/c"]
        assert {path.name for path in (tmp_path / "out").rglob("*") if path.is_file()} == {"a", "b"}
        assert list(export_objects(array, tmp_path / "out.tar").failed) == ["/folder/c"]
    with tarfile.open(tmp_path / "out.tar") as archive:
        assert archive.getnames() == ["a", "folder/b"]


def test_a_file_and_a_folder_of_one_name_go_into_an_archive(lab: Make, tmp_path: Path) -> None:
    made = lab(2, 1)
    with made.opened() as driver:
        for path in ("/x", "/x/y"):
            driver.put(path, Literal(path.encode()))
    with array_of(made) as array:
        assert list(export_objects(array, tmp_path / "out").failed) == ["/x/y"]
        assert export_objects(array, tmp_path / "out.tar").objects == 2


def test_a_name_that_cannot_be_a_file_s_does_not_end_an_export(lab: Make, tmp_path: Path) -> None:
    made, long = lab(2, 1), f"/{'n' * 300}"
    with made.opened() as driver:
        for path in ("/a", long, "/z"):
            driver.put(path, Literal(path.encode()))
        with pytest.raises(CloudError, match="a NUL in a name"):
            driver.put("/b\0c", Literal(b""))
    with array_of(made) as array:
        done = export_objects(array, tmp_path / "out")
        assert done.objects == 2
        assert done.failed == {long: "this system does not allow such a long name; export to a .tar"}
        assert export_objects(array, tmp_path / "out.tar").objects == 3
