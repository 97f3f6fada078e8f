"""The checkable rules of docs/architecture.md, as pure functions over source text.

Each rule runs over every module of the package, and over a small bad snippet that it must find.
To change a rule, change the table at the top and say why beside it.
"""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "pytest_cloudbench"
SOURCE = ROOT / "src" / PACKAGE

# First part of a module's name (below the package) to its layer. Imports only point down.
LAYERS = {
    "": 0,  # __init__.py: the version
    "model": 0,
    "payload": 1,
    "trace": 1,
    "arrival": 1,
    "records": 1,
    "stats": 1,
    "_significance": 1,
    "shapes": 1,
    "search": 1,
    "traffic": 1,
    "detect": 1,
    "baseline": 1,
    "expect": 1,
    "redact": 1,  # knows what is secret, which is no I/O
    "configs": 1,
    "drivers": 2,
    "emulators": 2,
    "clients": 2,
    "engine": 2,
    "capture": 2,
    "dissect": 2,
    "link": 2,
    "results": 2,
    "credentials": 2,
    "extras": 2,
    "data": 2,
    "opening": 2,
    "systems": 3,
    "report": 4,
    "live": 4,
    "plugin": 5,
    "options": 5,
    "fleet": 5,
    "collect": 5,
    "cli": 5,
    "suites": 6,  # in a wheel; top-level folder in a checkout
}
# Imports between two packages of one layer: (importer, imported) to the reason.
SIDEWAYS = {
    ("dissect", "extras"): "tells which extra a feature needs",
    ("credentials", "extras"): "the same",
    ("plugin", "fleet"): "the plugin wires the fleet in",
    ("plugin", "collect"): "the plugin wires the collectors in",
    ("plugin", "options"): "the plugin registers its options",
    ("fleet", "options"): "a session says which of its short names others have",
    ("options", "fleet"): "an option that is a duration is read as the series reads it",
    ("collect", "fleet"): "the tests of a file are experiments",
    ("engine", "drivers.base"): "the engine calls the seam, never a driver",
    ("credentials", "drivers"): "which credentials a provider needs is data of its driver",
    **{
        (name, "opening"): "the one way to open what a user names"
        for name in ("drivers", "credentials", "data", "emulators", "clients", "results", "dissect", "capture")
    },
    ("results", "drivers.base"): "what a run has left is removed through the seam",
    ("clients", "results.journal"): "a client's new folder is marked as a run's",
    ("arrival", "trace"): "a replayed trace is one of the arrival processes",
    ("shapes", "_significance"): "the rank tests behind a statement about shape, as formulas of their own",
    ("stats", "records"): "summaries are of tables of records",
    ("expect", "baseline"): "a relative gate is judged by what it compares with",
    ("expect", "stats"): "a claim is about the columns of a summary",
    ("detect", "traffic"): "an observation is what a capture shows of one phase",
    ("configs", "payload"): "a file names generators, which are built to check it",
    ("configs", "arrival"): "the same for arrival processes",
    ("configs", "trace"): "a trace says how many sensors and which operations there are",
    ("configs", "expect"): "a file's claims are expectations",
    ("fleet", "suites"): "looks for this name on the command line; imports no experiment",
    ("report", "live"): "both are what people look at",
}
# What a driver may import from the package, besides helper modules of its own package.
# The last three are lazy imports, secrets in texts and opening regular files; none knows a provider.
DRIVER_IMPORTS = ("model", "drivers.base", "drivers.sdk_import", "redact", "opening")
# Packages that never see each other, or one bug would cancel the other.
STRANGERS = {("drivers", "emulators"), ("emulators", "drivers"), ("clients", "emulators"), ("emulators", "clients")}

# Where providers may be named: the code for them, and their registries.
PROVIDER_HOMES = ("drivers", "emulators", "clients")
PROVIDERS = frozenset(
    "dropbox onedrive googledrive gdrive s3 minio azure gcs webdav nextcloud owncloud tahoe rclone backblaze b2 "
    "icloud pcloud seafile syncthing obstore opendal".split()
)
# Providers whose names are ordinary words: found as a spec ("box:...") or beside one of COMPANIONS.
ORDINARY = frozenset("box drive mega swift".split())
COMPANIONS = frozenset("driver emulator client provider sdk api account token google openstack".split())
# (module, literal) that may occur once although it names a provider.
NAMED = {
    ("options", "emulated:dropbox"): "the default of --provider needs no account",
    ("options", "syncthing"): "the default of --client is a real one that Debian has, and ours",
}

# All that layers 0 and 1 may import from the standard library: no clock, socket, file or thread among it.
PURE = frozenset(
    "__future__ abc array ast base64 binascii bisect codecs collections contextlib copy csv dataclasses datetime "
    "decimal difflib enum fnmatch fractions functools hashlib heapq hmac html ipaddress itertools json keyword math "
    "numbers operator random re statistics string struct textwrap tomllib types typing unicodedata urllib.parse "
    "warnings zlib".split()
)
# (top module, library) that a pure layer may use all the same.
PURE_TOO = {
    ("payload", "cryptography"): "AES as a fast generator of bytes: a pure function of key and counter",
    ("traffic", "numpy"): "columns of packets: a pure function of a capture's bytes",
    ("detect", "numpy"): "the same columns, cut by time",
    ("traffic", "gc"): "its collector waits while the objects of a capture are made, which changes no answer",
    ("redact", "logging"): "what records are made of, so that none of them shows a secret; it writes none",
    ("traffic", "mmap"): "the type of a buffer that is handed in, for annotations only",
}
IMPURE_CALLS = frozenset({"open", "input", "print", "breakpoint", "exec", "eval", "__import__"})
CLOCKS = frozenset({"now", "utcnow", "today"})  # of datetime and date

# Costly to import, so imported by the function that uses them, in the process that uses them.
HEAVY = frozenset(
    "pyarrow duckdb rich dropbox hypothesis keyring requests uvicorn trustme numpy platformdirs googleapiclient "
    "pyshark vcr httptools uvloop cryptography psutil".split()
)
# (module, library) that may import it at its top all the same.
PAID = {("emulators.protocol", "uvicorn"): "derives from its protocol; only the emulator's own process comes here"}
# Not on every system: a module that imports them at the top cannot be imported elsewhere.
NOT_PORTABLE = frozenset(
    "fcntl resource pwd grp termios tty pty syslog posix readline crypt spwd nis msvcrt winreg _winapi winsound".split()
)
# Modules that may call time.sleep: waiting for a signal is better nearly everywhere.
SLEEPERS = {"engine": "the only clock for operations"}

MAX_LINES = 600


# --- what the checkers share ---


@functools.lru_cache(maxsize=512)
def parse(source: str) -> ast.Module:
    return ast.parse(source)


def top(module: str) -> str:
    return module.partition(".")[0]


def layer(module: str) -> int | None:
    return LAYERS.get(top(module))


def below(module: str, roots: tuple[str, ...]) -> bool:
    return any(module == root or module.startswith(root + ".") for root in roots)


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def top_level(body: list[ast.stmt], *, typing_too: bool) -> Iterator[ast.stmt]:
    """The statements that run when the module is imported, also those in if, try and with."""
    for statement in body:
        yield statement
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        skip_body = is_type_checking(statement) and not typing_too
        for name in ("body", "orelse", "finalbody"):
            if not (skip_body and name == "body"):
                yield from top_level(getattr(statement, name, []), typing_too=typing_too)
        for handler in getattr(statement, "handlers", []):
            yield from top_level(handler.body, typing_too=typing_too)


def outside_imports(nodes: Iterator[ast.AST]) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import that is not relative."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.lineno, node.module


def inside_imports(module: str, source: str, *, is_package: bool = False) -> Iterator[tuple[int, str]]:
    """(line, name below the package) of every import of the package itself, also by import_module and -m."""
    parents = [PACKAGE, *module.split(".")] if module else [PACKAGE]
    for node in ast.walk(parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                keep = len(parents) - node.level + is_package
                base = ".".join([*parents[:keep], *([node.module] if node.module else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value] if re.fullmatch(rf"{PACKAGE}(\.[a-z_]+)+", node.value) else []
        for name in names:
            if name == PACKAGE or name.startswith(PACKAGE + "."):
                yield getattr(node, "lineno", 0), known(name.removeprefix(PACKAGE).removeprefix("."))


def known(name: str) -> str:
    """``__version__`` and other values of the package's own __init__ belong to ``""``."""
    return "" if name.startswith("__") else name


def docstrings(tree: ast.Module) -> set[int]:
    """Identities of the constants that are docstrings, also of attributes."""
    found = set()
    for node in ast.walk(tree):
        for statement in getattr(node, "body", []) if not isinstance(node, (ast.Lambda, ast.IfExp)) else []:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                found.add(id(statement.value))
    return found


def identifiers(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        for field in ("id", "attr", "name", "arg", "asname", "module"):
            value = getattr(node, field, None)
            if isinstance(value, str):
                yield line, value


def words(text: str) -> list[str]:
    """Lower-case words of an identifier or a sentence; camel case is split."""
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", text)
    return [word for part in (text, split) for word in re.findall(r"[a-z0-9]+", part.lower())]


def provider_in(text: str, *, is_literal: bool) -> str | None:
    found = words(text)
    for index, word in enumerate(found):
        if word in PROVIDERS:
            return word
        if word in ORDINARY:
            neighbours = {*found[max(0, index - 1) : index], *found[index + 1 : index + 2]}
            if neighbours & COMPANIONS or (is_literal and re.fullmatch(rf"(emulated:)?{word}(:\S*)?", text.lower())):
                return word
    return None


# --- the rules: (module, source) to findings "LINE: what is wrong" ---


def check_layers(module: str, source: str) -> list[str]:
    """Imports only point down, or stay within the same package."""
    own = layer(module)
    if own is None:
        return [f"1: {module} has no layer, give it one in LAYERS"]
    findings = []
    for line, target in inside_imports(module, source):
        there = layer(target)
        if there is None:
            findings.append(f"{line}: {target} has no layer, give it one in LAYERS")
        elif top(target) != top(module) and there >= own:
            allowed = any(top(module) == importer and below(target, (imported,)) for importer, imported in SIDEWAYS)
            if not allowed:
                findings.append(f"{line}: layer {own} imports {target} of layer {there}")
    return findings


def check_drivers(module: str, source: str) -> list[str]:
    """A driver sees model, drivers.base and its own helpers: not the engine, the emulators, or a sibling."""
    findings = [
        f"{line}: {top(module)} must not import {target}"
        for line, target in inside_imports(module, source)
        if (top(module), top(target)) in STRANGERS
    ]
    if module.startswith("drivers."):
        own = ".".join(module.split(".")[:2])
        own_helpers = (own, f"{own.rpartition('.')[0]}._{own.rpartition('.')[2].lstrip('_').partition('_')[0]}")
        findings += [
            f"{line}: a driver must not import {target}"
            for line, target in inside_imports(module, source)
            if not below(target, DRIVER_IMPORTS) and not target.startswith(own_helpers)
        ]
        findings += [
            f"{line}: a driver never times, the engine does"
            for line, name in outside_imports(ast.walk(parse(source)))
            if name == "time"
        ]
    return findings


def check_provider_names(module: str, source: str) -> list[str]:
    """No provider's name outside drivers/, emulators/ and clients/; comments and docstrings may name them."""
    if top(module) in PROVIDER_HOMES:
        return []
    tree = parse(source)
    exempt = docstrings(tree)
    findings = []
    for line, name in identifiers(tree):
        if word := provider_in(name, is_literal=False):
            findings.append(f"{line}: {name} names the provider {word}")
    seen: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in exempt:
            if (word := provider_in(node.value, is_literal=True)) is None:
                continue
            if (module, node.value) in NAMED and node.value not in seen:
                seen.add(node.value)
                continue
            findings.append(f"{node.lineno}: {node.value[:60]!r} names the provider {word}")
    return findings


def check_pure(module: str, source: str) -> list[str]:
    """Layers 0 and 1 have no clock, no file, no socket, no thread and no unseeded chance."""
    own = layer(module)
    if own is None or own > 1:
        return []
    tree = parse(source)
    findings = [
        f"{line}: {name} is not in PURE"
        for line, name in outside_imports(ast.walk(tree))
        if name not in PURE and name.partition(".")[0] not in PURE and not below(name, (PACKAGE,))
        if (top(module), name.partition(".")[0]) not in PURE_TOO
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "random":
            findings += [f"{node.lineno}: random.{a.name} is not seeded" for a in node.names if a.name != "Random"]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "random":
            if node.attr != "Random":
                findings.append(f"{node.lineno}: random.{node.attr} is not seeded")
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in IMPURE_CALLS:
                findings.append(f"{node.lineno}: {called}() is I/O")
            elif called.rpartition(".")[2] in CLOCKS and called.partition(".")[0] in {"date", "datetime"}:
                findings.append(f"{node.lineno}: {called}() is a clock")
            elif called in {"Random", "random.Random"} and not node.args:
                findings.append(f"{node.lineno}: Random() without a seed")
    return findings


def check_all(module: str, source: str) -> list[str]:
    """``__all__`` is there and exact; it may also re-export. Hooks and fixtures, found by pytest, may be left out."""
    if module.rpartition(".")[2].startswith("_"):
        return []
    listed: list[str] | None = None
    defined: set[str] = set()
    imported: set[str] = set()
    for_pytest: set[str] = set()
    for statement in top_level(parse(source).body, typing_too=True):
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            defined.add(statement.name)
            if any("fixture" in ast.unparse(decorator) for decorator in statement.decorator_list):
                for_pytest.add(statement.name)
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            imported |= {(alias.asname or alias.name).partition(".")[0] for alias in statement.names}
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names = {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}
            if names == {"__all__"} and statement.value is not None:
                listed = list(ast.literal_eval(statement.value))
            else:
                defined |= names
    if listed is None:
        return ["1: __all__ is missing"]
    public = {name for name in defined - for_pytest if not name.startswith(("_", "pytest_"))}
    findings = [f"1: {name} is public but not in __all__" for name in sorted(public - set(listed))]
    findings += [
        f"1: __all__ names {name}, which is not defined here" for name in sorted(set(listed) - defined - imported)
    ]
    return findings + ([] if len(listed) == len(set(listed)) else ["1: __all__ names something twice"])


def check_length(module: str, source: str) -> list[str]:
    """No file has more than MAX_LINES lines."""
    lines = source.count("\n")
    return [f"{lines}: {module} is longer than {MAX_LINES} lines"] if lines > MAX_LINES else []


def check_docstrings(module: str, source: str) -> list[str]:
    """Every module opens with a docstring, every public function and class of it has one."""
    tree = parse(source)
    findings = [] if ast.get_docstring(tree) else ["1: the module has no docstring"]
    for node in top_level(tree.body, typing_too=False):
        if (
            isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            and not node.name.startswith("_")
            and not ast.get_docstring(node)
            and "overload" not in {ast.unparse(decorator) for decorator in node.decorator_list}
        ):
            findings.append(f"{node.lineno}: {node.name} has no docstring")
    return findings


def check_sleep(module: str, source: str) -> list[str]:
    """Only the modules in SLEEPERS sleep."""
    if module in SLEEPERS:
        return []
    lines = []
    for node in ast.walk(parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            lines += [node.lineno for alias in node.names if alias.name == "sleep"]
        elif isinstance(node, ast.Attribute) and ast.unparse(node) == "time.sleep":
            lines.append(node.lineno)
    return [f"{line}: time.sleep; wait for a signal instead" for line in lines]


def check_portable(module: str, source: str) -> list[str]:
    """What exists on some systems only is imported inside functions."""
    return [
        f"{line}: {name} at module level does not exist on every system"
        for line, name in outside_imports(iter(top_level(parse(source).body, typing_too=True)))
        if name.partition(".")[0] in NOT_PORTABLE
    ]


def check_heavy(module: str, source: str) -> list[str]:
    """What is costly to import is imported inside functions (or for the type checker only)."""
    return [
        f"{line}: {name} at module level makes every process pay for it"
        for line, name in outside_imports(iter(top_level(parse(source).body, typing_too=False)))
        if name.partition(".")[0] in HEAVY and (module, name.partition(".")[0]) not in PAID
    ]


def check_ignores(module: str, source: str) -> list[str]:
    """A comment that silences ruff or mypy names the rule and says why, on the same line."""
    findings = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        silencer = re.compile(r"#\s*(noqa|type:\s*ignore|ruff:\s*noqa|mypy:)(:\s*[A-Z0-9, ]+(?=\s|$)|\[[\w, -]+\])?")
        if silencer.search(token.string):
            rest = silencer.sub("", token.string)
            bare = any(match[2] is None for match in silencer.finditer(token.string) if not match[1].startswith("mypy"))
            if bare or len(re.findall(r"[A-Za-z]{2,}", rest)) < 2:
                findings.append(f"{token.start[0]}: {token.string} needs a rule and a reason on the same line")
    return findings


Checker = Callable[[str, str], list[str]]
RULES: dict[str, Checker] = {
    name.removeprefix("check_"): value for name, value in list(globals().items()) if name.startswith("check_")
}


# --- the rules hold ---


def module_name(path: Path) -> str:
    name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    return name.removesuffix("__init__").removesuffix(".")


MODULES = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}


@pytest.mark.parametrize("rule", RULES)
def test_rule_holds(rule: str) -> None:
    findings = [
        f"{path.relative_to(ROOT)}:{finding}"
        for module, path in MODULES.items()
        for finding in RULES[rule](module, path.read_text("utf-8"))
    ]
    assert not findings, f"{RULES[rule].__doc__}\n" + "\n".join(findings)


@pytest.mark.parametrize("folder", ["suites", "tests", "tools", "benchmarks"])
def test_ignores_have_reasons_outside_the_package_too(folder: str) -> None:
    findings = [
        f"{path.relative_to(ROOT)}:{finding}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.resolve() != Path(__file__).resolve()  # its snippets break the rule on purpose
        for finding in check_ignores(path.stem, path.read_text("utf-8"))
    ]
    assert not findings, "\n".join(findings)


def test_every_module_is_checked() -> None:
    assert {"", "model", "drivers.base"} <= MODULES.keys()


# --- the rules bite: what each must find, and what it must let pass ---

FOUND = [
    ("layers", "model", "from pytest_cloudbench.engine import run", "layer 0 imports engine.run of layer 2"),
    ("layers", "stats", "def f():\n    from pytest_cloudbench import results", "2: layer 1 imports results"),
    ("layers", "stats", "from . import live", "layer 1 imports live"),
    ("layers", "results.oplog", "from ..plugin import x", "layer 2 imports plugin.x"),
    ("layers", "engine", "if TYPE_CHECKING:\n    from pytest_cloudbench.fleet import Fleet", "imports fleet"),
    ("layers", "engine", "from pytest_cloudbench.results import oplog", "layer 2 imports results.oplog of layer 2"),
    ("layers", "engine", "import_module('pytest_cloudbench.report')", "layer 2 imports report"),
    ("layers", "helpers", "", "helpers has no layer"),
    ("layers", "cli", "import pytest_cloudbench.helpers", "helpers has no layer"),
    ("drivers", "drivers.one", "from pytest_cloudbench.drivers import two", "must not import drivers.two"),
    ("drivers", "drivers.one", "from pytest_cloudbench.drivers.two import Two", "must not import drivers.two"),
    ("drivers", "drivers.one", "from pytest_cloudbench.engine import Engine", "must not import engine"),
    ("drivers", "drivers.one", "from pytest_cloudbench.payload import digest", "must not import payload"),
    ("drivers", "drivers.one", "import time", "never times"),
    ("drivers", "drivers", "from pytest_cloudbench import emulators", "drivers must not import emulators"),
    ("drivers", "emulators.core", "from ..drivers.base import Driver", "emulators must not import drivers.base"),
    ("provider_names", "engine", "class DropboxThing: pass", "names the provider dropbox"),
    ("provider_names", "engine", "def put_s3(): pass", "names the provider s3"),
    ("provider_names", "engine", "import dropbox.files", "names the provider dropbox"),
    ("provider_names", "engine", "if scheme == 'rclone': pass", "names the provider rclone"),
    ("provider_names", "engine", "print(f'{x} on WebDAV')", "names the provider webdav"),
    ("provider_names", "engine", "KNOWN = {'box': 1}", "names the provider box"),
    ("provider_names", "engine", "spec = 'emulated:mega'", "names the provider mega"),
    ("provider_names", "engine", "class BoxDriver: pass", "names the provider box"),
    ("provider_names", "engine", "DEFAULT = 'emulated:dropbox'", "names the provider dropbox"),
    ("provider_names", "options", "A = 'emulated:dropbox'\nB = 'emulated:dropbox'", "2: 'emulated:dropbox' names"),
    ("pure", "model", "import os", "os is not in PURE"),
    ("pure", "stats", "def f():\n    from time import perf_counter", "time is not in PURE"),
    ("pure", "stats", "import numpy", "numpy is not in PURE"),
    ("pure", "stats", "def f():\n    import cryptography", "cryptography is not in PURE"),
    ("pure", "expect", "from pathlib import Path", "pathlib is not in PURE"),
    ("pure", "expect", "import urllib.request", "urllib.request is not in PURE"),
    ("pure", "expect", "open('x')", "open() is I/O"),
    ("pure", "expect", "import datetime\ndatetime.date.today()", "datetime.date.today() is a clock"),
    ("pure", "arrival", "import random\nrandom.random()", "random.random is not seeded"),
    ("pure", "arrival", "from random import choice", "random.choice is not seeded"),
    ("pure", "arrival", "import random\nrandom.Random()", "Random() without a seed"),
    ("all", "stats", "def f(): pass", "__all__ is missing"),
    ("all", "stats", "__all__ = []\ndef f(): pass", "f is public but not in __all__"),
    ("all", "stats", "__all__ = []\nif 1:\n    LIMIT: int = 3", "LIMIT is public"),
    ("all", "stats", "__all__ = ['g']", "__all__ names g"),
    ("all", "stats", "__all__ = ['f', 'f']\ndef f(): pass", "twice"),
    ("length", "stats", "x = 1\n" * 601, "longer than 600 lines"),
    ("docstrings", "stats", "x = 1", "the module has no docstring"),
    ("docstrings", "stats", "'''Doc.'''\ndef f(): pass", "2: f has no docstring"),
    ("docstrings", "stats", "'''Doc.'''\nclass C: pass", "2: C has no docstring"),
    ("docstrings", "stats", "'''Doc.'''\nif 1:\n    async def f(): pass", "3: f has no docstring"),
    ("sleep", "fleet.join", "import time\ntime.sleep(1)", "2: time.sleep"),
    ("sleep", "fleet.join", "from time import sleep", "1: time.sleep"),
    ("portable", "results.oplog", "import fcntl", "fcntl at module level"),
    (
        "portable",
        "results.oplog",
        "try:\n    import resource\nexcept ImportError:\n    pass",
        "resource at module level",
    ),
    ("heavy", "report.table", "from rich.table import Table", "rich.table at module level"),
    ("heavy", "results", "try:\n    import pyarrow.parquet\nexcept ImportError:\n    pass", "pyarrow.parquet"),
    ("ignores", "stats", "x = 1  # noqa", "needs a rule and a reason"),
    ("ignores", "stats", "x = 1  # noqa: E501", "needs a rule and a reason"),
    ("ignores", "stats", "x = 1  # noqa: E501, F401", "needs a rule and a reason"),
    ("ignores", "stats", "x = 1  # type: ignore", "needs a rule and a reason"),
    ("ignores", "stats", "x = 1  # type: ignore[arg-type]", "needs a rule and a reason"),
    ("ignores", "stats", "x = 1  # type: ignore the library is wrong", "needs a rule and a reason"),
]
ALLOWED = [
    ("layers", "stats", "from pytest_cloudbench.model import Op"),
    ("layers", "stats", "from pytest_cloudbench import __version__"),
    ("layers", "drivers.one", "from .base import Driver"),
    ("layers", "plugin", "from pytest_cloudbench.fleet import join"),
    ("layers", "engine", "from pytest_cloudbench.drivers.base import Driver"),
    ("drivers", "drivers.one", "from pytest_cloudbench.model import Op\nfrom pytest_cloudbench.drivers import base"),
    ("drivers", "drivers.one", "from pytest_cloudbench.drivers import _one_upload"),
    ("drivers", "drivers.one.put", "from pytest_cloudbench.drivers.one import errors"),
    ("drivers", "drivers", "REGISTRY = {'one': 'pytest_cloudbench.drivers.one'}"),
    ("provider_names", "engine", "'''Such as Dropbox.'''\n# also Dropbox\nfrom rich import box\ndrive(box.SIMPLE)"),
    ("provider_names", "engine", "inbox = 'swift answers in a box'"),
    ("provider_names", "drivers.one", "import dropbox"),
    ("provider_names", "options", "DEFAULT = 'emulated:dropbox'"),
    ("pure", "arrival", "from random import Random\nRandom('seed').random()"),
    ("pure", "arrival", "import random\nrandom.Random(7).random()"),
    ("pure", "expect", "import tomllib\nfrom urllib.parse import parse_qsl\ntomllib.loads('')"),
    ("pure", "payload", "def f():\n    from cryptography.hazmat.primitives.ciphers import Cipher"),
    ("pure", "engine", "import time\nopen('x')"),
    ("all", "stats", "__all__ = ['f']\n_x = 1\ndef f(): pass"),
    ("all", "stats._private", "def f(): pass"),
    ("all", "plugin", "__all__ = []\ndef pytest_addoption(): pass"),
    ("all", "plugin", "__all__ = []\n@pytest.fixture\ndef fleet(): pass"),
    ("all", "drivers", "from .base import Driver\n__all__ = ['Driver']"),
    ("docstrings", "stats", "'''Doc.'''\ndef _f(): pass\ndef g():\n    '''Doc.'''\n    def h(): pass"),
    ("sleep", "engine", "import time\ntime.sleep(1)"),
    ("sleep", "emulators.server", "import asyncio\nasyncio.sleep(1)"),
    ("portable", "results.oplog", "def f():\n    import fcntl"),
    ("heavy", "results.oplog", "def f():\n    import pyarrow"),
    ("heavy", "emulators.protocol", "from uvicorn.protocols import http"),
    ("heavy", "results.oplog", "if TYPE_CHECKING:\n    import pyarrow"),
    ("ignores", "stats", "x = 1  # noqa: E501 - a table reads better in one line"),
    ("ignores", "stats", "x = 1  # type: ignore[arg-type]  # the stubs lack this overload"),
]


@pytest.mark.parametrize(("rule", "module", "source", "finding"), FOUND)
def test_rule_bites(rule: str, module: str, source: str, finding: str) -> None:
    assert finding in "\n".join(RULES[rule](module, source))


@pytest.mark.parametrize(("rule", "module", "source"), ALLOWED)
def test_rule_lets_pass(rule: str, module: str, source: str) -> None:
    assert RULES[rule](module, source) == []


def test_every_rule_has_a_negative_test() -> None:
    assert {rule for rule, *_ in FOUND} == {rule for rule, *_ in ALLOWED} | {"length"} == RULES.keys()
