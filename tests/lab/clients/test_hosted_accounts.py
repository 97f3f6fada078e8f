"""Several accounts of one server: each has its own files there, and its secret opens no other account."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import HTTPBasicAuthHandler, HTTPPasswordMgrWithPriorAuth, build_opener

import pytest

from pytest_cloudbench.lab.clients import make_client
from pytest_cloudbench.lab.clients.base import LocalClient
from tests.limits import HANG_S

Open = Callable[[str], tuple[LocalClient, list[LocalClient]]]


@pytest.fixture
def open_accounts(tmp_path: Path) -> Iterator[Open]:
    """Function that starts a server with two accounts. Skips if a program is missing."""
    with ExitStack() as stack:

        def make(spec: str) -> LocalClient:
            client = make_client(spec)
            assert isinstance(client, LocalClient)
            if missing := client.missing():
                pytest.skip(missing)
            stack.callback(client.stop)
            return client

        def open_server(spec: str) -> tuple[LocalClient, list[LocalClient]]:
            host, clients = make(spec), [make(spec), make(spec)]
            host.serve_accounts(tmp_path / "server", ("first", "other"))
            for name, client in zip(("first", "other"), clients, strict=True):
                client.join(host, name, host.server_port, tmp_path / name)
                client.start()
            return host, clients

        yield open_server


def store(client: LocalClient, content: bytes) -> None:
    (client.workdir / "prepared").write_bytes(content)
    os.replace(client.workdir / "prepared", client.folder / "file")
    client.after_change()
    client.wait_synced(HANG_S)


@pytest.mark.parametrize(
    "spec",
    [
        "reference?deduplication=file&deduplicate_accounts=1",
        "rclone",
        pytest.param("restic", marks=pytest.mark.slow),
    ],
)
def test_accounts_of_one_server_have_files_of_their_own(open_accounts: Open, spec: str) -> None:
    _, (first, other) = open_accounts(spec)
    store(first, b"first's")  # sizes differ, as some versions of rclone see an edit only by its size
    assert other.held() == {}
    store(other, b"the other's")
    store(first, b"the other's")
    store(other, b"new")
    assert [len(client.held()) for client in (first, other)] == [1, 1]
    assert first.held() != other.held()


def test_a_user_of_the_rest_server_reaches_no_other_repository(open_accounts: Open) -> None:
    host, _ = open_accounts("restic")
    url = f"http://127.0.0.1:{host.server_port}"
    statuses = {}
    for name, secret in (*host.accounts.items(), ("first", "wrong")):
        passwords = HTTPPasswordMgrWithPriorAuth()
        passwords.add_password(None, url, name, secret, is_authenticated=True)
        for repository in ("first", "other"):
            try:
                with build_opener(HTTPBasicAuthHandler(passwords)).open(f"{url}/{repository}/config", timeout=HANG_S):
                    statuses[name, secret == "wrong", repository] = 200
            except HTTPError as error:
                statuses[name, secret == "wrong", repository] = error.code
                error.close()
    assert {key for key, status in statuses.items() if status == 200} == {
        ("first", False, "first"), ("other", False, "other"),
    }  # fmt: skip
    assert {status for status in statuses.values() if status != 200} <= {401, 403}


@pytest.mark.parametrize("spec", ["syncthing", "lsyncd", "unison", "restic?server=s3"])
def test_client_with_one_account_per_server_gives_its_reason(spec: str) -> None:
    client = make_client(spec)
    assert isinstance(client, LocalClient)
    assert client.why_one_account()
