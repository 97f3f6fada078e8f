"""Experiments without Python: which files pytest collects besides its own, and what collects them.

What may live here: the choice by a file's name and first look. A session without such files pays for a comparison of
names.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

__all__ = ["collector_of", "only_config_files"]

_BENCH_ENDING = ".bench.toml"
_INI_ENDINGS = frozenset({".ini", ".conf", ".cfg"})
_INI_MOST_BYTES = 1 << 20


def collector_of(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """What collects this file, or None where it is not ours.

    A file that the command line names may be one, and one in a folder whose name ``cloudbench_files`` allows.
    """
    if not _may_be_ours(path):
        return None
    globs = parent.config.getini("cloudbench_files")
    if not (parent.session.isinitpath(path) or any(fnmatchcase(path.name, glob) for glob in globs)):
        return None
    if path.name.endswith(_BENCH_ENDING):
        from pytest_cloudbench.collect.bench_file import BenchFileModule

        return BenchFileModule.from_parent(parent, path=path)
    if _is_benchcloud(path):
        from pytest_cloudbench.collect.benchcloud_file import BenchCloudModule

        return BenchCloudModule.from_parent(parent, path=path)
    return None


def only_config_files(args: Sequence[str], folder: Path) -> bool:
    """Whether a command line given in ``folder`` names such files and nothing else."""
    paths = [folder / arg.partition("::")[0] for arg in args]
    return bool(paths) and all(
        path.name.endswith(_BENCH_ENDING) or (_may_be_ours(path) and _is_benchcloud(path)) for path in paths
    )


def _may_be_ours(path: Path) -> bool:
    """Decided by the name alone, because it is asked for every file."""
    return path.name.endswith(_BENCH_ENDING) or path.suffix.lower() in _INI_ENDINGS


def _is_benchcloud(path: Path) -> bool:
    if not _has(path, b"[test]", b"[driver]"):
        return False
    from pytest_cloudbench.collect.benchcloud_file import read_text
    from pytest_cloudbench.configs.benchcloud import is_benchcloud

    return is_benchcloud(read_text(path))


def _has(path: Path, *words: bytes) -> bool:
    """Whether the file has all these words. One that cannot be read, or is no configuration by its size, has none."""
    from pytest_cloudbench import opening

    try:
        data = opening.read_file(path, _INI_MOST_BYTES)
    except OSError:
        return False
    return all(word in data for word in words)
