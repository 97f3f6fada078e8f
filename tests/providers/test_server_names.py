"""The server that a provider's requests go to, by which stored locations are found."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pytest_cloudbench.model import Endpoint
from pytest_cloudbench.providers.for_agents import Provided

SERVICE = Endpoint({"api": "http://127.0.0.1:4711/v1"})


@pytest.mark.parametrize(
    ("provided", "clock_url", "server"),
    [
        (Provided("raid 4+2"), "", ""),
        (Provided("dropbox"), "https://api.fjord.example/2/", "api.fjord.example"),
        (Provided("s3:bucket?endpoint=http://files.fjord.example:9000"), "", "files.fjord.example"),
        (Provided("dropbox", SERVICE), "https://api.fjord.example/2/", "127.0.0.1"),
        (Provided("folder:objects"), "", ""),
        (Provided("dropbox"), "https://[broken/", ""),
    ],
)
def test_the_server_is_that_of_the_service_or_of_the_driver_or_of_the_spec(
    provided: Provided, clock_url: str, server: str
) -> None:
    assert provided.find_server(SimpleNamespace(clock_url=clock_url)) == server
