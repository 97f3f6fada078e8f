"""The embedded Dropbox: one process for all tests, and an empty, well-behaved account for each test."""

import json
import socket
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest


class Dropbox:
    """The addresses and the token of the emulator, and the control socket that changes its behaviour."""

    def __init__(self, ready):
        self.host, self.ca_file = urlsplit(ready["urls"]["content"]).netloc, ready["ca_file"]
        self.token = ready["credentials"]["access_token"]
        host, port = ready["control"].split(":")
        self._control = socket.create_connection((host, int(port)))
        self._lines = self._control.makefile("rw")
        self._send_line({"token": Path(ready["control_token_file"]).read_text().strip()})

    def control(self, **command):
        """Send a command to the control socket, and return its answer."""
        self._send_line(command)
        return json.loads(self._lines.readline())

    def _send_line(self, line):
        self._lines.write(json.dumps(line) + "\n")
        self._lines.flush()

    def close(self):
        self._lines.close()
        self._control.close()


@pytest.fixture(scope="session")
def emulator():
    process = subprocess.Popen(
        ["cloudbench", "emulate", "dropbox", "--profile", "ideal"], stdout=subprocess.PIPE, text=True
    )
    try:
        dropbox = Dropbox(json.loads(process.stdout.readline()))
        yield dropbox
        dropbox.close()
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


@pytest.fixture
def dropbox(emulator):
    emulator.control(set={"faults.error_rate": 0, "faults.reset_rate": 0, "throttle.rate_per_s": 0})
    emulator.control(reset=True)
    return emulator
