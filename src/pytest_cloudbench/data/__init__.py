"""Files that ship with the package, and the user's own in their place: traces, rules for flows.

What may live here: data files, and opening them. What they mean is another module's: ``trace`` parses a trace's text,
``traffic`` that of rules.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from pytest_cloudbench import opening
from pytest_cloudbench.model import ConfigError

__all__ = ["SHIPPED", "read_flow_rules", "read_trace"]

_MOST_BYTES = 1024 * opening.MIB

SHIPPED = ("iot-hour",)
"""Traces that ship, in the folder ``traces``."""


def read_trace(file: str, folder: Path | None = None) -> str:
    """The text of a trace: one of ``SHIPPED`` by its name, or a file. For the ``read`` of ``arrival.arrival``.

    Raises ConfigError when there is no such file, or it is no UTF-8.

    Args:
        file: a name in ``SHIPPED``, or a path.
        folder: what a relative path is relative to: the folder of the configuration file that names it.
    """
    try:
        if file in SHIPPED:
            return (resources.files(__package__) / "traces" / f"{file}.csv").read_text(encoding="utf-8")
        return opening.read_file((folder or Path()) / file, _MOST_BYTES).decode()
    except (OSError, ValueError) as error:  # ValueError: no UTF-8, or a name that no file can have
        raise ConfigError(file, "", f"cannot be read ({error}): expected a CSV file or {', '.join(SHIPPED)}") from error


def read_flow_rules(file: Path | None = None) -> str:
    """The text of the rules that tell control from storage flows: those that ship, or a file.

    Raises ConfigError when the file cannot be read.
    """
    try:
        if file is not None:
            return opening.read_file(file, _MOST_BYTES).decode()
        return (resources.files(__package__) / "flow-rules.toml").read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(str(file), "", f"cannot be read ({error}): expected a TOML file with rules") from error
