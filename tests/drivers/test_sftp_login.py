"""Host keys that known_hosts or the spec trusts, and private keys in every form, on a server with three host keys."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import paramiko
import pytest
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa, x25519
from paramiko.hostkeys import HostKeys

from pytest_cloudbench.drivers._sftp_known_hosts import known_keys
from pytest_cloudbench.drivers._sftp_login import private_key
from pytest_cloudbench.model import CredentialsError, Endpoint, ErrorKind

from .real import connected, refusal, served

WORDS = "correct horse"
PRIVATE: dict[str, Any] = {
    "ssh-ed25519": ed25519.Ed25519PrivateKey.generate(),
    "ecdsa-sha2-nistp256": ec.generate_private_key(ec.SECP256R1()),
    "ssh-rsa": rsa.generate_private_key(65537, 2048),
}
FORMS = {
    "pkcs8": (form.Encoding.PEM, form.PrivateFormat.PKCS8),
    "traditional": (form.Encoding.PEM, form.PrivateFormat.TraditionalOpenSSL),
    "openssh": (form.Encoding.PEM, form.PrivateFormat.OpenSSH),
}
STRANGER = ed25519.Ed25519PrivateKey.generate()


def public_of(key: Any) -> str:
    """Return the type and the key as a line of known_hosts has them."""
    return str(key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH).decode())


def fingerprint_of(key: Any) -> str:
    return str(paramiko.PKey.from_type_string(*split(public_of(key))).fingerprint)


def split(public: str) -> tuple[str, bytes]:
    key_type, encoded = public.split()
    return key_type, base64.b64decode(encoded)


def serialize_key(key: Any, name: str, words: str = "") -> bytes:
    encryption = form.BestAvailableEncryption(words.encode()) if words else form.NoEncryption()
    return bytes(key.private_bytes(*FORMS[name], encryption))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """An rclone server with a host key of each type, of which clients choose one."""
    folder = tmp_path_factory.mktemp("keys")
    for name, key in PRIVATE.items():
        (folder / name).write_bytes(serialize_key(key, "openssh"))
        (folder / name).chmod(0o600)
    keys = [word for name in PRIVATE for word in ("--key", str(folder / name))]
    command = ("rclone", "serve", "sftp", "--config", "", "--addr", "127.0.0.1:{port}", *keys, "{folder}/files")
    with served("sftp", command=command) as running:
        endpoint = running.endpoint
        credentials = {name: value for name, value in endpoint.credentials.items() if name != "known_hosts"}
        yield replace(endpoint, credentials=credentials)


def name_of(endpoint: Endpoint) -> str:
    ((host, port),) = endpoint.addresses
    return f"[{host}]:{port}"


@contextmanager
def trusting(endpoint: Endpoint, text: str, folder: Path) -> Iterator[Any]:
    """Yield a driver with a known_hosts file that holds this text."""
    (folder / "known").write_text(text, "utf-8")
    with connected(endpoint, f"sftp?known_hosts={folder}/known") as driver:
        yield driver


# --- host keys --------------------------------------------------------------------------------------


@pytest.mark.parametrize("key_type", PRIVATE)
def test_the_named_host_key_may_be_any_of_the_servers(key_type: str, server: Endpoint) -> None:
    with connected(server, f"sftp?host_key={fingerprint_of(PRIVATE[key_type])}") as driver:
        assert driver.stat("/").is_folder
        assert driver.stat("/").is_folder


def test_a_named_host_key_that_the_server_lacks_is_refused_with_those_that_it_has(server: Endpoint) -> None:
    with connected(server, f"sftp?host_key={fingerprint_of(STRANGER)}") as driver:
        for _ in range(2):
            error = refusal(ErrorKind.AUTH, lambda: driver.stat("/"))
            assert all(fingerprint_of(key) in error.detail for key in PRIVATE.values()), error.detail


@pytest.mark.parametrize("key_type", PRIVATE)
def test_a_known_host_key_may_be_any_of_the_servers(key_type: str, server: Endpoint, tmp_path: Path) -> None:
    with trusting(server, f"{name_of(server)} {public_of(PRIVATE[key_type])}\n", tmp_path) as driver:
        assert driver.stat("/").is_folder


@pytest.mark.parametrize(
    ("text", "is_trusted"),
    [
        ("{name} {key}\n@cert-authority *.corp.example {other}", True),
        ("@cert-authority *.corp.example {other}\n{name} {key}", True),
        ("{name} {key}\n@revoked * {other}", True),
        ("@revoked gone.example {key}\n{name} {key}", True),
        ("{name} {other}\n{name} {key}", True),
        ("[127.0.0.*]:*,!elsewhere {key}", True),
        ("127.0.0.1 {key}", True),
        ("# words\n\nodd line\nx ssh-dss AAAA\n@unheard-of {name} {other}\n{name}\t{key} words", True),
        ("{name} {key}\n@revoked {name} {key}", False),
        ("@revoked * {key}\n{name} {key}", False),
        ("[127.0.0.*]:*,!{name} {key}", False),
        ("@cert-authority {name} {key}", False),
        ("{name} {other}", False),
        ("*.example {key}", False),
        ("\x00\xff {key}", False),
    ],
)
def test_known_hosts_is_read_as_ssh_reads_it(text: str, is_trusted: bool, server: Endpoint, tmp_path: Path) -> None:
    words = {"name": name_of(server), "key": public_of(PRIVATE["ssh-ed25519"]), "other": public_of(STRANGER)}
    with trusting(server, text.format(**words), tmp_path) as driver:
        if is_trusted:
            assert driver.stat("/").is_folder
        else:
            error = refusal(ErrorKind.AUTH, lambda: driver.stat("/"))
            assert "known_hosts" in error.detail
            assert "\n" not in error.detail


def test_names_may_be_hashed(server: Endpoint, tmp_path: Path) -> None:
    key = public_of(PRIVATE["ssh-rsa"])
    right, wrong = (HostKeys.hash_host(name) for name in (name_of(server), "other.example"))
    with trusting(server, f"{wrong} {public_of(STRANGER)}\n|1|x|y {key}\n{right} {key}\n", tmp_path) as driver:
        assert driver.stat("/").is_folder
    with trusting(server, f"{wrong} {key}\n", tmp_path) as driver:
        refusal(ErrorKind.AUTH, lambda: driver.stat("/"))


def test_a_server_on_another_port_than_22_goes_by_its_host_if_the_port_is_not_known() -> None:
    first, second = public_of(PRIVATE["ssh-ed25519"]), public_of(STRANGER)
    text = f"Files.example {first}\n[files.example]:2222 {second}\n"
    assert known_keys(text, "files.example", 22).trusted == [split(first)]
    assert known_keys(text, "FILES.example", 2222).trusted == [split(second)]
    assert known_keys(text, "files.example", 2200).trusted == [split(first)]
    assert known_keys(text, "elsewhere.example", 22).trusted == ()


# --- private keys -----------------------------------------------------------------------------------


@pytest.mark.quick_cases(6)
@pytest.mark.parametrize("words", ["", WORDS])
@pytest.mark.parametrize(
    ("key_type", "name"),
    # The traditional form is older than Ed25519.
    [(key_type, name) for key_type in PRIVATE for name in FORMS if (key_type, name) != ("ssh-ed25519", "traditional")],
)
def test_a_private_key_may_have_any_form_that_ssh_reads(key_type: str, name: str, words: str) -> None:
    data = serialize_key(PRIVATE[key_type], name, words)
    key = private_key("key", data, words or None)
    assert f"{key.get_name()} {key.get_base64()}" == public_of(PRIVATE[key_type])
    if words:
        with pytest.raises(CredentialsError, match="is encrypted: give its passphrase"):
            private_key("key", data, None)
        with pytest.raises(CredentialsError, match="or its passphrase is wrong"):
            private_key("key", data, "wrong")
    else:
        assert private_key("key", data, "not needed").get_base64() == key.get_base64()


def test_a_certificate_of_another_key_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "key"
    data = serialize_key(PRIVATE["ssh-ed25519"], "openssh", "")
    path.write_bytes(data)
    certificate = tmp_path / "key-cert.pub"
    for text in ("", "noise", f"{public_of(PRIVATE['ssh-rsa'])}\n"):
        certificate.write_text(text)
        with pytest.raises(CredentialsError, match="cannot be used with this key") as caught:
            private_key(str(path), data, None)
        assert "\n" not in str(caught.value)


def test_file_that_is_no_private_key_is_refused() -> None:
    public = public_of(STRANGER).encode()
    begin, end = (f"-----{word} OPENSSH PRIVATE KEY-----".encode() for word in ("BEGIN", "END"))
    for data in (
        b"",
        public,
        b"\x00\xff" * 100,
        begin,
        begin + b"\nAAAA\n" + end,
        b"-----BEGIN PRIVATE KEY-----\nAA==\n",
    ):
        with pytest.raises(CredentialsError, match="key is not a private key, or its passphrase is wrong"):
            private_key("key", data, None)
    others: list[Any] = [
        dsa.generate_private_key(1024), ec.generate_private_key(ec.SECP256K1()), x25519.X25519PrivateKey.generate(),
    ]  # fmt: skip
    for other in others:
        with pytest.raises(CredentialsError, match="is not an Ed25519, ECDSA or RSA key that SSH knows"):
            private_key("key", other.private_bytes(*FORMS["pkcs8"], form.NoEncryption()), None)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("name", FORMS)
def test_a_private_key_of_any_form_logs_in(name: str, tmp_path: Path) -> None:
    key = PRIVATE["ssh-rsa"]
    (tmp_path / "key").write_bytes(serialize_key(key, name))
    (tmp_path / "authorized").write_text(public_of(key))
    environment = {"RCLONE_AUTHORIZED_KEYS": str(tmp_path / "authorized")}
    with served("sftp", environment=environment) as service:
        known_hosts = service.endpoint.credentials["known_hosts"]
        keys = {"user": "anyone", "key_file": str(tmp_path / "key")}
        with connected(replace(service.endpoint, credentials=keys), f"sftp?known_hosts={known_hosts}") as driver:
            assert driver.stat("/").is_folder
