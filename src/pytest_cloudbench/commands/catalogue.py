"""The commands in groups, with an example of each, as ``--help`` shows them."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator, Mapping

GROUPS: Mapping[str, Mapping[str, str]] = {
    "measure": {
        "put": "put emulated:ideal --size 1MiB --rate 50/s --for 30s",
        "get": "get folder:/mnt/nas --size 1MiB --threads 8 --for 30s",
        "mixed": "mixed emulated:ideal --rate 40/s --mix put=20,get=70,list=10 --for 1min",
        "hosts check": "hosts check hosts.toml",
        "hosts install": "hosts install hosts.toml --extra providers",
        "line": "line hosts.toml --provider {api} --yes",
        "estimate": "estimate test_sensors.py --provider folder:/mnt/nas",
        "new": "new experiment.bench.toml",
        "schema": "schema --path",
    },
    "see results": {
        "show": "show last",
        "compare": "compare 0001 last --metric response_p99",
        "history": "history test_put --metric response_p99",
        "report": "report last -o report.html",
        "ops": "ops last --sql 'FROM ops LIMIT 5'",
        "export": "export last --format csv -o run.csv",
        "published": "published uds-2013-table-1 --run results/*/0001_*.json",
        "recover": "recover --dry-run",
    },
    "gate": {
        "gate power": "gate power -k test_put",
        "gate backtest": "gate backtest",
        "baseline list": "baseline list",
        "baseline show": "baseline show test_put --metric response_p99",
        "baseline drop": "baseline drop 0017 --dry-run",
        "baseline export": "baseline export runs.zip --last 20",
        "baseline import": "baseline import runs.zip",
        "baseline accept": "baseline accept last --reason 'new disks'",
        "baseline rename": "baseline rename test_old.py::test_put test_new.py::test_put",
        "machine": "machine --key",
    },
    "providers and accounts": {
        "doctor": "doctor emulated:ideal",
        "login": "login emulated:ideal",
        "status": "status",
        "logout": "logout {api}",
        "clean": "clean --dry-run",
        "emulate": "emulate {api} --profile ideal",
        "testbed install": "testbed install --list",
    },
    "sync clients": {
        "analyze": "analyze capture.pcapng --json",
        "locate": "locate storage.example.com --here Oslo",
        "savingbox": "savingbox ~/work ~/synced --bytes 250k",
    },
    "arrays of providers": {
        "raid status": "raid status array.toml",
        "raid scrub": "raid scrub array.toml",
        "raid repair": "raid repair array.toml",
        "raid recover": "raid recover array.toml",
        "raid replace": "raid replace array.toml 2 folder:/mnt/new",
        "raid rebalance": "raid rebalance array.toml --dry-run",
        "raid export": "raid export array.toml files.tar",
        "raid choose": "raid choose offers.toml --aim price --losses 2",
    },
}
"""The title of each group, and in it the words of each command with an example that follows ``cloudbench``."""

_INDENT = 13
_EXAMPLE = "example: "


class _HelpFormatter(argparse.HelpFormatter):
    """Leaves an example in one line, because people copy it, and wraps each other line by itself."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        return "\n".join(line if line.startswith(_EXAMPLE) else fill(line, width, indent) for line in text.split("\n"))


def leaf_parsers(parser: argparse.ArgumentParser, words: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield the words of each command without subcommands, and its parser."""
    inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not inner:
        yield words, parser
    for action in inner:
        for name, command in action.choices.items():
            yield from leaf_parsers(command, f"{words} {name}".strip())


def add_examples(parser: argparse.ArgumentParser) -> None:
    """Add an example to each command's help."""
    examples = {words: text for commands in GROUPS.values() for words, text in commands.items()}
    for words, command in leaf_parsers(parser):
        lines = [f"{_EXAMPLE}cloudbench {_name_api(examples[words])}", *filter(None, [command.epilog])]
        command.epilog = "\n\n".join(lines).replace("%", "%%")
        command.formatter_class = _HelpFormatter


def add_groups(parser: argparse.ArgumentParser) -> None:
    """Add the commands in groups to the help of the parser of all commands."""
    parser.epilog = "\n".join(_group_lines(parser)).replace("%", "%%")


def _name_api(example: str) -> str:
    """Return an example with the name of an emulator where it needs one."""
    if "{api}" not in example:
        return example
    from pytest_cloudbench.emulators.registry import SKINS

    return example.format(api=next(iter(SKINS)))


def _group_lines(parser: argparse.ArgumentParser) -> Iterator[str]:
    summaries = {
        choice.dest: choice.help or ""
        for action in parser._actions if isinstance(action, argparse._SubParsersAction)
        for choice in action._choices_actions
    }  # fmt: skip
    for title, commands in GROUPS.items():
        yield f"{title}:"
        for name in dict.fromkeys(words.partition(" ")[0] for words in commands):
            head = f"  {name:<{_INDENT - 3}} "
            yield from textwrap.wrap(head + summaries[name], 79, subsequent_indent=" " * _INDENT)
        yield ""
    yield "cloudbench COMMAND --help explains one, with an example."
