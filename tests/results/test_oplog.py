"""Records survive killed processes and full disks: in a log during the run, and in Parquet after it."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from math import isnan
from pathlib import Path
from typing import IO, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_cloudbench.judge.records import OpTable
from pytest_cloudbench.model import ErrorKind, Op, Outcome, ResultsError, Verb
from pytest_cloudbench.results import parquet
from pytest_cloudbench.results.log_file import LogFile
from pytest_cloudbench.results.oplog import (
    LOG_SCHEMA,
    PARQUET_SCHEMA,
    OpLog,
    SentLog,
    read_log,
    read_parquet,
    write_parquet,
)
from pytest_cloudbench.support.clock import due_ns, sleep_until_ns
from pytest_cloudbench.workload.payload import DIGESTS, RandomContent, digest
from tests.limits import HANG_S, scale_examples

FEW = settings(
    deadline=None, max_examples=scale_examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
HEADER = {"agent": "gw0", "nodeid": "test_it"}
times = st.integers(0, 2**63 - 1)
ops = st.builds(
    Op,
    verb=st.sampled_from(Verb), sensor=st.integers(0, 2**32 - 1), seq=st.integers(0, 2**32 - 1),
    agent=st.integers(0, 2**16 - 1), scheduled_ns=times, start_ns=times, first_byte_ns=times, end_ns=times,
    size_bytes=times, outcome=st.sampled_from(Outcome), kind=st.one_of(st.none(), st.sampled_from(ErrorKind)),
    retry_after_s=st.one_of(st.none(), st.floats(allow_nan=False), st.integers(0, 10**6).map(float)),
    digest=st.binary(max_size=32), detail=st.just(""), requests=st.one_of(st.none(), st.integers(0, 1000)),
    cpu_wait_ns=st.one_of(st.none(), st.integers(0, 10**12)),
)  # fmt: skip


def op(seq: int = 0) -> Op:
    return Op(Verb.PUT, 1, seq, 2, 3, 4, 0, 5, 6, Outcome.OK, digest=b"\x00\x01\x00")


def table_of(records: list[Op]) -> OpTable:
    return OpTable.of(records)


def write_log(path: Path, records: list[Op]) -> Path:
    with OpLog(path, HEADER) as log:
        for record in records:
            log.record(record)
    assert (log.path, log.notes) == (path, [])
    return path


# --- round trips ---


@FEW
@given(records=st.lists(ops.filter(lambda op: max(op[4:8]) < 2**62), max_size=20), offset_ns=st.integers(0, 10**12))
def test_a_log_sent_piece_by_piece_has_all_known_times_by_the_clock_of_the_controller(
    records: list[Op], offset_ns: int, tmp_path: Path
) -> None:
    pieces: list[bytes] = []
    with SentLog(HEADER, None, pieces.append, offset_ns) as log:
        for record in records:
            log.record(record)
    received = tmp_path / "received.oplog"
    received.write_bytes(b"".join(pieces))
    times = ("scheduled_ns", "start_ns", "end_ns")
    assert list(read_log(received).ops()) == [
        record._replace(
            **{name: getattr(record, name) + offset_ns for name in times},
            first_byte_ns=record.first_byte_ns + offset_ns if record.first_byte_ns else 0,
        )
        for record in records
    ]


def test_records_are_sent_while_the_log_is_open(tmp_path: Path) -> None:
    is_sent = threading.Event()
    with SentLog(HEADER, None, lambda piece: is_sent.set() if b"busy" in piece else None) as log:
        log.record(op()._replace(detail="busy"))
        assert is_sent.wait(HANG_S)


@FEW
@given(records=st.lists(ops, max_size=20))
def test_records_are_the_same_after_log_and_parquet(records: list[Op], tmp_path: Path) -> None:
    log, path = tmp_path / "gw0.oplog", tmp_path / "it.parquet"
    log.unlink(missing_ok=True)
    table = read_log(write_log(log, records))
    assert table == table_of(records)
    write_parquet(table, path, {})
    assert read_parquet(path) == table
    assert sorted(file.name for file in tmp_path.iterdir()) == ["gw0.oplog", "it.parquet"]


def test_every_digest_that_a_provider_lists_fits_into_a_record(tmp_path: Path) -> None:
    digests = [digest(RandomContent("k", 9), name) for name in DIGESTS]
    records = [Op(Verb.PUT, 0, 0, 0, 1, 1, 0, 1, 9, Outcome.OK, digest=value) for value in digests]
    assert read_log(write_log(tmp_path / "a.oplog", records)).digest == digests


def test_the_log_counts_and_tells_its_progress(tmp_path: Path) -> None:
    reports: list[tuple[int, int, int]] = []
    sample_s: list[float] = []
    lateness_s: list[float | None] = []
    all_reported = threading.Event()

    def progress(done: int, throttled: int, failed: int, recent_s: list[float], late_s: float | None) -> None:
        reports.append((done, throttled, failed))
        sample_s.extend(recent_s)
        lateness_s.append(late_s)
        if done == 4:
            all_reported.set()

    with OpLog(tmp_path / "a.oplog", HEADER, progress) as log:
        for outcome in (Outcome.OK, Outcome.THROTTLED, Outcome.FAILED, Outcome.OK):
            log.record(Op(Verb.PUT, 0, 0, 0, 1, 1 + 2_000_000, 0, 1 + 5_000_000, 9, outcome, detail="busy"))
        assert all_reported.wait(HANG_S)
    assert reports[-1] == (4, 1, 1)
    assert sample_s == [0.005, 0.005]
    assert max(late_s for late_s in lateness_s if late_s is not None) == 0.002, "the detail's text is not an operation"


def test_last_records_are_reported_before_the_log_is_closed(tmp_path: Path) -> None:
    reports: list[tuple[int, list[float]]] = []
    with OpLog(
        tmp_path / "a.oplog", HEADER, lambda done, _t, _f, sample_s, _l: reports.append((done, sample_s))
    ) as log:
        log.record(Op(Verb.PUT, 0, 0, 0, 1, 1, 0, 1 + 5_000_000, 9, Outcome.OK))
        log.stop()
        assert reports[-1][0] == 1
        assert [response_s for _, sample_s in reports for response_s in sample_s] == [0.005]


def test_a_look_at_response_times_is_as_short_at_any_rate(tmp_path: Path) -> None:
    sizes: list[int] = []
    enough = threading.Event()

    def progress(done: int, throttled: int, failed: int, recent_s: list[float], late_s: float | None) -> None:
        sizes.append(len(recent_s))
        if done == 5000:
            enough.set()

    with OpLog(tmp_path / "a.oplog", HEADER, progress) as log:
        log.samples = 8
        for seq in range(5000):
            log.record(op(seq))
        assert enough.wait(HANG_S)
    assert 0 < max(sizes) <= 8


def test_records_of_many_threads_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "a.oplog"
    with OpLog(path, HEADER) as log, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda seq: log.record(op(seq)), range(4000)))
    assert sorted(read_log(path).seq) == list(range(4000))


def test_the_first_line_is_readable_json(tmp_path: Path) -> None:
    with write_log(tmp_path / "a.oplog", [op()]).open("rb") as file:
        assert json.loads(file.readline()) == {"schema": LOG_SCHEMA, **HEADER}


# --- damaged and foreign files ---


@FEW
@given(records=st.lists(ops, min_size=1, max_size=4), data=st.data())
def test_a_log_torn_anywhere_gives_all_whole_records(records: list[Op], data: st.DataObject, tmp_path: Path) -> None:
    path = tmp_path / "a.oplog"
    path.unlink(missing_ok=True)
    content = write_log(path, records).read_bytes()
    cut = data.draw(st.integers(0, len(content)))
    path.write_bytes(content[:cut])
    first = content.index(b"\n") + 1
    size = (len(content) - first) // len(records)
    assert read_log(path) == table_of(records[: max(0, cut - first) // size])


def test_log_header_is_written_before_its_first_record(tmp_path: Path) -> None:
    """Without its header, a log without records would look like that of a killed run."""
    with OpLog(tmp_path / "a.oplog", HEADER) as log:
        assert json.loads(log.path.read_bytes()) == {"schema": LOG_SCHEMA, **HEADER}


def test_a_log_of_an_agent_that_was_killed_before_its_first_flush_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "a.oplog"
    path.touch()
    assert len(read_log(path)) == 0


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"hello\n", "is not an operation log"),
        (b"\x80\xff\n", "is not an operation log"),
        (b"[1]\n", "is not an operation log"),
        (b"3\n", "is not an operation log"),
        (b'{"agent": "gw0"}\n', "is not an operation log"),
        (b"PAR1 and no line", "is not an operation log"),
        (b'{"schema": 4}\n', "has log schema 4; this version reads 1 to 3"),
        (b'{"schema": "1"}\n', "has log schema 1; this version reads 1 to 3"),
        (b'{"schema": 2}\n' + b"\xff" * 4096, "holds records of an unknown form"),
        (b'{"schema": 1}\n' + b"\xff" * 4096, "holds records of an unknown form"),
    ],
)
def test_log_of_unknown_schema_is_refused_in_one_line(tmp_path: Path, content: bytes, line: str) -> None:
    path = tmp_path / "a.oplog"
    path.write_bytes(content)
    with pytest.raises(ResultsError) as caught:
        read_log(path)
    assert str(caught.value) == f"{path}: {line}"


def test_missing_log_is_reported_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match=r"a\.oplog: cannot be read: No such file"):
        read_log(tmp_path / "a.oplog")


@FEW
@given(content=st.binary(max_size=400))
def test_any_bytes_are_a_log_or_a_results_error(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.oplog"
    for data in (content, b'{"schema": 1}\n' + content):
        path.write_bytes(data)
        try:
            table = read_log(path)
        except ResultsError as error:
            line = str(error)
            assert line.startswith(str(path))
        else:
            assert len(table) == len(table.sensor) == len(table.digest)


# --- killed in mid-run ---


def run_child(code: str, *args: object, wrapper: tuple[str, ...] = (), **environment: str) -> subprocess.Popen[str]:
    """Start a process that runs the code after a head of imports and a function ``op``."""
    head = "from pathlib import Path\nimport os, sys, threading, time\nfrom pytest_cloudbench.model import *\n"
    head += "from pytest_cloudbench.judge.records import *\nfrom pytest_cloudbench.results.oplog import *\n"
    head += "def op(seq): return Op(Verb.PUT, 1, seq, 2, 3, 4, 0, time.monotonic_ns(), 6, Outcome.OK)\n"
    return subprocess.Popen(
        [*wrapper, sys.executable, "-c", head + textwrap.dedent(code), *map(str, args)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment},
    )  # fmt: skip


def test_a_process_killed_with_sigkill_has_lost_its_last_second_at_most(tmp_path: Path) -> None:
    path = tmp_path / "gw0.oplog"
    child = run_child(
        """
        pace = threading.Event()
        with OpLog(Path(sys.argv[1]), {}) as log:
            for seq in range(10**9):
                made = op(seq)
                log.record(made)
                print(seq, made.end_ns, flush=True)
                pace.wait(0.002)
        """,
        path,
    )
    assert child.stdout is not None
    recorded: dict[int, int] = {}
    sizes: dict[int, int] = {}
    try:
        for line in child.stdout:
            seq, end_ns = map(int, line.split())
            recorded[seq], sizes[seq] = end_ns, path.stat().st_size
            if end_ns - recorded[0] > 1_500_000_000:
                break
    finally:
        child.send_signal(signal.SIGKILL)
        child.communicate()
    assert child.returncode == -signal.SIGKILL
    table = read_log(path)
    assert list(table.seq) == list(range(len(table)))
    last = max(recorded)
    assert recorded[last] - recorded[min(len(table) - 1, last)] < 1_000_000_000
    # At every earlier moment, too, the records that were missing in the file were less than a second old.
    first = path.read_bytes().index(b"\n") + 1
    record_bytes = (path.stat().st_size - first) // len(table)
    for seq, size in sizes.items():
        count = max(0, size - first) // record_bytes
        assert recorded[seq] - recorded[min(count, seq)] < 1_000_000_000


# --- a full disk ---


class FullDisk:
    """A file that takes ``room`` bytes, the last of them in a short write, and then refuses all others."""

    def __init__(self, file: Any, room: int) -> None:
        self.file, self.room = file, room

    def write(self, data: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written_bytes = self.file.write(bytes(data[: self.room]))
        self.room -= written_bytes
        return int(written_bytes)

    def fileno(self) -> int:
        return int(self.file.fileno())

    def close(self) -> None:
        self.file.close()


@pytest.fixture
def spare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's temporary folder."""
    folder = tmp_path / "spare"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@pytest.mark.parametrize("room", [0, 1, 30, 500, 901])
def test_a_full_disk_moves_the_log_and_loses_nothing(tmp_path: Path, spare: Path, room: int) -> None:
    """The disk becomes full in the first line, in a record, or between two records."""
    log = OpLog(tmp_path / "gw0.oplog", HEADER)
    log._records._file = FullDisk(log._records._file, room)  # type: ignore[assignment]  # has the two methods that the log uses
    with log:
        for seq in range(100):
            log.record(op(seq))
    assert read_log(log.path) == table_of([op(seq) for seq in range(100)])
    assert log.path.parent == spare
    assert log.path.name.endswith("-gw0.oplog")
    assert log.notes == [f"{tmp_path / 'gw0.oplog'}: No space left on device; the records continue in {log.path}"]


def test_two_logs_of_one_name_move_to_two_places(tmp_path: Path, spare: Path) -> None:
    """One process runs many experiments, and the disk stays full."""
    paths = set()
    for run in ("one", "two"):
        log = OpLog(tmp_path / run / "gw0.oplog", HEADER)
        log._records._file = FullDisk(log._records._file, 100)  # type: ignore[assignment]  # has the methods that the log uses
        with log:
            log.record(op())
        assert read_log(log.path) == table_of([op()])
        paths.add(log.path)
    assert len(paths) == len(list(spare.iterdir())) == 2


def replace_by_a_copy(folder: Path) -> None:
    shutil.copytree(folder, folder.with_name("copy"))
    folder.rename(folder.with_name("former"))
    folder.with_name("copy").rename(folder)


def replace_by_a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("in the way")


TAKEN_AWAY: dict[str, tuple[Callable[[Path], Any], bool]] = {
    "folder removed": (shutil.rmtree, True),
    "file removed": (lambda folder: (folder / "gw0.oplog").unlink(), True),
    "folder moved": (lambda folder: folder.rename(folder.with_name("former")), True),
    "folder replaced by a copy": (replace_by_a_copy, False),
    "folder replaced by a file": (replace_by_a_file, False),
}
"""Ways to take a log's file away. The second value says whether its path can be written again afterwards."""


@pytest.mark.parametrize("when", ["running", "at the end"])
@pytest.mark.parametrize("how", TAKEN_AWAY)
def test_a_log_that_is_taken_away_loses_nothing(tmp_path: Path, spare: Path, how: str, when: str) -> None:
    path, flushed, moved = tmp_path / "run" / "gw0.oplog", threading.Event(), list[Path]()
    take_away, is_free = TAKEN_AWAY[how]
    with OpLog(path, HEADER, lambda *progress: flushed.set() if progress[0] else None, moved.append) as log:
        for seq in range(100):
            log.record(op(seq))
        assert flushed.wait(HANG_S)
        take_away(path.parent)
        log.record(op(100))
        if when == "running":
            flushed.clear()
            assert flushed.wait(HANG_S)
            log.record(op(101))
    count = 102 if when == "running" else 101
    assert read_log(log.path) == table_of([op(seq) for seq in range(count)])
    assert (log.path == path, log.path.parent == spare, moved == [log.path]) == (is_free, not is_free, not is_free)
    (note,) = log.notes
    assert note.startswith(f"{path}: was removed, moved or replaced during the run; ")
    assert is_free or str(log.path) in note


def test_a_log_that_is_taken_away_again_and_again_loses_nothing(tmp_path: Path) -> None:
    path, flushed = tmp_path / "run" / "gw0.oplog", threading.Event()
    with OpLog(path, HEADER, lambda *progress: flushed.set()) as log:
        for seq in range(5):
            log.record(op(seq))
            flushed.clear()
            assert flushed.wait(HANG_S)
            shutil.rmtree(path.parent)
    assert read_log(path) == table_of([op(seq) for seq in range(5)])
    assert len(log.notes) == 1


@pytest.fixture
def disks(monkeypatch: pytest.MonkeyPatch) -> list[FullDisk]:
    """The files of all logs that a test opens. The first has room for 100 bytes, the others have none."""
    files: list[FullDisk] = []
    real = LogFile._open

    def open_limited(path: Path, mode: str = "ab") -> FullDisk:
        files.append(FullDisk(real(path, mode), 0 if files else 100))
        return files[-1]

    monkeypatch.setattr(LogFile, "_open", staticmethod(open_limited))
    return files


def record_until_refused(log: OpLog) -> None:
    """Record one operation after the other, and give up after some hundred flushes."""
    for seq in range(20_000):
        log.record(op(seq))
        sleep_until_ns(due_ns(0.005))


def test_when_no_place_is_left_the_run_ends_with_one_line(tmp_path: Path, spare: Path, disks: list[FullDisk]) -> None:
    """The next record raises, and so does the end of the log: no record is lost silently."""
    line = r"gw0\.oplog: No space left on device, and .*-gw0\.oplog: No space left on device"
    log = OpLog(tmp_path / "gw0.oplog", HEADER).__enter__()
    with pytest.raises(ResultsError, match=line) as caught:
        record_until_refused(log)
    assert "\n" not in str(caught.value)
    with pytest.raises(ResultsError, match=line):
        log.__exit__(None, None, None)
    assert list(spare.iterdir()) == []
    assert len(read_log(tmp_path / "gw0.oplog")) == 0


def test_room_that_comes_back_in_time_saves_every_record(tmp_path: Path, spare: Path, disks: list[FullDisk]) -> None:
    with OpLog(tmp_path / "gw0.oplog", HEADER) as log:
        with pytest.raises(ResultsError, match="No space left on device"):
            record_until_refused(log)
        disks[0].room = 10**9
    table = read_log(tmp_path / "gw0.oplog")
    assert list(table.seq) == list(range(log.count))
    assert len(table) > 0


def _namespaces() -> bool:
    try:
        return subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(not _namespaces(), reason="needs `unshare -rm`: install util-linux and allow user namespaces")
def test_a_really_full_disk_moves_the_log_and_loses_nothing(tmp_path: Path) -> None:
    small_disk, spare = tmp_path / "small", tmp_path / "spare"
    small_disk.mkdir()
    spare.mkdir()
    mount = ("unshare", "-rm", "sh", "-c", f'mount -t tmpfs -o size=64k none {small_disk} && exec "$@"', "-")
    child = run_child(
        """
        with OpLog(Path(sys.argv[1]) / "gw0.oplog", {}) as log:
            for seq in range(5000):
                log.record(op(seq))
        assert list(read_log(log.path).seq) == list(range(5000))
        print(log.path.parent, *log.notes, sep="\\n")
        try:
            write_parquet(read_log(log.path), Path(sys.argv[1]) / "it.parquet", {})
        except ResultsError as error:
            print(error)
        print(sorted(os.listdir(sys.argv[1])))
        """,
        small_disk,
        wrapper=mount,
        TMPDIR=str(spare),
    )
    out, err = child.communicate(timeout=HANG_S)
    assert (child.returncode, err) == (0, "")
    folder, note, message, names = out.splitlines()
    assert folder == str(spare)
    assert note.startswith(f"{small_disk}/gw0.oplog: No space left on device; the records continue in {spare}/")
    assert message.startswith(f"{small_disk}/it.parquet: cannot write the records: ")
    assert names == "['gw0.oplog']"


def test_unwritable_results_folder_is_reported_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ResultsError, match="choose another place with --cloudbench-results"):
        OpLog(tmp_path / "file" / "a.oplog", HEADER)


# --- Parquet ---

COLUMNS = {
    "verb": "string", "sensor": "int64", "seq": "int64", "agent": "int64", "scheduled_ns": "int64",
    "start_ns": "int64", "first_byte_ns": "int64", "end_ns": "int64", "size_bytes": "int64", "outcome": "string",
    "kind": "string", "retry_after_s": "double", "digest": "string",
    "detail": "string", "requests": "int64", "cpu_wait_ns": "int64", "phase": "string",
}  # fmt: skip


@pytest.mark.parametrize("records", [[], [op(1), op(2)]], ids=["empty", "two"])
def test_parquet_is_readable_without_this_package(tmp_path: Path, records: list[Op]) -> None:
    from pyarrow import parquet as arrow

    path = tmp_path / "folder" / "it.parquet"
    write_parquet(table_of(records), path, {"nodeid": "test_it", "run_id": "r1"})
    content = arrow.read_table(path)
    assert {field.name: str(field.type) for field in content.schema} == COLUMNS
    assert content.schema.metadata == {
        b"cloudbench_schema": str(PARQUET_SCHEMA).encode(), b"nodeid": b"test_it", b"run_id": b"r1",
    }  # fmt: skip
    assert content.to_pylist() == [
        {
            "verb": "put", "sensor": 1, "seq": seq, "agent": 2, "scheduled_ns": 3, "start_ns": 4, "first_byte_ns": 0,
            "end_ns": 5, "size_bytes": 6, "outcome": "ok", "kind": None, "retry_after_s": None, "digest": "000100",
            "detail": "", "requests": None, "cpu_wait_ns": None, "phase": "measured",
        }
        for seq in range(1, 1 + len(records))
    ]  # fmt: skip


def test_unwritable_parquet_leaves_no_file_and_is_reported_in_one_line(tmp_path: Path) -> None:
    child = run_child(
        """
        import resource, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        table = OpTable.of(op(seq * seq) for seq in range(20_000))
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        write_parquet(table, Path(sys.argv[1]) / "it.parquet", {})
        """,
        tmp_path,
    )
    _, err = child.communicate(timeout=HANG_S)
    last = err.splitlines()[-1]
    line = f"pytest_cloudbench.model.ResultsError: {tmp_path / 'it.parquet'}: cannot write the records: "
    assert last.startswith(line)
    assert last.endswith("; free some space")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_former_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "it.parquet"
    write_parquet(table_of([op(1)]), path, {})

    def fail(file: IO[bytes], *_: Any) -> None:
        file.write(b"PAR1")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(parquet, "write", fail)
    with pytest.raises(ResultsError, match=r"it\.parquet: cannot write the records: No space left on device; free"):
        write_parquet(table_of([op(2)]), path, {})
    assert [item.name for item in tmp_path.iterdir()] == ["it.parquet"]
    assert read_parquet(path) == table_of([op(1)])


def test_a_warm_up_is_told_apart_and_read_back(tmp_path: Path) -> None:
    from pytest_cloudbench.results import parquet

    path = tmp_path / "it.parquet"
    table = table_of([op(seq)._replace(scheduled_ns=100 * seq) for seq in range(5)])
    write_parquet(table, path, {}, measured_from_ns=200)
    columns, _ = parquet.read(path.read_bytes())
    assert columns["phase"] == ["warm_up", "warm_up", "measured", "measured", "measured"]
    assert read_parquet(path) == table


def test_parquet_of_unknown_schema_is_refused_in_one_line(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet as arrow

    path = tmp_path / "it.parquet"
    with pytest.raises(ResultsError, match=r"it\.parquet: cannot be read: "):
        read_parquet(path)
    path.write_bytes(b"no parquet")
    with pytest.raises(ResultsError, match=r"it\.parquet: cannot be read: "):
        read_parquet(path)
    arrow.write_table(pyarrow.table({"a": [1]}), path)
    with pytest.raises(ResultsError, match="has records schema none; this version reads 1"):
        read_parquet(path)
    arrow.write_table(pyarrow.table({"a": [1]}).replace_schema_metadata({"cloudbench_schema": "6"}), path)
    with pytest.raises(ResultsError, match="has records schema 6; this version reads 1"):
        read_parquet(path)


@pytest.mark.parametrize(
    ("name", "value"), [("verb", "fly"), ("digest", "no hex"), ("sensor", -1), ("start_ns", None), ("size_bytes", "a")]
)
def test_parquet_with_a_value_that_no_record_has_is_refused_in_one_line(tmp_path: Path, name: str, value: Any) -> None:
    import pyarrow
    from pyarrow import parquet as arrow

    path = tmp_path / "it.parquet"
    write_parquet(table_of([op()]), path, {})
    table = arrow.read_table(path)
    changed = pyarrow.table(table.to_pydict() | {name: [value]}).replace_schema_metadata(table.schema.metadata)
    arrow.write_table(changed, path)
    with pytest.raises(ResultsError, match=r"it\.parquet: cannot be read: "):
        read_parquet(path)


@pytest.mark.parametrize("text", [b"sensor", b"nodeid"])
def test_parquet_with_a_name_that_is_no_text_is_refused_in_one_line(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "it.parquet"
    write_parquet(table_of([op()]), path, {"nodeid": "test_it"})
    path.write_bytes(path.read_bytes().replace(text, text[:-1] + b"\xf2"))
    with pytest.raises(ResultsError, match=r"it\.parquet: cannot be read: "):
        read_parquet(path)


def test_a_wait_that_is_not_known_is_none_and_one_of_zero_is_zero(tmp_path: Path) -> None:
    waits = [None, 0.0, 0.1, 1e300]
    records = [Op(Verb.PUT, 0, 0, 0, 1, 1, 0, 1, 9, Outcome.THROTTLED, None, wait) for wait in waits]
    table = read_log(write_log(tmp_path / "a.oplog", records))
    assert table.retry_after_s == waits
    assert not any(isnan(wait) for wait in table.retry_after_s if wait is not None)
