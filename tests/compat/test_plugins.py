"""Other people's plugins report the same with this plugin as without it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.runs import SPREAD, Spread

from .project import Project

PluginFolder = Callable[[str], Path]

CODE = """
    def half(number):
        if number % 2:
            raise ValueError("odd")
        return number // 2
"""
TESTS = """
    import pathlib, unittest
    import pytest
    from code_under_test import half

    @pytest.mark.parametrize("provider", range(4))
    def test_half(provider):
        assert half(2 * provider) == provider

    def test_odd():
        half(3)

    @pytest.fixture
    def fleet(tmp_path):
        yield tmp_path

    def test_own_fixture(fleet):
        assert fleet.is_dir()

    class TestOld(unittest.TestCase):
        def test_it(self):
            self.assertEqual(half(4), 2)
"""
ASYNC = """
    import asyncio
    import pytest

    @pytest.fixture
    async def experiment():
        await asyncio.sleep(0)
        yield 3

    async def test_loop(experiment):
        await asyncio.sleep(0)
        assert experiment == 3

    async def test_fails(experiment):
        assert experiment == 4
"""
FLAKY = """
    import pathlib, pytest

    def times(name):
        path = pathlib.Path(name)
        path.write_text(path.read_text() + "x" if path.exists() else "x")
        return (len(path.read_text()) - 1) % 3 + 1  # the next run begins anew

    {mark}
    def test_third_time():
        assert times("third") == 3

    {mark}
    def test_never():
        assert False
"""
RERUN_MARK, RUNS_MARK = "@pytest.mark.flaky(reruns=2)", "@pytest.mark.flaky(max_runs=3)"
BENCHMARK = """
    def test_it(benchmark):
        assert benchmark(lambda: 3) == 3
"""
SLOW = """
    import time

    def test_too_long():
        time.sleep(30)

    def test_next():
        pass
"""
ORDERED = """
    import pytest

    @pytest.mark.order(2)
    def test_a(): pass

    @pytest.mark.order(1)
    def test_b(): pass
"""
DJANGO = """
    import pytest

    def test_option(request):
        assert request.config.getoption("--ds") is None
        assert request.config.getoption("--reuse-db") is True
"""
AUTO = "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"

# name of a case: plugin ("" is a plugin that this project requires), options, files besides the ordinary ones.
CASES: dict[str, tuple[str, tuple[str, ...], dict[str, str]]] = {
    "cov": ("cov", ("--cov=code_under_test", "--cov-report=term-missing"), {}),
    "asyncio": ("asyncio", (), {"test_async.py": ASYNC, "pytest.ini": AUTO}),
    "anyio": ("anyio", ("-o", "anyio_mode=auto"), {"test_async.py": ASYNC}),
    "randomly": ("randomly", ("-p", "randomly", "-p", "no:randomly"), {}),
    "randomly seeded": ("randomly", ("-p", "no:hypothesispytest", "--randomly-seed=7"), {}),
    "timeout thread": ("timeout", ("--timeout=60", "--timeout-method=thread"), {}),
    "timeout": ("timeout", ("--timeout=1", "--timeout-method=signal"), {"test_slow.py": SLOW}),
    "html": ("html", ("--html=report.html", "--self-contained-html"), {}),
    "sugar": ("sugar", ("--force-sugar",), {}),
    "split": ("split", ("--splits=2", "--group=2"), {}),
    "allure": ("allure", ("--alluredir=allure",), {}),
    "rerunfailures": ("rerunfailures", ("--reruns=1",), {"test_flaky.py": FLAKY.format(mark=RERUN_MARK)}),
    "flaky": ("flaky", (), {"test_flaky.py": FLAKY.format(mark=RUNS_MARK)}),
    "flaky forced": ("flaky", ("--force-flaky", "--max-runs=2"), {}),
    "django": ("django", ("--reuse-db",), {"test_django.py": DJANGO}),
    "order": ("order", (), {"test_ordered.py": ORDERED}),
    "repeat": ("repeat", ("--count=2",), {}),
    "benchmark off": ("", ("--benchmark-disable",), {"test_benchmark.py": BENCHMARK}),
    "junit": ("", ("--junit-xml=junit.xml", "--durations=3", "--durations-min=100"), {}),
    "verbose": ("", ("-vv", "-rA"), {}),
    "quiet": ("", ("-qq", "--tb=line"), {}),
    "first failure": ("", ("-x",), {}),
    "selection": ("", ("-k", "half or fixture", "--deselect", "test_it.py::test_half[1]"), {}),
    "collect only": ("", ("--collect-only",), {}),
}
QUICK = {"cov"}
NO_WORKERS = {"collect only", "first failure", "split"}  # the progress of workers, or the duration of tests, is random


@SPREAD
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in QUICK else pytest.mark.slow) for case in CASES]
)
def test_reports_are_the_same(project: Project, plugin_folder: PluginFolder, case: str, spread: Spread) -> None:
    name, options, files = CASES[case]
    if spread and case in NO_WORKERS:
        pytest.skip("differs from run to run without this plugin, too")
    project.write({"code_under_test.py": CODE, "test_it.py": TESTS, "test_async.py": "", "pytest.ini": "[pytest]\n"})
    project.write(files)
    ran = project.check_same(*options, *spread, plugins=[plugin_folder(name)] if name else [])
    assert case == "collect only" or any(line.endswith(": passed") for line in ran.outcomes()), ran.text
