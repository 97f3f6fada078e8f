"""Private folders on a provider, for tests that measure nothing.

What may live here: what such a test needs around a driver. If files outlive the run, a folder is in the journal before
it is made, as an experiment's is. Throttled calls wait, and the run's budget holds.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, islice
from typing import Any

from pytest_cloudbench.drivers.base import Driver, Preparing
from pytest_cloudbench.fleet.agent import Agent
from pytest_cloudbench.fleet.run import RunFacts
from pytest_cloudbench.load.engine.engine import Budget
from pytest_cloudbench.load.messages import SwitchFaults
from pytest_cloudbench.model import CloudError, ErrorKind
from pytest_cloudbench.providers import Provider

_TRIES = 60
_PAUSE_S = 1.0
_STREAMS = frozenset({"get", "list"})


class Sandbox:
    """A private place on a provider for one process, so that pytest-xdist may distribute the tests.

    Args:
        provider: where the folders are.
        agent: this process.
        facts: of the run.
        processes: how many share the run's budget.

    Attributes:
        driver: the provider's driver. A throttled call waits and is repeated.
    """

    def __init__(self, provider: Provider, agent: Agent, facts: RunFacts, processes: int = 1) -> None:
        self.provider, self._agent, self._facts = provider, agent, facts
        # Not the run's common folder: the first process to leave would remove it.
        self._top = f"/cloudbench-{facts.run_id}-{agent.name}"
        self._numbers, self._is_claimed = count(), False
        ops, size_bytes = (None if bound is None else bound // processes for bound in (facts.max_ops, facts.max_bytes))
        self.driver: Any = _Patient(provider.driver, Budget(ops, size_bytes), self._wait)
        self._cleaner: Any = _Patient(provider.driver, Budget(), self._wait)

    def folder(self) -> str:
        """Return the path of a new folder, created if the provider has folders. Raises CloudError and ResultsError."""
        path = f"{self._top}/{next(self._numbers)}"
        if not self._is_claimed:
            self._is_claimed = True
            if self.provider.has_services:  # an emulator's faults are only for measured operations
                self._agent.ask("faults", SwitchFaults(self.provider.spec, are_on=False))
            if self.provider.is_kept:
                self.provider.claim(path, self._facts.owner)
        if self.driver.capabilities.folders:
            self.driver.mkdir(path)
        if isinstance(self.provider.driver, Preparing):
            self.driver.prepare(path)
        return path

    def remove(self, folder: str) -> None:
        """Remove a folder with all it holds; no error if it is gone. No budget stops this. Raises CloudError."""
        try:
            self._cleaner.delete(folder)
        except CloudError as error:
            if error.kind is not ErrorKind.NOT_FOUND:
                raise

    def close(self) -> None:
        """Remove this process's place if nothing is left in it; if that fails, its note stays in the journal."""
        if not (self._is_claimed and self.provider.is_kept):
            return
        try:
            self.provider.release(f"{self._top}/0")
        except CloudError as error:  # the next provider's tests are not to blame
            advice = "'cloudbench clean' removes what is left"
            warnings.warn(f"{self.provider.spec}: cannot remove {self._top}: {error}; {advice}", stacklevel=2)

    def _wait(self, asked_s: float | None) -> None:
        self._agent.stop.wait((asked_s or _PAUSE_S) / self._facts.time_scale)


class _Patient:
    """A driver that retries when throttled: a call waits as long as the provider asks, and is repeated."""

    def __init__(self, driver: Driver, budget: Budget, wait: Callable[[float | None], None]) -> None:
        self._driver, self._budget, self._wait = driver, budget, wait

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._driver, name)
        if not callable(found):
            return found
        return lambda *args: (self._stream if name in _STREAMS else self._call)(found, *args)

    def _call(self, method: Callable[..., Any], *args: Any) -> Any:
        for tries_left in reversed(range(_TRIES)):
            self._budget.take(getattr(args[-1], "size_bytes", 0) if args else 0)
            try:
                return method(*args)
            except CloudError as error:
                if error.kind is not ErrorKind.THROTTLED or not tries_left:
                    raise
                self._wait(error.retry_after_s)
        return None

    def _stream(self, method: Callable[..., Iterator[Any]], *args: Any) -> Iterator[Any]:
        """Yield item by item. Throttling occurs only before the first item, so no item is repeated."""
        first, rest = self._call(partial(_begun, method), *args)
        yield from first
        yield from rest


def _begun(method: Callable[..., Iterator[Any]], *args: Any) -> tuple[list[Any], Iterator[Any]]:
    rest = method(*args)
    return list(islice(rest, 1)), rest
