"""The command-line options of the plugin: their names, help, valid values, and who owns a short name.

What may live here: what is registered with pytest's option parser, and how a suite's ``conftest.py`` declares options
of its own (``add_suite_options``). Every option is registered under a name that is surely ours
(``--cloudbench-provider``). Frequently typed ones also have a short name (``--provider``), which pytest's parser never
sees: if nobody else has an option of that name, the arguments are rewritten before they are parsed. So no option of
another plugin or of a ``conftest.py`` can clash with ours, whenever it is added.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import pytest

DEFAULT_PROVIDER = "emulated:dropbox"
DEFAULT_CLIENTS = ("syncthing", "reference")
_OURS = "--cloudbench-"
_KEY_GIVEN = re.compile(r"(-o|--override-ini=)?cloudbench_\w+=")


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
        """The name that pytest's parser knows."""
        return self.name if self.name.startswith(_OURS) else _OURS + self.name.removeprefix("--")


_OPTIONS: Mapping[str, tuple[Option, ...]] = {
    "measure": (
        Option("--provider", {
            "action": "append", "metavar": "SPEC", "default": [],
            "help": "storage service under test, may repeat: emulated:PROFILE (an embedded one), local:NAME or "
                    "served:RECIPE.toml (a real server that the run starts), folder:PATH, raid:FILE.toml (several as "
                    f"one), or the name of a real one (default: {DEFAULT_PROVIDER})",
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
                    "response_p99:10%% (relative to the compared run)",
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
        }, "a whole number, 0 or more", lambda value: value >= 0),
        Option("--max-bytes", {
            "type": int, "metavar": "N", "help": "stop each experiment before it uploads more than N bytes",
        }, "a whole number, 0 or more", lambda value: value >= 0),
        Option("--cloudbench-yes", {
            "action": "store_true", "help": "use real accounts without asking; needed where there is no terminal",
        }),
    ),
}  # fmt: skip
"""What a user types, by what it is about: at most sixteen."""

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
                "differs, or none does (default: quiet_p50 and service_p50)",
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
"""What is rarely changed: keys of pytest's configuration file, and with ``-o KEY=VALUE`` of one run."""

_SHORT: WeakKeyDictionary[pytest.Parser, dict[str, str]] = WeakKeyDictionary()
"""Maps the short names of a session's options to the names that its parser knows."""


def add_options(parser: pytest.Parser) -> None:
    """Register the plugin's options under names that begin with this plugin's, and the keys of configuration files."""
    for group, options in _OPTIONS.items():
        _add(parser, f"cloudbench {group}", f"cloud storage experiments: {group}", options)
    for setting in _SETTINGS:
        parser.addini(setting.name, _ini_help(setting), type=_ini_type(setting), default=None)


def _ini_help(setting: Option) -> str:
    settings = setting.settings
    text = str(settings["help"]).replace("%(default)s", f"{settings.get('default')}").replace("%%", "%")
    metavar = settings.get("metavar", "")
    shown = metavar if isinstance(metavar, str) else " ".join(metavar)
    return f"{shown}: {text}" if shown else text


def _ini_type(setting: Option) -> Literal["args", "bool", "string"]:
    action = setting.settings.get("action")
    if action == "store_true":
        return "bool"
    return "args" if action == "append" or "nargs" in setting.settings else "string"


def read_settings(config: pytest.Config) -> None:
    """Put the keys of the configuration file among the options, where the rest of the package looks for them.

    Raises pytest.UsageError. A worker has them from its controller already.
    """
    for setting in _SETTINGS:
        if not hasattr(config.option, setting.name):
            setattr(config.option, setting.name, _parse_setting(setting, config.getini(setting.name)))


def _parse_setting(setting: Option, given: Any) -> Any:
    """Return the value of a key, or its default if it is not given."""
    default = setting.settings.get("default", False if _ini_type(setting) == "bool" else None)
    if given in (None, "", []):
        return default
    count = setting.settings.get("nargs")
    if count is not None and len(given) != count:
        raise pytest.UsageError(f"{setting.name} {' '.join(given)}: expected {' '.join(setting.settings['metavar'])}")
    return given if setting.accepts is None else _checked(setting, setting.accepts)(given)


def add_suite_options(parser: pytest.Parser, suite: str, options: Iterable[Option]) -> None:
    """Register the options of one suite; for ``pytest_addoption`` in its ``conftest.py``.

    pytest loads that file before it reads its arguments only if the command line names the suite's folder.
    """
    _add(parser, f"cloudbench {suite}", f"cloud storage experiments: {suite}", options)


def _add(parser: pytest.Parser, group: str, title: str, options: Iterable[Option]) -> None:
    known, added = _SHORT.setdefault(parser, {}), parser.getgroup(group, title)
    for option in options:
        settings = dict(option.settings)
        if option.long != option.name:
            known[option.name] = option.long
            settings["help"] += f"; short: {option.name}, unless another plugin has it"
        if option.accepts is not None:
            settings["type"] = _checked(option, option.accepts)
        added.addoption(option.long, **settings)


def _checked(option: Option, accepts: Callable[[Any], bool]) -> Callable[[str], Any]:
    """Returns a function that parses a number. It raises pytest.UsageError for an invalid one."""

    def read(text: str) -> Any:
        try:
            value = option.settings["type"](text)
        except ValueError:
            value = float("nan")
        if not (isfinite(value) and accepts(value)):
            raise pytest.UsageError(f"{option.name} {text}: expected {option.expected}")
        return value

    return read


def find_suites(config: pytest.Config) -> None:
    """Have pytest load the ``conftest.py`` files of suites named by ``--pyargs``, as it does for suites in a folder."""
    _load_from(config, config.known_args_namespace.file_or_dir)


def _load_from(config: pytest.Config, named: Sequence[str]) -> bool:
    """Set where pytest looks for the first conftest files. Returns whether that changed."""
    if config.known_args_namespace.pyargs:
        from pytest_cloudbench.load.policy import suite_folder

        named = [str(suite_folder(name) or name) for name in named]
    is_news: bool = config.known_args_namespace.file_or_dir != named
    config.known_args_namespace.file_or_dir = named
    return is_news


def accept_short_names(config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    """Rewrite the short names in ``args`` that nobody else uses, once the first conftest files are loaded.

    Until now pytest took such a name's value for a file to test. If that decided where it looked for conftest files, it
    looks again; one of them may turn out to own the name, or to declare the options of a suite.
    """
    if not any(_name(arg) in _SHORT[parser] or arg.startswith("@") for arg in args):
        return
    given = list(_read(args, parser))
    for _ in range(2):
        args[:] = _rewritten(given, parser)
        if args == given:
            return
        files = parser.parse_known_args(args, namespace=copy.copy(config.option)).file_or_dir
        if not _load_from(config, files):
            return
        config.pytest_load_initial_conftests(early_config=config)


def is_any_given(config: pytest.Config, parser: pytest.Parser) -> bool:
    """Returns whether the command line gives one of our options, or one of a suite's."""
    ours = _SHORT[parser].keys() - _taken_names(parser)
    args = _read(list(map(str, config.invocation_params.args)), parser)
    return any(arg.startswith(_OURS) or _name(arg) in ours or _KEY_GIVEN.match(arg) for arg in args)


def is_versus_given(option: Any) -> bool:
    """Returns whether the command line says anything of a comparison of two sides."""
    return bool(option.cloudbench_versus or option.cloudbench_versus_metric or option.cloudbench_versus_setup)


def taken_lines(parser: pytest.Parser) -> list[str]:
    """Lines for a user whose other plugins own some of our short names; empty if none does."""
    taken = sorted(_taken_names(parser))
    if not taken:
        return []
    longs = ", ".join(_SHORT[parser][name] for name in taken)
    return [f"cloudbench: another plugin or a conftest.py owns {', '.join(taken)}; use {longs}"]


def _taken_names(parser: pytest.Parser) -> frozenset[str]:
    """The short names that are taken by options of other plugins or of conftest files."""
    groups = {id(group): group for group in (*parser._groups, parser._anonymous)}.values()
    names = frozenset(name for group in groups for option in group.options for name in option.names())
    return names & _SHORT[parser].keys()


def _name(arg: str) -> str:
    return arg.partition("=")[0]


def _rewritten(args: Sequence[str], parser: pytest.Parser) -> list[str]:
    """The arguments with short names replaced by long ones, up to a ``--``, after which there are only files."""
    end = args.index("--") if "--" in args else len(args)
    taken = _taken_names(parser)
    longs = {short: long for short, long in _SHORT[parser].items() if short not in taken}
    return [
        longs[_name(arg)] + arg[len(_name(arg)) :] if at < end and _name(arg) in longs else arg
        for at, arg in enumerate(args)
    ]


def _read(args: Sequence[str], parser: pytest.Parser) -> Iterator[str]:
    """Yields the arguments. A file of arguments (``@file``) is expanded if it holds one of our short names."""
    for arg in args:
        found = [arg]
        if arg.startswith("@") and Path(arg[1:]).is_file():
            lines = Path(arg[1:]).read_text(errors="replace").splitlines()
            found = lines if any(_name(line) in _SHORT[parser] for line in lines) else found
        yield from found
