"""Traffic of the reference client with each of its switches, which is the ground truth for the detectors."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pytest_cloudbench.lab.clients.base import CAPABILITIES, LocalClient, Proof
from pytest_cloudbench.lab.clients.reference.adapter import ReferenceClient
from pytest_cloudbench.model import ClientError
from tests.lab.clients.conftest import Prepare, is_gone
from tests.limits import HANG_S

CHUNK_BYTES = 1 << 16
SIZE_BYTES = 4 * CHUNK_BYTES
FEW_BYTES = 5_000
# A small chunk and a short rest keep each test under a second; nothing else differs from the defaults.
QUICK = f"chunk_bytes={CHUNK_BYTES}&delta_bytes=1024&settle_s=0.02"
JPEG = b"\xff\xd8\xff\xe0\x00\x10JFIF\x00"
ALL = "chunking=1&bundling=1&deduplication=block&delta=1&compression=1"


def words(seed: int, size_bytes: int = SIZE_BYTES) -> bytes:
    """Return text that deflates to less than half of its size."""
    random = Random(seed)
    vocabulary = ["".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=random.randint(2, 10))) for _ in range(2000)]
    return " ".join(random.choices(vocabulary, k=size_bytes // 3)).encode()[:size_bytes]


def noise(seed: int, size_bytes: int = SIZE_BYTES) -> bytes:
    return Random(seed).randbytes(size_bytes)


class Cost:
    """Traffic that the server received for one change, including TLS and heads."""

    def __init__(self, before: dict[str, Any], after: dict[str, Any]) -> None:
        self.connections: int = after["connections"] - before["connections"]
        self.received_bytes: int = after["received_bytes"] - before["received_bytes"]
        counts = {path: count - before["requests"].get(path, 0) for path, count in after["requests"].items()}
        self.requests = {path: count for path, count in counts.items() if count}


class Pair:
    """A started client, and the cost of changes in its folder."""

    def __init__(self, client: LocalClient) -> None:
        assert isinstance(client, ReferenceClient)
        self.client, self.folder = client, client.folder

    def cost(self, change: Callable[[], object]) -> Cost:
        before = self.client.counters()
        change()
        assert self.client.wait_synced(HANG_S) is Proof.CONTENT
        return Cost(before, self.client.counters())

    def write(self, name: str, content: bytes) -> Cost:
        # Written elsewhere and moved, so that the client never sees half of it.
        new_file = self.client.workdir / "made"
        new_file.write_bytes(content)
        return self.cost(lambda: os.replace(new_file, self.folder / name))

    def write_all(self, files: dict[str, bytes]) -> Cost:
        new_folder = self.client.workdir / "made-folder"
        new_folder.mkdir()
        for name, content in files.items():
            (new_folder / name).write_bytes(content)
        return self.cost(lambda: os.replace(new_folder, self.folder / "batch"))


@pytest.fixture
def start(prepare: Prepare) -> Callable[[str], Pair]:
    def start_pair(options: str, quick: str = QUICK) -> Pair:
        client = prepare(f"reference?{quick}&{options}".rstrip("&"))
        client.start()
        return Pair(client)

    return start_pair


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("on", list(itertools.product("01", repeat=5)), ids="".join)
def test_the_wire_shows_all_32_settings(on: tuple[str, ...], start: Callable[[str], Pair]) -> None:
    pair = start("&".join(f"{name}={value}" for name, value in zip(CAPABILITIES, on, strict=True)))
    switches = {}
    original = noise(1)
    created = pair.write("a.bin", original)
    assert created.received_bytes > SIZE_BYTES
    switches["chunking"] = created.requests.get("/chunk", 0) == 3
    switches["deduplication"] = pair.write("copy.bin", original).received_bytes < FEW_BYTES
    changed = original[: SIZE_BYTES // 2] + noise(2, 64) + original[SIZE_BYTES // 2 :]
    switches["delta"] = pair.write("a.bin", changed).received_bytes < FEW_BYTES
    switches["compression"] = pair.write("text.txt", words(3)).received_bytes < 0.6 * SIZE_BYTES
    switches["bundling"] = pair.write_all({f"{n}": noise(n, 1000) for n in range(20)}).requests["/files"] == 1
    truth = {name: documented.answer == "yes" for name, documented in pair.client.facts.documented.items()}
    assert switches == truth
    assert len(pair.client.held()) == 23


# --- each switch ---


def test_without_switches_everything_is_sent_again(start: Callable[[str], Pair]) -> None:
    pair = start("")
    content = noise(1)
    for name, more in [("a.bin", b""), ("b.bin", b""), ("a.bin", b"appended")]:
        cost = pair.write(name, content + more)
        assert cost.requests == {"/files": 1}
        assert cost.connections == 0
        assert 0 < cost.received_bytes - SIZE_BYTES < 1500
    renamed = pair.cost(lambda: (pair.folder / "b.bin").rename(pair.folder / "c.bin"))
    assert renamed.requests == {"/files": 2}
    assert renamed.received_bytes > SIZE_BYTES
    deleted = pair.cost((pair.folder / "c.bin").unlink)
    assert deleted.received_bytes < 500


@pytest.mark.parametrize(("size_bytes", "chunks"), [(0, 0), (1, 0), (65_536, 0), (65_537, 1), (1_000_000, 15)])
def test_chunks(size_bytes: int, chunks: int, start: Callable[[str], Pair]) -> None:
    cost = start("chunking=1").write("a.bin", noise(1, size_bytes))
    assert cost.requests == ({"/chunk": chunks} if chunks else {}) | {"/files": 1}


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    ("bundling", "requests", "connections"), [("no", 40, 0), ("request", 1, 0), ("pipelined", 40, 0), ("no", 40, 40)]
)
def test_many_files(bundling: str, requests: int, connections: int, start: Callable[[str], Pair]) -> None:
    more = "&connections=per-file" if connections else ""
    pair = start(f"bundling={bundling}{more}")
    cost = pair.write_all({f"{number}.bin": noise(number, 10_000) for number in range(40)})
    assert cost.requests == {"/files": requests}
    assert cost.connections == connections
    assert cost.received_bytes > 400_000


def test_a_bundle_with_chunks_holds_one_chunk(start: Callable[[str], Pair]) -> None:
    cost = start("bundling=1&chunking=1").write_all({f"{n}": noise(n, 10_000) for n in range(20)})
    assert cost.requests == {"/files": 4}  # six files of 10 kB are below 64 KiB


def test_deduplication_by_file_and_by_block(start: Callable[[str], Pair]) -> None:
    pair = start("deduplication=block")
    pair.write("a.bin", noise(1))
    half = SIZE_BYTES // 2
    assert half < pair.write("b.bin", noise(1)[:half] + noise(2, half)).received_bytes < half + FEW_BYTES
    twice = noise(3, CHUNK_BYTES) * 4
    assert CHUNK_BYTES < pair.write("c.bin", twice).received_bytes < CHUNK_BYTES + FEW_BYTES


def test_deduplication_by_file_knows_no_halves(start: Callable[[str], Pair]) -> None:
    pair = start("deduplication=file")
    pair.write("a.bin", noise(1))
    half = SIZE_BYTES // 2
    assert pair.write("b.bin", noise(1)[:half] + noise(2, half)).received_bytes > SIZE_BYTES
    same = pair.write_all({"one": noise(4), "two": noise(4)})  # the second one of two in a batch is a copy
    assert SIZE_BYTES < same.received_bytes < SIZE_BYTES + FEW_BYTES


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("remembers", [True, False])
@pytest.mark.parametrize("bundling", ["0", "1"])
def test_deleted_content_is_deduplicated_only_if_remembered(
    remembers: bool, bundling: str, start: Callable[[str], Pair]
) -> None:
    pair = start(f"deduplication=block&bundling={bundling}&deduplicate_deleted={int(remembers)}")
    pair.write("a.bin", noise(1))
    assert pair.cost(lambda: (pair.folder / "a.bin").rename(pair.folder / "b.bin")).received_bytes < FEW_BYTES
    pair.cost((pair.folder / "b.bin").unlink)
    assert (pair.write("a.bin", noise(1)).received_bytes < FEW_BYTES) is remembers
    assert pair.write("b.bin", noise(1)).received_bytes < FEW_BYTES


@pytest.mark.parametrize("delta", ["fixed", "rolling"])
def test_delta(delta: str, start: Callable[[str], Pair]) -> None:
    pair = start(f"delta={delta}")
    content = noise(1)
    pair.write("a.bin", content)
    assert pair.write("a.bin", content + noise(2, 64)).received_bytes < 2000
    assert pair.write("copy.bin", content).received_bytes > SIZE_BYTES  # no older version of this name
    offset = 100_000
    changed = content[:offset] + noise(3, 64) + content[offset + 64 :]
    assert pair.write("a.bin", changed).received_bytes < 4000
    half = SIZE_BYTES // 2
    inserted = pair.write("a.bin", changed[:half] + noise(4, 64) + changed[half:])
    assert (inserted.received_bytes < 3000) is (delta == "rolling")
    assert (inserted.received_bytes > half) is (delta == "fixed")
    assert inserted.requests == {"/signatures": 1, "/files": 1}


@pytest.mark.parametrize(
    ("compression", "text", "named_jpg", "fake_jpeg", "real_jpeg"),
    [
        ("no", False, False, False, False),
        ("always", True, True, True, False),
        ("smart", True, True, False, False),
        ("by-name", True, False, True, False),
    ],
)
def test_compression(
    compression: str, text: bool, named_jpg: bool, fake_jpeg: bool, real_jpeg: bool, start: Callable[[str], Pair]
) -> None:
    pair = start(f"compression={compression}&chunking=1")
    for name, content, is_smaller in [
        ("text.txt", words(1), text),
        ("named.jpg", words(2), named_jpg),
        ("fake.data", JPEG + words(3), fake_jpeg),
        ("real.jpeg", JPEG + noise(4), real_jpeg),
    ]:
        received_bytes = pair.write(name, content).received_bytes
        assert (received_bytes < 0.6 * len(content)) is is_smaller, name
        assert (received_bytes > len(content)) is not is_smaller, name


def test_deduplication_goes_before_delta_and_delta_before_compression(start: Callable[[str], Pair]) -> None:
    pair = start(ALL)
    pair.write("text.txt", words(1))
    copy = pair.write("copy.txt", words(1))
    assert copy.requests == {"/have": 1, "/files": 1}  # nothing is left that a signature could save
    changed = words(1)[:70_000] + words(2, 20_000) + words(1)[70_000:]
    edited = pair.write("text.txt", changed)
    assert edited.requests == {"/have": 1, "/signatures": 1, "/files": 1}
    assert edited.received_bytes < 0.6 * 20_000 + FEW_BYTES


def test_polling(start: Callable[[str], Pair]) -> None:
    pair = start("polling=0.05")
    before = pair.client.counters()
    after: dict[str, Any] = {}

    def has_polled() -> bool:
        after.update(pair.client.counters())
        return bool(after["requests"].get("/poll", 0) >= before["requests"].get("/poll", 0) + 3)

    pair.client.processes.wait_until(has_polled, HANG_S, "no poll")
    cost = Cost(before, after)
    assert cost.requests.keys() == {"/poll"}
    assert cost.connections == 0
    assert 100 < cost.received_bytes / cost.requests["/poll"] < 400
    assert pair.write("a.bin", noise(1)).requests["/files"] == 1


def test_without_polling_an_idle_pair_is_silent(start: Callable[[str], Pair]) -> None:
    pair = start(ALL)
    pair.write("a.bin", noise(1))
    before = pair.client.counters()
    pair.client.idle(0.3)
    assert pair.client.counters() == before


def test_a_touch_costs_nothing(start: Callable[[str], Pair]) -> None:
    pair = start("")
    pair.write("a.bin", noise(1))
    before = pair.client.counters()
    os.utime(pair.folder / "a.bin", ns=(1, 1))
    # The touch is noticed together with the change, or before it.
    pair.write("b.bin", b"")
    cost = Cost(before, pair.client.counters())
    assert cost.requests == {"/files": 1}
    assert cost.received_bytes < 500


def test_an_edit_with_the_same_size_and_time_is_seen(start: Callable[[str], Pair]) -> None:
    pair = start("")
    path = pair.folder / "a.bin"
    pair.write("a.bin", b"a" * 1000)
    status = path.stat()

    def edit() -> None:
        path.write_bytes(b"b" * 1000)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    assert pair.cost(edit).requests["/files"] >= 1


# --- on the wire itself ---


class Relay:
    """A proxy that forwards bytes and counts them. It may cut the connection after some of the client's bytes."""

    def __init__(self, port: int, cut_after_bytes: int | None = None) -> None:
        self._target, self._cut_after_bytes = port, cut_after_bytes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.turns: list[tuple[str, int]] = []
        self.client_bytes = 0
        self.answers_after_bytes = 0
        """The server's answers are held back until the client has sent this many bytes, or for 20 s."""
        self.was_waited_for = False
        self._lock = threading.Lock()
        self._has_sent = threading.Condition()
        self._sockets: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for open_socket in self._sockets:
            with suppress(OSError):
                open_socket.shutdown(socket.SHUT_RDWR)
            open_socket.close()

    def _is_enough(self) -> bool:
        return self.client_bytes >= self.answers_after_bytes

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                server = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += [client, server]
                for side, source, sink in [("client", client, server), ("server", server, client)]:
                    threading.Thread(target=self._pass, args=(side, source, sink), daemon=True).start()

    def _pass(self, side: str, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                with self._lock:
                    if side == "client":
                        self.client_bytes += len(data)
                        if self._cut_after_bytes is not None and self.client_bytes > self._cut_after_bytes:
                            self._cut_after_bytes = None
                            source.shutdown(socket.SHUT_RDWR)
                            sink.shutdown(socket.SHUT_RDWR)
                            return
                    if self.turns and self.turns[-1][0] == side:
                        self.turns[-1] = (side, self.turns[-1][1] + len(data))
                    else:
                        self.turns.append((side, len(data)))
                with self._has_sent:
                    self._has_sent.notify_all()
                    if side == "server" and not self._has_sent.wait_for(self._is_enough, 20):
                        self.was_waited_for = True
                sink.sendall(data)


@pytest.fixture
def start_relayed(prepare: Prepare) -> Iterator[Callable[..., tuple[Pair, Relay]]]:
    relays: list[Relay] = []

    def through_relay(options: str, cut_after_bytes: int | None = None) -> tuple[Pair, Relay]:
        client = prepare(f"reference?{QUICK}&{options}")
        relays.append(Relay(client.server_port, cut_after_bytes))
        config = client.workdir / "reference-client" / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"port": relays[-1].port}))
        client.start()
        return Pair(client), relays[-1]

    yield through_relay
    for relay in relays:
        relay.close()


def test_server_counter_equals_bytes_at_a_relay(start_relayed: Callable[..., tuple[Pair, Relay]]) -> None:
    pair, relay = start_relayed(ALL)
    pair.write("a.bin", noise(1))
    pair.write_all({str(number): words(number, 10_000) for number in range(10)})
    assert pair.client.counters()["received_bytes"] == relay.client_bytes > SIZE_BYTES


@pytest.mark.parametrize(("chunking", "turns"), [("1", [65_536] * 4), ("0", [SIZE_BYTES])])
def test_a_chunk_is_answered_before_the_next_one_begins(
    chunking: str, turns: list[int], start_relayed: Callable[..., tuple[Pair, Relay]]
) -> None:
    pair, relay = start_relayed(f"chunking={chunking}")
    relay.turns.clear()
    pair.write("a.bin", noise(1))
    client_turns = [size for side, size in relay.turns if side == "client"]
    assert client_turns == [pytest.approx(size, abs=700) for size in turns]
    assert all(size < 200 for side, size in relay.turns if side == "server")


@pytest.mark.parametrize(("bundling", "turns"), [("no", 20), ("request", 1)])
def test_turns_of_many_files(bundling: str, turns: int, start_relayed: Callable[..., tuple[Pair, Relay]]) -> None:
    pair, relay = start_relayed(f"bundling={bundling}")
    relay.turns.clear()
    pair.write_all({str(number): noise(number, 10_000) for number in range(20)})
    assert len([size for side, size in relay.turns if side == "client"]) == turns


def test_pipelining_client_sends_all_files_before_an_answer(start_relayed: Callable[..., tuple[Pair, Relay]]) -> None:
    pair, relay = start_relayed("bundling=pipelined")
    relay.answers_after_bytes = relay.client_bytes + 20 * 10_000
    pair.write_all({str(number): noise(number, 10_000) for number in range(20)})
    assert not relay.was_waited_for
    assert relay.client_bytes >= relay.answers_after_bytes


def test_a_broken_connection_is_an_error_and_no_retry(start_relayed: Callable[..., tuple[Pair, Relay]]) -> None:
    pair, _ = start_relayed("chunking=1", cut_after_bytes=150_000)
    with pytest.raises(ClientError, match=r"(?s)reference-client \(client\): exit status 1.*(Error|closed)"):
        pair.write("a.bin", noise(1))


def test_a_retry_that_was_asked_for(start_relayed: Callable[..., tuple[Pair, Relay]]) -> None:
    pair, relay = start_relayed("chunking=1&retry=1", cut_after_bytes=150_000)
    cost = pair.write("a.bin", noise(1))
    assert cost.connections == 1
    assert relay.client_bytes > SIZE_BYTES


def test_reference_server_answers_over_https_only_with_its_token(start: Callable[[str], Pair]) -> None:
    pair = start("")
    pair.write("a.bin", b"x")
    config = json.loads((pair.client.workdir / "reference-client" / "config.json").read_text())
    tls = ssl.create_default_context(cafile=config["authority"])
    connection = http.client.HTTPSConnection("127.0.0.1", config["port"], context=tls, timeout=HANG_S)
    for token, status in [("wrong", 401), (config["token"], 200)]:
        connection.request("GET", "/list", headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == status
    assert json.loads(body) == {"a.bin": pair.client.held()["a.bin"]}
    connection.close()


# --- robust ---


@pytest.mark.parametrize("options", ["", f"{ALL}&deduplicate_deleted=0", "bundling=pipelined&delta=fixed"])
def test_many_changes_quickly(options: str, start: Callable[[str], Pair]) -> None:
    pair = start(options)
    random = Random(7)
    names = [pair.folder / name for name in ("a", "b", "c", "d/e", "d/f", "d/g/h", "d", "i j.txt", "ü")]
    for _ in range(400):
        path = random.choice(names)
        with suppress(OSError):
            match random.randrange(6):
                case 0:
                    path.unlink()
                case 1:
                    path.rename(random.choice(names))
                case 2:
                    with path.open("ab") as file:
                        file.write(random.randbytes(random.randrange(3000)))
                case 3:
                    path.rmdir()
                case _:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(noise(random.randrange(4), random.choice([0, 1, 3000, 100_000])))
    assert pair.client.wait_synced(HANG_S) is Proof.CONTENT
    pair.write("last", b"")
    assert "last" in pair.client.held()


def test_a_file_becomes_a_folder_and_a_folder_a_file(start: Callable[[str], Pair]) -> None:
    pair = start("deduplication=1")
    pair.write("a", b"file")

    def swap() -> None:
        (pair.folder / "a").unlink()
        (pair.folder / "a").mkdir()
        (pair.folder / "a/b").write_bytes(b"below")

    pair.cost(swap)
    assert pair.client.held().keys() == {"a/b"}

    def swap_back() -> None:
        (pair.folder / "a/b").unlink()
        (pair.folder / "a").rmdir()
        (pair.folder / "a").write_bytes(b"file again")

    pair.cost(swap_back)
    assert pair.client.held().keys() == {"a"}


def test_a_name_that_is_no_text(start: Callable[[str], Pair]) -> None:
    pair = start("delta=1&deduplication=1")
    name = os.fsdecode(b"\xff\xfe.bin")
    pair.write(name, noise(1))
    assert pair.write(name, noise(1) + b"more").received_bytes < FEW_BYTES


def test_files_present_at_the_start_are_synced(prepare: Prepare) -> None:
    client = prepare(f"reference?{QUICK}")
    (client.folder / "a.bin").write_bytes(noise(1))
    (client.stored / "old.bin").write_bytes(b"of an earlier run")
    client.start()
    assert client.held().keys() == {"a.bin"}
    client.wait_synced(0.01)


@pytest.mark.parametrize("side", ["client", "server"])
def test_killed_half_of_the_client_is_an_error(side: str, start: Callable[[str], Pair]) -> None:
    pair = start("")
    (pid,) = pair.client.pids("client" if side == "client" else "server")
    os.kill(pid, signal.SIGKILL)
    (pair.folder / "a.bin").write_bytes(noise(1))
    with pytest.raises(ClientError, match=r"killed by signal 9|exit status 1"):
        pair.client.wait_synced(HANG_S)


def test_both_halves_are_processes_that_end(start: Callable[[str], Pair]) -> None:
    pair = start("")
    pids = [*pair.client.pids("client"), *pair.client.pids("server")]
    assert len(pids) == 2
    for pid in pids:
        assert f"HOME={pair.client.workdir / 'home'}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    pair.client.stop()
    assert all(is_gone(pid) for pid in pids)
    with pytest.raises(ClientError, match="counters cannot be read"):
        pair.client.counters()


@pytest.mark.parametrize("options", ["", pytest.param(ALL, marks=pytest.mark.slow)])
def test_100_mb_in_constant_memory(options: str, start: Callable[..., Pair]) -> None:
    pair = start(options, quick="settle_s=0.02")
    block = noise(1, 1 << 20)
    new_file = pair.client.workdir / "made"
    with new_file.open("wb") as file:
        for number in range(100):
            file.write(number.to_bytes(8, "big") + block[8:])
    pair.cost(lambda: os.replace(new_file, pair.folder / "large.bin"))
    for side in ("client", "server"):
        (pid,) = pair.client.pids("client" if side == "client" else "server")
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        peak_kib = int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
        assert peak_kib < 60_000, side


def test_it_is_quick(start: Callable[[str], Pair]) -> None:
    pair = start("")
    used_s = pair.client.cpu_s("client")
    assert used_s is not None
    assert used_s < 1  # of CPU time, so that a busy machine does not fail it
    started_s = time.monotonic()
    pair.write("a.bin", b"x")
    assert time.monotonic() - started_s < HANG_S / 2
