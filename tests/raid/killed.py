"""A process that is killed while it writes: ``python -m tests.raid.killed FOLDER STEP``.

It overwrites ``/a`` and ends, as if killed, once that many packages are with children; with as many steps as there are
packages, or more, when the write is done.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from pathlib import Path

from pytest_cloudbench.model import MIB
from pytest_cloudbench.workload.payload.contents import Literal

from .harness import Lab

__all__ = ["NEW", "OLD", "PACKAGES"]

OLD = random.Random(1).randbytes(MIB + 1)
NEW = random.Random(2).randbytes(2 * MIB + 1)
PACKAGES = 9
"""Three segments for three children each."""


def main(folder: Path, step: int) -> None:
    lock, left = threading.Lock(), [step]

    def count() -> None:
        with lock:
            left[0] -= 1
            if left[0] == 0:
                os._exit(9)

    lab = Lab(folder)
    with lab.opened() as driver:
        driver.stat("/a")  # what the first operation starts has been started
        for child in lab.children:
            child.after_put = count
        if step == 0:
            os._exit(9)
        driver.put("/a", Literal(NEW))
        os._exit(9)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
