"""Costs of an array's operations: times by kind, requests, and shares found damaged or missing.

Times are those of the thread that asked for the operation, and do not overlap: coding counts as coding even while
earlier packages travel, and only waiting for children is transfer.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace

from pytest_cloudbench.support import clock


@dataclass(slots=True)
class Costs:
    """The costs of one operation, or of many.

    Attributes:
        operations: how many operations these are.
        seal_ns: encrypting and decrypting.
        code_ns: computing parity, or data from parity.
        hash_ns: digests of shares.
        metadata_ns: SQLite, and manifests.
        transfer_ns: waiting for children.
        requests: requests of the children's drivers, as far as those count them.
        sent_bytes: to children.
        received_bytes: from children, without answers that came too late to be used.
        hedged: children that were asked because another was slow.
        failed: transfers that failed.
        missing: packages that were not there.
        damaged: shares that differ from what was written; each was located by its digest.
        mended: packages that were rebuilt.
    """

    operations: int = 0
    seal_ns: int = 0
    code_ns: int = 0
    hash_ns: int = 0
    metadata_ns: int = 0
    transfer_ns: int = 0
    requests: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    hedged: int = 0
    failed: int = 0
    missing: int = 0
    damaged: int = 0
    mended: int = 0

    def timed(self, name: str) -> AbstractContextManager[None]:
        """Add the duration of the ``with`` block to one of the times, such as ``seal_ns``."""
        return _Timed(self, name)

    def add(self, other: Costs) -> None:
        """Add the costs of other operations."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class _Timed:
    """The ``with`` block of ``Costs.timed``. A generator would take longer than many a block of a small object."""

    __slots__ = ("_begin_ns", "_costs", "_name")

    def __init__(self, costs: Costs, name: str) -> None:
        self._costs, self._name = costs, name

    def __enter__(self) -> None:
        self._begin_ns = clock.now_ns()

    def __exit__(self, *_error: object) -> None:
        setattr(self._costs, self._name, getattr(self._costs, self._name) + clock.now_ns() - self._begin_ns)


class Ledger:
    """The costs of all operations of a driver, by verb, and each thread's last operation."""

    def __init__(self) -> None:
        self._lock, self._local = threading.Lock(), threading.local()
        self._totals: dict[str, Costs] = {}

    @contextmanager
    def operation(self, verb: str) -> Iterator[Costs]:
        """Run an operation of this thread. Its costs are added when it ends, whether it fails or not."""
        costs = self._local.last = Costs(operations=1)
        try:
            yield costs
        finally:
            self.add(verb, costs)

    def add(self, verb: str, costs: Costs) -> None:
        """Add costs to those of a verb. The verbs ``mend`` and ``tidy`` are background work."""
        self._local.requests = self.requests() + costs.requests
        with self._lock:
            self._totals.setdefault(verb, Costs()).add(costs)

    def last(self) -> Costs | None:
        """Return the costs of the calling thread's last operation, or None if it had none."""
        costs: Costs | None = getattr(self._local, "last", None)
        return costs

    def requests(self) -> int:
        """Return how many requests the operations of the calling thread have taken so far."""
        count: int = getattr(self._local, "requests", 0)
        return count

    def totals(self) -> dict[str, Costs]:
        """Return the costs of all operations so far, by verb."""
        with self._lock:
            return {verb: replace(costs) for verb, costs in self._totals.items()}
