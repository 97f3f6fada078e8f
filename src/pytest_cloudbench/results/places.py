"""Where pytest stores runs, for the commands, which are not pytest.

What may live here: which folders to look in, and the option that pytest is given in its configuration. Nothing of the
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

__all__ = ["USUAL", "configured", "in_order"]

USUAL = (Path("results"), Path(".benchmarks"))
"""Where runs are stored unless pytest is told another place: runs of suites, and others."""

_OPTION = "--benchmark-storage"
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


def configured() -> Path | None:
    """Returns the folder that pytest is told to store runs in: by its configuration file, or ``PYTEST_ADDOPTS``.

    None: by neither, or it is no folder. A file that cannot be read says nothing here; pytest itself will complain.
    """
    try:
        given = [*_addopts(Path.cwd()), *shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))]
    except (OSError, ValueError, configparser.Error):  # of TOML and of text that is not UTF-8, too
        return None
    value = _last(given)
    return Path(value.removeprefix(_FOLDER)) if value is not None and value.startswith(_FOLDER) else None


def _last(given: Sequence[str]) -> str | None:
    """Returns the option's value; the last one counts."""
    value = None
    for each, following in zip_longest(given, given[1:]):
        name, equals, after = each.partition("=")
        if name == _OPTION:
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
