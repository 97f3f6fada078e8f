"""A separate file system, whose writes can be traced without those of everything else on the machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_cloudbench.systems.savingbox.tracing import TracingUnavailable
from pytest_cloudbench.systems.savingbox.written import TracedWrites

_SIZE_BYTES = {"ext4": 256 * 1024 * 1024, "xfs": 320 * 1024 * 1024}


@contextmanager
def traced_folder(home: Path, kind: str = "ext4") -> Iterator[Path]:
    """A folder on a loop mount; the test is skipped where that, or tracing, is not possible."""
    if sys.platform != "linux":
        pytest.skip("tracepoints need Linux")
    image, folder = home / f"{kind}.img", home / kind
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(_SIZE_BYTES[kind])
    for argv in ([f"mkfs.{kind}", "-q", str(image)], ["mount", "-o", "loop", str(image), str(folder)]):
        try:
            subprocess.run(argv, check=True, capture_output=True, text=True)
        except FileNotFoundError:
            pytest.skip(f"{argv[0]} is not installed")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no loop mount here: {error.stderr.strip()}")
    try:
        try:
            TracedWrites(folder).close()
        except TracingUnavailable as error:
            pytest.skip(f"not possible here: {error}")
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
        image.unlink()
