"""The time until the other side has files, which follows from the link's rate and needs intact files."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.lab import clients
from pytest_cloudbench.lab.clients.reference.adapter import ReferenceClient
from pytest_cloudbench.lab.sync import propagation as propagation_module
from pytest_cloudbench.lab.sync.changes import Workload, put
from pytest_cloudbench.lab.sync.lab import Lab
from pytest_cloudbench.lab.sync.propagation import Propagation, _ReceiverWatch, propagate
from pytest_cloudbench.net.link import Way

from .links import open_lab

RATE_BIT_PER_S = 8e6


Start = Callable[..., Lab]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Function that opens the lab of a reference client with some options and starts the client."""
    with ExitStack() as stack:

        def make(options: str = "") -> Lab:
            client = clients.make_client(f"reference?settle_s=0.2{options}")
            way = Way(delay_ms=5, rate_bit_per_s=RATE_BIT_PER_S)
            lab = stack.enter_context(open_lab(client, tmp_path, way, interruptible=True, stream_s=None))
            lab.start()
            return lab

        yield make


@pytest.fixture
def lab(start: Start) -> Lab:
    return start()


def measure_propagation(lab: Lab, workload: Workload, timeout_s: float = 30.0) -> Propagation:
    return propagate(lab, workload, name="new", seed="known", timeout_s=timeout_s)


def test_a_file_takes_patience_and_its_size_over_the_rate(lab: Lab) -> None:
    propagation = measure_propagation(lab, Workload(1, 1_000_000))
    assert propagation.error == ""
    assert propagation.high_s is not None
    on_the_link_s = propagation.up_bytes * 8 / RATE_BIT_PER_S
    assert 0.2 + on_the_link_s * 0.9 <= propagation.high_s <= 0.2 + on_the_link_s * 1.5 + 0.5
    assert 0 <= propagation.high_s - propagation.low_s <= 0.5
    assert 1_000_000 * 1.03 <= propagation.up_bytes <= 1_000_000 * 1.06
    assert 0 < propagation.down_bytes < 60_000
    assert all((propagation.memory_bytes[side] or 0) > 5_000_000 for side in ("client", "server"))
    assert all(propagation.cpu_s[side] is not None for side in ("client", "server"))
    assert (propagation.cpu_s["device"], propagation.memory_bytes["device"]) == (None, None), "there is none"
    assert propagation.other_down_bytes == pytest.approx(propagation.up_bytes, rel=0.01), "the other end of the link"
    assert propagation.other_up_bytes == pytest.approx(propagation.down_bytes, rel=0.1)


def test_a_set_that_does_not_come_has_no_time(lab: Lab) -> None:
    lab.link.interrupt("black_hole", at_byte=100_000, duration_s=600)
    propagation = measure_propagation(lab, Workload(1, 1_000_000), timeout_s=1.0)
    assert propagation.high_s is None
    assert "not there" in propagation.error
    assert propagation.low_s >= 0.9


def test_a_client_that_ends_is_noticed_at_once(lab: Lab) -> None:
    lab.link.interrupt("reset", at_byte=100_000)
    propagation = measure_propagation(lab, Workload(1, 1_000_000), timeout_s=60.0)
    assert propagation.high_s is None
    assert "ended while it was needed" in propagation.error


def test_nothing_is_measured_after_a_set_that_did_not_come(lab: Lab) -> None:
    lab.link.interrupt("black_hole", at_byte=100_000, duration_s=600)
    measure_propagation(lab, Workload(1, 1_000_000), timeout_s=0.5)
    later = propagate(lab, Workload(1, 1000), name="later", seed="")
    assert later.high_s is None
    assert "out of sync since an earlier set of files: not there" in later.error
    assert not (lab.client.folder / "later").exists()


def test_looking_ends_when_a_set_cannot_be_written(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> int:
        raise OSError("disk full")

    monkeypatch.setattr("pytest_cloudbench.lab.sync.propagation.put", fail)
    with pytest.raises(OSError, match="disk full"):
        measure_propagation(lab, Workload(1, 1000))
    assert "watch-receiver" not in [thread.name for thread in threading.enumerate()]


def test_a_clock_that_is_set_meanwhile_changes_no_time(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    true_ns = time.time_ns

    def put_and_set_clock(*args: Any) -> int:
        moved_ns = put(*args)
        monkeypatch.setattr(time, "time_ns", lambda: true_ns() + 3_600_000_000_000)
        return moved_ns

    monkeypatch.setattr(propagation_module, "put", put_and_set_clock)
    propagation = measure_propagation(lab, Workload(1, 1000))
    assert propagation.error == ""
    assert propagation.high_s is not None
    assert 0 <= propagation.low_s <= propagation.high_s < 30


def test_right_sizes_with_other_bytes_are_not_intact(tmp_path: Path) -> None:
    content = b"x" * 1000
    watch = _ReceiverWatch(tmp_path, {"a": (1000, hashlib.sha256(content).hexdigest())})
    assert not watch._is_intact()
    (tmp_path / "a").write_bytes(b"y" * 1000)
    assert not watch._is_intact()
    (tmp_path / "a").write_bytes(content)
    assert watch._is_intact()


# --- a second device beside the server ---


@pytest.mark.slow
def test_a_second_device_has_its_own_bytes_cpu_and_memory(
    start: Start,
) -> None:
    lab = start("&pull_s=0.2")
    pair = lab.client
    propagation = measure_propagation(lab, Workload(4, 250_000))
    assert propagation.error == ""
    assert propagation.high_s is not None
    assert propagation.high_s >= 0.2 + propagation.up_bytes * 8 / RATE_BIT_PER_S * 0.9, "it was uploaded before"
    assert 1_000_000 * 1.03 <= propagation.up_bytes <= 1_000_000 * 1.06, (
        "what the device downloads does not cross the link"
    )
    assert 1_000_000 < (propagation.other_down_bytes or 0) < 1_000_000 * 1.03
    assert 0 < (propagation.other_up_bytes or 0) < 60_000
    assert all((propagation.memory_bytes[side] or 0) > 5_000_000 for side in ("client", "server", "device"))
    assert all(propagation.cpu_s[side] is not None for side in ("client", "server", "device"))
    assert set(pair.pids("device")).isdisjoint((*pair.pids("server"), *pair.pids("client")))


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("period_s", [0.4, 2.0])
def test_the_period_of_the_second_device_is_in_the_time(
    period_s: float, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """A set that appears just after a poll arrives with the answer to the next poll, a period later."""
    lab, appeared_ns = start(f"&pull_s={period_s}"), [0]
    pair: Any = lab.client

    def put_and_note(*args: Any) -> int:
        appeared_ns[0] = put(*args)
        return appeared_ns[0]

    monkeypatch.setattr("pytest_cloudbench.lab.sync.propagation.put", put_and_note)
    look_ns = before_ns = time.time_ns()
    polls = count_polls(pair)
    while count_polls(pair) == polls:
        # At this time the next poll had not arrived yet.
        before_ns, look_ns = look_ns, time.time_ns()
    propagation = measure_propagation(lab, Workload(1, 1000))
    assert propagation.high_s is not None
    assert appeared_ns[0] + propagation.high_s * 1e9 >= before_ns + period_s * 1e9


def count_polls(pair: ReferenceClient) -> int:
    """Return how often the second device has polled."""
    return int(pair.counters()["device"]["requests"].get("/news", 0))


@pytest.mark.slow
def test_file_missing_on_the_second_device_has_not_arrived(
    start: Start,
) -> None:
    lab = start("&pull_s=0.05")
    pair: Any = lab.client
    (pid,) = pair.pids("device")
    os.kill(pid, signal.SIGSTOP)
    propagation = measure_propagation(lab, Workload(1, 1000), timeout_s=1.5)
    assert (propagation.high_s, propagation.error) == (None, "not there, or not intact, after 1.5 s")
    pair.wait_synced(60)
    lab.out_of_sync = ""  # nothing of that set is left to send
    assert (pair.stored / "new").exists()
    os.kill(pid, signal.SIGKILL)
    propagation = propagate(lab, Workload(1, 1000), name="more", seed="", timeout_s=60)
    assert propagation.high_s is None
    assert "reference-device (device): killed by signal 9" in propagation.error
