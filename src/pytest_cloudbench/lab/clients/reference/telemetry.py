"""A flaw for detectors: names and beginnings of files go out in datagrams without encryption."""

from __future__ import annotations

import base64
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_BEGINNING_BYTES = 256


def tell_everybody(server: tuple[str, int], folder: Path, paths: Sequence[str]) -> None:
    """Send the name of each file, and how it begins, to the server's port, where nobody listens for datagrams."""
    address, port = server
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as telemetry:
        for path in paths:
            with suppress(OSError):  # nobody listens there
                beginning = base64.b64encode((folder / path).read_bytes()[:_BEGINNING_BYTES]).decode()
                telemetry.sendto(f"X-Changed: {path}; {beginning}".encode(), (address, port))
