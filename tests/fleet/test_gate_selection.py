"""Tests that a gate judges, with hooks that deselect, plugins that rerun, and other root folders."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.runs import SPREAD, Spread

from .harness import PRELUDE, FinishedRun, Lab
from .test_gate_facts import FAULTY_STORE, GATE, STRICT_SETTINGS, accept_last
from .test_regression_gate import find_stored_runs, times, write_history

TESTS = """
    def run(experiment, payloads, **more):
        return experiment.run(payloads.random(100), arrival=FixedInterval(0.01), sensors=2, ops_per_sensor=3, **more)

    def test_put(experiment, payloads):
        run(experiment, payloads)

    @pytest.mark.flaky(reruns=2)
    def test_flaky(experiment, payloads):
        run(experiment, payloads)

    def test_ends_the_session():
        pytest.exit("enough", returncode=0)

    def test_fails():
        assert False

    def test_plain():
        pass
"""
BROKEN = "gate broken: silent_loss_rate: 1 of 6"


def write_suite(lab: Lab, conftest: str = "") -> Lab:
    (lab.folder / "pyproject.toml").write_text(STRICT_SETTINGS)
    (lab.folder / "conftest.py").write_text(textwrap.dedent(FAULTY_STORE) + textwrap.dedent(conftest))
    return lab.write(TESTS)


def run_losing(lab: Lab, *options: str) -> FinishedRun:
    """Run a session that loses one file, in its first experiment."""
    (lab.folder / "lose-0").touch()
    run = lab.run(*GATE, *options)
    assert not (lab.folder / "lose-0").exists()
    return run


# --- plugins that run a test again ---

RERUNS = """
    import pytest
    from _pytest.runner import runtestprotocol

    class Reruns:
        # Until it passes, as pytest-rerunfailures does.
        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_protocol(self, item, nextitem):
            item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
            for attempt in range(3):
                reports = runtestprotocol(item, log=False, nextitem=nextitem)
                if attempt and not any(report.failed for report in reports):
                    break
            for report in reports:
                item.ihook.pytest_runtest_logreport(report=report)
            item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
            return True
"""
FIRST = """
    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(session):
        session.config.pluginmanager.register(Reruns())
"""
AROUND = """
    import pytest

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(item, nextitem):
        result = yield
        if hasattr(item, "was_run"):
            return result
        item.was_run = True
        return item.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
"""
TWICE = {"from the start": RERUNS + "\n    pytest_runtest_protocol = Reruns().pytest_runtest_protocol\n",
         "around all others": AROUND}  # fmt: skip


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("way", TWICE)
@SPREAD
def test_second_attempt_does_not_hide_losses_of_the_first(lab: Lab, way: str, spread: Spread) -> None:
    run = run_losing(write_suite(lab, TWICE[way]), "-k", "test_put[", *spread)
    assert (run.status, run.counts()["failed"]) == (1, 1), run.text
    assert run.lines_with(BROKEN)
    again = lab.run(*GATE, "-k", "test_put[", *spread)
    assert again.lines_with("gate inconclusive: baseline 0 of 10 (the stored run failed only at the gate)"), again.text


@pytest.mark.quick_cases(1)
@SPREAD
def test_a_plugin_that_runs_experiments_by_itself_gets_no_result(lab: Lab, spread: Spread) -> None:
    """Without the meetings of all agents, each agent would wait for ever, whatever the plugin does."""
    run = write_suite(lab, RERUNS + FIRST).run(*GATE, "-k", "test_put[", *spread)
    assert run.status == 1, run.text
    assert run.lines_with(
        "another plugin runs this test by itself (in pytest_runtest_protocol), so that no agent began"
    )
    assert run.lines_with("cloudbench: gate: no experiment was measured, so nothing was judged")


@pytest.mark.slow
@pytest.mark.parametrize("options", [("--reruns", "2", "-k", "test_put["), ("-k", "test_flaky[")])
@SPREAD
def test_reruns_of_pytest_rerunfailures_do_not_hide_losses(lab: Lab, options: tuple[str, ...], spread: Spread) -> None:
    pytest.importorskip("pytest_rerunfailures")
    run = run_losing(write_suite(lab), *options, *spread)
    assert (run.status, run.counts()["failed"]) == (1, 1), run.text
    assert run.lines_with(BROKEN)
    again = lab.run(*GATE, *options, *spread)
    assert again.lines_with("gate inconclusive: baseline 0 of 10 (the stored run failed only at the gate)"), again.text


@pytest.mark.slow
def test_failed_tests_alone_are_measured_anew_and_judged_alone(lab: Lab) -> None:
    write_suite(lab)
    assert run_losing(lab, "cacheprovider", "-k", "test_put[ or test_flaky[").status == 1
    run = run_losing(lab, "--lf")
    counts = run.counts()  # a warning, too, where nobody registers the mark "flaky"
    assert (run.status, counts["failed"], counts.get("passed")) == (1, 1, None), run.text
    assert run.lines_with(BROKEN)


@pytest.mark.parametrize("ending", ["test_ends_the_session", "test_fails"])
def test_session_that_ends_early_reports_losses(lab: Lab, ending: str) -> None:
    run = run_losing(write_suite(lab), "-x", "-k", f"test_put[ or {ending}")
    assert run.status == 1, run.text
    assert run.lines_with(f"{BROKEN}: it was not measured again")


UNFINISHED = """
    import threading
    from pathlib import Path
    import pytest

    WITH_HISTORY = ["quiet_p50", "quiet_p99", "response_p50", "failed_rate", "throttled_rate", "loss_rate",
                    "requests_per_op", "payload_bytes_per_op"]

    @pytest.mark.cloudbench_gate(**dict.fromkeys(WITH_HISTORY))
    def test_unfinished(experiment, payloads):
        experiment.run(payloads.random(100), arrival=FixedInterval(0.01), sensors=2, ops_per_sensor=3, label="first")
        Path("measured").touch()
        threading.Event().wait()
"""


@pytest.mark.parametrize(("loses", "answer"), [(False, None), (True, "broken")])
def test_what_an_interrupted_test_has_measured_is_not_met(lab: Lab, loses: bool, answer: str | None) -> None:
    write_suite(lab).write(UNFINISHED)
    if loses:
        (lab.folder / "lose-0").touch()
    running = lab.start(*GATE)
    running.wait_for("the first experiment", (lab.folder / "measured").exists)
    running.interrupt(group=True)
    run = running.end()
    assert run.status == 2, run.text
    (stored,) = json.loads((lab.folder / "out.json").read_text())["benchmarks"]
    assert stored["extra_info"].get("gate", {}).get("answer") == answer
    assert bool(run.lines_with("met ")) is False, run.text
    assert bool(run.lines_with(BROKEN)) is loses


# --- hooks that deselect ---

DESELECTING = """
    def pytest_collection_modifyitems(config, items):
        experiments = [item for item in items if "experiment" in item.fixturenames]
        items[:] = [item for item in items if item not in experiments]
"""
UNSEEN = """
    collect_ignore = ["test_it.py"]
"""


@pytest.mark.quick_cases(1)
@SPREAD
def test_gate_reports_that_all_experiments_were_deselected(lab: Lab, spread: Spread) -> None:
    assert run_losing(write_suite(lab), "-k", "test_put[", *spread).status == 1
    write_suite(lab, DESELECTING)
    deselection = ("--deselect", "test_it.py::test_fails", "--deselect", "test_it.py::test_ends_the_session")
    run = lab.run(*GATE, *deselection, *spread)
    assert (run.status, run.counts()["passed"]) == (0, 1), run.text
    assert run.lines_with("cloudbench: gate: all 2 experiments were deselected, so nothing was judged")
    assert run.lines_with("not measured here, and broken when they last were: test_it.py::test_put[folder:objects]")


def test_a_test_whose_broken_run_was_accepted_is_not_named_as_broken(lab: Lab) -> None:
    assert run_losing(write_suite(lab), "-k", "test_put[").status == 1
    accept_last(lab)
    run = lab.run(*GATE, "-k", "test_plain")
    assert run.counts()["passed"] == 1, run.text
    assert not run.lines_with("broken when they last were")


@pytest.mark.quick_cases(1)
@SPREAD
def test_strict_gate_fails_if_a_hook_deselects_all_experiments(lab: Lab, spread: Spread) -> None:
    write_suite(lab, DESELECTING).write("def test_it(experiment): pass\n\ndef test_plain(): pass\n")
    run = lab.run(*GATE, "--cloudbench-gate-strict", *spread)
    assert (run.status, run.counts()["passed"]) == (6, 1), run.text
    assert run.lines_with("cloudbench: gate: the only experiment was deselected, so nothing was judged")
    run = lab.run(*GATE, "--cloudbench-gate-strict", "-k", "test_plain", *spread)
    assert run.status == 0, "the user has chosen"
    assert run.lines_with("cloudbench: gate: the only experiment was deselected, so nothing was judged")


@pytest.mark.slow
@SPREAD
def test_gate_without_any_experiment_warns(lab: Lab, spread: Spread) -> None:
    assert run_losing(write_suite(lab), "-k", "test_put[", *spread).status == 1
    write_suite(lab, UNSEEN)
    (lab.folder / "test_other.py").write_text("def test_plain(): pass\n")
    run = lab.run(*GATE, *spread)
    assert run.counts() == {"passed": 1}, run.text
    assert run.lines_with("cloudbench: gate: no test in this run measures anything, so nothing was judged")
    assert run.lines_with("not measured here, and broken when they last were: test_it.py::test_put[folder:objects]")
    assert not lab.run(*GATE, "--collect-only").lines_with("nothing was judged")


NO_METRIC = """
    def test_knee(experiment, payloads):
        experiment.run(payloads.random(100), arrival=FixedInterval(0.01), sensors=1, ops_per_sensor=2, store=False)
        experiment.conclude({"knee": 3}, [1.0], stats_of="a search", columns=["knee"])
"""


@SPREAD
def test_an_experiment_without_any_metric_to_judge_is_not_green(lab: Lab, spread: Spread) -> None:
    run = lab.write(NO_METRIC).run(*GATE, "--cloudbench-gate-strict", *spread)
    assert (run.status, run.counts()) == (6, {"passed": 1}), run.text
    assert run.lines_with("gate: no experiment has a metric that the gate judges, so nothing was judged")


def test_an_experiment_without_any_metric_to_judge_is_named_beside_others(lab: Lab) -> None:
    run = write_suite(lab).write(TESTS + NO_METRIC).run(*GATE, "-k", "test_knee or test_put[")
    assert run.counts()["passed"] == 1, run.text
    assert run.lines_with("not judged, because the gate judges none of its metrics: test_it.py::test_knee[folder:obj")


# --- other root folders ---


@pytest.fixture
def nested(lab: Lab) -> Lab:
    """A project with a history of a test in its subfolder."""
    (lab.folder / "pytest.ini").unlink()
    (lab.folder / "pyproject.toml").write_text(f"[tool.pytest.ini_options]\n{STRICT_SETTINGS}")
    (lab.folder / "sub").mkdir()
    (lab.folder / "sub" / "test_it.py").write_text(PRELUDE + textwrap.dedent(TESTS))
    lab.run(*GATE, "-k", "test_put[")
    write_history(lab, {"test_put": times(1e5)})
    assert lab.run(*GATE, "-k", "test_put[").counts()["passed"] == 1
    assert len(find_stored_runs(lab)) == 13
    return lab


def run_in_subfolder(lab: Lab, *options: str) -> FinishedRun:
    outer_folder, lab.folder = lab.folder, lab.folder / "sub"
    try:
        return lab.run(*options)
    finally:
        lab.folder = outer_folder


@pytest.mark.slow
def test_root_folder_that_hides_the_history_is_named(nested: Lab) -> None:
    (nested.folder / "sub" / "pytest.ini").write_text("[pytest]\n")
    run = nested.run(*GATE, "-k", "test_put[", "sub")
    assert run.lines_with(
        "gate inconclusive: baseline 0 of 10 (13 runs of sub/test_it.py::test_put[folder:objects] are in results: "
        "pytest's root folder is sub, because of sub/pytest.ini)"
    ), run.text
    assert run.lines_with(
        "cloudbench: gate: the settings in pyproject.toml are not used: pytest's root folder is sub, because of"
    )


def test_storage_that_hides_the_history_is_named(nested: Lab) -> None:
    (nested.folder / "sub" / "pytest.ini").write_text("[pytest]\n")
    for count in range(2):
        run = run_in_subfolder(nested, *GATE, "-k", "test_put[")
        assert run.lines_with(
            f"gate inconclusive: baseline {count} of 10 (13 runs of sub/test_it.py::test_put[folder:objects] are in "
            "../results, and those of this session in results: pytest's root folder is ., because of pytest.ini)"
        ), run.text
    assert run.lines_with("cloudbench: gate: the settings in ../pyproject.toml are not used: pytest's root folder is .")


@pytest.mark.slow
def test_settings_of_a_subfolder_that_is_not_the_root_folder_are_named(nested: Lab) -> None:
    (nested.folder / "sub" / "pyproject.toml").write_text("[tool.cloudbench.gate]\np50 = 0.01\n")
    starts: list[Callable[..., FinishedRun]] = [nested.run, lambda *options: run_in_subfolder(nested, *options)]
    for start, path in zip(starts, ("sub/pyproject.toml", "pyproject.toml"), strict=True):
        arguments = ["sub"] if start == nested.run else []
        run = start(*GATE, "-k", "test_put[", *arguments)
        assert run.counts()["passed"] == 1, run.text
        assert run.lines_with(f"cloudbench: gate: the settings in {path} are not used: pytest's root folder is ")


@pytest.mark.slow
def test_project_with_its_own_settings_and_runs_gets_no_hint(nested: Lab) -> None:
    for path in Path(nested.folder / "results").rglob("*.json"):
        path.unlink()
    (nested.folder / "sub" / "pyproject.toml").write_text(f"[tool.pytest.ini_options]\n{STRICT_SETTINGS}")
    run = run_in_subfolder(nested, *GATE, "-k", "test_put[")
    assert run.lines_with("gate inconclusive: baseline 0 of 10")
    assert not run.lines_with("root folder")
