"""Arrays under random events. An array holds all acknowledged objects, and nothing else is ever read.

Children fail and come back, lose packages and flip bits. The process restarts, with its metadata or without it. In
between, objects are written, deleted and read. Never more than m children are in trouble at a time.
"""

from __future__ import annotations

import random
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pytest_cloudbench.model import MIB, CloudError, ErrorKind
from pytest_cloudbench.raid.maintenance import repair_array
from pytest_cloudbench.raid.survey import survey_array
from pytest_cloudbench.workload.payload.contents import Literal
from tests.limits import HANG_S

from .harness import ArrayFolder

K, M = 2, 2
PATHS = st.sampled_from(["/a", "/b", "/x/a", "/x/b"])
SIZES = st.sampled_from([0, 1, 5000, MIB, MIB + 1])
CHILDREN = st.integers(0, K + M - 1)
FAILING = ("put", "get", "list", "delete")


class Array(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        folder = self.stack.enter_context(tempfile.TemporaryDirectory())
        self.array_folder: Any = ArrayFolder(Path(folder), K, M, durability=f"k+{M - 1}")
        self.driver: Any = None
        self.expected: dict[str, bytes] = {}
        self.troubled: set[int] = set()
        self.number = 0

    @initialize()
    def begin(self) -> None:
        self.open()

    def open(self) -> None:
        self.opened = ExitStack()
        self.driver = self.opened.enter_context(self.array_folder.opened())
        list(self.driver.list("/"))
        self.troubled = set()

    def teardown(self) -> None:
        with self.stack, self.opened:
            self.end_faults()
            assert self.read_all() == self.expected

    def end_faults(self) -> None:
        """End all faults of children, and wait until nothing is left to be rebuilt."""
        for child in self.array_folder.children:
            child.fails = {}
        assert self.driver.settle(HANG_S)
        self.troubled = set()

    def mend(self) -> None:
        """Read without the lost packages, then find the rest of them by a scrub and rebuild them."""
        assert self.read_all() == self.expected
        survey_array(self.driver.array, deep=True)
        repair_array(self.driver.array)
        assert survey_array(self.driver.array, deep=True).is_healthy

    def read_all(self) -> dict[str, bytes]:
        return {entry.path: b"".join(self.driver.get(entry.path)) for entry in self.driver.list("/")}

    @rule(path=PATHS, size=SIZES)
    def put(self, path: str, size: int) -> None:
        """Write an object. Acknowledged or not, it is entirely the old one or entirely the new one."""
        self.number += 1
        content = random.Random(self.number).randbytes(size)
        try:
            self.driver.put(path, Literal(content))
        except CloudError:
            assert len(self.troubled) >= M, "k+1 children were there"
        else:
            self.expected[path] = content

    @rule(path=PATHS)
    def get(self, path: str) -> None:
        if path in self.expected:
            assert b"".join(self.driver.get(path)) == self.expected[path]
        else:
            with pytest.raises(CloudError, match="not_found"):
                next(self.driver.get(path))

    @rule(path=PATHS)
    def delete(self, path: str) -> None:
        if self.expected.pop(path, None) is not None:
            self.driver.delete(path)
        else:
            with pytest.raises(CloudError, match="not_found"):
                self.driver.delete(path)

    @rule()
    def settle(self) -> None:
        self.end_faults()

    @precondition(lambda self: len(self.troubled) < M)
    @rule(child=CHILDREN)
    def fail(self, child: int) -> None:
        self.troubled.add(child)
        self.array_folder.children[child].fails = dict.fromkeys(FAILING, ErrorKind.NETWORK)

    @rule(child=CHILDREN)
    def lose(self, child: int) -> None:
        """Lose all packages of a child, and rebuild them."""
        self.end_faults()
        self.array_folder.lose_child(child)
        self.mend()

    @rule(child=CHILDREN, position=st.integers(0, 2**16))
    def flip(self, child: int, position: int) -> None:
        self.end_faults()
        for path in self.array_folder.children[child].packages.values():
            data = bytearray(path.read_bytes())
            data[position % len(data)] ^= 1 << position % 8
            path.write_bytes(data)
        self.mend()

    @rule()
    def start_anew(self) -> None:
        self.opened.close()
        self.open()

    @rule()
    def start_anew_without_metadata(self) -> None:
        self.end_faults()
        self.opened.close()
        self.array_folder.lose_metadata()
        self.open()

    @invariant()
    def lists_what_was_acknowledged(self) -> None:
        if self.driver is not None:
            sizes_bytes = {entry.path: entry.size_bytes for entry in self.driver.list("/")}
            assert sizes_bytes == {path: len(content) for path, content in self.expected.items()}


def run(examples: int, steps: int) -> None:
    all_checks = list(HealthCheck)
    bounds = settings(max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=all_checks)
    run_state_machine_as_test(Array, settings=bounds)


def test_acknowledged_objects_survive_any_order_of_events() -> None:
    run(6, 15)


@pytest.mark.slow
def test_acknowledged_objects_survive_many_orders_of_events() -> None:
    run(250, 25)
