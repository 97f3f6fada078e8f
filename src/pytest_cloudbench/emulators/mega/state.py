"""What the emulated account holds: nodes with what only clients can read, links, shares, uploads and the log of events.

What may live here: the state, and how a node looks in answers. The store's own names mean nothing here, because MEGA's
names are encrypted: the store gets a unique name for each node.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_cloudbench.emulators.blob import Blob, BytePieces
from pytest_cloudbench.emulators.core import NodeStore, Tokens
from pytest_cloudbench.emulators.mega.errors import Code, Failure
from pytest_cloudbench.emulators.mega.login import decode, encode
from pytest_cloudbench.emulators.nodes import ChangeLog, File, Folder, Node

_STARTS = itertools.count()
_FIRST_CHUNK_BYTES, _LARGEST_CHUNK_BYTES = 128 * 1024, 1024 * 1024


@dataclass(slots=True)
class Secret:
    """What a node says in answers besides its place: attributes and key, both encrypted by the client."""

    type: int
    attributes: str
    key: str
    made_s: float
    file_attributes: str = ""
    share_keys: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class PendingContent:
    """Content on its way: pieces by offset. ``is_raw``: the client takes the handle as bytes."""

    size_bytes: int
    is_raw: bool
    pieces: dict[int, BytePieces] = field(default_factory=dict)

    def add(self, offset: int, data: BytePieces) -> None:
        """Take one piece, which begins and ends where a chunk does. Raises Failure."""
        end = offset + len(data)
        if end > self.size_bytes or not _is_boundary(offset):
            raise Failure(Code.ERANGE)
        if end != self.size_bytes and not (data and _is_boundary(end)):
            raise Failure(Code.ERANGE)
        self.pieces[offset] = data

    def content(self) -> BytePieces | None:
        """Returns all of it; None as long as a piece is missing."""
        place, pieces = 0, []
        if self.size_bytes == 0 and not self.pieces:
            return None
        while place < self.size_bytes:
            piece = self.pieces.get(place)
            if not piece:
                return None
            pieces.append(piece)
            place += len(piece)
        return BytePieces.join(pieces)


def _is_boundary(offset: int) -> bool:
    """Returns whether a chunk begins there: they grow by 128 KiB up to 1 MiB."""
    place, size = 0, _FIRST_CHUNK_BYTES
    while place < offset and size < _LARGEST_CHUNK_BYTES:
        place, size = place + size, size + _FIRST_CHUNK_BYTES
    return place == offset or (place < offset and (offset - place) % _LARGEST_CHUNK_BYTES == 0)


class AccountState:
    """One account."""

    def __init__(self, tokens: Tokens, user: str) -> None:
        self.tokens, self.user = tokens, user
        self._names = itertools.count()
        self.store = NodeStore(lambda: tokens.next("", 8), lambda: tokens.next("", 32))
        self.root, self.inbox, self.trash = (self._top(number) for number in (2, 3, 4))
        self.uploads: dict[str, PendingContent] = {}
        self.finished: dict[str, Blob] = {}
        self.downloads: dict[str, str] = {}
        self.links: dict[str, str] = {}
        self.shares: dict[str, dict[str, str]] = {}
        self.log: ChangeLog[dict[str, Any]] = ChangeLog()
        self._start = next(_STARTS)

    def _top(self, number: int) -> Folder:
        folder = self.store.add_folder(self.store.root, self.new_name(), 0.0)
        folder.extra = Secret(number, "", "", 0.0)
        return folder

    def new_name(self) -> str:
        """Returns a name that no node has, for the store."""
        return str(next(self._names))

    # ---------------------------------------------------------------- nodes

    def node(self, handle: object, now_s: float) -> Node:
        """Returns a node that reads see. Raises Failure."""
        found = self.store.by_id(handle) if isinstance(handle, str) else None
        if found is None or found.deleted_s is not None or found is self.store.root or not is_seen(found, now_s):
            raise Failure(Code.ENOENT)
        return found

    def is_gone(self, node: Node, now_s: float) -> bool:
        """Returns whether reads see that a node was removed."""
        return node.deleted_s is not None and self.store.fading_until_s(node) <= now_s

    def read(self, handle: object, now_s: float) -> Node:
        """Like ``node``, for reads: they may still see a removed file. Raises Failure."""
        found = self.store.by_id(handle) if isinstance(handle, str) else None
        is_fading = isinstance(found, File) and now_s < self.store.fading_until_s(found) and is_seen(found, now_s)
        return found if found is not None and is_fading else self.node(handle, now_s)

    def own_node(self, handle: object, now_s: float) -> Node:
        """Returns a file or folder that can be changed. Raises Failure."""
        found = self.node(handle, now_s)
        if found.parent is self.store.root:
            raise Failure(Code.EACCESS)
        return found

    def folder(self, handle: object, now_s: float) -> Folder:
        """Returns a folder that something is to be put into. Raises Failure."""
        found = self.node(handle, now_s)
        if not isinstance(found, Folder):
            raise Failure(Code.EARGS)
        return found

    def linked(self, link: object, now_s: float) -> Node:
        """Returns the node of a public link. Raises Failure."""
        handle = self.links.get(link) if isinstance(link, str) else None
        return self.node(handle, now_s)

    def below(self, top: Node, now_s: float) -> Iterator[Node]:
        """Yields a node and all below it that reads see, parents first."""
        yield top
        if isinstance(top, Folder):
            yield from (node for node in top.below() if is_seen(node, now_s))

    def plain(self, node: Node, share: str = "") -> dict[str, Any]:
        """Returns a node as answers show it; in a public folder, as holders of its link see it."""
        secret = secret_of(node)
        parent = "" if node.parent is None or node.parent is self.store.root else node.parent.id
        shown: dict[str, Any] = {
            "h": node.id, "p": parent, "u": self.user, "t": secret.type, "a": secret.attributes,
        }  # fmt: skip
        keys = [f"{self.user}:{secret.key}"] if secret.key and not share else []
        keys += [f"{handle}:{key}" for handle, key in secret.share_keys.items() if share in ("", handle)]
        shown["k"] = "/".join(keys)
        if isinstance(node, File):
            shown["s"] = node.versions[-1].blob.size_bytes
            if secret.file_attributes:
                shown["fa"] = secret.file_attributes
        shown["ts"] = int(secret.made_s)
        return shown

    # ---------------------------------------------------------------- events

    def tell(self, now_s: float, origin: object, event: dict[str, Any], visible_s: float = 0.0) -> None:
        """Log an event for all clients, from when reads see it; the client that caused it knows it by ``origin``."""
        self.log.add(event | ({"i": origin} if isinstance(origin, str) else {}), now_s, visible_s)

    def place(self, now_s: float) -> str:
        """Returns the present end of the log, as clients know it."""
        return self._place(self.log.end(now_s))

    def _place(self, count: int) -> str:
        return encode(struct.pack(">IQ", self._start, count)[1:])

    def since(self, place: str, now_s: float) -> tuple[Sequence[dict[str, Any]], str]:
        """Returns the events after a place, and the new place. Raises Failure if the client must start again."""
        try:
            start, count = struct.unpack(">IQ", b"\0" + decode(place))
        except (Failure, struct.error):
            raise Failure(Code.EARGS) from None
        end = self.log.end(now_s)
        if start != self._start & 0xFFFFFF or count > end:
            raise Failure(Code.ETOOMANY)
        return self.log.keys[count:end], self._place(end)


def secret_of(node: Node) -> Secret:
    """Returns what only clients can read."""
    assert isinstance(node.extra, Secret)
    return node.extra


def is_seen(node: Node, now_s: float) -> bool:
    """Returns whether reads see a node; folders are seen at once."""
    return not isinstance(node, File) or node.seen(now_s) is not None
