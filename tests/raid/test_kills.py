"""A process that is killed at any step leaves the old object or the new one, and in the end nothing else."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from pytest_cloudbench.emulators import start_emulator
from pytest_cloudbench.raid.costs import Costs
from pytest_cloudbench.raid.driver import RaidDriver
from pytest_cloudbench.raid.maintenance import discard_incomplete_versions, repair_array
from pytest_cloudbench.raid.reading import SegmentFetch
from pytest_cloudbench.raid.survey import survey_array
from pytest_cloudbench.workload.payload.contents import Literal
from tests.limits import HANG_S

from .harness import ArrayFolder
from .killed_writer import NEW, OLD, PACKAGES
from .maintainer_process import opened_worker
from .writer_process import content_of as written_content

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 12
QUICK = {1, PACKAGES, PACKAGES + 1}


def read_content(driver: RaidDriver) -> bytes:
    return b"".join(driver.get("/a"))


def expected_packages(driver: RaidDriver, array_folder: ArrayFolder) -> list[set[str]]:
    """Return the names of the current version's packages for each child."""
    row = driver.array.metadata.find("/a")
    assert row is not None
    return [
        set(driver.array.package_names(row.version, child, row.segments))
        for child in range(array_folder.k + array_folder.m)
    ]


@pytest.mark.parametrize("loses_metadata", [False, True], ids=["", "metadata-lost"])
@pytest.mark.parametrize(
    "step", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in range(PACKAGES + 2)]
)
def test_a_kill_leaves_the_old_object_or_the_new_one(
    make_array: Callable[..., ArrayFolder], step: int, loses_metadata: bool
) -> None:
    array_folder = make_array()
    with array_folder.opened() as driver:
        driver.put("/a", Literal(OLD))
        before = [set(child.packages) for child in array_folder.children]
    command = [sys.executable, "-m", "tests.raid.killed_writer", str(array_folder.folder), str(step)]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert finished.returncode == 9, finished.stdout + finished.stderr
    if loses_metadata:
        array_folder.lose_metadata()
    with array_folder.opened() as driver:
        objects = read_content(driver)
        assert objects in ((NEW,) if step > PACKAGES and not loses_metadata else (OLD, NEW))
        assert driver.settle(HANG_S)
        assert read_content(driver) == objects
        packages = [set(child.packages) for child in array_folder.children]
        if loses_metadata:  # packages of an incomplete version belong to no known object, and stay
            assert all(
                now >= expected for now, expected in zip(packages, expected_packages(driver, array_folder), strict=True)
            )
        else:
            assert packages == expected_packages(driver, array_folder)
            assert (packages == before) == (objects == OLD)


def run_until_killed(folder: Path, round_: int, lines: int, program: str = "writer_process") -> list[list[str]]:
    """Run an endless writer, kill it soon after this many lines, and return the words of each line."""
    command = [sys.executable, "-m", f"tests.raid.{program}", str(folder), str(round_)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines_read = [process.stdout.readline() for _ in range(lines)]
        process.kill()
        lines_read += process.stdout.readlines()
    return [line.split() for line in lines_read if line.endswith("\n")]


@pytest.mark.slow
@pytest.mark.parametrize("loses_metadata", [False, True], ids=["", "metadata-lost"])
def test_kills_at_any_time_lose_nothing_that_was_acknowledged(
    make_array: Callable[..., ArrayFolder], loses_metadata: bool
) -> None:
    array_folder, rng, expected = make_array(), random.Random(5), dict[str, bytes]()
    written = set[tuple[str, bytes]]()
    for round_ in range(15):
        operation: list[str] = []
        for words in run_until_killed(array_folder.folder, round_, rng.randrange(1, 30)):
            if words[0] in ("put", "delete"):
                operation = words
                continue
            if words[0] == "done":
                expected = apply_operation(operation, round_, expected)
                written |= expected.items()
            operation = []
        if loses_metadata:
            array_folder.lose_metadata()
        with array_folder.opened() as driver:
            objects = {entry.path: b"".join(driver.get(entry.path)) for entry in driver.list("/")}
            kept = objects
            if loses_metadata:  # a deleted object comes back if a child had not deleted its package yet
                kept = dict(item for item in objects.items() if item[0] in expected or item not in written)
            assert kept in (expected, apply_operation(operation, round_, expected)), (round_, operation)
            expected = objects
            if loses_metadata:  # a kill may leave too few packages of a version, which is then unknown
                discard_incomplete_versions(driver.array)
            assert driver.settle(HANG_S)
            assert survey_array(driver.array, deep=True).is_healthy


@pytest.mark.slow
@pytest.mark.parametrize("loses_metadata", [False, True], ids=["", "metadata-lost"])
@pytest.mark.parametrize("is_served", [False, True], ids=["folders", "a-service"])
def test_kills_during_writes_and_maintenance_lose_nothing_and_leave_nothing(
    make_array: Callable[..., ArrayFolder], loses_metadata: bool, is_served: bool
) -> None:
    """Overwrites, deletions, repairs, replacements and moves between k = 2 and k = 1. Then any one child is lost."""
    array_folder, rng, expected = make_array(), random.Random(11), dict[str, bytes]()
    with start_emulator("ideal") if is_served else nullcontext() as service:
        if service is not None:
            (array_folder.folder / "endpoint.json").write_text(json.dumps(service.endpoint.plain()), "utf-8")
        for round_ in range(ROUNDS):
            operation: list[str] = []
            for words in run_until_killed(array_folder.folder, round_, rng.randrange(1, 40), "maintainer_process"):
                if words[0] == "done":
                    expected = apply_operation(operation, round_, expected)
                operation = words if words[0] in ("put", "delete") else []
            if loses_metadata:
                array_folder.lose_metadata()
            with opened_worker(array_folder) as driver:
                objects = read_all(driver)
                assert objects in (expected, apply_operation(operation, round_, expected)), (round_, operation)
                expected = objects
                if loses_metadata:
                    discard_incomplete_versions(driver.array)
                survey_array(driver.array, deep=True)
                driver.settle(HANG_S)
                assert repair_array(driver.array).is_complete
                state = survey_array(driver.array, deep=True)
                assert state.is_healthy, (round_, state)
                assert state.garbage == 0
                if not loses_metadata:
                    assert [child.strange for child in state.children] == [0, 0, 0]
                for child in range(3):
                    assert read_all(driver, without=child) == expected, (round_, child)


def read_all(driver: RaidDriver, without: int | None = None) -> dict[str, bytes]:
    """Read all objects. Each segment must also have enough intact shares without the child ``without``."""
    objects, array = {}, driver.array
    for entry in driver.list("/"):
        if without is not None:
            row = array.metadata.find(entry.path)
            assert row is not None
            manifest = array.manifest_of("get", row)
            for number in range(len(manifest.segments)):
                SegmentFetch(array, "get", manifest, number, Costs(), without={without}).wait_for_shares()
        objects[entry.path] = b"".join(driver.get(entry.path))
    return objects


def apply_operation(operation: list[str], round_: int, objects: dict[str, bytes]) -> dict[str, bytes]:
    """Return the objects after an operation that had begun, or the same objects if none had."""
    if not operation:
        return objects
    path = operation[1]
    others = {name: content for name, content in objects.items() if name != path}
    return (
        others
        if operation[0] == "delete"
        else {**others, path: written_content(round_, int(operation[2]), int(operation[3]))}
    )
