"""The observations of an array's children, which place new shares and decide which children reads ask.

What may live here: the clock, the lock and the metadata around the pure decisions of ``raid.coding.rates``,
``raid.coding.placement`` and ``raid.coding.hedging``.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from contextlib import suppress

from pytest_cloudbench.raid.coding.hedging import Hedging, HedgingRule
from pytest_cloudbench.raid.coding.policies import Split
from pytest_cloudbench.raid.coding.rates import ChildRates
from pytest_cloudbench.support import clock


class Observer:
    """Records every transfer, and is asked before every read. Safe for many threads.

    Args:
        children: how many there are.
        rule: when a read asks another child.
        half_life_s: of observed rates.
    """

    def __init__(self, children: int, rule: HedgingRule, half_life_s: float = 300.0) -> None:
        self._lock = threading.Lock()
        self.writes, self.reads = ChildRates(children, half_life_s), ChildRates(children, half_life_s)
        self.hedging = Hedging(children, rule)

    @property
    def has_observed(self) -> bool:
        """True if any successful transfer was recorded."""
        return any(rate is not None for table in (self.writes, self.reads) for rate in table.observed_rates())

    # --- rates ----------------------------------------------------------------------------------------

    def observe(self, child: int, size_bytes: int, duration_ns: int, *, is_read: bool) -> None:
        """Note that a child has written or returned a package in this time."""
        taken_s = duration_ns / 1e9
        with self._lock:
            (self.reads if is_read else self.writes).observe(child, size_bytes, taken_s, _now_s())
            if is_read:
                self.hedging.note_answer(child, size_bytes, taken_s, _now_s())

    def note_failure(self, child: int, *, is_read: bool) -> None:
        """Note that a child failed to return a package. Failed writes are ignored: only reads choose whom to ask."""
        if is_read:
            with self._lock:
                self.hedging.note_failure(child, _now_s())

    def write_rates(self) -> Sequence[float | None]:
        """Return each child's write rate in bytes per second, None where nothing was observed."""
        with self._lock:
            return self.writes.observed_rates()

    # --- reads ----------------------------------------------------------------------------------------

    def order(self, split: Split, share_bytes: int) -> Sequence[int]:
        """Return the children that hold shares, in the order in which they are to be asked."""
        holders = [child for child, count in enumerate(split.counts) if count]
        with self._lock:
            return self.hedging.order(holders, min(split.data, len(holders)), share_bytes, _now_s())

    def after_ns(self, child: int, size_bytes: int) -> int | None:
        """Return how long a child may take for a package before another is asked as well."""
        with self._lock:
            return round(self.hedging.late_after_s(child, size_bytes) * 1e9)

    def note_extra_request(self) -> None:
        """Note that a read asked one more child because another was late."""
        with self._lock:
            self.hedging.note_extra_request()

    def note_unanswered(self, child: int, size_bytes: int, waited_ns: int) -> None:
        """Note that a read waited this long for a late child and no longer needs its answer."""
        with self._lock:
            self.hedging.note_unanswered(child, size_bytes, waited_ns / 1e9, _now_s())

    # --- state for later processes --------------------------------------------------------------------

    def text(self) -> str:
        """Return the observed rates as text, with ages instead of times, because the clocks of processes differ."""
        with self._lock:
            now_s = _now_s()
            rates = [[_shift_time(table[child].plain(), -now_s) for child in range(len(table))]
                     for table in (self.writes, self.reads)]  # fmt: skip
        return json.dumps(rates)

    def restore(self, text: str) -> None:
        """Restore a state from ``text``. Unreadable parts are learned again."""
        with suppress(ValueError, TypeError, IndexError, KeyError, AttributeError, RecursionError), self._lock:
            for table, plain_rates in zip((self.writes, self.reads), json.loads(text), strict=True):
                for child in range(len(table)):
                    table[child].restore(_shift_time(plain_rates[child], _now_s()))


def _shift_time(plain: dict[str, float], by_s: float) -> dict[str, float]:
    return {**plain, "at_s": plain["at_s"] + by_s}


def _now_s() -> float:
    return clock.now_ns() / 1e9
