"""The TOML description of a tool: the values it sets, and the messages about mistakes in it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cloudbench.lab.clients.command_file import (
    PLACEHOLDERS,
    CommandFile,
    fill_placeholders,
    load_command_file,
    parse_command_file,
)
from pytest_cloudbench.model import ConfigError
from tests.lab.clients.conftest import DOCUMENT, documented_toml

MINIMAL = 'name = "x"\n[sync]\ncommand = ["true"]\n'


def test_smallest_client_file_is_accepted() -> None:
    assert parse_command_file(MINIMAL, "x.toml") == CommandFile("x", sync=("true",))


def test_the_programs_of_the_documented_tools() -> None:
    assert parse_command_file(documented_toml("rsync"), "rsync.toml").programs() == ("rsync",)
    borg = parse_command_file(documented_toml("borg"), "borg.toml")
    assert borg.programs() == ("borg", "socat", "sh")
    assert borg.timeout_s == 300


def test_a_file_sets_time_limits_and_program_folders() -> None:
    text = f'path = ["/opt/x", "~/bin"]\n{MINIMAL}[wait]\nstart_s = 5\nsetup_s = 7.5\nsynced_s = 900\n'
    command_file = parse_command_file(text, "x.toml")
    assert command_file.path == ("/opt/x", "~/bin")
    assert (command_file.start_s, command_file.setup_s, command_file.synced_s) == (5, 7.5, 900)
    minimal = parse_command_file(MINIMAL, "x.toml")
    assert (minimal.start_s, minimal.setup_s, minimal.timeout_s, minimal.synced_s) == (60, 600, 600, None)


def test_the_documents_explain_every_key_and_placeholder() -> None:
    text = DOCUMENT.read_text("utf-8")
    with pytest.raises(ConfigError) as caught:
        parse_command_file(f"{MINIMAL}[colour]", "x.toml")
    for key in str(caught.value).rpartition("one of ")[2].split(", "):
        assert re.search(rf"^\| `{key}[.`]", text, re.MULTILINE), key
    for name in PLACEHOLDERS:
        assert f"`{{{name}}}`" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = ", "x.toml: not TOML ("),
        ("", "name: expected a text that is not empty"),
        ('name = "x"', "sync.command: expected a list of texts"),
        ('name = "x"\nsync = 3', "sync: expected a table"),
        ('name = "x"\n[sync]\ncommand = "true"', "sync.command: expected a list of texts"),
        ('name = "x"\n[sync]\ncommand = []', "sync.command: expected a list of texts"),
        ('name = "x"\n[sync]\ncommand = ["true", 3]', "sync.command: expected a text"),
        ('name = "x"\n[sync]\ncommand = ["{folder}"]', "sync.command: expected the name of a program first"),
        (
            'name = "x"\n[sync]\ncommand = ["a", "{home}"]',
            "sync.command: placeholders are {user}, {folder}, .*{home} is not one",
        ),
        ('name = "x"\n[sync]\ncommand = ["a", "{"]', "sync.command: .*a single brace is not one"),
        (f"{MINIMAL}timeout_s = 0", "sync.timeout_s: expected seconds, more than 0"),
        (f"{MINIMAL}timeout_s = true", "sync.timeout_s: expected seconds"),
        (f"{MINIMAL}[wait]\nsynced_s = 0", "wait.synced_s: expected seconds, more than 0"),
        (f"{MINIMAL}[wait]\nseconds = 3", "wait.seconds: unknown; expected one of start_s, setup_s, synced_s"),
        (f'path = "/opt"\n{MINIMAL}', "path: expected a list of folders"),
        (f'path = ["opt"]\n{MINIMAL}', "path: expected a list of folders"),
        (f'path = ["/a:/b"]\n{MINIMAL}', "path: expected a list of folders"),
        (f"{MINIMAL}comand = 3", "sync.comand: unknown; expected one of command, timeout_s"),
        (f"colour = 3\n{MINIMAL}", "colour: unknown; expected one of name, watches, "),
        (f'watches = "no"\n{MINIMAL}', "watches: expected true or false"),
        (f"watches = true\n{MINIMAL}", "verify: expected one of folder, restore, command"),
        (f'{MINIMAL}[verify]\nfolder = "/a"\ncommand = ["b"]', "verify: expected one of folder, restore, command"),
        (f"{MINIMAL}[setup]\ncommands = 3", "setup.commands: expected a list of commands"),
        (f'{MINIMAL}[setup]\ncommands = ["a"]', "setup.commands[0]: expected a list of texts"),
        (f'{MINIMAL}[files]\n"../a" = "b"', "files.'../a': expected a plain file name"),
        (f'{MINIMAL}[files]\nlogs = "b"', "files.logs: there is a folder of this name"),
        (f"{MINIMAL}[environment]\nA = 3", "environment.A: expected a text"),
        (f'{MINIMAL}[environment]\n"A=B" = "c"', "environment.'A=B': expected the name of a variable"),
        (f'{MINIMAL}[environment]\n"" = "c"', "environment.'': expected the name of a variable"),
        (f'{MINIMAL}[environment]\n"A\\u0000" = "c"', r"environment.'A\x00': expected the name of a variable"),
        (f"{MINIMAL}[server]\n", "server.command: expected a list of texts"),
        (f'{MINIMAL}[server]\nudp = 3\ncommand = ["b"]', "server.udp: expected true or false"),
    ],
)
def test_wrong_client_file_is_refused(text: str, message: str) -> None:
    pattern = re.escape(message).replace(re.escape(".*"), ".*")
    with pytest.raises(ConfigError, match=pattern):
        parse_command_file(text, "x.toml")


def test_a_file_that_is_not_text(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("toml") / "x.toml"
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not UTF-8 text"):
        load_command_file(str(path))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.text(max_size=200) | JSON.map(lambda value: f"name = 'x'\nsync = {value!r}"))
def test_nothing_but_a_config_error_leaves_the_reader(text: str) -> None:
    try:
        command_file = parse_command_file(text, "x.toml")
    except ConfigError:
        return
    assert command_file.name == "x"
    assert command_file.sync


@given(st.text(alphabet="ab{}", max_size=20))
def test_filling_in_is_exact(text: str) -> None:
    """Doubled braces become single, placeholders become their values, and the rest is unchanged."""
    escaped = text.replace("{", "{{").replace("}", "}}")
    assert fill_placeholders(escaped, {}) == text
    assert fill_placeholders(f"{escaped} {{folder}}", {"folder": "{/f}"}) == f"{text} {{/f}}"
