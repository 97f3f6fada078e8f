"""The command-line options: their names, their help, and who owns a short name.

What may live here: what pytest's option parser is told. Every option is registered under a name that is surely ours
(``--cloudbench-provider``). Most have a short name, too (``--provider``), which pytest's parser never gets to know:
where nobody else has an option of that name, the arguments are rewritten before they are parsed. So no option of
another plugin or of a ``conftest.py`` can clash with ours, whenever it is added.
"""

from __future__ import annotations

import copy
from argparse import ArgumentTypeError
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

__all__ = ["DEFAULT_CLIENTS", "DEFAULT_PROVIDER", "accept_short_names", "add_options", "long_name", "taken_names"]

DEFAULT_PROVIDER = "emulated:dropbox"
DEFAULT_CLIENTS = ("syncthing", "reference")
_OURS = ("--cloudbench-", "--benchcloud-")


def _seconds(text: str) -> float:
    """The value of an option that is a duration."""
    from pytest_cloudbench.fleet.series import duration_s
    from pytest_cloudbench.model import UsageError

    try:
        return duration_s(text)
    except UsageError as error:
        raise ArgumentTypeError(str(error)) from None


_OPTIONS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("--provider", {
        "action": "append", "metavar": "SPEC", "default": [],
        "help": "storage service under test, may repeat: emulated:PROFILE (an embedded one), folder:PATH, or the "
                f"name of a real one (default: {DEFAULT_PROVIDER})",
    }),
    ("--client", {
        "action": "append", "metavar": "NAME|FILE.toml", "default": [],
        "help": "sync client under test, may repeat: a name with options (lsyncd?compress=0), or a file that describes "
                f"a command (default: {' and '.join(DEFAULT_CLIENTS)}, where they are installed)",
    }),
    ("--keep-captures", {
        "action": "store_true", "help": "keep captures of sync clients with the results; they hold what was sent",
    }),
    ("--grid", {
        "choices": ("quick", "paper"), "default": "quick",
        "help": "size of the parameter grids: two minutes, or the papers' own in real time (default: %(default)s)",
    }),
    ("--time-scale", {
        "type": float, "metavar": "K", "default": 1.0,
        "help": "run intervals and the emulator's clock K times faster (emulated providers only)",
    }),
    ("--max-ops", {"type": int, "metavar": "N", "help": "stop each experiment after N operations"}),
    ("--max-bytes", {"type": int, "metavar": "N", "help": "stop each experiment before it uploads more than N bytes"}),
    ("--capacity-loss", {
        "type": float, "metavar": "SHARE", "default": 0.01,
        "help": "suites/capacity: the loss rate that is still good enough (default: %(default)s)",
    }),
    ("--capacity-p99", {
        "type": float, "metavar": "SECONDS", "default": 2.0,
        "help": "suites/capacity: the response time p99 that is still good enough (default: %(default)s)",
    }),
    ("--capacity-seconds", {
        "type": float, "metavar": "SECONDS", "help": "suites/capacity: how long each probe lasts (default: by grid)",
    }),
    ("--capacity-ops", {
        "type": int, "metavar": "N", "help": "suites/capacity: operations that a search may take (default: by grid)",
    }),
    ("--duration", {
        "type": _seconds, "metavar": "TIME",
        "help": "how long a series lasts, such as 90s, 6h or 20d (default: by grid)",
    }),
    ("--resume", {
        "nargs": "?", "const": "", "metavar": "FILE",
        "help": "go on with the latest unfinished series of the same test and provider, or with that of a state file",
    }),
    ("--cloudbench-pause", {
        "type": _seconds, "metavar": "TIME", "help": "pause between two rounds of a series (default: by grid)",
    }),
    ("--cloudbench-keep", {
        "action": "store_true", "help": "remove the files of a series at its end instead of after each round",
    }),
    ("--idle-seconds", {
        "type": float, "metavar": "SECONDS",
        "help": "suites/idle: how long the client is left alone (default: by grid)",
    }),
    ("--cloudbench-fail", {
        "action": "append", "metavar": "METRIC:BOUND", "default": [],
        "help": "fail a test whose metric breaks the bound, may repeat: loss_rate:0.01 (absolute), "
                "response_p99:10%% (relative to the compared run)",
    }),
    ("--cloudbench-expectations", {
        "metavar": "FILE", "help": "TOML file of recorded expectations; the suites bring their own",
    }),
    ("--cloudbench-results", {
        "metavar": "DIR", "default": "results",
        "help": "where records go, beside pytest-benchmark's JSON (default: %(default)s)",
    }),
    ("--cloudbench-seed", {
        "metavar": "TEXT", "help": "seed of payloads and random delays (default: new for each run)",
    }),
    ("--cloudbench-patience", {
        "type": float, "metavar": "SECONDS", "default": 120.0,
        "help": "end an agent that gives no sign of life for this long while others wait (default: %(default)s)",
    }),
    ("--benchcloud-fill", {
        "metavar": "FILES:BYTES", "default": "50:102400",
        "help": "fill the folder of a BenchCloud download with so many files of this size (default: %(default)s)",
    }),
    ("--benchcloud-capture", {
        "metavar": "FILE", "help": "capture settings for BenchCloud's files, as BenchCloud took them with -c",
    }),
    ("--cloudbench-max-lateness", {
        "type": float, "metavar": "SECONDS", "default": 0.2,
        "help": "lateness p99 above which the engine counts as saturated (default: %(default)s)",
    }),
)  # fmt: skip

_LONG = {name: _OURS[0] + name.removeprefix("--") for name, _ in _OPTIONS if not name.startswith(_OURS)}
"""Short names to the names that pytest's parser knows."""


def add_options(parser: pytest.Parser) -> None:
    """Register every option under its long name, which begins with this plugin's."""
    group = parser.getgroup("cloudbench", "cloud storage experiments")
    for name, facts in _OPTIONS:
        short = f"; short: {name}, unless another plugin has it" if name in _LONG else ""
        group.addoption(_LONG.get(name, name), **{**facts, "help": facts["help"] + short})


def accept_short_names(config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    """Rewrite the short names in ``args`` that no one else uses, once the first conftest files are loaded.

    Up to here pytest took such a name's value for a file to test. Where that told it where to look for conftest files,
    it looks again; one of them may turn out to own the name.
    """
    if not any(_name(arg) in _LONG or arg.startswith("@") for arg in args):
        return
    given = list(_read(args))
    for _ in range(2):
        taken = taken_names(parser)
        args[:] = _rewritten(given, taken)
        if args == given:
            return
        files = parser.parse_known_args(args, namespace=copy.copy(config.option)).file_or_dir
        if config.known_args_namespace.file_or_dir == files:
            return
        config.known_args_namespace.file_or_dir = files
        config.pytest_load_initial_conftests(early_config=config)


def taken_names(parser: pytest.Parser) -> frozenset[str]:
    """The short names that options of other plugins or of conftest files have."""
    groups = {id(group): group for group in (*parser._groups, parser._anonymous)}.values()
    return frozenset(name for group in groups for option in group.options for name in option.names()) & _LONG.keys()


def long_name(name: str) -> str:
    """The long name, which no one else uses."""
    return _LONG[name]


def _name(arg: str) -> str:
    return arg.partition("=")[0]


def _rewritten(args: Sequence[str], taken: frozenset[str]) -> list[str]:
    """Arguments with long names for the short ones, up to a ``--``, after which there are only files."""
    end = args.index("--") if "--" in args else len(args)
    return [
        _LONG[_name(arg)] + arg[len(_name(arg)) :] if at < end and _name(arg) in _LONG.keys() - taken else arg
        for at, arg in enumerate(args)
    ]


def _read(args: Sequence[str]) -> Iterator[str]:
    """Arguments, and those in files that hold some (``@file``), where a short name is among them."""
    for arg in args:
        found = [arg]
        if arg.startswith("@") and Path(arg[1:]).is_file():
            lines = Path(arg[1:]).read_text(errors="replace").splitlines()
            found = lines if any(_name(line) in _LONG for line in lines) else found
        yield from found
