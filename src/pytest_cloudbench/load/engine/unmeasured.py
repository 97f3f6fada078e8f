"""What agents do before and after a run, outside the measurement.

What may live here: folders, files and listings on a provider, even one in trouble because of the measured load.
No clock runs meanwhile, and an emulator's faults are off.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from pytest_cloudbench.drivers.base import Preparing
from pytest_cloudbench.fleet.agent import Agent
from pytest_cloudbench.fleet.run import RunFacts
from pytest_cloudbench.load.engine.engine import Budget
from pytest_cloudbench.load.messages import ListingPage, SwitchFaults
from pytest_cloudbench.load.request import Files
from pytest_cloudbench.model import BudgetError, CloudError, Entry, ErrorKind
from pytest_cloudbench.providers import Provider

_LISTING_FILES = 2000
_PATIENT_S, _FIRST_PATIENT_S = 60.0, 5.0
"""How long to wait for transient errors to pass; the second if the provider has never answered: a mistyped name?"""
_RETRY_S = 1.0
_UPLOADING_THREADS = 8
_PASSING = frozenset({ErrorKind.THROTTLED, ErrorKind.NETWORK, ErrorKind.SERVER})
"""Transient errors, which this work waits for to pass."""

_PASSING_REMOVAL = frozenset({ErrorKind.THROTTLED, ErrorKind.SERVER})


class Unmeasured:
    """One agent's work around its runs. Every method raises CloudError if waiting does not help, and FleetError."""

    def __init__(self, agent: Agent, provider: Provider, facts: RunFacts) -> None:
        self._agent, self._provider, self._facts = agent, provider, facts

    def make(self, folder: str, *, mkdir: bool, is_fresh: bool) -> None:
        """Make a run's folder for all agents; an emulator is emptied first if nothing on it is still needed."""
        provider = self._provider
        if provider.has_services and is_fresh:  # before the claim, whose marker it might remove
            self._agent.ask("fresh", provider.spec)
        if provider.is_kept:
            limit_s = _PATIENT_S if provider.has_answered else _FIRST_PATIENT_S
            self._patiently(lambda: provider.claim(folder, self._facts.owner), limit_s=limit_s)
            provider.has_answered = True
        if mkdir and provider.driver.capabilities.folders:
            with self._without_faults():
                self._patiently(lambda: provider.driver.mkdir(folder), {ErrorKind.THROTTLED})

    def prepare_driver(self, run: str, folder: str) -> None:
        """Let this agent's driver do its one-time work for a folder; faults are off until the common start."""
        driver = self._provider.driver
        if not isinstance(driver, Preparing):
            return
        self._agent.once(f"unprepared:{run}", lambda: self._faults(False))
        with self._agent.sign_of_life():
            self._patiently(lambda: driver.prepare(folder))

    def upload(self, run: str, files: Files, members: Sequence[tuple[int, int]], budget: Budget) -> str:
        """Upload this agent's files for a run that needs them. Returns why that ended early, or an empty text."""
        agent, driver = self._agent, self._provider.driver

        def put(member: tuple[int, int]) -> None:
            path, content = files.file(*member)
            budget.take(content.size_bytes)
            self._patiently(lambda: driver.put(path, content))

        agent.once(f"unmeasured:{run}", lambda: self._faults(False))  # until the common start
        stopped = ""
        with agent.sign_of_life():
            try:
                with ThreadPoolExecutor(_UPLOADING_THREADS, "prepare") as pool:
                    list(pool.map(put, members))
                if members:  # a file that is not ready yet must not fail what is measured
                    last = files.path(*members[-1])
                    self._patiently(lambda: driver.stat(last), _PASSING | {ErrorKind.NOT_FOUND})
            except BudgetError as error:
                stopped = str(error)
            agent.gather(f"prepared:{run}")
        return stopped

    def list(self, run: str, folder: str) -> int:
        """Send the provider's listing of a folder to the controller, in pieces. Returns how many files there are."""
        files: list[Entry] = []
        try:
            for entry in self._provider.driver.list(folder):
                if not entry.is_folder:
                    files.append(entry)
                if len(files) >= _LISTING_FILES:
                    self._agent.ask("listing", _page_of(run, files))
                    files = []
        except CloudError as error:
            if error.kind is not ErrorKind.NOT_FOUND:  # no folder: not one file was accepted
                raise
        return int(self._agent.ask("listing", _page_of(run, files)))

    def remove(self, folder: str, passing: Set[ErrorKind] = _PASSING_REMOVAL) -> None:
        """Remove a run's folder, and wait out errors of the kinds in ``passing``."""
        provider = self._provider
        try:
            with self._without_faults():
                self._patiently(lambda: provider.driver.delete(folder), passing)
        except CloudError as error:
            if error.kind is not ErrorKind.NOT_FOUND:
                raise
        if provider.is_kept:
            self._patiently(lambda: provider.release(folder), passing)

    def removed(self, folder: str) -> bool:
        """Try once to remove a folder, without waiting for an outage to end."""
        try:
            self.remove(folder, passing=frozenset())
        except CloudError:
            return False
        return True

    @contextmanager
    def _without_faults(self) -> Iterator[None]:
        """Switch faults off while one agent works for all."""
        self._faults(False)
        try:
            yield
        finally:
            self._faults(True)

    def _faults(self, are_on: bool) -> None:
        if self._provider.has_services:
            self._agent.ask("faults", SwitchFaults(self._provider.spec, are_on))

    def _patiently(
        self, work: Callable[[], object], passing: Set[ErrorKind] = _PASSING, limit_s: float = _PATIENT_S
    ) -> None:  # fmt: skip
        end_s = time.monotonic() + limit_s / self._facts.time_scale
        while True:
            try:
                work()
                return
            except CloudError as error:
                if error.kind not in passing or time.monotonic() >= end_s:
                    raise
                wait_s = (error.retry_after_s or _RETRY_S) / self._facts.time_scale
            if self._agent.stop.wait(wait_s):
                return


def _page_of(run: str, files: Sequence[Entry]) -> ListingPage:
    names = tuple(each.path.rpartition("/")[2] for each in files)
    return ListingPage(run, names, tuple(each.size_bytes for each in files), tuple(each.digest for each in files))
