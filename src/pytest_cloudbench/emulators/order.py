"""Sorted sequences that a page of a listing can enter anywhere, and that stay sorted while they change.

Items lie in chunks of bounded length. Finding a key takes O(log n), and adding or removing an item moves no more than
one chunk, so neither a page nor a change depends on the size of a folder.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, TypeVar, overload

_MAX_CHUNK_ITEMS = 2000

_Item = TypeVar("_Item")


class SortedItems(Sequence[_Item]):
    """Items sorted by a key, which must not change while an item is here. Equal keys stay in order of arrival."""

    __slots__ = ("_items", "_key", "_keys", "_last_keys")

    def __init__(self, key: Callable[[_Item], Any], items: Iterable[_Item] = ()) -> None:
        self._key = key
        self._keys: list[list[Any]] = []
        self._items: list[list[_Item]] = []
        self._last_keys: list[Any] = []
        ordered = sorted(items, key=key)
        half = _MAX_CHUNK_ITEMS // 2
        for start in range(0, len(ordered), half):
            chunk = ordered[start : start + half]
            self._items.append(chunk)
            self._keys.append([key(item) for item in chunk])
            self._last_keys.append(self._keys[-1][-1])

    def __len__(self) -> int:
        return sum(map(len, self._items))

    @overload
    def __getitem__(self, index: int) -> _Item: ...

    @overload
    def __getitem__(self, index: slice) -> list[_Item]: ...

    def __getitem__(self, index: int | slice) -> _Item | list[_Item]:
        """Return the item at a position, or those in a range of positions."""
        if isinstance(index, int):
            position = index + len(self) if index < 0 else index
            if items := self[position : position + 1]:
                return items[0]
            raise IndexError(index)
        start, stop, step = index.indices(len(self))
        number, offset = 0, start
        while number < len(self._items) and offset >= len(self._items[number]):
            offset -= len(self._items[number])
            number += 1
        return list(islice(chain.from_iterable(self._items[number:]), offset, max(offset, offset + stop - start), step))

    def __iter__(self) -> Iterator[_Item]:
        for chunk in self._items:
            yield from chunk

    def add(self, item: _Item) -> None:
        """Add an item after all others of its key."""
        key = self._key(item)
        if not self._items:
            self._items, self._keys, self._last_keys = [[item]], [[key]], [key]
            return
        number = min(bisect_right(self._last_keys, key), len(self._items) - 1)
        keys, items = self._keys[number], self._items[number]
        index = bisect_right(keys, key)
        keys.insert(index, key)
        items.insert(index, item)
        self._last_keys[number] = keys[-1]
        if len(keys) > _MAX_CHUNK_ITEMS:
            half = len(keys) // 2
            self._keys[number : number + 1] = [keys[:half], keys[half:]]
            self._items[number : number + 1] = [items[:half], items[half:]]
            self._last_keys[number : number + 1] = [keys[half - 1], keys[-1]]

    def discard(self, item: _Item) -> None:
        """Remove an item, if it is here."""
        key = self._key(item)
        for number in range(bisect_left(self._last_keys, key), len(self._items)):
            keys, items = self._keys[number], self._items[number]
            for index in range(bisect_left(keys, key), len(keys)):
                if keys[index] != key:
                    return
                if items[index] is item:
                    self._remove_at(number, index)
                    return

    def _remove_at(self, number: int, index: int) -> None:
        keys, items = self._keys[number], self._items[number]
        del keys[index], items[index]
        if keys:
            self._last_keys[number] = keys[-1]
        else:
            del self._keys[number], self._items[number], self._last_keys[number]

    def after(self, key: Any) -> Iterator[_Item]:
        """Yield the items whose key is greater, in ascending order."""
        number = bisect_right(self._last_keys, key)
        if number < len(self._items):
            yield from self._items[number][bisect_right(self._keys[number], key) :]
            for chunk in self._items[number + 1 :]:
                yield from chunk

    def before(self, key: Any) -> Iterator[_Item]:
        """Yield the items whose key is smaller, in descending order."""
        number = bisect_left(self._last_keys, key)
        if number < len(self._items):
            yield from reversed(self._items[number][: bisect_left(self._keys[number], key)])
        for chunk in reversed(self._items[:number]):
            yield from reversed(chunk)
