"""Folders that tests measure: a provider ``folder:PATH`` refuses one that is not there."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

_SPEC = re.compile(r"(?:folder|wrong|flat|mine):([^,?\s\"']+)")
"""Providers of the tests that write into a folder, and their paths."""


def make_folders(cwd: Path, words: Iterable[str]) -> None:
    """Make the folders that words of a command, run in ``cwd``, name as providers."""
    for word in words:
        for path in _SPEC.findall(word):
            if not (cwd / path).exists():
                (cwd / path).mkdir(parents=True)
