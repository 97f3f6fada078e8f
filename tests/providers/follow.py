"""A pytest plugin that follows a provider's spec: through which modules it passes until a driver is connected.

It watches every call of every thread in this process and in xdist's workers. Where a function of the package is handed
the value (as a text, in a spec, in what agents are told, or in a message's payload), it writes down who called whom: a
line of ``follow-PID.txt`` is "TIME CALLER CALLEE", by modules, and "driver" is the driver that is asked to connect, or
to be made of connected children.
"""

from __future__ import annotations

import _thread
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

__all__: list[str] = []

PACKAGE = "pytest_cloudbench."
WANTED = set(os.environ["FOLLOWED"].split("|"))
DRIVER = os.environ["FOLLOWED_DRIVER"]
INTO = Path(os.environ["FOLLOWED_INTO"])  # now: the environment is closed while a driver connects
SEEN: set[tuple[str, str]] = set()


def is_it(value: Any) -> bool:
    """Whether it is the value, or holds it where somebody who follows it would look."""
    if isinstance(value, str):
        return value in WANTED
    held = {"ProviderSpec": "text", "Provided": "spec", "Ask": "payload"}.get(type(value).__name__)
    return held is not None and is_it(getattr(value, held, None))  # not yet there while it is made


def caller_of(frame: FrameType) -> str:
    """The module of the package that called it, through whatever is between; "-" where none did."""
    outer = frame.f_back
    while outer is not None:
        module = str(outer.f_globals.get("__name__", ""))
        if module == DRIVER:
            return "driver"
        if module.startswith(PACKAGE):
            return module.removeprefix(PACKAGE)
        outer = outer.f_back
    return "-"


def watch(frame: FrameType, event: str, argument: Any) -> None:
    if event != "call":
        return
    module, code = frame.f_globals.get("__name__") or "", frame.f_code  # None while the interpreter ends
    is_driver = module == DRIVER and code.co_name in ("connect", "compose")
    if not is_driver and (not module.startswith(PACKAGE) or code.co_name == "__init__"):
        return  # a constructor does not pass the value on
    handed = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    if any(is_it(frame.f_locals.get(each)) for each in handed):
        edge = (caller_of(frame), "driver" if is_driver else module.removeprefix(PACKAGE))
        if is_driver or (edge not in SEEN and edge[0] != edge[1]):
            SEEN.add(edge)
            write(*edge)


def write(caller: str, callee: str) -> None:
    with (INTO / f"follow-{os.getpid()}.txt").open("a") as file:
        file.write(f"{time.monotonic_ns()} {caller} {callee}\n")


def watched(start: Callable[..., int]) -> Callable[..., int]:
    """Threads that execnet starts without ``threading``."""

    def start_watched(function: Callable[..., Any], *rest: Any) -> int:
        def run(*arguments: Any, **named: Any) -> Any:
            sys.setprofile(watch)
            return function(*arguments, **named)

        return start(run, *rest)

    return start_watched


_thread.start_new_thread = watched(_thread.start_new_thread)
threading.setprofile(watch)
sys.setprofile(watch)
