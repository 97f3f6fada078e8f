"""Collect configuration files as tests: decide which additional files pytest collects, and with which collector.

The choice depends on a file's name and a first look at its content. A session without such files pays only for
comparing names.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from _pytest.pathlib import fnmatch_ex

if TYPE_CHECKING:
    import pytest

_BENCH_SUFFIX = ".bench.toml"
_INI_SUFFIXES = frozenset({".ini", ".conf", ".cfg"})
_MAX_INI_BYTES = 1 << 20


def find_collector(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Return the collector of a file, or None if the plugin does not collect it.

    It collects files named on the command line, and files in collected folders that match ``cloudbench_files``, whose
    patterns mean what they mean in ``python_files``: one with a ``/`` is about the path.
    """
    if not _has_config_suffix(path):
        return None
    globs = parent.config.getini("cloudbench_files")
    if not (parent.session.isinitpath(path) or any(fnmatch_ex(glob, path) for glob in globs)):
        return None
    if path.name.endswith(_BENCH_SUFFIX):
        from pytest_cloudbench.plugin.collect.bench_file import BenchFileModule

        return BenchFileModule.from_parent(parent, path=path)
    if _is_benchcloud(path):
        from pytest_cloudbench.plugin.collect.benchcloud_file import BenchCloudModule

        return BenchCloudModule.from_parent(parent, path=path)
    return None


def has_only_config_files(args: Sequence[str], folder: Path) -> bool:
    """Return whether the arguments of a command line given in ``folder`` name configuration files and nothing else."""
    paths = [folder / arg.partition("::")[0] for arg in args]
    return bool(paths) and all(
        path.name.endswith(_BENCH_SUFFIX) or (_has_config_suffix(path) and _is_benchcloud(path)) for path in paths
    )


def _has_config_suffix(path: Path) -> bool:
    """Return whether a file may be ours. Looks only at the name, because it is called for every file."""
    return path.name.endswith(_BENCH_SUFFIX) or path.suffix.lower() in _INI_SUFFIXES


def _is_benchcloud(path: Path) -> bool:
    if not _contains_all(path, b"[test]", b"[driver]"):
        return False
    from pytest_cloudbench.plugin.collect.benchcloud_file import read_legacy_text
    from pytest_cloudbench.plugin.configs.benchcloud import is_benchcloud

    return is_benchcloud(read_legacy_text(path))


def _contains_all(path: Path, *words: bytes) -> bool:
    """Return whether the file contains all these words. An unreadable or oversized file contains none."""
    from pytest_cloudbench.support import opening

    try:
        data = opening.read_file(path, _MAX_INI_BYTES)
    except OSError:
        return False
    return all(word in data for word in words)
