"""Tests of the store by id and parent: any sequence of operations against a model, and features for APIs with ids."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from pytest_cloudbench.emulators.blob import Blob, BlobWriter, BytePieces, hash_blob
from pytest_cloudbench.emulators.core import NodeStore, Tokens
from pytest_cloudbench.emulators.nodes import ChangeLog, File, Folder, Node, StoreError
from tests.limits import scale_examples

_NAMES = st.sampled_from(["a", "A", "b/c"])


def store_of(fold: Callable[[str], str] = str) -> NodeStore:
    """Return a store whose ids and versions are 1, 2, 3 and so on."""
    ids, revs = count(1), count(1)
    return NodeStore(lambda: str(next(ids)), lambda: str(next(revs)), fold)


def blob_of(data: bytes) -> Blob:
    """Return a blob with an MD5."""
    return hash_blob(data, hashlib.md5(usedforsecurity=False))


class StoreMachine(RuleBasedStateMachine):
    """A state machine for a store. Its model maps ids to parent id, name and contents, or None for a folder."""

    nodes: Bundle[str] = Bundle("nodes")

    def __init__(self) -> None:
        super().__init__()
        self.store = store_of()
        self.store.readiness_s = 2.0
        self.now_s = 0.0
        self.root = self.store.root.id
        self.model: dict[str, tuple[str, str, list[tuple[float, bytes]] | None]] = {}

    def _folder(self, node_id: str) -> Folder | None:
        if node_id == self.root:
            return self.store.root
        entry = self.model.get(node_id)
        node = self.store.by_id(node_id)
        return node if entry is not None and entry[2] is None and isinstance(node, Folder) else None

    def _descendants(self, node_id: str) -> list[str]:
        direct = [child for child, (parent, _, _) in self.model.items() if parent == node_id]
        return [*direct, *(deeper for child in direct for deeper in self._descendants(child))]

    @rule(target=nodes)
    def the_root(self) -> str:
        return self.root

    @rule(target=nodes, parent=nodes, name=_NAMES, data=st.none() | st.binary(max_size=2))
    def add(self, parent: str, name: str, data: bytes | None) -> str:
        folder = self._folder(parent)
        if folder is None:
            return self.root
        if data is None:
            node: Node = self.store.add_folder(folder, name, self.now_s)
        else:
            node = self.store.add_file(folder, name, blob_of(data), self.now_s)
        assert node.id not in self.model
        self.model[node.id] = (parent, name, None if data is None else [(self.now_s, data)])
        return node.id

    @rule(node=nodes, data=st.binary(max_size=2))
    def overwrite(self, node: str, data: bytes) -> None:
        contents = self.model.get(node, ("", "", None))[2]
        if contents is not None:
            file = self.store.get(node)
            assert isinstance(file, File)
            self.store.add_version(file, blob_of(data), self.now_s)
            contents.append((self.now_s, data))

    @rule(node=nodes, parent=nodes, name=_NAMES)
    def move(self, node: str, parent: str, name: str) -> None:
        folder = self._folder(parent)
        if folder is None or node not in self.model:
            return
        if parent == node or parent in self._descendants(node):
            with pytest.raises(StoreError, match="into_itself"):
                self.store.move(self.store.get(node), folder, name, self.now_s)
            return
        self.store.move(self.store.get(node), folder, name, self.now_s)
        self.model[node] = (parent, name, self.model[node][2])

    @rule(node=nodes, parent=nodes, name=_NAMES)
    def copy(self, node: str, parent: str, name: str) -> None:
        folder = self._folder(parent)
        if folder is None or node not in self.model or parent == node or parent in self._descendants(node):
            return
        twin = self.store.copy(self.store.get(node), folder, name, self.now_s)
        self._model_copy(node, twin, parent, name)

    def _model_copy(self, node: str, twin: Node, parent: str, name: str) -> None:
        contents = self.model[node][2]
        self.model[twin.id] = (parent, name, None if contents is None else [(self.now_s, contents[-1][1])])
        if isinstance(twin, Folder):
            originals = [child for child, (parent_id, _, _) in self.model.items() if parent_id == node]
            for original, copied in zip(originals, twin.nodes(), strict=True):
                self._model_copy(original, copied, twin.id, self.model[original][1])

    @rule(node=nodes)
    def remove(self, node: str) -> None:
        if node not in self.model:
            return
        self.store.remove(self.store.get(node), self.now_s)
        for removed_id in [node, *self._descendants(node)]:
            assert self.store.by_id(removed_id) is not None
            with pytest.raises(StoreError, match="not_found"):
                self.store.get(removed_id)
            del self.model[removed_id]

    @rule()
    def wait(self) -> None:
        self.now_s += 1.0

    @invariant()
    def the_same_nodes_everywhere(self) -> None:
        stored_nodes = {node.id: node for node in self.store.root.below()}
        assert stored_nodes.keys() == self.model.keys()
        for node_id, (parent, name, contents) in self.model.items():
            node = stored_nodes[node_id]
            parent_node = node.parent
            assert parent_node is not None
            assert (parent_node.id, node.name, self.store.get(node_id)) == (parent, name, node)
            assert node in self.store.named(parent_node, name)
            assert isinstance(node, File) == (contents is not None)
            if isinstance(node, File) and contents is not None:
                visible = [data for at_s, data in contents if at_s + 2.0 <= self.now_s]
                version = node.seen(self.now_s)
                assert (version.blob.data if version else None) == (visible[-1] if visible else None)
                assert [version.blob.data for version in node.versions] == [data for _, data in contents]
                assert node.newest is node.versions[-1]

    @invariant()
    def space_is_that_of_the_newest_versions(self) -> None:
        newest = [contents[-1][1] for _, _, contents in self.model.values() if contents is not None]
        assert self.store.used_bytes == sum(map(len, newest))


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=scale_examples(60), stateful_step_count=30, deadline=None)


def test_equal_names_under_one_parent_and_moving_one_by_its_id() -> None:
    store = store_of()
    first = store.add_file(store.root, "x", blob_of(b"1"), 0.0)
    second = store.add_file(store.root, "x", blob_of(b"2"), 0.0)
    shelf = store.add_folder(store.root, "x", 0.0)
    assert [node.id for node in store.named(store.root, "x")] == [first.id, second.id, shelf.id]
    store.move(store.get(second.id), shelf, "y", 1.0)
    assert [node.id for node in store.root.nodes()] == [first.id, shelf.id]
    assert [node.id for node in shelf.nodes()] == [second.id]
    assert (second.name, second.parent, second.versions[-1].blob.data) == ("y", shelf, b"2")
    store.remove(first, 2.0)
    assert (first.deleted_s, store.named(store.root, "x")) == (2.0, [shelf])


def test_a_removed_folder_holds_nothing() -> None:
    store = store_of()
    folder = store.add_folder(store.root, "f", 0.0)
    file = store.add_file(folder, "x", blob_of(b"1"), 0.0)
    store.remove(folder, 1.0)
    assert (list(folder.below()), folder.deleted_s, file.deleted_s, store.used_bytes) == ([], 1.0, 1.0, 0)


def test_names_fold_as_the_store_says() -> None:
    exact, alike = store_of(), store_of(str.lower)
    for store in (exact, alike):
        store.add_folder(store.root, "Straße", 0.0)
    assert [len(store.named(store.root, "STRASSE")) for store in (exact, alike)] == [0, 0]
    assert [len(store.named(store.root, "straße")) for store in (exact, alike)] == [0, 1]


def test_write_over_quota_changes_nothing() -> None:
    store = store_of()
    store.quota_bytes = 5
    file = store.add_file(store.root, "a", blob_of(b"123"), 0.0)
    for write in (
        lambda: store.add_file(store.root, "b", blob_of(b"123"), 0.0),
        lambda: store.add_version(file, blob_of(b"123456"), 0.0),
        lambda: store.copy(file, store.root, "c", 0.0),
    ):
        with pytest.raises(StoreError, match="insufficient_space"):
            write()
    assert (store.used_bytes, [node.name for node in store.root.nodes()]) == (3, ["a"])
    store.add_version(file, blob_of(b"12345"), 0.0)
    assert store.used_bytes == 5


def test_change_log_shows_entries_when_reads_may_see_them() -> None:
    store = store_of()
    woken: list[int] = []
    store.log.listeners.append(lambda: woken.append(len(store.log.keys)))
    store.readiness_s = 3.0
    slow = store.add_file(store.root, "slow", blob_of(b""), 0.0)
    folder = store.add_folder(store.root, "at once", 1.0)
    assert (store.log.end(2.0), store.log.keys, store.log.next_change_s()) == (1, [folder.id], 3.0)
    assert (store.log.end(3.0), store.log.keys) == (2, [folder.id, slow.id])
    assert store.log.next_change_s() == float("inf")
    assert woken == [0, 1]


def test_changes_that_appear_together_keep_their_order() -> None:
    log: ChangeLog[str] = ChangeLog()
    for key in "zyx":
        log.add(key, 0.0, 1.0)
    assert (log.end(1.0), log.keys) == (3, ["z", "y", "x"])


def test_a_read_that_leads_does_not_show_its_changes_to_others() -> None:
    log: ChangeLog[str] = ChangeLog()
    log.add("a", 0.0, 5.0)
    assert (log.end(6.0), log.end(1.0), log.end(5.0)) == (1, 0, 1)
    assert (log.next_change_s(1.0), log.next_change_s(5.0)) == (5.0, float("inf"))
    log.add("b", 2.0)
    assert (log.end(2.0), log.end(5.0), log.keys) == (0, 2, ["a", "b"]), "nobody passes over a change before it"


def test_the_root_stays() -> None:
    store = store_of()
    with pytest.raises(StoreError, match="into_itself"):
        store.remove(store.root, 0.0)


def test_a_writer_hashes_as_it_is_told() -> None:
    writer = BlobWriter(hashlib.sha1(usedforsecurity=False))
    for piece in (b"ab", b"", b"c"):
        writer.feed(piece)
    blob = writer.finish()
    assert (blob.data, blob.size_bytes) == (b"abc", 3)
    assert blob.hash_hex == "a9993e364706816aba3e25717850c26c9cd0d89d"  # FIPS 180-4's example


@given(st.lists(st.binary(max_size=9), max_size=5), st.integers(0, 50), st.integers(0, 50), st.integers(0, 999))
def test_content_in_pieces_is_like_bytes(pieces: list[bytes], start: int, end: int, bit: int) -> None:
    content, joined = BytePieces(pieces), b"".join(pieces)
    assert (bytes(content), len(content)) == (joined, len(joined))
    assert bytes(content.part(start, end)) == joined[start:end]
    assert bytes(BytePieces.join([content, content.part(start, end)])) == joined + joined[start:end]
    flipped = bytes(content.flip_bit(bit))
    assert sum((a ^ b).bit_count() for a, b in zip(joined, flipped, strict=True)) == (1 if joined else 0)


def test_tokens_are_the_same_for_the_same_seed() -> None:
    first, again, other = ([tokens.next("id:", 22) for _ in range(2)] for tokens in map(Tokens, (1, 1, 2)))
    assert first == again != other
    assert all(len(token) == 25 and token.startswith("id:") for token in first)
    lengths = [Tokens(1).next("", length) for length in range(70)]
    assert [len(token) for token in lengths] == list(range(70))
    assert set("".join(lengths)) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


def test_removed_file_fades_from_reads_and_listings() -> None:
    store = store_of()
    store.delete_delay_s = 5.0
    folder = store.add_folder(store.root, "x", 0.0)
    first, second = (store.add_file(folder, name, blob_of(b"1"), 0.0) for name in "ab")
    before = store.log.end(1.0)
    store.remove(first, 1.0)
    assert first.deleted_s == 1.0, "writes see it at once"
    assert (store.fading_until_s(first), store.fading_until_s(second)) == (6.0, 0.0)
    assert [*store.fading(folder, 5.9)] == [*store.fading(None, 5.9)] == [first]
    assert [*store.fading(store.root, 5.9)] == [*store.fading(folder, 6.0)] == []
    assert (store.log.end(5.9), store.log.end(6.0)) == (before, before + 1)
    store.add_file(folder, "a", blob_of(b"2"), 2.0)
    assert [*store.fading(folder, 2.0)] == [], "its name is another file's"


def test_trashed_file_fades_and_restored_file_does_not() -> None:
    store = store_of()
    store.delete_delay_s = 5.0
    trash, folder, other = (store.add_folder(store.root, name, 0.0) for name in ("trash", "x", "y"))
    file = store.add_file(folder, "a", blob_of(b"1"), 0.0)
    store.move(file, trash, "a", 1.0, fades=True)
    assert ([*store.fading(folder, 2.0)], [*store.fading(trash, 2.0)]) == ([file], [])
    store.move(file, other, "a", 2.0)
    assert ([*store.fading(folder, 2.0)], store.fading_until_s(file)) == ([], 0.0)
    store.move(other, trash, "y", 3.0, fades=True)
    assert store.fading_until_s(file) == 8.0, "below a folder, too"
    store.remove(trash, 20.0, fades=False)
    assert store.fading_until_s(file) == 8.0, "it was no longer visible"


def test_without_a_delay_nothing_fades() -> None:
    store = store_of()
    file = store.add_file(store.root, "a", blob_of(b"1"), 0.0)
    store.remove(file, 1.0)
    assert ([*store.fading(store.root, 1.0)], store.fading_until_s(file)) == ([], 0.0)


def test_fading_ends_when_the_name_is_used_again() -> None:
    store = store_of(str.lower)
    store.delete_delay_s = 5.0
    first = store.add_file(store.root, "a", blob_of(b"1"), 0.0)
    store.remove(first, 1.0)
    second = store.add_file(store.root, "A", blob_of(b"2"), 2.0)
    store.remove(second, 3.0)
    assert [*store.fading(store.root, 4.0)] == [second]
    assert (store.fading_until_s(first), store.fading_until_s(second)) == (0.0, 8.0)


def add_watched_file(store: NodeStore, name: str) -> tuple[File, weakref.ref[memoryview]]:
    """Add a file, and return it with a reference that tells whether its content is still in memory."""
    piece = memoryview(b"content of " + name.encode())
    return store.add_file(store.root, name, Blob([piece], f"hash of {name}"), 0.0), weakref.ref(piece)


def test_removal_releases_content_but_keeps_hash_and_size() -> None:
    store = store_of()
    file, content = add_watched_file(store, "a")
    store.add_version(file, blob_of(b"newer"), 0.5)
    download = file.versions[0].blob
    store.remove(file, 1.0)
    assert content() is not None, "a download that has begun goes on"
    assert download.data == b"content of a"
    del download
    assert content() is None
    assert [version.blob.size_bytes for version in file.versions] == [len(b"content of a"), len(b"newer")]
    assert [version.rev for version in file.versions] == ["1", "2"]
    assert file.versions[0].blob.hash_hex == "hash of a"


def test_removed_folder_releases_the_content_below_it_but_copies_keep_theirs() -> None:
    store = store_of()
    folder = store.add_folder(store.root, "f", 0.0)
    (moved, first), (copied, second) = (add_watched_file(store, name) for name in "ab")
    for file in (moved, copied):
        store.move(file, folder, file.name, 0.0)
    twin = store.copy(copied, store.root, "twin", 0.0)
    store.remove(folder, 1.0)
    assert (first() is None, second() is None) == (True, False)
    assert isinstance(twin, File)
    assert twin.versions[-1].blob.data == b"content of b"


def test_content_is_released_once_its_file_has_faded() -> None:
    store = store_of()
    store.delete_delay_s = 5.0
    (faded, first), (reused, second), (later, third) = (add_watched_file(store, name) for name in "abc")
    store.remove(faded, 1.0)
    store.remove(reused, 2.0)
    assert (first() is None, second() is None) == (False, False)
    store.add_file(store.root, "b", blob_of(b""), 3.0)
    assert (first() is None, second() is None) == (False, True), "its name is used again"
    store.remove(later, 6.0)
    assert (first() is None, third() is None) == (True, False)


def test_trashed_content_is_released_with_its_final_removal() -> None:
    store = store_of()
    store.delete_delay_s = 5.0
    trash = store.add_folder(store.root, "trash", 0.0)
    (early, first), (late, second) = (add_watched_file(store, name) for name in "ab")
    for file in (early, late):
        store.move(file, trash, file.name, 1.0, fades=True)
    store.remove(early, 2.0, fades=False)
    assert first() is not None, "reads still see it"
    store.remove(late, 20.0, fades=False)
    assert second() is None


def test_store_that_can_restore_keeps_content_until_it_is_released() -> None:
    store = store_of()
    store.keeps_removed = True
    file, content = add_watched_file(store, "a")
    store.release(file)
    assert content() is not None, "it was not removed"
    store.remove(file, 1.0)
    assert content() is not None
    assert [blob.data for _, blob in store.kept()] == [b"content of a"]
    store.release(file)
    assert (content(), [*store.kept()]) == (None, [])
