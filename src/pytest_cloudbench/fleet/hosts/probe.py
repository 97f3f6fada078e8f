"""What runs on a host to say whether agents can run there: it names this package's code, and reads the clock."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import time
from pathlib import Path

from pytest_cloudbench import __version__


def digest_code() -> str:
    """Return a digest of this package's code. Two hosts measure alike only with the same."""
    digest, package = hashlib.sha256(), Path(__file__).parents[2]
    for path in sorted(package.rglob("*.py"), key=lambda path: path.relative_to(package).parts):
        digest.update("/".join(path.relative_to(package).parts).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def main() -> None:
    """Write a line of facts, and the time of day in nanoseconds, in 20 characters, for each byte that is read."""
    importlib.import_module("xdist")  # agents need it, too
    os.write(1, json.dumps({"version": __version__, "code": digest_code()}).encode() + b"\n")
    while os.read(0, 1):
        os.write(1, b"%20d" % time.time_ns())
