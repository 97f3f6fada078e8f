"""Runs on real servers that are killed or whose disk is full. Each operation is recorded with its true outcome."""

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
from tests.fleet.harness import FinishedRun, Lab, RunningSession, grid, keys, lab_in

QUICK = ("s3", "sftp", "webdav")
SENSORS, TIMES, SIZE_BYTES = 4, 100, 20_000
SMALL_DISK_KIB = 2000
"""Room for a quarter of the written bytes."""
LONG_TIMES = 400
"""Enough for 8 s: records are seen after a second, and on a busy machine the kill may come some seconds late."""


def run_of(times: int) -> str:
    return f"""
        def test_run(experiment, payloads):
            experiment.run(
                payloads.random({SIZE_BYTES}), arrival=FixedInterval(0.02), sensors={SENSORS}, ops_per_sensor={times},
            ).check()
    """


def can_mount() -> bool:
    """Return whether this user may mount a disk in a namespace of its own."""
    script = "mount -t tmpfs -o size=64k none /mnt"
    try:
        return subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def servers(*names: str) -> list[object]:
    """Return the recipes as parameters. Those whose servers take seconds to start are marked as slow."""
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in names]


@pytest.fixture
def lab(tmp_path: Path, ctrl_c: None) -> Iterator[Lab]:
    with lab_in(tmp_path) as new_lab:
        yield new_lab


def skip_without(name: str) -> None:
    if missing := load_recipe(name).describe_missing():
        pytest.skip(missing)


def find_server(running: RunningSession) -> psutil.Process:
    """Return the server's process, the child of the run that listens."""

    def find_listener() -> psutil.Process | None:
        for process in psutil.Process(running.process.pid).children(recursive=True):
            with suppress(psutil.Error):
                if any(connection.status == psutil.CONN_LISTEN for connection in process.net_connections("tcp")):
                    return process
        return None

    process: psutil.Process = running.wait_for("server", find_listener)
    return process


def read_merged_records(run: FinishedRun) -> tuple[OpTable, Counter[tuple[Outcome, ErrorKind | None]]]:
    """Return the run's only table of records, and the number of records with each outcome.

    Check that each record is in the table once.
    """
    (path,) = run.folder.rglob("*.parquet")
    table = read_parquet(path)
    record_keys = keys(table)
    assert record_keys == sorted(set(record_keys))
    (entry,) = run.entries.values()
    counts = Counter(zip(table.outcome, table.kind, strict=True))
    ok = sum(count for (outcome, _), count in counts.items() if outcome is Outcome.OK)
    assert (entry["extra_info"]["ops"], entry["extra_info"]["ok"]) == (len(record_keys), ok)
    assert ok >= 20, counts
    return table, counts


@pytest.mark.slow
@pytest.mark.parametrize("name", servers("azure", "gcs", "s3", "sftp", "webdav"))
def test_a_server_that_is_killed_in_mid_run(name: str, lab: Lab) -> None:
    skip_without(name)
    lab.write(run_of(LONG_TIMES))
    running = lab.start("--provider", f"local:{name}")
    server = find_server(running)  # before it has hundreds of connections, which take seconds to search
    running.wait_for_records("main", "test_run", 20)
    server.kill()
    run = running.end()
    assert run.status == 1, run.text
    assert run.leftovers == []
    assert "Traceback" not in run.text
    assert re.search(rf"the server of local:{name} died \(.*killed by signal 9\)", run.text), run.text
    table, counts = read_merged_records(run)
    last_ns = max(end for end, outcome in zip(table.end_ns, table.outcome, strict=True) if outcome is Outcome.OK)
    # A thread that waits for a processor may note the kill late. Then the first broken operation shows its time.
    broken_ns = min(end for end, kind in zip(table.end_ns, table.kind, strict=True) if kind is ErrorKind.NETWORK)
    # Failures before the kill would be the server's own.
    after = [kind for start, kind in zip(table.start_ns, table.kind, strict=True) if start > min(last_ns, broken_ns)]
    assert set(after) == {ErrorKind.NETWORK}, counts


@pytest.mark.quick_cases(1)
@pytest.mark.skipif(os.name != "posix" or not can_mount(), reason="needs the right to mount a small disk: run as root")
@pytest.mark.parametrize("name", servers("azure", "sftp", "webdav"))  # the others hold everything in memory
def test_full_disk_fails_only_refused_writes(name: str, lab: Lab) -> None:
    """Accepted writes are stored, refused writes have failed, and nothing else is wrong with the run."""
    skip_without(name)
    lab.write(run_of(TIMES))
    (lab.folder / "small").mkdir()
    run = lab.run(
        "--provider", f"local:{name}", env={"TMPDIR": str(lab.folder / "small")},
        within=f"mount -t tmpfs -o size={SMALL_DISK_KIB}k none small",
    )  # fmt: skip
    # rclone's SFTP server forgets the remains of a failed write, and then refuses to remove their folder.
    assert run.status == 0 or (name == "sftp" and run.lines_with("directory not empty")), run.text
    assert run.leftovers == []
    table, counts = read_merged_records(run)
    assert keys(table) == grid(SENSORS, TIMES), "no record is lost"
    assert {outcome for outcome, _ in counts} == {Outcome.OK, Outcome.FAILED}, counts
    assert {kind for outcome, kind in counts if outcome is Outcome.FAILED} <= {ErrorKind.QUOTA, ErrorKind.SERVER}, (
        counts
    )


FAULTY = """
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    puts = {}
    lock = threading.Lock()

    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        # Every fourth file is refused, also by a repeated put: the driver repeats one after it has made its folder.
        with self.lock:
            is_refused = self.command == "PUT" and self.puts.setdefault(self.path, len(self.puts) + 1) % 4 == 0
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
    """The user's server is under test, so its errors must break a gate."""
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


THROTTLING = """
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    refusals = 1

    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(429 if Handler.refusals else 404 if self.command == "PROPFIND" else 201)
        Handler.refusals = 0
        self.send_header("Retry-After", "6")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_PUT = do_MKCOL = do_DELETE = do_PROPFIND = do_GET = answer

ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("-n1",)], ids=["alone", "fleet"])
def test_a_session_tells_that_a_throttled_call_waits(options: tuple[str, ...], lab: Lab) -> None:
    (lab.folder / "faulty.py").write_text(THROTTLING)
    (lab.folder / "faulty.toml").write_text(RECIPE)
    lab.write("""
        from pytest_cloudbench import LiteralContent

        def test_put(sandbox):
            sandbox.driver.put("/a", LiteralContent(b"a"))
    """)
    run = lab.run("--provider", "served:faulty.toml", *options)
    assert run.status == 0, run.text
    assert run.lines_with("cloudbench: served:faulty.toml throttles: it is asked again in 6 s"), run.text


def test_only_servers_chosen_by_this_package_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of these servers are doubts. Errors of other servers are results."""
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
