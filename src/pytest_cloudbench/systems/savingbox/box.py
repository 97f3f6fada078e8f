"""The batching folder as a program runs it: real clock, real watchers, a state file, and what it says of itself.

What may live here: starting, the loop, stopping, and the status that others read while it runs.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from pytest_cloudbench.batching.batcher import Batcher, BatchRules
from pytest_cloudbench.batching.deferral import AdaptiveBatcher
from pytest_cloudbench.clock import now_ns
from pytest_cloudbench.model import ResultsError, UsageError
from pytest_cloudbench.results.owner import lives, owner_text
from pytest_cloudbench.systems.savingbox.engine import BoxEngine, MirrorProgress, Pull, Push, Trouble
from pytest_cloudbench.systems.savingbox.mirror import Mirror
from pytest_cloudbench.systems.savingbox.side import FolderSide, VanishedError
from pytest_cloudbench.systems.savingbox.store import AgreementStore
from pytest_cloudbench.systems.savingbox.watcher import FolderWatcher, PollingWatcher, watch
from pytest_cloudbench.systems.savingbox.written import NoWrites, Writes

__all__ = ["AnyPath", "Event", "SavingBox", "SavingBoxStatus", "read_status", "state_path", "status_path"]

_S = 1_000_000_000
_SCAN_NS = 30 * _S
"""Between two scans although events come: a file written through a memory map has none."""
_POLL_NS = _S
"""Between two scans without events."""
_SCAN_SHARE = 50
"""Scanning takes at most one part in so many of the time."""
_BACK_NS = _S
"""Between two looks for a folder that has vanished."""
_STATUS_NS = _S // 2
_PUSHES_KEPT = 10_000
_TOO_MANY = "{}: there are more folders than fs.inotify.max_user_watches allows: it is scanned from time to time"

Event = Push | Pull | MirrorProgress | Trouble
AnyPath = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class SavingBoxStatus:
    """What a batching folder says of itself, in ``status_path`` as JSON, at most half a second old while it runs.

    Attributes:
        savingbox: the user's folder.
        sync_folder: the client's.
        owner: the process, as ``results.owner`` describes it.
        state: ``starting``, ``watching``, ``waiting`` (a folder has vanished) or ``stopped``.
        watching: ``inotify`` or ``polling``.
        mechanism: how changed bytes are found: ``compare``, or the name of what sees them written.
        mechanism_why: why it is not a better one; empty if there is none.
        limit_bytes: of the byte counter, compressed.
        quiet_s: of the timer.
        at_most_s: nothing waits longer.
        fail_safe_s: the same for what has no rhythm.
        is_adaptive: whether files with a rhythm wait for their next change.
        pushes: batches that went to the sync folder since the start.
        pushed_files: entries in them.
        counted_bytes: compressed bytes that the counter had for them.
        written_bytes: bytes that were written to files of the sync folder.
        pulls: entries that the client brought.
        conflicts: entries of which both versions were kept.
        unpushed_files: entries that wait.
        unpushed_bytes: their compressed bytes.
        due_s: in how many seconds they are pushed, at the latest; None: nothing waits.
        trouble: the last lines about what cannot be done, newest last.
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
        """Whether the process that wrote this is still at work."""
        return self.state != "stopped" and lives(self.owner) is not False


def state_path(savingbox: AnyPath, sync_folder: AnyPath, folder: Path | None = None) -> Path:
    """The state file of a pair of folders; in the user's state folder unless another one is given."""
    if folder is None:
        import platformdirs

        folder = Path(platformdirs.user_state_dir("pytest-cloudbench")) / "savingbox"
    pair = _pair(savingbox, sync_folder)
    name = hashlib.sha256(pair.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return folder / f"{os.path.basename(os.path.realpath(savingbox))}-{name}.sqlite"


def status_path(state: Path) -> Path:
    """The file with the status, beside the state file."""
    return state.with_suffix(".status.json")


def read_status(state: Path) -> SavingBoxStatus | None:
    """The last status of a pair of folders; None: it has never run, or the file cannot be read."""
    try:
        found = json.loads(status_path(state).read_text(encoding="utf-8"))
        return SavingBoxStatus(**{**found, "trouble": tuple(found["trouble"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


class SavingBox:
    """A folder whose changes are pushed in batches to the folder of a sync client.

    ``start`` runs it in a thread of this process; a command calls ``run``, and ``once`` makes both folders equal.

    Args:
        savingbox: the user's folder.
        sync_folder: the folder that a sync client watches.
        rules: when to push.
        state: a folder for the state file; None: the user's.
        writes: what sees which bytes are written, such as ``written.find_writes(folder)``; closed at the end. None:
            files are compared with the sync folder's copies.
        batcher: another one than ``Batcher(rules)``, for other rules.
        tell: is given every push, pull and trouble, in the thread that runs it.

    Raises UsageError for folders that cannot be used, and while another process has them; ResultsError where the state
    cannot be kept.
    """

    def __init__(
        self, savingbox: AnyPath, sync_folder: AnyPath, rules: BatchRules | None = None, *,
        state: Path | None = None, writes: Writes | None = None, batcher: Batcher | None = None,
        tell: Callable[[Event], None] = lambda event: None,
    ) -> None:  # fmt: skip
        if batcher is None:
            batcher = Batcher(rules or BatchRules())
        self.rules = batcher.rules
        _check(savingbox, sync_folder)
        self._box = FolderSide(os.path.realpath(savingbox), "savingbox")
        self._sync = FolderSide(os.path.realpath(sync_folder), "sync folder")
        self.state_path = state_path(savingbox, sync_folder, state)
        self._tell = tell
        self._state = "starting"
        self._trouble: list[str] = []
        self._pushed_files = self._counted_bytes = 0
        self.pushes: deque[Push] = deque(maxlen=_PUSHES_KEPT)
        for side in (self._box, self._sync):
            side.open()
        self._store = AgreementStore(self.state_path, _pair(savingbox, sync_folder))
        mirror = Mirror(self._box, self._sync, self._store, writes or NoWrites("nothing else was asked for"))
        self.engine = BoxEngine(mirror, batcher, self._told, time.thread_time_ns)
        self._watchers: list[FolderWatcher] = []
        self._scan_due_ns, self._status_due_ns = 0, 0
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._is_stopping = False
        self._thread: threading.Thread | None = None
        if self._store.problem:
            self._told(Trouble("note", self._store.problem))
        try:
            self._adopt()
            for side in (self._box, self._sync):
                side.clean()
            self.engine.mirror.settle_begun()
        except OSError as error:
            self.close()
            raise ResultsError(f"{self.state_path}: {error.strerror or error}") from error
        except BaseException:
            self.close()
            raise

    # --- for programs ---

    def start(self) -> None:
        """Run it in a thread, until ``stop``; returns once both folders are watched."""
        ready = threading.Event()
        self._thread = threading.Thread(target=self.run, args=(ready.set,), name="savingbox", daemon=True)
        self._thread.start()
        ready.wait()

    def stop(self) -> None:
        """Push what waits, and end. Safe in a signal handler, and more than once."""
        self._is_stopping = True
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(self._wake_write, b".")
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
            self._thread = None

    def status(self) -> SavingBoxStatus:
        """What it would write into its status file now."""
        engine, batcher = self.engine, self.engine.batcher
        due_ns = batcher.due_ns()
        return SavingBoxStatus(
            savingbox=self._box.root, sync_folder=self._sync.root, owner=owner_text(), state=self._state,
            watching="/".join(sorted({each.kind for each in self._watchers})) or "nothing yet",
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
        """Give the state file free, if it has not been run."""
        self._store.close()
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
        """Make both folders equal, and end. Returns whether they are, as far as nothing changed meanwhile."""
        try:
            for _ in range(5):
                self._scan()
                self.engine.pull_all(now_ns())
                self.engine.push_all(now_ns())
                self.engine.pull_all(now_ns())
                self._scan()
                if self.engine.is_at_rest():
                    return True
            return False
        except VanishedError as error:
            self._told(Trouble("vanished", f"{error}"))
            return False
        except OSError as error:
            self._told(Trouble("failed", f"{error.strerror or error}"))
            return False
        finally:
            self._end()

    def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Run until ``stop``; then push what waits. ``ready`` is called once both folders are watched."""
        try:
            self._watchers = [self._watch(side) for side in (self._box, self._sync)]
            is_there = self._try(self._scan)
            ready()
            while not self._is_stopping:
                self._state = "watching" if is_there else "waiting"
                self._write_status()
                self._wait(is_there)
                is_there = self._try(self._work if is_there else self._come_back)
            self._try(self._last)
        finally:
            ready()
            self._end()

    def _work(self) -> None:
        found = [watcher.changed() for watcher in self._watchers]
        now = now_ns()
        if None in found and (self._scan_due_ns <= now or not self._is_polling()):
            self._scan()
        else:
            self.engine.box_changed(sorted(found[0] or ()), now, is_event=True)
            self.engine.sync_changed(found[1] or (), now)
            if self._scan_due_ns <= now:
                self._scan()
        self.engine.work(now_ns())

    def _last(self) -> None:
        """At the end: all that is known to have changed goes where it belongs."""
        self._scan()
        self.engine.push_all(now_ns())
        self.engine.pull_all(now_ns())
        if self.engine.unpushed_files:
            self._told(
                Trouble("failed", f"{self.engine.unpushed_files} entries could not be pushed; the next start does")
            )

    def _come_back(self) -> None:
        """Look for folders that have vanished; a new folder on the same file system takes the old one's place."""
        for side in (self._box, self._sync):
            try:
                side.must_be_there()
            except VanishedError:
                was = side.identity
                side.open()
                if side.identity.partition(":")[0] != was.partition(":")[0]:
                    side.identity = was  # what a missing mount leaves, most likely: wait for the right one
                    raise
        self._adopt()
        self._told(Trouble("note", "both folders are there again"))
        self._scan()

    def _adopt(self) -> None:
        """If one of the folders is not the one that was agreed on, no agreement holds: merge, and delete nothing."""
        identities = {"savingbox": self._box.identity, "sync_folder": self._sync.identity}
        known = {name: self._store.meta(name) for name in identities}
        if all(known.values()) and known != identities:
            self._told(
                Trouble("note", "one of the folders is another one than before: both are merged, nothing is deleted")
            )
            self._store.forget_all()
        self._store.set_meta(**identities)

    def _try(self, act: Callable[[], None]) -> bool:
        """Returns False if a folder has vanished."""
        try:
            act()
        except VanishedError as error:
            if self._state != "waiting":
                self._told(Trouble("vanished", f"{error}; nothing is done until it is back"))
            return False
        except OSError as error:
            self._told(Trouble("failed", f"{error.strerror or error}; it is tried again"))
            self._scan_due_ns = now_ns() + _BACK_NS
        return True

    def _watch(self, side: FolderSide) -> FolderWatcher:
        watcher, problem = watch(side)
        if problem:
            self._told(Trouble("note", problem))
        return watcher

    def _is_polling(self) -> bool:
        return any(watcher.fileno() < 0 for watcher in self._watchers)

    def _scan(self) -> None:
        began_ns = now_ns()
        found = []
        for index, side in enumerate((self._box, self._sync)):
            watcher = self._watchers[index] if self._watchers else PollingWatcher()
            watcher.begin_scan()
            all_of_it = side.look_everywhere(watcher.watch_folder)
            if watcher.fileno() >= 0 and any(error.errno == errno.ENOSPC for error in all_of_it.unknown.values()):
                self._told(Trouble("note", _TOO_MANY.format(side.name)))
                watcher.close()
                watcher = self._watchers[index] = PollingWatcher()
                all_of_it = side.look_everywhere(watcher.watch_folder)
            watcher.end_scan()
            found.append(all_of_it)
        now = now_ns()
        self.engine.scanned(found[0], found[1], now)
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

    # --- what it says ---

    def _told(self, event: Event) -> None:
        if isinstance(event, Push):
            self.pushes.append(event)
            self._pushed_files += event.files
            self._counted_bytes += event.counted_bytes
        elif isinstance(event, MirrorProgress):
            self._write_status()
        elif isinstance(event, Trouble):
            self._trouble.append(event.text)
            del self._trouble[:-20]
        self._tell(event)

    def _write_status(self, *, at_once: bool = False) -> None:
        if not at_once and now_ns() < self._status_due_ns:
            return
        self._status_due_ns = now_ns() + _STATUS_NS
        path = status_path(self.state_path)
        temporary = path.with_suffix(".tmp")
        with contextlib.suppress(OSError):  # a full disk is no reason to stop
            temporary.write_text(json.dumps(asdict(self.status())), encoding="utf-8")
            temporary.replace(path)

    def _end(self) -> None:
        self._state = "stopped"
        self._write_status(at_once=True)
        with contextlib.suppress(OSError):
            self._store.flush()
        self.close()


def _pair(savingbox: AnyPath, sync_folder: AnyPath) -> str:
    return json.dumps([os.path.realpath(savingbox), os.path.realpath(sync_folder)])


def _check(savingbox: AnyPath, sync_folder: AnyPath) -> None:
    """Raises UsageError for a pair of folders that cannot be used."""
    if os.name != "posix":
        raise UsageError("savingbox: works on Linux, and by scanning on other POSIX systems; not on this one")
    real = []
    for name, folder in (("savingbox", savingbox), ("sync folder", sync_folder)):
        path = os.fspath(folder)
        if not os.path.isdir(path):
            what = "expected a folder" if os.path.lexists(path) else "there is no such folder"
            raise UsageError(f"{name} {path}: {what}")
        if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            raise UsageError(f"{name} {path}: cannot be read and written")
        real.append(os.path.realpath(path))
    if real[0] == real[1] or os.path.samefile(*real):
        raise UsageError(f"savingbox {real[0]}: is the sync folder too; expected two folders")
    for inner, outer in (real, real[::-1]):
        if inner.startswith(outer.rstrip("/") + "/"):
            raise UsageError(f"{inner}: is inside of {outer}; expected two folders apart from each other")
