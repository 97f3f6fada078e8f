"""Sessions with ``--cloudbench-gate``. Their history is written here, so that the right answers are known."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.commands.cli import main
from tests.runs import ALONE, FLEET

from .harness import FOLDER, FinishedRun, Lab, lab_in

TESTS = """
    import pytest

    def run(experiment, payloads, **more):
        return experiment.run(
            payloads.random(100), arrival=FixedInterval(0.01), sensors=2, ops_per_sensor=3, **more
        )

    def test_met(experiment, payloads):
        run(experiment, payloads).check()

    def test_broken(experiment, payloads):
        run(experiment, payloads)

    def test_twice(experiment, payloads):
        for _ in range(2):
            run(experiment, payloads, label="x")

    def test_unsure(experiment, payloads):
        run(experiment, payloads)

    def test_own_failure(experiment, payloads):
        run(experiment, payloads)
        assert 1 == 2

    def test_of_another_profile(experiment, payloads):
        run(experiment, payloads)
"""
SETTINGS = """
[tool.cloudbench.gate]
apart_s = 0
budget = "5000%"
quiet_p50 = false
quiet_p99 = false
quiet_share = false
cpu_per_op = false
response_p50 = "10%"
failed_rate = 0.5
throttled_rate = 0.5
corrupt_rate = 0.5
loss_rate = 0.5
"""
RUNS = 12
Change = Callable[[int, dict[str, Any]], None]


def times(factor: float, spread: float = 0.01) -> Change:
    """Return a change that multiplies response times by a factor, and varies them from run to run."""

    def change(number: int, info: dict[str, Any]) -> None:
        info["response_p50"] *= factor * (1 + spread) ** (number % 5 - 2)

    return change


def find_stored_runs(lab: Lab) -> list[Path]:
    return sorted(lab.folder.glob("results/*/[0-9]*.json"))


def write_history(
    lab: Lab, changes: Mapping[str, Change], runs: int = RUNS, commit: Mapping[str, Any] | None = None
) -> None:
    """Replace the stored runs by changed copies of the last one, as if its tests had passed."""
    template = find_stored_runs(lab)[-1]
    text = template.read_text()
    for path in find_stored_runs(lab):
        path.unlink()
    for number in range(runs):
        document = json.loads(text)
        document["commit_info"] = {**document["commit_info"], **(commit or {})}
        entries = []
        for entry in document["benchmarks"]:
            name, info = re.split(r"[\[#]", entry["name"])[0], entry["extra_info"]
            if name in changes:
                info["outcome"] = "passed"
                changes[name](number, info)
                info["start_wall_ms"] += 1000 * (number - runs)
                entries.append(entry)
        document["benchmarks"] = entries
        (template.parent / f"{number + 1:04d}_before.json").write_text(json.dumps(document))


def another_profile(number: int, info: dict[str, Any]) -> None:
    info["profile_digest"] = "another"


# On a busy machine, six operations may take a hundred times as long as in the next session. These factors are far
# beyond that.
HISTORY = {
    "test_met": times(1e5), "test_broken": times(1e-5), "test_twice": times(1e-5),
    "test_unsure": times(1, 9.0), "test_own_failure": times(1e5), "test_of_another_profile": another_profile,
}  # fmt: skip


@dataclass
class Sessions:
    """Two sessions: the first one without a history, the other one with it."""

    first: FinishedRun
    run: FinishedRun
    junit: Mapping[str, ET.Element]

    def property(self, test: str, name: str) -> str | None:
        element = self.junit[test].find(f".//property[@name='cloudbench.{name}']")
        return None if element is None else element.get("value")


def entry(run: FinishedRun, test: str) -> Mapping[str, Any]:
    (info,) = [item["extra_info"] for item in run.document["benchmarks"] if item["name"].startswith(f"{test}[")]
    assert isinstance(info, dict)
    return info


@pytest.fixture(scope="module", params=[ALONE, FLEET])
def sessions(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sessions]:
    with lab_in(tmp_path_factory.mktemp("gate")) as lab:
        (lab.folder / "pyproject.toml").write_text(SETTINGS)
        first = lab.write(TESTS).run(*FOLDER, *request.param, "--cloudbench-gate", "-rs")
        write_history(lab, HISTORY)
        options = ("--cloudbench-gate", "-rA", "--junit-xml=junit.xml", "--cloudbench-fail", "loss_rate:0")
        run = lab.run(*FOLDER, *request.param, *options)
        cases = ET.parse(lab.folder / "junit.xml").getroot().iter("testcase")
        yield Sessions(first, run, {str(case.get("name")).partition("[")[0]: case for case in cases})


@pytest.mark.slow
def test_without_history_everything_is_inconclusive_and_skipped_and_stored(sessions: Sessions) -> None:
    assert sessions.first.counts() == {"failed": 1, "skipped": 5}, sessions.first.text
    assert len(sessions.first.lines_with("gate inconclusive: baseline 0 of 10")) >= 4
    assert entry(sessions.first, "test_met")["outcome"] == "passed", "it may be a baseline: only the gate skipped it"
    assert entry(sessions.first, "test_met")["gate"]["answer"] == "inconclusive"


@pytest.mark.slow
def test_regression_breaks_the_gate_with_figures_and_counts(sessions: Sessions) -> None:
    assert (sessions.run.status, sessions.run.counts()) == (1, {"passed": 1, "failed": 3, "skipped": 2}), (
        sessions.run.text
    )
    (line,) = sessions.run.lines_with("gate broken: response_p50: ")[:1]
    assert re.search(
        r"response_p50: \+[\d,]+ % \(\+[\d,]+ to \+[\d,]+ %\) worse than 12 runs; its commits are not known", line
    )
    assert re.search(r"^cloudbench: gate: 1 met, 3 broken, 2 inconclusive$", sessions.run.text, re.M), sessions.run.text
    info = entry(sessions.run, "test_broken")
    assert (info["outcome"], info["gate"]["answer"], info["gate"]["runs"]) == ("failed", "broken", 12)
    assert len(info["gate"]["again"]) == 3, "it was measured again three times"
    assert len(list(sessions.run.folder.rglob("*test_broken*.parquet"))) == 1 + 4, "each with its records"


def test_metrics_are_counted_if_few_make_tests_inconclusive(sessions: Sessions) -> None:
    (line,) = sessions.run.lines_with("cloudbench: gate: metrics: ")
    assert re.search(r": \d+ met, [3-9] broken, \d+ inconclusive \(.*response_p50 in \d", line), line
    assert line.endswith("; cloudbench gate power tells what would be found")
    assert not sessions.first.lines_with("cloudbench: gate: metrics: "), "a short baseline is told by the tests' lines"


def test_a_label_given_twice_is_two_entries_that_repetitions_find_again(sessions: Sessions) -> None:
    items = {item["fullname"]: item for item in sessions.run.document["benchmarks"] if "test_twice" in item["name"]}
    name = "test_it.py::test_twice[folder:objects]"
    assert list(items) == [f"{name}#x", f"{name}#x-2"]
    assert [item["name"].partition("[")[0] for item in items.values()] == ["test_twice#x", "test_twice#x-2"]
    for item in items.values():
        info = item["extra_info"]
        assert (info["gate"]["answer"], info["gate"]["runs"], len(info["gate"]["again"])) == ("broken", 12, 3)
    assert float(str(sessions.property("test_twice", "x-2.response_p50"))) == info["response_p50"]
    assert sessions.property("test_twice", "x.response_p50") != sessions.property("test_twice", "x-2.response_p50")


def test_comparing_stored_runs_by_function_tells_labels_apart(sessions: Sessions) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest_benchmark",
        "--storage=results",
        "compare",
        "--group-by=func",
        "--columns=min",
    ]
    output = subprocess.run(command, cwd=sessions.run.folder, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"benchmark '(test_twice\S*)'", output) == ["test_twice#x", "test_twice#x-2"]


def test_each_test_is_reported_once_with_its_own_outcome(sessions: Sessions) -> None:
    reported = dict(re.findall(r"^(?:PASSED|FAILED|SKIPPED \[\d\]) \S*?(?:::)(test_\w+)\S*()", sessions.run.text, re.M))
    assert reported.keys() >= {"test_met", "test_broken", "test_own_failure"}
    assert entry(sessions.run, "test_met")["outcome"] == "passed"
    assert "gate" not in entry(sessions.run, "test_own_failure"), "it failed by itself: there is nothing to judge"
    names = [item["name"].partition("[")[0] for item in sessions.run.document["benchmarks"]]
    assert len(names) == len(set(names)) == 7, "a repetition is not a separate entry"


def test_inconclusive_lines_give_their_reason(sessions: Sessions) -> None:
    (line,) = sessions.run.lines_with("gate inconclusive: response_p50")[:1]
    assert re.search(r"only changes of [\d,]+ % or more would be found", line)
    assert sessions.run.lines_with(
        "baseline 0 of 10 (the 12 stored runs differed in profile_digest (another, here None))"
    )


def test_junit_tells_the_three_answers_apart(sessions: Sessions) -> None:
    assert sessions.property("test_met", "gate") == "met"
    assert sessions.property("test_broken", "gate") == "broken"
    assert sessions.property("test_unsure", "gate") == "inconclusive"
    assert sessions.property("test_own_failure", "gate") is None
    assert str(sessions.property("test_broken", "gate.response_p50")).startswith("broken +")
    assert sessions.junit["test_broken"].find("failure") is not None
    skipped = sessions.junit["test_unsure"].find("skipped")
    assert skipped is not None
    assert "gate inconclusive: " in str(skipped.get("message"))
    assert [child.tag for child in sessions.junit["test_met"] if child.tag != "properties"] == []


def test_a_broken_run_is_no_baseline_so_a_retry_stays_red(lab: Lab) -> None:
    (lab.folder / "pyproject.toml").write_text(SETTINGS)
    lab.write(TESTS).run(*FOLDER, "--cloudbench-gate", "-k", "test_broken")
    write_history(lab, {"test_broken": HISTORY["test_broken"]}, runs=10)
    for _ in range(2):
        run = lab.run(*FOLDER, "--cloudbench-gate", "-k", "test_broken")
        assert run.status == 1, run.text
        assert run.lines_with("worse than 10 runs"), "the one before is not among them"


@pytest.mark.slow
def test_an_intended_change_is_accepted_although_the_gate_has_broken_every_run_after_it(lab: Lab) -> None:
    (lab.folder / "pyproject.toml").write_text(SETTINGS)
    lab.write(TESTS).run(*FOLDER, "--cloudbench-gate", "-k", "test_broken")
    write_history(lab, {"test_broken": HISTORY["test_broken"]}, runs=10)
    for _ in range(2):
        lab.run(*FOLDER, "--cloudbench-gate", "-k", "test_broken")
    (storage,) = lab.folder.glob("results")
    assert main(["baseline", "accept", "11", "--reason", "intended", "--storage", str(storage)]) == 0
    run = lab.run(*FOLDER, "--cloudbench-gate", "-k", "test_broken", "-rs")
    assert run.counts() == {"skipped": 1, "deselected": 5}, run.text
    assert run.lines_with("gate inconclusive: baseline 2 of 10"), "that run and the one after it are the new baseline"


@pytest.mark.slow
def test_a_broken_line_names_the_first_suspect_commit(lab: Lab) -> None:
    def git(*args: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *args]
        return subprocess.run(command, cwd=lab.folder, capture_output=True, text=True, check=True).stdout.strip()

    (lab.folder / "pyproject.toml").write_text(SETTINGS)
    lab.write(TESTS).run(*FOLDER, "--cloudbench-gate", "-k", "test_broken")
    git("init", "--initial-branch=main")
    commits = []
    for number in range(3):
        git("commit", "--allow-empty", "--no-gpg-sign", "-m", f"change {number}")
        commits.append(git("rev-parse", "HEAD"))
    write_history(lab, {"test_broken": HISTORY["test_broken"]}, commit={"id": commits[0], "branch": "main"})
    run = lab.run(*FOLDER, "--cloudbench-gate", "-k", "test_broken")
    assert run.status == 1, run.text
    assert run.lines_with(
        f"worse than 12 runs; first suspect commit {commits[1][:10]} (of 2 since {commits[0][:10]})"
    ), run.text


@pytest.mark.slow
def test_repetitions_with_doubts_are_excluded_and_named(lab: Lab) -> None:
    """Payloads that take longer than the due times allow make every repetition late, but not the first run."""
    slow = """
        import time
        from dataclasses import dataclass
        from pathlib import Path
        from typing import Any

        @dataclass
        class Slow:
            payload: Any
            size_bytes: int = 100

            def content(self, sensor, seq):
                time.sleep(2)
                return self.payload.content(sensor, seq)

        def test_broken(experiment, payloads):
            payload, mark = payloads.random(100), Path("measured")
            kept = Slow(payload) if mark.exists() else payload
            mark.touch()
            experiment.run(kept, arrival=FixedInterval(0.01), sensors=2, ops_per_sensor=3)
    """
    (lab.folder / "pyproject.toml").write_text(SETTINGS)
    lab.write(slow).run(*FOLDER, "--cloudbench-gate")
    write_history(lab, {"test_broken": HISTORY["test_broken"]})
    (lab.folder / "measured").unlink()
    run = lab.run(*FOLDER, "--cloudbench-gate", "-ocloudbench_max_lateness=1", "-rs")
    assert run.counts() == {"skipped": 1}, run.text
    (line,) = run.lines_with("a suspect, measured again 0 of 3 times")[:1]
    assert "; 3 repetitions do not count: engine saturated (lateness p99 " in line


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("value", ["Path('x')", "2**70", "{Path('x'): [Path('y')]}"])
def test_a_broken_test_with_a_property_of_any_type_fails(lab: Lab, value: str) -> None:
    (lab.folder / "pyproject.toml").write_text(SETTINGS)
    body = f"""
        from pathlib import Path

        def test_broken(experiment, payloads, record_property):
            record_property("log", {value})
            experiment.run(payloads.random(100), arrival=FixedInterval(0.01), sensors=2, ops_per_sensor=3)
    """
    options = (*FOLDER, "--cloudbench-gate", "--junit-xml=junit.xml")
    lab.write(body).run(*options)
    write_history(lab, {"test_broken": HISTORY["test_broken"]})
    run = lab.run(*options)
    assert (run.status, run.counts()["failed"]) == (1, 1), run.text
    assert run.lines_with("gate broken: response_p50: ")
    assert '<property name="log"' in (lab.folder / "junit.xml").read_text()


@pytest.mark.parametrize("scope", ["module", "session"])
def test_errors_of_shared_fixtures_at_the_end_of_a_fleet_are_reported(lab: Lab, scope: str) -> None:
    lab.write(f"""
        import pytest

        @pytest.fixture(scope={scope!r})
        def shared():
            yield
            raise RuntimeError("the shared fixture did not end")
    """, "conftest.py")  # fmt: skip
    lab.write("""
        def test_it(experiment, payloads, shared):
            experiment.run(payloads.random(100), arrival=FixedInterval(0.01), sensors=2, ops_per_sensor=3)
    """)
    run = lab.run(*FOLDER, "-n", "2", "--cloudbench-gate", "-rs")
    assert run.status == 1, run.text
    assert run.lines_with("the shared fixture did not end"), run.text
    assert run.counts()["skipped"] == 1, "the test itself is judged as ever"


HURRIES = """
    import functools
    from pathlib import Path

    from pytest_cloudbench.support.clock import wait_for
    from pytest_cloudbench.fleet.scheduler import FleetScheduling

    DONE = Path(__file__).with_name("gw1-is-done")
    complete = FleetScheduling.mark_test_complete

    @functools.wraps(complete)
    def completed(self, node, *args, **options):
        complete(self, node, *args, **options)
        if node.gateway.id == "gw1":
            DONE.touch()

    FleetScheduling.mark_test_complete = completed

    def pytest_report_to_serializable(config):
        if getattr(config, "workerinput", {}).get("workerid") == "gw0":
            wait_for(DONE.exists, 30, poll_s=0.01)
"""


@pytest.mark.slow
def test_a_suspect_is_measured_again_when_another_agent_has_left_the_last_item_before_its_leader(lab: Lab) -> None:
    """The suspects are chosen when all agents have left the last item, and the leader has reported its outcome."""
    (lab.folder / "pyproject.toml").write_text(SETTINGS)
    lab.write(TESTS).run(*FOLDER, "-n2", "--cloudbench-gate", "-k", "test_broken")
    write_history(lab, {"test_broken": HISTORY["test_broken"]})
    lab.write(HURRIES, "conftest.py")
    run = lab.run(*FOLDER, "-n2", "--cloudbench-gate", "-k", "test_broken")
    assert (lab.folder / "gw1-is-done").exists()
    assert run.counts() == {"failed": 1}, run.text
    assert len(entry(run, "test_broken")["gate"]["again"]) == 3


@pytest.mark.slow
def test_ctrl_c_while_a_suspect_waits_does_not_let_it_pass(lab: Lab) -> None:
    """Ctrl-C comes while it waits to be measured again. Its measurement is stored, and it has not passed."""
    options = ("-n2", "-v", "-rA", "--cloudbench-gate", "--junit-xml=junit.xml", "-k", "test_broken or test_unsure")
    settings = lab.folder / "pyproject.toml"
    settings.write_text(SETTINGS)
    lab.write(TESTS).run(*FOLDER, *options)
    write_history(lab, {name: HISTORY[name] for name in ("test_broken", "test_unsure")})
    settings.write_text(SETTINGS.replace("apart_s = 0", "apart_s = 3600"))
    running = lab.start(*FOLDER, *options)
    running.wait_for("the last test's report", lambda: re.search(r"SKIPPED .*test_unsure", running.text()))
    running.interrupt(group=True)
    run = running.end()
    assert (run.status, run.leftovers) == (2, []), run.text
    assert "KeyboardInterrupt" in run.text
    assert "INTERNALERROR" not in run.text
    assert not re.search(r"PASSED.*test_broken", run.text)
    assert run.counts() == {"skipped": 2}
    assert run.lines_with("gate inconclusive: response_p50: "), run.text
    for path in (lab.folder / "out.json", find_stored_runs(lab)[-1]):
        entries = json.loads(path.read_text())["benchmarks"]
        infos = {item["name"].partition("[")[0]: item["extra_info"] for item in entries}
        assert {name: info["outcome"] for name, info in infos.items()} == {
            "test_broken": "interrupted", "test_unsure": "interrupted",
        }  # fmt: skip
        assert infos["test_broken"]["gate"]["answer"] == "inconclusive"
        assert infos["test_broken"]["ops"] == 6
    elements = ET.parse(lab.folder / "junit.xml").iter("testcase")
    cases = {str(case.get("name")).partition("[")[0]: case for case in elements}
    skipped = cases["test_broken"].find("skipped")
    assert skipped is not None
    assert "a suspect, measured again 0 of 3 times" in str(skipped.get("message"))


@pytest.mark.slow
def test_strict_gate_fails_inconclusive_tests_with_status_6(lab: Lab) -> None:
    (lab.folder / "pyproject.toml").write_text(SETTINGS)
    run = lab.write(TESTS).run(*FOLDER, "--cloudbench-gate-strict", "-k", "test_met or test_unsure")
    assert (run.status, run.counts()) == (6, {"failed": 2, "deselected": 4}), run.text
    assert entry(run, "test_met")["outcome"] == "passed", "a strict gate could never begin otherwise"


def test_gate_without_pytest_benchmark_warns_that_nothing_is_stored(lab: Lab) -> None:
    run = lab.write(TESTS).run(*FOLDER, "--cloudbench-gate", "-k", "test_met", "-p", "no:benchmark", "-rs", store=False)
    assert (run.status, run.counts()) == (0, {"skipped": 1, "deselected": 5}), run.text
    assert run.lines_with("cloudbench: gate: -p no:benchmark switches off what stores runs: nothing is compared")


def test_invalid_margin_is_refused_in_one_line(lab: Lab) -> None:
    (lab.folder / "pyproject.toml").write_text('[tool.cloudbench.gate]\nquiet_p5 = "10%"\n')
    run = lab.write(TESTS).run(*FOLDER, "--cloudbench-gate", store=False)
    assert run.status == 4, run.text
    assert run.lines_with("tool.cloudbench.gate: quiet_p5: no such metric; did you mean")


def test_margins_that_no_former_run_can_judge_are_named_once(lab: Lab) -> None:
    (lab.folder / "pyproject.toml").write_text(f"{SETTINGS}ok_rate = 0.1\nduplicate_rate = false\n")
    source = TESTS.replace("def test_met(", "@pytest.mark.cloudbench_gate(violation_rate=0.05)\n    def test_met(")
    source = source.replace("def test_unsure(", "@pytest.mark.cloudbench_gate(ok_rate=None)\n    def test_unsure(")
    run = lab.write(source).run(*FOLDER, "--cloudbench-gate", "-k", "test_met or test_unsure")
    line = "no former run can judge ok_rate, violation_rate: the margin is for comparisons of two sides alone"
    assert run.lines_with("no former run can judge") == [line], run.text


def test_margins_that_former_runs_can_judge_need_no_line(sessions: Sessions) -> None:
    assert not sessions.run.lines_with("no former run can judge")


def test_power_and_backtest_report_detectable_changes_and_past_alarms(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(sessions.run.folder)
    assert main(["gate", "power", "-k", "test_met"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("test_met[folder:objects]: 13 runs"), "the twelve, and the one of this gate"
    assert any(re.search(r"^  response_p50: changes from \S+ % would be seen \(margin 10 %\)", line) for line in lines)
    assert main(["gate", "backtest", "-k", "test_broken"]) == 0
    alarm, last = capsys.readouterr().out.splitlines()
    assert re.search(r"test_broken\[folder:objects\]: response_p50: \+[\d,]+ % .* worse than 12 runs", alarm)
    assert last.startswith("3 of 3 sessions had 10 runs before them")
    assert last.endswith("at most 1 session would have been red")
    assert main(["gate", "power", "--storage", "nowhere"]) == 4
    assert "nowhere: there is no such folder" in capsys.readouterr().err


def test_strict_gate_fails_a_session_without_measurements(lab: Lab) -> None:
    lab.write("""
        def test_skips(experiment):
            pytest.skip("not here")
    """)
    run = lab.run(*FOLDER, "--cloudbench-gate-strict", store=False)
    assert (run.status, run.counts()) == (6, {"skipped": 1}), run.text
    assert run.lines_with("cloudbench: gate: no experiment was measured, so nothing was judged")
