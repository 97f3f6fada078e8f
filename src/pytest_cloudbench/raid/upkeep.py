"""Background upkeep: rebuilding packages that children lack, and deleting unused ones.

What may live here: the thread that does the work noted in the metadata, and rebuilding one package.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from queue import SimpleQueue

from pytest_cloudbench.model import CloudError
from pytest_cloudbench.raid.array import Array
from pytest_cloudbench.raid.coding.reed_solomon import find_codec
from pytest_cloudbench.raid.costs import Costs
from pytest_cloudbench.raid.metadata import GarbagePackages, MissingPackage
from pytest_cloudbench.raid.reading import SegmentFetch
from pytest_cloudbench.raid.transfers import TransferResult
from pytest_cloudbench.raid.writing import make_packages
from pytest_cloudbench.support import clock

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0


def rebuild_package(array: Array, package: MissingPackage, costs: Costs) -> int:
    """Rebuild a package from those of other children. Returns its size, or 0 if its version is no longer current.

    Raises CloudError if too few of the others answer, or the child refuses the package.
    """
    row = array.metadata.find_version(package.version)
    if row is None:
        return 0
    manifest = array.manifest_of("mend", row)
    segment = manifest.segments[package.segment]
    fetch = SegmentFetch(array, "mend", manifest, package.segment, costs, without={package.child})
    shares = fetch.wait_for_shares()
    numbers = segment.split.shares_of(package.child)
    rebuilt = {number: bytearray(segment.share_bytes) for number in numbers}
    with costs.timed("code_ns"):
        into = {number: memoryview(share) for number, share in rebuilt.items()}
        find_codec(segment.split.data, segment.split.parity).rebuild(shares, into)
    fetch.release_buffers()
    answers: SimpleQueue[TransferResult] = SimpleQueue()
    size_bytes = 0
    for child, name, content in make_packages(array, manifest, package.segment, rebuilt, [package.child], row.segments):
        size_bytes += content.size_bytes
        array.children.put_package(child, name, content, answers.put, waits=True)
    costs.sent_bytes += size_bytes
    with costs.timed("transfer_ns"):
        answer = answers.get()
    costs.requests += answer.requests or 0
    array.metadata.note_transfer_end(package, row.segments, has_it=answer.error is None)
    if answer.error is not None:
        try:
            raise answer.error
        finally:
            del answer  # otherwise this frame and the error keep each other, and the package, in memory
    costs.mended += 1
    return size_bytes


def delete_leftovers(
    array: Array,
    leftovers: Sequence[GarbagePackages],
    costs: Costs,
    patience_s: float | None = None,
    generation: int = 0,
    *,
    is_last: bool = False,
) -> Sequence[CloudError]:
    """Delete unused packages. Returns the errors of children that failed, whose packages stay noted.

    Packages still in transfer stay noted, too. They would not be found now, and wake upkeep when they have arrived.
    Children that have not answered after ``patience_s`` (None: wait for all) finish in the background.

    ``generation``: if it is not 0, each child first notes that something was deleted at this generation. ``is_last``:
    no object is left, so this note is deleted as well.

    Passes on any error that is not a CloudError.
    """
    by_child: dict[int, list[GarbagePackages]] = defaultdict(list)
    for leftover in array.pending.claim_leftovers(leftovers):
        by_child[leftover.child].append(leftover)
    deletion = _Deletion(array, by_child)
    for child, packages in by_child.items():
        names = [
            name for leftover in packages for name in array.package_names(leftover.version, child, leftover.segments)
        ]
        if is_last:
            names.append(array.children.marker_name(child))
        marker = array.make_marker(child, generation) if generation else None
        array.children.delete_packages(child, names, deletion.note_result, marker)
    with costs.timed("transfer_ns"):
        answers = deletion.wait(patience_s)
    costs.requests += sum(answer.requests or 0 for answer in answers)
    errors: list[CloudError] = []
    for error in (answer.error for answer in answers if answer.error is not None):
        if not isinstance(error, CloudError):
            raise error
        costs.failed += 1
        errors.append(error)
    return errors


class _Deletion:
    """A deletion of unused packages by several children, and its results."""

    def __init__(self, array: Array, by_child: Mapping[int, Sequence[GarbagePackages]]) -> None:
        self._array, self._by_child = array, by_child
        self._changed, self._answers, self._has_ended = threading.Condition(), list[TransferResult](), False

    def note_result(self, answer: TransferResult) -> None:
        """Note that a child has deleted its packages, or failed. Called in that transfer's thread."""
        leftovers = self._by_child[answer.child]
        try:
            if answer.error is None:
                self._array.metadata.note_deleted(leftovers)
        except CloudError as error:  # they stay noted
            answer = replace(answer, error=error)
        finally:
            self._array.pending.release_leftovers(leftovers)
            with self._changed:
                self._answers.append(answer)
                is_late = self._has_ended
                self._changed.notify_all()
        if is_late:
            self._array.ledger.add("tidy", Costs(requests=answer.requests or 0, failed=int(answer.error is not None)))
            self._array.pending.wake()

    def wait(self, patience_s: float | None) -> Sequence[TransferResult]:
        """Return the answers of all children, or those that have come when ``patience_s`` is over."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._answers) == len(self._by_child), patience_s)
            self._has_ended = True
            return list(self._answers)


class Upkeep:
    """A thread that does this process's background work. Failed work is retried, at growing intervals."""

    def __init__(self, array: Array) -> None:
        self._array, self._stop = array, threading.Event()
        self._changed, self._rounds_begun, self._rounds_ended, self._has_failed = threading.Condition(), 0, 0, False
        self._thread = threading.Thread(target=self._run, name="raid-upkeep", daemon=True)
        self._thread.start()
        array.pending.wake()

    def settle(self, timeout_s: float) -> bool:
        """Wait until nothing is left to do, or some work has failed. Returns whether nothing is left."""
        until_ns, metadata, pending = clock.due_ns(timeout_s), self._array.metadata, self._array.pending
        with self._changed:
            last_round = self._rounds_begun + 1  # the current round may have begun before the last note
            pending.wake()
            while True:
                while self._rounds_ended < last_round:
                    if not self._changed.wait(max(0, until_ns - clock.now_ns()) / 1e9):
                        return False
                is_done = not (pending.count or metadata.missing_packages(own=True) or metadata.garbage(own=True))
                if is_done or self._has_failed:
                    return is_done
                # A package is still in transfer, and wakes the thread when it has arrived.
                last_round = self._rounds_ended + 1

    def close(self, timeout_s: float) -> None:
        """Give the thread time to finish, and end it. Unfinished work stays noted."""
        with suppress(CloudError):  # the metadata cannot say what is left
            self.settle(timeout_s)
        self._stop.set()
        self._array.pending.wake()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        signal, pause_s = self._array.pending.signal, _FIRST_PAUSE_S
        while not self._stop.is_set():
            signal.clear()
            with self._changed:
                self._rounds_begun += 1
            try:
                failed = not self._run_round()
            except Exception as error:
                if self._stop.is_set():
                    return  # the metadata was closed meanwhile: unfinished work stays noted
                if not isinstance(error, CloudError):
                    raise
                failed = True  # the metadata is locked, for instance
            with self._changed:
                self._rounds_ended, self._has_failed = self._rounds_begun, failed
                self._changed.notify_all()
            pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s) if failed else _FIRST_PAUSE_S
            signal.wait(pause_s if failed else None)

    def _run_round(self) -> bool:
        """Do all the work once. Returns whether everything succeeded."""
        array, is_done = self._array, True
        garbage = array.metadata.garbage(own=True)
        if garbage:
            costs = Costs(operations=1)
            is_done = not delete_leftovers(array, garbage, costs, array.file.patience_s)
            array.ledger.add("tidy", costs)
        failed: set[int] = set()
        for package in array.metadata.missing_packages(own=True):
            if self._stop.is_set() or package.child in failed or array.pending.is_in_transfer(package):
                continue
            if not array.metadata.is_missing(package):  # it has arrived since the list was read
                continue
            costs = Costs(operations=1)
            try:
                rebuild_package(array, package, costs)
            except CloudError:
                failed.add(package.child)
            array.ledger.add("mend", costs)
        return is_done and not failed
