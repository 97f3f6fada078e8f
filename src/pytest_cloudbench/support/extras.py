"""Extras: optional dependencies that few runs need, and how to install them.

What may live here: which extra provides the modules of a feature, and the one-line message when they are missing.
"""

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


def missing(extra: str, modules: Collection[str] = ()) -> str:
    """What is not installed and how to install it, in one line; empty when nothing is missing.

    ``modules`` are those of an extra that is not in ``BRINGS``, such as a driver's.
    """
    absent = [name for name in modules or BRINGS[extra] if not _is_here(name)]
    if not absent:
        return ""
    verb = "are" if len(absent) > 1 else "is"
    return f"{' and '.join(absent)} {verb} not installed: run pip install 'pytest-cloudbench[{extra}]'"


def require(extra: str, feature: str) -> None:
    """Raise a one-line UsageError when ``feature`` needs an extra that is not installed."""
    told = missing(extra)
    if told:
        raise UsageError(f"{feature}: {told}")


def _is_here(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):  # something else stands under that name, or blocks it
        return False
