"""The checkable rules of docs/architecture.md, as pure functions over source text.

Each rule runs over every module of the package, and over a small bad snippet that it must find.
To change a rule, change the table at the top and give the reason there.
"""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.disguised_sleep import WAITABLE_CLASSES, find_disguised_sleeps
from tests.package_rules import (
    called_name,
    find_foreign_privates,
    find_other_meanings,
    find_repeated_names,
    import_circles,
    imported_modules,
    public_classes,
)
from tests.rule_snippets import ALLOWED, FOUND
from tests.source_text import docstrings, identifiers, nodes, outside_imports, parse, public_names, top_level, words

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "pytest_cloudbench"
SOURCE = ROOT / "src" / PACKAGE

# The rooms, the highest first: a module imports from its own room and from lines below its own.
ROOMS = (
    ("suites",),  # in a wheel; a top-level folder in a checkout
    ("commands", "plugin"),
    ("lab",),
    ("load", "raid"),
    ("providers",),
    ("emulators", "fleet", "report", "savingbox"),
    ("results",),
    ("drivers",),
    ("services",),
    ("data", "net"),
    ("judge", "support", "workload"),
    ("model",),
)
FACES = ("", "api")  # show names of every room to others; rooms import only the version from them
# Literals that equal the name of a room but import nothing: (module, room) and the reason.
NAMED_ROOMS = {
    ("load.policy", "suites"): "looks for this name on the command line",
    ("commands.estimate", "plugin"): "names the plugin that pytest is to load",
    ("results.installed", "suites"): "imports the suites that ship for what they declare, and knows none by name",
    ("lab.clients", "clients"): "names the group of entry points that bring sync clients",
}
# Modules without a clock, a file, a socket, a thread and unseeded chance.
PURE_PLACES = (
    "model", "workload", "judge", "support.redact", "net.traffic", "lab.detect", "plugin.configs", "savingbox.batching",
    "raid.coding", "net.locate.sphere", "net.locate.discs", "net.locate.prefixes",
    "net.locate.gazetteer", "net.locate.ptr", "net.locate.placing", "net.locate.renewal",
)  # fmt: skip
# What a driver may import from the package, besides helper modules of its own package.
# The others are flat keys, pages of listings, what drivers on an SDK share, lazy imports, plain HTTP, proxies and
# certificates, secrets in texts, opening files and child processes that end with this one. None knows a provider, with
# two exceptions: one knows where Google's programs keep credentials, and one what drivers' libraries read of the
# environment.
DRIVER_IMPORTS = (
    "model", "drivers.base", "drivers.egress", "drivers.google_home", "drivers.keys", "drivers.pages", "drivers.sdk",
    "drivers.stranger", "drivers.sdk_import", "drivers.surroundings", "drivers.waits", "drivers.web", "support.redact",
    "support.opening", "services.child", "services.guard",
)  # fmt: skip
TELLS_TIME = {"drivers.web": "when an access token ends; it measures nothing"}
# Packages that never import each other, so that a bug in one cannot hide a bug in the other.
STRANGERS = {
    ("drivers", "emulators"),
    ("emulators", "drivers"),
    ("lab.clients", "emulators"),
    ("emulators", "lab.clients"),
}

# Packages that may name providers: their code and their registries.
PROVIDER_HOMES = ("drivers", "emulators", "lab.clients")
RECIPES = ("services.recipes",)  # data, and scripts that start one server each
PROVIDERS = frozenset(
    "dropbox onedrive googledrive gdrive s3 minio azure gcs webdav nextcloud owncloud tahoe rclone backblaze b2 "
    "icloud pcloud seafile syncthing obstore opendal".split()
)
# Providers whose names are ordinary words. They count in a spec ("box:...") or next to one of COMPANIONS.
ORDINARY = frozenset("box drive mega swift".split())
COMPANIONS = frozenset("driver emulator client provider sdk api account token google openstack".split())
# Literals that may occur once in a module although they name a provider: (module, literal) and the reason.
NAMED = {
    ("plugin.options", "emulated:dropbox"): "the default of --provider needs no account",
    ("plugin.options", "syncthing"): "the default of --client is a real one that Debian has, and ours",
}

# Modules of the standard library that PURE_PLACES may import. None has a clock, a socket, a file or a thread.
PURE = frozenset(
    "__future__ abc array ast base64 binascii bisect codecs collections contextlib copy csv dataclasses datetime "
    "decimal difflib enum fnmatch fractions functools hashlib heapq hmac html ipaddress itertools json keyword math "
    "numbers operator random re statistics string struct textwrap tomllib types typing unicodedata urllib.parse "
    "warnings zlib".split()
)
# Other libraries that pure code may use: (module, library) and the reason.
PURE_TOO = {
    ("workload.payload", "cryptography"): "AES as a fast generator of bytes: a pure function of key and counter",
    ("workload.payload", "io"): "BytesIO, a buffer in memory that takes half the time of a list of pieces to be joined",
    ("raid.coding", "numpy"): "sums of shares: a pure function of their bytes",
    ("raid.coding", "pyeclib"): "the same, faster",
    ("raid.coding", "cryptography"): "AES: a pure function of key, nonce and content",
    ("net.traffic", "numpy"): "columns of packets: a pure function of a capture's bytes",
    ("lab.detect", "numpy"): "the same columns, cut by time",
    ("net.traffic", "gc"): "its collector waits while the objects of a capture are made, which changes no answer",
    ("support.redact", "logging"): "what records are made of, so that none of them shows a secret; it writes none",
    ("net.locate.prefixes", "socket"): "inet_pton, a function of a text, for tens of thousands of addresses",
    ("net.traffic", "mmap"): "the type of a buffer that is handed in, for annotations only",
}
IMPURE_CALLS = frozenset({"open", "input", "print", "breakpoint", "exec", "eval", "__import__"})
CLOCKS = frozenset({"now", "utcnow", "today"})  # of datetime and date

# Libraries that are costly to import, so that only functions that use them import them.
HEAVY = frozenset(
    "pyarrow duckdb rich dropbox hypothesis keyring requests uvicorn trustme numpy platformdirs googleapiclient "
    "pyshark vcr httptools uvloop cryptography psutil httpx box_sdk_gen mega boto3 botocore obstore azure google "
    "swiftclient webdav4 paramiko opendal httplib2 aiohttp pyeclib dns".split()
)
# Modules that may import a costly library at the top: (module, library) and the reason.
PAID = {("emulators.protocol", "uvicorn"): "derives from its protocol; only the emulator's own process comes here"}
# Modules that some systems lack. A module that imports one at the top cannot be imported there.
NOT_PORTABLE = frozenset(
    "fcntl resource pwd grp termios tty pty syslog posix readline crypt spwd nis msvcrt winreg _winapi winsound".split()
)
# Modules that may call time.sleep. Nearly everywhere it is better to wait for a signal (clock.wait_for).
SLEEPERS = {
    "load.engine.engine": "the only clock for operations",
    "support.clock": "the pace of a workload, and questions that nothing signals",
    "net.link.echo": "the pace of its datagrams; it runs where nothing of the package can be imported",
    "net.locate.rtt": "the pace of its connects; the same",
}

# Private names of other modules that may be used: (module, attribute) and the reason.
PRIVATES = {
    ("commands.command", "_SubParsersAction"): "argparse has no public name for it",
    ("commands.history", "_SubParsersAction"): "the same",
    ("commands.catalogue", "_SubParsersAction"): "the same",
    ("commands.catalogue", "_choices_actions"): "where argparse keeps what add_parser was given as help",
    ("commands.catalogue", "_actions"): "argparse has no public list of a parser's subcommands",
    ("commands.load", "_SubParsersAction"): "the same",
    ("commands.estimate", "_SubParsersAction"): "the same",
    ("commands.export", "_SubParsersAction"): "the same",
    ("commands.report", "_SubParsersAction"): "the same",
    ("plugin", "_parser"): "pytest gives it to no hook that comes so late",
    ("plugin.options", "_groups"): "the names that other plugins' options have",
    ("plugin.options", "_anonymous"): "the same",
    ("load.conductor.serving", "_tw"): "pytest's terminal writer knows the width and the colours",
    ("plugin.estimate", "_tw"): "the same",
    ("fleet.session", "_tw"): "the same",
    ("fleet.session", "_file"): "what it writes to",
    ("fleet.session", "_summary_report"): "xdist's hook for its last words",
    ("fleet.session", "_io"): "execnet's connection to a worker, to end one that hangs",
    ("fleet.scheduler", "_check_nodes_have_same_collection"): "xdist reports what workers collected differently",
    ("fleet.start.forking", "_cache_rinfo"): "what a worker says of itself before there is one to ask",
    ("fleet.start.forking", "_register"): "execnet's list of a group's gateways, which it ends",
    (
        "fleet.hosts.gateways",
        "_active_nodes",
    ): "xdist's workers that have not ended, among which are those of lost hosts",
    ("fleet.start.warm", "_given_basetemp"): "pytest has no public way to move the folder of a session that has begun",
    ("fleet.start.warm", "_basetemp"): "the same",
    ("fleet.start.warm", "_registry"): "what the end of a process removes; Python has no public list of it",
    ("fleet.start.leaving", "_shutdown"): "what Python does about threads at its end, of executors, too",
    ("fleet.start.leaving", "_run_exitfuncs"): "what Python calls at its end",
    ("plugin.warm", "_parser"): "the name in pytest's messages, as xdist sets it",
    ("plugin.warm", "_SESSION"): "the plugin's own key, in a part of the plugin that only one process imports",
    ("plugin.warm_entry", "_data"): "the values of os.environ, to see who reads them",
    ("plugin.warm_entry", "_getframe"): "the documented way to the frame of the caller",
    ("fleet.items", "_calls"): "pytest's parametrization of a test so far",
    ("drivers.azure", "_client"): "the SDK's own download repeats what was cut, and holds whole pieces",
    ("drivers.dropbox", "_value"): "the SDK's unions have no public access to it",
    ("drivers.dropbox", "_host_map"): "where the SDK sends requests; an emulator is elsewhere",
    ("drivers.dropbox", "_auto_content_hash"): "the SDK adds a hash of its own otherwise",
    ("drivers.dropbox", "_oauth2_access_token"): "what must not be shown",
    ("drivers.sftp", "_async_request"): "paramiko's own pipelining loses refusals of writes, and leaves threads behind",
    ("drivers.sftp", "_read_response"): "the same",
    ("drivers.sftp", "_convert_status"): "the same",
    ("drivers.sftp", "_expecting"): "the same: whether answers are still on their way",
    ("drivers.sftp", "_request"): "its files ignore what the server says to closing them",
    ("drivers.sftp", "_closed"): "the same",
    ("drivers._mega_account", "_crypto"): "the SDK's nodes have no public access to their keys",
    ("drivers._mega_account", "_rate_limiter"): "it would pace what is measured, and no setting turns it off",
    ("drivers._mega_loop", "_retry_connection"): "the HTTP library repeats a download otherwise",
    ("drivers.gcs", "_connection"): "where it sends requests if the environment asks for mutual TLS",
    ("drivers.gcs", "_bucket_metadata_cache"): "a thread of the SDK's asks for the bucket beside some requests",
    ("net.dissect", "_running_processes"): "its destructor would wait for them on a closed loop",
}
PUBLIC_ALL_THE_SAME = frozenset({"_replace", "_asdict", "_fields", "_make"})  # of named tuples

# Words with one meaning in the glossary (docs/architecture.md, Words), and parameters that may have another meaning.
GLOSSARY_WORDS = ("emulator", "endpoint", "expectation", "facts", "op", "plan", "service")
OTHER_MEANINGS = {("drivers.opendal", "service"): "the library's own word for what it talks to"}

MAX_LINES = 600


# --- helpers of the rules ---


def room_name(module: str) -> str:
    return module.partition(".")[0]


def rank(module: str) -> int | None:
    """Return the line of a module's room, from 0 at the bottom, or None if it has no room."""
    ranks = {room: number for number, line in enumerate(reversed(ROOMS)) for room in line}
    return ranks.get(room_name(module))


def is_below(module: str, roots: tuple[str, ...]) -> bool:
    return any(module == root or module.startswith(root + ".") for root in roots)


def inside_imports(module: str, source: str, *, is_package: bool = False) -> Iterator[tuple[int, str]]:
    """Yield (line, name below the package) of every import of the package itself, also by import_module and -m."""
    parents = [PACKAGE, *module.split(".")] if module else [PACKAGE]
    for node in nodes(source):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                depth = len(parents) - node.level + is_package
                base = ".".join([*parents[:depth], *([node.module] if node.module else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value] if re.fullmatch(rf"{PACKAGE}(\.[a-z_]+)+", node.value) else []
        for name in names:
            if name == PACKAGE or name.startswith(PACKAGE + "."):
                below_package = name.removeprefix(PACKAGE).removeprefix(".")
                yield getattr(node, "lineno", 0), normalize_name(face().get(below_package, below_package))


@functools.cache
def face() -> dict[str, str]:
    """Return the home of each name of the package's public face: ``Driver`` is ``drivers.base.Driver``."""
    return dict(public_names((SOURCE / "__init__.py").read_text("utf-8")))


def normalize_name(name: str) -> str:
    """Return a name below the package, or ``""`` for values of its own __init__, such as ``__version__``."""
    return "" if name.startswith("__") else name


def find_provider(text: str, *, is_literal: bool) -> str | None:
    text_words = words(text)
    for index, word in enumerate(text_words):
        if word in PROVIDERS:
            return word
        if word in ORDINARY:
            neighbours = {*text_words[max(0, index - 1) : index], *text_words[index + 1 : index + 2]}
            if neighbours & COMPANIONS or (is_literal and re.fullmatch(rf"(emulated:)?{word}(:\S*)?", text.lower())):
                return word
    return None


# --- the rules: (module, source) to findings "LINE: what is wrong" ---


def check_layers(module: str, source: str) -> list[str]:
    """Imports point to rooms below, or stay within a room."""
    if module in FACES:
        return []
    own_rank = rank(module)
    if own_rank is None:
        return [f"1: {module} has no room, give it one in ROOMS"]
    findings = []
    for line, target in inside_imports(module, source):
        target_rank = -1 if target == "" else rank(target)
        if (module, room_name(target)) in NAMED_ROOMS:
            continue
        if target_rank is None:
            findings.append(f"{line}: {target} has no room, give it one in ROOMS")
        elif room_name(target) != room_name(module) and target_rank >= own_rank:
            findings.append(f"{line}: {room_name(module)} imports {target}, which is not below it")
    return findings


def check_drivers(module: str, source: str) -> list[str]:
    """A driver sees model, drivers.base and its own helpers: not the engine, the emulators, or a sibling."""
    findings = [
        f"{line}: {own} must not import {target}"
        for line, target in inside_imports(module, source)
        for own, other in STRANGERS
        if is_below(module, (own,)) and is_below(target, (other,))
    ]
    if module.startswith("drivers."):
        own = ".".join(module.split(".")[:2])
        own_helpers = (own, f"{own.rpartition('.')[0]}._{own.rpartition('.')[2].lstrip('_').partition('_')[0]}")
        findings += [
            f"{line}: a driver must not import {target}"
            for line, target in inside_imports(module, source)
            if not is_below(target, DRIVER_IMPORTS) and not target.startswith(own_helpers)
        ]
        findings += [
            f"{line}: a driver never times, the engine does"
            for line, name in outside_imports(nodes(source))
            if name == "time" and module not in TELLS_TIME
        ]
    return findings


def check_provider_names(module: str, source: str) -> list[str]:
    """No provider is named outside drivers/, emulators/ and clients/. Comments and docstrings may name them."""
    if is_below(module, (*PROVIDER_HOMES, *RECIPES)):
        return []
    exempt = docstrings(source)
    findings = []
    for line, name in identifiers(source):
        if word := find_provider(name, is_literal=False):
            findings.append(f"{line}: {name} names the provider {word}")
    used_literals: set[str] = set()
    for node in nodes(source):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in exempt:
            if (word := find_provider(node.value, is_literal=True)) is None:
                continue
            if (module, node.value) in NAMED and node.value not in used_literals:
                used_literals.add(node.value)
                continue
            findings.append(f"{node.lineno}: {node.value[:60]!r} names the provider {word}")
    return findings


def check_pure(module: str, source: str) -> list[str]:
    """Pure code has no clock, no file, no socket, no thread and no unseeded chance."""
    if not is_below(module, PURE_PLACES):
        return []
    allowed = {library for pure_module, library in PURE_TOO if is_below(module, (pure_module,))}
    findings = [
        f"{line}: {name} is not in PURE"
        for line, name in outside_imports(nodes(source))
        if name not in PURE and name.partition(".")[0] not in PURE and not is_below(name, (PACKAGE,))
        if name.partition(".")[0] not in allowed
    ]
    for node in nodes(source):
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
    """``__all__`` is only in modules that show names of others, and it is exact. All other names are private."""
    listed: list[str] | None = None
    defined: set[str] = set()
    imported: set[str] = set()
    for statement in top_level(parse(source).body, typing_too=True):
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            defined.add(statement.name)
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
        return []
    public = {name for name in defined - {"TYPE_CHECKING"} if not name.startswith("_")}
    findings = [] if imported & set(listed) else ["1: __all__ shows no name of another module; nobody needs it"]
    findings += [f"1: {name} is public but not in __all__" for name in sorted(public - set(listed))]
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


MAY_WAIT = re.compile(rf"sleep|select|{'|'.join(WAITABLE_CLASSES)}")
"""A file that waits has at least one of these words. Most files have none."""


def check_sleep(module: str, source: str) -> list[str]:
    """Only the modules in SLEEPERS sleep. A wait for something that is never signalled is a sleep, too."""
    if module in SLEEPERS:
        return []
    if not MAY_WAIT.search(source):
        return []
    lines = []
    yields = {
        id(n.func)
        for n in nodes(source)
        if isinstance(n, ast.Call) and called_name(n) == "sleep" and ast.unparse(n) == "time.sleep(0)"
    }
    for node in nodes(source):
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            lines += [node.lineno for alias in node.names if alias.name == "sleep"]
        elif (
            isinstance(node, ast.Attribute)
            and node.attr == "sleep"
            and ast.unparse(node) == "time.sleep"
            and id(node) not in yields
        ):
            lines.append(node.lineno)
    findings = [f"{line}: time.sleep; wait for a signal instead" for line in lines]
    findings += [
        f"{line}: waits for what nobody signals: clock.wait_for"
        for line in sorted(set(find_disguised_sleeps(nodes(source))))
    ]
    return findings


def check_portable(module: str, source: str) -> list[str]:
    """Libraries that exist on some systems only are imported inside functions."""
    return [
        f"{line}: {name} at module level does not exist on every system"
        for line, name in outside_imports(iter(top_level(parse(source).body, typing_too=True)))
        if name.partition(".")[0] in NOT_PORTABLE
    ]


def check_heavy(module: str, source: str) -> list[str]:
    """Costly imports are inside functions (or for the type checker only)."""
    return [
        f"{line}: {name} at module level makes every process pay for it"
        for line, name in outside_imports(iter(top_level(parse(source).body, typing_too=False)))
        if name.partition(".")[0] in HEAVY and (module, name.partition(".")[0]) not in PAID
    ]


MAY_SILENCE = re.compile(r"#\s*(noqa|type:\s*ignore|ruff:\s*noqa|mypy:)")
"""The beginning of a comment that silences ruff or mypy."""


def check_ignores(module: str, source: str) -> list[str]:
    """A comment that silences ruff or mypy names the rule and says why, on the same line."""
    findings = []
    if not MAY_SILENCE.search(source):  # to split a file into tokens takes longer than all other rules
        return []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        silencer = re.compile(r"#\s*(noqa|type:\s*ignore|ruff:\s*noqa|mypy:)(:\s*[A-Z0-9, ]+(?=\s|$)|\[[\w, -]+\])?")
        if silencer.search(token.string):
            reason = silencer.sub("", token.string)
            lacks_rule = any(
                match[2] is None for match in silencer.finditer(token.string) if not match[1].startswith("mypy")
            )
            if lacks_rule or len(re.findall(r"[A-Za-z]{2,}", reason)) < 2:
                findings.append(f"{token.start[0]}: {token.string} needs a rule and a reason on the same line")
    return findings


def check_privates(module: str, source: str) -> list[str]:
    """No private name of another module is used."""
    return [
        f"{line}: {name} is private to another module"
        for line, name in find_foreign_privates(source)
        if name != "os._exit" and name.rpartition(".")[2] not in PUBLIC_ALL_THE_SAME
        if (module, name.rpartition(".")[2]) not in PRIVATES
    ]


def check_words(module: str, source: str) -> list[str]:
    """A word of the glossary has the meaning that it has there."""
    return [
        f"{line}: {problem}"
        for line, problem in find_other_meanings(source, GLOSSARY_WORDS, glossary())
        if (module, problem.partition(":")[0]) not in OTHER_MEANINGS
    ]


def check_asserts(module: str, source: str) -> list[str]:
    """No assert compares: pytest rewrites it in plugins, and where CI is set it looks for differences for minutes."""
    return [
        f"{node.lineno}: an assert that compares; raise an error"
        for node in nodes(source)
        if isinstance(node, ast.Assert) and any(isinstance(part, ast.Eq) for part in ast.walk(node.test))
    ]


@functools.cache
def glossary() -> str:
    """Return the section of the map that defines words."""
    return (ROOT / "docs" / "architecture.md").read_text("utf-8").partition("## Words")[2].partition("\n## ")[0]


Checker = Callable[[str, str], list[str]]
RULES: dict[str, Checker] = {
    name.removeprefix("check_"): value for name, value in list(globals().items()) if name.startswith("check_")
}


# --- the rules hold ---


def module_name(path: Path) -> str:
    name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    return name.removesuffix("__init__").removesuffix(".")


MODULES = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}


@dataclass(slots=True)
class Survey:
    """The findings of all rules, and what each module defines and imports."""

    findings: list[str] = field(default_factory=list)
    classes: dict[str, list[str]] = field(default_factory=dict)
    imports: dict[str, set[str]] = field(default_factory=dict)


@functools.cache
def survey() -> Survey:
    """Look at each file once, because parsing takes longest."""
    survey = Survey()
    for module, path in MODULES.items():
        source = path.read_text("utf-8")
        for rule, check in RULES.items():
            name = path.relative_to(ROOT)
            survey.findings += [f"{name}:{finding} [{rule}: {check.__doc__}]" for finding in check(module, source)]
        survey.classes[module] = public_classes(source)
        survey.imports[module] = set(imported_modules(source, MODULES.keys() - FACES))
    return survey


def test_rules_hold() -> None:
    assert not survey().findings, "\n".join(survey().findings)


@pytest.mark.parametrize("folder", ["suites", "tests", "tools", "benchmarks"])
def test_ignores_have_reasons_outside_the_package_too(folder: str) -> None:
    findings = [
        f"{path.relative_to(ROOT)}:{finding}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.name != "snippets.py"  # they break the rules on purpose
        for finding in check_ignores(path.stem, path.read_text("utf-8"))
    ]
    assert not findings, "\n".join(findings)


@pytest.mark.parametrize("folder", ["suites", "examples", "tests", "tools", "benchmarks"])
def test_words_mean_the_same_outside_the_package_too(folder: str) -> None:
    findings = [
        f"{path.relative_to(ROOT)}:{line}: {problem}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for source in [path.read_text("utf-8")]
        if re.search("facts|plan", source, re.IGNORECASE)  # parsing takes longest
        for line, problem in find_other_meanings(source, ("facts", "plan"), glossary())
    ]
    assert not findings, "\n".join(findings)


@functools.cache
def sources() -> dict[str, str]:
    return {module: path.read_text("utf-8") for module, path in MODULES.items()}


def test_a_public_class_name_is_in_one_module() -> None:
    assert find_repeated_names(survey().classes) == {}


def test_the_glossary_names_classes_that_there_are() -> None:
    class_names = set(re.findall(r"`([A-Z]\w+)`", glossary()))
    texts = [text for text in sources().values() if any(f"class {name}" in text for name in class_names)]
    defined = {node.name for text in texts for node in ast.walk(parse(text)) if isinstance(node, ast.ClassDef)}
    assert class_names
    assert class_names <= defined, class_names - defined


def list_mapped_rooms() -> list[str]:
    """Return the rooms that the map names, from top to bottom (docs/architecture.md, Rooms)."""
    section = (ROOT / "docs" / "architecture.md").read_text("utf-8").partition("## Rooms")[2].partition("\n## ")[0]
    return re.findall(r"^\| `(\w+)`", section, re.MULTILINE)


def test_the_map_names_every_room_in_its_order() -> None:
    rooms = [room for line in ROOMS for room in line if room != "suites"]
    assert sorted(list_mapped_rooms()) == sorted(rooms)
    ranks = [rank(room) or 0 for room in list_mapped_rooms()]
    assert ranks == sorted(ranks, reverse=True)


def test_the_root_holds_the_face_the_model_and_few_rooms() -> None:
    names = {path.name for path in SOURCE.iterdir() if path.name not in {"__pycache__", "suites"}}
    rooms = {room for line in ROOMS for room in line if room not in {"suites", "model"}}
    assert names - {"api.py"} == rooms | {"__init__.py", "model.py", "py.typed"}
    assert len(rooms) <= 18


def test_modules_import_each_other_in_no_circle() -> None:
    imports = {module: modules for module, modules in survey().imports.items() if module not in FACES}
    assert import_circles(imports) == []


def test_tables_hold_no_resolved_exceptions() -> None:
    used_privates = {
        (module, name.rpartition(".")[2])
        for module in {module for module, _ in PRIVATES}
        for _, name in find_foreign_privates(sources().get(module, ""))
    }
    assert used_privates >= PRIVATES.keys(), PRIVATES.keys() - used_privates
    used_meanings = {
        (module, problem.partition(":")[0])
        for module in {module for module, _ in OTHER_MEANINGS}
        for _, problem in find_other_meanings(sources().get(module, ""), GLOSSARY_WORDS, glossary())
    }
    assert used_meanings >= OTHER_MEANINGS.keys(), OTHER_MEANINGS.keys() - used_meanings


@pytest.mark.parametrize("folder", ["suites", "tests"])
def test_nobody_sleeps_outside_the_package_either(folder: str) -> None:
    findings = [
        f"{path.relative_to(ROOT)}:{finding}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for finding in check_sleep("", path.read_text("utf-8"))
    ]
    assert not findings, "\n".join(findings)


def test_every_module_is_checked() -> None:
    assert {"", "model", "drivers.base"} <= MODULES.keys()


# --- tests of the rules: snippets that each must find, or must let pass ---


@pytest.mark.parametrize(("rule", "module", "source", "finding"), FOUND)
def test_rule_bites(rule: str, module: str, source: str, finding: str) -> None:
    assert finding in "\n".join(RULES[rule](module, source))


@pytest.mark.parametrize(("rule", "module", "source"), ALLOWED)
def test_rule_lets_pass(rule: str, module: str, source: str) -> None:
    assert RULES[rule](module, source) == []


def test_every_rule_has_a_negative_test() -> None:
    assert {rule for rule, *_ in FOUND} == {rule for rule, *_ in ALLOWED} | {"length"} == RULES.keys()
