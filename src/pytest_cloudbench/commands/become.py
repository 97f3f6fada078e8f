"""The replacement of the ``cloudbench`` process by pytest, for commands that are a session of pytest."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence


def become_pytest(arguments: Sequence[str]) -> int:
    """Become pytest with these arguments. Returns its exit status on systems where a process cannot be replaced."""
    command = [sys.executable, "-P", "-m", "pytest", *arguments]
    if os.name == "posix":  # Ctrl-C then reaches pytest alone, which removes what it has written
        sys.stdout.flush()
        os.execv(sys.executable, command)
    return subprocess.call(command)
