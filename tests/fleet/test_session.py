"""The controller's session, without processes."""

from __future__ import annotations

import pytest

from pytest_cloudbench.fleet.session import ControllerSession


def test_a_session_without_fleet_items_serves_nobody(pytestconfig: pytest.Config) -> None:
    session = ControllerSession(pytestconfig, "channel", "facts")
    session.lose_node("gw0")
    session.finish(None)  # type: ignore[arg-type]  # with nobody to serve it does not look
    session.close()
    assert session.header() == []
    assert session._serving is None
