"""Progress of a run on a terminal has the right numbers and never disturbs other output."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import textwrap
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_cloudbench.report import live
from pytest_cloudbench.report.live import (
    AgentReport,
    ExperimentRow,
    Meter,
    Overview,
    PeriodicProgress,
    Progress,
    format_duration,
    render_line,
    render_lines,
)
from tests.limits import HANG_S
from tests.runs import ALONE, FLEET

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
    meter = Meter(clock)
    meter.begin_run("test_it.py::test_it", 1000, clock.now)
    return meter


def read_progress(meter: Meter) -> Progress:
    progress = meter.progress()
    assert progress is not None
    return progress


def test_progress_before_the_first_report_is_empty(meter: Meter, clock: Clock) -> None:
    assert read_progress(meter) == Progress("test_it.py::test_it", 0, 0, 0, 1000, 0, 0.0)
    meter.end_run()
    assert meter.progress() is None


def test_counts_of_all_agents_and_rate_of_last_ten_seconds(meter: Meter, clock: Clock) -> None:
    for second in range(1, 31):  # the first 20 s with 10/s, then with 2/s
        clock.now += SECOND
        done = min(second, 20) * 10 + max(0, second - 20) * 2
        meter.add_totals("gw0", done, 0, 0, [])
    meter.add_totals("gw1", 5, 3, 2, [])
    progress = read_progress(meter)
    assert (progress.done, progress.throttled, progress.failed, progress.agents, progress.elapsed_s) == (
        225,
        3,
        2,
        2,
        30.0,
    )
    assert progress.rate_per_s == pytest.approx(3.5, abs=1)  # 20 of gw0, 5 of gw1, and one message on the edge
    clock.now += 11 * SECOND
    assert read_progress(meter).rate_per_s == 0.0


def test_percentile_weighs_samples_by_operations(meter: Meter, clock: Clock) -> None:
    """A fast agent reports 2 of its 990 operations, a slow one all of its 10, so 1 % of operations took a second."""
    clock.now += SECOND
    meter.add_totals("gw0", 990, 0, 0, [0.01, 0.02])
    meter.add_totals("gw1", 10, 0, 0, [1.0] * 10)
    assert read_progress(meter).p99_s == 0.02
    meter.add_totals("gw1", 20, 0, 0, [1.0] * 10)
    assert read_progress(meter).p99_s == 1.0
    clock.now += 11 * SECOND
    assert read_progress(meter).p99_s is None


def test_refused_operations_do_not_lower_percentiles(meter: Meter, clock: Clock) -> None:
    clock.now += SECOND
    meter.add_totals("gw0", 500, 499, 0, [0.5])
    assert read_progress(meter).p99_s == 0.5


def test_median_and_lateness_are_of_the_last_seconds(meter: Meter, clock: Clock) -> None:
    clock.now += SECOND
    meter.add_totals("gw0", 3, 0, 0, [0.1, 0.2, 0.9], 0.03)
    meter.add_totals("gw1", 1, 1, 0, [], None)
    assert (read_progress(meter).p50_s, read_progress(meter).late_s) == (0.2, 0.03)
    clock.now += 11 * SECOND
    assert (read_progress(meter).p50_s, read_progress(meter).late_s) == (None, None)


def test_follower_receives_runs_and_new_operations(meter: Meter, clock: Clock) -> None:
    class Follower:
        def __init__(self) -> None:
            self.lines, self.reports = list[tuple[str, str, int]](), list[AgentReport]()

        def begin(self, nodeid: str, line: str, start_ns: int) -> None:
            self.lines.append((nodeid, line, start_ns))

        def take(self, heard: AgentReport) -> None:
            self.reports.append(heard)

    meter.follower = follower = Follower()
    meter.begin_run("t", 9, 7)
    meter.begin_run("t", 9, 8, line="upload")
    meter.add_totals("gw0", 10, 2, 1, [0.1])
    meter.add_totals("gw0", 15, 2, 2, [0.1, 0.2], 0.01, in_flight=3)
    meter.end_run()
    meter.add_totals("gw0", 16, 2, 2, [])
    assert follower.lines == [("t", "run 1", 7), ("t", "upload", 8)]
    assert follower.reports == [
        AgentReport("gw0", clock.now, 7, 2, 1, 0, [0.1], 7.0),
        AgentReport("gw0", clock.now, 4, 0, 1, 3, [0.1, 0.2], 2.0, 0.01),
    ]


def test_silent_agent_is_not_counted(meter: Meter, clock: Clock) -> None:
    meter.begin_run("test_it.py::test_it", 1000, clock.now, agents=2)
    meter.add_totals("gw0", 1, 0, 0, [])
    meter.add_totals("gw1", 1, 0, 0, [])
    assert (read_progress(meter).agents, read_progress(meter).of_agents) == (2, 2)
    clock.now += 6 * SECOND
    meter.add_totals("gw1", 2, 0, 0, [])
    assert (read_progress(meter).agents, read_progress(meter).of_agents) == (1, 2)
    assert "  1 of 2 agents  " in render_line(read_progress(meter), 300)


def test_remaining_time_is_planned_or_estimated(meter: Meter, clock: Clock) -> None:
    meter.begin_run("test_it.py::test_it", 1000, clock.now, planned_s=60.0)
    clock.now += 20 * SECOND
    assert read_progress(meter).left_s == 40.0
    meter.begin_run("test_it.py::test_it", 1000, clock.now)
    clock.now += 1 * SECOND
    meter.add_totals("gw0", 10, 0, 0, [])
    assert read_progress(meter).left_s is None, "a second says nothing of a rate"
    clock.now += 9 * SECOND
    meter.add_totals("gw0", 100, 0, 0, [])
    assert read_progress(meter).left_s == pytest.approx(90.0)
    assert read_progress(meter).run == 3, "the third run of this experiment"


def test_experiments_have_state_and_duration(clock: Clock) -> None:
    meter = Meter(clock)
    meter.expect_experiments(["a.py::test_a", "a.py::test_b", "a.py::test_c"])
    meter.begin_run("a.py::test_a", 10, clock.now)
    clock.now += 3 * SECOND
    meter.end_run()
    meter.end_experiment("a.py::test_a", "failed")
    meter.end_experiment("a.py::an_ordinary_test", "passed")
    clock.now += 4 * SECOND
    meter.begin_run("a.py::test_b", 10, clock.now)
    clock.now += 5 * SECOND
    overview = meter.overview()
    assert overview.experiments == (
        ExperimentRow("a.py::test_a", "failed", 3.0),
        ExperimentRow("a.py::test_b", "running", 5.0),
        ExperimentRow("a.py::test_c", "waiting", None),
    )
    assert (overview.describe_counts(), overview.elapsed_s) == ("1 of 3 experiments done, 1 running, 1 waiting", 12.0)


RUNNING = Progress("a.py::test_it[x]", 1234, 12, 3, 5000, 50, 14.2, 87.4, 0.3104, 0.12, 0.002, 43.2, 50)


def test_line_fits_any_width() -> None:
    assert render_line(RUNNING, 200).endswith(
        " 1,234/5,000 ops in 14 s, 43 s left  last 10 s: 87/s, p50 120 ms, p99 310 ms  12 throttled  3 failed  "
        "late 2.0 ms  50 agents  test_it[x]"
    )
    assert [len(render_line(RUNNING, width)) for width in (0, 40, 79)] == [0, 40, 79]


def test_line_names_the_test_with_all_its_parameters() -> None:
    for name in ("test_it[s3://a::b]", "test_it[a#1]", "test_it"):
        assert render_line(replace(RUNNING, nodeid=f"a.py::Class::{name}"), 300).endswith(f"  {name}")


def overview(waiting: int, before: int = 1) -> Overview:
    rows = [ExperimentRow(f"a.py::test_{at}", "passed", 5.0) for at in range(before)]
    rows += [
        ExperimentRow(RUNNING.nodeid, "running", 14.2),
        *(ExperimentRow(f"a.py::w{at}", "waiting") for at in range(waiting)),
    ]
    return Overview(tuple(rows), RUNNING, 75.0)


def test_terminal_shows_experiments_and_running_figures() -> None:
    assert render_lines(overview(1), 110, 30) == [
        "cloudbench: 1 of 3 experiments done, 1 running, 1 waiting; 1 m 15 s",
        "  passed   test_0  5 s",
        "  running  test_it[x]  14 s",
        "    ━━━━━╺╺╺╺╺╺╺╺╺╺╺╺╺╺╺",
        "    1,234/5,000 ops in 14 s, 43 s left  last 10 s: 87/s, p50 120 ms, p99 310 ms  12 throttled  3 failed",
        "    late 2.0 ms  50 agents",
        "  waiting  w0",
    ]


@pytest.mark.parametrize(("width", "height"), [(20, 40), (40, 12), (79, 8), (200, 6), (5, 3), (1, 1)])
def test_lines_fit_and_keep_running_experiment_visible(width: int, height: int) -> None:
    lines = render_lines(overview(40, before=40), width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    if width >= 40 and height >= 8:
        assert any("running  test_it" in line for line in lines)
        assert any(re.search(r"\.\.\. \d+ more", line) for line in lines)


def test_control_characters_in_names_are_replaced() -> None:
    hostile = Overview((ExperimentRow("a.py::test_\x1b[2J\n[x]", "waiting"),), None, 0.0)
    assert render_lines(hostile, 80, 10)[1] == "  waiting  test_?[2J?[x]"


def test_durations_are_readable() -> None:
    assert [format_duration(seconds) for seconds in (0, 59.4, 60, 3599, 11220)] == [
        "0 s",
        "59 s",
        "1 m 00 s",
        "59 m 59 s",
        "3 h 07 m",
    ]


def test_progress_is_printed_periodically_until_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "SAY_EVERY_S", 0.01)
    printed: list[str] = []
    enough = threading.Event()

    def say(line: str) -> None:
        printed.append(line)
        if len(printed) == 3:
            enough.set()

    rows = tuple(ExperimentRow(f"a.py::{name}", "waiting") for name in ("test_a", "test_it"))
    progress = PeriodicProgress(
        say, lambda: Overview(rows, Progress("a.py::test_it", 1, 0, 0, 2, 1, 0.5, of_agents=1), 0.5)
    )
    assert enough.wait(HANG_S)
    progress.close()
    assert printed[0] == (
        "cloudbench: test_it (2 of 2): 1/2 ops in 0 s  last 0 s: -/s, p50 -, p99 -  "
        "0 throttled  0 failed  late -  1 agent"
    )


# --- a whole run ---

_SLOW = """
from pytest_cloudbench.workload.arrival import FixedInterval

def test_slow(experiment, payloads):
    print("printed by the test")
    experiment.run(payloads.random(10), arrival=FixedInterval(0.25), sensors=4, ops_per_sensor=10)
"""
_OFTEN = "import pytest_cloudbench.report.live\npytest_cloudbench.report.live.SAY_EVERY_S = 0.5\n"


def pytest_command(folder: Path, *args: str) -> list[str]:
    (folder / "test_slow.py").write_text(textwrap.dedent(_SLOW))
    (folder / "conftest.py").write_text(_OFTEN)
    (folder / "objects").mkdir(exist_ok=True)
    return [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--provider", "folder:objects", *args]


@pytest.mark.slow
@pytest.mark.parametrize("agents", [ALONE, FLEET])
def test_long_run_without_terminal_prints_progress(agents: list[str], tmp_path: Path) -> None:
    done = subprocess.run(pytest_command(tmp_path, *agents), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    printed = [line for line in done.stdout.splitlines() if line.startswith("cloudbench: test_slow")]
    assert len(printed) >= 2
    assert all(
        re.match(r"cloudbench: test_slow\[folder:objects\]: \d+/40 ops in \d s(, \d+ s left)?  last \d s: ", line)
        for line in printed
    )
    assert re.search(
        r": [1-9]\d*/40 ops in \d s.*  last \d s: [\d.]+/s, p50 [\d.]+ ms, p99 [\d.]+ ms  0 throttled  0 failed",
        done.stdout,
    )
    assert all(line.count("cloudbench: ") == 1 for line in printed)
    assert "printed by the test" not in done.stdout


@pytest.mark.slow
def test_quiet_run_prints_no_progress(tmp_path: Path) -> None:
    done = subprocess.run(pytest_command(tmp_path, "-q"), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ops in" not in done.stdout


def run_on_terminal(folder: Path, *args: str, rows: int = 40, columns: int = 160, **environ: str) -> str:
    """Return the output of a run on a pseudo-terminal of this size, in a session of its own as for a user."""
    shell = pytest_command(folder, *args)
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.environ.pop("COLUMNS", None)
        os.environ |= {"TERM": "xterm", **environ}
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        os.execv(shell[0], shell)
    output = bytearray()
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        output += part
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    text = output.decode(errors="replace")
    assert os.waitstatus_to_exitcode(status) == 0, text
    return text


ON_TERMINAL = pytest.mark.skipif(os.name == "nt", reason="needs a pseudo-terminal, which this system has not")


@pytest.mark.slow
@ON_TERMINAL
def test_terminal_lines_are_redrawn_and_cleared(tmp_path: Path) -> None:
    text = run_on_terminal(tmp_path, "-n", "2", "--color=yes")
    assert re.search(
        r"━.*\r\n    \d+/40 ops in \d s(, \d+ s left)?  last \d s: [\d.]+/s, p50 [\d.]+ ms, p99 [\d.]+ ms  "
        r"0 throttled  0 failed  late [\d.]+ ms  2 agents",
        text,
    )
    assert "cloudbench: 0 of 1 experiment done, 1 running; " in text
    assert "  running  test_slow[folder:objects]" in text
    assert "cloudbench: test_slow" not in text
    assert "\x1b[?25h" in text[text.rindex("\x1b[?25l") :], "the cursor is there again"
    last = text[text.rindex("cloudbench: 0 of 1") :]
    assert last.count("\x1b[2K") >= 4, "every line is cleared before the results"


@ON_TERMINAL
@pytest.mark.slow
def test_printing_tests_leave_one_line(tmp_path: Path) -> None:
    text = run_on_terminal(tmp_path, "-s", rows=24, columns=60, NO_COLOR="1")
    assert "printed by the test\r\n" in text
    assert "experiments done" not in text
    bars = re.findall(r"━[^\r\n\x1b]*", text)
    assert bars
    assert max(map(len, bars)) <= 60
    assert not re.search(r"\x1b\[[\d;]*m", text), "no colour"


@ON_TERMINAL
@pytest.mark.slow
def test_quiet_run_draws_nothing(tmp_path: Path) -> None:
    assert "━" not in run_on_terminal(tmp_path, "-q")
