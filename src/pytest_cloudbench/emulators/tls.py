"""How an emulator and its users trust each other: a certificate of its own authority, and the control socket's token.

What may live here: key material in a folder that only this user can enter, made on the spot and gone with the process.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Sequence
from pathlib import Path

__all__ = ["make_certificate", "make_control_token"]


def make_certificate(names: Sequence[str]) -> str:
    """Make ``ca.pem`` and ``server.pem`` (key and chain, for these names) in a new folder; the folder's path.

    The folder has mode 0700; whoever asks for it removes it.
    """
    import trustme

    folder = Path(tempfile.mkdtemp(prefix="cloudbench-tls-"))
    authority = trustme.CA(organization_name="pytest-cloudbench emulator", key_type=trustme.KeyType.ECDSA)
    server = authority.issue_cert(*names, key_type=trustme.KeyType.ECDSA)
    authority.cert_pem.write_to_path(folder / "ca.pem")
    server.private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    return str(folder)


def make_control_token(folder: str) -> tuple[str, str]:
    """Write a new token to a file in the folder that only its owner can read; returns the token and the file's path."""
    token, path = secrets.token_urlsafe(32), os.path.join(folder, "control.token")
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(token)
    return token, path
