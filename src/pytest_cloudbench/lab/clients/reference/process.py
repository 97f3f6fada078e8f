"""What the client and its second device have in common as processes: what they log, and how they end.

What may live here: lines of a process's log that the adapter knows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from pytest_cloudbench.lab.clients.reference.protocol import WireError

READY = "in sync for the first time"
"""Logged once the folder and the server have been equal for the first time."""


def say(text: str) -> None:
    """Write a line into the log."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def until_it_fails(run: Callable[[], None]) -> None:
    """Run something that never returns; if it fails, the process ends with a message."""
    try:
        run()
    except (OSError, WireError) as error:
        say(f"{type(error).__name__}: {error}")
        sys.exit(1)
