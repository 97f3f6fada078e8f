"""Python's cyclic garbage collector."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

_PID = os.getpid()
"""The process that has imported this module. One that was forked from it has another id."""


@contextmanager
def without_collector() -> Iterator[None]:
    """Disable the collector while very many objects without cycles are made."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def freeze_objects() -> None:
    """Exempt all objects from collection, because what was imported stays for good. Does nothing in a forked process.

    There, only what was made before the fork is frozen, so that the other objects can be listed at the end.
    """
    if os.getpid() == _PID:
        gc.freeze()
