"""A process that is killed at any step leaves the old object or the new one, and in the end nothing else."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_cloudbench.payload.contents import Literal
from pytest_cloudbench.systems.raid.driver import RaidDriver
from pytest_cloudbench.systems.raid.survey import survey
from tests.limits import HANG_S

from .harness import Lab
from .killed import NEW, OLD, PACKAGES
from .writes import content_of as written

ROOT = Path(__file__).resolve().parents[3]
QUICK = {1, PACKAGES, PACKAGES + 1}


def content_of(driver: RaidDriver) -> bytes:
    return b"".join(driver.get("/a"))


def expected_packages(driver: RaidDriver, lab: Lab) -> list[set[str]]:
    """What each child is to hold: the packages of the current version, and no others."""
    row = driver.array.metadata.find("/a")
    assert row is not None
    return [set(driver.array.names_of(row.version, child, row.segments)) for child in range(lab.k + lab.m)]


@pytest.mark.parametrize("loses_metadata", [False, True], ids=["", "metadata-lost"])
@pytest.mark.parametrize(
    "step", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in range(PACKAGES + 2)]
)
def test_a_kill_leaves_the_old_object_or_the_new_one(lab: Callable[..., Lab], step: int, loses_metadata: bool) -> None:
    made = lab()
    with made.opened() as driver:
        driver.put("/a", Literal(OLD))
        before = [set(child.packages) for child in made.children]
    command = [sys.executable, "-m", "tests.systems.raid.killed", str(made.folder), str(step)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 9, done.stdout + done.stderr
    if loses_metadata:
        made.lose_metadata()
    with made.opened() as driver:
        found = content_of(driver)
        if not loses_metadata:
            assert found == (NEW if step > PACKAGES else OLD)
        assert found in (OLD, NEW)
        assert driver.settle(HANG_S)
        assert content_of(driver) == found
        left = [set(child.packages) for child in made.children]
        if loses_metadata:  # what was never complete belongs to no known object
            assert all(now >= wanted for now, wanted in zip(left, expected_packages(driver, made), strict=True))
        else:
            assert left == expected_packages(driver, made)
            assert (left == before) == (found == OLD)


def killed_after(folder: Path, round_: int, lines: int) -> list[list[str]]:
    """The output of an endlessly writing process that was killed soon after this many lines."""
    command = [sys.executable, "-m", "tests.systems.raid.writes", str(folder), str(round_)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(lines)]
        process.kill()
        said += process.stdout.readlines()
    return [line.split() for line in said if line.endswith("\n")]


@pytest.mark.slow
@pytest.mark.parametrize("loses_metadata", [False, True], ids=["", "metadata-lost"])
def test_kills_at_any_time_lose_nothing_that_was_acknowledged(lab: Callable[..., Lab], loses_metadata: bool) -> None:
    made, chosen, wanted = lab(), random.Random(5), dict[str, bytes]()
    for round_ in range(15):
        begun: list[str] = []
        for words in killed_after(made.folder, round_, chosen.randrange(1, 30)):
            if words[0] in ("put", "delete"):
                begun = words
                continue
            if words[0] == "done":
                wanted = after(begun, round_, wanted)
            begun = []
        if loses_metadata:
            made.lose_metadata()
        with made.opened() as driver:
            found = {entry.path: b"".join(driver.get(entry.path)) for entry in driver.list("/")}
            assert found in (wanted, after(begun, round_, wanted)), (round_, begun)
            wanted = found
            assert driver.settle(HANG_S)
            assert survey(driver.array, deep=True).is_healthy


def after(begun: list[str], round_: int, objects: dict[str, bytes]) -> dict[str, bytes]:
    """The objects after the operation that had begun; the same if none had."""
    if not begun:
        return objects
    path = begun[1]
    rest = {each: content for each, content in objects.items() if each != path}
    return rest if begun[0] == "delete" else {**rest, path: written(round_, int(begun[2]), int(begun[3]))}
