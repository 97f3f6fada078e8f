"""Verdict on whether the flows of a capture are encrypted: yes, no, or unknown, with what was negotiated.

A flow is encrypted if it has TLS's or QUIC's handshake or SSH's greeting. It is plain if it begins with readable text
that does not lead to encryption. Anything else may be a protocol of its own with or without encryption, and is unknown.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.net.traffic import streams
from pytest_cloudbench.net.traffic.handshake import HTTP2_PREFACE

if TYPE_CHECKING:
    from pytest_cloudbench.net.traffic.facts import CaptureFacts
    from pytest_cloudbench.net.traffic.records import Buffer
    from pytest_cloudbench.net.traffic.table import FlowTable

_DNS_PORT = 53
_TEXT_BYTES, _BEGINNING_BYTES = 64, 4096
_LEAST_TEXT_BYTES = 8
_TEXT_SHARE = 0.95
_MOST_READ = 5000
"""Largest number of flows whose beginning is read. Any further flows are unknown."""
_MOST_NAMED = 8
_SSH = b"SSH-"
_LEADING_ELSEWHERE = (_SSH, b"CONNECT ")
"""How text begins that another protocol follows: SSH, or whatever passes through a proxy."""
_TLS_HELLO = re.compile(rb"\x16\x03[\x00-\x04]..\x01\x00", re.DOTALL)
_READABLE = bytes((*b"\r\n\t", *range(32, 127)))


def is_text(beginning: bytes) -> bool:
    """Return whether a flow begins with readable ASCII, as HTTP, SMTP or FTP do, and no encryption is seen to follow.

    A TLS hello may follow text, as after STARTTLS, and anything may follow in a tunnel through a proxy.
    """
    if beginning.startswith(HTTP2_PREFACE):
        return True
    head = beginning[:_TEXT_BYTES]
    if len(head) < _LEAST_TEXT_BYTES or not _is_readable(head) or beginning.startswith(_LEADING_ELSEWHERE):
        return False
    hello = _TLS_HELLO.search(beginning)
    return hello is None or not _is_readable(beginning[: hello.start()])


def _is_readable(text: bytes) -> bool:
    return len(text.translate(None, _READABLE)) <= (1 - _TEXT_SHARE) * len(text)


def _is_plain(up: bytes, down: bytes) -> bool:
    """Return whether a flow with these beginnings is readable. The server's counts if the client sent nothing."""
    return is_text(up or down)


def _read_beginnings(table: FlowTable, buffer: Buffer, numbers: Sequence[int]) -> dict[int, tuple[bytes, bytes]]:
    """Return the first bytes up and down of flows by number: many bytes only of those that begin with text."""
    beginnings = dict(zip(numbers, streams.read_beginnings(table, buffer, numbers, _TEXT_BYTES), strict=True))
    texts = [number for number, (up, down) in beginnings.items() if _is_plain(up, down)]
    return beginnings | dict(zip(texts, streams.read_beginnings(table, buffer, texts, _BEGINNING_BYTES), strict=True))


def judge_protection(table: FlowTable, facts: CaptureFacts, buffer: Buffer, *, is_whole: bool) -> dict[str, Any]:
    """Return whether all flows are encrypted, as JSON types.

    ``verdict`` is yes, no or unknown. ``encrypted`` counts flows by what was negotiated. ``plain`` and ``unknown`` list
    servers, each once. DNS is left out, because ``dns_queries`` has the names that a client asks for.
    """
    encrypted, plain, unknown = Counter[str](), dict[str, None](), dict[str, None]()
    who, numbers = table.who, table.numbers
    payload_bytes = table.sums["payload_bytes"][:, numbers].sum(0)
    numbers = numbers[(payload_bytes > 0) & (who.server_port[numbers] != _DNS_PORT)]
    facts_by_number = {facts_of.number: facts_of for _, facts_of in facts.find_known(numbers.tolist())}
    negotiated = {
        number for number, flow_facts in facts_by_number.items() if flow_facts.tls_version or flow_facts.quic_version
    }
    unproven = [number for number in numbers.tolist() if number not in negotiated]
    beginnings = _read_beginnings(table, buffer, unproven[:_MOST_READ])
    unread = set(unproven[_MOST_READ:])
    ends = zip(numbers.tolist(), who.server[numbers].tolist(), who.server_port[numbers].tolist(), strict=True)
    for number, address, port in ends:
        is_unread = number in unread
        if is_unread and len(unknown) >= _MOST_NAMED:
            continue  # there may be very many, and no more of them are named
        flow_facts = facts_by_number.get(number)
        server = f"{facts.texts[address] if flow_facts is None else flow_facts.names[0]}:{port}"
        if is_unread:
            unknown[server] = None
        elif flow_facts is not None and flow_facts.is_plain_tls:
            plain[f"{server} (TLS with {flow_facts.cipher})"] = None
        elif flow_facts is not None and flow_facts.tls_version:
            encrypted[f"{flow_facts.tls_version} {flow_facts.cipher or ''}".strip()] += 1
        elif flow_facts is not None and flow_facts.quic_version:
            encrypted[f"QUIC {flow_facts.quic_version}"] += 1
        else:
            up, down = beginnings[number]
            if up.startswith(_SSH) and down.startswith(_SSH):
                encrypted["SSH"] += 1
            elif _is_plain(up, down):
                plain[server] = None
            else:
                unknown[server] = None
    verdict = "no" if plain else "unknown" if unknown or not encrypted or not is_whole else "yes"
    return {
        "verdict": verdict, "encrypted": dict(encrypted.most_common()), "plain": list(plain)[:_MOST_NAMED],
        "unknown": list(unknown)[:_MOST_NAMED],
    }  # fmt: skip
