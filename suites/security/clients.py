"""Sync clients: their traffic on the link, the files of their server, and their secrets."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from pytest_cloudbench import (
    Act,
    CloudbenchError,
    LabItem,
    LocalClient,
    Overheard,
    OverheardFlow,
    RandomContent,
    SyncClient,
    UsageError,
    make_client,
    read_tree,
    search_needles,
)

from . import certificates, convergence, transit
from .authority import HOST
from .certificates import Visitor
from .rulings import Ruling, no, unknown, yes
from .tap import TappedFlow

_OTHERS = 0o007
_EQUAL_BYTES, _SYNCED_S = 65536, 60.0
_SERVERS_OWN = (
    "stored", "restored", "reference-server", "reference-device", "device-server", "rclone-server.conf", "cache-server",
    "unison-server", "logs",
)  # fmt: skip
"""Names below a lab's folder that are not the client's: its server's files, and the lab's own records."""
_UNLED = "it is not known how to lead it to another server"
_NO_DEVICE = (
    "it has no second device in its definition: what its other side gets passes on the link, of which TLS tells"
)
_PEER = "readable on its other side, which is a device of the same user and has no operator"


@dataclass(frozen=True, slots=True)
class Secret:
    """A place where a client's secret was readable.

    Attributes:
        name: the name of the secret.
        location: a path below the client's folder, or another place in words.
        is_open: whether other users of the machine may read it there.
    """

    name: str
    location: str
    is_open: bool


@dataclass(frozen=True, slots=True)
class Observed:
    """Observations of a client that uploaded bait.

    Attributes:
        bait: the files that it uploaded.
        overheard: the traffic on the link.
        stored: the files on its server's disk, or None if that is not on this machine, or cannot be read.
        secrets: the places of the client's secrets, or None if no secret of it is known, or a file cannot be read.
        is_plain_here: whether this package sets the client up without encryption.
        is_peer: whether its other side is a device of the same user.
        spec: the spec by which the client can be made again.
        has_processes: whether it was running, so that its command line was seen.
    """

    bait: transit.Bait
    overheard: Overheard
    stored: Sequence[tuple[str, bytes]] | None = None
    secrets: Sequence[Secret] | None = None
    has_processes: bool = False
    is_plain_here: bool = False
    is_peer: bool = False
    spec: str = ""


def observe(lab: LabItem) -> Observed:
    """Let a client upload bait, and look at the link, its server's disk and its own files."""
    bait = transit.Bait.make(f"{lab.nodeid}/{lab.spec}")

    def upload() -> int:
        for name, content in bait.files.items():
            path = lab.workdir / f"prepared-{name}"
            path.write_bytes(content)
            os.replace(path, lab.client.folder / name)
        return bait.size_bytes

    overheard, client = lab.overhear([Act("bait", upload)]), lab.client
    observed = Observed(
        bait, overheard, is_plain_here=lab.facts.is_plain_here, is_peer=lab.facts.is_peer, spec=lab.spec
    )
    if not isinstance(client, LocalClient):
        return observed
    values, pids = client.secrets(), client.pids("client")
    with suppress(OSError):  # what cannot be read is as unknown as what is elsewhere
        stored = [(path.relative_to(client.stored).as_posix(), content) for path, content in read_tree(client.stored)]
        observed = replace(observed, stored=stored)
    places: list[Secret] | None = None
    if values:
        with suppress(OSError):
            places = [*find_in_files(client.workdir, values), *find_in_processes(pids, values)]
    return replace(observed, secrets=places, has_processes=bool(pids))


def find_in_files(workdir: Path, secrets: Mapping[str, str]) -> list[Secret]:
    """Return the files of a client that hold a secret, and whether others may read them.

    Raises OSError if one cannot be read.
    """
    places = []
    for path, data in read_tree(workdir):
        name = path.relative_to(workdir).as_posix()
        if name.partition("/")[0] in _SERVERS_OWN:
            continue
        for secret, value in secrets.items():
            if value.encode() in data:
                mode, is_open = _find_mode(workdir, path)
                places.append(Secret(secret, f"{name}, mode {mode:04o}", is_open))
    return places


def _find_mode(workdir: Path, path: Path) -> tuple[int, bool]:
    """Return a file's mode, and whether others may read it: each folder below ``workdir`` has to let them in."""
    mode = stat.S_IMODE(path.stat().st_mode)
    folders = [folder for folder in path.parents if folder.is_relative_to(workdir) and folder != workdir]
    lets_in = all(folder.stat().st_mode & stat.S_IXOTH for folder in folders)
    return mode, bool(mode & _OTHERS & 0o004) and lets_in


def find_in_processes(pids: Sequence[int], secrets: Mapping[str, str]) -> list[Secret]:
    """Return the secrets that running processes show, to everybody in a command line, or to the owner."""
    places = []
    for pid in pids:
        for file, is_open in (("cmdline", True), ("environ", False)):
            with suppress(OSError):
                data = Path(f"/proc/{pid}/{file}").read_bytes()
                location = "the command line" if is_open else "the environment"
                places += [Secret(name, location, is_open) for name, value in secrets.items() if value.encode() in data]
    return places


# --- rulings ---


def judge_transit(observed: Observed) -> Ruling:
    """Judge whether everything that passed on the link was encrypted."""
    ruling = _judge_flows(observed.overheard, observed.bait, transit.judge_transit)
    if ruling.answer == "no" and observed.is_plain_here:
        return unknown("plain, because this package starts its server without encryption", [ruling.how])
    return ruling


def judge_device(observed: Observed) -> Ruling:
    """Judge whether everything that a second device exchanged was encrypted."""
    if observed.is_peer:
        ruling = judge_transit(observed)
        return replace(ruling, evidence=["its other side is the second device", *ruling.evidence])
    device = observed.overheard.device
    if device is None:
        return unknown(_NO_DEVICE)
    if not device.reasons and sum(len(flow.down) for flow in device.flows) < observed.bait.least_bytes:
        return unknown("what the second device received was not seen")
    return _judge_flows(device, observed.bait, transit.judge_protection)


def _judge_flows(
    overheard: Overheard, bait: transit.Bait, judge: Callable[[Sequence[TappedFlow], transit.Bait], Ruling]
) -> Ruling:
    if overheard.reasons:
        return unknown("; ".join(overheard.reasons))
    flows = [
        TappedFlow(flow.server, bytearray(flow.up), bytearray(flow.down), flow.protocol) for flow in overheard.flows
    ]
    return _doubt_if_cut(judge(flows, bait), overheard.flows)


def _doubt_if_cut(ruling: Ruling, flows: Sequence[OverheardFlow]) -> Ruling:
    is_cut = not all(flow.is_whole for flow in flows)
    return unknown("bytes are missing in the capture") if ruling.answer == "yes" and is_cut else ruling


def judge_content(observed: Observed) -> Ruling:
    """Judge whether the client encrypts contents, by its traffic without encryption and by the files of its server."""
    is_searched = True
    if observed.stored is not None:
        stored = transit.judge_at_rest(observed.stored, observed.bait)
        if stored.answer == "no":
            if observed.is_peer:
                return unknown(_PEER, [stored.how, *stored.evidence])
            return no(f"its server stores it: {stored.how}", stored.evidence)
        is_searched = stored.how != transit.UNSEARCHED
    return _judge_plain(observed, transit.judge_content, is_searched=is_searched)


def judge_names(observed: Observed) -> Ruling:
    """Judge whether the client encrypts names, as for contents."""
    names = [name.encode(errors="replace") for name, _ in observed.stored or ()]
    contents = [content for _, content in observed.stored or ()]
    sightings, is_searched = search_needles(b"\n".join([*names, *contents]), observed.bait.names)
    if sightings:
        how = transit.describe_sightings(sightings)
        return unknown(_PEER, [how]) if observed.is_peer else no(f"its server stores them: {how}")
    return _judge_plain(observed, transit.judge_names, is_searched=is_searched)


def _judge_plain(observed: Observed, judge: Callable[[bytes, transit.Bait], Ruling], *, is_searched: bool) -> Ruling:
    """Judge the traffic without encryption.

    Readable content in any connection is certain. Unreadable bytes mean that the client has encrypted them only if HTTP
    shows that the connection itself encrypts nothing, and if neither it nor the store (``is_searched``) hides anything.
    """
    flows = [flow for flow in observed.overheard.flows if not flow.protocol]
    ruling = judge(b"".join(flow.up for flow in flows), observed.bait)
    if not observed.overheard.reasons and ruling.answer == "no":
        return ruling
    http_bytes = b"".join(flow.up for flow in flows if is_plain_http(flow.up))
    if observed.overheard.reasons or len(http_bytes) < observed.bait.least_bytes:
        return unknown(
            "what is inside encrypted or unknown connections was not seen, and the store is unreadable or unseen"
        )
    if not is_searched or ruling.how == transit.UNSEARCHED:
        return unknown(transit.UNSEARCHED, ruling.evidence)
    return _doubt_if_cut(judge(http_bytes, observed.bait), flows)


def is_plain_http(data: bytes) -> bool:
    """Return whether a client speaks HTTP that leads to no other protocol, as a tunnel or a WebSocket does."""
    head = data.partition(b"\r\n\r\n")[0]
    return re.match(rb"(?!CONNECT )[A-Z]+ \S+ HTTP/1\.[01]\r\n", data) is not None and not re.search(
        rb"(?i)\r\nupgrade:", head
    )


def judge_operator(observed: Observed) -> Ruling:
    """Judge whether the operator of its server could read contents."""
    ruling = judge_content(observed)
    if ruling.answer == "unknown":
        return ruling
    if observed.is_peer:
        return unknown("its other side is a device of the same user and has no operator", [ruling.how])
    return yes(ruling.how, ruling.evidence) if ruling.answer == "no" else no(ruling.how, ruling.evidence)


def judge_at_rest(observed: Observed) -> Ruling:
    """Judge whether content is unreadable on the server's disk."""
    if observed.stored is None:
        return unknown(transit.UNSEEN_STORE)
    ruling = transit.judge_at_rest(observed.stored, observed.bait)
    is_own = observed.is_peer and ruling.answer == "no"
    return unknown(_PEER, [ruling.how, *ruling.evidence]) if is_own else ruling


def ask_equal(observed: Observed) -> Ruling:
    """Answer whether equal files of two accounts look different, if the client encrypts at all."""
    encryption = judge_content(observed)
    if encryption.answer != "yes":
        why = "it does not encrypt contents" if encryption.answer == "no" else encryption.how
        return unknown(f"not asked: {why}", encryption.evidence)
    return compare_accounts(lambda: make_client(observed.spec), observed.spec)


def compare_accounts(make_account: Callable[[], SyncClient], seed: str) -> Ruling:
    """Let two accounts, each with a server of its own, store an equal file, and compare the files of the servers."""
    content = RandomContent(f"{seed}/equal", _EQUAL_BYTES).read(0, _EQUAL_BYTES)
    try:
        first, other = store_alone(make_account(), content), store_alone(make_account(), content)
    except (CloudbenchError, OSError) as error:
        return unknown(str(error).partition("\n")[0])
    if min(len(first.stored), len(other.stored)) < _EQUAL_BYTES:
        return unknown("less is stored than the file has, so nothing can be compared")
    if not convergence.pick_pieces(first.stored):
        return unknown("too little of what is stored looks random, so it cannot be compared")
    is_alike = convergence.are_alike(first.stored, other.stored)
    if is_alike is None:
        return unknown(transit.UNSEARCHED)
    if not is_alike:
        return yes("an equal file of another account looks different where it is stored")
    if not first.secrets or set(first.secrets) & set(other.secrets):
        return unknown("an equal file looks the same, but it is not known whether the two accounts have other secrets")
    return no("an equal file of another account, with other secrets, looks the same where it is stored")


class StoredAlone(NamedTuple):
    """The content of the disk of a server with one account, and the secrets of the account."""

    stored: bytes
    secrets: Sequence[str]


def store_alone(client: SyncClient, content: bytes) -> StoredAlone:
    """Let a client, on loopback, bring a file to its server. Raises ClientError and UsageError."""
    if not isinstance(client, LocalClient):
        raise UsageError("there is no second account of this client")
    with TemporaryDirectory(prefix="cloudbench-account-") as name:
        client.prepare(Path(name))
        try:
            client.start()
            (client.workdir / "prepared").write_bytes(content)
            os.replace(client.workdir / "prepared", client.folder / "file.bin")
            client.after_change()
            client.wait_synced(_SYNCED_S)
            stored = b"".join(data for _, data in read_tree(client.stored))
            return StoredAlone(stored, list(client.secrets().values()))
        finally:
            client.stop()


def judge_secrets(observed: Observed) -> Ruling:
    """Judge whether other users of the client's machine can read its secrets."""
    if observed.secrets is None:
        return unknown("no secret of this client is known, or not all of its files can be read")
    evidence = [f"{secret.name}: in {secret.location}" for secret in observed.secrets]
    if open_places := [secret.location for secret in observed.secrets if secret.is_open]:
        return no(f"others can read it: {', '.join(dict.fromkeys(open_places))}", evidence)
    if not observed.has_processes:
        return unknown("not in a file that others can read; its command line was not seen", evidence)
    return yes("only its user can read it", evidence or ["found in no file, command line or environment"])


# --- doors ---


def client_visitor(client: SyncClient) -> Visitor | str:
    """Return a visitor that leads a client to a door, or the reason why it cannot be led."""
    if not isinstance(client, LocalClient):
        return _UNLED
    if client.facts.trusts:
        return f"it asks no authority: it knows its server by {client.facts.trusts}"
    with TemporaryDirectory(prefix="cloudbench-visit-") as name:
        if not client.lead_elsewhere(HOST, 1, "", Path(name)):
            return client.missing() or _UNLED

    def make_words(address: str, authority: str, folder: Path) -> Sequence[str]:
        host, _, port = address.rpartition(":")
        return client.lead_elsewhere(host, int(port), authority, folder)

    return certificates.command_visitor(make_words)


def visit_with(spec: str, faults: Sequence[str]) -> Sequence[certificates.Visit] | str:
    """Lead a client to doors. Return its visits, or the reason if that is not possible."""
    visitor = client_visitor(make_client(spec))
    return visitor if isinstance(visitor, str) else certificates.visit_doors(visitor, faults)
