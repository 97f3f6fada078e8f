"""One provider as the controller gives it to agents.

What may live here: that value. Fifty agents import this module.
"""

from __future__ import annotations

from pytest_cloudbench.fleet.messages import Message
from pytest_cloudbench.model import Endpoint


class Provided(Message, frozen=True):
    """One provider as a controller gives it to agents: what they need to connect, and what is known about it.

    Attributes:
        spec: what the driver reads. If a service stands in for the provider, the spec of the service's API.
        endpoint: where its service listens; None if there is none.
        account: the number of its account among those with the same driver, from 1; it selects the credentials.
        profile: the emulator's behaviour profile; None if there is none.
        digest: digest of everything that decides how its services behave; None if that is not known.
        emulated: how many of its parts are emulated: ``all``, ``some`` or ``none``.
        is_kept: whether what is written to any part of it outlives the run.
        children: the providers that it is made of.
    """

    spec: str
    endpoint: Endpoint | None = None
    account: int = 1
    profile: str | None = None
    digest: str | None = None
    emulated: str = "none"
    is_kept: bool = True
    children: tuple[Provided, ...] = ()

    @property
    def has_services(self) -> bool:
        """Whether services stand in for the provider or a part of it."""
        return self.endpoint is not None or any(child.has_services for child in self.children)

    @property
    def addresses(self) -> tuple[tuple[str, int], ...] | None:
        """Host and port of all its services; empty if it has none, None if some parts have services and others none."""
        if not self.children:
            return self.endpoint.addresses if self.endpoint is not None else ()
        found = [child.addresses for child in self.children]
        if None in found or (() in found and any(found)):
            return None
        return tuple(address for each in found for address in each or ())
