"""The command-line options of the plugin: names, help, valid values and short names.

This module also has ``add_suite_options``, with which the ``conftest.py`` of a suite declares its own options. Every
option is registered under a name that begins with ``--cloudbench-``, such as ``--cloudbench-provider``. Frequently
typed ones also have a short name (``--provider``), which pytest's parser never sees: if no other plugin has an option
of that name, the arguments are rewritten before they are parsed. So no option of another plugin or of a ``conftest.py``
can clash with ours, whenever it is added.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import pytest

DEFAULT_PROVIDER = "emulated:dropbox"
DEFAULT_CLIENTS = ("syncthing", "reference")
_PREFIX, _KEY_PREFIX = "--cloudbench-", "cloudbench_"
_FILES = "cloudbench_files"
_KEY_ARGUMENT = re.compile(r"(-o|--override-ini=)?cloudbench_\w+=")


class Option(NamedTuple):
    """One command-line option.

    Attributes:
        name: ``--cloudbench-NAME``, or a short name that stands for it unless another plugin has that name; for a key
            of the configuration file ``cloudbench_NAME``.
        settings: keyword arguments for ``parser.addoption``.
        expected: what a number must be, for the error message.
        accepts: returns whether a number is valid. NaN and infinity never are.
    """

    name: str
    settings: Mapping[str, Any]
    expected: str = ""
    accepts: Callable[[Any], bool] | None = None

    @property
    def long(self) -> str:
        """The long name, which is the one that pytest's parser knows."""
        return self.name if self.name.startswith(_PREFIX) else _PREFIX + self.name.removeprefix("--")


_OPTIONS: Mapping[str, tuple[Option, ...]] = {
    "measure": (
        Option("--provider", {
            "action": "append", "metavar": "SPEC", "default": [],
            "help": "storage service under test, may repeat: emulated:PROFILE (an embedded one), local:NAME or "
                    "served:RECIPE.toml (a real server that the run starts), folder:PATH, raid:FILE.toml (several as "
                    f"one), or the name of a real one (default: {DEFAULT_PROVIDER})",
        }),
        Option("--cloudbench-hosts", {
            "metavar": "FILE.toml", "default": None,
            "help": "carry agents on the hosts of this table, too, beside those of -n: name, ssh or command, agents",
        }),
        Option("--cloudbench-serve-at", {
            "metavar": "ADDRESS", "default": None,
            "help": "let emulators listen at this IPv4 address or name of this machine, so that hosts reach them over "
                    "their own network; anybody there who has the token can (default: only through the connection)",
        }),
        Option("--client", {
            "action": "append", "metavar": "NAME|FILE.toml", "default": [],
            "help": "sync client under test, may repeat: a name with options (lsyncd?compress=0), or a file that "
                    f"describes a command (default: {' and '.join(DEFAULT_CLIENTS)}, where they are installed)",
        }),
        Option("--grid", {
            "choices": ("quick", "paper"), "default": "quick",
            "help": "size of the parameter grids: two minutes, or the papers' own in real time (default: %(default)s)",
        }),
        Option("--time-scale", {
            "type": float, "metavar": "K", "default": 1.0,
            "help": "run intervals and the emulator's clock K times faster (emulated providers only)",
        }, "a number above 0", lambda value: value > 0),
        Option("--cloudbench-versus", {
            "metavar": "SPEC",
            "help": "measure each experiment on --provider (side A) and on this one (side B) in turns, and tell how "
                    "far they are apart; may be the same SPEC; with --cloudbench-gate, a worse B fails the test",
        }),
        Option("--cloudbench-seed", {
            "metavar": "TEXT", "help": "seed of payloads and random delays (default: new for each run)",
        }),
        Option("--cloudbench-live", {
            "type": int, "metavar": "PORT",
            "help": "show a long run's progress on a page of this machine (127.0.0.1); 0 takes any free port",
        }, "a port from 0 to 65535", lambda value: 0 <= value <= 65535),
    ),
    "gate": (
        Option("--cloudbench-gate", {
            "action": "store_true",
            "help": "judge each experiment against its last stored runs: met, broken or inconclusive (which skips it); "
                    "with --cloudbench-versus, side B against side A; stores the run",
        }),
        Option("--cloudbench-gate-strict", {
            "action": "store_true", "help": "the same, and what is inconclusive fails",
        }),
        Option("--cloudbench-fail", {
            "action": "append", "metavar": "METRIC:BOUND", "default": [],
            "help": "fail a test whose metric breaks the bound, may repeat: loss_rate:0.01 (absolute), "
                    "response_p99:10%% (relative to the last stored run that passed under the same conditions)",
        }),
    ),
    "results": (
        Option("--cloudbench-results", {
            "metavar": "DIR",
            "help": "where records and stored runs go (default: results, in the project's folder)",
        }),
        Option("--cloudbench-report", {
            "metavar": "FILE.html", "help": "at the end, write one page about this run that needs no network",
        }),
        Option("--cloudbench-summary", {
            "metavar": "FILE",
            "help": "add a summary in Markdown to this file, such as \"$GITHUB_STEP_SUMMARY\"",
        }),
    ),
    "accounts": (
        Option("--max-ops", {
            "type": int, "metavar": "N", "help": "stop each experiment after N operations",
        }, "a whole number from 0 to 10^18", lambda value: 0 <= value <= 10**18),  # messages have 64 bits
        Option("--max-bytes", {
            "type": int, "metavar": "N", "help": "stop each experiment before it uploads more than N bytes",
        }, "a whole number from 0 to 10^18", lambda value: 0 <= value <= 10**18),
        Option("--cloudbench-yes", {
            "action": "store_true", "help": "use real accounts without asking; needed where there is no terminal",
        }),
    ),
}  # fmt: skip
"""Options that a user types, by group. There are at most sixteen."""

_SETTINGS: tuple[Option, ...] = (
    Option("cloudbench_keep_captures", {
        "action": "store_true", "help": "keep captures of sync clients with the results; they hold what was sent",
    }),
    Option("cloudbench_max_cost", {
        "type": float, "metavar": "USD",
        "help": "start no experiment on real accounts that would bring the session's estimated cost above this",
    }, "0 or more dollars", lambda value: value >= 0),
    Option("cloudbench_cassette", {
        "nargs": 2, "metavar": ("record|replay", "FILE"),
        "help": "record a run's requests and answers on an account, or replay them without one; a replay measures "
                "nothing",
    }),
    Option("cloudbench_versus_minutes", {
        "type": float, "metavar": "MINUTES", "default": 10.0,
        "help": "begin no further pair of blocks after this time, for each test (default: %(default)s)",
    }, "minutes above 0", lambda value: value > 0),
    Option("cloudbench_versus_metric", {
        "action": "append", "metavar": "METRIC", "default": [],
        "help": "stop once the sides are known to differ in this metric, or known not to; if repeated: when any "
                "differs, or none does (default: quiet_p50, service_p50 and service_p25)",
    }),
    Option("cloudbench_versus_setup", {
        "metavar": "COMMAND",
        "help": "run before each block, to make its side ready: CLOUDBENCH_SIDE is A or B in its environment",
    }),
    Option("cloudbench_gate_budget", {
        "metavar": "TIME", "default": None,
        "help": "how long suspects may be measured again at the end, as a share of the session's own time or in "
                "seconds: 50%% or 90 (default: 50%%, or what pyproject.toml says)",
    }),
    Option("cloudbench_expectations", {
        "metavar": "FILE", "help": "TOML file of recorded expectations; the suites bring their own",
    }),
    Option("cloudbench_update_expectations", {
        "metavar": "FILE",
        "help": "write observed values to this TOML file as dated bounds for review; bounds written earlier are "
                "renewed and not enforced in this session; hand-written ones are left alone",
    }),
    Option("cloudbench_start", {
        "metavar": "fork|spawn", "choices": ("fork", "spawn"), "default": "fork",
        "help": "how agents on this machine are started: forked from one that has collected the tests, where that is "
                "safe, or each as an interpreter of its own (default: %(default)s)",
    }),
    Option("cloudbench_patience", {
        "type": float, "metavar": "SECONDS", "default": 120.0,
        "help": "end an agent that gives no sign of life for this long while others wait (default: %(default)s)",
    }, "seconds above 0", lambda value: value > 0),
    Option("cloudbench_max_lateness", {
        "type": float, "metavar": "SECONDS", "default": 0.2,
        "help": "lateness p99 above which the engine counts as saturated (default: %(default)s)",
    }, "0 or more seconds", lambda value: value >= 0),
    Option("cloudbench_benchcloud_fill", {
        "metavar": "FILES:BYTES", "default": "50:102400",
        "help": "fill the folder of a BenchCloud download with this many files of this size (default: %(default)s)",
    }),
    Option("cloudbench_benchcloud_capture", {
        "metavar": "FILE", "help": "capture settings for BenchCloud's files, as BenchCloud took them with -c",
    }),
)  # fmt: skip
"""Rarely changed options: keys of pytest's configuration file, or ``-o KEY=VALUE`` on the command line of one run."""

_SHORT_NAMES: WeakKeyDictionary[pytest.Parser, dict[str, str]] = WeakKeyDictionary()
"""Maps the short names of a session's options to the names that its parser knows."""

_SUITE_NUMBERS: WeakKeyDictionary[pytest.Parser, dict[str, list[Option]]] = WeakKeyDictionary()
"""The options of each suite that are numbers, and so may say how much it does."""


def add_options(parser: pytest.Parser) -> None:
    """Register the plugin's options under names that begin with this plugin's, and the keys of configuration files."""
    for group, options in _OPTIONS.items():
        _add_group(parser, f"cloudbench {group}", f"cloud storage experiments: {group}", map(_refuse_empty, options))
    for setting in _SETTINGS:
        parser.addini(setting.name, _ini_help(setting), type=_ini_type(setting), default=None)
    parser.addini(
        _FILES,
        "files to collect as experiments wherever they are found (globs such as *.bench.toml); "
        "without it, only files named on the command line are collected",
        type="args",
    )


def _refuse_empty(option: Option) -> Option:
    """Return an option that refuses an empty text: a variable of a shell that is not set asks for something, too.

    Only the summary may be nowhere, because "$GITHUB_STEP_SUMMARY" is set on GitHub alone.
    """
    settings = option.settings
    if "metavar" not in settings or "type" in settings or option.name == "--cloudbench-summary":
        return option

    def parse_text(text: str) -> str:
        if not text.strip():
            raise _empty_text_error(option)
        return text

    return option._replace(settings={**settings, "type": parse_text})


def _empty_text_error(option: Option) -> pytest.UsageError:
    return pytest.UsageError(f"{option.name}: expected {_format_metavar(option)}, found an empty text")


def _ini_help(setting: Option) -> str:
    settings = setting.settings
    text = str(settings["help"]).replace("%(default)s", f"{settings.get('default')}").replace("%%", "%")
    placeholder = _format_metavar(setting)
    return f"{placeholder}: {text}" if placeholder else text


def _format_metavar(option: Option) -> str:
    metavar = option.settings.get("metavar", "")
    return metavar if isinstance(metavar, str) else " ".join(metavar)


def _ini_type(setting: Option) -> Literal["args", "bool", "string"]:
    action = setting.settings.get("action")
    if action == "store_true":
        return "bool"
    return "args" if action == "append" or "nargs" in setting.settings else "string"


def read_settings(config: pytest.Config) -> None:
    """Copy the keys of the configuration file to ``config.option``, where the rest of the package looks for them.

    Raises pytest.UsageError. A worker already has the values from its controller.
    """
    _read_key(config, _FILES)  # it is used when files are collected, where an error would not name the key
    for setting in _SETTINGS:
        if not hasattr(config.option, setting.name):
            setattr(config.option, setting.name, _parse_setting(setting, _read_key(config, setting.name)))


def _read_key(config: pytest.Config, name: str) -> Any:
    """Return the value of a key as pytest reads it. Raises pytest.UsageError, which names the key."""
    try:
        return config.getini(name)
    except (TypeError, ValueError, pytest.UsageError) as error:  # which of them depends on the version of pytest
        reason = str(error)
    raise pytest.UsageError(reason if name in reason else f"{name}: {reason}")


def refuse_unknown_keys(config: pytest.Config) -> None:
    """Raise pytest.UsageError for a key that begins as ours do, once all who may own it are loaded.

    pytest warns of it at the end of a session at most, which a misspelt limit of costs would not have limited.
    """
    overrides = (pair.partition("=")[0] for pair in config.known_args_namespace.override_ini or ())
    with warnings.catch_warnings(action="ignore"):  # pytest 9 warns of it, and has no other list of its file's keys
        keys = {*getattr(config, "inicfg", ()), *overrides}
    for key in sorted(keys):
        if key.startswith(_KEY_PREFIX) and not _is_known(config, key):
            from pytest_cloudbench.model import did_you_mean

            hint = did_you_mean(key, [_FILES, *(setting.name for setting in _SETTINGS)])
            raise pytest.UsageError(f"{key}: pytest's configuration has no such key{hint}")


def _is_known(config: pytest.Config, key: str) -> bool:
    try:
        config.getini(key)
    except (TypeError, ValueError, pytest.UsageError) as error:  # its owner reports a wrong value
        return "unknown configuration value" not in str(error)
    return True


def _parse_setting(setting: Option, value: Any) -> Any:
    """Return the value of a key, or its default if pytest's configuration does not have it."""
    if value is None:
        return setting.settings.get("default", False if _ini_type(setting) == "bool" else None)
    if value in ("", []):  # as -o cloudbench_max_cost=$UNSET, which is no wish for costs without a limit
        raise _empty_text_error(setting)
    choices = setting.settings.get("choices")
    if choices is not None and value not in choices:
        raise pytest.UsageError(f"{setting.name} {value}: expected {' or '.join(choices)}")
    count = setting.settings.get("nargs")
    if count is not None and len(value) != count:
        raise pytest.UsageError(f"{setting.name} {' '.join(value)}: expected {_format_metavar(setting)}")
    return value if setting.accepts is None else _number_parser(setting, setting.accepts)(value)


def add_suite_options(parser: pytest.Parser, suite: str, options: Iterable[Option]) -> None:
    """Register the options of one suite, in ``pytest_addoption`` of its ``conftest.py``.

    pytest loads that file before it reads its arguments only if the command line names the suite's folder.
    """
    options = list(options)
    _SUITE_NUMBERS.setdefault(parser, {})[suite] = [option for option in options if option.accepts is not None]
    _add_group(parser, f"cloudbench {suite}", f"cloud storage experiments: {suite}", options)


def note_suite_options(config: pytest.Config, parser: pytest.Parser) -> None:
    """Note the grid and the numbers that options of suites were given, because entries are compared by them."""
    grid = "" if config.option.cloudbench_grid == "quick" else f"--grid {config.option.cloudbench_grid}"
    texts = {"": grid}
    for suite, options in _SUITE_NUMBERS.get(parser, {}).items():
        values = [getattr(config.option, option.long.removeprefix("--").replace("-", "_")) for option in options]
        given = [
            f"{option.name} {value}" for option, value in zip(options, values, strict=True)
            if value != option.settings.get("default")
        ]  # fmt: skip
        texts[suite] = " ".join(filter(None, [grid, *given]))
    config.option.cloudbench_suite_options = texts


def _add_group(parser: pytest.Parser, group: str, title: str, options: Iterable[Option]) -> None:
    short_names, option_group = _SHORT_NAMES.setdefault(parser, {}), parser.getgroup(group, title)
    for option in options:
        settings = dict(option.settings)
        if option.long != option.name:
            short_names[option.name] = option.long
            settings["help"] += f"; short: {option.name}, unless another plugin has it"
        if option.accepts is not None:
            settings["type"] = _number_parser(option, option.accepts)
        option_group.addoption(option.long, **settings)


def _number_parser(option: Option, accepts: Callable[[Any], bool]) -> Callable[[str], Any]:
    """Return a function that parses a number and raises pytest.UsageError for an invalid one."""

    def parse_number(text: str) -> Any:
        try:
            value = option.settings["type"](text)
            is_valid = isfinite(value) and accepts(value)
        except (ValueError, OverflowError):  # the latter for a whole number with hundreds of digits
            is_valid = False
        if not is_valid:
            raise pytest.UsageError(f"{option.name} {text}: expected {option.expected}")
        return value

    return parse_number


def find_suites(config: pytest.Config) -> None:
    """Have pytest load the ``conftest.py`` files of suites named by ``--pyargs``, as it does for suites in a folder."""
    _set_test_paths(config, config.known_args_namespace.file_or_dir)


def _set_test_paths(config: pytest.Config, paths: Sequence[str]) -> bool:
    """Set the paths where pytest looks for the first conftest files. Return whether they changed."""
    if config.known_args_namespace.pyargs:
        from pytest_cloudbench.load.policy import suite_folder

        paths = [str(suite_folder(path) or path) for path in paths]
    has_changed: bool = config.known_args_namespace.file_or_dir != paths
    config.known_args_namespace.file_or_dir = paths
    return has_changed


def accept_short_names(config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    """Rewrite the short names in ``args`` that nobody else uses, once the first conftest files are loaded.

    Until now pytest took the value of a short name for a path to test. If that decided where it looked for conftest
    files, it looks again. A conftest file that it finds then may own the name, or declare the options of a suite.
    """
    if not any(_option_name(arg) in _SHORT_NAMES[parser] or arg.startswith("@") for arg in args):
        return
    from pytest_cloudbench.support.argument_files import expand_argument_files

    original_args = list(expand_argument_files(args, config.invocation_params.dir))
    for _ in range(2):
        args[:] = _replace_short_names(original_args, parser)
        if args == original_args:
            return
        files = parser.parse_known_args(args, namespace=copy.copy(config.option)).file_or_dir
        if not _set_test_paths(config, files):
            return
        config.pytest_load_initial_conftests(early_config=config)


def is_any_option_given(config: pytest.Config, parser: pytest.Parser) -> bool:
    """Return whether the command line gives one of our options, or one of a suite's."""
    from pytest_cloudbench.support.argument_files import expand_argument_files

    short_names = _SHORT_NAMES[parser].keys() - _taken_names(parser)
    args = expand_argument_files(map(str, config.invocation_params.args), config.invocation_params.dir)
    return any(arg.startswith(_PREFIX) or _option_name(arg) in short_names or _KEY_ARGUMENT.match(arg) for arg in args)


def is_versus_given(option: Any) -> bool:
    """Return whether the command line gives any option of a comparison of two sides."""
    return bool(option.cloudbench_versus or option.cloudbench_versus_metric or option.cloudbench_versus_setup)


def describe_taken_names(parser: pytest.Parser) -> list[str]:
    """Return the lines that tell a user which short names other plugins own, and what to type instead."""
    taken_names = sorted(_taken_names(parser))
    if not taken_names:
        return []
    long_names = ", ".join(_SHORT_NAMES[parser][name] for name in taken_names)
    return [f"cloudbench: another plugin or a conftest.py owns {', '.join(taken_names)}; use {long_names}"]


def _taken_names(parser: pytest.Parser) -> frozenset[str]:
    """Return the short names that other plugins or conftest files use for options of their own."""
    groups = {id(group): group for group in (*parser._groups, parser._anonymous)}.values()
    names = frozenset(name for group in groups for option in group.options for name in option.names())
    return names & _SHORT_NAMES[parser].keys()


def _option_name(arg: str) -> str:
    return arg.partition("=")[0]


def _replace_short_names(args: Sequence[str], parser: pytest.Parser) -> list[str]:
    """Replace short names by long ones, up to a ``--``, after which there are only paths."""
    end = args.index("--") if "--" in args else len(args)
    taken_names = _taken_names(parser)
    long_names = {short: long for short, long in _SHORT_NAMES[parser].items() if short not in taken_names}
    return [
        long_names[name] + arg[len(name) :] if index < end and (name := _option_name(arg)) in long_names else arg
        for index, arg in enumerate(args)
    ]
