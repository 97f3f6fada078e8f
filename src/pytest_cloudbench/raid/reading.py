"""Reading: the first k of n children that answer, each share checked by its digest, one more child for each failure.

What may live here: fetching one version from the children. While a segment is handed over, the next is requested.
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
from pytest_cloudbench.raid.metadata import Lacking
from pytest_cloudbench.raid.transfers import Ended, Package, PendingRead, shortage
from pytest_cloudbench.support import clock

_FOREVER_NS = 1 << 60


def read(array: Array, manifest: Manifest, offset: int, costs: Costs) -> Iterator[bytes]:
    """Yield the content of a version from ``offset``, chunk by chunk. Raises CloudError."""
    starts = [0]
    for segment in manifest.segments:
        starts.append(starts[-1] + segment.size_bytes)
    first = next((number for number, end in enumerate(starts[1:]) if offset < end), None)
    if first is None:
        if offset or manifest.size_bytes:
            return
        first = 0  # an empty object is read like any other: its one chunk is checked
    stream = Stream(manifest.key, manifest.prefix)
    ahead: Fetch | None = Fetch(array, "get", manifest, first, costs)
    try:
        for number in range(first, len(manifest.segments)):
            if (fetch := ahead) is None:
                return
            shares = fetch.wait()
            is_end = number == len(manifest.segments) - 1
            ahead = None if is_end else Fetch(array, "get", manifest, number + 1, costs)
            yield from _chunks(manifest, number, shares, stream, max(0, offset - starts[number]), costs)
            fetch.release()
    finally:
        if ahead is not None:
            ahead.give_up()


def _chunks(
    manifest: Manifest, number: int, shares: Mapping[int, Buffer], stream: Stream, skip: int, costs: Costs
) -> Iterator[bytes]:
    """Yield a segment's content from its shares, without the first ``skip`` bytes."""
    segment = manifest.segments[number]
    with costs.timed("code_ns"):
        data = _data_shares(segment, shares)
    first, size_bytes = manifest.first_chunk(number), segment.size_bytes
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


def _data_shares(segment: CodedSegment, shares: Mapping[int, Buffer]) -> Package:
    """Return the data shares one after the other; missing ones are rebuilt from the given shares."""
    split = segment.split
    made = {number: bytearray(segment.share_bytes) for number in range(split.data) if number not in shares}
    if made:
        find_codec(split.data, split.parity).rebuild(
            shares, {number: memoryview(each) for number, each in made.items()}
        )
    whole = {**shares, **made}
    return Package(whole[number] for number in range(split.data))


def good_shares(segment: CodedSegment, child: int, package: Buffer) -> dict[int, Buffer]:
    """Return the intact shares of a child's package, by number."""
    numbers, size_bytes = segment.split.shares_of(child), segment.share_bytes
    view = memoryview(package)[max(0, len(package) - len(numbers) * size_bytes) :]
    return {
        number: part
        for place, number in enumerate(numbers)
        if sha256(part := view[place * size_bytes :][:size_bytes]).digest() == segment.digests[number]
    }


class Fetch:
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
        self._left = [child for child in order if child not in without]
        self._answers: SimpleQueue[Ended] = SimpleQueue()
        self._asked: dict[int, PendingRead] = {}
        self._since_ns: dict[int, int] = {}
        self._due_ns: dict[int, int] = {}
        self._shares: dict[int, Buffer] = {}
        self._lacking: list[Lacking] = []
        self._used: list[PendingRead] = []
        self.failures: dict[int, Exception] = {}
        self._ask_enough()

    def wait(self) -> dict[int, Buffer]:
        """Return enough intact shares. Raises CloudError if there are not enough."""
        while len(self._shares) < self._segment.split.data:
            self._ask_enough()
            if not self._asked:
                raise self._too_few()
            with self._costs.timed("transfer_ns"):
                answer = self._next()
            if answer is not None:
                self._take(answer)
        self.give_up()
        if self._lacking and self._array.file.mends:
            with self._costs.timed("metadata_ns"), suppress(CloudError):  # only a note: the shares are here
                self._array.metadata.lacks(self._lacking)
            self._array.pending.wake()
        return self._shares

    def give_up(self) -> None:
        """Cancel: answers that arrive from now on are ignored."""
        for child, transfer in self._asked.items():
            transfer.is_given_up = True
            if child not in self._due_ns:
                size_bytes = self._segment.split.counts[child] * self._segment.share_bytes
                self._array.hedge.note_unanswered(child, size_bytes, clock.now_ns() - self._since_ns[child])
        self._asked.clear()

    def release(self) -> None:
        """Free the shares' memory for reuse: they are no longer read."""
        for pending in self._used:
            if pending.buffer is not None:
                self._array.children.buffers.give(pending.buffer)

    def _ask_enough(self) -> None:
        """Ask children until those that are not overdue are enough."""
        counts, data = self._segment.split.counts, self._segment.split.data
        while self._left and len(self._shares) + sum(counts[child] for child in self._due_ns) < data:
            child = self._left.pop(0)
            size_bytes = counts[child] * self._segment.share_bytes
            patience_ns = self._array.hedge.after_ns(child, size_bytes)
            self._since_ns[child] = clock.now_ns()
            self._due_ns[child] = self._since_ns[child] + (_FOREVER_NS if patience_ns is None else patience_ns)
            name = self._array.name_of(self._manifest, child, self._number)
            most_bytes = self._array.head_bytes(self._manifest, self._number) + size_bytes
            self._asked[child] = self._array.children.get(child, name, most_bytes, self._answers.put)

    def _next(self) -> Ended | None:
        """Return the next answer; None when a child is overdue and another can be asked."""
        while True:
            first = min(self._due_ns, key=self._due_ns.__getitem__, default=None)
            try:
                if first is None or not self._left:
                    return self._answers.get()
                return self._answers.get(timeout=max(0, self._due_ns[first] - clock.now_ns()) / 1e9)
            except Empty:
                if first is not None and self._due_ns[first] <= clock.now_ns():
                    del self._due_ns[first]
                    self._costs.hedged += 1
                    self._array.hedge.note_extra_request()
                    return None

    def _take(self, answer: Ended) -> None:
        child = answer.child
        pending = self._asked.pop(child)
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
        elif not (damaged := self._check(child, answer.data)):
            self._used.append(pending)
            return
        else:
            self._costs.damaged += damaged
            detail = f"{damaged} of {self._segment.split.counts[child]} shares differ from what was written"
            self.failures[child] = CloudError(ErrorKind.CORRUPT, self._verb, self._manifest.path, detail=detail)
        self._lacking.append(Lacking(self._manifest.version, self._number, child))

    def _check(self, child: int, package: Buffer) -> int:
        """Take the shares of a package. Returns how many are damaged."""
        with self._costs.timed("hash_ns"):
            good = good_shares(self._segment, child, package)
        self._shares |= good
        return self._segment.split.counts[child] - len(good)

    def _too_few(self) -> CloudError:
        array, split = self._array, self._segment.split
        gave = [child for child, count in enumerate(split.counts) if count and child not in self.failures]
        told = f"{len(gave)} of {len(array.children)} children returned their shares, and {array.file.k} are needed"
        error = shortage(self._verb, self._manifest.path, told, self.failures, array.children.names)
        error.__cause__ = next(iter(self.failures.values()), None)
        return error
