"""A profile in action: when to answer, whether to answer at all, and how fast the bytes flow.

Every wait is given in emulated seconds and lasts ``1 / time_scale`` of that in real time.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import deque
from weakref import WeakSet

from pytest_cloudbench.emulators.profile import Profile
from pytest_cloudbench.emulators.skin import Kind
from pytest_cloudbench.emulators.throttle import Throttle

_THAW_TURNS, _THAW_TURN_S = 100, 0.001
"""Requests held back by a freeze are released in this many batches, one per millisecond: all are out after 0.1 s."""


class EmulatorClock:
    """Seconds since 1970 that run ``time_scale`` times as fast as real time from the start on."""

    def __init__(self, time_scale: float) -> None:
        self._scale = time_scale
        self._start_s = time.monotonic()
        self._epoch_s = time.time()

    def now_s(self) -> float:
        """Return the current time of the emulator's clock."""
        return self._epoch_s + (time.monotonic() - self._start_s) * self._scale

    def real_s(self, emulated_s: float) -> float:
        """Return how many real seconds an emulated duration lasts."""
        return emulated_s / self._scale


class Behaviour:
    """Applies the profile to each request.

    Attributes:
        profile: the current profile, which ``configure`` changes.
        limits: whether any request may be refused.
        delays: whether any answer may have to wait. If False, a shorter code path is used.
        faults: whether any request may go wrong.
        slots: a semaphore that each request holds while it is worked on, or None if there is no limit.
        is_plain: whether there are no limits, delays, faults or slots.
    """

    def __init__(self, profile: Profile, clock: EmulatorClock, seed: int) -> None:
        self._clock = clock
        self._latency_draws = random.Random(f"{seed} latency")
        self._fault_draws = random.Random(f"{seed} faults")
        self._replica_draws = random.Random(f"{seed} replicas")
        self._freeze_start_s = clock.now_s()
        self._held: deque[asyncio.Future[None]] = deque()
        self._released: WeakSet[asyncio.Task[object]] = WeakSet()
        self._is_thawing = False
        self.throttle = Throttle(profile.throttle)
        self.slots: asyncio.Semaphore | None = None
        self._slots = 0
        self._makes_faults = self._makes_delays = True
        self.profile = profile
        self.configure(profile)

    def configure(self, profile: Profile) -> None:
        """Use another profile. A changed freeze starts its first period now, and the throttle keeps its state."""
        if profile.freeze != self.profile.freeze:
            self._freeze_start_s = self._clock.now_s()
        self.throttle.policy = profile.throttle
        self.profile = profile
        if profile.capacity.slots != self._slots:  # requests being worked on keep their slots
            self._slots = profile.capacity.slots
            self.slots = asyncio.Semaphore(self._slots) if self._slots else None
        limits, band, faults = profile.throttle, profile.bandwidth, profile.faults
        self.limits = bool(limits.rate_per_s or limits.max_in_flight or limits.write_lock)
        self.delays = self._makes_delays and bool(
            profile.latency.median_s
            or profile.latency.min_s
            or band.up_bytes_per_s
            or band.down_bytes_per_s
            or profile.freeze.duration_s
        )
        self.faults = self._makes_faults and bool(faults.error_rate or faults.reset_rate or faults.corrupt_rate)
        self.is_plain = not (self.limits or self.delays or self.faults or self.slots is not None)

    def refill(self) -> None:
        """Restart with a full bucket and the first period of a freeze. Earlier requests do not count."""
        self.throttle.refill()
        self._freeze_start_s = self._clock.now_s()

    def make_faults(self, is_on: bool) -> None:
        """Switch the profile's faults on or off. While they are off, no random numbers are drawn for them."""
        self._makes_faults = is_on
        self.configure(self.profile)

    def make_delays(self, is_on: bool) -> None:
        """Switch the profile's delays on or off: latency, bandwidth and freezes."""
        self._makes_delays = is_on
        self.configure(self.profile)

    def latency_s(self, kind: Kind) -> float:
        """Return one random draw of the time from the request to the answer, seconds."""
        latency = self.profile.latency
        if kind is Kind.FREE:
            return 0.0
        factor = {Kind.WRITE: latency.write_factor, Kind.READ: latency.read_factor}.get(kind, 1.0)
        if not latency.sigma or not latency.median_s:
            return max(latency.min_s, latency.median_s * factor)
        spread = math.exp(latency.sigma * self._latency_draws.gauss(0.0, 1.0))
        return max(latency.min_s, latency.median_s * factor * spread)

    def lead_s(self, now_s: float) -> float:
        """Return how far the replica that answers a read is ahead of the one that lags, seconds."""
        readiness = self.profile.readiness
        if not readiness.flaps:
            return 0.0
        count, turn_s = readiness.replicas, readiness.replica_turn_s
        replica = int(now_s / turn_s) % count if turn_s else self._replica_draws.randrange(count)
        return readiness.replica_lag_s if replica else 0.0

    def upload_s(self, size_bytes: int) -> float:
        """Return how long a connection needs to upload this many bytes, seconds."""
        rate = self.profile.bandwidth.up_bytes_per_s
        return size_bytes / rate if rate else 0.0

    def download_s(self, size_bytes: int) -> float:
        """Return how long a connection needs to download this many bytes, seconds."""
        rate = self.profile.bandwidth.down_bytes_per_s
        return size_bytes / rate if rate else 0.0

    def thaw_s(self, at_s: float) -> float:
        """Return when an answer that is ready at ``at_s`` may be sent."""
        freeze = self.profile.freeze
        if not freeze.duration_s:
            return at_s
        phase = (at_s - self._freeze_start_s) % freeze.period_s
        return at_s if phase < freeze.period_s - freeze.duration_s else at_s + freeze.period_s - phase

    async def wait_until(self, due_s: float) -> None:
        """Wait until ``due_s`` of the emulator's clock, and longer while the provider is frozen."""
        while True:
            now_s = self._clock.now_s()
            if due_s > now_s:
                await asyncio.sleep(self._clock.real_s(due_s - now_s))
                continue
            frozen_s = self.thaw_s(now_s) - now_s
            if frozen_s > 0:
                await self._queue_until_thaw(self._clock.real_s(frozen_s))
                continue
            if self._held and asyncio.current_task() not in self._released:
                await self._queue_until_thaw(0.0)
            return

    async def _queue_until_thaw(self, real_s: float) -> None:
        """Wait in the queue of held requests, which continue in order of arrival, before all later ones."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._held.append(turn)
        if not self._is_thawing:
            self._is_thawing = True
            loop.call_later(real_s, self._release_batch, 0)
        await turn
        task = asyncio.current_task()
        if task is not None:
            self._released.add(task)

    def _release_batch(self, batch_size: int) -> None:
        """Release the next batch. If all were released at once, a client's threads would finish in arbitrary order."""
        loop, now_s = asyncio.get_running_loop(), self._clock.now_s()
        if (frozen_s := self.thaw_s(now_s) - now_s) > 0:
            loop.call_later(self._clock.real_s(frozen_s), self._release_batch, 0)
            return
        batch_size = batch_size or -(-len(self._held) // _THAW_TURNS)
        for _ in range(min(batch_size, len(self._held))):
            turn = self._held.popleft()
            if not turn.done():
                turn.set_result(None)
        self._is_thawing = bool(self._held)
        if self._is_thawing:
            loop.call_later(self._clock.real_s(_THAW_TURN_S), self._release_batch, batch_size)
        else:
            self._released.clear()

    def draw_fault(self) -> str | None:
        """Return the fault of the next request (``error``, ``reset`` or ``reset_after``), or None."""
        faults = self.profile.faults
        draw = self._fault_draws.random()
        if draw < faults.error_rate:
            return "error"
        if draw < faults.error_rate + faults.reset_rate:
            return "reset" if self._fault_draws.random() < 0.5 else "reset_after"
        return None

    def draw_damage(self) -> int | None:
        """Return the bit of the next upload that is flipped in the store, or None."""
        rate = self.profile.faults.corrupt_rate
        if not rate or self._fault_draws.random() >= rate:
            return None
        return self._fault_draws.getrandbits(40)
