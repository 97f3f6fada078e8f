"""The ``cloudbench`` command as a user runs it."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from pytest_cloudbench import __version__
from pytest_cloudbench.commands import cli
from pytest_cloudbench.drivers.folder import FolderDriver
from pytest_cloudbench.model import ResultsError
from pytest_cloudbench.plugin.configs.bench import parse_bench
from pytest_cloudbench.results import journal
from pytest_cloudbench.results.owner import owner_text
from tests.limits import HANG_S
from tests.net.traffic import craft
from tests.net.traffic.craft import START_NS, Segment
from tests.odd_files import make_odd_file
from tests.results import stored_runs
from tests.runs import SPREAD, Spread

COMMAND = [sys.executable, "-m", "pytest_cloudbench.commands.cli"]


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
        env={**os.environ, **environment},
    )


def test_version_and_help() -> None:
    assert run("--version").stdout.strip() == f"pytest-cloudbench {__version__}"
    assert {"emulate", "clean", "new", "schema"} <= set(run("--help").stdout.split())


def test_cli_without_arguments_shows_common_commands() -> None:
    """Each command in the text exists, and its lines have at most 80 columns."""
    done = run()
    assert done.returncode == 0
    assert max(map(len, done.stdout.splitlines())) <= 80
    commands = re.findall(r" cloudbench ([a-z]+)", done.stdout)
    assert commands == ["doctor", "put", "new", "show", "report"]
    assert set(commands) <= set(run("--help").stdout.split())


@pytest.mark.parametrize(
    "words",
    [
        ["analyze", "fixtures/captures/loss-up.pcapng", "--rules", "no-such/file"],
        ["new", "no-such/file.bench.toml"],
        ["baseline", "export", "no-such/file", "--storage", "{storage}"],
    ],
    ids=["rules", "new", "export"],
)
def test_a_path_that_cannot_be_used_is_named_once(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    stored_runs.store_series(tmp_path, [0.1])
    assert cli.main([word.format(storage=tmp_path) for word in words]) in (1, 4)
    error = capsys.readouterr().err
    assert error.count("no-such/file") == 1, error
    assert "No such file or directory" in error
    assert "Errno" not in error


@pytest.mark.parametrize("words", [["baseline", "export", "{}"], ["report", "last", "-o", "{}"]])
@pytest.mark.parametrize("folder", [".", "/", "folder", ""])
def test_a_folder_in_place_of_a_file_is_named(
    words: list[str], folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    stored_runs.store_series(tmp_path / "results", [0.1])
    assert cli.main([*(word.format(folder) for word in words), "--storage", "results"]) == 1
    assert capsys.readouterr().err.strip().endswith("Is a directory")
    assert {path.name for path in tmp_path.iterdir()} == {"folder", "results"}


@pytest.mark.parametrize(
    "words",
    ["show {}", "compare {} last", "export {} --format csv", "report {}", "published --run {}", "estimate {}",
     "history --storage {}"],
)  # fmt: skip
def test_a_name_that_no_file_can_have_is_reported_in_one_line(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    stored_runs.store_series(tmp_path / "results", [0.1])
    assert cli.main(words.format("a" * 300).split()) == 1
    assert capfd.readouterr().err == f"cloudbench: {'a' * 300}: File name too long\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
@pytest.mark.parametrize("words", ["published", "show last", "export last --format csv", "baseline list"])
def test_output_that_cannot_be_written_is_reported_in_one_line(words: str, tmp_path: Path) -> None:
    stored_runs.store_series(tmp_path / "results", [0.1])
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COMMAND, *words.split()], stdout=full, stderr=subprocess.PIPE, text=True, timeout=HANG_S, check=False,
            cwd=tmp_path,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "cloudbench: No space left on device"
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="needs a shell of POSIX")
@pytest.mark.parametrize("words", ["published", "show last", "export last --format csv", "report last", "--help"])
def test_a_closed_output_is_no_error(words: str, tmp_path: Path) -> None:
    stored_runs.store_series(tmp_path / "results", [0.1])
    done = subprocess.run(
        ["/bin/sh", "-c", f"{shlex.join(COMMAND)} {words} >&-"], stderr=subprocess.PIPE, text=True, timeout=HANG_S,
        check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [["published", "uds-2013-table-1"], ["--help"]])
def test_what_the_output_cannot_encode_is_escaped(words: list[str]) -> None:
    """As on a terminal of Windows, or with LC_ALL=C and without Python's UTF-8 mode."""
    done = run(*words, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert ("\\u03b1" in done.stdout) == ("published" in words)


@pytest.mark.parametrize("words", [["emulate", "no-such-api"], ["emulate", "dropbox", "--profile", "no-such-profile"]])
def test_bad_input_is_reported_in_one_line(words: list[str]) -> None:
    done = run(*words)
    assert done.returncode == 4
    assert len(done.stderr.splitlines()) == 1
    assert words[-1] in done.stderr
    assert "dropbox" in done.stderr, "what there is instead"
    assert not done.stdout


@pytest.mark.parametrize("command", ["machine", "gate power", "baseline list"])
def test_too_many_words_show_the_usage_of_their_command(command: str) -> None:
    done = run(*command.split(), "too", "many")
    assert done.returncode == 4
    assert done.stderr.startswith(f"usage: cloudbench {command} [-h]")
    assert done.stderr.endswith(f"cloudbench {command}: error: unrecognized arguments: too many\n")


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
        keys = "urls credentials ca_file control api proxy control_token_file profile pid"
        assert set(keys.split()) == set(ready)
        assert Path(ready["ca_file"]).is_file()
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=HANG_S)
    finally:
        process.kill()
    assert (process.returncode, output, errors) == (0, "", "")
    assert not Path(ready["ca_file"]).exists()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A provider's folder, and an empty journal."""
    monkeypatch.setenv("CLOUDBENCH_JOURNAL", str(tmp_path / "journal.jsonl"))
    (tmp_path / "store").mkdir()
    return tmp_path / "store"


def _write_left_folder(store: Path, run: str = "x", marker: str | None = journal.MARKER, marker_text: str = "") -> Path:
    """Write the folder that a killed run leaves at its provider, and its entry in the journal."""
    folder = store / f"cloudbench-{run}"
    (folder / "test" / "deep").mkdir(parents=True)
    (folder / "test" / "deep" / "file").write_bytes(b"left")
    if marker:
        (folder / marker).write_text(marker_text or run)
    journal.note_folder(f"folder:{store}", f"/cloudbench-{run}")
    return folder


@pytest.mark.parametrize("marker", [journal.MARKER, f"..{journal.marker_beside('/cloudbench-x')}"])
def test_clean_removes_folder_of_killed_run(
    store: Path, marker: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = _write_left_folder(store, marker=marker)
    (store / "mine").write_bytes(b"not ours")
    journal.note_folder(f"folder:{store}", "/cloudbench-gone")
    monkeypatch.chdir("/")
    assert cli.main(["clean", "--dry-run"]) == 0
    assert folder.exists()
    assert cli.main(["clean"]) == 0
    assert capsys.readouterr().out.endswith("2 folders removed\n")
    assert [path.name for path in store.iterdir()] == ["mine"]
    assert journal.pending_folders() == ([], [])


def _run_pytest(folder: Path, test: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on one test in a folder."""
    (folder / "test_it.py").write_text(textwrap.dedent(test))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=HANG_S, check=False)


@pytest.mark.parametrize("command", [["clean"], ["clean", "--force"]])
def test_clean_leaves_the_folder_of_a_run_that_lives(store: Path, command: list[str]) -> None:
    """The test itself runs the command, between the start and the end of its run."""
    done = _run_pytest(
        store.parent,
        f"""
        import subprocess, sys
        from pytest_cloudbench.workload.arrival import FixedInterval
        def test_alive(experiment, payloads):
            def run():
                return experiment.run(
                    payloads.random(10), arrival=FixedInterval(0.01), sensors=1, ops_per_sensor=3, keep=True
                )
            run().check()
            asked = subprocess.run([*{COMMAND!r}, *{command!r}], capture_output=True, text=True)
            assert asked.stdout.endswith(": still running\\n0 folders removed\\n"), asked
            assert asked.returncode == 0
            run().check()
        """,
        "--provider=folder:store",
    )
    assert done.returncode == 0, done.stdout


def test_clean_of_a_run_that_may_live_elsewhere_is_forced(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = _write_left_folder(store)
    elsewhere = json.dumps(["another-host", "boot", "pid:[1]", 1, 1])
    journal.note_folder(f"folder:{store}", "/cloudbench-x", elsewhere)
    assert cli.main(["clean"]) == 0
    assert "may run on another machine or in a container; see --force" in capsys.readouterr().out
    assert folder.exists()
    assert cli.main(["clean", "--force"]) == 0
    assert not folder.exists()
    assert journal.pending_folders() == ([], [])


def test_a_killed_run_with_a_relative_folder_is_cleaned_from_another_one(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run, which is killed in the middle, wrote the journal itself, and the marker before all other files."""
    (tmp_path / "here").mkdir()
    killed = _run_pytest(
        tmp_path,
        """
        import os, signal
        from pytest_cloudbench.workload.arrival import FixedInterval
        def test_killed(experiment, payloads):
            experiment.run(payloads.random(10), arrival=FixedInterval(0.01), sensors=1, ops_per_sensor=3, keep=True)
            os.kill(os.getpid(), signal.SIGKILL)
        """,
        "--provider=folder:here",
    )
    assert killed.returncode == -signal.SIGKILL
    paths = list((tmp_path / "here").rglob("*"))
    assert sum(path.is_file() and path.name != journal.MARKER for path in paths) == 3
    monkeypatch.chdir(store)
    assert cli.main(["clean"]) == 0
    assert list((tmp_path / "here").iterdir()) == []


@SPREAD
def test_a_run_leaves_the_folder_as_it_was(tmp_path: Path, store: Path, spread: Spread) -> None:
    (store / "deep" / "root").mkdir(parents=True)
    ran = _run_pytest(
        tmp_path,
        """
        from pytest_cloudbench.workload.arrival import FixedInterval
        def test_one(experiment, payloads):
            for _ in range(2):
                experiment.run(payloads.random(10), arrival=FixedInterval(0.01), sensors=2, ops_per_sensor=2, keep=True)
        """,
        f"--provider=folder:{store}/deep/root",
        *spread,
    )
    assert ran.returncode == 0, ran.stdout
    assert [path.name for path in sorted(store.rglob("*"))] == ["deep", "root"]
    assert journal.pending_folders() == ([], [])


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("/keep", "does not have the name of a run's folder: left alone"),
        ("/", "does not have the name of a run's folder: left alone"),
        ("/cloudbench-x/../keep", "does not have the name of a run's folder: left alone"),
        ("/keep/cloudbench-x", "does not have the name of a run's folder: left alone"),
        ("/cloudbench-x\n", "does not have the name of a run's folder: left alone"),
        ("/cloudbench-none", "has no marker of run none: left alone, since it may not be a run's"),
        ("/cloudbench-other", "has no marker of run other: left alone, since it may not be a run's"),
        ("/cloudbench-folder", "has no marker of run folder: left alone, since it may not be a run's"),
        ("/cloudbench-pipe", "has no marker of run pipe: left alone, since it may not be a run's"),
        ("/cloudbench-file", "has no marker of run file: left alone, since it may not be a run's"),
    ],
)
def test_clean_keeps_folders_without_valid_name_and_marker(
    store: Path, folder: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (store / "keep").mkdir()
    _write_left_folder(store / "keep")
    _write_left_folder(store, "none", marker=None)
    _write_left_folder(store, "other", marker_text="another")
    (_write_left_folder(store, "folder", marker=None) / journal.MARKER).mkdir()
    os.mkfifo(_write_left_folder(store, "pipe", marker=None) / journal.MARKER)
    (store / "cloudbench-file").write_text("file")
    journal.journal_path().unlink()
    before = sorted(store.rglob("*"))
    journal.note_folder(f"folder:{store}", folder)
    assert cli.main(["clean"]) == 1
    output = capsys.readouterr()
    assert (output.err.count("\n"), message in output.err) == (1, True), output.err
    assert sorted(store.rglob("*")) == before
    assert journal.pending_folders()[0] == [journal.LeftFolder(f"folder:{store}", folder)]


def test_one_entry_that_cannot_be_cleaned_does_not_stop_the_others(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("ACCESS_TOKEN", "REFRESH_TOKEN", "APP_KEY"):
        monkeypatch.delenv(f"CLOUDBENCH_DROPBOX_{name}", raising=False)
    journal.note_folder("dropbox?token_env=NOT_SET", "/cloudbench-x")
    journal.note_folder("nowhere:/a\x1b[31m", "/cloudbench-x")
    folder = _write_left_folder(store)
    assert cli.main(["clean"]) == 1
    output = capsys.readouterr()
    assert output.out.endswith("1 folder removed\n")
    assert len(output.err.splitlines()) == 2
    assert "\x1b" not in output.out + output.err
    assert not folder.exists()
    assert [entry.provider.partition(":")[0] for entry in journal.pending_folders()[0]] == [
        "dropbox?token_env=NOT_SET",
        "nowhere",
    ]


def test_a_foreign_error_of_a_driver_does_not_stop_the_others(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def delete(driver: FolderDriver, path: str) -> None:
        if path.startswith("/cloudbench-a"):
            raise ValueError("two\nlines")
        delete_folder(driver, path)

    delete_folder = FolderDriver.delete
    monkeypatch.setattr(FolderDriver, "delete", delete)
    _write_left_folder(store, "a")
    _write_left_folder(store, "b")
    assert cli.main(["clean"]) == 1
    output = capsys.readouterr()
    assert output.out.endswith("1 folder removed\n")
    assert ": FolderDriver raised ValueError: two lines (test_cli.py, line " in output.err
    assert output.err.count("\n") == 1


def test_an_entry_that_can_never_be_cleaned_can_be_crossed_out(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = _write_left_folder(store)
    journal.note_folder("nowhere:a b", "/cloudbench-x")
    assert cli.main(["clean", "--forget", "nowhere:a", "/cloudbench-x"]) == 4
    assert "not in the journal" in capsys.readouterr().err
    assert cli.main(["clean"]) == 1
    hint = capsys.readouterr().err.strip().partition("(if nothing is there: cloudbench ")[2].rstrip(")")
    assert not folder.exists(), "that of another provider is cleaned"
    assert shlex.split(hint) == ["clean", "--forget", "nowhere:a b", "/cloudbench-x"]
    assert cli.main(shlex.split(hint)) == 0
    assert "crossed out" in capsys.readouterr().out
    assert journal.pending_folders() == ([], [])
    assert cli.main(["clean"]) == 0


def test_a_journal_is_shown_without_the_secrets_in_it(store: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert store.is_dir()
    journal.note_folder("opendal:s3?bucket=b&secret_access_key=hush-hush&unknown=1", "/cloudbench-x")
    assert cli.main(["clean", "--dry-run"]) == 0
    assert cli.main(["clean"]) == 1
    shown = capfd.readouterr()
    assert "hush" not in shown.out + shown.err
    hint = shown.err.strip().partition("(if nothing is there: cloudbench ")[2].rstrip(")")
    assert cli.main(shlex.split(hint)) == 0
    assert journal.pending_folders() == ([], [])


@pytest.mark.parametrize(
    "words",
    [["emulate"], ["login"], ["locate"], ["doctor"], ["raid", "status"], ["clean", "--forget", "--", "/cloudbench-x"]],
    ids=" ".join,
)
def test_a_command_that_fails_shows_no_secret(store: Path, words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    spec = "opendal:s3?bucket=b&unknown=1&secret_access_key=hush-hush"
    command = [spec if word == "--" else word for word in words]
    assert cli.main(command if spec in command else [*command, spec]) in {1, 4}
    shown = capfd.readouterr()
    assert "hush" not in shown.out + shown.err


def test_the_folder_of_a_run_that_lives_is_not_crossed_out(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal.note_folder(f"folder:{store}", "/cloudbench-x", owner_text())
    assert cli.main(["clean", "--forget", f"folder:{store}", "/cloudbench-x"]) == 4
    assert "still running" in capsys.readouterr().err
    assert len(journal.pending_folders()[0]) == 1


_NOT_ENTRIES = [
    b'{"provider": "fol',
    b"\xff\xfe\x00",
    b"[" * 100_000,
    b"null",
    b"7",
    b'["provider", "folder"]',
    b'{"provider": 7, "folder": "/cloudbench-x"}',
    b'{"provider": "folder:/", "folder": ["/cloudbench-x"]}',
    b'{"folder": "/cloudbench-x"}',
    b'{"provider": "folder:/", "folder": "/cloudbench-x", "owner": 7}',
]


@pytest.mark.parametrize("line", _NOT_ENTRIES, ids=range(len(_NOT_ENTRIES)))
def test_malformed_journal_entry_is_reported_in_one_line(
    store: Path, line: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    journal.journal_path().write_bytes(line)
    folder = _write_left_folder(store)
    assert cli.main(["clean"]) == 1
    output = capsys.readouterr()
    assert output.err == f"cloudbench: {journal.journal_path()}: line 1 is not an entry of a journal: skipped\n"
    assert not folder.exists()


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "huge"])
def test_unusable_journal_is_reported_in_one_line(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_odd_file(tmp_path, kind)
    monkeypatch.setenv("CLOUDBENCH_JOURNAL", str(path))
    assert cli.main(["clean"]) == 1
    output = capsys.readouterr()
    assert (output.out, output.err.count("\n")) == ("0 folders removed\n", 1)
    with pytest.raises(ResultsError, match="cannot write the journal"):
        journal.note_folder("folder:x", "/cloudbench-x")


def test_unwritable_journal_is_reported_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("CLOUDBENCH_JOURNAL", str(tmp_path / "file" / "journal.jsonl"))
    with pytest.raises(ResultsError, match="CLOUDBENCH_JOURNAL"):
        journal.note_folder("folder:x", "/cloudbench-x")


def test_new_writes_an_example_that_is_read_and_names_the_schema(tmp_path: Path) -> None:
    done = subprocess.run([*COMMAND, "new"], cwd=tmp_path, capture_output=True, text=True, timeout=HANG_S, check=False)
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
    assert "the file exists and was not changed; give another name" in done.stderr
    assert (tmp_path / "mine.bench.toml").read_text("utf-8") == "mine"


@pytest.mark.parametrize(
    ("name", "words"), [("mine.toml", "ends in .bench.toml"), ("no/x.bench.toml", "cannot be written")]
)
def test_new_refuses_unusable_path_in_one_line(name: str, words: str, tmp_path: Path) -> None:
    done = run("new", str(tmp_path / name))
    assert (done.returncode, done.stdout) == (4, "")
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def write_many_flows(path: Path) -> Path:
    segments = [Segment(START_NS + port, True, 1, data=b"x", client_port=port) for port in range(1024, 3024)]
    path.write_bytes(craft.pcap(craft.records(segments)))
    return path


@pytest.mark.skipif(sys.platform == "win32", reason="pipes of a shell")
@pytest.mark.parametrize(
    "words",
    [["analyze", "FILE", "--json"], ["analyze", "FILE"], ["schema"], ["new", "-"], ["--help"], ["analyze", "--help"]],
)
def test_a_reader_that_goes_early_gets_no_traceback(tmp_path: Path, words: list[str]) -> None:
    path = write_many_flows(tmp_path / "many.pcap")
    command = [
        sys.executable,
        "-m",
        "pytest_cloudbench.commands.cli",
        *(str(path) if word == "FILE" else word for word in words),
    ]
    reading, writing = os.pipe()
    os.close(reading)  # closed before the first output
    try:
        ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=HANG_S, check=False)
    finally:
        os.close(writing)
    assert ended.stderr == ""
    assert ended.returncode == 141 or "--help" in words  # argparse may ignore the error


@pytest.mark.skipif(sys.platform == "win32", reason="pipes of a shell")
def test_analyze_ends_quietly_when_its_reader_leaves(tmp_path: Path) -> None:
    path = write_many_flows(tmp_path / "many.pcap")
    command = [sys.executable, "-m", "pytest_cloudbench.commands.cli", "analyze", str(path), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.read(4)
        process.stdout.close()
        assert (first, process.stderr.read(), process.wait(HANG_S)) == (b'{\n "', b"", 141)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of a terminal")
@pytest.mark.usefixtures("ctrl_c")
def test_an_interrupted_command_ends_in_one_line() -> None:
    command = [sys.executable, "-m", "pytest_cloudbench.commands.cli", "login", "s3"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        asked = process.stdout.read(3)
        process.send_signal(signal.SIGINT)
        errors = process.stderr.read().decode()
        assert (asked, process.wait(HANG_S), errors) == (b"1: ", 130, "\ncloudbench: interrupted\n")


def test_ctrl_d_at_a_question_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stored_runs.store(tmp_path, 1, {"t.py::test_put": stored_runs.info()})
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    assert cli.main(["baseline", "accept", "last", "--storage", str(tmp_path)]) == 1
    assert "nothing is changed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["analyze", "none.pcap", "--changed-at", "nan"], "--changed-at nan: expected seconds"),
        (["analyze", "none.pcap", "--canary", ""], "--canary: expected a text"),
        (["line", "--provider", "folder:.", "--seconds", "inf"], "--seconds above 0"),
        (["line", "none.toml", "--patience", "inf"], "--patience inf: expected seconds"),
        (["hosts", "check", "none.toml", "--patience", "0"], "--patience 0: expected seconds"),
        (["hosts", "install", "none.toml", "--patience", "nan"], "--patience nan: expected seconds"),
        (["emulate", "dropbox", "--time-scale", "nan"], "--time-scale nan: expected a number above 0"),
        (["emulate", "dropbox", "--port", "99999"], "--port 99999: expected a number from 0 to 65535"),
    ],
)
def test_numbers_that_are_none_are_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 4
    assert message in capsys.readouterr().err
