"""A tool described in a TOML file: its frozen form and the strict reader.

Whatever the text, this module raises only ConfigError, naming file, key and what was expected.
``docs/reference/client-files.md`` explains the keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_cloudbench.model import ConfigError
from pytest_cloudbench.support import opening

PLACEHOLDERS: Mapping[str, str] = {
    "user": "the name of the user that runs it",
    "folder": "where files are changed",
    "workdir": "for configuration and everything else that the tool writes",
    "server": "the server's address",
    "client": "the client's address",
    "port": "a free TCP port on the server",
    "port2": "another one, for a tool that needs two",
    "stored": "the server's own folder",
    "restored": "an empty folder for verify.restore",
}
"""The meanings of ``{NAME}`` in a command, a file or a value of the environment. ``{{`` is a brace."""

_KEYS: Mapping[str, tuple[str, ...]] = {
    "setup": ("commands",),
    "server": ("command", "udp"),
    "daemon": ("command", "ready"),
    "sync": ("command", "timeout_s"),
    "verify": ("folder", "restore", "command"),
    "wait": ("start_s", "setup_s", "synced_s"),
}
_EXPECTED = "the description of a sync client"
_TOP = ("name", "watches", "needs", "path", "testbed", "version", "environment", "files", *_KEYS)
_FOLDERS = ("folder", "home", "logs", "restored", "stored", "tmp")
"""The folders below ``{workdir}`` that are made for every tool."""
_DEFAULT_TIMEOUT_S, _DEFAULT_START_S = 600.0, 60.0
_MAX_TIMEOUT_S = 86_400.0

_Words = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CommandFile:
    """A tool as described by its TOML file. Placeholders are not filled in yet.

    Attributes:
        name: for results and messages.
        watches: whether ``sync`` is started once and watches the folder, or is run after each change.
        needs: programs that must be installed in addition to the first words of the commands.
        path: folders in which programs are looked for first, before those of this process's own ``PATH``.
        testbed: the name that ``tools/testbed install`` knows it by.
        version: prints the version.
        environment: for all commands, besides a clean one.
        files: name below ``{workdir}`` to content, written before anything starts.
        setup: run on the client's side, one after another, when the server is up.
        server: runs in the foreground, and is ready when it listens on ``{port}``. Empty: none.
        server_udp: ``{port}`` is a UDP port.
        daemon: runs in the foreground on the client's side, started before ``setup``. Empty: none.
        daemon_ready: the text that it prints when it is ready.
        sync: run after each change, or started once.
        timeout_s: seconds that one run of ``sync`` or ``verify`` may take.
        start_s: seconds that ``server`` may take to listen, and ``daemon`` to be ready.
        setup_s: seconds that one command of ``setup`` may take.
        synced_s: seconds that a tool that watches may take until it is in sync, or None for the suite's limit.
        verify_folder: a folder that must be equal to ``{folder}`` by content.
        verify_restore: run on the server's side, brings the files back into ``{restored}``.
        verify_command: run on the server's side. Status 0 means equal.
    """

    name: str
    sync: _Words
    watches: bool = False
    needs: _Words = ()
    path: _Words = ()
    testbed: str = ""
    version: _Words = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    setup: tuple[_Words, ...] = ()
    server: _Words = ()
    server_udp: bool = False
    daemon: _Words = ()
    daemon_ready: str = ""
    timeout_s: float = _DEFAULT_TIMEOUT_S
    start_s: float = _DEFAULT_START_S
    setup_s: float = _DEFAULT_TIMEOUT_S
    synced_s: float | None = None
    verify_folder: str = ""
    verify_restore: _Words = ()
    verify_command: _Words = ()

    def programs(self) -> _Words:
        """Return all programs that the tool runs, each once."""
        commands = [
            self.sync,
            self.server,
            self.daemon,
            self.version,
            self.verify_restore,
            self.verify_command,
            *self.setup,
        ]
        return tuple(dict.fromkeys([command[0] for command in commands if command] + list(self.needs)))


def load_command_file(path: str) -> CommandFile:
    """Read a file. Raises ConfigError."""
    return parse_command_file(opening.read_text(path, _EXPECTED), path)


def parse_command_file(text: str, source: str) -> CommandFile:
    """Read a description from TOML text. Errors name ``source``."""
    data = opening.parse_toml(text, source, _EXPECTED)
    read = _Reader(source)
    read.check_keys("", data, _TOP)
    tables = {name: read.table(name, data.get(name, {})) for name in (*_KEYS, "environment", "files")}
    for name, keys in _KEYS.items():
        read.check_keys(name, tables[name], keys)
    watches = read.flag("watches", data.get("watches", False))
    setup = tables["setup"].get("commands", [])
    if not isinstance(setup, list):
        raise ConfigError(source, "setup.commands", "expected a list of commands, each a list of texts")
    verify, wait = tables["verify"], tables["wait"]
    if len(verify) > 1 or (watches and not verify):
        raise ConfigError(source, "verify", f"expected one of {', '.join(_KEYS['verify'])}")
    return CommandFile(
        name=read.text("name", data.get("name")),
        sync=read.command("sync.command", tables["sync"].get("command")),
        watches=watches,
        needs=read.command("needs", data["needs"]) if data.get("needs") else (),
        path=read.folders("path", data["path"]) if "path" in data else (),
        testbed=read.text("testbed", data["testbed"]) if "testbed" in data else "",
        version=read.command("version", data["version"]) if "version" in data else (),
        environment={
            read.variable_name(name): read.text(f"environment.{name}", value)
            for name, value in tables["environment"].items()
        },
        files={read.file_name(name): read.text(f"files.{name}", value) for name, value in tables["files"].items()},
        setup=tuple(read.command(f"setup.commands[{index}]", command) for index, command in enumerate(setup)),
        server=read.command("server.command", tables["server"].get("command")) if "server" in data else (),
        server_udp=read.flag("server.udp", tables["server"].get("udp", False)),
        daemon=read.command("daemon.command", tables["daemon"].get("command")) if "daemon" in data else (),
        daemon_ready=read.text("daemon.ready", tables["daemon"].get("ready")) if "daemon" in data else "",
        timeout_s=read.seconds("sync.timeout_s", tables["sync"].get("timeout_s", _DEFAULT_TIMEOUT_S)),
        start_s=read.seconds("wait.start_s", wait.get("start_s", _DEFAULT_START_S)),
        setup_s=read.seconds("wait.setup_s", wait.get("setup_s", _DEFAULT_TIMEOUT_S)),
        synced_s=read.seconds("wait.synced_s", wait["synced_s"]) if "synced_s" in wait else None,
        verify_folder=read.text("verify.folder", verify["folder"]) if "folder" in verify else "",
        verify_restore=read.command("verify.restore", verify["restore"]) if "restore" in verify else (),
        verify_command=read.command("verify.command", verify["command"]) if "command" in verify else (),
    )


def fill_placeholders(text: str, values: Mapping[str, str]) -> str:
    """Return the text with its placeholders filled in."""
    return _BRACES.sub(lambda match: values[match[1]] if match[1] else match[0][0], text)


_FOLDER = re.compile(r"(/|~/)[^:\0]*")
_BRACES = re.compile(r"\{\{|\}\}|\{(\w+)\}")


class _Reader:
    """Reads and checks the values of one file."""

    def __init__(self, source: str) -> None:
        self._source = source

    def check_keys(self, table: str, keys: Mapping[str, Any], expected: tuple[str, ...]) -> None:
        for key in keys:
            if key not in expected:
                name = f"{table}.{key}" if table else key
                shown = name if name.isprintable() else repr(name)
                raise ConfigError(self._source, shown, f"unknown; expected one of {', '.join(expected)}")

    def table(self, key: str, value: object) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ConfigError(self._source, key, "expected a table")
        return value

    def flag(self, key: str, value: object) -> bool:
        if not isinstance(value, bool):
            raise ConfigError(self._source, key, "expected true or false")
        return value

    def text(self, key: str, value: object) -> str:
        shown = key if key.isprintable() else repr(key)
        if not isinstance(value, str) or not value.strip() or "\0" in value:
            raise ConfigError(self._source, shown, "expected a text that is not empty")
        without_braces = _BRACES.sub("", value)
        unknown_names = [match[1] for match in _BRACES.finditer(value) if match[1] and match[1] not in PLACEHOLDERS]
        if unknown_names or "{" in without_braces or "}" in without_braces:
            names = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
            problem = f"{{{unknown_names[0]}}} is not one" if unknown_names else "a single brace is not one"
            raise ConfigError(self._source, shown, f"placeholders are {names}; {problem}; write a literal brace twice")
        return value

    def command(self, key: str, value: object) -> _Words:
        if not isinstance(value, list) or not value:
            raise ConfigError(self._source, key, 'expected a list of texts, such as ["tool", "--option"]')
        words = tuple(self.text(key, word) for word in value)
        if _BRACES.search(words[0]):
            raise ConfigError(self._source, key, "expected the name of a program first, without placeholders")
        return words

    def folders(self, key: str, value: object) -> _Words:
        folders = value if isinstance(value, list) else []
        if not folders or not all(isinstance(folder, str) and _FOLDER.fullmatch(folder) for folder in folders):
            raise ConfigError(self._source, key, 'expected a list of folders, such as ["/opt/tool/bin", "~/bin"]')
        return tuple(folders)

    def seconds(self, key: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _MAX_TIMEOUT_S:
            raise ConfigError(self._source, key, f"expected seconds, more than 0 and up to {_MAX_TIMEOUT_S:g}")
        return float(value)

    def file_name(self, name: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", name):
            raise ConfigError(self._source, f"files.{name!r}", "expected a plain file name")
        if name in _FOLDERS:
            raise ConfigError(self._source, f"files.{name}", "there is a folder of this name; expected another name")
        return name

    def variable_name(self, name: str) -> str:
        if not name or "=" in name or "\0" in name:
            raise ConfigError(self._source, f"environment.{name!r}", "expected the name of a variable, without =")
        return name
