"""Padded sizes are found where a client pads, and sizes that show where it does not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest

from pytest_cloudbench import Endpoint, Inquiry, LiteralContent, open_provider
from suites.security import sizes
from suites.security.sizes import SIZES_BYTES, judge_padding

from .test_security import SEED, make_inquiry


class Padding:
    """A driver whose files get longer by as much as a function of their size says."""

    def __init__(self, driver: Any, pad: Callable[[int], int]) -> None:
        self._driver, self._pad = driver, pad

    def put(self, path: str, content: Any) -> None:
        data = content.read(0, content.size_bytes)
        self._driver.put(path, LiteralContent(data + bytes(self._pad(len(data)))))

    def close(self) -> None:
        self._driver.close()


def pad_to_block(block_bytes: int, size_bytes: int) -> int:
    return -size_bytes % block_bytes


@pytest.mark.parametrize(
    ("pad", "answer"),
    [
        (lambda size_bytes: 0, "no"),
        (lambda size_bytes: 48, "no"),
        (partial(pad_to_block, 16), "no"),
        (partial(pad_to_block, 65536), "yes"),
        (partial(pad_to_block, 4096), "yes"),
        (partial(pad_to_block, 1024), "unknown"),
        (lambda size_bytes: Random(size_bytes).randrange(9000), "unknown"),
    ],
    ids=["plain", "header", "cipher blocks", "64 KiB", "4 KiB", "1 KiB", "any length"],
)
def test_padding_of_uploads_is_detected(pad: Callable[[int], int], answer: str) -> None:
    class Client(Inquiry):
        def connect(self, endpoint: Endpoint) -> Any:
            return Padding(self.bound.connect(endpoint, {}), pad)

    for dropbox in make_inquiry("dropbox+fast"):
        inquiry = Client(dropbox.provider, "/run", SEED, dropbox.list_stored, dropbox.wait)
        ruling = sizes.ask_padded(inquiry)
        assert (ruling.answer, len(ruling.evidence)) == (answer, len(SIZES_BYTES)), ruling


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["mega", "box", "gdrive"])
def test_no_shipped_client_pads_its_uploads(scheme: str) -> None:
    for inquiry in make_inquiry(scheme):
        assert sizes.ask_padded(inquiry).answer == "no"


def test_uploads_that_differ_by_themselves_are_not_judged() -> None:
    noisy = [SIZES_BYTES, [size_bytes + 5_000 for size_bytes in SIZES_BYTES]]
    assert judge_padding(noisy).answer == "unknown"
    assert judge_padding([SIZES_BYTES, SIZES_BYTES]).answer == "no"
    assert judge_padding([[100] * len(SIZES_BYTES)] * 2).answer == "unknown"
    alike = judge_padding([[100_000] * len(SIZES_BYTES)] * 2)
    assert alike.how == "8 sizes from 65,003 to 73,196 bytes look like 1"


def test_no_block_hides_from_the_sizes_that_are_tried() -> None:
    for block_bytes in range(750, 20_000):
        sent_bytes = [size_bytes + pad_to_block(block_bytes, size_bytes) for size_bytes in SIZES_BYTES]
        assert judge_padding([sent_bytes, sent_bytes]).answer != "no", block_bytes
    for block_bytes in range(4096, 70_000, 4096):
        sent_bytes = [size_bytes + pad_to_block(block_bytes, size_bytes) for size_bytes in SIZES_BYTES]
        assert judge_padding([sent_bytes, sent_bytes]).answer == "yes", block_bytes


def test_padding_of_a_local_provider_is_unknown(tmp_path: Any) -> None:
    with open_provider(f"folder:{tmp_path}") as provider:
        inquiry = Inquiry(provider, "/run", SEED, lambda: None, lambda _: None)
        assert sizes.ask_padded(inquiry).answer == "unknown"
