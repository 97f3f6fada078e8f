"""How does a sync client cope with a slow, lossy or interrupted link? (A first look at mobile cloud storage services)

``--client`` names the client. It and its server run here, in two network namespaces with a link between them, and every
byte on it is captured. docs/suites/mobile.md explains the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cloudbench import PlannedInterruption, Way, Workload, mean_of_known, recovery_cost, transfer_means

if TYPE_CHECKING:
    from pytest_cloudbench import LabItem, Result

KB, MB = 1000, 1_000_000
SOURCE = "Cui, Lai and Dai, A first look at mobile cloud storage services"

SETS = {
    "1 x 4 MB": (1, 4 * MB),
    "10 x 400 kB": (10, 400 * KB),
    "1 x 1 MB": (1, MB),
    "10 x 1 MB": (10, MB),
    "1 x 10 MB": (1, 10 * MB),
}
FIGURE_5_SETS = ("1 x 4 MB", "10 x 400 kB")
LOSS_SET, LOSS_RTT_MS = "1 x 1 MB", 40

RTT_MS = {"quick": (20, 200), "paper": (0, 50, 100, 200, 300, 400)}
LOSS = {"quick": (0.02,), "paper": (0.0, 0.01, 0.02, 0.05, 0.1)}
FIGURE_4_SETS = {"quick": ("1 x 1 MB",), "paper": ("1 x 1 MB", "1 x 10 MB", "10 x 1 MB")}
HOW = {"quick": ("reset", "black_hole"), "paper": ("reset", "drop", "black_hole")}
BLACK_HOLE_S = {"quick": 1.0, "paper": 10.0}
REPEATS = {"quick": 1, "paper": 5}
TIMEOUT_S = {"quick": 60.0, "paper": 600.0}

FIGURE_4_LINK = Way(delay_ms=10, rate_bit_per_s=20e6)
"""A link with a limited rate, like the paper's wireless one, so that little is in flight when the connection ends."""

FIGURE_2_LINK = Way(delay_ms=10)
FIGURE_2_S = {"quick": 20.0, "paper": 20 * 60.0}
"""Seconds from the end of the start-up. The paper shows 20 minutes from its beginning."""
FIGURE_2_STEPS = 240
"""The most intervals in an entry, each a second or longer."""

METRICS = ("start_up", "completion", "overhead", "tue")
COLUMNS = ("synced", "asked_ms", "delivered_ms", *METRICS, "connections", "cpu_s")
RECOVERY_COLUMNS = ("how_recovered", "recovery", "recovery_overhead", "again_bytes", "repeated_share", "undisturbed_s")
PUBLISHED_START = {"published_start_bytes": 421_470, "published_start_s": 1.53 * 60}
PUBLISHED_START_TEXT = "Dropbox sends 421.47 kB in its first 1.53 min, the others less; then all poll: drawn only"
START_COLUMNS = ("startup_kb", "startup_s", "idle_kb", "idle_s", "connections", "cpu_s")
PUBLISHED_FIGURE_5 = (
    "drawn only: grows with the RTT, faster for many small files; Box is the fastest, Google Drive the slowest"
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize tests with the ``quick`` grid, or with the paper's ranges."""
    grid = metafunc.config.option.cloudbench_grid
    parameters: dict[str, tuple[Sequence[Any], Any]] = {
        "rtt_ms": (RTT_MS[grid], lambda value: f"{value}ms"),
        "loss": (LOSS[grid], lambda value: f"{value:g}"),
        "how": (HOW[grid], str),
        "files": (FIGURE_4_SETS[grid], lambda value: value.replace(" ", "")),
    }
    for name, (values, ids) in parameters.items():
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, values, ids=ids)


def test_figure_2(lab: LabItem, grid: str) -> None:
    """Figure 2: all bytes since the start of the client, while nobody touches its folder."""
    lab.rebuild(FIGURE_2_LINK)
    windows = lab.start_and_idle(FIGURE_2_S[grid])
    if windows is None:
        pytest.skip(f"client {lab.spec}: it was already running, so its start cannot be measured")
    login, idle = windows
    lasted_s = login.duration_s + idle.duration_s
    interval_s = max(1.0, round(lasted_s / FIGURE_2_STEPS, 1))
    combined = replace(login, steps=login.steps + idle.steps)
    cpu_s = None if login.cpu_s is None or idle.cpu_s is None else login.cpu_s + idle.cpu_s
    start_bytes, idle_bytes = login.wire_bytes or 0, idle.wire_bytes or 0  # the lab guarantees that they are known
    result = lab.conclude(
        {"login_traffic": start_bytes, "idle_traffic": 8 * idle_bytes / idle.duration_s},
        [login.sync_delay_s or login.duration_s],
        stats_of="from the start of both halves to the last payload before the client was ready",
        columns=START_COLUMNS,
        extra={
            "startup_kb": start_bytes / 1e3, "startup_s": login.sync_delay_s, "idle_kb": idle_bytes / 1e3,
            "idle_s": idle.duration_s, "lasted_s": lasted_s, "interval_s": interval_s,
            "interval_bytes": combined.every(interval_s), "connections": login.syns + idle.syns, "cpu_s": cpu_s,
        },
        published={"source": f"{SOURCE}, Figure 2", **PUBLISHED_START, "login_traffic": PUBLISHED_START_TEXT},
        doubts=lab.doubts(),
    )  # fmt: skip
    lab.settle([result])


def test_figure_5(lab: LabItem, grid: str, rtt_ms: int) -> None:
    """Figure 5: completion time of one large and of ten smaller files by the round trip time."""
    published = {"source": f"{SOURCE}, Figure 5", "completion": PUBLISHED_FIGURE_5}
    lab.settle(conclude_transfers(lab, grid, Way(delay_ms=rtt_ms / 2), FIGURE_5_SETS, {"rtt_ms": rtt_ms}, published))


def test_loss(lab: LabItem, grid: str, loss: float) -> None:
    """Section "Sync completion time": the same by packet loss, to which the paper gives one sentence."""
    finding = "at 10 percent Google Drive never synchronizes: it sends the same chunk again and again"
    published = {"source": SOURCE, "completion": finding}
    way = Way(delay_ms=LOSS_RTT_MS / 2, loss=loss)
    lab.settle(conclude_transfers(lab, grid, way, (LOSS_SET,), {"loss": loss}, published), must_sync=False)


def conclude_transfers(
    lab: LabItem, grid: str, way: Way, sets: Sequence[str], params: Mapping[str, Any], published: Mapping[str, Any]
) -> list[Result]:  # fmt: skip
    """Transfer the sets one after another on one link, and store an entry for each, up to the first that fails.

    A set that is not transferred is a finding, not a doubt.
    """
    lab.rebuild(way, stream_s=0.0, timeout_s=TIMEOUT_S[grid])
    delivered, results = lab.setting["link"]["delivered"], []
    for name in sets:
        transfers = [transfer.as_dict() for transfer in lab.transfer(Workload(*SETS[name]), REPEATS[grid])]
        numbers = transfer_means(transfers)
        synced = sum(transfer["is_synced"] for transfer in transfers)
        if synced < len(transfers):  # the mean of the others would be too good
            numbers |= dict.fromkeys(METRICS)
        extra = {
            **{key: numbers.pop(key) for key in [*numbers] if key not in METRICS},
            "synced": f"{synced} of {len(transfers)}", "transfers": transfers, "asked_ms": 2 * way.delay_ms,
            "delivered_ms": delivered["rtt_ms"], "delivered_loss_share": delivered["up"]["loss"],
        }  # fmt: skip
        notes = [f"not in sync after all: {transfer['error']}" for transfer in transfers if transfer["error"]]
        result = lab.conclude(
            numbers,
            [transfer["synced_s"] for transfer in transfers if transfer["synced_s"]] or [TIMEOUT_S[grid]],
            stats_of="time from the change until the other side was seen to have it",
            columns=COLUMNS if "rtt_ms" in params else (*COLUMNS, "delivered_loss_share"),
            label=name.replace(" ", ""),
            params={"set": name, **params},
            extra=extra,
            published=published,
            doubts=[*(reason for transfer in transfers for reason in transfer["reasons"]), *lab.doubts()],
            notes=[*notes, *note_setting(lab.setting, transfers)],
        )
        results.append(result)
        if not transfers[-1]["is_synced"]:
            break  # the client is out of sync or has ended
    return results


def note_setting(setting: Mapping[str, Any], transfers: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return remarks about influences on times besides the client, and about unknown quantities."""
    notes = [
        f"TCP here: {setting['congestion_control']}; times differ with other congestion controls, most of all with loss"
    ]
    if any(transfer["energy_j"] is None for transfer in transfers):
        notes.append("energy: unknown, no RAPL counter can be read below /sys/class/powercap")
    return notes


def test_figure_4(lab: LabItem, grid: str, how: Any, files: str) -> None:
    """Figure 4: extra traffic when the connection ends during an upload, and the time until everything has arrived."""
    pairs = run_interrupted_pairs(lab, grid, how, files)
    costs = [recovery_cost(first, second) for first, second in pairs]
    last_cost, doubts = costs[-1], [reason for pair in pairs for transfer in pair for reason in transfer["reasons"]]
    if any(cost["how_recovered"] == "not interrupted" for cost in costs):
        doubts.append("less than half of the content's bytes passed, so nothing was interrupted")
    rounds_s = [second["synced_s"] for _, second in pairs if second["synced_s"]]
    result = lab.conclude(
        {key: mean_of_known([cost[key] for cost in costs]) for key in ("recovery", "recovery_overhead")},
        rounds_s or [TIMEOUT_S[grid]],
        stats_of="time from the change until the other side was seen to have it, with the interruption",
        columns=RECOVERY_COLUMNS,
        params={"set": files, "how": how},
        extra={
            "how_recovered": " or ".join(dict.fromkeys(cost["how_recovered"] for cost in costs)),
            "again_bytes": mean_of_known([cost["again_bytes"] for cost in costs]),
            "repeated_share": mean_of_known([cost["repeated_share"] for cost in costs]),
            "run_again": any(second["interrupted"].get("run_again") for _, second in pairs),
            "passed_bytes": last_cost["passed_bytes"], "interrupted_at_byte": last_cost["interrupted_at_byte"],
            "undisturbed_s": mean_of_known([first["completion_s"] for first, _ in pairs]),
            "pairs": pairs,
        },
        published={
            "source": f"{SOURCE}, Figure 4",
            "recovery_overhead": "drawn only: Box sends the whole file again, Google Drive (260 kB chunks) the least; "
            "for 10 x 1 MB all send little again",
        },
        doubts=[*doubts, *lab.doubts()],
        notes=[f"{how}: {second['error']}" for _, second in pairs if second["error"]],
    )  # fmt: skip
    lab.settle([result])


def run_interrupted_pairs(lab: LabItem, grid: str, how: Any, files: str) -> list[list[dict[str, Any]]]:
    """Run pairs of an undisturbed transfer and one interrupted after half of its content, and return both of each."""
    workload, pairs = Workload(*SETS[files]), []
    interruption = PlannedInterruption(
        how, workload.total_bytes // 2, BLACK_HOLE_S[grid] if how == "black_hole" else None
    )
    lab.rebuild(FIGURE_4_LINK, stream_s=1.0, interruptible=True, timeout_s=TIMEOUT_S[grid])
    for _ in range(REPEATS[grid]):
        first = lab.transfer(workload)[0]
        second = lab.transfer(workload, interruption=interruption)[0] if first.is_synced else first
        pairs.append([first.as_dict(), second.as_dict()])
        if not second.is_synced:
            break
    return pairs
