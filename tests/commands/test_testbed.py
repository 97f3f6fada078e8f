"""cloudbench testbed and tools/testbed: their table agrees with clients and recipes, and pairs start and stop."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.commands import cli
from pytest_cloudbench.commands import testbed as package
from pytest_cloudbench.lab import clients
from pytest_cloudbench.lab.clients.base import LocalClient
from pytest_cloudbench.lab.clients.processes import find_binary
from pytest_cloudbench.services.command import load_recipe, recipe_names
from tests.lab.clients.conftest import documented_toml, is_gone
from tests.limits import HANG_S
from tests.tool_scripts import TOOLS, load_tool

tool: Any = load_tool("testbed")
testbed: Any = package


writes_to_checkout = pytest.mark.skipif(not os.access(TOOLS.parent, os.W_OK), reason="this checkout is another user's")


def options(*names: str, everything: bool = False, quick: bool = False) -> argparse.Namespace:
    return argparse.Namespace(names=[*names], all=everything, quick=quick)


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([TOOLS / "testbed", *words], capture_output=True, text=True, timeout=HANG_S, check=False)


def test_every_client_can_be_installed() -> None:
    rows = testbed.read_table()
    for spec in [*clients.client_names(), "lsyncd?over=ssh", "unison?over=ssh"]:
        if spec == "external":  # somebody else has installed it
            continue
        client = clients.make_client(spec)
        if not client.facts.binaries:
            assert client.facts.testbed == "", spec
            continue
        names = client.facts.testbed.split()
        assert names, spec
        brought = {program for name in names for program in rows[name].programs}
        assert set(client.facts.binaries) <= brought


@pytest.mark.parametrize("name", recipe_names())
def test_every_server_can_be_installed_by_its_own_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, row = load_recipe(name), testbed.read_table()[name]
    program = recipe.command[0]
    assert set(recipe.programs) <= set(row.programs)
    assert set(recipe.modules) <= set(row.modules)
    assert "{" in program or program.startswith("/") or program in row.programs
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert recipe.describe_missing().endswith(f" is not installed: run cloudbench testbed install {name}")


@pytest.mark.parametrize("name", ["rsync", "borg"])
def test_the_documented_tools_can_be_installed(name: str, tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(documented_toml(name), "utf-8")
    client = clients.make_client(str(tmp_path / "x.toml"))
    row = testbed.read_table()[client.facts.testbed]
    assert set(client.facts.binaries) - {"sh"} == set(row.programs)


def test_quick_rows_take_under_a_minute_together() -> None:
    rows = testbed.read_table()
    quick = testbed.select_quick(rows)
    assert {"syncthing", "lsyncd", "unison", "restic", "rclone"} <= {row.name for row in quick}
    assert sum(row.seconds for row in quick) < 60
    slow = testbed.TestbedRow("slow", ("x",), ("x",), seconds=61)
    assert slow not in testbed.select_quick({**rows, "slow": slow})


def test_rows_with_side_effects_are_installed_only_by_name() -> None:
    rows = testbed.read_table()
    assert "openssh" not in {row.name for row in testbed.select_rows(options(everything=True), rows)}
    assert "openssh" not in {row.name for row in testbed.select_quick(rows)}
    assert testbed.select_rows(options("openssh"), rows) == [rows["openssh"]]


def test_every_recipe_names_the_row_of_its_programs() -> None:
    rows = testbed.read_table()
    for name in recipe_names():
        recipe = load_recipe(name)
        programs = {recipe.command[0], *recipe.programs}
        if recipe.needs:
            assert {program for program in programs if "{" not in program and "/" not in program} <= set(
                rows[recipe.needs].programs
            )


def test_node_and_go_programs_need_no_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[tuple[list[str], dict[str, str]]] = []
    installed: set[str] = set()

    def fake_run(argv: list[str], **environment: str) -> None:
        calls.append((argv, environment))
        installed.update({"a", "b"})

    monkeypatch.setattr(testbed, "_run_quietly", fake_run)
    monkeypatch.setattr(testbed, "_find_program", lambda name: name if name in installed else None)
    monkeypatch.setattr(testbed, "testbed_folder", lambda: tmp_path / "brought")
    monkeypatch.setattr(testbed.shutil, "which", lambda name, path=None: f"/bin/{name}")
    rows = [testbed.TestbedRow("a", ("a",), npm=("pack-a",)), testbed.TestbedRow("b", ("b",), go=("mod-b",))]
    messages: list[str] = []
    assert testbed.install(rows, messages.append) == rows
    (npm, _), (go, environment) = calls
    assert (npm[0], npm[-1], str(tmp_path / "brought") in npm) == ("/bin/npm", "pack-a", True)
    assert (go, environment) == (["/bin/go", "install", "mod-b"], {"GOBIN": str(tmp_path / "brought" / "bin")})
    assert messages == ["npm: pack-a", "go: mod-b"]
    installed.clear()
    monkeypatch.setattr(testbed.shutil, "which", lambda name, path=None: None)
    with pytest.raises(testbed.TestbedError, match="there is no npm here: install Node"):
        testbed.install(rows)


def test_a_module_with_a_sum_is_built_only_if_it_has_that_sum(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[tuple[list[str], dict[str, str]]] = []

    def fake_run(argv: list[str], **environment: str) -> str:
        calls.append((argv, environment))
        return json.dumps({"Sum": "h1:right", "Dir": "/cache/warp"})

    monkeypatch.setattr(testbed, "_run_quietly", fake_run)
    monkeypatch.setattr(testbed, "_find_program", lambda name: name if len(calls) > 1 else None)
    monkeypatch.setattr(testbed, "testbed_folder", lambda: tmp_path)
    monkeypatch.setattr(testbed.shutil, "which", lambda name, path=None: f"/bin/{name}")
    with pytest.raises(testbed.TestbedError, match="has the sum h1:right, expected h1:wrong: not built"):
        testbed.install([testbed.TestbedRow("warp", ("warp",), go=("example/warp@v1 h1:wrong",))])
    (download,) = calls
    assert download == (["/bin/go", "mod", "download", "-json", "example/warp@v1"], {"GOSUMDB": "off"})
    calls.clear()
    testbed.install([testbed.TestbedRow("warp", ("warp",), go=("example/warp@v1 h1:right",))])
    build, _ = calls[1]
    assert build == [
        "/bin/go", "build", "-C", "/cache/warp", "-mod=readonly", "-o", str(tmp_path / "bin" / "warp"), "."
    ]  # fmt: skip


def test_a_package_that_would_start_a_server_is_only_unpacked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """dpkg-deb unpacks a package that the test has built with it, in place of a downloaded one."""
    if shutil.which("dpkg-deb") is None:
        pytest.skip("this system has no dpkg-deb")
    updates: list[list[str]] = []
    package = tmp_path / "package"
    (package / "DEBIAN").mkdir(parents=True)
    (package / "DEBIAN" / "control").write_text(
        "Package: serv\nVersion: 1\nArchitecture: all\nMaintainer: x <x@y.example>\nDescription: x\n"
    )
    (package / "DEBIAN" / "postinst").write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    (package / "DEBIAN" / "postinst").chmod(0o755)
    (package / "usr" / "sbin").mkdir(parents=True)
    (package / "usr" / "sbin" / "serv").write_text("#!/bin/sh\n")
    (package / "usr" / "sbin" / "serv").chmod(0o755)
    run = testbed._run_quietly

    def local_run(argv: list[str], *, cwd: str | None = None, **environment: str) -> str:
        if argv[-1] == "update":
            updates.append(argv)
            return ""
        if argv[:3] == ["apt-get", "-q", "download"]:
            if not updates:  # as on a fresh machine
                raise testbed.TestbedError("Unable to locate package serv")
            argv = ["dpkg-deb", "--build", str(package), f"{cwd}/{argv[3]}_1_all.deb"]
        return str(run(argv, cwd=cwd, **environment))

    program = tmp_path / "brought" / "bin" / "serv"
    monkeypatch.setattr(testbed, "_run_quietly", local_run)
    monkeypatch.setattr(testbed, "testbed_folder", lambda: tmp_path / "brought")
    monkeypatch.setattr(testbed, "_root_prefix", list)
    monkeypatch.setattr(testbed, "_find_program", lambda name: str(program) if program.exists() else None)
    testbed.install([testbed.TestbedRow("serv", ("serv",), unpacked=("serv",))])
    assert program.resolve() == tmp_path / "brought" / "unpacked" / "serv" / "usr" / "sbin" / "serv"
    assert not (tmp_path / "started").exists()
    assert len(updates) == 1


def test_python_programs_with_many_packages_get_their_own_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[list[str]] = []
    installed: set[str] = set()

    def fake_run(argv: list[str], **_: str) -> None:
        calls.append(argv)
        installed.add("a")

    monkeypatch.setattr(testbed, "_run_quietly", fake_run)
    monkeypatch.setattr(testbed, "_find_program", lambda name: name if name in installed else None)
    monkeypatch.setattr(testbed, "testbed_folder", lambda: tmp_path)
    row = testbed.TestbedRow("a-row", ("a",), apart=("pack-a==1",))
    for _ in range(2):  # the second time, an older link is in the way
        installed.clear()
        assert testbed.install([row]) == [row]
    (make, bring), environment = calls[:2], tmp_path / "environments" / "a-row"
    assert make[1:3] == ["-m", "venv"]
    assert make[-1] == str(environment)
    assert (bring[0], bring[-1]) == (str(environment / "bin" / "python"), "pack-a==1")
    assert (tmp_path / "bin" / "a").readlink() == environment / "bin" / "a"


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    assert cli.main(["testbed", "install", "--list"]) == 0
    assert re.search(r"^azure +60 s  ", capsys.readouterr().out, re.M)
    assert cli.main(["testbed", "install", "azur"]) == 4
    assert "azur is not in the table" in capsys.readouterr().err
    monkeypatch.setattr(testbed, "_find_program", lambda name: name)
    assert cli.main(["testbed", "install", "azure", "s3"]) == 0
    assert capsys.readouterr().out == "nothing to install: everything is there\n"


def test_installing_present_programs_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testbed, "_run_quietly", lambda argv, **_: pytest.fail(f"ran {argv}"))
    row = testbed.TestbedRow("x", ("sh",), ("no-such-package",), seconds=1, wheels=("no-such-wheel",))
    assert testbed.install([row]) == []


def test_missing_programs_are_installed_in_one_call_of_each_installer(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []
    installed: set[str] = set()

    def fake_run(argv: list[str], **_: str) -> None:
        calls.append(argv)
        installed.update({"a", "b", "c"})

    monkeypatch.setattr(testbed, "_run_quietly", fake_run)
    monkeypatch.setattr(testbed, "_find_program", lambda name: name if name in installed else None)
    monkeypatch.setattr(testbed, "_root_prefix", lambda: ["sudo"])
    monkeypatch.setattr(testbed.shutil, "which", lambda name, path=None: name)
    monkeypatch.setattr(testbed.sys, "base_prefix", "elsewhere")
    rows = [
        testbed.TestbedRow("a", ("a",), ("deb-a",), 1, ("wheel-a",)),
        testbed.TestbedRow("b", ("b",), ("deb-b",), 1),
    ]
    testbed.install([*rows, testbed.TestbedRow("c", ("c",), ("deb-c", "deb-b"), 1)])
    assert [call[-1] for call in calls if "pip" in call] == ["wheel-a"]
    # The fake pip brought all programs, so apt-get was no longer needed.
    assert len(calls) == 1
    installed.clear()
    calls.clear()
    testbed.install([rows[1], testbed.TestbedRow("c", ("c",), ("deb-c", "deb-b"), 1)])
    assert len(calls) == 1
    assert calls[0][0] == "sudo"
    assert calls[0][-2:] == ["deb-b", "deb-c"]
    assert "DEBIAN_FRONTEND=noninteractive" in calls[0]


def test_install_without_root_or_sudo_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(testbed, "_run_quietly", lambda argv, **_: None)
    monkeypatch.setattr(testbed, "_find_program", lambda name: None)
    monkeypatch.setattr(testbed.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(testbed.shutil, "which", lambda name, path=None: None if name == "sudo" else name)
    assert tool.main(["install", "unison"]) == 1
    assert "installed by root" in capsys.readouterr().err
    assert tool.main(["install", "--quick", "--may-fail"]) == 0
    assert "installed by root" in capsys.readouterr().err


def test_install_rejects_an_unknown_name(capsys: Any) -> None:
    assert tool.main(["install", "syncthin"]) == 1
    assert "syncthin is not in the table; there are: syncthing, " in capsys.readouterr().err
    assert tool.main(["install"]) == 1


@writes_to_checkout
def test_up_and_down() -> None:
    client = clients.make_client("lsyncd?compress=0")
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


@writes_to_checkout
def test_up_rejects_an_unknown_client() -> None:
    done = run("up", "nothing")
    assert done.returncode == 1
    assert "client 'nothing': unknown; expected one of " in done.stderr
    run("down", "nothing")


def test_list_shows_all() -> None:
    output = run("list").stdout
    for name, row in testbed.read_table().items():
        line = next(line for line in output.splitlines() if line.startswith(f"{name} "))
        assert ("missing" in line) == bool(row.missing())
    assert find_binary("sh")
