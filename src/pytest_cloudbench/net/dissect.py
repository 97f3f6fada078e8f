"""Capture files on disk, and the few packets that tshark looks into.

What may live here: opening a capture for ``traffic``, and pyshark behind a display filter. Bulk numbers are never taken
from there: it is hundreds of times slower, and its summaries have returned one packet of 3,000 without an error.
"""

from __future__ import annotations

import gzip
import io
import mmap
import os
import shutil
import stat
import tempfile
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import IO, Any

from pytest_cloudbench.model import MIB, UsageError
from pytest_cloudbench.net.traffic import Analysis, Rule
from pytest_cloudbench.net.traffic.roles import Roles
from pytest_cloudbench.support import extras, opening

_QUIC = "quic && tls.handshake.type == 1"
_TLS = "tls.handshake.type == 1"

Hello = tuple[str, int, str]
"""(client's address, its port, the server's name) of a TLS hello, also of one within QUIC."""


@contextmanager
def opened(path: Path) -> Iterator[tuple[bytes | mmap.mmap, Callable[[int], None]]]:
    """A capture's bytes, memory-mapped, and a function that releases pages. Raises UsageError when it cannot be read.

    ``-`` is standard input. The function's argument is the offset below which pages are no longer needed.
    """
    try:
        with _given(path) as given, _plain(given) as file:
            size = os.fstat(file.fileno()).st_size
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(f"{path}: its compression (gzip) is damaged, or it was cut ({error})") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error

    def release(place: int) -> None:
        if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            length = min(place, size) // mmap.PAGESIZE * mmap.PAGESIZE
            if length:
                mapped.madvise(mmap.MADV_DONTNEED, 0, length)

    yield mapped, release
    # Not closed here: columns may still point into it. It is unmapped with the last of them.


def _given(path: Path) -> io.BufferedReader:
    """The file, or the standard input, which may be a pipe."""
    return open(0, "rb", closefd=False) if str(path) == "-" else opening.regular_file(path, None)


def _plain(file: io.BufferedReader) -> IO[bytes]:
    """The file itself; for a pipe or a gzip file, its content in an unnamed temporary file."""
    packed = file.peek(2)[:2] == b"\x1f\x8b"
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode) and not packed:
        return file
    with tempfile.TemporaryFile() as whole, gzip.open(file) if packed else file as source:
        shutil.copyfileobj(source, whole, MIB)
        whole.flush()
        return os.fdopen(os.dup(whole.fileno()), "rb")


_STATUS_UNKNOWN = "retcode: 255"
"""What asyncio reports when another thread has already asked for a child's exit status; tshark never ends so."""


def hellos(path: Path, *, quic: bool) -> list[Hello]:
    """The names in all TLS hellos of a capture, as tshark sees them; QUIC's Initial packets are decrypted by it.

    Raises UsageError when tshark is missing or fails.
    """
    extras.require("capture", "names in QUIC hellos")
    if shutil.which("tshark") is None:
        raise UsageError("tshark is not installed: names in QUIC hellos are unknown (Debian: apt-get install tshark)")
    with warnings.catch_warnings(), ThreadPoolExecutor(1) as pool:
        warnings.simplefilter("ignore", DeprecationWarning)  # pyshark's use of asyncio
        try:
            # In the main thread pyshark sets a child watcher, which Python 3.14 no longer has.
            return pool.submit(_hellos, path, _QUIC if quic else _TLS).result()
        except Exception as error:  # pyshark passes on what its process, parser or event loop raises
            raise UsageError(f"{path}: tshark could not look into it ({error})") from error


def _hellos(path: Path, display_filter: str) -> list[Hello]:
    import pyshark
    from pyshark.capture.capture import TSharkCrashException

    capture = pyshark.FileCapture(str(path), display_filter=display_filter, keep_packets=False)
    found: list[Hello] = []
    try:
        found += (hello for packet in capture if (hello := _hello(packet)) is not None)
        capture.close()
    except TSharkCrashException as error:
        if _STATUS_UNKNOWN not in str(error):
            raise
    finally:
        capture._running_processes.clear()  # or its destructor would wait for them on a closed loop
        capture.eventloop.close()
    return found


def _hello(packet: Any) -> Hello | None:
    """The name in one packet. pyshark's objects have a field only where the packet has it."""
    network = getattr(packet, "ip", None) or getattr(packet, "ipv6", None)
    transport = getattr(packet, "tcp", None) or getattr(packet, "udp", None)
    if network is None or transport is None:
        return None
    for layer in packet.layers:
        if layer.layer_name in ("tls", "quic"):
            name = layer.get_field("tls_handshake_extensions_server_name") or layer.get_field(
                "handshake_extensions_server_name"
            )
            if name is not None:
                return str(network.src), int(transport.srcport), str(name).lower()
    return None


def name_quic_flows(found: Analysis, path: Path, rules: Sequence[Rule]) -> list[str]:
    """Give QUIC flows the names in their encrypted hellos, and their roles anew. Returns notes of what is missing."""
    flows = [facts for facts in found.facts if facts.quic_version is not None]
    if not flows:
        return []
    try:
        names = {(ip_address(address), port): name for address, port, name in hellos(path, quic=True)}
    except UsageError as error:
        return [str(error)]
    roles = Roles(rules)
    for facts in flows:
        facts.sni = names.get((facts.flow.client, facts.flow.client_port), facts.sni)
        facts.role = roles.of(facts.flow, facts.names, is_quic=True)
    nameless = sum(facts.sni is None for facts in flows)
    return [f"{nameless} QUIC flows have no readable hello"] if nameless else []
