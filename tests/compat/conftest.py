"""Fixtures of other people's projects and of the plugins that they use."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_cloudbench.support.clock import wait_for
from tests.network_guard import with_index

from .project import Project

HERE = Path(__file__).parent
INSTALLED = HERE.parents[1] / ".testbed" / f"pytest-plugins-{sys.version_info[0]}.{sys.version_info[1]}"
_INSTALL_S = 120.0


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.fixture(scope="session")
def plugin_folder() -> Callable[[str], Path]:
    """A function that returns the folder of a plugin of plugins.toml, which it installs on the first use."""
    table = tomllib.loads((HERE / "plugins.toml").read_text("utf-8"))
    return lambda name: _install_plugin(name, table[name])


def _install_plugin(name: str, requirements: list[str]) -> Path:
    folder = INSTALLED / "-".join([name, *(requirement.partition("==")[2] for requirement in requirements)])
    if folder.exists():  # so that another user can use it, too
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except PermissionError as error:
        pytest.skip(f"{' '.join(requirements)} cannot be installed here: {error}")
    with _hold_lock(folder.with_suffix(".lock")):
        if not folder.exists():
            unfinished = folder.with_suffix(".half")
            command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
            done = subprocess.run(
                [*command, "--upgrade", "--target", unfinished, *requirements],
                stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_INSTALL_S, check=False,
                env=with_index(),
            )  # fmt: skip
            if done.returncode:
                message = (done.stderr.strip() or "no word").splitlines()[-1]
                pytest.skip(f"{' '.join(requirements)} cannot be installed here: {message}")
            unfinished.rename(folder)
    return folder


@contextlib.contextmanager
def _hold_lock(lock: Path) -> Iterator[None]:
    """Let one process at a time continue. A lock that is older than the longest installation is ignored."""

    def is_taken() -> bool:
        try:
            os.close(os.open(lock, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    while not wait_for(is_taken, _INSTALL_S, poll_s=0.05):
        lock.unlink(missing_ok=True)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
