"""Starts dumpcap in its namespace, sends sentinels there, and stops it: ``guard.py INTERFACE TOKEN COMMAND...``.

What may live here: what has to happen in the capture's namespace and with its rights. Run by its path, with nothing
of the package importable. Its stdout is the capture file, which it leaves to dumpcap. A line on stdin is a word:
``stop``, ``kill``, or the label of a sentinel to send. When stdin ends, because the owner is gone, so does the capture.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import threading

SENTINEL_ADDRESS = "233.252.0.9"
"""Multicast addresses for documentation (RFC 6676): they need no neighbour, get no answer, and nobody listens."""
SENTINEL_PORT = 9
"""Discard (RFC 863)."""
_STOP_S = 5.0


def sentinel_payload(token: str, label: str) -> bytes:
    """What a sentinel carries."""
    return f"cloudbench-sentinel {token} {label}".encode()


def _send(interface: str, token: str, label: str) -> None:
    index = socket.if_nametoindex("lo" if interface == "any" else interface)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        request = struct.pack("4s4si", b"\0" * 4, b"\0" * 4, index)
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, request)
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 0)
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 1)
        sender.sendto(sentinel_payload(token, label), (SENTINEL_ADDRESS, SENTINEL_PORT))


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()  # dumpcap takes it like Ctrl-C: it writes its statistics and ends
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _obey(process: subprocess.Popen[bytes], interface: str, token: str) -> None:
    for line in sys.stdin:
        word = line.strip()
        if word == "stop":
            process.terminate()
        elif word == "kill":
            process.kill()
        else:
            try:
                _send(interface, token, word)
            except OSError as error:
                sys.stderr.write(f"sentinel: {interface}: {error}\n")
                sys.stderr.flush()
    _stop(process)


def main(argv: list[str]) -> int:
    """Capture until told to stop; dumpcap's exit status."""
    interface, token, *command = argv
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error}\n")
        return 127
    threading.Thread(target=_obey, args=(process, interface, token), daemon=True).start()
    return process.wait()


if __name__ == "__main__":
    _status = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(_status % 256)  # the thread that reads stdin may still wait for a word
