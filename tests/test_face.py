"""The public face: its names are lazy, typed and complete, and examples for readers import only from it."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import pytest_cloudbench
from tests.source_text import nodes, public_names

ROOT = Path(__file__).resolve().parent.parent
FACE = ROOT / "src" / "pytest_cloudbench" / "__init__.py"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def run(code: str) -> str:
    """Return the output of a fresh interpreter."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def loaded_by(code: str) -> set[str]:
    """Return the modules that some code loads in a fresh interpreter."""
    output = run(
        f"import json, sys\nbefore = set(sys.modules)\n{code}\nprint(json.dumps([*set(sys.modules) - before]))"
    )
    return set(json.loads(output))


# --- it costs nothing until it is used ---


def test_importing_the_package_loads_one_module() -> None:
    assert loaded_by("import pytest_cloudbench") == {"pytest_cloudbench"}


def test_a_name_loads_its_home_and_not_the_whole_package() -> None:
    loaded = loaded_by("from pytest_cloudbench import KIB, FixedInterval")
    ours = {name for name in loaded if name.startswith("pytest_cloudbench")}
    assert "pytest_cloudbench.workload.arrival" in ours
    assert ours <= {
        f"pytest_cloudbench{name}" for name in ("", ".workload", ".workload.arrival", ".model", ".workload.trace")
    }
    assert "pytest" not in loaded


# --- its three lists agree ---


def test_every_name_is_the_object_at_its_home() -> None:
    homes = dict(public_names(FACE.read_text("utf-8")))
    assert {*homes, "__version__"} == {*pytest_cloudbench.__all__}
    for name, home in homes.items():
        module, _, attribute = home.rpartition(".")
        at_home = getattr(import_module(f"pytest_cloudbench.{module}"), attribute)
        assert getattr(pytest_cloudbench, name) is at_home, name


def test_no_name_is_hidden_by_a_module() -> None:
    modules = {path.stem for path in FACE.parent.glob("*.py")} | {
        path.parent.name for path in FACE.parent.glob("*/__init__.py")
    }
    assert modules & {*pytest_cloudbench.__all__} == set()


def test_dir_lists_public_names_before_they_are_loaded() -> None:
    names = run("import pytest_cloudbench\nprint(*dir(pytest_cloudbench))").split()
    assert {*pytest_cloudbench.__all__} <= {*names}


def test_a_wrong_name_is_an_import_error_that_says_so() -> None:
    with pytest.raises(ImportError, match="cannot import name 'FixedIntervall'"):
        exec("from pytest_cloudbench import FixedIntervall")
    with pytest.raises(AttributeError, match="'pytest_cloudbench' has no public name 'FixedIntervall'"):
        _ = pytest_cloudbench.FixedIntervall  # type: ignore[attr-defined]  # what the test is about


@pytest.mark.slow
def test_type_checkers_see_the_types(tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text("from pytest_cloudbench import make_client\nreveal_type(make_client)\n")
    (tmp_path / "wrong.py").write_text("from pytest_cloudbench import FixedIntervall\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "right.py", "wrong.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "SyncClient" in done.stdout, done.stdout + done.stderr
    assert 'has no attribute "FixedIntervall"' in done.stdout


# --- readers are shown nothing else ---


def deep_imports(source: str) -> Iterator[str]:
    """Yield each module below the package that some Python text imports from."""
    for node in nodes(source):
        if isinstance(node, ast.ImportFrom) and not node.level:
            if (node.module or "").startswith("pytest_cloudbench."):
                yield str(node.module)
            elif node.module == "pytest_cloudbench":
                yield from (alias.name for alias in node.names if alias.name not in pytest_cloudbench.__all__)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("pytest_cloudbench."))


def python_of(path: Path) -> Iterator[str]:
    """Yield the Python source of a module, or of the blocks of a page."""
    text = path.read_text("utf-8")
    for source in [text] if path.suffix == ".py" else BLOCK.findall(text):
        try:
            ast.parse(source)
        except SyntaxError:  # rows of a table, or the body of a function
            assert "import" not in source, f"{path}: imports cannot be read in {source}"
        else:
            yield source


READ = sorted(
    path
    for folder, ending in (("suites", "py"), ("examples", "py"), ("examples", "md"), ("docs", "md"))
    for path in (ROOT / folder).rglob(f"*.{ending}")
    if "decisions" not in path.parts  # a decision describes the code of its time
)


@pytest.mark.parametrize("folder", ["suites", "examples", "docs", "README.md"])
def test_readers_are_shown_imports_from_the_face_only(folder: str) -> None:
    paths = [path for path in [*READ, ROOT / "README.md"] if path.is_relative_to(ROOT / folder)]
    assert paths
    deep = [(str(path), name) for path in paths for source in python_of(path) for name in deep_imports(source)]
    assert deep == []


@pytest.mark.parametrize(
    "source",
    [
        "from pytest_cloudbench.workload.arrival import FixedInterval",
        "from pytest_cloudbench.workload import arrival",
        "import pytest_cloudbench.load.experiment",
        "def test():\n    from pytest_cloudbench.model import KIB",
    ],
)
def test_a_deep_import_is_found(source: str) -> None:
    assert len([*deep_imports(source)]) == 1
