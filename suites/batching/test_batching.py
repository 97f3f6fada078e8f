"""What does batching in front of a sync client save, and what delay does it add? (paper 002, sections 5 and 6: UDS)

``--client`` names a client, alone (``syncthing``) or behind a savingbox (``savingbox?over=syncthing``). One run can
compare both. Streams of updates are written into one file in place, each at its own time.
"""

from __future__ import annotations

import csv
import itertools
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_cloudbench import (
    KIB,
    MIB,
    Act,
    BatchedChange,
    BatchRules,
    Edit,
    Forecast,
    Insert,
    LiteralContent,
    Played,
    RandomContent,
    SavingboxClient,
    forecast_batching,
    play_edits,
)

from ..updates.test_updates import IDLE_S, describe_stream, note_idle_traffic, sum_windows

if TYPE_CHECKING:
    from pytest_cloudbench import LabItem, Payloads

SOURCE = "Efficient Batched Synchronization in Dropbox-like Cloud Storage Services (UDS), 2013"
LOG = Path(__file__).with_name("updates.csv")
"""A log that tools/make_update_log.py generated, because the paper's own was not published."""

THRESHOLDS_KB = {"quick": (20, 100), "paper": (10, 50, 100, 150, 200, 250, 300, 400, 500, 1000)}
SWEPT_BYTES = {"quick": 400 * KIB, "paper": 5 * MIB}
SWEPT_APPEND = (10 * KIB, 0.1)
"""Bytes of an append, and seconds between two. The paper prints no rate. At this one, the counter c decides."""

RATE_BYTES_PER_S = 80_000 / 8
DOWNLOAD_BYTES = {"quick": 100 * KIB, "paper": 5 * MIB}
LOG_S = {"quick": 15.0, "paper": 4 * 3600.0}
CPU_S = {"quick": 10.0, "paper": 1000.0}
CPU_APPEND = (2 * KIB, 0.2)
SINGLE_BYTES = {"quick": 50, "paper": KIB}
SINGLE_S = 0.2

COLUMNS = (
    "updates", "pushes", "expected_pushes", "traffic_kb", "tue", "sync_delay_s", "cpu_share", "box_cpu_share",
)  # fmt: skip
_LARGE_SHARE = 0.1

Stream = Sequence[tuple[float, Edit]]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize tests with a few thresholds, or with all of the paper's curve."""
    if "threshold_kb" in metafunc.fixturenames:
        thresholds = THRESHOLDS_KB[metafunc.config.option.cloudbench_grid]
        metafunc.parametrize("threshold_kb", thresholds, ids=lambda size: f"{size}KB")


@pytest.fixture
def size_bytes(pytestconfig: pytest.Config) -> int | None:
    """The final size of the growing file, if the option is given."""
    option_bytes: int | None = pytestconfig.option.cloudbench_batching_bytes
    return option_bytes


@pytest.fixture
def seconds(pytestconfig: pytest.Config) -> float | None:
    """The duration of the updates, if the option is given."""
    option_s: float | None = pytestconfig.option.cloudbench_batching_seconds
    return option_s


def test_threshold(lab: LabItem, payloads: Payloads, grid: str, size_bytes: int | None, threshold_kb: int) -> None:
    """Figures 19 and 20: traffic and delay over the byte counter c, while random bytes are appended."""
    if not lab.facts.over:
        pytest.skip(f"{lab.spec} has no byte counter; try --client 'savingbox?over={lab.facts.name}'")
    if any(pair.startswith("bytes=") for pair in lab.spec.partition("?")[2].split("&")):
        pytest.skip(f"{lab.spec} sets its byte counter: leave 'bytes' out, and each threshold is tried")
    lab.rebuild(options={"bytes": f"{threshold_kb}k"})
    append_bytes, interval_s = SWEPT_APPEND
    until_bytes = size_bytes or SWEPT_BYTES[grid]
    stream = payloads.updates(
        "block_appends", interval_s=interval_s, block_bytes=append_bytes, until_bytes=until_bytes
    )  # fmt: skip
    measure_stream(lab, list(stream), "threshold", "Figures 19 and 20: 250 KB is best", {"published_best_kb": 250})


def test_download(lab: LabItem, payloads: Payloads, grid: str, size_bytes: int | None) -> None:
    """Figures 16 and 21: a file comes in at 80 kbit/s and is written as it comes."""
    size = size_bytes or DOWNLOAD_BYTES[grid]
    stream = payloads.updates("http_download", size_bytes=size, rate_bytes_per_s=RATE_BYTES_PER_S)
    published = {"uds_tue": 75 / 5, "uds_tue_batched": 6.2 / 5}
    measure_stream(
        lab, list(stream), "download", "Figures 16 and 21: 75 MB alone, 6.2 MB with UDS, for 5 MB", published
    )


def test_log(lab: LabItem, payloads: Payloads, grid: str, seconds: float | None) -> None:
    """Figures 15 and 22: a user's log grows. The log is synthetic, with the paper's duration and mean gap."""
    stream = read_log(payloads.seed, seconds or LOG_S[grid])
    published = {"uds_tue": 21.0}
    note = "the log is synthetic, with the statistics that the paper prints (tools/make_update_log.py)"
    measure_stream(lab, stream, "log", "Figures 15 and 22", published, notes=[note])


def test_cpu(lab: LabItem, payloads: Payloads, grid: str, seconds: float | None) -> None:
    """Figures 23 to 25: CPU time over time, while 2 KB are appended every 200 ms."""
    append_bytes, interval_s = CPU_APPEND
    until_bytes = round((seconds or CPU_S[grid]) / interval_s) * append_bytes
    stream = payloads.updates("block_appends", interval_s=interval_s, block_bytes=append_bytes, until_bytes=until_bytes)
    published = {"uds_cpu_share": 0.54, "uds_cpu_share_batched": 0.12, "uds_cpu_share_ranges": 0.07}
    measure_stream(lab, list(stream), "cpu", "Figures 23 to 25, on a processor of 2012", published)


def test_single_bytes(lab: LabItem, payloads: Payloads, grid: str, seconds: float | None) -> None:
    """Section 3.3 behind a savingbox: one byte is appended every 0.2 s."""
    count = round(seconds / SINGLE_S) if seconds else SINGLE_BYTES[grid]
    stream = payloads.updates("byte_appends", interval_s=SINGLE_S, until_bytes=count)
    measure_stream(lab, list(stream), "bytes", "section 3.3", None)


def read_log(seed: str, until_s: float) -> list[tuple[float, Edit]]:
    """Return the synthetic log up to some time, with random bytes to append."""
    with LOG.open(encoding="ascii", newline="") as file:
        rows = itertools.takewhile(lambda row: float(row["due_s"]) <= until_s, csv.DictReader(file))
        return [
            (float(row["due_s"]), Insert(RandomContent(f"{seed}/log/{number}", int(row["size_bytes"]))))
            for number, row in enumerate(rows)
        ]


def measure_stream(
    lab: LabItem, stream: Stream, name: str, figure: str, published: dict[str, float] | None,
    *, notes: Sequence[str] = (),
) -> None:  # fmt: skip
    """Measure one stream of appends, and store it as an entry."""
    if not stream:
        pytest.fail("no update is due in this time: choose a longer --batching-seconds", pytrace=False)
    client = lab.client
    box = client if isinstance(client, SavingboxClient) else None
    path, created = lab.new_file(name, LiteralContent(b""))
    played, shares = Played(), CpuShares(lambda: client.cpu_s("client"))
    pushed, box_s = 0, 0.0

    def work() -> int:
        nonlocal played, pushed, box_s
        pushed, box_s = (len(box.pushes()), box.box_cpu_s()) if box else (0, 0.0)
        after = partial(shares.sample_after, None if lab.facts.watches_folder else client.after_change)
        played = play_edits(stream, path, after=after)
        return played.changed_bytes

    _, idle, window = lab.watch([created, lab.rest(IDLE_S), Act(name, work)])
    extra = {
        **sum_windows(idle, [window]),
        **describe_stream(window, played),
        "cpu_shares": shares.shares,
        "cpu_shares_at_s": shares.at_s,
    }
    doubts = []
    if box:
        expected, new_pushes = forecast_pushes(stream, box), box.pushes()[pushed:]
        extra |= {
            "pushes": len(new_pushes), "expected_pushes": expected.pushes, "expected_wait_s": expected.longest_wait_s,
            "longest_wait_s": max((push.waited_s for push in new_pushes), default=None),
            "mechanism": box.settings()["mechanism"],
            "box_cpu_share": (box.box_cpu_s() - box_s) / window.duration_s,
        }  # fmt: skip
        if abs(len(new_pushes) - expected.pushes) > 1:
            doubts.append(f"the savingbox pushed {len(new_pushes)} times; its rules predict {expected.pushes}")
    late = f"{played.late} of {played.updates} updates were written late"
    result = lab.conclude(
        {"tue": extra["tue"], "sync_delay": window.sync_delay_s},
        [window.duration_s],
        stats_of="from the first update until the client was in sync and quiet",
        columns=COLUMNS,
        extra=extra,
        published={"source": f"{SOURCE}, {figure}", **(published or {})},
        doubts=[*([late] if played.late > _LARGE_SHARE * played.updates else []), *doubts, *lab.doubts()],
        notes=[*notes, *note_idle_traffic(extra), *note_mechanism(box)],
    )
    result.check()


def forecast_pushes(stream: Stream, box: SavingboxClient) -> Forecast:
    """Forecast in virtual time how often a savingbox with these settings pushes for a stream."""
    settings = box.settings()
    rules = BatchRules(settings["limit_bytes"], round(settings["quiet_s"] * 1e9), round(settings["fail_safe_s"] * 1e9))
    changes = [BatchedChange(round(due_s * 1e9), "file", edit.size_bytes) for due_s, edit in stream]
    return forecast_batching(changes, rules, settings["at_most_s"] if settings["is_adaptive"] else None)


def note_mechanism(box: SavingboxClient | None) -> list[str]:
    """Return a remark about the way in which the savingbox finds the written bytes."""
    if box is None:
        return []
    settings = box.settings()
    reason = f" ({settings['mechanism_why']})" if settings["mechanism_why"] else ""
    return [f"changed bytes are found by {settings['mechanism']}{reason}"]


class CpuShares:
    """A sampler of the CPU time on the client's side, in intervals of a second or more.

    Attributes:
        shares: CPU time over elapsed time, for each interval.
        at_s: the end of each interval, in seconds since the first update.
    """

    def __init__(self, used_s: Callable[[], float | None]) -> None:
        self._used_s = used_s
        self._first_s = 0.0
        self._last: tuple[float, float] | None = None
        self.shares: list[float] = []
        self.at_s: list[float] = []

    def sample_after(self, action: Callable[[], None] | None) -> None:
        """Run the action that follows an update, and add a sample if an interval is over."""
        if action is not None:
            action()
        now_s = time.monotonic()
        if self._last is not None and now_s - self._last[0] < 1.0:
            return
        used_s = self._used_s()
        if used_s is not None:
            if self._last is not None:
                self.shares.append(round((used_s - self._last[1]) / (now_s - self._last[0]), 4))
                self.at_s.append(round(now_s - self._first_s, 3))
            else:
                self._first_s = now_s
            self._last = (now_s, used_s)
