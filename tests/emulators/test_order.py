"""Tests that sequences stay sorted while they change, and that a page costs the same at any size."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from itertools import count, islice

from hypothesis import given
from hypothesis import strategies as st

from pytest_cloudbench.emulators import order
from pytest_cloudbench.emulators.blob import hash_blob
from pytest_cloudbench.emulators.core import NodeStore
from pytest_cloudbench.emulators.nodes import StoreError
from pytest_cloudbench.emulators.order import SortedItems
from pytest_cloudbench.emulators.paths import PathView

_BLOB = hash_blob(b"x", hashlib.sha1(usedforsecurity=False))
_NAMES = st.sampled_from(["a", "A-1", "a b", "b", "a.b", "c"])


class _Item:
    def __init__(self, key: int) -> None:
        self.key = key


def _key_of(item: _Item) -> int:
    return item.key


@given(
    st.lists(st.integers(0, 9), max_size=30),
    st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=60),
    st.integers(-1, 10),
    st.integers(1, 8),
)
def test_items_stay_sorted_in_order_of_arrival(
    start_keys: list[int], steps: list[tuple[bool, int]], bound: int, chunk_items: int
) -> None:
    former, order._MAX_CHUNK_ITEMS = order._MAX_CHUNK_ITEMS, 2 * chunk_items
    try:
        model = sorted(map(_Item, start_keys), key=_key_of)
        items = SortedItems(_key_of, model)
        for is_added, number in steps:
            if is_added:
                item = _Item(number)
                items.add(item)
                model = sorted([*model, item], key=_key_of)
            elif model:
                item = model.pop(number % len(model))
                items.discard(item)
    finally:
        order._MAX_CHUNK_ITEMS = former
    assert [*items] == model
    assert len(items) == len(model)
    assert items[2:5] == model[2:5]
    assert [*items.after(bound)] == [item for item in model if item.key > bound]
    assert [*items.before(bound)] == [item for item in reversed(model) if item.key < bound]
    items.discard(_Item(bound))
    assert len(items) == len(model)


def _new_view() -> tuple[PathView, list[str]]:
    numbers = count()
    folded: list[str] = []

    def fold(name: str) -> str:
        folded.append(name)
        return name.lower()

    return PathView(NodeStore(lambda: f"id{next(numbers)}", lambda: f"rev{next(numbers)}", fold)), folded


@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "add", "remove"]), st.lists(_NAMES, min_size=1, max_size=3)), max_size=30
    ),
    st.booleans(),
    st.data(),
)
def test_a_listing_continues_after_any_path(
    steps: list[tuple[str, list[str]]], gone_too: bool, data: st.DataObject
) -> None:
    view, _ = _new_view()
    for verb, names in steps:
        path = "/" + "/".join(names)
        node = view.find(path)
        with suppress(StoreError):  # below a file
            if verb == "remove" and node is not None:
                view.remove(node, 0.0)
            elif verb == "put" and node is None:
                view.put(view.target(path), _BLOB, 0.0)
            elif verb == "add" and node is None:
                view.add_folder(view.target(path), 0.0)
    everything = [entry.path for entry in view.entries(view.store.root, 0.0, recursive=True, gone_too=gone_too)]
    assert [path.lower() for path in everything] == sorted(path.lower() for path in everything)
    after = data.draw(st.sampled_from([*map(str.lower, everything), "/a", "/a/b", "/b/", "/a b/c", "", "/zz", "0"]))
    continued = view.entries(view.store.root, 0.0, recursive=True, gone_too=gone_too, after=after)
    assert [entry.path for entry in continued] == [path for path in everything if path.lower() > after]


def test_a_page_reads_no_more_than_its_own_entries() -> None:
    view, folded = _new_view()
    for number in range(3000):
        view.put(view.target(f"/{number:04}"), _BLOB, 0.0)
    assert len(list(view.entries(view.store.root, 0.0))) == 3000
    folded.clear()
    page = [entry.path for entry in islice(view.entries(view.store.root, 0.0, after="/1499"), 10)]
    assert page == [f"/{number}" for number in range(1500, 1510)]
    assert len(folded) < 30
