"""Ranges of written bytes: never too few after any change of a file, and unknown if the change cannot be traced."""

from __future__ import annotations

import fcntl
import mmap
import os
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import Any, Literal

import pytest

from pytest_cloudbench.savingbox.tracing import TraceInstance, TracingUnavailable, WantedEvent
from pytest_cloudbench.savingbox.written import NoWrites, TracedWrites, find_writes
from tests.savingbox.loop import traced_folder
from tests.savingbox.replaying import replay

BLOCK = 4096


@pytest.fixture(scope="module", params=["ext4", "xfs"])
def mount(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with traced_folder(tmp_path_factory.mktemp("loop"), request.param) as folder:
        yield folder


@pytest.fixture
def box(mount: Path) -> Iterator[Path]:
    """A folder on a file system whose writes can be traced."""
    path = mount / "box"
    path.mkdir()
    yield path
    shutil.rmtree(path)


@pytest.fixture
def writes(box: Path) -> Iterator[TracedWrites]:
    new_writes = TracedWrites(box)
    yield new_writes
    new_writes.close()


class Pair:
    """A followed file, and a copy in memory that is updated from the traced ranges."""

    def __init__(self, writes: TracedWrites, path: Path, content: bytes = b"") -> None:
        self.writes, self.path = writes, path
        self.file = path.open("w+b", buffering=0)
        self.fd = os.open(path, os.O_RDONLY)
        writes.follow_file(self.fd)
        self.file.write(content)
        self.copy = bytearray(content)
        writes.take_writes(self.fd)

    def read_at(self, offset: int, size_bytes: int) -> bytes:
        return os.pread(self.fd, size_bytes, offset)

    def resize(self, size_bytes: int) -> None:
        del self.copy[size_bytes:]
        self.copy.extend(bytes(size_bytes - len(self.copy)))

    def write_at(self, offset: int, data: bytes) -> None:
        self.copy[offset : offset + len(data)] = data

    def take_ranges(self) -> list[tuple[int, int]] | str:
        """Return the written ranges, or the doubt if they are not known. The copy becomes equal."""
        result = self.writes.take_writes(self.fd)
        content = self.path.read_bytes()
        if result.ranges is None:
            self.copy = bytearray(content)
            return result.doubt
        replay(result.ranges, self, len(content), self)
        assert self.copy == content
        return [(byte_range.begin, byte_range.end) for byte_range in result.ranges]

    def close(self) -> None:
        self.file.close()
        os.close(self.fd)


@pytest.fixture
def pair(writes: TracedWrites, box: Path) -> Iterator[Pair]:
    new_pair = Pair(writes, box / "file", bytes(100_000))
    yield new_pair
    new_pair.close()


def test_every_way_to_write_is_seen_with_its_place(pair: Pair, box: Path) -> None:
    fd = pair.file.fileno()
    (box / "other").write_bytes(b"o" * 10_000)

    def append_end() -> None:
        with pair.path.open("ab") as file:
            file.write(b"end")

    with (box / "other").open("rb") as other:
        ways: list[tuple[Callable[[], object], list[tuple[int, int]]]] = [
            (lambda: os.pwrite(fd, b"x", 5), [(5, 6)]),
            (lambda: (os.pwrite(fd, b"ab", 9_000), os.pwrite(fd, b"cd", 1)), [(1, 3), (9_000, 9_002)]),
            (lambda: os.pwritev(fd, [b"a" * 10, b"b" * 20], 4_090), [(4_090, 4_120)]),
            (append_end, [(100_000, 100_003)]),
            (lambda: (os.lseek(fd, 50, os.SEEK_SET), os.sendfile(fd, other.fileno(), 0, 300)), [(50, 350)]),
            (lambda: os.copy_file_range(other.fileno(), fd, 100, 0, 70_000), [(70_000, 70_100)]),
            (lambda: os.pwrite(fd, b"far", 200_000), [(200_000, 200_003)]),
            (lambda: None, []),
        ]
        for write, expected in ways:
            write()
            assert pair.take_ranges() == expected


def test_direct_writes_are_seen(pair: Pair) -> None:
    block = mmap.mmap(-1, BLOCK)
    block.write(b"d" * BLOCK)
    direct = os.open(pair.path, os.O_RDWR | os.O_DIRECT)
    os.pwrite(direct, block, 2 * BLOCK)
    os.close(direct)
    ranges = pair.take_ranges()
    assert isinstance(ranges, list)
    assert ranges[0][0] <= 2 * BLOCK < 3 * BLOCK <= ranges[-1][1]


@pytest.mark.parametrize(
    ("deed", "why"),
    [
        (lambda fd: os.ftruncate(fd, 50), "it was truncated"),
        (lambda fd: os.posix_fallocate(fd, 0, 200_000), "space in it was allocated or freed"),
    ],
)
def test_change_without_byte_range_is_reported_once_as_unknown(
    pair: Pair, deed: Callable[[int], object], why: str
) -> None:
    deed(pair.file.fileno())
    assert str(pair.take_ranges()).startswith(why)
    pair.file.close()
    assert pair.take_ranges() == []


def test_a_mapping_is_unknown_until_nobody_can_write_to_it(pair: Pair) -> None:
    mapping = mmap.mmap(pair.file.fileno(), 0)
    mapping[3] = 7
    assert pair.take_ranges() == "it is mapped"
    mapping[3] = 8  # on a page that is known as changed: the kernel does not see this
    assert isinstance(pair.take_ranges(), str)
    mapping.close()
    pair.file.close()
    pair.take_ranges()
    with pair.path.open("r+b") as file:
        file.write(b"again")
    assert pair.take_ranges() == [(0, 5)]


def test_a_mapping_that_was_there_before_is_unknown(writes: TracedWrites, box: Path) -> None:
    path = box / "mapped"
    path.write_bytes(bytes(10_000))
    writes.close()
    later = TracedWrites(box)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        mapping[1] = 1
        fd = os.open(path, os.O_RDONLY)
        later.follow_file(fd)
        mapping[1] = 2
        assert later.peek_writes(fd).ranges is None
    os.close(fd)
    later.close()


def test_copy_by_traced_ranges_equals_the_file_after_any_writes(writes: TracedWrites, box: Path) -> None:
    """A real file is truncated, lengthened and written to in any order."""
    random, known_count = Random(11), 0
    for number in range(20):
        pair = Pair(writes, box / f"file{number}", random.randbytes(random.randrange(20_000)))
        fd = pair.file.fileno()
        for _ in range(8):
            for _ in range(random.randrange(4)):
                offset, size = random.randrange(30_000), random.randrange(1, 9_000)
                if random.random() < 0.1:
                    os.ftruncate(fd, offset)
                else:
                    os.pwrite(fd, random.randbytes(size), offset)
            known_count += isinstance(pair.take_ranges(), list)
        pair.close()
    assert known_count > 100, "nearly always it is known"


def test_nothing_is_missed_while_a_program_writes(pair: Pair) -> None:
    """Bytes read after ``take_writes`` include all writes that it reported, however the two overlap."""
    code = (
        "import os, random, sys\n"
        "random.seed(5); fd = os.open(sys.argv[1], os.O_WRONLY)\n"
        "for _ in range(3000): os.pwrite(fd, random.randbytes(random.randrange(1, 20_000)), random.randrange(300_000))"
    )
    reads = 0
    with subprocess.Popen([sys.executable, "-c", code, str(pair.path)]) as writer:
        while writer.poll() is None:
            result = pair.writes.take_writes(pair.fd)
            assert result.ranges is not None, result.doubt
            replay(result.ranges, pair, os.fstat(pair.fd).st_size, pair)
            reads += 1
    assert reads > 3
    assert isinstance(pair.take_ranges(), list)


CLONE = 0x40049409  # FICLONE of linux/fs.h
EXCHANGE = 0x40285881  # XFS_IOC_EXCHANGE_RANGE of xfs_fs.h


def test_cloned_and_exchanged_blocks_are_unknown_once(pair: Pair, box: Path, mount: Path) -> None:
    if mount.name != "xfs":
        pytest.skip("ext4 clones nothing")
    (box / "other").write_bytes(b"o" * 100_000)
    with (box / "other").open("r+b") as other:
        fcntl.ioctl(pair.file.fileno(), CLONE, other.fileno())
        assert pair.take_ranges() == "it took blocks of another file"
        os.pwrite(pair.file.fileno(), b"own", 7)
        assert pair.take_ranges() == [(7, 10)]
        exchange = struct.pack("=iIQQQQ", other.fileno(), 0, 0, 0, 8 * BLOCK, 0)
        try:
            fcntl.ioctl(pair.file.fileno(), EXCHANGE, exchange)
        except OSError as error:
            pytest.skip(f"nothing is exchanged here: {error.strerror}")
        assert pair.take_ranges() == "it took blocks of another file"
    assert pair.take_ranges() == []


@pytest.mark.parametrize("option", ["--punch-hole", "--zero-range", "--collapse-range", "--insert-range"])
def test_space_that_is_freed_or_moved_is_unknown_until_it_has_been(
    writes: TracedWrites, box: Path, option: str
) -> None:
    pair = Pair(writes, box / "file", Random(3).randbytes(100_000))
    pair.file.close()
    command = ["fallocate", option, "--offset", str(BLOCK), "--length", str(2 * BLOCK), str(pair.path)]
    subprocess.run(command, check=True)
    known_flags = [isinstance(pair.take_ranges(), list) for _ in range(3)]
    assert known_flags in ([False, True, True], [False, False, True]), (
        "ext4 tells before, and the change may be under way"
    )
    pair.close()


def test_looking_takes_nothing(pair: Pair) -> None:
    os.pwrite(pair.file.fileno(), b"x", 5)
    for _ in range(2):
        ranges = pair.writes.peek_writes(pair.fd).ranges
        assert ranges is not None
        assert list(ranges) == [(5, 6)]
    assert pair.take_ranges() == [(5, 6)]


def test_a_push_that_failed_is_compared(pair: Pair) -> None:
    pair.writes.distrust_file(pair.fd, "the disk was full")
    assert pair.take_ranges() == "the disk was full"
    assert pair.take_ranges() == []


def test_a_file_with_two_names_is_compared_for_each(pair: Pair, box: Path) -> None:
    os.link(pair.path, box / "second")
    os.pwrite(pair.file.fileno(), b"x", 5)
    assert [pair.take_ranges(), pair.take_ranges()] == ["it has, or had, several names"] * 2, (
        "what one takes, the other lacks"
    )
    os.unlink(box / "second")
    assert pair.take_ranges() == "it has, or had, several names"
    os.pwrite(pair.file.fileno(), b"x", 5)
    assert pair.take_ranges() == [(5, 6)]


def test_another_file_with_the_same_number_is_not_taken_for_it(writes: TracedWrites, box: Path) -> None:
    path = box / "one"
    for _ in range(20):  # a free number is given again, though not always at once
        pair = Pair(writes, path, bytes(10))
        inode = path.stat().st_ino
        pair.close()
        path.unlink()
        path.write_bytes(b"new")
        if path.stat().st_ino == inode:
            break
    else:
        pytest.skip("no number came again")
    fd = os.open(path, os.O_RDONLY)
    assert writes.take_writes(fd).doubt == "it was not followed"
    os.close(fd)


def test_a_new_file_that_was_mapped_before_it_is_followed_is_unknown(writes: TracedWrites, box: Path) -> None:
    path = box / "new"
    with path.open("w+b", buffering=0) as file:
        file.write(bytes(10_000))
        with mmap.mmap(file.fileno(), 0) as mapping:
            mapping[1] = 1
            fd = os.open(path, os.O_RDONLY)
            writes.follow_file(fd)
            mapping[1] = 2
            assert writes.peek_writes(fd).ranges is None
    os.close(fd)


def test_a_new_file_that_is_still_open_is_known(writes: TracedWrites, box: Path) -> None:
    """The file was created while events were traced, so it is known without a search that no process maps it."""
    path = box / "new"
    with path.open("w+b", buffering=0) as file:
        fd = os.open(path, os.O_RDONLY)
        writes.follow_file(fd)
        assert writes._trace.is_unmapped(path.stat().st_ino)
        file.write(b"1234")
        assert list(writes.peek_writes(fd).ranges or ()) == [(0, 4)]
    os.close(fd)


def test_many_programs_at_once_lose_no_event(box: Path) -> None:
    """The buffer wraps around many times, and each CPU writes into it."""
    code = "import os, sys\nfd = os.open(sys.argv[1], os.O_WRONLY)\nfor n in range(20_000): os.pwrite(fd, b'x', 2 * n)"
    with closing(TracedWrites(box, buffer_kib=256)) as writes:
        pairs = [Pair(writes, box / f"file{number}", bytes(50_000)) for number in range(3)]
        programs = [subprocess.Popen([sys.executable, "-c", code, str(pair.path)]) for pair in pairs]
        assert [program.wait() for program in programs] == [0, 0, 0]
        for pair in pairs:
            ranges = pair.take_ranges()
            if "lost" not in ranges:  # the machine may be too busy to read in time
                assert isinstance(ranges, list)
                assert ranges[0][0] == 0
                assert ranges[-1][1] == 39_999
            pair.close()


def test_lost_events_are_reported(box: Path) -> None:
    writes = TracedWrites(box, buffer_kib=8)
    pair = Pair(writes, box / "file", bytes(10))
    with writes._lock:  # no thread reads meanwhile, as if this process had been stopped
        for _ in range(5_000):
            os.pwrite(pair.file.fileno(), b"x", 0)
    assert pair.take_ranges() == "events were lost because the buffer was full"
    pair.file.close()
    pair.take_ranges()
    assert pair.take_ranges() == []
    pair.close()
    writes.close()


@pytest.mark.parametrize("removed", [1, 9])
def test_an_instance_that_another_process_removes_at_once_is_made_again(
    box: Path, monkeypatch: pytest.MonkeyPatch, removed: int
) -> None:
    make_folder, remaining = Path.mkdir, list(range(removed))

    def mkdir(path: Path, *args: Any, **options: Any) -> None:
        make_folder(path, *args, **options)
        if path.parent.name == "instances" and remaining:
            remaining.pop()
            with suppress(OSError):  # another test's savingbox was quicker
                path.rmdir()

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with closing(TracedWrites(box)) as writes:
        assert not remaining
        with (box / "a").open("wb", buffering=0) as file:
            writes.follow_file(file.fileno())
            file.write(b"1234")
            assert list(writes.take_writes(file.fileno()).ranges or ()) == [(0, 4)]


@pytest.mark.slow
def test_savingboxes_that_start_at_the_same_time_do_not_take_each_other_s_tracing(box: Path) -> None:
    """Without retries, one start in eight fails, because its instance disappears or its memory goes to another."""
    code = f"""
from pathlib import Path
from pytest_cloudbench.savingbox.written import TracedWrites
for _ in range(15):
    TracedWrites(Path({str(box)!r})).close()
"""
    processes = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) for _ in range(4)]
    assert [(process.communicate()[1], process.returncode) for process in processes] == [("", 0)] * 4


def instance_of(writes: TracedWrites) -> Path:
    assert isinstance(writes._trace, TraceInstance)
    return writes._trace._folder


def test_only_trace_of_killed_run_is_removed(box: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from pytest_cloudbench.savingbox.written import TracedWrites
writes = TracedWrites(Path({str(box)!r}))
print(writes._trace._folder.name, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == -signal.SIGKILL
    stale_name = run.stdout.strip()
    first = TracedWrites(box)
    instances = instance_of(first).parent
    others = instances / "somebody-elses"
    others.mkdir()
    try:
        second = TracedWrites(box)
        names = {path.name for path in instances.iterdir()}
        assert stale_name not in names
        assert {instance_of(first).name, instance_of(second).name, others.name} <= names
        second.close()
        assert instance_of(first).is_dir()
        assert instance_of(second) == Path()
    finally:
        others.rmdir()
        first.close()


def test_missing_kernel_event_is_reported(box: Path) -> None:
    with pytest.raises(TracingUnavailable, match="does not have the tracepoint ext4/ext4_nothing"):
        TraceInstance([WantedEvent("ext4/ext4_nothing", ("ino",), print)], 0)
    with pytest.raises(TracingUnavailable, match="ext4_free_inode has no field size"):
        TraceInstance([WantedEvent("ext4/ext4_free_inode", ("size",), print)], 0)


def test_the_best_mechanism_that_works_is_used(box: Path) -> None:
    def find(how: Literal["auto", "trace", "compare"]) -> tuple[str, str]:
        with closing(find_writes(box, how)) as writes:
            return writes.name, writes.why

    assert find("auto") == find("trace") == ("tracefs", "")
    assert find("compare") == ("compare", "asked for by --ranges compare")


def test_a_mechanism_that_does_not_work_is_refused_when_asked_for() -> None:
    with pytest.raises(TracingUnavailable, match=r"^--ranges trace: '/dev/shm' is on tmpfs; "):
        find_writes(Path("/dev/shm"), "trace")


def test_unsupported_file_system_is_named_as_the_reason() -> None:
    no_writes = find_writes(Path("/dev/shm"))
    assert isinstance(no_writes, NoWrites)
    assert no_writes.name == "compare"
    assert no_writes.why == "'/dev/shm' is on tmpfs; writes can be traced on ext4 and xfs only"
    no_writes.follow_file(0)
    no_writes.distrust_file(0, "")
    assert (no_writes.peek_writes(0), no_writes.take_writes(0).ranges) == (no_writes.take_writes(0), None)
    no_writes.close()
