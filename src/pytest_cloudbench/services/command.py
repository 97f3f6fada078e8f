"""Real servers as services: a command from a recipe, with a free port and a data folder of its own.

What may live here: recipes, starting and stopping a server. A recipe is a TOML file; ``{port}`` (and ``{port2}`` to
``{port9}``), ``{folder}`` and ``{secret}`` (new at each start) stand for values that a run supplies, ``{python}`` for
the interpreter, and ``{here}`` for the folder of the recipe. Recipes that ship are in the folder ``recipes``::

    name = "files"
    driver = "webdav"                        # the scheme of the driver that talks to it
    command = ["dav-server", "--port", "{port}", "--data", "{folder}", "--password", "{secret}"]
    ready = "listening on"                   # part of an output line; if omitted, it is ready once it listens
    setup = ["make-bucket", "{port}"]        # a command to run once it is ready, before it is used; may be omitted
    folders = ["bench"]                      # what to create in {folder} first, such as a bucket; may be omitted
    params = { lacks = "dotfiles" }          # parameters of the driver's spec, for what this server cannot do
    target = "bench"                         # the target in the driver's spec, such as a bucket; may be omitted
    api = "webdav"                           # for drivers that speak several; if omitted, the driver's name
    programs = ["dav-tool"]                  # what else must be installed; may be omitted
    needs = "dav-server"                     # what `cloudbench testbed install` installs; may be omitted
    url = "http://127.0.0.1:{port}/"         # or a table, role to URL

    [credentials]
    password = "{secret}"

    [environment]
    MODE = "plain"

Whatever the file contains, ``load_recipe`` raises only ConfigError.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pytest_cloudbench.model import ConfigError, Endpoint, ServiceError, did_you_mean
from pytest_cloudbench.services.child import Child, ChildService
from pytest_cloudbench.support import opening

_START_S = 120.0
_GUARD = str(Path(__file__).with_name("guard.py"))
_RECIPES = Path(__file__).with_name("recipes")
_TEXTS = ("ready", "target", "api", "needs")
_KEYS = (
    "name",
    "driver",
    "command",
    "url",
    *_TEXTS,
    "programs",
    "modules",
    "setup",
    "folders",
    "credentials",
    "environment",
    "params",
)
_PORTS = ("{port}", *(f"{{port{number}}}" for number in range(2, 10)))
_PLACEHOLDERS = (*_PORTS, "{folder}", "{secret}", "{python}", "{here}")
_PLACEHOLDER = re.compile(r"\{[a-z]+[0-9]*\}")


@dataclass(frozen=True, slots=True)
class Recipe:
    """The way to start one real server. Texts may hold ``{port}``, ``{folder}`` and ``{secret}``.

    Attributes:
        name: its name in messages.
        driver: the scheme of the driver that talks to it.
        command: the program and its arguments.
        urls: maps a role to its URL.
        ready: part of the output line that says it accepts requests. Empty: it is ready once it listens on the port.
        credentials: maps a field, by the driver's name for it, to its value.
        environment: variables besides ``PATH``; its home and temporary folders are in its folder.
        target: the target of the driver's spec.
        api: the API that it speaks.
        needs: the name under which the testbed installs its program, or empty if it does not.
        folders: what to create in the server's folder first.
        here: the folder of the recipe.
        programs: what must be installed besides the command's own program.
        modules: Python modules that must be installed, for a wheel that installs no program.
        params: parameters of the driver's spec, for what this server cannot do. Those of the user's spec override them.
        setup: a command to run when it accepts requests, before it is used. Empty: none.
    """

    name: str
    driver: str
    command: tuple[str, ...]
    urls: Mapping[str, str]
    ready: str = ""
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)
    environment: Mapping[str, str] = field(default_factory=dict)
    target: str = ""
    api: str = ""
    needs: str = ""
    folders: tuple[str, ...] = ()
    here: str = ""
    setup: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    params: Mapping[str, str] = field(default_factory=dict)

    def describe_missing(self) -> str:
        """Return what is not installed and how to get it, in one line, or an empty text if nothing is missing."""
        programs = (*(name for name in self.command[:1] if "{" not in name), *self.programs)
        missing = [name for name in programs if not shutil.which(name, path=search_path())]
        missing += [name for name in self.modules if not is_module_installed(name)]
        if not missing:
            return ""
        problem = f"{missing[0]} is not installed"
        return f"{problem}: run cloudbench testbed install {self.needs}" if self.needs else problem


def recipe_names() -> tuple[str, ...]:
    """Return the names of the recipes that ship with the package: what may follow ``local:``."""
    return tuple(sorted(path.stem for path in _RECIPES.glob("*.toml")))


def load_recipe(name_or_path: str) -> Recipe:
    """Read a recipe that ships, by its name, or a file if the argument has a ``/`` or ends in ``.toml``.

    Raises ConfigError, which names file, key and what was expected.
    """
    path = name_or_path
    if not path.endswith(".toml") and "/" not in path:
        if path not in recipe_names():
            expected = f"expected one of {', '.join(recipe_names())}{did_you_mean(path, recipe_names())}"
            raise ConfigError(f"server {path!r}", "", expected)
        path = str(_RECIPES / f"{path}.toml")
    table = opening.read_toml(path, "the recipe of a server")
    for key in table:
        if key not in _KEYS:
            raise ConfigError(path, ascii(key)[1:-1], f"unknown; expected one of {', '.join(_KEYS)}"
                              f"{did_you_mean(key, _KEYS)}")  # fmt: skip
    for key in ("name", "driver"):
        _check_value(path, key, table.get(key), _is_nonempty_text, "a text that is not empty")
    for key in _TEXTS:
        _check_value(path, key, table.get(key, ""), lambda value: isinstance(value, str), "a text")
    _check_value(path, "folders", table.get("folders", []), _are_relative_paths, "a list of relative paths")
    _check_value(
        path, "command", table.get("command"), _is_list_of_texts, "a list of texts: the program and its arguments"
    )
    for key in ("programs", "modules"):
        _check_value(path, key, table.get(key, ["-"]), _is_list_of_texts, f"a list of texts: names of {key}")
    _check_value(
        path, "setup", table.get("setup", ["-"]), _is_list_of_texts, "a list of texts: a program and its arguments"
    )
    url = table.get("url")
    urls = {"": url} if isinstance(url, str) else url
    _check_value(
        path, "url", urls, lambda value: _is_table_of_texts(value) and bool(value), "a URL, or a table of URLs"
    )
    for key in ("credentials", "environment", "params"):
        _check_value(path, key, table.get(key, {}), _is_table_of_texts, "a table of texts")
    for url in (urls or {}).values():
        _check_value(path, "url", url, _is_url, f"a URL such as http://127.0.0.1:{{port}}/, found {url!a}")
    _check_placeholders(path, table.get("credentials", {}))
    return Recipe(table["name"], table["driver"], tuple(table["command"]), urls or {}, table.get("ready", ""),
                  table.get("credentials", {}), table.get("environment", {}), table.get("target", ""),
                  table.get("api", "") or table["driver"], table.get("needs", ""), tuple(table.get("folders", ())),
                  str(Path(path).resolve().parent), tuple(table.get("setup", ())),
                  tuple(table.get("programs", ())), tuple(table.get("modules", ())),
                  table.get("params", {}))  # fmt: skip


def _check_placeholders(path: str, credentials: Mapping[str, str]) -> None:
    """Raise ConfigError for a placeholder that is unknown: the server would have another value than the driver."""
    for name, text in credentials.items():
        for placeholder in _PLACEHOLDER.findall(text):
            if placeholder not in _PLACEHOLDERS:
                hint = did_you_mean(placeholder, _PLACEHOLDERS)
                expected = f"expected one of {', '.join(_PLACEHOLDERS)}, found {placeholder}{hint}"
                raise ConfigError(path, f"credentials.{ascii(name)[1:-1]}", expected)


def _is_url(value: object) -> bool:
    """Return whether a text is the URL of a server, once its port is filled in."""
    try:
        parts = urlsplit(_fill_placeholders(str(value), dict.fromkeys(_PORTS, "1")))
        return bool(parts.scheme and parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _is_nonempty_text(value: object) -> bool:
    return isinstance(value, str) and bool(value) and "\0" not in value


def _is_list_of_texts(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_nonempty_text, value))


def _are_relative_paths(value: object) -> bool:
    return isinstance(value, list) and all(
        _is_nonempty_text(path) and not Path(path).is_absolute() and ".." not in Path(path).parts for path in value
    )


def _is_table_of_texts(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) and "\0" not in text for text in value.values())


def _check_value(path: str, key: str, value: object, is_right: Callable[[object], bool], expected: str) -> None:
    if not is_right(value):
        raise ConfigError(path, key, f"expected {expected}")


class CommandService(ChildService):
    """A real server as a service. Leave its context, or call ``stop``, to end it.

    It ends with this process, even if this process is killed, and so do all processes that it has started (on Linux;
    elsewhere those of its process group). Its folder is removed, with all that experiments wrote.

    Args:
        recipe: how to start it.
        log_path: the file to append its output to, by default an unnamed temporary file.
    """

    kind = "server"

    def __init__(self, recipe: Recipe, *, log_path: Path | None = None) -> None:
        self._recipe, self._log_path, self.display_name = recipe, log_path, f"the server {recipe.name}"
        self._folder = ""

    def start(self) -> Endpoint:
        """Start it and wait until it accepts requests. Raises ServiceError with its last line of output if it ends."""
        recipe, folder = self._recipe, tempfile.mkdtemp(prefix="cloudbench-server-")
        ports = dict(zip(_PORTS, _find_free_ports(len(_PORTS)), strict=True))
        values = {name: str(port) for name, port in ports.items()} | {
            "{folder}": folder, "{secret}": secrets.token_hex(24),
            "{python}": sys.executable, "{here}": recipe.here,
        }  # fmt: skip
        request = {
            "argv": [_fill_placeholders(argument, values) for argument in recipe.command],
            "folder": folder,
            "port": ports["{port}"],
            "ready": _fill_placeholders(recipe.ready, values),
            "setup": [_fill_placeholders(argument, values) for argument in recipe.setup],
        }
        environment = {
            "PATH": search_path(), "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8",
            **{name: _fill_placeholders(value, values) for name, value in recipe.environment.items()},
        }  # fmt: skip
        guard = [sys.executable, "-I", "-S", _GUARD]
        try:
            for name in recipe.folders:
                Path(folder, name).mkdir(parents=True, exist_ok=True)
            child = Child(guard, log_path=self._log_path, env=environment, ends_others=True)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            reason = f"{error.filename or folder}: {error.strerror or error}"
            raise ServiceError(f"{self.display_name} did not start: {reason}") from error
        endpoint = Endpoint(
            {role: _fill_placeholders(url, values) for role, url in recipe.urls.items()},
            {name: _fill_placeholders(value, values) for name, value in recipe.credentials.items()},
            api=recipe.api,
        )
        self._started, self._folder = (child, endpoint), folder
        try:
            child.write(json.dumps(request).encode() + b"\n")
            if not child.readline(_START_S):
                child.wait()
                raise ServiceError(f"{self.display_name} did not start: {child.exit_reason()}")
        except BaseException:
            self.stop()
            raise
        return endpoint

    def reset(self) -> None:
        """Do nothing: each experiment has its own folder and removes it, as on a real account."""

    def refill(self) -> None:
        """Do nothing: a real server has nothing to restore."""

    def stored(self) -> Iterator[tuple[str, bytes]]:
        """Yield the files in its folder, by their paths there. A file that goes away meanwhile is left out."""
        try:
            for path, content in opening.read_tree(Path(self._folder)):
                yield path.relative_to(self._folder).as_posix(), content
        except OSError as error:
            raise ServiceError(f"{self.display_name}: what it stores cannot be read: {error}") from error

    def stop(self) -> None:
        """End it and remove its folder. Safe to call again."""
        super().stop()
        if self._started is not None:
            shutil.rmtree(self._folder, ignore_errors=True)  # it still exists only if the guard was killed


def _fill_placeholders(text: str, values: Mapping[str, Any]) -> str:
    for name, value in values.items():
        text = text.replace(name, value)
    return text


def testbed_folder() -> Path:
    """Return the user's folder into which the testbed installs programs that need no root."""
    import platformdirs

    return platformdirs.user_data_path("pytest-cloudbench") / "testbed"


def search_path() -> str:
    """Return the search path for programs: first this environment, where wheels install them, and last the testbed."""
    testbed = testbed_folder()
    return os.pathsep.join([
        str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath),
        str(testbed / "node_modules" / ".bin"), str(testbed / "bin"),
    ])  # fmt: skip


def is_module_installed(name: str) -> bool:
    """Return whether Python finds a module, also one that was installed a moment ago."""
    importlib.invalidate_caches()
    return importlib.util.find_spec(name) is not None


def _find_free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [listener.getsockname()[1] for listener in listeners]
