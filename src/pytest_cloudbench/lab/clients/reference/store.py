"""What the reference server keeps: the files themselves, older versions, and which content it knows.

What may live here: folders on the server's disk. No network.
"""

from __future__ import annotations

import os
import shutil
import threading
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

from pytest_cloudbench.lab.clients.reference.content import Digester, Digests
from pytest_cloudbench.lab.clients.reference.delta import DeltaSegment, make_signature
from pytest_cloudbench.lab.clients.reference.protocol import PIECE_BYTES, Limited, UploadEntry
from pytest_cloudbench.lab.clients.reference.settings import Settings


class ConflictError(Exception):
    """A file cannot be assembled as the client says; the message goes to the client."""


class _Version:
    """A version of a file's content on the server's disk."""

    def __init__(self, file: Path, digests: Digests) -> None:
        self.file, self.digests = file, digests


class Store:
    """Files in ``stored``, everything else in ``private``.

    One lock guards what is known. It is never held while bytes come from the network, so a hanging connection does not
    block others.
    """

    def __init__(self, stored: Path, private: Path, settings: Settings) -> None:
        self._stored, self._settings = stored, settings
        self._partial, self._old = private / "partial", private / "old"
        for folder in (self._stored, self._partial, self._old):
            folder.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._count = 0
        self._live: dict[str, _Version] = {}
        self._known: dict[bytes, list[tuple[_Version, int]]] = {}
        self._leaving: list[_Version] = []
        self._changed: list[str] = []
        for path in sorted(stored.rglob("*")):
            if path.is_file():
                self._enter(path.relative_to(stored).as_posix(), path)

    def files(self) -> dict[str, str]:
        """Maps paths to SHA-256."""
        with self._lock:
            return {path: version.digests.sha256 for path, version in self._live.items()}

    @property
    def changes(self) -> int:
        """How many changes there were since the start."""
        return len(self._changed)

    def news(self, since: int) -> tuple[int, dict[str, str | None]]:
        """How many changes there were, and the SHA-256 of each file that changed after the first ``since``.

        The SHA-256 is None if the file is gone.
        """
        with self._lock:
            changed = dict.fromkeys(self._changed[since:])
            return self.changes, {
                path: self._live[path].digests.sha256 if path in self._live else None for path in changed
            }

    def piece(self, path: str, sha256: str, at_bytes: int) -> bytes:
        """Content of a file from there on, at most ``PIECE_BYTES``; nothing if the file is no longer that version."""
        with self._lock:
            version = self._live.get(path)
            if version is None or version.digests.sha256 != sha256:
                return b""
            with version.file.open("rb") as file:
                file.seek(at_bytes)
                return file.read(PIECE_BYTES)

    def have(self, digests: list[bytes]) -> bytes:
        """A byte for each digest, 1 if a file or block with it can be referred to.

        With ``deduplicate_deleted`` off, content that no file has any longer is forgotten here, and not earlier, so
        that what was promised to a batch of changes is there until the batch is done.
        """
        with self._lock:
            for version in self._leaving:
                self._forget(version)
            self._leaving.clear()
            return bytes(digest in self._known for digest in digests)

    def signature(self, path: str) -> bytes:
        """The packed signature of a file. Raises ConflictError if there is no such file."""
        with self._lock:
            version = self._live.get(path)
            if version is None:
                raise ConflictError(f"there is no {path!r}")
            with version.file.open("rb") as file:
                return make_signature(file, self._settings.delta_bytes, version.digests.sha256).pack()

    def add_chunk(self, session: str, at_bytes: int, body: Limited, encoding: str) -> None:
        """Write the body as a future file's content from ``at_bytes`` on. Raises ConflictError."""
        with self._session(session).open("r+b" if at_bytes else "wb") as file:
            if file.seek(0, os.SEEK_END) < at_bytes:
                raise ConflictError(f"the chunk at {at_bytes} bytes came before the previous one")
            file.truncate(at_bytes)
            file.seek(at_bytes)
            for piece in _decoded(body, body.left_bytes, encoding):
                file.write(piece)

    def take(self, entry: UploadEntry, body: Limited) -> str | None:
        """Read the content that follows the entry and do what it says; returns None, or why that is impossible."""
        left_after_bytes = body.left_bytes - entry.wire_bytes
        try:
            self._take(entry, body)
        except (ConflictError, FileNotFoundError, zlib.error) as error:
            for _ in body.pieces(body.left_bytes - left_after_bytes):
                pass
            return str(error) or type(error).__name__
        return None

    # --- inside -----------------------------------------------------------------------------------

    def _take(self, entry: UploadEntry, body: Limited) -> None:
        target = self._target(entry.path)
        if not entry.sha256:
            with self._lock:
                self._remove(entry.path)
            return
        sent = self._session(entry.session) if entry.session else self._new(self._partial)
        with sent.open("r+b" if sent.exists() else "wb") as file:
            # What arrived of it earlier, in an interrupted request, is overwritten.
            file.truncate(entry.at_bytes)
            file.seek(entry.at_bytes)
            for piece in _decoded(body, entry.wire_bytes, entry.encoding):
                file.write(piece)
        with self._lock:
            live = self._live.get(entry.path)
            if live is not None and live.digests.sha256 == entry.sha256:
                sent.unlink()  # sent twice, since the answer was lost
                return
            made = sent if _is_plain(entry) else self._assembled(entry, sent, live)
            digests = self._digests(made)
            if digests.sha256 != entry.sha256:
                made.unlink()
                raise ConflictError("the content is not what was announced")
            self._make_room(target)
            self._remove(entry.path)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(made, target)
            self._enter(entry.path, target, digests)

    def _assembled(self, entry: UploadEntry, sent: Path, live: _Version | None) -> Path:
        """A new file, assembled from what was sent and what is here."""
        if entry.base and (live is None or live.digests.sha256 != entry.base):
            raise ConflictError("the older version differs here")
        made = self._new(self._partial)
        with sent.open("rb") as data, made.open("w+b") as out:
            for segment in entry.segments:
                if segment.kind == "own":
                    out.flush()
                    _copy(made, segment.where, segment.length_bytes, out)
                elif segment.kind == "base" and live is not None:
                    _copy(live.file, segment.where, segment.length_bytes, out)
                elif segment.kind == "block":
                    self._copy_block(segment, out)
                else:
                    _copy_open(data, segment.length_bytes, out)
        sent.unlink()
        return made

    def _copy_block(self, segment: DeltaSegment, out: IO[bytes]) -> None:
        places = self._known.get(bytes.fromhex(str(segment.where)))
        if not places:
            raise ConflictError("a block is unknown here")
        version, offset = places[0]
        _copy(version.file, offset, segment.length_bytes, out)

    def _digests(self, file: Path) -> Digests:
        digester = Digester(self._settings.block_bytes)
        with file.open("rb") as data:
            while piece := data.read(PIECE_BYTES):
                digester.update(piece)
        return digester.digests()

    def _enter(self, path: str, file: Path, digests: Digests | None = None) -> None:
        version = _Version(file, digests or self._digests(file))
        self._live[path] = version
        self._changed.append(path)
        offset = 0
        for digest, length in version.digests.blocks:
            self._known.setdefault(digest, []).append((version, offset))
            offset += length

    def _remove(self, path: str) -> None:
        """Remove a file; content that may be asked for later is kept as an older version."""
        version = self._live.pop(path, None)
        if version is None:
            return
        self._changed.append(path)
        if self._settings.block_bytes is None:
            version.file.unlink(missing_ok=True)
        else:
            old = self._new(self._old)
            os.replace(version.file, old)
            version.file = old
            if not self._settings.deduplicate_deleted:
                self._leaving.append(version)
        for folder in (self._stored / path).parents:
            if folder == self._stored:
                break
            with suppress(OSError):  # something else is in it
                folder.rmdir()

    def _forget(self, version: _Version) -> None:
        for digest in {digest for digest, _ in version.digests.blocks}:
            left = [place for place in self._known.get(digest, []) if place[0] is not version]
            if left:
                self._known[digest] = left
            else:
                self._known.pop(digest, None)
        version.file.unlink(missing_ok=True)

    def _make_room(self, target: Path) -> None:
        """Remove what is in the way of a file or one of its folders; the client deletes it as well."""
        for folder in target.parents:
            if folder == self._stored:
                break
            if folder.is_file():
                self._remove(folder.relative_to(self._stored).as_posix())
        if target.is_dir():
            below = target.relative_to(self._stored).as_posix() + "/"
            for path in [path for path in self._live if path.startswith(below)]:
                self._remove(path)
            if target.exists():
                shutil.rmtree(target)

    def _target(self, path: str) -> Path:
        if not path or any(part in {"", ".", ".."} for part in path.split("/")) or "\0" in path:
            raise ConflictError(f"{path!r} is not below the folder")
        return self._stored / path

    def _session(self, session: str) -> Path:
        if not session.isalnum() or not session.isascii():
            raise ConflictError(f"{session!r} is not a session")
        return self._partial / f"session-{session}"

    def _new(self, folder: Path) -> Path:
        self._count += 1
        return folder / f"{os.getpid()}-{threading.get_ident()}-{self._count}"


def _is_plain(entry: UploadEntry) -> bool:
    """Whether the new content is just what was sent."""
    return all(segment.kind == "data" for segment in entry.segments)


def _decoded(body: Limited, wire_bytes: int, encoding: str) -> Iterator[bytes]:
    if encoding != "deflate":
        yield from body.pieces(wire_bytes)
        return
    inflate = zlib.decompressobj()
    for piece in body.pieces(wire_bytes):
        left = piece
        while left:
            yield inflate.decompress(left, PIECE_BYTES)
            left = inflate.unconsumed_tail
    yield inflate.flush()


def _copy(file: Path, offset: int | str, length_bytes: int, out: IO[bytes]) -> None:
    with file.open("rb") as data:
        data.seek(int(offset))
        _copy_open(data, length_bytes, out)


def _copy_open(data: IO[bytes], length_bytes: int, out: IO[bytes]) -> None:
    while length_bytes:
        piece = data.read(min(length_bytes, PIECE_BYTES))
        if not piece:
            raise ConflictError("less content arrived than was announced")
        out.write(piece)
        length_bytes -= len(piece)
