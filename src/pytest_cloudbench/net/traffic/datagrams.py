"""Counts of UDP packets by pair of endpoints, made batch by batch, so that few packets have to be kept.

A capture may have very many datagrams of few flows. Only their counts and the first ones of each flow are needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_cloudbench.net.traffic.endpoints import Names
    from pytest_cloudbench.net.traffic.records import Buffer, Ints

REPEAT_WITHIN_NS = 1_000_000
"""The longest time between a packet and its copy in the same capture. No sender repeats a packet so soon."""

_UDP_HEADER_BYTES, _DNS_PORT = 8, 53
_LEAST_PAIRS = 1024
_WORD_BYTES, _WIDE_BYTES = 8, 64
_LEAST_CUT_BYTES = 64
"""The most bytes in which all packets of an encrypted connection may be equal."""


class Datagrams:
    """Counts of all UDP packets. A column has two values for each pair: what its low and its high endpoint sent."""

    def __init__(self, names: Names) -> None:
        import numpy as np

        self._names = names
        limits = np.iinfo(np.int64)
        self._initial = {
            "packets": 0, "wire_bytes": 0, "payload_bytes": 0, "largest_payload_bytes": 0, "first_ns": limits.max,
            "last_ns": limits.min, "first_payload_ns": limits.max, "last_payload_ns": limits.min, "turns": 0,
        }  # fmt: skip
        self._sums = {name: np.zeros(0, np.int64) for name in self._initial}
        self._is_known, self._is_dns = np.zeros(0, bool), np.zeros(0, bool)
        self._speaker = np.zeros(0, np.int8)  # who sent payload last in each pair, -1 for nobody
        self._pairs = 0

    def count_batch(self, columns: dict[str, Any]) -> Any:
        """Count the UDP packets of a batch, and return which of all its packets to keep.

        These are all TCP and DNS packets, the first packet of each UDP flow, and its first packet with payload in each
        direction.
        """
        import numpy as np

        is_kept = columns["header"] != _UDP_HEADER_BYTES  # a TCP header has 20 bytes or more
        rows = np.flatnonzero(~is_kept)
        if not len(rows):
            return is_kept
        self._add_pairs()
        pair = columns["pair"][rows].astype(np.int64)
        payload = columns["payload"][rows]
        time_ns = columns["time_ns"][rows]
        from_high = columns["from_high"][rows]
        sender = pair * 2 + from_high
        is_kept[rows[self._is_dns[pair]]] = True
        is_kept[rows[self._find_new_pairs(pair)]] = True
        sums = self._sums
        with_payload = slice(None) if payload.all() else payload.nonzero()[0]  # a slice copies nothing
        is_first_payload = sums["payload_bytes"][sender[with_payload]] == 0
        is_kept[rows[with_payload][_find_first_rows(sender[with_payload], is_first_payload)]] = True
        np.add.at(sums["packets"], sender, 1)
        np.add.at(sums["wire_bytes"], sender, columns["wire"][rows].astype(np.int64))
        np.add.at(sums["payload_bytes"], sender, payload.astype(np.int64))
        np.maximum.at(sums["largest_payload_bytes"], sender, payload.astype(np.int64))
        for stem, chosen in (("", slice(None)), ("_payload", with_payload)):
            np.minimum.at(sums[f"first{stem}_ns"], sender[chosen], time_ns[chosen])
            np.maximum.at(sums[f"last{stem}_ns"], sender[chosen], time_ns[chosen])
        self._count_turns(pair[with_payload], from_high[with_payload])
        return is_kept

    def _add_pairs(self) -> None:
        """Make room for pairs that were numbered since the last batch."""
        import numpy as np

        ports = self._names.get_ports(self._pairs)
        self._pairs += len(ports)
        room = len(self._speaker)
        if self._pairs > room:
            more = max(_LEAST_PAIRS, 2 * self._pairs) - room
            for name, value in self._initial.items():
                self._sums[name] = np.append(self._sums[name], np.full(2 * more, value))
            self._is_known, self._is_dns = (
                np.append(column, np.zeros(more, bool)) for column in (self._is_known, self._is_dns)
            )
            self._speaker = np.append(self._speaker, np.full(more, -1, np.int8))
        self._is_dns[self._pairs - len(ports) : self._pairs] = (ports == _DNS_PORT).any(1)

    def _find_new_pairs(self, pair: Ints) -> Any:
        """Return the rows of the first packets of pairs."""
        rows = _find_first_rows(pair, ~self._is_known[pair])
        self._is_known[pair[rows]] = True
        return rows

    def _count_turns(self, pair: Ints, from_high: Any) -> None:
        """Count how often one side sent payload after the other."""
        import numpy as np

        if not len(pair):
            return
        order = np.argsort(pair.astype(np.uint16) if self._pairs <= 1 << 16 else pair, kind="stable")
        pair, speaker = pair[order], from_high[order].astype(np.int8)
        is_first, before = np.ones(len(pair), bool), np.empty_like(speaker)
        np.not_equal(pair[1:], pair[:-1], out=is_first[1:])
        begins = is_first.nonzero()[0]
        before[1:] = speaker[:-1]
        before[begins] = self._speaker[pair[begins]]
        turns = np.flatnonzero((before >= 0) & (before != speaker))
        np.add.at(self._sums["turns"], pair[turns] * 2 + before[turns], 1)
        ends = np.append(begins[1:], len(pair)) - 1
        self._speaker[pair[ends]] = speaker[ends]

    def get_counts(self, name: str, senders: Ints) -> Any:
        """Return one count for each sender, which is twice the number of its pair, plus one for the high endpoint."""
        return self._sums[name][senders]


def _find_first_rows(keys: Ints, is_candidate: Any) -> Any:
    """Return the first row of each distinct key among the candidate rows."""
    import numpy as np

    candidates = np.flatnonzero(is_candidate)
    keys = keys[candidates]
    first_of = np.empty(int(keys.max(initial=0)) + 1, np.int64)
    first_of[keys[::-1]] = candidates[::-1]  # the last assignment stays, and sorting would take much longer
    return candidates[first_of[keys] == candidates]


class RepeatedDatagrams:
    """Counts of UDP packets with payload, and of those among them that repeat the previous packet of their flow.

    A capture may hold packets twice. In encrypted connections, no packet equals the one before.

    Attributes:
        packets: number of packets with payload.
        repeated: number of packets with the same bytes as the previous packet of their flow.
    """

    def __init__(self) -> None:
        self.packets = self.repeated = 0

    def count_batch(self, columns: dict[str, Any], buffer: Buffer) -> None:
        """Count the UDP packets of a batch."""
        import numpy as np

        rows = np.flatnonzero((columns["header"] == _UDP_HEADER_BYTES) & (columns["payload"] > 0))
        if not len(rows):
            return
        self.packets += len(rows)
        pair = columns["pair"][rows]
        pair = pair.astype(np.uint16) if pair.max() < 1 << 16 else pair  # numpy sorts 16 bits by radix sort
        order = np.argsort(pair, kind="stable")
        rows, pair = rows[order], pair[order]
        is_soon = np.abs(np.diff(columns["time_ns"][rows])) < REPEAT_WITHIN_NS
        later = (is_soon & (pair[1:] == pair[:-1])).nonzero()[0] + 1
        one, other = rows[later - 1], rows[later]
        kept, offset = columns["kept"][other].astype(np.int64), columns["offset"]
        is_same = (kept >= _LEAST_CUT_BYTES) | (kept == columns["payload"][other])
        for column in (columns["from_high"], columns["payload"], columns["kept"]):
            is_same &= column[one] == column[other]
        self.repeated += _count_equal(buffer, offset[one[is_same]], offset[other[is_same]], kept[is_same])


def _count_equal(buffer: Buffer, one: Ints, other: Ints, sizes: Ints) -> int:
    """Return how often bytes at an offset equal as many bytes at another offset. Eight bytes must precede each offset.

    The last bytes are compared first, because most packets that differ do so there.
    """
    last = sizes - _WORD_BYTES
    rows = _find_equal_words(buffer, one + last, other + last, _WORD_BYTES)
    one, other, sizes = one[rows], other[rows], sizes[rows]
    count = 0
    for width, is_chosen in ((_WORD_BYTES, sizes < _WIDE_BYTES), (_WIDE_BYTES, sizes >= _WIDE_BYTES)):
        first, second, last = one[is_chosen], other[is_chosen], sizes[is_chosen] - width
        for start in range(0, int(last.max(initial=-width)) + width, width):
            if not len(first):
                break
            position = last.clip(max=start)
            rows = _find_equal_words(buffer, first + position, second + position, width)
            first, second, last = first[rows], second[rows], last[rows]
        count += len(first)
    return count


def _find_equal_words(buffer: Buffer, one: Ints, other: Ints, width: int) -> Any:
    """Return the rows in which bytes at an offset equal those at another offset. ``width`` is a multiple of eight."""
    import numpy as np

    words: Any = np.ndarray((max(0, len(buffer) - width + 1),), f"V{width}", buffer, strides=(1,))
    is_equal = words[one].view("u8") == words[other].view("u8")
    return is_equal.reshape(-1, width // _WORD_BYTES).all(1).nonzero()[0]
