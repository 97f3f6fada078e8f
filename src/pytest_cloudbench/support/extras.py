"""Extras: optional dependencies that few runs need, and how to install them."""

from __future__ import annotations

from collections.abc import Collection
from importlib.util import find_spec

from pytest_cloudbench.model import UsageError

BRINGS = {
    "capture": ("numpy", "pyshark"),
    "conformance": ("hypothesis",),
    "keyring": ("keyring",),
    "cassette": ("vcr",),
    "sql": ("duckdb",),
    "expectations": ("tomlkit",),
}
"""The extras that features need, and the modules whose presence shows that each is installed."""


def missing_extra(extra: str, modules: Collection[str] = ()) -> str:
    """Return one line about modules that are not installed and how to install them, or nothing.

    ``modules`` are those of an extra that is not in ``BRINGS``, such as a driver's.
    """
    absent = [name for name in modules or BRINGS[extra] if not _is_importable(name)]
    if not absent:
        return ""
    verb = "are" if len(absent) > 1 else "is"
    return f"{' and '.join(absent)} {verb} not installed: run pip install 'pytest-cloudbench[{extra}]'"


def require_extra(extra: str, feature: str) -> None:
    """Raise a one-line UsageError if ``feature`` needs an extra that is not installed."""
    message = missing_extra(extra)
    if message:
        raise UsageError(f"{feature}: {message}")


def _is_importable(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):  # another module has this name, or an entry of ``sys.modules`` blocks it
        return False
