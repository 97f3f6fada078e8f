"""The idle suite on the reference client, whose polling times are known."""

from __future__ import annotations

import pytest

from tests.fleet.harness import FinishedRun, Lab
from tests.suites.harness import run_suite

POLLS, SILENT = "reference?polling=2", "reference"


def run_idle_suite(lab: Lab, suite: str, *args: str) -> FinishedRun:
    run = run_suite(lab, suite, *args)
    if reasons := [line for line in run.lines_with("SKIPPED") if f"client {SILENT}" in line]:
        pytest.skip(reasons[0])
    assert run.status == 0, run.text
    assert run.leftovers == []
    return run


@pytest.mark.slow
def test_idle_suite_finds_polling_period_or_its_absence(lab: Lab) -> None:
    both = ("--client", POLLS, "--client", SILENT)
    run = run_idle_suite(lab, "idle::test_idle", *both, "--idle-seconds", "10", "-n", "2")
    polls, silent = run.info(f"test_idle[{POLLS}]"), run.info(f"test_idle[{SILENT}]")
    assert polls["answer"] == "yes"
    assert polls["polling_period_s"] == pytest.approx(2, abs=0.1)
    assert run.entries[f"test_idle[{POLLS}]"]["stats"]["data"] == [polls["polling_period"]]
    assert polls["idle_traffic"] == pytest.approx(8 * polls["idle_bytes"] / polls["events"] / 2, rel=0.05)
    assert polls["mb_per_day"] == pytest.approx(polls["idle_traffic"] / 8 * 86_400 / 1e6)
    assert sum(polls["interval_bytes"]) == polls["idle_bytes"] > 0
    assert (silent["answer"], silent["polling_period"], silent["idle_bytes"]) == ("no", None, 0)
    assert (polls["contacted_servers"], silent["contacted_servers"]) == (1, 0)
    assert silent["mb_per_day"] is None, "what is silent for ten seconds may wake up later"
    assert run.lines_with(f"every {polls['polling_period_s']:.3g} s")
    [watched_s] = run.entries[f"test_idle[{SILENT}]"]["stats"]["data"]
    assert run.lines_with(f"none up to {watched_s / 3:.3g} s")


@pytest.mark.slow
def test_a_login_is_captured_from_its_first_packet(lab: Lab) -> None:
    run = run_idle_suite(lab, "idle::test_login", "--client", SILENT)
    login = run.info(f"test_login[{SILENT}]")
    assert login["connections"] == 1
    assert (login["contacted_servers"], login["contacted_names"]) == (1, 1)
    assert login["login_bytes"] == login["login_up_bytes"] + login["login_down_bytes"]
    assert 1500 < login["login_bytes"] < 6000, "a TLS handshake and one question"


def test_external_client_without_options_skips_with_their_names(lab: Lab) -> None:
    (lab.folder / "mirrored").mkdir()
    run = run_suite(lab, "idle", "--client", f"external?folder={lab.folder / 'mirrored'}")
    assert run.counts() == {"skipped": 2}, run.text
    assert run.lines_with("give interface, the one that the client uses")
    assert not run.entries
    assert not list((lab.folder / "mirrored").iterdir())


def test_wrong_time_is_refused(lab: Lab) -> None:
    run = run_suite(lab, "idle::test_idle", "--client", SILENT, "--idle-seconds", "0.5")
    assert run.status != 0
    assert "--idle-seconds 0.5: expected a second or more" in run.text
