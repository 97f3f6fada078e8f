"""Sessions with ``--cloudbench-fail``. A broken gate fails its test, whatever the test does with its results."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator

import pytest

from tests.plugin.configs.test_benchcloud import changed
from tests.runs import SPREAD, Spread

from .harness import FOLDER, FinishedRun, Lab, lab_in

GATE = ("--cloudbench-fail", "response_p50:0.0000001")
PRELUDE = """
    def run(experiment, payloads, **more):
        return experiment.run(
            payloads.random(100), arrival=FixedInterval(0.01), sensors=2, ops_per_sensor=2, **more
        )
"""
README = """
    def test_hundred_sensors(experiment, payloads):
        result = experiment.run(
            payloads.random(size_bytes=5120), arrival=FixedInterval(interval_s=0.1, first_delay_max_s=0.1),
            sensors=100, ops_per_sensor=2,
        )
        assert result["loss_rate"] == 0
        assert result["response_p99"] < 50
"""


@pytest.fixture(scope="module")
def module_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab_in(tmp_path_factory.mktemp("gates")) as lab:
        yield lab


def broken_lines(run: FinishedRun) -> list[str]:
    """Return the lines about a gate in the failures' section."""
    section = run.text.partition("= FAILURES =")[2].partition("= cloudbench =")[0]
    return [line for line in section.splitlines() if "gate response_p50:1e-07: " in line]


@pytest.mark.slow
@SPREAD
def test_broken_gate_fails_a_test_that_ignores_its_result(lab: Lab, spread: Spread) -> None:
    run = lab.write(README).run(*FOLDER, *spread, *GATE)
    assert (run.status, run.counts()) == (1, {"failed": 1}), run.text
    (line,) = broken_lines(run)
    assert "breaks the bound <= 1e-07" in line
    failures = run.text.partition("= FAILURES =")[2].partition("= cloudbench =")[0]
    assert "Traceback" not in failures
    assert ".py:" not in failures, "one line, in its own words"
    good = lab.run(*FOLDER, *spread, "--cloudbench-fail", "response_p50:50")
    assert (good.status, good.counts()) == (0, {"passed": 1}), good.text


WAYS = {
    "caught": ("""
        result = run(experiment, payloads)
        try:
            result.check()
        except BaseException:
            pass
    """, "FAILED", 1),
    "checked": ("""
        run(experiment, payloads).check()
    """, "FAILED", 1),
    "returned": ("""
        if run(experiment, payloads)["ok"]:
            return
        raise AssertionError
    """, "FAILED", 1),
    "skipped": ("""
        run(experiment, payloads)
        pytest.skip("inconclusive: so it says")
    """, "FAILED", 1),
    "several": ("""
        for _ in range(3):
            last = run(experiment, payloads)
        last.check()
    """, "FAILED", 3),
    "concluded": ("""
        results = [run(experiment, payloads, store=False) for _ in range(2)]
        experiment.conclude({"response_p50": 1.0}, [1.0], stats_of="seconds")
    """, "FAILED", 1),
    "failed": ("""
        assert run(experiment, payloads)["ok"] == 5, "its own reason"
    """, "FAILED", 1),
    "met": ("""
        experiment.conclude({"response_p50": 0.0}, [1.0], stats_of="seconds")
    """, "PASSED", 0),
}  # fmt: skip


@pytest.mark.slow
@SPREAD
def test_gate_judges_every_kind_of_test_body(module_lab: Lab, spread: Spread) -> None:
    lab, body = module_lab, PRELUDE
    for name, (code, _, _) in WAYS.items():
        body += f"\n    def test_{name}(experiment, payloads):{code.rstrip()}\n"
    run = lab.write(body).run(*FOLDER, *spread, *GATE, "-rA")
    for name, (_, outcome, lines) in WAYS.items():
        assert run.lines_with(f"{outcome} test_it.py::test_{name}["), run.text
        section = run.text.partition(f"_ test_{name}[")[2].partition("\n____")[0].partition("= cloudbench =")[0]
        assert (name, section.count("gate response_p50:1e-07: ")) == (name, lines), run.text
    assert "its own reason" in run.text


def test_broken_bound_names_its_run_by_label(lab: Lab) -> None:
    lab.write(
        PRELUDE
        + """
    def test_it(experiment, payloads):
        run(experiment, payloads)
        run(experiment, payloads, label="again")
    """
    )
    first, again = broken_lines(lab.run(*FOLDER, *GATE))
    assert (first.partition(":")[0], again.partition(":")[0]) == ("gate response_p50", "again")


@pytest.mark.slow
@SPREAD
def test_runs_in_fixtures_are_judged_as_well(lab: Lab, spread: Spread) -> None:
    lab.write(
        PRELUDE
        + """
    @pytest.fixture
    def before(experiment, payloads):
        return run(experiment, payloads)

    @pytest.fixture
    def after(experiment, payloads):
        yield
        run(experiment, payloads)

    def test_before(before):
        pass

    def test_after(after):
        pass
    """
    )
    run = lab.run(*FOLDER, *spread, *GATE, "-rA")
    assert run.counts() == {"failed": 1, "passed": 1, "error": 1}, run.text
    assert run.lines_with("FAILED test_it.py::test_before")
    assert run.lines_with("ERROR test_it.py::test_after")


@pytest.mark.slow
def test_broken_gate_of_xfail_test_stays_xfailed(lab: Lab) -> None:
    lab.write(
        PRELUDE
        + """
    @pytest.mark.xfail(reason="too slow, and known to be")
    def test_it(experiment, payloads):
        run(experiment, payloads)

    @pytest.mark.xfail(reason="too slow, and known to be", strict=True)
    def test_strictly(experiment, payloads):
        run(experiment, payloads)
    """
    )
    broken = lab.run(*FOLDER, *GATE)
    assert (broken.status, broken.counts()) == (0, {"xfailed": 2}), broken.text
    met = lab.run(*FOLDER, "--cloudbench-fail", "response_p50:50")
    assert (met.status, met.counts()) == (1, {"xpassed": 1, "failed": 1}), met.text


BENCH = """
        [[experiment]]
        name = "x"
        threads = 2
        files = 4
        operations = ["upload", "download"]
        payload = {generator = "random", size_bytes = 300}
        """
BENCHCLOUD = changed(("test", "times", "4"), ("file_generator", "size", "1000"), ("test", "sleep", "False"))
FILES = {"x.bench.toml": textwrap.dedent(BENCH), "upload.conf": BENCHCLOUD}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("name", FILES)
@SPREAD
def test_gate_fails_broken_bench_and_benchcloud_files(lab: Lab, name: str, spread: Spread) -> None:
    (lab.folder / name).write_text(FILES[name])
    run = lab.run(name, *FOLDER, *spread, *GATE)
    assert (run.status, run.counts()) == (1, {"failed": 1}), run.text
    assert len(broken_lines(run)) == (2 if name.endswith(".toml") else 1)


@pytest.mark.usefixtures("can_link", "can_capture")
@SPREAD
def test_conclusions_about_sync_clients(lab: Lab, spread: Spread) -> None:
    lab.write("""
    from pytest_cloudbench.lab.detect import Step

    def test_it(lab):
        (new,) = lab.measure([Step("new", 2000)])
        lab.conclude({"tue": new.up_bytes / 2000}, [new.duration_s], stats_of="seconds")
    """)
    run = lab.run("--client", "reference", *spread, "--cloudbench-fail", "tue:0.5")
    assert (run.status, run.counts()) == (1, {"failed": 1}), run.text
    assert len([line for line in run.lines_with("gate tue:0.5: ") if "breaks the bound" in line]) >= 1


# --- baselines of a relative gate ---

RELATIVE = ("--cloudbench-fail", "response_p99:99999%")
LOAD = """
    def test_it(experiment, payloads):
        experiment.run(payloads.random({size}), arrival=FixedInterval(0.01), sensors=4, ops_per_sensor=3)
"""


def gate_remark(run: FinishedRun) -> str:
    """Return the entry's remark on its one gate."""
    (entry,) = run.entries.values()
    line = entry["extra_info"]["expectations"][0]
    return str(line).removeprefix("gate response_p99:99999%: ")


@SPREAD
def test_the_second_run_of_an_ordinary_project_compares(lab: Lab, spread: Spread) -> None:
    lab.write(LOAD.format(size=100))
    first, second = (lab.run(*FOLDER, *spread, *RELATIVE) for _ in range(2))
    assert (first.status, gate_remark(first)) == (0, "no baseline yet"), first.text
    assert second.status == 0, second.text
    assert "is within the bound" in gate_remark(second)
    assert "of the compared run" in gate_remark(second)
    assert first.lines_with("entries: results")
    absolute = lab.run(*FOLDER, *spread, "--cloudbench-fail", "loss_rate:0")
    assert absolute.lines_with("entries: not stored (--benchmark-autosave stores them)")
    assert len(list(lab.folder.rglob("results/*/*.json"))) == 2


@pytest.mark.slow
def test_relative_bounds_follow_options_of_pytest_benchmark(lab: Lab) -> None:
    lab.write(LOAD.format(size=100))
    for options in (["--benchmark-disable"], ["--benchmark-storage=elsewhere"], ["--benchmark-storage=file://./there"]):
        notes = [gate_remark(lab.run(*FOLDER, *RELATIVE, *options)) for _ in range(2)]
        assert notes[0] == "no baseline yet", options
        assert "of the compared run" in notes[1], options
    assert list(lab.folder.glob("elsewhere/*/*.json"))
    without = lab.run(*FOLDER, *RELATIVE, "-p", "no:benchmark", "-o", "addopts=", store=False)
    assert without.status == 4, without.text
    (line,) = without.lines_with("ERROR:")
    assert "remove -p no:benchmark" in line


def test_unreadable_stored_run_is_reported_and_its_predecessor_compared(lab: Lab) -> None:
    lab.write(LOAD.format(size=100)).run(*FOLDER, *RELATIVE)
    (run,) = lab.folder.rglob("results/*/*.json")
    (run.parent / "0099_torn.json").write_text(run.read_text()[:200])
    compared = lab.run(*FOLDER, *RELATIVE)
    assert (compared.status, "is within the bound" in gate_remark(compared)) == (0, True), compared.text
    (line,) = compared.lines_with("cannot be read")
    assert line.endswith("0099_torn.json")


@pytest.mark.slow
def test_a_run_that_failed_never_becomes_the_baseline(lab: Lab) -> None:
    lab.write("""
    def test_it(experiment, payloads):
        result = experiment.run(payloads.random(100), arrival=FixedInterval(0.01), sensors=4, ops_per_sensor=3)
        assert "BREAK" not in os.environ
        if "SKIP" in os.environ:
            pytest.skip("inconclusive")
    """)

    def outcome(*options: str, **env: str) -> tuple[str, str]:
        run = lab.run(*FOLDER, *RELATIVE, *options, env=env)
        (entry,) = run.entries.values()
        return entry["extra_info"]["outcome"], gate_remark(run)

    assert outcome(BREAK="1") == ("failed", "no baseline yet")
    assert outcome(SKIP="1") == ("skipped", "no baseline: the stored run did not pass")
    assert outcome("--cloudbench-fail", "loss_rate:0", "--max-ops", "5")[0] == "failed"
    expected = "no baseline: of 3 stored runs 1 had doubts, 2 did not pass"
    assert outcome() == ("passed", expected)
    later = gate_remark(lab.run(*FOLDER, *RELATIVE))
    assert "of the compared run" in later
    different = lab.run(*FOLDER, *RELATIVE, "-n", "2")
    assert "2 differed in agents (1, here 2)" in gate_remark(different)
    lab.write(LOAD.format(size=200))
    assert "differed in size_bytes (100, here 200)" in gate_remark(lab.run(*FOLDER, *RELATIVE))


@pytest.mark.slow
def test_another_profile_of_the_same_name_is_no_baseline(lab: Lab) -> None:
    lab.write(LOAD.format(size=100))
    profile = '[meta]\nname = "mine"\napi = "dropbox"\ndescription = "mine"\n[latency]\nmedian_s = {}\n'
    notes = []
    for median_s in (0.01, 0.01, 0.02):
        lab.write(profile.format(median_s), "mine.toml")
        notes.append(gate_remark(lab.run("--provider", "emulated:./mine.toml", *RELATIVE)))
    assert notes[0] == "no baseline yet"
    assert "of the compared run" in notes[1]
    assert notes[2].startswith("no baseline: the 2 stored runs differed in profile_digest (")


@pytest.mark.slow
def test_an_interrupted_session_leaves_no_baseline(lab: Lab) -> None:
    lab.write(
        LOAD.format(size=100)
        + """
    def test_long(experiment, payloads):
        experiment.run(payloads.random(100), arrival=FixedInterval(0.1), sensors=4, ops_per_sensor=1000)
    """
    )
    running = lab.start(*FOLDER, *RELATIVE)
    running.wait_for_records("main", "test_long")
    running.interrupt(group=False)
    ended = running.end()
    assert ended.status == 2, ended.text
    outcomes = {name: entry["extra_info"]["outcome"] for name, entry in ended.entries.items()}
    assert set(outcomes.values()) == {"interrupted"}, outcomes
    after = lab.run(*FOLDER, *RELATIVE, "-k", "not long")
    assert gate_remark(after) == "no baseline: the stored run ended in an interruption"


@pytest.mark.slow
@SPREAD
def test_a_named_baseline_must_be_there(lab: Lab, spread: Spread) -> None:
    lab.write(LOAD.format(size=100))
    without_baseline = lab.run(*FOLDER, *spread, *RELATIVE, "--benchmark-compare=0001")
    assert without_baseline.status == 4, without_baseline.text
    (line,) = without_baseline.lines_with("ERROR:")
    assert "--benchmark-compare=0001: there is no such run in" in line
    assert not without_baseline.lines_with("Traceback")
    assert lab.run(*FOLDER, *spread, *RELATIVE).status == 0
    compared = lab.run(*FOLDER, *spread, *RELATIVE, "--benchmark-compare=0001")
    assert (compared.status, "of the compared run" in gate_remark(compared)) == (0, True), compared.text
    (path,) = lab.folder.rglob("0001_*.json")
    document = json.loads(path.read_text())
    for value in ("fast", float("nan"), None):
        document["benchmarks"][0]["extra_info"]["response_p99"] = value
        path.write_text(json.dumps(document))
        failed = lab.run(*FOLDER, *spread, *RELATIVE, "--benchmark-compare=0001")
        assert failed.status == 1, failed.text
        assert gate_remark(failed) == f"unknown, {path.name} held no number for response_p99"
    path.write_text(path.read_text()[:-100])
    torn = lab.run(*FOLDER, *spread, *RELATIVE, "--benchmark-compare=0001")
    assert torn.status == 4, torn.text
    (line,) = torn.lines_with("ERROR:")
    assert "is not JSON" in line
