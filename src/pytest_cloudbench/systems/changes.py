"""The changes that a sync client is shown: steps into files.

What may live here: what a step writes, where, and how it is taken back. Nothing knows of clients or captures.

Every new file lies in a folder of its own under an unrelated name, and every change appears at once: it is made
elsewhere and moved in. Otherwise a client that looks for a similar file in the same folder (rsync's ``--fuzzy``) would
seem to deduplicate, and half a file might be sent.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
import zlib
from collections.abc import Callable
from pathlib import Path

from pytest_cloudbench.detect import KINDS, Observation, Step
from pytest_cloudbench.model import MIB, Content, UsageError, chunks
from pytest_cloudbench.payload import RandomContent
from pytest_cloudbench.payload.contents import Literal, Piece, Pieces, Repeated, Text
from pytest_cloudbench.payload.edits import Insert, Overwrite
from pytest_cloudbench.payload.jpeg import head, image

__all__ = ["Changes"]

_ZLIB_LEVEL = 6
_EDITS = ("append", "insert", "spliced", "change", "version")
_COPIES = ("copy", "twin_insert", "twin_change", "restore")
_OF_BASE = (*_EDITS, *_COPIES, "delete")
_SUFFIX = {"text": ".txt", "text_as_jpeg": ".jpg", "fake_jpeg": ".jpg", "jpeg": ".jpg"}
_COMPRESSIBLE = ("sparse", "text", "text_in_jpeg", "text_as_jpeg", "fake_jpeg", "jpeg")
_SPARSE = b"0123456789abcdef"
"""Source: thesis 3.4.3, SparseFileGenerator."""
_OVERWRITE_AT = 0.25
"""Where ``change`` overwrites, as a share of the file: away from the middle, which ``insert`` has touched."""


class Changes:
    """Changes below ``root``, one step after another.

    Args:
        root: the folder that the client mirrors.
        stage: a folder on the same file system, where files are made before they are moved in.
        seed: what all content is made from; new for each run, or a server might know it already.

    ``moved_ns`` is when the last change appeared, in nanoseconds since 1970.
    """

    def __init__(self, root: Path, stage: Path, seed: str) -> None:
        self._root, self._stage, self._seed = root, stage, seed
        self._number = 0
        self._base: tuple[Path, Content] | None = None
        self._related: dict[Path, Content] = {}
        self._undo: list[tuple[Path, Content | None]] = []
        self._former: tuple[Path, Content] | None = None
        self.moved_ns = 0
        stage.mkdir(parents=True, exist_ok=True)

    def can_apply(self, step: Step) -> bool:
        """Whether the file is there that the step changes or repeats."""
        return self._base is not None or step.kind not in _OF_BASE

    def apply(self, step: Step) -> Observation:
        """Do it; what was done, without any counts. Raises UsageError for a step that cannot be."""
        self._number += 1
        self._undo, self._former = [], self._base
        if step.kind == "idle":
            return Observation("idle")
        if step.kind in ("few", "many"):
            return self._batch(step)
        if step.kind == "delete":
            self.moved_ns = time.time_ns()
            self._undo = [*self._related.items()]
            for path in self._related:
                shutil.rmtree(path.parent, ignore_errors=True)
            self._related = {}
            return Observation("delete")
        content = self._content(step)
        if step.kind in _EDITS:
            path = self._base_path()
            self._undo = [(path, self._old())]
            self._replace(path, content)
        else:
            path = self._base_path() if step.kind == "restore" else self._place(_SUFFIX.get(step.kind, ""))
            self._undo = [(path, None)]
            self._move_in([(path, content)])
            if step.kind in _COPIES:
                self._related[path] = content
        if step.kind in ("new", *_EDITS):
            self._base = (path, content)
            self._related[path] = content
        changed = step.size_bytes if step.kind in _EDITS else content.size_bytes
        if step.kind == "version":
            changed = content.size_bytes - int(content.size_bytes * step.share)
        packed = _zlib_bytes(content) if step.kind in _COMPRESSIBLE else None
        return Observation(step.kind, content.size_bytes, changed, zlib_bytes=packed)

    def undo(self) -> None:
        """Take the last step back, for a client that did not carry it out."""
        for path, content in self._undo:
            if content is None:
                shutil.rmtree(path.parent, ignore_errors=True)
                self._related.pop(path, None)
            else:
                path.parent.mkdir(exist_ok=True)
                self._replace(path, content)
                self._related[path] = content
        self._base, self._undo = self._former, []

    # --- what is written ---

    def _key(self, part: str = "") -> str:
        return f"{self._seed}/{self._number}{part}"

    def _content(self, step: Step) -> Content:
        size, kind = step.size_bytes, step.kind
        make: dict[str, Callable[[], Content]] = {
            "new": lambda: RandomContent(self._key(), size),
            "big": lambda: RandomContent(self._key(), size),
            "sparse": lambda: Repeated(_SPARSE, size),
            "jpeg": lambda: image(RandomContent(self._key(), size)),
            "text": lambda: self._words(b"", size),
            "text_as_jpeg": lambda: self._words(b"", size),
            "text_in_jpeg": lambda: self._words(head(1024, 768), size),
            "fake_jpeg": lambda: self._words(head(1024, 768), size),
            "copy": self._old,
            "restore": self._old,
            "append": lambda: self._inserted(size, "back"),
            "insert": lambda: self._inserted(size, "middle"),
            "twin_insert": lambda: self._inserted(size, "middle"),
            "spliced": lambda: self._inserted(size, "random"),
            "version": lambda: self._version(step.share),
            "change": lambda: self._changed(size),
            "twin_change": lambda: self._changed(size),
        }
        if kind not in make:
            raise UsageError(f"step {kind!r}: there is none; there are: {', '.join(sorted(KINDS))}")
        return make[kind]()

    def _words(self, start: bytes, size: int) -> Content:
        words = Text(self._key(), size - len(start))
        return Pieces.join([Piece(Literal(start), 0, len(start)), Piece(words, 0, words.size_bytes)])

    def _inserted(self, size: int, where: str) -> Content:
        return Insert(RandomContent(self._key(), size), where, self._key("/at")).apply(self._old())

    def _version(self, share: float) -> Content:
        old = self._old()
        kept = int(old.size_bytes * share)
        rest = RandomContent(self._key(), old.size_bytes - kept)
        return Pieces.join([Piece(old, 0, kept), Piece(rest, 0, rest.size_bytes)])

    def _changed(self, size: int) -> Content:
        """Half of what is new takes the place of other bytes; the rest makes the file longer.

        Some clients tell an edit by the size alone, and would not see one that only overwrites.
        """
        old, inside = self._old(), size - size // 2
        at = int(old.size_bytes * _OVERWRITE_AT)
        first = Pieces.join([Piece(old, 0, at + inside)])
        rest = Piece(old, at + inside, old.size_bytes - at - inside)
        edited = Overwrite(RandomContent(self._key("/in"), inside), "back").apply(first)
        end = RandomContent(self._key("/end"), size // 2)
        return Pieces.join([Piece(edited, 0, edited.size_bytes), rest, Piece(end, 0, end.size_bytes)])

    def _batch(self, step: Step) -> Observation:
        each = step.size_bytes // step.files
        folder = self._place("").parent
        files = [(folder / f"{self._name(number)}.bin", RandomContent(self._key(f"/{number}"), each))
                 for number in range(step.files)]  # fmt: skip
        self._undo = [(files[0][0], None)]
        self._move_in([*files])
        return Observation(step.kind, each * step.files, each * step.files, step.files)

    # --- where it is written ---

    def _base_path(self) -> Path:
        if self._base is None:
            raise UsageError("a step of kind new comes before its edits")
        return self._base[0]

    def _old(self) -> Content:
        if self._base is None:
            raise UsageError("a step of kind new comes before its edits")
        return self._base[1]

    def _name(self, number: int = 0) -> str:
        digest = hashlib.sha256(self._key(f"/name/{number}").encode()).hexdigest()
        return digest[: 8 + int(digest[-1], 16)]

    def _place(self, suffix: str) -> Path:
        name = self._name()
        return self._root / name[:8][::-1] / f"{name}{suffix}"

    def _move_in(self, files: list[tuple[Path, Content]]) -> None:
        """Files of one new folder, all at once."""
        folder = files[0][0].parent
        made = self._stage / folder.name
        made.mkdir()
        for path, content in files:
            _write(made / path.name, content)
        self.moved_ns = time.time_ns()
        os.rename(made, folder)

    def _replace(self, path: Path, content: Content) -> None:
        _write(self._stage / "edited", content)
        self.moved_ns = time.time_ns()
        os.replace(self._stage / "edited", path)


def _write(path: Path, content: Content) -> None:
    with path.open("wb") as file:
        file.writelines(chunks(content))


def _zlib_bytes(content: Content) -> int:
    packer = zlib.compressobj(_ZLIB_LEVEL)
    return sum(len(packer.compress(piece)) for piece in chunks(content, MIB)) + len(packer.flush())
