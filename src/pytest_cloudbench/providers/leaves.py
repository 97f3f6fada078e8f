"""The parts of a provider before they are connected: what a session knows of them, and their credentials."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_cloudbench.drivers import BoundSpec, egress
from pytest_cloudbench.drivers.base import Driver, Renewing
from pytest_cloudbench.model import Capabilities, CredentialsError, Verb

_ADDRESSES = ("endpoint", "auth_url")
"""Parameters of a spec that lead to a server."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One provider that is not made of others.

    Attributes:
        spec: the spec that its driver reads.
        capabilities: the driver's declaration, or None if that depends on the connection.
        is_account: True if it is somebody's account at a real service.
        where: the place of its files: ``memory`` of an emulator, ``machine`` for a server of the run, or ``provider``.
    """

    spec: str
    capabilities: Capabilities | None
    is_account: bool
    where: str

    @classmethod
    def of(cls, bound: BoundSpec, has_service: bool, is_emulated: bool) -> Leaf:
        """Describe a part with this driver. ``has_service`` is True if the run starts its server."""
        declared = getattr(bound.driver, "capabilities", None)
        is_own = has_service or is_on_this_machine(bound)
        return cls(
            bound.spec.text, declared if isinstance(declared, Capabilities) else None,
            is_account=bool(bound.credential_sets) and not is_own,
            where="memory" if is_emulated else "machine" if has_service else "provider",
        )  # fmt: skip

    @property
    def requests(self) -> Mapping[Verb, int]:
        """The fewest requests that each verb sends. Empty if that is unknown."""
        return {} if self.capabilities is None else self.capabilities.requests


def is_on_this_machine(bound: BoundSpec) -> bool:
    """Return whether a spec leads to a server at a loopback address: the user's own, and nobody's account.

    A driver whose target names a server says so by ``address_of(spec)``.
    """
    driver: Any = bound.driver
    spec = bound.spec
    address = next((spec.params[name] for name in _ADDRESSES if name in spec.params), "")
    if not address and hasattr(driver, "address_of"):
        address = driver.address_of(spec)
    return egress.is_on_this_machine(address)


def may_be_anonymous(bound: BoundSpec) -> bool:
    """Return whether a driver may use a server on this machine without credentials, since that may want none."""
    return bool(getattr(bound.driver, "may_be_anonymous", False)) and is_on_this_machine(bound)


def load_credentials(bound: BoundSpec, account: int = 1) -> Mapping[str, str]:
    """Return the credentials of a provider's account, by its driver's field names. Raises CredentialsError.

    They are empty if there are none and a server on this machine may want none. A field that is no secret, such as an
    account's name, may be in the spec instead.
    """
    from pytest_cloudbench.providers import renewal
    from pytest_cloudbench.providers.credentials import NoCredentialsError, ProviderAccount

    try:
        return renewal.load_usable(ProviderAccount.of(bound, account))
    except NoCredentialsError:
        if "token_env" in bound.spec.params or not may_be_anonymous(bound):
            raise
        return {}


def remaining_s(credentials: Mapping[str, str]) -> float | None:
    """Return how long credentials still last. None if they do not end by themselves."""
    seconds: float | None = getattr(credentials, "remaining_s", None)
    return seconds


def connect_account(bound: BoundSpec, load: Callable[[], Mapping[str, str]], *, is_part: bool) -> Driver:
    """Return a driver that is connected by the credentials of a function. Raises SpecError and CredentialsError.

    If the credentials end by themselves, the driver asks the function for the next access token in time.
    """

    def next_token() -> tuple[str, float]:
        loaded = load()
        if "access_token" not in loaded:
            raise CredentialsError("the stored login is another one now: start again")
        lasts_s = remaining_s(loaded)
        return loaded["access_token"], float("inf") if lasts_s is None else lasts_s

    credentials = load()
    driver = bound.connect(None, credentials, is_part=is_part)
    if remaining_s(credentials) is not None and isinstance(driver, Renewing):
        driver.renew_by(next_token)
    return driver
