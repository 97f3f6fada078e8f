"""The controller's session, without processes."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_cloudbench.fleet import scheduler
from pytest_cloudbench.fleet.session import ControllerSession


def test_what_a_quick_worker_collected_is_not_lost(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers start before the controller asks for a scheduler."""
    made: dict[str, Any] = {}

    def capture(config: pytest.Config, log: Any, coordinator: Any, fleet_items: set[str]) -> str:
        made["items"] = fleet_items
        return "scheduler"

    monkeypatch.setattr(scheduler, "FleetScheduling", capture)
    session = ControllerSession(pytestconfig, "channel", "facts")
    session.collected(["early"])
    assert session.make_scheduler(log=None) == "scheduler"
    session.collected(["late"])
    assert made["items"] == {"early", "late"}


def test_a_session_without_fleet_items_serves_nobody(pytestconfig: pytest.Config) -> None:
    session = ControllerSession(pytestconfig, "channel", "facts")
    session.lose_node("gw0")
    session.finish(None)  # type: ignore[arg-type]  # with nobody to serve it does not look
    session.close()
    assert session.header() == []
    assert session._serving is None
