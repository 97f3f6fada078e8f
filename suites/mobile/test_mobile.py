"""How does a sync client do on a slow, lossy or interrupted link? (A first look at mobile cloud storage services)

``--client`` names the client. It and its server run here, in two network namespaces with a link between them, and every
byte on it is captured. docs/suites/mobile.md says what the numbers mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cloudbench.link import Way
from pytest_cloudbench.systems.repeats import mean_of, means, recovery
from pytest_cloudbench.systems.transfers import Interruption, Transfers
from pytest_cloudbench.systems.workloads import Workload

if TYPE_CHECKING:
    from pytest_cloudbench.clients.base import SyncClient
    from pytest_cloudbench.fleet.clients import ClientRun, Place
    from pytest_cloudbench.fleet.experiment import Result

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
"""With a rate, so that little is on its way when the connection ends: the paper's numbers are of a wireless network."""

METRICS = ("start_up", "completion", "overhead", "tue")
COLUMNS = ("synced", "asked_ms", "delivered_ms", *METRICS, "connections", "cpu_s")
RECOVERY_COLUMNS = ("how_recovered", "recovery", "recovery_overhead", "again_bytes", "repeated_share", "undisturbed_s")
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


def test_figure_5(client_run: ClientRun, grid: str, rtt_ms: int) -> None:
    """Figure 5: completion time of one large and of ten smaller files by the round trip time."""
    way = Way(delay_ms=rtt_ms / 2)
    done = client_run.measure(lambda client, place: measure(client, place, grid, way, FIGURE_5_SETS))
    published = {"source": f"{SOURCE}, Figure 5", "completion": DRAWN}
    errors = [each["error"] for transfers in done["transfers"] for each in transfers]
    client_run.settle(conclude(client_run, grid, done, {"rtt_ms": rtt_ms}, published), errors)


def test_loss(client_run: ClientRun, grid: str, loss: float) -> None:
    """Section "Sync completion time": the same by packet loss, of which the paper prints one sentence."""
    way = Way(delay_ms=LOSS_RTT_MS / 2, loss=loss)
    done = client_run.measure(lambda client, place: measure(client, place, grid, way, (LOSS_SET,)))
    said = "at 10 percent Google Drive never synchronizes: it sends the same chunk again and again"
    client_run.settle(conclude(client_run, grid, done, {"loss": loss}, {"source": SOURCE, "completion": said}))


def measure(client: SyncClient, place: Place, grid: str, way: Way, sets: Sequence[str]) -> dict[str, Any]:
    """The sets, one after another on one link, as plain data."""
    with Transfers(
        client, place.workdir, captures=place.captures, seed=place.seed, up=way, timeout_s=TIMEOUT_S[grid], stream_s=0.0
    ) as transfers:
        found: list[list[dict[str, Any]]] = []
        for name in sets:
            if found and not found[-1][-1]["is_synced"]:
                break  # it is out of sync, or has ended
            found.append([each.as_dict() for each in transfers.run(Workload(*SETS[name]), REPEATS[grid])])
        return {"sets": list(sets), "transfers": found, **about(transfers)}


def about(transfers: Transfers) -> dict[str, Any]:
    """What was measured with, as plain data."""
    return {
        "setting": transfers.record(), "doubts": transfers.doubts(), "client_versions": dict(transfers.versions),
    }  # fmt: skip


def conclude(
    client_run: ClientRun, grid: str, done: Mapping[str, Any], params: Mapping[str, Any], published: Mapping[str, Any]
) -> list[Result]:  # fmt: skip
    """An entry for each set that was tried. A set that does not come over is a finding, and no reason for doubt."""
    delivered, results = done["setting"]["link"]["delivered"], []
    asked_ms = sum(done["setting"]["link"]["asked"][way]["delay_ms"] for way in ("up", "down"))
    for name, transfers in zip(done["sets"], done["transfers"], strict=False):
        numbers = means(transfers)
        ended = sum(each["is_synced"] for each in transfers)
        facts = {
            **{key: numbers.pop(key) for key in [*numbers] if key not in METRICS}, "setting": done["setting"],
            "synced": f"{ended} of {len(transfers)}", "transfers": transfers, "asked_ms": asked_ms,
            "delivered_ms": delivered["rtt_ms"], "delivered_loss_share": delivered["up"]["loss"],
        }  # fmt: skip
        notes = [f"not in sync after all: {each['error']}" for each in transfers if each["error"]]
        result = client_run.conclude(
            numbers,
            [each["synced_s"] for each in transfers if each["synced_s"]] or [TIMEOUT_S[grid]],
            stats_of="time from the change until the other side was seen to have it",
            columns=COLUMNS if "rtt_ms" in params else (*COLUMNS, "delivered_loss_share"),
            label=name.replace(" ", ""),
            params={"set": name, **params},
            facts=facts,
            published=published,
            doubts=[*(reason for each in transfers for reason in each["reasons"]), *done["doubts"]],
            notes=[*notes, *setting_notes(done["setting"], transfers)],
        )
        results.append(result)
    return results


def setting_notes(setting: Mapping[str, Any], transfers: Sequence[Mapping[str, Any]]) -> list[str]:
    """What decides about times here beside the client, and what is not known."""
    notes = [
        f"TCP here: {setting['congestion_control']}; another congestion control has other times, most of all with loss"
    ]
    if any(each["energy_j"] is None for each in transfers):
        notes.append("energy: unknown, no RAPL counter can be read below /sys/class/powercap")
    return notes


def test_figure_4(client_run: ClientRun, grid: str, how: str, files: str) -> None:
    """Figure 4: extra traffic when the connection ends in the middle of the upload, and the time until all is there."""
    done = client_run.measure(lambda client, place: interrupted(client, place, grid, how, files))
    pairs = done["pairs"]
    found = [recovery(first, second) for first, second in pairs]
    last, wrong = found[-1], [reason for pair in pairs for each in pair for reason in each["reasons"]]
    if any(each["how_recovered"] == "not interrupted" for each in found):
        wrong.append("less than half of the content's bytes passed, so nothing was interrupted")
    rounds_s = [second["synced_s"] for _, second in pairs if second["synced_s"]]
    result = client_run.conclude(
        {key: mean_of([each[key] for each in found]) for key in ("recovery", "recovery_overhead")},
        rounds_s or [TIMEOUT_S[grid]],
        stats_of="time from the change until the other side was seen to have it, with the interruption",
        columns=RECOVERY_COLUMNS,
        params={"set": files, "how": how},
        facts={
            "how_recovered": " or ".join(dict.fromkeys(each["how_recovered"] for each in found)),
            "again_bytes": mean_of([each["again_bytes"] for each in found]),
            "repeated_share": mean_of([each["repeated_share"] for each in found]),
            "run_again": any(second["interrupted"].get("run_again") for _, second in pairs),
            "passed_bytes": last["passed_bytes"], "interrupted_at_byte": last["interrupted_at_byte"],
            "undisturbed_s": mean_of([first["completion_s"] for first, _ in pairs]),
            "pairs": pairs, "setting": done["setting"],
        },
        published={
            "source": f"{SOURCE}, Figure 4",
            "recovery_overhead": "drawn only: Box sends the whole file again, Google Drive (260 kB chunks) the least; "
            "for 10 x 1 MB all send little again",
        },
        doubts=[*wrong, *done["doubts"]],
        notes=[f"{how}: {second['error']}" for _, second in pairs if second["error"]],
    )  # fmt: skip
    client_run.settle([result], [first["error"] for first, _ in pairs])


def interrupted(client: SyncClient, place: Place, grid: str, how: Any, files: str) -> dict[str, Any]:
    """An undisturbed transfer and one that is interrupted when half of the content has passed, as often as asked."""
    workload, pairs = Workload(*SETS[files]), []
    duration_s = BLACK_HOLE_S[grid] if how == "black_hole" else None
    with Transfers(
        client, place.workdir, captures=place.captures, seed=place.seed, up=FIGURE_4_LINK, interruptible=True,
        timeout_s=TIMEOUT_S[grid], stream_s=1.0,
    ) as transfers:  # fmt: skip
        for _ in range(REPEATS[grid]):
            first = transfers.run(workload)[0]
            if not first.is_synced:
                pairs.append([first.as_dict(), first.as_dict()])
                break
            asked = Interruption(how, workload.total_bytes // 2, duration_s)
            second = transfers.run(workload, interruption=asked)[0]
            pairs.append([first.as_dict(), second.as_dict()])
            if not second.is_synced:
                break
        return {"pairs": pairs, **about(transfers)}
