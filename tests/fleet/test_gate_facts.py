"""Losses that break the regression gate whatever the repetitions say, and tests that were renamed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from pytest_cloudbench.commands.cli import main
from tests.runs import SPREAD, Spread

from .harness import FOLDER, FinishedRun, Lab
from .test_regression_gate import HISTORY, SETTINGS, entry, times, write_history

GATE = (*FOLDER, "--cloudbench-gate", "-rs")
STRICT_SETTINGS = SETTINGS.replace("corrupt_rate = 0.5\n", "")
"""Settings in which the user allows no corrupt content."""
TESTS = """
    from dataclasses import dataclass
    from typing import Any

    from pytest_cloudbench.model import Verb

    def run(experiment, payload, **more):
        return experiment.run(payload, arrival=FixedInterval(0.01), sensors=2, ops_per_sensor=3, **more)

    def test_put(experiment, payloads):
        run(experiment, payloads.random(100))

    def test_get(experiment, payloads):
        run(experiment, payloads.random(100), operation=Verb.GET)

    @dataclass
    class Slow:
        payload: Any
        size_bytes: int = 100

        def content(self, sensor, seq):
            if (HERE / "late").exists():
                time.sleep(2)
            return self.payload.content(sensor, seq)

    def test_late(experiment, payloads):
        run(experiment, Slow(payloads.random(100)))
"""
FAULTY_STORE = """
    import os
    from pathlib import Path
    from pytest_cloudbench.drivers.folder import FolderDriver

    HERE, put, get = Path(__file__).parent, FolderDriver.put, FolderDriver.get

    def is_due(fault):
        # Each file stands for one fault that has not happened yet.
        for path in HERE.glob(f"{fault}-*"):
            try:
                path.unlink()
                return True
            except FileNotFoundError:
                continue
        return False

    def faulty_put(self, path, content):
        entry = put(self, path, content)
        if not path.endswith("/cloudbench-run") and is_due("lose"):  # that one marks the run's folder
            self.delete(path)
        return entry

    def faulty_get(self, path, offset=0):
        content = b"".join(get(self, path, offset))
        yield bytes([content[0] ^ 1]) + content[1:] if content and is_due("damage") else content

    FolderDriver.put, FolderDriver.get = faulty_put, faulty_get
"""
FACTS = pytest.mark.parametrize(
    ("test", "fault", "metric"), [("test_put", "lose", "silent_loss_rate"), ("test_get", "damage", "corrupt_rate")]
)


def write_faulty_suite(lab: Lab, settings: str = STRICT_SETTINGS) -> Lab:
    (lab.folder / "pyproject.toml").write_text(settings)
    lab.write(FAULTY_STORE, "conftest.py")
    return lab.write(TESTS)


def run_session(lab: Lab, test: str, *options: str, **faults: int) -> FinishedRun:
    """Run a session of one test in which so many faults of each kind happen, as soon as they can."""
    for fault, count in faults.items():
        for number in range(count):
            (lab.folder / f"{fault}-{number}").touch()
    run = lab.run(*GATE, "-k", test, *options)
    assert not [path for fault in faults for path in lab.folder.glob(f"{fault}-*")], "all have happened"
    return run


def accept_last(lab: Lab) -> None:
    storage = str(lab.folder / "results")
    assert main(["baseline", "accept", "last", "--reason", "known", "--storage", storage]) == 0


@pytest.mark.slow
@FACTS
def test_single_loss_breaks_gate_despite_three_clean_repetitions(lab: Lab, test: str, fault: str, metric: str) -> None:
    run_session(write_faulty_suite(lab), test)
    write_history(lab, {test: times(1e5)})
    for _ in range(2):  # a red run is no baseline for the next one
        run = run_session(lab, test, **{fault: 1})
        assert (run.status, run.counts()) == (1, {"failed": 1, "deselected": 2}), run.text
        assert run.lines_with(f"gate broken: {metric}: 1 of 6: not in 3 repetitions: intermittent; ")
        gate = entry(run, test)["gate"]
        assert (gate["answer"], gate["runs"], len(gate["again"])) == ("broken", 12, 3)
    assert run_session(lab, test).counts() == {"passed": 1, "deselected": 2}, "and it is over when it is over"


@pytest.mark.quick_cases(1)
@FACTS
@SPREAD
def test_loss_breaks_gate_in_the_first_session(lab: Lab, test: str, fault: str, metric: str, spread: Spread) -> None:
    run = run_session(write_faulty_suite(lab), test, *spread, **{fault: 2})
    assert run.status == 1, run.text
    assert run.lines_with(
        f"gate broken: {metric}: 2 of 6: not in 3 repetitions: intermittent; its commits are not known"
    )


@pytest.mark.quick_cases(1)
@FACTS
def test_repetitions_with_the_same_loss_are_counted(lab: Lab, test: str, fault: str, metric: str) -> None:
    run = run_session(write_faulty_suite(lab), test, **{fault: 6 * 4})
    assert run.lines_with(f"gate broken: {metric}: 6 of 6: in 3 of 3 repetitions, too; ")


@pytest.mark.quick_cases(1)
@FACTS
def test_loss_breaks_any_bound_unless_the_user_allows_it(lab: Lab, test: str, fault: str, metric: str) -> None:
    def run(bound: str) -> FinishedRun:
        (lab.folder / f"{fault}-0").touch()
        return lab.run(*FOLDER, "-k", test, "--cloudbench-fail", bound)

    write_faulty_suite(lab)
    broken = run("response_p50:50")
    assert (broken.status, broken.counts()) == (1, {"failed": 1, "deselected": 2}), broken.text
    assert broken.lines_with(f"gate {metric}: 0.166667, which no bound allows; ")
    assert run(f"{metric}:0.5").status == 0, "the user's own bound"
    assert run(f"{metric}:0.1").status == 1


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("metric", "bound", "status"),
    [("silent_loss_rate", "at_most = 0.1", 1), ("loss_rate", "at_least = 0.0", 1), ("loss_rate", "at_most = 0.5", 0)],
)
def test_a_recorded_bound_allows_a_loss_only_within_it(lab: Lab, metric: str, bound: str, status: int) -> None:
    claim = ["[[expect]]", 'provider = "folder:objects"', f'metric = "{metric}"', bound, 'source = "us"']
    write_faulty_suite(lab).write("\n".join([*claim, "date = 2026-11-30"]), "expectations.toml")
    (lab.folder / "lose-0").touch()
    claims = "-ocloudbench_expectations=expectations.toml"
    run = lab.run(*FOLDER, "-k", "test_put", claims, "--cloudbench-fail", "response_p50:50")
    assert run.status == status, run.text
    assert bool(run.lines_with("gate silent_loss_rate: 0.166667, which no bound allows; ")) == bool(status)


def test_loss_breaks_gate_without_any_repetition(lab: Lab) -> None:
    run = run_session(write_faulty_suite(lab), "test_put", "-ocloudbench_gate_budget=0", lose=1)
    assert run.status == 1, run.text
    assert run.lines_with("gate broken: silent_loss_rate: 1 of 6: it was not measured again; ")
    (note,) = run.info("test_put[folder:objects]")["notes"][-1:]
    assert re.fullmatch(r"answered with success, but missing or changed at the end: [\w.-]+", note)


@pytest.mark.quick_cases(1)
@FACTS
def test_accepting_a_run_allows_only_as_many_losses(lab: Lab, test: str, fault: str, metric: str) -> None:
    assert run_session(write_faulty_suite(lab), test, **{fault: 1}).status == 1
    accept_last(lab)
    run = run_session(lab, test, **{fault: 1})
    assert (run.status, run.counts()) == (0, {"skipped": 1, "deselected": 2}), run.text
    assert run.lines_with("gate inconclusive: baseline 1 of 10")
    run = run_session(lab, test, **{fault: 2})
    assert run.status == 1, run.text
    assert run.lines_with(f"gate broken: {metric}: 2 of 6")


@pytest.mark.slow
def test_a_bound_of_the_users_allows_a_loss_up_to_it(lab: Lab) -> None:
    write_faulty_suite(lab, STRICT_SETTINGS + "silent_loss_rate = 0.2\n")
    assert run_session(lab, "test_put", lose=1).status == 0, "a sixth"
    run = run_session(lab, "test_put", lose=2)
    assert run.lines_with("gate broken: silent_loss_rate: 2 of 6"), run.text


CONCLUDED = """
    from pytest_cloudbench.model import Verb

    def conclude(experiment, payloads, operation):
        load = {"arrival": FixedInterval(0.01), "sensors": 2, "ops_per_sensor": 3}
        runs = [experiment.run(payloads.random(100), operation=operation, store=False, **load) for _ in range(2)]
        p50_s = max(run["response_p50"] for run in runs)
        experiment.conclude({"response_p50": p50_s}, [p50_s], stats_of="the slower run")

    def test_put(experiment, payloads):
        conclude(experiment, payloads, Verb.PUT)

    def test_get(experiment, payloads):
        conclude(experiment, payloads, Verb.GET)
"""


@pytest.mark.quick_cases(1)
@FACTS
def test_a_loss_in_one_run_breaks_each_gate_of_the_conclusion(lab: Lab, test: str, fault: str, metric: str) -> None:
    def run(*options: str) -> FinishedRun:
        return lab.run(*FOLDER, "-k", test, *options)

    write_faulty_suite(lab).write(CONCLUDED)
    bound = ("--cloudbench-fail", "response_p50:50")
    clean = run(*bound)
    assert (clean.status, entry(clean, test)[metric]) == (0, 0), clean.text
    (lab.folder / f"{fault}-0").touch()
    broken = run(*bound)
    assert broken.status == 1, broken.text
    assert broken.lines_with(f"gate {metric}: 0.0833333, which no bound allows; ")
    (lab.folder / f"{fault}-0").touch()
    assert run(*bound, "--cloudbench-fail", f"{metric}:0.1").status == 0, "the user's own bound"
    (lab.folder / f"{fault}-0").touch()
    gated = run("--cloudbench-gate", "-rs")
    assert gated.status == 1, gated.text
    assert gated.lines_with(f"gate broken: {metric}: "), gated.text


PREPARED = """
    from pytest_cloudbench.model import Verb

    def test_put(experiment, payloads):
        load = {"arrival": FixedInterval(0.01), "sensors": 2, "ops_per_sensor": 3}
        experiment.run(payloads.random(100), store=STORE, **load)
        measured = experiment.run(payloads.random(100), store=False, **load)
        p50_s = measured["response_p50"]
        experiment.conclude({"response_p50": p50_s}, [p50_s], stats_of="the second run", of=OF)
"""
"""A test whose conclusion does not combine all of its runs."""


def run_prepared(lab: Lab, *, store: str, of: str) -> FinishedRun:
    """Run a test that loses a file in its first run, which its conclusion leaves out."""
    write_faulty_suite(lab).write(PREPARED.replace("STORE", store).replace("OF", of))
    (lab.folder / "lose-0").touch()
    return lab.run(*FOLDER, "--cloudbench-fail", "response_p50:50")


@pytest.mark.parametrize(("of", "files"), [("[measured]", 12), ("[]", 12)], ids=["another run", "no run"])
def test_a_loss_before_the_runs_of_a_conclusion_breaks_its_gates(lab: Lab, of: str, files: int) -> None:
    run = run_prepared(lab, store="False", of=of)
    assert run.status == 1, run.text
    assert run.lines_with(f"gate silent_loss_rate: {1 / files:.6g}, which no bound allows; ")


def test_a_loss_in_a_run_with_an_entry_of_its_own_is_not_the_conclusions(lab: Lab) -> None:
    run = run_prepared(lab, store="True", of="[measured]")
    assert run.status == 1, run.text
    losses = {info["silent_loss_rate"] for info in (entry["extra_info"] for entry in run.document["benchmarks"])}
    assert losses == {1 / 6, 0.0}


WARM_UP = """
    from pytest_cloudbench.model import Verb

    def test_put(experiment, payloads):
        run(experiment, payloads, Verb.PUT)

    def test_get(experiment, payloads):
        run(experiment, payloads, Verb.GET)

    def run(experiment, payloads, operation):
        experiment.run(
            payloads.random(100), arrival=FixedInterval(0.2), sensors=2, ops_per_sensor=3, warm_up_s=0.1,
            operation=operation,
        )
"""


@FACTS
def test_a_loss_in_the_warm_up_leaves_no_gate_green(lab: Lab, test: str, fault: str, metric: str) -> None:
    write_faulty_suite(lab).write(WARM_UP)
    gates = (*FOLDER, "-k", test, "--cloudbench-fail", "failed_rate:0")
    clean = lab.run(*gates)
    assert (clean.status, entry(clean, test)["doubts"]) == (0, []), clean.text
    (lab.folder / f"{fault}-0").touch()
    broken = lab.run(*gates)
    assert entry(broken, test)[metric] == 0, "no metric counts the warm-up"
    assert entry(broken, test)["doubts"] == ["1 file of the warm-up was lost or changed, which no metric counts"]
    assert broken.status == 1, broken.text


# --- doubts about times ---


def run_late(lab: Lab, settings: str, **faults: int) -> FinishedRun:
    """Run a session whose engine is late, because its payloads take longer than the due times allow."""
    run_session(write_faulty_suite(lab, settings), "test_late")
    write_history(lab, {"test_late": times(1e5)})
    (lab.folder / "late").touch()
    run = run_session(lab, "test_late", "-ocloudbench_max_lateness=1", "-ocloudbench_gate_budget=0", **faults)
    assert any(doubt.startswith("engine saturated (") for doubt in entry(run, "test_late")["doubts"])
    return run


@pytest.mark.slow
def test_a_late_engine_leaves_times_open_and_says_why(lab: Lab) -> None:
    run = run_late(lab, STRICT_SETTINGS)
    assert (run.status, run.counts()) == (0, {"skipped": 1, "deselected": 2}), run.text
    assert run.lines_with("gate inconclusive: response_p50: doubts: engine saturated (lateness p99 ")


@pytest.mark.slow
def test_a_late_engine_leaves_counts_judged(lab: Lab) -> None:
    settings = STRICT_SETTINGS.replace('response_p50 = "10%"\n', "")
    run = run_late(lab, settings)
    assert (run.status, run.counts()) == (0, {"passed": 1, "deselected": 2}), run.text
    assert entry(run, "test_late")["gate"]["runs"] == 12
    (lab.folder / "late").unlink()
    assert entry(run_session(lab, "test_late"), "test_late")["gate"]["runs"] == 13, "and it is a baseline for counts"


@pytest.mark.slow
def test_a_late_engine_hides_no_loss(lab: Lab) -> None:
    run = run_late(lab, STRICT_SETTINGS, lose=1)
    for _ in range(2):  # a run that lost a file is no baseline for the next one, although its times alone are doubted
        assert run.status == 1, run.text
        assert run.lines_with("gate broken: silent_loss_rate: 1 of 6")
        assert entry(run, "test_late")["gate"]["runs"] == 12
        run = run_session(lab, "test_late", "-ocloudbench_max_lateness=1", "-ocloudbench_gate_budget=0", lose=1)


# --- other names ---

PARAMETRIZED = """
    @pytest.mark.parametrize("size_bytes", [100, 200])
    def {name}(experiment, payloads, size_bytes):
        experiment.run(payloads.random(size_bytes), arrival=FixedInterval(0.01), sensors=2, ops_per_sensor=3)
"""


def list_offered_commands(run: FinishedRun) -> list[list[str]]:
    """Return the commands that a session offers, each as a list of words."""
    return [
        shlex.split(match[1].rstrip(")")) for match in re.finditer(r"if that was its name:\s+(cloudbench .*)", run.text)
    ]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("file", ["test_it.py", "test_other_file.py"])
def test_a_renamed_test_is_offered_its_old_runs_and_takes_them_over(lab: Lab, file: str) -> None:
    (lab.folder / "pyproject.toml").write_text(SETTINGS)
    lab.write(PARAMETRIZED.format(name="test_upload")).run(*GATE)
    write_history(lab, {"test_upload": HISTORY["test_met"]})
    (lab.folder / "test_it.py").unlink()
    lab.write(PARAMETRIZED.format(name="test_uploads"), file)
    run = lab.run(*GATE)
    assert run.counts() == {"skipped": 2}, run.text
    (line, *_) = run.lines_with("gate inconclusive: baseline 0 of 10 (12 runs of test_it.py::test_upload[")
    assert " had the same conditions; if that was its name: cloudbench baseline rename " in line
    commands = list_offered_commands(run)
    words = ["cloudbench", "baseline", "rename", "test_it.py::test_upload", f"{file}::test_uploads"]
    assert commands
    assert all(command == words for command in commands), "the functions' names stand for all parameters"
    assert main([*words[1:], "--storage", str(lab.folder / "results")]) == 0
    run = lab.run(*GATE)
    assert run.counts() == {"passed": 2}, run.text
    assert [item["extra_info"]["gate"]["runs"] for item in run.document["benchmarks"]] == [13, 13], "one of its own"
    assert not list_offered_commands(run)


@pytest.mark.slow
def test_nothing_is_offered_of_a_test_that_is_still_there_or_of_other_conditions(lab: Lab) -> None:
    (lab.folder / "pyproject.toml").write_text(SETTINGS)
    lab.write(PARAMETRIZED.format(name="test_upload")).run(*GATE)
    write_history(lab, {"test_upload": HISTORY["test_met"]})
    both = PARAMETRIZED.format(name="test_upload") + PARAMETRIZED.format(name="test_uploads")
    assert not list_offered_commands(lab.write(both).run(*GATE)), "it is another test"
    assert not list_offered_commands(lab.run(*GATE, "-k", "test_uploads")), "that it was not selected means nothing"
    (lab.folder / "test_it.py").unlink()
    other = PARAMETRIZED.format(name="test_later").replace("[100, 200]", "[300]")
    assert not list_offered_commands(lab.write(other, "test_later.py").run(*GATE)), "it uploads something else"


def test_rename_of_a_test_without_stored_runs_is_refused(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    (lab.folder / "pyproject.toml").write_text(SETTINGS)
    lab.write(PARAMETRIZED.format(name="test_upload")).run(*GATE)
    storage: Path = lab.folder / "results"
    for old, new, reason in (
        ("test_it.py::test_up", "test_it.py::test_new", "no stored run has a test of this name"),
        ("test_it.py::test_upload", "test_it.py::test_upload", "this is the former name; expected another"),
    ):
        assert main(["baseline", "rename", old, new, "--storage", str(storage)]) == 4
        assert reason in capsys.readouterr().err
