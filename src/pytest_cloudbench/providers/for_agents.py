"""A provider as the controller gives it to agents. Fifty agents import this module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from pytest_cloudbench import drivers
from pytest_cloudbench.fleet.messages import Message
from pytest_cloudbench.model import Endpoint, ProviderSpec, SpecError


@dataclass(frozen=True, slots=True)
class SentAlong:
    """The credentials and files that an agent on another host lacks. ``repr`` omits them.

    Attributes:
        credentials: the values for the provider's account, by the driver's field names.
        files: maps the names of files in the credentials and the endpoint to their contents.
        lasts_s: for how long the credentials can be used. None if they do not end by themselves.
    """

    credentials: Mapping[str, str] = field(repr=False)
    files: Mapping[str, bytes] = field(repr=False)
    lasts_s: float | None = None


class Provided(Message, frozen=True):
    """A provider as a controller gives it to agents: how to connect, and the facts about it.

    Attributes:
        spec: the spec that the driver reads. If a service stands in for the provider, it names the service's API.
        endpoint: the address of its service, or None if there is none.
        account: the number of its account among those with the same driver, from 1. It selects the credentials.
        profile: the emulator's behaviour profile, or None if there is none.
        digest: a digest of everything that decides how its services behave, or None if that is unknown.
        emulated: the share of its parts that are emulated: ``all``, ``some`` or ``none``.
        is_kept: True if what is written to any part of it outlives the run.
        children: the providers that it is made of.
        sent: what else an agent on another host needs. None for agents of this machine.
    """

    spec: str
    endpoint: Endpoint | None = None
    account: int = 1
    profile: str | None = None
    digest: str | None = None
    emulated: str = "none"
    is_kept: bool = True
    children: tuple[Provided, ...] = ()
    sent: SentAlong | None = None

    def bind(self) -> drivers.BoundSpec:
        """Look up the class of the spec's driver, and return both. Raises SpecError."""
        return drivers.bind(ProviderSpec.parse(self.spec))

    @property
    def has_services(self) -> bool:
        """True if services stand in for the provider or a part of it."""
        return self.endpoint is not None or any(child.has_services for child in self.children)

    @property
    def addresses(self) -> tuple[tuple[str, int], ...] | None:
        """Host and port of all its services. Empty if it has none, None if only some of its parts have services."""
        if not self.children:
            return self.endpoint.addresses if self.endpoint is not None else ()
        by_child = [child.addresses for child in self.children]
        if None in by_child or (() in by_child and any(by_child)):
            return None
        return tuple(address for addresses in by_child for address in addresses or ())

    def find_url(self, driver: object) -> str:
        """Return the URL that a connected driver's requests go to. Empty if that is not known."""
        if self.endpoint is not None and self.endpoint.urls:
            return self.endpoint.url
        if url := str(getattr(driver, "clock_url", "")):
            return url
        try:
            return ProviderSpec.parse(self.spec).params.get("endpoint", "")
        except SpecError:  # a test has made the provider, under a name that is no spec
            return ""

    def find_server(self, driver: object) -> str:
        """Return the name or address of the server that requests go to. Empty if that is not known."""
        try:
            return urlsplit(self.find_url(driver)).hostname or ""
        except ValueError:  # the URL has brackets without an address
            return ""
