"""Writes of one object, and what they take for large ones."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from pytest_cloudbench.model import MIB
from pytest_cloudbench.raid.array import Array
from pytest_cloudbench.workload.payload.contents import Repeated

from .harness import ArrayFolder

MakeArray = Callable[..., ArrayFolder]


def test_each_segment_is_waited_for_about_as_often_in_a_large_object(
    make_array: MakeArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the three children may wake a wait, in which this is asked twice."""
    is_durable, calls, segments = Array.is_durable, list[int](), 60
    monkeypatch.setattr(Array, "is_durable", lambda *args: calls.append(0) or is_durable(*args))
    with make_array().opened() as driver:
        driver.put("/a", Repeated(random.Random(5).randbytes(1000), segments * MIB))
    assert len(calls) <= 10 * segments
