"""The content that the reference server keeps: the files themselves, older versions, and which content it knows.

Folders on the server's disk, and no network.
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
    """A file cannot be assembled as the client says. The message goes to the client."""


class _StoredVersion:
    """A version of a file's content on the server's disk."""

    def __init__(self, file: Path, digests: Digests) -> None:
        self.file, self.digests = file, digests


class Store:
    """Files in ``stored``, everything else in ``private``.

    One lock guards everything in memory. It is never held while bytes come from the network, so a hanging connection
    does not block others.

    Args:
        stored, private: the folders.
        settings: say what can be referred to.
        beside: the store of another account whose content can be referred to here, and the other way round.
    """

    def __init__(self, stored: Path, private: Path, settings: Settings, beside: Store | None = None) -> None:
        self._stored, self._settings = stored, settings
        self._partial, self._old = private / "partial", private / "old"
        for folder in (self._stored, self._partial, self._old):
            folder.mkdir(parents=True, exist_ok=True)
        self._lock: threading.Lock = threading.Lock() if beside is None else beside._lock
        self._count = 0
        self._versions: dict[str, _StoredVersion] = {}
        self._content_places: dict[bytes, list[tuple[_StoredVersion, int]]] = (
            {} if beside is None else beside._content_places
        )
        self._leaving_versions: list[_StoredVersion] = []
        self._changed_paths: list[str] = []
        for path in sorted(stored.rglob("*")):
            if path.is_file():
                self._add_version(path.relative_to(stored).as_posix(), path)

    def files(self) -> dict[str, str]:
        """Return paths and their SHA-256."""
        with self._lock:
            return {path: version.digests.sha256 for path, version in self._versions.items()}

    @property
    def changes(self) -> int:
        """The number of changes since the start."""
        return len(self._changed_paths)

    def news(self, since: int) -> tuple[int, dict[str, str | None]]:
        """Return the number of changes, and the SHA-256 of each file that changed after the first ``since``.

        The SHA-256 is None if the file is gone.
        """
        with self._lock:
            changed_paths = dict.fromkeys(self._changed_paths[since:])
            return self.changes, {
                path: self._versions[path].digests.sha256 if path in self._versions else None for path in changed_paths
            }

    def read_piece(self, path: str, sha256: str, at_bytes: int) -> bytes:
        """Return at most ``PIECE_BYTES`` of a file, or nothing if the file is no longer that version."""
        with self._lock:
            version = self._versions.get(path)
            if version is None or version.digests.sha256 != sha256:
                return b""
            with version.file.open("rb") as file:
                file.seek(at_bytes)
                return file.read(PIECE_BYTES)

    def check_digests(self, digests: list[bytes]) -> bytes:
        """Return a byte for each digest, 1 if a file or block with it can be referred to.

        With ``deduplicate_deleted`` off, content that no file has any longer is forgotten here, and not earlier, so
        that what was promised to a batch of changes is there until the batch is done.
        """
        with self._lock:
            for version in self._leaving_versions:
                self._forget_version(version)
            self._leaving_versions.clear()
            return bytes(digest in self._content_places for digest in digests)

    def pack_signature(self, path: str) -> bytes:
        """Return the packed signature of a file. Raises ConflictError if there is no such file."""
        with self._lock:
            version = self._versions.get(path)
            if version is None:
                raise ConflictError(f"there is no {path!r}")
            with version.file.open("rb") as file:
                return make_signature(file, self._settings.delta_bytes, version.digests.sha256).pack()

    def add_chunk(self, session: str, at_bytes: int, body: Limited, encoding: str) -> None:
        """Write the body as a future file's content from ``at_bytes`` on. Raises ConflictError."""
        with self._session_path(session).open("r+b" if at_bytes else "wb") as file:
            if file.seek(0, os.SEEK_END) < at_bytes:
                raise ConflictError(f"the chunk at {at_bytes} bytes came before the previous one")
            file.truncate(at_bytes)
            file.seek(at_bytes)
            for piece in _decode_pieces(body, body.left_bytes, encoding):
                file.write(piece)

    def apply_entry(self, entry: UploadEntry, body: Limited) -> str | None:
        """Read the content that follows the entry and apply it. Returns None, or why that is impossible."""
        remaining_bytes = body.left_bytes - entry.wire_bytes
        try:
            self._receive_entry(entry, body)
        except (ConflictError, FileNotFoundError, zlib.error) as error:
            for _ in body.pieces(body.left_bytes - remaining_bytes):
                pass
            return str(error) or type(error).__name__
        return None

    # --- inside -----------------------------------------------------------------------------------

    def _receive_entry(self, entry: UploadEntry, body: Limited) -> None:
        """Store one entry of an upload, or remove its file. Raises ConflictError if the content is another."""
        target = self._target_path(entry.path)
        if not entry.sha256:
            with self._lock:
                self._remove_file(entry.path)
            return
        received = self._session_path(entry.session) if entry.session else self._new_path(self._partial)
        with received.open("r+b" if received.exists() else "wb") as file:
            # What arrived of it earlier, in an interrupted request, is overwritten.
            file.truncate(entry.at_bytes)
            file.seek(entry.at_bytes)
            for piece in _decode_pieces(body, entry.wire_bytes, entry.encoding):
                file.write(piece)
        with self._lock:
            present = self._versions.get(entry.path)
            if present is not None and present.digests.sha256 == entry.sha256:
                received.unlink()  # sent twice, since the answer was lost
                return
            assembled = received if _has_only_data(entry) else self._assemble_file(entry, received, present)
            digests = self._digest_file(assembled)
            if digests.sha256 != entry.sha256:
                assembled.unlink()
                raise ConflictError("the content is not what was announced")
            self._make_room(target)
            self._remove_file(entry.path)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(assembled, target)
            self._add_version(entry.path, target, digests)

    def _assemble_file(self, entry: UploadEntry, received: Path, present: _StoredVersion | None) -> Path:
        """Assemble a new file from the received bytes and from stored content."""
        if entry.base and (present is None or present.digests.sha256 != entry.base):
            raise ConflictError("the older version differs here")
        assembled = self._new_path(self._partial)
        with received.open("rb") as data, assembled.open("w+b") as out:
            for segment in entry.segments:
                if segment.kind == "own":
                    out.flush()
                    _copy_range(assembled, segment.where, segment.length_bytes, out)
                elif segment.kind == "base" and present is not None:
                    _copy_range(present.file, segment.where, segment.length_bytes, out)
                elif segment.kind == "block":
                    self._copy_block(segment, out)
                else:
                    _copy_bytes(data, segment.length_bytes, out)
        received.unlink()
        return assembled

    def _copy_block(self, segment: DeltaSegment, out: IO[bytes]) -> None:
        places = self._content_places.get(bytes.fromhex(str(segment.where)))
        if not places:
            raise ConflictError("a block is unknown here")
        version, offset = places[0]
        _copy_range(version.file, offset, segment.length_bytes, out)

    def _digest_file(self, file: Path) -> Digests:
        digester = Digester(self._settings.block_bytes)
        with file.open("rb") as data:
            while piece := data.read(PIECE_BYTES):
                digester.update(piece)
        return digester.digests()

    def _add_version(self, path: str, file: Path, digests: Digests | None = None) -> None:
        version = _StoredVersion(file, digests or self._digest_file(file))
        self._versions[path] = version
        self._changed_paths.append(path)
        offset = 0
        for digest, length in version.digests.blocks:
            self._content_places.setdefault(digest, []).append((version, offset))
            offset += length

    def _remove_file(self, path: str) -> None:
        """Remove a file. Content that may be asked for later is kept as an older version."""
        version = self._versions.pop(path, None)
        if version is None:
            return
        self._changed_paths.append(path)
        if self._settings.block_bytes is None:
            version.file.unlink(missing_ok=True)
        else:
            old = self._new_path(self._old)
            os.replace(version.file, old)
            version.file = old
            if not self._settings.deduplicate_deleted:
                self._leaving_versions.append(version)
        for folder in (self._stored / path).parents:
            if folder == self._stored:
                break
            with suppress(OSError):  # something else is in it
                folder.rmdir()

    def _forget_version(self, version: _StoredVersion) -> None:
        for digest in {digest for digest, _ in version.digests.blocks}:
            places = [place for place in self._content_places.get(digest, []) if place[0] is not version]
            if places:
                self._content_places[digest] = places
            else:
                self._content_places.pop(digest, None)
        version.file.unlink(missing_ok=True)

    def _make_room(self, target: Path) -> None:
        """Remove what is in the way of a file or one of its folders. The client deletes it as well."""
        for folder in target.parents:
            if folder == self._stored:
                break
            if folder.is_file():
                self._remove_file(folder.relative_to(self._stored).as_posix())
        if target.is_dir():
            prefix = target.relative_to(self._stored).as_posix() + "/"
            for path in [path for path in self._versions if path.startswith(prefix)]:
                self._remove_file(path)
            if target.exists():
                shutil.rmtree(target)

    def _target_path(self, path: str) -> Path:
        if not path or any(part in {"", ".", ".."} for part in path.split("/")) or "\0" in path:
            raise ConflictError(f"{path!r} is not below the folder")
        return self._stored / path

    def _session_path(self, session: str) -> Path:
        if not session.isalnum() or not session.isascii():
            raise ConflictError(f"{session!r} is not a session")
        return self._partial / f"session-{session}"

    def _new_path(self, folder: Path) -> Path:
        self._count += 1
        return folder / f"{os.getpid()}-{threading.get_ident()}-{self._count}"


def _has_only_data(entry: UploadEntry) -> bool:
    """Return whether the new content is just what was sent."""
    return all(segment.kind == "data" for segment in entry.segments)


def _decode_pieces(body: Limited, wire_bytes: int, encoding: str) -> Iterator[bytes]:
    if encoding != "deflate":
        yield from body.pieces(wire_bytes)
        return
    inflate = zlib.decompressobj()
    for piece in body.pieces(wire_bytes):
        remaining = piece
        while remaining:
            yield inflate.decompress(remaining, PIECE_BYTES)
            remaining = inflate.unconsumed_tail
    yield inflate.flush()


def _copy_range(file: Path, offset: int | str, length_bytes: int, out: IO[bytes]) -> None:
    with file.open("rb") as data:
        data.seek(int(offset))
        _copy_bytes(data, length_bytes, out)


def _copy_bytes(data: IO[bytes], length_bytes: int, out: IO[bytes]) -> None:
    while length_bytes:
        piece = data.read(min(length_bytes, PIECE_BYTES))
        if not piece:
            raise ConflictError("less content arrived than was announced")
        out.write(piece)
        length_bytes -= len(piece)
