"""A process that writes and maintains until it is killed: ``python -m tests.raid.maintainer_process FOLDER ROUND``.

It prints a line before each step (``put PATH NUMBER SIZE``, ``delete PATH``, ``maintain WHAT``), and one at its end.
The third child is a folder, or the service whose endpoint is in ``endpoint.json``.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pytest_cloudbench.drivers.dropbox_fast import DropboxFastDriver
from pytest_cloudbench.model import CloudError, Endpoint, ProviderSpec
from pytest_cloudbench.raid import config
from pytest_cloudbench.raid.coding.policies import Equal
from pytest_cloudbench.raid.driver import RaidDriver, open_array
from pytest_cloudbench.raid.maintenance import note_all_missing, rebalance_array, repair_array
from pytest_cloudbench.raid.survey import survey_array

from .harness import PACKAGE, ArrayFolder, Child
from .writer_process import SIZES, delete, put

__all__ = ["opened_worker"]


@contextmanager
def opened_worker(array_folder: ArrayFolder, k: int = 2) -> Iterator[RaidDriver]:
    """Yield the array's driver, which places new objects so that any ``k`` children are enough."""
    children: list[Any] = [Child(array_folder.folder / str(number)) for number in range(3)]
    endpoint_path = array_folder.folder / "endpoint.json"
    if endpoint_path.exists():
        children[2].close()
        endpoint = Endpoint.from_plain(json.loads(endpoint_path.read_text("utf-8")))
        children[2] = DropboxFastDriver.connect(ProviderSpec.parse("dropbox+fast:"), endpoint, {})
    driver = RaidDriver(open_array(config.load(array_folder.file), children, placement=Equal(k, 3)))
    try:
        yield driver
    finally:
        driver.close()


def _maintain(driver: RaidDriver, task: str, rng: random.Random) -> None:
    array = driver.array
    if task == "repair":  # some packages of one child
        _lose_packages(driver, 2, lambda: rng.random() < 0.5)
        survey_array(array, deep=True)
        repair_array(array)
    elif task == "replace":  # one child by an empty one
        _lose_packages(driver, 2, lambda: True)
        note_all_missing(array, 2)
        repair_array(array)
    else:
        rebalance_array(array)


def _lose_packages(driver: RaidDriver, child: int, is_lost: Any) -> None:
    store = driver.array.children.drivers[child]
    for entry in list(store.list("/cloudraid")):
        if PACKAGE.fullmatch(entry.path.rpartition("/")[2]) and is_lost():
            try:
                store.delete(entry.path)
            except CloudError:
                continue  # upkeep was quicker


def main(folder: Path, round_: int) -> None:
    rng, number = random.Random(round_), 0
    with opened_worker(ArrayFolder(folder), 1 + round_ % 2) as driver:
        list(driver.list("/"))  # makes the folders
        while True:
            path, kind = f"/{rng.randrange(4)}", rng.random()
            if kind < 0.5:
                number += 1
                put(driver, path, round_, number, rng.choice(SIZES))
            elif kind < 0.65:
                delete(driver, path)
            else:
                task = rng.choice(["repair", "replace", "rebalance"])
                print("maintain", task, flush=True)
                _maintain(driver, task, rng)
                print("done", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
