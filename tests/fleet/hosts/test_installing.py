"""``cloudbench hosts install``: a bare Python becomes a host, also for later sessions, until ``cloudbench clean``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_cloudbench.commands.cli import main
from pytest_cloudbench.fleet.hosts import installer
from pytest_cloudbench.fleet.hosts.installing import find_distributions
from pytest_cloudbench.model import UsageError
from tests.fleet.harness import Lab

BARE = str(Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}")
"""An interpreter of the same kind as this one, without this one's packages."""


def describe_bare(cache: Path, *before: str, python: str = BARE) -> str:
    """Return a table with one host that has nothing but a Python."""
    words = [*before, "env", "-i", "PATH=/usr/bin:/bin", f"XDG_CACHE_HOME={cache}", f"TMPDIR={cache}", python]
    return f'[[host]]\nname = "bare"\nagents = 2\ncommand = [{", ".join(f"{word!r}" for word in words)}]\n'


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    status = main([*words])
    return status, capsys.readouterr().out


@pytest.mark.slow
def test_a_bare_python_carries_agents_once_the_package_was_sent(
    lab: Lab, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path_factory.mktemp("cache")
    lab.write("""
        from pytest_cloudbench import FixedInterval

        def test_it(experiment, payloads):
            experiment.run(payloads.random(50), arrival=FixedInterval(0.01), sensors=2, ops_per_sensor=2).check()
    """)  # fmt: skip
    lab.write(describe_bare(cache), "hosts.toml")
    table = str(lab.folder / "hosts.toml")
    options = ("--provider", "emulated:ideal", "--cloudbench-hosts", "hosts.toml")

    status, text = call(capsys, "hosts", "check", table)
    assert status == 1
    assert "No module named 'pytest_cloudbench': run cloudbench hosts install" in text
    failed_run = lab.run(*options)
    assert "an agent did not start: ModuleNotFoundError: No module named 'pytest_cloudbench'" in failed_run.text

    status, text = call(capsys, "hosts", "install", table)
    assert (status, text.partition(" ")[0]) == (0, "bare:"), text
    assert "is installed (" in text
    status, text = call(capsys, "hosts", "check", table)
    assert status == 0, text
    run = lab.run(*options)
    assert run.counts() == {"passed": 1}, run.text
    status, text = call(capsys, "line", table, "--provider", "emulated:ideal", "--seconds", "1", "--mib", "1")
    assert (status, text.partition(" ")[0]) == (0, "bare:"), text
    suite = lab.run("--pyargs", "pytest_cloudbench.suites.iot", *options)
    assert suite.counts()["passed"] == 4, "suites were sent, too"

    status, text = call(capsys, "clean", "--hosts", table)
    assert status == 0
    assert text.startswith("bare: removed pytest-cloudbench ")
    assert list(cache.iterdir()) == []
    assert call(capsys, "clean", "--hosts", table) == (0, "bare: nothing was installed there\n")


def find_other_python() -> str:
    """Return an interpreter of another version. Empty if there is none."""
    names = [f"python3.{minor}" for minor in range(11, 15) if minor != sys.version_info.minor]
    folders = [*Path(sys.base_prefix).parent.glob("*/bin"), *map(Path, os.environ.get("PATH", "").split(os.pathsep))]
    paths = [str(folder / name) for folder in folders for name in names]
    existing = (path for path in paths if os.path.isfile(path))
    return next((path for path in existing if not subprocess.run([path, "-c", ""], check=False).returncode), "")


@pytest.mark.skipif(not find_other_python(), reason="needs a Python of another version")
def test_install_refuses_another_python_version_with_advice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "hosts.toml"
    table.write_text(describe_bare(tmp_path / "cache", python=find_other_python()), "utf-8")
    status, text = call(capsys, "hosts", "install", str(table))
    assert status == 1
    assert text.startswith("bare: not installed: has Python 3.")
    assert "set python = ... to such an interpreter on the host, or install pytest-cloudbench" in text
    assert not (tmp_path / "cache").exists()


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="needs root, to mount a small disk")
def test_full_disk_of_a_host_is_reported_and_left_unchanged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    before = ("unshare", "-m", "sh", "-c", f'mount -t tmpfs -o size=4m none {disk} && "$@"; ls {disk}/* >&2', "sh")
    table = tmp_path / "hosts.toml"
    table.write_text(describe_bare(disk, *before), "utf-8")
    status, text = call(capsys, "hosts", "install", str(table))
    assert status == 1
    assert text.startswith("bare: not installed: ")
    assert "No space left on device" in text
    assert text.count("\n") == 1


def test_a_host_that_prints_something_else_fails_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('welcome', flush=True)")
    table = tmp_path / "hosts.toml"
    chatty = describe_bare(tmp_path / "cache") + f'env = {{ PYTHONPATH = "{tmp_path}" }}\n'
    other = describe_bare(tmp_path / "cache", python="/no/python").replace('"bare"', '"other"')
    table.write_text(chatty + other, "utf-8")
    status, text = call(capsys, "hosts", "install", str(table))
    assert status == 1
    assert [line.partition(":")[0] for line in text.splitlines()] == ["bare", "other"], text


def test_an_extra_that_is_unknown_or_not_installed_is_refused() -> None:
    with pytest.raises(UsageError, match="has no extra 's4'; it has"):
        find_distributions(["s4"])


def test_only_distributions_needed_by_a_run_are_sent() -> None:
    names = {distribution.metadata["Name"] for distribution in find_distributions([])}
    assert {"pytest-cloudbench", "pytest", "execnet", "msgspec", "dropbox"} <= names
    assert "mypy" not in names


def test_a_folder_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"XDG_CACHE_HOME": str(tmp_path)}
    folder = installer.find_base(variables) / "pytest-cloudbench-1"
    folder.mkdir(parents=True)
    assert installer.find_installed("1", variables) == str(folder)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert installer.find_installed("1", variables) == ""
    shutil.rmtree(folder)
    assert installer.find_installed("1", variables) == ""
