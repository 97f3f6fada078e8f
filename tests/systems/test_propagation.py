"""The time until the other side has files: known from a link's rate, and never for files that are not intact."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench import clients
from pytest_cloudbench.clients.base import SyncClient
from pytest_cloudbench.clients.reference.adapter import ReferenceClient
from pytest_cloudbench.link import Link, LinkUnavailable, Way
from pytest_cloudbench.systems.propagation import Arrival, _Watch, propagate
from pytest_cloudbench.systems.workloads import Workload, put

RATE_BIT_PER_S = 8e6


@pytest.fixture
def link() -> Iterator[Link]:
    try:
        with Link(Way(delay_ms=5, rate_bit_per_s=RATE_BIT_PER_S), interruptible=True) as made:
            yield made
    except LinkUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def start(link: Link, tmp_path: Path) -> Iterator[Callable[[str], ReferenceClient]]:
    started: list[ReferenceClient] = []

    def make(options: str = "") -> ReferenceClient:
        made = clients.client(f"reference?settle_s=0.2{options}")
        assert isinstance(made, ReferenceClient)
        started.append(made)
        server, client = link.address("server"), link.address("client")
        made.prepare(tmp_path / "client", server_address=server, client_address=client, runner=link)
        made.start()
        return made

    yield make
    for one in started:
        one.stop()


@pytest.fixture
def pair(start: Callable[..., ReferenceClient]) -> ReferenceClient:
    return start()


def arrival(pair: SyncClient, link: Link, folder: Path, workload: Workload, timeout_s: float = 30.0) -> Arrival:
    receiver, stage = pair.receiver(), folder / "stage"
    assert receiver is not None
    return propagate(pair, receiver, link, workload, stage=stage, name="new", seed="known", timeout_s=timeout_s)


def test_a_file_takes_patience_and_its_size_over_the_rate(pair: SyncClient, link: Link, tmp_path: Path) -> None:
    found = arrival(pair, link, tmp_path, Workload(1, 1_000_000))
    assert found.error == ""
    assert found.high_s is not None
    on_the_link_s = found.up_bytes * 8 / RATE_BIT_PER_S
    assert 0.2 + on_the_link_s * 0.9 <= found.high_s <= 0.2 + on_the_link_s * 1.5 + 0.5
    assert 0 <= found.high_s - found.low_s <= 0.5
    assert 1_000_000 * 1.03 <= found.up_bytes <= 1_000_000 * 1.06
    assert 0 < found.down_bytes < 60_000
    assert all((found.memory_bytes[side] or 0) > 5_000_000 for side in ("client", "server"))
    assert all(found.cpu_s[side] is not None for side in ("client", "server"))
    assert (found.cpu_s["device"], found.memory_bytes["device"]) == (None, None), "there is none"
    assert found.other_down_bytes == pytest.approx(found.up_bytes, rel=0.01), "the other end of the link"
    assert found.other_up_bytes == pytest.approx(found.down_bytes, rel=0.1)


def test_a_set_that_does_not_come_has_no_time(pair: SyncClient, link: Link, tmp_path: Path) -> None:
    link.interrupt("black_hole", at_byte=100_000, duration_s=600)
    found = arrival(pair, link, tmp_path, Workload(1, 1_000_000), timeout_s=1.0)
    assert found.high_s is None
    assert "not there" in found.error
    assert found.low_s >= 0.9


def test_a_client_that_ends_is_noticed_at_once(pair: SyncClient, link: Link, tmp_path: Path) -> None:
    link.interrupt("reset", at_byte=100_000)
    found = arrival(pair, link, tmp_path, Workload(1, 1_000_000), timeout_s=60.0)
    assert found.high_s is None
    assert "ended while it was needed" in found.error


def test_right_sizes_with_other_bytes_are_not_intact(tmp_path: Path) -> None:
    content = b"x" * 1000
    watch = _Watch(tmp_path, {"a": (1000, hashlib.sha256(content).hexdigest())})
    assert not watch._is_intact()
    (tmp_path / "a").write_bytes(b"y" * 1000)
    assert not watch._is_intact()
    (tmp_path / "a").write_bytes(content)
    assert watch._is_intact()


# --- a second device beside the server ---


def test_a_second_device_has_its_own_bytes_cpu_and_memory(
    start: Callable[[str], ReferenceClient], link: Link, tmp_path: Path
) -> None:
    pair = start("&pull_s=0.2")
    found = arrival(pair, link, tmp_path, Workload(4, 250_000))
    assert found.error == ""
    assert found.high_s is not None
    assert found.high_s >= 0.2 + found.up_bytes * 8 / RATE_BIT_PER_S * 0.9, "it was uploaded before"
    assert 1_000_000 * 1.03 <= found.up_bytes <= 1_000_000 * 1.06, "what the device downloads does not cross the link"
    assert 1_000_000 < (found.other_down_bytes or 0) < 1_000_000 * 1.03
    assert 0 < (found.other_up_bytes or 0) < 60_000
    assert all((found.memory_bytes[side] or 0) > 5_000_000 for side in ("client", "server", "device"))
    assert all(found.cpu_s[side] is not None for side in ("client", "server", "device"))
    assert set(pair.pids("device")).isdisjoint((*pair.pids("server"), *pair.pids("client")))


@pytest.mark.parametrize("period_s", [0.4, 2.0])
def test_the_period_of_the_second_device_is_in_the_time(
    period_s: float, start: Callable[[str], ReferenceClient], link: Link, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A set that appears just after a question arrives with the answer to the next one, a period later."""
    pair, appeared_ns = start(f"&pull_s={period_s}"), [0]

    def noted(*args: Any) -> int:
        appeared_ns[0] = put(*args)
        return appeared_ns[0]

    monkeypatch.setattr("pytest_cloudbench.systems.propagation.put", noted)
    look_ns = before_ns = time.time_ns()
    questions = asked(pair)
    while asked(pair) == questions:
        # When it was asked, the next question was not there yet.
        before_ns, look_ns = look_ns, time.time_ns()
    found = arrival(pair, link, tmp_path, Workload(1, 1000))
    assert found.high_s is not None
    assert appeared_ns[0] + found.high_s * 1e9 >= before_ns + period_s * 1e9


def asked(pair: ReferenceClient) -> int:
    """How often the second device has asked for news."""
    return int(pair.counters()["device"]["requests"].get("/news", 0))


def test_what_the_server_has_and_the_second_device_not_is_not_there(
    start: Callable[[str], ReferenceClient], link: Link, tmp_path: Path
) -> None:
    pair = start("&pull_s=0.05")
    (pid,) = pair.pids("device")
    os.kill(pid, signal.SIGSTOP)
    found = arrival(pair, link, tmp_path, Workload(1, 1000), timeout_s=1.5)
    assert (found.high_s, found.error) == (None, "not there, or not intact, after 1.5 s")
    pair.wait_synced(60)
    assert (pair.stored / "new").exists()
    os.kill(pid, signal.SIGKILL)
    found = propagate(
        pair, pair.receiver(), link, Workload(1, 1000), stage=tmp_path / "stage", name="more", seed="", timeout_s=60
    )
    assert found.high_s is None
    assert "reference-device (device): killed by signal 9" in found.error
