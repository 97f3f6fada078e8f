"""How long does it take until a second device has a new file, intact, and what does that cost on both sides?

``--client`` names the client. Both of its halves run here, on one clock, in two network namespaces with a link between
them. docs/suites/propagation.md explains the numbers.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cloudbench import Way, Workload, mean_of_known

if TYPE_CHECKING:
    from pytest_cloudbench import LabItem

KB, MB = 1000, 1_000_000
SETS = {
    "1 x 1 kB": (1, KB), "1 x 100 kB": (1, 100 * KB), "1 x 1 MB": (1, MB), "1 x 10 MB": (1, 10 * MB),
    "100 x 10 kB": (100, 10 * KB), "50000 x 1 kB": (50_000, KB),
}  # fmt: skip
SIZES = {"quick": ("1 x 1 kB", "1 x 1 MB", "1 x 10 MB", "100 x 10 kB"), "paper": tuple(SETS)}
REPEATS = {"quick": 2, "paper": 10}
ONCE = "50000 x 1 kB"
"""The set that is too large to repeat. Syncthing's own benchmark of it took 173 s, on another machine and link."""

SYNCTHINGS_S = 173.0
TIMEOUT_S = {"quick": 60.0, "paper": 900.0}
PHASE_S = 2.0
"""The most seconds of the random delay before each set, without which all sets would meet the client's period at the
same point."""
LINK = Way(delay_ms=10)
DEVICES = tomllib.loads(Path(__file__).with_name("devices.toml").read_text(encoding="utf-8"))
COLUMNS = (
    "arrived", "uncertain_s", "tue", "cpu_client_s", "cpu_other_s", "client_mb", "other_mb", "other_bytes",
    "other_side",
)  # fmt: skip


def test_propagation(lab: LabItem, grid: str) -> None:
    """The time from the appearance of files until the other device has all of them, byte for byte."""
    name = lab.facts.over or lab.spec.partition("?")[0]
    device = DEVICES.get(name, {"reason": "suites/propagation/devices.toml does not name its other half"})
    if "reason" in device:
        pytest.skip(f"{name} has no second device: {device['reason']}")
    second = device.get("second", {})
    lab.rebuild(LINK, stream_s=0.0, timeout_s=TIMEOUT_S[grid], options=second.get("options", {}))
    receiver = lab.client.receiver()
    assert receiver is not None, "devices.toml skips clients whose other side is not here"
    if receiver.side == "device":
        device = second
    results = []
    for set_name in SIZES[grid]:
        arrivals = repeat_set(lab, set_name, grid)
        arrived = [arrival for arrival in arrivals if not arrival["error"]]
        high_times_s = [arrival["high_s"] for arrival in arrived]
        # A file at a server is not yet on another device, so this is another quantity with another name.
        metric = "reaches_server_s" if device["device"] == "server" else "propagation"
        published = {"source": "syncthing's own benchmark: 50,000 files", "propagation": SYNCTHINGS_S}
        result = lab.conclude(
            {metric: mean_of_known(high_times_s), "tue": mean_tue(arrived)},
            high_times_s or [TIMEOUT_S[grid]],
            stats_of="time from the change until the first look that found all files intact at the other side",
            columns=(metric, *COLUMNS),
            label=set_name.replace(" ", ""),
            params={"set": set_name},
            extra={**average_costs(arrived, receiver.side), "arrived": f"{len(arrived)} of {len(arrivals)}",
                   "arrivals": arrivals, "other_side": device["device"]},
            published=published if set_name == ONCE and metric == "propagation" else None,
            doubts=[*doubt_missing(len(arrived), count_repeats(set_name, grid)), *lab.doubts()],
            notes=[f"other side: {device['what']}", *(arrival["error"] for arrival in arrivals if arrival["error"])],
        )  # fmt: skip
        results.append(result)
        if arrivals[-1]["error"]:
            break
    lab.settle(results)


def count_repeats(name: str, grid: str) -> int:
    """Return how often a set is sent."""
    return 1 if name == ONCE else REPEATS[grid]


def doubt_missing(arrived: int, repeats: int) -> list[str]:
    """Return a doubt about means if sets are missing: those that arrived may be the quick ones."""
    return [f"{repeats - arrived} of {repeats} sets did not arrive"] if arrived < repeats else []


def repeat_set(lab: LabItem, name: str, grid: str) -> list[dict[str, Any]]:
    """Repeat a set up to the first time that it does not arrive, and return all arrivals as plain data."""
    arrivals: list[dict[str, Any]] = []
    for _ in range(count_repeats(name, grid)):
        arrivals.append(lab.propagate(Workload(*SETS[name]), phase_s=PHASE_S).as_dict())
        if arrivals[-1]["error"]:
            break
    return arrivals


def average_costs(arrived: Sequence[dict[str, Any]], other: str) -> dict[str, Any]:
    """Return the mean costs for the table. ``other`` names the processes of the receiving side."""

    def divide_known(value: float | None, unit: float) -> float | None:
        return None if value is None else value / unit

    means: dict[str, Any] = {
        "uncertain_s": max((arrival["high_s"] - arrival["low_s"] for arrival in arrived), default=None)
    }
    for name, side in {"client": "client", "other": other, "server": "server"}.items():
        means[f"cpu_{name}_s"] = mean_of_known([arrival["cpu_s"][side] for arrival in arrived])
        means[f"{name}_mb"] = divide_known(mean_of_known([arrival["memory_bytes"][side] for arrival in arrived]), MB)
    for name in ("up_bytes", "down_bytes", "other_up_bytes", "other_down_bytes"):
        means[name] = mean_of_known([arrival[name] for arrival in arrived])
    other_bytes = mean_of_known([count_other_bytes(arrival) for arrival in arrived])
    return means | {"other_bytes": None if other_bytes is None else round(other_bytes)}


def count_other_bytes(arrival: dict[str, Any]) -> int | None:
    """Return the bytes that the other side received and sent, or None if they are unknown."""
    up, down = arrival["other_up_bytes"], arrival["other_down_bytes"]
    return None if up is None or down is None else up + down


def mean_tue(arrived: Sequence[dict[str, Any]]) -> float | None:
    """Return the mean of bytes on the link, both ways, over bytes of content."""
    return mean_of_known(
        [(arrival["up_bytes"] + arrival["down_bytes"]) / arrival["content_bytes"] for arrival in arrived]
    )
