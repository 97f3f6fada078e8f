"""The program that checks on a host whether agents can run there. It names this package's code, and reads the clock."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
import time
from functools import cache
from pathlib import Path

from pytest_cloudbench import __version__


def list_package() -> list[tuple[Path, str]]:
    """Return the files of this package and their names in it, in order. In a checkout the suites are a link."""
    package = Path(__file__).parents[2]
    walk = os.walk(package, followlinks=True)
    paths = [Path(folder, name) for folder, _, names in walk for name in names if not folder.endswith("__pycache__")]
    return sorted(((path, path.relative_to(package).as_posix()) for path in paths), key=lambda entry: entry[1])


@cache
def digest_code() -> str:
    """Return a digest of this package's code. Two hosts measure alike only with the same code."""
    digest = hashlib.sha256()
    for path, name in list_package():
        if path.suffix == ".py":
            digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def name_code() -> str:
    """Return the name under which this code is installed on hosts."""
    return f"{__version__}-{digest_code()}"


def check(version: str, code: str) -> None:
    """End this process, with a line that says so, if its code is not the controller's.

    If it is, unload this package: pytest warns of modules that were imported before it could rewrite their asserts.
    """
    ours = __version__, digest_code()
    if ours != (version, code):
        sys.exit(f"it has pytest-cloudbench {ours[0]} with code {ours[1]}, and this machine {version} with {code}: "
                 "run cloudbench hosts install")  # fmt: skip
    for name in [name for name in sys.modules if name.partition(".")[0] == __name__.partition(".")[0]]:
        del sys.modules[name]


def main() -> None:
    """Write a line of facts. Then, for each byte that is read, write the Unix time in nanoseconds, as 20 characters."""
    importlib.import_module("xdist")  # agents need it, too
    os.write(1, json.dumps({"version": __version__, "code": digest_code()}).encode() + b"\n")
    while os.read(0, 1):
        os.write(1, b"%20d" % time.time_ns())
