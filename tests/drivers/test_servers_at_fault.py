"""Runs on real servers that are killed, or whose disk is full: each operation is recorded, as what it was."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from pytest_cloudbench.judge.records import OpTable
from pytest_cloudbench.load.merging.merge import server_doubts
from pytest_cloudbench.model import ErrorKind, Outcome
from pytest_cloudbench.providers import Providers
from pytest_cloudbench.results.oplog import read_parquet
from pytest_cloudbench.services.command import load_recipe
from tests.fleet.harness import Ended, Lab, Running, grid, keys, lab_in

QUICK = ("s3", "sftp", "webdav")
SENSORS, TIMES, SIZE_BYTES = 4, 100, 20_000
SMALL_DISK_KIB = 2000
"""Room for a quarter of what is written."""
LONG_TIMES = 400
"""For 8 s: records are seen after a second, and on a busy machine the kill may come some seconds late."""


def run_of(times: int) -> str:
    return f"""
        def test_run(experiment, payloads):
            experiment.run(
                payloads.random({SIZE_BYTES}), arrival=FixedInterval(0.02), sensors={SENSORS}, ops_per_sensor={times},
            ).check()
    """


def can_mount() -> bool:
    """Whether this user may mount a disk in a namespace of its own."""
    script = "mount -t tmpfs -o size=64k none /mnt"
    try:
        return subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def servers(*names: str) -> list[object]:
    """Recipes; those whose servers take seconds to start are for the long run."""
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in names]


@pytest.fixture
def lab(tmp_path: Path, ctrl_c: None) -> Iterator[Lab]:
    with lab_in(tmp_path) as made:
        yield made


def skip_without(name: str) -> None:
    if missing := load_recipe(name).describe_missing():
        pytest.skip(missing)


def listening(running: Running) -> psutil.Process:
    """The server: which process listens, of those that the run has started."""

    def found() -> psutil.Process | None:
        for process in psutil.Process(running.process.pid).children(recursive=True):
            with suppress(psutil.Error):
                if any(place.status == psutil.CONN_LISTEN for place in process.net_connections("tcp")):
                    return process
        return None

    process: psutil.Process = running.wait_for("server", found)
    return process


def merged(run: Ended) -> tuple[OpTable, Counter[tuple[Outcome, ErrorKind | None]]]:
    """The run's only table of records, and how many had each outcome; each record is there once."""
    (path,) = run.folder.rglob("*.parquet")
    table = read_parquet(path)
    found = keys(table)
    assert found == sorted(set(found))
    (entry,) = run.entries.values()
    counts = Counter(zip(table.outcome, table.kind, strict=True))
    ok = sum(count for (outcome, _), count in counts.items() if outcome is Outcome.OK)
    assert (entry["extra_info"]["ops"], entry["extra_info"]["ok"]) == (len(found), ok)
    assert ok >= 20, counts
    return table, counts


@pytest.mark.slow
@pytest.mark.parametrize("name", servers("azure", "gcs", "s3", "sftp", "webdav"))
def test_a_server_that_is_killed_in_mid_run(name: str, lab: Lab) -> None:
    skip_without(name)
    lab.write(run_of(LONG_TIMES))
    running = lab.start("--provider", f"local:{name}")
    server = listening(running)  # before it has hundreds of connections: to look through these takes seconds
    running.wait_for_records("main", "test_run", 20)
    server.kill()
    run = running.end()
    assert run.status == 1, run.text
    assert run.leftovers == []
    assert "Traceback" not in run.text
    assert re.search(rf"the server of local:{name} died \(.*killed by signal 9\)", run.text), run.text
    table, counts = merged(run)
    last_ns = max(end for end, outcome in zip(table.end_ns, table.outcome, strict=True) if outcome is Outcome.OK)
    # The kill may be noted late, by a thread that waits for a processor: then the first broken operation shows when.
    broken_ns = min(end for end, kind in zip(table.end_ns, table.kind, strict=True) if kind is ErrorKind.NETWORK)
    # Earlier failures would be the server's own.
    after = [kind for start, kind in zip(table.start_ns, table.kind, strict=True) if start > min(last_ns, broken_ns)]
    assert set(after) == {ErrorKind.NETWORK}, counts


@pytest.mark.quick_cases(1)
@pytest.mark.skipif(os.name != "posix" or not can_mount(), reason="needs the right to mount a small disk: run as root")
@pytest.mark.parametrize("name", servers("azure", "sftp", "webdav"))  # the others hold everything in memory
def test_full_disk_fails_only_refused_writes(name: str, lab: Lab) -> None:
    """What it accepted before is stored, what it refused has failed, and nothing else is wrong with the run."""
    skip_without(name)
    lab.write(run_of(TIMES))
    (lab.folder / "small").mkdir()
    run = lab.run(
        "--provider", f"local:{name}", env={"TMPDIR": str(lab.folder / "small")},
        within=f"mount -t tmpfs -o size={SMALL_DISK_KIB}k none small",
    )  # fmt: skip
    # rclone's SFTP server forgets what a write that failed has left in a folder: the folder's removal is refused then.
    assert run.status == 0 or (name == "sftp" and run.lines_with("directory not empty")), run.text
    assert run.leftovers == []
    table, counts = merged(run)
    assert keys(table) == grid(SENSORS, TIMES), "no record is lost"
    assert {outcome for outcome, _ in counts} == {Outcome.OK, Outcome.FAILED}, counts
    assert {kind for outcome, kind in counts if outcome is Outcome.FAILED} <= {ErrorKind.QUOTA, ErrorKind.SERVER}, (
        counts
    )


FAULTY = """
import itertools
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    puts = itertools.count(1)  # threads of puts at the same time draw different numbers

    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        is_refused = self.command == "PUT" and next(self.puts) % 4 == 0
        self.send_response(404 if self.command == "PROPFIND" else int(sys.argv[2]) if is_refused else 201)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_PUT = do_MKCOL = do_DELETE = do_PROPFIND = do_GET = answer

ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""

RECIPE = """
name = "faulty"
driver = "webdav"
command = ["{python}", "{here}/faulty.py", "{port}", "STATUS"]
url = "http://127.0.0.1:{port}/"
[credentials]
user = "someone"
password = "{secret}"
"""


@pytest.mark.parametrize("status", [500, 503, 507])
def test_an_error_of_a_users_own_server_is_a_result(status: int, lab: Lab) -> None:
    """It is what is tested, and a gate must be broken by it."""
    (lab.folder / "faulty.py").write_text(FAULTY)
    (lab.folder / "faulty.toml").write_text(RECIPE.replace("STATUS", str(status)))
    lab.write("""
        def test_run(experiment, payloads):
            experiment.run(payloads.random(10), arrival=FixedInterval(0.01), sensors=1, ops_per_sensor=8)
    """)
    run = lab.run("--provider", "served:faulty.toml", "--cloudbench-fail", "failed_rate:0.1")
    (entry,) = run.entries.values()
    assert not [doubt for doubt in entry["extra_info"]["doubts"] if "this run started" in doubt]
    assert run.lines_with("0.25 breaks the bound"), run.text


def test_only_servers_chosen_by_this_package_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their errors are doubts, others' are results."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "faulty.py").write_text(FAULTY)
    (tmp_path / "faulty.toml").write_text(RECIPE.replace("STATUS", "500"))
    providers = Providers("seed")
    try:
        for text, chosen in (
            ("local:webdav", "the server of local:webdav"), ("emulated:ideal", ""), ("served:faulty.toml", ""),
        ):  # fmt: skip
            providers.provide("", text)
            assert providers.own_servers(text) == chosen
    finally:
        providers.close()


def test_an_error_of_a_chosen_server_is_a_doubt() -> None:
    assert server_doubts("", {ErrorKind.SERVER: 2}, 8) == []
    assert server_doubts("the server of local:s3", {ErrorKind.QUOTA: 2}, 8) == []
    assert server_doubts("the server of local:s3", {ErrorKind.SERVER: 2}, 8) == [
        "2 of 8 operations failed by an error of the server of local:s3, which this run started"
    ]
