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
from pytest_cloudbench.raid.maintenance import repair_array
from pytest_cloudbench.raid.reading import SegmentFetch
from pytest_cloudbench.raid.survey import survey_array
from pytest_cloudbench.workload.payload.contents import Literal
from tests.limits import HANG_S

from .harness import Lab
from .killed import NEW, OLD, PACKAGES
from .worked import opened
from .writes import content_of as written

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 12
QUICK = {1, PACKAGES, PACKAGES + 1}


def content_of(driver: RaidDriver) -> bytes:
    return b"".join(driver.get("/a"))


def expected_packages(driver: RaidDriver, lab: Lab) -> list[set[str]]:
    """What each child is to hold: the packages of the current version, and no others."""
    row = driver.array.metadata.find("/a")
    assert row is not None
    return [set(driver.array.package_names(row.version, child, row.segments)) for child in range(lab.k + lab.m)]


@pytest.mark.parametrize("loses_metadata", [False, True], ids=["", "metadata-lost"])
@pytest.mark.parametrize(
    "step", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in range(PACKAGES + 2)]
)
def test_a_kill_leaves_the_old_object_or_the_new_one(lab: Callable[..., Lab], step: int, loses_metadata: bool) -> None:
    made = lab()
    with made.opened() as driver:
        driver.put("/a", Literal(OLD))
        before = [set(child.packages) for child in made.children]
    command = [sys.executable, "-m", "tests.raid.killed", str(made.folder), str(step)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 9, done.stdout + done.stderr
    if loses_metadata:
        made.lose_metadata()
    with made.opened() as driver:
        found = content_of(driver)
        assert found in ((NEW,) if step > PACKAGES and not loses_metadata else (OLD, NEW))
        assert driver.settle(HANG_S)
        assert content_of(driver) == found
        left = [set(child.packages) for child in made.children]
        if loses_metadata:  # what was never complete belongs to no known object
            assert all(now >= wanted for now, wanted in zip(left, expected_packages(driver, made), strict=True))
        else:
            assert left == expected_packages(driver, made)
            assert (left == before) == (found == OLD)


def killed_after(folder: Path, round_: int, lines: int, program: str = "writes") -> list[list[str]]:
    """The output of an endlessly writing process that was killed soon after this many lines."""
    command = [sys.executable, "-m", f"tests.raid.{program}", str(folder), str(round_)]
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
            assert survey_array(driver.array, deep=True).is_healthy


@pytest.mark.slow
@pytest.mark.parametrize("loses_metadata", [False, True], ids=["", "metadata-lost"])
@pytest.mark.parametrize("is_served", [False, True], ids=["folders", "a-service"])
def test_kills_during_writes_and_maintenance_lose_nothing_and_leave_nothing(
    lab: Callable[..., Lab], loses_metadata: bool, is_served: bool
) -> None:
    """Overwrites, deletions, repairs, replacements and moves between k = 2 and k = 1; any one child is then lost."""
    made, chosen, wanted = lab(), random.Random(11), dict[str, bytes]()
    with start_emulator("ideal") if is_served else nullcontext() as service:
        if service is not None:
            (made.folder / "endpoint.json").write_text(json.dumps(service.endpoint.plain()), "utf-8")
        for round_ in range(ROUNDS):
            begun: list[str] = []
            for words in killed_after(made.folder, round_, chosen.randrange(1, 40), "worked"):
                if words[0] == "done":
                    wanted = after(begun, round_, wanted)
                begun = words if words[0] in ("put", "delete") else []
            if loses_metadata:
                made.lose_metadata()
            with opened(made) as driver:
                found = read_by_all(driver)
                assert found in (wanted, after(begun, round_, wanted)), (round_, begun)
                wanted = found
                survey_array(driver.array, deep=True)
                driver.settle(HANG_S)
                assert repair_array(driver.array).is_complete
                state = survey_array(driver.array, deep=True)
                assert state.is_healthy, (round_, state)
                assert state.garbage == 0
                if not loses_metadata:
                    assert [child.strange for child in state.children] == [0, 0, 0]
                for child in range(3):
                    assert read_by_all(driver, without=child) == wanted, (round_, child)


def read_by_all(driver: RaidDriver, without: int | None = None) -> dict[str, bytes]:
    """All objects; each segment also has enough intact shares without that child."""
    found, array = {}, driver.array
    for entry in driver.list("/"):
        if without is not None:
            row = array.metadata.find(entry.path)
            assert row is not None
            manifest = array.manifest_of("get", row)
            for number in range(len(manifest.segments)):
                SegmentFetch(array, "get", manifest, number, Costs(), without={without}).wait_for_shares()
        found[entry.path] = b"".join(driver.get(entry.path))
    return found


def after(begun: list[str], round_: int, objects: dict[str, bytes]) -> dict[str, bytes]:
    """The objects after the operation that had begun; the same if none had."""
    if not begun:
        return objects
    path = begun[1]
    rest = {each: content for each, content in objects.items() if each != path}
    return rest if begun[0] == "delete" else {**rest, path: written(round_, int(begun[2]), int(begun[3]))}
