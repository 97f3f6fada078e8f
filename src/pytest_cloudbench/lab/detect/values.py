"""The values that go into a detector and come out of it: observations and verdicts.

The values are frozen. The few helpers here serve more than one detector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from pytest_cloudbench.model import KIB, MIB

Answer = Literal["yes", "no", "unknown"]

LEAST_SENT = 0.9
"""The least share of new random bytes that a client sends for them. Where fewer were seen, not all was seen."""

KINDS: Mapping[str, str] = MappingProxyType({
    "idle": "nothing is changed",
    "new": "a new file of random bytes; later edits are edits of it",
    "big": "a larger new file of random bytes",
    "copy": "the same bytes in a new folder, under an unrelated name",
    "text": "a new file of freshly drawn words",
    "text_in_jpeg": "words behind the head of a JPEG image, under a neutral name",
    "text_as_jpeg": "words under the name of a JPEG image",
    "fake_jpeg": "words behind the head of a JPEG image and under its name",
    "jpeg": "a JPEG image",
    "sparse": "a new file of one repeated text",
    "version": "other bytes in place of the file's, except for a share at its front",
    "append": "random bytes at the end of the file",
    "insert": "random bytes in the middle of the file",
    "spliced": "random bytes at a random place of the file",
    "change": "some bytes within the file overwritten by random ones, and some appended",
    "twin_insert": "a new file in a new folder: the file with random bytes in its middle",
    "twin_change": "a new file in a new folder: the file with some bytes overwritten and some appended",
    "few": "a folder with some new files of random bytes",
    "many": "a folder with ten times as many files, and as many bytes in all",
    "delete": "all files with this content are deleted",
    "restore": "the file is put back",
})  # fmt: skip
"""The kinds of phase, each with what is done in it."""


@dataclass(frozen=True, slots=True)
class Step:
    """One phase to measure.

    Attributes:
        kind: one of ``KINDS``.
        size_bytes: of the new file, of all new files together, or of what is added. 0 if it follows from other steps.
        files: the number of files written.
        duration_s: the time to wait, for ``idle``.
        share: the share of the file that stays, for ``version``.
    """

    kind: str
    size_bytes: int = 0
    files: int = 1
    duration_s: float = 0.0
    share: float = 0.0


@dataclass(frozen=True, slots=True)
class Observation:
    """The traffic of one phase. Sums are over all flows of the client, and ``up`` means sent by the client.

    Attributes:
        kind: one of ``KINDS``.
        size_bytes: of the file that was written, or of all files together.
        changed_bytes: the bytes that the user changed.
        files: the number of files written.
        zlib_bytes: the size of the file compressed by zlib -6, or None if that was not asked for.
        up_bytes, down_bytes: payload of TCP and UDP. Bytes that were sent twice count once.
        udp_up_bytes: the part of ``up_bytes`` that is UDP, which shows no acknowledgements.
        wire_bytes: whole frames, both ways, or None if the capture does not have them as they were on the wire.
        syns: connections asked for.
        bursts: groups of packets with payload from the client, separated by about a round trip.
        turns: the number of times that the client spoke and the server then answered.
        exchanges: the number of times that the client went on only after everything was acknowledged and the server had
            answered.
        answers: packets with payload from the server.
        late, late_bytes: ``answers`` that came after the client had sent a quarter of its bytes on that connection, and
            their payload: they include answers to files, but no handshakes or logins. None: not counted.
        asides, aside_bytes: ``answers`` that came while the client sent something large, and their payload.
        chunks_bytes: the bytes sent between two ``exchanges``, flow after flow.
        rounds_bytes: pairs of the bytes that the server sent and that the client then sent, on the connection that
            carried most, see ``traffic.metrics.rounds``. Empty if there are too many to keep.
        resume_s, resume_spread_s: from the server's last packet until the client went on, after large pieces: the
            median, and the distance between the quartiles, or None if it never went on.
        offers_h2: whether a connection offered HTTP/2, or began with it, whose windows look like chunks.
        duration_s: from the change until the client was in sync and quiet.
        start_up_s, completion_s: see ``net.traffic.metrics``. None without payload.
        cpu_s: CPU time of the client, or None if unknown.
        round_trip_s: to the server, or None if unknown.
        nameless_bytes: of flows that may or may not be the client's (``net.traffic.owners``). In no other count.
        is_restarted: whether a process of the client that saw the latest new file has ended since.
        reasons: the reasons why it may not be used, or empty when valid.
    """

    kind: str
    size_bytes: int = 0
    changed_bytes: int = 0
    files: int = 1
    zlib_bytes: int | None = None
    up_bytes: int = 0
    down_bytes: int = 0
    udp_up_bytes: int = 0
    wire_bytes: int | None = None
    syns: int = 0
    bursts: int = 0
    turns: int = 0
    exchanges: int = 0
    answers: int = 0
    late: int | None = None
    late_bytes: int | None = None
    asides: int = 0
    aside_bytes: int = 0
    chunks_bytes: tuple[int, ...] = ()
    rounds_bytes: tuple[tuple[int, int], ...] = ()
    resume_s: float | None = None
    resume_spread_s: float | None = None
    offers_h2: bool = False
    duration_s: float = 0.0
    start_up_s: float | None = None
    completion_s: float | None = None
    cpu_s: float | None = None
    round_trip_s: float | None = None
    nameless_bytes: int = 0
    is_restarted: bool = False
    reasons: tuple[str, ...] = ()

    @property
    def has_sent_all(self) -> bool:
        """True if the client sent about as many bytes as the files have. Otherwise a part of them was not seen."""
        return self.up_bytes >= LEAST_SENT * self.size_bytes

    @property
    def is_valid(self) -> bool:
        """True if it may be used."""
        return not self.reasons


@dataclass(frozen=True, slots=True)
class Verdict:
    """An answer to "does the client do this?".

    Attributes:
        capability: ``chunking``, ``bundling``, ``deduplication``, ``delta`` or ``compression``.
        answer: yes, no or unknown.
        detail: the way in which the client does it, or why that is unknown.
        confidence: how far the deciding number is from its bound: 0 at the bound and for unknown, near 1 far from it.
            It is not a probability.
        evidence: what was seen, in sentences.
        numbers: those that the answer rests on. Ratios are of bytes sent to bytes in the file.
        wants: kinds of steps that would tell more.
    """

    capability: str
    answer: Answer
    detail: str
    confidence: float
    evidence: tuple[str, ...] = ()
    numbers: Mapping[str, float] = field(default_factory=dict)
    wants: tuple[str, ...] = ()


def unknown_verdict(
    capability: str,
    why: str,
    evidence: Sequence[str] = (),
    numbers: Mapping[str, float] | None = None,
    wants: tuple[str, ...] = (),
) -> Verdict:
    """Return an unknown verdict with its reason."""
    return Verdict(capability, "unknown", why, 0.0, tuple(evidence), dict(numbers or {}), wants)


def select_valid(observations: Sequence[Observation], *kinds: str) -> list[Observation]:
    """Return the valid observations of these kinds, in order."""
    return [observation for observation in observations if observation.kind in kinds and observation.is_valid]


def format_size(size_bytes: float) -> str:
    """Return a human-readable size: ``1.5 MiB``, ``128 KiB``, ``64 B``."""
    for unit, unit_name in ((MIB, "MiB"), (KIB, "KiB")):
        if size_bytes >= 0.95 * unit:
            return f"{size_bytes / unit:.3g} {unit_name}"
    return f"{size_bytes:.0f} B"
