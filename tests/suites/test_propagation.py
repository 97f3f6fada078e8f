"""The real suite: a device that receives files, a server that is not a device, and clients without a second device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_cloudbench.lab.sync.item import LabItem
from pytest_cloudbench.lab.sync.propagation import Propagation
from suites.propagation.test_propagation import test_propagation as measure_propagation
from tests.fleet.harness import Lab

from .clients import entries_of, run_client_suite


@pytest.mark.slow
def test_nothing_at_a_server_is_called_propagation(lab: Lab) -> None:
    run = run_client_suite(lab, "propagation", "--client", "reference?settle_s=0.3&pull_s=0", "--client", "rclone")
    assert run.lines_with("rclone has no second device")
    entries = entries_of(run)
    assert sorted(entries) == ["100x10kB", "1x10MB", "1x1MB", "1x1kB"]
    for info in entries.values():
        assert "propagation" not in info
        assert info["arrived"] == "2 of 2"
        assert info["reaches_server_s"] >= 0.3, "it waits for settle_s without a change"
        assert 0 <= info["uncertain_s"] <= 1
    assert entries["1x1kB"]["reaches_server_s"] <= 2
    assert entries["100x10kB"]["reaches_server_s"] >= 0.3 + 100 * 0.02, "a round trip for each file"
    assert 1.03 <= entries["1x10MB"]["tue"] <= 1.08
    assert entries["1x1kB"]["tue"] > entries["1x10MB"]["tue"]


@pytest.mark.slow
def test_the_second_device_of_the_reference_client_is_asked_for(lab: Lab) -> None:
    run = run_client_suite(lab, "propagation", "--client", "reference?settle_s=0.3")
    entries = entries_of(run)
    assert run.lines_with("pull_s=0.2 was added to the client's options")
    assert sorted(entries) == ["100x10kB", "1x10MB", "1x1MB", "1x1kB"]
    for info in entries.values():
        assert "reaches_server_s" not in info
        assert (info["arrived"], info["other_side"]) == ("2 of 2", "peer")
        assert info["propagation"] >= 0.3, "it was uploaded before, which waits for settle_s without a change"
        assert all(info[f"{side}_mb"] > 5 for side in ("client", "other", "server"))
    large = entries["1x10MB"]
    assert 1.03 <= large["tue"] <= 1.08, "what the device downloads is not on the link"
    assert 10e6 < large["other_down_bytes"] < 10.3e6
    assert 10e6 < large["other_bytes"] < 10.6e6
    assert large["cpu_client_s"] + large["cpu_other_s"] + large["cpu_server_s"] > 0


@pytest.mark.slow
def test_a_peer_has_files_after_its_partner_has_looked(lab: Lab) -> None:
    """``-repeat 2``: a change is seen within two seconds, and brought over in one pass."""
    entries = entries_of(run_client_suite(lab, "propagation", "--client", "unison"))
    assert entries["1x1kB"]["other_side"] == "peer"
    assert 0 < entries["1x1kB"]["propagation"] <= 5
    assert entries["100x10kB"]["propagation"] == pytest.approx(entries["1x1kB"]["propagation"], abs=3)
    assert all(info["client_mb"] > 1 and info["other_mb"] > 1 for info in entries.values())


class SlowLab:
    """A lab whose client brings each set but the last one in time."""

    spec, facts = "syncthing", SimpleNamespace(over="")
    client = SimpleNamespace(receiver=lambda: SimpleNamespace(side="server"))

    def __init__(self, last: int) -> None:
        self.last, self.sets, self.doubts_by_set = last, 0, list[list[str]]()

    def rebuild(self, *_: Any, **__: Any) -> None: ...

    def settle(self, results: Any) -> None: ...

    def doubts(self) -> list[str]:
        return []

    def propagate(self, workload: Any, **_: Any) -> Propagation:
        self.sets += 1
        is_late = self.sets == self.last
        nothing = dict.fromkeys(("client", "server", "device"))
        return Propagation(
            workload.files, workload.total_bytes, None if is_late else 1.0, 1.0, 0, 0, 0, 0, nothing, nothing,
            error="not there after 60 s" if is_late else "",
        )  # fmt: skip

    def conclude(self, *_: Any, doubts: list[str], **__: Any) -> None:
        self.doubts_by_set.append(doubts)


@pytest.mark.parametrize(
    ("last", "doubts"),
    [
        (100, [[], [], [], []]),
        (4, [[], ["1 of 2 sets did not arrive"]]),
        (1, [["2 of 2 sets did not arrive"]]),
    ],
)
def test_a_mean_without_the_sets_that_did_not_arrive_is_doubtful(last: int, doubts: list[list[str]]) -> None:
    slow_lab = SlowLab(last)
    measure_propagation(cast(LabItem, slow_lab), "quick")
    assert slow_lab.doubts_by_set == doubts
