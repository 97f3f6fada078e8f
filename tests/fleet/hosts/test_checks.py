"""``cloudbench hosts check``: one line for each host, whatever is wrong with it."""

from __future__ import annotations

import shutil
import socket
import sys
from pathlib import Path

import pytest

import pytest_cloudbench
from pytest_cloudbench.commands.cli import main
from tests.limits import HANG_S


def check(
    folder: Path, capsys: pytest.CaptureFixture[str], *rows: str, patience_s: float = HANG_S, provider: str = ""
) -> tuple[int, str]:
    table = folder / "hosts.toml"
    table.write_text("\n".join(f'[[host]]\nname = "host{n}"\n{row}' for n, row in enumerate(rows, 1)), "utf-8")
    status = main(
        ["hosts", "check", str(table), "--patience", str(patience_s), *(["--provider", provider] if provider else [])]
    )
    return status, capsys.readouterr().out


REFUSED = 'command = ["sh", "-c", "echo Permission denied >&2; exit 255"]'
HERE = f'command = ["{sys.executable}"]\nagents = 3'


def test_a_ready_host_is_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, text = check(tmp_path, capsys, HERE)
    assert status == 0
    assert text.startswith(f"host1: ready: Python {sys.version.split()[0]}, ")
    assert text.count("\n") == 1
    assert "clock right within " in text
    assert text.endswith(", 3 agents\n")


def test_reachability_of_the_provider_from_a_host_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOUDBENCH_WEBDAV_USER", "me")
    monkeypatch.setenv("CLOUDBENCH_WEBDAV_PASSWORD", "it")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        spec = f"webdav://127.0.0.1:{listener.getsockname()[1]}?tls=0"
        status, text = check(tmp_path, capsys, HERE, provider=spec)
        assert status == 0, text
        assert f"; reaches {spec}: round trip " in text
    status, text = check(tmp_path, capsys, HERE, REFUSED, provider=spec)
    near, far = text.splitlines()
    assert status == 1
    assert near.startswith("host1: not ready: Python ")
    assert f"; does not reach {spec}: round trip: unknown: " in near
    assert near.endswith("does not answer: Connection refused")
    assert far.startswith("host2: not ready: Permission denied")


def test_a_service_of_this_machine_may_be_reached(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, text = check(tmp_path, capsys, HERE, provider="emulated:ideal")
    assert status == 0
    assert "; may reach emulated:ideal: round trip: unknown: the provider is reached through the connection" in text


def test_wrong_clock_of_a_host_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    late = tmp_path / "late"
    late.mkdir()
    (late / "sitecustomize.py").write_text(
        "import time\nright = time.time_ns\ntime.time_ns = lambda: right() - 90 * 10**9\n"
    )
    status, text = check(tmp_path, capsys, f'{HERE}\nenv = {{ PYTHONPATH = "{late}" }}')
    assert status == 0
    assert "clock 90 s behind" in text


def test_a_host_with_other_code_is_not_ready(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package = Path(pytest_cloudbench.__file__).parent
    theirs = shutil.copytree(package, tmp_path / "src" / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    (theirs / "model.py").write_text((theirs / "model.py").read_text("utf-8") + "# changed\n", "utf-8")
    status, text = check(tmp_path, capsys, HERE, f'{HERE}\nenv = {{ PYTHONPATH = "{theirs.parent}" }}')
    ready, other = text.splitlines()
    assert status == 1
    assert ready.startswith("host1: ready")
    assert other.startswith("host2: not ready: has pytest-cloudbench ")
    assert other.endswith("install the same")


@pytest.mark.parametrize("greeting", ["welcome", "5"])
def test_a_host_whose_python_prints_at_its_start_is_not_ready(
    greeting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noisy = tmp_path / "noisy"
    noisy.write_text(f'#!/bin/sh\necho {greeting}\nexec {sys.executable} "$@"\n', "utf-8")
    noisy.chmod(0o755)
    status, text = check(tmp_path, capsys, f'{HERE}\npython = "{noisy}"', HERE)
    not_ready, ready = text.splitlines()
    assert status == 1
    assert not_ready == ("host1: not ready: its Python prints something else at its start: let it print nothing there")
    assert ready.startswith("host2: ready: ")


def test_a_host_without_the_package_is_not_ready(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n', "utf-8")
    bare.chmod(0o755)
    status, text = check(tmp_path, capsys, f'{HERE}\npython = "{bare}"')
    assert status == 1
    assert "not ready: ModuleNotFoundError: No module named 'pytest_cloudbench': run cloudbench hosts install" in text


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ('["/none/ssh", "host"]', "/none/ssh: No such file or directory"),
        ('["sh", "-c", "echo Permission denied >&2; exit 255"]', "Permission denied"),
        pytest.param('["sh", "-c", "exec sleep 1000"]', "has not answered for 2 s", marks=pytest.mark.slow),
    ],
)
def test_a_host_that_cannot_be_reached_is_not_ready(
    command: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, text = check(tmp_path, capsys, f"command = {command}", patience_s=2.0 if "sleep" in command else HANG_S)
    assert status == 1
    assert text.startswith(f"host1: not ready: {reason}")
    assert text.count("\n") == 1
