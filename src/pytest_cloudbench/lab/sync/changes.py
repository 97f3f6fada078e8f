"""The contents of a sync client's folder: steps, sets of files, streams of edits.

Each of them knows what it writes, where, and how it is undone. Nothing here knows of clients or captures.

Every new file has its own folder and an unrelated name, and every change appears at once: it is made elsewhere and
moved in. Otherwise a client that looks for a similar file in the same folder (rsync's ``--fuzzy``) would appear to
deduplicate, and half a file might be sent.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_cloudbench.lab.detect import KINDS, Observation, Step
from pytest_cloudbench.model import MIB, Content, UsageError, chunks
from pytest_cloudbench.support.clock import now_ns, sleep_until_ns
from pytest_cloudbench.workload.payload import RandomContent
from pytest_cloudbench.workload.payload.contents import Literal, Piece, Pieces, Repeated, Text
from pytest_cloudbench.workload.payload.edits import Edit, Insert, Overwrite
from pytest_cloudbench.workload.payload.jpeg import head, image

_ZLIB_LEVEL = 6
_EDITS = ("append", "insert", "spliced", "change", "version")
_COPIES = ("copy", "twin_insert", "twin_change", "restore")
_OF_BASE = (*_EDITS, *_COPIES, "delete")
_SUFFIX = {"text": ".txt", "text_as_jpeg": ".jpg", "fake_jpeg": ".jpg", "jpeg": ".jpg"}
_COMPRESSIBLE = ("sparse", "text", "text_in_jpeg", "text_as_jpeg", "fake_jpeg", "jpeg")
_SPARSE = b"0123456789abcdef"
"""Source: thesis 3.4.3, SparseFileGenerator."""
_OVERWRITE_AT = 0.25
"""The offset at which ``change`` overwrites, as a share of the file. It avoids the middle, changed by ``insert``."""


class Changes:
    """Changes below ``root``, one step after another.

    Args:
        root: the folder that the client mirrors.
        stage: a folder on the same file system, where files are made before they are moved in.
        seed: all content is derived from it. It is new for each run. Otherwise a server might already know the content.

    ``moved_ns`` is the time when the last change appeared, in nanoseconds since 1970.
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
        """Return whether there is a file for a step that changes or repeats one."""
        return self._base is not None or step.kind not in _OF_BASE

    def explain_conflict(self, step: Step) -> str:
        """Return why the step does not fit what is in the folder, as after an undone ``delete``, or an empty text."""
        if self._base is None:
            return ""
        is_there = self._base[0] in self._related
        if step.kind == "restore" and is_there:
            return "the file that it puts back was not deleted"
        if step.kind in _EDITS and not is_there:
            return "the file that it changes was deleted and not put back"
        return ""

    def apply(self, step: Step) -> Observation:
        """Apply the step. Returns an observation without any counts. Raises UsageError for an impossible step."""
        self._number += 1
        self._undo, self._former = [], self._base
        if step.kind == "idle":
            return Observation("idle")
        if step.kind in ("few", "many"):
            return self._write_batch(step)
        if step.kind == "delete":
            self.moved_ns = time.time_ns()
            self._undo = [*self._related.items()]
            for path in self._related:
                shutil.rmtree(path.parent, ignore_errors=True)
            self._related = {}
            return Observation("delete")
        content = self._make_content(step)
        if step.kind in _EDITS:
            path = self._base_path()
            self._undo = [(path, self._base_content())]
            self._replace_file(path, content)
        else:
            path = self._base_path() if step.kind == "restore" else self._new_path(_SUFFIX.get(step.kind, ""))
            self._undo = [(path, None)]
            self._move_in_folder([(path, content)])
            if step.kind in _COPIES:
                self._related[path] = content
        if step.kind in ("new", *_EDITS):
            self._base = (path, content)
            self._related[path] = content
        changed_bytes = step.size_bytes if step.kind in _EDITS else content.size_bytes
        if step.kind == "version":
            changed_bytes = content.size_bytes - int(content.size_bytes * step.share)
        zlib_bytes = _count_zlib_bytes(content) if step.kind in _COMPRESSIBLE else None
        return Observation(step.kind, content.size_bytes, changed_bytes, zlib_bytes=zlib_bytes)

    def undo(self) -> None:
        """Undo the last step, because the client did not carry it out."""
        for path, content in self._undo:
            if content is None:
                shutil.rmtree(path.parent, ignore_errors=True)
                self._related.pop(path, None)
            else:
                path.parent.mkdir(exist_ok=True)
                self._replace_file(path, content)
                self._related[path] = content
        self._base, self._undo = self._former, []

    # --- what is written ---

    def _content_key(self, part: str = "") -> str:
        return f"{self._seed}/{self._number}{part}"

    def _make_content(self, step: Step) -> Content:
        """Return the content of the file that a step makes or changes. Raises UsageError for an unknown kind."""
        size, kind = step.size_bytes, step.kind
        make: dict[str, Callable[[], Content]] = {
            "new": lambda: RandomContent(self._content_key(), size),
            "big": lambda: RandomContent(self._content_key(), size),
            "sparse": lambda: Repeated(_SPARSE, size),
            "jpeg": lambda: image(RandomContent(self._content_key(), size)),
            "text": lambda: self._make_words(b"", size),
            "text_as_jpeg": lambda: self._make_words(b"", size),
            "text_in_jpeg": lambda: self._make_words(head(1024, 768), size),
            "fake_jpeg": lambda: self._make_words(head(1024, 768), size),
            "copy": self._base_content,
            "restore": self._base_content,
            "append": lambda: self._insert_bytes(size, "back"),
            "insert": lambda: self._insert_bytes(size, "middle"),
            "twin_insert": lambda: self._insert_bytes(size, "middle"),
            "spliced": lambda: self._insert_bytes(size, "random"),
            "version": lambda: self._make_version(step.share),
            "change": lambda: self._overwrite_and_append(size),
            "twin_change": lambda: self._overwrite_and_append(size),
        }
        if kind not in make:
            raise UsageError(f"step {kind!r}: unknown; expected one of {', '.join(sorted(KINDS))}")
        return make[kind]()

    def _make_words(self, start: bytes, size: int) -> Content:
        words = Text(self._content_key(), size - len(start))
        return Pieces.join([Piece(Literal(start), 0, len(start)), Piece(words, 0, words.size_bytes)])

    def _insert_bytes(self, size: int, position: str) -> Content:
        return Insert(RandomContent(self._content_key(), size), position, self._content_key("/at")).apply(
            self._base_content()
        )

    def _make_version(self, share: float) -> Content:
        base = self._base_content()
        kept_bytes = int(base.size_bytes * share)
        new_content = RandomContent(self._content_key(), base.size_bytes - kept_bytes)
        return Pieces.join([Piece(base, 0, kept_bytes), Piece(new_content, 0, new_content.size_bytes)])

    def _overwrite_and_append(self, size: int) -> Content:
        """Overwrite old bytes with half of the new ones, and append the others.

        Some clients detect an edit by the size alone, and would miss one that only overwrites.
        """
        base, inside = self._base_content(), size - size // 2
        offset = int(base.size_bytes * _OVERWRITE_AT)
        beginning = Pieces.join([Piece(base, 0, offset + inside)])
        remainder = Piece(base, offset + inside, base.size_bytes - offset - inside)
        edited = Overwrite(RandomContent(self._content_key("/in"), inside), "back").apply(beginning)
        end = RandomContent(self._content_key("/end"), size // 2)
        return Pieces.join([Piece(edited, 0, edited.size_bytes), remainder, Piece(end, 0, end.size_bytes)])

    def _write_batch(self, step: Step) -> Observation:
        file_bytes = step.size_bytes // step.files
        folder = self._new_path("").parent
        files: list[tuple[Path, Content]] = []
        for number in range(step.files):
            content = RandomContent(self._content_key(f"/{number}"), file_bytes)
            files.append((folder / f"{self._unrelated_name(number)}.bin", content))
        self._undo = [(files[0][0], None)]
        self._move_in_folder(files)
        return Observation(step.kind, file_bytes * step.files, file_bytes * step.files, step.files)

    # --- where it is written ---

    def _base_path(self) -> Path:
        if self._base is None:
            raise UsageError("a step of kind new must come before its edits")
        return self._base[0]

    def _base_content(self) -> Content:
        if self._base is None:
            raise UsageError("a step of kind new must come before its edits")
        return self._base[1]

    def _unrelated_name(self, number: int = 0) -> str:
        digest = hashlib.sha256(self._content_key(f"/name/{number}").encode()).hexdigest()
        return digest[: 8 + int(digest[-1], 16)]

    def _new_path(self, suffix: str) -> Path:
        name = self._unrelated_name()
        return self._root / name[:8][::-1] / f"{name}{suffix}"

    def _move_in_folder(self, files: list[tuple[Path, Content]]) -> None:
        """Make the files of one new folder appear at once."""
        folder = files[0][0].parent
        prepared = self._stage / folder.name
        prepared.mkdir()
        for path, content in files:
            write(prepared / path.name, content)
        self.moved_ns = time.time_ns()
        os.rename(prepared, folder)

    def _replace_file(self, path: Path, content: Content) -> None:
        write(self._stage / "edited", content)
        self.moved_ns = time.time_ns()
        os.replace(self._stage / "edited", path)


def write(path: Path, content: Content, mode: str = "wb") -> None:
    """Write content to a file, opened in ``mode``."""
    with path.open(mode) as file:
        file.writelines(chunks(content))


def move_in(prepared: Path, path: Path) -> int:
    """Make a file appear at once by moving it from elsewhere on the same file system. Returns its size in bytes."""
    size_bytes = prepared.stat().st_size
    os.replace(prepared, path)
    return size_bytes


def _count_zlib_bytes(content: Content) -> int:
    packer = zlib.compressobj(_ZLIB_LEVEL)
    return sum(len(packer.compress(piece)) for piece in chunks(content, MIB)) + len(packer.flush())


# --- sets of new files ---

_SUFFIXES = {"binary": ".bin", "text": ".txt"}


@dataclass(frozen=True, slots=True)
class Workload:
    """A set of files of one size and kind.

    Attributes:
        files: their number.
        size_bytes: of each.
        kind: ``binary`` for random bytes, ``text`` for random words of a dictionary.
    """

    files: int
    size_bytes: int
    kind: str = "binary"

    def __post_init__(self) -> None:
        """Raises UsageError for an impossible set."""
        if self.files < 1 or self.size_bytes < 1 or self.kind not in _SUFFIXES:
            raise UsageError(f"{self}: expected files and bytes above 0, and one of the kinds {', '.join(_SUFFIXES)}")

    @property
    def total_bytes(self) -> int:
        """The size of all files together."""
        return self.files * self.size_bytes

    def contents(self, seed: str) -> Iterator[tuple[str, Content]]:
        """Yield the name and content of each file. Another ``seed`` gives other content."""
        make = RandomContent if self.kind == "binary" else Text
        for number in range(self.files):
            yield f"f{number:05d}{_SUFFIXES[self.kind]}", make(f"{seed}/{number}", self.size_bytes)


def put(workload: Workload, folder: Path, stage: Path, seed: str) -> int:
    """Make the set appear at once as a new folder ``folder``. Returns the time, in nanoseconds since 1970.

    It is made in ``stage``, which must be on the same file system, and then moved in. So no client sees half a file,
    and the time to write it is not measured.
    """
    prepared = stage / folder.name
    prepared.mkdir(parents=True)
    for name, content in workload.contents(seed):
        with (prepared / name).open("wb") as file:
            file.writelines(chunks(content))
    moved_ns = time.time_ns()
    os.rename(prepared, folder)
    return moved_ns


# --- streams of edits ---

_MUCH_LATE = 0.5


@dataclass(slots=True)
class Played:
    """The result of playing a stream.

    Attributes:
        updates: the number of updates written.
        changed_bytes: the bytes that they wrote.
        late: the number that were late by more than half of the interval since the previous one.
        size_bytes: of the file at the end.
    """

    updates: int = 0
    changed_bytes: int = 0
    late: int = 0
    size_bytes: int = 0


def play_edits(
    stream: Iterable[tuple[float, Edit]], path: Path, *, start: Content | None = None,
    after: Callable[[], None] | None = None,
) -> Played:  # fmt: skip
    """Write a stream of edits into one file, each when it is due, in place as an editor does.

    Args:
        stream: (due_s, edit), in order of time.
        path: the file, which exists already if ``start`` is given.
        start: its content.
        after: called after each update, for a client that does not watch its folder.
    """
    played, content, began_ns, former_s = Played(), start or Literal(b""), now_ns(), 0.0
    for due_s, edit in stream:
        due_ns = began_ns + round(due_s * 1e9)
        sleep_until_ns(due_ns)
        content = edit.apply(content)
        if isinstance(edit, Insert) and edit.where == "back":
            write(path, edit.new, "ab")
        else:
            write(path, content, "r+b")
        played.late += played.updates > 0 and now_ns() - due_ns > _MUCH_LATE * (due_s - former_s) * 1e9
        played.updates += 1
        played.changed_bytes += edit.size_bytes
        former_s = due_s
        if after is not None:
            after()
    played.size_bytes = content.size_bytes
    return played
