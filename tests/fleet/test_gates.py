"""``--cloudbench-fail`` as a user meets it: a broken gate fails its test, whatever the test makes of its results."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import pytest

from ..configs.test_benchcloud import changed
from .harness import FOLDER, Ended, Lab, lab_in

SPREAD = pytest.mark.parametrize("spread", [[], ["-n", "2"]], ids=["alone", "n2"])
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
    with lab_in(tmp_path_factory.mktemp("gates")) as made:
        yield made


def broken_lines(run: Ended) -> list[str]:
    """The lines about a gate that the failures' own section shows."""
    shown = run.text.partition("= FAILURES =")[2].partition("= cloudbench =")[0]
    return [line for line in shown.splitlines() if "gate response_p50:1e-07: " in line]


@SPREAD
def test_a_test_that_never_asks_for_its_judgement_fails_all_the_same(lab: Lab, spread: list[str]) -> None:
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
    """, {"failed": 1}, 1),
    "checked": ("""
        run(experiment, payloads).check()
    """, {"failed": 1}, 1),
    "returned": ("""
        if run(experiment, payloads)["ok"]:
            return
        raise AssertionError
    """, {"failed": 1}, 1),
    "skipped": ("""
        run(experiment, payloads)
        pytest.skip("inconclusive: so it says")
    """, {"failed": 1}, 1),
    "several": ("""
        for _ in range(3):
            last = run(experiment, payloads)
        last.check()
    """, {"failed": 1}, 3),
    "concluded": ("""
        results = [run(experiment, payloads, store=False) for _ in range(2)]
        experiment.conclude({"response_p50": 1.0}, [1.0], stats_of="seconds")
    """, {"failed": 1}, 1),
    "failed": ("""
        assert run(experiment, payloads)["ok"] == 5, "its own reason"
    """, {"failed": 1}, 1),
    "met": ("""
        experiment.conclude({"response_p50": 0.0}, [1.0], stats_of="seconds")
    """, {"passed": 1}, 0),
}  # fmt: skip


@SPREAD
def test_whatever_a_test_makes_of_its_results(module_lab: Lab, spread: list[str]) -> None:
    lab, body = module_lab, PRELUDE
    for name, (code, _, _) in WAYS.items():
        body += f"\n    def test_{name}(experiment, payloads):{code.rstrip()}\n"
    lab.write(body)
    for name, (_, counts, lines) in WAYS.items():
        run = lab.run(*FOLDER, *spread, *GATE, "-k", f"test_{name}")
        run_counts = {word: count for word, count in run.counts().items() if word != "deselected"}
        assert (name, run_counts) == (name, counts), run.text
        assert (name, len(broken_lines(run))) == (name, lines), run.text
        if name == "failed":
            assert "its own reason" in run.text


def test_which_of_several_runs_breaks_it_is_said(lab: Lab) -> None:
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


@SPREAD
def test_runs_in_fixtures_are_judged_as_well(lab: Lab, spread: list[str]) -> None:
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


def test_a_failure_that_is_expected_stays_one(lab: Lab) -> None:
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


@pytest.mark.parametrize("name", FILES)
@SPREAD
def test_files_that_are_tests(lab: Lab, name: str, spread: list[str]) -> None:
    (lab.folder / name).write_text(FILES[name])
    run = lab.run(name, *FOLDER, *spread, *GATE)
    assert (run.status, run.counts()) == (1, {"failed": 1}), run.text
    assert len(broken_lines(run)) == (2 if name.endswith(".toml") else 1)


@pytest.mark.usefixtures("can_link")
@pytest.mark.parametrize("spread", [[], ["-n", "2"]], ids=["alone", "n2"])
def test_conclusions_about_sync_clients(lab: Lab, spread: list[str]) -> None:
    lab.write("""
    from pytest_cloudbench.detect import Step

    def test_it(sync_session):
        (new,) = sync_session.measure([Step("new", 2000)])
        sync_session.conclude({"tue": new.up_bytes / 2000}, [new.duration_s], stats_of="seconds")
    """)
    run = lab.run("--client", "reference", *spread, "--cloudbench-fail", "tue:0.5")
    assert (run.status, run.counts()) == (1, {"failed": 1}), run.text
    assert len([line for line in run.lines_with("gate tue:0.5: ") if "breaks the bound" in line]) >= 1
