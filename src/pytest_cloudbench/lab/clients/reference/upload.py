"""The upload of changed files: deduplication, delta, compression, chunks and bundles, in this order.

These are the requests for a batch of changes. Another module watches the folder.
"""

from __future__ import annotations

import json
import os
import secrets
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO

from pytest_cloudbench.lab.clients.reference.connection import Connection, Request
from pytest_cloudbench.lab.clients.reference.content import Digester, Digests, is_worth_deflating
from pytest_cloudbench.lab.clients.reference.delta import DeltaSegment, Signature, join_segments, match_segments
from pytest_cloudbench.lab.clients.reference.protocol import PIECE_BYTES, Part, UploadEntry, WireError
from pytest_cloudbench.lab.clients.reference.settings import Settings
from pytest_cloudbench.support.watching import GONE, FileMark, mark_file

_MAGIC_BYTES = 16
_IN_MEMORY_BYTES = 1 << 22


@dataclass(frozen=True, slots=True)
class Known:
    """The server's version of a file, and the mark that the file had then, or None if it must be examined again."""

    mark: FileMark | None
    sha256: str


class _ChangingError(Exception):
    """A file changed while it was read: its next version is sent instead."""


@dataclass(slots=True)
class _ChangedFile:
    """One changed file of a batch."""

    path: str
    absolute: str
    mark: FileMark
    reliable_mark: FileMark | None
    digests: Digests
    segments: list[DeltaSegment]
    base: str = ""
    is_deflated: bool = False

    def sent_bytes(self) -> int:
        """Return the bytes of content that the server does not get from elsewhere."""
        return sum(segment.length_bytes for segment in self.segments if segment.kind == "data")

    def pieces(self, start: int, stop: int) -> Iterator[bytes]:
        """Yield the sent bytes from ``start`` to ``stop``, with zeros for what the file has lost meanwhile.

        So the body has the announced length, and the server refuses the content.
        """
        try:
            file = open(self.absolute, "rb")  # noqa: SIM115  # only an error of this line is meant, and the file is closed below
        except OSError:
            yield from _read_padded(None, 0, stop - start)
            return
        with file:
            for segment in self.segments:
                if segment.kind == "data":
                    first, last = max(start, 0), min(stop, segment.length_bytes)
                    yield from _read_padded(file, int(segment.where) + first, last - first)
                    start, stop = start - segment.length_bytes, stop - segment.length_bytes


class Uploader:
    """Brings batches of changes to the server.

    Attributes:
        known: relative path to the server's version. ``sync`` keeps it up to date.
        is_incomplete: whether a file changed while it was sent, so that its folder must be looked at again.
    """

    def __init__(self, root: str, connection: Connection, settings: Settings) -> None:
        self._root, self._connection, self._settings = root, connection, settings
        self.known: dict[str, Known] = {}
        self.is_incomplete = False

    def sync(self, changed: Sequence[tuple[str, FileMark]], deleted: Sequence[str]) -> None:
        """Send changes, then deletions. Raises OSError or WireError, and retries nothing."""
        self.is_incomplete = False
        if self._settings.bundling != "no":
            self._send_changes(changed, deleted)
            return
        for change in changed:
            self._send_changes([change], [])
            self._finish_file()
        for path in deleted:
            self._send_changes([], [path])
            self._finish_file()

    def _finish_file(self) -> None:
        if self._settings.connections == "per-file":
            self._connection.close()

    def _send_changes(self, changed: Sequence[tuple[str, FileMark]], deleted: Sequence[str]) -> None:
        files = [file for path, mark in changed if (file := self._read_file(path, mark)) is not None]
        self._deduplicate(files)
        self._apply_deltas(files)
        with tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES) as spool:
            batch = _Batch(self._connection, self._settings, spool)
            for file in files:
                batch.add(file)
            for path in deleted:
                batch.add_deleted(path)
            refused = batch.end()
        self._note_result(files, deleted, refused)

    def _note_result(self, files: Sequence[_ChangedFile], deleted: Sequence[str], refused: dict[str, str]) -> None:
        """Note what the server has now. Raises WireError if it refused a file that did not change meanwhile."""
        for file in files:
            if file.path not in refused:
                self.known[file.path] = Known(file.reliable_mark, file.digests.sha256)
        for path in deleted:
            if path not in refused:
                del self.known[path]
        if refused:
            # A refused file may cause the refusal of others that were to be assembled from its blocks.
            if all(_read_mark(file.absolute) == file.mark for file in files if file.path in refused):
                raise WireError(f"the server refused {json.dumps(refused)}")
            self.is_incomplete = True

    # --- the segments of a file -------------------------------------------------------------------

    def _read_file(self, path: str, mark: FileMark) -> _ChangedFile | None:
        """Return the file with its digests, or None if nothing is to be sent (now)."""
        absolute = os.path.join(self._root, path)
        digester = Digester(self._settings.block_bytes)
        reliable_mark = mark if mark.is_reliable() else None  # determined before anything is read
        try:
            with open(absolute, "rb") as file:
                before = mark_file(os.fstat(file.fileno()))
                first = file.read(_MAGIC_BYTES)
                file.seek(0)
                while piece := file.read(PIECE_BYTES):
                    digester.update(piece)
                digests = digester.digests()
                if before != mark or mark_file(os.fstat(file.fileno())) != mark:
                    raise _ChangingError
        except (*GONE, _ChangingError):
            self.is_incomplete = True
            return None
        known_file = self.known.get(path)
        if known_file is not None and known_file.sha256 == digests.sha256:
            self.known[path] = Known(reliable_mark, digests.sha256)
            return None
        is_deflated = is_worth_deflating(self._settings.compression, path, first)
        segments = join_segments(iter([DeltaSegment("data", 0, digests.size_bytes)]))
        return _ChangedFile(path, absolute, mark, reliable_mark, digests, segments, is_deflated=is_deflated)

    def _deduplicate(self, files: Sequence[_ChangedFile]) -> None:
        """Ask which blocks the server has, and refer to these instead of sending them."""
        digests = list(dict.fromkeys(block.digest for file in files for block in file.digests.blocks))
        if not digests:
            return
        answer = self._connection.ask("POST", "/have", [Part.from_bytes(b"".join(digests))])
        if len(answer) != len(digests):
            raise WireError("the server did not say for each block whether it has it")
        known_digests = {digest for digest, has in zip(digests, answer, strict=True) if has}
        for file in files:
            own_offsets: dict[bytes, int] = {}
            segments, offset = [], 0
            for digest, length in file.digests.blocks:
                if digest in known_digests:
                    segments.append(DeltaSegment("block", digest.hex(), length))
                elif digest in own_offsets:
                    segments.append(DeltaSegment("own", own_offsets[digest], length))
                else:
                    segments.append(DeltaSegment("data", offset, length))
                    own_offsets[digest] = offset
                offset += length
            file.segments = join_segments(iter(segments))
            known_digests |= own_offsets.keys()  # the server takes files in this order

    def _apply_deltas(self, files: Sequence[_ChangedFile]) -> None:
        """Ask for the signatures of older versions, and send only what differs from them."""
        if self._settings.delta == "no":
            return
        older = [file for file in files if file.path in self.known and file.sent_bytes()]
        if not older:
            return
        paths = json.dumps([file.path for file in older]).encode()
        packed = memoryview(self._connection.ask("POST", "/signatures", [Part.from_bytes(paths)]))
        for file in older:
            try:
                signature, packed = Signature.unpack(packed)
            except ValueError as error:
                raise WireError(str(error)) from error
            file.base = signature.sha256.hex()
            try:
                file.segments = self._compute_delta(file, signature)
            except GONE:
                continue  # it will be sent as zeros, and refused

    def _compute_delta(self, file: _ChangedFile, signature: Signature) -> list[DeltaSegment]:
        with open(file.absolute, "rb") as data:

            def read(offset: int, length: int) -> bytes:
                data.seek(offset)
                return data.read(length)

            def all_segments() -> Iterator[DeltaSegment]:
                for segment in file.segments:
                    if segment.kind == "data":
                        start = int(segment.where)
                        stop = start + segment.length_bytes
                        yield from match_segments(
                            self._settings.delta, read, start, stop, file.digests.size_bytes, signature
                        )
                    else:
                        yield segment

            return join_segments(all_segments())


class _Batch:
    """The ``/files`` requests of one batch, and the chunks that go before them.

    Args:
        connection: carries them.
        settings: tell how to bundle and to chunk.
        spool: holds deflated content until its length is known.
    """

    def __init__(self, connection: Connection, settings: Settings, spool: IO[bytes]) -> None:
        self._connection, self._settings, self._spool = connection, settings, spool
        self._requests: list[tuple[list[str], list[Part]]] = []
        self._open_bytes = 0
        self._refused: dict[str, str] = {}

    def add(self, file: _ChangedFile) -> None:
        """Send all chunks of a file except the last, and put the rest into a request."""
        remaining_bytes, offset, session = file.sent_bytes(), 0, ""
        if self._settings.chunking and remaining_bytes > self._settings.chunk_bytes:
            self.send()  # an acknowledged chunk must not wait behind requests whose answers are still outstanding
            session = secrets.token_hex(4)
            while remaining_bytes > self._settings.chunk_bytes:
                self._send_chunk(file, session, offset)
                offset += self._settings.chunk_bytes
                remaining_bytes -= self._settings.chunk_bytes
        self._make_room(remaining_bytes)
        content = self._make_part(file, offset, offset + remaining_bytes)
        entry = UploadEntry(
            path=file.path,
            sha256=file.digests.sha256,
            size_bytes=file.digests.size_bytes,
            segments=file.segments,
            base=file.base,
            session=session,
            at_bytes=offset,
            wire_bytes=content.length_bytes,
            encoding="deflate" if file.is_deflated and remaining_bytes else "",
        )
        self._add_to_request(entry, content, remaining_bytes)

    def add_deleted(self, path: str) -> None:
        """Put the deletion of a file into a request."""
        self._add_to_request(UploadEntry(path), Part.from_bytes(b""), 0)

    def end(self) -> dict[str, str]:
        """Send the remaining requests. Returns path to reason for everything that the server refused."""
        self.send()
        return self._refused

    def send(self) -> None:
        """Send the waiting requests."""
        requests = [Request("POST", "/files", parts) for _, parts in self._requests]
        for (paths, _), answer in zip(self._requests, self._connection.ask_all(requests), strict=True):
            reasons = json.loads(answer)
            if len(reasons) != len(paths):
                raise WireError("the server did not answer for each file")
            self._refused |= {path: reason for path, reason in zip(paths, reasons, strict=True) if reason}
        self._requests, self._open_bytes = [], 0
        self._empty_spool()

    def _make_room(self, content_bytes: int) -> None:
        """Send the open bundle if it cannot hold this content, too.

        With chunks, a bundle holds the content of one chunk.
        """
        is_limited = self._settings.bundling == "request" and self._settings.chunking
        if is_limited and self._open_bytes and self._open_bytes + content_bytes > self._settings.chunk_bytes:
            self.send()

    def _add_to_request(self, entry: UploadEntry, content: Part, content_bytes: int) -> None:
        if not self._requests or self._settings.bundling != "request":
            self._requests.append(([], []))
        paths, parts = self._requests[-1]
        paths.append(entry.path)
        parts += [Part.from_bytes(entry.pack()), content]
        self._open_bytes += content_bytes

    def _send_chunk(self, file: _ChangedFile, session: str, offset: int) -> None:
        content = self._make_part(file, offset, offset + self._settings.chunk_bytes)
        encoding = "&encoding=deflate" if file.is_deflated else ""
        self._connection.ask("POST", f"/chunk?session={session}&at={offset}{encoding}", [content])
        self._empty_spool()

    def _empty_spool(self) -> None:
        self._spool.seek(0)
        self._spool.truncate()

    def _make_part(self, file: _ChangedFile, start: int, stop: int) -> Part:
        if not file.is_deflated or start == stop:
            return Part(stop - start, lambda: file.pieces(start, stop))
        begin = self._spool.seek(0, os.SEEK_END)
        for piece in _deflate_pieces(file.pieces(start, stop)):
            self._spool.write(piece)
        length = self._spool.tell() - begin
        return Part(length, lambda: _read_padded(self._spool, begin, length))


def _deflate_pieces(pieces: Iterable[bytes]) -> Iterator[bytes]:
    deflate = zlib.compressobj()
    for piece in pieces:
        yield deflate.compress(piece)
    yield deflate.flush()


def _read_padded(file: IO[bytes] | None, offset: int, length_bytes: int) -> Iterator[bytes]:
    """Yield exactly that many bytes of a file from ``offset`` on, padded with zeros."""
    while length_bytes > 0:
        piece_bytes = min(length_bytes, PIECE_BYTES)
        data = b""
        if file is not None:
            file.seek(offset)
            data = file.read(piece_bytes)
        yield data.ljust(piece_bytes, b"\0")
        offset += piece_bytes
        length_bytes -= piece_bytes


def _read_mark(path: str) -> FileMark | None:
    try:
        return mark_file(os.stat(path, follow_symlinks=False))
    except OSError:
        return None
