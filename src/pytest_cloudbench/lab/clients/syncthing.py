"""Syncthing: two devices that share one folder, where the client's device dials the server's.

Discovery, relays, NAT, upgrades and reports are off,
and only one side dials: otherwise both would open connections, and a capture would show what no user's link carries.
"""

from __future__ import annotations

import http.client
import json
import os
import secrets
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.sax.saxutils import escape, quoteattr

from pytest_cloudbench.lab.clients.base import ClientFacts, Documented, LocalClient, client_option
from pytest_cloudbench.lab.clients.processes import Process, Side
from pytest_cloudbench.model import ClientError

_FOLDER_ID = "cloudbench"
_REST_S = 10.0

_CONFIG = """\
<configuration version="30">
  <folder id="{folder_id}" path={folder} type="sendreceive" rescanIntervalS="3600" fsWatcherEnabled="true"
          fsWatcherDelayS="1" ignorePerms="false" autoNormalize="true">
    <device id="{own_id}"/>
    <device id="{other_id}"/>
    <minDiskFree unit="%">0</minDiskFree>
  </folder>
  <device id="{own_id}" name="own" compression="{compression}"><address>dynamic</address></device>
  <device id="{other_id}" name="other" compression="{compression}"><address>{dial}</address></device>
  <gui enabled="true" tls="false">
    <address>/proc/self/cwd/{socket}</address>
    <unixSocketPermissions>0600</unixSocketPermissions>
    <apikey>{key}</apikey>
  </gui>
  <options>
    <listenAddress>{listen}</listenAddress>
    <globalAnnounceEnabled>false</globalAnnounceEnabled>
    <localAnnounceEnabled>false</localAnnounceEnabled>
    <relaysEnabled>false</relaysEnabled>
    <natEnabled>false</natEnabled>
    <reconnectionIntervalS>1</reconnectionIntervalS>
    <startBrowser>false</startBrowser>
    <urAccepted>-1</urAccepted>
    <autoUpgradeIntervalH>0</autoUpgradeIntervalH>
    <crashReportingEnabled>false</crashReportingEnabled>
    <announceLANAddresses>false</announceLANAddresses>
    <minHomeDiskFree unit="%">0</minHomeDiskFree>
  </options>
</configuration>
"""


class _Rest(http.client.HTTPConnection):
    """The REST interface on a socket in the file system, which every network namespace can reach."""

    def __init__(self, home: Path, key: str) -> None:
        super().__init__("localhost", timeout=_REST_S)
        self._home, self._key = home, key

    def connect(self) -> None:
        # A socket's path has at most 108 bytes. Through /proc, the folder's own path may be of any length.
        folder = os.open(self._home, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(_REST_S)
            self.sock.connect(f"/proc/self/fd/{folder}/{_SOCKET}")
        finally:
            os.close(folder)

    def get_json(self, path: str) -> dict[str, Any] | None:
        """Return the answer to a GET, or None if there is no answer (yet)."""
        try:
            self.request("GET", path, headers={"X-API-Key": self._key})
            answer = self.getresponse()
            body = answer.read()
            return dict(json.loads(body)) if answer.status == http.HTTPStatus.OK else None
        except (OSError, http.client.HTTPException, ValueError):
            return None
        finally:
            self.close()


_SOCKET = "rest.sock"


class SyncthingClient(LocalClient):
    """Two Syncthing devices.

    Options:
        compression: of the connection: ``metadata`` (Syncthing's default), ``always`` or ``never``.
    """

    own_names = frozenset({".stfolder", ".stversions"})

    def __init__(self, options: Mapping[str, str]) -> None:
        self._compression = client_option(
            "syncthing", options, "compression", ("metadata", "always", "never"), "metadata"
        )
        compresses = self._compression == "always"
        self.facts = ClientFacts(
            "syncthing",
            watches_folder=True,
            binaries=("syncthing",),
            testbed="syncthing",
            trusts="the hash of its certificate, which is the device's id",
            is_peer=True,
            documented={
                "chunking": Documented("yes", "blocks of 128 KiB to 16 MiB, by file size"),
                "bundling": Documented("no", "each block is requested separately; one connection carries all"),
                "deduplication": Documented("yes", "by block, also between files"),
                "delta": Documented("yes", "by block, with a rolling checksum for shifted data"),
                "compression": Documented("yes" if compresses else "no", f"compression={self._compression}"),
            },
        )

    def _configure(self) -> None:
        """Make a device for each side, and write the configurations by which they know each other."""
        self._key = secrets.token_hex(16)
        self._homes: dict[Side, Path] = {side: self.workdir / f"device-{side}" for side in ("server", "client")}
        ids = {side: self._make_device(side) for side in self._homes}
        for side, home in self._homes.items():
            is_server = side == "server"
            listen = _tcp_url(self.server_address, self.server_port) if is_server else _tcp_url(self.client_address, 0)
            (home / "config.xml").write_text(
                _CONFIG.format(
                    folder_id=_FOLDER_ID,
                    folder=quoteattr(str(self.stored if is_server else self.folder)),
                    own_id=ids[side],
                    other_id=ids["client" if is_server else "server"],
                    compression=self._compression,
                    # "dynamic" asks discovery, which is off: the server never dials.
                    dial="dynamic" if is_server else escape(_tcp_url(self.server_address, self.server_port)),
                    socket=_SOCKET,
                    key=self._key,
                    listen=escape(listen),
                ),
                "utf-8",
            )
        self._ids = ids

    def why_one_account(self) -> str:
        """Return that no server is between its devices."""
        return "its other side is a device of the same user, which has no accounts"

    def secrets(self) -> Mapping[str, str]:
        """Return the device's private key, and what opens its REST interface."""
        key = (self._homes["client"] / "key.pem").read_text("utf-8")
        return {"device key": key, "API key": self._key}

    def _make_device(self, side: Side) -> str:
        """Make a device's certificate. Returns its id."""
        home = self._homes[side]
        home.mkdir(mode=0o700, exist_ok=True)
        self.processes.run(
            side, f"generate-{side}", [self.programs["syncthing"], "generate", f"--home={home}"], timeout_s=self.start_s
        )
        device = ElementTree.parse(home / "config.xml").find("device")
        if device is None or "id" not in device.attrib:
            raise ClientError("syncthing generate wrote no device into its config.xml")
        return device.attrib["id"]

    def _start_server(self) -> None:
        self.processes.wait_listening(self._start_device("server"), self.server_port, self.start_s)

    def _start_client(self) -> None:
        self._start_device("client")
        self.processes.wait_until(
            lambda: self._is_connected() and self._is_settled(), self.start_s, "the two devices did not connect"
        )

    def _start_device(self, side: Side) -> Process:
        home = self._homes[side]
        argv = [self.programs["syncthing"], "serve", f"--home={home}", "--no-browser", "--no-restart"]
        # The socket is named relative to the working directory.
        return self.processes.start(side, f"syncthing-{side}", argv, env={"STNOUPGRADE": "1"}, cwd=home)

    def _ask_device(self, side: Side, path: str) -> dict[str, Any] | None:
        return _Rest(self._homes[side], self._key).get_json(path)

    def _is_connected(self) -> bool:
        answer = self._ask_device("client", "/rest/system/connections")
        return bool(answer and answer["connections"].get(self._ids["server"], {}).get("connected"))

    def _is_settled(self) -> bool:
        """Return whether each device is idle, and knows that the other needs nothing.

        This alone is not enough: until the client has noticed a change, it reports the same.
        """
        pairs: tuple[tuple[Side, Side], ...] = (("client", "server"), ("server", "client"))
        for side, other in pairs:
            completion = self._ask_device(side, f"/rest/db/completion?folder={_FOLDER_ID}&device={self._ids[other]}")
            state = self._ask_device(side, f"/rest/db/status?folder={_FOLDER_ID}")
            if (
                not completion
                or not state
                or completion["completion"] != 100
                or completion.get("needDeletes")
                or state["state"] != "idle"
            ):
                return False
        return True


def _tcp_url(address: str, port: int) -> str:
    return f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"
