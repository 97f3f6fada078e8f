"""The certificate an emulator shows, made on the spot by an authority that lives as long as the process.

What may live here: key material in a folder that only this user can enter.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

__all__ = ["make_certificate"]


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
