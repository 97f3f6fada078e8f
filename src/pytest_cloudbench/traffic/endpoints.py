"""Who talks to whom, as numbers: addresses, pairs of addresses, pairs of endpoints.

What may live here: giving each distinct one a number, over all batches of a capture, and back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pytest_cloudbench.traffic.records import Ints

__all__ = ["TCP", "UDP", "Address", "Names", "Pair", "Recent"]

TCP, UDP = 6, 17

Address = IPv4Address | IPv6Address


class Pair(NamedTuple):
    """Two endpoints and their protocol. ``low`` has the smaller address, or the same and the smaller port."""

    protocol: int
    low: Address
    low_port: int
    high: Address
    high_port: int


class _Numbers:
    """Gives each distinct 64-bit key a number, from 0 in the order of first appearance. Exact, not a hash."""

    _BITS = 16

    def __init__(self) -> None:
        import numpy as np

        self.keys: list[int] = []
        self._known: dict[int, int] = {}
        # The key that was last seen in each slot: most packets are found here, without a look at the dictionary.
        self._slot_key = np.zeros(1 << self._BITS, np.uint64)
        self._slot_number = np.full(1 << self._BITS, -1, np.int64)

    def _one(self, key: int) -> int:
        number = self._known.get(key)
        if number is None:
            number = self._known[key] = len(self.keys)
            self.keys.append(key)
        return number

    def number(self, keys: Any) -> Ints:
        import numpy as np

        if len(keys) and (keys[0] == keys[-1]) and (keys == keys[0]).all():  # one flow, or one network
            return np.full(len(keys), self._one(int(keys[0])))
        slot = ((keys * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - self._BITS)).astype(np.int64)
        numbers = self._slot_number[slot]
        missed = (self._slot_key[slot] != keys) | (numbers < 0)
        if missed.any():
            rows = np.flatnonzero(missed)
            wanted = keys[rows]
            runs = np.concatenate(([0], np.flatnonzero(wanted[1:] != wanted[:-1]) + 1))  # packets come in runs
            values, first = np.unique(wanted[runs], return_index=True)
            found, order = np.empty(len(values), np.int64), np.argsort(first)
            found[order] = [self._one(value) for value in values[order].tolist()]
            numbers[rows] = found[np.searchsorted(values, wanted)]
            self._slot_key[slot[rows]], self._slot_number[slot[rows]] = keys[rows], numbers[rows]
        return np.asarray(numbers)


class Recent:
    """Numbers of the keys that were seen last, of several words each: a look into a table, no search. Exact.

    A key has two places in the table of places, which says where in the dense columns of known keys it stands. The
    second one is taken where another key has the first. When the columns are full, all are forgotten.
    """

    _BITS, _MOST = 17, 1 << 16

    def __init__(self, words: int) -> None:
        import numpy as np

        self._places = np.zeros(2 << self._BITS, np.int64)
        self._keys = np.zeros((words, self._MOST), np.uint64)
        self._numbers = np.full(self._MOST, -1, np.int32)  # the first one is no key
        self._count = 1

    def number(self, words: Sequence[Any], look_up: Callable[[Any], Any]) -> Any:
        """A number for each key.

        Args:
            words: 64-bit columns, which together are the keys.
            look_up: gives the numbers of some rows, whose keys are not known here.
        """
        import numpy as np

        mixed = words[0] * np.uint64(_ODD[0])
        for word, odd in zip(words[1:], _ODD[1:], strict=False):
            mixed += word * np.uint64(odd)
        mixed ^= mixed >> np.uint64(32)
        mixed *= np.uint64(_ODD[0])
        place = (mixed >> np.uint64(64 - self._BITS)).view(np.int64)
        known = self._places.take(place)
        missed = self._differ(known, words).nonzero()[0]
        numbers = self._numbers.take(known)
        if len(missed):
            second = (mixed[missed] >> np.uint64(63 - 2 * self._BITS)).view(np.int64) & ((1 << self._BITS) - 1)
            second += 1 << self._BITS
            own = [word[missed] for word in words]
            known = self._places[second]
            numbers[missed] = self._numbers[known]
            new = self._differ(known, own).nonzero()[0]
            if len(new):
                place = np.where(self._places[place[missed[new]]] == 0, place[missed[new]], second[new])
                numbers[missed[new]] = self._add(place, [word[new] for word in own], missed[new], look_up)
        return numbers

    def _differ(self, known: Ints, words: Sequence[Any]) -> Any:
        found = self._numbers.take(known) < 0
        for word, column in zip(words, self._keys, strict=True):
            found |= column.take(known) != word
        return found

    def _add(self, place: Ints, words: Sequence[Any], rows: Ints, look_up: Callable[[Any], Any]) -> Any:
        """Numbers of new keys, each of which may stand in many rows."""
        import numpy as np

        count = len(rows)
        if self._count + count > self._MOST:
            self._places[:], self._count = 0, 1
        if count >= self._MOST:
            return look_up(rows)
        self._places[place] = np.arange(count)  # one row speaks for all that have its place
        speaker = self._places[place]
        chosen = np.zeros(count, bool)
        chosen[speaker] = True
        reached = self._count + np.cumsum(chosen) - 1
        known = reached[speaker]
        self._places[place] = known
        first, end = self._count, int(reached[-1]) + 1
        for word, column in zip(words, self._keys, strict=True):
            column[first:end] = word[chosen]
        self._numbers[first:end] = look_up(rows[chosen])
        self._count = end
        numbers = self._numbers[known]
        others = self._differ(known, words).nonzero()[0]  # two new keys at one place
        if len(others):
            numbers[others] = look_up(rows[others])
        return numbers


_ODD = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93, 0xFF51AFD7ED558CCD)


class Names:
    """Numbers for addresses, pairs of addresses and pairs of endpoints, over all batches."""

    def __init__(self) -> None:
        self._upper, self._lower, self._six = _Numbers(), _Numbers(), _Numbers()
        self._both = {4: _Numbers(), 6: _Numbers()}
        self._endpoints = _Numbers()

    def address6(self, upper: Any, lower: Any) -> Any:
        """A number for each IPv6 address, given as two halves."""
        import numpy as np

        key = (self._upper.number(upper) << 32) | self._lower.number(lower)
        return self._six.number(key.astype(np.uint64)).astype(np.uint64)

    def between(self, source: Any, target: Any, version: int) -> tuple[Ints, Any]:
        """A number for each pair of addresses, and 1, 0 or -1: the lower one sent, they are the same, the higher."""
        import numpy as np

        order = np.less(source, target).astype(np.int8) - np.greater(source, target).astype(np.int8)
        key = (np.minimum(source, target) << np.uint64(32)) | np.maximum(source, target)
        return self._both[version].number(key) * 2 + (version == 6), order

    def directed(self, between: Ints, order: Any, source: Ints, target: Ints, tcp: Any) -> tuple[Ints, Any]:
        """(a number for each pair of endpoints, whether the high one sent).

        Args:
            between: which addresses, as ``between`` says.
            order: the same.
            source: port of who sent.
            target: port of who was meant.
            tcp: 1 where it is TCP, else 0.
        """
        import numpy as np

        from_high = (order < 0) | ((order == 0) & (source > target))
        low, high = np.where(from_high, target, source), np.where(from_high, source, target)
        key = (between << 33) | (tcp << 32) | (low << 16) | high
        return self._endpoints.number(key.astype(np.uint64)), from_high

    def pairs(self) -> list[Pair]:
        """Back from numbers to what they stand for."""
        found = []
        known: dict[tuple[int, int], Address] = {}
        for key in self._endpoints.keys:
            number, is_tcp, ports = key >> 33, key >> 32 & 1, key & 0xFFFFFFFF
            is_six = number & 1
            both = self._both[6 if is_six else 4].keys[number >> 1]
            ends = []
            for part in (both >> 32, both & 0xFFFFFFFF):
                address = known.get((is_six, part))
                if address is None:
                    address = known[is_six, part] = self._address(part, is_six)
                ends.append(address)
            found.append(Pair(TCP if is_tcp else UDP, ends[0], ports >> 16, ends[1], ports & 0xFFFF))
        return found

    def _address(self, value: int, is_six: int) -> Address:
        if not is_six:
            return IPv4Address(value)
        key = self._six.keys[value]
        return IPv6Address(self._upper.keys[key >> 32] << 64 | self._lower.keys[key & 0xFFFFFFFF])
