"""Numbers of one entry: means, doubts, and the cost of an interruption."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_cloudbench.lab.sync.transfers import Transfer, mean_of_known, recovery_cost, transfer_doubts, transfer_means
from pytest_cloudbench.model import UsageError


def transfer(**fields: Any) -> dict[str, Any]:
    defaults: dict[str, Any] = {
        "start_up_s": 0.1,
        "completion_s": 2.0,
        "synced_s": 2.2,
        "wire_bytes": 1100,
        "up_bytes": 1020,
    }
    return Transfer(1, 1000, **{**defaults, **fields}).as_dict()


def test_mean_with_unknown_values_is_unknown() -> None:
    assert mean_of_known([1.0, 3.0]) == 2.0
    assert mean_of_known([1.0, None]) is None
    assert mean_of_known([]) is None


def test_overhead_and_tue_are_ratios_to_the_content() -> None:
    assert transfer()["overhead"] == pytest.approx(0.1)
    assert transfer()["tue"] == pytest.approx(1.1)
    assert transfer(wire_bytes=None)["overhead"] is None


def test_means_are_of_transfers_that_ended() -> None:
    means = transfer_means(
        [transfer(completion_s=1.0), transfer(completion_s=3.0), transfer(is_synced=False, completion_s=None)]
    )
    assert (means["completion"], means["completion_min"], means["completion_max"]) == (2.0, 1.0, 3.0)
    assert means["upload_rate_bit_per_s"] == pytest.approx((8000 + 8000 / 3) / 2)
    assert means["cpu_s"] is None
    assert transfer_means([transfer(is_synced=False)])["completion"] is None


def test_doubts_name_unfinished_and_invalid_transfers() -> None:
    assert transfer_doubts([transfer(), transfer()], 2) == []
    assert transfer_doubts([transfer(is_synced=False, error="it ended")], 2) == [
        "2 of 2 transfers did not finish",
        "it ended",
    ]
    assert transfer_doubts([transfer(reasons=("capture: 3 dropped",))], 1) == ["capture: 3 dropped"]


def interrupted_transfer(**fields: Any) -> dict[str, Any]:
    interruption = {
        "how": "reset",
        "at_byte": 500,
        "happened": True,
        "passed_bytes": 500,
        "sent_after_bytes": 520,
        "recovery_s": 1.0,
    }
    interruption |= {key: fields.pop(key) for key in [*fields] if key in interruption}
    return transfer(interrupted=interruption, **fields)


@pytest.mark.parametrize(
    ("sent_after", "how"),
    [
        (520, "resumes"),
        (560, "resumes"),
        (700, "sends a part again"),
        (1020, "starts over"),
        (0, "connection lived on"),
    ],
)
def test_bytes_sent_again_reveal_how_a_client_recovered(sent_after: int, how: str) -> None:
    cost = recovery_cost(
        transfer(), interrupted_transfer(sent_after_bytes=sent_after, up_bytes=500 + sent_after, wire_bytes=1600)
    )
    assert cost["how_recovered"] == how
    assert cost["again_bytes"] == 500 + sent_after - 1020
    assert cost["recovery_overhead"] == pytest.approx(0.5)


def test_recovery_is_unknown_if_a_transfer_is_invalid() -> None:
    for pair in (
        (transfer(reasons=("bad",)), interrupted_transfer()),
        (transfer(), interrupted_transfer(reasons=("bad",))),
        (transfer(is_synced=False), interrupted_transfer()),
    ):
        cost = recovery_cost(*pair)
        assert cost["how_recovered"] == "unknown"
        assert cost["recovery_overhead"] is None
    assert recovery_cost(transfer(wire_bytes=None), interrupted_transfer())["recovery_overhead"] is None


def test_sets_of_different_size_are_not_compared() -> None:
    with pytest.raises(UsageError, match="equally large"):
        recovery_cost(Transfer(1, 999).as_dict(), interrupted_transfer())
