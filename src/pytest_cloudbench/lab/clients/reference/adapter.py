"""The reference client as the registry knows it: client, server and perhaps a second device, over TLS."""

from __future__ import annotations

import json
import os
import platform
import secrets
import socket
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pytest_cloudbench import __version__
from pytest_cloudbench.lab.clients.base import ClientFacts, Documented, LocalClient, Receiver
from pytest_cloudbench.lab.clients.processes import Process, Side
from pytest_cloudbench.lab.clients.reference import client, server
from pytest_cloudbench.lab.clients.reference.process import READY
from pytest_cloudbench.lab.clients.reference.settings import Settings
from pytest_cloudbench.model import ClientError

_MAIN = Path(__file__).with_name("__main__.py")
_STATS_S = 10.0


class ReferenceClient(LocalClient):
    """A client and a server of ours, with HTTPS between them, and with ``pull_s`` a second device.

    Options are those of ``settings.Settings``, and ``facts.documented`` follows from them: it is the truth, not a
    claim. Without ``retry``, an error ends the client, and ``wait_synced`` raises.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self.settings = Settings.from_options(options)
        self.facts = ClientFacts(
            "reference",
            watches_folder=True,
            documented={
                name: Documented("yes" if on else "no", why) for name, (on, why) in self.settings.truth().items()
            },
        )

    def versions(self) -> Mapping[str, str]:
        """Return the versions of this package and of Python, which runs all of it: nothing else takes part."""
        return {"reference": __version__, "python": platform.python_version()}

    def counters(self) -> dict[str, Any]:
        """Return what the server has received since its start, see ``server.Server.counters``.

        Asking sends no byte over the link.

        Raises ClientError when the server does not answer.
        """
        # A socket's path has at most 108 bytes. Through /proc, the folder's own path may be of any length.
        try:
            folder = os.open(self._private_folder("server"), os.O_RDONLY | os.O_DIRECTORY)
            try:
                with socket.socket(socket.AF_UNIX) as connection:
                    connection.settimeout(_STATS_S)
                    connection.connect(f"/proc/self/fd/{folder}/{server.STATS}")
                    with connection.makefile("rb") as answer:
                        return dict(json.loads(answer.read()))
            finally:
                os.close(folder)
        except (OSError, ValueError) as error:
            raise ClientError(f"the reference server's counters cannot be read: {error}") from error

    def why_one_account(self) -> str:
        """Return nothing: its server has as many accounts as tokens."""
        return ""

    def secrets(self) -> Mapping[str, str]:
        """Return the token by which the server knows the client."""
        return {"token": self._token}

    def lead_elsewhere(self, address: str, port: int, authority: str, folder: Path) -> list[str]:
        """Return the command of a client half for another server, whose configuration is written into ``folder``."""
        for name in ("empty", "private"):
            (folder / name).mkdir()
        config = {
            "address": address, "port": port, "settings": asdict(self.settings), "folder": str(folder / "empty"),
            "private": str(folder / "private"), "authority": authority, "client_address": "127.0.0.1",
            "token": "invented",
        }  # fmt: skip
        path = folder / "elsewhere.json"
        path.write_text(json.dumps(config), "utf-8")
        return [sys.executable, "-I", "-S", str(_MAIN), "client", str(path)]

    def receiver(self) -> Receiver:
        """Return the second device if there is one, otherwise the server."""
        if not self.settings.pull_s:
            return super().receiver()

        def bytes_moved() -> tuple[int, int]:
            counters = self.counters()["device"]
            return counters["sent_bytes"], counters["received_bytes"]  # as the server counts them

        return Receiver(self.workdir / "device", "device", bytes_moved)

    def _configure(self) -> None:
        """Write the configuration of server, client and second device, or of the client alone on another's server."""
        host = self.account.host if self.account is not None else None
        assert host is None or isinstance(host, ReferenceClient)
        sides: tuple[Side, ...] = ("server", "client", "device") if host is None else ("client",)
        for side in sides:
            mode = 0o755 if side == "client" and self.settings.flaw == "open-token" else 0o700
            self._private_folder(side).mkdir(mode=mode, exist_ok=True)
        certificate, authority = self._make_certificate() if host is None else ("", str(host.trusted_path()))
        shared = {
            "address": self.server_address,
            "port": self.server_port,
            "settings": asdict(self.settings),
        }
        token, device_token = secrets.token_hex(16), secrets.token_hex(16)
        self._token = token = token if self.account is None else self.account.host.accounts[self.account.name]
        own: dict[Side, dict[str, Any]] = {
            "server": {
                "stored": str(self.stored),
                "certificate": certificate,
                "token": token,
                "device_token": device_token,
                "accounts": self.accounts,
            },
            "client": {
                "folder": str(self.folder),
                "authority": authority,
                "client_address": self.client_address,
                "token": token,
            },
            "device": {
                "folder": str(self.receiver().folder),
                "authority": authority,
                "client_address": self.server_address,  # it runs at the server's end of the link
                "token": device_token,
            },
        }
        for side in sides:
            config = {**shared, **own[side], "private": str(self._private_folder(side))}
            self._config_path(side).write_text(json.dumps(config), "utf-8")

    def _start_server(self) -> None:
        self.processes.wait_listening(self._start_process("server"), self.server_port, self.start_s)

    def _start_client(self) -> None:
        self.processes.wait_logged(self._start_process("client"), READY, self.start_s)
        if self.settings.pull_s and self.account is None:
            self.processes.wait_logged(self._start_process("device"), READY, self.start_s)

    def _is_settled(self) -> bool:
        """Return whether the client also has its last answer."""
        return not (self._private_folder("client") / client.BUSY).exists()

    # --- inside -----------------------------------------------------------------------------------

    def trusted_path(self) -> Path:
        """Return the file of the authority that clients of its server trust."""
        return self._private_folder("client") / "authority.pem"

    def _private_folder(self, side: Side) -> Path:
        return self.workdir / f"reference-{side}"

    def _config_path(self, side: Side) -> Path:
        return self._private_folder(side) / "config.json"

    def _start_process(self, side: Side) -> Process:
        argv = [sys.executable, "-I", "-S", str(_MAIN), side, str(self._config_path(side))]
        if side == "client" and self.settings.flaw == "argument-token":
            argv.append(f"--token={self._token}")
        return self.processes.start(side, f"reference-{side}", argv, cwd=self._private_folder(side))

    def _make_certificate(self) -> tuple[str, str]:
        """Return the paths of the server's key and chain, and of the authority that the client trusts."""
        import trustme

        authority = trustme.CA(organization_name="pytest-cloudbench reference", key_type=trustme.KeyType.ECDSA)
        issued = authority.issue_cert(self.settings.server_name or self.server_address, key_type=trustme.KeyType.ECDSA)
        certificate = self._private_folder("server") / "server.pem"
        trusted = self.trusted_path()
        issued.private_key_and_cert_chain_pem.write_to_path(certificate)
        authority.cert_pem.write_to_path(trusted)
        return str(certificate), str(trusted)
