"""The extras: what an ordinary installation leaves out because few runs need it, and how to get it.

What may live here: which extra brings what a feature imports, and one line for who has not got it.
"""

from __future__ import annotations

from importlib.util import find_spec

from pytest_cloudbench.model import UsageError

__all__ = ["BRINGS", "missing", "require"]

BRINGS = {"capture": ("numpy", "pyshark"), "keyring": ("keyring",)}
"""The extras that features need, and the modules whose presence shows that each is installed."""


def missing(extra: str) -> str:
    """What is not installed and how to get it, in one line; empty where nothing is missing."""
    absent = [name for name in BRINGS[extra] if not _is_here(name)]
    if not absent:
        return ""
    verb = "are" if len(absent) > 1 else "is"
    return f"{' and '.join(absent)} {verb} not installed: run pip install 'pytest-cloudbench[{extra}]'"


def require(extra: str, feature: str) -> None:
    """Raises UsageError, in one line, where ``feature`` needs an extra that is not installed."""
    told = missing(extra)
    if told:
        raise UsageError(f"{feature}: {told}")


def _is_here(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):  # something else stands under that name, or blocks it
        return False
