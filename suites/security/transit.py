"""On the way: is everything encrypted, and what does the service receive?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from pytest_cloudbench import (
    CloudError,
    Endpoint,
    Inquiry,
    LiteralContent,
    Needle,
    RandomContent,
    Sighting,
    count_by_form,
    find_needles,
    is_text,
    looks_random,
    make_text_needle,
    search_needles,
    slice_needles,
)

from .rulings import Ruling, no, unknown, yes
from .tap import Tap, TappedFlow, sent_bytes

_CONTENT_BYTES = 65536
_MOST_EVIDENCE = 6
_PART_BYTES = 4096
_TALK_SHARE = 0.2
"""The bytes that a client may send besides the content, such as heads of requests, as a share of the content."""

UNSEARCHED = "nothing was readable, but not all that is packed could be unpacked and searched"
"""The reason why an answer is unknown if a search found nothing and was not whole."""
UNSEEN_STORE = "where it is stored cannot be seen from here"

GATEWAYS = {
    "rclone": "a program that sends it on",
    "tahoe": "a gateway on the user's own machine, which encrypts it",
}
"""Drivers that talk to a local program in place of the service, so that their traffic says nothing about it."""


@dataclass(frozen=True, slots=True)
class Bait:
    """Files whose names and contents can be recognised anywhere.

    Attributes:
        files: name to content: random bytes, which nothing can shorten, and text, which is easily shortened.
        names, contents: the needles to look for.
    """

    files: dict[str, bytes]
    names: Sequence[Needle]
    contents: Sequence[Needle]

    @classmethod
    def make(cls, seed: str, times: int = 1) -> Bait:
        """Return new files, ``times`` times as large as usual. The same seed gives the same files."""
        name, text = make_text_needle("name", seed), make_text_needle("content", seed)
        random = RandomContent(seed, _CONTENT_BYTES * times).read(0, _CONTENT_BYTES * times)
        words = b"".join(b"%s %06d\n" % (text.data, number) for number in range(_CONTENT_BYTES * times // 32))
        word = name.data.decode()
        files = {f"{word}.bin": random, f"{word}.txt": words}
        return cls(files, [name], [text, *slice_needles("content", random)])

    @property
    def needles(self) -> list[Needle]:
        """All needles."""
        return [*self.names, *self.contents]

    @property
    def size_bytes(self) -> int:
        """The size of all files."""
        return sum(map(len, self.files.values()))

    @property
    def least_bytes(self) -> int:
        """The least that all files take, however they are packed: nothing shortens random bytes."""
        return min(map(len, self.files.values()))


def describe_sightings(sightings: Sequence[Sighting]) -> str:
    """Return the readable pieces in words, with their forms."""
    return ", ".join(f"{count} in {form}" if form != "raw" else f"{count} as it is"
                     for form, count in count_by_form(sightings).items())  # fmt: skip


def name_files(inquiry: Inquiry, bait: Bait) -> dict[str, bytes]:
    """Return the bait by its paths in the folder of a question."""
    return {f"{inquiry.folder}/{name}": content for name, content in bait.files.items()}


def judge_traffic(
    inquiry: Inquiry, name: str, judge: Callable[[Sequence[TappedFlow], Bait], Ruling], *, opens: bool
) -> Ruling:
    """Upload the bait through taps, and judge the traffic. Raises CloudError, UsageError and OSError.

    If a provider is made of others, the traffic to each of them is judged, and all have to agree.
    """
    children = inquiry.children
    # Each child may get only a share, so files are larger and a share is as large as the files for one service.
    bait = Bait.make(f"{inquiry.seed}/{name}", max(len(children), 1))
    if not children:
        if why := why_unseen(inquiry):
            return unknown(why)
        return judge(send_files(inquiry, name_files(inquiry, bait), inquiry.endpoint, opens=opens), bait)
    by_child = send_to_children(inquiry, name_files(inquiry, bait), opens=opens)
    share = replace(bait, files=Bait.make(f"{inquiry.seed}/{name}").files)  # only the sizes of these files count
    rulings = [
        unknown(why) if (why := why_unseen(child)) else judge(flows, share)
        for child, flows in zip(children, by_child, strict=True)
    ]
    return judge_children([child.bound.spec.scheme for child in children], rulings)


def judge_children(schemes: Sequence[str], rulings: Sequence[Ruling]) -> Ruling:
    """Judge a provider by those that it is made of: no if any answer is no, yes if all are yes, or else unknown."""
    evidence, by_answer = list[str](), dict[str, list[str]]()
    for number, (scheme, ruling) in enumerate(zip(schemes, rulings, strict=True), 1):
        evidence.append(f"child {number} ({scheme}): {ruling.answer}, {ruling.how}")
        by_answer.setdefault(ruling.answer, []).append(f"child {number} ({scheme}): {ruling.how}")
    if "no" in by_answer:
        return no("; ".join(by_answer["no"]), evidence)
    if "unknown" in by_answer:
        return unknown("; ".join(by_answer["unknown"]), evidence)
    return yes(
        f"by each of {len(rulings)} children: {', '.join(dict.fromkeys(ruling.how for ruling in rulings))}", evidence
    )


def send_files(
    inquiry: Inquiry, files: Mapping[str, bytes], endpoint: Endpoint | None, *, opens: bool
) -> list[TappedFlow]:
    """Upload files through a tap before a service, or before the real account if there is none.

    If a provider is made of others, there is a tap before each of them.
    """
    if inquiry.children:
        return [flow for flows in send_to_children(inquiry, files, opens=opens) for flow in flows]
    with _open_tap(endpoint, opens=opens) as tap, closing(_connect_behind(inquiry, tap)) as driver:
        _put_all(driver, files)
    return tap.flows


def count_sent_bytes(inquiry: Inquiry, path: str, content: bytes) -> int:
    """Upload a file through a tap, and return how many bytes were sent on its connections."""
    return len(sent_bytes(send_files(inquiry, {path: content}, inquiry.endpoint, opens=False)))


def send_to_children(inquiry: Inquiry, files: Mapping[str, bytes], *, opens: bool) -> list[list[TappedFlow]]:
    """Upload files to a provider that is made of others. Return the traffic to each of them, if it can be seen."""
    with ExitStack() as stack:
        drivers, flows = [], list[list[TappedFlow]]()
        for child in inquiry.children:
            if why_unseen(child):
                drivers.append(child.provider.driver)
                flows.append([])
            else:
                tap = stack.enter_context(_open_tap(child.endpoint, opens=opens))
                drivers.append(_connect_behind(child, tap))
                flows.append(tap.flows)
        with closing(inquiry.compose(drivers)) as driver:
            _put_all(driver, files)
    return flows


@contextmanager
def _open_tap(endpoint: Endpoint | None, *, opens: bool) -> Iterator[Tap]:
    with TemporaryDirectory(prefix="cloudbench-tap-") as folder, Tap(endpoint, Path(folder) if opens else None) as tap:
        if endpoint is not None and tap.endpoint is not None:
            tap.endpoint = _know_host(endpoint, tap.endpoint, Path(folder))
        yield tap


def _know_host(service: Endpoint, tapped: Endpoint, folder: Path) -> Endpoint:
    """Return the endpoint of a tapped service. Its file of known SSH hosts, if it has one, names the tap instead."""
    if not (name := service.credentials.get("known_hosts")):
        return tapped
    server, tap = (f"[{parts.hostname}]:{parts.port}" for parts in map(urlsplit, (service.url, tapped.url)))
    copy = folder / "known_hosts"
    copy.write_bytes(Path(name).read_bytes().replace(server.encode(), tap.encode()))
    return replace(tapped, credentials={**tapped.credentials, "known_hosts": str(copy)})


def _connect_behind(inquiry: Inquiry, tap: Tap) -> Any:
    if tap.endpoint is not None:
        return inquiry.connect(tap.endpoint)
    return inquiry.connect_by_proxy(tap.proxy, tap.authority)


def _put_all(driver: Any, files: Mapping[str, bytes]) -> None:
    for path, content in files.items():
        driver.put(path, LiteralContent(content))


def why_unseen(inquiry: Inquiry) -> str:
    """Return why no traffic can be recorded. Empty if it can."""
    scheme = inquiry.bound.spec.scheme
    if inquiry.endpoint is None and not inquiry.bound.credential_sets:
        return "not seen: it makes no connections of its own"
    return f"not seen: the driver talks to {GATEWAYS[scheme]}" if scheme in GATEWAYS else ""


def ask_transit(inquiry: Inquiry) -> Ruling:
    """Answer whether every connection is encrypted. A plain one is named with its content."""
    return judge_traffic(
        inquiry, "transit", lambda flows, bait: judge_transit([flow for flow in flows if flow.up], bait), opens=False
    )


def judge_transit(flows: Sequence[TappedFlow], bait: Bait) -> Ruling:
    """Judge recorded connections, which were not opened."""
    if sum(len(flow.up) for flow in flows) < bait.least_bytes:
        return unknown("the upload did not pass the tap")
    return judge_protection(flows, bait)


def judge_protection(flows: Sequence[TappedFlow], bait: Bait) -> Ruling:
    """Judge whether each of the connections, through which files passed, is encrypted."""
    evidence, plain, unrecognised, is_searched = list[str](), list[str](), list[str](), True
    for flow in flows:
        searches = [search_needles(bytes(data), bait.needles) for data in (flow.up, flow.down)]
        is_searched &= all(search.is_whole for search in searches)
        carried = sorted({f"a {sighting.needle.what}" for search in searches for sighting in search.sightings})
        if carried or (not flow.protocol and is_text(bytes(flow.up[:_PART_BYTES]))):
            plain.append(f"{flow.server}: plain, with {' and '.join(carried) or 'nothing that was recognised'}")
        elif not flow.protocol:
            unrecognised.append(flow.server)
        offered = f" (offered: {flow.offered})" if flow.offered else ""
        evidence.append(f"{flow.server}: {flow.protocol or 'no encryption that is known'}{offered}")
    evidence = list(dict.fromkeys(evidence))[:_MOST_EVIDENCE]
    if plain:
        return no("; ".join(dict.fromkeys(plain)), evidence)
    if unrecognised:
        return unknown(f"{unrecognised[0]} speaks a protocol that is not known; no file was readable in it", evidence)
    if not is_searched:
        return unknown(UNSEARCHED, evidence)
    return yes(", ".join(dict.fromkeys(flow.protocol for flow in flows)), evidence)


def ask_content(inquiry: Inquiry) -> Ruling:
    """Answer whether the client encrypts content before the service receives it."""
    return _judge_sent(inquiry, "content", judge_content)


def judge_content(data: bytes, bait: Bait, *, is_open: bool = True) -> Ruling:
    """Judge the bytes that a service received, without the encryption of the connection."""
    if not is_open:
        return unknown("what is inside the encrypted connection was not seen")
    sightings, is_searched = search_needles(data, bait.contents)
    if sightings:
        how = f"{len(sightings)} of {len(bait.contents)} pieces readable: {describe_sightings(sightings)}"
        return no(how, [f"{len(data):,} bytes sent for {bait.size_bytes:,} bytes of files"])
    evidence = [f"{len(data):,} bytes sent for {bait.size_bytes:,} bytes of files; no piece of them readable"]
    if not is_searched:
        return unknown(UNSEARCHED, evidence)
    if len(data) < bait.least_bytes:
        return unknown("less was sent than the random file has", evidence)
    plain_bytes = count_plain_bytes(data)
    if plain_bytes > _TALK_SHARE * bait.size_bytes or len(data) - plain_bytes < bait.least_bytes // 2:
        return unknown("what was sent does not look encrypted, but no piece was recognised", evidence)
    return yes("the service receives bytes in which nothing of the content can be recognised", evidence)


def count_plain_bytes(data: bytes) -> int:
    """Return the number of bytes in parts that do not look random, such as masked text or heads of requests."""
    starts = range(0, len(data) - _PART_BYTES + 1, _PART_BYTES)
    return sum(_PART_BYTES for start in starts if not looks_random(data[start : start + _PART_BYTES]))


def ask_names(inquiry: Inquiry) -> Ruling:
    """Answer whether the client encrypts the names of files before the service receives them."""
    return _judge_sent(inquiry, "names", judge_names)


def _judge_sent(inquiry: Inquiry, name: str, judge: Callable[..., Ruling]) -> Ruling:
    """Let the client send files, and judge the bytes that the service received."""

    def judge_flows(flows: Sequence[TappedFlow], bait: Bait) -> Ruling:
        return judge(sent_bytes(flows), bait, is_open=not any(flow.protocol for flow in flows))

    return judge_traffic(inquiry, name, judge_flows, opens=True)


def judge_names(data: bytes, bait: Bait, *, is_open: bool = True) -> Ruling:
    """Judge whether names are readable in the bytes that a service received."""
    if not is_open:
        return unknown("what is inside the encrypted connection was not seen")
    sightings, is_searched = search_needles(data, bait.names)
    if sightings:
        return no(f"names readable: {describe_sightings(sightings)}")
    if not is_searched:
        return unknown(UNSEARCHED)
    if len(data) < bait.least_bytes:
        return unknown("the upload did not pass the tap")
    return yes("the service receives no name in a form that can be recognised")


def ask_at_rest(inquiry: Inquiry, occasion: str = "rest") -> Ruling:
    """Answer whether content is unreadable where it is stored. ``occasion`` makes content that is not there yet."""
    bait, before = Bait.make(f"{inquiry.seed}/{occasion}"), inquiry.stored()
    for name, content in bait.files.items():
        inquiry.driver.put(f"{inquiry.folder}/{name}", LiteralContent(content))
    stored = inquiry.stored()
    if stored is None or before is None:
        return unknown(UNSEEN_STORE)
    return judge_at_rest(stored, bait, before)


def count_bytes(stored: Sequence[tuple[str, bytes]]) -> int:
    """Return the size of all stored files."""
    return sum(len(content) for _, content in stored)


def judge_at_rest(
    stored: Sequence[tuple[str, bytes]], bait: Bait, before: Sequence[tuple[str, bytes]] = ()
) -> Ruling:  # fmt: skip
    """Judge the files that a service has stored, by name. ``before`` are those that it had before, such as its logs."""
    stored_bytes = count_bytes(stored) - count_bytes(before)
    if stored_bytes < bait.least_bytes:
        return unknown(f"only {stored_bytes:,} bytes are new there, for {bait.size_bytes:,} bytes of files")
    searches = [search_needles(content, bait.contents) for _, content in stored]
    sightings = [sighting for search in searches for sighting in search.sightings]
    old = {*before}
    is_searched = all(search.is_whole or file in old for file, search in zip(stored, searches, strict=True))
    readable_names = sum(bool(find_needles(name.encode(errors="replace"), bait.names)) for name, _ in stored)
    evidence = [f"{len(stored):,} objects, {stored_bytes:,} bytes; names readable of {readable_names}"]
    if sightings:
        piece_count = len({sighting.needle for sighting in sightings})
        how = f"{piece_count} of {len(bait.contents)} pieces readable: {describe_sightings(sightings)}"
        return no(how, evidence)
    if not is_searched:
        return unknown(UNSEARCHED, evidence)
    plain_bytes, plain_before_bytes = (
        sum(count_plain_bytes(content) for _, content in files) for files in (stored, before)
    )
    if plain_bytes - plain_before_bytes > _TALK_SHARE * bait.size_bytes:
        return unknown("what is stored does not look encrypted, but no piece was recognised", evidence)
    return yes("nothing of the content can be recognised in the store", evidence)


def ask_operator(inquiry: Inquiry) -> Ruling:
    """Answer whether the operator could read contents, by the content that it receives and stores."""
    rulings = []
    for ask in (ask_content, partial(ask_at_rest, occasion="operator")):
        try:
            rulings.append(ask(inquiry))
        except (CloudError, OSError) as error:
            rulings.append(unknown(str(error)))
    return judge_operator(*rulings)


def judge_operator(received: Ruling, stored: Ruling) -> Ruling:
    """Judge whether the operator could read contents, by the rulings on what it receives and on what it stores."""
    evidence = [f"received: {received.how}", f"stored: {stored.how}"]
    if received.answer == "no":
        return yes("it receives the content", evidence)
    if stored.answer == "no":
        return yes("it stores the content", evidence)
    if received.answer == "unknown":
        return unknown(received.how, evidence)
    if stored.how == UNSEEN_STORE:
        return no("it receives no content that can be recognised", evidence)
    if stored.answer == "unknown":
        return unknown(stored.how, evidence)
    return no("it neither receives nor stores content that can be recognised", evidence)
