"""The traffic to each child of an array is judged. A child that is plain, or reads too much, is named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench import Inquiry, open_provider
from pytest_cloudbench.raid.coding import sealing
from suites.security import convergence, sizes, transit
from suites.security.rulings import no, unknown, yes

pytestmark = pytest.mark.skipif(find_spec("numpy") is None, reason="an array needs the raid extra")

EMULATED = ("emulated:onedrive-ideal", "emulated:box-ideal", "emulated:onedrive-ideal")


@contextmanager
def open_array(folder: Path, *children: str, key: str = "") -> Iterator[Inquiry]:
    """Yield an inquiry at an array of which any child may fail."""
    lines = [f"k = {len(children) - 1}", "m = 1", f"children = {json.dumps(children)}", key and f'key = "{key}"']
    (folder / "array.toml").write_text("\n".join(lines))
    with open_provider(f"raid:{folder / 'array.toml'}") as provider:
        yield Inquiry(provider, "/run", "seed", lambda: None, lambda _: None)


def test_array_is_judged_by_all_its_children() -> None:
    schemes = ["box", "webdav"]
    assert transit.judge_children(schemes, [yes("TLS"), yes("SSH")]).how == "by each of 2 children: TLS, SSH"
    ruling = transit.judge_children(schemes, [unknown("silent"), no("plain")])
    assert (ruling.answer, ruling.how) == ("no", "child 2 (webdav): plain")
    assert ruling.evidence == ("child 1 (box): unknown, silent", "child 2 (webdav): no, plain")
    ruling = transit.judge_children(schemes, [unknown("silent"), yes("TLS")])
    assert (ruling.answer, ruling.how) == ("unknown", "child 1 (box): silent")


def test_a_child_without_tls_is_found_and_named(tmp_path: Path) -> None:
    with open_array(tmp_path, "emulated:onedrive-ideal", "local:webdav", "emulated:onedrive-ideal") as array:
        ruling = transit.ask_transit(array)
    assert (ruling.answer, ruling.how[:18]) == ("no", "child 2 (webdav): "), ruling
    assert [line.split(", ")[0] for line in ruling.evidence] == [
        "child 1 (onedrive): yes", "child 2 (webdav): no", "child 3 (onedrive): yes",
    ]  # fmt: skip


@pytest.mark.slow
def test_encrypting_array_is_found(tmp_path: Path) -> None:
    with open_array(tmp_path, *EMULATED) as array:
        for ask in (transit.ask_transit, transit.ask_content, transit.ask_names, convergence.ask_convergent):
            ruling = ask(array)
            assert ruling.answer == "yes", ruling
        assert sizes.ask_padded(array).answer == "unknown"
        assert array.driver.stat(f"/run/{transit.Bait.make('seed/content').names[0].data.decode()}.bin").size_bytes > 0


@pytest.mark.slow
def test_an_array_that_encrypts_nothing_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def leave_plain(stream: Any, number: int, is_last: bool, plain: Any, into: memoryview) -> None:
        into[:] = bytes(plain) + bytes(sealing.TAG_BYTES)

    monkeypatch.setattr(sealing.Stream, "seal", leave_plain)
    monkeypatch.setattr(sealing.MasterKey, "seal", lambda key, plain, salt, about=b"": salt + plain)
    with open_array(tmp_path, *EMULATED) as array:
        for ask in (transit.ask_content, transit.ask_names):
            ruling = ask(array)
            assert (ruling.answer, ruling.how[:13]) == ("no", "child 1 (oned"), ruling
        assert transit.ask_operator(array).answer == "yes"


@pytest.mark.slow
def test_a_child_that_cannot_be_seen_makes_the_answer_unknown(tmp_path: Path) -> None:
    (tmp_path / "child").mkdir()
    children = ("emulated:onedrive-ideal", f"folder:{tmp_path}/child", "emulated:box-ideal")
    with open_array(tmp_path, *children, key=f"{tmp_path}/key") as array:
        for ask in (transit.ask_transit, transit.ask_content, transit.ask_names):
            ruling = ask(array)
            how = "child 2 (folder): not seen: it makes no connections of its own"
            assert (ruling.answer, ruling.how) == ("unknown", how)
            assert ruling.evidence[0].startswith("child 1 (onedrive): yes")
