"""Opening of links of a kind that a machine may not offer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_cloudbench.net.link import Link, LinkUnavailable


@contextlib.contextmanager
def open_or_skip(**options: Any) -> Iterator[Link]:
    """Open a link with these options, or skip the test if this machine does not offer it."""
    try:
        link = Link(**options).__enter__()
    except LinkUnavailable as error:
        pytest.skip(str(error))
    with contextlib.closing(link):
        yield link
