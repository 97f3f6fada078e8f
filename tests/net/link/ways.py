"""Links that a machine may not offer in every way."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_cloudbench.net.link import Link, LinkUnavailable


@contextlib.contextmanager
def open_or_skip(**options: Any) -> Iterator[Link]:
    """A link made in one particular way, which this machine may not offer."""
    try:
        link = Link(**options).__enter__()
    except LinkUnavailable as error:
        pytest.skip(str(error))
    with contextlib.closing(link):
        yield link
