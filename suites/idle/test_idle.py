"""What does a sync client send at its start, and while nobody touches its folder? (IMC 2013, section 3.1, Figure 1)

``--client`` names the client, and ``--idle-seconds`` sets how long it is left alone. docs/suites/idle.md explains how a
polling period is found, and when the answer is "none".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_cloudbench import Rhythm, count_contacts, find_rhythm

if TYPE_CHECKING:
    from pytest_cloudbench import LabItem, Window

SOURCE = "Benchmarking personal cloud storage, IMC 2013, section 3.1, Figure 1"
LOGIN = "SkyDrive about 150 kB and 13 servers, the others a quarter of it"
IDLE = (
    "Wuala 5 min, 60 b/s; Google Drive 40 s, 42 b/s; Dropbox about 1 min, 82 b/s; SkyDrive about 1 min, 32 b/s; "
    "Cloud Drive 15 s, 6 kb/s"
)

IDLE_S = {"quick": 40.0, "paper": 16 * 60.0}
"""The paper's Figure 1 shows 16 minutes."""

INTERVALS = 240
"""The most intervals in an entry, each a second or longer. Figure 1 shows their running sum."""

DAY_S = 86_400


@pytest.fixture
def idle_s(pytestconfig: pytest.Config, grid: str) -> float:
    """The time for which the client is left alone."""
    option_s: float | None = pytestconfig.option.cloudbench_idle_seconds
    return IDLE_S[grid] if option_s is None else option_s


def test_login(lab: LabItem) -> None:
    """The beginning of Figure 1: both halves start, and the client connects and finds nothing to do."""
    login = lab.login()
    if login is None and lab.facts.outside is not None:
        pytest.skip(f"client {lab.spec}: it was already running, so its start cannot be measured")
    if login is None:
        pytest.skip("the client was started by another test; run this one first")
    size, delay_s = login.wire_bytes, login.sync_delay_s
    extra = {
        "login_bytes": size, "login_kb": None if size is None else size / 1e3, "login_up_bytes": login.up_bytes,
        "login_down_bytes": login.down_bytes, "connections": login.syns, "cpu_s": login.cpu_s, "imc_2013": LOGIN,
        **count_contacts(login.contacts), "names": sorted({contact.name for contact in login.contacts}),
    }  # fmt: skip
    result = lab.conclude(
        {"login_traffic": size},
        [delay_s or login.duration_s],
        stats_of="from the start of both halves to the last payload before the client was ready",
        columns=("login_kb", "connections", "contacted_servers", "contacted_names", "cpu_s", "imc_2013"),
        extra=extra,
        published={"source": SOURCE, "login_traffic": LOGIN},
        notes=[] if size else ["the client sent nothing: it may need a file first"],
    )
    result.check()


def test_idle(lab: LabItem, idle_s: float) -> None:
    """The rest of Figure 1: background traffic, and the polling period of the client."""
    window = lab.idle(idle_s)
    rhythm = find_rhythm(window.events_s, window.duration_s)
    size, lasted_s = choose_sample(window, rhythm)
    interval_s = max(1.0, round(window.duration_s / INTERVALS, 1))
    per_s = size / lasted_s
    mb_per_day, note = extrapolate_day(per_s, lasted_s, rhythm)
    extra: dict[str, Any] = {
        "polling": describe_rhythm(rhythm), "answer": rhythm.answer, "evidence": list(rhythm.evidence),
        "polling_period_s": rhythm.period_s, "polling_scatter_s": rhythm.scatter_s,
        "longest_period_s": rhythm.longest_s,
        "idle_s": window.duration_s, "idle_bytes": window.wire_bytes, "idle_up_bytes": window.up_bytes,
        "idle_down_bytes": window.down_bytes, "connections": window.syns, "cpu_s": window.cpu_s,
        "idle_bit_per_s": 8 * per_s, "mb_per_day": mb_per_day, "left_alone": f"{window.duration_s:.0f} s",
        "interval_s": interval_s, "interval_bytes": window.every(interval_s),
        "events_s": [round(event_s, 3) for event_s in window.events_s[:1000]],
        "events": len(window.events_s), "imc_2013": IDLE, **count_contacts(window.contacts),
        "names": sorted({contact.name for contact in window.contacts}),
    }  # fmt: skip
    result = lab.conclude(
        {"idle_traffic": 8 * per_s, "polling_period": rhythm.period_s},
        [rhythm.period_s or window.duration_s],
        stats_of="polling period" if rhythm.period_s else "how long the client was left alone: it has no known period",
        columns=("left_alone", "events", "contacted_servers", "polling", "idle_bit_per_s", "mb_per_day"),
        extra=extra,
        published={"source": SOURCE, "idle_traffic": IDLE},
        notes=[f"{lab.spec}: {rhythm.evidence[-1]}; {note}"],
    )
    result.check()


def choose_sample(window: Window, rhythm: Rhythm) -> tuple[int, float]:
    """Return bytes and their duration, for whole periods if there are any, and otherwise for the whole time."""
    if rhythm.first_s is not None and rhythm.last_s is not None:
        size = window.between(rhythm.first_s, rhythm.last_s)
        if size is not None:
            return size, rhythm.last_s - rhythm.first_s
    assert window.wire_bytes is not None
    return window.wire_bytes, window.duration_s


def extrapolate_day(per_s: float, lasted_s: float, rhythm: Rhythm) -> tuple[float | None, str]:
    """Return the MB of a day and their origin, or None if the client was silent or no period was found."""
    if rhythm.answer == "unknown" or not per_s:
        return None, f"a longer --idle-seconds than {lasted_s:.0f} may tell what it sends in a day"
    return per_s * DAY_S / 1e6, f"traffic of a day is extrapolated from {lasted_s:.1f} s"


def describe_rhythm(rhythm: Rhythm) -> str:
    """Return the verdict as a short text."""
    if rhythm.answer == "yes":
        return f"every {rhythm.period_s:.3g} s"
    return f"none up to {rhythm.longest_s:.3g} s" if rhythm.answer == "no" else "unknown"
