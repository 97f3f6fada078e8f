"""Transfers and sessions for tests, where this machine has links and captures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.lab import clients
from pytest_cloudbench.lab.clients.base import MissingProgramError, SyncClient
from pytest_cloudbench.lab.sync.lab import Lab
from pytest_cloudbench.lab.sync.session import SyncSession
from pytest_cloudbench.lab.sync.transfers import Transfers
from pytest_cloudbench.net.capture import CaptureUnavailable
from pytest_cloudbench.net.link import LinkUnavailable, Way


@contextmanager
def skipping() -> Iterator[None]:
    """Skips if something is not available here, and says what is missing."""
    try:
        yield
    except (LinkUnavailable, CaptureUnavailable, MissingProgramError) as error:
        pytest.skip(str(error))


@contextmanager
def lab_of(client: SyncClient, folder: Path, way: Way | None = None, **options: Any) -> Iterator[Lab]:
    """A lab of the client that is open, or a skip."""
    with skipping(), Lab(client, folder, seed="known", up=way, **options) as lab:
        yield lab


@contextmanager
def transfers(spec: str, folder: Path, way: Way, **options: Any) -> Iterator[Transfers]:
    """The client on a link, or a skip."""
    with lab_of(clients.make_client(spec), folder, way, timeout_s=60.0, **options) as lab:
        yield Transfers(lab)


@contextmanager
def session_of(client: SyncClient, folder: Path, **options: Any) -> Iterator[SyncSession]:
    """A session of the client on a link that is not measured, or a skip."""
    with lab_of(client, folder, stream_s=None, **options) as lab:
        yield SyncSession(lab)
