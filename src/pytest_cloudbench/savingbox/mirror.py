"""Making two folders agree, one entry at a time, by comparing each side with the last agreement.

When to act is decided elsewhere. The decision depends on whether each side has changed the entry since the agreement:

================  ===================  ======================================================================
box               sync folder          what is done
================  ===================  ======================================================================
as agreed         as agreed            nothing
changed           as agreed            push: the sync folder follows
as agreed         changed              pull: the box follows
gone              gone                 forgotten
changed           gone                 push: a change outlives a deletion
gone              changed              pull: the same
both changed      to the same          agreed
both changed      to different things  **conflict**: both are kept. The sync folder's version gets another name, first
                                       there, then in the box. The box's keeps its name: programs may have it open
================  ===================  ======================================================================
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from pytest_cloudbench.model import CloudbenchError
from pytest_cloudbench.savingbox import content
from pytest_cloudbench.savingbox.agreements import Agreed, Change, change_of
from pytest_cloudbench.savingbox.conflicts import conflict_paths
from pytest_cloudbench.savingbox.listings import FoundEntry, parents
from pytest_cloudbench.savingbox.mounts import InnerMounts
from pytest_cloudbench.savingbox.openfiles import BusyError, may_be_written
from pytest_cloudbench.savingbox.patching import Patching, unwritten_pieces, written_pieces
from pytest_cloudbench.savingbox.side import FolderSide, OvertakenError
from pytest_cloudbench.savingbox.store import NEVER, AgreementStore, Intent
from pytest_cloudbench.savingbox.written import NoWrites, SeenWrites, Writes
from pytest_cloudbench.support.watching import FileMark, mark_file

_SUMMED_BYTES = 4 << 20
"""Up to this file size, the journal of a patch has checksums of the whole file, also of the parts left unchanged."""

_NOT_EMPTY = (errno.ENOTEMPTY, errno.EEXIST)

MirrorOutcome = Literal["same", "agreed", "pushed", "pulled", "conflict"]
"""The outcome of making both folders agree on one entry."""


@dataclass
class Mirror:
    """Two folders, and their agreements.

    Attributes:
        box: the user's folder.
        sync: the client's folder.
        store: their agreements.
        writes: the mechanism that sees which bytes of the box's files are written.
        mounts: the mounts inside both folders.
        report_conflict: called with a sentence about each conflict.
        written_bytes: bytes written to the sync folder so far.
        again: entries of the box that may have changed unseen since they were read, and are to be examined again soon.
    """

    box: FolderSide
    sync: FolderSide
    store: AgreementStore
    writes: Writes = field(default_factory=lambda: NoWrites(""))
    report_conflict: Callable[[str], None] = lambda text: None
    written_bytes: int = 0
    conflicts: int = 0
    again: set[str] = field(default_factory=set)
    mounts: InnerMounts = field(init=False)
    _copies: dict[int, str] = field(default_factory=dict)
    """The path, by inode of the box, of the copy that lacks only the file's writes since they were last taken."""
    _new_files: dict[str, FoundEntry] = field(default_factory=dict)
    """Files of the box that the sync folder did not have when their intents were noted."""
    _interrupted: set[str] = field(default_factory=set)
    """Entries whose last attempt failed, perhaps after the copy had been made, as in a folder that vanished."""

    def __post_init__(self) -> None:
        """Prepare to look after the mounts."""
        self.mounts = InnerMounts(self.box.root, self.sync.root, self.store)

    def box_change(self, path: str, seen: FoundEntry | None = None) -> tuple[Change, FoundEntry | None]:
        """Return whether the box's entry has changed since the agreement, and the entry now. Raises OSError.

        ``seen`` is the entry if it was just looked at.
        """
        was, now = self.store.get(path), seen or self.box.find_entry(path)
        return change_of(was, was and was.box, now), now

    def sync_change(self, path: str) -> tuple[Change, FoundEntry | None]:
        """Return whether the sync folder's entry has changed since the agreement, and the entry now. Raises OSError."""
        was, now = self.store.get(path), self.sync.find_entry(path)
        return change_of(was, was and was.sync, now), now

    def reconcile(self, path: str) -> MirrorOutcome:
        """Make both folders agree on one entry.

        Raises BusyError and OvertakenError (look again), VanishedError, and OSError. Nothing is lost then: the
        entry still differs from the agreement.
        """
        new_file = self._new_files.pop(path, None)
        try:
            self._begin_attempt(path)
            if new_file is not None and self.store.get(path) is None and self._push_new_file(path, new_file):
                return "pushed"
            with self.box.remembering_folder(), self.sync.remembering_folder():
                return self._reconcile(path)
        except (OSError, CloudbenchError):
            self._interrupted.add(path)
            raise

    def _reconcile(self, path: str) -> MirrorOutcome:
        was, seen_ns = self.store.get(path), time.time_ns()
        (in_box, ours), (in_sync, theirs) = self.box_change(path), self.sync_change(path)
        # An entry may be missing because a mount or the whole folder is: check both before believing in a deletion.
        self.mounts.must_be_there(path)
        for side, entry in ((self.box, ours), (self.sync, theirs)):
            if entry is None:
                side.must_be_there()
        if ours is None and theirs is None:
            self.store.replace(path, None)
            return "same" if was is None else "agreed"
        if in_box == "no" and in_sync == "no":
            return "same"
        # A newer time alone is not a conflicting change: clients set times and attributes of the files they sync.
        if in_sync == "time" and in_box in ("yes", "unsure") and theirs is not None:
            if ours and was and ours.kind != "link" and ours.mode == was.mode != theirs.mode:
                self.box.set_mode(path, theirs.mode)
                ours = self.box.find_entry(path)
            in_sync = "no"
        if in_sync == "no":
            return self._follow_change(path, ours, theirs, seen_ns, push=True)
        if in_box == "no" or (in_box == "time" and in_sync == "yes" and ours is not None):
            return self._follow_change(path, ours, theirs, seen_ns, push=False)
        if ours is None or theirs is None:
            return self._follow_change(path, ours, theirs, seen_ns, push=theirs is None)
        if self._is_same(path, ours, theirs):
            return self._agree_on(path, ours, theirs, was, seen_ns)
        return self._keep_both(path)

    def repeat_renames(self, paths: Iterable[str]) -> int:
        """Repeat renames of these entries of the box in the sync folder. Returns their number."""
        removed, new_paths = [], []
        for path in sorted(paths):
            was = self.store.get(path)
            if was is None:
                new_paths.append(path)
            elif was.kind != "link" and self.box.find_entry(path) is None:
                removed.append((path, was))
        if not removed:
            return 0
        found_new = ((path, self.box.find_entry(path)) for path in new_paths)
        created = [(path, now) for path, now in found_new if now is not None and now.kind != "link"]
        by_inode = {(was.kind, was.box.inode): path for path, was in reversed(removed)}
        tops = {path for path, now in created if (now.kind, now.mark.inode) in by_inode}
        with contextlib.suppress(OSError):  # the note only helps after a kill
            self.note_intents(path for path, _ in created if not tops.isdisjoint((path, *parents(path))))
        count = 0
        for path, now in created:
            old = by_inode.pop((now.kind, now.mark.inode), None)
            if old is not None and old in self.store.entries and path not in self.store.entries:
                count += self._repeat_rename(old, path, now)
        return count

    def note_intents(self, paths: Iterable[str]) -> None:
        """Note all at once that these entries are about to be pushed. Raises OSError."""
        intents, new_files, seen_ns = dict[str, Intent](), dict[str, FoundEntry](), time.time_ns()
        listed_folder, names = None, frozenset[str]()
        self._new_files = {}
        with self.box.remembering_folder(), self.sync.remembering_folder():
            for path in paths:
                folder, _, name = path.rpartition("/")
                try:
                    self._begin_attempt(path)
                    ours, theirs = self.box.find_entry(path), None
                    # Where nothing is agreed on, there are few names or none: listing them is quicker than lookups.
                    if folder != listed_folder and folder not in self.store.entries.folders:
                        names, listed_folder = self.sync.find_names(folder), folder
                    if folder != listed_folder or name in names:
                        theirs = self.sync.find_entry(path)
                except OSError:
                    continue  # the push itself reports the error
                if ours is not None:
                    intents[path] = Intent.for_entry("theirs", ours, theirs, seen_ns)
                    if theirs is None and ours.kind == "file":
                        new_files[path] = ours
        self.store.begin_intents(intents)
        self._new_files = new_files

    def _note_intent(
        self, path: str, source_entry: FoundEntry, present: FoundEntry | None, side: Literal["ours", "theirs"],
        seen_ns: int, read_mark: FileMark | None = None,
    ) -> None:  # fmt: skip
        """Note an entry that is about to be made on one side as it is on the other, unless it is noted already.

        ``seen_ns`` is a time before both were looked at. ``read_mark`` is the mark of the content that was read, which
        may differ from that of ``source_entry``.
        """
        if read_mark is not None and read_mark != source_entry.mark:
            source_entry = source_entry._replace(mark=read_mark)
        noted_intent = self.store.unfinished_intent(path)
        if noted_intent is not None and noted_intent.is_for_new_entry(side, source_entry, present):
            return
        with contextlib.suppress(OSError):  # as in ``note_intents``: the note only helps after a kill
            self.store.begin_intents({path: Intent.for_entry(side, source_entry, present, seen_ns)})

    def _begin_patch(
        self, path: str, present: FoundEntry, pages: Sequence[content.Page], was_bytes: int, to_bytes: int
    ) -> None:
        """Note a patch that is about to be written. Raises OvertakenError and OSError."""
        pieces = written_pieces(pages)
        if was_bytes <= _SUMMED_BYTES:
            with self.sync.reading(path) as theirs:
                pieces += unwritten_pieces(theirs, pages, was_bytes, to_bytes)
                if mark_file(os.fstat(theirs)) != present.mark:
                    raise OvertakenError(f"{path!r} has changed")
        self.store.begin_patch(path, Patching(present.mark.inode, was_bytes, to_bytes, tuple(pieces)))

    def settle_begun(self) -> None:
        """Find out how far a killed process got, or this one in a folder that vanished. Raises OSError."""
        begun = {**self.store.unfinished_intents(), **self.store.unfinished_patches()}
        for path in begun:
            self._settle(path)
        if begun:
            os.sync()  # before there are agreements on what may not be on the disk yet
        self.store.flush()
        self.store.forget_unfinished()

    def _begin_attempt(self, path: str) -> None:
        """Check that no mount is missing, and settle a failed attempt before its notes are replaced. Raises OSError."""
        self.mounts.must_be_there(path)
        if path in self._interrupted:
            self._settle(path)
            self._interrupted.discard(path)

    def _settle(self, path: str) -> None:
        """Agree on what an attempt has made of an entry before it ended."""
        intent, patch = self.store.unfinished_intent(path), self.store.unfinished_patch(path)
        if intent is not None:
            present = (self.box if intent.side == "ours" else self.sync).find_entry(path)
            if present is not None and intent.is_done(present):
                self.store.replace(path, intent.agreement(present))
                return
            if intent.has_made_room(self.store.get(path), present):
                self.store.replace(path, None)  # otherwise it would seem deleted, and be deleted on the other side, too
                return
        if patch is not None:
            self._settle_patch(path, patch)

    def _settle_patch(self, path: str, patch: Patching) -> None:
        """Settle a patch that has ended before its last page.

        The file, half old and half new, is still ours if nobody else changed it.
        """
        was, theirs = self.store.get(path), self.sync.find_entry(path)
        if was and theirs and theirs.mark.inode == patch.inode and self._has_only_our_content(path, patch):
            # The sync folder's file counts as unchanged and the box's as changed, so that the push is repeated.
            self.store.replace(path, was._replace(sync=theirs.mark, box=NEVER))

    # --- one entry ---

    def _follow_change(
        self, path: str, ours: FoundEntry | None, theirs: FoundEntry | None, seen_ns: int, *, push: bool
    ) -> MirrorOutcome:
        """Make one side as the other is. ``seen_ns`` is a time before both were looked at."""
        source, target = (self.box, self.sync) if push else (self.sync, self.box)
        source_entry, present = (ours, theirs) if push else (theirs, ours)
        outcome: MirrorOutcome = "pushed" if push else "pulled"
        if source_entry is None:
            return self._delete_entry(path, present, target, source, outcome)
        self._ensure_parents(path, target)
        if present is not None and (present.kind != source_entry.kind or source_entry.kind == "link"):
            self._note_intent(path, source_entry, present, "theirs" if push else "ours", seen_ns)
            if present.kind != "folder":
                target.remove(path, present)
            elif not self._remove_folder(path, target):
                return self._keep_both(path)
            present = None
        if source_entry.kind == "file":
            return self._copy_file(path, source_entry, present, seen_ns, push=push)
        self._note_intent(path, source_entry, present, "theirs" if push else "ours", seen_ns)
        if source_entry.kind == "link":
            target.make_link(path, source_entry.target)
        elif present is None:
            target.make_folder(path, source_entry.mode)
        else:
            target.set_mode(path, source_entry.mode)
        self._record_made(path, source_entry, target)
        return outcome

    def _copy_file(
        self, path: str, source_entry: FoundEntry, present: FoundEntry | None, seen_ns: int, *, push: bool
    ) -> MirrorOutcome:
        """Copy a file to the other side. A push writes only what has changed into a file that is there."""
        if not push:
            return self._pull_file(path, source_entry, present, seen_ns)
        note = partial(self._note_intent, path, source_entry, present, "theirs", seen_ns)
        with self.box.reading(path) as fd:
            if may_be_written(fd):
                content.notice_stores(fd)
            if present is None:
                self._follow_writes(path, fd)
                new_entry, source_mark, written_bytes = self.sync.put_file(path, fd, source_entry.mode, None, note)
            else:
                try:
                    new_entry, source_mark, written_bytes = self.sync.patch_file(
                        path, fd, source_entry.mode, present, lambda: self._take_ranges(path, fd), note,
                        partial(self._begin_patch, path, present),
                    )  # fmt: skip
                except BaseException as error:
                    self.writes.distrust_file(fd, "a push failed")
                    if isinstance(error, OSError) and (patch := self.store.unfinished_patch(path)) is not None:
                        self._settle_patch(path, patch)
                    raise
            after = mark_file(os.fstat(fd))
        self.written_bytes += written_bytes
        self._record_copy(path, after, source_mark, new_entry, seen_ns, push=True)
        return "agreed" if new_entry == present else "pushed"

    def _push_new_file(self, path: str, noted: FoundEntry) -> bool:
        """Push a file that is as it was noted. Returns False if both sides must be looked at instead.

        Its intent is noted already. Raises as ``reconcile`` does.
        """
        seen_ns = time.time_ns()
        try:
            fd = self.box.open_file(path)
        except OvertakenError:
            return False
        try:
            status = os.fstat(fd)
            mark = mark_file(status)
            if (mark, status.st_mode, status.st_nlink) != (noted.mark, stat.S_IFREG | noted.mode, noted.names):
                return False
            if may_be_written(fd):
                content.notice_stores(fd)
            self._follow_writes(path, fd)
            pushed = self.sync.put_new_file(path, fd, status)
        finally:
            os.close(fd)
        if pushed is None:
            return False
        new_entry, written_bytes = pushed
        self.written_bytes += written_bytes
        self._record_copy(path, mark, mark, new_entry, seen_ns, push=True)
        return True

    def _follow_writes(self, path: str, fd: int) -> None:
        """See the writes to a file that is about to be copied as a whole."""
        if not isinstance(self.writes, NoWrites):
            self.writes.follow_file(fd)
            self._copies[os.fstat(fd).st_ino] = path

    def is_as_agreed(self, path: str) -> bool:
        """Return whether a file whose mark is as agreed also has the agreed content. Raises as ``reconcile`` does."""
        if self.sync_change(path)[0] != "no":
            return True  # the pull handles the client's changes
        with self.box.reading(path) as ours:
            ranges = self.ranges(path, ours)
            if ranges is not None:
                return not ranges
            with self.sync.reading(path) as theirs:
                is_equal = content.are_equal(ours, theirs)
        return is_equal or self.sync_change(path)[0] != "no"  # the client may have changed it during the comparison

    def ranges(self, path: str, fd: int) -> list[tuple[int, int]] | None:
        """Return where a file of the box may differ from the agreed content. None: anywhere, if no write was seen."""
        return self._known_ranges(path, fd, self.writes.peek_writes)

    def _known_ranges(self, path: str, fd: int, ask: Callable[[int], SeenWrites]) -> list[tuple[int, int]] | None:
        was, writes = self.store.get(path), ask(fd)
        status = os.fstat(fd)
        # A file that was renamed differs from the copy under its new name in more than its writes.
        is_its_copy = was is not None and was.box.inode == status.st_ino and self._copies.get(status.st_ino) == path
        if was is None or not is_its_copy or writes.ranges is None:
            return None
        ranges: list[tuple[int, int]] = [*writes.ranges]
        # A file gets its new size a moment after the write is seen. If it is longer than the seen writes explain,
        # it is compared.
        reach = max((end for begin, end in ranges if begin <= was.box.size_bytes), default=0)
        return ranges if status.st_size <= max(reach, was.box.size_bytes) else None

    def _take_ranges(self, path: str, fd: int) -> list[tuple[int, int]] | None:
        ranges = self._known_ranges(path, fd, self.writes.take_writes)
        self._copies[os.fstat(fd).st_ino] = path
        if ranges is None:
            self.writes.follow_file(fd)  # it is about to be compared, and its writes are seen from now on
        return ranges

    def _pull_file(
        self, path: str, source_entry: FoundEntry, present: FoundEntry | None, seen_ns: int
    ) -> MirrorOutcome:
        with self.sync.hold_entry(path, source_entry):
            pass  # raises unless the client has finished it
        if present is not None:
            with self.box.hold_entry(path, present):
                pass  # raises if a program is writing it, which is checked again when it is replaced
            if self._is_same(path, present, source_entry):
                return self._agree_on(path, present, source_entry, self.store.get(path), seen_ns)
        with self.sync.reading(path) as fd:
            note = partial(self._note_intent, path, source_entry, present, "ours", seen_ns)
            new_entry, source_mark, _ = self.box.put_file(path, fd, source_entry.mode, present, note)
            after = mark_file(os.fstat(fd))
        self._record_copy(path, after, source_mark, new_entry, seen_ns, push=False)
        return "pulled"

    def _record_copy(
        self, path: str, after: FileMark, before: FileMark, new_entry: FoundEntry, seen_ns: int, *, push: bool,
        is_certain: bool = False,
    ) -> None:  # fmt: skip
        """Note that the target is now a copy of the source, given the source's marks before and after its reading.

        ``seen_ns`` is a time before ``before`` was taken: judged by a later time, a mark too recent to show the next
        change would seem old enough. ``is_certain`` says that the mark shows any change, however recent it is.
        """
        self.mounts.must_be_there(path)  # a copy in the place of a mount that has just gone would be hidden by it
        # The mark is of the file that was read. Its name may be another file's by now, or its folder may have vanished.
        mark = before
        if after != before:
            mark = NEVER  # it was written while it was read: compare it next time
        elif not (is_certain or before.is_reliable(seen_ns)):
            mark = before._replace(changed_ns=0)
        if mark != before:
            self.again.add(path)
        box, sync = (mark, new_entry.mark) if push else (new_entry.mark, mark)
        self.store.replace(path, Agreed(new_entry.kind, new_entry.mode, box, sync, new_entry.target))

    def _record_made(self, path: str, source_entry: FoundEntry, target: FolderSide) -> None:
        """Note a folder or link that was made as it was seen on the other side, which may have changed since."""
        self.mounts.must_be_there(path)
        new_entry = target.find_entry(path)
        if new_entry is None or (new_entry.kind, new_entry.target) != (source_entry.kind, source_entry.target):
            raise OvertakenError(f"{path!r} was changed by another program")
        box, sync = (source_entry, new_entry) if target is self.sync else (new_entry, source_entry)
        self.store.agree_on(path, new_entry.kind, box, sync)

    def _record_both(self, path: str) -> None:
        """Note a folder or link that both sides have."""
        ours, theirs = self.box.find_entry(path), self.sync.find_entry(path)
        if ours is None or theirs is None or (ours.kind, ours.target) != (theirs.kind, theirs.target):
            raise OvertakenError(f"{path!r} was changed by another program")
        self.store.agree_on(path, ours.kind, ours, theirs)

    def _delete_entry(
        self, path: str, present: FoundEntry | None, target: FolderSide, source: FolderSide, outcome: MirrorOutcome
    ) -> MirrorOutcome:
        if present is not None and present.kind != "folder":
            target.remove(path, present)
        elif present is not None and not self._remove_folder(path, target):
            # It has something new in it: the folder stays, and is created again on the other side.
            self._ensure_parents(path, source)
            source.make_folder(path, present.mode)
            self._record_both(path)
            return "agreed"
        self.store.replace(path, None)
        return outcome

    def _remove_folder(self, path: str, side: FolderSide) -> bool:
        """Remove a folder. Returns False if it has something new in it. Raises OvertakenError if it is not empty."""
        try:
            side.remove_folder(path)
        except OSError as error:
            if error.errno not in _NOT_EMPTY:
                raise
            if not self._has_new_entries(path, side):
                raise OvertakenError(f"{path!r} is not empty yet: its entries could not be removed") from error
            return False
        return True

    def _has_new_entries(self, path: str, side: FolderSide) -> bool:
        """Return whether a folder has something below it that is new or changed, so that it is not deleted."""
        change = self.box_change if side is self.box else self.sync_change
        for inner in (f"{path}/{name}" for name in side.names(path)):
            changed, now = change(inner)
            if self.store.get(inner) is None or changed not in ("no", "time"):
                return True
            if now is not None and now.kind == "folder" and self._has_new_entries(inner, side):
                return True
        return False

    def _ensure_parents(self, path: str, target: FolderSide) -> None:
        if target.has_folder_of(path):
            return
        for parent in parents(path):
            now = target.find_entry(parent)
            if now is None or now.kind != "folder":
                self.reconcile(parent)
        if not target.has_folder_of(path):
            raise OvertakenError(f"{path!r}: the folder it is in is gone")

    def _is_same(self, path: str, ours: FoundEntry, theirs: FoundEntry) -> bool:
        if ours.kind != theirs.kind:
            return False
        if ours.kind != "file":
            return ours.kind == "folder" or ours.target == theirs.target
        if ours.mark.size_bytes != theirs.mark.size_bytes:
            return False
        with self.box.reading(path) as box_fd, self.sync.reading(path) as sync_fd:
            return content.are_equal(box_fd, sync_fd)

    def _agree_on(
        self, path: str, ours: FoundEntry, theirs: FoundEntry, was: Agreed | None, seen_ns: int
    ) -> MirrorOutcome:  # fmt: skip
        """Agree on an entry whose content is the same on both sides. ``seen_ns`` is a time before both were looked at.

        Permissions follow the side that changed them, or the box if both did.
        """
        if ours.kind != "file":
            if ours.mode != theirs.mode:
                self._follow_mode(path, ours, theirs, was)
            self._record_both(path)
            return "agreed"
        before, sync_entry, first_mark = ours.mark, theirs, ours.mark
        if ours.mode != theirs.mode:
            ours, sync_entry = self._follow_mode(path, ours, theirs, was)
            before = ours.mark if ours.mark[:3] == before[:3] else NEVER
        now = self.box.find_entry(path)
        # A pulled file's mark is young, and yet shows any write: its time is the client's. Made unsure, it would
        # conflict with the client's next change.
        is_certain = was is not None and was.box == first_mark
        after = NEVER if now is None else now.mark
        self._record_copy(path, after, before, sync_entry, seen_ns, push=True, is_certain=is_certain)
        return "agreed"

    def _follow_mode(
        self, path: str, ours: FoundEntry, theirs: FoundEntry, was: Agreed | None
    ) -> tuple[FoundEntry, FoundEntry]:
        if was is not None and ours.mode == was.mode:
            self.box.set_mode(path, theirs.mode)
        else:
            self.sync.set_mode(path, ours.mode)
        now = self.box.find_entry(path), self.sync.find_entry(path)
        if now[0] is None or now[1] is None or now[1].mark[:3] != theirs.mark[:3]:
            raise OvertakenError(f"{path!r} was changed by another program")
        return now[0], now[1]

    def _keep_both(self, path: str) -> MirrorOutcome:
        for conflict_path in conflict_paths(path, time.strftime("%Y-%m-%d %H-%M-%S")):
            if self.box.find_entry(conflict_path) is not None:
                continue
            with contextlib.suppress(FileExistsError):
                self.sync.rename(path, conflict_path)
                break
        else:
            raise OSError(errno.EEXIST, "too many conflicts in one second", path)
        self.conflicts += 1
        self.report_conflict(f"both sides changed {path!r}: both are kept, the sync folder's as {conflict_path!r}")
        # Agree that the sync folder has nothing there: if we are killed here, that is also what the next start finds.
        self.store.replace(path, None)
        self.reconcile(path)
        self.again.add(path)
        with contextlib.suppress(BusyError, OvertakenError):
            self.reconcile(conflict_path)
        return "conflict"

    def _repeat_rename(self, old: str, new: str, now: FoundEntry) -> bool:
        """Rename in the sync folder. Returns False if the result would not be that of the rename in the box."""
        was = self.store.entries[old]
        change, copy = self.sync_change(old)
        if copy is None or change == "yes" or self.sync.find_entry(new) is not None:
            return False
        try:
            self.mounts.must_be_there(old, new, with_inner=True)
            self._ensure_parents(new, self.sync)
            self.sync.rename(old, new)
        except (OSError, OvertakenError):
            return False
        renamed = self.sync.find_entry(new)
        self.store.rename(old, new)
        if self._copies.get(now.mark.inode) == old:
            self._copies[now.mark.inode] = new
        if renamed is not None and now.kind == "file":
            is_as_it_was = was.box[:3] == now.mark[:3] and was.mode == now.mode and was.box.changed_ns
            # The older mark shows permissions that the client has given it, which a rename does not settle.
            theirs = renamed.mark if change == "no" else was.sync
            self.store.replace(new, was._replace(box=now.mark if is_as_it_was else NEVER, sync=theirs))
        return True

    def _has_only_our_content(self, path: str, patch: Patching) -> bool:
        """Return whether a file of the sync folder has only our content: before or after the patch, or the box's."""
        try:
            with self.sync.reading(path) as sync_fd:
                if not patch.has_known_pieces(sync_fd):
                    return False
                ours = self.box.find_entry(path)
                if patch.covers_old_file or ours is None or ours.kind != "file":
                    return True
                with self.box.reading(path) as box_fd:
                    return patch.explains_differences(box_fd, sync_fd)
        except (OSError, CloudbenchError):  # it cannot be read, or is changing right now
            return False
