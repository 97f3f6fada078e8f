"""Locations that suites hand on to later runs, and their absence behind a proxy."""

from __future__ import annotations

import os

import pytest

from pytest_cloudbench.lab.locating import LocatedServers, locate_servers
from pytest_cloudbench.net.locate.survey import NameSeen

IRELAND = "52.218.0.1"


def locate() -> LocatedServers:
    """Locate a server by the data that its operator publishes, without a request."""
    return locate_servers({IRELAND: NameSeen([IRELAND])})


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*os.environ]:
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


def test_a_location_is_handed_on_to_later_runs() -> None:
    location = locate().location
    assert location is not None
    assert location["place"].startswith("eu-west-1")


def test_server_location_is_withheld_behind_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    located = locate()
    assert located.location is None
    assert located.notes[-1].startswith("a proxy is set here")
