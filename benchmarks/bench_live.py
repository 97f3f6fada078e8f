"""Measure the live view's cost for the controller of fifty agents: lines on a terminal, and a page that is read."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Sequence

from benchmarks.harness import Blocks, Figure, alternating, environment, median

__all__ = ["measure"]

_TIME_S = 30.0
_READ_S = 2.0
"""The page itself reads as often."""

_CHILD = """
import json, os, sys, time
from pytest_cloudbench.report.live import AgentReport, Live, Meter
from pytest_cloudbench.report.live_digest import LiveDigests
from pytest_cloudbench.report.live_page import LivePage

shows, time_s = sys.argv[1] == "shows", float(sys.argv[2])
meter = Meter()
meter.expect_experiments(f"suites/a/test_a.py::test_{number}" for number in range(20))
digests = LiveDigests()
if shows:
    meter.follower = digests
start_ns = time.monotonic_ns() - 600_000_000_000  # it has run for ten minutes
meter.begin_run("suites/a/test_a.py::test_1", 200_000, start_ns, 1200.0, 50)
page = live = None
if shows:
    for at in range(30_000):  # one of 50 agents each 20 ms; throttled and frozen now and then
        sample_s, now_ns = [0.05 * (1 + at % 997 / 100)], start_ns + at * 20_000_000
        digests.take(AgentReport(f"gw{at % 50}", now_ns, int(at // 900 % 9 > 0), int(at % 11 == 0), 0, 2, sample_s, 1))
    page, live = LivePage(0, meter.overview, digests), Live(os.fdopen(os.dup(0), "w", encoding="utf-8"), meter.overview)
print(json.dumps(page.address if page else None), flush=True)

def run(seconds, done):
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        for agent in range(50):
            done += 1
            meter.add_totals(f"gw{agent}", done, 0, 0, [0.05 * (1 + done % 997 / 100)], 0.001, 1)
        time.sleep(0.25)  # as often as agents report
    return done

done = run(3.0, 0)  # imports, and the first ten seconds' window
begun_s, cpu_s = time.monotonic(), time.process_time()
run(time_s, done)
print(json.dumps((time.process_time() - cpu_s) / (time.monotonic() - begun_s)), flush=True)
if shows:
    live.close()
    page.close()
"""


def measure(names: Sequence[str], runs: int) -> list[Figure]:
    """Measure ``live_view_core_share``: the CPU time with the view less that without, as a share of one core."""
    blocks = alternating(lambda: _share("shows"), lambda: _share("hides"), runs)
    pairs = zip(blocks.ours, blocks.reference, strict=True)
    return [_figure(blocks, round(median([ours - reference for ours, reference in pairs]), 5))]


def _figure(blocks: Blocks, share: float) -> Figure:
    absolute = {"with, CPU-s/s": median(blocks.ours), "without, CPU-s/s": median(blocks.reference)}
    details = {"read_every_s": _READ_S, "agents": 50, "experiments": 20, **blocks.details()}
    return Figure("live_view_core_share", share, "of one core", 0.01, details=details, absolute=absolute)


def _share(how: str) -> float:
    """Run the child on a terminal of its own, and read its page as a browser does."""
    controller, terminal = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, how, str(_TIME_S)], stdin=terminal, stdout=subprocess.PIPE, text=True,
        env=environment(TERM="xterm"), start_new_session=True,
    )  # fmt: skip
    os.close(terminal)
    ended = threading.Event()
    threads = [threading.Thread(target=_drain, args=(controller,), daemon=True)]
    assert child.stdout is not None
    address = json.loads(child.stdout.readline())
    if address:
        threads.append(threading.Thread(target=_read_page, args=(address, ended), daemon=True))
    for thread in threads:
        thread.start()
    share = float(json.loads(child.stdout.readline()))
    ended.set()
    if child.wait(60):
        raise RuntimeError(f"the child ended with {child.returncode}")
    return share


def _drain(controller: int) -> None:
    try:
        while os.read(controller, 65536):
            pass
    except OSError:  # the other end is closed
        os.close(controller)


def _read_page(address: str, ended: threading.Event) -> None:
    drawn = b""
    while not ended.wait(_READ_S):
        news = re.search(rb'data-drawn="(\d+)"', _fetch(f"{address}now"))
        if news is not None and news[1] != drawn:
            drawn = news[1]
            _fetch(f"{address}figures")


def _fetch(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=30) as answer:
        return bytes(answer.read())
