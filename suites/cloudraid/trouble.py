"""Trouble injected between an array and its children, in this process: the same for emulated, local and real ones."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

from pytest_cloudbench import (
    CloudError,
    Content,
    Driver,
    Entry,
    EqualPlacement,
    ErrorKind,
    RaidDriver,
    due_ns,
    sleep_until_ns,
)

TROUBLES = ("slow", "freezing", "corrupting", "failing")
"""The kinds of trouble that a child can make for reads, besides being lost."""

SLOW_S = 0.25
"""The extra time that a slow child takes for each request."""


class Child:
    """A child's driver with trouble in front of it. Calls without trouble pass through."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.before: Callable[[str, str], object] = lambda verb, path: None
        self.corrupts = False
        for name in ("prepare", "requests"):  # since Python 3.12, isinstance sees nothing of ``__getattr__``
            if hasattr(driver, name):
                setattr(self, name, getattr(driver, name))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    def put(self, path: str, content: Content) -> Entry:
        self.before("put", path)
        return self._driver.put(path, content)

    def get(self, path: str, offset: int = 0) -> Iterator[bytes]:
        self.before("get", path)
        pieces = self._driver.get(path, offset)
        return _flipped(pieces) if self.corrupts else pieces

    def list(self, folder: str) -> Iterator[Entry]:
        self.before("list", folder)
        return self._driver.list(folder)

    def delete(self, path: str) -> None:
        self.before("delete", path)
        self._driver.delete(path)


def _flipped(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yields the pieces with one bit of the last byte changed."""
    latest = b""
    for piece in pieces:
        if latest:
            yield latest
        latest = piece
    yield latest[:-1] + bytes([latest[-1] ^ 1]) if latest else b""


@contextmanager
def troubled(driver: RaidDriver) -> Iterator[Sequence[Child]]:
    """Yields the children of an array, ready for trouble. They work until then, and are restored at the end."""
    children = driver.array.children
    before = children.drivers
    made = [Child(each) for each in before]
    drivers: list[Any] = [*made]  # everything else is passed on to the real driver
    children.drivers = drivers
    try:
        yield made
    finally:
        children.drivers = before


def asked_first(array: RaidDriver, children: Sequence[Child], size_bytes: int, count: int) -> list[Child]:
    """The children that a read of an object asks first: a read would not notice trouble with others."""
    file = array.array.file
    equal = EqualPlacement(file.k, len(children)).split(size_bytes)
    order = array.array.hedge.order(equal, size_bytes // file.k)
    return [children[number] for number in order[:count]]


@contextmanager
def trouble(children: Sequence[Child], kind: str) -> Iterator[None]:
    """Give some children trouble of one kind: one of TROUBLES, or ``lost``."""
    thawed = threading.Event()

    def before(verb: str, path: str) -> None:
        if kind == "slow":
            sleep_until_ns(due_ns(SLOW_S))
        elif kind == "freezing":
            thawed.wait()
            raise CloudError(ErrorKind.NETWORK, verb, path, detail="frozen, by the suite")
        elif kind in {"lost", "failing"}:
            error = ErrorKind.NETWORK if kind == "lost" else ErrorKind.SERVER
            raise CloudError(error, verb, path, detail=f"{kind}, by the suite")

    for child in children:
        child.before, child.corrupts = before, kind == "corrupting"
    try:
        yield
    finally:
        thawed.set()
        for child in children:
            child.before, child.corrupts = (lambda verb, path: None), False


class Chance:
    """Children that fail at random: each by itself with its own probability, and all together with a shared one.

    ``begin`` begins an operation. Whether all fail together is decided once for each operation.
    """

    def __init__(self, seed: str, failures: Sequence[float], shared: float) -> None:
        self._random, self._failures, self._shared = Random(seed), failures, shared
        self._is_outage = False

    def begin(self) -> None:
        self._is_outage = self._random.random() < self._shared

    def set_on(self, children: Sequence[Child]) -> None:
        for child, failure in zip(children, self._failures, strict=True):
            child.before = self._check_of(failure)

    def _check_of(self, failure: float) -> Callable[[str, str], object]:
        def check(verb: str, path: str) -> None:
            if verb == "get" and (self._is_outage or self._random.random() < failure):
                raise CloudError(ErrorKind.SERVER, verb, path, detail="by chance, by the suite")

        return check
