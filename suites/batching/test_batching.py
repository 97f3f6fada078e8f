"""What does batching in front of a sync client save, and what delay does it add? (paper 002, sections 5 and 6: UDS)

``--client`` names a client, alone (``syncthing``) or behind a savingbox (``savingbox?over=syncthing``); both in one run
stand beside each other. Streams of updates are written into one file in place, each at its own time.
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

from pytest_cloudbench.batching.batcher import BatchRules, Change
from pytest_cloudbench.batching.forecast import Forecast, forecast
from pytest_cloudbench.clients.savingbox import SavingboxClient
from pytest_cloudbench.model import KIB, MIB
from pytest_cloudbench.payload.base import RandomContent
from pytest_cloudbench.payload.contents import Literal
from pytest_cloudbench.payload.edits import Edit, Insert
from pytest_cloudbench.sync.activity import Act
from pytest_cloudbench.sync.changes import Played, play

from ..updates.test_updates import IDLE_S, noise, of_stream, sums

if TYPE_CHECKING:
    from pytest_cloudbench.payload import Payloads
    from pytest_cloudbench.sync.item import LabItem

SOURCE = "Efficient Batched Synchronization in Dropbox-like Cloud Storage Services (UDS), 2013"
LOG = Path(__file__).with_name("updates.csv")
"""Made by tools/make_update_log.py: the paper's own log is not to be had."""

THRESHOLDS_KB = {"quick": (20, 100), "paper": (10, 50, 100, 150, 200, 250, 300, 400, 500, 1000)}
SWEPT_BYTES = {"quick": 400 * KIB, "paper": 5 * MIB}
SWEPT_EACH = (10 * KIB, 0.1)
"""Bytes of an append, and seconds between two. The paper prints no rate; at this one, c decides and not t."""

RATE_BYTES_PER_S = 80_000 / 8
DOWNLOAD_BYTES = {"quick": 100 * KIB, "paper": 5 * MIB}
LOG_S = {"quick": 15.0, "paper": 4 * 3600.0}
CPU_S = {"quick": 10.0, "paper": 1000.0}
CPU_EACH = (2 * KIB, 0.2)
SINGLE_BYTES = {"quick": 50, "paper": KIB}
SINGLE_S = 0.2

COLUMNS = (
    "updates", "pushes", "expected_pushes", "traffic_kb", "tue", "sync_delay_s", "cpu_share", "box_cpu_share",
)  # fmt: skip
_MUCH = 0.1

Stream = Sequence[tuple[float, Edit]]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Thresholds: a few, or as many as the paper's curve has."""
    if "threshold_kb" in metafunc.fixturenames:
        thresholds = THRESHOLDS_KB[metafunc.config.option.cloudbench_grid]
        metafunc.parametrize("threshold_kb", thresholds, ids=lambda size: f"{size}KB")


@pytest.fixture
def size_bytes(pytestconfig: pytest.Config) -> int | None:
    """How far a file grows, if it was said."""
    given: int | None = pytestconfig.option.cloudbench_batching_bytes
    return given


@pytest.fixture
def seconds(pytestconfig: pytest.Config) -> float | None:
    """How long updates go on, if it was said."""
    given: float | None = pytestconfig.option.cloudbench_batching_seconds
    return given


def test_threshold(lab: LabItem, payloads: Payloads, grid: str, size_bytes: int | None, threshold_kb: int) -> None:
    """Figures 19 and 20: traffic and delay over the byte counter c, while random bytes are appended."""
    if not lab.facts.over:
        pytest.skip(f"{lab.spec} has no byte counter; try --client 'savingbox?over={lab.facts.name}'")
    lab.rebuild(options={"bytes": f"{threshold_kb}k"})
    each_bytes, interval_s = SWEPT_EACH
    until = size_bytes or SWEPT_BYTES[grid]
    stream = payloads.updates(
        "block_appends", interval_s=interval_s, block_bytes=each_bytes, until_bytes=until
    )  # fmt: skip
    streamed(lab, list(stream), "threshold", "Figures 19 and 20: 250 KB is best", {"published_best_kb": 250})


def test_download(lab: LabItem, payloads: Payloads, grid: str, size_bytes: int | None) -> None:
    """Figures 16 and 21: a file comes in at 80 kbit/s and is written as it comes."""
    size = size_bytes or DOWNLOAD_BYTES[grid]
    stream = payloads.updates("http_download", size_bytes=size, rate_bytes_per_s=RATE_BYTES_PER_S)
    published = {"uds_tue": 75 / 5, "uds_tue_batched": 6.2 / 5}
    streamed(lab, list(stream), "download", "Figures 16 and 21: 75 MB alone, 6.2 MB with UDS, for 5 MB", published)


def test_log(lab: LabItem, payloads: Payloads, grid: str, seconds: float | None) -> None:
    """Figures 15 and 22: a user's log grows. The log is made: it has the paper's duration and mean gap."""
    stream = log(payloads.seed, seconds or LOG_S[grid])
    published = {"uds_tue": 21.0}
    note = "the log is made with the statistics that the paper prints (tools/make_update_log.py)"
    streamed(lab, stream, "log", "Figures 15 and 22", published, notes=[note])


def test_cpu(lab: LabItem, payloads: Payloads, grid: str, seconds: float | None) -> None:
    """Figures 23 to 25: CPU time over time, while 2 KB are appended every 200 ms."""
    each_bytes, interval_s = CPU_EACH
    until = round((seconds or CPU_S[grid]) / interval_s) * each_bytes
    stream = payloads.updates("block_appends", interval_s=interval_s, block_bytes=each_bytes, until_bytes=until)
    published = {"uds_cpu_share": 0.54, "uds_cpu_share_batched": 0.12, "uds_cpu_share_ranges": 0.07}
    streamed(lab, list(stream), "cpu", "Figures 23 to 25, on a processor of 2012", published)


def test_single_bytes(lab: LabItem, payloads: Payloads, grid: str, seconds: float | None) -> None:
    """Section 3.3 behind a savingbox: one byte is appended every 0.2 s."""
    count = round(seconds / SINGLE_S) if seconds else SINGLE_BYTES[grid]
    stream = payloads.updates("byte_appends", interval_s=SINGLE_S, until_bytes=count)
    streamed(lab, list(stream), "bytes", "section 3.3", None)


def log(seed: str, until_s: float) -> list[tuple[float, Edit]]:
    """The made log up to some time; what is appended is random."""
    with LOG.open(encoding="ascii", newline="") as file:
        rows = itertools.takewhile(lambda row: float(row["due_s"]) <= until_s, csv.DictReader(file))
        return [
            (float(row["due_s"]), Insert(RandomContent(f"{seed}/log/{number}", int(row["size_bytes"]))))
            for number, row in enumerate(rows)
        ]


def streamed(
    lab: LabItem, stream: Stream, name: str, figure: str, published: dict[str, float] | None,
    *, notes: Sequence[str] = (),
) -> None:  # fmt: skip
    """Measure one stream of appends, and make an entry of it."""
    client = lab.client
    box = client if isinstance(client, SavingboxClient) else None
    path, created = lab.new_file(name, Literal(b""))
    played, shares = Played(), CpuShares(lambda: client.cpu_s("client"))
    pushed, box_s = 0, 0.0

    def work() -> int:
        nonlocal played, pushed, box_s
        pushed, box_s = (len(box.pushes()), box.box_cpu_s()) if box else (0, 0.0)
        after = partial(shares.look, None if lab.facts.watches_folder else client.after_change)
        played = play(stream, path, after=after)
        return played.changed_bytes

    _, idle, seen = lab.watch([created, lab.rest(IDLE_S), Act(name, work)])
    facts = {
        **sums(idle, [seen]),
        **of_stream(seen, played),
        "cpu_shares": shares.found,
        "cpu_shares_at_s": shares.at_s,
    }
    doubts = []
    if box:
        expected, new = expected_of(stream, box), box.pushes()[pushed:]
        facts |= {
            "pushes": len(new), "expected_pushes": expected.pushes, "expected_wait_s": expected.longest_wait_s,
            "longest_wait_s": max((each.waited_s for each in new), default=None),
            "mechanism": box.settings()["mechanism"],
            "box_cpu_share": (box.box_cpu_s() - box_s) / seen.duration_s,
        }  # fmt: skip
        if abs(len(new) - expected.pushes) > 1:
            doubts.append(f"the savingbox pushed {len(new)} times; by its rules it is {expected.pushes}")
    late = f"{played.late} of {played.updates} updates were written late"
    result = lab.conclude(
        {"tue": facts["tue"], "sync_delay": seen.sync_delay_s},
        [seen.duration_s],
        stats_of="from the first update until the client was in sync and quiet",
        columns=COLUMNS,
        facts=facts,
        published={"source": f"{SOURCE}, {figure}", **(published or {})},
        doubts=[*([late] if played.late > _MUCH * played.updates else []), *doubts],
        notes=[*notes, *noise(facts), *mechanism(box)],
    )
    result.check()


def expected_of(stream: Stream, box: SavingboxClient) -> Forecast:
    """What the savingbox's own settings give for this stream, in virtual time."""
    said = box.settings()
    rules = BatchRules(said["limit_bytes"], round(said["quiet_s"] * 1e9), round(said["fail_safe_s"] * 1e9))
    changes = [Change(round(due_s * 1e9), "file", edit.size_bytes) for due_s, edit in stream]
    return forecast(changes, rules, said["at_most_s"] if said["is_adaptive"] else None)


def mechanism(box: SavingboxClient | None) -> list[str]:
    """How the savingbox knows which bytes were written."""
    if box is None:
        return []
    said = box.settings()
    why = f" ({said['mechanism_why']})" if said["mechanism_why"] else ""
    return [f"changed bytes are found by {said['mechanism']}{why}"]


class CpuShares:
    """CPU time of the client's side over time, a second or more at a time.

    Attributes:
        found: of each part, CPU time over elapsed time.
        at_s: when it ended, in seconds since the first update.
    """

    def __init__(self, used_s: Callable[[], float | None]) -> None:
        self._used_s = used_s
        self._first_s = 0.0
        self._last: tuple[float, float] | None = None
        self.found: list[float] = []
        self.at_s: list[float] = []

    def look(self, then: Callable[[], None] | None) -> None:
        """Called after each update; ``then`` is what has to be done with it."""
        if then is not None:
            then()
        now_s = time.monotonic()
        if self._last is not None and now_s - self._last[0] < 1.0:
            return
        used_s = self._used_s()
        if used_s is not None:
            if self._last is not None:
                self.found.append(round((used_s - self._last[1]) / (now_s - self._last[0]), 4))
                self.at_s.append(round(now_s - self._first_s, 3))
            else:
                self._first_s = now_s
            self._last = (now_s, used_s)
