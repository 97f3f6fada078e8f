"""Surveys, repairs and moves, with children that lost, changed or refuse things, and kills at every step."""

from __future__ import annotations

import json
import os
import platform
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
from pytest_cloudbench.raid.maintenance import note_all_missing, rebalance_array, repair_array
from pytest_cloudbench.raid.reading import read_object
from pytest_cloudbench.raid.recovery import list_children
from pytest_cloudbench.raid.survey import survey_array
from pytest_cloudbench.raid.writing import write_object
from pytest_cloudbench.workload.payload.contents import Literal
from tests.limits import HANG_S

from .harness import ArrayFolder, Child

MakeArray = Callable[..., ArrayFolder]
FILES = {"/a": b"", "/folder/b": b"b" * 1000, "/folder/c": random.Random(3).randbytes(2 * MIB + 12345)}


def write_files(array_folder: ArrayFolder) -> ArrayFolder:
    with array_folder.opened() as driver:
        for path, content in FILES.items():
            driver.put(path, Literal(content))
        assert driver.settle(10)
    return array_folder


@contextmanager
def opened_array(array_folder: ArrayFolder, **policies: Any) -> Iterator[Array]:
    """Open an array without upkeep, so that only a repair rebuilds."""
    array_folder.children = [
        Child(array_folder.folder / str(number)) for number in range(array_folder.k + array_folder.m)
    ]
    array = open_array(config.load(array_folder.file), array_folder.children, **policies)
    try:
        yield prepare_array(array, "test", "/")
    finally:
        array.children.close()
        array.metadata.close()


def read_all(array_folder: ArrayFolder, without: int | None = None) -> dict[str, bytes]:
    with array_folder.opened() as driver:
        if without is not None:
            array_folder.children[without].fails = {"get": ErrorKind.SERVER}
        return {entry.path: b"".join(driver.get(entry.path)) for entry in driver.list("/")}


def flip_bit(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


# --- surveys ---


def test_a_survey_of_an_intact_array_is_healthy(make_array: MakeArray) -> None:
    with opened_array(write_files(make_array(2, 2))) as array:
        for deep in (False, True):
            state = survey_array(array, deep=deep)
            assert state.is_healthy
            assert (state.objects, state.whole, state.content_bytes) == (3, 3, sum(map(len, FILES.values())))
            assert [(child.expected, child.held, child.strange) for child in state.children] == [(5, 5, 0)] * 4
        assert not array.metadata.missing_packages()


def test_a_listing_shows_an_emptied_child(make_array: MakeArray) -> None:
    array_folder = write_files(make_array(2, 2))
    array_folder.lose_child(1)
    with opened_array(array_folder) as array:
        state = survey_array(array)
        assert [child.missing for child in state.children] == [0, 5, 0, 0]
        assert (state.whole, state.degraded, state.at_risk, state.unreadable) == (0, 3, 0, 0)
        assert len(array.metadata.missing_packages()) == 5


def test_a_silent_child_is_unreachable_and_lacks_nothing(make_array: MakeArray) -> None:
    with opened_array(write_files(make_array(2, 2))) as array:
        array.children.drivers[2].fails = {"list": ErrorKind.NETWORK}  # type: ignore[attr-defined]  # the test's own
        state = survey_array(array)
        assert state.children[2].unreachable == "network (trouble)"
        assert (state.children[2].held, state.children[2].missing) == (0, 0)
        assert not state.is_healthy
        assert not array.metadata.missing_packages(), "it may have everything"


def test_a_scrub_stops_asking_a_failing_child(make_array: MakeArray) -> None:
    with opened_array(write_files(make_array(2, 2))) as array:
        silent: Any = array.children.drivers[2]
        silent.fails = {"get": ErrorKind.NETWORK}
        state = survey_array(array, deep=True)
        assert [child.unread for child in state.children] == [0, 0, 5, 0]
        assert silent.called_verbs.count("get") == 3, "each may take as long as its driver waits"
        assert not state.is_healthy
        assert not array.metadata.missing_packages(), "it may have everything"


def test_objects_that_survive_no_further_loss_are_at_risk(make_array: MakeArray) -> None:
    array_folder = write_files(make_array(2, 2))
    array_folder.lose_child(0)
    array_folder.lose_child(3)
    with opened_array(array_folder) as array:
        assert survey_array(array).at_risk == 3
    array_folder.lose_child(2)
    with opened_array(array_folder) as array:
        state = survey_array(array)
        assert state.unreadable == 3
        assert sorted(state.unreadable_paths) == sorted(FILES)


@pytest.mark.parametrize("at", [-1, 10], ids=["share", "manifest"])
def test_only_a_scrub_finds_a_flipped_bit(make_array: MakeArray, at: int) -> None:
    array_folder = write_files(make_array(2, 1))
    with opened_array(array_folder) as array:
        name = next(name for name in sorted(array_folder.children[2].packages) if name.startswith("m"))
        flip_bit(array_folder.children[2].packages[name], at)
        assert survey_array(array).is_healthy
        state = survey_array(array, deep=True)
        assert [child.damaged for child in state.children] == [0, 0, 1]
        assert repair_array(array).mended == 1
        assert survey_array(array, deep=True).is_healthy


@pytest.mark.parametrize("cut_bytes", [1, 100])
def test_a_package_that_was_cut_short_is_rebuilt(make_array: MakeArray, cut_bytes: int) -> None:
    array_folder = write_files(make_array(2, 1))
    with opened_array(array_folder) as array:
        (cut,) = packages_of(array, array_folder, "/a", child=2)
        os.truncate(cut, cut.stat().st_size - cut_bytes)
        assert [child.missing for child in survey_array(array).children] == [0, 0, 1]
    array_folder.lose_metadata()
    with opened_array(array_folder) as array:
        assert [package.child for package in array.metadata.missing_packages()] == [2]
        assert repair_array(array).mended == 1
        assert survey_array(array, deep=True).is_healthy


def packages_of(array: Array, array_folder: ArrayFolder, path: str, child: int) -> list[Path]:
    row = array.metadata.find(path)
    assert row is not None
    packages = array_folder.children[child].packages
    return [packages[name] for name in array.package_names(row.version, child, row.segments)]


def after_listing(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Let something happen between the listing of a survey and its reading of the metadata."""

    def list_then_act(array: Array) -> Any:
        listed = list_children(array)
        action()
        return listed

    monkeypatch.setattr("pytest_cloudbench.raid.survey.list_children", list_then_act)


def test_an_object_whose_write_ends_during_a_survey_is_not_examined(
    make_array: MakeArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    array_folder = write_small_files(make_array(2, 1))
    with opened_array(array_folder) as array, ThreadPoolExecutor(1) as executor:
        slow = array_folder.children[0]
        slow.frozen = {"put"}
        put = executor.submit(write_object, array, "/new", Literal(b"new"), Costs())
        assert slow.has_frozen.wait(HANG_S)

        def end_write() -> None:
            slow.thawed.set()
            assert put.result(HANG_S)

        after_listing(monkeypatch, end_write)
        state = survey_array(array)
        assert (state.objects, state.written_meanwhile, state.is_healthy) == (2, 1, True)
        assert not array.metadata.missing_packages()


def test_objects_that_move_during_a_survey_are_not_examined(
    make_array: MakeArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    array_folder = write_small_files(make_array(2, 2))
    with opened_array(array_folder, placement=_FixedPlacement(0, 1, 1, 1)) as array:
        after_listing(monkeypatch, lambda: rebalance_array(array))
        state = survey_array(array)
        assert (state.objects, state.written_meanwhile, state.unreadable) == (0, 2, 0)
        assert not array.metadata.missing_packages()


def test_strange_packages_are_counted_and_kept(make_array: MakeArray) -> None:
    array_folder = write_files(make_array(2, 1))
    stranger = array_folder.folder / "0" / "cloudraid" / f"d{'0' * 32}"
    stranger.write_bytes(b"another array's")
    with opened_array(array_folder) as array:
        state = survey_array(array)
        assert [child.strange for child in state.children] == [1, 0, 0]
        assert state.is_healthy
        repair_array(array)
    assert stranger.exists()


def test_files_of_the_user_beside_packages_do_not_matter(make_array: MakeArray) -> None:
    array_folder = make_array(2, 1)
    array_folder.file.write_text(f'{array_folder.file.read_text("utf-8")}folder = "/"\n', "utf-8")
    for number in range(3):
        for name in ("music.txt", "photo", "data.bin"):
            (array_folder.folder / str(number) / name).write_bytes(b"the user's")
    write_small_files(array_folder)
    with opened_array(array_folder) as array:
        state = survey_array(array)
        packages = [child.packages.values() for child in array_folder.children]
        assert [child.held_bytes for child in state.children] == [
            sum(path.stat().st_size for path in paths) for paths in packages
        ]
        assert [child.strange for child in state.children] == [0, 0, 0]


# --- repairs ---


def test_a_repair_rebuilds_identical_shares(make_array: MakeArray) -> None:
    array_folder = write_files(make_array(2, 2))
    before = {name: path.read_bytes()[-100:] for name, path in Child(array_folder.folder / "1").packages.items()}
    array_folder.lose_child(1)
    with opened_array(array_folder) as array:
        survey_array(array)
        repair = repair_array(array)
        assert (repair.mended, repair.is_complete) == (5, True)
        assert survey_array(array, deep=True).is_healthy
    after = {name: path.read_bytes()[-100:] for name, path in Child(array_folder.folder / "1").packages.items()}
    assert after.keys() == before.keys()
    large = {name for name in before if name.startswith("d")}
    assert {name: after[name] for name in large} == {name: before[name] for name in large}
    assert read_all(array_folder, without=0) == FILES


def test_a_repair_skips_a_refusing_child_and_reports_it(make_array: MakeArray) -> None:
    array_folder = write_files(make_array(2, 2))
    array_folder.lose_child(1)
    array_folder.lose_child(2)
    with opened_array(array_folder) as array:
        survey_array(array)
        array_folder.children[1].fails = {"put": ErrorKind.QUOTA}
        repair = repair_array(array)
        assert repair.mended == 5
        assert repair.mended_bytes == sum(path.stat().st_size for path in array_folder.children[2].packages.values())
        assert list(repair.left.values()) == [5]
        assert "quota" in next(iter(repair.reasons.values()))
        assert array_folder.children[1].called_verbs.count("put") == 1, "it is left alone after the first refusal"
        array_folder.children[1].fails.clear()
        assert repair_array(array).is_complete
        assert survey_array(array).is_healthy


def test_a_repair_reports_lost_objects_and_rebuilds_the_others(make_array: MakeArray) -> None:
    array_folder = write_files(make_array(2, 1))
    with opened_array(array_folder) as array:
        survey_array(array)
        for child in (0, 1):  # of one object two of three shares are gone
            row = array.metadata.find("/a")
            assert row is not None
            (name,) = array.package_names(row.version, child, row.segments)
            array_folder.children[child].packages[name].unlink()
        state = survey_array(array)
        assert (state.unreadable, state.unreadable_paths) == (1, ["/a"])
        repair = repair_array(array)
        assert repair.lost_paths == ["/a"]
        assert not repair.is_complete
    content = read_others(array_folder, "/a")
    assert content == {path: FILES[path] for path in FILES if path != "/a"}


def read_others(array_folder: ArrayFolder, lost: str) -> dict[str, bytes]:
    with array_folder.opened() as driver:
        with pytest.raises(CloudError):
            b"".join(driver.get(lost))
        return {entry.path: b"".join(driver.get(entry.path)) for entry in driver.list("/") if entry.path != lost}


# --- kills at every step ---


class _Killed(BaseException):
    """A sudden end of the process."""


DEAD = json.dumps([platform.node(), "another boot", "", 1, 1])
"""The metadata's description of a process that no longer exists."""


@contextmanager
def killed_at(step: int, array_folder: ArrayFolder, **policies: Any) -> Iterator[tuple[Array, list[str]]]:
    """Yield an array that stops after this many steps, and the list of its steps."""
    steps: list[str] = []

    def count_calls(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **options: Any) -> Any:
            if len(steps) >= step:
                raise _Killed
            steps.append(name)
            return call(*args, **options)

        return wrapper

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver_module, "owner_text", lambda: DEAD)
        with opened_array(array_folder, **policies) as array:
            for name in ("put_package", "get_package", "delete_packages"):
                patch.setattr(array.children, name, count_calls(name, getattr(array.children, name)))
            for name in (
                "note_transfer_end",
                "note_missing",
                "note_deleted",
                "begin_write",
                "commit_write",
                "abandon_write",
            ):
                patch.setattr(array.metadata, name, count_calls(name, getattr(array.metadata, name)))
            with suppress(_Killed):
                yield array, steps


SMALL = {"/a": b"a" * 1000, "/b": b"b" * 2000}


def write_small_files(array_folder: ArrayFolder) -> ArrayFolder:
    with array_folder.opened() as driver:
        for path, content in SMALL.items():
            driver.put(path, Literal(content))
        assert driver.settle(10)
    return array_folder


def test_a_repair_killed_at_any_step_is_continued(make_array: MakeArray) -> None:
    array_folder = write_small_files(make_array(2, 2))
    all_steps: list[str] = []
    for step in range(40):
        array_folder.lose_child(1)
        with killed_at(step, array_folder) as (array, steps):
            survey_array(array)
            repair_array(array)
            all_steps = steps
        if len(steps) < step:
            break  # it came to its end
        assert read_all(array_folder, without=0) == SMALL, step
        with opened_array(array_folder) as array:
            repair_array(array)
            state = survey_array(array, deep=True)
            assert state.is_healthy, (step, state)
            assert sum(child.strange for child in state.children) == 0
    else:
        pytest.fail("it never came to its end")
    assert {"note_missing", "get_package", "put_package", "note_transfer_end"} <= set(all_steps)


class _FixedPlacement:
    """A placement with the same counts for every segment, where any one share is enough."""

    def __init__(self, *counts: int) -> None:
        self.counts = counts

    def split(self, size_bytes: int) -> Split:
        return Split(1, self.counts)

    def suits(self, split: Split, size_bytes: int) -> bool:
        return split == self.split(size_bytes)


# In a killed process, its threads would end, too.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_rebalance_killed_at_any_step_loses_nothing(make_array: MakeArray) -> None:
    array_folder = write_small_files(make_array(2, 2))
    placement = _FixedPlacement(0, 1, 1, 1)
    all_steps: list[str] = []
    for step in range(60):
        with killed_at(step, array_folder, placement=placement) as (array, steps):
            rebalance_array(array)
            all_steps = steps
        if len(steps) < step:
            break
        assert read_all(array_folder) == SMALL, step
        with opened_array(array_folder) as array:
            assert repair_array(array).is_complete  # it deletes the packages of the dead process
            state = survey_array(array, deep=True)
            assert state.is_healthy, (step, state)
            assert sum(child.strange for child in state.children) == 0
            rebalance_array(array)  # back again, for the next step
            repair_array(array)
    else:
        pytest.fail("it never came to its end")
    assert {"begin_write", "get_package", "put_package", "commit_write"} <= set(all_steps)


# --- moves ---


def test_a_rebalance_moves_only_misplaced_objects(make_array: MakeArray) -> None:
    array_folder = write_files(make_array(2, 2))
    with opened_array(array_folder) as array:
        assert rebalance_array(array).moved == 0
    with opened_array(array_folder, placement=_FixedPlacement(0, 1, 1, 1)) as array:
        assert rebalance_array(array, dry_run=True).moved == 3
        assert rebalance_array(array, dry_run=True).moved == 3, "nothing was moved"
        rebalance = rebalance_array(array)
        assert (rebalance.objects, rebalance.moved, rebalance.moved_bytes) == (3, 3, sum(map(len, FILES.values())))
        assert rebalance_array(array).moved == 0
        repair_array(array)
        assert not array_folder.children[0].packages
        assert survey_array(array, deep=True).is_healthy
    assert read_all(array_folder) == FILES


def test_a_write_during_a_rebalance_wins(make_array: MakeArray) -> None:
    array_folder = write_small_files(make_array(2, 1))
    with opened_array(array_folder, placement=_FixedPlacement(0, 1, 1)) as array:
        is_first = [True]

        def write_newer() -> None:
            if is_first[0]:
                is_first[0] = False
                write_object(array, "/a", Literal(b"newer"), Costs())

        array_folder.children[1].after_put = write_newer
        rebalance = rebalance_array(array)
        assert (rebalance.moved, rebalance.overtaken) == (1, 1)
        assert read_without_upkeep(array) == SMALL | {"/a": b"newer"}


def test_a_copy_is_older_than_a_write_that_began_before_it(make_array: MakeArray) -> None:
    array_folder = write_small_files(make_array(2, 1))
    with opened_array(array_folder, placement=_FixedPlacement(0, 1, 1)) as array:
        generation = array.metadata.begin_write(b"v" * 16, "/a", 1)
        assert rebalance_array(array).moved == 2
        copy = array.metadata.find("/a")
        assert copy is not None
        assert copy.generation < generation, "a copy is as old as its original"


def test_a_replaced_child_gets_the_packages_of_the_old_one(make_array: MakeArray) -> None:
    array_folder = write_files(make_array(2, 1))
    array_folder.lose_child(2)
    with opened_array(array_folder) as array:
        assert note_all_missing(array, 2) == 5
        assert read_without_upkeep(array) == FILES
        assert repair_array(array).mended == 5
        assert survey_array(array, deep=True).is_healthy


def read_without_upkeep(array: Array) -> dict[str, bytes]:
    rows = array.metadata.list_below("/", "/", 100)
    return {row.path: b"".join(read_object(array, array.manifest_of("get", row), 0, Costs())) for row in rows}
