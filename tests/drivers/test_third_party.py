"""Drivers of other distributions, which register them by entry points."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution
from pathlib import Path

import pytest

from pytest_cloudbench import drivers
from pytest_cloudbench.commands.cli import main
from pytest_cloudbench.model import ProviderSpec, SpecError
from pytest_cloudbench.providers import resolve
from tests.fleet.harness import Lab, lab_in
from tests.limits import HANG_S

from .distributions import HERE, install

ONE_TEST = """
from pytest_cloudbench.workload.arrival import ThinkTime

def test_it(experiment, payloads):
    result = experiment.run(payloads.random(size_bytes=100), arrival=ThinkTime(0), sensors=4, ops_per_sensor=3)
    assert result["lost"] == 0
    assert result["ops"] == 12
"""

KNOWN = ", ".join(drivers.schemes())

CONNECTS = """
class Loud:
    versions = put = get = stat = list = delete = mkdir = close = capabilities = None

    @classmethod
    def connect(cls, spec, endpoint, credentials):
        raise RuntimeError("two\\nlines")

class Odd(Loud):
    @classmethod
    def connect(cls, spec):
        return cls()

class Picky(Loud):
    @classmethod
    def connect(cls, spec, endpoint, credentials):
        return {}["account"]
"""
"""Drivers that raise foreign errors while they connect."""

LOUD = "import pathlib\npathlib.Path(__file__).with_suffix('.imported').touch()\nraise RuntimeError('two\\nlines')\n"
"""A module that leaves a trace when it is imported, and then fails to import."""

KEYED = """
from flat import FlatDriver
from pytest_cloudbench import CredentialSet

class Keyed(FlatDriver):
    credential_sets = (CredentialSet(("key",)),)
"""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with lab_in(tmp_path) as new_lab:
        (tmp_path / "test_it.py").write_text(ONE_TEST)
        yield new_lab


def with_path(folder: Path) -> dict[str, str | None]:
    """Return an environment in which the distributions of a folder are installed."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed distributions that this process sees. Modules loaded from it are removed afterwards."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
            del sys.modules[name]


def test_a_distribution_brings_a_driver(site: Path, tmp_path: Path) -> None:
    install(site, "flat", {"flat": "flat:FlatDriver"})
    assert drivers.has_driver("flat")
    driver = drivers.connect(ProviderSpec.parse(f"flat:{tmp_path}/objects"))
    assert list(driver.list("/")) == []
    assert (
        drivers.bind(ProviderSpec("flat:a?overwrites=0", "flat", "a", {})).absolute()
        == f"flat:{Path.cwd()}/a?overwrites=0"
    )
    assert "flat" not in drivers.schemes()  # it lists only the package's own


def test_status_knows_the_credentials_of_installed_drivers(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(site, "flat", {"flat": "flat:FlatDriver"})  # which needs none
    install(site, "keyed", {"keyed": "keyed:Keyed"}, {"keyed": KEYED})
    install(site, "loud", {"loud": "loud:Loud"}, {"loud": LOUD})
    for number in ("", "_2"):
        monkeypatch.setenv(f"CLOUDBENCH_KEYED{number}_KEY", "very-secret")
    assert main(["status"]) == 0
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "keyed: key (the environment)",
        "keyed-2: key (the environment)",
        "provider 'loud': loud:Loud cannot be imported: RuntimeError: two lines (from loud 1.0)",
    ]


def test_distributions_are_scanned_once(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class CountingFinder:
        scans = 0

        @classmethod
        def find_spec(cls, *_: object) -> None:
            """Find no module."""

        @classmethod
        def find_distributions(cls, *_: object) -> list[Distribution]:
            cls.scans += 1
            return []

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, CountingFinder])
    install(site, "flat", {"flat": "flat:FlatDriver"})
    for _ in range(3):
        assert drivers.has_driver("flat")
        assert drivers.driver_class("flat").__name__ == "FlatDriver"
    assert CountingFinder.scans == 1
    other = site.with_name("other")
    other.mkdir()
    install(other, "round", {"round": "flat:FlatDriver"})
    monkeypatch.syspath_prepend(str(other))  # a changed list of folders is scanned again
    assert drivers.has_driver("round")


@pytest.mark.slow
def test_it_is_found_in_every_process_after_an_installation_by_pip(lab: Lab) -> None:
    project = lab.folder / "project"
    project.mkdir()
    (project / "flat_driver.py").write_text((HERE / "flat.py").read_text("utf-8"))
    (project / "pyproject.toml").write_text(
        textwrap.dedent("""
        [build-system]
        requires = ["hatchling"]
        build-backend = "hatchling.build"
        [project]
        name = "flat-driver"
        version = "1.0"
        [project.entry-points."pytest_cloudbench.drivers"]
        flat = "flat_driver:FlatDriver"
        [tool.hatch.build.targets.wheel]
        only-include = ["flat_driver.py"]
        """)
    )
    command = "-m pip install -q --no-index --no-deps --no-build-isolation --target site ./project".split()
    done = subprocess.run(
        [sys.executable, *command], cwd=lab.folder, capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert done.returncode == 0, done.stderr
    run = lab.run("test_it.py", "--provider", "flat:objects", "-n", "2", env=with_path(lab.folder / "site"))
    assert (run.status, run.counts()) == (0, {"passed": 1}), run.text
    info = run.info("test_it[flat:objects]")
    assert (info["provider"], info["versions"]["flat"]) == ("flat:objects", "1")


def test_remains_of_a_killed_run_can_be_cleaned(lab: Lab) -> None:
    folder = install(lab.folder / "site", "flat", {"flat": "flat:FlatDriver"})
    journal = str(lab.folder / "journal.jsonl")
    env = {**with_path(folder), "CLOUDBENCH_JOURNAL": journal}
    (lab.folder / "test_left.py").write_text(
        "import os\ndef test_left(sandbox):\n    sandbox.folder()\n    os._exit(9)\n"
    )
    assert lab.run("test_left.py", "--provider", "flat:objects", env=env, store=False).status == 9
    assert list((lab.folder / "objects").iterdir())
    cleaned = subprocess.run(
        [sys.executable, "-m", "pytest_cloudbench.commands.cli", "clean"], cwd="/",
        env={**os.environ, "PYTHONPATH": str(folder), "CLOUDBENCH_JOURNAL": journal},
        capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip
    assert (cleaned.returncode, cleaned.stdout.splitlines()[-1]) == (0, "1 folder removed"), cleaned.stderr
    assert list((lab.folder / "objects").iterdir()) == []


def test_builtin_driver_loads_without_scanning_entry_points(site: Path) -> None:
    install(site, "loud", {"folder": "loud:Folder"}, {"loud": LOUD})
    code = f"""
    import sys
    sys.path.insert(0, {str(site)!r})
    import importlib.metadata
    def looked(**named):
        raise AssertionError("looked")
    importlib.metadata.entry_points = looked
    from pytest_cloudbench import drivers
    print(drivers.driver_class("folder").__module__, drivers.has_driver("dropbox"))
    try:
        drivers.driver_class("other")
    except AssertionError as error:
        print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert done.stdout.splitlines() == ["pytest_cloudbench.drivers.folder True", "looked"], done.stderr


def test_other_entry_points_are_not_imported(site: Path, tmp_path: Path) -> None:
    install(site, "flat", {"flat": "flat:FlatDriver"})
    install(site, "loud", {"loud": "loud:Loud"}, {"loud": LOUD})
    drivers.connect(ProviderSpec.parse(f"flat:{tmp_path}/objects"))
    with pytest.raises(
        SpecError, match=re.escape(f"there are: {KNOWN}, flat, loud, emulated, local, served; did you mean flat?")
    ):
        drivers.driver_class("flad")
    assert not (site / "loud.imported").exists()
    with pytest.raises(SpecError):
        drivers.driver_class("loud")
    assert (site / "loud.imported").exists()


BROKEN: Mapping[str, tuple[Mapping[str, str], str]] = {
    "clash": (
        {"one": "flat:FlatDriver", "two": "wrong:WrongDriver"},
        "provider 'mine': several distributions bring this driver: one 1.0 (flat:FlatDriver), two 1.0 "
        "(wrong:WrongDriver); uninstall all but one",
    ),
    "raises": (
        {"one": "loud:Loud"},
        "provider 'mine': loud:Loud cannot be imported: RuntimeError: two lines (from one 1.0)",
    ),
    "no module": (
        {"one": "no_such_module_here:Driver"},
        "provider 'mine': no_such_module_here:Driver cannot be imported: ModuleNotFoundError: No module named "
        "'no_such_module_here' (from one 1.0)",
    ),
    "no class": (
        {"one": "flat:NoDriver"},
        "provider 'mine': flat:NoDriver cannot be imported: AttributeError: module 'flat' has no attribute 'NoDriver' "
        "(from one 1.0)",
    ),
    "a function": (
        {"one": "textwrap:dedent"},
        "provider 'mine': textwrap:dedent is not a class: expected one that has connect, versions, put, get, stat, "
        "list, delete, mkdir, close",
    ),
    "methods missing": (
        {"one": "wrong:BareDriver"},
        "provider 'mine': wrong:BareDriver has no versions, put, get, stat, list, delete, mkdir, close: every driver "
        "must have it",
    ),
    "connect raises": (
        {"one": "connects:Loud"},
        "provider 'mine': Loud.connect raised RuntimeError: two lines (connects.py, line 7)",
    ),
    "connect takes other arguments": (
        {"one": "connects:Odd"},
        "provider 'mine': Odd.connect raised TypeError: Odd.connect() takes 2 positional arguments but 4 were given",
    ),
    "connect misses a key": (
        {"one": "connects:Picky"},
        "provider 'mine': Picky.connect raised KeyError: 'account' (connects.py, line 17)",
    ),
    "verbs missing": (
        {"one": "wrong:BoastfulDriver"},
        "provider 'mine': BoastfulDriver.capabilities declares revoke, share, which it does not have",
    ),
}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("case", BROKEN)
def test_unusable_driver_is_reported_in_one_line(lab: Lab, case: str) -> None:
    entry_points, expected = BROKEN[case]
    folder = lab.folder / "site"
    for name, value in entry_points.items():
        install(folder, name, {"mine": value}, {"loud": LOUD, "connects": CONNECTS})
    run = lab.run("test_it.py", "--provider", "mine:objects", "-n", "2", env=with_path(folder), store=False)
    assert (run.status, run.text.splitlines()) == (4, [f"ERROR: {expected}", ""]), run.text


@pytest.mark.parametrize(
    ("spec", "meant"),
    [("emulatd:ideal", "emulated"), ("locall:s3", "local"), ("serve:x.toml", "served"), ("folde:x", "folder")],
)
def test_mistyped_scheme_gets_the_nearest_driver_or_service(spec: str, meant: str) -> None:
    with pytest.raises(SpecError, match=re.escape(f"{KNOWN}, emulated, local, served; did you mean {meant}?")):
        resolve(spec)


def test_unknown_scheme_is_refused_with_the_known_ones(lab: Lab) -> None:
    run = lab.run("test_it.py", "--provider", "mine:objects", env=with_path(lab.folder), store=False)
    expected = "ERROR: provider 'mine': no driver has this name; there are: " + KNOWN + ", emulated, local, served"
    assert (run.status, run.text.splitlines()) == (4, [expected, ""])
