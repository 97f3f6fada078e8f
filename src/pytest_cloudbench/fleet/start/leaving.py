"""The end of a forked worker, which does not touch the memory that it shares with the others.

An interpreter that ends frees its objects. That writes to their pages, and each written page is copied: fifty forked
workers would copy all modules at the same moment. A forked worker does for others what Python does at its end: it waits
for threads, calls what is registered with ``atexit`` and writes out files. The memory it leaves to the system.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from io import IOBase
from types import AsyncGeneratorType, CoroutineType, FunctionType, GeneratorType
from typing import Any

from execnet.gateway_base import Channel

_SUSPENDED = (GeneratorType, CoroutineType, AsyncGeneratorType)
"""As they are freed, the ``finally`` clauses that they are in are executed."""

_OF_GATEWAY = {Channel}
"""Its finalizer tells the other side that the channel is closed. The end of the gateway has told that already."""


class QuickEnd:
    """The end of all processes that will be forked from this one. Make it before the objects are frozen.

    An object whose finalizer is written in Python may expect to be freed, and so may a generator that a test has not
    ended. If there is one, the interpreter ends in the usual way.
    """

    def __init__(self) -> None:
        gc.unfreeze()  # frozen objects are not listed
        objects = gc.get_objects()
        self._has_finalizers = _has_finalizer(objects)
        self._files = list[weakref.ref[Any]]()
        for file in _select(objects, IOBase):
            with suppress(TypeError):  # a class that only says that it is a file
                self._files.append(weakref.ref(file))

    def leave(self) -> None:
        """End this process as Python would. Returns only if the interpreter must end in the usual way."""
        objects = gc.get_objects()  # those that were made since the fork
        if self._has_finalizers or _has_finalizer(objects) or _select(objects, *_SUSPENDED):
            return
        interpreter: Any = threading
        interpreter._shutdown()
        atexit._run_exitfuncs()
        earlier_files = [file for reference in self._files if (file := reference()) is not None]
        for file in (*earlier_files, *_select(gc.get_objects(), IOBase), sys.stdout, sys.stderr):
            with suppress(Exception):  # Python ignores these at its end, too
                file.flush()
        os._exit(0)


def _select(objects: Sequence[Any], *kinds: type) -> list[Any]:
    """Return the objects of these kinds."""
    wanted = {kind for kind in set(map(type, objects)) if issubclass(kind, kinds)}
    return [listed for listed in objects if type(listed) in wanted]


def _has_finalizer(objects: Sequence[Any]) -> bool:
    """Return whether one of the objects has a finalizer in Python."""
    kinds = set(map(type, objects)) - _OF_GATEWAY
    return any(isinstance(getattr(kind, "__del__", None), FunctionType) for kind in kinds)
