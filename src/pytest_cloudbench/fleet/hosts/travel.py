"""The archive of the user's tests that is sent to other hosts.

A host needs no copy of the project. It gets the files below the root directory that git tracks, as they are now, with
each ``conftest.py`` and pytest's own configuration file. A project without git sends what tests are usually made of.
"""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import Iterable
from pathlib import Path

from pytest_cloudbench.model import UsageError

_MOST_BYTES = 64 << 20
_SUFFIXES = frozenset({".py", ".toml", ".ini", ".cfg", ".json", ".csv", ".yaml", ".yml", ".txt"})


def pack_files(root: Path, more: Iterable[Path] = ()) -> bytes:
    """Return an archive of a project's tests.

    Args:
        root: pytest's root directory.
        more: files that are sent in addition, if they are below it.

    Raises UsageError if they are too large to be tests, or one of them cannot be read.
    """
    try:
        return _pack_files(root, more)
    except OSError as error:
        raise UsageError(f"{error.filename or root}: {error.strerror or error}") from error


def _pack_files(root: Path, more: Iterable[Path]) -> bytes:
    paths = {path for path in [*_list_tracked(root), *root.rglob("conftest.py"), *more] if path.is_relative_to(root)}
    content, total_bytes = io.BytesIO(), 0
    with tarfile.open(fileobj=content, mode="w:gz", compresslevel=1, dereference=True) as archive:
        for path in sorted(paths):
            if not path.is_file():
                continue
            total_bytes += path.stat().st_size
            if total_bytes > _MOST_BYTES:
                raise UsageError(
                    f"the tests below {root} are larger than {_MOST_BYTES >> 20} MiB, too large to be sent to other "
                    "hosts: run pytest in a smaller folder, or choose one with --rootdir"
                )
            archive.add(path, str(path.relative_to(root)), recursive=False)
    return content.getvalue()


def _list_tracked(root: Path) -> list[Path]:
    """Return the files below a folder that git tracks. Without git, all that look like parts of tests."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached"]
    try:
        output = subprocess.run(command, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return [path for path in root.rglob("*") if path.suffix in _SUFFIXES and not _is_hidden(path, root)]
    return [root / os.fsdecode(name) for name in output.split(b"\0") if name]


def _is_hidden(path: Path, root: Path) -> bool:
    return any(part.startswith((".", "__pycache__")) for part in path.relative_to(root).parts)
