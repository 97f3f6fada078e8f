"""File systems without traced writes: a savingbox compares, reports the reason, and loses nothing all the same."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pytest_cloudbench.savingbox.box import SavingBox
from pytest_cloudbench.savingbox.written import find_writes
from tests.savingbox import test_machine as machine
from tests.savingbox.loop import own_file_system
from tests.savingbox.pairs import tree


@pytest.fixture(scope="module", params=["btrfs", "overlay", "tmpfs"])
def mount(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with own_file_system(tmp_path_factory.mktemp("mount"), request.param) as folder:
        yield folder


@pytest.fixture
def home(mount: Path) -> Path:
    path = Path(tempfile.mkdtemp(dir=mount))
    for name in ("box", "sync"):
        (path / name).mkdir()
    return path


def test_other_file_systems_are_compared_with_a_reason(home: Path, mount: Path) -> None:
    with closing(find_writes(home / "box")) as writes:
        assert writes.name == "compare"
        location = f"{str(home / 'box')!r} is on {mount.name}"
        assert writes.why == f"{location}; writes can be traced on ext4 and xfs only"


@pytest.mark.parametrize("other", ["box", "sync"])
def test_the_other_folder_may_be_elsewhere(home: Path, tmp_path: Path, other: str) -> None:
    folders = {name: tmp_path / name if name == other else home / name for name in ("box", "sync")}
    folders[other].mkdir()
    (folders["box"] / "d").mkdir()
    (folders["box"] / "d" / "a").write_bytes(os.urandom(50_000))
    (folders["sync"] / "b").write_bytes(b"1")
    for _ in range(2):
        writes = find_writes(folders["box"])
        assert SavingBox(folders["box"], folders["sync"], state=tmp_path / "state", writes=writes).once()
        assert tree(folders["box"]) == tree(folders["sync"])
        with (folders["box"] / "d" / "a").open("r+b") as file:
            file.seek(20_000)
            file.write(b"changed")


def test_a_few_histories_lose_nothing(mount: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(mount))
    machine.examine(monkeypatch, 12, 15)
