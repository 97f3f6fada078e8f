"""Links for tests, where this machine can make them."""

from __future__ import annotations

import pytest

from pytest_cloudbench.link import Link, LinkUnavailable


@pytest.fixture(scope="session")
def can_link() -> None:
    """Skips with the reason, which says what would let a link be made."""
    try:
        with Link():
            pass
    except LinkUnavailable as error:
        pytest.skip(str(error))
