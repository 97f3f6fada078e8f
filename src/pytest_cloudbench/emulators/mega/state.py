"""The content of the emulated account: nodes with their encrypted fields, links, shares, uploads and the log of events.

MEGA's names are encrypted, so the names in the store mean nothing: each node gets a unique one.
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
class ClientFields:
    """The fields of a node that the client supplies. It encrypts the attributes and the key.

    ``announced_s`` is when the log tells clients of the node. Later events about it must not come earlier.
    """

    type: int
    attributes: str
    key: str
    made_s: float
    file_attributes: str = ""
    share_keys: dict[str, str] = field(default_factory=dict)
    announced_s: float = 0.0


@dataclass(slots=True)
class PendingUpload:
    """An unfinished upload: its pieces by offset. ``is_raw`` means that the client expects the handle as bytes."""

    size_bytes: int
    is_raw: bool
    pieces: dict[int, BytePieces] = field(default_factory=dict)

    def add(self, offset: int, data: BytePieces) -> None:
        """Add one piece. Raises Failure unless it begins and ends at the boundary of a chunk."""
        end = offset + len(data)
        if end > self.size_bytes or not _is_boundary(offset):
            raise Failure(Code.ERANGE)
        if end != self.size_bytes and not (data and _is_boundary(end)):
            raise Failure(Code.ERANGE)
        if self.pieces:
            data.move_to_disk()  # many short pieces make large content, too
        self.pieces[offset] = data

    def content(self) -> BytePieces | None:
        """Return the whole content, or None while a piece is missing."""
        offset, pieces = 0, []
        if self.size_bytes == 0 and not self.pieces:
            return None
        while offset < self.size_bytes:
            piece = self.pieces.get(offset)
            if not piece:
                return None
            pieces.append(piece)
            offset += len(piece)
        return BytePieces.join(pieces)


def _is_boundary(offset: int) -> bool:
    """Return whether a chunk begins at this offset. Chunks grow by 128 KiB each, from 128 KiB to 1 MiB."""
    start, chunk_bytes = 0, _FIRST_CHUNK_BYTES
    while start < offset and chunk_bytes < _LARGEST_CHUNK_BYTES:
        start, chunk_bytes = start + chunk_bytes, chunk_bytes + _FIRST_CHUNK_BYTES
    return start == offset or (start < offset and (offset - start) % _LARGEST_CHUNK_BYTES == 0)


class AccountState:
    """The content of one account."""

    def __init__(self, tokens: Tokens, user: str) -> None:
        self.tokens, self.user = tokens, user
        self._names = itertools.count()
        self.store = NodeStore(lambda: tokens.next("", 8), lambda: tokens.next("", 32))
        self.root, self.inbox, self.trash = (self._add_top_folder(number) for number in (2, 3, 4))
        self.uploads: dict[str, PendingUpload] = {}
        self.finished: dict[str, Blob] = {}
        self.downloads: dict[str, str] = {}
        self.links: dict[str, str] = {}
        self.shares: dict[str, dict[str, str]] = {}
        self.log: ChangeLog[dict[str, Any]] = ChangeLog()
        self._start = next(_STARTS)

    def _add_top_folder(self, number: int) -> Folder:
        folder = self.store.add_folder(self.store.root, self.new_name(), 0.0)
        folder.extra = ClientFields(number, "", "", 0.0)
        return folder

    def new_name(self) -> str:
        """Return a name that no node has, for the store."""
        return str(next(self._names))

    # ---------------------------------------------------------------- nodes

    def find_existing_node(self, handle: object) -> Node:
        """Return the node with this handle for a write, which sees it before reads do. Raises Failure."""
        node = self.store.by_id(handle) if isinstance(handle, str) else None
        if node is None or node.deleted_s is not None or node is self.store.root:
            raise Failure(Code.ENOENT)
        return node

    def find_node(self, handle: object, now_s: float) -> Node:
        """Return the node with this handle. Raises Failure unless reads see it."""
        node = self.find_existing_node(handle)
        if not node.is_seen(now_s):
            raise Failure(Code.ENOENT)
        return node

    def is_removed(self, node: Node, now_s: float) -> bool:
        """Return whether a node was removed and reads no longer see it."""
        return node.deleted_s is not None and self.store.fading_until_s(node) <= now_s

    def find_readable_node(self, handle: object, now_s: float) -> Node:
        """Return the node with this handle, which may be a removed file that reads still see. Raises Failure."""
        node = self.store.by_id(handle) if isinstance(handle, str) else None
        is_fading = isinstance(node, File) and now_s < self.store.fading_until_s(node) and node.is_seen(now_s)
        return node if node is not None and is_fading else self.find_node(handle, now_s)

    def find_own_node(self, handle: object) -> Node:
        """Return a file or folder that clients may change. Raises Failure for the three top folders."""
        node = self.find_existing_node(handle)
        if node.parent is self.store.root:
            raise Failure(Code.EACCESS)
        return node

    def find_folder(self, handle: object, now_s: float) -> Folder:
        """Return the folder with this handle. Raises Failure if there is none or it is a file."""
        folder = self.find_node(handle, now_s)
        if not isinstance(folder, Folder):
            raise Failure(Code.EARGS)
        return folder

    def find_linked_node(self, link: object, now_s: float) -> Node:
        """Return the node of a public link. Raises Failure if there is none."""
        handle = self.links.get(link) if isinstance(link, str) else None
        return self.find_node(handle, now_s)

    def walk_visible(self, top: Node, now_s: float) -> Iterator[Node]:
        """Yield a node, then all nodes below it that reads see, parents before children."""
        yield top
        if isinstance(top, Folder):
            yield from (node for node in top.below() if node.is_seen(now_s))

    def describe_node(self, node: Node, share: str = "") -> dict[str, Any]:
        """Return the fields of a node in answers. With ``share``, return those that the holders of its link see."""
        client_data = client_fields(node)
        parent = "" if node.parent is None or node.parent is self.store.root else node.parent.id
        fields: dict[str, Any] = {
            "h": node.id, "p": parent, "u": self.user, "t": client_data.type, "a": client_data.attributes,
        }  # fmt: skip
        keys = [f"{self.user}:{client_data.key}"] if client_data.key and not share else []
        keys += [f"{handle}:{key}" for handle, key in client_data.share_keys.items() if share in ("", handle)]
        fields["k"] = "/".join(keys)
        if isinstance(node, File):
            fields["s"] = node.versions[-1].blob.size_bytes
            if client_data.file_attributes:
                fields["fa"] = client_data.file_attributes
        fields["ts"] = int(client_data.made_s)
        return fields

    # ---------------------------------------------------------------- events

    def log_event(self, now_s: float, origin: object, event: dict[str, Any], visible_s: float = 0.0) -> None:
        """Log an event for all clients, once reads see the change. By ``origin`` a client recognises its own event."""
        self.log.add(event | ({"i": origin} if isinstance(origin, str) else {}), now_s, visible_s)

    def current_cursor(self, now_s: float) -> str:
        """Return the cursor of the present end of the log, in the format of the API."""
        return self._format_cursor(self.log.end(now_s))

    def _format_cursor(self, count: int) -> str:
        return encode(struct.pack(">IQ", self._start, count)[1:])

    def events_since(self, cursor: str, now_s: float) -> tuple[Sequence[dict[str, Any]], str]:
        """Return the events after a cursor, and the new cursor. Raises Failure if the client must start again."""
        try:
            start, count = struct.unpack(">IQ", b"\0" + decode(cursor))
        except (Failure, struct.error):
            raise Failure(Code.EARGS) from None
        end = self.log.end(now_s)
        if start != self._start & 0xFFFFFF or count > end:
            raise Failure(Code.ETOOMANY)
        return self.log.keys[count:end], self._format_cursor(end)


def client_fields(node: Node) -> ClientFields:
    """Return the fields of a node that its client supplied."""
    assert isinstance(node.extra, ClientFields)
    return node.extra
