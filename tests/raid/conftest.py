from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .harness import ArrayFolder


@pytest.fixture
def make_array(tmp_path: Path) -> Callable[..., ArrayFolder]:
    """A function that makes an array of folders: ``make_array(k, m, **settings of its file)``."""

    def make(k: int = 2, m: int = 1, **settings: object) -> ArrayFolder:
        return ArrayFolder(tmp_path, k, m, **settings)

    return make
