"""Services: the processes that a run starts as its providers, which are emulators and real servers.

What may live here: the protocols. The processes that implement them are in this package. A service belongs to the run
that starts it: it ends with the run, whatever happens, and leaves no files behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from pytest_cloudbench.model import Endpoint


class Service(Protocol):
    """A process that a run starts and that drivers talk to. Call ``start`` first. ``stop`` may be called twice."""

    kind: str
    """Its kind, for messages: ``emulator`` or ``server``."""

    def start(self) -> Endpoint:
        """Start it and wait until it accepts requests. Raises ServiceError with its last line of output if it ends."""
        ...

    def reset(self) -> None:
        """Empty the account, if the service can. Each experiment has its own folder in any case."""
        ...

    def refill(self) -> None:
        """Restore what an experiment may use up, such as a throttler's tokens. Many services do nothing."""
        ...

    def watch(self, patience_s: float) -> None:
        """End the service as soon as it does not answer for this long. ``exit_reason`` then says so."""
        ...

    def alive(self) -> bool:
        """Return whether the service runs."""
        ...

    def exit_reason(self) -> str:
        """Return in one line why the service ended, or nothing while it runs."""
        ...

    def stop(self) -> None:
        """End the service, and remove its files."""
        ...


@runtime_checkable
class MakesFaults(Protocol):
    """A service that injects faults, which must not affect operations that are not measured."""

    def faults(self, are_on: bool) -> None:
        """Switch faults on or off."""
        ...


@runtime_checkable
class ShowsStore(Protocol):
    """A service whose stored bytes can be read behind its back, as its operator could read them."""

    def stored(self) -> Iterator[tuple[str, bytes]]:
        """Yield what the service stores: a name (a path, or what else is kept of a file), and the bytes.

        Raises ServiceError if that cannot be read.
        """
        ...


@runtime_checkable
class HasAccounts(Protocol):
    """A service with several accounts, each of which has files of its own."""

    def open_account(self, number: int) -> Endpoint:
        """Return the endpoint of an account by its number from 1. Raises ServiceError if there is none."""
        ...
