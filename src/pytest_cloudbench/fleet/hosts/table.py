"""The file of ``--cloudbench-hosts``: which hosts there are, how to reach them, and how many agents each carries."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_cloudbench.model import UsageError
from pytest_cloudbench.support import opening

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_KEYS = ("name", "ssh", "command", "agents", "python", "env", "labels")
_LABELS = ("location", "region", "network")
_SSH = ("ssh", "-T", "-x", "-a", "-o", "BatchMode=yes", "-o", "ClearAllForwardings=yes")
"""Nobody is there to type a password, and nothing is forwarded. Checks of the host's key stay as the user has them."""


@dataclass(frozen=True, slots=True)
class Host:
    """A host that carries agents.

    Attributes:
        name: the name by which people know it.
        command: starts a Python there whose standard input and output are this program's pipes.
        agents: how many it carries.
        python: the interpreter of its agents. Empty for the one that the command starts.
        env: variables that its agents get in addition.
        labels: what is known of it: ``location``, ``region`` and ``network``.
    """

    name: str
    command: tuple[str, ...]
    agents: int = 1
    python: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


def read_hosts(path: Path) -> list[Host]:
    """Read a table of hosts. Raises UsageError, in one line, for an invalid table."""
    document = opening.read_toml(path, "a table of hosts")
    rows = document.pop("host", None)
    if document:
        raise UsageError(f"{path}: {next(iter(document))}: unknown; a host is a table that begins with [[host]]")
    if not isinstance(rows, list) or not rows:
        raise UsageError(f"{path}: names no host; a host is a table that begins with [[host]]")
    hosts = [_parse_host(row, f"{path}: host {number}") for number, row in enumerate(rows, 1)]
    names = [host.name for host in hosts]
    if repeated := next((name for name in names if names.count(name) > 1), ""):
        raise UsageError(f"{path}: two hosts are called {repeated}")
    return hosts


def _parse_host(row: Any, where: str) -> Host:
    """Return the host of one table. Raises UsageError for the first wrong key."""
    if not isinstance(row, dict):
        raise UsageError(f"{where}: is not a table")
    if unknown := next((key for key in row if key not in _KEYS), ""):
        raise UsageError(f"{where}: {unknown}: unknown; expected one of {', '.join(_KEYS)}")
    name = row.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(f"{where}: name: expected letters, digits, dots and dashes, not {name!r}")
    where = f"{where} ({name})"
    agents = row.get("agents", 1)
    if type(agents) is not int or agents < 1:
        raise UsageError(f"{where}: agents: expected a number above 0, not {agents!r}")
    python = row.get("python", "")
    if not isinstance(python, str):
        raise UsageError(f"{where}: python: expected a text, not {python!r}")
    labels = _parse_texts(row.get("labels", {}), f"{where}: labels")
    if unknown := next((key for key in labels if key not in _LABELS), ""):
        raise UsageError(f"{where}: labels: {unknown}: unknown; expected one of {', '.join(_LABELS)}")
    return Host(
        name, _parse_command(row, python, where), agents, python, _parse_texts(row.get("env", {}), f"{where}: env"),
        labels,
    )  # fmt: skip


def _parse_command(row: Mapping[str, Any], python: str, where: str) -> tuple[str, ...]:
    ssh, command = row.get("ssh"), row.get("command")
    if (ssh is None) == (command is None):
        raise UsageError(f'{where}: expected either ssh = "USER@HOST" or command = ["PROGRAM", ..., "python3"]')
    if ssh is None:
        if not (isinstance(command, list) and command and all(isinstance(word, str) for word in command)):
            raise UsageError(f"{where}: command: expected a list of texts, not {command!r}")
        return tuple(command)
    try:
        words = shlex.split(ssh) if isinstance(ssh, str) else []
    except ValueError as error:
        raise UsageError(f"{where}: ssh: {error}") from error
    if not words:
        raise UsageError(f'{where}: ssh: expected "USER@HOST", with any options of ssh before it, not {ssh!r}')
    return (*_SSH, *words, shlex.quote(python or "python3"))


def _parse_texts(table: Any, where: str) -> dict[str, str]:
    if not isinstance(table, dict):
        raise UsageError(f"{where}: expected a table, not {table!r}")
    for key, value in table.items():
        if not isinstance(value, str):
            raise UsageError(f"{where}: {key}: expected a text, not {value!r}")
    return table
