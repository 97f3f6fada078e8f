"""Decides whether a provider admits a request or answers "too many": pure arithmetic on times that callers pass.

There is no clock here, so the same class serves the emulator (real clock) and the fit of a profile (virtual clock).

There are three limits, each of which is off at 0. They are checked in this order, and the first that is exceeded
refuses:

=================  ===========================================  ==========================
limit              counts                                       a refused write costs
=================  ===========================================  ==========================
``max_in_flight``  admitted and not yet released, all requests  ``refused_cost`` tokens
``write_lock``     the same, writes of one namespace            ``refused_cost`` tokens
``rate_per_s``     tokens: each admitted write takes one        ``refused_cost`` tokens
=================  ===========================================  ==========================

The bucket starts full. Its level is always between ``-max_debt`` and ``capacity``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

_TOLERANCE = 1e-9
"""Tokens forgiven, so that a request exactly on time is not refused by a rounding error."""


@dataclass(frozen=True, slots=True)
class ThrottlePolicy:
    """The limits of a provider. Every limit is off at 0, so the default admits everything.

    Attributes:
        rate_per_s: tokens (admitted writes) that flow into the bucket per second. 0 means no bucket.
        burst: tokens in a full bucket, which are the writes admitted at once after a pause. Below 1 it counts as 1.
        refused_cost: tokens that a refused write takes, so that fast retries make it worse.
        max_debt: how many tokens below zero such costs may take the level. 0 means that it stops at zero.
        max_in_flight: requests (reads and writes) that may be served at the same time.
        write_lock: writes that may be served at the same time in one namespace.
        retry_after_s: seconds that a refusal asks the client to wait.
        reason: the API's word for the reason in a refusal.

    Raises ValueError if a number is negative or not finite.
    """

    rate_per_s: float = 0
    burst: float = 0
    refused_cost: float = 0
    max_in_flight: int = 0
    write_lock: int = 0
    retry_after_s: int = 1
    reason: str = ""
    max_debt: float = 0

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if entry.name != "reason" and not 0 <= value < float("inf"):
                raise ValueError(f"{entry.name}: expected a finite number of at least 0, got {value}")

    @property
    def capacity(self) -> float:
        """Tokens in a full bucket: at least one, or nothing could ever be admitted."""
        return max(1.0, self.burst)


@dataclass(frozen=True, slots=True)
class Refusal:
    """The answer "too many": its reason, and the seconds that the client should wait."""

    reason: str
    retry_after_s: int


class Throttle:
    """The state of one account's limits. Not thread-safe, so the caller must serialise calls.

    ``now_s`` is in seconds of any clock that does not run backwards, the same one in all calls. A time before the
    latest one counts as the latest one: it neither fills nor empties the bucket.
    """

    def __init__(self, policy: ThrottlePolicy) -> None:
        self._policy = policy
        self._level = policy.capacity
        self._latest_s: float | None = None
        self._in_flight = 0
        self._writes: dict[str, int] = {}

    @property
    def policy(self) -> ThrottlePolicy:
        """The limits in force. Setting them keeps level and counts, and a bucket that is switched on starts full."""
        return self._policy

    @policy.setter
    def policy(self, policy: ThrottlePolicy) -> None:
        level = self._level if self._policy.rate_per_s else policy.capacity
        self._policy = policy
        self._level = min(max(level, -policy.max_debt), policy.capacity)

    @property
    def in_flight(self) -> int:
        """Requests admitted and not yet released."""
        return self._in_flight

    def level(self, now_s: float) -> float:
        """Return the tokens in the bucket: negative while in debt, ``capacity`` when the bucket is off."""
        self._refill(now_s)
        return self._level

    def refill(self) -> None:
        """Fill the bucket. Requests in flight stay counted."""
        self._level = self._policy.capacity

    def admit(self, now_s: float, *, write: bool, namespace: str = "") -> Refusal | None:
        """Admit or refuse a request at ``now_s``. None means admitted: call ``release`` when it is answered.

        Args:
            now_s: seconds, see the class.
            write: whether the request changes something. Only writes take tokens and locks.
            namespace: the owner of the write lock (a user's or a shared folder's root).
        """
        self._refill(now_s)
        policy = self._policy
        if self._exceeds(write, namespace):
            if write and policy.rate_per_s:
                self._level = max(-policy.max_debt, self._level - policy.refused_cost)
            return Refusal(policy.reason, policy.retry_after_s)
        self._in_flight += 1
        if write:
            self._writes[namespace] = self._writes.get(namespace, 0) + 1
            if policy.rate_per_s:
                self._level = max(-policy.max_debt, self._level - 1)
        return None

    def release(self, now_s: float, *, write: bool, namespace: str = "") -> None:
        """Record that an admitted request was answered. Raises ValueError if no such request is in flight."""
        self._refill(now_s)
        held = self._writes.get(namespace, 0)
        if not self._in_flight or (write and not held):
            raise ValueError(f"release without admit: write={write}, namespace={namespace!r}")
        self._in_flight -= 1
        if write and held > 1:
            self._writes[namespace] = held - 1
        elif write:
            del self._writes[namespace]

    def _exceeds(self, write: bool, namespace: str) -> bool:
        policy = self._policy
        if policy.max_in_flight and self._in_flight >= policy.max_in_flight:
            return True
        if not write:
            return False
        if policy.write_lock and self._writes.get(namespace, 0) >= policy.write_lock:
            return True
        return policy.rate_per_s > 0 and self._level < 1 - _TOLERANCE

    def _refill(self, now_s: float) -> None:
        latest_s = now_s if self._latest_s is None else self._latest_s
        self._latest_s = max(latest_s, now_s)
        gained = (self._latest_s - latest_s) * self._policy.rate_per_s
        self._level = min(self._policy.capacity, self._level + gained)
