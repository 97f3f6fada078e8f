"""The suites that are installed: those that ship with this package, and those of other distributions.

What may live here: finding them, and making what they declare known. They explain entries that were stored before
entries carried what their suite declares, and lend names of metrics to expectations and commands.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from importlib import import_module
from types import ModuleType
from typing import Any

from pytest_cloudbench.judge import metrics
from pytest_cloudbench.results.suite import Suite, conclusions_in

ENTRY_POINTS = "pytest_cloudbench.suites"
"""The group in which a distribution names its suites: modules with a suite, or the suites themselves."""
MARK = "CLOUDBENCH_SUITE"
"""The name under which a module or package has its suite."""

_SHIPPED = "pytest_cloudbench.suites"


@cache
def _found() -> tuple[dict[str, Suite], list[str]]:
    """Find all of them: by name, and a line for each that cannot be used."""
    suites, problems = dict[str, Suite](), list[str]()
    for where, load in _places():
        try:
            found = load()
            suite = getattr(found, MARK, None) if isinstance(found, ModuleType) else found
        except Exception as error:  # another distribution's code: no report fails because of it
            problems.append(f"suite {where}: cannot be imported: {type(error).__name__}: {error}")
            continue
        if isinstance(suite, Suite):
            suites.setdefault(suite.name, suite)
        elif where.partition(":")[0] == ENTRY_POINTS:
            problems.append(f"suite {where}: has no {MARK}")
    return suites, problems


def _places() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield where a suite may be, and what imports it; those that ship come first."""
    from importlib.metadata import entry_points  # slow, and most processes never come here
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
    for point in entry_points(group=ENTRY_POINTS):
        yield f"{ENTRY_POINTS}:{point.name}", point.load


def installed_suites() -> dict[str, Suite]:
    """Return the suites that are installed, by name."""
    return _found()[0]


def suite_problems() -> list[str]:
    """Return a line for each suite of another distribution that cannot be used."""
    return [*_found()[1]]


def learn_installed() -> None:
    """Make the conclusions of all installed suites known as metrics. A name that is taken keeps its meaning."""
    for suite in installed_suites().values():
        metrics.declare(suite.conclusions)


def learn_loaded(modules: Iterable[object]) -> None:
    """Make the conclusions of the suites known that some modules belong to, such as loaded ``conftest.py`` files."""
    for module in modules:
        if isinstance(module, ModuleType) and (suite := suite_of(module.__name__)) is not None:
            metrics.declare(suite.conclusions)


def learn_declared(found: Any) -> None:
    """Make the conclusions known that an entry says its suite declares; ``found`` is its plain data, if it has any."""
    if found:
        metrics.declare(conclusions_in(found))


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
