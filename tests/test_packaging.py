"""The sdist and the wheel that a user gets from the index, built here and installed away from this checkout.

Also the pins in constraints.txt, which must cover everything that set-up installs.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution, distributions, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from pytest_cloudbench.results.oplog import read_parquet
from pytest_cloudbench.support.extras import BRINGS, install_command
from tests.limits import HANG_S
from tests.network_guard import with_index
from tests.provider_folders import make_folders
from tests.runs import SPREAD, Spread

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT = PYPROJECT["project"]
# Comes with every environment, so it needs no pin.
UNPINNED = {"pip", "setuptools", "wheel", "pytest-cloudbench"}


def clean_env(**extra: str) -> dict[str, str]:
    """Return the environment without variables that would let this checkout or this test run reach into a child."""
    leaky = ("PYTHONPATH", "PYTHONHOME", "PYTEST_", "PYTEST", "COV_", "VIRTUAL_ENV", "PIP_CONSTRAINT")
    return {name: value for name, value in os.environ.items() if not name.startswith(leaky)} | extra


def run(*command: str | Path, cwd: Path, timeout_s: float = 120, env: Mapping[str, str] | None = None) -> str:
    """Run a command and return its output. Fail with all of the output if the command fails."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=clean_env() if env is None else env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


# --- constraints.txt ---


def pins() -> dict[str, Requirement]:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    requirements = [Requirement(line) for line in lines if line.strip() and not line.startswith("#")]
    return {canonicalize_name(requirement.name): requirement for requirement in requirements}


def find_distributions(requirement: Requirement, visited: set[tuple[str, str]]) -> set[str]:
    """Return the names of all installed distributions that a requirement brings here, itself included."""
    name = canonicalize_name(requirement.name)
    names: set[str] = set()
    for extra in {"", *requirement.extras}:
        if (name, extra) in visited:
            continue
        visited.add((name, extra))
        try:
            requires = distribution(name).requires or []
        except PackageNotFoundError:
            return names
        names.add(name)
        for line in requires:
            child = Requirement(line)
            if child.marker is None or child.marker.evaluate({"extra": extra}):
                names |= find_distributions(child, visited)
    return names


def test_constraints_pin_every_distribution_that_set_up_installs() -> None:
    declared = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]
    expected: set[str] = set()
    for line in declared:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate():
            assert find_distributions(requirement, set()), f"{line} is declared but not installed here"
            expected |= find_distributions(requirement, set())
    assert len(expected) > len(declared)
    assert expected - UNPINNED <= pins().keys()


def installed_names() -> set[str]:
    return {canonicalize_name(one.metadata["Name"]) for one in distributions()}


def test_constraints_are_exact_sorted_and_within_the_declared_ranges() -> None:
    assert list(pins()) == sorted(pins())
    for requirement in pins().values():
        assert re.fullmatch(r"==[0-9][\w.]*", str(requirement.specifier)), requirement
    extras = PROJECT["optional-dependencies"].values()
    for line in [*PROJECT["dependencies"], *(line for lines in extras for line in lines)]:
        declared = Requirement(line)
        if declared.name == PROJECT["name"]:  # an extra that stands for others
            continue
        version = str(pins()[canonicalize_name(declared.name)].specifier).removeprefix("==")
        assert declared.specifier.contains(version), line


def test_pinned_versions_install_on_the_oldest_python_that_the_package_supports() -> None:
    """A distribution's own 3.11.5 shuts out the 3.11.2 that Debian 12 brings."""
    oldest = min(re.findall(r"[\d.]+", PROJECT["requires-python"])) + ".0"
    installed = {name: distribution(name) for name in pins().keys() & installed_names()}
    assert len(installed) > 100
    required = {name: (one.metadata.get_all("Requires-Python") or [""])[0] for name, one in installed.items()}
    assert {name: versions for name, versions in required.items() if oldest not in SpecifierSet(versions)} == {}


def test_constraints_name_no_place_to_fetch_from() -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    assert not [line for line in lines if "://" in line or re.match(r"\s*-", line) or " @ " in line]


# --- sdist and wheel ---


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and with the wheel that was built from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    return folder


@pytest.fixture(scope="session")
def wheel(built: Path) -> Path:
    (path,) = built.glob("*.whl")
    return path


def list_files(folder: str, pattern: str = "*") -> set[str]:
    """Return the files of the checkout below a folder that belong into a package, relative to that folder."""
    base = ROOT / folder
    paths = (path.relative_to(base) for path in base.rglob(pattern) if path.is_file())
    return {path.as_posix() for path in paths if "__pycache__" not in path.parts and path.suffix != ".pyc"}


@pytest.mark.slow
def test_wheel_carries_package_suites_data_and_licence(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {f"pytest_cloudbench/{name}" for name in list_files("src/pytest_cloudbench")}
    expected |= {f"pytest_cloudbench/suites/{name}" for name in list_files("suites")}
    expected |= {f"pytest_cloudbench/data/published/{name}" for name in list_files("results/published", "*.json")}
    # Named one by one, so that an empty checkout cannot make this test pass.
    expected |= {"pytest_cloudbench/py.typed", "pytest_cloudbench/suites/__init__.py"}
    expected |= {"pytest_cloudbench/suites/iot/__init__.py", "pytest_cloudbench/suites/expectations.toml"}
    inside = {name for name in names if not name.split("/")[0].endswith(".dist-info")}
    assert inside == expected
    assert any(name.startswith("pytest_cloudbench/emulators/") and name.endswith(".toml") for name in names)
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_sdist_contains_all_files_its_tests_need(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for folder in (
        "src",
        "suites",
        "tests",
        "fixtures",
        "tools",
        "changelog.d",
        "examples",
        "docs",
        "results/published",
    ):
        assert {f"{folder}/{name}" for name in list_files(folder)} <= names, folder
    assert {"LICENSE", "Makefile", "constraints.txt", "pyproject.toml", "tox.ini"} <= names
    others = [name for name in names if not name.startswith("results/published")]
    assert not [name for name in others if name.startswith(("results/", ".venv", ".git/", ".tox"))]


def test_wheel_declares_ranges_and_no_pins(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    lines = [line for line in archive.read(metadata).decode().splitlines() if line.startswith("Requires-Dist: ")]
    assert lines
    assert not [line for line in lines if "==" in line.partition(";")[0] or "://" in line]


# --- without extras ---

# Modules of the extras, and modules that only the project's own tests use.
EXTRA_MODULES = "numpy pyshark lxml keyring googleapiclient vcr duckdb pyarrow psutil dpkt hypothesis scipy PIL".split()


_BLOCKER = """
import sys

class Blocker:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker)
"""


@pytest.fixture
def bare_env(tmp_path: Path) -> dict[str, str]:
    """An environment in which no Python process can import modules that an ordinary installation lacks."""
    folder = tmp_path / "bare"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_BLOCKER.format(names=EXTRA_MODULES))
    return clean_env(PYTHONPATH=str(folder))


def bare_run(bare_env: dict[str, str], *command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *command], cwd=cwd, env=bare_env, capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert "Traceback" not in done.stdout + done.stderr, done.stdout + done.stderr
    return done


_EXPERIMENT = """
from pytest_cloudbench.workload.arrival import ThinkTime

def test_it(experiment, payloads):
    result = experiment.run(payloads.random(size_bytes=100), arrival=ThinkTime(0), sensors=2, ops_per_sensor=3)
    assert result["lost"] == 0
"""


@pytest.mark.slow
def test_an_experiment_runs_and_keeps_its_records_without_any_extra(bare_env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(_EXPERIMENT)
    done = bare_run(
        bare_env, "-m", "pytest", "-n", "2", "-p", "no:hypothesispytest", "--benchmark-autosave", cwd=tmp_path
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    (records,) = (tmp_path / "results").rglob("*.parquet")
    assert len(read_parquet(records)) == 6
    (entries,) = tmp_path.rglob("0001_*.json")
    assert json.loads(entries.read_text())["benchmarks"][0]["extra_info"]["ops"] == 6


@pytest.mark.parametrize("command", [["--help"], ["emulate", "--help"], ["clean", "--dry-run"], ["new", "-"]])
def test_the_command_works_without_any_extra(command: list[str], bare_env: dict[str, str], tmp_path: Path) -> None:
    bare_env["CLOUDBENCH_JOURNAL"] = str(tmp_path / "journal.jsonl")
    assert bare_run(bare_env, "-m", "pytest_cloudbench.commands.cli", *command, cwd=tmp_path).returncode == 0


@pytest.mark.slow
def test_missing_extra_is_named_in_one_line(bare_env: dict[str, str], tmp_path: Path) -> None:
    done = bare_run(
        bare_env,
        "-m",
        "pytest_cloudbench.commands.cli",
        "analyze",
        str(ROOT / "fixtures/captures/vlan.pcap"),
        cwd=tmp_path,
    )
    message = f"numpy and pyshark are not installed: run {install_command('capture')}"
    assert (done.returncode, done.stderr) == (4, f"cloudbench: analyze: {message}\n")
    (tmp_path / "test_it.py").write_text(
        "def test_it(lab): lab.rebuild(); lab.client\ndef test_lab(lab): lab.examine()\n"
    )
    done = bare_run(bare_env, "-m", "pytest", "-rs", "-p", "no:hypothesispytest", "--client", "reference", cwd=tmp_path)
    assert "2 skipped" in done.stdout
    assert done.stdout.count(f"client reference: {message}") == 2
    token = bare_run(
        bare_env, "-m", "pytest", "-p", "no:hypothesispytest", "--provider", "dropbox", cwd=tmp_path
    ).stderr
    assert f"(keyring is not installed: run {install_command('keyring')})" in token


def test_conformance_suite_names_extra_for_random_order(bare_env: dict[str, str], tmp_path: Path) -> None:
    suite = str(ROOT / "suites" / "conformance" / "test_any_order.py")
    # Without a cache, because this checkout may be another user's.
    plugins = ("-p", "no:hypothesispytest", "-p", "no:cacheprovider")
    options = (*plugins, "--provider", "folder:objects", "-Wignore:ASSERTIONS")
    make_folders(tmp_path, options)
    # pytest's own importer, which rewrites assertions in plugins, comes before the one that hides the module.
    done = bare_run(bare_env, "-m", "pytest", suite, "-rs", "--assert=plain", *options, cwd=tmp_path)
    assert "1 skipped" in done.stdout
    assert f"hypothesis is not installed: run {install_command('conformance')}" in done.stdout


@pytest.mark.slow
def test_extras_match_packages_of_their_features() -> None:
    declared = PROJECT["optional-dependencies"]
    for extra, modules in BRINGS.items():
        brought = {canonicalize_name(name) for module in modules for name in packages_distributions()[module]}
        assert {canonicalize_name(Requirement(line).name) for line in declared[extra]} == brought
    (every,), (drivers,) = (map(Requirement, declared[name]) for name in ("all", "providers"))
    assert every.extras | drivers.extras == declared.keys() - {"all", "dev"}
    assert not every.extras & drivers.extras


# --- installed, away from the checkout ---


def size_bytes(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def make_environment(folder: Path) -> tuple[Path, Path]:
    """Make a new, empty environment. Return its interpreter and its site-packages."""
    venv.create(folder, with_pip=False, symlinks=os.name != "nt")
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip()
    return python, Path(site)


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that holds the wheel, and borrows only the dependencies from this one."""
    folder = tmp_path_factory.mktemp("installed")
    python, site = make_environment(folder / "venv")
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", wheel, cwd=folder)
    # A .pth line adds a folder but does not read the .pth files in it, so the editable install stays invisible.
    borrowed = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    (site / "borrowed.pth").write_text("\n".join(borrowed) + "\n", "utf-8")
    return python


def assert_not_from_checkout(python: Path, cwd: Path) -> None:
    code = (
        "import pytest_cloudbench, pytest_cloudbench.suites.iot as iot; print(pytest_cloudbench.__file__, iot.__file__)"
    )
    for path in run(python, "-c", code, cwd=cwd).split():
        assert Path(path).is_relative_to(python.parent.parent), path


def collect(python: Path, cwd: Path) -> list[str]:
    """Return the node ids of the suite as the installed wheel has it."""
    output = run(*(python, "-m", "pytest", "--pyargs", "pytest_cloudbench.suites.iot", "--collect-only", "-q"), cwd=cwd)
    return re.findall(r"^\S+::(\S+)$", output, re.MULTILINE)


def shortest(tests: list[str]) -> str:
    """Return a -k expression for one experiment with few sensors. Numbers in a name are compared as numbers."""
    return min(tests, key=lambda test: [int(number) for number in re.findall(r"\d+", test)])


@pytest.mark.slow
def test_suites_are_collected_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    assert_not_from_checkout(installed, tmp_path)
    assert collect(installed, tmp_path)


@pytest.mark.slow
@SPREAD
def test_a_suite_from_the_wheel_knows_its_options(installed: Path, tmp_path: Path, spread: Spread) -> None:
    (tmp_path / "test_mine.py").write_text(
        "def test_mine(request): assert request.config.option.cloudbench_idle_seconds == 3"
    )
    arguments = ("--pyargs", "pytest_cloudbench.suites.idle", "test_mine.py", "--idle-seconds", "3")
    output = run(installed, "-m", "pytest", *arguments, *spread, "-k", "test_mine", cwd=tmp_path)
    assert re.search(r"\b1 passed", output), output


@pytest.mark.slow
def test_the_wheel_checks_a_driver(installed: Path, tmp_path: Path) -> None:
    suite = "pytest_cloudbench.suites.conformance"
    (tmp_path / "objects").mkdir()
    printed = run(installed, "-m", "pytest", "--pyargs", suite, "--provider", "folder:objects", "-n", "2", cwd=tmp_path)
    assert re.search(r"\b[4-9]\d passed", printed), printed
    assert "failed" not in printed


@pytest.mark.slow
def test_a_checkout_checks_a_driver_by_the_same_command(tmp_path: Path) -> None:
    arguments = ("--pyargs", "pytest_cloudbench.suites.conformance", "-k", "test_any_order", "-p", "no:cacheprovider")
    (tmp_path / "objects").mkdir()
    for folder in (ROOT, tmp_path):
        provider = ("--provider", f"folder:{tmp_path / 'objects'}")
        printed = run(sys.executable, "-m", "pytest", *arguments, *provider, cwd=folder)
        assert re.search(r"\b[1-9]\d* passed", printed), printed


@pytest.mark.slow
def test_published_tables_are_in_the_wheel(installed: Path, tmp_path: Path) -> None:
    output = run(installed.with_name("cloudbench"), "published", "thesis-2014-table-4.2", cwd=tmp_path)
    assert "55.33 %" in output


def test_console_script_of_the_wheel(installed: Path, tmp_path: Path) -> None:
    assert "usage" in run(installed.with_name("cloudbench"), "--help", cwd=tmp_path).lower()


def run_one_experiment(python: Path, cwd: Path) -> None:
    test = shortest(collect(python, cwd))
    output = run(
        *(python, "-m", "pytest", "--pyargs", "pytest_cloudbench.suites.iot", "-n", "2", "-k", test),
        cwd=cwd,
        timeout_s=300,
    )
    assert re.search(r"\b[1-9]\d* passed", output), output


@pytest.mark.slow
def test_one_experiment_runs_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    run_one_experiment(installed, tmp_path)


@pytest.mark.slow
def test_one_experiment_runs_after_an_ordinary_install_from_the_index(wheel: Path, tmp_path: Path) -> None:
    """Without any extra, and in less than 150 MB."""
    python, _ = make_environment(tmp_path / "venv")
    before = size_bytes(tmp_path / "venv")
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "-q")
    run(*pip, "-c", ROOT / "constraints.txt", wheel, cwd=tmp_path, timeout_s=600, env=with_index(clean_env()))
    assert size_bytes(tmp_path / "venv") - before < 150e6
    assert_not_from_checkout(python, tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()
    run_one_experiment(python, empty)


def test_modules_are_imported_as_they_were_compiled(tmp_path: Path) -> None:
    """Without written bytecode, pytest would compile each module whose asserts it rewrites, in each worker."""
    (tmp_path / "test_it.py").write_text(
        "import importlib\n"
        "def rewritten(name):\n"
        "    return type(importlib.import_module(name).__spec__.loader).__name__ == 'AssertionRewritingHook'\n"
        "def test_it(experiment):\n"
        "    ours = ['workload.arrival', 'fleet.messages', 'load.experiment', 'judge.metrics', 'providers']\n"
        "    assert [name for name in ours if rewritten(f'pytest_cloudbench.{name}')] == []\n"
        "    assert rewritten(__name__), 'what explains a failure'\n"
        "    assert rewritten('pytest_benchmark.session'), 'other plugins are as pytest has them'\n"
    )
    run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "1", "test_it.py", cwd=tmp_path)


def test_a_suite_that_runs_in_the_checkout_is_not_ended_as_a_test_that_hangs() -> None:
    """An item of ``suites/batching --grid paper`` takes four hours, one of ``suites/availability`` a week."""
    assert [name for name in PYPROJECT["tool"]["pytest"]["ini_options"] if "timeout" in name] == []
    options = "pytest -o faulthandler_timeout=600 -o faulthandler_exit_on_timeout=true"
    commands = run("make", "-n", "test", cwd=ROOT)
    assert [line for line in commands.splitlines() if " -m pytest" in line and options not in line] == [], commands


def test_helpers_assert_in_a_python_without_asserts() -> None:
    """`python -O` leaves out asserts that pytest does not rewrite, so a helper's assertion could no longer fail."""
    loaders = {
        name: type(getattr(module.__spec__, "loader", None)).__name__
        for name, module in sys.modules.items() if name.startswith("tests.")
    }  # fmt: skip
    assert loaders["tests.network_guard"] == "AssertionRewritingHook"
    assert [name for name, loader in loaders.items() if loader != "AssertionRewritingHook"] == []


def test_the_slow_part_repeats_the_quick_tests_in_other_surroundings() -> None:
    commands = run("make", "-n", "test-all", cwd=ROOT).splitlines()
    quick = [line for line in commands if "not slow and not truth" in line]
    assert any(line.startswith("PYTHONOPTIMIZE=2 sh tools/as_ordinary_user.sh ") for line in quick), commands


IMPORTED_AS_ON_WINDOWS = """
import asyncio, ctypes, http.client, importlib, os, pkgutil, signal, sqlite3, ssl, sys, urllib.request
import httptools, msgspec, pytest, uvicorn
import pytest_cloudbench

for module, names in ((os, sys.argv[1].split()), (signal, sys.argv[2].split())):
    for name in filter(module.__dict__.__contains__, names):
        delattr(module, name)
for name in sys.argv[3].split():
    sys.modules[name] = None
for module in pkgutil.walk_packages(pytest_cloudbench.__path__, "pytest_cloudbench."):
    importlib.import_module(module.name)
"""


def test_every_module_can_be_imported_where_posix_is_missing() -> None:
    """Windows lacks the parts of the standard library that are for other systems only."""
    missing = (
        "O_CLOEXEC O_DIRECTORY O_NOCTTY O_NOFOLLOW O_NONBLOCK O_PATH O_TMPFILE chown fchmod fork geteuid getuid killpg "
        "memfd_create mkfifo pidfd_open pipe2 pread pwrite sched_getaffinity setsid statvfs sync sysconf wait4",
        "SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGQUIT SIGSTOP SIGUSR1",
        "fcntl grp pty pwd resource syslog termios tty",
    )
    command = [sys.executable, "-c", IMPORTED_AS_ON_WINDOWS, *missing]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr
