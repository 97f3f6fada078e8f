"""The time until the other side has files: known from a link's rate, and never for files that are not intact."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_cloudbench import clients
from pytest_cloudbench.clients.base import SyncClient
from pytest_cloudbench.link import Link, LinkUnavailable, Way
from pytest_cloudbench.systems.propagation import Arrival, _Watch, propagate
from pytest_cloudbench.systems.workloads import Workload

RATE_BIT_PER_S = 8e6


@pytest.fixture
def link() -> Iterator[Link]:
    try:
        with Link(Way(delay_ms=5, rate_bit_per_s=RATE_BIT_PER_S), interruptible=True) as made:
            yield made
    except LinkUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def pair(link: Link, tmp_path: Path) -> Iterator[SyncClient]:
    made = clients.client("reference?settle_s=0.2")
    server, client = link.address("server"), link.address("client")
    made.prepare(tmp_path / "client", server_address=server, client_address=client, runner=link)
    made.start()
    yield made
    made.stop()


def arrival(pair: SyncClient, link: Link, folder: Path, workload: Workload, timeout_s: float = 30.0) -> Arrival:
    receiver = folder / "client" / "stored"
    return propagate(
        pair, receiver, link, workload, stage=folder / "stage", name="new", seed="known", timeout_s=timeout_s
    )


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
