"""Tests of a lab run on one agent while the others wait.

Tests, entries and files are the same with any number of workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet.harness import FOLDER, FinishedRun, Lab, lab_in

SPREADS = [(), ("-n", "1"), ("-n", "3")]
TWO_CLIENTS = ("--client", "reference", "--client", "reference?retry=2")

CONCLUDES = """
    import os

    def told(lab, what):
        with open(HERE / "told", "a") as file:
            file.write(f"{os.getpid()} {lab.spec} {what}\\n")

    def test_first(lab):
        told(lab, "first")
        lab.conclude({"completion": 1.0}, [1.0], stats_of="known")

    @pytest.mark.parametrize("size", [1, 2])
    def test_second(lab, size):
        told(lab, "second")
        for each in "ab":
            lab.conclude({"completion": 1.0}, [1.0], stats_of="known", label=each)
"""


@pytest.fixture
def lab(tmp_path: Path, ctrl_c: None) -> Iterator[Lab]:
    with lab_in(tmp_path) as new_lab:
        yield new_lab


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("spread", SPREADS, ids=" ".join)
def test_names_do_not_depend_on_workers(lab: Lab, spread: tuple[str, ...]) -> None:
    run = lab.write(CONCLUDES).run(*TWO_CLIENTS, *spread, "-v")
    assert run.counts() == {"passed": 6}, run.text
    specs = ["reference", "reference?retry=2"]
    fullnames = [entry["fullname"] for entry in run.document["benchmarks"]]
    assert fullnames == [
        name
        for spec in specs
        for name in (
            f"test_it.py::test_first[{spec}]",
            *(f"test_it.py::test_second[{spec}-{size}]#{label}" for size in (1, 2) for label in "ab"),
        )
    ], "tests of one client follow each other"
    assert [entry["name"] for entry in run.document["benchmarks"][:3]] == [
        "test_first[reference]",
        "test_second[a-reference-1]",
        "test_second[b-reference-1]",
    ]
    assert run.document["benchmarks"][1]["params"] == {"provider": "reference", "size": 1}
    assert {entry["extra_info"]["agents"] for entry in run.document["benchmarks"]} == {1}
    calls = [line.split() for line in (lab.folder / "told").read_text().splitlines()]
    assert len(calls) == 6
    assert len({pid for pid, *_ in calls}) == 1, "one agent measures"


@pytest.mark.slow
def test_no_other_test_runs_while_a_client_is_measured(lab: Lab) -> None:
    """Tests of all agents, and distributed tests, run before or after a client is measured."""
    lab.write("""
    import time

    def span(name):
        begin = time.monotonic()
        time.sleep(0.5)
        with open(HERE / "spans", "a") as file:
            file.write(f"{name} {begin} {time.monotonic()}\\n")

    def test_all(experiment, payloads):
        span("all")
        experiment.run(payloads.random(10), arrival=FixedInterval(0.01), sensors=2)

    def test_lab(lab):
        span("lab")

    def test_all_again(experiment, payloads):
        span("all")
        experiment.run(payloads.random(10), arrival=FixedInterval(0.01), sensors=2)

    @pytest.mark.parametrize("number", range(4))
    def test_shared(number):
        span("shared")
    """)
    run = lab.run(*FOLDER, "--client", "reference", "-n", "2")
    assert run.counts() == {"passed": 7}, run.text
    spans = [line.split() for line in (lab.folder / "spans").read_text().splitlines()]
    assert sorted(name for name, *_ in spans) == ["all"] * 4 + ["lab"] + ["shared"] * 4
    ((_, begin, end),) = (span for span in spans if span[0] == "lab")
    others = [(float(first), float(last)) for name, first, last in spans if name != "lab"]
    assert all(last <= float(begin) or float(end) <= first for first, last in others), spans


ENDS = """
    @pytest.fixture(scope="module", autouse=True)
    def module(fleet):
        yield
        with open(HERE / "ended", "a") as file:
            file.write(f"{fleet.name} {__name__}\\n")

    def test_before(fleet):
        pass

    def test_alone(FIXTURE):
        FIXTURE(int) if "FIXTURE" == "benchmark" else None
"""


@pytest.mark.slow
@pytest.mark.parametrize("fixture", ["lab", "benchmark"])
def test_module_fixtures_end_on_all_agents_after_a_leader_only_test(lab: Lab, fixture: str) -> None:
    body = ENDS.replace("FIXTURE", fixture)
    lab.write(body, "test_one.py").write(body, "test_two.py")
    run = lab.run(*FOLDER, "--client", "reference", "-n", "2")
    assert run.counts() == {"passed": 4}, run.text
    ended = sorted((lab.folder / "ended").read_text().split("\n"))[1:]
    assert ended == [f"gw{number} test_{name}" for number in (0, 1) for name in ("one", "two")]


@pytest.mark.slow
def test_a_fixture_that_breaks_at_its_end_elsewhere_fails_the_test(lab: Lab) -> None:
    lab.write("""
    @pytest.fixture(scope="module", autouse=True)
    def module(fleet):
        yield
        assert fleet.name == "gw0", "only there"

    def test_before(experiment, payloads):
        experiment.run(payloads.random(10), arrival=FixedInterval(0.01), sensors=2)

    def test_lab(lab):
        pass
    """)
    run = lab.run(*FOLDER, "--client", "reference", "-n", "2")
    assert run.counts() == {"passed": 1, "failed": 1}, run.text
    assert run.lines_with("on agent gw1: ")
    assert run.lines_with("only there")


@pytest.mark.slow
def test_a_leader_that_is_lost_fails_its_test_and_the_next_one_leads(lab: Lab) -> None:
    lab.write("""
    def test_first(lab, fleet):
        told(fleet)
        wait_for("never")

    def test_second(lab, fleet):
        (HERE / "second").write_text(fleet.name)
    """)
    running = lab.start("--client", "reference", "-n", "2", "-rf")
    (leader,) = running.wait_for("the first test", running.workers).values()
    leader.kill()
    run = running.end()
    assert run.counts() == {"failed": 1, "passed": 1}, run.text
    assert len(run.lines_with("FAILED test_it.py::test_first[reference] - agent gw0 was lost")) == 1
    assert (lab.folder / "second").read_text() == "gw1"


def assert_refused(run: FinishedRun, line: str) -> None:
    assert run.status == 1, run.text
    assert run.lines_with(line)
    assert not run.lines_with("Traceback")


@pytest.mark.slow
def test_a_real_client_has_no_scaled_time(lab: Lab) -> None:
    lab.write("    def test_it(lab): pass")
    assert_refused(lab.run("--client", "reference", "--time-scale", "10"), "a sync client runs in real time; leave")


@pytest.mark.slow
def test_a_provider_and_a_client_are_two_tests(lab: Lab) -> None:
    lab.write("    def test_it(lab, experiment): pass")
    assert_refused(lab.run(*FOLDER, "--client", "reference", "-n", "2"), "experiment a provider on all: make two tests")


@pytest.mark.slow
@pytest.mark.parametrize("spread", SPREADS[::2], ids=" ".join)
def test_an_expectation_that_cannot_be_judged_is_inconclusive(lab: Lab, spread: tuple[str, ...]) -> None:
    (lab.folder / "expected.toml").write_text(
        '[[expect]]\nprovider = "reference"\nmetric = "completion"\nat_most = 2\nsource = "me"\ndate = 2026-11-20\n'
    )
    lab.write("""
    def test_it(lab):
        lab.conclude({"completion": 1.0}, [1.0], stats_of="known", doubts=["a busy link"]).check()
    """)
    run = lab.run("--client", "reference", "-ocloudbench_expectations=expected.toml", "-rs", *spread)
    assert run.counts() == {"skipped": 1}, run.text
    assert run.lines_with("inconclusive: ")


OTHER_PLUGIN = """
    import pytest

    @pytest.fixture
    def lab():
        return "theirs"
"""


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("line", "expected"), [("", "theirs"), ("from pytest_cloudbench.plugin import lab", "reference")]
)
def test_a_lab_of_another_plugin_is_theirs_until_ours_is_imported(lab: Lab, line: str, expected: str) -> None:
    lab.write(OTHER_PLUGIN, "other.py").write(f"pytest_plugins = ['other']\n{line}\n", "conftest.py")
    lab.write("""
    def test_it(lab):
        (HERE / "seen").write_text(getattr(lab, "spec", lab))
    """)
    run = lab.run("--client", "reference", env={"PYTHONPATH": str(lab.folder)})
    assert run.counts() == {"passed": 1}, run.text
    assert (lab.folder / "seen").read_text() == expected


SHARES = """
    from pytest_cloudbench.net.link import Way
    from pytest_cloudbench.lab.sync.changes import Workload

    def told(lab):
        with open(HERE / "told", "a") as file:
            file.write(f"{sorted(lab.client.pids('server'))} {lab.workdir} {lab.client.folder}\\n")

    def test_one(lab):
        lab.idle(0.1)
        told(lab)

    def test_two(lab):
        assert lab.login() is None, "the test before has started it"
        told(lab)

    def test_own(lab):
        lab.rebuild(Way(delay_ms=3), stream_s=None, options={"settle_s": "0.1"})
        assert lab.login().syns == 1
        assert lab.setting["link"]["asked"]["up"]["delay_ms"] == 3
        told(lab)
        lab.conclude({"completion": 1.0}, [1.0], stats_of="known")

    def test_three(lab):
        assert lab.login().syns == 1, "it is a new one"
        told(lab)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("can_link", "can_capture")
def test_a_file_shares_a_client_until_a_test_wants_its_own(lab: Lab) -> None:
    run = lab.write(SHARES).run("--client", "reference", "-ocloudbench_keep_captures=true")
    assert run.counts() == {"passed": 4}, run.text
    one, two, own, three = (lab.folder / "told").read_text().splitlines()
    assert one == two
    assert len({one, own, three}) == 3
    assert run.lines_with("settle_s=0.1 was added to the client's options")
    assert run.leftovers == []
    workdirs = {Path(line.split("] ")[1].split()[0]) for line in (one, own, three)}
    assert not any(path.exists() for path in workdirs)
    names_by_test = {
        path.parent.name.rpartition("-")[0]: sorted(entry.name for entry in path.parent.iterdir())
        for path in run.folder.rglob("lab.json")
    }
    assert sorted(names_by_test) == [f"test_it.py__test_{name}_reference_" for name in ("one", "own", "three")]
    assert names_by_test["test_it.py__test_own_reference_"] == ["0.pcapng", "capture-0.json", "lab.json"]
    assert not list(run.folder.rglob("observations.json")), "nobody took a step"
