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
    """Skip the test if something is not available here, with the missing thing as the reason."""
    try:
        yield
    except (LinkUnavailable, CaptureUnavailable, MissingProgramError) as error:
        pytest.skip(str(error))


@contextmanager
def open_lab(client: SyncClient, folder: Path, way: Way | None = None, **options: Any) -> Iterator[Lab]:
    """Yield an open lab of the client, or skip the test."""
    with skipping(), Lab(client, folder, seed="known", up=way, **options) as lab:
        yield lab


@contextmanager
def open_transfers(spec: str, folder: Path, way: Way, **options: Any) -> Iterator[Transfers]:
    """Yield the transfers of a client on a link, or skip the test."""
    with open_lab(clients.make_client(spec), folder, way, timeout_s=60.0, **options) as lab:
        yield Transfers(lab)


@contextmanager
def open_session(client: SyncClient, folder: Path, **options: Any) -> Iterator[SyncSession]:
    """Yield a session of the client on a link that is not measured, or skip the test."""
    with open_lab(client, folder, stream_s=None, **options) as lab:
        yield SyncSession(lab)
