"""Extras: optional dependencies that few runs need, and how to install them."""

from __future__ import annotations

from collections.abc import Collection
from importlib.util import find_spec

from pytest_cloudbench.model import UsageError

BRINGS = {
    "capture": ("numpy", "pyshark"),
    "conformance": ("hypothesis",),
    "keyring": ("keyring",),
    "locate": ("dns",),
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
    return f"{' and '.join(absent)} {verb} not installed: run {install_command(extra)}"


def install_command(extra: str) -> str:
    """Return the command that adds an extra to this package, from where the package was installed.

    pip notes a folder, a file or a repository (https://packaging.python.org/en/latest/specifications/direct-url/), and
    nothing for a package index.
    """
    import json
    from importlib.metadata import PackageNotFoundError, distribution  # imports the parser of mails
    from urllib.parse import urlsplit

    try:
        origin = json.loads(distribution("pytest-cloudbench").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        origin = {}
    url = str(origin.get("url", ""))
    if url.startswith("file:"):
        from urllib.request import url2pathname  # imports ssl

        editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
        return f"pip install {editable}'{url2pathname(urlsplit(url).path)}[{extra}]'"
    vcs = origin.get("vcs_info", {}).get("vcs")
    source = f" @ {vcs}+{url}" if vcs else f" @ {url}" if url else ""
    return f"pip install 'pytest-cloudbench[{extra}]{source}'"


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
