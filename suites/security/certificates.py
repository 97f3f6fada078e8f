"""Does a client check whom it talks to? It is led to servers with one fault each (``doors``), with invented content."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from pytest_cloudbench import CloudbenchError, Endpoint, Inquiry, LiteralContent, RandomContent

from .authority import CERTIFICATE_FAULTS, GOOD, NOT_REVOKED, REVOCATION_FAULTS
from .doors import CA_VARIABLES, OLD_TLS, TO_PLAIN, Door, open_doors
from .rulings import Ruling, no, unknown, yes

_VISIT_S = 20.0
_BYTES = 3000
_SSH = frozenset({"sftp"})
_WORDS = 160

Visitor = Callable[[str, str], str]
"""A function that leads a client to a door's address, with the file of the authority to trust, and returns errors."""


@dataclass(frozen=True, slots=True)
class Visit:
    """The visit of a client to one door.

    Attributes:
        fault: the fault of the door.
        came: whether it sent a TLS hello.
        sent_bytes, plain_bytes: the bytes that it sent after the handshake, and without TLS.
        output: its error, if any.
        offered: the versions of TLS that it offered.
        is_over: whether the client came to an end in time.
        revocation_checks: the ways in which it asked whether the door's certificate is revoked: CRL, OCSP.
    """

    fault: str
    came: bool
    sent_bytes: int
    plain_bytes: int
    output: str
    offered: Sequence[str] = ()
    is_over: bool = True
    revocation_checks: Sequence[str] = ()


def visit_doors(visitor: Visitor, faults: Sequence[str]) -> list[Visit] | str:
    """Lead a client to doors, one after the other. Return its visits, or the reason if a door does not work."""
    visits = []
    with open_doors() as (make_door, ca_file):
        for fault in faults:
            with make_door(fault) as door:
                if not door.is_passable():
                    return f"the door with {fault} does not work here"
                visits.append(_visit(door, visitor, ca_file))
    return visits


def _visit(door: Door, visitor: Visitor, ca_file: str) -> Visit:
    outputs = list[str]()
    thread = threading.Thread(target=lambda: outputs.append(visitor(door.address, ca_file)), daemon=True)
    thread.start()
    thread.join(_VISIT_S)
    visits = door.visits
    text = _pick_words("".join(outputs))
    is_over = not thread.is_alive()
    revocation_checks = door.responder.asked_about(door.fault)
    return Visit(
        door.fault,
        visits.hellos > 0,
        visits.sent_bytes,
        visits.plain_bytes,
        text,
        visits.offered,
        is_over,
        revocation_checks,
    )


def _pick_words(text: str) -> str:
    """Return the part of a client's output that says most: the first line about certificates, or the last line."""
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    about_tls = [line for line in lines if re.search(r"(?i)certificate|x509|\btls\b|\bssl\b", line)]
    return (about_tls or lines[-1:] or [""])[0][-_WORDS:]


def judge_certificates(visits: Sequence[Visit] | str) -> Ruling:
    """Judge whether nothing is sent to a server whose certificate is wrong."""
    if isinstance(visits, str):
        return unknown(visits)
    by_fault = {visit.fault: visit for visit in visits}
    accepted = [fault for fault in CERTIFICATE_FAULTS if by_fault[fault].sent_bytes]
    if accepted:  # whatever it does at other servers
        return no(f"it sends its requests to a server with: {', '.join(accepted)}", _describe(visits))
    if why := _why_unknown(by_fault, CERTIFICATE_FAULTS):
        return unknown(why, _describe(visits))
    return yes(f"nothing is sent at {len(CERTIFICATE_FAULTS)} wrong certificates", _describe(visits))


def judge_revocation(visits: Sequence[Visit] | str) -> Ruling:
    """Judge whether nothing is sent to a server whose certificate is revoked, or lacks the OCSP staple that it demands.

    The certificates name where their status can be asked, which few clients do.
    """
    if isinstance(visits, str):
        return unknown(visits)
    by_fault = {visit.fault: visit for visit in visits}
    accepted = [fault for fault in REVOCATION_FAULTS if by_fault[fault].sent_bytes]
    if accepted:
        asks = "" if any(visit.revocation_checks for visit in visits) else "; it asks neither for a CRL nor by OCSP"
        return no(f"it sends its requests to a server with: {', '.join(accepted)}{asks}", _describe(visits))
    if why := _why_unknown(by_fault, REVOCATION_FAULTS, good=NOT_REVOKED):
        return unknown(why, _describe(visits))
    return yes("nothing is sent where a certificate is revoked, or lacks its staple", _describe(visits))


def judge_old_tls(visits: Sequence[Visit] | str) -> Ruling:
    """Judge whether a server that knows only TLS 1.0 and 1.1 is refused (RFC 8996 forbids both)."""
    if isinstance(visits, str):
        return unknown(visits)
    by_fault = {visit.fault: visit for visit in visits}
    if why := _why_unknown(by_fault, (OLD_TLS,)):
        return unknown(why, _describe(visits))
    offered = ", ".join(by_fault[GOOD].offered)
    if by_fault[OLD_TLS].sent_bytes:
        return no("it sends its requests by TLS 1.0 or 1.1", [*_describe(visits), f"it offers {offered}"])
    return yes(f"refused; it offers {offered}", _describe(visits))


def judge_redirect(visits: Sequence[Visit] | str) -> Ruling:
    """Judge whether a redirect from a good server to plain HTTP leads to requests without encryption."""
    if isinstance(visits, str):
        return unknown(visits)
    visit = next(visit for visit in visits if visit.fault == TO_PLAIN)
    if not visit.sent_bytes:
        return unknown("it sent nothing that could have been redirected", _describe(visits))
    if visit.plain_bytes:
        return no(f"it follows to plain HTTP, with {visit.plain_bytes:,} bytes", _describe(visits))
    if not visit.is_over:
        return unknown(f"it did not end within {_VISIT_S:g} s", _describe(visits))
    return yes("a redirect to plain HTTP is not followed", _describe(visits))


def _why_unknown(by_fault: Mapping[str, Visit], faults: Sequence[str], good: str = GOOD) -> str:
    if not by_fault[good].sent_bytes:
        return "it is silent at a good server too, so nothing follows from silence"
    for fault in faults:
        visit = by_fault[fault]
        if not visit.came:
            return f"it did not come to the server with {fault}"
        if not visit.sent_bytes and not visit.is_over:
            return f"it did not end within {_VISIT_S:g} s at the server with {fault}"
    return ""


def _describe(visits: Sequence[Visit]) -> list[str]:
    return [
        f"{visit.fault}: {visit.sent_bytes:,} bytes sent"
        + (f", {visit.plain_bytes:,} without TLS" if visit.plain_bytes else "")
        + (f", {' and '.join(visit.revocation_checks)} asked" if visit.revocation_checks else "")
        + (f"; {visit.output}" if visit.output else "")
        for visit in visits
    ]


class _AnyRole(dict[str, str]):
    """One address for every role of a service, for a real provider whose roles only its driver knows."""

    def __missing__(self, role: str) -> str:
        return next(iter(self.values()))


def driver_visitor(inquiry: Inquiry) -> Visitor:
    """Return a visitor that leads a provider's driver to a door. A door never gets credentials of a real account."""

    def visit(address: str, ca_file: str) -> str:
        content = LiteralContent(RandomContent(inquiry.seed, _BYTES).read(0, _BYTES))
        try:
            driver = inquiry.bound.connect(_make_endpoint(inquiry, address, ca_file), {})
            try:
                driver.put("/door", content)
            finally:
                driver.close()
        except (CloudbenchError, OSError) as error:
            return str(error)
        return ""

    return visit


def _make_endpoint(inquiry: Inquiry, address: str, ca_file: str) -> Endpoint:
    """Return a door as an endpoint of a service, with the credentials of that service or with invented ones.

    An address among the credentials, where a client logs in, becomes the door's as well.
    """
    service = inquiry.endpoint
    if service is None:
        return _invent_endpoint(inquiry, address, ca_file)
    urls = {role: _lead_to(address, url) for role, url in service.urls.items()}
    credentials = {
        name: _lead_to(address, value) if value.startswith(("http://", "https://")) else value
        for name, value in service.credentials.items()
    }
    return Endpoint(urls, credentials, ca_file, api=service.api)


def _lead_to(address: str, url: str) -> str:
    return urlsplit(url)._replace(scheme="https", netloc=address).geturl()


def _invent_endpoint(inquiry: Inquiry, address: str, ca_file: str) -> Endpoint:
    """Return a door with the first set of invented credentials that the driver takes, or the last if it takes none."""
    endpoint = Endpoint(_AnyRole({"": f"https://{address}"}), {}, ca_file)
    for fields in inquiry.bound.credential_sets:
        credentials = {name: f"https://{address}" if "url" in name else "invented" for name in fields.required}
        endpoint = replace(endpoint, credentials=credentials)
        with suppress(CloudbenchError):
            inquiry.bound.connect(endpoint, {}).close()
            break
    return endpoint


_VISIT = """
import json, sys
from pytest_cloudbench import Endpoint, LiteralContent, ProviderSpec, connect_driver
with open(sys.argv[2], encoding="utf-8") as file:
    driver = connect_driver(ProviderSpec.parse(sys.argv[1]), Endpoint.from_plain(json.load(file)))
driver.put("/door", LiteralContent(bytes(3000)))
"""


def process_visitor(inquiry: Inquiry) -> Visitor:
    """Return a visitor that leads the driver to a door in a new process, where a variable names the authority.

    This is for libraries with one client for the whole process, which trusts only the environment of its start.
    """

    def make_words(address: str, ca_file: str, folder: Path) -> Sequence[str]:
        path = folder / "endpoint.json"  # in a folder that only this user can enter
        path.write_text(json.dumps(_make_endpoint(inquiry, address, ca_file).plain()), "utf-8")
        return [sys.executable, "-c", _VISIT, inquiry.bound.spec.text, str(path)]

    return command_visitor(make_words, variable="REQUESTS_CA_BUNDLE")


def _why_no_driver(inquiry: Inquiry) -> str:
    """Return why a provider's driver cannot be led to a door. Empty if it can."""
    if inquiry.bound.spec.scheme in _SSH:
        return "it speaks SSH, which has host keys in place of certificates"
    if inquiry.endpoint is None and not inquiry.bound.credential_sets:
        return "it makes no connections that are known"
    return ""


def _ask_driver(inquiry: Inquiry, faults: Sequence[str], judge: Callable[[Sequence[Visit] | str], Ruling]) -> Ruling:
    if why := _why_no_driver(inquiry):
        return unknown(why)
    visits = visit_doors(driver_visitor(inquiry), faults)
    is_silent = not isinstance(visits, str) and visits[0].came and not visits[0].sent_bytes
    if is_silent and inquiry.endpoint is not None:
        visits = visit_doors(process_visitor(inquiry), faults)
    return judge(visits)


def ask_certificates(inquiry: Inquiry) -> Ruling:
    """Answer whether the driver checks the server's certificate."""
    return _ask_driver(inquiry, (GOOD, *CERTIFICATE_FAULTS), judge_certificates)


def ask_revocation(inquiry: Inquiry) -> Ruling:
    """Answer whether the driver refuses a revoked certificate."""
    return _ask_driver(inquiry, (NOT_REVOKED, *REVOCATION_FAULTS), judge_revocation)


def ask_old_tls(inquiry: Inquiry) -> Ruling:
    """Answer whether the driver refuses old versions of TLS."""
    return _ask_driver(inquiry, (GOOD, OLD_TLS), judge_old_tls)


def ask_redirect(inquiry: Inquiry) -> Ruling:
    """Answer whether the driver stays on HTTPS if it is redirected."""
    return _ask_driver(inquiry, (TO_PLAIN,), judge_redirect)


def command_visitor(make_words: Callable[[str, str, Path], Sequence[str]], variable: str = "") -> Visitor:
    """Return a visitor that leads a command to a door, in an environment without proxies and other authorities.

    ``make_words`` returns the command for an address, an authority and an empty folder, or nothing if there is none.
    ``variable`` is the name of the variable with the authority, if there is one.
    """

    def visit(address: str, ca_file: str) -> str:
        with TemporaryDirectory(prefix="cloudbench-visit-") as name:
            if not (argv := make_words(address, ca_file, Path(name))):
                return "no command is known that leads it to another server"
            dropped = {variable.lower() for variable in (*CA_VARIABLES, "https_proxy", "http_proxy", "all_proxy")}
            environment = {key: value for key, value in os.environ.items() if key.lower() not in dropped}
            with suppress(subprocess.TimeoutExpired):
                completed = subprocess.run(
                    argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                    timeout=_VISIT_S, env={**environment, "HOME": name, **({variable: ca_file} if variable else {})},
                )  # fmt: skip
                return completed.stdout.decode(errors="replace") if completed.returncode else ""
        return f"no end within {_VISIT_S:g} s"

    return visit
