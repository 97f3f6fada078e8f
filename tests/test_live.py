"""What people see of a run while it lasts: what the numbers mean, and that they are nowhere where they disturb."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from pytest_cloudbench import live
from pytest_cloudbench.live import Meter, Progress, Spoken, render
from tests.limits import HANG_S

SECOND = 1_000_000_000


class Clock:
    now = 100 * SECOND

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def meter(clock: Clock) -> Meter:
    made = Meter(clock)
    made.begin("test_it.py::test_it", 1000, clock.now)
    return made


def seen(meter: Meter) -> Progress:
    found = meter.progress()
    assert found is not None
    return found


def test_before_anything_is_told_nothing_is_known(meter: Meter, clock: Clock) -> None:
    assert seen(meter) == Progress("test_it.py::test_it", 0, 0, 0, 1000, 0, 0.0, None, None)
    meter.end()
    assert meter.progress() is None


def test_counts_are_those_of_all_agents_and_the_rate_is_that_of_the_last_ten_seconds(
    meter: Meter, clock: Clock
) -> None:
    for second in range(1, 31):  # the first 20 s with 10/s, then with 2/s
        clock.now += SECOND
        done = min(second, 20) * 10 + max(0, second - 20) * 2
        meter.told("gw0", done, 0, 0, [])
    meter.told("gw1", 5, 3, 2, [])
    found = seen(meter)
    assert (found.done, found.throttled, found.failed, found.agents, found.elapsed_s) == (225, 3, 2, 2, 30.0)
    assert found.rate_per_s == pytest.approx(3.5, abs=1)  # 20 of gw0, 5 of gw1, and one message on the edge
    clock.now += 11 * SECOND
    assert seen(meter).rate_per_s == 0.0


def test_the_percentile_weighs_a_sample_by_what_it_stands_for(meter: Meter, clock: Clock) -> None:
    """A fast agent tells 2 of 990, a slow one all of its 10: 1 % of the operations took a second."""
    clock.now += SECOND
    meter.told("gw0", 990, 0, 0, [0.01, 0.02])
    meter.told("gw1", 10, 0, 0, [1.0] * 10)
    assert seen(meter).p99_s == 0.02
    meter.told("gw1", 20, 0, 0, [1.0] * 10)
    assert seen(meter).p99_s == 1.0
    clock.now += 11 * SECOND
    assert seen(meter).p99_s is None


def test_operations_that_were_refused_do_not_make_it_look_fast(meter: Meter, clock: Clock) -> None:
    clock.now += SECOND
    meter.told("gw0", 500, 499, 0, [0.5])
    assert seen(meter).p99_s == 0.5


def test_the_line_shows_rate_percentile_and_throttled_in_any_width() -> None:
    progress = Progress("a.py::test_it[x]", 1234, 12, 3, 5000, 50, 14.2, 87.4, 0.3104)
    line = render(progress, 200)
    assert line.endswith(
        " 1,234/5,000 ops in 14 s  last 10 s: 87/s, p99 310 ms  12 throttled  3 failed  50 agents  test_it[x]"
    )
    assert [len(render(progress, width)) for width in (0, 40, 79)] == [0, 40, 79]


def test_it_is_said_again_and_again_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "SAY_EVERY_S", 0.01)
    said: list[str] = []
    enough = threading.Event()

    def say(line: str) -> None:
        said.append(line)
        if len(said) == 3:
            enough.set()

    spoken = Spoken(say, lambda: Progress("a.py::test_it", 1, 0, 0, 2, 1, 0.5))
    assert enough.wait(HANG_S)
    spoken.close()
    assert said[0] == ("cloudbench: test_it: 1/2 ops in 0 s  last 0 s: -/s, p99 -  0 throttled  0 failed  1 agent")


# --- a whole run ---

_SLOW = """
from pytest_cloudbench.arrival import FixedInterval

def test_slow(experiment, payloads):
    print("printed by the test")
    experiment.run(payloads.random(10), arrival=FixedInterval(0.25), sensors=4, ops_per_sensor=10)
"""
_OFTEN = "import pytest_cloudbench.live\npytest_cloudbench.live.SAY_EVERY_S = 0.5\n"


def pytest_in(folder: Path, *args: str) -> list[str]:
    (folder / "test_slow.py").write_text(textwrap.dedent(_SLOW))
    (folder / "conftest.py").write_text(_OFTEN)
    return [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--provider", "folder:objects", *args]


@pytest.mark.parametrize("agents", [[], ["-n", "2"]], ids=["one process", "two agents"])
def test_without_a_terminal_a_long_run_says_how_far_it_is(agents: list[str], tmp_path: Path) -> None:
    done = subprocess.run(pytest_in(tmp_path, *agents), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith("cloudbench: test_slow")]
    assert len(said) >= 2
    assert all(
        re.match(r"cloudbench: test_slow\[folder:objects\]: \d+/40 ops in \d s  last \d s: ", line) for line in said
    )
    assert re.search(
        r": [1-9]\d*/40 ops in \d s  last \d s: [\d.]+/s, p99 [\d.]+ ms  0 throttled  0 failed", done.stdout
    )
    assert all(line.count("cloudbench: ") == 1 for line in said)
    assert "printed by the test" not in done.stdout


def test_a_quiet_run_says_nothing_meanwhile(tmp_path: Path) -> None:
    done = subprocess.run(pytest_in(tmp_path, "-q"), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ops in" not in done.stdout


@pytest.mark.skipif(os.name == "nt", reason="needs a pseudo-terminal, which this system has not")
def test_on_a_terminal_the_line_is_redrawn_there(tmp_path: Path) -> None:
    """In a session of its own whose terminal is ours, as a user's is."""
    shell = pytest_in(tmp_path, "-n", "2", "--color=yes")
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.environ["COLUMNS"] = "160"
        os.environ["TERM"] = "xterm"
        os.execv(shell[0], shell)
    shown = bytearray()
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    text = shown.decode(errors="replace")
    assert os.waitstatus_to_exitcode(status) == 0, text
    assert re.search(r"━.* \d+/40 ops in \d s  last \d s: [\d.]+/s, p99 [\d.]+ ms  0 throttled  0 failed", text)
    assert "cloudbench: test_slow" not in text
