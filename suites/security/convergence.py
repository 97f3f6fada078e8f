"""Is encryption convergent? If equal files are encrypted alike, whoever guesses a file can confirm that it is there.

(Thesis, section 2.4.4: "Confirmation-of-a-File Attack".) An equal file is uploaded twice by one account, and once by
another. Where an emulator has one account only, another emulator gives the second: what is compared is what the clients
send.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from pytest_cloudbench import (
    Endpoint,
    Inquiry,
    Needle,
    RandomContent,
    UsageError,
    search_needles,
    slice_needles,
    start_emulator,
)

from . import transit
from .rulings import Ruling, no, unknown, yes
from .tap import sent_bytes

_BYTES = 65536
_PIECES, _LEAST_PIECES = 64, 16
_PIECE_BYTES, _LEAST_VALUES = 48, 32
"""Random bytes of this number have about 44 different values. Tables and padding have few."""
_LIKENESS = {True: "alike", False: "different", None: "not known"}


def ask_convergent(inquiry: Inquiry) -> Ruling:
    """Answer whether equal files of different accounts look different to the service."""
    encryption = transit.ask_content(inquiry)
    if encryption.answer != "yes":
        why = "it does not encrypt contents" if encryption.answer == "no" else encryption.how
        return unknown(f"not asked: {why}", encryption.evidence)
    content = RandomContent(f"{inquiry.seed}/convergent", _BYTES).read(0, _BYTES)
    first, again = (_upload(inquiry, inquiry.endpoint, f"{inquiry.folder}/{name}", content) for name in ("one", "two"))
    with _second_account(inquiry) as second:
        other = None if second is None else _upload(*second, content)
    return judge_convergence(first, again, other, _BYTES)


def judge_convergence(first: bytes, again: bytes, other: bytes | None, size_bytes: int) -> Ruling:
    """Judge uploads of an equal file: two from one account, and one from another (None if unknown)."""
    if len(first) < size_bytes or (other is not None and len(other) < size_bytes // 2):
        return unknown("less was sent than the file has, so nothing can be compared")
    if not pick_pieces(first):
        return unknown("too little of what was sent looks random, so it cannot be compared")
    is_alike_again = len(again) < size_bytes // 2 or are_alike(first, again)
    evidence = [f"by the same account: {_LIKENESS[is_alike_again]}"]
    if other is None and is_alike_again:
        return unknown("alike by the same account; there is no second account to compare", evidence)
    is_other_alike = is_alike_again if other is None else are_alike(first, other)
    if is_other_alike is None:
        return unknown(transit.UNSEARCHED, evidence)
    if other is None:
        return yes("different each time, even by the same account", evidence)
    evidence.append(f"by another account: {_LIKENESS[is_other_alike]}")
    if is_other_alike:
        return no("an equal file of another account looks the same", evidence)
    return yes("an equal file of another account looks different", evidence)


def are_alike(first: bytes, second: bytes) -> bool | None:
    """Return whether two uploads have pieces of content in common. None if that is not known."""
    pieces = pick_pieces(first)
    sightings, is_searched = search_needles(second, pieces)
    return True if len(sightings) > len(pieces) // 4 else False if is_searched else None


def pick_pieces(upload: bytes) -> Sequence[Needle]:
    """Return pieces that look random, unlike heads of requests, tables and padding, which uploads always share.

    There are none if they are too few to compare uploads, as when everything is sent as text.
    """
    needles = slice_needles("upload", upload, _PIECES, _PIECE_BYTES)
    pieces = [needle for needle in needles if not needle.data.isascii() and len({*needle.data}) >= _LEAST_VALUES]
    return pieces if len(pieces) >= _LEAST_PIECES else []


def _upload(inquiry: Inquiry, endpoint: Endpoint | None, path: str, content: bytes) -> bytes:
    """Upload a file through a tap that opens TLS. Return the bytes that the service received."""
    return sent_bytes(transit.send_files(inquiry, {path: content}, endpoint, opens=True))


@contextmanager
def _second_account(inquiry: Inquiry) -> Iterator[tuple[Inquiry, Endpoint | None, str] | None]:
    """Yield an inquiry at another account, its endpoint and a path there, or None if there is no such account."""
    with ExitStack() as stack:
        try:
            other = stack.enter_context(inquiry.other_account(2))
        except UsageError:
            endpoint = inquiry.endpoint
            if inquiry.provider.profile is None or endpoint is None:
                yield None
                return
            service = stack.enter_context(start_emulator("ideal", api=endpoint.api, seed=2))
            yield inquiry, service.endpoint, "/other"
            return
        yield other, other.endpoint, f"{other.folder}/other"
