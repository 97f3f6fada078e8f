"""Chunking: whether a large file is sent in pieces (IMC 2013, section 4.1).

The verdict rests on the pieces between exchanges. Much else looks like them, such as windows of a protocol.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_cloudbench.lab.detect.sent import CUT_BY_CONTENT, Blocks, EditCosts, find_blocks, is_edit_cheaper
from pytest_cloudbench.lab.detect.values import Observation, Verdict, format_size, select_valid, unknown_verdict
from pytest_cloudbench.lab.detect.waits import ASKED_BYTES, explain_hidden_waits, explain_short_trips
from pytest_cloudbench.model import KIB, MIB
from pytest_cloudbench.support.wording import format_count

_LEAST_PIECE_BYTES = 16 * KIB
_LEAST_CHUNK_BYTES = 120_000
"""Smaller pieces may be the 64 KiB windows of HTTP/2 and other protocols, which look just like chunks."""
_LEAST_CHUNKS, _SAME = 3, 0.03
_CHUNKED_SHARE, _ONE_PIECE, _WHOLE_PIECE = 0.6, 0.9, 0.985
_NO_ABOVE_BYTES = 32 * MIB
_LEAST_ANSWER_BYTES, _LEAST_H2_ANSWER_BYTES = 56, 120
"""Fewer bytes may only be a window update: 36 or 52 bytes in SSH, and 35, 48 or 70 in HTTP/2 within TLS."""
_STEADY_S, _STEADY = 0.03, 0.5
"""The allowed variation of the time from an answer to the next piece: clients that compute are slow, but steady."""
_FEW_PIECES = 8
"""With fewer pieces, each may be a connection or a copy of the file. Only a file of another size can tell."""
_LEAST_ASIDES, _WINDOW_BYTES, _WINDOW_EVERY_BYTES = 3, 90, 200_000
"""Shorter, more frequent packets of a server may open windows. Others may answer parts that no client waits for."""
_LEAST_CUT_BYTES = 64 * KIB


def chunking(sent: EditCosts, observations: Sequence[Observation]) -> Verdict:
    """Judge whether a large file is sent in pieces, each acknowledged before the next, and of which size."""
    capability = "chunking"
    files = [file for file in select_valid(observations, "new", "big") if file.has_sent_all]
    if sent.doubt:
        return unknown_verdict(capability, sent.doubt, wants=("idle", "new"))
    if not files:
        return unknown_verdict(capability, "no large file was seen", wants=("new",))
    if reason := explain_short_trips(files) or explain_hidden_waits(files):
        return unknown_verdict(capability, reason)
    pieces = [_find_pieces(file) for file in files]
    evidence = [text for _, text, _ in pieces]
    sizes = [size for size, _, _ in pieces if size is not None]
    largest = max(files, key=lambda file: file.size_bytes)
    numbers = {"largest_file_bytes": float(largest.size_bytes), "largest_piece": min(share for _, _, share in pieces)}
    if sizes and len(sizes) >= sum(file.size_bytes >= _LEAST_CHUNKS * min(sizes) for file in files):
        return _judge_regular(sizes, files, evidence, numbers)
    if (blocks := find_blocks(sent)) is not None:
        return _judge_deduplicated(blocks, sent, observations, evidence, numbers)
    if asides := [text for file in files if (text := _describe_asides(file))]:
        return unknown_verdict(
            capability,
            f"{asides[-1]}: these may be answers to parts that the client does not wait for",
            evidence,
            numbers,
        )
    if any(share < _WHOLE_PIECE for _, _, share in pieces):
        why = "there are pauses, but not between pieces of one size"
        return unknown_verdict(capability, why, evidence, numbers, wants=("big",))
    return _judge_one_piece(sent, largest, evidence, numbers)


def _find_pieces(observation: Observation) -> tuple[int | None, str, float]:
    """Return the size of the chunks, a description, and the share of the largest piece in the upload of one file."""
    pieces = [size for size in observation.chunks_bytes if size >= _LEAST_PIECE_BYTES]
    total = sum(pieces)
    share = max(pieces, default=0) / max(1, total)
    file = format_size(observation.size_bytes)
    chunk_bytes, chunks_total = None, 0
    for size in sorted(set(pieces)):
        similar = [other for other in pieces if abs(other - size) <= _SAME * size]
        if len(similar) >= _LEAST_CHUNKS and sum(similar) > chunks_total:
            chunk_bytes, chunks_total = sorted(similar)[len(similar) // 2], sum(similar)
    if chunk_bytes is None or chunks_total < _CHUNKED_SHARE * total:
        return None, f"{file}: {format_count(len(pieces), 'piece')}, the largest has {share:.0%}", share
    if chunk_bytes >= _ONE_PIECE * observation.size_bytes:
        return None, f"{file}: sent {format_count(len(pieces), 'time')}", share
    larger = [size for size in pieces if size > chunk_bytes * (1 + _SAME)]
    if len(larger) > len(pieces) // 10:
        larger_pieces = format_count(len(larger), "larger one")
        return None, f"{file}: pieces of {format_size(chunk_bytes)}, and {larger_pieces}", share
    # The headers of each piece, and of what carries it, are not part of the file.
    content = round(chunk_bytes * min(1.0, observation.size_bytes / total))
    return content, f"{file}: {len(pieces)} pieces, most of {format_size(content)}", share


def _describe_asides(observation: Observation) -> str:
    """Describe a server that sends data in the middle of an upload without being waited for.

    Returns an empty text if it may only open windows.
    """
    if observation.asides < _LEAST_ASIDES:
        return ""
    if _are_windows(observation.asides, observation.aside_bytes, observation.up_bytes):
        return ""
    size_bytes = observation.aside_bytes / observation.asides
    return f"the server sends data {observation.asides} times during the upload, {size_bytes:.0f} bytes each"


def _are_windows(count: int, answer_bytes: int, up_bytes: int) -> bool:
    """Return whether the server's packets may be only window updates, which are short and frequent."""
    return count > 0 and answer_bytes < _WINDOW_BYTES * count and up_bytes < _WINDOW_EVERY_BYTES * count


def _judge_regular(
    sizes: list[int], files: Sequence[Observation], evidence: list[str], numbers: dict[str, float]
) -> Verdict:
    """Judge files whose pieces have one size: these are chunks unless protocol or clock explains them."""
    low, high = min(sizes), max(sizes)
    numbers["chunk_bytes"] = float(low)
    if high > low * (1 + _SAME):
        why = f"pieces have one size within a file, but not in all files ({format_size(low)} and {format_size(high)})"
        return unknown_verdict("chunking", why, evidence, numbers)
    if low < _LEAST_CHUNK_BYTES:
        why = f"pieces of {format_size(low)} may be windows of the protocol (64 KiB in HTTP/2)"
        return unknown_verdict("chunking", why, evidence, numbers)
    answers = min(file.down_bytes / max(1, file.size_bytes / low) for file in files)
    if answers < (_LEAST_H2_ANSWER_BYTES if any(file.offers_h2 for file in files) else _LEAST_ANSWER_BYTES):
        why = (
            f"{answers:.0f} bytes come back for each piece: pieces may be windows of the protocol, as in HTTP/2 and SSH"
        )
        return unknown_verdict("chunking", why, evidence, numbers)
    if short := [file for file in files if _are_windows(file.answers, file.down_bytes, file.up_bytes)]:
        size = short[0].down_bytes / short[0].answers
        why = f"the server often sends {size:.0f} bytes: perhaps window updates, and the pauses have another cause"
        return unknown_verdict("chunking", why, evidence, numbers)
    if any(_pauses_by_clock(file) for file in files):
        why = "the time from an answer to the next piece varies: the client may pause by a clock"
        return unknown_verdict("chunking", why, evidence, numbers)
    file_sizes = {file.size_bytes for file in files}
    if len(file_sizes) < 2 and max(file_sizes) < _FEW_PIECES * low:
        why = f"pieces of {format_size(low)}; whether another file has pieces of this size is not known"
        return unknown_verdict("chunking", why, evidence, numbers, wants=("big",))
    margin = round(1 - _LEAST_CHUNK_BYTES / low, 4)
    detail = f"chunks of {format_size(low)}, in files of {' and '.join(map(format_size, sorted(file_sizes)))}"
    return Verdict("chunking", "yes", detail, margin, tuple(evidence), numbers)


def _pauses_by_clock(observation: Observation) -> bool:
    """Return whether the client continues at times that are unrelated to the server's packets."""
    if observation.resume_s is None or observation.resume_spread_s is None:
        return False
    return observation.resume_spread_s > max(_STEADY_S, _STEADY * observation.resume_s)


def _judge_deduplicated(
    blocks: Blocks, sent: EditCosts, observations: Sequence[Observation], evidence: list[str], numbers: dict[str, float]
) -> Verdict:
    """Judge deduplicated blocks that do not show as pauses: are they requested one by one, or cut by content?

    Blocks that are found again behind an insertion are cut by content. Small blocks may just as well be the difference
    from a similar file.
    """
    new, copy = select_valid(observations, "new")[-1], select_valid(observations, "copy")[-1]
    size = blocks.size_bytes
    if blocks.bounds_bytes is not None:
        numbers |= dict(zip(("least_block_bytes", "most_block_bytes"), map(round, blocks.bounds_bytes), strict=True))
    if size is not None:
        requested = (new.down_bytes - copy.down_bytes) / max(1.0, new.size_bytes / size)
        numbers["asked_bytes_per_block"] = round(requested, 2)
        if requested >= ASKED_BYTES and new.size_bytes >= 4 * _LEAST_CHUNKS * size:
            detail = f"{blocks.text}, and requested by the server"
            return Verdict("chunking", "yes", detail, round(1 - ASKED_BYTES / requested, 4), tuple(evidence), numbers)
    twin = sent.last_ratio("twin_insert")
    if twin is not None and blocks.is_cut_by_content and blocks.least_bytes >= _LEAST_CUT_BYTES:
        detail = f"{blocks.text}; sent together, so no pauses show"
        evidence += sent.evidence("twin_insert", "spliced")
        return Verdict("chunking", "yes", detail, round(1 - twin / CUT_BY_CONTENT, 4), tuple(evidence), numbers)
    why = "content is deduplicated by block, but no pieces are seen on the wire"
    return unknown_verdict("chunking", why, evidence, numbers)


def _judge_one_piece(sent: EditCosts, largest: Observation, evidence: list[str], numbers: dict[str, float]) -> Verdict:
    copy, twin = sent.last_ratio("copy"), sent.last_ratio("twin_change")
    if copy is None or (copy < _CHUNKED_SHARE and twin is None and is_edit_cheaper(sent)):
        wants = ("copy",) if copy is None else ("twin_change", "twin_insert", "big")
        return unknown_verdict(
            "chunking", "whether blocks are deduplicated is not known", evidence, numbers, wants=wants
        )
    if largest.size_bytes < _NO_ABOVE_BYTES:
        why = f"no chunks up to {format_size(largest.size_bytes)}; larger files were not tried"
        return unknown_verdict("chunking", why, evidence, numbers, wants=("big",))
    margin = round(1 - (1 - numbers["largest_piece"]) / (1 - _ONE_PIECE), 4)
    detail = f"one piece, up to {format_size(largest.size_bytes)}"
    return Verdict("chunking", "no", detail, margin, tuple(evidence), numbers)
