"""Chunking: whether a large file is sent in pieces (IMC 2013, section 4.1).

What may live here: the verdict on pieces between exchanges, and telling them from what only looks like them.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_cloudbench.lab.detect.sent import CUT_BY_CONTENT, Blocks, EditCosts, blocks_of, is_edit_cheaper
from pytest_cloudbench.lab.detect.values import Observation, Verdict, size_text, unknown, valid_of
from pytest_cloudbench.lab.detect.waits import ASKED_BYTES, too_close, unseen
from pytest_cloudbench.model import KIB, MIB

_LEAST_PIECE_BYTES = 16 * KIB
_LEAST_CHUNK_BYTES = 120_000
"""Smaller pieces may be the 64 KiB windows of HTTP/2 and other protocols, which look just like chunks."""
_LEAST_CHUNKS, _SAME = 3, 0.03
_CHUNKED_SHARE, _ONE_PIECE, _WHOLE_PIECE = 0.6, 0.9, 0.985
_NO_ABOVE_BYTES = 32 * MIB
_LEAST_ANSWER_BYTES, _LEAST_H2_ANSWER_BYTES = 56, 120
"""Fewer bytes may only be a window update: 36 or 52 bytes in SSH; 35, 48 or 70 in HTTP/2 within TLS."""
_STEADY_S, _STEADY = 0.03, 0.5
"""How much the time from an answer to the next piece may vary: clients that compute in between are slow, but steady."""
_FEW_PIECES = 8
"""This few pieces may just be as many connections or copies; only a file of another size can tell."""
_LEAST_ASIDES, _WINDOW_BYTES, _WINDOW_EVERY_BYTES = 3, 90, 200_000
"""Shorter, more frequent packets of a server may open windows; others may answer parts without the client waiting."""
_LEAST_CUT_BYTES = 64 * KIB


def chunking(sent: EditCosts, observations: Sequence[Observation]) -> Verdict:
    """Whether a large file is sent in pieces, each acknowledged before the next one begins, and how large they are."""
    name = "chunking"
    files = valid_of(observations, "new", "big")
    if sent.doubt:
        return unknown(name, sent.doubt, wants=("idle", "new"))
    if not files or all(each.up_bytes < 0.5 * each.size_bytes for each in files):
        return unknown(name, "no large file was seen", wants=("new",))
    if hidden := too_close(files) or unseen(files):
        return unknown(name, hidden)
    found = [_pieces(each) for each in files]
    evidence = [text for _, text, _ in found]
    sizes = [size for size, _, _ in found if size is not None]
    largest = max(files, key=lambda each: each.size_bytes)
    numbers = {"largest_file_bytes": float(largest.size_bytes), "largest_piece": min(share for _, _, share in found)}
    if sizes and len(sizes) >= sum(each.size_bytes >= _LEAST_CHUNKS * min(sizes) for each in files):
        return _regular(sizes, files, evidence, numbers)
    if (blocks := blocks_of(sent)) is not None:
        return _deduplicated(blocks, sent, observations, evidence, numbers)
    if talk := [text for each in files if (text := _talk(each))]:
        return unknown(
            name, f"{talk[-1]}: these may be answers to parts that the client does not wait for", evidence, numbers
        )
    if any(share < _WHOLE_PIECE for _, _, share in found):
        why = "there are pauses, but not between pieces of one size"
        return unknown(name, why, evidence, numbers, wants=("big",))
    return _one_piece(sent, largest, evidence, numbers)


def _pieces(each: Observation) -> tuple[int | None, str, float]:
    """(size of the chunks, what was seen, share of the largest piece) in the upload of one file."""
    pieces = [size for size in each.chunks_bytes if size >= _LEAST_PIECE_BYTES]
    total = sum(pieces)
    share = max(pieces, default=0) / max(1, total)
    file = size_text(each.size_bytes)
    best, best_bytes = None, 0
    for size in sorted(set(pieces)):
        alike = [other for other in pieces if abs(other - size) <= _SAME * size]
        if len(alike) >= _LEAST_CHUNKS and sum(alike) > best_bytes:
            best, best_bytes = sorted(alike)[len(alike) // 2], sum(alike)
    if best is None or best_bytes < _CHUNKED_SHARE * total:
        return None, f"{file}: {len(pieces)} pieces, the largest has {share:.0%}", share
    if best >= _ONE_PIECE * each.size_bytes:
        return None, f"{file}: sent {len(pieces)} times", share
    larger = [size for size in pieces if size > best * (1 + _SAME)]
    if len(larger) > len(pieces) // 10:
        return None, f"{file}: pieces of {size_text(best)}, and {len(larger)} larger ones", share
    # The headers of each piece, and of what carries it, are not part of the file.
    content = round(best * min(1.0, each.size_bytes / total))
    return content, f"{file}: {len(pieces)} pieces, most of {size_text(content)}", share


def _talk(each: Observation) -> str:
    """What a server says in the middle of an upload that does not wait for it, unless it only opens windows."""
    if each.asides < _LEAST_ASIDES:
        return ""
    if _are_windows(each.asides, each.aside_bytes, each.up_bytes):
        return ""
    return (
        f"the server sends data {each.asides} times during the upload, {each.aside_bytes / each.asides:.0f} bytes each"
    )


def _are_windows(count: int, answer_bytes: int, up_bytes: int) -> bool:
    """Whether this number of server packets may be only window updates: such packets are short and frequent."""
    return count > 0 and answer_bytes < _WINDOW_BYTES * count and up_bytes < _WINDOW_EVERY_BYTES * count


def _regular(sizes: list[int], files: Sequence[Observation], evidence: list[str], numbers: dict[str, float]) -> Verdict:
    low, high = min(sizes), max(sizes)
    numbers["chunk_bytes"] = float(low)
    if high > low * (1 + _SAME):
        why = f"pieces have one size within a file, but not in all files ({size_text(low)} and {size_text(high)})"
        return unknown("chunking", why, evidence, numbers)
    if low < _LEAST_CHUNK_BYTES:
        why = f"pieces of {size_text(low)} may be windows of the protocol (64 KiB in HTTP/2)"
        return unknown("chunking", why, evidence, numbers)
    answers = min(each.down_bytes / max(1, each.size_bytes / low) for each in files)
    if answers < (_LEAST_H2_ANSWER_BYTES if any(each.offers_h2 for each in files) else _LEAST_ANSWER_BYTES):
        why = (
            f"{answers:.0f} bytes come back for each piece: pieces may be windows of the protocol, as in HTTP/2 and SSH"
        )
        return unknown("chunking", why, evidence, numbers)
    if short := [each for each in files if _are_windows(each.answers, each.down_bytes, each.up_bytes)]:
        size = short[0].down_bytes / short[0].answers
        why = f"the server often sends {size:.0f} bytes: perhaps window updates, and the pauses have another cause"
        return unknown("chunking", why, evidence, numbers)
    if any(_is_by_clock(each) for each in files):
        why = "the time from an answer to the next piece varies: the client may pause by a clock"
        return unknown("chunking", why, evidence, numbers)
    known = {each.size_bytes for each in files}
    if len(known) < 2 and max(known) < _FEW_PIECES * low:
        why = f"pieces of {size_text(low)}; whether another file has pieces of this size is not known"
        return unknown("chunking", why, evidence, numbers, wants=("big",))
    margin = round(1 - _LEAST_CHUNK_BYTES / low, 4)
    detail = f"chunks of {size_text(low)}, in files of {' and '.join(map(size_text, sorted(known)))}"
    return Verdict("chunking", "yes", detail, margin, tuple(evidence), numbers)


def _is_by_clock(each: Observation) -> bool:
    """Whether the client continues at times that are unrelated to the server's packets."""
    if each.resume_s is None or each.resume_spread_s is None:
        return False
    return each.resume_spread_s > max(_STEADY_S, _STEADY * each.resume_s)


def _deduplicated(
    blocks: Blocks, sent: EditCosts, observations: Sequence[Observation], evidence: list[str], numbers: dict[str, float]
) -> Verdict:
    """Deduplicated blocks that do not show as pauses: are they asked for one by one, or cut by content?

    Blocks that are found again behind an insertion are cut by content. Small blocks may just as well be the difference
    from a similar file.
    """
    new, copy = valid_of(observations, "new")[-1], valid_of(observations, "copy")[-1]
    size = blocks.size_bytes
    if blocks.bounds_bytes is not None:
        numbers |= dict(zip(("least_block_bytes", "most_block_bytes"), map(round, blocks.bounds_bytes), strict=True))
    if size is not None:
        asked = (new.down_bytes - copy.down_bytes) / max(1.0, new.size_bytes / size)
        numbers["asked_bytes_per_block"] = round(asked, 2)
        if asked >= ASKED_BYTES and new.size_bytes >= 4 * _LEAST_CHUNKS * size:
            detail = f"{blocks.text}, and requested by the server"
            return Verdict("chunking", "yes", detail, round(1 - ASKED_BYTES / asked, 4), tuple(evidence), numbers)
    moved = sent.last("twin_insert")
    if moved is not None and blocks.is_cut_by_content and blocks.least_bytes >= _LEAST_CUT_BYTES:
        detail = f"{blocks.text}; sent together, so no pauses show"
        evidence += sent.evidence("twin_insert", "spliced")
        return Verdict("chunking", "yes", detail, round(1 - moved / CUT_BY_CONTENT, 4), tuple(evidence), numbers)
    why = "content is deduplicated by block, but no pieces are seen on the wire"
    return unknown("chunking", why, evidence, numbers)


def _one_piece(sent: EditCosts, largest: Observation, evidence: list[str], numbers: dict[str, float]) -> Verdict:
    copy, twin = sent.last("copy"), sent.last("twin_change")
    if copy is None or (copy < _CHUNKED_SHARE and twin is None and is_edit_cheaper(sent)):
        wants = ("copy",) if copy is None else ("twin_change", "twin_insert", "big")
        return unknown("chunking", "whether blocks are deduplicated is not known", evidence, numbers, wants=wants)
    if largest.size_bytes < _NO_ABOVE_BYTES:
        why = f"no chunks up to {size_text(largest.size_bytes)}; larger files were not tried"
        return unknown("chunking", why, evidence, numbers, wants=("big",))
    margin = round(1 - (1 - numbers["largest_piece"]) / (1 - _ONE_PIECE), 4)
    detail = f"one piece, up to {size_text(largest.size_bytes)}"
    return Verdict("chunking", "no", detail, margin, tuple(evidence), numbers)
