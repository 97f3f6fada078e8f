"""Who runs a provider's servers, where are they, and does content come from where connections end? (IMC 2013, 3.2)

A file is written and read back several times, and the servers are those that the driver is connected to. They are
located as ``cloudbench locate`` does. docs/suites/datacenters.md says what the answers mean.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from pytest_cloudbench import Inquiry, RandomContent, inquire, judge_layer, list_peers, now_ns

from .places import SOURCE, describe, locate, located_share

if TYPE_CHECKING:
    import pytest

    from pytest_cloudbench import Experiment, Payloads

READS = {"quick": 8, "paper": 40}
HTTPS_PORT = 443
FILE_BYTES = 1000


def test_provider(experiment: Experiment, payloads: Payloads, grid: str, pytestconfig: pytest.Config) -> None:
    """The servers of one provider."""
    locate({}, pytestconfig, HTTPS_PORT)  # refuses an unknown place before anything is measured

    def ask(inquiry: Inquiry) -> dict[str, Any]:
        first_bytes_s = [read_fresh_file(inquiry, number) for number in range(READS[grid])]
        servers = list_servers(inquiry)
        located = locate(
            {address: [address] for address, _ in servers}, pytestconfig, servers[0][1] if servers else HTTPS_PORT
        )
        return {
            "first_bytes_s": first_bytes_s, **describe(located), "located_share": located_share(located),
            "rtts_ms": located.rtts_ms, "notes": located.notes,
        }  # fmt: skip

    conclude(experiment, inquire(experiment, payloads.random(FILE_BYTES), ask))


def read_fresh_file(inquiry: Inquiry, number: int) -> float:
    """Write a new file, and return the seconds from the start of reading it to its first byte.

    No edge can have a copy of what nobody has read.
    """
    path = f"{inquiry.folder}/fresh-{number}"
    inquiry.driver.put(path, RandomContent(f"{inquiry.seed}/{number}", FILE_BYTES))
    began_ns = now_ns()
    pieces = inquiry.driver.get(path)
    next(pieces)
    first_s = (now_ns() - began_ns) / 1e9
    for _ in pieces:  # the connection is kept only if all of it is read
        pass
    return first_s


def list_servers(inquiry: Inquiry) -> list[tuple[str, int]]:
    """Return address and port of a local service's servers, or else of all servers with connections to this process."""
    peers = list_peers()
    if inquiry.endpoint is not None:
        ports = {port for _, port in inquiry.endpoint.addresses}
        return [(address, port) for address, port in peers if port in ports]
    return [(address, port) for address, port in peers if not ip_address(address).is_loopback]


def conclude(experiment: Experiment, answer: dict[str, Any]) -> None:
    """Store an entry about the servers that were located."""
    rtts_ms = [*answer.pop("rtts_ms").values()]
    rtt_ms, first_bytes_s = min(rtts_ms, default=None), answer.pop("first_bytes_s")
    published = {server["layer"] for server in answer["places"]}
    layer, why = judge_layer(
        rtt_ms or 0.0, [1000 * first_s for first_s in first_bytes_s] if rtt_ms else [],
        "edge" if published == {"edge"} else "storage" if published == {"storage"} else "unknown",
    )  # fmt: skip
    behind_s = None if rtt_ms is None else max(0.0, min(first_bytes_s) - rtt_ms / 1000)
    notes = answer.pop("notes")
    if "location" in answer:
        answer["location"] = {**answer["location"], "layer": layer}
    experiment.conclude(
        {
            "server_rtt": None if rtt_ms is None else rtt_ms / 1000, "first_byte_behind": behind_s,
            "located_share": answer.pop("located_share"),
        },
        first_bytes_s,
        stats_of="time to the first byte of a file that nobody has read before",
        columns=("operator", "place", "round_trip_ms", "layer"),
        extra={
            **answer, "round_trip_ms": rtt_ms, "contacted_servers": len(answer["places"]), "layer": layer,
            "layer_known_by": why,
        },
        published={"source": SOURCE, "locations": answer["imc_2013"]},
        notes=notes,
    ).check()  # fmt: skip
