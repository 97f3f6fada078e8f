"""How does a sync client cope with a slow, lossy or interrupted link? (A first look at mobile cloud storage services)

``--client`` names the client. It and its server run here, in two network namespaces with a link between them, and every
byte on it is captured. docs/suites/mobile.md says what the numbers mean.
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
"""Limited in rate, so that little is in flight when the connection ends: the paper measured on a wireless network."""

FIGURE_2_LINK = Way(delay_ms=10)
FIGURE_2_S = {"quick": 20.0, "paper": 20 * 60.0}
"""Counted from the end of the start-up; the paper shows 20 minutes from its beginning."""
FIGURE_2_STEPS = 240
"""The entry keeps at most this many intervals, each a second or longer."""

METRICS = ("start_up", "completion", "overhead", "tue")
COLUMNS = ("synced", "asked_ms", "delivered_ms", *METRICS, "connections", "cpu_s")
RECOVERY_COLUMNS = ("how_recovered", "recovery", "recovery_overhead", "again_bytes", "repeated_share", "undisturbed_s")
STARTED = {"published_start_bytes": 421_470, "published_start_s": 1.53 * 60}
STARTED_DRAWN = "Dropbox sends 421.47 kB in its first 1.53 min, the others less; then all poll: drawn only"
START_COLUMNS = ("startup_kb", "startup_s", "idle_kb", "idle_s", "connections", "cpu_s")
DRAWN = "drawn only: grows with the RTT, faster for many small files; Box is the fastest, Google Drive the slowest"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Grids: ``quick``, or the paper's ranges."""
    grid = metafunc.config.option.cloudbench_grid
    given: dict[str, tuple[Sequence[Any], Any]] = {
        "rtt_ms": (RTT_MS[grid], lambda value: f"{value}ms"),
        "loss": (LOSS[grid], lambda value: f"{value:g}"),
        "how": (HOW[grid], str),
        "files": (FIGURE_4_SETS[grid], lambda value: value.replace(" ", "")),
    }
    for name, (values, ids) in given.items():
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, values, ids=ids)


def test_figure_2(lab: LabItem, grid: str) -> None:
    """Figure 2: all bytes since the start of the client, while nobody touches its folder."""
    lab.rebuild(FIGURE_2_LINK)
    seen = lab.start_and_idle(FIGURE_2_S[grid])
    if seen is None:
        pytest.skip(f"client {lab.spec}: it was already running, so its start cannot be measured")
    login, idle = seen
    lasted_s = login.duration_s + idle.duration_s
    interval_s = max(1.0, round(lasted_s / FIGURE_2_STEPS, 1))
    both = replace(login, steps=login.steps + idle.steps)
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
            "interval_bytes": both.every(interval_s), "connections": login.syns + idle.syns, "cpu_s": cpu_s,
        },
        published={"source": f"{SOURCE}, Figure 2", **STARTED, "login_traffic": STARTED_DRAWN},
        doubts=lab.doubts(),
    )  # fmt: skip
    lab.settle([result])


def test_figure_5(lab: LabItem, grid: str, rtt_ms: int) -> None:
    """Figure 5: completion time of one large and of ten smaller files by the round trip time."""
    published = {"source": f"{SOURCE}, Figure 5", "completion": DRAWN}
    lab.settle(transferred(lab, grid, Way(delay_ms=rtt_ms / 2), FIGURE_5_SETS, {"rtt_ms": rtt_ms}, published))


def test_loss(lab: LabItem, grid: str, loss: float) -> None:
    """Section "Sync completion time": the same by packet loss, to which the paper gives one sentence."""
    said = "at 10 percent Google Drive never synchronizes: it sends the same chunk again and again"
    published = {"source": SOURCE, "completion": said}
    way = Way(delay_ms=LOSS_RTT_MS / 2, loss=loss)
    lab.settle(transferred(lab, grid, way, (LOSS_SET,), {"loss": loss}, published), must_sync=False)


def transferred(
    lab: LabItem, grid: str, way: Way, sets: Sequence[str], params: Mapping[str, Any], published: Mapping[str, Any]
) -> list[Result]:  # fmt: skip
    """Adds an entry for each set, one after another on one link, up to the first that is not transferred.

    A set that is not transferred is a finding, not a doubt.
    """
    lab.rebuild(way, stream_s=0.0, timeout_s=TIMEOUT_S[grid])
    delivered, results = lab.setting["link"]["delivered"], []
    for name in sets:
        transfers = [each.as_dict() for each in lab.transfer(Workload(*SETS[name]), REPEATS[grid])]
        numbers = transfer_means(transfers)
        ended = sum(each["is_synced"] for each in transfers)
        extra = {
            **{key: numbers.pop(key) for key in [*numbers] if key not in METRICS},
            "synced": f"{ended} of {len(transfers)}", "transfers": transfers, "asked_ms": 2 * way.delay_ms,
            "delivered_ms": delivered["rtt_ms"], "delivered_loss_share": delivered["up"]["loss"],
        }  # fmt: skip
        notes = [f"not in sync after all: {each['error']}" for each in transfers if each["error"]]
        result = lab.conclude(
            numbers,
            [each["synced_s"] for each in transfers if each["synced_s"]] or [TIMEOUT_S[grid]],
            stats_of="time from the change until the other side was seen to have it",
            columns=COLUMNS if "rtt_ms" in params else (*COLUMNS, "delivered_loss_share"),
            label=name.replace(" ", ""),
            params={"set": name, **params},
            extra=extra,
            published=published,
            doubts=[*(reason for each in transfers for reason in each["reasons"]), *lab.doubts()],
            notes=[*notes, *setting_notes(lab.setting, transfers)],
        )
        results.append(result)
        if not transfers[-1]["is_synced"]:
            break  # it is out of sync, or has ended
    return results


def setting_notes(setting: Mapping[str, Any], transfers: Sequence[Mapping[str, Any]]) -> list[str]:
    """Influences on times here besides the client, and unknown quantities."""
    notes = [
        f"TCP here: {setting['congestion_control']}; times differ with other congestion controls, most of all with loss"
    ]
    if any(each["energy_j"] is None for each in transfers):
        notes.append("energy: unknown, no RAPL counter can be read below /sys/class/powercap")
    return notes


def test_figure_4(lab: LabItem, grid: str, how: Any, files: str) -> None:
    """Figure 4: extra traffic when the connection ends in mid-upload, and the time until everything has arrived."""
    pairs = interrupted(lab, grid, how, files)
    found = [recovery_cost(first, second) for first, second in pairs]
    last, wrong = found[-1], [reason for pair in pairs for each in pair for reason in each["reasons"]]
    if any(each["how_recovered"] == "not interrupted" for each in found):
        wrong.append("less than half of the content's bytes passed, so nothing was interrupted")
    rounds_s = [second["synced_s"] for _, second in pairs if second["synced_s"]]
    result = lab.conclude(
        {key: mean_of_known([each[key] for each in found]) for key in ("recovery", "recovery_overhead")},
        rounds_s or [TIMEOUT_S[grid]],
        stats_of="time from the change until the other side was seen to have it, with the interruption",
        columns=RECOVERY_COLUMNS,
        params={"set": files, "how": how},
        extra={
            "how_recovered": " or ".join(dict.fromkeys(each["how_recovered"] for each in found)),
            "again_bytes": mean_of_known([each["again_bytes"] for each in found]),
            "repeated_share": mean_of_known([each["repeated_share"] for each in found]),
            "run_again": any(second["interrupted"].get("run_again") for _, second in pairs),
            "passed_bytes": last["passed_bytes"], "interrupted_at_byte": last["interrupted_at_byte"],
            "undisturbed_s": mean_of_known([first["completion_s"] for first, _ in pairs]),
            "pairs": pairs,
        },
        published={
            "source": f"{SOURCE}, Figure 4",
            "recovery_overhead": "drawn only: Box sends the whole file again, Google Drive (260 kB chunks) the least; "
            "for 10 x 1 MB all send little again",
        },
        doubts=[*wrong, *lab.doubts()],
        notes=[f"{how}: {second['error']}" for _, second in pairs if second["error"]],
    )  # fmt: skip
    lab.settle([result])


def interrupted(lab: LabItem, grid: str, how: Any, files: str) -> list[list[dict[str, Any]]]:
    """Pairs of an undisturbed transfer and one interrupted after half of the content, as often as asked."""
    workload, pairs = Workload(*SETS[files]), []
    asked = PlannedInterruption(how, workload.total_bytes // 2, BLACK_HOLE_S[grid] if how == "black_hole" else None)
    lab.rebuild(FIGURE_4_LINK, stream_s=1.0, interruptible=True, timeout_s=TIMEOUT_S[grid])
    for _ in range(REPEATS[grid]):
        first = lab.transfer(workload)[0]
        second = lab.transfer(workload, interruption=asked)[0] if first.is_synced else first
        pairs.append([first.as_dict(), second.as_dict()])
        if not second.is_synced:
            break
    return pairs
