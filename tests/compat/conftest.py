"""Projects of other people, and the plugins that they use."""

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
    """Where a plugin of plugins.toml is importable from; installed on its first use, and kept."""
    table = tomllib.loads((HERE / "plugins.toml").read_text("utf-8"))
    return lambda name: _installed(name, table[name])


def _installed(name: str, wanted: list[str]) -> Path:
    folder = INSTALLED / "-".join([name, *(each.partition("==")[2] for each in wanted)])
    if folder.exists():  # so that another user can use it, too
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except PermissionError as error:
        pytest.skip(f"{' '.join(wanted)} cannot be installed here: {error}")
    with _only_one(folder.with_suffix(".lock")):
        if not folder.exists():
            half = folder.with_suffix(".half")
            command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
            done = subprocess.run(
                [*command, "--upgrade", "--target", half, *wanted],
                stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_INSTALL_S, check=False,
                env=with_index(),
            )  # fmt: skip
            if done.returncode:
                said = (done.stderr.strip() or "no word").splitlines()[-1]
                pytest.skip(f"{' '.join(wanted)} cannot be installed here: {said}")
            half.rename(folder)
    return folder


@contextlib.contextmanager
def _only_one(lock: Path) -> Iterator[None]:
    """One process at a time; a lock that is older than the longest installation is ignored."""

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
