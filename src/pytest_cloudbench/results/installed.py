"""The installed suites: those that ship with this package, and those of other distributions.

They explain entries that were stored before entries carried what their suite declares, and lend names of metrics to
expectations and commands.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from pytest_cloudbench.judge import metrics
from pytest_cloudbench.results.suite import Suite, read_conclusions

ENTRY_POINTS = "pytest_cloudbench.suites"
"""The group in which a distribution names its suites: modules with a suite, or the suites themselves."""
MARK = "CLOUDBENCH_SUITE"
"""The name under which a module or package has its suite."""

_NAMES_SUITE = re.compile(rf"^{MARK}\b".encode(), re.MULTILINE)
_SHIPPED = "pytest_cloudbench.suites"


@cache
def _load_suites() -> tuple[dict[str, Suite], list[str]]:
    """Load all suites. Return them by name, and a line for each that cannot be used."""
    suites, problems = dict[str, Suite](), list[str]()
    for source, load in _list_sources():
        try:
            loaded = load()
            suite = getattr(loaded, MARK, None) if isinstance(loaded, ModuleType) else loaded
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # no report fails because another distribution's code raises, exits or skips
            problems.append(f"suite {source}: cannot be imported: {type(error).__name__}: {error}")
            continue
        if isinstance(suite, Suite):
            if suites.setdefault(suite.name, suite) != suite:
                problems.append(f"suite {source}: is not used, because another suite is called {suite.name}, too")
        elif source.partition(":")[0] == ENTRY_POINTS:
            problems.append(f"suite {source}: has no {MARK}")
    return suites, problems


def _list_sources() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the name of each possible source of a suite, and a function that imports it. Those that ship come first."""
    from importlib.metadata import entry_points  # a slow import that most processes never need
    from pkgutil import iter_modules

    try:
        shipped = import_module(_SHIPPED)
    except ImportError:  # a distribution without them
        pass
    else:
        for module in iter_modules(shipped.__path__):
            if module.ispkg:
                name = f"{_SHIPPED}.{module.name}"
                yield name, partial(import_module, name)
    for entry_point in entry_points(group=ENTRY_POINTS):
        yield f"{ENTRY_POINTS}:{entry_point.name}", entry_point.load


def installed_suites() -> dict[str, Suite]:
    """Return the suites that are installed, by name."""
    return _load_suites()[0]


def suite_problems() -> list[str]:
    """Return a line for each suite of another distribution that cannot be used."""
    return [*_load_suites()[1]]


def learn_installed() -> None:
    """Make the conclusions of all installed suites known as metrics. A name that is taken keeps its meaning."""
    for suite in installed_suites().values():
        metrics.declare(suite.conclusions)


def learn_loaded(modules: Iterable[object]) -> None:
    """Make known the conclusions of the suites that own some modules, such as loaded ``conftest.py`` files."""
    for module in modules:
        if isinstance(module, ModuleType) and (suite := suite_of(module.__name__)) is not None:
            metrics.declare(suite.conclusions)


def learn_below(paths: Iterable[Path]) -> None:
    """Make known the conclusions of all suites in some folders, as pytest will when it has imported their tests.

    A module that cannot be imported declares nothing. Folders of environments and hidden ones are left out.
    """
    for source in dict.fromkeys(source for path in paths for source in _find_sources(path)):
        names = [] if source.name == "__init__.py" else [source.stem]
        folder = source.parent
        while (folder / "__init__.py").is_file() and folder.name:
            names.insert(0, folder.name)
            folder = folder.parent
        sys.path.insert(0, str(folder))
        try:
            learn_loaded([import_module(".".join(names))])
        except KeyboardInterrupt:
            raise
        except BaseException:  # pytest reports what exits, skips or fails there when it collects the file
            continue
        finally:
            sys.path.remove(str(folder))


def _find_sources(path: Path) -> Iterator[Path]:
    """Yield the Python files at or below a path in which a suite is named at the beginning of a line."""
    if path.is_file():
        files = [path]
    else:
        files = []
        for folder, folders, names in os.walk(path):
            is_environment = "pyvenv.cfg" in names
            folders[:] = [] if is_environment else sorted(name for name in folders if name[0] != ".")
            files += [] if is_environment else [Path(folder, name) for name in sorted(names) if name.endswith(".py")]
    for file in files:
        with suppress(OSError):
            if _NAMES_SUITE.search(file.read_bytes()):
                yield file


def learn_declared(declaration: Any) -> None:
    """Make known the conclusions that the plain data of a running test's suite declares, if it has any."""
    if declaration:
        metrics.declare(read_conclusions(declaration))


def learn_stored(declaration: Any) -> None:
    """Make known the conclusions that a stored entry carries. A name that is known keeps its meaning."""
    if declaration:
        rows = read_conclusions(declaration)
        metrics.declare_stored({name: row for name, row in rows.items() if name not in metrics.METRICS})


def stored_nodeid(nodeid: str, module: str) -> str:
    """Return the name under which runs of a test are stored.

    A suite's tests have the same name however pytest is called: by path, by ``--pyargs``, or from another folder, where
    pytest's own node id has another path. It is made from the name of the test's ``module``. Other tests keep their
    node id, and so do those of a module that is in no package, whose name says nothing of its folder.
    """
    if "." not in module or suite_of(module) is None:
        return nodeid
    path = module.removeprefix(_SHIPPED.partition(".")[0] + ".").replace(".", "/")
    return f"{path}.py::{nodeid.partition('::')[2]}"


def suite_of(module: str) -> Suite | None:
    """Return the suite of a test's module: the module's own, or that of the nearest package around it."""
    while module:
        suite = getattr(sys.modules.get(module), MARK, None)
        if isinstance(suite, Suite):
            return suite
        module = module.rpartition(".")[0]
    return None
