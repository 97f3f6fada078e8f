"""Agents that are lost or stop. The run does not hang but fails, keeps its records and names the missing agents."""

from __future__ import annotations

import time

import pytest

from tests.runs import SPREAD, Spread

from .harness import FOLDER, FinishedRun, Lab, grid, keys

INTERVAL_S = 0.1
COUNT = 40
SENSORS = 6

CONFTEST = """
    import os, pathlib, signal
    HERE = pathlib.Path(__file__).parent

    def pytest_collection_finish(session):
        name = os.environ.get("PYTEST_XDIST_WORKER")
        if name:
            (HERE / f"ready-{name}").touch()
"""

ON_ANOTHER_HOST = """
    from pytest_cloudbench.fleet import agent

    if "PYTEST_XDIST_WORKER" in os.environ:
        agent.host_id = lambda: "another"
"""

TESTS = f"""
    def test_first(experiment, payloads, fleet):
        told(fleet)
        experiment.run(
            payloads.random(50), arrival=FixedInterval({INTERVAL_S}), sensors={SENSORS}, ops_per_sensor={COUNT}
        ).check()

    def quick(experiment, payloads):
        result = experiment.run(payloads.random(50), arrival=FixedInterval(0.01), sensors=6, ops_per_sensor=2)
        result.check()
        assert result["ops"] == 12

    def test_second(experiment, payloads):
        if experiment.agent.count > 1:
            wait_for("ready-gw3")
        quick(experiment, payloads)

    def test_third(experiment, payloads):
        quick(experiment, payloads)

    def test_fourth(experiment, payloads):
        quick(experiment, payloads)
"""


def check_lost(run: FinishedRun, victim: int, reason: str) -> None:
    """Check a run in which ``gw<victim>`` was lost in the middle of ``test_first``."""
    name = f"gw{victim}"
    assert run.status == 1, run.text
    assert run.leftovers == []
    assert run.counts() == {"failed": 1, "passed": 3}, run.text
    assert len(run.lines_with("FAILED test_it.py::test_first[folder:objects]")) == 1
    assert len([line for line in run.lines_with(f"agent {name} {reason}") if not line.startswith("FAILED")]) == 1
    assert "INTERNALERROR" not in run.text
    assert "Traceback" not in run.text
    info = run.info("test_first[folder:objects]")
    assert info["missing_agents"] == {name: reason}
    assert info["agents"] == 3
    assert any(doubt.startswith(f"{name} {reason}") for doubt in info["doubts"])
    assert any("operations were not tried" in doubt for doubt in info["doubts"])
    records = keys(run.records()["test_first"])
    assert len(records) == len(set(records)), "no record is there twice"
    others = [key for key in grid(SENSORS, COUNT) if key[0] % 3 != victim]
    assert [key for key in records if key[0] % 3 != victim] == others
    assert info["ops"] == len(records)
    for test in ("test_second", "test_third", "test_fourth"):
        assert keys(run.records()[test]) == grid(6, 2)
        assert run.info(f"{test}[folder:objects]")["missing_agents"] == {}
    second = run.info("test_second[folder:objects]")
    assert second["agents"] == 2
    late_start = "began with 2 of 3 agents: 1 had been lost before, and not been replaced yet"
    assert late_start in second["doubts"]
    assert any(late_start in line for line in run.text.splitlines())
    assert late_start not in run.info("test_fourth[folder:objects]")["doubts"]
    assert run.info("test_fourth[folder:objects]")["agents"] == 3, "the worker that replaces the lost one takes part"
    assert run.logs() == []


@pytest.mark.parametrize(
    ("victim", "conftest"),
    [
        (0, CONFTEST),
        pytest.param(1, CONFTEST, marks=pytest.mark.slow),
        pytest.param(1, CONFTEST + ON_ANOTHER_HOST, marks=pytest.mark.slow),
    ],
    ids=["leader", "other", "on another host"],
)
def test_a_killed_agent_loses_at_most_its_last_second(lab: Lab, victim: int, conftest: str) -> None:
    # A forked worker has the host id of this machine, so a worker that claims another host must not be forked.
    start = "spawn" if conftest != CONFTEST else "fork"
    running = lab.write(conftest, "conftest.py").write(TESTS).start(*FOLDER, "-n", "3", f"-ocloudbench_start={start}")
    running.wait_for_records(f"gw{victim}", "test_first", 30)
    running.workers()[f"gw{victim}"].kill()
    killed_ns = time.monotonic_ns()
    run = running.end()
    check_lost(run, victim, "was lost")
    table = run.records()["test_first"]
    start_ns = min(table.scheduled_ns)
    due = [
        key for key in grid(SENSORS, COUNT) if start_ns + round(key[1] * INTERVAL_S * 1e9) < killed_ns - 1_200_000_000
    ]
    due_of_victim = {key for key in due if key[0] % 3 == victim}
    assert due_of_victim, "it was killed in mid-run"
    assert due_of_victim <= set(keys(table))


@pytest.mark.slow
def test_a_stopped_agent_is_ended(lab: Lab) -> None:
    running = lab.write(CONFTEST, "conftest.py").write(TESTS).start(*FOLDER, "-n", "3", "-ocloudbench_patience=3")
    running.wait_for_records("gw1", "test_first", 10)
    running.workers()["gw1"].suspend()
    check_lost(running.end(), 1, "showed no sign of life for 3 s and was ended")


def test_an_agent_lost_while_it_lists_the_files_lists_none_of_them_twice(lab: Lab) -> None:
    lab.write("""
        from pytest_cloudbench.load.engine import unmeasured

        def test_it(experiment, payloads, provider, monkeypatch):
            monkeypatch.setattr(unmeasured, "_LISTING_FILES", 3)
            whole = provider.driver.list

            def list_and_die(folder):
                for number, entry in enumerate(whole(folder)):
                    if experiment.agent.name == "gw0" and number == 7:
                        os.kill(os.getpid(), signal.SIGKILL)
                    yield entry

            monkeypatch.setattr(provider.driver, "list", list_and_die)
            experiment.run(payloads.random(50), arrival=FixedInterval(0.01), sensors=6, ops_per_sensor=2)
    """)
    run = lab.run(*FOLDER, "-n", "2")
    info = run.info("test_it[folder:objects]")
    assert info["missing_agents"] == {"gw0": "was lost"}
    assert (info["lost"], info["listed_twice"]) == (0, 0)


STOP_AT = """
    import os, signal
    import pytest

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(item, nextitem):
        mine = os.environ.get("PYTEST_XDIST_WORKER") == os.environ["STOPPED"] and "test_one" in item.name
        if mine and os.environ["STOP_AT"] == "before":
            os.kill(os.getpid(), signal.SIGSTOP)
        result = yield
        if mine and os.environ["STOP_AT"] == "after":
            os.kill(os.getpid(), signal.SIGSTOP)
        return result
"""


@pytest.mark.slow
@pytest.mark.parametrize("stopped", ["gw0", "gw1"])
@pytest.mark.parametrize("where", ["before", "after"])
def test_an_agent_that_stops_between_items_is_ended(lab: Lab, where: str, stopped: str) -> None:
    lab.write(STOP_AT, "conftest.py").write("""
        @pytest.mark.parametrize("name", ["test_one", "test_two", "test_three"])
        def test_all(experiment, payloads, name):
            experiment.run(payloads.random(50), arrival=FixedInterval(0.01), sensors=4, ops_per_sensor=2).check()
    """)
    env = {"STOP_AT": where, "STOPPED": stopped}
    run = lab.run(*FOLDER, "-n", "2", "-ocloudbench_patience=2", "-rA", env=env)
    assert run.status == 1, run.text
    assert run.leftovers == []
    assert run.counts() == {"failed": 1, "passed": 2}
    failed = "test_one" if where == "before" else "test_two"
    assert len(run.lines_with(f"FAILED test_it.py::test_all[folder:objects-{failed}]")) == 1
    assert f"agent {stopped} showed no sign of life for 2 s and was ended" in run.text
    assert all(entry["extra_info"]["ops"] == 8 for entry in run.entries.values())
    assert len(run.entries) == 3


@pytest.mark.slow
def test_the_leader_is_lost_while_it_works_for_all(lab: Lab) -> None:
    lab.write("""
        def test_one(experiment, payloads, fleet):
            told(fleet)

            def work():
                if fleet.index == 0:
                    (HERE / "in-work").touch()
                    threading.Event().wait()
                return fleet.name

            assert fleet.once("work", work) == "gw1"
            experiment.run(payloads.random(50), arrival=FixedInterval(0.01), sensors=6, ops_per_sensor=2).check()

        def test_two(experiment, payloads, fleet):
            experiment.run(payloads.random(50), arrival=FixedInterval(0.01), sensors=6, ops_per_sensor=2).check()
    """)
    running = lab.start(*FOLDER, "-n", "3")
    running.wait_for("work of the leader", (lab.folder / "in-work").exists)
    running.workers()["gw0"].kill()
    run = running.end()
    assert run.status == 1, run.text
    assert run.leftovers == []
    assert run.counts() == {"failed": 1, "passed": 1}
    assert len(run.lines_with("FAILED test_it.py::test_one")) == 1
    assert "agent gw0 was lost" in run.text
    assert run.info("test_one[folder:objects]")["missing_agents"] == {"gw0": "was lost"}
    assert run.info("test_two[folder:objects]")["missing_agents"] == {}
    # The sensors had been divided among three agents when the leader was lost. Its sensors are not tried.
    assert {sensor for sensor, _ in keys(run.records()["test_one"])} == {1, 2, 4, 5}


SLOW_DRIVER = """
    import time
    from pytest_cloudbench.drivers.folder import FolderDriver

    def slow_down(name):
        method = getattr(FolderDriver, name)

        def work_slowly(self, *args):
            if name != "list" or "cloudbench-" in args[0]:
                time.sleep(4)  # twice the patience, because no event marks the end of a patience
            return method(self, *args)

        setattr(FolderDriver, name, work_slowly)

    for name in ("mkdir", "list", "delete"):
        slow_down(name)
"""


@pytest.mark.slow
@SPREAD
def test_slow_work_for_all_agents_is_no_silence(lab: Lab, spread: Spread) -> None:
    lab.write(SLOW_DRIVER, "conftest.py").write("""
        def test_one(experiment, payloads):
            load = {"arrival": FixedInterval(0.01), "sensors": 4, "ops_per_sensor": 2}
            experiment.run(payloads.random(50), verify=True, **load).check()
    """)
    run = lab.run(*FOLDER, *spread, "-ocloudbench_patience=2")
    assert run.status == 0, run.text
    assert run.leftovers == []
    assert "no sign of life" not in run.text


@pytest.mark.slow
def test_all_agents_are_lost(lab: Lab) -> None:
    running = (
        lab.write(TESTS.replace("ready-gw3", "ready-gw2")).write(CONFTEST, "conftest.py").start(*FOLDER, "-n", "2")
    )
    running.wait_for_records("gw0", "test_first", 10)
    running.wait_for_records("gw1", "test_first", 10)
    for worker in running.workers().values():
        worker.kill()
    run = running.end()
    assert run.status == 1, run.text
    assert run.leftovers == []
    assert run.counts()["failed"] == 1, run.text
    assert len(run.lines_with("FAILED test_it.py::test_first[folder:objects]")) == 1
    info = run.info("test_first[folder:objects]")
    assert info["missing_agents"] == {"gw0": "was lost", "gw1": "was lost"}
    assert len(run.records()["test_first"]) >= 20


@pytest.mark.slow
def test_a_run_without_a_record_has_no_entry_with_times(lab: Lab) -> None:
    """All agents are killed in their first operation, so that no time is known."""
    lab.write(
        """
        import os, signal
        from pytest_cloudbench.results.oplog import OpLog

        def record(self, op):
            os.kill(os.getpid(), signal.SIGKILL)

        OpLog.record = record
        """,
        "conftest.py",
    ).write(
        """
        def test_killed(experiment, payloads):
            experiment.run(payloads.random(50), arrival=FixedInterval(0.1), sensors=2, ops_per_sensor=2)
        """
    )
    run = lab.run(*FOLDER, "-n", "2", "--max-worker-restart=0")
    assert (run.status, run.leftovers, run.entries) == (1, [], {}), run.text
    assert "FAILED test_it.py::test_killed[folder:objects]" in run.text
