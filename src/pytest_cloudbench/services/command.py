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
import secrets
import shutil
import socket
import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to start one real server. Texts may hold ``{port}``, ``{folder}`` and ``{secret}``.

    Attributes:
        name: what to call it.
        driver: the scheme of the driver that talks to it.
        command: the program and its arguments.
        urls: role to URL.
        ready: part of the output line that says it accepts requests; empty: it is ready once it listens on the port.
        credentials: field to value, in the driver's names.
        environment: variables besides ``PATH``; its home and temporary folders are in its folder.
        target: the target of the driver's spec.
        api: the API that it speaks.
        needs: the name under which the testbed installs its program; empty if it does not.
        folders: what to create in the server's folder first.
        here: the folder of the recipe.
        programs: what must be installed besides the command's own program.
        modules: the same of Python's, for a wheel that installs no program.
        params: parameters of the driver's spec, for what this server cannot do; those of the user's spec come first.
        setup: a command to run when it accepts requests, before it is used; empty if there is none.
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

    def absent(self) -> str:
        """Return what is not installed and how to get it, in one line; empty if nothing is missing."""
        programs = (*(each for each in self.command[:1] if "{" not in each), *self.programs)
        lacking = [each for each in programs if not shutil.which(each, path=search_path())]
        lacking += [each for each in self.modules if not has_module(each)]
        if not lacking:
            return ""
        told = f"{lacking[0]} is not installed"
        return f"{told}: run cloudbench testbed install {self.needs}" if self.needs else told


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
    try:
        table = tomllib.loads(opening.read_file(Path(path)).decode())
    except OSError as error:
        raise ConfigError(path, "", f"cannot be read ({error.strerror or error}); expected a TOML file") from error
    except (ValueError, RecursionError) as error:
        detail = "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error).partition("\n")[0]
        raise ConfigError(path, "", f"expected TOML: {detail}") from error
    for key in table:
        if key not in _KEYS:
            raise ConfigError(path, ascii(key)[1:-1], f"unknown; expected one of {', '.join(_KEYS)}"
                              f"{did_you_mean(key, _KEYS)}")  # fmt: skip
    for key in ("name", "driver"):
        _expect(path, key, table.get(key), _is_text, "a text that is not empty")
    for key in _TEXTS:
        _expect(path, key, table.get(key, ""), lambda value: isinstance(value, str), "a text")
    _expect(path, "folders", table.get("folders", []), _are_folders, "a list of relative paths")
    _expect(path, "command", table.get("command"), _is_command, "a list of texts: the program and its arguments")
    for key in ("programs", "modules"):
        _expect(path, key, table.get(key, ["-"]), _is_command, f"a list of texts: names of {key}")
    _expect(path, "setup", table.get("setup", ["-"]), _is_command, "a list of texts: a program and its arguments")
    url = table.get("url")
    urls = {"": url} if isinstance(url, str) else url
    _expect(path, "url", urls, lambda value: _is_table(value) and bool(value), "a URL, or a table of URLs")
    for key in ("credentials", "environment", "params"):
        _expect(path, key, table.get(key, {}), _is_table, "a table of texts")
    return Recipe(table["name"], table["driver"], tuple(table["command"]), urls or {}, table.get("ready", ""),
                  table.get("credentials", {}), table.get("environment", {}), table.get("target", ""),
                  table.get("api", "") or table["driver"], table.get("needs", ""), tuple(table.get("folders", ())),
                  str(Path(path).resolve().parent), tuple(table.get("setup", ())),
                  tuple(table.get("programs", ())), tuple(table.get("modules", ())),
                  table.get("params", {}))  # fmt: skip


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value) and "\0" not in value


def _is_command(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_text, value))


def _are_folders(value: object) -> bool:
    return isinstance(value, list) and all(
        _is_text(each) and not Path(each).is_absolute() and ".." not in Path(each).parts for each in value
    )


def _is_table(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(each, str) and "\0" not in each for each in value.values())


def _expect(path: str, key: str, value: object, is_right: Callable[[object], bool], expected: str) -> None:
    if not is_right(value):
        raise ConfigError(path, key, f"expected {expected}")


class CommandService(ChildService):
    """A real server as a service; leave its context, or call ``stop``, to end it.

    It ends with this process, even if this process is killed, and so do all processes that it has started (on Linux;
    elsewhere those of its process group). Its folder is removed, with all that experiments wrote.

    Args:
        recipe: how to start it.
        log_path: the file to append its output to; by default an unnamed temporary file.
    """

    kind = "server"

    def __init__(self, recipe: Recipe, *, log_path: Path | None = None) -> None:
        self._recipe, self._log_path, self.called = recipe, log_path, f"the server {recipe.name}"
        self._folder = ""

    def start(self) -> Endpoint:
        """Start it and wait until it accepts requests. Otherwise, raises ServiceError with its last line of output."""
        recipe, folder = self._recipe, tempfile.mkdtemp(prefix="cloudbench-server-")
        ports = dict(zip(_PORTS, _free_ports(len(_PORTS)), strict=True))
        given = {name: str(port) for name, port in ports.items()} | {
            "{folder}": folder, "{secret}": secrets.token_hex(24),
            "{python}": sys.executable, "{here}": recipe.here,
        }  # fmt: skip
        for name in recipe.folders:
            Path(folder, name).mkdir(parents=True, exist_ok=True)
        told = {
            "argv": [_filled(each, given) for each in recipe.command], "folder": folder, "port": ports["{port}"],
            "ready": _filled(recipe.ready, given), "setup": [_filled(each, given) for each in recipe.setup],
        }  # fmt: skip
        environment = {
            "PATH": search_path(), "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8",
            **{name: _filled(value, given) for name, value in recipe.environment.items()},
        }  # fmt: skip
        child = Child([sys.executable, "-I", "-S", _GUARD], log_path=self._log_path, env=environment)
        endpoint = Endpoint(
            {role: _filled(url, given) for role, url in recipe.urls.items()},
            {name: _filled(value, given) for name, value in recipe.credentials.items()},
            api=recipe.api,
        )
        self._started, self._folder = (child, endpoint), folder
        try:
            child.write(json.dumps(told).encode() + b"\n")
            if not child.readline(_START_S):
                child.wait()
                raise ServiceError(f"{self.called} did not start: {child.exit_reason()}")
        except BaseException:
            self.stop()
            raise
        return endpoint

    def reset(self) -> None:
        """Does nothing: each experiment has its own folder and removes it, as on a real account."""

    def refill(self) -> None:
        """Does nothing: a real server has nothing to restore."""

    def stop(self) -> None:
        """End it and remove its folder; safe to call again."""
        super().stop()
        if self._started is not None:
            shutil.rmtree(self._folder, ignore_errors=True)  # still there only if the guard was killed


def _filled(text: str, given: Mapping[str, Any]) -> str:
    for name, value in given.items():
        text = text.replace(name, value)
    return text


def brought_folder() -> Path:
    """The user's folder into which the testbed installs programs that need no root."""
    import platformdirs

    return platformdirs.user_data_path("pytest-cloudbench") / "testbed"


def search_path() -> str:
    """Return the folders of programs: this environment's first, where wheels install them, and the testbed's last."""
    brought = brought_folder()
    return os.pathsep.join([
        str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath),
        str(brought / "node_modules" / ".bin"), str(brought / "bin"),
    ])  # fmt: skip


def has_module(name: str) -> bool:
    """Return whether Python finds a module, also one that was installed a moment ago."""
    importlib.invalidate_caches()
    return importlib.util.find_spec(name) is not None


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [listener.getsockname()[1] for listener in listeners]
