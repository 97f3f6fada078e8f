"""A pytest plugin that follows a provider's spec through all modules until a driver is connected.

It watches every call of every thread in this process and in xdist's workers. If a function of the package gets the
value (as a text, in a spec, in the data for agents, or in a message's payload), the plugin writes a line "TIME CALLER
CALLEE" to ``follow-PID.txt``. Caller and callee are modules, or "driver" for the driver that connects or is composed of
connected children.
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
INTO = Path(os.environ["FOLLOWED_INTO"])  # read here, since the environment is closed while a driver connects
SEEN: set[tuple[str, str]] = set()


def holds_spec(value: Any) -> bool:
    """Return whether a value is the spec, or an object of the package that holds it."""
    if isinstance(value, str):
        return value in WANTED
    field = {"ProviderSpec": "text", "Provided": "spec", "Ask": "payload"}.get(type(value).__name__)
    return field is not None and holds_spec(getattr(value, field, None))  # the field is missing during construction


def caller_of(frame: FrameType) -> str:
    """Return the nearest module of the package among the callers of a frame, or "-" if there is none."""
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
    parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    if any(holds_spec(frame.f_locals.get(parameter)) for parameter in parameters):
        edge = (caller_of(frame), "driver" if is_driver else module.removeprefix(PACKAGE))
        if is_driver or (edge not in SEEN and edge[0] != edge[1]):
            SEEN.add(edge)
            write(*edge)


def write(caller: str, callee: str) -> None:
    with (INTO / f"follow-{os.getpid()}.txt").open("a") as file:
        file.write(f"{time.monotonic_ns()} {caller} {callee}\n")


def watch_threads(start: Callable[..., int]) -> Callable[..., int]:
    """Return a function that starts watched threads, for those that execnet starts without ``threading``."""

    def start_watched(function: Callable[..., Any], *start_arguments: Any) -> int:
        def run(*arguments: Any, **keywords: Any) -> Any:
            sys.setprofile(watch)
            return function(*arguments, **keywords)

        return start(run, *start_arguments)

    return start_watched


_thread.start_new_thread = watch_threads(_thread.start_new_thread)
threading.setprofile(watch)
sys.setprofile(watch)
