"""Experiments without Python: which files pytest collects besides its own, and what collects them.

What may live here: the choice by a file's name and first look. A session without such files pays for a comparison of
names.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

__all__ = ["collector_of", "only_config_files"]

_BENCH_ENDING = ".bench.toml"
_INI_ENDINGS = frozenset({".ini", ".conf", ".cfg"})
_INI_MOST_BYTES = 1 << 20


def collector_of(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """What collects this file, or None where it is not ours."""
    if path.name.endswith(_BENCH_ENDING):
        from pytest_cloudbench.collect.bench_file import BenchFileModule

        return BenchFileModule.from_parent(parent, path=path)
    if path.suffix.lower() in _INI_ENDINGS and _has(path, b"[test]", b"[driver]"):
        from pytest_cloudbench.collect.benchcloud_file import BenchCloudModule, read_text
        from pytest_cloudbench.configs.benchcloud import is_benchcloud

        return BenchCloudModule.from_parent(parent, path=path) if is_benchcloud(read_text(path)) else None
    return None


def only_config_files(args: Sequence[str]) -> bool:
    """Whether a command line names such files and nothing else; told by their names."""
    names = [Path(arg.partition("::")[0]) for arg in args]
    return bool(names) and all(
        path.name.endswith(_BENCH_ENDING) or path.suffix.lower() in _INI_ENDINGS for path in names
    )


def _has(path: Path, *words: bytes) -> bool:
    """Whether the file has all these words. One that cannot be read, or is no configuration by its size, has none."""
    try:
        if path.stat().st_size > _INI_MOST_BYTES:
            return False
        data = path.read_bytes()
    except OSError:
        return False
    return all(word in data for word in words)
