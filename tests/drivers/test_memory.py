"""Transfers of a large file up and down through each streaming driver, whose memory must stay flat."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench import drivers, providers
from pytest_cloudbench.model import MIB
from pytest_cloudbench.providers.for_agents import Provided
from pytest_cloudbench.services.command import CommandService, load_recipe

from .conformance_table import TABLE
from .test_driver_conformance import require_installed
from .test_local_stores import RECIPES

SOURCE = str(Path(__file__).parents[2] / "src")
SIZE_BYTES = 1024 * MIB


def streams(scheme: str) -> bool:
    """Return whether a driver declares that it streams. Folders and arrays have no library that could hold a file."""
    driver: Any = drivers.driver_class(scheme)
    return scheme not in ("folder", "raid") and bool(driver.capabilities.streams)


TREES = [scheme for scheme in TABLE if scheme not in RECIPES and streams(scheme)]
"""All other drivers that stream, so that a newly added one is tested, too."""
TREE_SIZE_BYTES = 256 * MIB
"""Less than for stores, since emulators keep everything in memory. A driver's own growth still shows."""
SLOW_STORES = {"gcs"}
"""Their server for tests copies the whole file for each part: 1 GiB takes four minutes. They get the size of trees,
and a bound in proportion."""
MOST_BYTES = 100 * MIB
HANG_S = 900.0

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="a peak that can begin again is Linux's")

# Runs in a process of its own, which has its own peak. A small transfer comes first, for what the library loads and
# keeps. Child processes count, too, because rclone's daemon is part of its driver.
TRANSFERS = """
import json, pathlib, sys
import psutil
from pytest_cloudbench.providers import find_provider

class Zeros:
    def __init__(self, size_bytes):
        self.size_bytes = size_bytes
    def read(self, offset, length):
        return bytes(max(0, min(length, self.size_bytes - offset)))

def folders():
    return [pathlib.Path("/proc", str(process.pid)) for process in (me, *me.children(recursive=True))]

def peak():
    # Not getrusage's: a child's begins with its parent's.
    peaks = [(folder / "status").read_text().partition("VmHWM:")[2] for folder in folders()]
    return sum(int(text.split()[0]) * 1024 for text in peaks if text)

def transfer(path, size_bytes):
    driver.put(path, Zeros(size_bytes))
    up = peak()
    assert sum(map(len, driver.get(path))) == size_bytes
    return up, peak()

me, (provided, size_bytes) = psutil.Process(), json.loads(sys.stdin.read())
driver = find_provider("", lambda *_: provided).driver
transfer("/memory/small", 64 * 1024)
for folder in folders():
    (folder / "clear_refs").write_text("5")  # the peak begins again, where memory is now
start = peak()
up, down = transfer("/memory/large", size_bytes)
driver.delete("/memory")
driver.close()
print(json.dumps([up - start, down - start]))
"""


def assert_flat(provided: Mapping[str, Any], size_bytes: int, most_bytes: int = MOST_BYTES) -> None:
    """Transfer a file of this size up and down in a process of its own, and check the peaks of its memory."""
    done = subprocess.run(
        [sys.executable, "-c", TRANSFERS], input=json.dumps([provided, size_bytes]),
        env={**os.environ, "PYTHONPATH": SOURCE}, capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    up, down = json.loads(done.stdout)
    print(f"{provided['spec']}: {up / MIB:.0f} MiB up, {down / MIB:.0f} MiB down")
    assert up < most_bytes
    assert down < most_bytes


@pytest.mark.slow
@on_linux
@pytest.mark.parametrize("scheme", RECIPES)
def test_memory_of_a_store_stays_flat(scheme: str) -> None:
    recipe = load_recipe(RECIPES[scheme])
    if missing := recipe.describe_missing() or drivers.missing_library(scheme):
        pytest.skip(missing)
    with CommandService(recipe) as service:
        provided = Provided(f"{scheme}://{recipe.target}", service.start())
        size_bytes = TREE_SIZE_BYTES if scheme in SLOW_STORES else SIZE_BYTES
        assert_flat(provided.plain(), size_bytes, MOST_BYTES * size_bytes // SIZE_BYTES)


@pytest.mark.slow
@on_linux
@pytest.mark.parametrize("scheme", TREES)
def test_memory_of_a_tree_stays_flat(scheme: str) -> None:
    spec, services = require_installed(TABLE[scheme]), providers.Providers("outside a run")
    try:
        assert_flat(services.provide("", spec).plain(), TREE_SIZE_BYTES)
    finally:
        services.close()


def test_memory_is_tested_for_every_streaming_driver() -> None:
    assert {*RECIPES, *TREES} == {scheme for scheme in drivers.schemes() if streams(scheme)}
    assert {"box", "dropbox+fast", "gdrive", "mega", "onedrive", "rclone", "sftp", "tahoe", "webdav"} <= {*TREES}
