"""The batching folder without a clock: the caller reports changes, asks when something is due, and lets it work.

The caller passes the time, in nanoseconds of any clock, so that tests run in virtual time on real folders.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple

from pytest_cloudbench.model import CloudbenchError
from pytest_cloudbench.savingbox import content
from pytest_cloudbench.savingbox.agreements import Side
from pytest_cloudbench.savingbox.batching.batcher import Batcher, Waiting
from pytest_cloudbench.savingbox.listings import FoundAll, FoundEntry
from pytest_cloudbench.savingbox.mirror import Mirror, MirrorOutcome
from pytest_cloudbench.savingbox.openfiles import BusyError
from pytest_cloudbench.savingbox.side import FolderSide, OvertakenError, VanishedError
from pytest_cloudbench.savingbox.store import NEVER
from pytest_cloudbench.support.watching import FileMark

_S = 1_000_000_000
_SETTLE_NS = _S // 5
"""A client's file is examined once it has not changed for this long: most appear whole, some are written in place."""
_SETTLE_AT_MOST_NS = 2 * _S
_SOON_NS = 60_000_000
_BUSY_NS = _S
_FIRST_RETRY_NS, _LAST_RETRY_NS = _S, 30 * _S
_MANY = 64
"""More files than this are flushed to the disk together."""
_PROGRESS, _SYNCED = 512, 8192
"""The entries after which a long push reports progress, and after which it also stores the agreements so far."""
_SHARE = 10
"""Counting the bytes of a file takes at most 1/N of the time."""


@dataclass(frozen=True, slots=True)
class Push:
    """One batch that went to the sync folder.

    Attributes:
        number: counts from 1.
        why: the rule that made it due: ``quiet``, ``bytes``, ``at most``, ``asked`` at a stop or ``--once``,
            ``again`` for entries that had failed before.
        files: the number of entries changed in the sync folder.
        counted_bytes: compressed bytes by the byte counter: an estimate of what a client sends. There may be more if
            ``why`` is ``bytes`` or ``again``, because nothing is counted any more once the counter is full.
        written_bytes: bytes written to files of the sync folder.
        waited_ns: since the first change of the batch.
    """

    number: int
    why: str
    files: int
    counted_bytes: int
    written_bytes: int
    waited_ns: int


@dataclass(frozen=True, slots=True)
class Pull:
    """One entry that the client has brought, or taken away."""

    path: str


@dataclass(frozen=True, slots=True)
class MirrorProgress:
    """Progress of a long push or pull: finished entries, and all entries."""

    done: int
    all: int


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that the user should know: a conflict, or an action that fails at the moment.

    ``kind``: ``conflict``, ``failed`` (it will be tried again), ``vanished`` (a folder is gone: nothing happens until
    it is back) or ``note``.
    """

    kind: Literal["conflict", "failed", "vanished", "note"]
    text: str


class _Failed(NamedTuple):
    """A failed push of an entry, to be tried again."""

    due_ns: int
    waiting: Waiting


@dataclass
class BoxEngine:
    """Both folders, the batcher between them, and the known changes.

    Attributes:
        mirror: makes the folders agree.
        batcher: decides when to push.
        report: called with each push, pull and trouble.
        cpu_ns: a clock for the cost of counting bytes. Tests pass one that stands still.
        incoming: entries of the sync folder that may have changed, each with the times of its last and first change.
        unread_folders: folders that the last scan could not read on one side, so that their entries are left alone.
    """

    mirror: Mirror
    batcher: Batcher
    report: Callable[[Push | Pull | MirrorProgress | Trouble], None] = lambda event: None
    cpu_ns: Callable[[], int] = lambda: 0
    pushes: int = 0
    pulls: int = 0
    incoming: dict[str, tuple[int, int]] = field(default_factory=dict)
    unread_folders: frozenset[str] = frozenset()
    _recheck_due_ns: dict[str, int] = field(default_factory=dict)
    _count_due_ns: dict[str, int] = field(default_factory=dict)
    _gone_inodes: dict[int, str] = field(default_factory=dict)
    _noticed_marks: dict[str, FileMark | None] = field(default_factory=dict)
    _failed: dict[str, _Failed] = field(default_factory=dict)
    _delays_ns: dict[str, int] = field(default_factory=dict)
    _said_texts: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Report the mirror's conflicts through ``report``."""
        self.mirror.report_conflict = lambda text: self.report(Trouble("conflict", text))

    # --- changes come in ---

    def take_scan(self, box: FoundAll, sync: FoundAll, now_ns: int) -> None:
        """Take in a scan of both folders: every entry that differs from the agreement has changed. Raises OSError."""
        box, sync = self.mirror.mounts.take_scans(box, sync)
        self.unread_folders = frozenset((*box.unknown, *sync.unknown))
        for folder, error in (*box.unknown.items(), *sync.unknown.items()):
            self._say_once("failed", f"{folder or '.'!r} cannot be read ({error.strerror}) and is left alone")
        changed = self._find_differing(box, "ours"), self._find_differing(sync, "theirs")
        ours, theirs = ([path for path in paths if box.is_known(path) and sync.is_known(path)] for paths in changed)
        self.box_changed(sorted(ours), now_ns, seen=box.entries)
        self.sync_changed(theirs, now_ns)

    def _find_differing(self, scan: FoundAll, side: Side) -> Iterator[str]:
        """Yield the entries of a scan that are not as agreed."""
        agreed = self.mirror.store.entries
        yield from (path for path, entry in scan.entries.items() if self._differs_from_agreement(path, entry, side))
        yield from (path for path in scan.gone if path in agreed)
        for folder in agreed.folders.keys() - scan.compared:
            yield from (path for path in agreed.paths_in(folder) if path not in scan.entries and path not in scan.gone)

    def box_changed(
        self,
        paths: Iterable[str],
        now_ns: int,
        *,
        is_event: bool = False,
        seen: Mapping[str, FoundEntry] = MappingProxyType({}),
    ) -> None:
        """Note that these entries of the box may have changed just now.

        Args:
            paths: the entries' relative paths.
            now_ns: the time.
            is_event: whether an event reported them. Then even a file with an unchanged mark is compared: a file gets
                its new time when a write begins, so a long write can continue unnoticed.
            seen: entries that a scan has just seen, which are not looked at again.
        """
        linked: set[int] = set()
        paths = list(paths)
        self._gone_inodes = self._find_gone_inodes([path for path in paths if path not in seen])
        with self.mirror.box.remembering_folder():
            for path in paths:
                self._take_box_change(path, now_ns, linked, seen.get(path))
                if is_event and not self._is_waiting(path):
                    self._compare_content(path, now_ns)
        self._gone_inodes = {}
        if linked:  # no event reports the other names of these files
            for path in self.mirror.store.entries.paths_with_inodes(linked):
                self._take_box_change(path, now_ns, set())

    def sync_changed(self, paths: Iterable[str], now_ns: int) -> None:
        """Note that the client, or a push, may have changed these entries of the sync folder just now."""
        for path in paths:
            _, first_ns = self.incoming.get(path, (now_ns, now_ns))
            self.incoming[path] = now_ns, first_ns

    # --- questions ---

    def due_ns(self) -> int | None:
        """Return when ``work`` has something to do, perhaps in the past, or None if only a change can give it work."""
        dues = [
            min(last_ns + _SETTLE_NS, first_ns + _SETTLE_AT_MOST_NS) for last_ns, first_ns in self.incoming.values()
        ]
        dues += [
            *self._recheck_due_ns.values(),
            *self._count_due_ns.values(),
            *(failed.due_ns for failed in self._failed.values()),
        ]
        if (due_ns := self.batcher.due_ns()) is not None:
            dues.append(due_ns)
        return min(dues, default=None)

    @property
    def unpushed_files(self) -> int:
        """The number of entries that wait, or that could not be pushed."""
        return len(self.batcher) + len(self._failed)

    @property
    def has_work(self) -> bool:
        """True if any entry is known to differ from the agreement."""
        return bool(self.unpushed_files or self.incoming or self.mirror.again)

    def is_at_rest(self) -> bool:
        """Return whether both folders are as agreed, as far as is known. Raises OSError if that cannot be told."""
        return not self.unpushed_files and not self.untaken_paths()

    def untaken_paths(self) -> list[str]:
        """Return the entries that the client has changed since the agreement. Raises OSError if that cannot be told."""
        # A mark is "unsure" while it is too recent to show a change. The file was compared when it got this mark.
        return [path for path in self.incoming if self.mirror.sync_change(path)[0] not in ("no", "unsure")]

    # --- work ---

    def work(self, now_ns: int) -> None:
        """Do what is due. Raises VanishedError if a folder is gone. Then nothing is lost, and everything waits."""
        self._count_again(now_ns)
        self._look_again(now_ns)
        self._pull_due(now_ns)
        due_ns = self.batcher.due_ns()
        if due_ns is not None and due_ns <= now_ns:
            self.push(now_ns)
        self._push_again([path for path, failed in self._failed.items() if failed.due_ns <= now_ns], now_ns)

    def push(self, now_ns: int) -> None:
        """Push everything that waits, due or not. Raises VanishedError."""
        batch = self.batcher.take_batch(now_ns)
        if not batch.paths:
            return
        self._count_due_ns.clear()
        try:
            self._push_paths(batch.paths, batch.why, now_ns)
            self._noticed_marks = {path: mark for path, mark in self._noticed_marks.items() if path in self._failed}
        except BaseException:
            self.batcher.put_back(batch.paths)
            raise

    def push_all(self, now_ns: int) -> None:
        """Push everything that waits, and retry what failed. Raises VanishedError."""
        self.push(now_ns)
        self._push_again(list(self._failed), now_ns)

    def pull_all(self, now_ns: int) -> None:
        """Take in everything that the client has brought, even if it changed just now. Raises VanishedError."""
        self._pull_due(now_ns, at_once=True)
        self._look_again(now_ns, at_once=True)

    def flush(self) -> None:
        """Store the agreements, once the names of their entries are on the disk."""
        for side in (self.mirror.box, self.mirror.sync):
            side.sync_names()
        try:
            self.mirror.store.flush()
        except OSError as error:  # the agreement stays in memory, and after a kill, comparing the files finds it again
            self._say_once("failed", f"the state cannot be written: {error.strerror or error}")

    # --- inside ---

    def _differs_from_agreement(self, path: str, now: FoundEntry | None, side: Side) -> bool:
        was = self.mirror.store.get(path)
        if was is None or now is None:
            return (was is None) != (now is None)
        mark = was.box if side == "ours" else was.sync
        return was.kind != now.kind or was.mode != now.mode or was.target != now.target or (
            now.kind == "file" and mark != now.mark
        )  # fmt: skip

    def _take_box_change(self, path: str, now_ns: int, linked: set[int], seen: FoundEntry | None = None) -> None:
        """Let a path of the savingbox wait for a push, or no longer if it is as it was agreed on."""
        try:
            change, now = self.mirror.box_change(path, seen)
            if now is not None and now.names > 1 and now.kind == "file":
                linked.add(now.mark.inode)
            if change == "no":
                self._stop_waiting(path, now_ns)
                return
            mark = now and now.mark
            is_noticed = path in self._noticed_marks
            if is_noticed and self._noticed_marks[path] == mark and self._is_waiting(path):
                return  # examined again: it has not changed since
            is_full = self.batcher.is_full
            if is_noticed or not is_full:  # when all is due, it does not matter what changes again
                self._noticed_marks[path] = mark
            self._failed.pop(path, None)
            if now is None or now.kind != "file":
                self.batcher.add_removal(path, now_ns)
                return
            if path in self._count_due_ns or is_full:
                self.batcher.add_change(path, self._bytes_of(path), now_ns)
                return
            counted_bytes = self._count_bytes(path, now, now_ns)
            if counted_bytes == 0 and change != "yes" and self._has_only_new_mark(path, now):
                self._stop_waiting(path, now_ns)
                return
            self.batcher.add_change(path, counted_bytes, now_ns)
        except (OSError, CloudbenchError):  # it is pushed anyway, and the push itself reports the error
            self.batcher.add_change(path, self._bytes_of(path), now_ns)

    def _find_gone_inodes(self, paths: Sequence[str]) -> dict[int, str]:
        """Return agreed files that are gone, by inode. Some may have been renamed: then their content is not new."""
        gone_inodes = {}
        for path in paths:
            was = self.mirror.store.get(path)
            if was is not None and was.kind == "file":
                with contextlib.suppress(OSError):
                    if self.mirror.box.find_entry(path) is None:
                        gone_inodes[was.box.inode] = path
        return gone_inodes

    def _compare_content(self, path: str, now_ns: int) -> None:
        """Compare a file although its mark is as agreed. This takes at most a tenth of the time."""
        was = self.mirror.store.get(path)
        if was is None or was.kind != "file" or path in self._count_due_ns:
            return
        began_ns = self.cpu_ns()
        try:
            if not self.mirror.is_as_agreed(path):
                self.mirror.store.replace(path, was._replace(box=NEVER))
                self._take_box_change(path, now_ns, set())
        except (OSError, CloudbenchError):
            return  # it is changing right now, which raises another event
        self._delay_next_count(path, now_ns, self.cpu_ns() - began_ns)

    def _delay_next_count(self, path: str, now_ns: int, took_ns: int) -> None:
        if took_ns > _SOON_NS // _SHARE:
            self._count_due_ns[path] = now_ns + _SHARE * took_ns

    def _stop_waiting(self, path: str, now_ns: int) -> None:
        """Note that the box is back at the agreed content.

        Nothing is pushed, but the client may have changed the entry.
        """
        if self._is_waiting(path):
            self.batcher.forget(path)
            self._failed.pop(path, None)
            self.incoming[path] = now_ns, now_ns

    def _bytes_of(self, path: str) -> int:
        was = self.batcher.get_waiting(path)
        return was.unpushed_bytes if was else 0

    def _has_only_new_mark(self, path: str, now: FoundEntry) -> bool:
        """Return whether only the mark has changed. If so, the agreement gets the new mark."""
        was = self.mirror.store.get(path)
        if was is None or was.mode != now.mode:
            return False
        return self.mirror.reconcile(path) in ("same", "agreed")

    def _count_bytes(self, path: str, now: FoundEntry, now_ns: int) -> int:
        """Return the compressed bytes to push for a file.

        Delays the next count by a multiple of the time that this one took.
        """
        began_ns = self.cpu_ns()
        copy_path = path if self.mirror.store.get(path) else self._gone_inodes.get(now.mark.inode, path)
        theirs = self.mirror.sync.find_entry(copy_path)
        enough_bytes = self.batcher.rules.limit_bytes
        with self.mirror.box.reading(path) as new:
            if theirs is None or theirs.kind != "file":
                counted_bytes = content.compressed_bytes(new, None, enough_bytes=enough_bytes)
            else:
                ranges = self.mirror.ranges(path, new)
                with self.mirror.sync.reading(copy_path) as old:
                    counted_bytes = content.compressed_bytes(new, old, ranges, enough_bytes=enough_bytes)
        if counted_bytes:
            self._note_new_content(path, now)
        self._delay_next_count(path, now_ns, self.cpu_ns() - began_ns)
        return counted_bytes

    def _note_new_content(self, path: str, now: FoundEntry) -> None:
        """Note that the content has changed, also where the mark does not show it because the time was set back.

        Otherwise the client's next change would pass for the only one.
        """
        was = self.mirror.store.get(path)
        if (
            was is not None
            and self.mirror.box_change(path, now)[0] != "yes"
            and self.mirror.sync_change(path)[0] == "no"
        ):
            self.mirror.store.replace(path, was._replace(box=NEVER))

    def _count_again(self, now_ns: int) -> None:
        for path in [path for path, due_ns in self._count_due_ns.items() if due_ns <= now_ns]:
            del self._count_due_ns[path]
            if path not in self.batcher:
                self._compare_content(path, now_ns)
                continue
            try:
                now = self.mirror.box.find_entry(path)
                if now is not None and now.kind == "file":
                    self.batcher.correct_bytes(path, self._count_bytes(path, now, now_ns))
            except (OSError, CloudbenchError):
                continue  # the push itself reports the error

    def _look_again(self, now_ns: int, *, at_once: bool = False) -> None:
        for path in self.mirror.again:
            self._recheck_due_ns.setdefault(path, now_ns + _SOON_NS)
        self.mirror.again.clear()
        due = [path for path, due_ns in self._recheck_due_ns.items() if at_once or due_ns <= now_ns]
        for path in due:
            del self._recheck_due_ns[path]
        if due:
            self.box_changed(due, now_ns)
            for path in due:
                if path not in self.incoming:
                    self.incoming[path] = now_ns, now_ns
            self.flush()

    def _pull_due(self, now_ns: int, *, at_once: bool = False) -> None:
        due = [
            path
            for path, (last_ns, first_ns) in self.incoming.items()
            if at_once or min(last_ns + _SETTLE_NS, first_ns + _SETTLE_AT_MOST_NS) <= now_ns
        ]
        if due:
            self._act_on_all(
                self._deepest_deletions_first(due), self.mirror.box, lambda path: self._pull_path(path, now_ns)
            )

    def _pull_path(self, path: str, now_ns: int) -> None:
        """Take one change of the sync folder in, or try again later if it cannot be done now."""
        del self.incoming[path]
        if self._is_waiting(path):
            return  # the push looks at both sides
        try:
            if self.mirror.sync_change(path)[0] == "no":
                return
            if self.mirror.box_change(path)[0] == "yes":
                self._take_box_change(path, now_ns, set())
                return
            outcome = self.mirror.reconcile(path)
        except (BusyError, OvertakenError) as error:
            self.incoming[path] = now_ns + _BUSY_NS, now_ns + _BUSY_NS
            if isinstance(error, BusyError):
                self._say_once("note", f"waiting to take in {error}")
        except VanishedError:
            self.incoming[path] = now_ns, now_ns
            raise
        except OSError as error:
            later_ns = self._next_retry_ns(path, now_ns)
            self.incoming[path] = later_ns, later_ns
            self._say_once("failed", f"{path!r} cannot be taken in: {error.strerror or error}; will try again")
        else:
            self._note_success(path)
            if outcome == "pulled":
                self.pulls += 1
                self.report(Pull(path))

    def _push_paths(self, paths: dict[str, Waiting], why: str, now_ns: int) -> None:
        """Push these entries, and report it. Each failed entry is retried by itself and holds up no other."""
        self.mirror.sync.must_be_there()
        self.mirror.box.must_be_there()
        before_bytes, changed = self.mirror.written_bytes, 0
        try:
            if moved := self.mirror.repeat_renames(paths):
                changed += moved
                self.flush()
        except (OSError, CloudbenchError):
            self.mirror.sync.must_be_there()  # otherwise the renamed entries are copied

        def push_path(path: str) -> None:
            nonlocal changed
            try:
                outcome: MirrorOutcome = self.mirror.reconcile(path)
            except VanishedError:
                raise
            except (BusyError, OvertakenError):
                self._failed[path] = _Failed(now_ns + _BUSY_NS, paths[path])
            except OSError as error:
                self.mirror.sync.must_be_there()
                self._failed[path] = _Failed(self._next_retry_ns(path, now_ns), paths[path])
                self._say_once("failed", f"{path!r} cannot be pushed: {error.strerror or error}; will try again")
            else:
                changed += outcome in ("pushed", "conflict")
                self._note_success(path)

        order = self._deepest_deletions_first(list(paths))
        self._act_on_all(order, self.mirror.sync, push_path, self._note_intents)
        if changed:
            self.pushes += 1
            counted_bytes = sum(waiting.unpushed_bytes for path, waiting in paths.items() if path not in self._failed)
            self.report(Push(
                self.pushes, why, changed, counted_bytes,
                self.mirror.written_bytes - before_bytes, now_ns - min(waiting.first_ns for waiting in paths.values()),
            ))  # fmt: skip

    def _push_again(self, paths: Sequence[str], now_ns: int) -> None:
        waiting_paths = {path: self._failed.pop(path).waiting for path in paths}
        if not waiting_paths:
            return
        try:
            self._push_paths(waiting_paths, "again", now_ns)
        except BaseException:
            self._failed.update({path: _Failed(now_ns, waiting) for path, waiting in waiting_paths.items()})
            raise

    def _act_on_all(
        self, paths: Sequence[str], target: FolderSide, handle_entry: Callable[[str], None],
        announce: Callable[[Sequence[str]], None] = lambda paths: None,
    ) -> None:  # fmt: skip
        """Act on many entries, part by part. An agreement is stored only after its files are on the disk.

        ``announce`` is called with the entries of each part before the first of them is handled.
        """
        is_durable = len(paths) <= _MANY
        for begin in range(0, len(paths), _SYNCED):
            part = paths[begin : begin + _SYNCED]
            announce(part)
            target.is_durable = is_durable
            try:
                for count, path in enumerate(part, begin + 1):
                    handle_entry(path)
                    if is_durable:  # before a slow next entry: a kill leaves in doubt what is not stored
                        self.flush()
                    if count % _PROGRESS == 0:
                        self.report(MirrorProgress(count, len(paths)))
            finally:
                target.leave_folder()
                if not is_durable:
                    os.sync()
                target.is_durable = True
            self.flush()

    def _note_intents(self, paths: Iterable[str]) -> None:
        try:
            self.mirror.note_intents(paths)
        except OSError as error:  # the note only helps after a kill, to tell who changed a file
            self._say_once("failed", f"the state cannot be written: {error.strerror or error}")

    def _is_waiting(self, path: str) -> bool:
        return path in self.batcher or path in self._failed

    def _deepest_deletions_first(self, paths: Sequence[str]) -> list[str]:
        """Return an order that empties folders before it removes them, and creates them before it fills them."""
        gone = [path for path in paths if not self._is_on_both(path)]
        present = set(paths).difference(gone)
        return sorted(gone, key=lambda path: -path.count("/")) + sorted(present)

    def _is_on_both(self, path: str) -> bool:
        """Return whether the entry is to be kept or created, rather than removed."""
        was = self.mirror.store.get(path)
        try:
            return was is None or (
                self.mirror.box.find_entry(path) is not None and self.mirror.sync.find_entry(path) is not None
            )
        except OSError:
            return True

    def _next_retry_ns(self, path: str, now_ns: int) -> int:
        delay_ns = min(max(2 * self._delays_ns.get(path, 0), _FIRST_RETRY_NS), _LAST_RETRY_NS)
        self._delays_ns[path] = delay_ns
        return now_ns + delay_ns

    def _note_success(self, path: str) -> None:
        self._delays_ns.pop(path, None)
        if self._said_texts:
            self._said_texts -= {text for text in self._said_texts if text.startswith(repr(path))}

    def _say_once(self, kind: Literal["failed", "note"], text: str) -> None:
        if text not in self._said_texts:
            self._said_texts.add(text)
            self.report(Trouble(kind, text))
