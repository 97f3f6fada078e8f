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
from typing import Any

from pytest_cloudbench.model import ResultsError
from pytest_cloudbench.results import stored

USUAL = (Path("results"), Path(".benchmarks"))
"""Where runs are stored unless pytest is told another place: runs of suites, and others."""

_OPTION, _RESULTS_OPTION = "--benchmark-storage", "--cloudbench-results"
_FOLDER = "file://"
_SECTIONS = {
    "pytest.toml": "pytest", ".pytest.toml": "pytest", "pytest.ini": "pytest", ".pytest.ini": "pytest",
    "pyproject.toml": "tool.pytest", "tox.ini": "pytest", "setup.cfg": "tool:pytest",
}  # fmt: skip
"""Configuration files in pytest's order, and the section of each that is pytest's."""


def in_order() -> list[Path]:
    """Returns the folders to look in: the one that pytest is told of, then the usual ones. They need not exist."""
    told = configured()
    return [*([told] if told is not None else []), *USUAL]


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
    """Returns the folder that pytest is told to write records into, or the usual one. It need not exist."""
    return Path(_given(_RESULTS_OPTION) or USUAL[0])


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
    """Returns the options in the nearest configuration file of pytest, from this folder upwards."""
    for place in (folder, *folder.parents):
        for name, section in _SECTIONS.items():
            found = _section(place / name, section)
            if found is not None:
                options = found.get("addopts", [])
                return shlex.split(options, comments=True) if isinstance(options, str) else list(map(str, options))
    return []


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
