"""Our fixtures in a project that has things of the same names, and beside other people's plugins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.runs import SPREAD, Spread

from .project import Project

PluginFolder = Callable[[str], Path]

EXPERIMENT = """
    from pytest_cloudbench.workload.arrival import FixedInterval

    def test_ours(experiment, payloads):
        result = experiment.run(payloads.random(10), arrival=FixedInterval(0.01), sensors=2, ops_per_sensor=2)
        assert result["ok"] == 4
"""
OURS = "test_ours.py::test_ours[folder:objects]: passed"


@pytest.mark.slow
@SPREAD
def test_an_option_that_others_have_is_set_by_its_long_name(project: Project, spread: Spread) -> None:
    project.write({
        "test_ours.py": EXPERIMENT,
        "conftest.py": "def pytest_addoption(parser): parser.addoption('--provider', choices=['aws'])",
        "test_theirs.py": "def test_theirs(request): assert request.config.option.provider == 'aws'",
    })  # fmt: skip
    ran = project.run("--provider", "aws", "--cloudbench-provider", "folder:objects", "--max-ops", "4", *spread)
    assert sorted(ran.outcomes()) == [OURS, "test_theirs.py::test_theirs: passed"], ran.text
    assert "cloudbench: another plugin or a conftest.py owns --provider; use --cloudbench-provider" in ran.text
    assert project.run("--provider=folder:objects", *spread).status == 4


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("options", [("--provider", "folder:objects"), ("--provider=folder:objects",), ("@options",)])
def test_unclaimed_short_option_names_are_ours(project: Project, options: tuple[str, ...]) -> None:
    """They are ours also if ``testpaths`` finds conftest files and tests, and if a file has the options."""
    project.write({
        "t/test_ours.py": EXPERIMENT, "options": "--provider=folder:objects\n-v\n",
        "t/conftest.py": "def pytest_addoption(parser): parser.addoption('--wanted')",
        "pytest.ini": "[pytest]\ntestpaths = t\naddopts = --max-ops 4\n",
    })  # fmt: skip
    ran = project.run(*options, "--wanted=x", "--cloudbench-seed=s")
    assert ran.outcomes() == [f"t/{OURS}"], ran.text
    assert "another plugin" not in ran.text


@pytest.mark.slow
def test_option_defined_by_a_conftest_belongs_to_it(project: Project) -> None:
    project.write({
        "t/conftest.py": "def pytest_addoption(parser): parser.addoption('--grid', default='no')",
        "t/test_theirs.py": "def test_theirs(request): assert request.config.option.grid == 'fine'",
        "pytest.ini": "[pytest]\ntestpaths = t\n",
    })  # fmt: skip
    assert project.check_same("--grid=fine").outcomes() == ["t/test_theirs.py::test_theirs: passed"]
    assert project.check_same("t", "--grid", "fine").outcomes() == ["t/test_theirs.py::test_theirs: passed"]


@pytest.mark.slow
@SPREAD
def test_a_fixture_may_stand_on_ours_of_the_same_name(project: Project, spread: Spread) -> None:
    project.write({
        "test_ours.py": EXPERIMENT,
        "conftest.py": """
            import pytest

            @pytest.fixture(scope="session")
            def provider(provider):
                provider.is_mine = True
                return provider

            @pytest.fixture
            def experiment(experiment):
                assert experiment.provider.is_mine
                return experiment
        """,
    })  # fmt: skip
    assert project.run("--provider", "folder:objects", *spread).outcomes() == [OURS]


@pytest.mark.slow
@SPREAD
def test_values_of_our_fixtures_may_come_from_a_mark_or_a_hook(project: Project, spread: Spread) -> None:
    project.write({
        "test_ours.py": """
            import pytest

            @pytest.mark.parametrize("provider", ["folder:one", "folder:two"], indirect=True)
            def test_mark(fleet, provider):
                assert provider.spec in {"folder:one", "folder:two"}

            def pytest_generate_tests(metafunc):
                if metafunc.function.__name__ == "test_hook":
                    metafunc.parametrize("provider", ["folder:three"], indirect=True)

            def test_hook(provider):
                assert provider.spec == "folder:three"
        """,
    })  # fmt: skip
    ran = project.run(*spread)
    names = ["test_hook[folder:three]", "test_mark[folder:one]", "test_mark[folder:two]"]
    assert sorted(ran.outcomes()) == [f"test_ours.py::{name}: passed" for name in names], ran.text


@pytest.mark.slow
def test_strangers_beside_ours_run_once(project: Project) -> None:
    """This holds with any scheduler, and although they use the same names and marks."""
    project.write({
        "test_ours.py": EXPERIMENT,
        "pytest.ini": "[pytest]\nmarkers = fleet: a ship\naddopts = --strict-markers\n",
        "test_theirs.py": """
            import pytest

            class TestShips:
                @pytest.fixture
                def fleet(self):
                    return "ships"

                @pytest.mark.fleet
                @pytest.mark.parametrize("experiment", range(6))
                def test_ship(self, fleet, experiment):
                    assert (fleet, experiment // 6) == ("ships", 0)
        """,
    })  # fmt: skip
    theirs = [f"test_theirs.py::TestShips::test_ship[{number}]: passed" for number in range(6)]
    for dist in ("load", "loadscope", "worksteal"):
        ran = project.run("--provider", "folder:objects", "-n", "2", "--dist", dist)
        assert sorted(ran.outcomes()) == [OURS, *theirs], ran.text


FAILING = """
    import pytest
    from pytest_cloudbench.workload.arrival import FixedInterval

    {mark}
    def test_ours(experiment, payloads):
        experiment.run(payloads.random(10), arrival=FixedInterval(0.01), sensors=2, ops_per_sensor=2)
        assert False, "broken"
"""


@SPREAD
@pytest.mark.parametrize(
    ("plugin", "mark", "options"),
    [("rerunfailures", "", ("--reruns", "2")),
     pytest.param("rerunfailures", "@pytest.mark.flaky(reruns=2)", (), marks=pytest.mark.slow),
     pytest.param("flaky", "@pytest.mark.flaky(max_runs=3)", (), marks=pytest.mark.slow)],
)  # fmt: skip
def test_a_measurement_is_not_repeated_until_it_passes(
    project: Project, plugin_folder: PluginFolder, plugin: str, mark: str, options: tuple[str, ...],
    spread: Spread,
) -> None:  # fmt: skip
    project.write({"test_ours.py": FAILING.format(mark=mark)})
    ran = project.run("--provider", "folder:objects", *options, *spread, plugins=[plugin_folder(plugin)])
    assert ran.outcomes() == [OURS.replace("passed", "failed")], ran.text
    assert ran.text.count("(not rerun: --reruns and flaky marks do not apply") == 1, ran.text


@pytest.mark.slow
def test_quiet_runs_print_less(project: Project) -> None:
    project.write({"test_ours.py": EXPERIMENT})
    outputs = [project.run("--provider", "folder:objects", *quiet).text for quiet in ((), ("-q",), ("-qq",))]
    assert ["about 4 operations" in text for text in outputs] == [True, False, False]
    assert ["records: results" in text for text in outputs] == [True, True, False]
    assert ["p99 ms" in text for text in outputs] == [True, True, False]


@pytest.mark.slow
@SPREAD
def test_run_without_pytest_benchmark_stores_nothing_and_warns(project: Project, spread: Spread) -> None:
    project.write({"test_ours.py": EXPERIMENT})
    ran = project.run("--provider", "folder:objects", "-p", "no:benchmark", *spread)
    assert ran.outcomes() == [OURS], ran.text
    assert "entries: not stored (-p no:benchmark switches off what stores them)" in ran.text
