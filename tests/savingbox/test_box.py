"""The batching folder on the real clock, in a thread and as a command, with processes that are really killed."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.commands.cli import main
from pytest_cloudbench.model import UsageError
from pytest_cloudbench.savingbox import side
from pytest_cloudbench.savingbox.batching.batcher import Batcher, BatchRules, Change, pushes
from pytest_cloudbench.savingbox.box import Event, SavingBox, read_status, state_path
from pytest_cloudbench.savingbox.engine import Trouble
from pytest_cloudbench.savingbox.side import FolderSide
from pytest_cloudbench.support.clock import now_ns, sleep_until_ns, wait_for
from pytest_cloudbench.support.watching import Inotify
from tests.limits import HANG_S
from tests.savingbox.pairs import are_equal, save, texts, tree, write

S = 1_000_000_000
QUICK = BatchRules(limit_bytes=20 * 1024, quiet_ns=S // 4, at_most_ns=S)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "box").mkdir()
    (tmp_path / "sync").mkdir()
    return tmp_path


class Running:
    def __init__(self, home: Path, rules: BatchRules = QUICK) -> None:
        self.home, self.events = home, list[Event]()
        self.box = SavingBox(home / "box", home / "sync", rules, state=home / "state", report=self.events.append)

    def wait(self, condition: Callable[[], bool]) -> None:
        assert wait_for(condition, HANG_S, poll_s=0.02), (self.events, self.box.status())

    def wait_equal(self) -> dict[str, str]:
        self.wait(lambda: are_equal(self.home))
        return texts(self.home / "box")


@pytest.fixture
def running(home: Path) -> Iterator[Running]:
    new_running = Running(home)
    new_running.box.start()
    yield new_running
    new_running.box.stop()


def test_both_ways_while_it_runs(running: Running, home: Path) -> None:
    write(home / "box/d/a", "1")
    write(home / "sync/theirs", "2")
    assert running.wait_equal() == {"d/a": "1", "theirs": "2"}
    (home / "box/d").rename(home / "box/e")
    running.wait_equal()
    save(home / "box/e/a", "saved")
    assert running.wait_equal() == {"e/a": "saved", "theirs": "2"}

    def is_deleted() -> bool:
        (home / "sync/e/a").unlink(missing_ok=True)  # again if it met the save, which outlives a deletion
        return not (home / "box/e/a").exists()

    running.wait(is_deleted)
    status = running.box.status()
    assert (status.state, status.watching, status.mechanism) == ("watching", "inotify", "compare")
    assert (status.pushes, status.conflicts) == (len(running.box.pushes), 0)
    assert status.trouble == ()


def test_stop_pushes_waiting_changes(home: Path) -> None:
    running = Running(home, BatchRules(quiet_ns=3600 * S, at_most_ns=3600 * S))
    running.box.start()
    write(home / "box/a", "1")
    running.box.stop()
    running.box.stop()
    assert texts(home / "sync") == {"a": "1"}
    assert [push.why for push in running.box.pushes] == ["asked"]
    status = read_status(running.box.state_path)
    assert status is not None
    assert (status.state, status.is_running, status.pushes) == ("stopped", False, 1)


def test_as_many_pushes_as_the_rules_give(running: Running, home: Path) -> None:
    """A burst of changes comes first, then changes with gaps. Random bytes make the counter equal their number."""
    noise = random.Random(7)
    changes = []
    path = home / "box/log"
    path.write_bytes(b"")
    running.wait((home / "sync/log").exists)
    count = len(running.box.pushes)
    start_ns = now_ns()
    dues_ns = [start_ns + index * S // 20 for index in range(40)]
    dues_ns += [dues_ns[-1] + (index + 1) * S * 6 // 10 for index in range(2)]
    with path.open("ab", buffering=0) as file:
        for due_ns in dues_ns:
            sleep_until_ns(due_ns)
            file.write(noise.randbytes(2048))
            changes.append(Change(now_ns(), "log", 2048))
    running.wait(lambda: path.read_bytes() == (home / "sync/log").read_bytes())
    if max(change.at_ns - due_ns for change, due_ns in zip(changes, dues_ns, strict=True)) > S // 10:
        pytest.skip("the machine was too late to write at the times that were meant")
    expected = len(list(pushes(Batcher(QUICK), changes)))
    assert expected == 4 + 2
    assert abs(len(running.box.pushes) - count - expected) <= 1, running.box.pushes


def test_a_vanished_sync_folder_is_waited_for(running: Running, home: Path) -> None:
    write(home / "box/a", "1")
    running.wait_equal()
    (home / "sync").rename(home / "elsewhere")
    write(home / "box/b", "2")
    running.wait(lambda: running.box.status().state == "waiting")
    assert texts(home / "box") == {"a": "1", "b": "2"}
    assert any(isinstance(event, Trouble) and event.kind == "vanished" for event in running.events)
    (home / "elsewhere").rename(home / "sync")
    assert running.wait_equal() == {"a": "1", "b": "2"}


def test_a_sync_folder_made_anew_is_filled_again(running: Running, home: Path) -> None:
    write(home / "box/a", "1")
    running.wait_equal()
    (home / "sync").rename(home / "gone")
    running.wait(lambda: running.box.status().state == "waiting")
    (home / "sync").mkdir()
    assert running.wait_equal() == {"a": "1"}


def test_folders_with_long_names_are_kept_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side, "_MOST_PATCHED_PAGES", 0)  # files are replaced, which takes a name beside the folder
    box, sync = tmp_path / ("名" * 80), tmp_path / ("同" * 80)
    for folder in (box, sync):
        folder.mkdir()
    for text in ("1", "2"):
        write(box / "a", text)
        assert SavingBox(box, sync, state=tmp_path / "state").once()
        assert texts(sync) == {"a": text}
    status = read_status(state_path(box, sync, tmp_path / "state"))
    assert status is not None
    assert status.pushes == 1


def test_a_state_file_with_a_longer_name_is_still_used(tmp_path: Path) -> None:
    box, sync, state = tmp_path / ("b" * 150), tmp_path / "sync", tmp_path / "state"
    for folder in (box, sync, state):
        folder.mkdir()
    path = state_path(box, sync, state)
    longer = path.with_name(path.name.replace("b" * 100, "b" * 150))
    assert longer != path
    longer.touch()
    assert state_path(box, sync, state) == longer


@pytest.mark.parametrize("method", ["__init__", "add"])
def test_without_events_it_scans(home: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    def no_more(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Inotify, method, no_more)
    running = Running(home)
    running.box.start()
    write(home / "box/a", "1")
    assert running.wait_equal() == {"a": "1"}
    write(home / "sync/b", "2")
    running.wait((home / "box/b").exists)
    assert running.box.status().watching == "polling"
    assert any("scanned from time to time" in text for text in running.box.status().trouble)
    running.box.stop()


# --- the command ---


def command_line(home: Path) -> list[str | Path]:
    words: list[str | Path] = [
        sys.executable,
        "-m",
        "pytest_cloudbench.commands.cli",
        "savingbox",
        home / "box",
        home / "sync",
    ]
    return [*words, "--state", home / "state", "--quiet", "200ms", "--at-most", "1s"]


def start_command(home: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen([*command_line(home), *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def read_events(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=HANG_S)
    return process.returncode, out, err


@pytest.mark.slow
def test_command_reports_events_as_json_and_ends_at_sigterm(home: Path) -> None:
    process = start_command(home, "--json")
    events = read_events(process)
    ready = next(events)
    assert (ready["event"], ready["watching"], ready["quiet_s"]) == ("ready", "inotify", 0.2)
    assert ready["state_file"] == str(state_path(home / "box", home / "sync", home / "state"))
    write(home / "box/a", "text")
    push = next(events)
    assert (push["event"], push["number"], push["why"], push["files"]) == ("push", 1, "quiet", 1)
    assert push["written_bytes"] == 4
    status = subprocess.run(
        [*command_line(home), "--status"], capture_output=True, text=True, check=False,
        timeout=HANG_S,
    )  # fmt: skip
    assert status.returncode == 0, status.stderr
    assert "watching" in status.stdout
    second = start_command(home, "--once")
    assert finish(second)[0] == 4
    swapped = [*command_line(home)[:4], home / "sync", home / "box", "--state", home / "another", "--once"]
    finished = subprocess.run(swapped, capture_output=True, text=True, check=False, timeout=HANG_S)
    assert finished.returncode == 4
    assert finished.stderr.endswith("another savingbox is running on these folders; end it first\n")
    write(home / "box/b", "late")
    process.send_signal(signal.SIGTERM)
    *others, stopped = events
    assert [event["event"] for event in others] == ["push"]
    assert (stopped["event"], stopped["unpushed_files"]) == ("stopped", 0)
    assert finish(process)[0] == 0
    assert texts(home / "sync") == {"a": "text", "b": "late"}
    for options in (["--status"], ["--status", "--json"]):
        finished = subprocess.run(
            [*command_line(home), *options], capture_output=True, text=True, check=False, timeout=HANG_S
        )
        assert finished.returncode == 1, "none runs"


def test_once_makes_both_folders_equal(home: Path) -> None:
    write(home / "box/a", "1")
    write(home / "sync/d/b", "2")
    status, out, err = finish(start_command(home, "--once"))
    assert (status, err) == (0, "")
    assert out.splitlines()[-1].startswith(
        "pushes: 1; pushed: 1, 1 byte written; taken in: 2; conflicts: 0; waiting: 0; changed bytes by "
    )
    status, out, err = finish(start_command(home, "--once", "--ranges", "compare"))
    assert out.endswith("; waiting: 0; changed bytes by compare (asked for by --ranges compare)\n")
    assert texts(home / "box") == texts(home / "sync") == {"a": "1", "d/b": "2"}


def test_the_bytes_of_a_full_batch_are_a_lower_bound(home: Path) -> None:
    (home / "box/a").write_bytes(random.Random(1).randbytes(2_000_000))
    _, out, _ = finish(start_command(home, "--once"))
    assert re.match(r"push 1 \(bytes\): 1 changed, at least [25]\d\d,\d{3} bytes compressed, 2,000,000 written,", out)


def test_once_is_done_at_once_with_files_of_this_moment(home: Path) -> None:
    for count in range(8):
        write(home / "box/a", f"{count}")
        (home / "sync/b").write_text(f"{count}")
        (home / "sync/new").write_text(f"{count}")
        (home / "sync/new").rename(home / f"sync/{count}")
        assert SavingBox(home / "box", home / "sync", state=home / "state").once()
        assert tree(home / "box") == tree(home / "sync")


def test_once_says_that_it_left_a_folder_alone(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    list_rows = FolderSide._list_rows

    def refuse(side: FolderSide, folder: str, open_folders: list[str]) -> list[bytes]:
        if folder == "closed":  # permissions do not bind root, who runs many of these tests
            raise PermissionError(errno.EACCES, "Permission denied")
        return list_rows(side, folder, open_folders)

    write(home / "box/closed/a", "1")
    write(home / "box/b", "2")
    words = ["savingbox", str(home / "box"), str(home / "sync"), "--once", "--state", str(home / "state")]
    with monkeypatch.context() as patched:
        patched.setattr(FolderSide, "_list_rows", refuse)
        for _ in range(2):
            assert main(words) == 1
            assert "failed: 'closed' cannot be read (Permission denied) and is left alone\n" in capsys.readouterr().out
            assert texts(home / "sync") == {"b": "2"}
    assert main(words) == 0
    assert are_equal(home)


def test_command_fails_if_it_ends_while_a_folder_is_gone(home: Path) -> None:
    process = start_command(home, "--json")
    events = read_events(process)
    assert next(events)["event"] == "ready"
    (home / "sync").rename(home / "elsewhere")
    write(home / "box/a", "1")
    process.send_signal(signal.SIGTERM)
    assert "what has changed meanwhile is pushed at the next start" in [*events][-2]["text"]
    assert finish(process)[0] == 1


def test_run_returns_false_if_the_folders_cannot_be_read_at_the_end(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    running = Running(home)
    running.box.stop()
    monkeypatch.setattr(FolderSide, "find_all_entries", fail)
    assert running.box.run() is False


def test_run_returns_false_if_a_file_of_the_client_cannot_be_taken_in_at_the_end(home: Path) -> None:
    running = Running(home)
    running.box.stop()
    write(home / "sync/b", "2")
    with (home / "sync/a").open("w") as file:
        file.write("half of it")
        file.flush()
        assert running.box.run() is False
    assert texts(home / "box") == {"b": "2"}
    assert (
        Trouble("failed", "1 entry of the client could not be taken in, such as 'a'; the next start does it")
        in running.events
    )
    running = Running(home)
    running.box.stop()
    assert running.box.run() is True
    assert texts(home / "box") == {"a": "half of it", "b": "2"}


@pytest.mark.parametrize("name", ["/dev/full", "/dev/null"])
def test_once_is_done_though_its_output_cannot_be_written(home: Path, name: str) -> None:
    if not Path(name).exists():
        pytest.skip(f"needs {name}, as Linux has it")
    write(home / "box/a", "1")
    write(home / "sync/\u6f22", "2")
    with open(name, "w") as output:
        finished = subprocess.run(
            [*command_line(home), "--once"], stdout=output, stderr=subprocess.PIPE, text=True, check=False,
            timeout=HANG_S, env={**os.environ, "PYTHONIOENCODING": "ascii:strict"},
        )  # fmt: skip
    assert (finished.returncode, finished.stderr) == (0, "")
    assert are_equal(home)


def test_a_closed_terminal_ends_no_savingbox(home: Path) -> None:
    terminal, output = os.openpty()
    process = subprocess.Popen(
        command_line(home), stdout=output, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    os.close(output)
    assert b"watching by" in os.read(terminal, 1 << 16)
    os.close(terminal)
    for name in ("a", "b"):
        write(home / "box" / name, name)
        assert wait_for(lambda: are_equal(home) or process.poll() is not None, HANG_S, poll_s=0.02)
    process.send_signal(signal.SIGTERM)
    assert finish(process)[::2] == (0, "")
    assert texts(home / "sync") == {"a": "a", "b": "b"}


@pytest.mark.slow
def test_sigkill_at_any_time_loses_nothing(home: Path) -> None:
    """A writer keeps writing while savingboxes start and are killed. The last one makes both folders equal."""
    chance = random.Random(11)
    written_contents: dict[str, bytes] = {}
    for _ in range(5):
        process = start_command(home, "--json", "--bytes", "50k")
        next(read_events(process))
        until_ns = now_ns() + chance.randrange(S // 20, S // 2)
        while now_ns() < until_ns:
            name = f"file{chance.randrange(6)}"
            content = written_contents.get(name, b"")
            at = chance.randrange(len(content) + 1)
            content = content[:at] + chance.randbytes(30_000) + content[at + 30_000 :]
            (home / "box" / name).write_bytes(content)
            written_contents[name] = content
            sleep_until_ns(now_ns() + S // 100)
        process.kill()
        finish(process)
    assert finish(start_command(home, "--once"))[0] == 0
    box_contents = {path: content for path, (_, _, content) in tree(home / "box").items()}
    assert sorted(box_contents) == sorted(written_contents), "only the writer changes anything, so nothing conflicts"
    assert [path for path in box_contents if box_contents[path] != written_contents[path]] == []
    assert are_equal(home)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "sync"], "savingbox 'nowhere': there is no such folder"),
        (["box", "nowhere"], "sync folder 'nowhere': there is no such folder"),
        (["box", "file"], "sync folder 'file': expected a folder"),
        (["box", "sync", "--delay-at-most", "1s"], "--delay-at-most 1s: expected at least --quiet, 5s"),
        (["box", "box"], "is also the sync folder; expected two folders"),
        (["box", "box/inner"], "box/inner': is inside "),
        (["box/inner", "box"], "expected two separate folders"),
        (
            ["box", "sync", "--bytes", "many"],
            "--bytes many: expected a number with k, m or g, such as 250k, above 0 and below 8 EiB",
        ),
        (["box", "sync", "--bytes", "0"], "above 0"),
        (["box", "sync", "--quiet=-5s"], "--quiet -5s: expected a number with ms, s, m, h or d"),
        (["box", "sync", "--at-most", "soon"], "--at-most soon: expected a number with ms, s, m, h or d"),
        *((["box", "sync", option, "9" * 400], f"{option} 999") for option in ("--bytes", "--quiet", "--at-most")),
        (["box", "sync", "--delay-at-most", "9" * 400], "--delay-at-most 999"),
        (["no\nwhere", "sync"], r"savingbox 'no\nwhere': there is no such folder"),
        (["box", "no\nwhere"], r"sync folder 'no\nwhere': there is no such folder"),
        (["box", "fi\nle"], r"sync folder 'fi\nle': expected a folder"),
        (["box/in\nside", "box"], r"/box/in\nside': is inside "),
        (["box/in\nside", "sync", "--status"], r"box/in\nside' 'sync': has never run"),
        (["box", "sync", "--bytes", "1\n2"], r"--bytes '1\n2': expected"),
        (["box", "sync", "--status"], "has never run with these folders"),
    ],
)
def test_bad_input_is_reported_in_one_line(
    home: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("box/inner", "box/in\nside"):
        (home / folder).mkdir()
    for name in ("file", "fi\nle"):
        (home / name).touch()
    monkeypatch.chdir(home)
    assert main(["savingbox", *arguments, "--state", "state"]) == 4
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


@pytest.mark.parametrize("folder", ["box", "box/inner", "sync", "link", ""])
def test_a_state_file_that_would_be_mirrored_is_refused(
    home: Path, folder: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "box"))
    (home / "link").symlink_to("sync")
    options = ["--state", f"{folder}/state"] if folder else []
    assert main(["savingbox", "box", "sync", "--once", *options]) == 4
    (line,) = capsys.readouterr().err.splitlines()
    name = "sync folder" if folder in ("sync", "link") else "savingbox"
    assert re.fullmatch(rf"cloudbench: '.*\.sqlite': is in the {name} '.*', which .*; expected --state FOLDER .*", line)
    assert not tree(home / "box")


def test_nested_folders_are_refused_through_a_bind_mount(home: Path) -> None:
    (home / "box/inner").mkdir()
    (home / "mounted").mkdir()
    finished = subprocess.run(["mount", "--bind", home / "box", home / "mounted"], capture_output=True, check=False)
    if finished.returncode:
        pytest.skip("no mounts here")
    try:
        with pytest.raises(UsageError, match="box/inner': is inside "):
            SavingBox(home / "box/inner", home / "mounted", state=home / "state")
    finally:
        subprocess.run(["umount", home / "mounted"], check=True)


def test_the_example_of_a_unit_starts_the_command_as_it_is() -> None:
    root = Path(__file__).resolve().parents[2]
    text = (root / "examples/savingbox/savingbox@.service").read_text("utf-8")
    (start,) = (line for line in text.splitlines() if line.startswith("ExecStart="))
    (options,) = (line.partition("OPTIONS=")[2] for line in text.splitlines() if "OPTIONS=" in line)
    assert start == "ExecStart=/usr/bin/env cloudbench savingbox ${SAVINGBOX} ${SYNC_FOLDER} $OPTIONS"
    finished = subprocess.run(
        [sys.executable, "-m", "pytest_cloudbench.commands.cli", "savingbox", "/no/box", "/no/sync", *options.split()],
        capture_output=True, text=True, check=False, timeout=HANG_S, env={**os.environ, "XDG_STATE_HOME": "/no/state"},
    )  # fmt: skip
    assert finished.stderr == "cloudbench: savingbox '/no/box': there is no such folder\n"
