"""Numbers for addresses, pairs of addresses and pairs of endpoints.

What may live here: numbering distinct ones across all batches of a capture, and mapping the numbers back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pytest_cloudbench.net.traffic.records import Ints

TCP, UDP = 6, 17

Address = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of endpoints and their protocol, as columns.

    ``low`` has the smaller address, or, if both are the same, the smaller port. Addresses are indices into
    ``addresses``, which has each one once.
    """

    is_tcp: NDArray[np.bool_]
    low: Ints
    low_port: Ints
    high: Ints
    high_port: Ints
    addresses: Sequence[Address]

    def some(self, chosen: Ints) -> Pairs:
        """These of them."""
        ends = (self.low, self.low_port, self.high, self.high_port)
        low, low_port, high, high_port = (column[chosen] for column in ends)
        return Pairs(self.is_tcp[chosen], low, low_port, high, high_port, self.addresses)


class _Numbers:
    """Gives each distinct 64-bit key a number, from 0 in the order of first appearance. Exact, not a hash."""

    _BITS = 16

    def __init__(self) -> None:
        import numpy as np

        self._known: dict[int, int] = {}
        # The key that was last seen in each slot: most packets are found here, without using the dictionary.
        self._slot_key = np.zeros(1 << self._BITS, np.uint64)
        self._slot_number = np.zeros(1 << self._BITS, np.int64)  # and one more: 0 is none

    @property
    def keys(self) -> Any:
        """All of them, in the order of their numbers."""
        import numpy as np

        return np.fromiter(self._known, np.uint64, len(self._known))

    def number(self, keys: Any) -> Ints:
        import numpy as np

        if len(keys) and (keys[0] == keys[-1]) and (keys == keys[0]).all():  # one flow, or one network
            return np.full(len(keys), self._known.setdefault(int(keys[0]), len(self._known)))
        slot = ((keys * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - self._BITS)).astype(np.int64)
        numbers = self._slot_number[slot] - 1
        missed = (self._slot_key[slot] != keys) | (numbers < 0)
        if missed.any():
            rows = np.flatnonzero(missed)
            wanted = keys[rows]
            runs = np.concatenate(([0], np.flatnonzero(wanted[1:] != wanted[:-1]) + 1))  # packets come in runs
            values, first = np.unique(wanted[runs], return_index=True)
            found, order = np.empty(len(values), np.int64), np.argsort(first)
            known = self._known
            found[order] = [known.setdefault(value, len(known)) for value in values[order].tolist()]
            numbers[rows] = found[np.searchsorted(values, wanted)]
            self._slot_key[slot[rows]], self._slot_number[slot[rows]] = keys[rows], numbers[rows] + 1
        return np.asarray(numbers)


class Recent:
    """Numbers of recently seen keys of several words each, by a table lookup instead of a search. Exact.

    A key has two possible slots in a table that holds its index in the dense columns of known keys. The second slot is
    used if another key has the first. When the columns are full, all keys are forgotten.
    """

    _BITS, _MOST = 17, 1 << 16

    def __init__(self, words: int) -> None:
        import numpy as np

        self._places = np.zeros(2 << self._BITS, np.int64)
        self._keys = np.zeros((words, self._MOST), np.uint64)
        self._numbers = np.full(self._MOST, -1, np.int32)  # the first one is not a key
        self._count = 1

    def number(self, words: Sequence[Any], look_up: Callable[[Any], Any]) -> Any:
        """A number for each key.

        Args:
            words: 64-bit columns, which together are the keys.
            look_up: returns the numbers of rows whose keys are not known here.
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
        """Numbers of new keys, each of which may occur in many rows."""
        import numpy as np

        count = len(rows)
        if self._count + count > self._MOST:
            self._places[:], self._count = 0, 1
        if count >= self._MOST:
            return look_up(rows)
        self._places[place] = np.arange(count)  # one row stands for all that have its place
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
        """A number for each pair of addresses, and 1, 0 or -1: the lower one sent, both are the same, the higher one
        sent.
        """
        import numpy as np

        order = np.less(source, target).astype(np.int8) - np.greater(source, target).astype(np.int8)
        key = (np.minimum(source, target) << np.uint64(32)) | np.maximum(source, target)
        return self._both[version].number(key) * 2 + (version == 6), order

    def directed(self, between: Ints, order: Any, source: Ints, target: Ints, tcp: Any) -> tuple[Ints, Any]:
        """(a number for each pair of endpoints, whether the high one sent).

        Args:
            between: the pair of addresses, as returned by ``between``.
            order: the direction, as returned by ``between``.
            source: port of the sender.
            target: port of the receiver.
            tcp: 1 for TCP, otherwise 0.
        """
        import numpy as np

        from_high = (order < 0) | ((order == 0) & (source > target))
        low, high = np.where(from_high, target, source), np.where(from_high, source, target)
        key = (between << 33) | (tcp << 32) | (low << 16) | high
        return self._endpoints.number(key.astype(np.uint64)), from_high

    def pairs(self) -> Pairs:
        """What the numbers stand for."""
        import numpy as np

        keys = self._endpoints.keys
        both, is_six = keys >> np.uint64(34), (keys >> np.uint64(33) & np.uint64(1)).astype(bool)
        ends = np.zeros((2, len(keys)), np.int64)
        addresses: list[Address] = []
        for version in (4, 6):
            mine = is_six == (version == 6)
            between = self._both[version].keys[both[mine].astype(np.int64)]
            halves = np.concatenate((between >> np.uint64(32), between & np.uint64(0xFFFFFFFF)))
            known, place = np.unique(halves, return_inverse=True)
            ends[:, mine] = place.reshape(2, -1) + len(addresses)
            addresses += map(IPv4Address, known.tolist()) if version == 4 else self._addresses6(known)
        is_tcp = (keys >> np.uint64(32) & np.uint64(1)).astype(bool)
        ports = (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)
        return Pairs(is_tcp, ends[0], ports >> 16, ends[1], ports & 0xFFFF, addresses)

    def _addresses6(self, numbers: Any) -> Iterator[Address]:
        import numpy as np

        halves = self._six.keys[numbers.astype(np.int64)]
        upper = self._upper.keys[(halves >> np.uint64(32)).astype(np.int64)]
        lower = self._lower.keys[(halves & np.uint64(0xFFFFFFFF)).astype(np.int64)]
        for high, low in zip(upper.tolist(), lower.tolist(), strict=True):
            yield IPv6Address(high << 64 | low)
