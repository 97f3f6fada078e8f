"""A connection to a relay on this machine, for tests of its streams."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_cloudbench.fleet.hosts.connection import HostConnection
from pytest_cloudbench.fleet.hosts.relay import FOLDER_PREFIX
from pytest_cloudbench.fleet.hosts.table import Host
from tests.limits import HANG_S


class Losses:
    """A callback that records the reason for which a host is given up."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.is_lost = threading.Event()

    def __call__(self, connection: HostConnection) -> None:
        self.reasons.append(connection.lost_because)
        self.is_lost.set()


@pytest.fixture
def losses() -> Losses:
    return Losses()


@pytest.fixture
def connection(losses: Losses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostConnection]:
    """A connection to this machine, whose relay writes into ``tmp_path``."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    connection = HostConnection(Host("here", (sys.executable,)), HANG_S, losses)
    connection.open()
    yield connection
    connection.close()
    assert list(tmp_path.glob(f"{FOLDER_PREFIX}*")) == []
