"""The work of agents before and after a run, outside the measurement.

What may live here: folders, files and listings on a provider, even one in trouble because of the measured load.
No operation is timed meanwhile, and an emulator's faults are off.
"""

from __future__ import annotations

import math
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
from pytest_cloudbench.model import BudgetError, CloudError, Entry, ErrorKind, ignore_missing
from pytest_cloudbench.providers import Provider

_LISTING_FILES = 2000
_RETRY_LIMIT_S, _FIRST_RETRY_LIMIT_S = 60.0, 5.0
"""How long to retry after transient errors. The second limit holds while the provider has never answered, because its
name may be mistyped."""
_RETRY_S = 1.0
_UPLOADING_THREADS = 8
_TRANSIENT = frozenset({ErrorKind.THROTTLED, ErrorKind.NETWORK, ErrorKind.SERVER})
"""Errors that may pass. This work is then retried."""

_TRANSIENT_REMOVAL = frozenset({ErrorKind.THROTTLED, ErrorKind.SERVER})
"""The same without NETWORK: the end of a run does not wait for a provider that cannot be reached."""


class Unmeasured:
    """One agent's work around its runs. Every method raises FleetError, and CloudError if retrying does not help."""

    def __init__(self, agent: Agent, provider: Provider, facts: RunFacts) -> None:
        self._agent, self._provider, self._facts = agent, provider, facts

    def make_folder(self, folder: str, *, mkdir: bool, is_fresh: bool) -> None:
        """Make a run's folder for all agents.

        An emulator is emptied first if ``is_fresh``: nothing on it is still needed.
        """
        provider = self._provider
        if provider.has_services and is_fresh:  # before the claim, whose marker it might remove
            self._agent.ask("fresh", provider.spec)
        with self._agent.sign_of_life():
            if provider.is_kept:
                limit_s = _RETRY_LIMIT_S if provider.has_answered else _FIRST_RETRY_LIMIT_S
                self._retry(lambda: provider.claim(folder, self._facts.owner), limit_s=limit_s)
                provider.has_answered = True
            if mkdir and provider.driver.capabilities.folders:
                with self._without_faults():
                    self._retry(lambda: provider.driver.mkdir(folder), {ErrorKind.THROTTLED})

    def prepare_driver(self, run: str, folder: str) -> None:
        """Let this agent's driver do its one-time work for a folder. Faults are off until the common start."""
        driver = self._provider.driver
        if not isinstance(driver, Preparing):
            return
        self._agent.once(f"unprepared:{run}", lambda: self._switch_faults(False))
        with self._agent.sign_of_life():
            self._retry(lambda: driver.prepare(folder))

    def upload(self, run: str, files: Files, members: Sequence[tuple[int, int]], budget: Budget) -> str:
        """Upload this agent's files for a run that needs them.

        Return the reason if that ended early, or an empty text.
        """
        agent, driver = self._agent, self._provider.driver

        def upload_file(member: tuple[int, int]) -> None:
            path, content = files.file(*member)
            budget.take(content.size_bytes)
            self._retry(lambda: driver.put(path, content))

        agent.once(f"unmeasured:{run}", lambda: self._switch_faults(False))  # until the common start
        stopped = ""
        with agent.sign_of_life():
            try:
                with ThreadPoolExecutor(_UPLOADING_THREADS, "prepare") as pool:
                    list(pool.map(upload_file, members))
                if members:  # the measured operations must not fail because a file is not ready yet
                    last = files.path(*members[-1])
                    self._retry(lambda: driver.stat(last), _TRANSIENT | {ErrorKind.NOT_FOUND})
            except BudgetError as error:
                stopped = str(error)
            agent.gather(f"prepared:{run}")
        return stopped

    def send_listing(self, run: str, folder: str) -> None:
        """Send the provider's listing of a folder to the controller, in pieces.

        A listing that breaks off is sent from its start again, and then replaces what was sent before.
        """
        with self._agent.sign_of_life():
            self._retry(lambda: self._send_listing_once(run, folder), may_last=True)

    def _send_listing_once(self, run: str, folder: str) -> None:
        files: list[Entry] = []
        is_first = True
        with ignore_missing():  # without a folder, no file was accepted
            for entry in self._provider.driver.list(folder):
                if not entry.is_folder:
                    files.append(entry)
                if len(files) >= _LISTING_FILES:
                    self._agent.ask("listing", _listing_page(run, files, is_first))
                    files, is_first = [], False
        self._agent.ask("listing", _listing_page(run, files, is_first))

    def remove_folder(self, folder: str, transient: Set[ErrorKind] = _TRANSIENT_REMOVAL) -> None:
        """Remove a run's folder, and retry after errors of the kinds in ``transient``."""
        provider = self._provider
        with self._agent.sign_of_life():
            with ignore_missing(), self._without_faults():
                self._retry(lambda: provider.driver.delete(folder), transient)
            if provider.is_kept:
                self._retry(lambda: provider.release(folder), transient)

    def try_remove_folder(self, folder: str) -> bool:
        """Try once to remove a folder, without waiting for an outage to end. Return whether it is removed."""
        try:
            self.remove_folder(folder, transient=frozenset())
        except CloudError:
            return False
        return True

    @contextmanager
    def _without_faults(self) -> Iterator[None]:
        """Switch faults off while one agent works for all."""
        self._switch_faults(False)
        try:
            yield
        finally:
            self._switch_faults(True)

    def _switch_faults(self, are_on: bool) -> None:
        if self._provider.has_services:
            self._agent.ask("faults", SwitchFaults(self._provider.spec, are_on))

    def _retry(
        self, work: Callable[[], object], transient: Set[ErrorKind] = _TRANSIENT, limit_s: float = _RETRY_LIMIT_S, *,
        may_last: bool = False,
    ) -> None:  # fmt: skip
        """Do some work, and repeat it after transient errors until ``limit_s`` is over.

        If the work itself ``may_last`` longer than that, the limit counts from its first error.
        """
        limit_s /= self._facts.time_scale
        end_s = math.inf if may_last else time.monotonic() + limit_s
        while True:
            try:
                work()
                return
            except CloudError as error:
                end_s = min(end_s, time.monotonic() + limit_s)
                if error.kind not in transient or time.monotonic() >= end_s:
                    raise
                wait_s = (error.retry_after_s or _RETRY_S) / self._facts.time_scale
                wait_s = min(wait_s, max(0.0, end_s - time.monotonic()))  # a provider may ask for a day
            if self._agent.stop.wait(wait_s):
                return


def _listing_page(run: str, files: Sequence[Entry], is_first: bool) -> ListingPage:
    names = tuple(entry.path.rpartition("/")[2] for entry in files)
    sizes_bytes, digests = tuple(entry.size_bytes for entry in files), tuple(entry.digest for entry in files)
    return ListingPage(run, names, sizes_bytes, digests, is_first)
