"""The check, before a session, whether agents can run on hosts: one line for each host."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from pytest_cloudbench import __version__
from pytest_cloudbench.fleet.hosts.connection import PRINTS_AT_START, HostConnection, HostStream, read_line
from pytest_cloudbench.fleet.hosts.probe import digest_code
from pytest_cloudbench.fleet.hosts.table import Host
from pytest_cloudbench.fleet.offsets import measure_offset
from pytest_cloudbench.model import FleetError
from pytest_cloudbench.support.wording import format_count

_PROBE = "from pytest_cloudbench.fleet.hosts import probe; probe.main()"
_DIGITS = 20
_CLOCK_IS_WRONG_S = 1.0


@dataclass(frozen=True, slots=True)
class Checked:
    """A host, and whether agents can run there.

    Attributes:
        host: the host.
        is_ready: whether agents can run there.
        text: facts about the host, or why agents cannot run there and what to do.
    """

    host: Host
    is_ready: bool
    text: str


def check_hosts(hosts: Sequence[Host], patience_s: float) -> list[Checked]:
    """Ask all hosts at the same time. None takes much longer than ``patience_s``."""
    with ThreadPoolExecutor(len(hosts)) as pool:
        return list(pool.map(partial(_check, patience_s=patience_s), hosts))


def _check(host: Host, patience_s: float) -> Checked:
    connection = HostConnection(host, patience_s, lambda connection: None)
    connection.open()
    try:
        connection.wait(patience_s)
        return _ask(connection, host)
    except FleetError:
        return Checked(host, False, f"{connection.lost_because}; does `{' '.join(host.command[:-1])}` work by hand?")
    finally:
        connection.close()


def _ask(connection: HostConnection, host: Host) -> Checked:
    """Return whether a host has a Python that can run agents, with its clock and size in words."""
    stream = connection.add_stream(1, None)
    connection.start(stream, _PROBE)
    try:
        answer = _read_answer(stream)
        offset = measure_offset(lambda: _read_clock(stream), time.time_ns)
    except ValueError:
        return Checked(host, False, f"{PRINTS_AT_START}: let it print nothing there")
    except (EOFError, OSError):
        connection.close()  # so that all that the host has written is here
        reason = connection.lost_because or connection.last_line() or "ended without an answer"
        return Checked(
            host, False, f"{reason}: run cloudbench hosts install, or install pytest-cloudbench {__version__} there"
        )
    if (answer["version"], answer["code"]) != (__version__, digest_code()):
        host_text = f"pytest-cloudbench {answer['version']} with code {answer['code']}"
        own_text = f"this machine {__version__} with {digest_code()}"
        return Checked(
            host, False, f"has {host_text}, and {own_text}: run cloudbench hosts install, or install the same"
        )
    about = connection.description
    memory = f", {about['free_bytes'] / 2**30:.1f} GiB free" if about.get("free_bytes") else ""
    offset_s, bound_ms = offset.offset_ns / 1e9, offset.error_ns / 1e6
    direction = "ahead" if offset_s > 0 else "behind"
    clock = (
        f"clock {abs(offset_s):.3g} s {direction}"
        if abs(offset_s) >= _CLOCK_IS_WRONG_S
        else f"clock right within {bound_ms:.1f} ms"
    )
    cores, agents = format_count(about["cores"], "core"), format_count(host.agents, "agent")
    return Checked(host, True, f"Python {about['python']}, {cores}{memory}, {clock}, {agents}")


def _read_answer(stream: HostStream) -> dict[str, Any]:
    """Return what the probe says. Raises ValueError if it is something else."""
    answer = json.loads(read_line(stream))
    if not isinstance(answer, dict):
        raise ValueError(f"expected a table, not {answer!r}")
    return answer


def _read_clock(stream: HostStream) -> int:
    stream.write(b"?")
    return int(stream.read(_DIGITS))
