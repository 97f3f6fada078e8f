from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .harness import Lab


@pytest.fixture
def lab(tmp_path: Path) -> Callable[..., Lab]:
    """Makes an array of folders: ``lab(k, m, **settings of its file)``."""

    def make(k: int = 2, m: int = 1, **settings: object) -> Lab:
        return Lab(tmp_path, k, m, **settings)

    return make
