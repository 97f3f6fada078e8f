"""Tools described in a file: their environment, their verification, tools that watch, and the documented example."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_cloudbench.lab import clients
from pytest_cloudbench.lab.clients._ssh import Ssh
from pytest_cloudbench.lab.clients.base import ClientUnavailable, LocalClient, MissingProgramError, Proof
from pytest_cloudbench.model import ClientError
from tests.lab.clients.conftest import DOCUMENT, is_gone, leftovers

Make = Callable[[str], LocalClient]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Function that prepares the client of a TOML text."""
    prepared_clients: list[LocalClient] = []

    def from_text(text: str) -> LocalClient:
        (tmp_path / "tool.toml").write_text(text, "utf-8")
        client = clients.make_client(str(tmp_path / "tool.toml"))
        assert isinstance(client, LocalClient)
        client.prepare(tmp_path / "work")
        prepared_clients.append(client)
        return client

    yield from_text
    for client in prepared_clients:
        client.stop()
    assert leftovers(tmp_path / "work") == []


def python(*words: str) -> str:
    """Return a command that runs this interpreter, as TOML. The program is found by its name."""
    return "[" + ", ".join(f"'''{word}'''" for word in (Path(sys.executable).name, "-c", *words)) + "]"


def test_a_tool_sees_a_clean_environment_and_its_own(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", "/etc/nothing")
    pair = make('name = "x"\n[environment]\nMINE = "{server} {{}}"\n[sync]\ncommand = ["env"]')
    pair.start()
    pair.after_change()
    assert pair.wait_synced(1) is Proof.CLIENT
    printed = dict(line.split("=", 1) for line in (pair.workdir / "logs/sync.out").read_text().splitlines())
    allowed_names = {
        "PATH",
        "HOME",
        "TMPDIR",
        "LANG",
        "TZ",
        "MINE",
        "PWD",
        "XDG_CACHE_HOME",
        "XDG_CONFIG_HOME",
        "XDG_DATA_HOME",
        "CLOUDBENCH_CLIENT",
    }
    assert printed.keys() <= allowed_names
    assert printed["MINE"] == "127.0.0.1 {}"
    assert printed["HOME"].startswith(str(pair.workdir))


def test_a_program_that_cannot_be_run_is_named_with_its_place(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script without the right to be executed is there, so it does not count as "not installed"."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script").write_text("#!/bin/sh\n")
    (tmp_path / "folder").mkdir()
    for program in ("./script", str(tmp_path / "folder"), "folder/nothing"):
        reason = f"{os.path.abspath(program)} is not an executable file; no-such-program is not installed"
        with pytest.raises(MissingProgramError, match=f"^{re.escape(reason)}$"):
            make(f'name = "x"\nneeds = ["no-such-program"]\n[sync]\ncommand = ["{program}"]')


@pytest.mark.parametrize("program", ["./copy", "bin/../copy", "copy"])
def test_a_program_is_looked_for_from_here_and_run_in_the_folder(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f".{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "bin").mkdir()
    (tmp_path / "copy").write_text("#!/bin/sh\npwd\n")
    (tmp_path / "copy").chmod(0o755)
    pair = make(f'name = "x"\n[sync]\ncommand = ["{program}"]')
    pair.start()
    pair.after_change()
    assert (pair.workdir / "logs/sync.out").read_text() == f"{pair.folder}\n"


def test_a_run_that_fails_is_an_error_with_its_words(make: Make) -> None:
    pair = make(f'name = "x"\n[sync]\ncommand = {python("raise SystemExit(chr(110) + chr(111))")}')
    pair.start()
    with pytest.raises(ClientError, match=r"sync \(client\): exit status 1\n  no"):
        pair.after_change()


@pytest.mark.parametrize(
    ("verify", "failure"),
    [
        ('folder = "{stored}"', r"x: the server differs from the folder: 1 missing \(a\)"),
        ('restore = ["true"]', r"x: the server differs from the folder: 1 missing \(a\)"),
        ('command = ["sh", "-c", "echo none >&2; exit 1"]', r"verify \(server\): exit status 1\n  none"),
    ],
)
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_run_that_ends_well_but_brings_nothing_is_reported_in_its_words(
    make: Make, verify: str, failure: str, stream: str
) -> None:
    """It may want a login, and say so."""
    says = f"import os, sys; print('log in first:', os.environ['MY_TOKEN'], file=sys.{stream})"
    environment = '[environment]\nMY_TOKEN = "sesame-4711"\n'
    pair = make(f'name = "x"\n{environment}[sync]\ncommand = {python(says)}\n[verify]\n{verify}')
    pair.start()
    (pair.folder / "a").touch()
    pair.after_change()
    with pytest.raises(ClientError, match=rf"^{failure}\nsync:\n  log in first: \*\*\*$"):
        pair.wait_synced(1)


def test_a_run_that_takes_too_long_is_ended(make: Make) -> None:
    pair = make('name = "x"\n[sync]\ncommand = ["sleep", "600"]\ntimeout_s = 0.2')
    pair.start()
    with pytest.raises(ClientError, match=r"sync took longer than 0.2 s"):
        pair.after_change()
    assert pair.pids("client") == ()


def test_a_verify_command_decides(make: Make) -> None:
    pair = make('name = "x"\n[sync]\ncommand = ["true"]\n[verify]\ncommand = ["test", "-e", "{folder}/there"]')
    pair.start()
    pair.after_change()
    with pytest.raises(ClientError, match="verify"):
        pair.wait_synced(1)
    (pair.folder / "there").touch()
    assert pair.wait_synced(1) is Proof.CONTENT


WATCHES = """
import os, pathlib, sys, time
source, target = map(pathlib.Path, sys.argv[1:])
while True:
    for path in source.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    time.sleep(0.05)
"""


def test_a_tool_that_watches_is_started_once(make: Make) -> None:
    command = python(WATCHES, "{folder}", "{stored}").replace("\n", "\\n").replace("'''", '"')
    pair = make(f'name = "x"\nwatches = true\n[sync]\ncommand = {command}\n[verify]\nfolder = "{{stored}}"')
    pair.start()
    pids = pair.pids("client")
    (pair.folder / "a").write_bytes(b"1")
    pair.after_change()
    assert pair.wait_synced(30) is Proof.CONTENT
    assert pair.pids("client") == pids != ()


def test_a_verify_command_of_a_tool_that_watches_is_asked_again(make: Make) -> None:
    pair = make(
        'name = "x"\nwatches = true\n[sync]\ncommand = ["sh", "-c", "sleep 0.3; touch {stored}/a; sleep 600"]\n'
        '[verify]\ncommand = ["test", "-e", "{stored}/a"]'
    )
    pair.start()
    assert pair.wait_synced(30) is Proof.CONTENT


def test_restoring_of_a_tool_that_watches_is_tried_again(make: Make) -> None:
    sync = "until [ -e {workdir}/asked ]; do sleep 0.02; done; cp {folder}/a {stored}/a; sleep 600"
    restore = "[ -e {workdir}/asked ] || { touch {workdir}/asked; exit 1; }; cp {stored}/a {restored}/a"
    restore = restore.replace("{ ", "{{ ").replace("; }", "; }}")
    pair = make(
        f'name = "x"\nwatches = true\n[sync]\ncommand = ["sh", "-c", "{sync}"]\n'
        f'[verify]\nrestore = ["sh", "-c", "{restore}"]'
    )
    (pair.folder / "a").write_bytes(b"1")
    pair.start()
    assert pair.wait_synced(30) is Proof.CONTENT


@pytest.mark.parametrize(
    ("restore", "message"),
    [
        ("echo no snapshot >&2; exit 1", r"(?s)verify\.restore .* within 0\.1 s.*exit status 1\n  no snapshot"),
        ("touch {restored}/b", r"differs from the folder: 1 missing \(a\); 1 too many \(b\); .* within 0\.1 s"),
    ],
)
def test_what_was_restored_last_is_told_when_the_time_is_over(make: Make, restore: str, message: str) -> None:
    pair = make(
        f'name = "x"\nwatches = true\n[sync]\ncommand = ["sleep", "600"]\n[verify]\nrestore = ["sh", "-c", "{restore}"]'
    )
    (pair.folder / "a").write_bytes(b"1")
    pair.start()
    with pytest.raises(ClientError, match=message):
        pair.wait_synced(0.1)


def test_a_program_that_is_missing_is_named(make: Make) -> None:
    with pytest.raises(MissingProgramError, match=r"^no-such-tool is not installed$"):
        make('name = "x"\nneeds = ["true"]\n[sync]\ncommand = ["no-such-tool"]')


def test_a_server_that_does_not_come_up_is_an_error(make: Make) -> None:
    pair = make('name = "x"\n[server]\ncommand = ["ls", "/no-such-folder"]\n[sync]\ncommand = ["true"]')
    with pytest.raises(ClientError, match=r"(?s)server \(server\): exit status 2.*no-such-folder"):
        pair.start()


def test_server_that_detaches_is_an_error(make: Make) -> None:
    with pytest.raises(ClientError, match=r"server\.command has to stay in the foreground"):
        make('name = "x"\n[server]\ncommand = ["true"]\n[sync]\ncommand = ["true"]').start()


def test_a_server_may_have_a_udp_port_and_a_second_one(make: Make) -> None:
    script = (
        "import socket, sys; ports = [socket.socket(type=socket.SOCK_DGRAM) for _ in sys.argv[1:]]; "
        '[one.bind(("127.0.0.1", int(port))) for one, port in zip(ports, sys.argv[1:])]; ports[0].recv(1)'
    )
    pair = make(
        f'name = "x"\n[server]\nudp = true\ncommand = {python(script, "{port2}", "{port}")}\n'
        '[sync]\ncommand = ["sh", "-c", "[ {port} != {port2} ]"]'
    )
    pair.start()
    pair.after_change()
    assert pair.pids("server")


def test_the_example_of_the_documents_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = re.search(r"^```python\n(.*?)^```", DOCUMENT.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert example
    client = clients.make_client("lsyncd")
    assert isinstance(client, LocalClient)
    if client.missing():
        pytest.skip(client.missing())
    monkeypatch.chdir(tmp_path)
    exec(example[1], {})
    assert (tmp_path / "work/stored/a.bin").stat().st_size == 100_000


def test_programs_are_found_in_the_folders_that_the_file_names(make: Make, tmp_path: Path) -> None:
    folder = tmp_path / "tools"
    folder.mkdir()
    for name, text in (("my-sync", "my-helper"), ("my-helper", "echo helped")):
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    text = 'name = "x"\n{}[sync]\ncommand = ["my-sync"]\n'
    with pytest.raises(MissingProgramError, match="my-sync is not installed"):
        make(text.format(""))
    pair = make(text.format(f"path = ['{folder}']\n"))
    pair.start()
    pair.after_change()
    assert (pair.workdir / "logs/sync.out").read_text() == "helped\n"


def test_a_tool_has_as_long_as_its_file_says(make: Make) -> None:
    server = "[server]\ncommand = " + python("import time; time.sleep(60)")
    pair = make(f'name = "x"\n{server}\n[sync]\ncommand = ["true"]\n[wait]\nstart_s = 0.2')
    with pytest.raises(ClientError, match=r"did not listen on port \d+ within 0.2 s"):
        pair.start()
    pair = make('name = "x"\n[setup]\ncommands = [["sleep", "60"]]\n[sync]\ncommand = ["true"]\n[wait]\nsetup_s = 0.2')
    with pytest.raises(ClientError, match=r"setup-0 took longer than 0\.2 s"):
        pair.start()
    watching = (
        'watches = true\n[sync]\ncommand = ["sleep", "60"]\n[verify]\ncommand = ["false"]\n[wait]\nsynced_s = 0.3'
    )
    pair = make(f'name = "x"\n{watching}')
    pair.start()
    with pytest.raises(ClientError, match=r"verify.command did not end with status 0 within 0\.3 s"):
        pair.wait_synced(60)


def test_error_of_failed_tool_holds_no_secret_in_any_encoding(make: Make) -> None:
    say = "import base64, os, sys, urllib.parse as u; s = os.environ[`TOOL_PASSWORD`]; "
    say += "sys.exit(` `.join([s, u.quote(s), base64.b64encode(s.encode()).decode()]))"
    command = python(say.replace("`", '"'))
    pair = make(f'name = "x"\n[environment]\nTOOL_PASSWORD = "correct horse/battery"\n[sync]\ncommand = {command}')
    pair.start()
    with pytest.raises(ClientError) as raised:
        pair.after_change()
    assert str(raised.value) == "sync (client): exit status 1\n  *** *** ***"


def test_a_user_without_a_name_goes_by_its_number(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    pair = make('name = "x"\n[files]\nuser = "{user}"\n[sync]\ncommand = ["true"]')
    assert (pair.workdir / "user").read_text("utf-8") == "54321"
    with pytest.raises(ClientUnavailable, match=r"^sshd .* 54321 .*$"):
        Ssh(pair)


DAEMON = """
import pathlib, signal
pathlib.Path("{workdir}/socket").write_text("up")
print("ready for {server}", flush=True)
signal.pause()
"""


def test_a_daemon_is_up_before_the_setup_and_ends_with_the_client(make: Make) -> None:
    text = f'name = "x"\n[daemon]\ncommand = {python(DAEMON)}\nready = "ready for {{server}}"\n'
    text += '[setup]\ncommands = [["cp", "{workdir}/socket", "{workdir}/seen"]]\n[sync]\ncommand = ["true"]'
    pair = make(text)
    pair.start()
    assert (pair.workdir / "seen").read_text() == "up"
    (daemon,) = pair.pids("client")
    pair.stop()
    assert is_gone(daemon)


def test_daemon_that_detaches_is_an_error(make: Make) -> None:
    pair = make('name = "x"\n[daemon]\ncommand = ["true"]\nready = "up"\n[sync]\ncommand = ["true"]')
    with pytest.raises(ClientError, match=r"^daemon\.command has to stay in the foreground: "):
        pair.start()


def test_a_setup_that_leaves_a_session_of_its_own_is_ended(make: Make) -> None:
    code = """
import os, signal
told, tell = os.pipe()
if (leader := os.fork()) == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(tell, b".")
        signal.pause()
    os._exit(0)
os.read(told, 1)  # what is still in the command's own session ends with it
os.waitpid(leader, 0)
os._exit(0)
"""
    pair = make(f'name = "x"\n[setup]\ncommands = [{python(code)}]\n[sync]\ncommand = ["true"]')
    pair.start()
    assert len(leftovers(pair.workdir)) == 1
    pair.stop()
    assert leftovers(pair.workdir) == []
