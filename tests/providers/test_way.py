"""The way of ``--provider`` to the driver, through few modules, and the few callers of the functions that load."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet.harness import Lab
from tests.provider_folders import make_folders

SOURCE = Path(__file__).parents[2] / "src" / "pytest_cloudbench"
MOST_MODULES = 6
SMALL = """
    def test_small(experiment, payloads):
        experiment.run(payloads.random(50), arrival=FixedInterval(0.02), sensors=1, ops_per_sensor=1)
"""


def find_modules(folder: Path) -> set[str]:
    """Return the modules that the value passed through until the last agent had connected.

    These are the modules that pass it on towards the driver. Those that only read it do not count. Agents hand messages
    to their session through a channel, which no call shows.
    """
    lines = [line.split() for path in folder.glob("follow-*.txt") for line in path.read_text().splitlines()]
    rows = sorted((int(at_ns), caller, callee) for at_ns, caller, callee in lines)
    connected = [at_ns for at_ns, _, callee in rows if callee == "driver"]
    assert connected, f"no driver was connected: {rows}"
    edges = {(caller, callee) for at_ns, caller, callee in rows if at_ns <= connected[-1]}
    edges.add(("fleet.agent", "fleet.session"))
    modules: set[str] = {"driver"}
    while more := {caller for caller, callee in edges if callee in modules} - modules:
        modules |= more
    return modules - {"driver", "-", "plugin.options"}


def check_way(modules: set[str]) -> None:
    """Raise AssertionError where a reader who follows the value has to open too many files."""
    assert len(modules) <= MOST_MODULES, (
        f"--provider passes through {len(modules)} modules: {', '.join(sorted(modules))}"
    )


def follow(lab: Lab, spec: str, driver: str, *args: str) -> set[str]:
    """Return the modules on the way of ``spec``, which is the ``--provider`` unless the arguments give another."""
    has_service = spec.startswith(("emulated:", "served:"))
    followed = f"{spec}|{driver.rpartition('.')[2]}" if has_service else spec  # and the driver's spec
    env = {
        "FOLLOWED": followed, "FOLLOWED_DRIVER": driver, "FOLLOWED_INTO": str(lab.folder),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")])),
    }  # fmt: skip
    options = args if "--provider" in args else ("--provider", spec, *args)
    run = lab.write(SMALL).run("-p", "follow", *options, env=env)
    assert run.status == 0, run.text
    return find_modules(lab.folder)


DRIVERS = {
    "folder:objects": "pytest_cloudbench.drivers.folder",
    "emulated:ideal": "pytest_cloudbench.drivers.dropbox",
    "served:tiny.toml": "tiny",
}
"""The drivers of a folder, of an emulator, and of a real server."""


TREES = {
    "mirror:folder:one,folder:two": "mirror",
    "raid:array.toml": "pytest_cloudbench.raid.driver",
}
"""The drivers of providers made of others, which the spec or a file names."""

SPREAD = pytest.mark.parametrize("spread", [[], ["-n", "1"]], ids=["alone", "n1"])


def check_whole_way(modules: set[str], spread: list[str]) -> None:
    check_way(modules)
    assert {"plugin", "providers", "fleet.agent", "fleet.coordinator", "drivers"} <= modules, "the whole way was seen"
    assert ("fleet.session" in modules) == bool(spread)


@pytest.mark.quick_cases(1)
@SPREAD
@pytest.mark.parametrize("spec", DRIVERS)
def test_few_modules_lie_between_the_option_and_the_driver(lab: Lab, spec: str, spread: list[str]) -> None:
    check_whole_way(follow(lab, spec, DRIVERS[spec], *spread), spread)


@pytest.mark.quick_cases(1)
@SPREAD
@pytest.mark.parametrize("spec", TREES)
def test_the_way_to_a_tree_is_as_short(lab: Lab, spec: str, spread: list[str]) -> None:
    folders = ", ".join(f"'folder:{lab.folder / str(number)}'" for number in range(3))
    make_folders(lab.folder, [folders])
    (lab.folder / "array.toml").write_text(f"k = 2\nm = 1\nkey = 'array.key'\nchildren = [{folders}]\n")
    check_whole_way(follow(lab, spec, TREES[spec], *spread), spread)


@pytest.mark.quick_cases(1)
@SPREAD
@pytest.mark.parametrize("spec", ["folder:a", "folder:b"])
def test_the_way_to_each_of_two_sides_is_as_short(lab: Lab, spec: str, spread: list[str]) -> None:
    sides = ("--provider", "folder:a", "--cloudbench-versus", "folder:b")
    brief = ("-ocloudbench_versus_minutes=0.01",)  # both sides are open by then
    driver = "pytest_cloudbench.drivers.folder"
    check_whole_way(follow(lab, spec, driver, *sides, *brief, *spread), spread)


def test_a_seventh_module_is_found(lab: Lab) -> None:
    """The way has further modules here, each of which only passes the value on."""
    rooms = """
import sys
import types
from pytest_cloudbench import providers
for number in range(6):
    room = types.ModuleType(f"pytest_cloudbench.room{number}")
    room.behind = providers.check
    exec("def check(text, time_scale):\\n    return behind(text, time_scale)", room.__dict__)
    providers.check = room.check
"""
    lab.write((lab.folder / "conftest.py").read_text() + rooms, "conftest.py")
    modules = follow(lab, "folder:objects", DRIVERS["folder:objects"])
    assert {f"room{number}" for number in range(6)} <= modules
    with pytest.raises(AssertionError, match="--provider passes through"):
        check_way(modules)


# --- loading functions ---

LOADERS = {
    ("providers.credentials", "load"): {"providers.renewal"},
    ("providers.renewal", "load_usable"): {"providers.leaves"},
    ("emulators.profile", "find_profile"): {"providers.stand_ins", "emulators", "emulators.server"},
    ("emulators.profile", "load_profile"): set(),
    ("services.command", "load_recipe"): {"providers.stand_ins"},
    ("drivers", "bind"): {"load.cassette.cassette", "providers", "providers.credentials", "providers.for_agents"},
    ("drivers", "connect"): set(),
}
"""The modules that may call each function.

An emulator's own process reads its profile again, and the class that starts it checks it.
"""


def calls(module: str, source: str) -> Iterator[tuple[str, str]]:
    """Yield (module below the package, function) of every call by an imported name."""
    names: dict[str, str] = {}
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pytest_cloudbench"):
            base = (node.module or "").removeprefix("pytest_cloudbench").lstrip(".")
            names |= {alias.asname or alias.name: f"{base}.{alias.name}".lstrip(".") for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            head, _, tail = ast.unparse(node.func).partition(".")
            if head in names:
                target = f"{names[head]}.{tail}".rstrip(".")
                yield target.rpartition(".")[0], target.rpartition(".")[2]


def loaders(sources: dict[str, str]) -> dict[tuple[str, str], set[str]]:
    callers: dict[tuple[str, str], set[str]] = {loader: set() for loader in LOADERS}
    for module, source in sources.items():
        for call in calls(module, source):
            if call in callers:
                callers[call].add(module)
    return callers


def sources() -> dict[str, str]:
    paths = {".".join(path.relative_to(SOURCE).with_suffix("").parts): path for path in SOURCE.rglob("*.py")}
    return {name.removesuffix(".__init__"): path.read_text("utf-8") for name, path in paths.items()}


@pytest.mark.slow
def test_loading_functions_are_called_only_by_listed_modules() -> None:
    assert loaders(sources()) == LOADERS


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    "snippet",
    [
        "from pytest_cloudbench.providers import credentials\ncredentials.load('x')",
        "def f():\n    from pytest_cloudbench.providers.credentials import load\n    load('x')",
        "from pytest_cloudbench.providers import credentials as c\nc.load('x')",
    ],
)
def test_another_place_is_found(snippet: str) -> None:
    renewal = sources()["providers.renewal"]
    assert loaders({"providers.renewal": renewal, "commands.cli": snippet})["providers.credentials", "load"] == {
        "providers.renewal",
        "commands.cli",
    }


def test_an_agent_imports_no_service() -> None:
    """Fifty agents connect, but only the controller imports modules that start services."""
    code = """
import sys
from pytest_cloudbench.providers.for_agents import Provided
from pytest_cloudbench.providers import connect
connect(Provided("folder:.")).close()
print(sorted(name for name in sys.modules if name.startswith(("pytest_cloudbench.services", "pytest_cloudbench.emul"))))
print(sorted({"subprocess", "ssl", "asyncio", "hashlib"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "['hashlib']"]
