"""Importing a large SDK without paying for the parts that no driver uses.

What may live here: the lazy import, which knows no provider. A driver names the namespaces that it does not need at
import time; they are put into ``sys.modules`` as modules that run on the first access to one of their attributes. The
SDK itself is unmodified and complete: other code in this process that imports it gets the real modules, at the first
attribute access.

Why not ``importlib.util.LazyLoader``: before Python 3.11.9 and 3.12.3 two threads that access such a module at the same
time can see it half executed (cpython gh-114763), and code that only inspects ``sys.modules`` executes it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, module_from_spec
from threading import RLock
from types import ModuleType, SimpleNamespace
from typing import Any

# One lock for all: two lazy modules that import each other must not wait for each other's lock.
_LOAD_LOCK = RLock()

# What the import machinery, and tools that walk sys.modules, read of any module: no reason to run it.
_NAMES_KNOWN_UNLOADED = frozenset(
    {"__class__", "__file__", "__loader__", "__name__", "__package__", "__path__", "__spec__", "__warningregistry__"}
)


class _LazyModule(ModuleType):
    """A module that runs at the first access to an attribute, and is an ordinary module from then on."""

    def __getattribute__(self, name: str) -> Any:
        state = object.__getattribute__(self, "__spec__").loader_state
        if name not in _NAMES_KNOWN_UNLOADED and name not in state["known"]:
            _load_module(self)
        return ModuleType.__getattribute__(self, name)  # not super(): _load_module has changed the class


def _load_module(module: ModuleType) -> None:
    """Run the module's code. Other threads wait, the loading thread's own accesses pass through."""
    with _LOAD_LOCK:
        spec = module.__spec__
        if not isinstance(module, _LazyModule) or spec is None or spec.loader is None or spec.loader_state["loading"]:
            return
        spec.loader_state["loading"] = True
        try:
            spec.loader.exec_module(module)
        finally:
            spec.loader_state["loading"] = False
        # Only now: until here, other threads must wait for the lock and not see half a module.
        # After a failure it stays lazy, and the next access tries (and fails) again.
        object.__setattr__(module, "__class__", ModuleType)


def is_loaded(name: str) -> bool:
    """Return whether the module's code has run in this process."""
    return name in sys.modules and not isinstance(sys.modules[name], _LazyModule)


def import_lazily(
    package: str, namespaces: Sequence[str], version_modules: Mapping[str, str] | None = None
) -> ModuleType:
    """Import ``package``, but let its ``namespaces`` run only when something uses them.

    Args:
        package: a top-level package.
        namespaces: its modules, by their short names; those that do not exist are ignored.
        version_modules: other top-level packages to make lazy, each with its small module that holds ``__version__``,
            so that the version is known without running the package.

    Modules that were imported before stay as they are.
    """
    added: list[str] = []
    if package not in sys.modules:
        added += _add_versioned(version_modules or {})
        added += _add_namespaces(package, namespaces)
    try:
        root = importlib.import_module(package)
    except BaseException:
        for name in added:
            sys.modules.pop(name, None)
        raise
    for namespace in namespaces:
        # The import machinery does this only for a module that it loads itself.
        module = sys.modules.get(f"{package}.{namespace}")
        if isinstance(module, _LazyModule):
            setattr(root, namespace, module)
    return root


def import_parts(package: str, lazy: Sequence[str], parts: Mapping[str, Sequence[str]]) -> SimpleNamespace:
    """Import some modules of a package, without running the package and its large namespaces, which import all others.

    Args:
        package: a top-level package; it runs when something uses it.
        lazy: its namespaces that run only then as well, by their short names.
        parts: maps a module below the package to the names that are wanted from it.

    Returns the names. A package that was imported before stays as it is.
    """
    added: list[str] = []
    if package not in sys.modules and (root := find_spec(package)) is not None:
        added = [package] if _add_lazily(package, root) else []
        lazy_modules = _add_namespaces(package, lazy)
        for name in lazy_modules:
            # The import machinery does this only for a module that it loads itself.
            setattr(sys.modules[package], name.rpartition(".")[2], sys.modules[name])
        added += lazy_modules
    try:
        modules = {module: importlib.import_module(f"{package}.{module}") for module in parts}
    except BaseException:
        for name in added:
            sys.modules.pop(name, None)
        raise
    return SimpleNamespace(
        **{name: getattr(modules[module], name) for module, names in parts.items() for name in names}
    )


def _add_namespaces(package: str, namespaces: Sequence[str]) -> list[str]:
    root = find_spec(package)
    if root is None or root.submodule_search_locations is None:
        return []
    names = [f"{package}.{namespace}" for namespace in namespaces]
    return [name for name in names if _add_lazily(name, PathFinder.find_spec(name, root.submodule_search_locations))]


def _add_versioned(version_modules: Mapping[str, str]) -> list[str]:
    added = []
    for name, version_module in version_modules.items():
        if name in sys.modules or not _add_lazily(name, find_spec(name)):
            continue
        module = sys.modules[name]
        try:
            version = importlib.import_module(version_module).__version__
        except (ImportError, AttributeError):
            del sys.modules[name]  # another release of the package: then it is imported as usual
            continue
        ModuleType.__setattr__(module, "__version__", version)
        assert module.__spec__ is not None
        module.__spec__.loader_state["known"] = frozenset({"__version__"})
        added.append(name)
    return added


def _add_lazily(name: str, spec: ModuleSpec | None) -> bool:
    """Put a lazy module into sys.modules. Return False if it does not exist or is there already."""
    if spec is None or spec.loader is None:
        return False
    spec.loader_state = {"loading": False, "known": frozenset()}
    module = module_from_spec(spec)
    module.__class__ = _LazyModule
    return sys.modules.setdefault(name, module) is module
