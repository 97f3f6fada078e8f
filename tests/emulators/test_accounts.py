"""Several accounts in one emulated service: each has its own token, files and links."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_cloudbench import (
    CloudError,
    EmulatorService,
    ErrorKind,
    LiteralContent,
    ProviderSpec,
    RandomContent,
    ServiceError,
    Stranger,
    connect_driver,
    start_emulator,
)

LARGE = RandomContent("large", 9 * 1024 * 1024).read(0, 9 * 1024 * 1024)
"""More than one request carries, so that an upload session is used."""


def connect(service: EmulatorService, api: str, number: int) -> Any:
    return connect_driver(ProviderSpec.parse(api), service.open_account(number))


def read(driver: Any, path: str) -> bytes:
    return b"".join(driver.get(path))


@pytest.mark.parametrize("api", ["dropbox", "onedrive", "box", "gdrive"])
def test_accounts_of_one_service_know_nothing_of_each_other(api: str) -> None:
    with start_emulator("ideal", api=api) as service:
        first, second, third = (connect(service, api, number) for number in (1, 2, 3))
        first.put("/same", LiteralContent(b"first"))
        second.put("/same", LiteralContent(b"second"))
        second.put("/large", LiteralContent(LARGE))
        assert (read(first, "/same"), read(second, "/same")) == (b"first", b"second")
        assert read(second, "/large") == LARGE
        assert [[entry.path for entry in driver.list("/")] for driver in (first, third)] == [["/same"], []]
        with pytest.raises(CloudError) as caught:
            third.stat("/same")
        assert caught.value.kind is ErrorKind.NOT_FOUND
        links = [driver.share("/same") for driver in (first, second)]
        opened = [second.open_link(url, Stranger(service.endpoint)) for url in links]
        assert opened == [b"first", b"second"]
        assert {content for _, content in service.stored()} == {b"first", b"second", LARGE}
        for driver in (first, second, third):
            driver.close()


def test_an_account_has_the_same_token_after_a_reset_and_no_files() -> None:
    with start_emulator("ideal", api="dropbox") as service:
        second = connect(service, "dropbox", 2)
        second.put("/file", LiteralContent(b"x"))
        before = service.open_account(2)
        service.reset()
        with pytest.raises(CloudError) as caught:
            second.stat("/file")
        assert caught.value.kind is ErrorKind.AUTH
        assert service.open_account(2).credentials == before.credentials != service.endpoint.credentials
        assert [*second.list("/")] == []
        second.close()


@pytest.mark.slow
@pytest.mark.parametrize(("api", "number"), [("mega", 2), ("dropbox", 0), ("dropbox", 101)])
def test_an_account_that_an_emulator_cannot_have_is_refused(api: str, number: int) -> None:
    with start_emulator("ideal", api=api) as service, pytest.raises(ServiceError, match=f"no account {number}"):
        service.open_account(number)


@pytest.mark.parametrize(
    ("api", "proof"), [("onedrive", "refresh_token"), ("gdrive", "refresh_token"), ("box", "user_id")]
)
def test_a_token_that_has_ended_is_refused_for_own_and_for_shared_files(api: str, proof: str) -> None:
    with start_emulator("ideal", api=api) as service:
        first, second = (connect(service, api, number) for number in (1, 2))
        for driver in (first, second):
            driver.mkdir("/shared")
            driver.put("/shared/file", LiteralContent(b"content"))
        second.admit("/shared", first.address(), "write")
        references = [driver.refer("/shared/file") for driver in (first, second)]
        assert [first.read_shared(reference) for reference in references] == [b"content"] * 2
        service.control(set={"account.token_lifetime_s": 0})
        proofs = {proof: "1", "client_id": "app", "client_secret": "secret"}
        ended: Any = connect_driver(ProviderSpec.parse(api), replace(service.endpoint, credentials=proofs))
        for reference in references:
            for use in (ended.read_shared, lambda at: ended.write_shared(at, LiteralContent(b"changed"))):
                with pytest.raises(CloudError) as caught:
                    use(reference)
                assert caught.value.kind is ErrorKind.AUTH, caught.value
        assert [first.read_shared(reference) for reference in references] == [b"content"] * 2
        for driver in (first, second, ended):
            driver.close()
