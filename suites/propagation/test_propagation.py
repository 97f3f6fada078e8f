"""How long until a second device has a new file, intact, and what does that cost on both sides?

``--client`` names the client. Both of its halves run here, in two network namespaces with a link between them:
one clock. docs/suites/propagation.md says what the numbers mean.
"""

from __future__ import annotations

import threading
import tomllib
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cloudbench.link import Link, Way
from pytest_cloudbench.systems.network import link_doubts, measure_link
from pytest_cloudbench.systems.propagation import propagate
from pytest_cloudbench.systems.repeats import mean_of
from pytest_cloudbench.systems.workloads import Workload

if TYPE_CHECKING:
    from pytest_cloudbench.clients.base import SyncClient
    from pytest_cloudbench.fleet.clients import ClientRun, Place

KB, MB = 1000, 1_000_000
SETS = {
    "1 x 1 kB": (1, KB), "1 x 100 kB": (1, 100 * KB), "1 x 1 MB": (1, MB), "1 x 10 MB": (1, 10 * MB),
    "100 x 10 kB": (100, 10 * KB), "50000 x 1 kB": (50_000, KB),
}  # fmt: skip
SIZES = {"quick": ("1 x 1 kB", "1 x 1 MB", "1 x 10 MB", "100 x 10 kB"), "paper": tuple(SETS)}
REPEATS = {"quick": 2, "paper": 10}
ONCE = "50000 x 1 kB"
"""Too large to repeat. Syncthing's own benchmark of 50,000 files took 173 s, on another machine and link."""

SYNCTHINGS_S = 173.0
TIMEOUT_S = {"quick": 60.0, "paper": 900.0}
PHASE_S = 2.0
"""Sets appear after a random time of at most so much: else each would come at the same place in a client's period."""
LINK = Way(delay_ms=10)
DEVICES = tomllib.loads(Path(__file__).with_name("devices.toml").read_text(encoding="utf-8"))
COLUMNS = (
    "arrived", "uncertain_s", "tue", "cpu_client_s", "cpu_other_s", "client_mb", "other_mb", "other_bytes",
    "other_side",
)  # fmt: skip


def test_propagation(client_run: ClientRun, grid: str) -> None:
    """The time from the appearance of files until the other device has all of them, equal byte for byte."""
    name = client_run.spec.partition("?")[0]
    device = DEVICES.get(name, {"reason": "suites/propagation/devices.toml does not say what its other half is"})
    if "reason" in device:
        pytest.skip(f"{name} has no second device: {device['reason']}")
    second = device.get("second", {})
    done = client_run.measure(lambda client, place: measure(client, place, grid), **second.get("options", {}))
    if done["side"] == "device":
        device = second
    added = [f"{name}={value} was added to the client's options" for name, value in done["added_options"].items()]
    results = []
    for each, arrivals in zip(SIZES[grid], done["arrivals"], strict=False):
        arrived = [one for one in arrivals if not one["error"]]
        highs = [one["high_s"] for one in arrived]
        # At a server it is not yet on another device: that is another quantity, under another name.
        name_of = "reaches_server_s" if device["device"] == "server" else "propagation"
        published = {"source": "syncthing's own benchmark: 50,000 files", "propagation": SYNCTHINGS_S}
        result = client_run.conclude(
            {name_of: mean_of(highs), "tue": tue(arrived)},
            highs or [TIMEOUT_S[grid]],
            stats_of="time from the change until the first look that found all files intact at the other side",
            columns=(name_of, *COLUMNS),
            label=each.replace(" ", ""),
            params={"set": each},
            facts={**numbers(arrived, done["side"]), "arrived": f"{len(arrived)} of {len(arrivals)}",
                   "arrivals": arrivals, "other_side": device["device"], "setting": done["setting"]},
            published=published if each == ONCE and name_of == "propagation" else None,
            doubts=done["doubts"],
            notes=[f"other side: {device['what']}", *added, *(one["error"] for one in arrivals if one["error"])],
        )  # fmt: skip
        results.append(result)
    client_run.settle(results, [each["error"] for arrivals in done["arrivals"] for each in arrivals])


def numbers(arrived: Sequence[dict[str, Any]], other: str) -> dict[str, Any]:
    """Means of everything but the time itself, as the table shows them; ``other`` is whose processes receive."""

    def over(value: float | None, unit: float) -> float | None:
        return None if value is None else value / unit

    found: dict[str, Any] = {"uncertain_s": max((one["high_s"] - one["low_s"] for one in arrived), default=None)}
    for name, side in {"client": "client", "other": other, "server": "server"}.items():
        found[f"cpu_{name}_s"] = mean_of([one["cpu_s"][side] for one in arrived])
        found[f"{name}_mb"] = over(mean_of([one["memory_bytes"][side] for one in arrived]), MB)
    for name in ("up_bytes", "down_bytes", "other_up_bytes", "other_down_bytes"):
        found[name] = mean_of([one[name] for one in arrived])
    other_bytes = mean_of([moved(one) for one in arrived])
    return found | {"other_bytes": None if other_bytes is None else round(other_bytes)}


def moved(arrival: dict[str, Any]) -> int | None:
    """Bytes that the other side received and sent."""
    up, down = arrival["other_up_bytes"], arrival["other_down_bytes"]
    return None if up is None or down is None else up + down


def tue(arrived: Sequence[dict[str, Any]]) -> float | None:
    """Bytes that the link carried, both ways, over bytes of content."""
    return mean_of([(one["up_bytes"] + one["down_bytes"]) / one["content_bytes"] for one in arrived])


def measure(client: SyncClient, place: Place, grid: str) -> dict[str, Any]:
    """All sets, one after another on one link, as plain data; it ends with the first that does not arrive."""
    arrivals: list[list[dict[str, Any]]] = []
    with Link(LINK) as link:
        measure_link(link, stream_s=0.0)
        try:
            client.prepare(
                place.workdir / "client", server_address=link.address("server"), client_address=link.address("client"),
                runner=link,
            )  # fmt: skip
            client.start()
            receiver = client.receiver()
            assert receiver is not None, "devices.toml skips clients whose other side is not here"
            for each in SIZES[grid]:
                if arrivals and arrivals[-1][-1]["error"]:
                    break
                arrivals.append([])
                for number in range(1 if each == ONCE else REPEATS[grid]):
                    name, seed = f"{each.replace(' ', '')}-{number}", f"{place.seed}/{each}/{number}"
                    threading.Event().wait(Random(seed).uniform(0, PHASE_S))
                    arrival = propagate(
                        client, receiver, link, Workload(*SETS[each]),
                        stage=place.workdir / "stage", name=name, seed=seed, timeout_s=TIMEOUT_S[grid],
                    )  # fmt: skip
                    arrivals[-1].append(arrival.as_dict())
                    if arrival.error:
                        break
            versions = dict(client.versions())
        finally:
            client.stop()
        return {
            "arrivals": arrivals, "side": receiver.side, "client_versions": versions, "doubts": link_doubts(link),
            "setting": {"client": client.facts.name, "client_versions": versions, "link": link.record()},
        }  # fmt: skip
