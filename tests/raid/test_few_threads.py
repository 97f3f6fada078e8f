"""An array on a system that allows few threads, as in a container with a limit on processes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from pytest_cloudbench.support.clock import wait_for
from pytest_cloudbench.workload.payload.contents import Literal
from tests.limits import HANG_S

from .harness import ArrayFolder

MakeArray = Callable[..., ArrayFolder]


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many threads the system allows each child, by the threads' name. None is refused to the others."""
    start, allowed, begun = threading.Thread.start, Counter[str](), Counter[str]()

    def start_if_allowed(thread: threading.Thread) -> None:
        if thread.name in allowed and begun[thread.name] >= allowed[thread.name]:
            raise RuntimeError("can't start new thread")
        begun[thread.name] += 1
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_if_allowed)
    return allowed


def test_one_thread_for_each_child_does_all_the_work(make_array: MakeArray, allowed: Counter[str]) -> None:
    allowed.update({f"raid-{child}": 1 for child in range(3)})
    names = [f"/{number}" for number in range(20)]
    with make_array(durability="k+1").opened() as driver, ThreadPoolExecutor(8) as executor:
        list(executor.map(lambda name: driver.put(name, Literal(name.encode() * 50_000)), names))
        for name, content in zip(names, executor.map(lambda name: b"".join(driver.get(name)), names), strict=True):
            assert content == name.encode() * 50_000


def test_a_child_without_a_thread_fails_and_is_repaired_once_there_is_one(
    make_array: MakeArray, allowed: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_cloudbench.raid.transfers._IDLE_S", 0.01)
    array_folder = make_array(durability="k+1")
    with array_folder.opened() as driver:
        driver.put("/a", Literal(b"old"))
        allowed["raid-1"] = 0
        assert wait_for(lambda: "raid-1" not in {thread.name for thread in threading.enumerate()}, HANG_S, poll_s=0.01)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            driver.put("/a", Literal(b"new" * 50_000))
        del allowed["raid-1"]
        driver.put("/a", Literal(b"newest" * 50_000))
        assert driver.settle(HANG_S)
        assert b"".join(driver.get("/a")) == b"newest" * 50_000
    assert {len(child.packages) for child in array_folder.children} == {1}
