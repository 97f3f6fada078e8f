"""Questions that take two accounts: a leak by deduplication is found where it was set, and only there."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from pytest_cloudbench import (
    CloudError,
    EmulatorService,
    Endpoint,
    ErrorKind,
    Inquiry,
    ProviderSpec,
    UsageError,
    connect_driver,
    start_emulator,
)
from pytest_cloudbench.providers import Provider, opened
from pytest_cloudbench.providers.for_agents import Provided
from pytest_cloudbench.results import journal
from suites.security import convergence, deduplication, members, permissions
from suites.security.deduplication import SIZE_BYTES, Pair, judge_deduplication
from tests.fleet.harness import Lab

from .harness import SUITES
from .test_security import Encrypting


class Shelf(BaseHTTPRequestHandler):
    """A service that stores content by its hash, and says whether it has so many files with it, whoever stored them."""

    protocol_version = "HTTP/1.1"
    contents: dict[str, bytes]
    names: dict[str, str]
    least_copies: int

    def do_HEAD(self) -> None:
        is_shown = [*self.names.values()].count(self.path[1:]) >= self.least_copies
        self._answer(200 if is_shown or self.path in self.names else 404)

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.path.startswith("/account-"):
            self.names[self.path] = body.decode()
        else:
            self.contents[self.path[1:]] = body
        self._answer(200)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()


class ShelfDriver:
    """A client that leaves out content that the service has: never, always, or for every second content."""

    def __init__(self, endpoint: Endpoint, skips: str) -> None:
        self._account, self._skips = endpoint.credentials["account"], skips
        self._connection = HTTPConnection(endpoint.urls["api"].removeprefix("http://"))

    def put(self, path: str, content: Any) -> None:
        data = content.read(0, content.size_bytes)
        digest = hashlib.sha256(data).hexdigest()
        may_skip = self._skips == "always" or (self._skips == "at times" and int(digest, 16) % 2)
        if not (may_skip and self._send("HEAD", f"/{digest}") == 200):
            self._send("PUT", f"/{digest}", data)
        self._send("PUT", f"/account-{self._account}{path}", digest.encode())

    def stat(self, path: str) -> None:
        if self._send("HEAD", f"/account-{self._account}{path}") != 200:
            raise CloudError(ErrorKind.NOT_FOUND, "stat", path)

    def close(self) -> None:
        self._connection.close()

    def _send(self, method: str, path: str, body: bytes = b"") -> int:
        self._connection.request(method, path, body)
        answer = self._connection.getresponse()
        answer.read()
        return answer.status


@contextmanager
def open_shelf(skips: str, second: str = "b", least_copies: int = 1) -> Iterator[Inquiry]:
    """Yield an inquiry at a shelf, by a client whose second account has the given name."""
    handler = type("NewShelf", (Shelf,), {"contents": {}, "names": {}, "least_copies": least_copies})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()

    class Client(Inquiry):
        def connect(self, endpoint: Endpoint) -> Any:
            return ShelfDriver(endpoint, skips)

        @contextmanager
        def other_account(self, number: int) -> Iterator[Any]:
            with make_client(second) as client:
                yield client

    @contextmanager
    def make_client(account: str) -> Iterator[Inquiry]:
        endpoint = Endpoint({"api": f"http://127.0.0.1:{server.server_port}"}, {"account": account})
        driver: Any = ShelfDriver(endpoint, skips)
        provider = Provider("shelf", open=lambda: (driver, Provided("dropbox", endpoint)))
        yield Client(provider, "/run", "truth", lambda: None, lambda _: None)
        driver.close()

    try:
        with make_client("a") as inquiry:
            yield inquiry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(("skips", "answer"), [("always", "yes"), ("never", "no"), ("at times", "unknown")])
def test_deduplication_across_accounts_is_detected(skips: str, answer: str) -> None:
    with open_shelf(skips) as inquiry:
        ruling = deduplication.ask_deduplication(inquiry)
    assert (ruling.answer, len(ruling.evidence)) == (answer, deduplication.PAIRS), ruling


@pytest.mark.parametrize(("copies", "answer"), [(1, "no"), (4, "no"), (5, "yes"), (20, "yes")])
def test_a_service_that_waits_for_copies_is_found_with_as_many(copies: int, answer: str) -> None:
    with open_shelf("always", least_copies=5) as inquiry:
        ruling = deduplication.ask_deduplication(inquiry, copies=copies)
    assert ruling.answer == answer, ruling
    assert ruling.how.endswith(f" {copies} times") == (copies > 1)


def test_a_service_that_never_deduplicates_is_not_accused_by_copies() -> None:
    with open_shelf("never") as inquiry:
        assert deduplication.ask_deduplication(inquiry, copies=20).answer == "no"


def test_two_credentials_of_one_account_are_no_second_account() -> None:
    with open_shelf("always", second="a") as inquiry:
        ruling = deduplication.ask_deduplication(inquiry)
    assert (ruling.answer, ruling.how) == ("unknown", "both sets of credentials lead to the same account")


def make_pairs(*saved_bytes: int, fresh_bytes: int = SIZE_BYTES + 5000) -> list[Pair]:
    return [Pair(fresh_bytes - saved, fresh_bytes) for saved in saved_bytes]


def test_deduplication_is_answered_only_if_all_pairs_agree() -> None:
    large, little = SIZE_BYTES - 3000, 700
    assert judge_deduplication(make_pairs(*[large] * 8)).answer == "yes"
    assert judge_deduplication(make_pairs(*[little] * 8)).answer == "no"
    assert judge_deduplication(make_pairs(*[large] * 7, little)).answer == "unknown"
    assert judge_deduplication(make_pairs(*[little] * 7, -large)).answer == "unknown"
    assert judge_deduplication(make_pairs(*[0] * 8, fresh_bytes=SIZE_BYTES - 1)).answer == "unknown"
    noisy = [*make_pairs(*[large] * 7), Pair(5000, 2 * SIZE_BYTES)]
    assert judge_deduplication(noisy).answer == "unknown"


def test_without_a_second_account_the_answer_is_unknown() -> None:
    with start_emulator("ideal", api="dropbox") as service:
        driver: Any = connect_driver(ProviderSpec.parse("dropbox"), service.endpoint)
        provider = Provider("dropbox", open=lambda: (driver, Provided("dropbox", service.endpoint)))
        ruling = deduplication.ask_deduplication(Inquiry(provider, "/run", "truth", lambda: None, lambda _: None))
        driver.close()
    assert (ruling.answer, ruling.how) == ("unknown", "it takes a second account: there is no account 2")


# --- permissions ---


@contextmanager
def open_drive(api: str) -> Iterator[tuple[Inquiry, EmulatorService]]:
    """Yield an inquiry at an emulated service that shares folders and has two more accounts, and the service."""
    with start_emulator("ideal", api=api) as service:
        providers = []
        for number in (1, 2, 3):
            endpoint = service.open_account(number)
            pair: Any = connect_driver(ProviderSpec.parse(api), endpoint), Provided(api, endpoint, profile="ideal")
            providers.append(Provider(f"emulated:{api}", open=partial(tuple, pair)))
            providers[-1].driver.mkdir("/run")  # by the provider, which closes only a driver that it has given
        inquiry = Inquiry(
            providers[0], "/run", "truth", lambda: None, lambda _: None,
            lambda number: nullcontext(providers[number - 1]),
        )  # fmt: skip
        yield inquiry, service
        for provider in providers:
            provider.close()


@pytest.fixture(scope="module", params=["gdrive", "onedrive", "box", "dropbox"])
def _drive(request: pytest.FixtureRequest) -> Iterator[tuple[Inquiry, EmulatorService]]:
    with open_drive(request.param) as drive:
        yield drive


@pytest.fixture
def drive(
    _drive: tuple[Inquiry, EmulatorService], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Inquiry:
    """An inquiry at such a service, in a folder of this test, whose waits are short."""
    monkeypatch.setattr(members, "ADMITTED_S", 0.3)
    monkeypatch.setattr(permissions, "_REMOVED_S", 0.3)
    folder = f"/run/{request.node.name}"
    inquiry, _ = _drive
    for driver in (inquiry.provider.driver, get_driver(inquiry, 2), get_driver(inquiry, 3)):
        driver.mkdir(folder)
    return replace(inquiry, folder=folder)


def get_driver(drive: Inquiry, number: int) -> Any:
    return drive.open_other(number).__enter__().driver


@pytest.fixture
def switch_on(_drive: tuple[Inquiry, EmulatorService]) -> Iterator[Callable[[str], object]]:
    """A function that switches on a flaw of all accounts until the end of the test."""
    _, service = _drive
    yield lambda flaw: service.control(set={f"account.{flaw}": 1})
    service.control(set={"account.readers_delete": 0, "account.no_sharing_on": 0})


def test_enforced_permissions_are_found(drive: Inquiry) -> None:
    ruling = permissions.ask_permissions(drive)
    assert (ruling.answer, len(ruling.evidence)) == ("yes", 4), ruling
    asked_roles, _, other_roles = ruling.evidence[0].partition("; not asked: ")
    assert [role for role in ("owner", "co-owner (full)") if role in other_roles.split(", ")], other_roles
    assert len(asked_roles.split(", ")) == 2
    assert 0 <= ruling.numbers["member_refused_s"] < 0.3


def test_a_removal_that_does_nothing_is_found(drive: Inquiry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drive.provider.driver, "dismiss", lambda path, address: None)
    ruling = permissions.ask_permissions(drive)
    assert (ruling.answer, ruling.how[:29]) == ("no", "a removed member still reads ")


def test_a_reader_that_may_write_is_found(drive: Inquiry, monkeypatch: pytest.MonkeyPatch) -> None:
    driver: Any = drive.provider.driver
    admit = driver.admit
    monkeypatch.setattr(driver, "admit", lambda path, address, level: admit(path, address, "write"))
    ruling = permissions.ask_permissions(drive)
    assert (ruling.answer, ruling.how) == ("no", "a member that may only read has written")


@pytest.mark.parametrize("level", ["read", "write"])
def test_member_without_rights_leaves_answer_unknown(
    drive: Inquiry, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    driver: Any = drive.provider.driver
    admit = driver.admit
    monkeypatch.setattr(
        driver,
        "admit",
        lambda path, address, requested: None if requested == level else admit(path, address, requested),
    )
    assert permissions.ask_permissions(drive).answer == "unknown"


def test_a_file_that_everybody_reads_is_found(drive: Inquiry, monkeypatch: pytest.MonkeyPatch) -> None:
    driver: Any = drive.provider.driver
    put, other = driver.put, get_driver(drive, 2).address()

    def put_and_share(path: str, content: Any) -> None:
        put(path, content)
        driver.admit(path.rpartition("/")[0], other, "read")

    monkeypatch.setattr(driver, "put", put_and_share)
    ruling = permissions.ask_permissions(drive)
    assert (ruling.answer, ruling.how) == ("no", "another account reads a file that is not shared with it")


def test_a_reader_that_may_delete_is_found(drive: Inquiry, switch_on: Callable[[str], object]) -> None:
    switch_on("readers_delete")
    ruling = permissions.ask_permissions(drive)
    assert (ruling.answer, ruling.how) == ("no", "a member that may only read has deleted")


def test_a_reader_that_may_share_on_is_found(drive: Inquiry, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, member = drive.provider.driver, get_driver(drive, 2)
    share_on, folder = member.share_on, f"{drive.folder}/shared"

    def share_on_as_writer(reference: str, address: str) -> None:
        owner.admit(folder, member.address(), "write")  # type: ignore[attr-defined]  # as in the tests above
        share_on(reference, address)

    monkeypatch.setattr(member, "share_on", share_on_as_writer)
    ruling = permissions.ask_permissions(drive)
    assert (ruling.answer, ruling.how) == ("no", "a member that may only read has shared on")


# --- full access ---


def test_full_access_as_promised_is_found(drive: Inquiry) -> None:
    ruling = permissions.ask_full_access(drive)
    assert (ruling.answer, len(ruling.evidence)) == ("yes", 4), ruling
    is_drive = drive.bound.spec.scheme == "gdrive"
    assert ruling.evidence[1:] == ("write: done", f"delete: {'refused' if is_drive else 'done'}", "share: done")


def test_full_access_that_cannot_share_on_is_found(drive: Inquiry, switch_on: Callable[[str], object]) -> None:
    switch_on("no_sharing_on")
    ruling = permissions.ask_full_access(drive)
    assert (ruling.answer, ruling.how.partition(" ")[2]) == ("no", "is promised, but cannot: share"), ruling


def test_full_access_to_more_than_is_promised_is_found(drive: Inquiry, switch_on: Callable[[str], object]) -> None:
    """Drive alone keeps deleting to owners, so that elsewhere this flaw changes nothing for such members."""
    switch_on("readers_delete")
    ruling = permissions.ask_full_access(drive)
    is_drive = drive.bound.spec.scheme == "gdrive"
    assert ruling.answer == ("no" if is_drive else "yes")
    assert ruling.how.endswith(" can do what is not promised: delete") is is_drive


def test_an_action_that_is_accepted_and_not_done_is_found(drive: Inquiry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(get_driver(drive, 2), "write_shared", lambda reference, content: None)
    ruling = permissions.ask_full_access(drive)
    assert (ruling.answer, ruling.evidence[1]) == ("no", "write: accepted, without effect"), ruling


def test_full_access_that_is_read_only_is_found(drive: Inquiry, monkeypatch: pytest.MonkeyPatch) -> None:
    driver: Any = drive.provider.driver
    admit = driver.admit
    monkeypatch.setattr(driver, "admit", lambda path, address, level: admit(path, address, "read"))
    ruling = permissions.ask_full_access(drive)
    missing = [action for action in members.ACTIONS if action in driver.full_promises]
    assert ruling.how.endswith(f" is promised, but cannot: {', '.join(missing)}"), ruling


def test_without_a_third_account_sharing_on_is_unknown(drive: Inquiry) -> None:
    def open_second(number: int) -> AbstractContextManager[Provider]:
        if number != 2:
            raise UsageError("one more takes other credentials")
        return drive.open_other(number)

    pair = replace(drive, open_other=open_second)
    ruling = permissions.ask_full_access(pair)
    assert (ruling.answer, ruling.how) == ("unknown", "the rest is as promised, but sharing on takes a third account")
    again = replace(pair, folder=f"{drive.folder}/again")
    for number in (1, 2):
        driver = drive.provider.driver if number == 1 else get_driver(drive, number)
        driver.mkdir(again.folder)
    ruling = permissions.ask_permissions(again)
    assert (ruling.answer, ruling.evidence[1]) == ("yes", "read-only: reads, and cannot write and delete"), ruling


@pytest.mark.slow
@pytest.mark.parametrize(("is_convergent", "answer"), [(True, "no"), (False, "yes")])
def test_convergent_encryption_is_found_by_the_second_account(is_convergent: bool, answer: str) -> None:
    class Client(Inquiry):
        def connect(self, endpoint: Endpoint) -> Any:
            accounts.append(endpoint.credentials["access_token"])
            return Encrypting(self.bound.connect(endpoint, {}), is_convergent)

    accounts = list[str]()
    with open_drive("gdrive") as (drive, _):
        inquiry = Client(drive.provider, "/run", "truth", lambda: None, drive.wait, drive.open_other)
        ruling = convergence.ask_convergent(inquiry)
    assert (ruling.answer, len(ruling.evidence)) == (answer, 2), ruling
    assert len({*accounts}) == 2


# --- the suite ---


def tokens_in(env: Mapping[str, str]) -> list[str]:
    return [value for name, value in env.items() if name.endswith("_ACCESS_TOKEN")]


def ask(lab: Lab, provider: str, **env: str) -> dict[str, Any]:
    """Ask about deduplication as a user does. Return the entry of the answer."""
    test = f"{SUITES}/security/test_security.py::test_table_2_1[{provider}-deduplication]"
    run = lab.run(test, "--provider", provider, "--cloudbench-yes", env=env)
    assert run.counts() == {"passed": 1}, run.text
    is_announced = f"{provider}?account_number=2: as many operations as it takes" in run.text
    assert is_announced == (len({*tokens_in(env)}) == 2)
    return dict(run.info(f"test_table_2_1[{provider}-deduplication]"))


@pytest.mark.slow
def test_an_emulator_gives_a_second_account(lab: Lab) -> None:
    info = ask(lab, "emulated:dropbox")
    assert (info["answer"], info["is_yes"], len(info["evidence"])) == ("no", 0, deduplication.PAIRS)


@pytest.mark.slow
def test_option_sets_the_number_of_copies(lab: Lab) -> None:
    test = f"{SUITES}/security/test_security.py::test_table_2_1[emulated:dropbox-deduplication]"
    run = lab.run(test, "--provider", "emulated:dropbox", "--security-copies", "3")
    info = run.info("test_table_2_1[emulated:dropbox-deduplication]")
    assert (info["answer"], info["how"]) == ("no", "not seen when one other account has the file 3 times")
    assert "--security-copies 0: expected one copy or more" in lab.run(test, "--security-copies", "0").text


@pytest.mark.slow
def test_a_real_provider_has_a_second_account_by_its_credentials(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The driver uses the provider's real host names, which the user's own proxy leads to an emulator."""
    monkeypatch.setenv("CLOUDBENCH_JOURNAL", str(tmp_path / "journal.jsonl"))
    with start_emulator("ideal", api="dropbox") as service:
        second = service.open_account(2)
        tokens = [endpoint.credentials["access_token"] for endpoint in (service.endpoint, second)]
        env = {
            "CLOUDBENCH_JOURNAL": str(tmp_path / "journal.jsonl"), "HTTPS_PROXY": service.endpoint.proxy,
            "REQUESTS_CA_BUNDLE": service.endpoint.ca_file, "CLOUDBENCH_DROPBOX_ACCESS_TOKEN": tokens[0],
        }  # fmt: skip
        info = ask(lab, "dropbox+fast", **env)
        assert info["answer"] == "unknown"
        assert "CLOUDBENCH_DROPBOX_2_ACCESS_TOKEN" in info["how"]
        info = ask(lab, "dropbox+fast", **env, CLOUDBENCH_DROPBOX_2_ACCESS_TOKEN=tokens[0])
        assert "has the credentials of dropbox+fast" in info["how"]
        info = ask(lab, "dropbox+fast", **env, CLOUDBENCH_DROPBOX_2_ACCESS_TOKEN=tokens[1])
        assert (info["answer"], len(info["evidence"])) == ("no", deduplication.PAIRS), info
        for endpoint in (service.endpoint, second):
            driver: Any = connect_driver(ProviderSpec.parse("dropbox"), endpoint)
            assert [*driver.list("/")] == []
            driver.close()
        assert journal.pending_folders() == ([], [])


@pytest.mark.slow
def test_clean_removes_folder_of_killed_run_in_the_second_account(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """``cloudbench clean`` does the same. It knows the account by the spec in the journal."""
    monkeypatch.setenv("CLOUDBENCH_JOURNAL", str(tmp_path / "journal.jsonl"))
    with start_emulator("ideal", api="dropbox") as service:
        monkeypatch.setenv("HTTPS_PROXY", service.endpoint.proxy)
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", service.endpoint.ca_file)
        for number, name in ((1, "CLOUDBENCH_DROPBOX_ACCESS_TOKEN"), (2, "CLOUDBENCH_DROPBOX_2_ACCESS_TOKEN")):
            monkeypatch.setenv(name, service.open_account(number).credentials["access_token"])
        for spec in ("dropbox+fast", "dropbox+fast?account_number=2"):
            with opened(spec) as driver:
                Provider(spec, driver).claim("/cloudbench-killed/test", "nobody")
        (first, second), _ = journal.pending_folders()
        assert (first.provider, second.provider) == ("dropbox+fast", "dropbox+fast?account_number=2")
        with opened(second.provider) as driver:
            assert journal.remove_folder(driver, second) == ""
            assert [*driver.list("/")] == []
        with opened("dropbox+fast") as driver:
            assert [entry.path for entry in driver.list("/")][:1] == ["/cloudbench-killed"]
        assert journal.pending_folders() == ([first], [])
