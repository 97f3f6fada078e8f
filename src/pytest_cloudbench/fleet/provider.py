"""Providers as tests see them, and how an agent connects to one.

What may live here: the value behind the ``provider`` fixture. Connecting happens when it is first needed.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from pytest_cloudbench.drivers.base import Driver
from pytest_cloudbench.fleet.agent import Agent
from pytest_cloudbench.model import Endpoint, ProviderSpec, UsageError
from pytest_cloudbench.results import journal

__all__ = ["Provider", "connect", "find_provider"]


class Provider:
    """A storage service under test, as the ``provider`` fixture gives it.

    Args:
        spec: what the user named.
        driver: the connected driver, safe to use from many threads.
        profile: the emulator's behaviour profile, or None for a real service.
        connect: gives driver and profile when they are first needed, instead of the two above.
    """

    def __init__(
        self,
        spec: str,
        driver: Driver | None = None,
        profile: str | None = None,
        *,
        connect: Callable[[], tuple[Driver, str | None]] | None = None,
    ) -> None:
        self.spec, self._connect = spec, connect
        if driver is not None:
            self._connected = (driver, profile)

    @cached_property
    def _connected(self) -> tuple[Driver, str | None]:
        if self._connect is None:
            raise UsageError(f"provider {self.spec}: has neither a driver nor a way to connect one")
        connected = self._connect()
        gc.freeze()  # what connecting imported stays for good: fifty agents need not collect it again and again
        return connected

    @property
    def driver(self) -> Driver:
        """The connected driver."""
        return self._connected[0]

    @property
    def profile(self) -> str | None:
        """The emulator's behaviour profile, or None for a real service."""
        return self._connected[1]

    def close(self) -> None:
        """Release the driver's connections, if there are any."""
        if "_connected" in self.__dict__:
            self.driver.close()

    @property
    def is_kept(self) -> bool:
        """Whether what is written outlives the run: then it is journaled, and a run is announced."""
        return self.profile is None

    def claim(self, folder: str, owner: str) -> None:
        """Before a run writes into ``folder``: note the run's folder above it in the journal, and mark it as a run's.

        ``owner`` is the run's process: while it lives, nobody else removes the folder.

        Raises CloudError and ResultsError.
        """
        if self._can_be_cleaned:
            journal.claim(self.driver, self._place, folder.rpartition("/")[0], owner)

    def release(self, folder: str) -> None:
        """After ``folder`` was removed: the run's folder above it goes with its last one. Raises CloudError."""
        if self._can_be_cleaned:
            journal.release(self.driver, self._place, folder.rpartition("/")[0])

    @property
    def _can_be_cleaned(self) -> bool:
        """Whether ``cloudbench clean`` could connect; it could not with a driver that only this test project has."""
        from pytest_cloudbench import drivers

        return ProviderSpec.parse(self.spec).scheme in drivers.schemes()

    @property
    def _place(self) -> str:
        """Where it is, as a ``cloudbench clean`` in another folder finds it."""
        from pytest_cloudbench import drivers

        return drivers.absolute(ProviderSpec.parse(self.spec))


def find_provider(text: str, agent: Agent) -> Provider:
    """A provider that this agent connects to when it first needs it."""
    return Provider(text, connect=lambda: connect(text, agent.ask("provide", text)))


def connect(text: str, given: Mapping[str, Any]) -> tuple[Driver, str | None]:
    """Connect this process to a provider; ``given`` is the controller's answer to "provide" (it starts emulators).

    Returns the driver and the emulator's behaviour profile, None for a real service.
    """
    from pytest_cloudbench import credentials, drivers

    spec = ProviderSpec.parse(text)
    if given["endpoint"] is None:
        found = credentials.load(spec.scheme, spec.params.get("token_env"))
        return drivers.connect(spec, None, found), None
    endpoint = Endpoint(**given["endpoint"])
    return drivers.connect(ProviderSpec.parse(given["api"]), endpoint, {}), given["profile"]
