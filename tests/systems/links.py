"""Transfers for tests, where this machine has links and captures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench import clients
from pytest_cloudbench.capture import CaptureUnavailable
from pytest_cloudbench.clients.base import MissingProgramError
from pytest_cloudbench.link import LinkUnavailable, Way
from pytest_cloudbench.systems.transfers import Transfers


@contextmanager
def transfers(spec: str, folder: Path, way: Way, **options: Any) -> Iterator[Transfers]:
    """The client on a link, or a skip that says what is missing."""
    try:
        with Transfers(clients.client(spec), folder, seed="known", up=way, timeout_s=60.0, **options) as made:
            yield made
    except (LinkUnavailable, CaptureUnavailable, MissingProgramError) as error:
        pytest.skip(str(error))
