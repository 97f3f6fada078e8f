"""Fixtures of the tests of the savingbox."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .pairs import Pair, make_marks_certain


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    """A pair of folders with the engine between them. In the end nothing may be unfinished."""
    make_marks_certain(monkeypatch)
    new_pair = Pair(tmp_path)
    yield new_pair
    assert not new_pair.list_unfinished()
    new_pair.end()
