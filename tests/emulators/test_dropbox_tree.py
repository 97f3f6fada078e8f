"""Tests of Dropbox's tree by itself: invariants after any sequence of operations, and the blobs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_cloudbench.emulators.dropbox.answers import entry_metadata, format_entry
from pytest_cloudbench.emulators.dropbox.blocks import BLOCK_BYTES, BlockBlob, BlockWriter
from pytest_cloudbench.emulators.dropbox.tree import Tree
from pytest_cloudbench.emulators.nodes import File, Folder, StoreError
from pytest_cloudbench.emulators.paths import PathEntry
from tests.limits import scale_examples

_NAMES = st.sampled_from(["a", "B", "b", "c.txt"])
_PATHS = st.lists(_NAMES, min_size=1, max_size=3).map(lambda names: "/" + "/".join(names))
_STEPS = st.one_of(
    st.tuples(st.just("put"), _PATHS, st.binary(max_size=3)),
    st.tuples(st.just("mkdir"), _PATHS, st.none()),
    st.tuples(st.just("delete"), _PATHS, st.none()),
    st.tuples(st.just("move"), _PATHS, _PATHS),
    st.tuples(st.just("copy"), _PATHS, _PATHS),
    st.tuples(st.just("restore"), _PATHS, st.none()),
)


def _do(tree: Tree, step: tuple[str, str, Any], now_s: float) -> None:
    verb, path, other = step
    actions: dict[str, Callable[[], object]] = {
        "put": lambda: tree.put(path, BlockBlob.from_content(other), now_s, mode="overwrite"),
        "mkdir": lambda: tree.create_folder(path, now_s),
        "delete": lambda: tree.delete(path, now_s),
        "move": lambda: tree.move(path, other, now_s),
        "copy": lambda: tree.copy(path, other, now_s),
        "restore": lambda: [
            tree.restore(path, old.rev, now_s) for old in tree.list_revisions(path, now_s).versions[-1:]
        ],
    }
    with contextlib.suppress(StoreError):
        actions[verb]()


def _list_recursively(tree: Tree, now_s: float) -> dict[str, str]:
    """List a tree recursively, and return "folder" or the content hash by path."""
    root = tree.find_folder("", now_s)
    entries = tree.paths.entries(root, now_s, recursive=True)
    return {path.lower(): version.blob.hash_hex if version else "folder" for path, _, version, _ in entries}


@pytest.mark.slow
@settings(max_examples=scale_examples(200), deadline=None)
@given(st.lists(_STEPS, max_size=25), st.sampled_from([0.0, 2.5]))
def test_invariants_and_a_follower_of_the_log(steps: list[tuple[str, str, Any]], readiness_s: float) -> None:
    """At every moment, a client that follows the log has the same view as a listing."""
    tree = Tree()
    tree.store.readiness_s = readiness_s
    client_view: dict[str, str] = {}
    position = 0
    for now_s, step in enumerate([*steps, *[("delete", "/nothing", None)] * 4]):
        _do(tree, step, now_s)
        end = tree.paths.log.end(now_s)
        for path in tree.paths.log.keys[position:end]:
            current = tree.paths.find(path)
            if current is None or not isinstance(current, Folder):
                client_view = {old: kind for old, kind in client_view.items() if not f"{old}/".startswith(f"{path}/")}
            version = current.seen(now_s) if isinstance(current, File) else None
            if version is not None:
                client_view[path] = version.blob.hash_hex
            elif isinstance(current, Folder):
                if client_view.get(path, "folder") != "folder":
                    del client_view[path]
                client_view[path] = "folder"
        position = end
        assert client_view == _list_recursively(tree, now_s)
        root = tree.find_folder("", now_s)
        everything = list(tree.paths.entries(root, now_s + 99, recursive=True))
        assert tree.store.used_bytes == sum(version.blob.size_bytes for _, _, version, _ in everything if version)
        for path, node, _, _ in everything:
            assert (tree.paths.find(path.lower()), tree.paths.gone(path.lower())) == (node, None)
            assert tree.store.by_id(node.id) is node
            assert tree.paths.path(node) == path
            assert isinstance(tree.paths.find(path.rpartition("/")[0]), Folder)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=10), max_size=6))
def test_blob_is_the_same_however_it_arrives(pieces: list[bytes]) -> None:
    joined = b"".join(pieces)
    writer = BlockWriter()
    for piece in pieces:
        writer.feed(piece)
    for blob in (
        BlockBlob.from_content(joined),
        writer.finish(),
        BlockBlob.concatenate(BlockBlob.from_content(piece) for piece in pieces),
    ):
        assert blob.data == joined
        assert blob.hash_hex == hashlib.sha256(hashlib.sha256(joined).digest() if joined else b"").hexdigest()


@pytest.mark.parametrize("size", [BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 2 * BLOCK_BYTES])
def test_blocks(size: int) -> None:
    data = bytes(251) * (size // 251) + bytes(size % 251)
    blocks = [data[start : start + BLOCK_BYTES] for start in range(0, size, BLOCK_BYTES)]
    expected = hashlib.sha256(b"".join(hashlib.sha256(block).digest() for block in blocks)).hexdigest()
    writer = BlockWriter()
    for start in range(0, size, 1_000_003):
        writer.feed(data[start : start + 1_000_003])
    assert BlockBlob.from_content(data).hash_hex == writer.finish().hash_hex == expected
    assert BlockBlob.concatenate([BlockBlob.from_content(block) for block in blocks]).hash_hex == expected


def test_flipped_differs_in_one_bit() -> None:
    blob = BlockBlob.from_content(b"\x00" * 4)
    assert blob.flip_bit(9).data == b"\x00\x02\x00\x00"
    assert blob.flip_bit(9 + 32).data == blob.flip_bit(9).data
    assert BlockBlob.from_content(blob.flip_bit(9)).hash_hex != blob.hash_hex
    assert BlockBlob.from_content(b"").flip_bit(3).data == b""


def test_names_are_the_same_for_the_same_seed() -> None:
    ids = [Tree(seed=seed).create_folder("/a", 0).node.id for seed in (1, 1, 2)]
    assert ids[0] == ids[1] != ids[2]


def test_deleted_entries_give_way_to_new_ones() -> None:
    tree = Tree()
    old = tree.put("/A.txt", BlockBlob.from_content(b"1"), 0)
    tree.delete("/a.TXT", 1)
    assert tree.get("/a.txt", 1, include_deleted=True) == PathEntry("/A.txt", old.node, None, is_gone=True)
    new = tree.put("/a.txt", BlockBlob.from_content(b"2"), 2)
    assert new.node.id != old.node.id
    assert tree.get("/a.txt", 2, include_deleted=True) == new
    assert [entry.blob.data for entry in tree.list_revisions("/a.txt", 2).versions] == [b"2", b"1"]
    tree.put("/a.txt", BlockBlob.from_content(b"3"), 3, mode="overwrite")
    tree.move("/a.txt", "/b.txt", 4)
    assert [entry.blob.data for entry in tree.list_revisions("/b.txt", 4).versions] == [b"3", b"2", b"1"]


def test_the_id_of_a_deleted_file_leads_to_no_other_file_at_its_path() -> None:
    tree, content = Tree(), BlockBlob.from_content(b"1")
    old = tree.put("/a.txt", content, 0).node.id
    tree.delete("/a.txt", 1)
    assert tree.get(old, 1, include_deleted=True).is_gone
    new = tree.put("/a.txt", content, 2).node.id
    for include_deleted in (False, True):
        with pytest.raises(StoreError, match="not_found"):
            tree.get(old, 2, include_deleted=include_deleted)
    with pytest.raises(StoreError, match="not_found"):
        tree.delete(old, 2)
    tree.delete(new, 3)
    with pytest.raises(StoreError, match="not_found"):
        tree.get(old, 3, include_deleted=True)
    assert tree.get(new, 3, include_deleted=True).node.id == new


@pytest.mark.parametrize(
    ("existing", "free"),
    [("/a.txt", "/a (1).txt"), ("/a", "/a (1)"), ("/.hidden", "/.hidden (1)"), ("/a.tar.gz", "/a.tar (1).gz")],
)
def test_autorename(existing: str, free: str) -> None:
    tree = Tree()
    tree.put(existing, BlockBlob.from_content(b"1"), 0)
    assert tree.put(existing, BlockBlob.from_content(b"2"), 0, autorename=True).path == free
    assert tree.put(existing, BlockBlob.from_content(b"3"), 0, autorename=True).path == free.replace("(1)", "(2)")


def test_names_are_stored_composed() -> None:
    """rclone's tests expect this of the service. Other clients report that it finds no name that is not composed."""
    tree = Tree()
    assert tree.put("/e\u0301/o\u0308", BlockBlob.from_content(b"1"), 0.0).path == "/\u00e9/\u00f6"
    assert tree.get("/\u00e9/\u00f6", 0.0).path == "/\u00e9/\u00f6"
    with pytest.raises(StoreError, match="not_found"):
        tree.get("/e\u0301/o\u0308", 0.0)
    with pytest.raises(StoreError, match="conflict/file"):
        tree.put("/e\u0301/o\u0308", BlockBlob.from_content(b"2"), 0.0)
    assert tree.move("/\u00e9/\u00f6", "/u\u0308", 0.0).path == "/\u00fc"


def test_deleted_content_stays_until_it_is_deleted_permanently() -> None:
    tree, pieces = Tree(), [memoryview(b"older"), memoryview(b"newer")]
    contents = [weakref.ref(piece) for piece in pieces]
    for piece in pieces:
        tree.put("/a", BlockBlob([piece], b""), 0.0)
        tree.delete("/a", 0.0)
    del piece, pieces
    assert [content() is None for content in contents] == [False, False]
    tree.purge("/a", 1.0)
    assert [content() is None for content in contents] == [True, True]


@settings(max_examples=scale_examples(200), deadline=None)
@given(
    name=st.text(st.characters(exclude_characters="/\\\0"), min_size=1).filter(lambda name: name.strip(".") == name),
    content=st.binary(max_size=3),
)
def test_entries_of_a_listing_are_formatted_like_any_other_entry(name: str, content: bytes) -> None:
    tree = Tree()
    with contextlib.suppress(StoreError):  # the name is not allowed
        tree.put(f"/Ä/{name}", BlockBlob.from_content(content), 5.5, client_s=1_600_000_000.0)
    tree.put("/Ä/gone", BlockBlob.from_content(b""), 1.0)
    tree.delete("/Ä/gone", 2.0)
    entries = [*tree.paths.entries(tree.store.root, 9.0, recursive=True, gone_too=True)]
    assert len(entries) > 1
    assert [format_entry(entry) for entry in entries] == [json.dumps(entry_metadata(entry)) for entry in entries]
