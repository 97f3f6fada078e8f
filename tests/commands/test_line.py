"""``cloudbench line`` measures the line of each host, stores it for later runs, and leaves no file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.commands.cli import main
from pytest_cloudbench.fleet.coordinator import Item
from pytest_cloudbench.fleet.hosts.facts import SessionHosts
from pytest_cloudbench.fleet.hosts.table import Host
from pytest_cloudbench.results.lines import LINES, add_line, find_line, read_lines
from pytest_cloudbench.results.rows import identify
from tests.limits import HANG_S

HERE = f'command = ["{sys.executable}"]'
GONE = 'command = ["sh", "-c", "echo Permission denied >&2; exit 255"]'
FEW = ("--seconds", "0.2", "--mib", "1", "--connects", "5", "--patience", str(HANG_S))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_hosts(folder: Path, **rows: str) -> str:
    text = "\n".join(f'[[host]]\nname = "{name}"\n{row}' for name, row in rows.items())
    (folder / "hosts.toml").write_text(text, "utf-8")
    return "hosts.toml"


def read_stored_lines(folder: Path) -> list[dict[str, Any]]:
    return read_lines(folder / "results")


def test_each_host_has_a_line_to_this_machine(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["line", write_hosts(folder, gone=GONE, near=HERE), *FEW]) == 1
    gone, near, bounds, where = capsys.readouterr().out.splitlines()
    assert gone == "gone: not measured: Permission denied"
    assert near.startswith("near: round trip ")
    assert "(5 to this machine, by its connection); up " in near
    assert bounds.startswith("bounds: 0.2 s and 1 MiB in each direction")
    assert where.startswith(f"stored in results/{LINES}")
    (line,) = read_stored_lines(folder)
    assert (line["host"], line["connects"], line["problems"]) == ("near", 5, [])
    assert 0 < line["round_trip_min_s"] <= line["round_trip_median_s"]
    assert line["up"]["moved_bytes"] <= 1 << 20
    assert line["up"]["bytes_per_s"] > 0 < line["down"]["bytes_per_s"]


def test_host_whose_python_prints_at_its_start_is_not_measured(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noisy = folder / "noisy"
    noisy.write_text(f'#!/bin/sh\necho welcome to this host\nexec {sys.executable} "$@"\n', "utf-8")
    noisy.chmod(0o755)
    assert main(["line", write_hosts(folder, near=f'{HERE}\npython = "{noisy}"'), *FEW]) == 1
    assert capsys.readouterr().out.startswith("near: not measured: its Python prints something else at its start\n")


def test_a_service_that_is_reached_through_the_connection_has_no_round_trip(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["line", write_hosts(folder, near=HERE), "--provider", "emulated:ideal", *FEW]) == 0
    text = capsys.readouterr().out.splitlines()[0]
    assert "round trip: unknown: the provider is reached through the connection to the controller" in text
    assert "emulated: this measures the client, the emulator and the way between them" in text
    (line,) = read_stored_lines(folder)
    assert (line["round_trip_min_s"], line["provider"]) == (None, "emulated:ideal")
    assert line["up"]["bytes_per_s"] > 0 < line["down"]["bytes_per_s"]


def test_this_machine_has_a_line_of_its_own_and_leaves_no_file(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    objects = folder / "objects"
    objects.mkdir()
    assert main(["line", "--provider", f"folder:{objects}", *FEW]) == 0
    assert "round trip: unknown: the driver does not say where its requests go" in capsys.readouterr().out
    assert list(objects.iterdir()) == []
    assert read_stored_lines(folder)[0]["host"] == "this machine"


def test_failed_line_measurement_stores_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    (folder / "objects").mkdir()  # a host has another working folder
    assert main(["line", write_hosts(folder, near=HERE), "--provider", "folder:objects", *FEW]) == 1
    near, bounds = capsys.readouterr().out.splitlines()
    assert near.startswith("near: provider 'folder:objects': there is no folder ")
    assert bounds.startswith("bounds: ")
    assert read_stored_lines(folder) == []


def test_line_without_downloads_is_stored_and_fails(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    meta = '[meta]\nname = "late"\napi = "dropbox"\ndescription = "shows no new file"\n'
    (folder / "late.toml").write_text(f"{meta}[readiness]\ndelay_s = 3600\n", "utf-8")
    assert main(["line", "--provider", "emulated:./late.toml", *FEW]) == 1
    assert "down: unknown: " in capsys.readouterr().out
    (line,) = read_stored_lines(folder)
    assert line["up"]["bytes_per_s"] > 0
    assert line["down"] is None


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        ([], "name the other end of this machine's line with --provider"),
        (["--provider", "dropbox"], "moves up to 16 MiB in each direction with a real account of dropbox: add --yes"),
        (["none.toml"], "none.toml: cannot be read (No such file or directory); expected a table of hosts"),
        (["--provider", "emulated:ideal", "--mib", "0"], "--mib of 1 or more"),
    ],
)
def test_bad_input_is_reported_in_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], argv: list[str], reason: str
) -> None:  # fmt: skip
    assert main(["line", *argv]) == 4
    (line,) = capsys.readouterr().err.splitlines()
    assert reason in line
    assert not (folder / "results").exists()


# --- lines in the entries of runs ---


OSLO = Host("oslo", ("ssh", "oslo", "python3"), labels={"location": "Oslo"})


def add_lines(folder: Path) -> None:
    for provider, date in (("dropbox", "2026-11-01"), ("box", "2026-11-02"), ("dropbox", "2026-11-03")):
        add_line(folder, {"host": "oslo", "key": identify(OSLO.command), "provider": provider, "date": date})
    add_line(folder, {"host": "this machine", "key": identify(), "provider": "box", "date": "2026-11-04"})


@pytest.mark.parametrize(
    ("provider", "date"), [("dropbox", "2026-11-03"), ("box", "2026-11-02"), ("gdrive", "2026-11-03")]
)
def test_an_entry_states_the_last_line_to_its_provider_or_else_the_last(
    tmp_path: Path, provider: str, date: str
) -> None:  # fmt: skip
    add_lines(tmp_path)
    hosts = SessionHosts(lambda agent: "oslo", lambda: [(OSLO, "")], tmp_path)
    (oslo,) = hosts.describe(Item("test", entered=["gw0"]), provider)
    assert oslo["line"]["date"] == date
    assert hosts.own_line(provider) == {"provider": "box", "date": "2026-11-04"}


def test_line_of_a_different_host_with_the_same_name_is_not_stated(tmp_path: Path) -> None:
    add_lines(tmp_path)
    moved = Host("oslo", ("ssh", "bergen", "python3"))
    assert find_line(read_lines(tmp_path), "oslo", identify(moved.command), "dropbox") == {}
    hosts = SessionHosts(lambda agent: "oslo", lambda: [(moved, "")], tmp_path)
    (oslo,) = hosts.describe(Item("test", entered=["gw0"]), "dropbox")
    assert "line" not in oslo


def test_torn_file_of_lines_yields_its_whole_lines(tmp_path: Path) -> None:
    assert read_lines(tmp_path) == []
    (tmp_path / LINES).write_text('{"host": "oslo"}\n[1]\n{"host": "li\n\n' + json.dumps({"host": "lima"}), "utf-8")
    assert [line["host"] for line in read_lines(tmp_path)] == ["oslo", "lima"]
