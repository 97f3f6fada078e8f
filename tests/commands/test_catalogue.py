"""Every command is in a group, and its help has an example that the command itself accepts."""

from __future__ import annotations

import contextlib
import io
import shlex
import subprocess
import sys

import pytest

from pytest_cloudbench.commands import cli
from pytest_cloudbench.commands.catalogue import GROUPS, leaf_parsers
from pytest_cloudbench.emulators.registry import SKINS

EXAMPLES = {words: text for commands in GROUPS.values() for words, text in commands.items()}


def help_of(*words: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        cli.main([*words, "--help"])
    return out.getvalue()


def test_every_command_is_in_a_group_and_no_other() -> None:
    assert EXAMPLES.keys() == dict(leaf_parsers(cli.make_parser())).keys()


@pytest.mark.parametrize("words", EXAMPLES)
def test_an_example_is_in_the_help_and_is_accepted(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line, also on a narrow terminal, and without anything after it, because people copy it."""
    monkeypatch.setenv("COLUMNS", "60")
    example = EXAMPLES[words].format(api=next(iter(SKINS)))
    assert f"example: cloudbench {example}" in help_of(*words.split()).splitlines()
    options = cli.make_parser().parse_args(shlex.split(example))
    assert callable(options.run)


@pytest.mark.parametrize("words", EXAMPLES)
def test_help_fits_into_a_terminal(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = [line for line in help_of(*words.split()).splitlines() if not line.startswith("example: ")]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("words", EXAMPLES)
def test_each_argument_has_a_help(words: str) -> None:
    parser = dict(leaf_parsers(cli.make_parser()))[words]
    assert not [action.dest for action in parser._actions if not action.help]


def test_help_lists_all_commands_in_their_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    output = help_of()
    assert max(map(len, output.splitlines())) <= 80
    for title, commands in GROUPS.items():
        block = output.partition(f"\n{title}:\n")[2].partition("\n\n")[0]
        names = [line.split()[0] for line in block.splitlines() if line[:3].strip()]
        assert names == list(dict.fromkeys(words.split()[0] for words in commands))


def test_a_command_loads_no_module_of_another() -> None:
    script = (
        "from pytest_cloudbench.commands.cli import main; import sys; main(['schema', '--path']); print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    commands = {name for name in loaded if name.startswith("pytest_cloudbench.commands.")}
    shared = {"cli", "catalogue", "command"}
    assert {name.rpartition(".")[2] for name in commands} - shared == {"bench_files"}
