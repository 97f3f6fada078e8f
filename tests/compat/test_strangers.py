"""Tests of an ordinary project run the same with this plugin as without it, whatever names the project uses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .project import Project

DISTS = ("load", "each", "loadscope", "loadfile", "loadgroup", "worksteal", "no")
PluginFolder = Callable[[str], Path]

INI = """
    [pytest]
    addopts = --strict-markers --strict-config --doctest-modules -ra
    filterwarnings = error
    markers =
        fleet: a ship's test
        cloudbench: somebody else's
        slow: takes long
"""

CONFTEST = """
    import pytest

    def pytest_addoption(parser):
        parser.addoption("--provider", default="aws", choices=("aws", "gcp"))
        parser.addoption("--grid", action="store_true")
        parser.addoption("--client", dest="client", type=int, default=3)
        parser.addoption("--duration", "--time-scale", action="append")
        parser.getgroup("cloudbench").addoption("--resume", default="no")

    @pytest.fixture
    def experiment(request):
        return request.config.getoption("--provider")

    @pytest.fixture(scope="session")
    def fleet():
        return ["one", "two"]

    @pytest.fixture(params=["a", "b"])
    def lab(request):
        return request.param

    @pytest.fixture(autouse=True)
    def payloads():
        yield "one"

    def pytest_generate_tests(metafunc):
        if "client" in metafunc.fixturenames:
            metafunc.parametrize("client", [1, 2])
"""

NAMES = """
    import pytest

    @pytest.mark.parametrize("provider", ["aws", "gcp"])
    def test_parameter(provider):
        assert provider in {"aws", "gcp"}

    @pytest.mark.parametrize(("experiment", "fleet"), [(1, 2), (3, 4)])
    def test_two_parameters(experiment, fleet):
        assert fleet == experiment + 1

    @pytest.mark.parametrize("lab", ["x"])
    @pytest.mark.parametrize("payloads", [b""])
    def test_more_parameters(lab, payloads):
        assert (lab, payloads) == ("x", b"")

    def test_own_fixtures(experiment, fleet, lab, payloads):
        assert (experiment, fleet, payloads) == ("aws", ["one", "two"], "one")
        assert lab in "ab"

    def test_of_a_hook(client):
        assert client in {1, 2}

    def test_own_options(request):
        option = request.config.option
        assert (option.provider, option.grid, option.client, option.duration, option.resume) == (
            "aws", False, 3, None, "no")

    @pytest.mark.fleet
    @pytest.mark.cloudbench
    def test_own_marks():
        pass

    class TestOfAClass:
        @pytest.fixture
        def provider(self):
            return "own"

        def test_it(self, provider):
            assert provider == "own"
"""

ORDINARY = """
    import doctest, subprocess, sys, threading, unittest, warnings
    import pytest

    def twice(number):
        '''
        >>> twice(2)
        4
        >>> twice(3)
        7
        '''
        return 2 * number

    class TestOld(unittest.TestCase):
        @classmethod
        def setUpClass(cls):
            cls.made = []

        def setUp(self):
            self.made.append(1)

        def test_passes(self):
            self.assertTrue(self.made)

        def test_fails(self):
            self.assertEqual([1, 2], [1, 3])

        @unittest.skip("not now")
        def test_skipped(self):
            pass

        @unittest.expectedFailure
        def test_expected(self):
            self.fail()

    @pytest.fixture
    def broken():
        raise OSError("no such thing")

    @pytest.fixture
    def broken_at_the_end():
        yield
        raise OSError("cannot be closed")

    def test_fails(capsys):
        print("said")
        print("said more", file=sys.stderr)
        number = 1
        assert number == 2, "a number"

    def test_error(broken):
        pass

    def test_error_at_the_end(broken_at_the_end):
        pass

    def test_skips():
        pytest.skip("for a reason")

    @pytest.mark.xfail(strict=True)
    def test_xfail():
        raise ValueError

    @pytest.mark.xfail
    def test_xpass():
        pass

    def test_warns():
        warnings.warn("mind the gap")

    def test_property(record_property):
        record_property("answer", 42)

    @pytest.mark.parametrize("number", range(6), ids="number {}".format)
    def test_numbers(number, tmp_path):
        assert number != 4
"""

BENCH = """
    [[experiment]]
    distance = "100 m"
"""
CONF = """
    [test]
    speed = 4
    [driver]
    name = Ayrton
"""


def ordinary(project: Project) -> Project:
    return project.write({
        "pytest.ini": INI, "tests/conftest.py": CONFTEST, "tests/test_names.py": NAMES, "setup.cfg": CONF,
        "tests/test_ordinary.py": ORDINARY, "tests/speed.bench.toml": BENCH, "tests/old.conf": CONF,
    })  # fmt: skip


def test_nothing_changes(project: Project) -> None:
    ran = ordinary(project).check_same()
    assert ran.status == 1
    outcomes = [line.rpartition(" ")[2] for line in ran.outcomes()]
    assert {word: outcomes.count(word) for word in outcomes} == {"passed": 21, "failed": 7, "skipped": 4}


@pytest.mark.slow
def test_own_options_keep_their_values(project: Project) -> None:
    ordinary(project).write({"tests/test_names.py": """
        def test_values(request, experiment):
            option = request.config.option
            assert (experiment, option.provider, option.grid, option.client) == ("gcp", "gcp", True, 7)
            assert (option.duration, option.resume) == (["1", "2"], "yes")
    """})  # fmt: skip
    options = ("--provider", "gcp", "--grid", "--client=7", "--duration", "1", "--time-scale", "2", "--resume=yes")
    for spread in ((), ("-n", "2")):
        ran = project.check_same("tests/test_names.py", *options, *spread)
        assert ran.outcomes() == ["tests/test_names.py::test_values: passed"]


@pytest.mark.parametrize("dist", [DISTS[0], *(pytest.param(dist, marks=pytest.mark.slow) for dist in DISTS[1:])])
def test_nothing_changes_with_workers(project: Project, dist: str) -> None:
    ran = ordinary(project).check_same("-n", "2", "--dist", dist)
    assert ran.status == 1
    assert len(ran.outcomes()) == 32 * (2 if dist == "each" else 1)


@pytest.mark.slow
def test_options_of_a_late_conftest_belong_to_it(project: Project) -> None:
    project.write({
        "inner/conftest.py": "def pytest_addoption(parser): parser.addoption('--provider', default='late')",
        "inner/test_it.py": "def test_it(request): assert request.config.getoption('provider') == 'late'",
    })  # fmt: skip
    for args in ((), ("inner", "--provider", "late"), ("inner", "--provider=late", "-n", "2")):
        assert project.check_same(*args).outcomes() == ["inner/test_it.py::test_it: passed"]


@pytest.mark.slow
def test_options_of_other_plugins_win_in_any_load_order(project: Project, tmp_path: Path) -> None:
    """Installed plugins are loaded in no reliable order."""
    (tmp_path / "stranger.py").write_text("def pytest_addoption(parser): parser.addoption('--provider', type=int)")
    project.write({"test_it.py": "def test_it(request): assert request.config.option.provider == 3"})
    for name in ("aaa", "zzz"):
        info = tmp_path / name / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[pytest11]\n{name} = stranger\n")
        ran = project.check_same("--provider", "3", plugins=[info.parent, tmp_path])
        assert ran.outcomes() == ["test_it.py::test_it: passed"]


SCHEDULER = """
    import pytest
    from xdist.scheduler import LoadScopeScheduling

    class Backwards(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return nodeid[-1]

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(config, log):
        return Backwards(config, log)
"""


@pytest.mark.slow
def test_another_scheduler_is_used(project: Project) -> None:
    tests = "\n".join(f"def test_{number}(): pass" for number in range(6))
    ran = project.write({"conftest.py": SCHEDULER, "test_it.py": tests}).check_same("-n", "3", "-v")
    assert "scheduling tests via Backwards" in ran.text


DIFFERENT = """
    import os

    if os.environ["PYTEST_XDIST_WORKER"] == "gw1":
        def test_more():
            pass

    def test_it():
        pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("dist", ["each", "load"])
def test_workers_that_collect_differently_are_reported_by_xdist(project: Project, dist: str) -> None:
    ran = project.write({"test_it.py": DIFFERENT}).check_same("-n", "2", "--dist", dist)
    assert ran.outcomes().count("test_it.py::test_it: passed") == (2 if dist == "each" else 0)
    assert ("Different tests were collected between" in ran.text) == (dist == "load")


@pytest.mark.slow
def test_files_that_look_like_ours_are_left_alone_unless_they_are_named(project: Project) -> None:
    project.write({
        "speed.bench.toml": BENCH, "old.conf": CONF, "setup.cfg": CONF, "test_it.py": "def test_it(): pass",
    })  # fmt: skip
    assert project.check_same().outcomes() == ["test_it.py::test_it: passed"]
    assert project.check_same(".").outcomes() == ["test_it.py::test_it: passed"]
    run = project.run("speed.bench.toml", "old.conf")
    errors = [report["longrepr"] for report in run.reports if report["kind"] == "collect"]
    assert [error.partition(":")[0] for error in errors] == ["speed.bench.toml", "old.conf"], run.text
    assert not any("\n" in error for error in errors)
    assert project.run(".", "-o", "cloudbench_files=speed.*").status == 2
