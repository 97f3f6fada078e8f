"""Access to capture files on disk, and to the few packets that tshark dissects.

Use pyshark only behind a display filter, never for bulk numbers: it is hundreds of times slower than ``traffic``, and
its summaries have returned one packet of 3,000 without an error.
"""

from __future__ import annotations

import io
import mmap
import os
import stat
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import IO, Any, NamedTuple

from pytest_cloudbench.model import MIB, UsageError
from pytest_cloudbench.net.traffic import Analysis, Rule
from pytest_cloudbench.net.traffic.packets import Address
from pytest_cloudbench.net.traffic.roles import Roles
from pytest_cloudbench.support import extras, opening

_QUIC = "quic && tls.handshake.type == 1"
_TLS = "tls.handshake.type == 1"


class Hello(NamedTuple):
    """The ends and the server name of a TLS hello, including one within QUIC."""

    client: str
    client_port: int
    server: str
    server_port: int
    name: str


@contextmanager
def open_capture(path: Path) -> Iterator[tuple[bytes | mmap.mmap, Callable[[int], None]]]:
    """Map a capture into memory, and yield its bytes and a function that releases pages.

    ``-`` is standard input. The function takes the offset below which pages are no longer needed. Raises UsageError if
    the file cannot be read.
    """
    try:
        with _open_file(path) as raw_file, _decompress(raw_file, path) as file:
            size = os.fstat(file.fileno()).st_size
            contents = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read ({opening.explain_error(error)})") from error

    def release(offset: int) -> None:
        if isinstance(contents, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            length = min(offset, size) // mmap.PAGESIZE * mmap.PAGESIZE
            if length:
                contents.madvise(mmap.MADV_DONTNEED, 0, length)

    yield contents, release
    # Columns may still point into the mapping, so it is unmapped with the last of them.


def _open_file(path: Path) -> io.BufferedReader:
    """Open a file, or standard input, which may be a pipe."""
    return open(0, "rb", closefd=False) if str(path) == "-" else opening.open_regular_file(path, None)


def _decompress(file: io.BufferedReader, path: Path) -> IO[bytes]:
    """Return the file itself, or for a pipe or a gzip file, its contents in an unnamed temporary file."""
    is_gzip = file.peek(2)[:2] == b"\x1f\x8b"
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode) and not is_gzip:
        return file
    import gzip
    import shutil
    import tempfile
    import zlib

    try:
        with tempfile.TemporaryFile() as temporary, gzip.open(file) if is_gzip else file as source:
            shutil.copyfileobj(source, temporary, MIB)
            temporary.flush()
            return os.fdopen(os.dup(temporary.fileno()), "rb")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(f"{path}: the gzip data is damaged or truncated ({error})") from error


_STATUS_UNKNOWN = "retcode: 255"
"""asyncio's message if another thread has already collected the exit status. tshark never has this status."""


def read_hellos(path: Path, *, quic: bool) -> list[Hello]:
    """Return the names in all TLS hellos of a capture. tshark decrypts QUIC's Initial packets for that.

    Raises UsageError if tshark is missing or fails.
    """
    import shutil
    from concurrent.futures import ThreadPoolExecutor

    extras.require_extra("capture", "names in QUIC hellos")
    if shutil.which("tshark") is None:
        raise UsageError("tshark is not installed: names in QUIC hellos are unknown (Debian: apt-get install tshark)")
    with warnings.catch_warnings(), ThreadPoolExecutor(1) as pool:
        warnings.simplefilter("ignore", DeprecationWarning)  # pyshark's use of asyncio
        try:
            # In the main thread pyshark sets a child watcher, which Python 3.14 no longer has.
            return pool.submit(_dissect_hellos, path, _QUIC if quic else _TLS).result()
        except Exception as error:  # pyshark raises errors of its process, parser and event loop
            raise UsageError(f"{path}: tshark could not read it ({error})") from error


def _dissect_hellos(path: Path, display_filter: str) -> list[Hello]:
    import pyshark
    from pyshark.capture.capture import TSharkCrashException

    capture = pyshark.FileCapture(str(path), display_filter=display_filter, keep_packets=False)
    hellos: list[Hello] = []
    try:
        hellos += (client_hello for packet in capture if (client_hello := _parse_hello(packet)) is not None)
        capture.close()
    except TSharkCrashException as error:
        if _STATUS_UNKNOWN not in str(error):
            raise
    finally:
        capture._running_processes.clear()  # otherwise its destructor waits for them on a closed loop
        capture.eventloop.close()
    return hellos


def _parse_hello(packet: Any) -> Hello | None:
    """Return the name in one packet, if any. pyshark's objects have a field only if the packet has it."""
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
                ends = str(network.src), int(transport.srcport), str(network.dst), int(transport.dstport)
                return Hello(*ends, str(name).lower())
    return None


def name_quic_flows(analysis: Analysis, path: Path, rules: Sequence[Rule]) -> list[str]:
    """Set names and roles of QUIC flows from their encrypted hellos, and return notes on missing names.

    A flow with hellos of several names stays unnamed, because its bytes may be of either server.
    """
    flows = [facts for facts in analysis.facts if facts.quic_version is not None]
    if not flows:
        return []
    names: dict[tuple[Address, int, Address, int], set[str]] = {}
    try:
        for hello in read_hellos(path, quic=True):
            ends = (ip_address(hello.client), hello.client_port, ip_address(hello.server), hello.server_port)
            names.setdefault(ends, set()).add(hello.name)
    except UsageError as error:
        return [str(error)]
    roles = Roles(rules)
    nameless = ambiguous = 0
    for facts in flows:
        flow = facts.flow
        flow_names = names.get((flow.client, flow.client_port, flow.server, flow.server_port), set())
        if len(flow_names) == 1:
            (facts.sni,) = flow_names
        nameless += not flow_names
        ambiguous += len(flow_names) > 1
        facts.role = roles.find_role(flow, facts.names_for_role, is_quic=True)
    notes = [f"{nameless} QUIC flows have no readable hello"] if nameless else []
    return notes + ([f"{ambiguous} QUIC flows have hellos of several names"] if ambiguous else [])
