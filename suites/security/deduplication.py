"""Does deduplication across users leak? Whoever sees that a file need not be sent knows that somebody has it.

(Harnik, Pinkas and Shulman-Peleg, "Side channels in cloud services: deduplication in cloud storage", IEEE Security &
Privacy 2010.) One account uploads a random file. Another uploads it too, and a fresh one of the same size. What it
sends is counted on its connections, in pairs whose order alternates. A service may wait for more copies before it
deduplicates, as the authors advise: so the first account can be asked to store each file more than once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pytest_cloudbench import CloudError, ErrorKind, Inquiry, LiteralContent, RandomContent, UsageError

from . import transit
from .rulings import Ruling, no, unknown, yes

PAIRS = 8
"""By chance, a service that deduplicates half of all files gives eight alike pairs once in a hundred times."""
SIZE_BYTES = 1024 * 1024

_LEAST_SHARE = 0.1
_SPREADS = 3
_MOST_SHARE = 0.5


class Pair(NamedTuple):
    """The bytes that an account sent for a file that another account has uploaded, and for a fresh one."""

    known_bytes: int
    fresh_bytes: int


def ask_deduplication(inquiry: Inquiry, copies: int = 1) -> Ruling:
    """Answer whether an account sends less for a file that another account has uploaded ``copies`` times."""
    if why := transit.why_unseen(inquiry):
        return unknown(why)
    try:
        with inquiry.other_account(2) as other:
            return _compare_accounts(inquiry, other, copies)
    except UsageError as error:
        return unknown(f"it takes a second account: {error}")


def _compare_accounts(inquiry: Inquiry, other: Inquiry, copies: int) -> Ruling:
    pairs = []
    for number in range(PAIRS):
        known_content, fresh_content = (_make_content(inquiry, f"{kind}-{number}") for kind in ("known", "fresh"))
        path = f"{inquiry.folder}/known-{number}"
        for copy in range(copies):
            inquiry.driver.put(f"{path}-{copy}" if copy else path, LiteralContent(known_content))
        if not number and _is_there(other, path):
            return unknown("both sets of credentials lead to the same account")
        counts = {}
        for name, content in (("seen", known_content), ("new", fresh_content))[:: -1 if number % 2 else 1]:
            counts[name] = transit.count_sent_bytes(other, f"{other.folder}/{name}-{number}", content)
        pairs.append(Pair(counts["seen"], counts["new"]))
    return judge_deduplication(pairs, copies=copies)


def _make_content(inquiry: Inquiry, name: str) -> bytes:
    return RandomContent(f"{inquiry.seed}/{name}", SIZE_BYTES).read(0, SIZE_BYTES)


def _is_there(inquiry: Inquiry, path: str) -> bool:
    try:
        inquiry.driver.stat(path)
    except CloudError as error:
        if error.kind is not ErrorKind.NOT_FOUND:
            raise
        return False
    return True


def judge_deduplication(pairs: Sequence[Pair], size_bytes: int = SIZE_BYTES, copies: int = 1) -> Ruling:
    """Judge pairs of uploads. The answer is known only if all pairs agree."""
    evidence = [f"{pair.known_bytes:,} bytes for a known file, {pair.fresh_bytes:,} for a fresh one" for pair in pairs]
    fresh_bytes = [pair.fresh_bytes for pair in pairs]
    if min(fresh_bytes) < size_bytes:
        return unknown("less was seen than a fresh file has", evidence)
    limit_bytes = max(_LEAST_SHARE * size_bytes, _SPREADS * (max(fresh_bytes) - min(fresh_bytes)))
    if limit_bytes > _MOST_SHARE * size_bytes:
        return unknown("uploads of fresh files differ too much to compare", evidence)
    times = f" {copies} times" if copies > 1 else ""
    saved_bytes = [pair.fresh_bytes - pair.known_bytes for pair in pairs]
    if min(saved_bytes) > limit_bytes:
        share = min(saved_bytes) / size_bytes
        return yes(f"at least {share:.0%} less is sent for a file that another account has{times}", evidence)
    if max(map(abs, saved_bytes)) <= limit_bytes:
        return no(f"not seen when one other account has the file{times}", evidence)
    return unknown("less is sent for some known files only", evidence)
