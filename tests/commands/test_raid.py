"""``cloudbench raid``: its output, its exit statuses, and its state after a kill."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench import providers
from pytest_cloudbench.commands import cli
from pytest_cloudbench.drivers.base import Driver
from pytest_cloudbench.raid.driver import RaidDriver
from pytest_cloudbench.support import clock
from pytest_cloudbench.workload.payload.contents import Literal
from tests.limits import HANG_S
from tests.provider_folders import make_folders

FILES = {"/a": b"", "/folder/b": b"b" * 1000, "/folder/c": bytes(range(256)) * 4096}


class Arrays:
    """An array of the folders ``0`` to ``2``, which can be read from any two of them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "array.toml"
        self.write([f'"folder:{folder}/{number}"' for number in range(3)])

    def write(self, children: list[str], *more: str) -> None:
        make_folders(self.folder, children)
        lines = ["# mine", "k = 2", "m = 1", 'key = "array.key"', f"children = [{', '.join(children)}]", *more]
        self.file.write_text("\n".join(lines) + "\n", "utf-8")

    @contextmanager
    def opened(self) -> Iterator[Driver]:
        with providers.opened(f"raid:{self.file}") as driver:
            yield driver

    def fill(self, files: dict[str, bytes]) -> None:
        with self.opened() as driver:
            for path, content in files.items():
                driver.put(path, Literal(content))

    def read(self) -> dict[str, bytes]:
        with self.opened() as driver:
            return {entry.path: b"".join(driver.get(entry.path)) for entry in driver.list("/")}

    def lose(self, child: int) -> None:
        for path in self.packages(child):
            path.unlink()

    def packages(self, child: int) -> list[Path]:
        return [path for path in (self.folder / str(child)).rglob("*") if path.is_file()]

    def run(self, *words: str) -> int:
        return cli.main(["raid", words[0], str(self.file), *words[1:]])


@pytest.fixture
def arrays(tmp_path: Path) -> Arrays:
    arrays = Arrays(tmp_path)
    arrays.fill(FILES)
    return arrays


def read_json(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_lost_shares_are_found_and_repaired(arrays: Arrays, capsys: pytest.CaptureFixture[str]) -> None:
    assert arrays.run("status") == 0
    assert "objects: 3 whole, 0 degraded, 0 at risk" in capsys.readouterr().out
    arrays.lose(1)
    assert arrays.run("status") == 3
    text = capsys.readouterr().out
    assert "0 whole, 0 degraded, 3 at risk (no further child may fail), 0 unreadable" in text
    assert arrays.run("status", "--json") == 3
    values = read_json(capsys)
    assert [child["missing"] for child in values["children"]] == [0, 3, 0]
    assert (values["objects"], values["at_risk"], values["is_healthy"], values["k"], values["m"]) == (3, 3, False, 2, 1)
    assert arrays.read() == FILES, "while something is lost"


def test_status_shows_the_cost_of_an_uneven_fill(arrays: Arrays, capsys: pytest.CaptureFixture[str]) -> None:
    arrays.run("status", "--json")
    values = read_json(capsys)
    assert (values["usd_per_month"], values["equal_usd_per_month"]) == (None, None), "the file has no prices"
    prices = (0.0, 1.0, 1024.0)
    arrays.write([
        f'{{ spec = "folder:{arrays.folder}/{number}", store_usd_per_gib_month = {price} }}'
        for number, price in enumerate(prices)
    ])  # fmt: skip
    big = max(arrays.packages(2), key=lambda path: path.stat().st_size)
    big.write_bytes(big.read_bytes() + bytes(10**6))  # this child holds more than an equal share
    arrays.run("status", "--json")
    values = read_json(capsys)
    held = [child["held_bytes"] for child in values["children"]]
    assert held[2] == sum(path.stat().st_size for path in arrays.packages(2)) > held[1] + 10**6 - 1
    assert values["usd_per_month"] == pytest.approx((held[1] + 1024 * held[2]) / 2**30)
    content_bytes = sum(map(len, FILES.values()))
    assert values["equal_usd_per_month"] == pytest.approx(content_bytes / 2 * 1025 / 2**30)
    arrays.run("status")
    text = capsys.readouterr().out
    assert (
        f"storage: {values['usd_per_month']:.4g} USD a month (equal shares: {values['equal_usd_per_month']:.4g})"
        in text
    )
    assert " bytes stored per byte (equal shares: 1.50)" in text


def test_status_shows_no_overhead_while_a_child_is_silent(arrays: Arrays, capsys: pytest.CaptureFixture[str]) -> None:
    (arrays.folder / "1").rename(arrays.folder / "gone")
    assert arrays.run("status") == 3
    text = capsys.readouterr().out
    assert ": no answer: " in text
    assert "stored per byte" not in text


def test_status_changes_nothing_that_children_hold(arrays: Arrays) -> None:
    arrays.lose(1)
    arrays.run("status")
    assert not arrays.packages(1)


def damage_largest_package(arrays: Arrays, child: int) -> None:
    """Flip a bit of a share, which no listing shows."""
    damaged = max(arrays.packages(child), key=lambda path: path.stat().st_size)
    data = bytearray(damaged.read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(data)


def test_repair_and_scrub(arrays: Arrays, capsys: pytest.CaptureFixture[str]) -> None:
    arrays.lose(2)
    assert arrays.run("repair", "--json") == 0
    done = read_json(capsys)
    assert (done["mended"], done["is_complete"], done["left"]) == (3, True, {})
    damage_largest_package(arrays, 0)
    assert arrays.run("status") == 0, "its size is right"
    assert arrays.run("scrub", "--json") == 3
    assert [child["damaged"] for child in (read_last_json_line(capsys))["children"]] == [1, 0, 0]
    assert arrays.run("repair") == 0
    assert arrays.run("scrub") == 0


def test_damage_that_a_scrub_has_found_is_known_until_it_is_repaired(
    arrays: Arrays, capsys: pytest.CaptureFixture[str]
) -> None:
    damage_largest_package(arrays, 0)
    assert arrays.run("scrub") == 3
    capsys.readouterr()
    assert arrays.run("status", "--json") == 3
    values = read_json(capsys)
    assert ([child["missing"] for child in values["children"]], values["at_risk"]) == ([1, 0, 0], 1)
    make_folders(arrays.folder, [new := f"folder:{arrays.folder}/new"])
    before = arrays.file.read_text("utf-8")
    assert arrays.run("replace", "2", new) == 4
    assert "1 object cannot be read, such as /folder/c: repair the others first" in capsys.readouterr().err
    assert arrays.file.read_text("utf-8") == before
    assert arrays.run("repair") == 0
    assert arrays.run("status") == 0
    assert arrays.run("replace", "2", new) == 0
    assert arrays.read() == FILES


def test_a_scrub_believes_what_it_reads(arrays: Arrays, capsys: pytest.CaptureFixture[str]) -> None:
    damage_largest_package(arrays, 0)
    assert arrays.run("scrub") == 3
    damage_largest_package(arrays, 0)  # back again, as after a restored backup
    assert arrays.run("scrub") == 0


def read_last_json_line(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_repair_fails_if_an_object_is_unreadable(arrays: Arrays, capsys: pytest.CaptureFixture[str]) -> None:
    arrays.lose(1)
    arrays.lose(2)
    assert arrays.run("status") == 1
    assert "3 unreadable" in capsys.readouterr().out
    assert arrays.run("repair") == 1
    assert "too few shares are left: /folder/b" in capsys.readouterr().out


def silence(arrays: Arrays, *children: int) -> None:
    for child in children:
        (arrays.folder / f"{child}").rename(arrays.folder / f"gone {child}")


def test_repair_reports_children_that_do_not_answer(arrays: Arrays, capsys: pytest.CaptureFixture[str]) -> None:
    silence(arrays, 1)
    assert arrays.run("repair") == 3
    assert f"folder:{arrays.folder}/1: no answer: " in capsys.readouterr().out
    assert arrays.run("repair", "--json") == 3
    assert list(read_json(capsys)["unreachable"]) == [f"folder:{arrays.folder}/1"]


def test_repair_fails_if_too_few_children_answer(arrays: Arrays, capsys: pytest.CaptureFixture[str]) -> None:
    silence(arrays, 0, 1)
    assert arrays.run("repair") == 1
    assert "unreadable: /folder/c" in capsys.readouterr().out


def test_repair_succeeds_if_it_makes_the_last_object_readable(arrays: Arrays) -> None:
    damage_largest_package(arrays, 1)
    assert arrays.run("scrub") == 3
    damage_largest_package(arrays, 1)  # back again, though noted as damaged
    max(arrays.packages(0), key=lambda path: path.stat().st_size).unlink()
    assert arrays.run("status") == 1
    assert arrays.run("repair") == 0


def test_repair_takes_over_what_may_run_elsewhere_only_if_forced(
    arrays: Arrays, capsys: pytest.CaptureFixture[str]
) -> None:
    version, owner = b"left from afar..", json.dumps(["another host", "another boot", "", 1, 1])
    with arrays.opened() as driver:
        assert isinstance(driver, RaidDriver)
        (name,) = driver.array.package_names(version, 0, 1)
        package = arrays.folder / "0" / driver.array.children.path_of(name).strip("/")
        package.write_bytes(b"of an unfinished write")
    with closing(sqlite3.connect(arrays.folder / "array.sqlite")) as db, db:
        db.execute("INSERT INTO writes VALUES (?, ?, 1, 1, ?)", (version, b"/left", owner))
    assert arrays.run("repair") == 0
    assert "1 process with unfinished work may still run, for all that can be told here" in capsys.readouterr().out
    assert package.exists()
    assert arrays.run("repair", "--force") == 0
    assert "may still run" not in capsys.readouterr().out
    assert not package.exists()
    assert arrays.read() == FILES


def test_replace_reports_other_children_that_do_not_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrays = Arrays(tmp_path)
    arrays.write(child_specs(arrays, 0, 1, 2))
    arrays.file.write_text(arrays.file.read_text("utf-8").replace("k = 2\nm = 1", "k = 1\nm = 2"), "utf-8")
    arrays.fill(FILES)
    silence(arrays, 0)
    make_folders(arrays.folder, [new := f"folder:{arrays.folder}/new"])
    assert arrays.run("replace", "2", new) == 3
    assert f"folder:{arrays.folder}/0: no answer: " in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [["recover"], ["export", "{folder}/all.tar", "--recover"], ["export", "{folder}/out"]]
)
def test_recovery_reports_children_that_do_not_answer(
    arrays: Arrays, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    for path in arrays.folder.glob("array.sqlite*"):
        path.unlink()
    silence(arrays, 1)
    words = [word.format(folder=arrays.folder) for word in words]
    assert arrays.run(*words) == 3
    out = capsys.readouterr().out
    assert "3 objects" in out
    assert f"folder:{arrays.folder}/1: no answer: " in out


def test_export_needs_no_child_that_does_not_answer(arrays: Arrays, tmp_path: Path) -> None:
    silence(arrays, 1)
    assert arrays.run("export", str(tmp_path / "all.tar")) == 0


def test_replace_writes_the_file_and_fills_the_new_child(arrays: Arrays, capsys: pytest.CaptureFixture[str]) -> None:
    before = arrays.file.read_text("utf-8")
    new = f"folder:{arrays.folder}/new"
    make_folders(arrays.folder, [new])
    assert arrays.run("replace", "2", new) == 0
    assert arrays.file.read_text("utf-8") == before.replace(f"folder:{arrays.folder}/1", new)
    shutil.rmtree(arrays.folder / "1")
    assert arrays.run("scrub") == 0
    arrays.lose(0)
    assert arrays.read() == FILES
    assert list(arrays.folder.glob("*.new.toml")) == []
    capsys.readouterr()


def test_replace_writes_to_the_file_that_a_symbolic_link_leads_to(arrays: Arrays) -> None:
    real = arrays.file.rename(arrays.folder / "real.toml")
    arrays.file.symlink_to(real)
    new = f"folder:{arrays.folder}/new"
    make_folders(arrays.folder, [new])
    assert arrays.run("replace", "2", new) == 0
    assert arrays.file.is_symlink()
    assert new in real.read_text("utf-8")


def test_replace_keeps_the_line_endings_of_the_file(arrays: Arrays) -> None:
    arrays.file.write_bytes(arrays.file.read_bytes().replace(b"\n", b"\r\n"))
    before, new = arrays.file.read_bytes(), f"folder:{arrays.folder}/new"
    make_folders(arrays.folder, [new])
    assert arrays.run("replace", "2", new) == 0
    assert arrays.file.read_bytes() == before.replace(f"folder:{arrays.folder}/1".encode(), new.encode())
    changed = arrays.file.read_bytes()
    assert arrays.run("replace", "2", f"folder:{arrays.folder}/0") == 4
    assert arrays.file.read_bytes() == changed


def test_replace_refuses_to_lose_objects(arrays: Arrays, capsys: pytest.CaptureFixture[str]) -> None:
    arrays.lose(0)
    before = arrays.file.read_text("utf-8")
    assert arrays.run("replace", "2", f"folder:{arrays.folder}/new") == 4
    assert "without" in (error := capsys.readouterr().err)
    assert error.count("\n") == 1
    assert arrays.file.read_text("utf-8") == before
    assert arrays.run("repair") == 0


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("raid:{file}", "nested"),
        ("folder:relative", "depends on the current folder"),
        ("folder:{folder}/0", "two children are the same place"),
    ],
)
def test_replace_by_an_invalid_spec_keeps_the_file(
    arrays: Arrays, capsys: pytest.CaptureFixture[str], spec: str, message: str
) -> None:
    before = arrays.file.read_text("utf-8")
    assert arrays.run("replace", "2", spec.format(file=arrays.file, folder=arrays.folder)) == 4
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert arrays.file.read_text("utf-8") == before
    assert arrays.run("repair") == 0
    assert arrays.run("scrub") == 0


def test_replace_after_the_user_has_changed_the_file(arrays: Arrays, capsys: pytest.CaptureFixture[str]) -> None:
    arrays.write([f'"folder:{arrays.folder}/{name}"' for name in ("0", "other", "2")])
    assert arrays.run("replace", f"folder:{arrays.folder}/other") == 0
    assert "3 packages rebuilt" in capsys.readouterr().out
    assert arrays.run("scrub") == 0


def test_rebalance(arrays: Arrays, capsys: pytest.CaptureFixture[str]) -> None:
    assert arrays.run("rebalance") == 0
    assert capsys.readouterr().out.startswith("0 of 3 objects")


def child_specs(arrays: Arrays, *numbers: int) -> list[str]:
    return [f'"folder:{arrays.folder}/{number}"' for number in numbers]


def test_an_array_grows_at_its_end(arrays: Arrays, capsys: pytest.CaptureFixture[str]) -> None:
    arrays.write(child_specs(arrays, 0, 1, 2, 3))
    arrays.file.write_text(arrays.file.read_text("utf-8").replace("m = 1", "m = 2"), "utf-8")
    assert arrays.read() == FILES, "as before, until they are moved"
    (arrays.folder / "other").mkdir()
    assert arrays.run("replace", "4", f"folder:{arrays.folder}/other") == 0
    assert arrays.run("rebalance") == 0
    assert "3 of 3 objects rewritten" in capsys.readouterr().out
    arrays.lose(0)
    arrays.lose(1)
    assert arrays.read() == FILES
    assert arrays.run("repair") == 0
    assert arrays.run("scrub") == 0


@pytest.mark.parametrize(
    ("numbers", "sizes", "message"),
    [
        ((0, 1), "k = 1\nm = 1", "children: the array has 3 and the file names 2: a child cannot be taken away"),
        ((2, 1, 0), "k = 2\nm = 1", "/2 was number 3 and is now 1: restore the order"),
        ((3, 0, 1, 2), "k = 2\nm = 2", "/0 was number 1 and is now 2: restore the order"),
    ],
)
def test_children_that_are_missing_or_moved_are_refused_and_nothing_is_changed(
    arrays: Arrays, capsys: pytest.CaptureFixture[str], numbers: tuple[int, ...], sizes: str, message: str
) -> None:
    before = arrays.file.read_text("utf-8")
    names = [sorted(path.name for path in arrays.packages(child)) for child in range(3)]
    arrays.write(child_specs(arrays, *numbers))
    arrays.file.write_text(arrays.file.read_text("utf-8").replace("k = 2\nm = 1", sizes), "utf-8")
    for command in ("status", "scrub", "repair", "rebalance"):
        assert arrays.run(command) == 4
        captured = capsys.readouterr()
        assert message in captured.err
        assert len(captured.err.splitlines()) == 1
    arrays.file.write_text(before, "utf-8")
    assert arrays.read() == FILES
    assert [sorted(path.name for path in arrays.packages(child)) for child in range(3)] == names


def test_missing_child_is_noticed_without_metadata(arrays: Arrays, capsys: pytest.CaptureFixture[str]) -> None:
    for path in arrays.folder.glob("array.sqlite*"):
        path.unlink()
    before = arrays.file.read_text("utf-8")
    arrays.write(child_specs(arrays, 0, 1))
    arrays.file.write_text(arrays.file.read_text("utf-8").replace("k = 2", "k = 1"), "utf-8")
    assert arrays.run("status") == 1
    assert "the children hold objects of an array of 3, and its file names 2 of them" in capsys.readouterr().err
    arrays.file.write_text(before, "utf-8")
    assert arrays.read() == FILES


def test_an_empty_array_can_have_other_children(tmp_path: Path) -> None:
    arrays = Arrays(tmp_path)
    arrays.fill({})
    arrays.write(child_specs(arrays, 5, 4, 3))
    arrays.fill(FILES)
    assert arrays.read() == FILES


def test_export_without_metadata(arrays: Arrays, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrays.lose(0)
    assert arrays.run("export", str(tmp_path / "plain")) == 0
    assert (tmp_path / "plain" / "folder" / "b").read_bytes() == FILES["/folder/b"]
    assert arrays.run("export", str(tmp_path / "all.tar"), "--recover") == 0
    with tarfile.open(tmp_path / "all.tar") as archive:
        assert sorted(archive.getnames()) == ["a", "folder/b", "folder/c"]
    capsys.readouterr()


def test_export_into_the_folder_of_a_child_is_refused(arrays: Arrays, capsys: pytest.CaptureFixture[str]) -> None:
    assert arrays.run("export", str(arrays.folder / "1" / "out.tar")) == 4
    message = capsys.readouterr().err
    assert f"is in the folder of the child folder:{arrays.folder}/1, whose provider could read it all" in message
    assert not (arrays.folder / "1" / "out.tar").exists()


@pytest.mark.parametrize("target", ["~/1/out.tar", "~nobodyx/out.tar"])
def test_a_tilde_that_no_shell_has_replaced_is_a_name(
    arrays: Arrays, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(arrays.folder))
    assert arrays.run("export", target) == 0
    assert tarfile.is_tarfile(tmp_path / target)
    assert not (arrays.folder / "1" / "out.tar").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["status", "none.toml"], "none.toml: cannot be read"),
        (["status", "folder"], "expected raid:FILE.toml"),
        (["replace", "{file}", "4"], "no child '4'; expected one of 1 ("),
        (["replace", "six", "1", "folder:/x"], "ships with the package"),
        (["replace", "{file}", "1", "nonsense"], "nonsense"),
        (["export", "{file}", "/dev/null/x"], "/dev/null"),
    ],
)
def test_bad_input_is_reported_in_one_line(
    arrays: Arrays, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert cli.main(["raid", *(word.format(file=arrays.file) for word in words)]) == 4
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


OFFERS = {"cheap": (0.001, 1, 0.99), "slow": (0.001, 0.1, 0.99), "fast": (0.01, 10, 0.99), "quick": (0.01, 10, 0.98)}


@pytest.fixture
def offers(tmp_path: Path) -> str:
    path = tmp_path / "offers.toml"
    rows = [
        f'[[offer]]\nspec = "folder:/{name}"\nstore_usd_per_gib_month = {usd}\nmb_per_s = {rate}\navailability = {up}\n'
        for name, (usd, rate, up) in OFFERS.items()
    ]
    path.write_text("".join(rows), "utf-8")
    return str(path)


def test_choose_prints_the_best_set_of_offers(offers: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["raid", "choose", offers]) == 0
    array = tomllib.loads(capsys.readouterr().out)
    assert array == {"k": 1, "m": 1, "placement": "equal", "children": ["folder:/cheap", "folder:/slow"]}
    assert cli.main(["raid", "choose", offers, "--aim", "time", "--json"]) == 0
    values = read_json(capsys)
    assert values["children"] == ["folder:/fast", "folder:/quick"]
    assert (values["time_s"], values["overhead"]) == (10.0, 2.0)
    assert values["usd_per_gib_month"] == pytest.approx(0.02)
    assert values["unavailability"] == pytest.approx(0.01 * 0.02)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seconds-at-most", "1"], "the least time is 10 s, above 1 s"),
        (["--usd-at-most", "0.001"], "the least price is 0.002, above 0.001"),
        (["--losses", "4"], "can lose any 4"),
    ],
)
def test_choose_fails_if_no_set_meets_the_bounds(
    offers: str, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert cli.main(["raid", "choose", offers, *words]) == 4
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected one [[offer]] or more"),
        ("offers = 1", "offers: unknown; expected offer; did you mean offer?"),
        ("offer = [1]", "offer[1]: expected a table"),
        ('[[offer]]\nspec = ""', "offer[1].spec: expected a spec"),
        ('[[offer]]\nspec = "a"\nstore_usd_per_gib_month = -1', "expected a number from 0 to 1e+06, found -1"),
        ('[[offer]]\nspec = "a"\nmbps = 1', "offer[1].mbps: unknown"),
    ],
)
def test_choose_rejects_a_file_without_offers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    (tmp_path / "offers.toml").write_text(text, "utf-8")
    assert cli.main(["raid", "choose", str(tmp_path / "offers.toml")]) == 4
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.slow
def test_a_killed_repair_is_continued(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrays = Arrays(tmp_path)
    files = {f"/{number}": bytes([number]) * 5000 for number in range(80)}
    arrays.fill(files)
    missing_counts = []
    for count, other in ((5, 0), (40, 2)):
        arrays.lose(1)
        kill_repair(arrays, count)
        missing_counts.append(len(files) - len(arrays.packages(1)))
        assert arrays.run("scrub") in {0, 3}, "everything can be read, and nothing is damaged but missing"
        assert arrays.run("repair") == 0
        assert arrays.run("scrub") == 0
        arrays.lose(other)
        assert arrays.read() == files
        assert arrays.run("repair") == 0
    assert max(missing_counts) > 0, "it was killed before its end"
    capsys.readouterr()


def kill_repair(arrays: Arrays, count: int) -> None:
    """Start a repair, and kill it once it has rebuilt ``count`` packages."""
    command = [sys.executable, "-m", "pytest_cloudbench.commands.cli", "raid", "repair", str(arrays.file)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        assert clock.wait_for(lambda: len(arrays.packages(1)) >= count, HANG_S, poll_s=0.001)
    finally:
        process.kill()
        process.wait(HANG_S)
