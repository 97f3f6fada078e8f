"""Expectations, gates, budgets, time scale and saturation, as a user meets them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cloudbench.load import policy
from tests.runs import SPREAD, Spread

from .harness import FOLDER, IDEAL, FinishedRun, Lab, keys

ONE = """
    def test_one(experiment, payloads):
        experiment.run(payloads.random(100), arrival=FixedInterval(0.02), sensors=4, ops_per_sensor=10).check()
"""


def gate_lines(run: FinishedRun) -> list[str]:
    """Return the lines about a gate in the failures' section, without the table's remarks."""
    section = run.text.partition("= FAILURES =")[2].partition("= cloudbench =")[0]
    return [line for line in section.splitlines() if "gate " in line]


@pytest.mark.slow
@SPREAD
def test_absolute_gates(lab: Lab, spread: Spread) -> None:
    lab.write(ONE)
    good = lab.run(*FOLDER, *spread, "--cloudbench-fail", "loss_rate:0", "--cloudbench-fail", "response_p99:30")
    assert good.status == 0, good.text
    assert good.info("test_one[folder:objects]")["expectations"][0].startswith("gate loss_rate:0: 0 is within")
    bad = lab.run(*FOLDER, *spread, "--cloudbench-fail", "loss_rate:0", "--cloudbench-fail", "response_p50:0.0000001")
    assert bad.status == 1, bad.text
    assert bad.counts() == {"failed": 1}
    (line,) = gate_lines(bad)
    assert line.startswith("gate response_p50:1e-07: ")
    assert "breaks the bound <= 1e-07" in line
    assert "test_it.py:" not in bad.text.partition("= FAILURES =")[2].partition("= cloudbench =")[0], "no traceback"
    assert (good.leftovers, bad.leftovers) == ([], [])


def scale_stored_runs(folder: Path, factor: float) -> None:
    """Make every stored run slower or faster by this factor."""
    for path in folder.glob("results/*/*.json"):
        document = json.loads(path.read_text())
        for entry in document["benchmarks"]:
            entry["extra_info"]["response_p99"] *= factor
        path.write_text(json.dumps(document))


@pytest.mark.slow
@SPREAD
def test_relative_gates(lab: Lab, spread: Spread) -> None:
    lab.write(ONE)
    gate = ["--cloudbench-fail", "response_p99:50%"]
    first = lab.run(*FOLDER, *spread, *gate, "--benchmark-autosave")
    assert first.status == 0, first.text
    assert "gate response_p99:50%: no baseline yet" in first.text
    scale_stored_runs(lab.folder, 1000)
    improved = lab.run(*FOLDER, *spread, *gate, "--benchmark-compare")
    assert improved.status == 0, improved.text
    assert "is within the bound" in improved.text
    scale_stored_runs(lab.folder, 1e-6)
    worsened = lab.run(*FOLDER, *spread, *gate)
    assert worsened.status == 1, worsened.text
    (line,) = gate_lines(worsened)
    assert "breaks the bound" in line
    assert "50 % above the" in line
    assert "of the compared run" in line


EXPECTATIONS = """
    [[expect]]
    provider = "folder:objects"
    metric = "loss_rate"
    at_most = 0.5
    source = "a test"
    date = 2026-01-01

    [[expect]]
    provider = "folder:objects"
    metric = "response_p99"
    at_most = {at_most}
    source = "a test"
    date = 2026-01-01
"""


@SPREAD
def test_expectations_and_saturation(lab: Lab, spread: Spread) -> None:
    lab.write(ONE).write(EXPECTATIONS.format(at_most=30), "expectations.toml")
    lab.write(EXPECTATIONS.format(at_most=1e-9), "broken.toml")
    met = lab.run(*FOLDER, *spread, "-ocloudbench_expectations=expectations.toml")
    assert met.status == 0, met.text
    lines = met.info("test_one[folder:objects]")["expectations"]
    assert [line.partition(",")[0].partition(" (")[0] for line in lines] == ["loss_rate <= 0.5", "response_p99 <= 30"]
    assert all(": met, measured" in line for line in lines)
    broken = lab.run(*FOLDER, *spread, "-ocloudbench_expectations=broken.toml")
    assert broken.status == 1, broken.text
    assert len(broken.lines_with("response_p99 <= 1e-09 (a test, 2026-01-01): broken, measured")) >= 1
    saturated = ["-ocloudbench_max_lateness=0.0000001"]
    unknown = lab.run(*FOLDER, *spread, *saturated, "-ocloudbench_expectations=expectations.toml", "-rs")
    assert unknown.status == 0, unknown.text
    assert unknown.counts() == {"skipped": 1}
    assert unknown.lines_with("inconclusive: loss_rate <= 0.5")
    assert any("engine saturated" in doubt for doubt in unknown.info("test_one[folder:objects]")["doubts"])
    gated = lab.run(*FOLDER, *spread, *saturated, "--cloudbench-fail", "loss_rate:0.5")
    assert gated.status == 1, gated.text
    (line,) = gate_lines(gated)
    assert "gate loss_rate:0.5: unknown, engine saturated" in line


def test_an_own_expectation_on_a_metric_that_is_not_there_is_inconclusive(lab: Lab) -> None:
    lab.write("""
        import datetime
        from pytest_cloudbench.judge.expect import Expectation

        def test_one(experiment, payloads):
            claim = Expectation("folder:objects", "respone_p99", None, 9.0, "a test", datetime.date(2026, 1, 1))
            arrival = FixedInterval(0.01)
            experiment.run(payloads.random(100), arrival=arrival, sensors=1, ops_per_sensor=2, expect=[claim]).check()
    """)
    run = lab.run(*FOLDER, "-rs")
    assert run.counts() == {"skipped": 1}, run.text
    assert run.lines_with("inconclusive: respone_p99 <= 9 (a test, 2026-01-01): unknown, no value was measured")


@SPREAD
def test_expectations_of_a_renamed_test_are_named(lab: Lab, spread: Spread) -> None:
    claims = EXPECTATIONS.format(at_most=30).replace("source", 'where = { test = "test_former" }\n    source')
    lab.write(ONE).write(claims.replace("folder:objects", "folder:elsewhere", 1), "expectations.toml")
    line = "cloudbench: 1 expectation is of test_former, a name that no test here has"
    run = lab.run(*FOLDER, *spread, "-ocloudbench_expectations=expectations.toml")
    assert (run.status, len(run.lines_with(line))) == (0, 1), run.text
    assert not lab.run(*FOLDER, *spread, "-ocloudbench_expectations=expectations.toml", "-k", "one").lines_with(line)
    lab.write(ONE.replace("test_one", "test_former"))
    assert not lab.run(*FOLDER, *spread, "-ocloudbench_expectations=expectations.toml").lines_with(line)


def test_expectations_of_a_test_in_another_folder_are_not_named(lab: Lab) -> None:
    """A run of one folder says nothing of the tests of others, for which the same file has expectations."""
    claims = EXPECTATIONS.format(at_most=30).replace("source", 'where = { test = "test_other" }\n    source')
    lab.write(ONE, "one/test_one.py").write(ONE.replace("test_one", "test_other"), "other/test_other.py")
    lab.write(claims, "expectations.toml")
    expects = (*FOLDER, "-ocloudbench_expectations=expectations.toml")
    run = lab.run("one", *expects)
    assert run.status == 0, run.text
    assert not run.lines_with("expectations are of")
    lab.write(ONE.replace("test_one", "test_new_name"), "other/test_other.py")
    assert lab.run("one", *expects).lines_with("2 expectations are of test_other, a name that no test here has")


def test_names_are_looked_for_in_test_files_alone_and_not_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config: Any = SimpleNamespace(getini={"python_files": ["test_*.py"], "norecursedirs": [".*", "venv"]}.__getitem__)
    for name in ("a/b/test_it.py", "venv/test_other.py", "a/module.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"def test_{Path(name).stem}_here():\n    pass\n")
    names = {"test_test_it_here", "test_test_other_here", "test_module_here"}
    assert policy.find_test_functions(config, [tmp_path], names) == {"test_test_it_here"}
    monkeypatch.setattr(policy, "_MOST_FOLDERS", 2)
    assert policy.find_test_functions(config, [tmp_path], names) == names, "they may be in folders that were not seen"


def test_an_expectation_on_a_metric_that_its_test_does_not_measure_is_named(lab: Lab) -> None:
    """What the test itself puts into its entry is no metric that claims are judged by."""
    claims = EXPECTATIONS.format(at_most=30).replace("source", 'where = { test = "test_one" }\n    source')
    lab.write(ONE.replace("ops_per_sensor=10", 'ops_per_sensor=10, extra={"recovery_overhead": 1}'))
    lab.write(claims.replace("response_p99", "recovery_overhead"), "expectations.toml")
    run = lab.run(*FOLDER, "-ocloudbench_expectations=expectations.toml")
    assert run.status == 0, run.text
    (line,) = run.lines_with("expectation is of")
    assert line == "cloudbench: 1 expectation is of recovery_overhead, which test_one did not measure"
    assert [line.partition(" <")[0] for line in run.info("test_one[folder:objects]")["expectations"]] == ["loss_rate"]
    lab.write(claims, "expectations.toml")
    assert not lab.run(*FOLDER, "-ocloudbench_expectations=expectations.toml").lines_with("expectation is of")


@pytest.mark.slow
@SPREAD
def test_budgets(lab: Lab, spread: Spread) -> None:
    lab.write("""
        def test_open(experiment, payloads):
            experiment.run(payloads.random(100), arrival=FixedInterval(0.01), sensors=4, ops_per_sensor=10).check()

        def test_closed(experiment, payloads):
            experiment.run(payloads.random(100), arrival=ThinkTime(0.01), sensors=4, ops_per_sensor=10).check()

        def test_uneven(experiment, payloads):
            experiment.run(payloads.random(100), arrival=FixedInterval(0.01), sensors=1, ops_per_sensor=10).check()
    """)
    for option, expected_ops in ((["--max-ops", "7"], 7), (["--max-bytes", "1000"], 10)):
        run = lab.run(*FOLDER, *spread, *option)
        assert run.leftovers == []
        for test in ("test_open", "test_closed"):
            info = run.info(f"{test}[folder:objects]")
            assert info["ops"] == expected_ops, f"{test} {option}"
            assert any(f"{option[0]} {option[1]} is used up" in doubt for doubt in info["doubts"]), info["doubts"]
        assert run.info("test_uneven[folder:objects]")["ops"] == expected_ops
        assert f"{option[0]} {option[1]} is used up" in run.text


@pytest.mark.slow
def test_time_scale(lab: Lab) -> None:
    lab.write("""
        def test_one(experiment, payloads):
            experiment.run(payloads.random(100), arrival=FixedInterval(2, 2), sensors=4, ops_per_sensor=4).check()
    """)
    runs = {scale: lab.run(*IDEAL, "-n", "2", "--time-scale", scale) for scale in ("1", "10")}
    for scale, run in runs.items():
        assert run.status == 0, run.text
        assert run.info("test_one[emulated:ideal]")["ops"] == 16
        assert run.info("test_one[emulated:ideal]")["time_scale"] == float(scale)
    elapsed = {scale: run.info("test_one[emulated:ideal]")["elapsed"] for scale, run in runs.items()}
    assert elapsed["1"] >= 6
    assert elapsed["10"] < elapsed["1"] / 2
    assert "time scale 10: times are not comparable" in runs["10"].text


@pytest.mark.slow
def test_seed_makes_the_same_bytes(lab: Lab) -> None:
    lab.write(ONE)
    digests = []
    for spread in ([], ["-n", "2"]):
        run = lab.run(*FOLDER, *spread, "--cloudbench-seed", "one")
        assert run.status == 0, run.text
        (table,) = list(run.records().values())[-1:]
        digests.append(Counter(zip(keys(table), sorted(table.digest), strict=True)))
        for path in run.folder.rglob("*.parquet"):
            path.unlink()
    assert digests[0] == digests[1]
