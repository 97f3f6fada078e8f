"""A process that writes and deletes objects until it is killed: ``python -m tests.raid.writer_process FOLDER ROUND``.

It prints a line before each operation (``put PATH NUMBER SIZE`` or ``delete PATH``), and one when it is done.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from pytest_cloudbench.model import MIB, CloudError
from pytest_cloudbench.raid.driver import RaidDriver
from pytest_cloudbench.workload.payload.contents import Literal

from .harness import ArrayFolder

__all__ = ["SIZES", "content_of", "delete", "put"]

SIZES = (10, 5000, MIB, 3 * MIB + 5)


def content_of(round_: int, number: int, size: int) -> bytes:
    """Return the content of a round's object with this number."""
    return random.Random(f"{round_} {number}").randbytes(size)


def put(driver: RaidDriver, path: str, round_: int, number: int, size: int) -> None:
    """Write an object, and print a line before and after."""
    print("put", path, number, size, flush=True)
    driver.put(path, Literal(content_of(round_, number, size)))
    print("done", flush=True)


def delete(driver: RaidDriver, path: str) -> None:
    """Delete an object, and print a line before, and the result after."""
    print("delete", path, flush=True)
    try:
        driver.delete(path)
    except CloudError:
        print("absent", flush=True)
    else:
        print("done", flush=True)


def main(folder: Path, round_: int) -> None:
    rng, number = random.Random(round_), 0
    with ArrayFolder(folder).opened() as driver:
        while True:
            path = f"/{rng.randrange(4)}"
            if rng.random() < 0.2:
                delete(driver, path)
            else:
                number += 1
                put(driver, path, round_, number, rng.choice(SIZES))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
