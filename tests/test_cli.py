"""The ``cloudbench`` command, run as a user runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_cloudbench import __version__, cli
from pytest_cloudbench.configs.bench import parse_bench
from pytest_cloudbench.model import ResultsError
from pytest_cloudbench.results import journal
from tests.traffic import craft
from tests.traffic.craft import START_NS, Segment

COMMAND = [sys.executable, "-m", "pytest_cloudbench.cli"]


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )


def test_version_and_help() -> None:
    assert run("--version").stdout.strip() == f"pytest-cloudbench {__version__}"
    assert {"emulate", "clean", "new", "schema"} <= set(run("--help").stdout.split())


@pytest.mark.parametrize("words", [["emulate", "no-such-api"], ["emulate", "dropbox", "--profile", "no-such-profile"]])
def test_bad_input_is_one_line(words: list[str]) -> None:
    done = run(*words)
    assert done.returncode == 4
    assert len(done.stderr.splitlines()) == 1
    assert words[-1] in done.stderr
    assert "dropbox" in done.stderr, "what there is instead"
    assert not done.stdout


@pytest.mark.usefixtures("ctrl_c")
def test_emulate_prints_one_json_line_and_ends_on_interrupt() -> None:
    process = subprocess.Popen(
        [*COMMAND, "emulate", "dropbox", "--profile", "ideal"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert {"hosts", "port", "ca_file", "access_token", "control", "control_token_file", "profile", "pid"} == set(
            ready
        )
        assert Path(ready["ca_file"]).is_file()
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, rest, errors) == (0, "", "")
    assert not Path(ready["ca_file"]).exists()


def test_clean_removes_what_a_killed_run_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDBENCH_JOURNAL", str(tmp_path / "journal.jsonl"))
    store = tmp_path / "store"
    (store / "cloudbench-x").mkdir(parents=True)
    (store / "cloudbench-x" / "file").write_bytes(b"left")
    (store / "mine").write_bytes(b"not ours")
    journal.note(f"folder:{store}", "/cloudbench-x")
    journal.note(f"folder:{store}", "/cloudbench-gone")
    assert cli.main(["clean", "--dry-run"]) == 0
    assert (store / "cloudbench-x").exists()
    assert cli.main(["clean"]) == 0
    assert not (store / "cloudbench-x").exists()
    assert (store / "mine").read_bytes() == b"not ours"
    assert journal.pending() == []
    assert not journal.journal_path().exists()


def test_journal_survives_a_torn_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDBENCH_JOURNAL", str(tmp_path / "journal.jsonl"))
    journal.note("folder:x", "/a")
    journal.note("folder:x", "/b")
    journal.forget("folder:x", "/a")
    with journal.journal_path().open("a") as file:
        file.write('{"provider": "fol')
    assert journal.pending() == [("folder:x", "/b")]


def test_a_journal_that_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("CLOUDBENCH_JOURNAL", str(tmp_path / "file" / "journal.jsonl"))
    with pytest.raises(ResultsError, match="CLOUDBENCH_JOURNAL"):
        journal.note("folder:x", "/a")


def test_new_writes_an_example_that_is_read_and_names_the_schema(tmp_path: Path) -> None:
    done = subprocess.run([*COMMAND, "new"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "pytest experiment.bench.toml" in done.stdout
    text = (tmp_path / "experiment.bench.toml").read_text("utf-8")
    assert len(parse_bench(text, "experiment.bench.toml").experiments) == 2
    path = Path(run("schema", "--path").stdout.strip())
    assert text.splitlines()[0] == f"#:schema {path.as_uri()}"
    assert json.loads(path.read_text("utf-8")) == json.loads(run("schema").stdout)
    assert run("new", "-").stdout == text


def test_new_leaves_an_existing_file_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine.bench.toml").write_text("mine", "utf-8")
    done = run("new", str(tmp_path / "mine.bench.toml"))
    assert (done.returncode, done.stdout) == (4, "")
    assert "the file exists and is left as it is; expected another name" in done.stderr
    assert (tmp_path / "mine.bench.toml").read_text("utf-8") == "mine"


@pytest.mark.parametrize(
    ("name", "words"), [("mine.toml", "ends in .bench.toml"), ("no/x.bench.toml", "cannot be written")]
)
def test_new_says_what_is_wrong_in_one_line(name: str, words: str, tmp_path: Path) -> None:
    done = run("new", str(tmp_path / name))
    assert (done.returncode, done.stdout) == (4, "")
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def many_flows(path: Path) -> Path:
    segments = [Segment(START_NS + port, True, 1, data=b"x", client_port=port) for port in range(1024, 3024)]
    path.write_bytes(craft.pcap(craft.records(segments)))
    return path


@pytest.mark.skipif(sys.platform == "win32", reason="pipes of a shell")
@pytest.mark.parametrize(
    "words",
    [["analyze", "FILE", "--json"], ["analyze", "FILE"], ["schema"], ["new", "-"], ["--help"], ["analyze", "--help"]],
)
def test_a_reader_that_goes_early_gets_no_traceback(tmp_path: Path, words: list[str]) -> None:
    path = many_flows(tmp_path / "many.pcap")
    command = [
        sys.executable,
        "-m",
        "pytest_cloudbench.cli",
        *(str(path) if word == "FILE" else word for word in words),
    ]
    reading, writing = os.pipe()
    os.close(reading)  # gone before the first word
    try:
        ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    finally:
        os.close(writing)
    assert ended.stderr == ""
    assert ended.returncode == 141 or "--help" in words  # argparse may take it for nothing


@pytest.mark.skipif(sys.platform == "win32", reason="pipes of a shell")
def test_what_was_read_before_it_went_is_right(tmp_path: Path) -> None:
    path = many_flows(tmp_path / "many.pcap")
    command = [sys.executable, "-m", "pytest_cloudbench.cli", "analyze", str(path), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.read(4)
        process.stdout.close()
        assert (first, process.stderr.read(), process.wait(60)) == (b'{\n "', b"", 141)
