"""What passes between a sync client and its server, as an eavesdropper on the link sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_cloudbench.lab.sync.activity import Act
from pytest_cloudbench.lab.sync.session import SyncSession
from pytest_cloudbench.net.traffic import Analysis, FlowFacts

_DNS_PORT = 53
_SSH = b"SSH-"


@dataclass(frozen=True, slots=True)
class OverheardFlow:
    """One connection, or the datagrams between two ports.

    Attributes:
        server: the server's name or address, and its port.
        protocol: what protects the flow: a version of TLS with the cipher, ``QUIC``, ``SSH``, or empty for nothing
            that is known.
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
    """All flows of a capture but DNS, and the reasons why some may be missing."""

    flows: Sequence[OverheardFlow]
    reasons: Sequence[str] = ()


def overhear(session: SyncSession, acts: Sequence[Act]) -> Overheard:
    """Perform acts on the folder of a session's lab in one capture, and return what passed.

    Raises ClientError when the client does not start, and what ``SyncSession.try_out`` raises.
    """
    lab = session.lab
    session.try_out()
    with lab.capture(acts=[act.label for act in acts]):
        lab.start()
        errors = []
        for act in acts:
            lab.client.before_change()
            act.work()
            if act.is_synced:
                errors.append(lab.bring_change())
        lab.wait_quiet()
    flows, reasons = lab.read_capture(read_flows)
    return Overheard(flows or (), [*reasons, *filter(None, errors)])


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
    if facts.tls_version:
        return f"{facts.tls_version} {facts.cipher or ''}".strip()
    return "SSH" if up.startswith(_SSH) and down.startswith(_SSH) else ""
