"""The common parts of the client and its second device as processes: log lines, and how they end.

The adapter knows some lines of the log.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from pytest_cloudbench.lab.clients.reference.protocol import WireError

READY = "in sync for the first time"
"""Logged once the folder and the server have been equal for the first time."""


def log_line(text: str) -> None:
    """Write a line into the log."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def run_until_failure(run: Callable[[], None]) -> None:
    """Run something that never returns. If it fails, the process ends with a message."""
    try:
        run()
    except (OSError, WireError) as error:
        log_line(f"{type(error).__name__}: {error}")
        sys.exit(1)
