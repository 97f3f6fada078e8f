"""Round trips from other hosts: a Python there is enough, and nothing of this package has to be installed."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from pytest_cloudbench.fleet.hosts.connection import HostConnection, read_line
from pytest_cloudbench.fleet.hosts.table import Host
from pytest_cloudbench.model import FleetError
from pytest_cloudbench.net.locate import rtt


def measure_from_hosts(
    hosts: Sequence[Host], request: Mapping[str, Any], patience_s: float
) -> list[tuple[dict[str, Any], str]]:
    """Send a request of ``net.locate.rtt`` to all hosts at the same time.

    Returns a pair for each host: its answer and an empty text, or an empty answer and why there is none.
    """
    if not hosts:
        return []
    with ThreadPoolExecutor(len(hosts)) as pool:
        return [*pool.map(partial(_measure, request=request, patience_s=patience_s), hosts)]


def _measure(host: Host, request: Mapping[str, Any], patience_s: float) -> tuple[dict[str, Any], str]:
    connection = HostConnection(host, patience_s, lambda connection: None)
    connection.open()
    try:
        connection.wait(patience_s)
        stream = connection.add_stream(1, None)
        code = f"{inspect.getsource(rtt)}\nmain()\n"
        connection.start(stream, code)
        stream.write(json.dumps(request).encode() + b"\n")
        return dict(json.loads(read_line(stream))), ""
    except FleetError:
        return {}, connection.lost_because
    except (EOFError, OSError, ValueError):
        connection.close()  # so that all that the host has written is here
        return {}, connection.lost_because or connection.last_line() or "it ended without an answer"
    finally:
        connection.close()
