"""Where pytest stores runs and their records, for the commands, which are not pytest.

What may live here: which folders to look in, and the options that pytest is given in its configuration. Nothing of the
runs themselves is read.
"""

from __future__ import annotations

import configparser
import os
import shlex
import tomllib
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.model import ResultsError
from pytest_cloudbench.results import stored

if TYPE_CHECKING:
    import pytest

RESULTS = "results"
"""The folder of a project that holds records and stored runs, unless pytest is given another one."""
_STOCK = ".benchmarks"
"""The folder in which pytest-benchmark stores sessions that have no experiment."""

_OPTION, _RESULTS_OPTION = "--benchmark-storage", "--cloudbench-results"
_FOLDER = "file://"
_SECTIONS = {
    "pytest.toml": "pytest", ".pytest.toml": "pytest", "pytest.ini": "pytest", ".pytest.ini": "pytest",
    "pyproject.toml": "tool.pytest", "tox.ini": "pytest", "setup.cfg": "tool:pytest",
}  # fmt: skip
"""Configuration files in pytest's order, and the section of each that is pytest's."""
_OF_PROJECTS = (".git", "pyproject.toml", "setup.py")
"""Names that only the uppermost folder of a project has."""


def project_folder(start: Path) -> Path:
    """Return the folder of the project that a folder is in.

    It is the nearest one, from ``start`` upwards, that has a configuration of pytest, stored runs, or one of the names
    that projects begin with. Outside any project it is ``start``.
    """
    folders = (start, *start.parents)
    configured_at = next(filter(_is_configured, folders), None)
    return configured_at or next(filter(_begins_project, folders), start)


def _is_configured(folder: Path) -> bool:
    """Return whether a folder has a configuration of pytest, be it one that cannot be read."""
    try:
        return _configuration(folder) is not None
    except (OSError, ValueError, configparser.Error):
        return True


def _begins_project(folder: Path) -> bool:
    names = any((folder / name).exists() for name in _OF_PROJECTS)
    try:
        return names or any(stored.find(folder / RESULTS))
    except ResultsError:  # a folder of that name which cannot be listed is not ours
        return False


def results_of(config: pytest.Config) -> Path:
    """Return the folder that a session of pytest writes records and entries into."""
    invocation = config.invocation_params
    return results_in(invocation.dir, config.option.cloudbench_results, [*map(str, invocation.args)])


def is_storage_named(config: pytest.Config) -> bool:
    """Return whether the user says where pytest-benchmark stores runs."""
    return _OPTION in " ".join(given_options(config))


def given_options(config: pytest.Config) -> list[str]:
    """Return all options that the user gave: on the command line, in the environment, in the configuration."""
    typed, configured = config.invocation_params.args, config.getini("addopts")
    return [*map(str, typed), os.environ.get("PYTEST_ADDOPTS", ""), *map(str, configured)]


def results_in(folder: Path, named: str | None, arguments: Sequence[str]) -> Path:
    """Return the folder that a session in ``folder`` writes records and entries into.

    Args:
        folder: where pytest was started.
        named: the value of ``--cloudbench-results``, if the user gave one.
        arguments: those of the command line. A relative path among them starts from ``folder``, one in the
            configuration from the project.
    """
    if named is None:
        return project_folder(folder) / RESULTS
    is_typed = _last([*arguments, *shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))], _RESULTS_OPTION) is not None
    return (folder if is_typed else project_folder(folder)) / named


def in_order() -> list[Path]:
    """Return the folders in which runs may be stored, as paths from here. They need not exist.

    The first one is that of pytest's configuration. Then come the project's results, and pytest-benchmark's own folder.
    """
    stock = Path(os.path.relpath(project_folder(Path.cwd()) / _STOCK))
    return [*dict.fromkeys(folder for folder in (configured(), results_folder(), stock) if folder is not None)]


def find_storage() -> Path | None:
    """Returns the first of these folders in which pytest has stored a run; None if none of them is there.

    Recovered runs lie among records, which may be in another folder than the runs: they count only if there is nothing
    else.
    """
    places = [place for place in in_order() if place.is_dir()]
    for may_be_recovered in (False, True):
        for place in places:
            if any(may_be_recovered or not file.is_recovered for file in stored.find(place)):
                return place
    return next(iter(places), None)


def results_folder() -> Path:
    """Return the folder that pytest writes records into by its configuration. It need not exist."""
    value = _given(_RESULTS_OPTION)
    return Path(os.path.relpath(results_in(Path.cwd(), value, ())))


def where_killed_runs_are(storage: Path | None = None) -> list[Path]:
    """Returns the folders in which a killed run may have left its records, as far as they exist.

    Args:
        storage: where the user's runs are, if that is known: records may be among them.
    """
    every = [results_folder(), *([storage] if storage is not None else in_order())]
    return [place for place in dict.fromkeys(every) if place.is_dir()]


def record_folders(named: Path | None = None) -> list[Path]:
    """Returns the folders that names of records start from: a results folder, and those of each kind of machine in it.

    Args:
        named: the results folder, if the user names one.
    """
    root = named or results_folder()
    return [root, *sorted(stored.folders(root))]


def configured() -> Path | None:
    """Returns the folder that pytest is told to store runs in; None if it is told of none, or it is not a folder."""
    value = _given(_OPTION)
    return Path(value.removeprefix(_FOLDER)) if value is not None and value.startswith(_FOLDER) else None


def make_results_folder(folder: Path) -> None:
    """Make a folder into which a run writes, unless it is there. Raises ResultsError, which says what to do."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        reason = "" if os.access(folder, os.W_OK) else "it may not be written into"
    except OSError as error:
        reason = error.strerror or str(error)
    if reason:
        raise ResultsError(f"{folder}: {reason}; choose another place with --cloudbench-results")


def _given(option: str) -> str | None:
    """Returns what pytest's configuration file or ``PYTEST_ADDOPTS`` says of an option, the latter with more weight.

    A file that cannot be read says nothing here; pytest itself will complain.
    """
    try:
        given = [*_addopts(Path.cwd()), *shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))]
    except (OSError, ValueError, configparser.Error):  # of TOML and of text that is not UTF-8, too
        return None
    return _last(given, option)


def _last(given: Sequence[str], option: str) -> str | None:
    """Returns the option's value; the last one counts."""
    value = None
    for each, following in zip_longest(given, given[1:]):
        name, equals, after = each.partition("=")
        if name == option:
            value = after if equals else following
    return value


def _addopts(folder: Path) -> list[str]:
    """Return the options in the nearest configuration file of pytest, from this folder upwards."""
    configurations = map(_configuration, (folder, *folder.parents))
    nearest = next((options for options in configurations if options is not None), {})
    options = nearest.get("addopts", [])
    return shlex.split(options, comments=True) if isinstance(options, str) else list(map(str, options))


def _configuration(folder: Path) -> dict[str, Any] | None:
    """Return pytest's own section of a folder's configuration file. None if the folder has no such file."""
    sections = (_section(folder / name, section) for name, section in _SECTIONS.items())
    return next((section for section in sections if section is not None), None)


def _section(path: Path, section: str) -> dict[str, Any] | None:
    """Returns pytest's own section of a file; None if there is none."""
    if not path.is_file():
        return None
    text = path.read_text("utf-8")
    if path.suffix != ".toml":
        parser = configparser.RawConfigParser(strict=False)
        parser.read_string(text)
        is_pytests = section in parser or path.stem.endswith("pytest")
        return (dict(parser[section]) if section in parser else {}) if is_pytests else None
    found: Any = tomllib.loads(text)
    for key in section.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    if isinstance(found, dict) and path.name == "pyproject.toml":  # the older of two ways to write it
        found = found.get("ini_options", found)
    return found if isinstance(found, dict) else None
