"""Sessions with -x, --lf, -k, ordinary tests beside experiments, and Ctrl-C."""

from __future__ import annotations

import os
import signal
import urllib.parse
from contextlib import nullcontext

import pytest

from pytest_cloudbench.judge.records import OpTable
from pytest_cloudbench.model import Op, Outcome, Verb
from tests.runs import SPREAD, Spread

from .harness import FOLDER, IDEAL, FinishedRun, Lab, grid, keys, outcomes

THREE = """
    def upload(experiment, payloads):
        experiment.run(payloads.random(50), arrival=FixedInterval(0.01), sensors=4, ops_per_sensor=2).check()

    def test_good(experiment, payloads):
        upload(experiment, payloads)

    def test_bad(experiment, payloads):
        upload(experiment, payloads)
        assert (HERE / "mended").exists(), "not mended yet"

    def test_later(experiment, payloads):
        upload(experiment, payloads)

    def test_last(experiment, payloads):
        upload(experiment, payloads)
"""


@pytest.mark.slow
@SPREAD
def test_tokens_issued_during_a_run_appear_in_no_report(lab: Lab, spread: Spread) -> None:
    """A test prints a token in several encodings. Neither the terminal nor the JUnit file shows it."""
    lab.write(
        """
    import base64, logging, urllib.parse
    from pytest_cloudbench.support import redact

    def test_echo(experiment, fleet):
        token = f"sl.u.{fleet.name}/of+an+agent"
        redact.learn([token])
        print("out", urllib.parse.quote(token, safe=""))
        logging.getLogger("http").warning("log %s", base64.b64encode(b"app:" + token.encode()).decode())
        assert token.encode().hex() == "", token
    """
    )
    run = lab.run(*FOLDER, *spread, "--junitxml=junit.xml", "-o", "junit_logging=all", "--showlocals", "-vv")
    assert run.counts() == {"failed": 1}
    for text in (run.text, next(lab.folder.rglob("junit.xml")).read_text()):
        assert "out ***" in text
        assert "log YXBw" in text
        for agent in ("main", "gw0", "gw1"):
            token = f"sl.u.{agent}/of+an+agent"
            for form in (token, urllib.parse.quote(token, safe=""), token.encode().hex(), "L29mK2FuK2FnZW50"):
                assert form not in text


@pytest.mark.slow
@SPREAD
def test_issued_tokens_appear_in_no_log_warning_or_internal_error(lab: Lab, spread: Spread) -> None:
    """Live logs, the log file, the summary of warnings and pytest's own crash are searched as well."""
    lab.write(
        """
    import os
    import pytest

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(nodeid):
        if "CRASH" in os.environ:
            raise RuntimeError("internal " + bytes.fromhex("736c2e752e2f6f662b616e2b6167656e74").decode())
    """,
        "conftest.py",
    ).write(
        """
    import logging, warnings
    from pytest_cloudbench.support import redact

    def test_echo(experiment):
        token = bytes.fromhex("736c2e752e2f6f662b616e2b6167656e74").decode()
        redact.learn([token])
        log = logging.getLogger("http")
        warnings.warn(f"warned {token}")
        log.warning("log %s %d", token, 1)
        try:
            raise ValueError(token)
        except ValueError:
            log.exception("failed with %(body)s", {"body": token})
    """
    )
    log_options = ("--log-cli-level=DEBUG", "--log-file=log.txt", "--log-file-level=DEBUG")
    run = lab.run(*FOLDER, *spread, *log_options)
    crashed = lab.run(*FOLDER, *spread, env={"CRASH": "1"})
    assert (run.status, crashed.status) == (0, 3)
    assert "INTERNALERROR> RuntimeError: internal ***" in crashed.text
    assert "UserWarning: warned ***" in run.text
    log = "" if spread else (lab.folder / "log.txt").read_text()  # agents' logs are not shown
    for text in (run.text, log) if log else ():
        assert "log *** 1" in text
        assert "failed with ***" in text
        assert "ValueError: ***" in text
    for text in (run.text, crashed.text, log):
        assert "/of+an+agent" not in text


@pytest.mark.slow
@SPREAD
@pytest.mark.parametrize("option", ["-x", "--maxfail=2"])
def test_the_first_failures_stop_the_session(lab: Lab, spread: Spread, option: str) -> None:
    if option != "-x" and not spread:
        pytest.skip("pytest's own affair")
    lab.write(
        THREE
        + """
    def test_bad_too(experiment, payloads):
        assert False

    def test_never(experiment, payloads):
        upload(experiment, payloads)
    """
    )
    run = lab.run(*FOLDER, *spread, option)
    assert run.status in {1, 2}, run.text
    assert run.leftovers == []
    counts = run.counts()
    if option == "-x":
        assert (counts["passed"], counts["failed"]) == (1, 1)
        assert set(run.records()) == {"test_good", "test_bad"}
    else:
        assert (counts["passed"], counts["failed"]) == (3, 2)
        assert set(run.records()) == {"test_good", "test_bad", "test_later", "test_last"}
    assert run.lines_with("stopping after")
    assert "INTERNALERROR" not in run.text


@pytest.mark.slow
def test_last_failed_and_selections(lab: Lab) -> None:
    lab.write(THREE)
    first = lab.run(*FOLDER, "-n", "2", "cacheprovider", "-rA")
    assert first.status == 1, first.text
    assert outcomes(first.text) == {"PASSED": 3, "FAILED": 1}
    assert len(first.lines_with("E       AssertionError: not mended yet")) == 1
    assert len(first.lines_with("(the same on 2 of 2 agents)")) == 1
    assert "test_bad[folder:objects]" in first.entries, "it was measured all the same"
    (lab.folder / "mended").touch()
    again = lab.run(*FOLDER, "-n", "2", "--lf", "-rA")
    assert again.status == 0, again.text
    assert outcomes(again.text) == {"PASSED": 1}
    assert set(again.entries) == {"test_bad[folder:objects]"}
    selected = lab.run(*FOLDER, "-n", "2", "-k", "good or last", "--deselect", "test_it.py::test_last[folder:objects]")
    assert selected.status == 0, selected.text
    assert set(selected.entries) == {"test_good[folder:objects]"}
    assert (first.leftovers, again.leftovers, selected.leftovers) == ([], [], [])


ORDINARY = """
    @pytest.mark.parametrize("number", range(12))
    def test_ordinary(number):
        with open(HERE / "ran.txt", "a") as file:
            file.write(f"{number} {os.environ.get('PYTEST_XDIST_WORKER')} {time.monotonic_ns()}\\n")
        time.sleep(0.05)  # long enough that each worker gets some

    def test_stock(benchmark):
        with open(HERE / "stock.txt", "a") as file:
            file.write(f"{os.environ.get('PYTEST_XDIST_WORKER')} {time.monotonic_ns()}\\n")
        assert benchmark(lambda: 7) == 7
        with open(HERE / "stock.txt", "a") as file:
            file.write(f"{os.environ.get('PYTEST_XDIST_WORKER')} {time.monotonic_ns()}\\n")
"""


def test_ordinary_tests_and_stock_benchmarks_beside_experiments(lab: Lab) -> None:
    lab.write(ORDINARY, "test_ordinary.py").write(
        THREE
        + """
    def test_stock_too(benchmark):
        benchmark.pedantic(lambda: None, rounds=7)
    """
    )
    (lab.folder / "mended").touch()
    run = lab.run(*FOLDER, "-n", "3", "-rA")
    assert run.status == 0, run.text
    assert run.leftovers == []
    assert run.counts()["passed"] == 18
    assert outcomes(run.text) == {"PASSED": 18}
    rows = [line.split() for line in (lab.folder / "ran.txt").read_text().splitlines()]
    assert sorted(int(number) for number, _, _ in rows) == list(range(12)), "each exactly once"
    assert len({worker for _, worker, _ in rows}) > 1, "spread over the workers"
    stock_rows = [line.split() for line in (lab.folder / "stock.txt").read_text().splitlines()]
    assert len(stock_rows) == 2, "once, on one worker"
    assert max(int(when) for _, _, when in rows) < int(stock_rows[0][1]), "alone: after the distributed tests"
    assert run.entries["test_stock"]["stats"]["rounds"] > 1
    assert run.entries["test_stock_too"]["stats"]["rounds"] == 7
    assert run.entries["test_stock"]["fullname"] == "test_ordinary.py::test_stock"
    assert len(run.entries) == 6
    assert keys(run.records()["test_good"]) == grid(4, 2)


SOLO = """
    @pytest.fixture
    def mine():
        (HERE / f"solo-{os.getpid()}").touch()

    def test_solo(benchmark, mine):
        if (HERE / "forever").exists():
            threading.Event().wait()
        benchmark.pedantic(time.sleep, args=(4,), rounds=1)

    def test_after(experiment, payloads):
        experiment.run(payloads.random(50), arrival=FixedInterval(0.01), sensors=4, ops_per_sensor=2).check()
"""


@pytest.mark.slow
def test_a_long_stock_benchmark_is_no_straggler(lab: Lab) -> None:
    run = lab.write(SOLO).run(*FOLDER, "-n", "2", "-ocloudbench_patience=2")
    assert run.status == 0, run.text
    assert run.leftovers == []
    assert run.counts()["passed"] == 2
    assert run.entries["test_solo"]["stats"]["min"] >= 4
    assert run.info("test_after[folder:objects]")["missing_agents"] == {}


@pytest.mark.slow
def test_the_agent_of_a_stock_benchmark_is_lost(lab: Lab) -> None:
    (lab.folder / "forever").touch()
    running = lab.write(SOLO).start(*FOLDER, "-n", "2")
    path = running.wait_for("the benchmark", lambda: next(lab.folder.glob("solo-*"), None))
    os.kill(int(path.name.removeprefix("solo-")), signal.SIGKILL)
    run = running.end()
    assert run.status == 1, run.text
    assert run.leftovers == []
    assert (run.counts()["failed"], run.counts()["passed"]) == (1, 1)
    assert len(run.lines_with("FAILED test_it.py::test_solo - agent gw")) == 1
    assert len(list(lab.folder.glob("solo-*"))) == 1, "it is not tried again"
    assert keys(run.records()["test_after"]) == grid(4, 2)


@pytest.mark.slow
def test_an_ordinary_test_that_crashes_its_worker_fails_alone(lab: Lab) -> None:
    run = lab.write(
        THREE
        + """
    def test_crash():
        os.kill(os.getpid(), signal.SIGKILL)
    """
    ).run(*FOLDER, "-n", "2", "-k", "crash or good or later")
    assert run.status == 1, run.text
    assert run.leftovers == []
    assert (run.counts()["failed"], run.counts()["passed"]) == (1, 2)
    assert len(run.lines_with("FAILED test_it.py::test_crash")) == 1
    assert all(keys(run.records()[test]) == grid(4, 2) for test in ("test_good", "test_later"))


@pytest.mark.slow
def test_a_session_without_experiments_is_xdists_own(lab: Lab) -> None:
    run = lab.write(ORDINARY, "test_ordinary.py").run("-n", "2", "-v")
    assert run.status == 0, run.text
    assert run.counts()["passed"] == 13
    assert run.entries == {}, "stock benchmarks stay off, as usual under xdist"
    assert len((lab.folder / "ran.txt").read_text().splitlines()) == 12
    assert "cloudbench:" not in run.text
    assert not (lab.folder / "results").exists()
    grouped = lab.run("-n", "2", "-v", "--dist", "loadfile")
    assert grouped.status == 0, grouped.text
    assert len({line.split()[0] for line in grouped.lines_with("PASSED")}) == 1, "one file is one worker's"


def test_a_fixture_alone_does_not_switch_stock_benchmarks_on(lab: Lab) -> None:
    lab.write("""
        def test_bytes(payloads):
            assert payloads.random(5).content(0, 0).size_bytes == 5

        def test_stock(benchmark):
            benchmark(sum, [1, 2])
    """)
    run = lab.run("-n", "1")
    assert run.status == 0, run.text
    assert run.counts()["passed"] == 2
    assert run.entries == {}, "as usual under xdist: no item of this session uses the fleet"


ENDLESS = """
    def test_first(experiment, payloads):
        experiment.run(payloads.random(50), arrival=FixedInterval(0.01), sensors=2, ops_per_sensor=2).check()

    def test_long(experiment, payloads, fleet):
        told(fleet)
        experiment.run(payloads.random(50), arrival=FixedInterval(0.05), sensors=4, ops_per_sensor=4000).check()

    def test_never(experiment, payloads):
        experiment.run(payloads.random(50), arrival=FixedInterval(0.01), sensors=2, ops_per_sensor=2).check()
"""


def check_holes(table: OpTable) -> None:
    """Check that every finished operation is recorded, so that no sensor's sequence has a hole.

    A late engine has several operations due at once, and the end may come between two of them. A hole that was due
    shortly before the end, within the measured lateness, is therefore an operation that was not tried.
    """
    rows = list(zip(table.sensor, table.seq, table.scheduled_ns, table.start_ns, strict=True))
    late_ns, last_ns = max(start - due for *_, due, start in rows), max(table.start_ns)
    for sensor in range(4):
        due_ns = {seq: due for owner, seq, due, _ in rows if owner == sensor}
        for seq in set(range(max(due_ns))) - due_ns.keys():
            hole_ns = due_ns[max(due_ns)] - (max(due_ns) - seq) * 50_000_000
            assert last_ns - hole_ns <= 50_000_000 + 2 * late_ns, f"sensor {sensor} has no record {seq}"


@pytest.mark.parametrize(("hole", "is_found"), [(40, True), (98, False)])
def test_a_record_that_is_lost_is_found(hole: int, is_found: bool) -> None:
    ops = [
        Op(Verb.PUT, sensor, seq, 0, 50_000_000 * seq, 50_000_000 * seq + 30_000_000, 0, 10**10, 50, Outcome.OK)
        for sensor, seq in grid(4, 100)
        if (sensor, seq) != (1, hole)
    ]
    with pytest.raises(AssertionError, match="sensor 1 has no record 40") if is_found else nullcontext():
        check_holes(OpTable.of(ops))


def check_interrupted(run: FinishedRun, provider: str) -> None:
    assert run.status == 2, run.text
    assert run.leftovers == []
    assert "KeyboardInterrupt" in run.text
    assert "INTERNALERROR" not in run.text
    assert run.duration_s < 45
    assert run.logs() == []
    records = run.records()
    assert set(records) == {"test_first", "test_long"}
    records_done = keys(records["test_long"])
    assert len(records_done) == len(set(records_done)) >= 40
    info = run.info(f"test_long[{provider}]")
    assert "interrupted" in info["doubts"]
    assert info["ops"] == len(records_done)
    assert any(f"{16000 - len(records_done)} of 16000 operations were not tried" == doubt for doubt in info["doubts"])
    assert info["missing_agents"] == {}
    check_holes(records["test_long"])
    assert run.info(f"test_first[{provider}]")["doubts"] == []


@pytest.mark.slow
@SPREAD
@pytest.mark.parametrize("group", [True, False], ids=["group", "controller"])
def test_ctrl_c(lab: Lab, spread: Spread, group: bool) -> None:
    if group and not spread:
        pytest.skip("one process is the group")
    running = lab.write(ENDLESS).start(*FOLDER, *spread)
    for agent in ("gw0", "gw1") if spread else ("main",):
        running.wait_for_records(agent, "test_long", 40)
    running.interrupt(group)
    check_interrupted(running.end(), "folder:objects")


@pytest.mark.slow
def test_ctrl_c_ends_the_emulator(lab: Lab) -> None:
    running = lab.write(ENDLESS).start(*IDEAL, "-n", "2")
    for agent in ("gw0", "gw1"):
        running.wait_for_records(agent, "test_long", 20)
    running.interrupt(group=True)
    check_interrupted(running.end(), "emulated:ideal")
