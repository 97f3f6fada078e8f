"""Tests of flat keys: any sequence of operations against a dict, and listings with prefix, delimiter and pages."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pytest_cloudbench.emulators.keys import KeyPage, KeyView
from pytest_cloudbench.emulators.nodes import StoreError
from tests.emulators.test_core_store import blob_of, store_of
from tests.limits import scale_examples

_KEYS = st.text("ab/", min_size=1, max_size=5)


def _view(*keys: str) -> KeyView:
    store = store_of()
    view = KeyView(store, store.add_folder(store.root, "bucket", 0.0))
    for key in keys:
        view.put(key, blob_of(key.encode()), 0.0)
    return view


def _list_expected(keys: list[str], prefix: str, delimiter: str) -> list[str]:
    """Return the expected names of a listing: keys, and prefixes up to the delimiter."""
    names = set()
    for key in keys:
        if key.startswith(prefix):
            segment, mark, _ = key[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            names.add(f"{prefix}{segment}{mark}" if mark else key)
    return sorted(names)


def _names(page: KeyPage) -> list[str]:
    return sorted([key for key, _ in page.keys] + page.prefixes)


class KeyMachine(RuleBasedStateMachine):
    """A state machine for a key view. Its model maps keys to contents."""

    def __init__(self) -> None:
        super().__init__()
        self.view = _view()
        self.model: dict[str, bytes] = {}

    @rule(key=_KEYS, data=st.binary(max_size=2))
    def put(self, key: str, data: bytes) -> None:
        self.view.put(key, blob_of(data), 0.0)
        self.model[key] = data

    @rule(key=_KEYS)
    def remove(self, key: str) -> None:
        assert self.view.remove(key, 0.0) == (self.model.pop(key, None) is not None)

    @rule(key=_KEYS)
    def get(self, key: str) -> None:
        if key in self.model:
            assert self.view.get(key, 0.0).blob.data == self.model[key]
        else:
            with pytest.raises(StoreError, match="not_found"):
                self.view.get(key, 0.0)

    @rule(prefix=st.text("ab/", max_size=2), delimiter=st.sampled_from(["", "/", "b/"]), limit=st.integers(1, 4))
    def list(self, prefix: str, delimiter: str, limit: int) -> None:
        all_names: list[str] = []
        after = ""
        while True:
            page = self.view.page(0.0, prefix=prefix, delimiter=delimiter, after=after, limit=limit)
            names = _names(page)
            assert len(names) <= limit
            all_names += names
            if not page.after:
                break
            assert len(names) == limit
            assert page.after == names[-1]
            after = page.after
        assert all_names == _list_expected(sorted(self.model), prefix, delimiter)

    @invariant()
    def everything_is_listed(self) -> None:
        page = self.view.page(0.0)
        assert [(key, version.blob.data) for key, version in page.keys] == sorted(self.model.items())
        assert self.view.store.used_bytes == sum(map(len, self.model.values()))


TestKeys = KeyMachine.TestCase
TestKeys.settings = settings(max_examples=scale_examples(80), stateful_step_count=30, deadline=None)


def test_prefixes_and_pages() -> None:
    view = _view("photos/2025/a", "photos/2025/b", "photos/2026/a", "photos/z", "readme", "Readme", "photos")
    page = view.page(0.0, delimiter="/")
    assert (_names(page), page.after) == (["Readme", "photos", "photos/", "readme"], "")
    first = view.page(0.0, prefix="photos/", delimiter="/", limit=1)
    assert (first.keys, first.prefixes, first.after) == ([], ["photos/2025/"], "photos/2025/")
    second = view.page(0.0, prefix="photos/", delimiter="/", limit=2, after=first.after)
    assert (_names(second), second.after) == (["photos/2026/", "photos/z"], "")
    assert _names(view.page(0.0, after="photos/2025/a", limit=2)) == ["photos/2025/b", "photos/2026/a"]
    assert view.page(0.0, prefix="video") == ([], [], "")


def test_keys_are_exact() -> None:
    view = _view("a//b", "/a", "a/", "../a", "A/")
    assert [key for key, _ in view.page(0.0).keys] == ["../a", "/a", "A/", "a/", "a//b"]
    assert view.get("a/", 0.0).blob.data == b"a/"
    assert view.find("a/b") is None


def test_keys_at_the_end_of_unicode() -> None:
    last = chr(0x10FFFF)
    view = _view("a", f"a{last}", f"a{last}b", "b")
    assert _names(view.page(0.0, delimiter=last)) == ["a", f"a{last}", "b"]
    assert view.page(0.0, delimiter=last, limit=2, after=f"a{last}").keys[0][0] == "b"


def test_reads_see_a_key_when_it_is_visible() -> None:
    view = _view()
    view.store.readiness_s = 5.0
    view.put("d/x", blob_of(b"1"), 0.0)
    assert view.page(4.9, delimiter="/") == ([], [], "")
    assert view.page(5.0, delimiter="/").prefixes == ["d/"]
    view.put("d/x", blob_of(b"2"), 4.0)
    assert view.get("d/x", 8.9).blob.data == b"1"
    assert view.get("d/x", 9.0).blob.data == b"2"


def test_two_buckets_share_an_account() -> None:
    view = _view("x")
    other = KeyView(view.store, view.store.add_folder(view.store.root, "other", 0.0))
    view.store.quota_bytes = 1
    with pytest.raises(StoreError, match="insufficient_space"):
        other.put("y", blob_of(b"1"), 0.0)
    assert other.page(0.0).keys == []
    again = KeyView(view.store, view.bucket)
    assert [key for key, _ in again.page(0.0).keys] == ["x"]


def test_a_listing_may_lag_behind() -> None:
    view = _view()
    view.store.list_delay_s = 5.0
    view.put("x", blob_of(b"1"), 0.0)
    assert view.get("x", 0.0).blob.data == b"1"
    assert _names(view.page(4.9)) == []
    assert _names(view.page(5.0)) == ["x"]


def test_a_removed_key_may_linger() -> None:
    view = _view("x", "y")
    view.store.delete_delay_s = 5.0
    assert view.remove("x", 10.0)
    assert not view.remove("x", 10.0), "a write sees that it is gone"
    assert view.get("x", 14.9).blob.size_bytes > 0
    assert _names(view.page(14.9)) == ["x", "y"]
    assert _names(view.page(15.0)) == ["y"]
    with pytest.raises(StoreError, match="not_found"):
        view.get("x", 15.0)
    view.put("x", blob_of(b"2"), 16.0)
    assert _names(view.page(16.0)) == ["x", "y"]
    assert view.remove("x", 20.0)
    view.put("x", blob_of(b"3"), 21.0)
    assert _names(view.page(21.0)) == ["x", "y"], "each key once"
