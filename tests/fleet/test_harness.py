"""The harness sees a process that a session leaves, in whichever way the session was started."""

from __future__ import annotations

import psutil
import pytest

from tests.limits import HANG_S

from .harness import Lab

LEAVING = """
    def test_it():
        pid = os.fork()
        if not pid:
            signal.pause()
        (HERE / "left").write_text(str(pid))
"""


@pytest.mark.parametrize("may_fork", [True, False])
def test_process_that_was_forked_and_left_is_seen_and_ended(lab: Lab, may_fork: bool) -> None:
    running = lab.write(LEAVING).start(store=False, may_fork=may_fork)
    assert running.process.wait(HANG_S) == 0, running.text()
    left_processes = running.relatives()
    assert [process.pid for process in left_processes] == [int((lab.folder / "left").read_text())]
    running.destroy()
    assert psutil.wait_procs(left_processes, timeout=HANG_S)[1] == []
