"""Defaults for a run of load suites, in pytest and its other plugins.

What may live here: defaults that a suite sets through public options, each only if the user has not chosen another
value. A user's own ``conftest.py`` may call ``adopt`` for experiments of its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.model import UsageError
from pytest_cloudbench.results.places import given_options, is_storage_named, session_results_folder

_ADOPTED = pytest.StashKey[Path]()
_CLAIMS = pytest.StashKey[list[str]]()
_ON_CLAIMS = pytest.StashKey[Callable[[], None]]()
_MOST_FOLDERS = 5000
"""The most folders in which tests are looked for."""
_DEFINED_NAME = re.compile(rb"\bdef +(\w+)")
_SINCE_SESSIONSTART = "funcmanage"
"""The name of a plugin of pytest's own that it registers when a session starts, before anything is collected."""
_NOT_IN_WORKERS = {"hypothesispytest": "--hypothesis", "platformdirs": "", "xdist.looponfail": ""}
"""Plugins that a load agent does not use, each with the option that needs it all the same.

Otherwise each of fifty workers would load them.
"""

_ONLY_SUITES = {"benchmark": "--benchmark", "anyio": "anyio_mode"}
"""Further such plugins if only load suites are run: the controller makes the entries, and no suite is asynchronous."""


def adopt(config: pytest.Config, folder: Path) -> None:
    """Store results below ``--cloudbench-results``, and judge by the ``expectations.toml`` in ``folder``.

    It may be called several times, also after the session has begun: pytest loads the ``conftest.py`` of a folder that
    the command line does not name only when it collects that folder. pytest-benchmark's own table is left to
    ``--benchmark-compare`` and ``--benchmark-verbose``. Raises pytest.UsageError if nothing can be judged by the file.
    """
    _store_results(config, folder)
    claims, adopted = folder / "expectations.toml", config.stash.setdefault(_CLAIMS, [])
    is_named_by_user = config.option.cloudbench_expectations is not None and not adopted
    if is_named_by_user or str(claims) in adopted or not claims.is_file():
        return
    # The controller judges. It has not loaded a conftest.py to which a worker comes when it collects.
    if hasattr(config, "workerinput") and config.pluginmanager.has_plugin(_SINCE_SESSIONSTART):
        raise pytest.UsageError(f"{claims}: with -n, nothing is judged by it unless the command line names its folder")
    adopted.append(str(claims))
    config.option.cloudbench_expectations = adopted[0]
    if (read_claims := config.stash.get(_ON_CLAIMS, None)) is not None:
        try:
            read_claims()
        except UsageError as error:
            raise pytest.UsageError(str(error)) from None


def find_claims(config: pytest.Config, on_more: Callable[[], None]) -> list[str]:
    """Return the files of recorded expectations: the one that the user named, or those of all adopted suites.

    Args:
        config: pytest's configuration.
        on_more: called when a suite is adopted later, and brings another file.
    """
    config.stash[_ON_CLAIMS] = on_more
    named = config.option.cloudbench_expectations
    return [*config.stash.get(_CLAIMS, [])] or ([] if named is None else [named])


def find_test_functions(config: pytest.Config, folders: Iterable[Path], names: Collection[str]) -> set[str]:
    """Return those of some names that a test file below one of the folders gives to a function.

    The files need not belong to this run. They are what pytest would collect, by the names of files and folders. If
    there are very many folders, all names are returned, as any of them may be there.
    """
    missing = {*names}
    files_by_folder = chain.from_iterable(_list_test_files(config, folder) for folder in folders)
    for number, files in enumerate(files_by_folder):
        if not missing:
            break
        if number == _MOST_FOLDERS:
            return {*names}
        for path in files:
            with suppress(OSError):
                missing.difference_update(map(os.fsdecode, _DEFINED_NAME.findall(path.read_bytes())))
    return {*names} - missing


def _list_test_files(config: pytest.Config, folder: Path) -> Iterator[list[Path]]:
    """Yield the test files of a folder, and of each folder below it."""
    file_globs, skipped_globs = config.getini("python_files"), config.getini("norecursedirs")
    for parent, subfolders, names in os.walk(folder):
        subfolders[:] = [name for name in subfolders if not any(fnmatch(name, glob) for glob in skipped_globs)]
        yield [
            Path(parent, name) for name in names if any(fnmatch(name, glob.rpartition("/")[2]) for glob in file_globs)
        ]


def adopt_files(config: pytest.Config) -> None:
    """Store the results of a run of configuration files only, which hold their own expectations."""
    _store_results(config, config.invocation_params.dir / Path(config.args[0].partition("::")[0]).parent)


def _store_results(config: pytest.Config, folder: Path) -> None:
    option: Any = config.option
    config.stash[_ADOPTED] = folder
    if not hasattr(option, "benchmark_storage") or option.collectonly:
        return
    if hasattr(config, "workerinput"):  # only the controller compares, or each worker would say that it does
        option.benchmark_compare = None
    if not is_storage_named(config):
        option.benchmark_storage = f"file://{session_results_folder(config)}"
    if not (option.benchmark_compare or option.benchmark_verbose or option.benchmark_columns):
        option.benchmark_quiet = True


def is_adopted(config: pytest.Config) -> bool:
    """Return whether ``adopt`` or ``adopt_files`` was called: this is a run of load suites."""
    return _ADOPTED in config.stash


def suite_folder(name: str) -> Path | None:
    """Return the folder of an installed suite for a name as in ``--pyargs``, None for any other name."""
    first, *parts = name.partition("::")[0].split(".")
    if f"{name}.".startswith("pytest_cloudbench.suites."):
        path = Path(__file__).parent.parent.joinpath(*parts)
        return next((candidate for candidate in (path, path.parent) if candidate.is_dir()), None)
    try:
        spec = find_spec(first)  # imports nothing
    except (ImportError, ValueError):
        return None
    paths = [Path(folder, *parts) for folder in (spec and spec.submodule_search_locations) or ()]
    return next((folder for path in paths for folder in (path, path.parent) if _declares_suite(folder)), None)


def _declares_suite(folder: Path) -> bool:
    """Return whether a folder is a suite's package. Other packages' ``conftest.py`` files are left to pytest."""
    from pytest_cloudbench.results.installed import MARK

    try:
        return MARK in (folder / "__init__.py").read_text("utf-8", "replace")
    except (OSError, ValueError):
        return False


def lean_workers(config: pytest.Config, specs: Sequence[Any]) -> None:
    """Start the workers of a load suite without plugins that it never uses."""
    if not is_adopted(config):
        return
    plugins = {**_NOT_IN_WORKERS, **(_ONLY_SUITES if _runs_only_suites(config, config.stash[_ADOPTED]) else {})}
    # Workers without a plugin would not know its keys in the configuration file.
    mentioned = f"{' '.join(given_options(config))} {_configuration_keys(config.inipath)}"
    blocked = [f"-p no:{name}" for name, option in plugins.items() if not option or option not in mentioned]
    options = " ".join([os.environ.get("PYTEST_ADDOPTS", ""), *blocked])
    for spec in specs:
        spec.env.setdefault("PYTEST_ADDOPTS", options.strip())


def _configuration_keys(configuration: Path | None) -> str:
    """Return the keys in a configuration file of any format, without those in comments."""
    lines = configuration.read_text("utf-8", "replace").splitlines() if configuration else []
    return " ".join(line.partition("=")[0] for line in lines if "=" in line and not line.lstrip().startswith("#"))


def _runs_only_suites(config: pytest.Config, folder: Path) -> bool:
    """Return whether the command line names only suites in ``folder``."""
    names = [str(arg) for arg in config.args]
    folders = [suite_folder(name) if config.option.pyargs else None for name in names]
    paths = [
        installed or config.invocation_params.dir / name.partition("::")[0]
        for installed, name in zip(folders, names, strict=True)
    ]
    return all(path.resolve().is_relative_to(folder.resolve()) for path in paths)
