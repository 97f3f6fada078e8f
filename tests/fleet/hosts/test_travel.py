"""The archive of the user's tests that is sent to hosts."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from pytest_cloudbench.fleet.hosts.travel import pack_files
from pytest_cloudbench.model import UsageError


def test_links_are_sent_as_the_files_that_they_lead_to(tmp_path: Path) -> None:
    """A host refuses an archive with a link out of its folder, whose target it would not have either."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    (outside / "folder").mkdir(parents=True)
    (outside / "shared.csv").write_text("shared")
    root.mkdir()
    (root / "test_it.py").write_text("test")
    (root / "same.py").hardlink_to(root / "test_it.py")
    for name, target in {
        "near.py": "test_it.py", "far.csv": f"{outside}/shared.csv", "up.csv": "../outside/shared.csv",
        "broken.csv": "nowhere", "loop.csv": "loop.csv", "folder.csv": f"{outside}/folder",
    }.items():  # fmt: skip
        (root / name).symlink_to(target)
    with tarfile.open(fileobj=io.BytesIO(pack_files(root))) as archive:
        files = {member.name: archive.extractfile(member) for member in archive if member.isreg()}
        assert len(files) == len(archive.getmembers())
        assert {name: file and file.read() for name, file in files.items()} == {
            "test_it.py": b"test", "same.py": b"test", "near.py": b"test", "far.csv": b"shared", "up.csv": b"shared",
        }  # fmt: skip


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="needs a user without rights: root reads all files")
def test_unreadable_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "test_it.py"
    path.touch(mode=0)
    with pytest.raises(UsageError) as caught:
        pack_files(tmp_path)
    assert str(caught.value) == f"{path}: Permission denied"
