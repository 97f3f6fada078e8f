"""A run whose threads waited for a CPU most of the time. Its times are doubted, and nothing else is."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from pytest_cloudbench.judge.baseline import is_about_times

from .harness import FOLDER, Lab

BUSY = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
print("busy", flush=True)
while time.process_time() < 30:
    pass
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="only Linux counts waits for a CPU")
def test_threads_that_waited_for_a_cpu_for_most_of_the_time_make_times_doubtful(lab: Lab) -> None:
    """Six processes share the CPU of a client that computes digests. It waits for about six sevenths of the time."""
    cpu = max(os.sched_getaffinity(0))
    lab.write("""
        def test_put(experiment, payloads):
            experiment.run(payloads.random(30_000_000), arrival=ThinkTime(0.0), sensors=1, ops_per_sensor=5)
    """)
    options = (*FOLDER, "-ocloudbench_max_lateness=0.05")
    pinned = ("taskset", "-c", str(cpu))
    with ExitStack() as stack:
        for _ in range(6):
            command = [sys.executable, "-c", BUSY, str(cpu)]
            # Each has a session of its own, like the client. The kernel shares a CPU among sessions (autogroups), so
            # six processes in our session would have one share together, or less beside other tests.
            process = stack.enter_context(
                subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
            )
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == "busy\n"
        run = lab.run(*options, enter=pinned)
    info = run.info("test_put[folder:objects]")
    assert info["starved_share"] > 0.5, run.text
    doubt = f"threads waited for a CPU for {info['starved_share']:.0%} of the operations' time"
    assert doubt in info["doubts"]
    assert all(map(is_about_times, info["doubts"])), "it may have seemed to drift, too"
    assert (info["ok"], info["silently_lost"]) == (5, 0)
    assert run.lines_with(f"! folder:objects: {doubt}")
