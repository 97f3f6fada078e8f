"""Sessions whose agents die at any point. Each session ends, fails and reports every test it has collected."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from .harness import FOLDER, FinishedRun, Lab

CONFTEST = """
    import json, os, pathlib, signal
    import pytest
    from pytest_cloudbench.fleet.agent import Agent

    HERE = pathlib.Path(__file__).parent
    ME = os.environ.get("PYTEST_XDIST_WORKER", "")
    PLAN = json.loads(os.environ.get("DIE", "{}"))

    def die():
        if PLAN["how"] == "exit":
            os._exit(1)
        os.kill(os.getpid(), getattr(signal, PLAN["how"]))

    def at(point, item):
        if ME in PLAN.get("who", ()) and point.startswith(PLAN["where"]) and PLAN["test"] in item:
            die()

    if PLAN:
        gather, tell = Agent.gather, Agent.tell

        def dying_gather(self, name, payload=None):
            at(name, self._item)
            return gather(self, name, payload)

        def dying_tell(self, name, payload=None):
            if name == "progress" and payload.done:
                at(name, self._item)
            tell(self, name, payload)

        Agent.gather, Agent.tell = dying_gather, dying_tell

    def pytest_collection_modifyitems():
        if PLAN:
            at("collecting", "")

    def pytest_runtest_logfinish(nodeid):
        if PLAN:
            at("logged", nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(report):
        if not ME and (report.when == "call" or report.outcome != "passed"):
            with open(HERE / "reports.jsonl", "a") as file:
                file.write(json.dumps([report.nodeid.partition("::")[2].partition("[")[0], report.outcome]) + "\\n")
"""

TESTS = """
    def quick(experiment, payloads):
        experiment.run(payloads.random(50), arrival=FixedInterval(0.1), sensors=6, ops_per_sensor=6).check()

    def test_first(experiment, payloads):
        quick(experiment, payloads)

    def test_second(experiment, payloads):
        quick(experiment, payloads)

    def test_third(experiment, payloads):
        quick(experiment, payloads)

    def test_fourth(experiment, payloads):
        quick(experiment, payloads)
"""
ALL = ["test_first", "test_second", "test_third", "test_fourth"]


PATIENCE_S = 4


def run_dying(
    lab: Lab, who: list[str], where: str, test: str, how: str, *args: str, tests: str = TESTS
) -> tuple[FinishedRun, dict[str, str]]:
    """Run a session whose agents ``who`` die. Return it and the outcome of each reported test."""
    lab.write(CONFTEST, "conftest.py").write(tests)
    plan = json.dumps({"who": who, "where": where, "test": test, "how": how})
    # Only the patience ends a stopped agent. A longer one spares agents that a busy machine keeps waiting.
    patience_s = PATIENCE_S if how == "SIGSTOP" else 30
    run = lab.run(*FOLDER, f"-ocloudbench_patience={patience_s}", *args, env={"DIE": plan}, timeout_s=90)
    assert "INTERNALERROR" not in run.text, run.text
    assert run.leftovers == [], run.text
    reports = [json.loads(line) for line in (lab.folder / "reports.jsonl").read_text().splitlines()]
    duplicates = [name for name, count in Counter(name for name, _ in reports).items() if count > 1]
    assert duplicates == [], run.text
    return run, dict(reports)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_all_agents_of_the_first_of_four_tests(lab: Lab, how: str) -> None:
    run, reports = run_dying(lab, ["gw0", "gw1"], "progress", "test_first", how, "-n", "2")
    assert run.status == 1, run.text
    assert reports == dict.fromkeys(ALL, "passed") | {"test_first": "failed"}, run.text
    assert run.info("test_first[folder:objects]")["ops"] >= 2, "what was measured is kept"


@pytest.mark.slow
def test_a_worker_that_stops_while_it_collects_is_ended(lab: Lab) -> None:
    run, reports = run_dying(lab, ["gw1"], "collecting", "", "SIGSTOP", "-n", "2")
    assert reports == dict.fromkeys(ALL, "passed"), run.text
    assert run.lines_with(f"gw1 showed no sign of life for {PATIENCE_S} s and was ended"), run.text


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("restarts", [0, 1])
def test_tests_that_nobody_is_left_to_run_are_reported(lab: Lab, restarts: int) -> None:
    limit = ("--max-worker-restart", str(restarts))
    run, reports = run_dying(lab, ["gw0", "gw1", "gw2"], "progress", "test_first", "SIGKILL", "-n", "2", *limit)
    assert run.status == 1, run.text
    assert reports == dict.fromkeys(ALL, "failed"), run.text
    assert len(run.lines_with("FAILED test_it.py::test_fourth[folder:objects] - not run: ")) == 1, run.text


WHO = {"all": ["gw0", "gw1", "gw2"], "leader": ["gw0"], "others": ["gw1", "gw2"]}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGKILL", "exit", "SIGSTOP"])
@pytest.mark.parametrize("test", ["test_first", "test_second", "test_fourth"])
@pytest.mark.parametrize("where", ["enter", "start", "progress", "measured", "result", "leave", "logged"])
@pytest.mark.parametrize("who", WHO)
def test_every_test_is_reported_when_agents_die_at_any_point(
    lab: Lab, who: str, where: str, test: str, how: str
) -> None:
    run, reports = run_dying(lab, WHO[who], where, test, how, "-n", "3")
    assert sorted(reports) == sorted(ALL), run.text
    assert {name: outcome for name, outcome in reports.items() if name != test} == dict.fromkeys(
        set(ALL) - {test}, "passed"
    ) or where in {"leave", "logged"}, run.text
    assert run.status == (1 if "failed" in reports.values() else 0), run.text
    if where not in {"leave", "logged"}:  # a report that was already on its way has the test's own outcome
        assert reports[test] == "failed", run.text


LIMIT = """
    import os, pathlib, signal
    import pytest

    HERE = pathlib.Path(__file__).parent

    def fail(*_):
        (HERE / f"limit-{os.environ.get('PYTEST_XDIST_WORKER')}").touch()
        pytest.fail("too long")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(item, nextitem):  # as pytest-timeout does by signal
        signal.signal(signal.SIGALRM, fail)
        signal.setitimer(signal.ITIMER_REAL, 3)
        result = yield
        signal.setitimer(signal.ITIMER_REAL, 0)
        return result
"""


@pytest.mark.slow
def test_a_time_limit_that_raises_in_the_test_fails_that_test_alone(lab: Lab) -> None:
    """One agent hangs, the others wait for it in the test and between tests, and the time limit applies to all."""
    run = (
        lab.write(LIMIT, "conftest.py")
        .write("""
        @pytest.mark.parametrize("who", [["gw0"], ["gw1"], ["gw0", "gw1"], []])
        def test_it(experiment, payloads, fleet, who):
            if fleet.name in who:
                threading.Event().wait()
            experiment.run(payloads.random(50), arrival=FixedInterval(0.01), sensors=6, ops_per_sensor=6).check()
        """)
        .run(*FOLDER, "-n", "2")
    )
    assert run.status == 1, run.text
    assert run.leftovers == []
    assert "INTERNALERROR" not in run.text
    assert run.counts() == {"failed": 3, "passed": 1}, run.text


@pytest.mark.slow
def test_a_time_limit_spares_agents_that_wait_for_a_stock_benchmark(lab: Lab) -> None:
    run = (
        lab.write(LIMIT, "conftest.py")
        .write("""
        def test_stock(benchmark):
            signal.setitimer(signal.ITIMER_REAL, 0)
            benchmark.pedantic(wait_for, ("limit-gw1",), rounds=1)

        def test_it(experiment, payloads):
            experiment.run(payloads.random(50), arrival=FixedInterval(0.01), sensors=6, ops_per_sensor=6).check()
        """)
        .run(*FOLDER, "-n", "2")
    )
    assert (run.status, run.counts()) == (0, {"passed": 2}), run.text
    assert "INTERNALERROR" not in run.text


STOPS = """
    import os, pathlib, signal, threading
    import pytest

    HERE = pathlib.Path(__file__).parent

    def pytest_configure(config):
        if getattr(config, "workerinput", {}).get("workerid") in os.environ["STOP"].split():
            os.kill(os.getpid(), signal.SIGSTOP)

    def pytest_sessionfinish(session):
        if not hasattr(session.config, "workerinput"):
            watch = any(each.name == "stragglers" for each in threading.enumerate())
            (HERE / "watch").write_text("yes" if watch else "no")
"""
SUITE = """
    from pytest_cloudbench.load import policy

    def pytest_configure(config):
        policy.adopt(config, config.rootpath / "suite")
"""
PLAIN = "def test_plain(): pass\n"


@pytest.mark.parametrize("source", ["an option", pytest.param("a suite", marks=pytest.mark.slow)])
def test_all_workers_stop_before_any_has_collected(lab: Lab, source: str) -> None:
    lab.write(STOPS, "conftest.py")
    (lab.folder / "suite").mkdir()
    lab.write(SUITE if source == "a suite" else "", "suite/conftest.py").write(PLAIN, "suite/test_plain.py")
    args = ["-ocloudbench_patience=2"]
    if source == "a suite":
        (lab.folder / "pytest.ini").write_text(f"[pytest]\naddopts = {' '.join(args)}\n")
        args = []
    run = lab.run("suite", "-n", "2", *args, env={"STOP": "gw0 gw1"})
    assert run.status == 0, run.text
    assert run.leftovers == []
    assert run.counts() == {"passed": 1}, "workers that replace them run it"
    for agent in ("gw0", "gw1"):
        assert run.lines_with(f"cloudbench: {agent} showed no sign of life for 2 s and was ended"), run.text


@pytest.mark.slow
def test_workers_that_stop_again_and_again_end_the_session(lab: Lab) -> None:
    lab.write(STOPS, "conftest.py").write(PLAIN)
    limit = ("--max-worker-restart", "1")
    run = lab.run("-n", "2", "-ocloudbench_patience=1", *limit, env={"STOP": "gw0 gw1 gw2 gw3"})
    assert run.status != 0, run.text
    assert run.leftovers == []
    for agent in ("gw0", "gw1", "gw2"):
        assert run.lines_with(f"cloudbench: {agent} showed no sign of life for 1 s and was ended"), run.text


def test_nobody_watches_workers_of_an_ordinary_session(lab: Lab) -> None:
    (lab.folder / "pytest.ini").write_text("[pytest]\ncloudbench_patience = 1\n")
    run = lab.write(STOPS, "conftest.py").write(PLAIN).run("-n", "2", env={"STOP": ""}, store=False)
    assert run.status == 0, run.text
    assert (lab.folder / "watch").read_text() == "no"
