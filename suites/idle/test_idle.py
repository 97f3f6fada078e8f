"""What does a sync client send at its start, and while nobody touches its folder? (IMC 2013, section 3.1, Figure 1)

``--client`` names the client; ``--idle-seconds`` is how long it is left alone. How a polling period is found, and what
"none" means, is in docs/suites/idle.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_cloudbench import Rhythm, find_rhythm

if TYPE_CHECKING:
    from pytest_cloudbench import LabItem, Window

SOURCE = "Benchmarking personal cloud storage, IMC 2013, section 3.1, Figure 1"
LOGIN = "SkyDrive about 150 kB, the others a quarter of it"
IDLE = (
    "Wuala 5 min, 60 b/s; Google Drive 40 s, 42 b/s; Dropbox about 1 min, 82 b/s; SkyDrive about 1 min, 32 b/s; "
    "Cloud Drive 15 s, 6 kb/s"
)

IDLE_S = {"quick": 40.0, "paper": 16 * 60.0}
"""The paper's Figure 1 shows 16 minutes."""

INTERVALS = 240
"""The entry keeps at most this many intervals, each a second or longer; Figure 1 shows their running sum."""

DAY_S = 86_400


@pytest.fixture
def idle_s(pytestconfig: pytest.Config, grid: str) -> float:
    """How long the client is left alone."""
    given: float | None = pytestconfig.option.cloudbench_idle_seconds
    return IDLE_S[grid] if given is None else given


def test_login(lab: LabItem) -> None:
    """The beginning of Figure 1: both halves start, the client connects and finds nothing to do."""
    login = lab.login()
    if login is None and lab.facts.outside is not None:
        pytest.skip(f"client {lab.spec}: it was already running, so its start cannot be measured")
    if login is None:
        pytest.skip("the client was started by another test; run this one first")
    size, delay_s = login.wire_bytes, login.sync_delay_s
    extra = {
        "login_bytes": size, "login_kb": None if size is None else size / 1e3, "login_up_bytes": login.up_bytes,
        "login_down_bytes": login.down_bytes, "connections": login.syns, "cpu_s": login.cpu_s, "imc_2013": LOGIN,
    }  # fmt: skip
    result = lab.conclude(
        {"login_traffic": size},
        [delay_s or login.duration_s],
        stats_of="from the start of both halves to the last payload before the client was ready",
        columns=("login_kb", "connections", "cpu_s", "imc_2013"),
        extra=extra,
        published={"source": SOURCE, "login_traffic": LOGIN},
        notes=[] if size else ["the client sent nothing: it may need a file first"],
    )
    result.check()


def test_idle(lab: LabItem, idle_s: float) -> None:
    """The rest of Figure 1: background traffic, and how often the client polls."""

    seen = lab.idle(idle_s)
    found = find_rhythm(seen.events_s, seen.duration_s)
    size, lasted_s = sample(seen, found)
    interval_s = max(1.0, round(seen.duration_s / INTERVALS, 1))
    per_s = size / lasted_s
    mb_per_day, note = a_day(per_s, lasted_s, found)
    extra: dict[str, Any] = {
        "polling": said(found), "answer": found.answer, "evidence": list(found.evidence),
        "polling_period_s": found.period_s, "polling_scatter_s": found.scatter_s, "longest_period_s": found.longest_s,
        "idle_s": seen.duration_s, "idle_bytes": seen.wire_bytes, "idle_up_bytes": seen.up_bytes,
        "idle_down_bytes": seen.down_bytes, "connections": seen.syns, "cpu_s": seen.cpu_s,
        "idle_bit_per_s": 8 * per_s, "mb_per_day": mb_per_day, "left_alone": f"{seen.duration_s:.0f} s",
        "interval_s": interval_s, "interval_bytes": seen.every(interval_s),
        "events_s": [round(each, 3) for each in seen.events_s[:1000]], "events": len(seen.events_s), "imc_2013": IDLE,
    }  # fmt: skip
    result = lab.conclude(
        {"idle_traffic": 8 * per_s, "polling_period": found.period_s},
        [found.period_s or seen.duration_s],
        stats_of="polling period" if found.period_s else "how long the client was left alone: it has no known period",
        columns=("left_alone", "events", "polling", "idle_bit_per_s", "mb_per_day"),
        extra=extra,
        published={"source": SOURCE, "idle_traffic": IDLE},
        notes=[f"{lab.spec}: {found.evidence[-1]}; {note}"],
    )
    result.check()


def sample(seen: Window, found: Rhythm) -> tuple[int, float]:
    """Bytes and the time they took: of whole periods if there are any, otherwise of the whole time."""
    if found.first_s is not None and found.last_s is not None:
        size = seen.between(found.first_s, found.last_s)
        if size is not None:
            return size, found.last_s - found.first_s
    assert seen.wire_bytes is not None
    return seen.wire_bytes, seen.duration_s


def a_day(per_s: float, lasted_s: float, found: Rhythm) -> tuple[float | None, str]:
    """MB in a day, and where that comes from. Not known if the client was silent, or no period was found."""
    if found.answer == "unknown" or not per_s:
        return None, f"a longer --idle-seconds than {lasted_s:.0f} may tell what it sends in a day"
    return per_s * DAY_S / 1e6, f"traffic of a day is extrapolated from {lasted_s:.1f} s"


def said(found: Rhythm) -> str:
    """The verdict in a few words."""
    if found.answer == "yes":
        return f"every {found.period_s:.3g} s"
    return f"none up to {found.longest_s:.3g} s" if found.answer == "no" else "unknown"
