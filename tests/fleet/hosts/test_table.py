"""The table of hosts: valid settings, and one line about each invalid one."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_cloudbench.fleet.hosts.table import read_hosts
from pytest_cloudbench.model import UsageError


def write(folder: Path, text: str) -> Path:
    path = folder / "hosts.toml"
    path.write_text(text, "utf-8")
    return path


def test_a_host_is_reached_by_ssh_without_questions_and_forwarding(tmp_path: Path) -> None:
    [host] = read_hosts(write(tmp_path, '[[host]]\nname = "oslo"\nssh = "-p 2222 me@198.51.100.7"\nagents = 10\n'))
    assert host.command[0] == "ssh"
    assert host.command[-4:] == ("-p", "2222", "me@198.51.100.7", "python3")
    assert {"BatchMode=yes", "ClearAllForwardings=yes"} < set(host.command)
    assert not any("StrictHostKeyChecking" in word for word in host.command), "checks stay as the user has them"
    assert host.agents == 10


def test_an_interpreter_is_quoted_for_the_shell_that_ssh_starts(tmp_path: Path) -> None:
    [host] = read_hosts(write(tmp_path, '[[host]]\nname = "a"\nssh = "b"\npython = "/opt/my env/bin/python"\n'))
    assert host.command[-1] == "'/opt/my env/bin/python'"


def test_any_command_that_gives_a_python_is_a_way_to_a_host(tmp_path: Path) -> None:
    text = """
        [[host]]
        name = "pod"
        command = ["kubectl", "exec", "-i", "POD", "--", "python3"]
        env = { TMPDIR = "/scratch" }
        labels = { location = "Oslo", region = "eu-north", network = "fibre" }
        [[host]]
        name = "node7"
        command = ["srun", "-w", "node7", "python3"]
    """
    pod, node = read_hosts(write(tmp_path, text))
    assert pod.command == ("kubectl", "exec", "-i", "POD", "--", "python3")
    assert (pod.env, pod.labels["location"], pod.agents) == ({"TMPDIR": "/scratch"}, "Oslo", 1)
    assert node.name == "node7"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "names no host"),
        ("host = 1", "names no host"),
        ("host = [1]", "host 1: is not a table"),
        ("[hosts]", "hosts: unknown"),
        ("[[host]]\nname = 1", "host 1: name: expected letters"),
        ('[[host]]\nname = "a b"', "host 1: name: expected letters"),
        ('[[host]]\nname = "a"', "host 1 (a): expected either ssh"),
        ('[[host]]\nname = "a"\nssh = "b"\ncommand = ["c"]', "expected either ssh"),
        ('[[host]]\nname = "a"\nssh = ""', "ssh: expected"),
        ('[[host]]\nname = "a"\nssh = "\'b"', "ssh: No closing quotation"),
        ('[[host]]\nname = "a"\ncommand = []', "command: expected a list"),
        ('[[host]]\nname = "a"\ncommand = "python3"', "command: expected a list"),
        ('[[host]]\nname = "a"\nssh = "b"\nagents = 0', "agents: expected a number above 0"),
        ('[[host]]\nname = "a"\nssh = "b"\nagents = true', "agents: expected a number above 0"),
        ('[[host]]\nname = "a"\nssh = "b"\npython = 3', "python: expected a text"),
        ('[[host]]\nname = "a"\nssh = "b"\nenv = { A = 1 }', "env: A: expected a text"),
        ('[[host]]\nname = "a"\nssh = "b"\nlabels = { city = "Oslo" }', "labels: city: unknown"),
        ('[[host]]\nname = "a"\nssh = "b"\nport = 22', "host 1: port: unknown"),
        ('[[host]]\nname = "a"\nssh = "b"\n[[host]]\nname = "a"\nssh = "c"', "two hosts are called a"),
        ("[[host", "Expected"),
        ("a = " + "[" * 5000, "not TOML"),
        ("a = " + "1" * 5000, "not TOML"),
    ],
)
def test_invalid_host_table_is_refused_in_one_line(text: str, line: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        read_hosts(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_table_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_hosts(tmp_path / "none.toml")
