"""A client that checks whether a certificate is revoked, by the means that it names, before anything is sent.

``python checking_client.py ADDRESS CA_FILE``. It reads no staple, so it refuses a certificate that must have one.
"""

from __future__ import annotations

import socket
import ssl
import sys
from pathlib import Path
from urllib.request import Request, urlopen

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509 import ocsp
from cryptography.x509.oid import AuthorityInformationAccessOID


def why_refused(certificate: x509.Certificate, issuer: x509.Certificate) -> str:
    """Return the reason to send nothing to the holder of a certificate. Empty if it is not revoked."""
    for extension in certificate.extensions:
        if isinstance(extension.value, x509.TLSFeature):
            return "certificate without its staple"
        if isinstance(extension.value, x509.CRLDistributionPoints):
            (point,) = extension.value
            revoked = x509.load_der_x509_crl(fetch((point.full_name or [])[0].value))
            if revoked.get_revoked_certificate_by_serial_number(certificate.serial_number) is not None:
                return "certificate on the list of revoked ones"
        if isinstance(extension.value, x509.AuthorityInformationAccess):
            (access,) = extension.value
            assert access.access_method == AuthorityInformationAccessOID.OCSP
            request = ocsp.OCSPRequestBuilder().add_certificate(certificate, issuer, hashes.SHA256()).build()
            question = request.public_bytes(serialization.Encoding.DER)
            answer = ocsp.load_der_ocsp_response(fetch(access.access_location.value, question))
            if answer.certificate_status is not ocsp.OCSPCertStatus.GOOD:
                return "certificate whose status is not good"
    return ""


def fetch(url: str, body: bytes | None = None) -> bytes:
    """Return the answer of an HTTP server on this machine."""
    with urlopen(Request(url, body)) as answer:
        return bytes(answer.read())


def main(address: str, ca_file: str) -> None:
    """Send a request to an address, unless its certificate is bad."""
    host, _, port = address.partition(":")
    context = ssl.create_default_context(cafile=ca_file)
    with context.wrap_socket(socket.create_connection((host, int(port))), server_hostname=host) as connection:
        certificate = x509.load_der_x509_certificate(connection.getpeercert(binary_form=True) or b"")
        issuer = x509.load_pem_x509_certificate(Path(ca_file).read_bytes())
        if why := why_refused(certificate, issuer):
            sys.exit(why)
        connection.sendall(b"GET / HTTP/1.1\r\nhost: door\r\n\r\n")
        connection.recv(64)


if __name__ == "__main__":
    main(*sys.argv[1:])
