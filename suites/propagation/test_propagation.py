"""How long until a second device has a new file, intact, and what does that cost on both sides?

``--client`` names the client. Both of its halves run here, on one clock, in two network namespaces with a link between
them. docs/suites/propagation.md says what the numbers mean.
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
"""Too large to repeat. Syncthing's own benchmark of 50,000 files took 173 s, on another machine and link."""

SYNCTHINGS_S = 173.0
TIMEOUT_S = {"quick": 60.0, "paper": 900.0}
PHASE_S = 2.0
"""Each set appears after a random delay of at most this many seconds; otherwise all would meet the client's period at
the same point."""
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
    for each in SIZES[grid]:
        arrivals = repeated(lab, each, grid)
        arrived = [one for one in arrivals if not one["error"]]
        highs = [one["high_s"] for one in arrived]
        # A file at a server is not yet on another device: that is a different quantity, with a different name.
        name_of = "reaches_server_s" if device["device"] == "server" else "propagation"
        published = {"source": "syncthing's own benchmark: 50,000 files", "propagation": SYNCTHINGS_S}
        result = lab.conclude(
            {name_of: mean_of_known(highs), "tue": tue(arrived)},
            highs or [TIMEOUT_S[grid]],
            stats_of="time from the change until the first look that found all files intact at the other side",
            columns=(name_of, *COLUMNS),
            label=each.replace(" ", ""),
            params={"set": each},
            extra={**numbers(arrived, receiver.side), "arrived": f"{len(arrived)} of {len(arrivals)}",
                   "arrivals": arrivals, "other_side": device["device"]},
            published=published if each == ONCE and name_of == "propagation" else None,
            doubts=lab.doubts(),
            notes=[f"other side: {device['what']}", *(one["error"] for one in arrivals if one["error"])],
        )  # fmt: skip
        results.append(result)
        if arrivals[-1]["error"]:
            break
    lab.settle(results)


def repeated(lab: LabItem, name: str, grid: str) -> list[dict[str, Any]]:
    """Repeats a set as often as asked, up to the first that does not arrive; as plain data."""
    found: list[dict[str, Any]] = []
    for _ in range(1 if name == ONCE else REPEATS[grid]):
        found.append(lab.propagate(Workload(*SETS[name]), phase_s=PHASE_S).as_dict())
        if found[-1]["error"]:
            break
    return found


def numbers(arrived: Sequence[dict[str, Any]], other: str) -> dict[str, Any]:
    """Means of everything but the time itself, for the table; ``other`` names the receiving side's processes."""

    def over(value: float | None, unit: float) -> float | None:
        return None if value is None else value / unit

    found: dict[str, Any] = {"uncertain_s": max((one["high_s"] - one["low_s"] for one in arrived), default=None)}
    for name, side in {"client": "client", "other": other, "server": "server"}.items():
        found[f"cpu_{name}_s"] = mean_of_known([one["cpu_s"][side] for one in arrived])
        found[f"{name}_mb"] = over(mean_of_known([one["memory_bytes"][side] for one in arrived]), MB)
    for name in ("up_bytes", "down_bytes", "other_up_bytes", "other_down_bytes"):
        found[name] = mean_of_known([one[name] for one in arrived])
    other_bytes = mean_of_known([moved(one) for one in arrived])
    return found | {"other_bytes": None if other_bytes is None else round(other_bytes)}


def moved(arrival: dict[str, Any]) -> int | None:
    """Bytes that the other side received and sent."""
    up, down = arrival["other_up_bytes"], arrival["other_down_bytes"]
    return None if up is None or down is None else up + down


def tue(arrived: Sequence[dict[str, Any]]) -> float | None:
    """Bytes on the link, both ways, over bytes of content."""
    return mean_of_known([(one["up_bytes"] + one["down_bytes"]) / one["content_bytes"] for one in arrived])
