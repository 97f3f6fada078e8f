"""Private folders on a provider, for tests that measure nothing.

If files outlive the run, a folder is in the journal before it is made, as for an experiment. Throttled calls are
repeated, and the run's budget holds.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Generator, Iterator
from functools import partial
from itertools import count, islice
from threading import Lock
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.drivers.base import Driver, Preparing
from pytest_cloudbench.fleet.agent import Agent
from pytest_cloudbench.fleet.run import RunFacts
from pytest_cloudbench.load.engine.engine import Budget
from pytest_cloudbench.load.messages import UNKNOWN_LOAD, Start, Subject, SwitchFaults
from pytest_cloudbench.load.request import EntryOptions
from pytest_cloudbench.model import CloudbenchError, CloudError, ErrorKind, ignore_missing
from pytest_cloudbench.providers import Provider
from pytest_cloudbench.support import redact

if TYPE_CHECKING:
    import pytest

    from pytest_cloudbench.load.cassette.cassette import Cassette

_MAX_TRIES = 60
_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 600.0
_SILENCE_S = 5.0
"""How long a provider may let calls wait before the user is told."""
_STREAMS = frozenset({"get", "list"})


class Sandbox:
    """The private folders of one process on a provider, so that pytest-xdist may distribute the tests.

    Args:
        provider: holds the folders.
        agent: this process.
        facts: of the run.
        processes: the number of processes that share the run's budget.

    Attributes:
        driver: the provider's driver. A throttled call waits and is repeated.
    """

    def __init__(self, provider: Provider, agent: Agent, facts: RunFacts, processes: int = 1) -> None:
        self.provider, self._agent, self._facts = provider, agent, facts
        # Not the run's common folder: the first process to leave would remove it.
        self._root = f"/cloudbench-{facts.run_id}-{agent.name}"
        self._numbers, self._is_claimed, self._is_noted = count(), False, False
        ops, size_bytes = (None if bound is None else bound // processes for bound in (facts.max_ops, facts.max_bytes))
        wait_before_retry = ThrottleWaits(agent, provider.spec, facts.time_scale)
        self.driver: Any = RetryingDriver(provider.driver, Budget(ops, size_bytes), wait_before_retry)
        self._cleaner: Any = RetryingDriver(provider.driver, Budget(), wait_before_retry)

    def folder(self) -> str:
        """Return the path of a new folder, created if the provider has folders. Raises CloudError and ResultsError."""
        path = f"{self._root}/{next(self._numbers)}"
        if self.provider.has_services:  # an emulator's faults are only for operations that an experiment measures
            self._agent.ask("faults", SwitchFaults(self.provider.spec, are_on=False))
        if not self._is_claimed:
            if self.provider.is_kept:
                self._is_noted = True  # even if the claim fails, the journal may have a note of it
                self.provider.claim(path, self._facts.owner)
            self._is_claimed = True
        if self.driver.capabilities.folders:
            self.driver.mkdir(path)
        if isinstance(self.provider.driver, Preparing):
            self.driver.prepare(path)
        return path

    def remove(self, folder: str) -> None:
        """Remove a folder and its content, if it still exists. No budget stops this. Raises CloudError."""
        with ignore_missing():
            self._cleaner.delete(folder)

    def close(self) -> None:
        """Remove this process's own folder if it is empty. If that fails, its note stays in the journal."""
        if not self._is_noted:
            return
        try:
            self.provider.release(f"{self._root}/0")
        except CloudError as error:  # the next provider's tests are not to blame
            advice = "'cloudbench clean' removes what is left"
            warnings.warn(f"{self.provider.spec}: cannot remove {self._root}: {error}; {advice}", stacklevel=2)


class ThrottleWaits:
    """Waits before throttled calls are repeated, until the run is stopped. Tells the user if that takes long.

    Args:
        agent: this process.
        spec: the provider.
        time_scale: how many times faster than real time its clock runs.
        clock: returns the present time, in seconds.
    """

    def __init__(self, agent: Agent, spec: str, time_scale: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._agent, self._spec, self._time_scale, self._clock = agent, spec, time_scale, clock
        self._began_s = self._ends_s = self._told_s = float("-inf")
        self._lock = Lock()

    def __call__(self, requested_s: float | None) -> None:
        """Wait as long as the provider asks, or for a second."""
        wait_s = (requested_s or _PAUSE_S) / self._time_scale
        if self._is_long(wait_s):
            self._agent.tell("waits", f"{redact.clean(self._spec)} throttles: it is asked again in {wait_s:.0f} s")
        self._agent.stop.wait(wait_s)

    def _is_long(self, wait_s: float) -> bool:
        """Return whether calls have waited for long at the end of this wait, without a word to the user."""
        with self._lock:  # many threads may wait at once
            now_s = self._clock()
            if now_s > self._ends_s + _SILENCE_S:
                self._began_s = now_s
            self._ends_s = max(self._ends_s, now_s + wait_s)
            is_long = self._ends_s - max(self._began_s, self._told_s) >= _SILENCE_S
            if is_long:
                self._told_s = self._ends_s
            return is_long


class NotOpenedError(CloudbenchError):
    """A provider cannot be opened. It is one error for all tests that need its sandbox, because pytest keeps it."""

    is_reported = False


def open_sandbox(provider: Provider, agent: Agent, facts: RunFacts, processes: int) -> Generator[Sandbox]:
    """Yield the sandbox of one process, see ``Sandbox``, and close it. Raises NotOpenedError."""
    try:
        try:
            sandbox = Sandbox(provider, agent, facts, processes)
            if provider.is_kept:
                _ask_consent(provider, agent)
        except CloudbenchError as error:  # such as missing credentials, or an account that needs the user's consent
            raise NotOpenedError(str(error)) from None
        yield sandbox
        sandbox.close()
    finally:
        provider.close()


def open_provider(provider: Provider, cassette: Cassette | None) -> Generator[Provider]:
    """Yield a provider, and close it. A cassette serializes the calls of its driver."""
    if cassette is not None:
        cassette.serialize_calls(provider.driver)
    yield provider
    provider.close()


def ask_before_use(providers: Iterator[Provider], agent: Agent, is_direct: Callable[[], bool]) -> Generator[Provider]:
    """Yield a provider that lets the user be asked before it gives a test the driver of a real account.

    It does so while ``is_direct`` returns True: not for experiments, which let the user be asked before each run,
    because they know what that will cost.
    """
    agreed: set[str] = set()

    def ask(provider: Provider) -> None:
        if is_direct() and provider.spec not in agreed and provider.is_kept:
            _ask_consent(provider, agent)
            agreed.add(provider.spec)

    for new_provider in providers:
        new_provider.before_use = ask
        yield new_provider


def _ask_consent(provider: Provider, agent: Agent) -> None:
    """Let the controller announce the use of a real account, and ask the user. Raises FleetError on a no."""
    all_tests = Subject("", "", "", "", "", {}, "", provider.spec, provider.profile, provider.is_kept, {})
    agent.ask("agree", Start(all_tests, UNKNOWN_LOAD, EntryOptions(store=False)))


def report_once(report: pytest.TestReport, error: BaseException) -> None:
    """Let the first test fail whose provider cannot be opened, and skip the others, which have the same error."""
    if not isinstance(error, NotOpenedError):
        return
    report.longrepr = str(error)
    if error.is_reported:
        path, line, _ = report.location
        report.outcome, report.longrepr = "skipped", (path, (line or 0) + 1, f"as the first such test: {error}")
    error.is_reported = True


class RetryingDriver:
    """A driver whose throttled calls wait as long as the provider asks, and are then repeated.

    If it asks for more than ten minutes, the error is raised at once.
    """

    def __init__(self, driver: Driver, budget: Budget, wait: Callable[[float | None], None]) -> None:
        self._driver, self._budget, self._wait_before_retry = driver, budget, wait

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._driver, name)
        if not callable(attribute):
            return attribute
        return lambda *args: (self._stream_with_retries if name in _STREAMS else self._call_with_retries)(
            attribute, *args
        )

    def _call_with_retries(self, method: Callable[..., Any], *args: Any) -> Any:
        for tries_left in reversed(range(_MAX_TRIES)):
            self._budget.take(getattr(args[-1], "size_bytes", 0) if args else 0)
            try:
                return method(*args)
            except CloudError as error:
                is_too_long = (error.retry_after_s or 0.0) > _LONGEST_PAUSE_S
                if error.kind is not ErrorKind.THROTTLED or is_too_long or not tries_left:
                    raise
                self._wait_before_retry(error.retry_after_s)
        return None

    def _stream_with_retries(self, method: Callable[..., Iterator[Any]], *args: Any) -> Iterator[Any]:
        """Yield item by item. Throttling occurs only before the first item, so no item is repeated."""
        first, others = self._call_with_retries(partial(_begin_stream, method), *args)
        yield from first
        yield from others


def _begin_stream(method: Callable[..., Iterator[Any]], *args: Any) -> tuple[list[Any], Iterator[Any]]:
    items = method(*args)
    return list(islice(items, 1)), items
