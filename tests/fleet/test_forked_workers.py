"""Workers that are forked from one that has collected the tests. They behave like others, or a line says why not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import execnet
import pytest
import xdist.remote
import xdist.workermanage
from _pytest.capture import CaptureManager
from _pytest.tmpdir import TempPathFactory

from pytest_cloudbench.drivers import BoundSpec
from pytest_cloudbench.fleet.start.warm import Identity
from pytest_cloudbench.plugin import warm
from tests.limits import HANG_S

from .harness import FOLDER, Lab, keys

START = pytest.mark.parametrize("start", ["fork", "spawn"])
ONE_BY_ONE = "cloudbench: agents were started one by one: "

WHO = """
    import json, random, sys

    def test_who(experiment, payloads, fleet, tmp_path, worker_id, request, capfd):
        print("said by", worker_id)
        facts = {
            "id": worker_id, "agent": fleet.name, "variable": os.environ["PYTEST_XDIST_WORKER"], "pid": os.getpid(),
            "input": request.config.workerinput["workerid"], "parent": os.getppid(), "folder": str(tmp_path),
            "random": random.random(),
            "threads": os.environ.get("OPENBLAS_NUM_THREADS"), "out": capfd.readouterr().out,
            "ignores": signal.getsignal(signal.SIGINT) == 1, "argv": sys.argv,
            "file": str(getattr(sys.modules["__main__"], "__file__", None)),
        }
        (HERE / f"who-{worker_id}.json").write_text(json.dumps(facts))
        experiment.run(payloads.random(100), arrival=FixedInterval(0.02), sensors=4, ops_per_sensor=3).check()
"""


class WatchedInput(dict[str, Any]):
    """The input of a worker, whose reads are watched in the warm worker."""

    watching = True


def read_facts(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("who-*.json"))]


def is_forked(folder: Path) -> bool:
    """Return whether all workers are children of one process that is not their controller."""
    workers = read_facts(folder)
    parents, pids = ({worker[key] for worker in workers} for key in ("parent", "pid"))
    return len(parents) == 1 and len(pids) == len(workers) and str(*parents) != (folder / "controller").read_text()


CONTROLLER = """
    import os, pathlib
    def pytest_configure(config):
        if not hasattr(config, "workerinput"):
            pathlib.Path(__file__).with_name("controller").write_text(str(os.getpid()))
"""


def test_a_test_that_does_not_exist_is_named_in_one_line(lab: Lab) -> None:
    run = lab.write(WHO).run("test_it.py::test_nobody", *FOLDER, "-n2", "-ocloudbench_start=fork", store=False)
    assert (run.status, run.leftovers) == (pytest.ExitCode.NO_TESTS_COLLECTED, []), run.text
    (line,) = run.lines_with(ONE_BY_ONE)
    assert line.startswith(f"{ONE_BY_ONE}not found: "), line
    assert "test_it.py::test_nobody" in line
    assert "Traceback" not in run.text


@START
def test_forked_workers_are_the_same_as_others(lab: Lab, start: str) -> None:
    run = lab.write(WHO).write(CONTROLLER, "conftest.py").run(*FOLDER, "-n3", f"-ocloudbench_start={start}")
    facts = read_facts(lab.folder)
    assert (run.status, run.leftovers) == (0, []), run.text
    assert is_forked(lab.folder) is (start == "fork"), run.text
    assert ONE_BY_ONE not in run.text
    names = ["gw0", "gw1", "gw2"]
    for key in ("id", "agent", "variable", "input"):
        assert [worker[key] for worker in facts] == names
    assert [worker["out"] for worker in facts] == [f"said by {name}\n" for name in names]
    assert len({worker["random"] for worker in facts}) == len({worker["folder"] for worker in facts}) == 3
    assert all(f"popen-{worker['id']}" in worker["folder"] for worker in facts)
    assert {(worker["ignores"], worker["file"], worker["threads"], *worker["argv"]) for worker in facts} == {
        (False, "None", os.environ.get("OPENBLAS_NUM_THREADS"), "-c")
    }
    assert keys(run.records()["test_who"]) == [(sensor, seq) for sensor in range(4) for seq in range(3)]


OBSTACLES = {
    "variable": ("import os; NAME = os.environ.get('PYTEST_XDIST_WORKER', 'main')", "conftest.py:1 reads PYTEST_XDIST"),
    "copied variable": ("import os; ALL = dict(os.environ)", "conftest.py:1 reads PYTEST_XDIST_WORKER"),
    "worker's input": (
        "def pytest_configure(config):\n    NAME = getattr(config, 'workerinput', {}).get('workerid')",
        "conftest.py:2 reads workerinput['workerid']",
    ),
    "a plugin's input": (
        "def pytest_configure_node(node):\n    node.workerinput['port'] = int(node.gateway.id[2:])\n"
        "def pytest_configure(config):\n    PORT = getattr(config, 'workerinput', {'port': 0})['port']",
        "conftest.py:4 reads workerinput['port']",
    ),
    "thread": (
        "import threading as t; END = t.Event()\nt.Thread(target=END.wait, name='early', daemon=True).start()",
        "the thread early was started while tests were collected",
    ),
    "socket": ("import socket; PAIR = socket.socketpair()", "a connection (socket:["),
    "event loop": ("import asyncio; LOOP = asyncio.new_event_loop()", "was opened while tests were collected"),
    "folder": ("import tempfile; FOLDER = tempfile.TemporaryDirectory()", "a temporary folder was made while"),
    "process": (
        "import subprocess; P = subprocess.Popen(['cat'], stdin=subprocess.PIPE)",
        "a process was started while tests were collected",
    ),
}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_obstacle_to_forking_is_named_and_workers_start_one_by_one(lab: Lab, obstacle: str) -> None:
    source, line = OBSTACLES[obstacle]
    (lab.folder / "conftest.py").write_text(source)
    (lab.folder / "parent.py").write_text(
        "import os, pathlib\ndef pytest_configure(config):\n    if not hasattr(config, 'workerinput'):\n"
        "        pathlib.Path(__file__).with_name('controller').write_text(str(os.getpid()))\n"
    )
    run = lab.write(WHO).run(*FOLDER, "-n2", "-pparent", env={"PYTHONPATH": str(lab.folder)})
    assert (run.status, run.leftovers) == (0, []), run.text
    assert not is_forked(lab.folder)
    assert [worker["id"] for worker in read_facts(lab.folder)] == ["gw0", "gw1"]
    assert any(line in reason for reason in run.lines_with(ONE_BY_ONE)), run.text


def test_a_value_that_differs_and_is_read_later_is_each_workers_own(lab: Lab) -> None:
    lab.write(
        """
        import os, pathlib
        def pytest_configure_node(node):
            node.workerinput["port"] = node.gateway.id
        def pytest_configure(config):
            if not hasattr(config, "workerinput"):
                pathlib.Path(__file__).with_name("controller").write_text(str(os.getpid()))
        """,
        "conftest.py",
    )
    run = lab.write(
        """
        import json
        def test_port(experiment, payloads, worker_id, request):
            assert request.config.workerinput["port"] == worker_id
            (HERE / f"who-{worker_id}.json").write_text(json.dumps({"pid": os.getpid(), "parent": os.getppid()}))
            experiment.run(payloads.random(100), arrival=FixedInterval(0.02), sensors=2, ops_per_sensor=3).check()
        """
    ).run(*FOLDER, "-n2")
    assert (run.status, run.leftovers) == (0, []), run.text
    assert is_forked(lab.folder)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_workers_start_without_a_warm_one_that_is_gone(lab: Lab, number: signal.Signals) -> None:
    """The first process that collects is the warm worker. It ends or stops while it collects."""
    lab.write(
        f"""
        import os, pathlib
        def pytest_collection_finish(session):
            if hasattr(session.config, "workerinput"):
                try:
                    pathlib.Path(__file__).with_name("first").touch(exist_ok=False)
                except FileExistsError:
                    return
                os.kill(os.getpid(), {int(number)})
        """,
        "conftest.py",
    )
    run = lab.write(WHO).run(*FOLDER, "-n2")
    assert (run.status, run.leftovers) == (0, []), run.text
    assert [worker["id"] for worker in read_facts(lab.folder)] == ["gw0", "gw1"]
    assert run.lines_with(ONE_BY_ONE + "the worker that others are forked from has ended"), run.text


NO_PROCESS = """
    import errno, os

    if not os.environ.get("PYTEST_XDIST_WORKER"):  # in the controller; a worker that reads this is not forked
        from pytest_cloudbench.fleet.start import forking

        class Popen(forking.subprocess.Popen):
            def __init__(self, command, **options):
                if any(f"'{worker}-worker'" in command[-1] for worker in os.environ["REFUSED"].split()):
                    raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
                super().__init__(command, **options)

        forking.subprocess.Popen = Popen
"""


@pytest.mark.parametrize("refused", ["gw0", "gw1"])
def test_a_worker_for_which_the_system_has_no_process_is_replaced(lab: Lab, refused: str) -> None:
    lab.write(NO_PROCESS, "conftest.py").write(WHO)
    run = lab.run(*FOLDER, "-n2", env={"REFUSED": refused})
    assert (run.status, run.leftovers) == (0, []), run.text
    assert run.lines_with(f"{refused} cannot be started: Resource temporarily unavailable"), run.text
    assert len(read_facts(lab.folder)) == 2


def test_a_session_without_a_process_for_any_worker_ends(lab: Lab) -> None:
    lab.write(NO_PROCESS, "conftest.py").write(WHO)
    run = lab.run(*FOLDER, "-n2", "--max-worker-restart=0", env={"REFUSED": "gw0 gw1"})
    assert (run.status != 0, run.leftovers) == (True, []), run.text
    assert run.lines_with("gw0 cannot be started: Resource temporarily unavailable"), run.text


def test_a_fork_that_the_system_refuses_a_thread_is_replaced(lab: Lab) -> None:
    lab.write(
        """
        from execnet import gateway_base

        def pytest_collection_finish(session):
            begin = gateway_base.BaseGateway._initreceive

            def begin_if_allowed(gateway):
                if gateway.id == "gw1-worker":
                    raise RuntimeError("can't start new thread")
                begin(gateway)

            gateway_base.BaseGateway._initreceive = begin_if_allowed
        """,
        "conftest.py",
    )
    run = lab.write(WHO).run(*FOLDER, "-n2")
    assert (run.status, run.leftovers) == (0, []), run.text
    assert run.lines_with("cloudbench: gw1 cannot be started: can't start new thread"), run.text
    assert [worker["id"] for worker in read_facts(lab.folder)] == ["gw0", "gw2"]


def test_a_lost_worker_is_replaced_by_another_fork(lab: Lab) -> None:
    lab.write(CONTROLLER, "conftest.py").write(WHO, "test_b.py")
    lab.write(
        """
        import json
        @pytest.mark.parametrize("number", range(8))
        def test_plain(number, worker_id):
            (HERE / f"who-{worker_id}.json").write_text(json.dumps({"pid": os.getpid(), "parent": os.getppid()}))
            if worker_id == "gw1":
                os._exit(1)
            wait_for("who-gw2.json")
        """,
        "test_a.py",
    )
    run = lab.run(*FOLDER, "-n2")
    assert run.leftovers == []
    assert run.counts() == {"failed": 1, "passed": 8}, run.text
    assert is_forked(lab.folder), run.text


@pytest.mark.parametrize("hook", ["pytest_xdist_setupnodes(config, specs)", "pytest_configure_node(node)"])
def test_nothing_is_left_of_a_session_that_fails_while_it_starts(lab: Lab, hook: str) -> None:
    """The first hook fails before the warm worker has its input, the other one when the first worker has been asked."""
    lab.write(f"""
        import pytest

        @pytest.hookimpl(trylast=True)
        def {hook}:
            raise pytest.UsageError("not this time")
    """, "conftest.py")  # fmt: skip
    run = lab.write(WHO).run(*FOLDER, "-n2", store=False)
    assert (run.status, run.leftovers) == (4, []), run.text
    assert run.lines_with("ERROR: not this time")
    assert "Traceback" not in run.text


def test_no_process_is_left_although_another_plugin_raises_at_the_end(lab: Lab) -> None:
    lab.write(WHO)
    lab.write(
        """
        def pytest_sessionfinish(session):
            if not hasattr(session.config, "workerinput"):
                raise KeyboardInterrupt
        """,
        "conftest.py",
    )
    lab.write(
        """
        import json, sys
        from pathlib import Path
        import psutil, pytest

        try:
            pytest.main([*sys.argv[1:]])
        finally:
            left = [process.cmdline() for process in psutil.Process().children(recursive=True)]
            Path("left.json").write_text(json.dumps(left))
        """,
        "program.py",
    )
    options = ("-n", "2", "--provider", "emulated:ideal", "-p", "no:cacheprovider")
    subprocess.run([sys.executable, "program.py", *options], cwd=lab.folder, check=False, timeout=HANG_S)
    assert json.loads((lab.folder / "left.json").read_text()) == []


@pytest.mark.slow
def test_a_broken_conftest_says_the_same_both_ways(lab: Lab) -> None:
    lab.write(WHO).write(
        "import pytest\ndef pytest_sessionstart(session):\n"
        "    if hasattr(session.config, 'workerinput'): raise pytest.UsageError('no such thing')\n",
        "conftest.py",
    )

    def run(start: str) -> tuple[int, int]:
        ended = lab.run(*FOLDER, "-n2", f"-ocloudbench_start={start}")
        assert ended.leftovers == []
        return ended.status, min(1, ended.text.count("no such thing"))

    assert run("fork") == run("spawn")


@pytest.mark.slow
def test_errors_while_collecting_are_reported_once(lab: Lab) -> None:
    run = lab.write(WHO).write("import nothing_like_this\n", "test_bad.py").run(*FOLDER, "-n3")
    assert (run.status, run.leftovers) == (1, []), run.text
    assert run.text.count("ERROR test_bad.py") == 1, run.text


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("provider", ["dropbox", "box", "gdrive", "mega", "onedrive"])
def test_agents_import_no_library_themselves(lab: Lab, provider: str) -> None:
    """The warm worker imports a library once for all fifty agents."""
    lab.write(
        """
        import json, sys
        def test_imports(experiment, payloads, worker_id):
            before = {name.partition(".")[0] for name in sys.modules}
            experiment.run(payloads.random(100), arrival=FixedInterval(0.02), sensors=4, ops_per_sensor=3).check()
            new = {name.partition(".")[0] for name in sys.modules} - before
            (HERE / f"new-{worker_id}.json").write_text(json.dumps(sorted(new - sys.stdlib_module_names)))
        """
    )
    run = lab.run("--provider", f"emulated:{provider}-ideal" if provider != "dropbox" else "emulated:ideal", "-n2")
    assert (run.status, run.leftovers) == (0, []), run.text
    assert [json.loads(path.read_text()) for path in lab.folder.glob("new-*.json")] == [[], []]


MIXED = """
    import pytest
    @pytest.mark.parametrize("number", range(6))
    def test_plain(number, worker_id):
        (HERE / f"plain-{number}").write_text(worker_id)
    @pytest.mark.xdist_group("one")
    @pytest.mark.parametrize("number", range(2))
    def test_grouped(number): pass
"""


def test_a_library_that_cannot_be_imported_does_not_end_the_warm_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = []

    def fail(bound: BoundSpec) -> None:
        attempts.append(bound.spec.scheme)
        raise ImportError("no such symbol")

    monkeypatch.setattr(BoundSpec, "load_libraries", fail)
    item = SimpleNamespace(callspec=SimpleNamespace(params={"provider": "folder:/tmp"}))
    warm.preload(SimpleNamespace(items=[item]))  # type: ignore[arg-type]  # of a session, only its items are read
    assert attempts == ["folder"]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("dist", ["load", "worksteal", "loadscope", "loadfile", "loadgroup", "each"])
def test_other_tests_are_distributed_as_ever(lab: Lab, dist: str) -> None:
    lab.write(MIXED, "test_plain.py")
    counts = []
    for start in ("fork", "spawn"):
        run = lab.run(*FOLDER, "-n2", f"--dist={dist}", f"-ocloudbench_start={start}")
        assert (run.status, run.leftovers) == (0, []), run.text
        counts.append(run.counts())
    assert counts[0] == counts[1]


def test_the_first_failure_ends_the_session(lab: Lab) -> None:
    run = lab.write(
        """
        def test_first(experiment, payloads):
            assert False
        def test_second(experiment, payloads): pass
        """
    ).run(*FOLDER, "-n2", "-x")
    assert (run.status, run.leftovers) == (2, []), run.text
    assert run.counts()["failed"] == 1


def test_interrupted_while_the_warm_worker_collects(lab: Lab) -> None:
    lab.write(
        """
        import os, pathlib, signal
        def pytest_collection_finish(session):
            if hasattr(session.config, "workerinput"):
                pathlib.Path(__file__).with_name("collecting").touch()
                signal.pause()
        """,
        "conftest.py",
    )
    running = lab.write(WHO).start(*FOLDER, "-n2")
    running.wait_for("collection", (lab.folder / "collecting").exists)
    running.interrupt(group=True)
    run = running.end()
    assert (run.status, run.leftovers) == (2, []), run.text


@pytest.mark.slow
def test_collecting_for_longer_than_the_patience_is_no_silence(lab: Lab) -> None:
    """A gateway whose process is not forked yet answers no probe, because the warm worker still collects.

    The collection takes five times the patience, because no event marks the end of a patience.
    """
    lab.write(CONTROLLER, "conftest.py").write(
        "import time\ntime.sleep(5)\n" + "def test_nothing(): pass\n", "test_slow.py"
    )
    run = lab.write(WHO).run(*FOLDER, "-n2", "-ocloudbench_patience=1")
    assert (run.status, run.leftovers) == (0, []), run.text
    assert is_forked(lab.folder)


def test_unknown_start_is_refused(lab: Lab) -> None:
    run = lab.write(WHO).run(*FOLDER, "-n2", "-ocloudbench_start=clone")
    assert run.status == 4
    assert "cloudbench_start clone: expected fork or spawn" in run.text


# -- names inside other packages, one test for each ------------------------------------------------------------


def test_a_forked_worker_tells_what_it_has_collected_before_xdist_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the other order, an experiment ran on one agent of two, once in a hundred sessions on a busy machine."""
    order: list[Any] = []
    plugins: Any = SimpleNamespace(getplugin=lambda name: None)
    workerinput = WatchedInput(workerid="gw0", testrunuid="uid", ours="our channel")
    identity = Identity(
        SimpleNamespace(option=SimpleNamespace(), pluginmanager=plugins), workerinput, SimpleNamespace(),
        {"ours": SimpleNamespace(become=order.append)}, SimpleNamespace(become=order.append), signal.SIG_DFL, (),
        lambda name: None,
    )  # fmt: skip
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "the warm worker")
    channel = SimpleNamespace(receive=lambda: (dict(workerinput), [], {}, []))
    identity.become(SimpleNamespace(), channel)
    assert order == ["our channel", channel]
    assert os.environ["PYTEST_XDIST_WORKER"] == "gw0"


def test_execnet_reads_facts_of_a_worker_from_its_cache() -> None:
    gateway = execnet.makegateway("popen")
    assert gateway._rinfo() is gateway._cache_rinfo
    gateway.exit()


def test_execnet_registers_gateways_in_their_group() -> None:
    assert callable(execnet.Group._register)


def test_xdists_worker_takes_its_id_and_channel_from_attributes() -> None:
    names = xdist.remote.WorkerInteractor.__init__.__code__.co_names
    assert {"workerid", "testrunuid", "channel"} <= set(names)


def test_xdist_makes_workers_by_its_groups_makegateway() -> None:
    assert "makegateway" in xdist.workermanage.NodeManager.setup_node.__code__.co_names


def test_pytest_reads_temporary_folder_from_the_replaced_attributes() -> None:
    names = TempPathFactory.getbasetemp.__code__.co_names
    assert {"_basetemp", "_given_basetemp"} <= set(names)


def test_pytest_can_restart_its_capture() -> None:
    for name in ("stop_global_capturing", "start_global_capturing", "suspend_global_capture"):
        assert callable(getattr(CaptureManager, name))


def test_python_keeps_environment_variables_in_the_watched_attribute() -> None:
    variables: Any = os.environ
    assert variables._data[os.fsencode("PATH")] == os.fsencode(os.environ["PATH"])
