"""A child whose server, a real process, is stopped: which operations wait for it, for how long, and what is left.

While the server is stopped, no call here may wait for it, because its driver would wait for an hour.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from pytest_cloudbench import drivers
from pytest_cloudbench.emulators import EmulatorService, start_emulator
from pytest_cloudbench.model import CloudError, ErrorKind, ProviderSpec
from pytest_cloudbench.raid import config
from pytest_cloudbench.raid.driver import RaidDriver, open_array
from pytest_cloudbench.raid.maintenance import repair_array
from pytest_cloudbench.raid.survey import survey_array
from pytest_cloudbench.workload.payload.contents import Literal
from tests.limits import HANG_S

from .harness import ArrayFolder

MakeArray = Callable[..., ArrayFolder]


@pytest.fixture
def server() -> Iterator[EmulatorService]:
    with start_emulator("ideal") as running:
        try:
            yield running
        finally:
            os.kill(running.child.pid, signal.SIGCONT)


@contextmanager
def open_with_server(array_folder: ArrayFolder, server: EmulatorService, timeout_s: float) -> Iterator[RaidDriver]:
    """Yield the driver of an array of folders, with the server as its last child."""
    folders = [f"folder:{array_folder.folder}/{number}" for number in range(array_folder.k + array_folder.m - 1)]
    children = [drivers.connect(ProviderSpec.parse(spec)) for spec in folders]
    remote = ProviderSpec.parse(f"{server.endpoint.api}?timeout_s={timeout_s:g}")
    children.append(drivers.connect(remote, server.endpoint, {}))
    with closing(RaidDriver(open_array(config.load(array_folder.file), children))) as driver:
        yield driver


def is_healthy_after_repair(driver: RaidDriver) -> bool:
    """Return whether every share is intact and where it belongs, and there are no other packages."""
    assert driver.settle(HANG_S)
    survey_array(driver.array)
    assert repair_array(driver.array).is_complete
    state = survey_array(driver.array, deep=True)
    return state.is_healthy and not state.garbage and not any(child.strange for child in state.children)


def test_operations_do_not_wait_for_a_stopped_server_which_catches_up_later(
    make_array: MakeArray, server: EmulatorService
) -> None:
    array_folder = make_array(2, 1, durability="k+0", patience_s=0.1)
    with open_with_server(array_folder, server, 3600) as driver:
        for name in ("/a", "/b"):
            driver.put(name, Literal(b"content"))
        assert driver.settle(HANG_S)
        os.kill(server.child.pid, signal.SIGSTOP)
        driver.delete("/a")
        driver.put("/b", Literal(b"overwritten"))
        driver.put("/c", Literal(b"new"))
        assert [entry.path for entry in driver.list("/")] == ["/b", "/c"]
        assert driver.stat("/b").size_bytes == len(b"overwritten")
        assert [b"".join(driver.get(name)) for name in ("/b", "/c")] == [b"overwritten", b"new"]
        os.kill(server.child.pid, signal.SIGCONT)
        assert is_healthy_after_repair(driver)


def test_a_write_to_all_children_fails_when_the_driver_of_a_stopped_one_gives_up(
    make_array: MakeArray, server: EmulatorService
) -> None:
    array_folder = make_array(2, 1, patience_s=0.1)
    with open_with_server(array_folder, server, 1) as driver:
        driver.put("/a", Literal(b"content"))
        os.kill(server.child.pid, signal.SIGSTOP)
        with pytest.raises(CloudError) as caught:
            driver.put("/a", Literal(b"never written"))
        assert caught.value.kind is ErrorKind.NETWORK
        state = survey_array(driver.array)
        assert [bool(child.unreachable) for child in state.children] == [False, False, True]
        assert b"".join(driver.get("/a")) == b"content"
        os.kill(server.child.pid, signal.SIGCONT)
        assert is_healthy_after_repair(driver)


@pytest.mark.slow
def test_a_scrub_ends_when_a_server_is_stopped_meanwhile(make_array: MakeArray, server: EmulatorService) -> None:
    array_folder = make_array(2, 1, patience_s=0.1)
    with open_with_server(array_folder, server, 1) as driver:
        for number in range(6):
            driver.put(f"/{number}", Literal(b"content"))

        def stop(_: str, done: int, total: int) -> None:
            if done == 1:
                os.kill(server.child.pid, signal.SIGSTOP)

        state = survey_array(driver.array, deep=True, progress=stop)
        assert state.children[2].unread == 5
        assert state.degraded + state.at_risk == 5
        os.kill(server.child.pid, signal.SIGCONT)
        assert is_healthy_after_repair(driver)
