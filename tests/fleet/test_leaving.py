"""A forked worker's end: all that Python does at its end is done, and memory stays as it is where nobody can tell."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.limits import HANG_S

from .harness import FOLDER, Lab

START = pytest.mark.parametrize("start", ["fork", "spawn"])

LEAVES = """
    import atexit, pathlib, threading
    KEPT = []
    EARLY = open(pathlib.Path(__file__).with_name(f"early-{os.getpid()}"), "w")
    EARLY_NAME = pathlib.Path(EARLY.name)

    def write_at_end(name):
        threading.main_thread().join()
        (HERE / name).write_text("thread")

    def test_leaves(experiment, payloads, worker_id):
        EARLY.write(f"early file of {worker_id}\\n")
        late = (HERE / f"late-{worker_id}").open("w")
        late.write("late file")
        KEPT.append(late)
        atexit.register((HERE / f"atexit-{worker_id}").write_text, "atexit")
        threading.Thread(target=write_at_end, args=(f"thread-{worker_id}",)).start()
        experiment.run(payloads.random(100), arrival=FixedInterval(0.02), sensors=4, ops_per_sensor=3).check()
"""

FINALIZED = {
    "object of a test": """
        KEPT = []
        class Finalized:
            def __del__(self):
                self.path.write_text("finalized")

        def test_leaves(experiment, worker_id):
            KEPT.append(Finalized())
            KEPT[0].path = HERE / f"finalized-{worker_id}"
    """,
    "object of a module": """
        class Finalized:
            path = None
            def __del__(self):
                if self.path is not None:
                    self.path.write_text("finalized")
        EARLY = Finalized()

        def test_leaves(experiment, worker_id):
            EARLY.path = HERE / f"finalized-{worker_id}"
    """,
    "generator": """
        KEPT = []
        def wait(path):
            try:
                yield
            finally:
                path.write_text("finalized")

        def test_leaves(experiment, worker_id):
            KEPT.append(wait(HERE / f"finalized-{worker_id}"))
            next(KEPT[0])
    """,
}

QUICK_END = """
import gc, os, sys
from pytest_cloudbench.fleet.start.leaving import QuickEnd
class Finalized:
    def __del__(self):
        pass
{before}
end = QuickEnd()
gc.freeze()
{after}
quickly = []
os._exit = quickly.append
end.leave()
assert gc.get_freeze_count(), "frozen objects were touched"
print(quickly)
"""


@START
def test_worker_does_at_its_end_what_python_does(lab: Lab, start: str) -> None:
    run = lab.write(LEAVES).run(*FOLDER, "-n2", f"-ocloudbench_start={start}")
    assert (run.status, run.leftovers) == (0, []), run.text
    for worker in ("gw0", "gw1"):
        for name, text in (("late", "late file"), ("atexit", "atexit"), ("thread", "thread")):
            assert (lab.folder / f"{name}-{worker}").read_text() == text
    lines = "".join(path.read_text() for path in lab.folder.glob("early-*")).splitlines()
    assert sorted(lines) == ["early file of gw0", "early file of gw1"]


@pytest.mark.parametrize("hook", ["pytest_sessionfinish", "pytest_terminal_summary", "pytest_unconfigure"])
@START
def test_worker_that_is_interrupted_while_it_ends_shows_no_traceback(lab: Lab, start: str, hook: str) -> None:
    lab.write("def test_it(experiment): pass").write(
        f"""
        import os, signal

        def {hook}():
            if "PYTEST_XDIST_WORKER" in os.environ:
                os.kill(os.getpid(), signal.SIGINT)  # as execnet does if a worker ends for more than five seconds
        """,
        "conftest.py",
    )
    run = lab.run(*FOLDER, "-n2", f"-ocloudbench_start={start}")
    assert (run.status, run.leftovers) == (0, []), run.text
    assert "Traceback" not in run.text


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("made", FINALIZED)
@START
def test_finalizers_of_objects_that_are_left_are_called(lab: Lab, start: str, made: str) -> None:
    run = lab.write(FINALIZED[made]).run(*FOLDER, "-n2", f"-ocloudbench_start={start}")
    assert (run.status, run.leftovers) == (0, []), run.text
    assert sorted(path.name for path in lab.folder.glob("finalized-*")) == ["finalized-gw0", "finalized-gw1"]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("", "", "[0]"),
        ("suspended = (number for number in (1, 2)); next(suspended)", "", "[0]"),
        ("kept = Finalized()", "", "[]"),
        ("", "kept = Finalized()", "[]"),
        ("", "suspended = (number for number in (1, 2)); next(suspended)", "[]"),
    ],
)
def test_memory_is_left_as_it_is_unless_something_waits_to_be_freed(before: str, after: str, expected: str) -> None:
    script = QUICK_END.format(before=before, after=after)
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG_S)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, expected, "")


def test_python_ends_threads_and_calls_exit_functions_under_these_names(tmp_path: Path) -> None:
    script = (
        "import atexit, threading\n"
        "atexit.register(print, 'atexit')\n"
        "threading.Thread(target=lambda: print(threading.main_thread().is_alive())).start()\n"
        "threading._shutdown(); atexit._run_exitfuncs(); atexit._run_exitfuncs(); print('end')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=HANG_S
    )
    assert done.stdout.split()[-2:] == ["atexit", "end"]
