"""One connection of ``sftp``: the user's private key, the server's host key, and logging in with paramiko.

What may live here: what happens before the first SFTP request. Which keys a ``known_hosts`` file trusts is in
``_sftp_known_hosts``.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_cloudbench.drivers._sftp_known_hosts import KnownKeys, fingerprint_of
from pytest_cloudbench.model import CredentialsError

# paramiko raises what it logs; a server that dies would fill the report with a traceback for each connection.
_LOG = logging.getLogger(f"{__name__}.paramiko")
_LOG.setLevel(logging.CRITICAL)
_CURVES = frozenset({"secp256r1", "secp384r1", "secp521r1"})
_ADVICE = "if it is the server's, name it as the spec's host_key or add it to known_hosts"


class Untrusted(Exception):
    """The server's host key is not one that is trusted."""


class _OtherType(Exception):
    """The server has shown a host key that is not the named one, which may be of another type."""


class HostKeys:
    """The host keys of one server that are trusted.

    Args:
        named: the fingerprint of the only key that is trusted; if it is empty, the keys in ``known`` are.
        known: what ``known_hosts`` says of the server.
    """

    def __init__(self, named: str, known: KnownKeys) -> None:
        self._named, self._known = named, known
        self._named_type = ""

    def algorithms(self, supported: Sequence[str], shown: Collection[str]) -> Sequence[str]:
        """Return the algorithms to negotiate, trusted types first, because the server takes the first that it has.

        Args:
            supported: what paramiko can negotiate.
            shown: types of which the server has already shown its key, in vain.
        """
        trusted_types = [self._named_type] if self._named else self._known.types
        new = [algorithm for algorithm in supported if _type_of_key(algorithm) not in shown]
        return sorted(new, key=lambda algorithm: _type_of_key(algorithm) not in trusted_types)

    def check(self, hostname: str, key_type: str, key: bytes) -> None:
        """Return if a host key is trusted. Raises Untrusted, or _OtherType if another key may be the named one."""
        shown = f"{fingerprint_of(key)} ({key_type})"
        if self._named:
            if fingerprint_of(key) != self._named:
                raise _OtherType(key_type, shown)
            self._named_type = key_type
        elif key in self._known.revoked:
            raise Untrusted(f"{hostname} has the host key {shown}, which known_hosts says is revoked")
        elif (key_type, key) not in self._known.trusted:
            raise Untrusted(f"{hostname} has the unknown host key {shown}{self._note_on_known_keys()}; {_ADVICE}")

    def _note_on_known_keys(self) -> str:
        if self._known.types:
            return f"; known_hosts has another one for it ({', '.join(self._known.types)})"
        if self._known.has_authority:
            return "; known_hosts trusts a certificate authority for it, but this driver cannot check certificates"
        return ""


def _type_of_key(algorithm: str) -> str:
    """Return the key type of a host key algorithm. RSA keys are used by several algorithms."""
    return "ssh-rsa" if algorithm.startswith("rsa-sha2-") else algorithm


def private_key(name: str, data: bytes, passphrase: str | None) -> Any:
    """Return the user's private key as paramiko takes it, read once for all connections. Raises CredentialsError.

    Args:
        name: the path of its file; a certificate beside it is loaded, too.
        data: the file's content, in any form that OpenSSH reads: its own, PKCS#8, or the traditional ones of OpenSSL.
        passphrase: ignored if the key is not encrypted.
    """
    import paramiko
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    load = form.load_ssh_private_key if b"BEGIN OPENSSH PRIVATE KEY" in data else form.load_pem_private_key
    try:
        private = _load_key(load, data, passphrase)
    except TypeError as error:
        raise CredentialsError(f"sftp: {name} is encrypted: give its passphrase") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise CredentialsError(f"sftp: {name} is not a private key, or its passphrase is wrong") from error
    if isinstance(private, ed25519.Ed25519PrivateKey):
        kind = paramiko.Ed25519Key
    elif isinstance(private, ec.EllipticCurvePrivateKey) and private.curve.name in _CURVES:
        kind = paramiko.ECDSAKey
    elif isinstance(private, rsa.RSAPrivateKey):
        kind = paramiko.RSAKey
    else:
        raise CredentialsError(f"sftp: {name} is not an Ed25519, ECDSA or RSA key that SSH knows")
    # paramiko does not read PKCS#8: it is given every key in OpenSSH's form.
    text = private.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption()).decode()
    key = kind.from_private_key(io.StringIO(text))
    if (certificate := Path(f"{Path(name).expanduser()}-cert.pub")).exists():
        try:
            key.load_certificate(str(certificate))
        except (OSError, ValueError) as error:
            problem = f"{certificate} cannot be used with this key ({error}): remove or replace it"
            raise CredentialsError(f"sftp: {problem}") from error
    return key


def _load_key(load: Callable[..., Any], data: bytes, passphrase: str | None) -> Any:
    """Return a private key. The library refuses a passphrase for a key that needs none, so it is left out then."""
    try:
        return load(data, passphrase.encode() if passphrase else None)
    except TypeError:
        if not passphrase:
            raise
        return load(data, None)


def open_client(
    host: str, port: int, secrets: Mapping[str, str], key: Any, host_keys: HostKeys, timeout_s: float
) -> Any:
    """Connect and authenticate. Raises paramiko's errors, OSError and Untrusted.

    A fingerprint does not tell the type of its key. So the server is asked for its keys of all types, one after the
    other, until one has the fingerprint; later connections ask for that type first.
    """
    from paramiko.ssh_exception import IncompatiblePeer

    shown = dict[str, str]()
    while True:
        try:
            return _log_in(host, port, secrets, key, host_keys, timeout_s, shown)
        except _OtherType as other:
            key_type, fingerprint = other.args
            shown[key_type] = fingerprint
        except IncompatiblePeer as error:
            if not shown:
                raise
            problem = f"{host}:{port} has the unknown host key {' and '.join(shown.values())}"
            raise Untrusted(f"{problem}; {_ADVICE}") from error


def _log_in(
    host: str, port: int, secrets: Mapping[str, str], key: Any, host_keys: HostKeys, timeout_s: float,
    shown: Collection[str],
) -> Any:  # fmt: skip
    """Return a client that is logged in to a host whose key is trusted."""
    import paramiko
    from paramiko.ssh_exception import IncompatiblePeer

    class Policy(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]  # the library has no types
        """Asked about every host key, since the client is given no known ones."""

        def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
            host_keys.check(hostname, str(key.get_name()), key.asbytes())

    def make_transport(*args: Any, **options: Any) -> Any:
        new_transport = paramiko.Transport(*args, **options)
        security = new_transport.get_security_options()
        security.key_types = host_keys.algorithms(security.key_types, shown)
        if not security.key_types:
            new_transport.close()
            raise IncompatiblePeer("no type of host key is left")
        return new_transport

    client = paramiko.SSHClient()
    client.set_log_channel(_LOG.name)
    client.set_missing_host_key_policy(Policy())
    try:
        client.connect(
            host, port, secrets["user"], secrets.get("password"), pkey=key,
            timeout=timeout_s, banner_timeout=timeout_s, auth_timeout=timeout_s, channel_timeout=timeout_s,
            allow_agent=False, look_for_keys=False, transport_factory=make_transport,
        )  # fmt: skip
    except BaseException:
        client.close()
        raise
    return client
