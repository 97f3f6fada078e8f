"""The batching folder as a running program: real clock, real watchers, a state file, and its status.

It starts, runs the loop, stops, and writes the status that other processes read while it runs.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import select
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from pytest_cloudbench.model import ResultsError, UsageError
from pytest_cloudbench.results.owner import is_alive, owner_text
from pytest_cloudbench.savingbox.batching.batcher import Batcher, BatchRules
from pytest_cloudbench.savingbox.batching.deferral import AdaptiveBatcher
from pytest_cloudbench.savingbox.conflicts import cut_name
from pytest_cloudbench.savingbox.engine import BoxEngine, MirrorProgress, Pull, Push, Trouble
from pytest_cloudbench.savingbox.mirror import Mirror
from pytest_cloudbench.savingbox.side import FolderSide, VanishedError
from pytest_cloudbench.savingbox.store import AgreementStore
from pytest_cloudbench.savingbox.watcher import FolderWatcher, PollingWatcher, make_watcher
from pytest_cloudbench.savingbox.written import NoWrites, Writes
from pytest_cloudbench.support.clock import now_ns
from pytest_cloudbench.support.wording import format_count

_S = 1_000_000_000
_SCAN_NS = 30 * _S
"""Time between scans while events arrive: writes through a memory map raise none."""
_POLL_NS = _S
"""Time between scans where there are no events."""
_SCAN_SHARE = 50
"""Scanning may take at most 1/N of the time."""
_BACK_NS = _S
"""Time between two checks whether a vanished folder is back."""
_STATUS_NS = _S // 2
_PUSHES_KEPT = 10_000
_MOST_BASE_BYTES = 100
"""The most bytes of the folder's name in the name of its state file."""
_TOO_MANY = "{}: more folders than fs.inotify.max_user_watches allows; it is scanned from time to time instead"

Event = Push | Pull | MirrorProgress | Trouble
AnyPath = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class SavingBoxStatus:
    """The status of a batching folder, as JSON in ``status_path``, at most half a second old while it runs.

    Attributes:
        savingbox: the user's folder.
        sync_folder: the client's folder.
        owner: the process, as ``results.owner`` describes it.
        state: ``starting``, ``watching``, ``waiting`` (a folder has vanished) or ``stopped``.
        watching: ``inotify`` or ``polling``.
        mechanism: the way changed bytes are found: ``compare``, or the name of the mechanism that sees the writes.
        mechanism_why: the reason why no better mechanism is in use, or empty if this is the best one.
        limit_bytes: the limit of the byte counter, in compressed bytes.
        quiet_s: the time without changes after which a push is due.
        at_most_s: no change waits longer than this.
        fail_safe_s: the same for files without a rhythm.
        is_adaptive: whether files with a rhythm wait for their next change.
        pushes: batches that went to the sync folder since the start.
        pushed_files: entries in them.
        counted_bytes: their compressed bytes, as far as the counter estimated them (see ``Push``).
        written_bytes: bytes written to files of the sync folder.
        pulls: entries that the client brought.
        conflicts: entries of which both versions were kept.
        unpushed_files: entries that wait.
        unpushed_bytes: their compressed bytes.
        due_s: seconds until they are pushed at the latest, or None if nothing waits.
        trouble: the latest messages about trouble, newest last.
        written_at_s: when this was written, in seconds since 1970.
    """

    savingbox: str
    sync_folder: str
    owner: str
    state: str
    watching: str
    mechanism: str
    mechanism_why: str
    limit_bytes: int
    quiet_s: float
    at_most_s: float
    fail_safe_s: float
    is_adaptive: bool
    pushes: int
    pushed_files: int
    counted_bytes: int
    written_bytes: int
    pulls: int
    conflicts: int
    unpushed_files: int
    unpushed_bytes: int
    due_s: float | None
    trouble: tuple[str, ...]
    written_at_s: float

    @property
    def is_running(self) -> bool:
        """True if the process that wrote this is still running."""
        return self.state != "stopped" and is_alive(self.owner) is not False


def state_path(savingbox: AnyPath, sync_folder: AnyPath, folder: Path | None = None) -> Path:
    """Return the state file of a pair of folders, in the user's state folder unless another one is given.

    A long name of the folder is cut, except in the name of a state file that exists, whose agreements would be lost.
    """
    if folder is None:
        import platformdirs

        folder = Path(platformdirs.user_state_dir("pytest-cloudbench")) / "savingbox"
    pair = _pair_key(savingbox, sync_folder)
    name = hashlib.sha256(pair.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    base = os.path.basename(os.path.realpath(savingbox))
    uncut_path = folder / f"{base}-{name}.sqlite"
    return uncut_path if os.path.exists(uncut_path) else folder / f"{cut_name(base, _MOST_BASE_BYTES)}-{name}.sqlite"


def status_path(state: Path) -> Path:
    """Return the file with the status, beside the state file."""
    return state.with_suffix(".status.json")


def read_status(state: Path) -> SavingBoxStatus | None:
    """Return the last status of a pair of folders, or None if it has never run or the file cannot be read."""
    try:
        fields = json.loads(status_path(state).read_text(encoding="utf-8"))
        return SavingBoxStatus(**{**fields, "trouble": tuple(fields["trouble"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


class SavingBox:
    """A folder whose changes are pushed in batches to the folder of a sync client.

    ``start`` runs it in a thread of this process. A command calls ``run``, and ``once`` makes both folders equal.

    Args:
        savingbox: the user's folder.
        sync_folder: the folder that a sync client watches.
        rules: when to push.
        state: a folder for the state file, or None for the user's state folder.
        writes: the mechanism that sees which bytes are written, such as ``written.find_writes(folder)``, which is
            closed at the end. With None, files are compared with the sync folder's copies.
        batcher: used instead of ``Batcher(rules)``, for other rules.
        report: called with every push, pull and trouble, in the thread that runs the loop.

    Raises UsageError for folders that cannot be used, or that another process is using, and ResultsError if the state
    cannot be stored.
    """

    def __init__(
        self, savingbox: AnyPath, sync_folder: AnyPath, rules: BatchRules | None = None, *,
        state: Path | None = None, writes: Writes | None = None, batcher: Batcher | None = None,
        report: Callable[[Event], None] = lambda event: None,
    ) -> None:  # fmt: skip
        if batcher is None:
            batcher = Batcher(rules or BatchRules())
        self.rules = batcher.rules
        _check_folders(savingbox, sync_folder)
        self._box = FolderSide(os.path.realpath(savingbox), "savingbox")
        self._sync = FolderSide(os.path.realpath(sync_folder), "sync folder")
        self.state_path = state_path(savingbox, sync_folder, state)
        _check_state_place(self.state_path, self._box, self._sync)
        self._report = report
        self._state = "starting"
        self._trouble: list[str] = []
        self._pushed_files = self._counted_bytes = 0
        self.pushes: deque[Push] = deque(maxlen=_PUSHES_KEPT)
        for side in (self._box, self._sync):
            side.open()
        self._claim = _claim_folders(self._box, self._sync)
        try:
            self._store = AgreementStore(self.state_path, _pair_key(savingbox, sync_folder))
        except BaseException:
            self._claim.close()
            raise
        mirror = Mirror(self._box, self._sync, self._store, writes or NoWrites("no other mechanism was requested"))
        self.engine = BoxEngine(mirror, batcher, self._report_event, time.thread_time_ns)
        self._watchers: list[FolderWatcher] = []
        self._scan_due_ns, self._status_due_ns = 0, 0
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._is_stopping = False
        self._thread: threading.Thread | None = None
        if self._store.problem:
            self._report_event(Trouble("note", self._store.problem))
        try:
            self._compare_identities()
            for side in (self._box, self._sync):
                side.clean()
            self.engine.mirror.settle_begun()
        except OSError as error:
            self.close()
            raise ResultsError(f"{str(self.state_path)!r}: {error.strerror or error}") from error
        except BaseException:
            self.close()
            raise

    # --- for programs ---

    def start(self) -> None:
        """Run it in a thread until ``stop``. Returns once both folders are watched."""
        ready = threading.Event()

        def run() -> None:
            try:
                self.run(ready.set)
            finally:
                ready.set()

        self._thread = threading.Thread(target=run, name="savingbox", daemon=True)
        self._thread.start()
        ready.wait()

    def stop(self) -> None:
        """Push what waits, and end. Safe to call in a signal handler, and more than once."""
        self._is_stopping = True
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(self._wake_write, b".")
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
            self._thread = None

    def status(self) -> SavingBoxStatus:
        """Return the current status, as it would be written to the status file."""
        engine, batcher = self.engine, self.engine.batcher
        due_ns = batcher.due_ns()
        return SavingBoxStatus(
            savingbox=self._box.root, sync_folder=self._sync.root, owner=owner_text(), state=self._state,
            watching="/".join(sorted({watcher.kind for watcher in self._watchers})) or "nothing yet",
            mechanism=engine.mirror.writes.name, mechanism_why=engine.mirror.writes.why,
            limit_bytes=batcher.rules.limit_bytes, quiet_s=batcher.rules.quiet_ns / _S,
            at_most_s=batcher.rules.at_most_ns / _S,
            fail_safe_s=batcher.fail_safe_ns / _S, is_adaptive=isinstance(batcher, AdaptiveBatcher),
            pushes=engine.pushes, pushed_files=self._pushed_files,
            counted_bytes=self._counted_bytes, written_bytes=engine.mirror.written_bytes, pulls=engine.pulls,
            conflicts=engine.mirror.conflicts, unpushed_files=engine.unpushed_files,
            unpushed_bytes=batcher.unpushed_bytes,
            due_s=None if due_ns is None else round((due_ns - now_ns()) / _S, 3), trouble=tuple(self._trouble[-5:]),
            written_at_s=round(time.time(), 3),
        )  # fmt: skip

    def close(self) -> None:
        """Release the folders, the state file and the watchers, for a box that was not run."""
        self._store.close()
        self._claim.close()
        self.engine.mirror.writes.close()
        for watcher in self._watchers:
            watcher.close()
        self._watchers = []
        for fd in (self._wake_read, self._wake_write):
            with contextlib.suppress(OSError):
                os.close(fd)
        self._wake_write = -1

    # --- running ---

    def once(self) -> bool:
        """Make both folders equal, and end. Returns whether they are equal.

        Changes made meanwhile may prevent it, and folders that cannot be read.
        """
        try:
            for _ in range(5):
                self._scan()
                if not self.engine.has_work:
                    return not self.engine.unread_folders
                self.engine.pull_all(now_ns())
                self.engine.push_all(now_ns())
                self.engine.pull_all(now_ns())
                self._scan()
                if self.engine.is_at_rest():
                    return not self.engine.unread_folders
            return False
        except VanishedError as error:
            self._report_event(Trouble("vanished", f"{error}"))
            return False
        except OSError as error:
            self._report_event(Trouble("failed", f"{error.strerror or error}"))
            return False
        finally:
            self._write_end_status()

    def run(self, ready: Callable[[], None] = lambda: None) -> bool:
        """Run until ``stop``, then push what waits. Returns whether all could be read, pushed and taken in at the end.

        ``ready`` is called once both folders are watched.
        """
        try:
            self._watchers = [self._watch(side) for side in (self._box, self._sync)]
            is_there = self._run_step(self._scan)
            ready()
            while not self._is_stopping:
                self._state = "watching" if is_there else "waiting"
                self._write_status()
                self._wait(is_there)
                is_there = self._run_step(self._handle_changes if is_there else self._check_return)
            return self._push_and_pull_all()
        finally:
            self._write_end_status()

    def _handle_changes(self) -> None:
        changes = [watcher.read_changes() for watcher in self._watchers]
        now = now_ns()
        if None in changes and (self._scan_due_ns <= now or not self._is_polling()):
            self._scan()
        else:
            self.engine.box_changed(sorted(changes[0] or ()), now, is_event=True)
            self.engine.sync_changed(changes[1] or (), now)
            if self._scan_due_ns <= now:
                self._scan()
        self.engine.work(now_ns())

    def _push_and_pull_all(self) -> bool:
        """Push and pull all known changes at the end. Returns whether all could be read, pushed and taken in."""
        try:
            self._scan()
            self.engine.push_all(now_ns())
            self.engine.pull_all(now_ns())
            untaken_paths = self.engine.untaken_paths()
        except VanishedError as error:
            self._report_event(Trouble("vanished", f"{error}; what has changed meanwhile is pushed at the next start"))
            return False
        except OSError as error:
            self._report_event(Trouble("failed", f"{error.strerror or error}; the next start tries again"))
            return False
        if self.engine.unpushed_files:
            unpushed = format_count(self.engine.unpushed_files, "entry", "entries")
            self._report_event(Trouble("failed", f"{unpushed} could not be pushed; the next start does it"))
        if untaken_paths:
            untaken = format_count(len(untaken_paths), "entry", "entries")
            text = f"{untaken} of the client could not be taken in, such as {untaken_paths[0]!r}"
            self._report_event(Trouble("failed", f"{text}; the next start does it"))
        return not (self.engine.unpushed_files or untaken_paths or self.engine.unread_folders)

    def _check_return(self) -> None:
        """Check whether vanished folders are back. A new folder on the same file system replaces the old one."""
        for side in (self._box, self._sync):
            try:
                side.must_be_there()
            except VanishedError:
                was = side.identity
                side.open()
                if side.identity.partition(":")[0] != was.partition(":")[0]:
                    side.identity = was  # most likely the mount point of a missing mount: wait for the mount
                    raise
        self._compare_identities()
        self.engine.mirror.settle_begun()  # before users and clients change what was copied just before it vanished
        self._report_event(Trouble("note", "both folders are there again"))
        self._scan()

    def _compare_identities(self) -> None:
        """Drop all agreements if one of the folders is not the agreed one: merge, and delete nothing."""
        identities = {"savingbox": self._box.identity, "sync_folder": self._sync.identity}
        stored_identities = {name: self._store.read_meta(name) for name in identities}
        if all(stored_identities.values()) and stored_identities != identities:
            self._report_event(
                Trouble("note", "one of the folders is not the one used before: both are merged, nothing is deleted")
            )
            self.engine.mirror.mounts.forget()
            self._store.forget_all()
        self._store.write_meta(**identities)

    def _run_step(self, step: Callable[[], None]) -> bool:
        """Run one step of the loop. Returns False if a folder has vanished."""
        try:
            step()
        except VanishedError as error:
            if self._state != "waiting":
                self._report_event(Trouble("vanished", f"{error}; nothing happens until it is back"))
            return False
        except OSError as error:
            self._report_event(Trouble("failed", f"{error.strerror or error}; will try again"))
            self._scan_due_ns = now_ns() + _BACK_NS
        return True

    def _watch(self, side: FolderSide) -> FolderWatcher:
        watcher, problem = make_watcher(side)
        if problem:
            self._report_event(Trouble("note", problem))
        return watcher

    def _is_polling(self) -> bool:
        return any(watcher.fileno() < 0 for watcher in self._watchers)

    def _scan(self) -> None:
        began_ns = now_ns()
        scans = []
        for index, side in enumerate((self._box, self._sync)):
            watcher = self._watchers[index] if self._watchers else PollingWatcher()
            watcher.begin_scan()
            agreed = partial(self._store.entries.listing, side="theirs" if index else "ours")
            entries = side.find_all_entries(watcher.watch_folder, agreed)
            if watcher.fileno() >= 0 and any(error.errno == errno.ENOSPC for error in entries.unknown.values()):
                self._report_event(Trouble("note", _TOO_MANY.format(side.name)))
                watcher.close()
                watcher = self._watchers[index] = PollingWatcher()
                entries = side.find_all_entries(watcher.watch_folder, agreed)
            watcher.end_scan()
            scans.append(entries)
        now = now_ns()
        self.engine.take_scan(scans[0], scans[1], now)
        took_ns = now_ns() - began_ns
        self._scan_due_ns = now + max(_POLL_NS if self._is_polling() else _SCAN_NS, _SCAN_SHARE * took_ns)

    def _wait(self, is_there: bool) -> None:
        due_ns = self.engine.due_ns()
        until_ns = min(self._scan_due_ns, due_ns if due_ns is not None else self._scan_due_ns)
        if not is_there:
            until_ns = now_ns() + _BACK_NS
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        for watcher in self._watchers:
            if watcher.fileno() >= 0 and is_there:
                poll.register(watcher.fileno(), select.POLLIN)
        poll.poll(max(0, -(-(until_ns - now_ns()) // 1_000_000)))

    # --- reporting ---

    def _report_event(self, event: Event) -> None:
        if isinstance(event, Push):
            self.pushes.append(event)
            self._pushed_files += event.files
            self._counted_bytes += event.counted_bytes
        elif isinstance(event, MirrorProgress):
            self._write_status()
        elif isinstance(event, Trouble):
            self._trouble.append(event.text)
            del self._trouble[:-20]
        self._report(event)

    def _write_status(self, *, at_once: bool = False) -> None:
        if not at_once and now_ns() < self._status_due_ns:
            return
        self._status_due_ns = now_ns() + _STATUS_NS
        path = status_path(self.state_path)
        temporary = path.with_suffix(".tmp")
        with contextlib.suppress(OSError):  # a full disk is no reason to stop
            temporary.write_text(json.dumps(asdict(self.status())), encoding="utf-8")
            temporary.replace(path)

    def _write_end_status(self) -> None:
        self._state = "stopped"
        self._write_status(at_once=True)
        self.engine.flush()
        self.close()


def _pair_key(savingbox: AnyPath, sync_folder: AnyPath) -> str:
    return json.dumps([os.path.realpath(savingbox), os.path.realpath(sync_folder)])


def _check_folders(savingbox: AnyPath, sync_folder: AnyPath) -> None:
    """Check that a pair of folders can be used. Raises UsageError."""
    if os.name != "posix":
        raise UsageError("savingbox: needs Linux or, scanning only, another POSIX system; this is neither")
    real = []
    for name, folder in (("savingbox", savingbox), ("sync folder", sync_folder)):
        path = os.fspath(folder)
        if not os.path.isdir(path):
            problem = "expected a folder" if os.path.lexists(path) else "there is no such folder"
            raise UsageError(f"{name} {path!r}: {problem}")
        if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            raise UsageError(f"{name} {path!r}: cannot be read and written")
        real.append(os.path.realpath(path))
    if real[0] == real[1] or os.path.samefile(*real):
        raise UsageError(f"savingbox {real[0]!r}: is also the sync folder; expected two folders")
    for inner, outer in (real, real[::-1]):
        # Compare identities, because one of them may be mounted a second time elsewhere.
        if any(os.path.samefile(parent, outer) for parent in Path(inner).parents):
            raise UsageError(f"{inner!r}: is inside {outer!r}; expected two separate folders")


def _check_state_place(state_file: Path, *sides: FolderSide) -> None:
    """Check that neither side would mirror the state file, which changes with each push. Raises UsageError."""
    folders = [folder for folder in Path(os.path.realpath(state_file)).parents if os.path.exists(folder)]
    for side in sides:
        if any(os.path.samefile(folder, side.root) for folder in folders):
            raise UsageError(
                f"{str(state_file)!r}: is in the {side.name} {side.root!r}, which would mirror it without end; "
                "expected --state FOLDER outside of both"
            )


def _claim_folders(*sides: FolderSide) -> socket.socket:
    """Claim a pair of folders until this is closed, or the process ends. Raises UsageError if it is claimed already.

    The state file is held by one process, too, but ``--state`` may give each its own.
    """
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    if sys.platform == "linux":
        statuses = [os.stat(side.root) for side in sides]
        pair = "+".join(sorted(f"{status.st_dev:x}:{status.st_ino:x}" for status in statuses))
        try:
            claim.bind(f"\0cloudbench-savingbox-{pair}")  # an abstract name, which is no file
        except OSError as error:
            claim.close()
            if error.errno != errno.EADDRINUSE:
                raise
            roots = " ".join(repr(side.root) for side in sides)
            raise UsageError(f"{roots}: another savingbox is running on these folders; end it first") from error
    return claim
