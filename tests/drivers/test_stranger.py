"""A person without an account: an answer is whole, or it is a network error."""

from __future__ import annotations

import pytest

from pytest_cloudbench.drivers.stranger import Stranger
from pytest_cloudbench.model import CloudError, ErrorKind

from .conftest import Scripted


def failure(server: Scripted, path: str = "/link") -> CloudError:
    with pytest.raises(CloudError) as caught:
        Stranger(server.endpoint).send(f"{server.endpoint.url}{path}")
    assert caught.value.kind is ErrorKind.NETWORK
    return caught.value


@pytest.mark.parametrize("status", [200, 404])
def test_an_answer_is_whole(server: Scripted, status: int) -> None:
    server.say(status, b"all of it")
    assert Stranger(server.endpoint).send(f"{server.endpoint.url}/link") == (status, b"all of it")


@pytest.mark.parametrize("status", [200, 404])
def test_an_answer_that_is_cut_is_no_answer(server: Scripted, status: int) -> None:
    server.say(status, b"half", length=9)
    assert "5 bytes of the answer are missing" in failure(server).detail


@pytest.mark.parametrize("status", [200, 404])
def test_a_chunk_that_is_cut_is_no_answer(server: Scripted, status: int) -> None:
    server.say(status, b"9\r\nhalf", {"Transfer-Encoding": "chunked"}, length=9)
    assert "IncompleteRead" in failure(server).detail


def test_an_address_that_cannot_be_asked_is_one_error(server: Scripted) -> None:
    assert "control characters" in failure(server, "/a\x01link").detail
    assert server.requests == []
