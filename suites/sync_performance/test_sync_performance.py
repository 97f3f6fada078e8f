"""How quickly does a sync client upload, and with how much traffic? (IMC 2013, section 5)

``--client`` names the client. It and its server run here, in two network namespaces with a link between them, and every
byte on it is captured. ``external`` is captured where it runs. docs/suites/sync_performance.md explains the numbers.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_cloudbench import Workload, transfer_doubts, transfer_means

if TYPE_CHECKING:
    from pytest_cloudbench import LabItem

KB, MB = 1000, 1_000_000
"""In the paper 1 kB is 1000 bytes: 100 files of 10 kB in 42 s are "189 kb/s"."""

SETS = {"1 x 100 kB": (1, 100 * KB), "1 x 1 MB": (1, MB), "10 x 100 kB": (10, 100 * KB), "100 x 10 kB": (100, 10 * KB)}
"""The four sets of Figure 6. The paper measured binary files, which it shows, and text."""

WORKLOADS = {
    "quick": (*((name, "binary") for name in SETS), ("1 x 1 MB", "text")),
    "paper": tuple((name, kind) for kind in ("binary", "text") for name in SETS),
}
REPEATS = {"quick": 2, "paper": 24}
TIMEOUT_S = {"quick": 60.0, "paper": 300.0}

METRICS = ("start_up", "completion", "overhead", "tue")
PUBLISHED = tomllib.loads(Path(__file__).with_name("published.toml").read_text(encoding="utf-8"))
COLUMNS = ("repeats", *METRICS, "connections", "contacted_servers", "cpu_s")


def test_figure_6(lab: LabItem, grid: str) -> None:
    """Figure 6 and sections 5.1 to 5.3: start-up, completion and protocol overhead of eight workloads."""
    # The lab's own link: a round trip of 20 ms, near the 15 ms that the paper names for the nearest service.
    lab.rebuild(stream_s=0.0, timeout_s=TIMEOUT_S[grid])
    results, transfers = [], list[dict[str, Any]]()
    for name, kind in WORKLOADS[grid]:
        if not transfers or transfers[-1]["is_synced"]:
            transfers = [entry.as_dict() for entry in lab.transfer(Workload(*SETS[name], kind), REPEATS[grid])]
        else:  # the client is out of sync: its last result stands for the other sets, and says why
            transfers = transfers[-1:]
        numbers = transfer_means(transfers)
        quoted = [entry for entry in PUBLISHED["quoted"] if entry["set"] in (name, "any") and kind == "binary"]
        extra = {
            **{key: numbers.pop(key) for key in [*numbers] if key not in METRICS},
            "repeats": len(transfers), "transfers": transfers,
        }  # fmt: skip
        result = lab.conclude(
            numbers,
            [entry["synced_s"] for entry in transfers if entry["synced_s"]] or [TIMEOUT_S[grid]],
            stats_of="time from the change until the other side was seen to have it",
            columns=COLUMNS,
            label=f"{name.replace(' ', '')}-{kind}",
            params={"set": name, "kind": kind},
            extra=extra,
            published={"source": PUBLISHED["source"], "quoted": quoted},
            doubts=[*transfer_doubts(transfers, REPEATS[grid]), *lab.doubts()],
            notes=[f"IMC 2013, {quote['set']}, {quote['quantity']}: {quote['said']}" for quote in quoted],
        )
        results.append(result)
    lab.settle(results)
