"""Who talks to whom, as numbers: addresses, pairs of addresses, pairs of endpoints.

What may live here: giving each distinct one a number, over all batches of a capture, and back.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pytest_cloudbench.traffic.records import Ints

__all__ = ["TCP", "UDP", "Address", "Names", "Pair"]

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

    def addresses(self, low: Any, high: Any, version: int) -> Ints:
        """A number for each pair of addresses; even ones are IPv4, odd ones IPv6."""
        import numpy as np

        key = (low << np.uint64(32)) | high
        return np.asarray(self._both[version].number(key) * 2 + (version == 6))

    def endpoints(self, key: Any) -> Ints:
        """A number for each pair of endpoints: pair of addresses, protocol, ports."""
        return self._endpoints.number(key)

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
