"""Start rclone as an SFTP server on one folder, with a host key that its clients can know. Run by its path.

The host key is made here, since rclone would make one and not reveal it. Arguments: rclone, port and folder. The server
serves ``files`` in that folder, and ``host_key`` and ``known_hosts`` are written beside it. User and password are in
rclone's own variables.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


def main() -> str:
    """Replace this process by the server, or return why that is impossible."""
    name, port, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    program = shutil.which(name)
    if program is None:
        return f"{name} is not installed: install the extra {name} of pytest-cloudbench"
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption())
    public = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    (folder / "host_key").touch(0o600)
    (folder / "host_key").write_bytes(private)
    (folder / "known_hosts").write_bytes(b"[127.0.0.1]:%s %s\n" % (port.encode(), public))
    address = ["--addr", f"127.0.0.1:{port}", "--key", str(folder / "host_key")]
    os.execv(program, [program, "serve", "sftp", "--config", "", *address, str(folder / "files")])


if __name__ == "__main__":
    sys.exit(main())
