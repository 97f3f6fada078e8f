"""How quickly does a sync client upload, and with how much traffic? (IMC 2013, section 5)

``--client`` names the client. It and its server run here, in two network namespaces with a link between them, and every
byte on it is captured; ``external`` is captured where it runs. docs/suites/sync_performance.md says what the numbers
mean.
"""

from __future__ import annotations

import tomllib
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.link import Way
from pytest_cloudbench.systems.network import network_of
from pytest_cloudbench.systems.repeats import doubts_of, means
from pytest_cloudbench.systems.transfers import Transfers
from pytest_cloudbench.systems.workloads import Workload

if TYPE_CHECKING:
    from pytest_cloudbench.clients.base import SyncClient
    from pytest_cloudbench.fleet.clients import ClientRun, Place

KB, MB = 1000, 1_000_000
"""In the paper 1 kB is 1000 bytes: 100 files of 10 kB in 42 s are "189 kb/s"."""

SETS = {"1 x 100 kB": (1, 100 * KB), "1 x 1 MB": (1, MB), "10 x 100 kB": (10, 100 * KB), "100 x 10 kB": (100, 10 * KB)}
"""Figure 6: four sets, each with binary files (which are shown) and with text."""

WORKLOADS = {
    "quick": (*((name, "binary") for name in SETS), ("1 x 1 MB", "text")),
    "paper": tuple((name, kind) for kind in ("binary", "text") for name in SETS),
}
REPEATS = {"quick": 2, "paper": 24}
TIMEOUT_S = {"quick": 60.0, "paper": 300.0}

LINK = Way(delay_ms=10)
"""A round trip of 20 ms, near the 15 ms that the paper names for the nearest service; no other bound."""

METRICS = ("start_up", "completion", "overhead", "tue")
PUBLISHED = tomllib.loads(Path(__file__).with_name("published.toml").read_text(encoding="utf-8"))
COLUMNS = ("repeats", *METRICS, "connections", "cpu_s")


def test_figure_6(client_run: ClientRun, grid: str) -> None:
    """Figure 6 and sections 5.1 to 5.3: start-up, completion and protocol overhead of eight workloads."""
    done = client_run.measure(lambda client, place: measure(client, place, grid))
    results = []
    for (name, kind), transfers in zip(WORKLOADS[grid], done["transfers"], strict=True):
        numbers = means(transfers)
        quoted = [each for each in PUBLISHED["quoted"] if each["set"] in (name, "any") and kind == "binary"]
        facts = {
            **{key: numbers.pop(key) for key in [*numbers] if key not in METRICS},
            "repeats": len(transfers), "transfers": transfers, "setting": done["setting"],
        }  # fmt: skip
        result = client_run.conclude(
            numbers,
            [each["synced_s"] for each in transfers if each["synced_s"]] or [TIMEOUT_S[grid]],
            stats_of="time from the change until the other side was seen to have it",
            columns=COLUMNS,
            label=f"{name.replace(' ', '')}-{kind}",
            params={"set": name, "kind": kind},
            facts=facts,
            published={"source": PUBLISHED["source"], "quoted": quoted},
            doubts=[*doubts_of(transfers, REPEATS[grid]), *done["doubts"]],
            notes=[*done["notes"], *(f"IMC 2013, {one['set']}, {one['quantity']}: {one['said']}" for one in quoted)],
        )
        results.append(result)
    client_run.settle(results, [each["error"] for transfers in done["transfers"] for each in transfers])


def measure(client: SyncClient, place: Place, grid: str) -> dict[str, Any]:
    """All workloads, one after another on one link, as plain data."""
    with Transfers(
        client,
        place.workdir,
        captures=place.captures,
        seed=place.seed,
        timeout_s=TIMEOUT_S[grid],
        network=network_of(client, LINK, stream_s=0.0, seed=zlib.crc32(place.seed.encode())),
    ) as transfers:
        found: list[list[dict[str, Any]]] = []
        for name, kind in WORKLOADS[grid]:
            is_lost = bool(found) and not found[-1][-1]["is_synced"]
            seen = [] if is_lost else transfers.run(Workload(*SETS[name], kind), REPEATS[grid])
            found.append([each.as_dict() for each in seen] or [found[-1][-1]])
        return {
            "transfers": found, "setting": transfers.record(), "doubts": transfers.doubts(),
            "notes": transfers.notes(), "client_versions": dict(transfers.versions),
        }  # fmt: skip
