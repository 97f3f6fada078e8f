"""Starts gcp-storage-emulator with room for many clients at once: ``gcs_server.py PORT BUCKET [--in-memory]``.

What may live here: its start. Five connections wait by default, and others are reset, which clients would report as a
fault of the service.
"""

from __future__ import annotations

import socketserver
import sys
from importlib import import_module

__all__ = ["main"]

_WAITING = 256


def main(port: str, bucket: str, *more: str) -> int:
    """Serve until it is ended; returns the exit status."""
    socketserver.TCPServer.request_queue_size = _WAITING
    arguments = ["start", "--host", "127.0.0.1", "--port", port, "--default-bucket", bucket, *more]
    return int(import_module("gcp_storage_emulator.__main__").main(arguments) or 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
