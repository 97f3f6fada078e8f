"""Behind links, and after deletion: who can still get the content? A person without an account tries it."""

from __future__ import annotations

import hashlib
import math
import re
import string
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

from pytest_cloudbench import CloudError, ErrorKind, Inquiry, LiteralContent, RandomContent, Verb, now_ns, wait_for

from .rulings import Ruling, no, unknown, yes
from .transit import count_bytes

LINKS = 16
"""The number of links from which their entropy is bounded. By chance, 16 are in order once in 2 * 10^13 times."""
LEAST_BITS = 64
"""Fewer unpredictable bits can be tried out by a patient person (NIST SP 800-63B asks for 64 of a secret)."""

_EARLY_S = 1.0
_OPEN_S = 30.0
_LIFE_S = 5.0
"""The life of a link that ends by itself."""
_CLOSED_S = 60.0
_PURGED_S = 2.0
_POLL_S = 0.1
_BYTES = 3000
_DELETED_BYTES = 65536
"""Much more than a service writes by itself meanwhile, into its logs, say."""
_LITTLE = 0.1
_REFUSALS = frozenset({ErrorKind.NOT_FOUND, ErrorKind.AUTH})
_ALPHABETS = (
    string.digits, string.hexdigits[:16], string.ascii_lowercase, string.ascii_lowercase + string.digits,
    string.ascii_letters, string.ascii_letters + string.digits, string.ascii_letters + string.digits + "-_",
)  # fmt: skip
_COUNTED_TO = 10_000


def _why_unasked(inquiry: Inquiry) -> str:
    """Return why links cannot be tried. Empty if they can."""
    if Verb.SHARE not in inquiry.driver.capabilities.verbs:
        return "the driver makes no links"
    return "" if inquiry.opens_links else "the driver does not know how a person without an account opens a link"


def opens(inquiry: Inquiry, url: str, content: bytes) -> bool:
    """Return whether a link gives the content. Raises CloudError if it neither does nor is refused."""
    try:
        return inquiry.open_link(url) == content
    except CloudError as error:
        if error.kind not in _REFUSALS:
            raise
        return False


def share_new_file(inquiry: Inquiry, name: str) -> tuple[str, str, bytes]:
    """Upload and share a file. Return its path, link and content."""
    content = RandomContent(f"{inquiry.seed}/{name}", _BYTES).read(0, _BYTES)
    path = f"{inquiry.folder}/{name}"
    inquiry.driver.put(path, LiteralContent(content))
    return path, inquiry.driver.share(path), content


def ask_revoked(inquiry: Inquiry) -> Ruling:
    """Answer whether a revoked link is closed, and after how long."""
    if why := _why_unasked(inquiry):
        return unknown(why)
    _, url, content = share_new_file(inquiry, "revoked")
    return _watch_closing(inquiry, url, content, lambda: inquiry.driver.revoke(url), "revoked")


def _watch_closing(inquiry: Inquiry, url: str, content: bytes, close: Callable[[], None], closing: str) -> Ruling:
    """Open a link, close it, and open it until it is refused."""
    if not wait_for(lambda: opens(inquiry, url, content), _OPEN_S, poll_s=_POLL_S):
        return unknown("the link did not give the content before, so nothing follows from afterwards")
    close()
    closed_ns = now_ns()
    tries = 0

    def is_refused() -> bool:
        nonlocal tries
        tries += 1
        return not opens(inquiry, url, content)

    if not wait_for(is_refused, _CLOSED_S, poll_s=_POLL_S):
        return no(f"still open {_CLOSED_S:g} s after it was {closing}", [f"opened {tries} times since"])
    closed_s = (now_ns() - closed_ns) / 1e9
    evidence = ["it gave the content before", f"refused at try {tries}, {closed_s:.2f} s after it was {closing}"]
    return yes(f"refused {closed_s:.2f} s after it was {closing}", evidence, link_closed_s=closed_s)


def ask_expiry(inquiry: Inquiry) -> Ruling:
    """Answer whether a link that was made to end by itself does, and how long after its time."""
    if why := _why_unasked(inquiry):
        return unknown(why)
    if not inquiry.limits_links:
        return unknown("the driver makes no links that end by themselves")
    _, lasting_url, lasting_content = share_new_file(inquiry, "lasting")
    content = RandomContent(f"{inquiry.seed}/expiring", _BYTES).read(0, _BYTES)
    inquiry.driver.put(f"{inquiry.folder}/expiring", LiteralContent(content))
    ends_at = datetime.fromtimestamp(math.ceil(time.time()) + _LIFE_S, UTC)
    url = inquiry.driver.share_until(f"{inquiry.folder}/expiring", ends_at)
    if not wait_for(lambda: opens(inquiry, url, content), _LIFE_S, poll_s=_POLL_S):
        return unknown("the link did not give the content before its time, so nothing follows from afterwards")
    evidence = ["it gave the content before"]
    if not wait_for(lambda: not opens(inquiry, url, content), _LIFE_S + 1 + _CLOSED_S, poll_s=_POLL_S):
        return no(f"still open {_CLOSED_S:g} s after its time", evidence)
    late_s = time.time() - ends_at.timestamp()
    if not opens(inquiry, lasting_url, lasting_content):
        return unknown("a link without an end is refused too", evidence)
    evidence.append(f"refused {late_s:+.2f} s after its time, by this machine's clock; a link without an end is not")
    if late_s < -_EARLY_S:
        return unknown("refused before its time, so not for that", evidence)
    return yes(f"refused {late_s:+.2f} s after its time", evidence, link_late_s=late_s)


def ask_guessable(inquiry: Inquiry) -> Ruling:
    """Answer whether links cannot be guessed, from many links to files of one name in different folders."""
    if why := _why_unasked(inquiry):
        return unknown(why)
    driver, urls = inquiry.driver, []
    for number in range(LINKS):
        folder = f"{inquiry.folder}/{number}"
        if driver.capabilities.folders:
            driver.mkdir(folder)
        driver.put(f"{folder}/file", LiteralContent(b"shared"))
        urls.append(driver.share(f"{folder}/file"))
    path = f"{inquiry.folder}/0/file"
    driver.delete(path)
    driver.put(path, LiteralContent(b"shared"))
    return judge_links(urls, [f"{inquiry.folder}/{number}/file" for number in range(LINKS)], driver.share(path))


def judge_links(urls: Sequence[str], paths: Sequence[str], again: str = "") -> Ruling:
    """Judge links in the order in which they were made. ``again`` is the link to a new file in place of the first."""
    tokens = _cut_tokens(urls)
    bits = sum(_bits_at(characters) for characters in zip(*tokens, strict=True)) if tokens else 0.0
    evidence = [f"{len(urls)} links differ in at most {bits:.0f} bits"] if tokens else []
    if len({*urls}) < len(urls):
        return no("different files have the same link", evidence)
    if not tokens:
        return unknown("the links have different lengths, so their parts cannot be compared", evidence)
    if bits < LEAST_BITS:
        return no(f"at most {bits:.0f} bits differ: fewer than {LEAST_BITS} can be tried out", evidence, bits=bits)
    if tokens in (sorted(tokens), sorted(tokens, reverse=True)):
        return no("links grow in the order in which they were made", evidence, bits=bits)
    if again == urls[0]:
        return no("a new file in the place of a deleted one gets its link, which follows from the path", evidence)
    if derived := _find_derivation(urls, paths):
        return no(f"links follow from {derived}", evidence, bits=bits)
    return yes(f"at most {bits:.0f} bits; no order and no derivation was found", evidence, bits=bits)


def _cut_tokens(urls: Sequence[str]) -> list[str]:
    """Return the part in which links differ. Empty if they have different lengths."""
    if len({*map(len, urls)}) != 1:
        return []
    differs = [len({*characters}) > 1 for characters in zip(*urls, strict=True)]
    return ["".join(character for character, differ in zip(url, differs, strict=True) if differ) for url in urls]


def _bits_at(characters: Sequence[str]) -> float:
    """Return the most bits that one position can hold, by the smallest alphabet with all characters seen there."""
    distinct = {*characters}
    fitting = [len(alphabet) for alphabet in _ALPHABETS if distinct <= {*alphabet}]
    return math.log2(fitting[0] if fitting else 256) if len(distinct) > 1 else 0.0


def _find_derivation(urls: Sequence[str], paths: Sequence[str]) -> str:
    """Return the source from which a well-known hash derives the links. Empty if none was found."""
    text = urls[-1].lower()
    for source, inputs in (("the path", _spellings(paths[-1])), ("a counter", map(str, range(_COUNTED_TO)))):
        for plain in inputs:
            for name in ("md5", "sha1", "sha256"):
                if hashlib.new(name, plain.encode(), usedforsecurity=False).hexdigest()[:16] in text:
                    return f"{source} by {name}"
    return ""


def _spellings(path: str) -> Iterator[str]:
    yield path
    yield path.lstrip("/")
    yield re.sub(r".*/", "", path)


def ask_deleted(inquiry: Inquiry) -> Ruling:
    """Answer whether deleted content is gone: by its path, link and id, and in the store where that can be seen."""
    driver = inquiry.driver
    content = RandomContent(f"{inquiry.seed}/deleted", _DELETED_BYTES).read(0, _DELETED_BYTES)
    path, url, before = f"{inquiry.folder}/deleted", "", inquiry.stored()
    driver.put(path, LiteralContent(content))
    with_file = inquiry.stored()
    if not _why_unasked(inquiry):
        url = driver.share(path)
        if not wait_for(lambda: opens(inquiry, url, content), _OPEN_S, poll_s=_POLL_S):
            url = ""
    reference = driver.refer(path) if inquiry.restores_deleted else ""
    driver.delete(path)
    evidence = list[str]()
    if not wait_for(lambda: not _reads(inquiry, path, content), _CLOSED_S, poll_s=_POLL_S):
        return no(f"still there by its path {_CLOSED_S:g} s later")
    evidence.append("by its path: gone")
    if url:
        if not wait_for(lambda: not opens(inquiry, url, content), _CLOSED_S, poll_s=_POLL_S):
            return no(f"an old link still gives it {_CLOSED_S:g} s later", evidence)
        evidence.append("by an old link: gone")
    if location := _find_kept(inquiry, path, content, evidence):
        return no(
            f"the service keeps it, {location}", [*evidence, f"by the service's own functions: still there, {location}"]
        )
    find_share = _find_trace(before, with_file, content)
    if reference and _comes_back(inquiry, reference, path, content, evidence):
        return no("the service keeps it, in a bin from which its id brings it back", evidence)
    if find_share is None:
        return unknown("gone by path and link; the store, trash and versions were not seen", evidence)
    shares = list[float]()

    def is_gone() -> bool:
        shares.append(find_share(inquiry.stored() or ()))
        return shares[-1] < _LITTLE

    if wait_for(is_gone, _PURGED_S, poll_s=_POLL_S):
        return yes("gone by every way that was tried", [*evidence, "in the store: gone"])
    if shares[-1] > 1 - _LITTLE:
        return no("the service keeps it, in a trash or as a version", [*evidence, "in the store: still there"])
    return unknown("gone by path and link; the store changed, but not by the size of the file", evidence)


def _find_kept(inquiry: Inquiry, path: str, content: bytes, evidence: list[str]) -> str:
    """Return the place in which the service says that it keeps a deleted file after a while. Empty if there is none."""
    if not inquiry.finds_deleted:
        return ""
    places = list[str]()

    def is_gone() -> bool:
        try:
            places.append(inquiry.driver.find_deleted(path, content))
        except CloudError as error:
            if error.kind is not ErrorKind.NOT_FOUND:
                raise
            places.append("")
        return not places[-1]

    if wait_for(is_gone, _PURGED_S, poll_s=_POLL_S):
        evidence.append("by versions and trash: gone")
    return places[-1]


def _comes_back(inquiry: Inquiry, reference: str, path: str, content: bytes, evidence: list[str]) -> bool:
    """Return whether a deleted file comes back by its id. If so, it is deleted again."""
    try:
        inquiry.driver.restore_deleted(reference)
    except CloudError as error:
        is_gone = error.kind is ErrorKind.NOT_FOUND
        evidence.append("by its id: gone" if is_gone else f"by its id: unknown, restoring failed ({error.kind.value})")
        evidence.append("in the bin: unknown, the service does not list it")
        return False
    is_back = wait_for(lambda: _reads(inquiry, path, content), _OPEN_S, poll_s=_POLL_S)
    evidence.append(f"by its id: restored{'' if is_back else ', but not there'}")
    inquiry.driver.delete(path)
    return is_back


def _find_trace(
    before: Sequence[tuple[str, bytes]] | None, with_file: Sequence[tuple[str, bytes]] | None, content: bytes
) -> Callable[[Sequence[tuple[str, bytes]]], float] | None:
    """Return a function for the share of the content in a store, found by its bytes, or by its size if encrypted.

    None if the store did not show it while it was there, so that its absence would mean nothing.
    """
    if before is None or with_file is None:
        return None
    if any(content in data for _, data in with_file):
        return lambda stored: float(any(content in data for _, data in stored))
    empty_bytes, full_bytes = count_bytes(before), count_bytes(with_file)
    if full_bytes - empty_bytes < len(content):
        return None
    return lambda stored: (count_bytes(stored) - empty_bytes) / (full_bytes - empty_bytes)


def _reads(inquiry: Inquiry, path: str, content: bytes) -> bool:
    try:
        return b"".join(inquiry.driver.get(path)) == content
    except CloudError as error:
        if error.kind is not ErrorKind.NOT_FOUND:
            raise
        return False
