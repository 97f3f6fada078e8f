"""Questions to a provider apart from any load: one agent asks in a folder of its own, and all get the answer.

Faults and delays of emulators are off meanwhile. On a real account the run is announced and its folder is in the
journal, as for an experiment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from pytest_cloudbench.drivers import BoundSpec
from pytest_cloudbench.drivers.base import Driver, FindsDeleted, RestoresDeleted, SharesWithMembers
from pytest_cloudbench.drivers.egress import CERTIFICATES
from pytest_cloudbench.drivers.folder import FolderDriver
from pytest_cloudbench.drivers.stranger import SharesLinks, SharesUntil, Stranger
from pytest_cloudbench.load.engine.engine import Budget
from pytest_cloudbench.load.engine.unmeasured import Unmeasured
from pytest_cloudbench.load.messages import UNKNOWN_LOAD, AccountRequest, OpenedAccount, Start, SwitchFaults
from pytest_cloudbench.load.request import EntryOptions
from pytest_cloudbench.load.sandbox import RetryingDriver, ThrottleWaits
from pytest_cloudbench.model import Endpoint, FleetError, UsageError
from pytest_cloudbench.providers import Provider
from pytest_cloudbench.providers import connect as connect_provided
from pytest_cloudbench.providers.for_agents import Provided
from pytest_cloudbench.workload.payload import Generator

if TYPE_CHECKING:
    from pytest_cloudbench.load.experiment import Experiment

_Answer = TypeVar("_Answer")


def _refuse_other(number: int) -> AbstractContextManager[Provider]:
    raise UsageError(f"there is no account {number}")


@dataclass(frozen=True, slots=True)
class Inquiry:
    """A provider that is examined, with the means to examine it.

    Attributes:
        provider: the provider that is asked.
        folder: an empty folder on it.
        seed: names and contents are derived from it.
        list_stored: asks the controller for what the provider's services store.
        wait: waits before a throttled call is repeated, for the seconds that the provider asked for.
        open_other: opens another account by its number from 2, with a folder of the same name there, and removes that
            folder at the end.
    """

    provider: Provider
    folder: str
    seed: str
    list_stored: Callable[[], Sequence[tuple[str, bytes]] | None]
    wait: Callable[[float | None], None]
    open_other: Callable[[int], AbstractContextManager[Provider]] = _refuse_other

    @property
    def driver(self) -> Any:
        """The provider's driver. A throttled call waits and is repeated."""
        return self._repeat_throttled(self.provider.driver)

    def _repeat_throttled(self, driver: Driver) -> Any:
        return RetryingDriver(driver, Budget(), self.wait)

    @property
    def endpoint(self) -> Endpoint | None:
        """The address of the service that stands in for the provider."""
        return self.provider.endpoint

    @property
    def bound(self) -> BoundSpec:
        """The spec that the driver reads, such as ``dropbox`` for ``emulated:dropbox-2014``."""
        return self.provider.opened[1].bind()

    @property
    def children(self) -> Sequence[Self]:
        """An inquiry for each of the providers that this one is made of, without access to what is stored there."""
        provided = self.provider.opened[1].children
        return [
            replace(self, provider=_connect_later(child), list_stored=lambda: None, open_other=_refuse_other)
            for child in provided
        ]

    def compose(self, children: Sequence[Driver]) -> Any:
        """Return another driver of this provider, which is made of these drivers of its children, and closes them."""
        return self._repeat_throttled(self.bound.compose(children))

    def connect(self, endpoint: Endpoint) -> Any:
        """Connect another driver of this kind to some endpoint. Raises UsageError."""
        return self._repeat_throttled(self.bound.connect(endpoint, {}))

    def connect_by_proxy(self, proxy: str, authority: str = "") -> Any:
        """Connect another driver to the same real account, whose requests go through an HTTP proxy.

        ``authority`` is the file of the only certificate authority that the driver trusts, for a proxy that opens TLS.
        Raises UsageError.
        """
        variables = {"https_proxy": proxy, "HTTPS_PROXY": proxy, "no_proxy": "", "NO_PROXY": ""}
        with _environment({**variables, **({CERTIFICATES[0]: authority} if authority else {})}):
            return self._repeat_throttled(connect_provided(self.provider.opened[1]))

    @contextmanager
    def other_account(self, number: int) -> Iterator[Self]:
        """Open another account of the same service by its number from 2. Yield an inquiry for it.

        The folder there has the same name, is empty, and is removed at the end. Raises CloudError, and UsageError with
        what is missing if there is no other account.
        """
        with self.open_other(number) as provider:
            yield replace(self, provider=provider)

    def open_link(self, url: str) -> bytes:
        """Return what a person without an account gets by a link. Raises CloudError. Needs ``opens_links``."""
        opener: Any = self.provider.driver
        content: bytes = opener.open_link(url, Stranger(self.endpoint))
        return content

    @property
    def opens_links(self) -> bool:
        """True if the driver makes links, and knows how a person without an account opens one."""
        return isinstance(self.provider.driver, SharesLinks)

    @property
    def limits_links(self) -> bool:
        """True if the driver makes links that end by themselves."""
        return isinstance(self.provider.driver, SharesUntil)

    @property
    def admits_members(self) -> bool:
        """True if the driver shares folders with other accounts."""
        return isinstance(self.provider.driver, SharesWithMembers)

    @property
    def finds_deleted(self) -> bool:
        """True if the driver finds what its service keeps of deleted files."""
        return isinstance(self.provider.driver, FindsDeleted)

    @property
    def restores_deleted(self) -> bool:
        """True if the driver restores deleted files by their ids."""
        return isinstance(self.provider.driver, RestoresDeleted)

    def stored(self) -> Sequence[tuple[str, bytes]] | None:
        """Return what is stored, by name, as the provider's operator sees it. None if that cannot be seen.

        Raises FleetError if a service does not say what it stores.
        """
        if isinstance(self.provider.driver, FolderDriver):
            return self.provider.driver.stored(self.folder)
        return self.list_stored()


def _connect_later(provided: Provided) -> Provider:
    return Provider(provided.spec, open=lambda: (connect_provided(provided, is_part=True), provided))


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables while a driver connects, because it reads them only then."""
    former = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in former.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def inquire(experiment: Experiment, payload: Generator, ask: Callable[[Inquiry], _Answer]) -> _Answer:
    """Let one agent ask a question, and return its answer, which is plain data, to all of them.

    Raises CloudError, FleetError and ServiceError like ``Experiment.run``.
    """
    agent, provider = experiment.agent, experiment.provider
    wait = ThrottleWaits(agent, provider.spec, experiment.facts.time_scale)

    def ask_undisturbed(folder: str) -> _Answer:
        if provider.has_services:
            agent.ask("faults", SwitchFaults(provider.spec, are_on=False))
        with agent.sign_of_life():
            seed = f"{experiment.facts.seed}/{folder}"
            return ask(Inquiry(provider, folder, seed, list_stored, wait, partial(open_other, folder)))

    def list_stored() -> list[tuple[str, bytes]] | None:
        stored: Sequence[tuple[str, bytes]] | None = agent.ask("stored", provider.spec)
        return None if stored is None else [(str(name), bytes(content)) for name, content in stored]

    @contextmanager
    def open_other(folder: str, number: int) -> Iterator[Provider]:
        """Open another account of the provider, with a new folder that is removed at the end. Raises UsageError."""
        request, subject = AccountRequest(provider.spec, number), experiment.make_subject(folder, "", stores=False)
        try:
            opened = OpenedAccount.from_plain(agent.ask("account", request))
            if opened.provided.is_kept:  # a real account is announced, and the user asked
                start = Start(subject.replace(provider=opened.spec), UNKNOWN_LOAD, EntryOptions(store=False))
                agent.ask("agree", start)
        except FleetError as error:
            raise UsageError(str(error)) from error
        other = Provider(opened.spec, open=lambda: (connect_provided(opened.provided), opened.provided))
        try:
            unmeasured = Unmeasured(agent, other, experiment.facts)
            unmeasured.make_folder(folder, mkdir=True, is_fresh=False)
            try:
                agent.ask("faults", SwitchFaults(provider.spec, are_on=False))  # making the folder switched them on
                yield other
            finally:
                unmeasured.remove_folder(folder)
        finally:
            other.close()

    with experiment.scratch(payload) as (run, files):
        answer: _Answer = agent.once(f"inquiry:{run}", lambda: ask_undisturbed(files.folder))
    return answer
