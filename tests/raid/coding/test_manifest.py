"""Manifests: a sealed one opens only in its own place, and one that no writer seals is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_cloudbench.model import MIB
from pytest_cloudbench.raid.coding.manifest import CodedSegment, Manifest
from pytest_cloudbench.raid.coding.policies import Split
from pytest_cloudbench.raid.coding.sealing import MasterKey, NotGenuine
from tests.limits import scale_examples

MASTER, SALT = MasterKey(bytes(range(32))), bytes(16)
DIGESTS = tuple(bytes([number]) * 32 for number in range(9))
MANIFEST = Manifest(
    version=b"v" * 16, generation=7, path="/a/b", size_bytes=MIB + 5, key=b"k" * 32, prefix=b"p" * 7,
    segments=(CodedSegment(MIB, Split(2, (1, 2, 0)), DIGESTS[:3]), CodedSegment(5, Split(2, (1, 1, 1)), DIGESTS[3:6])),
)  # fmt: skip


@settings(max_examples=scale_examples(40))
@given(st.text(), st.integers(0, 3 * MIB), st.integers(1, 2**50))
def test_an_opened_manifest_equals_the_sealed_one(path: str, size: int, generation: int) -> None:
    sizes = [*[MIB] * (max(size - 1, 0) // MIB), size - max(size - 1, 0) // MIB * MIB]
    segments = tuple(CodedSegment(size, Split(1, (1, 1)), DIGESTS[:2]) for size in sizes)
    manifest = replace(MANIFEST, path=path, size_bytes=size, generation=generation, segments=segments)
    assert Manifest.open(MASTER, manifest.seal(MASTER, SALT, "here"), "here") == manifest


def test_a_copy_opens_only_in_its_place_and_hides_the_path() -> None:
    sealed = MANIFEST.seal(MASTER, SALT, "here")
    assert Manifest.open(MASTER, sealed, "here") == MANIFEST
    assert b"/a/b" not in sealed
    assert len(sealed) == len(replace(MANIFEST, path="/a/b/c and longer").seal(MASTER, SALT, "here"))
    for master, data, context in (
        (MASTER, sealed, "there"), (MasterKey(bytes(32)), sealed, "here"), (MASTER, sealed[:-1], "here"),
        (MASTER, b"", "here"), (MASTER, sealed[:40] + bytes([sealed[40] ^ 1]) + sealed[41:], "here"),
    ):  # fmt: skip
        with pytest.raises(NotGenuine):
            Manifest.open(master, data, context)


def seal_with_changes(**values: Any) -> bytes:
    """Return a sealed manifest with other values in its text, where None leaves a key out."""
    plain = MASTER.open(MANIFEST.seal(MASTER, SALT, "here"), b"here")
    end = 4 + int.from_bytes(plain[:4], "big")
    text = {name: value for name, value in {**json.loads(plain[4:end]), **values}.items() if value is not None}
    new = json.dumps(text).encode()
    return MASTER.seal(len(new).to_bytes(4, "big") + new + plain[end:], SALT, b"here")


@pytest.mark.parametrize(
    "values",
    [
        {"layout": 2}, {"size": MIB}, {"size": -1}, {"size": 1.0}, {"size": True}, {"path": 3}, {"generation": 0},
        {"key": "00"}, {"key": "no"}, {"prefix": None}, {"another": 1}, {"segments": []}, {"segments": 3},
        {"segments": [[MIB, 2, [1, 2, 0]]]}, {"segments": [[MIB + 5, 4, [1, 2, 0]]]}, {"segments": [[1, 2, [1, 1, 1]]]},
        {"segments": [[5, 2, [1, 1, 1]], [MIB, 2, [1, 1, 1]]]}, {"segments": [[MIB + 5, 1, [300]]]},
    ],
)  # fmt: skip
def test_impossible_manifests_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(NotGenuine, match="a layout other than"):
        Manifest.open(MASTER, seal_with_changes(**values), "here")


def test_a_split_tells_holders_and_survivable_failures() -> None:
    split = Split(4, (3, 0, 2, 1))
    assert [list(split.shares_of(child)) for child in range(4)] == [[0, 1, 2], [], [3, 4], [5]]
    assert [split.holder(share) for share in range(6)] == [0, 0, 0, 2, 2, 3]
    assert split.parity == 2
    assert split.is_enough({0, 3})
    assert not split.is_enough({2, 3})
    assert split.is_enough({0, 2, 3}, losses=0)
    assert not split.is_enough({0, 2, 3}, losses=1)
    assert Split(2, (1, 1, 1)).is_enough({0, 1, 2}, losses=1)
