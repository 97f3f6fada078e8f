"""TLS in front of a server on this machine, as on a proxy with an https:// URL, and a folder of trusted authorities."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError, ValueError):
        while data := source.recv(65_536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def _relay(accepted: socket.socket, context: ssl.SSLContext, address: tuple[str, int]) -> None:
    """Relay bytes in both directions. They may themselves hold TLS."""
    with (
        contextlib.suppress(OSError),
        accepted,
        context.wrap_socket(accepted, server_side=True) as outside,
        socket.create_connection(address) as inside,
    ):
        back = threading.Thread(target=_copy, args=(inside, outside), daemon=True)
        back.start()
        _copy(outside, inside)
        back.join()


@contextmanager
def tls_in_front_of(url: str, context: ssl.SSLContext) -> Iterator[str]:
    """Accept TLS connections, and relay their content to the server at ``url``. Yield the URL of this front."""
    parts = urlsplit(url)
    address = (parts.hostname or "", parts.port or 0)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):  # the listener was shut down
                while True:
                    accepted, _ = listener.accept()
                    threading.Thread(target=_relay, args=(accepted, context, address), daemon=True).start()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def folder_of_authorities(file: str, folder: Path) -> str:
    """Write each certificate of a file into a new folder, under the name by which OpenSSL finds it."""
    folder.mkdir()
    end = "-----END CERTIFICATE-----\n"
    for text in Path(file).read_text().split(end)[:-1]:
        command = ["openssl", "x509", "-noout", "-hash"]
        try:
            name = subprocess.run(command, input=text + end, capture_output=True, text=True, check=True).stdout.strip()
        except FileNotFoundError:
            pytest.skip("openssl, which names the files, is not installed")
        (folder / f"{name}.0").write_text(text + end)
    (folder / "note.txt").write_text("no certificate")
    return str(folder)
