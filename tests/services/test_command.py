"""Real servers as services: a tiny server in Python is started, used and ended, whatever happens."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.request import Request, urlopen

import psutil
import pytest

from pytest_cloudbench.model import ConfigError, ServiceError
from pytest_cloudbench.services.command import CommandService, Recipe, load_recipe
from tests.limits import HANG_S

SOURCE = str(Path(__file__).parents[2] / "src")
TINY = Path(__file__).parents[1] / "providers" / "tiny.py"
COMMAND = (sys.executable, str(TINY), "{port}", "{folder}", "{secret}")
SERVING_LINE = re.compile(r"process (\d+) serves (\S+)")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="strays are adopted on Linux")


def tiny_recipe(**changes: object) -> Recipe:
    values = {
        "name": "tiny", "driver": "tiny", "command": COMMAND, "urls": {"": "http://127.0.0.1:{port}"},
        "credentials": {"password": "{secret}"}, **changes,
    }  # fmt: skip
    return Recipe(**values)  # type: ignore[arg-type]  # a test may pass a wrong type on purpose


def program(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", textwrap.dedent(code), "{port}", "{folder}")


def has_ended(pid: int) -> bool:
    """Return whether a process ends, within the time that only a hang takes."""
    with suppress(psutil.NoSuchProcess):
        psutil.Process(pid).wait(HANG_S)
    return not psutil.pid_exists(pid)


@pytest.mark.parametrize("ready", ["", "listens on port {port}"], ids=["connect", "line"])
def test_a_server_serves_and_leaves_nothing(tmp_path: Path, ready: str) -> None:
    log = tmp_path / "log"
    service = CommandService(tiny_recipe(ready=ready), log_path=log)
    endpoint = service.start()
    assert endpoint.credentials["password"] not in repr(endpoint)
    put = Request(f"{endpoint.url}/a", b"hello", {"Authorization": endpoint.credentials["password"]}, method="PUT")
    with urlopen(put, timeout=HANG_S) as answer:
        assert answer.status == 201
    match = SERVING_LINE.search(log.read_text())
    assert match is not None
    pid, folder = int(match[1]), Path(match[2])
    assert (folder / "a").read_bytes() == b"hello"
    assert (service.alive(), service.exit_reason()) == (True, "")
    service.reset()
    service.refill()
    assert (folder / "a").exists()
    service.stop()
    service.stop()
    assert (service.alive(), service.exit_reason()) == (False, "stopped")
    assert not psutil.pid_exists(pid)
    assert not folder.exists()


def test_two_servers_of_a_recipe_differ_in_port_and_secret() -> None:
    with CommandService(tiny_recipe()) as one, CommandService(tiny_recipe()) as two:
        first, second = one.start(), two.start()
        assert first.url != second.url
        assert first.credentials != second.credentials


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise SystemExit('no disk')", r"did not start: no disk \(exit status 1\)"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "did not start: killed by signal 9"),
    ],
)
@pytest.mark.parametrize("ready", ["", "never said"], ids=["connect", "line"])
def test_a_server_that_does_not_start_says_why(code: str, reason: str, ready: str) -> None:
    with CommandService(tiny_recipe(command=program(code), ready=ready)) as service:
        with pytest.raises(ServiceError, match=f"the server tiny {reason}"):
            service.start()
        assert not service.alive()


def test_a_missing_program_is_reported_in_one_line(tmp_path: Path) -> None:
    with (
        CommandService(tiny_recipe(command=(str(tmp_path / "none"),))) as service,
        pytest.raises(ServiceError) as caught,
    ):
        service.start()
    assert str(caught.value) == (
        f"the server tiny did not start: {tmp_path / 'none'}: No such file or directory (exit status 127)"
    )


def test_a_folder_that_cannot_be_made_is_reported_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    service = CommandService(tiny_recipe(folders=("bench", "x" * 300)))
    with pytest.raises(ServiceError, match=r"^the server tiny did not start: .*x: File name too long$"):
        service.start()
    service.stop()
    assert list(tmp_path.iterdir()) == []


def test_a_killed_server_is_reported(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with CommandService(tiny_recipe(), log_path=log) as service:
        service.start()
        service.watch(60)
        match = SERVING_LINE.search(log.read_text())
        assert match is not None
        os.kill(int(match[1]), signal.SIGKILL)
        service.child.wait(HANG_S)
        assert not service.alive()
        assert service.exit_reason().endswith("(killed by signal 9)")
        assert not Path(match[2]).exists()


def test_a_stopped_server_is_ended(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with CommandService(tiny_recipe(), log_path=log) as service:
        service.start()
        match = SERVING_LINE.search(log.read_text())
        assert match is not None
        os.kill(int(match[1]), signal.SIGSTOP)
        service.watch(0.5)
        service.child.wait(HANG_S)
        assert service.exit_reason() == "it did not answer for 0.5 s and was ended"
        assert has_ended(int(match[1]))


def owner_killed(tmp_path: Path) -> int:
    code = (
        "import os, signal, sys\nfrom pathlib import Path\n"
        "from pytest_cloudbench.services.command import CommandService, load_recipe\n"
        "folder = Path(sys.argv[1])\n"
        "service = CommandService(load_recipe(str(folder / 'tiny.toml')), log_path=folder / 'log')\n"
        "service.start()\nprint(service.child.pid, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], env={**os.environ, "PYTHONPATH": SOURCE}, check=False,
        timeout=HANG_S, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    return int(done.stdout)


def guard_killed(tmp_path: Path) -> int:
    service = CommandService(load_recipe(str(tmp_path / "tiny.toml")), log_path=tmp_path / "log")
    service.start()
    guard = service.child.pid
    os.kill(guard, signal.SIGKILL)
    service.stop()
    return guard


@pytest.mark.parametrize("killed", [owner_killed, pytest.param(guard_killed, marks=LINUX)])
def test_the_server_ends_when_its_owner_or_guard_is_killed(tmp_path: Path, killed: Callable[[Path], int]) -> None:
    from tests.providers.conftest import recipe

    (tmp_path / "tiny.toml").write_text(recipe())
    guard = killed(tmp_path)
    match = SERVING_LINE.search((tmp_path / "log").read_text())
    assert match is not None
    assert has_ended(int(match[1]))
    assert has_ended(guard)
    assert not Path(match[2]).exists()


DAEMON = program("""
    import os, socket, subprocess, sys
    stray = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
    print("daemon", os.getpid(), "stray", stray.pid, flush=True)
    listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
    while True:
        listener.accept()[0].close()
""")
"""A server with a process in a session of its own."""


def read_daemon_pids(log: Path) -> tuple[int, int]:
    match = re.search(r"daemon (\d+) stray (\d+)", log.read_text())
    assert match is not None
    return int(match[1]), int(match[2])


@LINUX
def test_orphans_of_a_server_end_with_it(tmp_path: Path) -> None:
    with CommandService(tiny_recipe(command=DAEMON), log_path=tmp_path / "log") as service:
        service.start()
        _, stray = read_daemon_pids(tmp_path / "log")
        assert psutil.pid_exists(stray)
    assert has_ended(stray)


@LINUX
def test_orphans_of_a_stopped_server_end_with_it(tmp_path: Path) -> None:
    with CommandService(tiny_recipe(command=DAEMON), log_path=tmp_path / "log") as service:
        service.start()
        server, stray = read_daemon_pids(tmp_path / "log")
        os.kill(server, signal.SIGSTOP)
        service.watch(0.5)
        service.child.wait(HANG_S)
        assert service.exit_reason() == "it did not answer for 0.5 s and was ended"
        assert has_ended(server)
        assert has_ended(stray)


def test_the_environment_of_a_server_hides_the_user_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET", "not yours")
    command = program("""
        import os, sys
        is_its_own = os.environ["HOME"] == sys.argv[2] == os.getcwd()
        print("ready", sorted(os.environ), is_its_own, os.environ["MODE"], flush=True)
        sys.stdin.read()
        import signal
        signal.pause()
    """)
    recipe = tiny_recipe(command=command, ready="ready", environment={"MODE": "port {port}"})
    with CommandService(recipe, log_path=tmp_path / "log") as service:
        service.start()
    log = (tmp_path / "log").read_text()
    assert "AWS_SECRET" not in log
    assert re.search(r"\] True port \d+$", log, re.M), log


GOOD = """
name = "x"
driver = "folder"
command = ["x"]
url = "http://127.0.0.1:{port}"
"""


def test_a_recipe_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "good.toml").write_text(GOOD + "[credentials]\npassword = 'p'\n")
    recipe = load_recipe(str(tmp_path / "good.toml"))
    assert (recipe.name, recipe.driver, recipe.command, recipe.ready) == ("x", "folder", ("x",), "")
    assert recipe.urls == {"": "http://127.0.0.1:{port}"}
    assert "'p'" not in repr(recipe)


def test_the_recipe_in_the_docs_is_valid(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "providers.md").read_text("utf-8")
    block = re.search(r"```toml\n(.*?)```", page, re.S)
    assert block is not None
    (tmp_path / "docs.toml").write_text(block[1])
    recipe = load_recipe(str(tmp_path / "docs.toml"))
    assert "{folder}" in recipe.command
    assert recipe.ready
    assert recipe.urls[""].endswith("{port}/")
    assert recipe.credentials == {"password": "{secret}"}
    assert recipe.environment


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = ", "not TOML"),
        (GOOD.replace("name", "nome"), "nome: unknown; expected one of name, .*; did you mean name"),
        (GOOD.replace('"x"\n', "5\n", 1), "name: expected a text that is not empty"),
        (GOOD.replace('["x"]', "[]"), "command: expected a list of texts"),
        (GOOD.replace('["x"]', '["x", 5]'), "command: expected a list of texts"),
        (GOOD.replace('"http://127.0.0.1:{port}"', "{}"), "url: expected a URL, or a table"),
        (GOOD.replace("{port}", "{prot}"), "url: expected a URL such as http://127.0.0.1:{port}/, found '.*{prot}'"),
        (GOOD.replace("http://", ""), "url: expected a URL such as"),
        (GOOD + "credentials = {password = '{secrt}'}", r"credentials\.password: .*{secrt}; did you mean {secret}\?"),
        (GOOD + "ready = 5", "ready: expected a text"),
        (GOOD + "credentials = 5", "credentials: expected a table of texts"),
        ("\x00", "not TOML"),
        (None, "cannot be read"),
    ],
)
def test_an_invalid_recipe_is_refused_in_one_line(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(ConfigError, match=rf"bad\.toml: {message}") as caught:
        load_recipe(str(tmp_path / "bad.toml"))
    assert "\n" not in str(caught.value)
