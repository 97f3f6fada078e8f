"""Gates that judged nothing. They are not met: a session with selected experiments fails and says so."""

from __future__ import annotations

import textwrap

import pytest

from tests.runs import SPREAD

from .harness import FOLDER, Lab
from .test_gates import BENCH, BENCHCLOUD

GATE = ("--cloudbench-fail", "loss_rate:0.01")
NOT_MEASURED = "gate loss_rate:0.01: no experiment was measured"
NOT_SELECTED = "gate loss_rate:0.01: no test in this run measures anything"
OTHER = """
    def test_other():
        pass
"""
SILENT = {
    "skipped by a mark": "@pytest.mark.skip\n    def test_it(experiment): pass",
    "skipped by a fixture": """
    @pytest.fixture(autouse=True)
    def absent(request):
        if "experiment" in request.fixturenames:
            pytest.skip("not here")

    def test_it(experiment): pass""",
    "expected to fail": "@pytest.mark.xfail(run=False)\n    def test_it(experiment): pass",
    "expected to fail in set-up": """
    @pytest.fixture
    def broken():
        raise OSError

    @pytest.mark.xfail
    def test_it(broken, experiment): pass""",
    "nothing is run": "def test_it(experiment): pass",
    "everything is caught": """
    def test_it(experiment):
        try:
            experiment.run()
        except BaseException:
            pass""",
    "a part without a conclusion": """
    def test_it(experiment, payloads):
        arrival = FixedInterval(0.01)
        experiment.run(payloads.random(10), arrival=arrival, sensors=2, ops_per_sensor=2, store=False)""",
    "skipped client": "@pytest.mark.skip\n    def test_it(lab): pass",
}


ON_WORKERS = ("skipped by a mark", "expected to fail", "skipped client")


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("case", "spread"), [*((case, []) for case in SILENT), *((case, ["-n", "2"]) for case in ON_WORKERS)]
)
def test_selected_experiments_without_a_measurement_fail(lab: Lab, case: str, spread: list[str]) -> None:
    run = lab.write(f"    {SILENT[case]}\n{OTHER}").run(*FOLDER, "--client", "reference", *spread, *GATE)
    assert run.status == 1, run.text
    assert len(run.lines_with(NOT_MEASURED)) == 1, run.text
    assert "failed" not in run.counts()


@pytest.mark.slow
@SPREAD
def test_gate_without_selected_experiments_only_warns(lab: Lab, spread: list[str]) -> None:
    """Gates in ``addopts`` also apply when somebody runs one unit test."""
    lab.write("    def test_it(experiment): pass\n" + OTHER)
    run = lab.run(*FOLDER, *spread, *GATE, "-k", "other")
    assert (run.status, len(run.lines_with(NOT_SELECTED))) == (0, 1), run.text
    coloured = lab.run(*FOLDER, *spread, *GATE, "-k", "other", "--color=yes")
    assert any("\x1b[33m" in line for line in coloured.lines_with(NOT_SELECTED)), coloured.text


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("option", ["--collect-only", "--fixtures", "--setup-plan", "--setup-only", "--markers"])
def test_gate_is_silent_if_pytest_runs_no_tests(lab: Lab, option: str) -> None:
    run = lab.write("    def test_it(experiment): pass\n").run(*FOLDER, *GATE, option)
    assert (run.status, run.lines_with("gate loss_rate")) == (0, []), run.text


@pytest.mark.quick_cases(1)
@SPREAD
@pytest.mark.parametrize("name", ["x.bench.toml", "upload.conf"])
def test_gate_fails_skipped_bench_and_benchcloud_files(lab: Lab, name: str, spread: list[str]) -> None:
    (lab.folder / name).write_text({"x.bench.toml": textwrap.dedent(BENCH), "upload.conf": BENCHCLOUD}[name])
    (lab.folder / "conftest.py").write_text("import pytest\ndef pytest_runtest_setup(item): pytest.skip('not now')\n")
    run = lab.run(name, *FOLDER, *spread, *GATE)
    assert (run.status, len(run.lines_with(NOT_MEASURED))) == (1, 1), run.text


FORGIVEN = {
    "ended": ("pytest.exit('enough', returncode=0)", ""),
    "forgotten": ("experiment.unmet.clear()", ""),
    "rewritten": ("pass", """
import pytest

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    report = yield
    report.outcome = "passed"
    return report
"""),
}  # fmt: skip


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("case", FORGIVEN)
def test_a_broken_gate_fails_the_session_although_its_test_did_not_fail(lab: Lab, case: str) -> None:
    code, conftest = FORGIVEN[case]
    lab.write(f"""
    def test_it(experiment, payloads):
        experiment.run(payloads.random(10), arrival=FixedInterval(0.01), sensors=2, ops_per_sensor=2)
        {code}
    """)
    (lab.folder / "conftest.py").write_text(conftest)
    run = lab.run(*FOLDER, "--cloudbench-fail", "response_p50:0.0000001")
    assert run.status == 1, run.text
    assert "failed" not in run.counts()
    (line,) = run.lines_with("cloudbench: gate response_p50:1e-07: ")
    assert "breaks the bound" in line
    good = lab.run(*FOLDER, "--cloudbench-fail", "response_p50:50")
    assert (good.status, good.lines_with("cloudbench: gate")) == (0, []), good.text
