"""Measurement of a host's access line, on the host: to a provider, or through the connection to this machine.

The controller sends a request to ``main``, which runs on the host and answers in one message. On this machine
``measure_line`` is called directly.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from msgspec import field

from pytest_cloudbench.drivers.egress import egress_of
from pytest_cloudbench.fleet.hosts.connection import PRINTS_AT_START
from pytest_cloudbench.fleet.messages import Message, decode_plain, encode
from pytest_cloudbench.model import CloudbenchError, FleetError
from pytest_cloudbench.net.access_line import measure_round_trips, measure_transfer
from pytest_cloudbench.providers import connect, elsewhere
from pytest_cloudbench.providers.for_agents import Provided
from pytest_cloudbench.support import redact
from pytest_cloudbench.support.clock import now_ns
from pytest_cloudbench.workload.payload.contents import Literal

if TYPE_CHECKING:
    from pytest_cloudbench.drivers.base import Driver
    from pytest_cloudbench.fleet.hosts.connection import HostConnection, HostStream

TO_THIS_MACHINE = "this machine, by its connection"
"""The other end of a line that is measured without a provider."""
_EMULATED = "emulated: this measures the client, the emulator and the way between them, not a provider's line"
_PROGRAM = "from pytest_cloudbench.providers import line; line.main()"
_LENGTH = struct.Struct(">Q")
_PORTS = {"http": 80, "sftp": 22}
_PIECE_BYTES = 1 << 16
_UP, _DOWN, _PING, _DONE = b"U", b"D", b"?", b"!"


class LineRequest(Message, frozen=True):
    """A request to measure a line.

    Attributes:
        provided: the provider at the other end, None for the controller.
        path: the prefix of the paths of files that may be written there.
        connects: how many TCP connects, or round trips over the connection.
        most_s, most_bytes: the bounds of each direction. Without bytes, only round trips are measured.
        is_carried: whether the provider is a service of the controller that is reached through the connection.
    """

    provided: Provided | None = None
    path: str = ""
    connects: int = 10
    most_s: float = 10.0
    most_bytes: int = 16 << 20
    is_carried: bool = False


class AccessLine(Message, frozen=True):
    """The measurements of a line. None is unknown, and ``problems`` say why.

    Attributes:
        to: what the round trips led to.
        connects: how many round trips there were.
        round_trip_min_s, round_trip_median_s: the shortest one, and the median.
        up, down: the fields of a ``net.access_line.BoundedTransfer`` in each direction.
        problems: why something is not known.
        is_unreachable: whether nothing leads to the other end.
    """

    to: str = ""
    connects: int = 0
    round_trip_min_s: float | None = None
    round_trip_median_s: float | None = None
    up: dict[str, Any] | None = None
    down: dict[str, Any] | None = None
    problems: tuple[str, ...] = field(default_factory=tuple)
    is_unreachable: bool = False


# --- on the host ------------------------------------------------------------------------------------


def measure_line(request: LineRequest) -> AccessLine:
    """Measure the line from here to a provider. What goes wrong becomes a problem of the line."""
    assert request.provided is not None
    try:
        driver = connect(request.provided)
    except CloudbenchError as error:
        return AccessLine(problems=(redact.clean(str(error)),), is_unreachable=True)
    try:
        line, sizes = _measure_trips(driver, request.provided, request), dict[str, int]()
        if request.provided.emulated != "none":
            line = line.replace(problems=(*line.problems, _EMULATED))
        if not request.most_bytes:
            return line
        line = _add_transfer(line, "up", partial(_put, driver, request.path, sizes), request)
        return _add_transfer(line, "down", partial(_get, driver, sizes), request) if sizes else line
    finally:
        driver.close()


def _measure_trips(driver: Driver, provided: Provided, request: LineRequest) -> AccessLine:
    """Measure round trips to the server of a driver's requests, if it is known."""
    url = provided.find_url(driver)
    unknown = "round trip: unknown: "
    if request.is_carried:
        return AccessLine(problems=(f"{unknown}the provider is reached through the connection to the controller",))
    if not url:
        return AccessLine(problems=(f"{unknown}the driver does not say where its requests go",))
    if egress_of(provided.endpoint, url).proxy_for(url):
        return AccessLine(problems=(f"{unknown}a proxy leads there",))
    parts = urlsplit(url)
    address = parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 443)
    to = f"{address[0]}:{address[1]}"
    try:
        trips_s = measure_round_trips(address, request.connects)
    except OSError as error:
        problem = f"{unknown}{to} does not answer: {error.strerror or error}"
        return AccessLine(to, problems=(problem,), is_unreachable=True)
    return AccessLine(to, len(trips_s), trips_s[0], median(trips_s))


def _add_transfer(line: AccessLine, direction: str, move: Callable[[int], int], request: LineRequest) -> AccessLine:
    """Return a line with one more direction, or with the reason why that is unknown."""
    try:
        carried = measure_transfer(move, request.most_s, request.most_bytes)
    except (CloudbenchError, EOFError, OSError) as error:
        problem = f"{direction}: unknown: {redact.clean(str(error)) or 'the connection broke'}"
        return line.replace(problems=(*line.problems, problem))
    return line.replace(**{direction: asdict(carried)})


def _put(driver: Driver, path: str, sizes: dict[str, int], size_bytes: int) -> int:
    """Write a file of bytes that nothing can compress, and note its size."""
    name = f"{path}-{len(sizes)}.bin"
    driver.put(name, Literal(os.urandom(size_bytes)))
    sizes[name] = size_bytes
    return size_bytes


def _get(driver: Driver, sizes: dict[str, int], size_bytes: int) -> int:
    """Read the largest file of at most ``size_bytes``, or the largest of all if none is that small."""
    fitting = {name: size for name, size in sizes.items() if size <= size_bytes} or sizes
    name = max(fitting, key=fitting.__getitem__)
    read_bytes = sum(map(len, driver.get(name)))
    if read_bytes != sizes[name]:
        raise FleetError(f"{read_bytes} of {sizes[name]} bytes came back")
    return read_bytes


def main() -> None:
    """Answer a request on standard input. Without a provider, serve ``_over_connection`` until the input ends."""
    sink = os.dup(1)
    os.dup2(2, 1)  # libraries may print
    request = LineRequest.from_plain(decode_plain(_read_exactly(_LENGTH.unpack(_read_exactly(_LENGTH.size))[0])))
    if request.provided is not None:
        answer = encode(measure_line(request))
        os.write(sink, _LENGTH.pack(len(answer)) + answer)
        return
    while kind := os.read(0, 1):
        if kind != _PING:
            (size_bytes,) = _LENGTH.unpack(_read_exactly(_LENGTH.size))
            if kind == _UP:
                _write_all(sink, size_bytes)
                continue
            _read_exactly(size_bytes)
        os.write(sink, _DONE)


def _read_exactly(size_bytes: int) -> bytes:
    data = bytearray()
    while len(data) < size_bytes:
        piece = os.read(0, min(_PIECE_BYTES, size_bytes - len(data)))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)


def _write_all(sink: int, size_bytes: int) -> None:
    view = memoryview(os.urandom(size_bytes))
    while view:
        view = view[os.write(sink, view[:_PIECE_BYTES]) :]


# --- on the controller ------------------------------------------------------------------------------


def measure_host(connection: HostConnection, request: LineRequest) -> AccessLine:
    """Measure the line of a host that is connected. Raises FleetError if it does not answer."""
    if request.provided is not None:
        prepared = elsewhere.prepare(request.provided, connection.find_port)
        is_carried = prepared.endpoint != request.provided.endpoint
        request = request.replace(provided=prepared, is_carried=is_carried)
    stream = connection.add_stream(1, None)
    connection.start(stream, _PROGRAM)
    sent = encode(request)
    try:
        stream.write(_LENGTH.pack(len(sent)) + sent)
        if request.provided is None:
            return _over_connection(stream, request)
        return AccessLine.from_plain(decode_plain(stream.read(_LENGTH.unpack(stream.read(_LENGTH.size))[0])))
    except (EOFError, OSError):
        connection.close()  # so that the host's last output has arrived
        raise FleetError(connection.lost_because or connection.last_line() or "ended without an answer") from None


def _over_connection(stream: HostStream, request: LineRequest) -> AccessLine:
    """Measure the connection to a host itself. Up is from the host to this machine."""

    def expect_done() -> None:
        if stream.read(1) != _DONE:
            raise FleetError(PRINTS_AT_START)

    def ping() -> float:
        begun_ns = now_ns()
        stream.write(_PING)
        expect_done()
        return (now_ns() - begun_ns) / 1e9

    def move_up(size_bytes: int) -> int:
        stream.write(_UP + _LENGTH.pack(size_bytes))
        return len(stream.read(size_bytes))

    def move_down(size_bytes: int) -> int:
        stream.write(_DOWN + _LENGTH.pack(size_bytes) + os.urandom(size_bytes))
        expect_done()
        return size_bytes

    ping()  # the program may still be starting
    trips_s = sorted(ping() for _ in range(request.connects))
    line = AccessLine(TO_THIS_MACHINE, len(trips_s), trips_s[0], median(trips_s))
    return _add_transfer(_add_transfer(line, "up", move_up, request), "down", move_down, request)
