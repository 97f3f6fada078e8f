"""Writes of one object: what they take for large ones, and content that is not as long as it says."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from pytest_cloudbench.model import MIB, CloudError, ErrorKind
from pytest_cloudbench.raid.array import Array
from pytest_cloudbench.workload.payload.contents import Literal, Repeated

from .harness import ArrayFolder

MakeArray = Callable[..., ArrayFolder]


def test_each_segment_is_waited_for_about_as_often_in_a_large_object(
    make_array: MakeArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the three children may wake a wait, in which this is asked twice."""
    is_durable, calls, segments = Array.is_durable, itertools.count(), 60
    monkeypatch.setattr(Array, "is_durable", lambda *args: next(calls) >= 0 and is_durable(*args))
    with make_array().opened() as driver:
        driver.put("/a", Repeated(random.Random(5).randbytes(1000), segments * MIB))
    assert next(calls) <= 10 * segments


@dataclass(frozen=True)
class Resized:
    """The content of a file that has changed its size since it was looked at."""

    data: bytes
    size_bytes: int

    def read(self, offset: int, length: int) -> bytes:
        return self.data[offset : offset + length]


@pytest.mark.parametrize("size_bytes", [1, MIB, 2 * MIB + 1])
def test_content_that_ends_early_is_refused_and_not_written_so_that_nobody_can_read_it(
    make_array: MakeArray, size_bytes: int
) -> None:
    with make_array().opened() as driver:
        driver.put("/a", Literal(b"old"))
        with pytest.raises(CloudError) as caught:
            driver.put("/a", Resized(bytes(size_bytes - 1), size_bytes))
        assert caught.value.kind is ErrorKind.INVALID
        assert b"".join(driver.get("/a")) == b"old"
        assert driver.settle(60.0)
        assert driver.stat("/a").size_bytes == 3
