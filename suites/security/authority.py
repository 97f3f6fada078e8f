"""The authority of ``doors``: it issues their certificates, each with one fault, and says which it has revoked."""

from __future__ import annotations

import threading
from base64 import b64decode
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv4Address
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

if TYPE_CHECKING:
    from cryptography import x509

HOST = "127.0.0.1"

GOOD = "good"
CERTIFICATE_FAULTS = ("unknown authority", "self-signed", "expired", "not yet valid", "wrong name")
NOT_REVOKED = "not revoked"
REVOKED_BY_CRL, REVOKED_BY_OCSP = "revoked by CRL", "revoked by OCSP"
NO_STAPLE = "must-staple without a staple"
REVOCATION_FAULTS = (REVOKED_BY_CRL, REVOKED_BY_OCSP, NO_STAPLE)

_NAME = "pytest-cloudbench doors"
_DAY = timedelta(days=1)
_POLL_S = 0.01
_MOST_QUESTION_BYTES = 65536


class Authority:
    """A certificate authority that exists as long as its doors.

    Attributes:
        issued: the certificates by serial number.
        revoked: serial numbers of revoked certificates.
    """

    def __init__(self) -> None:
        self.issued: dict[int, x509.Certificate] = {}
        self.revoked: set[int] = set()
        self.key = make_key()
        self.certificate = certify(_NAME, self.key, _NAME, self.key, is_authority=True)

    def list_revoked(self) -> bytes:
        """Return the signed list of revoked certificates (a CRL, RFC 5280)."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization

        now = datetime.now(UTC)
        builder = x509.CertificateRevocationListBuilder().issuer_name(self.certificate.subject)
        builder = builder.last_update(now - _DAY).next_update(now + _DAY)
        for serial in self.revoked:
            revoked = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now - _DAY).build()
            builder = builder.add_revoked_certificate(revoked)
        return builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)

    def answer_status(self, question: bytes) -> bytes:
        """Return the signed status of a certificate (OCSP, RFC 6960). Raises ValueError and KeyError."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.x509 import ocsp

        request, now = ocsp.load_der_ocsp_request(question), datetime.now(UTC)
        is_revoked = request.serial_number in self.revoked
        response = ocsp.OCSPResponseBuilder().add_response(
            cert=self.issued[request.serial_number], issuer=self.certificate, algorithm=request.hash_algorithm,
            cert_status=ocsp.OCSPCertStatus.REVOKED if is_revoked else ocsp.OCSPCertStatus.GOOD,
            this_update=now - _DAY, next_update=now + _DAY,
            revocation_time=now - _DAY if is_revoked else None, revocation_reason=None,
        ).responder_id(ocsp.OCSPResponderEncoding.HASH, self.certificate)  # fmt: skip
        with suppress(x509.ExtensionNotFound):  # a question without a nonce wants none back
            nonce = request.extensions.get_extension_for_class(x509.OCSPNonce)
            response = response.add_extension(nonce.value, critical=False)
        return response.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


class Responder:
    """A server on loopback that says which certificates are revoked, by CRL and OCSP, and notes that it was asked."""

    def __init__(self, authority: Authority) -> None:
        self._asked = set[tuple[str, str]]()
        handler = type("Handler", (_Answers,), {"authority": authority, "asked": self._asked})
        self._server = ThreadingHTTPServer((HOST, 0), handler)
        self._server.daemon_threads = True

    def address(self, fault: str, kind: str) -> str:
        """Return the address for the status of the certificate of a fault. ``kind`` is CRL or OCSP."""
        return f"http://{HOST}:{self._server.server_port}/{fault.replace(' ', '-')}/{kind}"

    def asked_about(self, fault: str) -> list[str]:
        """Return the ways in which it was asked about the certificate of a fault: CRL, OCSP, both or none."""
        return sorted(kind for name, kind in self._asked.copy() if name == fault.replace(" ", "-"))

    def __enter__(self) -> Responder:
        threading.Thread(target=self._server.serve_forever, args=(_POLL_S,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Answers(BaseHTTPRequestHandler):
    """Answers of a ``Responder``: a CRL, and OCSP by POST and GET."""

    authority: Authority
    asked: set[tuple[str, str]]

    def do_GET(self) -> None:
        fault, kind, question = [*self.path.strip("/").split("/", 2), "", ""][:3]
        self.asked.add((fault, kind))
        if kind == "CRL":
            self._answer("application/pkix-crl", self.authority.list_revoked())
        else:
            self._answer_status(unquote(question).encode(), is_base64=True)

    def do_POST(self) -> None:
        fault, kind = [*self.path.strip("/").split("/", 1), ""][:2]
        self.asked.add((fault, kind))
        length_bytes = min(int(self.headers.get("content-length") or 0), _MOST_QUESTION_BYTES)
        self._answer_status(self.rfile.read(length_bytes))

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def _answer_status(self, question: bytes, *, is_base64: bool = False) -> None:
        try:
            answer = self.authority.answer_status(b64decode(question) if is_base64 else question)
        except (ValueError, LookupError):
            self.send_error(400)
            return
        self._answer("application/ocsp-response", answer)

    def _answer(self, kind: str, content: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def make_key() -> Any:
    """Return a new key."""
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def certify(
    subject: str, key: Any, issuer: str, signer: Any, *,
    begins_d: int = -1, ends_d: int = 30, alternatives: list[x509.GeneralName] | None = None,
    is_authority: bool = False, extensions: tuple[x509.ExtensionType, ...] = (),
) -> x509.Certificate:  # fmt: skip
    """Return a certificate for a key, valid from ``begins_d`` to ``ends_d`` days from now."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder().subject_name(name(subject)).issuer_name(name(issuer)).public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + begins_d * _DAY).not_valid_after(now + ends_d * _DAY)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )  # fmt: skip
    if is_authority:
        usage = x509.KeyUsage(
            key_cert_sign=True, crl_sign=True, digital_signature=False, content_commitment=False,
            key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
            decipher_only=False,
        )  # fmt: skip
        builder = builder.add_extension(usage, critical=True)
    else:
        usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        extensions = (x509.SubjectAlternativeName(alternatives or []), usages, *extensions)
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(signer, hashes.SHA256())


def make_certificates(folder: Path, authority: Authority, responder: Responder) -> None:
    """Write ``ca.pem``, and a key with a certificate of each fault, ``FAULT.pem``."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    (folder / "ca.pem").write_bytes(authority.certificate.public_bytes(Encoding.PEM))
    own_names: list[x509.GeneralName] = [x509.IPAddress(IPv4Address(HOST)), x509.DNSName("localhost")]
    faults: Mapping[str, dict[str, Any]] = {
        GOOD: {},
        "unknown authority": {"issuer": "somebody else", "signer": make_key()},
        "self-signed": {"issuer": "door", "signer": None},
        "expired": {"begins_d": -30, "ends_d": -1},
        "not yet valid": {"begins_d": 1},
        "wrong name": {"alternatives": [x509.DNSName("elsewhere.example")]},
        **{fault: {"extensions": _name_responder(fault, responder)} for fault in (NOT_REVOKED, *REVOCATION_FAULTS)},
    }
    for fault, changes in faults.items():
        key = make_key()
        options = {"issuer": _NAME, "signer": authority.key, "alternatives": own_names, **changes}
        options["signer"] = options["signer"] or key
        certificate = certify("door", key, **options)
        authority.issued[certificate.serial_number] = certificate
        if fault in (REVOKED_BY_CRL, REVOKED_BY_OCSP):
            authority.revoked.add(certificate.serial_number)
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (folder / f"{fault}.pem").write_bytes(pem + certificate.public_bytes(Encoding.PEM))


def _name_responder(fault: str, responder: Responder) -> tuple[x509.ExtensionType, ...]:
    """Return the extensions with the addresses of a certificate's status, and with the demand for a staple, if any."""
    from cryptography import x509
    from cryptography.x509.oid import AuthorityInformationAccessOID

    lists = x509.UniformResourceIdentifier(responder.address(fault, "CRL"))
    status = x509.UniformResourceIdentifier(responder.address(fault, "OCSP"))
    by_crl = x509.CRLDistributionPoints([x509.DistributionPoint([lists], None, None, None)])
    access = x509.AccessDescription(AuthorityInformationAccessOID.OCSP, status)
    by_ocsp = x509.AuthorityInformationAccess([access])
    if fault == REVOKED_BY_CRL:
        return (by_crl,)
    if fault == REVOKED_BY_OCSP:
        return (by_ocsp,)
    if fault == NO_STAPLE:
        return by_crl, by_ocsp, x509.TLSFeature([x509.TLSFeatureType.status_request])
    return by_crl, by_ocsp
