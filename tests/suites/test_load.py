"""``cloudbench put``, ``get`` and ``mixed``: they measure the load that is described, as a test of one's own would."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench import Verb
from suites.load.conftest import parse_mix, parse_rate, parse_size, write_command
from tests.limits import HANG_S

FACTS = ("ops", "size_bytes", "arrival", "sensors", "for_s", "operation", "loop", "payload")


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does, in a folder."""
    command = [sys.executable, "-m", "pytest_cloudbench.commands.cli", *words]
    return run_program(folder, command)


def run_program(folder: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=HANG_S, check=False,
        env={**environment, "COLUMNS": "80"},
    )  # fmt: skip


def entries(folder: Path) -> list[Mapping[str, Any]]:
    """Return the entries of all stored runs, the oldest first."""
    documents = [json.loads(path.read_text()) for path in sorted(folder.glob("results/*/*.json"))]
    return [entry["extra_info"] for document in documents for entry in document["benchmarks"]]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("put", "--size", "2KiB", "--rate", "20/s", "--for", "1s"), {"ops": 20, "size_bytes": 2048, "loop": "open"}),
        (("get", "--size", "1KB", "--rate", "30/s", "--for", "1s", "--files", "5"), {"ops": 30, "operation": "get"}),
        (("mixed", "--rate", "30/s", "--for", "1s", "--mix", "put=1,list=1"), {"ops": 30, "loop": "open"}),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_load_command_runs_the_described_load_and_prints_its_test(
    tmp_path: Path, words: tuple[str, ...], expected: Mapping[str, Any]
) -> None:
    (tmp_path / "store").mkdir()
    ended = run(tmp_path, words[0], "folder:store", *words[1:])
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (measured,) = entries(tmp_path)
    assert {name: measured[name] for name in expected} == expected
    assert (measured["ok"], measured["doubts"]) == (measured["ops"], [])
    source = ended.stdout.partition("--provider folder:store\n\n")[2].partition("\n\nrecords: ")[0]
    (tmp_path / "test_own.py").write_text(source + "\n")
    own = run_program(
        tmp_path, [sys.executable, "-m", "pytest", "test_own.py", "--provider", "folder:store", "--benchmark-autosave"]
    )
    assert own.returncode == 0, own.stdout
    _, again = entries(tmp_path)
    assert {name: again.get(name) for name in FACTS} == {name: measured.get(name) for name in FACTS}


@pytest.mark.slow
def test_threads_work_as_fast_as_they_can_until_the_time_is_up(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    ended = run(tmp_path, "put", "folder:store", "--threads", "2", "--size", "10", "--for", "1s", "-n", "2")
    assert ended.returncode == 0, ended.stdout
    assert "folder:store: at most 2,000 operations, 20,000 bytes up, in 1 s" in ended.stdout
    (measured,) = entries(tmp_path)
    assert (measured["loop"], measured["sensors"], measured["agents"], measured["doubts"]) == ("closed", 2, 2, [])
    assert re.search(r"^sensors +files +MB/s +ops/s ", ended.stdout, re.MULTILINE)


@pytest.mark.slow
def test_a_mix_has_figures_of_each_operation(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    ended = run(tmp_path, "mixed", "folder:store", "--rate", "60/s", "--for", "2s", "--mix", "put=1,get=1")
    (measured,) = entries(tmp_path)
    kinds = measured["by_operation"]
    assert kinds.keys() == {"put", "get"}
    assert kinds["put"]["ops"] + kinds["get"]["ops"] == 120
    assert kinds["put"]["ops"] > 60, "a sensor begins with an upload"
    assert measured["stats_of"] == "response time of operations (put, get) that succeeded"
    assert "note: about 75 % of the operations are uploads, not 50 %: each sensor begins with one" in " ".join(
        ended.stdout.split()
    )
    for name, figures in kinds.items():
        assert 0 < figures["response_p50"] <= figures["response_p95"] <= figures["response_p99"]
        assert re.search(
            rf"^ *{name} +{figures['ops']} +0 +0 +0 +[0-9.]+ +[0-9.]+ +[0-9.]+$", ended.stdout, re.MULTILINE
        )


@pytest.mark.slow
def test_damaged_content_fails(tmp_path: Path) -> None:
    profile = '[meta]\nname = "corrupt"\napi = "dropbox"\ndescription = "a truth"\n[faults]\ncorrupt_rate = 0.5\n'
    (tmp_path / "corrupt.toml").write_text(profile)
    ended = run(tmp_path, "put", "emulated:./corrupt.toml", "--rate", "20/s", "--for", "1s", "--size", "1KiB")
    assert ended.returncode == 1, ended.stdout
    assert "content or size differed from what was uploaded" in ended.stdout


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("command", ["put", "mixed"])
@pytest.mark.parametrize(("error_rate", "status"), [(1.0, 1), (0.5, 0)])
def test_a_load_of_which_nothing_succeeds_fails(tmp_path: Path, command: str, error_rate: float, status: int) -> None:
    profile = f'[meta]\nname = "out"\napi = "dropbox"\ndescription = "a truth"\n[faults]\nerror_rate = {error_rate}\n'
    (tmp_path / "out.toml").write_text(profile)
    ended = run(tmp_path, command, "emulated:./out.toml", "--rate", "40/s", "--for", "1s", "--size", "10")
    assert ended.returncode == status, ended.stdout
    assert ("none of 40 operations succeeded: server 40" in ended.stdout) == bool(status)
    assert len(entries(tmp_path)) == 1, "it is stored all the same"


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("command", ["put", "get", "mixed"])
def test_time_without_an_operation_fails(tmp_path: Path, command: str) -> None:
    (tmp_path / "store").mkdir()
    ended = run(tmp_path, command, "folder:store", "--rate", "2/h", "--for", "200ms", "--size", "10")
    assert ended.returncode == 1, ended.stdout
    assert "no operation was due in this time: choose a longer --for or a higher --rate" in ended.stdout
    assert "content or size differed" not in ended.stdout


@pytest.mark.slow
def test_two_loads_are_told_apart_and_equal_ones_compared(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    load = ("put", "folder:store", "--size", "10", "--rate", "20/s", "--for")
    for time in ("1s", "1s", "2s"):
        ended = run(tmp_path, *load, time, "--cloudbench-gate")
        assert ended.returncode == 0, ended.stdout
        assert "cloudbench: gate: 1 " in ended.stdout
    output = " ".join(ended.stdout.split())
    assert "baseline 0 of 10 (the 2 stored runs differed in for_s (1.0, here 2.0))" in output


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("put", "folder:.", "--rate", "0/s"), "rate '0/s': expected a rate above 0, such as 50/s, 600/min or 2/h"),
        (("put", "folder:.", "--size", "3 bananas"), "size '3 bananas': expected a size such as 5KiB, 1MB or 4096"),
        (("get", "folder:.", "--files", "0"), "files '0': expected a whole number from 1 to 1,000,000"),
        (("get", "folder:.", "--for", "0s"), "expected a time above 0, such as 30s"),
        (("mixed", "folder:.", "--mix", "delete=1"), "mix 'delete=1': expected shares of put, get, stat, list"),
        (("put", "folder:.", "--nonsense"), "unrecognized arguments: --nonsense"),
        (("put", "nothing:", "--for", "1s"), "no driver has this name"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, words: tuple[str, ...], line: str) -> None:
    ended = run(tmp_path, *words)
    assert ended.returncode == 4
    assert line in ended.stdout + ended.stderr
    assert "Traceback" not in ended.stdout + ended.stderr


def test_the_commands_and_the_suite_say_the_same_of_their_options(tmp_path: Path) -> None:
    suite = option_helps(
        run_program(tmp_path, [sys.executable, "-m", "pytest", "--pyargs", "pytest_cloudbench.suites.load", "--help"])
    )
    suite_helps = {
        name.removeprefix("cloudbench-load-"): text.partition("; short: ")[0] for name, text in suite.items()
    }
    names = set[str]()
    for command in ("put", "get", "mixed"):
        helps = option_helps(run(tmp_path, command, "--help"))
        names |= helps.keys()
        assert helps == {name: suite_helps[name] for name in helps}
    assert names == {"size", "rate", "threads", "for", "files", "mix"}


def option_helps(ended: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """Return the text of each option of the load in a help, in one line."""
    assert ended.returncode == 0, ended.stderr
    matches = re.findall(r"^ +--([a-z-]+)[= ][A-Z]+((?: {2,}\S.*)?(?:\n {6,}\S.*)*)", ended.stdout, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in matches}


@pytest.mark.parametrize(
    ("text", "size_bytes"), [("0", 0), ("5KiB", 5120), ("1MB", 1_000_000), ("1.5 mib", 1_572_864), ("7B", 7)]
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "rate_per_s"), [("50/s", 50), ("50", 50), ("600/min", 10), ("600/m", 10), ("1.8/h", 0.0005)]
)
def test_rates(text: str, rate_per_s: float) -> None:
    assert parse_rate(text) == pytest.approx(rate_per_s)


@pytest.mark.parametrize("text", ["", "/s", "-1/s", "5/day", "inf/s", "nan", "1/s/s"])
def test_invalid_rate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a rate above 0"):
        parse_rate(text)


def test_mixes() -> None:
    assert parse_mix("put=1, get=3") == {Verb.PUT: 0.25, Verb.GET: 0.75}
    for text in ("", "put", "put=-1", "put=0", "put=1,,", "get=nan"):
        with pytest.raises(ValueError, match="expected"):
            parse_mix(text)
    with pytest.raises(ValueError, match="get is given twice"):
        parse_mix("put=25,get=50,get=25")


def test_command_of_the_same_test_gives_each_spec_as_one_word() -> None:
    specs = ["s3:bench?a=1&b=2", "folder:/tmp/my (old) files"]
    assert shlex.split(write_command(specs)) == [
        "pytest", "test_own.py", "--provider", specs[0], "--provider", specs[1]
    ]  # fmt: skip
