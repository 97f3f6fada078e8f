"""Tests of the emulator as a process: start, stop, the death of either side, and mistakes of users."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import urlsplit

import pytest

from pytest_cloudbench import emulators
from pytest_cloudbench.emulators import SKINS, EmulatorService, serve_foreground, start_emulator
from pytest_cloudbench.emulators.tls import make_file_keeper
from pytest_cloudbench.model import ConfigError, ServiceError
from pytest_cloudbench.services.child import answers_http
from pytest_cloudbench.support.clock import wait_for
from tests.limits import HANG_S

_SOURCE = str(Path(__file__).parents[2] / "src")


def _python(code: str, **options: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": _SOURCE}
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        **options,
    )


def _foreground(*arguments: str) -> subprocess.Popen[str]:
    code = f"import sys; from pytest_cloudbench.emulators import serve_foreground as s; sys.exit(s{arguments!r})"
    return _python(code.replace("s()", "s('dropbox')"))


def _wait_until_gone(control: str) -> None:
    """Wait until the process with this control socket has ended."""
    host, _, port = control.rpartition(":")
    with (
        contextlib.suppress(ConnectionError),
        socket.create_connection((host, int(port)), timeout=HANG_S) as connection,
    ):
        assert connection.recv(1) == b""


def test_importing_the_launcher_is_light() -> None:
    heavy = "{'uvicorn', 'uvloop', 'httptools', 'trustme', 'ssl', 'asyncio', 'dropbox', 'cryptography', 'tomllib'}"
    code = f"import sys, pytest_cloudbench.emulators; print(sorted({heavy} & set(sys.modules)))"
    out, err = _python(code).communicate(timeout=HANG_S)
    assert (out.strip(), err) == ("[]", "")


def test_injected_resets_are_no_errors_in_the_log(tmp_path: Path) -> None:
    with start_emulator("ideal", log_path=tmp_path / "log.txt") as running:
        running.control(set={"faults.reset_rate": 1})
        address = urlsplit(running.endpoint.url)
        context = ssl.create_default_context(cafile=running.endpoint.ca_file)
        headers = {"Authorization": f"Bearer {running.endpoint.credentials['access_token']}"}
        for _ in range(10):  # half of the resets come after the request was executed
            connection = http.client.HTTPSConnection(str(address.hostname), address.port, context=context)
            connection.request("POST", "/2/users/get_current_account", b"null", headers)
            with contextlib.closing(connection), pytest.raises((ConnectionError, http.client.BadStatusLine)):
                connection.getresponse()
    assert (tmp_path / "log.txt").read_text() == ""


def test_stop_leaves_nothing(tmp_path: Path) -> None:
    running = start_emulator("ideal", log_path=tmp_path / "log.txt")
    folder = Path(running.endpoint.ca_file).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    assert running.alive()
    assert running.exit_reason() == ""
    assert running.cpu_s() > 0
    running.stop()
    running.stop()
    assert not running.alive()
    assert running.exit_reason() == "stopped"
    assert not folder.exists()
    assert (tmp_path / "log.txt").read_text() == ""
    with pytest.raises(ServiceError, match="stopped"):
        running.control(get="stats")


def _wait_until_ready(process: subprocess.Popen[str]) -> Path:
    """Wait until an emulator in the foreground takes requests, and return its folder."""
    assert process.stdout is not None
    return Path(json.loads(process.stdout.readline())["ca_file"]).parent


@pytest.mark.slow
def test_next_emulator_removes_folder_of_killed_one_without_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    foreign_folder = tmp_path / "cloudbench-tls-somebodys"
    foreign_folder.mkdir()
    with _foreground() as living, _foreground() as killed:
        try:
            folders = [_wait_until_ready(living), _wait_until_ready(killed)]
            assert {folder.parent for folder in folders} == {tmp_path}
            for path in (path for folder in folders for path in folder.iterdir()):
                assert "PRIVATE KEY" not in path.read_text(), path
            killed.kill()
            killed.wait(HANG_S)
            assert folders[1].exists()
            with _foreground() as following:
                try:
                    assert _wait_until_ready(following).exists()
                    assert [folder.exists() for folder in (*folders, foreign_folder)] == [True, False, True]
                finally:
                    following.kill()
        finally:
            living.kill()
            killed.kill()


def test_killed_emulator_is_reported() -> None:
    with start_emulator("ideal") as running:
        os.kill(running.child.pid, signal.SIGKILL)
        running.child.wait(HANG_S)
        assert not running.alive()
        assert running.exit_reason() == "killed by signal 9"
        with pytest.raises(ServiceError, match="killed by signal 9"):
            running.control(get="stats")
    assert running.exit_reason() == "killed by signal 9"
    assert not Path(running.endpoint.ca_file).exists()


@pytest.mark.slow
def test_only_a_stopped_emulator_is_ended() -> None:
    with start_emulator("ideal") as healthy, start_emulator("ideal") as stopped:
        healthy.watch(0.5)
        stopped.watch(0.5)
        os.kill(stopped.child.pid, signal.SIGSTOP)
        stopped.child.wait(HANG_S)
        assert stopped.exit_reason() == "it did not answer for 0.5 s and was ended"
        assert healthy.alive()
        assert healthy.control(get="stats")["ok"]


def test_emulator_with_hanging_requests_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    hang = """
import asyncio
import pytest_cloudbench.emulators.server as server
async def hang(emulator, scope, receive, send):
    await asyncio.sleep(60)
server.Emulator.__call__ = hang
sys.exit"""
    monkeypatch.setattr(emulators, "_BOOT", emulators._BOOT.replace("; sys.exit", hang))
    with start_emulator("ideal") as hanging:
        assert hanging.control(get="stats")["ok"]
        hanging.watch(0.5)
        hanging.child.wait(HANG_S)
        assert hanging.exit_reason() == "it did not answer for 0.5 s and was ended"


def test_emulator_with_slow_profile_is_not_ended() -> None:
    with start_emulator("ideal") as slow:
        slow.control(set={"latency.median_s": 3600, "throttle.rate_per_s": 0.001})
        assert answers_http(slow.endpoint.url, 20)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_requests_cut_off_by_a_signal_leave_the_log_empty(tmp_path: Path, number: signal.Signals) -> None:
    with start_emulator("ideal", log_path=tmp_path / "log.txt") as running:
        running.control(set={"latency.median_s": 3600})
        context = ssl.create_default_context(cafile=running.endpoint.ca_file)
        waiting = []
        for _ in range(20):
            port, token = urlsplit(running.endpoint.url).port, running.endpoint.credentials["access_token"]
            connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=HANG_S, context=context)
            headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
            connection.request("POST", "/2/files/list_folder", b'{"path": ""}', headers)
            waiting.append(connection)
        os.kill(running.child.pid, number)
        running.child.wait(HANG_S)
        assert running.exit_reason() == "exit status 0"
        for connection in waiting:
            connection.close()
    assert (tmp_path / "log.txt").read_text() == ""


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("api", SKINS)
def test_python_may_leave_out_docstrings_and_asserts(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONOPTIMIZE", "2")
    with start_emulator("ideal", api=api) as running:
        assert running.endpoint.api == api
        assert running.cpu_s() > 0


def test_emulator_restores_and_renews_its_temporary_files() -> None:
    """Some clean-ups remove all files, and others remove old files. The emulator restores and renews its own."""
    with start_emulator("ideal") as running:
        folder = Path(running.endpoint.ca_file).parent
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        shutil.rmtree(folder)
        running.control(set={"latency.median_s": 0.0})
        assert wait_for(lambda: folder.exists() and {*os.listdir(folder)} == before.keys(), HANG_S, poll_s=0.02)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
        assert folder.stat().st_mode & 0o777 == 0o700
        for path in folder.iterdir():
            assert path.stat().st_mode & 0o777 == 0o600
            os.utime(path, (0, 0))
        assert wait_for(lambda: all(path.stat().st_mtime > 0 for path in folder.iterdir()), HANG_S, poll_s=0.02)
    assert not folder.exists()


def test_nobody_sees_a_file_without_its_content(tmp_path: Path) -> None:
    """A client may read the certificate while the emulator restores it after a clean-up."""
    certificate, content = tmp_path / "ca.pem", b"certificate" * 1000
    certificate.write_bytes(content)
    keep_files, contents_seen, finished = make_file_keeper(str(tmp_path)), set[bytes](), Event()

    def read_often() -> None:
        while not finished.is_set():
            with contextlib.suppress(FileNotFoundError):
                contents_seen.add(certificate.read_bytes())

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_often)
        for _ in range(2000):
            certificate.unlink()
            keep_files()
        finished.set()
        reading.result()
    assert contents_seen == {content}
    assert list(tmp_path.iterdir()) == [certificate]


def test_control_names_the_ended_process() -> None:
    with start_emulator("ideal") as ended, start_emulator("ideal") as stopped:
        os.kill(ended.child.pid, signal.SIGKILL)
        with pytest.raises(ServiceError, match=rf"process {ended.child.pid}\) has ended: killed by signal 9"):
            ended.control(get="stats")
        os.kill(stopped.child.pid, signal.SIGTERM)
        with pytest.raises(ServiceError, match=rf"process {stopped.child.pid}\) has ended: exit status 0"):
            wait_for(lambda: stopped.control(get="stats") is None, HANG_S, poll_s=0.02)
    with pytest.raises(ServiceError, match=rf"process {stopped.child.pid}\) has ended: exit status 0"):
        stopped.control(get="stats")


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_foreground_emulator_prints_one_line_and_ends_cleanly(number: signal.Signals) -> None:
    process = _foreground()
    assert process.stdout is not None
    ready = json.loads(process.stdout.readline())
    expected_keys = "api ca_file control control_token_file credentials pid profile proxy urls"
    assert sorted(ready) == expected_keys.split()
    assert Path(ready["control_token_file"]).stat().st_mode & 0o777 == 0o600
    assert (ready["profile"], sorted(ready["urls"])) == ("dropbox", ["api", "content", "notify", "web"])
    assert ready["credentials"].keys() == {"access_token"}
    assert Path(ready["ca_file"]).exists()
    process.send_signal(number)
    out, err = process.communicate(timeout=HANG_S)
    assert (process.returncode, out, err) == (0, "", "")
    assert not Path(ready["ca_file"]).exists()


def test_without_uvloop() -> None:
    code = "import sys; sys.modules['uvloop'] = None; from pytest_cloudbench.emulators.server import main; main()"
    process = _python(code.replace("main()", "main(['dropbox'])"))
    assert process.stdout is not None
    ready = json.loads(process.stdout.readline())
    host, _, port = ready["control"].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=HANG_S) as connection:
        stream = connection.makefile("rwb")
        token = json.dumps({"token": Path(ready["control_token_file"]).read_text()}).encode()
        for line, expected in ((token, True), (b'{"get": "stats"}', True), (b"nonsense", False), (b"[]", False)):
            stream.write(line + b"\n")
            stream.flush()
            assert json.loads(stream.readline())["ok"] is expected
        stream.close()
    process.terminate()
    assert process.communicate(timeout=HANG_S)[1] == ""


def test_killed_parent_leaves_no_orphan() -> None:
    code = (
        "import signal; from pytest_cloudbench.emulators import start_emulator; running = start_emulator('ideal'); "
        "print(running.endpoint.control, running.endpoint.ca_file, flush=True); signal.pause()"
    )
    parent = _python(code)
    assert parent.stdout is not None
    control, ca_file = parent.stdout.readline().split()
    parent.kill()
    parent.communicate(timeout=HANG_S)
    _wait_until_gone(control)
    assert not Path(ca_file).exists()


def test_port_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ServiceError, match=rf"port {port} of 127\.0\.0\.1 cannot be used .*exit status 1"):
            start_emulator("ideal", port=port)
        assert serve_foreground("dropbox", port=port) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("cloudbench emulate: port")


def test_bad_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.toml"
    path.write_text('[meta]\nname = "x"\napi = "dropbox"\ndescription = "x"\n[latency]\nmedian_s = "fast"\n')
    with pytest.raises(ConfigError, match=r"bad\.toml: latency\.median_s: expected a number"):
        start_emulator(str(path))
    with pytest.raises(ConfigError, match=r"profile 'nothing': expected one of .*dropbox.*ideal"):
        start_emulator("nothing")
    path.write_text('[meta]\nname = "x"\napi = "other"\ndescription = "x"\n')
    with pytest.raises(ConfigError, match=r"meta\.api: expected one of .*dropbox.*, got 'other'"):
        start_emulator(str(path))
    capsys.readouterr()
    most_digits = sys.get_int_max_str_digits()
    assert serve_foreground("dropbox", profile=str(path)) == 4
    assert sys.get_int_max_str_digits() == most_digits, "as before, for all else in this process"
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)


@pytest.mark.parametrize(
    "line",
    [
        b"POST / HTTP/1.1",
        b"GET /?x HTTP/1.0",
        b'{"set": {"faults.error_rate": 1}}',
        b'{"token": "wrong"}',
        b'{"token": null}',
        b'{"token": "\xff"}',
        b'{"token": "\\udc80"}',
        b"[" * 100_000,
        b"x" * 2_000_000,
        b"",
    ],
    ids=["post", "get", "without", "wrong", "null", "no-utf-8", "surrogate", "nested", "long", "empty"],
)
def test_control_answers_only_with_the_right_token(emulator: EmulatorService, line: bytes) -> None:
    """A web page can only send a request that begins with a line of HTTP, but it can put a command into the body."""
    host, _, port = emulator.endpoint.control.rpartition(":")
    answer = b""
    with (
        socket.create_connection((host, int(port)), timeout=HANG_S) as connection,
        contextlib.suppress(ConnectionError),
    ):
        connection.sendall(line + b'\n\n{"set": {"faults.error_rate": 1}}\n{"reset": true}\n')
        answer = connection.recv(1)
    assert answer == b""
    assert emulator.control(get="profile")["profile"]["faults.error_rate"] == 0


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "api.dropboxapi.com", "content.dropboxapi.com"])
def test_certificate_names(shared_emulator: EmulatorService, name: str) -> None:
    context = ssl.create_default_context(cafile=shared_emulator.endpoint.ca_file)
    port = urlsplit(shared_emulator.endpoint.url).port
    with (
        socket.create_connection(("127.0.0.1", port), timeout=HANG_S) as plain,
        context.wrap_socket(plain, server_hostname=name) as connection,
    ):
        assert connection.version() in ("TLSv1.2", "TLSv1.3")


def test_token_stays_out_of_repr(shared_emulator: EmulatorService) -> None:
    assert shared_emulator.endpoint.credentials["access_token"] not in repr(shared_emulator.endpoint)


@pytest.mark.slow
def test_same_seed_same_names() -> None:
    tokens = []
    for seed in (1, 1, 2):
        with start_emulator("ideal", seed=seed) as running:
            tokens.append(running.endpoint.credentials["access_token"])
    assert tokens[0] == tokens[1] != tokens[2]


@pytest.mark.skipif(sys.platform != "linux", reason="page faults are counted in /proc")
def test_a_request_maps_no_memory() -> None:
    with start_emulator("ideal") as emulator:
        context = ssl.create_default_context(cafile=emulator.endpoint.ca_file)
        port = urlsplit(emulator.endpoint.url).port
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=HANG_S, context=context)

        def page_faults_of(requests: int) -> int:
            stat = Path("/proc", str(emulator.child.pid), "stat")
            before = int(stat.read_text().rpartition(")")[2].split()[7])
            for _ in range(requests):
                connection.request("GET", "/")
                connection.getresponse().read()
            return int(stat.read_text().rpartition(")")[2].split()[7]) - before

        page_faults_of(50)
        assert page_faults_of(200) < 200, "three for each request, if TLS reads into a new buffer"
        connection.close()
