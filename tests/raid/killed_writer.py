"""A process that is killed while it writes: ``python -m tests.raid.killed_writer FOLDER STEP``.

It overwrites ``/a``, and ends as if killed once ``STEP`` packages are with children. With more steps than packages, it
ends when the write is done.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from pathlib import Path

from pytest_cloudbench.model import MIB
from pytest_cloudbench.workload.payload.contents import Literal

from .harness import ArrayFolder

__all__ = ["NEW", "OLD", "PACKAGES"]

OLD = random.Random(1).randbytes(MIB + 1)
NEW = random.Random(2).randbytes(2 * MIB + 1)
PACKAGES = 9
"""The packages of three segments, each for three children."""


def main(folder: Path, last_put: int) -> None:
    lock, puts_left = threading.Lock(), [last_put]

    def count() -> None:
        with lock:
            puts_left[0] -= 1
            if puts_left[0] == 0:
                os._exit(9)

    array_folder = ArrayFolder(folder)
    with array_folder.opened() as driver:
        driver.stat("/a")  # so that all that the first operation starts is running
        for child in array_folder.children:
            child.after_put = count
        if last_put == 0:
            os._exit(9)
        driver.put("/a", Literal(NEW))
        os._exit(9)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
