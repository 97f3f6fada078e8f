"""Conformance of all clients: every change in the folder reaches the server, and nothing is left behind."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pytest_cloudbench.lab.clients.base import CAPABILITIES, Proof
from pytest_cloudbench.lab.clients.processes import End, Loopback, find_binary
from pytest_cloudbench.lab.clients.watchdog import read_stat
from pytest_cloudbench.model import ClientError
from tests.lab.clients.conftest import Prepare, is_gone, leftovers
from tests.limits import HANG_S

BASIC = [
    *("syncthing", "lsyncd", "rclone"),
    "rsync.toml",
    *(pytest.param(spec, marks=pytest.mark.slow) for spec in ("unison", "restic")),  # each takes 10 s and more
]
# The same code with another option or file; they would take the whole suite over a minute.
VARIANTS = [
    "syncthing?compression=always",
    "lsyncd?over=ssh",
    "unison?over=ssh",
    "rclone?remote=chunker",
    "rclone?remote=compress",
    "rclone?remote=crypt",
    "restic?server=s3",
    "borg.toml",
]
SPECS = [
    *BASIC,
    *(pytest.param(spec, marks=pytest.mark.slow) for spec in VARIANTS),
]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("spec", SPECS)
def test_every_change_arrives(spec: str, prepare: Prepare) -> None:
    pair = prepare(spec)
    try:
        pair.start()
    except ClientError as error:
        if "s3" in spec and "unknown" in str(error):
            pytest.skip("this rclone has no `serve s3`: tools/testbed install rclone, in an environment")
        raise
    random = Random(7)
    large = pair.folder / "large.bin"
    (pair.folder / "kept.txt").write_text("from the first to the last")

    def sync_and_list() -> dict[str, str]:
        pair.after_change()
        assert pair.wait_synced(HANG_S) is Proof.CONTENT
        return pair.held()

    large.write_bytes(random.randbytes(1 << 20))
    created = sync_and_list()
    assert created.keys() == {"kept.txt", "large.bin"}

    with large.open("ab") as file:
        file.write(random.randbytes(64))
    appended = sync_and_list()
    assert appended["large.bin"] != created["large.bin"]

    content = large.read_bytes()
    large.write_bytes(content[:500_000] + random.randbytes(64) + content[500_000:])
    assert sync_and_list()["large.bin"] not in {created["large.bin"], appended["large.bin"]}

    # rclone's WebDAV server answers 423 to one of two uploads that create their folder at the same time. So each folder
    # has one file first.
    for numbers in (range(3), range(3, 20)):
        for number in numbers:
            small = pair.folder / f"folder-{number % 3}" / f"small {number}.txt"
            small.parent.mkdir(exist_ok=True)
            small.write_bytes(random.randbytes(10_000))
        assert len(sync_and_list()) == 2 + numbers.stop

    large.unlink()
    assert "large.bin" not in sync_and_list()

    used_s = pair.cpu_s("client")
    assert used_s is not None
    assert used_s > 0
    pids = [*pair.pids("client"), *pair.pids("server")]
    assert bool(pair.pids("client")) == pair.facts.watches_folder
    pair.stop()
    assert [pid for pid in pids if not is_gone(pid)] == []


@pytest.mark.parametrize("spec", SPECS)
def test_versions_and_facts_are_recorded(spec: str, prepare: Prepare) -> None:
    pair = prepare(spec)
    versions = pair.versions()
    assert versions
    assert all(any(character.isdigit() for character in text) for text in versions.values()), versions
    assert set(pair.facts.documented) in ({*CAPABILITIES}, set())
    assert {name for name in pair.facts.binaries if find_binary(name)} == set(pair.facts.binaries)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("spec", BASIC)
@pytest.mark.parametrize("side", ["client", "server"])
def test_killed_client_or_server_is_an_error_without_waiting(spec: str, side: str, prepare: Prepare) -> None:
    pair = prepare(spec)
    if side == "client" and not pair.facts.watches_folder:
        pytest.skip("its client runs only while it is called")
    pair.start()
    (pair.folder / "a.txt").write_text("never arrives")
    for pid in pair.pids("client" if side == "client" else "server"):
        with suppress(ProcessLookupError):  # what serves one transfer ends with it
            os.kill(pid, signal.SIGKILL)
    started_s = time.monotonic()

    def sync() -> None:
        pair.after_change()
        pair.wait_synced(HANG_S)

    with pytest.raises(ClientError, match=r"killed by signal 9|exit status"):
        sync()
    assert time.monotonic() - started_s < HANG_S / 2


def test_compress_compresses_words(prepare: Prepare) -> None:
    pair = prepare("rclone?remote=compress")
    pair.start()
    random = Random(7)
    words = ["".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=random.randint(2, 10))) for _ in range(4000)]
    text = " ".join(random.choices(words, k=200_000)).encode()
    noise = random.randbytes(len(text))
    (pair.folder / "text.txt").write_bytes(text)
    (pair.folder / "noise.bin").write_bytes(noise)
    pair.after_change()
    pair.wait_synced(HANG_S)
    stored_bytes = {path.name[:4]: path.stat().st_size for path in pair.stored.iterdir() if path.suffix != ".json"}
    assert stored_bytes["text"] < 0.6 * len(text)
    assert stored_bytes["nois"] == len(noise)


def test_an_edit_that_the_client_does_not_see_is_no_success(prepare: Prepare) -> None:
    pair = prepare("rclone")
    pair.start()
    changed = pair.folder / "same.bin"
    changed.write_bytes(b"a" * 1000)
    status = changed.stat()
    pair.after_change()
    pair.wait_synced(HANG_S)
    changed.write_bytes(b"b" * 1000)
    os.utime(changed, ns=(status.st_atime_ns, status.st_mtime_ns))
    pair.after_change()
    with pytest.raises(ClientError, match=r"1 different \(same.bin\)"):
        pair.wait_synced(HANG_S)


def test_idle_lasts_and_ends_early_with_an_error(prepare: Prepare) -> None:
    pair = prepare("lsyncd")
    pair.start()
    started_s = time.monotonic()
    pair.idle(0.3)
    assert 0.3 <= time.monotonic() - started_s < 10
    killer = threading.Timer(0.3, os.kill, [min(pair.pids("client")), signal.SIGKILL])
    killer.start()
    with pytest.raises(ClientError, match=r"lsyncd \(client\): killed by signal 9"):
        pair.idle(600)
    killer.join()


class BelowLeader(Loopback):
    """Starts each process below one that only waits for it, as sudo does."""

    def popen(self, side: End, argv: Sequence[str], **kwargs: Any) -> subprocess.Popen[bytes]:
        return super().popen(side, ["sh", "-c", '"$@" & wait', "sh", *argv], **kwargs)


def test_a_client_below_another_process_settles(prepare: Prepare) -> None:
    pair = prepare("lsyncd", runner=BelowLeader())
    pair.start()
    (pair.folder / "a.txt").write_text("a")
    assert pair.wait_synced(60) is Proof.CONTENT


def test_sync_timeout_error_shows_differences_and_log(prepare: Prepare) -> None:
    pair = prepare("unison")
    pair.start()
    (pair.folder / "a.txt").write_text("it looks again in two seconds")
    with pytest.raises(ClientError, match=r"(?s)1 missing \(a.txt\).*within 0.1 s.*Sleeping"):
        pair.wait_synced(0.1)
    pair.wait_synced(HANG_S)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("spec", ["syncthing", "lsyncd", "unison"])
def test_the_environment_of_every_process_is_clean(
    spec: str, prepare: Prepare, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_CA_BUNDLE", "HTTP_PROXY", "https_proxy", "RSYNC_PASSWORD", "UNISONLOCALHOSTNAME"):
        monkeypatch.setenv(name, "the user's own")
    pair = prepare(spec)
    pair.start()
    environments = []
    for pid in (*pair.pids("client"), *pair.pids("server")):
        with suppress(FileNotFoundError, ProcessLookupError):  # a run that has ended since
            environments.append(Path(f"/proc/{pid}/environ").read_bytes())
    assert len(environments) >= 2
    for environment in environments:
        assert f"HOME={pair.workdir / 'home'}".encode() in environment
        assert b"the user's own" not in environment


KILLED = """
import sys
from pathlib import Path
from pytest_cloudbench.lab import clients
pair = clients.make_client(sys.argv[1])
pair.prepare(Path(sys.argv[2]))
pair.start()
print(*pair.pids("client"), *pair.pids("server"), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    "spec", ["lsyncd", "unison", *(pytest.param(s, marks=pytest.mark.slow) for s in ("syncthing", "unison?over=ssh"))]
)
def test_nothing_is_left_when_the_test_process_is_killed(spec: str, prepare: Prepare, tmp_path: Path) -> None:
    prepare(spec).stop()  # skips where it is not installed
    workdir = tmp_path / "killed"
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, spec, str(workdir)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        assert len(pids) >= 2
        process.kill()
    deadline_s = time.monotonic() + 10
    for pid in pids:
        wait_for_end(pid, deadline_s)
    assert leftovers(workdir) == []


def wait_for_end(pid: int, deadline_s: float) -> None:
    """Wait until the process is gone, as the kernel signals it."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    stat = read_stat(pid)
    ended = select.select([pidfd], [], [], max(deadline_s - time.monotonic(), 0))[0]
    os.close(pidfd)
    assert ended, f"{stat} still runs"
