"""Whatever happens in whatever order, an array holds what was acknowledged, and nothing else is ever read.

Children fail and come back, lose what they have, flip bits; the process restarts, with its metadata or without; and in
between objects are written, deleted and read. Never more than m children are in trouble at a time.
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

from .harness import Lab

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
        self.lab: Any = Lab(Path(folder), K, M, durability=f"k+{M - 1}")
        self.driver: Any = None
        self.wanted: dict[str, bytes] = {}
        self.troubled: set[int] = set()
        self.number = 0

    @initialize()
    def begin(self) -> None:
        self.open()

    def open(self) -> None:
        self.opened = ExitStack()
        self.driver = self.opened.enter_context(self.lab.opened())
        list(self.driver.list("/"))
        self.troubled = set()

    def teardown(self) -> None:
        with self.stack, self.opened:
            self.calm()
            assert self.read_all() == self.wanted

    def calm(self) -> None:
        """No child is faulty any more, and nothing is left to be rebuilt."""
        for child in self.lab.children:
            child.fails = {}
        assert self.driver.settle(HANG_S)
        self.troubled = set()

    def mend(self) -> None:
        """Reading does not need what is lost; a scrub finds what reading did not."""
        assert self.read_all() == self.wanted
        survey_array(self.driver.array, deep=True)
        repair_array(self.driver.array)
        assert survey_array(self.driver.array, deep=True).is_healthy

    def read_all(self) -> dict[str, bytes]:
        return {entry.path: b"".join(self.driver.get(entry.path)) for entry in self.driver.list("/")}

    @rule(path=PATHS, size=SIZES)
    def put(self, path: str, size: int) -> None:
        """Acknowledged or not, an object is entirely the old one or entirely the new one."""
        self.number += 1
        content = random.Random(self.number).randbytes(size)
        try:
            self.driver.put(path, Literal(content))
        except CloudError:
            assert len(self.troubled) >= M, "k+1 children were there"
        else:
            self.wanted[path] = content

    @rule(path=PATHS)
    def get(self, path: str) -> None:
        if path in self.wanted:
            assert b"".join(self.driver.get(path)) == self.wanted[path]
        else:
            with pytest.raises(CloudError, match="not_found"):
                next(self.driver.get(path))

    @rule(path=PATHS)
    def delete(self, path: str) -> None:
        if self.wanted.pop(path, None) is not None:
            self.driver.delete(path)
        else:
            with pytest.raises(CloudError, match="not_found"):
                self.driver.delete(path)

    @rule()
    def settle(self) -> None:
        self.calm()

    @precondition(lambda self: len(self.troubled) < M)
    @rule(child=CHILDREN)
    def fail(self, child: int) -> None:
        self.troubled.add(child)
        self.lab.children[child].fails = dict.fromkeys(FAILING, ErrorKind.NETWORK)

    @rule(child=CHILDREN)
    def lose(self, child: int) -> None:
        """What a child held is lost, and rebuilt."""
        self.calm()
        self.lab.lose_child(child)
        self.mend()

    @rule(child=CHILDREN, place=st.integers(0, 2**16))
    def flip(self, child: int, place: int) -> None:
        self.calm()
        for path in self.lab.children[child].packages.values():
            data = bytearray(path.read_bytes())
            data[place % len(data)] ^= 1 << place % 8
            path.write_bytes(data)
        self.mend()

    @rule()
    def start_anew(self) -> None:
        self.opened.close()
        self.open()

    @rule()
    def start_anew_without_metadata(self) -> None:
        self.calm()
        self.opened.close()
        self.lab.lose_metadata()
        self.open()

    @invariant()
    def lists_what_was_acknowledged(self) -> None:
        if self.driver is not None:
            found = {entry.path: entry.size_bytes for entry in self.driver.list("/")}
            assert found == {path: len(content) for path, content in self.wanted.items()}


def run(examples: int, steps: int) -> None:
    every = list(HealthCheck)
    bounds = settings(max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=every)
    run_state_machine_as_test(Array, settings=bounds)


def test_what_was_acknowledged_is_there_in_any_order() -> None:
    run(6, 15)


@pytest.mark.slow
def test_what_was_acknowledged_is_there_in_many_orders() -> None:
    run(250, 25)
