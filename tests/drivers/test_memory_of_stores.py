"""A file of 1 GiB up and down through each driver of an object store, in memory that stays flat."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_cloudbench import drivers
from pytest_cloudbench.model import MIB
from pytest_cloudbench.services.command import CommandService, load_recipe

from .test_local_stores import RECIPES

SOURCE = str(Path(__file__).parents[2] / "src")
SIZE_BYTES = 1024 * MIB
SMALLER_BYTES = {"gcs": 256 * MIB}
"""Its server copies all that it has for each piece that comes."""
MOST_BYTES = 100 * MIB
HANG_S = 900.0

# Its own process: only that has a peak of its own. A small transfer first, for what the library loads and keeps.
TRANSFERS = """
import json, pathlib, sys
from pytest_cloudbench import drivers
from pytest_cloudbench.model import Endpoint, ProviderSpec

class Zeros:
    def __init__(self, size_bytes):
        self.size_bytes = size_bytes
    def read(self, offset, length):
        return bytes(max(0, min(length, self.size_bytes - offset)))

def peak():
    # Not getrusage's: a child's begins with its parent's.
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024

def transfer(driver, path, size_bytes):
    driver.put(path, Zeros(size_bytes))
    up = peak()
    assert sum(map(len, driver.get(path))) == size_bytes
    return up, peak()

told = json.loads(sys.stdin.read())
driver = drivers.connect(ProviderSpec.parse(told["spec"]), Endpoint.from_plain(told["endpoint"]), {})
transfer(driver, "/memory/small", 64 * 1024)
pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak begins again, where memory is now
start = peak()
up, down = transfer(driver, "/memory/large", told["size_bytes"])
driver.delete("/memory")
print(json.dumps([up - start, down - start]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="a peak that can begin again is Linux's")
@pytest.mark.parametrize("scheme", RECIPES)
def test_memory_stays_flat(scheme: str) -> None:
    recipe = load_recipe(RECIPES[scheme])
    if missing := recipe.absent() or drivers.missing_library(scheme):
        pytest.skip(missing)
    # On disk: what is looked at is the client.
    recipe = replace(recipe, command=tuple(word for word in recipe.command if word != "--in-memory"))
    with CommandService(recipe) as service:
        size_bytes = SMALLER_BYTES.get(scheme, SIZE_BYTES)
        endpoint = service.start().plain()
        told = {"spec": f"{scheme}://{recipe.target}", "endpoint": endpoint, "size_bytes": size_bytes}
        done = subprocess.run(
            [sys.executable, "-c", TRANSFERS], input=json.dumps(told), env={**os.environ, "PYTHONPATH": SOURCE},
            capture_output=True, text=True, timeout=HANG_S, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    up, down = json.loads(done.stdout)
    print(f"{scheme}: {up / MIB:.0f} MiB up, {down / MIB:.0f} MiB down")
    assert up < MOST_BYTES
    assert down < MOST_BYTES
