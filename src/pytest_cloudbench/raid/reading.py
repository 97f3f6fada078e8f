"""Reading of objects: from the first k of n children that answer, with one more child for each failure.

What may live here: fetching one version from the children. Each share is checked by its digest. While the caller uses a
segment, the next one is requested.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from queue import Empty, SimpleQueue

from pytest_cloudbench.model import CloudError, ErrorKind
from pytest_cloudbench.raid.array import Array
from pytest_cloudbench.raid.coding.manifest import CodedSegment, Manifest
from pytest_cloudbench.raid.coding.reed_solomon import Buffer, find_codec
from pytest_cloudbench.raid.coding.sealing import CHUNK_BYTES, TAG_BYTES, NotGenuine, Stream, chunk_count
from pytest_cloudbench.raid.costs import Costs
from pytest_cloudbench.raid.metadata import MissingPackage
from pytest_cloudbench.raid.transfers import Package, PendingRead, TransferResult, shortage_error
from pytest_cloudbench.support import clock
from pytest_cloudbench.support.wording import format_count

_UNLIMITED_NS = 1 << 60


def read_object(array: Array, manifest: Manifest, offset: int, costs: Costs) -> Iterator[bytes]:
    """Yield the content of a version from ``offset``, chunk by chunk. Raises CloudError."""
    starts = [0]
    for segment in manifest.segments:
        starts.append(starts[-1] + segment.size_bytes)
    first_number = next((number for number, end in enumerate(starts[1:]) if offset < end), None)
    if first_number is None:
        if offset or manifest.size_bytes:
            return
        first_number = 0  # an empty object has one chunk, too, which is checked
    stream = Stream(manifest.key, manifest.prefix)
    next_fetch: SegmentFetch | None = SegmentFetch(array, "get", manifest, first_number, costs)
    try:
        for number in range(first_number, len(manifest.segments)):
            if (fetch := next_fetch) is None:
                return
            shares = fetch.wait_for_shares()
            is_end = number == len(manifest.segments) - 1
            next_fetch = None if is_end else SegmentFetch(array, "get", manifest, number + 1, costs)
            yield from _open_chunks(manifest, number, starts[number], shares, stream, offset, costs)
            fetch.release_buffers()
    finally:
        if next_fetch is not None:
            next_fetch.cancel()


def _open_chunks(
    manifest: Manifest, number: int, start: int, shares: Mapping[int, Buffer], stream: Stream, offset: int, costs: Costs
) -> Iterator[bytes]:
    """Yield the content of a segment that begins at ``start``, from its shares and from ``offset`` in the object."""
    segment = manifest.segments[number]
    with costs.timed("code_ns"):
        data = _join_data_shares(segment, shares)
    skip, size_bytes = max(0, offset - start), segment.size_bytes
    first = start // CHUNK_BYTES  # all segments before this one are whole chunks
    is_last_segment = number == len(manifest.segments) - 1
    for chunk in range(skip // CHUNK_BYTES, chunk_count(size_bytes)):
        begin, end = chunk * CHUNK_BYTES, min((chunk + 1) * CHUNK_BYTES, size_bytes)
        piece = data.read(begin + chunk * TAG_BYTES, end - begin + TAG_BYTES)
        try:
            with costs.timed("seal_ns"):
                plain = stream.open(first + chunk, is_last_segment and end == size_bytes, piece)
        except NotGenuine as error:
            raise CloudError(ErrorKind.CORRUPT, "get", manifest.path, detail=str(error)) from error
        if plain := plain[max(0, skip - begin) :]:
            yield plain


def _join_data_shares(segment: CodedSegment, shares: Mapping[int, Buffer]) -> Package:
    """Return the data shares one after the other. Missing ones are rebuilt from the other shares."""
    split = segment.split
    rebuilt = {number: bytearray(segment.share_bytes) for number in range(split.data) if number not in shares}
    if rebuilt:
        into = {number: memoryview(share) for number, share in rebuilt.items()}
        find_codec(split.data, split.parity).rebuild(shares, into)
    data_shares = {**shares, **rebuilt}
    return Package(data_shares[number] for number in range(split.data))


def intact_shares(segment: CodedSegment, child: int, package: Buffer) -> dict[int, Buffer]:
    """Return the intact shares of a child's package, by number."""
    numbers, size_bytes = segment.split.shares_of(child), segment.share_bytes
    view = memoryview(package)[max(0, len(package) - len(numbers) * size_bytes) :]
    return {
        number: part
        for index, number in enumerate(numbers)
        if sha256(part := view[index * size_bytes :][:size_bytes]).digest() == segment.digests[number]
    }


class SegmentFetch:
    """Fetches the shares of one segment, from as many children as needed, and one more for each that fails.

    Args:
        array: whose children are asked.
        verb: for errors.
        manifest: of the version.
        number: of the segment.
        costs: of the operation.
        without: children that are not asked.
    """

    def __init__(
        self, array: Array, verb: str, manifest: Manifest, number: int, costs: Costs, without: Collection[int] = ()
    ) -> None:
        self._array, self._verb, self._manifest, self._number, self._costs = array, verb, manifest, number, costs
        self._segment = manifest.segments[number]
        order = array.hedge.order(self._segment.split, self._segment.share_bytes)
        self._candidates = [child for child in order if child not in without]
        self._answers: SimpleQueue[TransferResult] = SimpleQueue()
        self._pending: dict[int, PendingRead] = {}
        self._asked_at_ns: dict[int, int] = {}
        self._due_ns: dict[int, int] = {}
        self._shares: dict[int, Buffer] = {}
        self._missing: list[MissingPackage] = []
        self._used_reads: list[PendingRead] = []
        self.failures: dict[int, Exception] = {}
        self._ask_enough()

    def wait_for_shares(self) -> dict[int, Buffer]:
        """Wait until there are enough intact shares, and return them. Raises CloudError if there are not enough."""
        while len(self._shares) < self._segment.split.data:
            self._ask_enough()
            if not self._pending:
                raise self._shortage()
            with self._costs.timed("transfer_ns"):
                answer = self._next_answer()
            if answer is not None:
                self._use_answer(answer)
        self.cancel()
        if self._missing and self._array.file.mends:
            # A missing note does no harm: the shares are here.
            with self._costs.timed("metadata_ns"), suppress(CloudError):
                self._array.metadata.note_missing(self._missing)
            self._array.pending.wake()
        return self._shares

    def cancel(self) -> None:
        """Ignore all answers that arrive from now on."""
        for child, transfer in self._pending.items():
            transfer.is_cancelled = True
            if child not in self._due_ns:
                size_bytes = self._segment.split.counts[child] * self._segment.share_bytes
                self._array.hedge.note_unanswered(child, size_bytes, clock.now_ns() - self._asked_at_ns[child])
        self._pending.clear()

    def release_buffers(self) -> None:
        """Give the shares' memory back for reuse, because they are no longer read."""
        for pending in self._used_reads:
            if pending.buffer is not None:
                self._array.children.buffers.give(pending.buffer)

    def _ask_enough(self) -> None:
        """Ask more children, until the shares of those that are not overdue are enough."""
        counts, data = self._segment.split.counts, self._segment.split.data
        while self._candidates and len(self._shares) + sum(counts[child] for child in self._due_ns) < data:
            child = self._candidates.pop(0)
            size_bytes = counts[child] * self._segment.share_bytes
            patience_ns = self._array.hedge.after_ns(child, size_bytes)
            self._asked_at_ns[child] = clock.now_ns()
            self._due_ns[child] = self._asked_at_ns[child] + (_UNLIMITED_NS if patience_ns is None else patience_ns)
            name = self._array.package_name(self._manifest, child, self._number)
            most_bytes = self._array.head_size_bytes(self._manifest, self._number) + size_bytes
            self._pending[child] = self._array.children.get_package(child, name, most_bytes, self._answers.put)

    def _next_answer(self) -> TransferResult | None:
        """Return the next answer, or None when a child is overdue and another can be asked."""
        while True:
            first = min(self._due_ns, key=self._due_ns.__getitem__, default=None)
            try:
                if first is None or not self._candidates:
                    return self._answers.get()
                return self._answers.get(timeout=max(0, self._due_ns[first] - clock.now_ns()) / 1e9)
            except Empty:
                if first is not None and self._due_ns[first] <= clock.now_ns():
                    del self._due_ns[first]
                    self._costs.hedged += 1
                    self._array.hedge.note_extra_request()
                    return None

    def _use_answer(self, answer: TransferResult) -> None:
        """Take the shares of one answer, or note the child as failed or its package as missing."""
        child = answer.child
        pending = self._pending.pop(child)
        self._due_ns.pop(child, None)
        self._costs.requests += answer.requests or 0
        self._costs.received_bytes += len(answer.data)
        if answer.error is not None:
            self.failures[child] = answer.error
            is_gone = isinstance(answer.error, CloudError) and answer.error.kind is ErrorKind.NOT_FOUND
            self._costs.missing += is_gone
            self._costs.failed += not is_gone
            if not is_gone:
                return
        elif not (damaged := self._add_shares(child, answer.data)):
            self._used_reads.append(pending)
            return
        else:
            self._costs.damaged += damaged
            shares = format_count(self._segment.split.counts[child], "share")
            detail = f"differ from what was written: {damaged} of {shares}"
            self.failures[child] = CloudError(ErrorKind.CORRUPT, self._verb, self._manifest.path, detail=detail)
        self._missing.append(MissingPackage(self._manifest.version, self._number, child))

    def _add_shares(self, child: int, package: Buffer) -> int:
        """Keep the intact shares of a package. Returns how many are damaged."""
        with self._costs.timed("hash_ns"):
            good = intact_shares(self._segment, child, package)
        self._shares |= good
        return self._segment.split.counts[child] - len(good)

    def _shortage(self) -> CloudError:
        array, split = self._array, self._segment.split
        returned = [child for child, count in enumerate(split.counts) if count and child not in self.failures]
        summary = (
            f"{len(returned)} of {len(array.children)} children returned their shares, and {array.file.k} are needed"
        )
        error = shortage_error(self._verb, self._manifest.path, summary, self.failures, array.children.names)
        error.__cause__ = next(iter(self.failures.values()), None)
        return error
