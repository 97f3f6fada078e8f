"""The TOML description of a tool: what is read, and what is refused in which words."""

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

LEAST = 'name = "x"\n[sync]\ncommand = ["true"]\n'


def test_smallest_client_file_is_accepted() -> None:
    assert parse_command_file(LEAST, "x.toml") == CommandFile("x", sync=("true",))


def test_the_programs_of_the_documented_tools() -> None:
    assert parse_command_file(documented_toml("rsync"), "rsync.toml").programs() == ("rsync",)
    borg = parse_command_file(documented_toml("borg"), "borg.toml")
    assert borg.programs() == ("borg", "socat", "sh")
    assert borg.timeout_s == 300


def test_a_file_sets_time_limits_and_program_folders() -> None:
    text = f'path = ["/opt/x", "~/bin"]\n{LEAST}[wait]\nstart_s = 5\nsetup_s = 7.5\nsynced_s = 900\n'
    described = parse_command_file(text, "x.toml")
    assert described.path == ("/opt/x", "~/bin")
    assert (described.start_s, described.setup_s, described.synced_s) == (5, 7.5, 900)
    least = parse_command_file(LEAST, "x.toml")
    assert (least.start_s, least.setup_s, least.timeout_s, least.synced_s) == (60, 600, 600, None)


def test_the_documents_explain_every_key_and_placeholder() -> None:
    text = DOCUMENT.read_text("utf-8")
    with pytest.raises(ConfigError) as caught:
        parse_command_file(f"{LEAST}[colour]", "x.toml")
    for key in str(caught.value).rpartition("one of ")[2].split(", "):
        assert re.search(rf"^\| `{key}[.`]", text, re.MULTILINE), key
    for name in PLACEHOLDERS:
        assert f"`{{{name}}}`" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = ", "x.toml: expected TOML: "),
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
        (f"{LEAST}timeout_s = 0", "sync.timeout_s: expected seconds, more than 0"),
        (f"{LEAST}timeout_s = true", "sync.timeout_s: expected seconds"),
        (f"{LEAST}[wait]\nsynced_s = 0", "wait.synced_s: expected seconds, more than 0"),
        (f"{LEAST}[wait]\nseconds = 3", "wait.seconds: unknown; expected one of start_s, setup_s, synced_s"),
        (f'path = "/opt"\n{LEAST}', "path: expected a list of folders"),
        (f'path = ["opt"]\n{LEAST}', "path: expected a list of folders"),
        (f'path = ["/a:/b"]\n{LEAST}', "path: expected a list of folders"),
        (f"{LEAST}comand = 3", "sync.comand: unknown; expected one of command, timeout_s"),
        (f"colour = 3\n{LEAST}", "colour: unknown; expected one of name, watches, "),
        (f'watches = "no"\n{LEAST}', "watches: expected true or false"),
        (f"watches = true\n{LEAST}", "verify: expected one of folder, restore, command"),
        (f'{LEAST}[verify]\nfolder = "/a"\ncommand = ["b"]', "verify: expected one of folder, restore, command"),
        (f"{LEAST}[setup]\ncommands = 3", "setup.commands: expected a list of commands"),
        (f'{LEAST}[setup]\ncommands = ["a"]', "setup.commands[0]: expected a list of texts"),
        (f'{LEAST}[files]\n"../a" = "b"', "files.'../a': expected a plain file name"),
        (f"{LEAST}[environment]\nA = 3", "environment.A: expected a text"),
        (f"{LEAST}[server]\n", "server.command: expected a list of texts"),
        (f'{LEAST}[server]\nudp = 3\ncommand = ["b"]', "server.udp: expected true or false"),
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
        described = parse_command_file(text, "x.toml")
    except ConfigError:
        return
    assert described.name == "x"
    assert described.sync


@given(st.text(alphabet="ab{}", max_size=20))
def test_filling_in_is_exact(text: str) -> None:
    """Doubled braces come out single, placeholders as their values, everything else as it was."""
    escaped = text.replace("{", "{{").replace("}", "}}")
    assert fill_placeholders(escaped, {}) == text
    assert fill_placeholders(f"{escaped} {{folder}}", {"folder": "{/f}"}) == f"{text} {{/f}}"
