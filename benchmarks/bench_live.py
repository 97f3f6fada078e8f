"""What the live view costs the controller of fifty agents, with lines on a terminal and a page that is read."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Sequence

from benchmarks.harness import Blocks, Figure, alternating, environment, median

__all__ = ["measure"]

_TIME_S = 30.0
_READ_S = 2.0
"""As the page itself does."""

_CHILD = """
import json, os, sys, time
from pytest_cloudbench.live import Live, Meter
from pytest_cloudbench.report.live_page import LivePage, LivePoint

shows, time_s = sys.argv[1] == "shows", float(sys.argv[2])
meter = Meter()
meter.expect(f"suites/a/test_a.py::test_{number}" for number in range(20))
meter.begin("suites/a/test_a.py::test_1", 100_000, time.monotonic_ns(), 600.0, 50)
page = live = None
if shows:
    former = [LivePoint(float(at), 80.0 + at % 7, 0.1, 0.3 + at % 5 / 10, 0.0, 1.0) for at in range(600)]
    page, live = LivePage(0, meter.overview, former), Live(os.fdopen(os.dup(0), "w", encoding="utf-8"), meter.overview)
print(json.dumps(page.address if page else None), flush=True)

def run(seconds, done):
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        for agent in range(50):
            done += 1
            meter.told(f"gw{agent}", done, 0, 0, [0.1 + agent / 1000 + done % 7 / 100], 0.001)
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
    """``live_view_core_share``: the CPU time with the view less that without, as a share of one core."""
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
        threads.append(threading.Thread(target=_read, args=(address, ended), daemon=True))
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


def _read(address: str, ended: threading.Event) -> None:
    while not ended.wait(_READ_S):
        with urllib.request.urlopen(f"{address}now", timeout=30) as answer:
            answer.read()
