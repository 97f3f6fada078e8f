"""Runs of this package as an unprivileged user, in tests that are root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.limits import HANG_S

_SOURCE = str(Path(__file__).resolve().parents[1] / "src")
_AS_NOBODY: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": [], "cwd": "/", "text": True}
_START = f"import sys; sys.path.append({_SOURCE!r})\nimport pytest_cloudbench.net.link, pytest_cloudbench.net.capture\n"

needs_root = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="becomes another user, which needs root on Linux"
)


def run_as_nobody(script: str, *, path: str = "") -> str:
    """Return the output of a script that user 65534 runs, with ``path`` before PATH. Skips if it cannot run Python."""
    environment = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}", "PYTHONDONTWRITEBYTECODE": "1"}
    for python in (sys.executable, shutil.which("python3", path=os.defpath)):
        try:
            subprocess.run([python or "", "-c", _START], **_AS_NOBODY, capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        output: str = subprocess.check_output(
            [str(python), "-c", _START + script], **_AS_NOBODY, env=environment, timeout=HANG_S
        )
        return output
    pytest.skip("no Python 3.11 that another user may run, with this checkout readable")
