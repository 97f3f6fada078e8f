"""Folders that tests measure, because a provider ``folder:PATH`` refuses one that does not exist."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

_SPEC = re.compile(r"(?:folder|wrong|flat|mine):([^,?\s\"']+)")
"""Specs of providers that write into a folder, with their paths."""


def make_folders(cwd: Path, words: Iterable[str]) -> None:
    """Create the folders that the words of a command, run in ``cwd``, name as providers."""
    for word in words:
        for path in _SPEC.findall(word):
            if not (cwd / path).exists():
                (cwd / path).mkdir(parents=True)
