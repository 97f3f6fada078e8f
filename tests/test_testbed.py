"""tools/testbed: its table agrees with the clients, and it brings pairs up and down."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench import clients
from pytest_cloudbench.clients.base import LocalClient
from pytest_cloudbench.clients.processes import find_binary
from tests.clients.conftest import documented_toml, is_gone
from tests.tool import TOOLS, load_tool

testbed: Any = load_tool("testbed")


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([TOOLS / "testbed", *words], capture_output=True, text=True, timeout=120, check=False)


def test_every_client_can_be_installed() -> None:
    rows = testbed.table()
    for spec in [*clients.names(), "lsyncd?over=ssh", "unison?over=ssh"]:
        if spec in {"external", "reference"}:  # nothing to install
            continue
        client = clients.client(spec)
        names = client.facts.testbed.split()
        assert names, spec
        brought = {program for name in names for program in rows[name].programs}
        assert set(client.facts.binaries) <= brought


@pytest.mark.parametrize("name", ["rsync", "borg"])
def test_the_documented_tools_can_be_installed(name: str, tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(documented_toml(name), "utf-8")
    client = clients.client(str(tmp_path / "x.toml"))
    row = testbed.table()[client.facts.testbed]
    assert set(client.facts.binaries) - {"sh"} == set(row.programs)


def test_the_quick_ones_take_under_a_minute_together() -> None:
    rows = testbed.table()
    quick = testbed.quick(rows)
    assert {"syncthing", "lsyncd", "unison", "restic", "rclone"} <= {row.name for row in quick}
    assert sum(row.seconds for row in quick) < 60
    slow = testbed.Row("slow", ("x",), ("x",), seconds=61)
    assert slow not in testbed.quick({**rows, "slow": slow})


def test_what_has_side_effects_is_installed_by_its_name_only() -> None:
    rows = testbed.table()
    arguments = testbed.argparse.Namespace(names=[], all=True, quick=False)
    assert "openssh" not in {row.name for row in testbed.chosen(arguments, rows)}
    assert "openssh" not in {row.name for row in testbed.quick(rows)}
    arguments = testbed.argparse.Namespace(names=["openssh"], all=False, quick=False)
    assert testbed.chosen(arguments, rows) == [rows["openssh"]]


def test_installing_what_is_there_changes_nothing(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(testbed, "run", lambda argv: pytest.fail(f"ran {argv}"))
    row = testbed.Row("x", ("sh",), ("no-such-package",), seconds=1, wheels=("no-such-wheel",))
    testbed.install([row])
    assert "nothing: all is there" in capsys.readouterr().out


def test_what_is_missing_is_installed_in_one_call_each(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []
    there: set[str] = set()

    def fake_run(argv: list[str]) -> None:
        calls.append(argv)
        there.update({"a", "b", "c"})

    monkeypatch.setattr(testbed, "run", fake_run)
    monkeypatch.setattr(testbed, "find_binary", lambda name: name if name in there else None)
    monkeypatch.setattr(testbed, "as_root", lambda: ["sudo"])
    monkeypatch.setattr(testbed.shutil, "which", lambda name: name)
    monkeypatch.setattr(testbed.sys, "base_prefix", "elsewhere")
    rows = [testbed.Row("a", ("a",), ("deb-a",), 1, ("wheel-a",)), testbed.Row("b", ("b",), ("deb-b",), 1)]
    testbed.install([*rows, testbed.Row("c", ("c",), ("deb-c", "deb-b"), 1)])
    assert [call[-1] for call in calls if "pip" in call] == ["wheel-a"]
    # The pretended pip brought all programs, so apt-get was not needed any more.
    assert len(calls) == 1
    there.clear()
    calls.clear()
    testbed.install([rows[1], testbed.Row("c", ("c",), ("deb-c", "deb-b"), 1)])
    assert len(calls) == 1
    assert calls[0][0] == "sudo"
    assert calls[0][-2:] == ["deb-b", "deb-c"]
    assert "DEBIAN_FRONTEND=noninteractive" in calls[0]


def test_where_nobody_may_install_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(testbed, "run", lambda argv: None)
    monkeypatch.setattr(testbed, "find_binary", lambda name: None)
    monkeypatch.setattr(testbed.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(testbed.shutil, "which", lambda name: None if name == "sudo" else name)
    assert testbed.main(["install", "unison"]) == 1
    assert "installed by root" in capsys.readouterr().err
    assert testbed.main(["install", "--quick", "--may-fail"]) == 0
    assert "installed by root" in capsys.readouterr().err


def test_a_name_that_is_not_in_the_table(capsys: Any) -> None:
    assert testbed.main(["install", "syncthin"]) == 1
    assert "syncthin is not in the table; there are: syncthing, " in capsys.readouterr().err
    assert testbed.main(["install"]) == 1


def test_up_and_down() -> None:
    client = clients.client("lsyncd?compress=0")
    assert isinstance(client, LocalClient)
    if client.missing():
        pytest.skip(client.missing())
    spec = "lsyncd?compress=0"
    first = run("up", spec)
    try:
        assert first.returncode == 0, first.stderr
        state = json.loads(first.stdout)
        assert first.stdout.count("\n") == 1
        assert state["server"].startswith("127.0.0.1:")
        assert not is_gone(state["pid"])
        # A server's process for the first pass may have ended meanwhile.
        assert not is_gone(min(state["client_pids"]))
        assert not is_gone(min(state["server_pids"]))
        assert Path(state["folder"]).is_dir()
        assert json.loads(run("up", spec).stdout) == state, "up again starts nothing new"
    finally:
        done = run("down", spec)
    assert "is down" in done.stdout
    assert all(is_gone(pid) for pid in state["client_pids"] + state["server_pids"])
    assert not Path(state["folder"]).exists()
    assert "was not up" in run("down", spec).stdout


def test_up_of_what_there_is_not_says_why() -> None:
    done = run("up", "nothing")
    assert done.returncode == 1
    assert "there is none of this name" in done.stderr
    run("down", "nothing")


def test_list_shows_all() -> None:
    shown = run("list").stdout
    for name, row in testbed.table().items():
        line = next(line for line in shown.splitlines() if line.startswith(f"{name} "))
        assert ("missing" in line) == bool(row.missing())
    assert find_binary("sh")
