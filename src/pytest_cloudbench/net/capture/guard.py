"""Start dumpcap, send sentinels, and stop it, in the capture's namespace: ``guard.py INTERFACE TOKEN COMMAND...``.

It is run by its path and cannot import the package. Its stdout is the capture file, which dumpcap writes. Each line on
stdin is ``stop``, ``kill``, or the label of a sentinel to send. The capture also ends when its owner is gone, because
stdin then closes.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import threading

SENTINEL_ADDRESS = "233.252.0.9"
"""A multicast address for documentation (RFC 6676). It needs no neighbour entry, and nobody listens or answers."""
SENTINEL_PORT = 9
"""The discard port (RFC 863)."""
_STOP_S = 5.0


def sentinel_payload(token: str, label: str) -> bytes:
    """Return the payload of a sentinel."""
    return f"cloudbench-sentinel {token} {label}".encode()


def _send_sentinel(interface: str, token: str, label: str) -> None:
    index = socket.if_nametoindex("lo" if interface == "any" else interface)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        request = struct.pack("4s4si", b"\0" * 4, b"\0" * 4, index)
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, request)
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 0)
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 1)
        sender.sendto(sentinel_payload(token, label), (SENTINEL_ADDRESS, SENTINEL_PORT))


def _stop_dumpcap(process: subprocess.Popen[bytes]) -> None:
    process.terminate()  # like Ctrl-C: dumpcap writes its statistics and ends
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _follow_words(process: subprocess.Popen[bytes], interface: str, token: str) -> None:
    for line in sys.stdin:
        word = line.strip()
        if word == "stop":
            process.terminate()
        elif word == "kill":
            process.kill()
        else:
            try:
                _send_sentinel(interface, token, word)
            except OSError as error:
                sys.stderr.write(f"sentinel: {interface}: {error}\n")
                sys.stderr.flush()
    _stop_dumpcap(process)


def main(argv: list[str]) -> int:
    """Capture until told to stop, and return dumpcap's exit status."""
    interface, token, *command = argv
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error}\n")
        return 127
    threading.Thread(target=_follow_words, args=(process, interface, token), daemon=True).start()
    return process.wait()


if __name__ == "__main__":
    _status = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(_status % 256)  # do not wait for the thread that reads stdin
