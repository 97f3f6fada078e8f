"""Tests of the path view and its log: any sequence of operations against a model, case-sensitive or not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pytest_cloudbench.emulators.core import NodeStore
from pytest_cloudbench.emulators.nodes import File, Folder, StoreError
from pytest_cloudbench.emulators.paths import PathEntry, PathView
from tests.emulators.test_core_store import blob_of, store_of
from tests.limits import scale_examples

_PATHS = st.lists(st.sampled_from(["a", "A", "b"]), min_size=1, max_size=3).map(lambda names: "/" + "/".join(names))


class PathMachine(RuleBasedStateMachine):
    """A state machine for a path view. Its model maps folded paths to path and contents, or None for a folder."""

    fold: Callable[[str], str] = staticmethod(str)

    def __init__(self) -> None:
        super().__init__()
        self.view = PathView(store_of(self.fold))
        self.model: dict[str, tuple[str, bytes | None]] = {}
        self.followed: dict[str, bytes | None] = {}
        self.position = 0

    def _resolve_case(self, path: str) -> str | None:
        """Return a path with the case of its existing folders, or None if one of its ancestors is a file."""
        display_path, folded = "", ""
        *ancestors, name = path.split("/")[1:]
        for ancestor in ancestors:
            folded = f"{folded}/{self.fold(ancestor)}"
            entry = self.model.get(folded)
            if entry is not None and entry[1] is not None:
                return None
            display_path = entry[0] if entry is not None else f"{display_path}/{ancestor}"
        return f"{display_path}/{name}"

    def _make_ancestors(self, path: str) -> None:
        for end in [index for index, letter in enumerate(path) if letter == "/" and index]:
            self.model.setdefault(self.fold(path[:end]), (path[:end], None))

    def _keys_inside(self, path: str) -> list[str]:
        start = f"{self.fold(path)}/"
        return [key for key in self.model if f"{key}/".startswith(start)]

    @rule(path=_PATHS, data=st.binary(max_size=2))
    def put(self, path: str, data: bytes) -> None:
        display_path = self._resolve_case(path)
        if display_path is None:
            with pytest.raises(StoreError, match="file_ancestor"):
                self.view.target(path)
            return
        target, entry = self.view.target(path), self.model.get(self.fold(path))
        if entry is not None and entry[1] is None:
            with pytest.raises(StoreError, match="taken"):
                self.view.put(target, blob_of(data), 0.0)
            return
        expected = entry[0] if entry is not None else display_path
        assert self.view.put(target, blob_of(data), 0.0).path == expected
        self._make_ancestors(display_path)
        self.model[self.fold(path)] = (expected, data)

    @rule(path=_PATHS)
    def make_folder(self, path: str) -> None:
        display_path = self._resolve_case(path)
        if display_path is None:
            return
        if self.fold(path) in self.model:
            with pytest.raises(StoreError, match="taken"):
                self.view.add_folder(self.view.target(path), 0.0)
            return
        assert self.view.add_folder(self.view.target(path), 0.0).path == display_path
        self._make_ancestors(f"{display_path}/")

    @rule(path=_PATHS)
    def remove(self, path: str) -> None:
        node = self.view.find(path)
        assert (node is not None) == (self.fold(path) in self.model)
        if node is not None:
            assert self.view.remove(node, 0.0).path == self.model[self.fold(path)][0]
            for key in self._keys_inside(path):
                del self.model[key]

    @rule(source=_PATHS, path=_PATHS, keep=st.booleans())
    def relocate(self, source: str, path: str, keep: bool) -> None:
        node, display_path = self.view.find(source), self._resolve_case(path)
        if node is None or display_path is None:
            return
        target, action = self.view.target(path), self.view.copy if keep else self.view.move
        into_itself = self.fold(display_path).startswith(f"{self.fold(source)}/")
        renamed = not keep and self.fold(source) == self.fold(path)
        if into_itself or (self.fold(path) in self.model and not renamed):
            with pytest.raises(StoreError, match=r"into_itself|taken"):
                action(node, target, 0.0)
            return
        node_id, entry = node.id, action(node, target, 0.0)
        assert entry.path == display_path
        assert (entry.node.id == node_id) != keep
        former = {key: self.model[key] for key in self._keys_inside(source)}
        start = len(self.fold(source))
        for key in former if not keep else ():
            del self.model[key]
        self._make_ancestors(display_path)
        for key, (old, data) in former.items():
            self.model[self.fold(display_path) + key[start:]] = (display_path + old[start:], data)

    @invariant()
    def the_listing_is_the_model(self) -> None:
        entries = list(self.view.entries(self.view.store.root, 0.0, recursive=True))
        assert [(path, version.blob.data if version else None) for path, _, version, _ in entries] == [
            self.model[key] for key in sorted(self.model)
        ]
        for path, node, version, _ in entries:
            assert self.view.find(path) is node
            assert self.view.get(path, 0.0) == PathEntry(path, node, version)
            assert self.view.gone(path) is None

    @invariant()
    def one_who_follows_the_log_sees_the_listing(self) -> None:
        log = self.view.log
        end = log.end(0.0)
        for key in log.keys[self.position : end]:
            node = self.view.find(key)
            if not isinstance(node, Folder) or self.followed.get(key) is not None:
                self.followed = {
                    old: data for old, data in self.followed.items() if not f"{old}/".startswith(f"{key}/")
                }
            if node is not None:
                self.followed[key] = node.versions[-1].blob.data if isinstance(node, File) else None
        self.position = end
        assert self.followed == {key: data for key, (_, data) in self.model.items()}


class FoldedPathMachine(PathMachine):
    """The same state machine without distinction of case."""

    fold = staticmethod(str.lower)


TestPaths = PathMachine.TestCase
TestFoldedPaths = FoldedPathMachine.TestCase
TestPaths.settings = TestFoldedPaths.settings = settings(
    max_examples=scale_examples(60), stateful_step_count=30, deadline=None
)


def _view(fold: Callable[[str], str] = str) -> PathView:
    store: NodeStore = store_of(fold)
    return PathView(store)


@pytest.mark.parametrize(
    ("fold", "paths"), [(str.lower, ["/Docs/A.txt"]), (str, ["/Docs/A.txt", "/docs", "/docs/a.TXT"])]
)
def test_case(fold: Callable[[str], str], paths: list[str]) -> None:
    view = _view(fold)
    view.put(view.target("/Docs/A.txt"), blob_of(b"1"), 0.0)
    view.put(view.target("/docs/a.TXT"), blob_of(b"2"), 0.0)
    assert [entry.path for entry in view.entries(view.store.root, 0.0, recursive=True)] == ["/Docs", *paths]
    assert view.file("/Docs/A.txt", 0.0)[1].blob.data == (b"2" if fold is str.lower else b"1")


def test_path_remembers_versions_of_its_removed_file() -> None:
    view = _view()
    first = view.put(view.target("/a/x"), blob_of(b"1"), 0.0)
    view.put(view.target("/a/x"), blob_of(b"2"), 1.0)
    view.move(first.node, view.target("/b/x"), 2.0)
    removed = view.gone("/a/x")
    assert removed is not None
    assert [version.blob.data for version in removed.versions] == [b"1", b"2"]
    view.put(view.target("/b/x"), blob_of(b"3"), 3.0)
    assert [version.blob.data for version in removed.versions] == [b"1", b"2"]  # without the version after the move
    assert [(entry.path, entry.is_gone) for entry in view.entries(view.folder("/a", 3.0), 3.0, gone_too=True)] == [
        ("/a/x", True)
    ]
    again = view.put(view.target("/a/x"), blob_of(b"4"), 4.0).node
    assert isinstance(again, File)
    assert [version.blob.data for version in again.versions] == [b"1", b"2", b"4"]
    assert again.id != first.node.id
    assert view.gone("/a/x") is None


def test_reads_see_a_version_when_it_is_visible() -> None:
    view = _view()
    view.store.readiness_s = 5.0
    view.put(view.target("/x"), blob_of(b"1"), 0.0)
    with pytest.raises(StoreError, match="not_found"):
        view.get("/x", 4.9)
    assert list(view.entries(view.store.root, 4.9)) == []
    view.put(view.target("/x"), blob_of(b"2"), 4.0)
    assert view.file("/x", 5.0)[1].blob.data == b"1"
    assert view.file("/x", 9.0)[1].blob.data == b"2"


def test_write_over_quota_creates_no_folders() -> None:
    view = _view()
    view.store.quota_bytes = 1
    with pytest.raises(StoreError, match="insufficient_space"):
        view.put(view.target("/new/x"), blob_of(b"12"), 0.0)
    assert list(view.entries(view.store.root, 0.0)) == []
    view.put(view.target("/x"), blob_of(b"1"), 0.0)
    node = view.find("/x")
    assert node is not None
    with pytest.raises(StoreError, match="insufficient_space"):
        view.copy(node, view.target("/new/x"), 0.0)
    assert [entry.path for entry in view.entries(view.store.root, 0.0)] == ["/x"]


def test_a_listing_goes_on_after_a_path() -> None:
    view = _view(str.lower)
    for name in "CbA":
        view.put(view.target(f"/{name}"), blob_of(b""), 0.0)
    assert [entry.path for entry in view.entries(view.store.root, 0.0, after="/a")] == ["/b", "/C"]


def test_a_very_deep_tree() -> None:
    view = _view()
    deep = "/d" * 3000
    view.put(view.target(f"{deep}/x"), blob_of(b"1"), 0.0)
    top = view.find("/d")
    assert top is not None
    assert view.move(top, view.target("/e"), 0.0).path == "/e"
    assert view.find(f"/e{deep[2:]}/x") is not None
    assert view.find("/d") is None


def test_root_cannot_be_written_removed_or_moved() -> None:
    view = _view()
    with pytest.raises(StoreError, match="taken"):
        view.target("")
    with pytest.raises(StoreError, match="into_itself"):
        view.remove(view.store.root, 0.0)
    with pytest.raises(StoreError, match="into_itself"):
        view.move(view.store.root, view.target("/a"), 0.0)
    assert view.gone("") is None
    with pytest.raises(StoreError, match="not_file"):
        view.file("", 0.0)


def test_listings_may_see_a_version_later_than_other_reads() -> None:
    view = _view()
    view.store.readiness_s, view.store.list_delay_s = 1.0, 5.0
    view.put(view.target("/x"), blob_of(b"1"), 0.0)
    assert view.file("/x", 1.0)[1].blob.data == b"1"
    assert list(view.entries(view.store.root, 4.9)) == []
    assert view.log.end(4.9) == 0
    assert [entry.path for entry in view.entries(view.store.root, 5.0)] == ["/x"]
    assert view.log.end(5.0) == 1
    view.put(view.target("/x"), blob_of(b"22"), 10.0)
    assert view.file("/x", 11.0)[1].blob.data == b"22"
    (listed,) = view.entries(view.store.root, 14.9)
    assert listed.version is not None
    assert listed.version.blob.data == b"1"


def test_a_removed_file_may_linger_for_reads_and_not_for_writes() -> None:
    view = _view()
    first = view.put(view.target("/a/x"), blob_of(b"1"), 0.0)
    view.store.delete_delay_s = 5.0
    view.remove(first.node, 10.0)
    folder = view.folder("/a", 10.0)
    assert view.get("/a/x", 14.9).node is first.node
    assert [(entry.path, entry.is_gone) for entry in view.entries(folder, 14.9)] == [("/a/x", False)]
    with pytest.raises(StoreError, match="not_found"):
        view.get("/a/x", 15.0)
    assert list(view.entries(folder, 15.0)) == []
    assert [entry.is_gone for entry in view.entries(folder, 15.0, gone_too=True)] == [True]
    assert view.target("/a/x").node is None, "a write sees that it is gone"
    view.put(view.target("/a/x"), blob_of(b"2"), 12.0)
    assert view.file("/a/x", 12.0)[1].blob.data == b"2"


def test_removed_file_disappears_at_once_without_delay() -> None:
    view = _view()
    view.remove(view.put(view.target("/x"), blob_of(b"1"), 0.0).node, 1.0)
    with pytest.raises(StoreError, match="not_found"):
        view.get("/x", 1.0)
    assert list(view.entries(view.store.root, 1.0)) == []
