"""Numbering of addresses, pairs of addresses and pairs of endpoints across all batches of a capture."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from ipaddress import IPv4Address, IPv6Address
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pytest_cloudbench.net.traffic.records import Ints

TCP, UDP = 6, 17

Address = IPv4Address | IPv6Address
_DOTTED = "%d.%d.%d.%d"


class Addresses:
    """All addresses of a capture by number. Each is made when it is first needed, since most are only printed."""

    def __init__(self, four: Sequence[int], six: Sequence[int]) -> None:
        self._four, self._six = four, six
        self._made: dict[int, Address] = {}

    def __len__(self) -> int:
        return len(self._four) + len(self._six)

    def __getitem__(self, number: int) -> Address:
        address = self._made.get(number)
        if address is None:
            count = len(self._four)
            address = IPv4Address(self._four[number]) if number < count else IPv6Address(self._six[number - count])
            self._made[number] = address
        return address

    def __iter__(self) -> Iterator[Address]:
        return map(self.__getitem__, range(len(self)))

    def make_texts(self) -> list[str]:
        """Return all addresses as text. For IPv4, that takes a fifth of the time of making addresses."""
        texts = [_DOTTED % (*number.to_bytes(4, "big"),) for number in self._four]
        return [*texts, *(str(IPv6Address(number)) for number in self._six)]


class Pairs(NamedTuple):
    """Pairs of endpoints and their protocol, as columns.

    ``low`` has the smaller address, or the smaller port if both addresses are the same. Addresses are indices into
    ``addresses``, which has each address once.
    """

    is_tcp: NDArray[np.bool_]
    low: Ints
    low_port: Ints
    high: Ints
    high_port: Ints
    addresses: Addresses

    def select(self, chosen: Ints) -> Pairs:
        """Return only these pairs."""
        ends = (self.low, self.low_port, self.high, self.high_port)
        low, low_port, high, high_port = (column[chosen] for column in ends)
        return Pairs(self.is_tcp[chosen], low, low_port, high, high_port, self.addresses)


def find_distinct(values: Any) -> Any:
    """Return the distinct values in ascending order. ``np.unique`` does the same, but imports numpy's masked arrays."""
    import numpy as np

    ordered = np.sort(values)
    is_new = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=is_new[1:])
    return ordered[is_new]


class _Numbers:
    """Exact numbering of distinct 64-bit keys, from 0 in the order of first appearance."""

    _BITS = 16

    def __init__(self) -> None:
        import numpy as np

        self._number_of: dict[int, int] = {}
        # The last key of each slot. Most packets are found here, without using the dictionary.
        self._slot_key = np.zeros(1 << self._BITS, np.uint64)
        self._slot_number = np.zeros(1 << self._BITS, np.int64)  # number plus one, so that 0 means none

    @property
    def keys(self) -> Any:
        """All keys in the order of their numbers."""
        return self.get_keys(0)

    def get_keys(self, first: int) -> Any:
        """Return the keys from number ``first`` on."""
        import numpy as np

        count = len(self._number_of) - first
        return np.fromiter(islice(reversed(self._number_of), count), np.uint64, count)[::-1]

    def assign_numbers(self, keys: Any) -> Ints:
        import numpy as np

        if len(keys) and (keys[0] == keys[-1]) and (keys == keys[0]).all():  # a single flow or network
            return np.full(len(keys), self._number_of.setdefault(int(keys[0]), len(self._number_of)))
        slot = ((keys * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - self._BITS)).astype(np.int64)
        numbers = self._slot_number[slot] - 1
        missed = (self._slot_key[slot] != keys) | (numbers < 0)
        if missed.any():
            rows = np.flatnonzero(missed)
            missed_keys = keys[rows]
            runs = np.concatenate(
                ([0], np.flatnonzero(missed_keys[1:] != missed_keys[:-1]) + 1)
            )  # packets come in runs
            values, first = np.unique(missed_keys[runs], return_index=True)
            key_numbers, order = np.empty(len(values), np.int64), np.argsort(first)
            number_of = self._number_of
            key_numbers[order] = [number_of.setdefault(value, len(number_of)) for value in values[order].tolist()]
            numbers[rows] = key_numbers[np.searchsorted(values, missed_keys)]
            self._slot_key[slot[rows]], self._slot_number[slot[rows]] = keys[rows], numbers[rows] + 1
        return np.asarray(numbers)


class Recent:
    """An exact cache of numbers for recent keys of several words, with a table lookup instead of a search.

    A key has two possible slots in a table of indices into the dense columns of known keys. The second slot is used if
    another key has the first. When the columns are full, all keys are dropped.
    """

    _BITS, _MAX_KEYS = 17, 1 << 16

    def __init__(self, words: int) -> None:
        import numpy as np

        self._slots = np.zeros(2 << self._BITS, np.int64)
        self._keys = np.zeros((words, self._MAX_KEYS), np.uint64)
        self._numbers = np.full(self._MAX_KEYS, -1, np.int32)  # index 0 is not a key
        self._count = 1

    def assign_numbers(self, words: Sequence[Any], look_up: Callable[[Any], Any]) -> Any:
        """Return a number for each key.

        Args:
            words: 64-bit columns that together form the keys.
            look_up: returns the numbers of rows whose keys are not cached.
        """
        import numpy as np

        mixed = words[0] * np.uint64(_FACTORS[0])
        for word, factor in zip(words[1:], _FACTORS[1:], strict=False):
            mixed += word * np.uint64(factor)
        mixed ^= mixed >> np.uint64(32)
        mixed *= np.uint64(_FACTORS[0])
        slots = (mixed >> np.uint64(64 - self._BITS)).view(np.int64)
        key_rows = self._slots.take(slots)
        missed = self._find_different(key_rows, words).nonzero()[0]
        numbers = self._numbers.take(key_rows)
        if len(missed):
            second = (mixed[missed] >> np.uint64(63 - 2 * self._BITS)).view(np.int64) & ((1 << self._BITS) - 1)
            second += 1 << self._BITS
            missed_words = [word[missed] for word in words]
            key_rows = self._slots[second]
            numbers[missed] = self._numbers[key_rows]
            new = self._find_different(key_rows, missed_words).nonzero()[0]
            if len(new):
                slots = np.where(self._slots[slots[missed[new]]] == 0, slots[missed[new]], second[new])
                numbers[missed[new]] = self._add_keys(slots, [word[new] for word in missed_words], missed[new], look_up)
        return numbers

    def _find_different(self, key_rows: Ints, words: Sequence[Any]) -> Any:
        is_different = self._numbers.take(key_rows) < 0
        for word, column in zip(words, self._keys, strict=True):
            is_different |= column.take(key_rows) != word
        return is_different

    def _add_keys(self, slots: Ints, words: Sequence[Any], rows: Ints, look_up: Callable[[Any], Any]) -> Any:
        """Cache new keys, each of which may occur in many rows, and return their numbers."""
        import numpy as np

        count = len(rows)
        if self._count + count > self._MAX_KEYS:
            self._slots[:], self._count = 0, 1
        if count >= self._MAX_KEYS:
            return look_up(rows)
        self._slots[slots] = np.arange(count)  # one row represents all with the same slot
        representative = self._slots[slots]
        chosen = np.zeros(count, bool)
        chosen[representative] = True
        new_key_rows = self._count + np.cumsum(chosen) - 1
        key_rows = new_key_rows[representative]
        self._slots[slots] = key_rows
        first, end = self._count, int(new_key_rows[-1]) + 1
        for word, column in zip(words, self._keys, strict=True):
            column[first:end] = word[chosen]
        self._numbers[first:end] = look_up(rows[chosen])
        self._count = end
        numbers = self._numbers[key_rows]
        others = self._find_different(key_rows, words).nonzero()[0]  # two new keys in one slot
        if len(others):
            numbers[others] = look_up(rows[others])
        return numbers


_FACTORS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93, 0xFF51AFD7ED558CCD)


class Names:
    """Numbers of addresses, pairs of addresses and pairs of endpoints across all batches."""

    def __init__(self) -> None:
        self._upper, self._lower, self._six = _Numbers(), _Numbers(), _Numbers()
        self._address_pairs = {4: _Numbers(), 6: _Numbers()}
        self._endpoints = _Numbers()

    def number_ipv6(self, upper: Any, lower: Any) -> Any:
        """Return a number for each IPv6 address, given as two halves."""
        import numpy as np

        key = (self._upper.assign_numbers(upper) << 32) | self._lower.assign_numbers(lower)
        return self._six.assign_numbers(key.astype(np.uint64)).astype(np.uint64)

    def number_address_pairs(self, source: Any, target: Any, version: int) -> tuple[Ints, Any]:
        """Return a number for each pair of addresses, and the direction.

        The direction is 1 if the lower address sent, -1 if the higher one sent, and 0 if they are equal.
        """
        import numpy as np

        order = np.less(source, target).astype(np.int8) - np.greater(source, target).astype(np.int8)
        key = (np.minimum(source, target) << np.uint64(32)) | np.maximum(source, target)
        return self._address_pairs[version].assign_numbers(key) * 2 + (version == 6), order

    def number_endpoint_pairs(
        self, between: Ints, order: Any, source: Ints, target: Ints, tcp: Any
    ) -> tuple[Ints, Any]:
        """Return a number for each pair of endpoints, and whether the high one sent.

        Args:
            between: number of the pair of addresses, as returned by ``number_address_pairs``.
            order: the direction, as returned by ``number_address_pairs``.
            source: port of the sender.
            target: port of the receiver.
            tcp: 1 for TCP, otherwise 0.
        """
        import numpy as np

        from_high = (order < 0) | ((order == 0) & (source > target))
        low, high = np.where(from_high, target, source), np.where(from_high, source, target)
        key = (between << 33) | (tcp << 32) | (low << 16) | high
        return self._endpoints.assign_numbers(key.astype(np.uint64)), from_high

    def get_ports(self, first: int) -> Any:
        """Return the two ports of each pair of endpoints from number ``first`` on."""
        import numpy as np

        keys = self._endpoints.get_keys(first)
        return np.stack((keys >> np.uint64(16) & np.uint64(0xFFFF), keys & np.uint64(0xFFFF)), 1)

    def make_pairs(self) -> Pairs:
        """Return all pairs of endpoints in the order of their numbers."""
        import numpy as np

        keys = self._endpoints.keys
        pair_number, is_six = keys >> np.uint64(34), (keys >> np.uint64(33) & np.uint64(1)).astype(bool)
        ends = np.zeros((2, len(keys)), np.int64)
        addresses: dict[int, list[int]] = {}
        for version in (4, 6):
            is_version = is_six == (version == 6)
            address_pairs = self._address_pairs[version].keys[pair_number[is_version].astype(np.int64)]
            halves = np.concatenate((address_pairs >> np.uint64(32), address_pairs & np.uint64(0xFFFFFFFF)))
            distinct, index = np.unique(halves, return_inverse=True)
            ends[:, is_version] = index.reshape(2, -1) + (len(addresses[4]) if version == 6 else 0)
            addresses[version] = distinct.tolist() if version == 4 else self._restore_ipv6(distinct)
        is_tcp = (keys >> np.uint64(32) & np.uint64(1)).astype(bool)
        ports = (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)
        return Pairs(is_tcp, ends[0], ports >> 16, ends[1], ports & 0xFFFF, Addresses(addresses[4], addresses[6]))

    def _restore_ipv6(self, numbers: Any) -> list[int]:
        import numpy as np

        halves = self._six.keys[numbers.astype(np.int64)]
        upper = self._upper.keys[(halves >> np.uint64(32)).astype(np.int64)]
        lower = self._lower.keys[(halves & np.uint64(0xFFFFFFFF)).astype(np.int64)]
        return [high << 64 | low for high, low in zip(upper.tolist(), lower.tolist(), strict=True)]
