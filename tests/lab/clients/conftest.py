"""Fixtures of the client tests: a client prepared in its own folder, or a skip that names the missing program.

After each test, none of its processes may be left, and the folder that the client took for the user's home must be
empty.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_cloudbench.lab import clients
from pytest_cloudbench.lab.clients.base import LocalClient, MissingProgramError
from pytest_cloudbench.lab.clients.processes import Runner
from pytest_cloudbench.lab.clients.watchdog import read_stat

DOCUMENT = Path(__file__).resolve().parents[3] / "docs/reference/client-files.md"

Prepare = Callable[..., LocalClient]


def documented_toml(name: str) -> str:
    """Return the TOML block of docs/reference/client-files.md that describes a tool."""
    blocks: list[str] = re.findall(r"^```toml\n(.*?)^```", DOCUMENT.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return next(block for block in blocks if block.startswith(f'name = "{name}"'))


def leftovers(workdir: Path) -> list[str]:
    """List the commands of processes with their home in the folder, as all processes of a client have it."""
    commands = []
    for name in os.listdir("/proc"):
        try:
            environment = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
            if f"HOME={workdir / 'home'}".encode() in environment:
                commands.append(Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return commands


def is_gone(pid: int) -> bool:
    """Return whether a process has ended, even if it is an orphan that init has not reaped yet."""
    stat = read_stat(pid)
    return stat is None or stat.state in "ZX"


@pytest.fixture
def user_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that a program takes for the user's home."""
    home = tmp_path / "user"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    return home


@pytest.fixture
def prepare(tmp_path: Path, user_home: Path) -> Iterator[Prepare]:
    """Function that makes and prepares the client of a spec, or of ``NAME.toml`` in the documents."""
    workdir = tmp_path / "work"
    prepared_clients: list[LocalClient] = []

    def make(spec: str, runner: Runner | None = None, **addresses: str) -> LocalClient:
        if spec.endswith(".toml"):
            (tmp_path / spec).write_text(documented_toml(spec.removesuffix(".toml")), "utf-8")
            spec = str(tmp_path / spec)
        client = clients.make_client(spec)
        assert isinstance(client, LocalClient)
        try:
            client.prepare(workdir, runner=runner, **addresses)
        except MissingProgramError as error:
            pytest.skip(str(error))
        prepared_clients.append(client)
        return client

    yield make
    for client in prepared_clients:
        client.stop()
    assert leftovers(workdir) == []
    assert list(user_home.iterdir()) == []
