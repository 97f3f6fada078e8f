"""The interfaces of an array's policies: placement of shares, observation of rates, and hedging of reads.

What may live here: the three protocols by which an array of providers takes its decisions, and equal shares, the
simplest placement. Better ones are separate modules. Children are numbered from 0, in the order of the array's file.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Split:
    """A distribution of shares: any ``data`` of them are enough to read the content, and child i holds ``counts[i]``.

    Shares are numbered from 0, the data shares first; child 0 holds the first ``counts[0]`` of them, and so on.

    Attributes:
        data: k, the number of shares that the content is cut into.
        counts: the number of shares that each child holds, 0 or more.
    """

    data: int
    counts: tuple[int, ...]

    @property
    def parity(self) -> int:
        """The number of shares beyond the ``data`` that are enough."""
        return sum(self.counts) - self.data

    def shares_of(self, child: int) -> range:
        """Return the numbers of the shares that a child holds."""
        begin = sum(self.counts[:child])
        return range(begin, begin + self.counts[child])

    def holder(self, share: int) -> int:
        """Return the child that holds a share."""
        return next(child for child, end in enumerate(accumulate(self.counts)) if share < end)

    def is_enough(self, children: Collection[int], losses: int = 0) -> bool:
        """Return whether these children hold enough to read the content, even after any ``losses`` of them."""
        held = sorted(self.counts[child] for child in set(children))
        return sum(held[: max(0, len(held) - losses)]) >= self.data


class Placement(Protocol):
    """Decides how content is spread."""

    def split(self, size_bytes: int) -> Split:
        """Return the split of a segment of sealed content among the children. Called for each segment."""
        ...

    def suits(self, split: Split, size_bytes: int) -> bool:
        """Return whether a segment can keep this split: no other would gain enough to be worth moving it."""
        ...


class Rates(Protocol):
    """Receives the outcome of every transfer, from any thread."""

    def observe(self, child: int, size_bytes: int, duration_ns: int, *, is_read: bool) -> None:
        """Note that a child has written or returned a package in this time."""
        ...

    def note_failure(self, child: int, *, is_read: bool) -> None:
        """Note that a child failed to write or return a package."""
        ...


class Hedge(Protocol):
    """Decides which children a read asks first, and when it asks one more."""

    def order(self, split: Split, share_bytes: int) -> Sequence[int]:
        """Begin a read: return the children that hold shares, in the order in which they are to be asked."""
        ...

    def after_ns(self, child: int, size_bytes: int) -> int | None:
        """Return how long a child may take for a package before another is asked as well, or None: until it fails."""
        ...

    def note_extra_request(self) -> None:
        """Note that another child was asked because one was late."""
        ...

    def note_unanswered(self, child: int, size_bytes: int, waited_ns: int) -> None:
        """Note that a read waited this long for a late child and no longer needs its answer."""
        ...


@dataclass(frozen=True, slots=True)
class Equal:
    """Each of n children holds one share, any k of which are enough.

    Attributes:
        data: k.
        children: n.
    """

    data: int
    children: int

    def split(self, size_bytes: int) -> Split:
        """Return the same split for every size."""
        del size_bytes
        return Split(self.data, (1,) * self.children)

    def suits(self, split: Split, size_bytes: int) -> bool:
        """Return whether it is the same split."""
        return split == self.split(size_bytes)
