"""Are sizes of files padded? Else whoever watches the line, or the store, recognises a known file by its size.

Files whose sizes lie close together are uploaded, each on connections of its own, and the bytes of these are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from pytest_cloudbench import Inquiry, RandomContent

from . import transit
from .rulings import Ruling, no, unknown, yes

SIZES_BYTES = (65_003, 66_567, 67_661, 69_137, 70_267, 71_008, 71_973, 73_196)
"""Sizes at uneven distances, so that no padding to blocks of 750 bytes or more adds nearly the same to all files."""
_ROUNDS = 2
_SLACK_BYTES = 400
"""The most bytes by which uploads of files of one size may differ."""


def ask_padded(inquiry: Inquiry) -> Ruling:
    """Answer whether files of different sizes look as if they had the same size."""
    if why := transit.why_unseen(inquiry):
        return unknown(why)
    return judge_padding(
        [[_upload(inquiry, size_bytes, number) for size_bytes in SIZES_BYTES] for number in range(_ROUNDS)]
    )


def _upload(inquiry: Inquiry, size_bytes: int, number: int) -> int:
    """Upload a file of a size, under a name of fixed length, and return the bytes that were sent for it."""
    name = f"size-{number}-{size_bytes}"
    content = RandomContent(f"{inquiry.seed}/{name}", size_bytes).read(0, size_bytes)
    return transit.count_sent_bytes(inquiry, f"{inquiry.folder}/{name}", content)


def judge_padding(rounds: Sequence[Sequence[int]], sizes_bytes: Sequence[int] = SIZES_BYTES) -> Ruling:
    """Judge the bytes that were sent for files of different sizes, in rounds that have to agree."""
    evidence = [
        f"{size_bytes:,} bytes: {' and '.join(f'{count:,}' for count in counts)} sent"
        for size_bytes, *counts in zip(sizes_bytes, *rounds, strict=True)
    ]
    if any(count < min(sizes_bytes) for counts in rounds for count in counts):
        return unknown("less was sent than the files have", evidence)
    if any(max(counts) - min(counts) > _SLACK_BYTES for counts in zip(*rounds, strict=True)):
        return unknown("uploads of one size differ too much to compare", evidence)
    sent_bytes = [min(counts) for counts in zip(*rounds, strict=True)]
    extra = [count - size_bytes for count, size_bytes in zip(sent_bytes, sizes_bytes, strict=True)]
    if max(extra) - min(extra) <= _SLACK_BYTES:
        return no(f"each of {len(sent_bytes)} sizes shows, to within {max(extra) - min(extra):,} bytes", evidence)
    groups = _count_groups(sent_bytes)
    if 2 * groups <= len(sent_bytes):
        return yes(
            f"{len(sent_bytes)} sizes from {min(sizes_bytes):,} to {max(sizes_bytes):,} bytes look like {groups}",
            evidence,
        )
    return unknown("what is sent differs, but not as the sizes do", evidence)


def _count_groups(sent_bytes: Sequence[int]) -> int:
    """Return the number of sizes that can be told apart by the bytes that were sent."""
    ordered = sorted(sent_bytes)
    return 1 + sum(after - before > _SLACK_BYTES for before, after in pairwise(ordered))
