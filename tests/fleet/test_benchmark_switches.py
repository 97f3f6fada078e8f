"""pytest-benchmark's own switches and groups, which apply to experiments as well."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.fleet.harness import Lab
from tests.limits import HANG_S

TESTS = """
import pytest
from pytest_cloudbench import FixedInterval

@pytest.mark.parametrize("size", [64, 128])
def test_put(experiment, payloads, size):
    experiment.run(payloads.random(size_bytes=size), arrival=FixedInterval(0.05), sensors=1, ops_per_sensor=2)

def test_stock(benchmark):
    benchmark(sum, [1, 2])

def test_plain():
    pass
"""


def outcomes(lab: Lab, *options: str) -> dict[str, int]:
    run = lab.write(TESTS).run("--provider", "folder:store", *options)
    assert run.status == 0, run.text
    return {"passed": run.text.count("PASSED"), "skipped": run.text.count("SKIPPED")}


@pytest.fixture(autouse=True)
def store(lab: Lab) -> None:
    (lab.folder / "store").mkdir()


def test_benchmark_only_runs_experiments(lab: Lab) -> None:
    assert outcomes(lab, "-v", "--benchmark-only") == {"passed": 3, "skipped": 1}


def test_benchmark_skip_skips_experiments(lab: Lab) -> None:
    assert outcomes(lab, "-v", "--benchmark-skip") == {"passed": 1, "skipped": 3}


def test_a_mark_of_the_test_itself_stays(lab: Lab) -> None:
    lab.write("import pytest\n\n@pytest.mark.skip(reason='own')\ndef test_it(experiment):\n    pass\n")
    assert "SKIPPED" in lab.run("-v", "--benchmark-only").text


def test_gate_judges_tests_kept_by_benchmark_only(lab: Lab) -> None:
    run = lab.write(TESTS).run("--provider", "folder:store", "--benchmark-only", "--cloudbench-fail", "loss_rate:0")
    assert run.status == 0, run.text
    assert "no test in this run measures anything" not in run.text


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("group", ["param:provider", "param:size,param:provider", "param"])
def test_experiments_are_grouped_by_their_provider(lab: Lab, group: str) -> None:
    (lab.folder / "other").mkdir()
    lab.write(TESTS)
    storage = f"--benchmark-storage=file://{lab.folder}/stored"
    run = lab.run(
        "--provider", "folder:store", "--provider", "folder:other", "-k", "put", storage, "--benchmark-autosave",
        f"--benchmark-group-by={group}", "--benchmark-columns=min",
    )  # fmt: skip
    assert run.status == 0, run.text
    for provider in ("folder:store", "folder:other"):
        assert [line for line in run.text.splitlines() if "benchmark '" in line and provider in line], run.text
    command = [Path(pytest.__file__).parents[4] / "bin" / "pytest-benchmark", storage.replace("--benchmark-", "--")]
    comparison = subprocess.run(
        [*map(str, command), "compare", f"--group-by={group}"],
        cwd=lab.folder, capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip
    assert comparison.returncode == 0, comparison.stderr
    assert "provider=folder:other" in comparison.stdout or group == "param"


def test_stock_benchmarks_beside_a_fleet_take_and_note_values_of_any_type(lab: Lab) -> None:
    body = f"""{TESTS}
from pathlib import Path

@pytest.mark.parametrize("function", [sum, max])
def test_functions(benchmark, function):
    benchmark.extra_info["path"] = Path("x")
    benchmark(function, [1, 2])
"""
    run = lab.write(body).run("--provider", "folder:store", "-n", "2")
    assert (run.status, run.counts()["passed"]) == (0, 6), run.text
    alone = lab.run("-k", "test_functions")
    for name in ("test_functions[sum]", "test_functions[max]"):
        assert run.entries[name]["params"] == alone.entries[name]["params"]
        assert run.info(name) == alone.info(name)


def test_our_own_readers_do_not_take_the_provider_for_a_parameter(lab: Lab) -> None:
    run = lab.write(TESTS).run("--provider", "folder:store", "-k", "put", "--benchmark-autosave")
    assert run.status == 0, run.text
    (path,) = (lab.folder / "results").glob("*/0001_*.json")
    first = json.loads(path.read_text("utf-8"))["benchmarks"][0]
    assert first["params"] == {"provider": "folder:store", "size": 64}
    from pytest_cloudbench.results.stored import read_run

    assert read_run(path)[2][0].params == {"size": 64}
