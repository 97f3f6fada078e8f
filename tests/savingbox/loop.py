"""Separate file systems, whose writes can be traced apart from those of the rest of the machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_cloudbench.savingbox.tracing import TracingUnavailable
from pytest_cloudbench.savingbox.written import TracedWrites

MIB = 1024 * 1024
_SIZE_BYTES: Mapping[str, int] = {"ext4": 256 * MIB, "xfs": 320 * MIB, "btrfs": 256 * MIB}


@contextmanager
def traced_folder(home: Path, kind: str = "ext4") -> Iterator[Path]:
    """Yield a folder on a loop mount. Skip the test if mounting or tracing is not possible."""
    with own_file_system(home, kind) as folder:
        try:
            TracedWrites(folder).close()
        except TracingUnavailable as error:
            pytest.skip(f"not possible here: {error}")
        yield folder


@contextmanager
def own_file_system(home: Path, kind: str) -> Iterator[Path]:
    """Yield a folder on a file system of this kind. Skip the test if that is not possible."""
    if sys.platform != "linux":
        pytest.skip("mounts need Linux")
    image, folder = home / f"{kind}.img", home / kind
    folder.mkdir()
    commands: list[Sequence[str]] = []
    if kind == "overlay":
        layers = {name: home / name for name in ("lowerdir", "upperdir", "workdir")}
        for layer in layers.values():
            layer.mkdir()
        options = ",".join(f"{name}={layer}" for name, layer in layers.items())
        commands = [["mount", "-t", "overlay", "-o", options, "overlay", str(folder)]]
    elif kind == "tmpfs":
        commands = [["mount", "-t", "tmpfs", "tmpfs", str(folder)]]
    else:
        with image.open("wb") as file:
            file.truncate(_SIZE_BYTES[kind])
        commands = [[f"mkfs.{kind}", "-q", str(image)], ["mount", "-o", "loop", str(image), str(folder)]]
    for argv in commands:
        try:
            subprocess.run(argv, check=True, capture_output=True, text=True)
        except (FileNotFoundError, PermissionError):
            pytest.skip(f"{argv[0]} is not installed, or not for this user")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no {kind} of one's own here: {error.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
        image.unlink(missing_ok=True)
