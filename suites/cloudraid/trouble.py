"""Trouble between an array and its children, injected in this process for emulated, local and real ones alike."""

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


class TroubledChild:
    """A wrapper of a child's driver that can cause trouble. Other calls pass through."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.before: Callable[[str, str], object] = lambda verb, path: None
        self.corrupts = False
        for name in ("prepare", "requests"):  # isinstance ignores ``__getattr__`` since Python 3.12
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
        return _flip_last_bit(pieces) if self.corrupts else pieces

    def list(self, folder: str) -> Iterator[Entry]:
        self.before("list", folder)
        return self._driver.list(folder)

    def delete(self, path: str) -> None:
        self.before("delete", path)
        self._driver.delete(path)


def _flip_last_bit(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield pieces of content with one bit of the last byte changed."""
    latest = b""
    for piece in pieces:
        if latest:
            yield latest
        latest = piece
    yield latest[:-1] + bytes([latest[-1] ^ 1]) if latest else b""


@contextmanager
def wrap_children(driver: RaidDriver) -> Iterator[Sequence[TroubledChild]]:
    """Wrap the children of an array. They work until trouble is caused, and are unwrapped at the end."""
    children = driver.array.children
    former = children.drivers
    wrappers = [TroubledChild(child) for child in former]
    drivers: list[Any] = [*wrappers]  # a wrapper has all methods of its driver
    children.drivers = drivers
    try:
        yield wrappers
    finally:
        children.drivers = former


def first_asked_children(
    array: RaidDriver, children: Sequence[TroubledChild], size_bytes: int, count: int
) -> list[TroubledChild]:
    """Return the children that a read of an object asks first, since a read would not notice trouble with others."""
    file = array.array.file
    equal = EqualPlacement(file.k, len(children)).split(size_bytes)
    order = array.array.hedge.order(equal, size_bytes // file.k)
    return [children[number] for number in order[:count]]


@contextmanager
def cause_trouble(children: Sequence[TroubledChild], kind: str) -> Iterator[None]:
    """Cause trouble of one kind with some children. The kind is one of TROUBLES, or ``lost``."""
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


class RandomFailures:
    """Random failures of reads: of each child with its own probability, and of all together with a shared one.

    ``begin_operation`` decides once for an operation whether all fail together.
    """

    def __init__(self, seed: str, failures: Sequence[float], shared: float) -> None:
        self._random, self._failures, self._shared = Random(seed), failures, shared
        self._is_outage = False

    def begin_operation(self) -> None:
        self._is_outage = self._random.random() < self._shared

    def install_on(self, children: Sequence[TroubledChild]) -> None:
        for child, failure in zip(children, self._failures, strict=True):
            child.before = self._make_check(failure)

    def _make_check(self, failure: float) -> Callable[[str, str], object]:
        def check(verb: str, path: str) -> None:
            if verb == "get" and (self._is_outage or self._random.random() < failure):
                raise CloudError(ErrorKind.SERVER, verb, path, detail="a random failure, by the suite")

        return check
