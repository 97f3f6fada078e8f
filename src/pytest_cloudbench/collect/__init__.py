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


def collector_of(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """What collects this file, or None where it is not ours."""
    if path.name.endswith(_BENCH_ENDING):
        from pytest_cloudbench.collect.bench_file import BenchFileModule

        return BenchFileModule.from_parent(parent, path=path)
    return None


def only_config_files(args: Sequence[str]) -> bool:
    """Whether a command line names such files and nothing else; told by their names."""
    return bool(args) and all(arg.partition("::")[0].endswith(_BENCH_ENDING) for arg in args)
