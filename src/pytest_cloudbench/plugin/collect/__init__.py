"""Experiments without Python: which additional files pytest collects, and with which collector.

What may live here: choosing by a file's name and a first look at its content. A session without such files
pays only for comparing names.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

_BENCH_ENDING = ".bench.toml"
_INI_ENDINGS = frozenset({".ini", ".conf", ".cfg"})
_INI_MOST_BYTES = 1 << 20


def collector_of(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """The collector of this file, or None if it is not ours.

    Ours are files named on the command line, and files in folders that match ``cloudbench_files``.
    """
    if not _may_be_ours(path):
        return None
    globs = parent.config.getini("cloudbench_files")
    if not (parent.session.isinitpath(path) or any(fnmatchcase(path.name, glob) for glob in globs)):
        return None
    if path.name.endswith(_BENCH_ENDING):
        from pytest_cloudbench.plugin.collect.bench_file import BenchFileModule

        return BenchFileModule.from_parent(parent, path=path)
    if _is_benchcloud(path):
        from pytest_cloudbench.plugin.collect.benchcloud_file import BenchCloudModule

        return BenchCloudModule.from_parent(parent, path=path)
    return None


def only_config_files(args: Sequence[str], folder: Path) -> bool:
    """Whether a command line given in ``folder`` names such files and nothing else."""
    paths = [folder / arg.partition("::")[0] for arg in args]
    return bool(paths) and all(
        path.name.endswith(_BENCH_ENDING) or (_may_be_ours(path) and _is_benchcloud(path)) for path in paths
    )


def _may_be_ours(path: Path) -> bool:
    """Decided by name alone, because it is called for every file."""
    return path.name.endswith(_BENCH_ENDING) or path.suffix.lower() in _INI_ENDINGS


def _is_benchcloud(path: Path) -> bool:
    if not _has(path, b"[test]", b"[driver]"):
        return False
    from pytest_cloudbench.plugin.collect.benchcloud_file import read_text
    from pytest_cloudbench.plugin.configs.benchcloud import is_benchcloud

    return is_benchcloud(read_text(path))


def _has(path: Path, *words: bytes) -> bool:
    """Whether the file contains all these words. An unreadable or oversized file contains none."""
    from pytest_cloudbench.support import opening

    try:
        data = opening.read_file(path, _INI_MOST_BYTES)
    except OSError:
        return False
    return all(word in data for word in words)
