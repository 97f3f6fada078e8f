"""Traffic between a sync client and its server, as an eavesdropper on the link sees it.

A second device that runs beside the server talks to it over the loopback interface there, which is captured, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_cloudbench.lab.clients.base import Receiver
from pytest_cloudbench.lab.clients.trees import FolderTree
from pytest_cloudbench.lab.sync.activity import Act
from pytest_cloudbench.lab.sync.lab import Lab
from pytest_cloudbench.lab.sync.network import analyze_capture
from pytest_cloudbench.lab.sync.session import SyncSession
from pytest_cloudbench.net.capture import Capture
from pytest_cloudbench.net.traffic import Analysis, FlowFacts
from pytest_cloudbench.support.clock import wait_for

_DNS_PORT = 53
_SSH = b"SSH-"
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class OverheardFlow:
    """One connection, or the datagrams between two ports.

    Attributes:
        server: the server's name or address, and its port.
        protocol: what protects the flow: a version of TLS with the cipher, ``QUIC``, ``SSH``, or empty if none of
            these is recognised.
        up, down: the payload that the client and the server sent.
        is_whole: whether no byte of it is missing.
    """

    server: str
    protocol: str
    up: bytes
    down: bytes
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Overheard:
    """All flows of a capture but DNS, and the reasons why some may be missing.

    Attributes:
        device: what passed between the server and a second device beside it, or None if the client has no such device.
    """

    flows: Sequence[OverheardFlow]
    reasons: Sequence[str] = ()
    device: Overheard | None = None


def overhear(session: SyncSession, acts: Sequence[Act]) -> Overheard:
    """Perform acts on the folder of a session's lab in one capture, and return what passed.

    Raises ClientError when the client does not start, and what ``SyncSession.try_out`` raises.
    """
    lab = session.lab
    session.try_out()
    receiver = lab.client.receiver()
    if receiver is None or receiver.side != "device":
        return _overhear_link(lab, acts)
    with _capture_beside_server(lab) as capture:
        overheard = _overhear_link(lab, acts)
        has_arrived = _wait_for_device(lab, receiver)
    assert capture.result is not None
    lab.captures.append(capture.result)
    flows, reasons = analyze_capture(capture.result, read_flows)
    late = [] if has_arrived else [f"the second device did not have everything after {lab.timeout_s:g} s"]
    return replace(overheard, device=Overheard(flows or (), [*reasons, *late]))


def _overhear_link(lab: Lab, acts: Sequence[Act]) -> Overheard:
    with lab.capture(acts=[act.label for act in acts]):
        lab.start()
        errors = [lab.out_of_sync]
        for act in acts:
            lab.client.before_change()
            act.work()
            if act.is_synced and (error := lab.bring_change()):
                errors.append(error)
                lab.out_of_sync = f"the client has been out of sync since an earlier act: {error}"
        lab.wait_quiet()
    flows, reasons = lab.read_capture(read_flows)
    return Overheard(flows or (), [*reasons, *filter(None, errors)])


@contextmanager
def _capture_beside_server(lab: Lab) -> Iterator[Capture]:
    """Capture what processes at the server's end of the link send to each other."""
    path: Path = lab.workdir / "captures" / f"{len(lab.captures)}-device.pcapng"
    about = {"client": lab.client.facts.name, "side": "server"}
    with Capture("lo", path, netns=lab.link.enter("server", as_root=True), comment=about) as capture:
        yield capture


def _wait_for_device(lab: Lab, receiver: Receiver) -> bool:
    """Wait until a second device has the content of the client's folder. Returns whether it has."""
    expected, received = FolderTree(lab.client.folder).digests(), FolderTree(receiver.folder)
    return wait_for(lambda: received.digests() == expected, lab.timeout_s, poll_s=_POLL_S)


def read_flows(analysis: Analysis) -> list[OverheardFlow]:
    """Return the flows of a capture that have payload, without name resolution."""
    flows = []
    for facts in analysis.facts:
        if analysis.table.who.server_port[facts.number] == _DNS_PORT:
            continue
        up, is_up_whole = analysis.read_content(facts.number, up=True)
        down, is_down_whole = analysis.read_content(facts.number, up=False)
        if up or down:
            port = int(analysis.table.who.server_port[facts.number])
            protocol = describe_protection(facts, up, down)
            flows.append(OverheardFlow(f"{facts.names[0]}:{port}", protocol, up, down, is_up_whole and is_down_whole))
    return flows


def describe_protection(facts: FlowFacts, up: bytes, down: bytes) -> str:
    """Return what protects a flow, or an empty text."""
    if facts.quic_version:
        return f"QUIC {facts.quic_version}"
    if facts.is_plain_tls:
        return ""
    if facts.tls_version:
        return f"{facts.tls_version} {facts.cipher or ''}".strip()
    return "SSH" if up.startswith(_SSH) and down.startswith(_SSH) else ""
