"""The folders in which pytest stores runs and their records, for the commands, which do not run inside pytest.

Nothing of the runs themselves is read.
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
from pytest_cloudbench.support.argument_files import expand_argument_files

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
_PROJECT_MARKS = (".git", "pyproject.toml", "setup.py")
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
    """Return whether a folder has a configuration of pytest, even one that cannot be read."""
    try:
        return _read_configuration(folder) is not None
    except (OSError, ValueError, configparser.Error):
        return True


def _begins_project(folder: Path) -> bool:
    has_mark = any((folder / name).exists() for name in _PROJECT_MARKS)
    try:
        return has_mark or any(stored.find_run_files(folder / RESULTS))
    except ResultsError:  # a folder of that name which cannot be listed is not ours
        return False


def session_results_folder(config: pytest.Config) -> Path:
    """Return the folder that a session of pytest writes records and entries into."""
    return find_results_folder(config.invocation_params.dir, config.option.cloudbench_results, _typed_arguments(config))


def is_storage_named(config: pytest.Config) -> bool:
    """Return whether the user says where pytest-benchmark stores runs."""
    return _OPTION in " ".join(given_options(config))


def given_options(config: pytest.Config) -> list[str]:
    """Return all options that the user gave: on the command line, in the environment, in the configuration."""
    configured = map(str, config.getini("addopts"))
    return [*_typed_arguments(config), os.environ.get("PYTEST_ADDOPTS", ""), *configured]


def _typed_arguments(config: pytest.Config) -> list[str]:
    """Return the arguments of the command line, with those in files that it names."""
    invocation = config.invocation_params
    return [*expand_argument_files(map(str, invocation.args), invocation.dir)]


def find_results_folder(folder: Path, named: str | None, arguments: Sequence[str]) -> Path:
    """Return the folder that a session in ``folder`` writes records and entries into.

    Args:
        folder: where pytest was started.
        named: the value of ``--cloudbench-results``, if the user gave one.
        arguments: those of the command line. A relative path among them starts from ``folder``, one in the
            configuration from the project.
    """
    if named is None:
        return project_folder(folder) / RESULTS
    is_typed = (
        _last_value([*arguments, *shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))], _RESULTS_OPTION) is not None
    )
    return (folder if is_typed else project_folder(folder)) / named


def storage_folders() -> list[Path]:
    """Return the folders in which runs may be stored, as paths from the working folder. They need not exist.

    The first one is that of pytest's configuration. Then come the project's results, and pytest-benchmark's own folder.
    """
    stock = Path(os.path.relpath(project_folder(Path.cwd()) / _STOCK))
    return [*dict.fromkeys(folder for folder in (configured_storage(), results_folder(), stock) if folder is not None)]


def find_storage() -> Path | None:
    """Return the first storage folder with a stored run, else the first that exists, or None if none does.

    Recovered runs lie among records, which may be in another folder than the runs, so they count only if there are no
    others.
    """
    folders = [folder for folder in storage_folders() if folder.is_dir()]
    for may_be_recovered in (False, True):
        for folder in folders:
            if any(may_be_recovered or not file.is_recovered for file in stored.find_run_files(folder)):
                return folder
    return next(iter(folders), None)


def results_folder() -> Path:
    """Return the folder that pytest writes records into by its configuration. It need not exist."""
    value = _find_option(_RESULTS_OPTION)
    return Path(os.path.relpath(find_results_folder(Path.cwd(), value, ())))


def folders_of_killed_runs(storage: Path | None = None) -> list[Path]:
    """Return the existing folders in which a killed run may have left its records.

    Args:
        storage: the folder of the user's runs, if known. Records may be among them.
    """
    candidates = [results_folder(), *([storage] if storage is not None else storage_folders())]
    return [folder for folder in dict.fromkeys(candidates) if folder.is_dir()]


def record_folders(named: Path | None = None) -> list[Path]:
    """Return the folders that names of records are relative to: a results folder, and those of kinds of machines in it.

    Args:
        named: the results folder, if the user names one.
    """
    root = named or results_folder()
    return [root, *sorted(stored.machine_folders(root))]


def configured_storage() -> Path | None:
    """Return the folder in which pytest's options say to store runs, or None if they name no folder."""
    value = _find_option(_OPTION)
    if value is None or ("://" in value and not value.startswith(_FOLDER)):
        return None
    return Path(value.removeprefix(_FOLDER))


def make_results_folder(folder: Path) -> None:
    """Make a folder for the files of a run, unless it exists. Raises ResultsError, which says what to do."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        reason = "" if os.access(folder, os.W_OK) else "you may not write into it"
    except OSError as error:
        reason = error.strerror or str(error)
    if reason:
        raise ResultsError(f"{folder}: {reason}; choose another place with --cloudbench-results")


def _find_option(option: str) -> str | None:
    """Return an option's value from ``PYTEST_ADDOPTS``, or else from pytest's configuration file.

    A file that cannot be read counts as empty here, because pytest itself will complain.
    """
    try:
        options = [*_read_addopts(Path.cwd()), *shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))]
    except (OSError, ValueError, configparser.Error):  # ValueError is also that of TOML and of text that is not UTF-8
        return None
    return _last_value(options, option)


def _last_value(words: Sequence[str], option: str) -> str | None:
    """Return an option's last value among the words of a command line, or None if it is not there."""
    value = None
    for word, next_word in zip_longest(words, words[1:]):
        name, equals, rest_of_word = word.partition("=")
        if name == option:
            value = rest_of_word if equals else next_word
    return value


def _read_addopts(folder: Path) -> list[str]:
    """Return the options in the nearest configuration file of pytest, from this folder upwards."""
    configurations = map(_read_configuration, (folder, *folder.parents))
    nearest = next((options for options in configurations if options is not None), {})
    options = nearest.get("addopts", [])
    return shlex.split(options, comments=True) if isinstance(options, str) else list(map(str, options))


def _read_configuration(folder: Path) -> dict[str, Any] | None:
    """Return pytest's own section of a folder's configuration file. None if the folder has no such file."""
    sections = (_read_section(folder / name, section) for name, section in _SECTIONS.items())
    return next((section for section in sections if section is not None), None)


def _read_section(path: Path, section: str) -> dict[str, Any] | None:
    """Return pytest's own section of a file, or None."""
    if not path.is_file():
        return None
    text = path.read_text("utf-8")
    if path.suffix != ".toml":
        parser = configparser.RawConfigParser(strict=False)
        parser.read_string(text)
        is_for_pytest = section in parser or path.stem.endswith("pytest")
        return (dict(parser[section]) if section in parser else {}) if is_for_pytest else None
    value: Any = tomllib.loads(text)
    for key in section.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    if isinstance(value, dict) and path.name == "pyproject.toml":  # the older form of the section
        value = value.get("ini_options", value)
    return value if isinstance(value, dict) else None
