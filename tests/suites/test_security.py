"""The security suite finds all flaws that are set in emulators, servers and drivers of our own, and no others."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from os import environ, urandom
from random import Random
from time import time
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from pytest_cloudbench import (
    CloudError,
    Endpoint,
    ErrorKind,
    Inquiry,
    LiteralContent,
    ProviderSpec,
    Stranger,
    connect_driver,
    load_recipe,
    open_provider,
    start_emulator,
    wait_for,
)
from pytest_cloudbench.providers import Provider, connect
from pytest_cloudbench.providers.for_agents import Provided
from pytest_cloudbench.report.quantities import format_with_unit
from suites.security import CLOUDBENCH_SUITE, convergence, links, transit
from suites.security.questions import QUESTIONS
from suites.security.rulings import Ruling
from tests.emulators.box_wire import BoxWire
from tests.emulators.drive_wire import DriveWire
from tests.fleet.harness import Lab
from tests.limits import HANG_S

from .harness import run_suite

SEED = "truth"
BAIT = transit.Bait.make(SEED)


def make_inquiry(scheme: str) -> Iterator[Inquiry]:
    """Yield an inquiry at an emulator whose store is visible."""
    with start_emulator("ideal", api=scheme.partition("+")[0]) as service:
        driver: Any = connect_driver(ProviderSpec.parse(scheme), service.endpoint)
        provided = Provided(scheme, service.endpoint, profile="ideal")
        provider = Provider(f"emulated:{scheme}", open=lambda: (driver, provided))
        driver.mkdir("/run")
        yield Inquiry(provider, "/run", SEED, lambda: [*service.stored()], lambda _: None)
        driver.close()


@pytest.fixture(scope="module")
def _dropbox() -> Iterator[Inquiry]:
    yield from make_inquiry("dropbox")


@pytest.fixture
def dropbox(_dropbox: Inquiry, monkeypatch: pytest.MonkeyPatch) -> Inquiry:
    """An inquiry at an emulated Dropbox, whose waits for an answer to change are short."""
    monkeypatch.setattr(links, "_CLOSED_S", 0.3)
    monkeypatch.setattr(links, "_PURGED_S", 0.1)
    return _dropbox


# --- links ---


def test_a_revoked_link_is_found_closed(dropbox: Inquiry) -> None:
    ruling = links.ask_revoked(dropbox)
    assert ruling.answer == "yes"
    assert 0 <= ruling.numbers["link_closed_s"] < 0.3


def test_a_revoke_that_does_nothing_is_found(dropbox: Inquiry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dropbox.provider.driver, "revoke", lambda url: None)
    ruling = links.ask_revoked(Inquiry(dropbox.provider, "/run/open", SEED, dropbox.list_stored, dropbox.wait))
    assert ruling.answer == "no"
    assert ruling.how.startswith("still open")


def test_link_that_never_opened_leaves_the_answer_unknown(dropbox: Inquiry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "_OPEN_S", 0.2)
    monkeypatch.setattr(type(dropbox.provider.driver), "open_link", staticmethod(lambda url, stranger: b"a page"))
    ruling = links.ask_revoked(Inquiry(dropbox.provider, "/run/page", SEED, dropbox.list_stored, dropbox.wait))
    assert ruling.answer == "unknown"


def test_an_open_link_of_another_key_is_refused(dropbox: Inquiry) -> None:
    path, url, content = links.share_new_file(dropbox, "keyed")
    assert links.opens(dropbox, url, content)
    other = url.replace("rlkey=", "rlkey=x")
    assert not links.opens(dropbox, other, content)
    assert Stranger(dropbox.endpoint).send(url)[0] == 200, path


def make_links(tokens: list[str]) -> list[str]:
    return [f"https://example.org/s/{token}/file" for token in tokens]


PATHS = [f"/run/{number}/file" for number in range(links.LINKS)]
RANDOM = [Random(number).randbytes(16).hex() for number in range(links.LINKS)]


def test_random_links_are_not_guessable() -> None:
    ruling = links.judge_links(make_links(RANDOM), PATHS, make_links(["f" * 32])[0])
    assert ruling.answer == "yes"
    assert 100 < ruling.numbers["bits"] <= 128


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ([f"{number:032d}" for number in range(links.LINKS)], "bits differ"),
        ([Random(number).randbytes(4).hex() for number in range(links.LINKS)], "bits differ"),
        (sorted(RANDOM), "grow in the order"),
        (["same"] * links.LINKS, "the same link"),
        ([hashlib.sha256(path.encode()).hexdigest() for path in PATHS], "the path by sha256"),
        ([hashlib.md5(f"{number}".encode()).hexdigest() for number in range(links.LINKS)], "a counter"),
    ],
)
def test_guessable_links_are_found(tokens: list[str], words: str) -> None:
    ruling = links.judge_links(make_links(tokens), PATHS)
    assert ruling.answer == "no"
    assert words in ruling.how


def test_a_link_that_follows_from_the_path_is_found() -> None:
    urls = make_links(RANDOM)
    assert links.judge_links(urls, PATHS, urls[0]).answer == "no"


def test_links_of_different_lengths_are_no_evidence() -> None:
    ruling = links.judge_links(["https://x/a1", "https://x/a12"], ["/a", "/b"])
    assert (ruling.answer, ruling.evidence) == ("unknown", ())


def test_links_of_an_emulator_are_not_guessable(dropbox: Inquiry) -> None:
    assert links.ask_guessable(dropbox).answer == "yes"


def ask_expiry(
    dropbox: Inquiry, monkeypatch: pytest.MonkeyPatch, name: str, *, life_s: float = 0.0, closes: str = ""
) -> Ruling:
    """Ask about a link that the driver makes without an end, and whose first opening closes those to a file."""
    driver: Any = dropbox.provider.driver
    inquiry = replace(dropbox, folder=f"/run/{name}")
    driver.mkdir(inquiry.folder)
    urls = dict[str, str]()
    open_link, share = type(driver).open_link, driver.share

    def note_and_share(path: str, *_: Any) -> str:
        urls[path.rpartition("/")[2]] = share(path)
        return urls[path.rpartition("/")[2]]

    def open_and_close(url: str, stranger: Stranger) -> bytes:
        content: bytes = open_link(url, stranger)
        for file in urls.keys() & {*closes.split()}:
            driver.revoke(urls.pop(file))
        return content

    monkeypatch.setattr(links, "_LIFE_S", life_s)
    monkeypatch.setattr(driver, "share", note_and_share)
    monkeypatch.setattr(driver, "share_until", note_and_share)
    monkeypatch.setattr(type(driver), "open_link", staticmethod(open_and_close))
    return links.ask_expiry(inquiry)


def test_a_link_that_ends_at_its_time_is_found(dropbox: Inquiry, monkeypatch: pytest.MonkeyPatch) -> None:
    ruling = ask_expiry(dropbox, monkeypatch, "ends", closes="expiring")
    assert (ruling.answer, len(ruling.evidence)) == ("yes", 2), ruling


def test_a_link_that_stays_open_after_its_time_is_found(dropbox: Inquiry, monkeypatch: pytest.MonkeyPatch) -> None:
    ruling = ask_expiry(dropbox, monkeypatch, "stays")
    assert (ruling.answer, ruling.how[:10]) == ("no", "still open")


def test_a_link_that_is_closed_before_its_time_shows_nothing(dropbox: Inquiry, monkeypatch: pytest.MonkeyPatch) -> None:
    ruling = ask_expiry(dropbox, monkeypatch, "early", life_s=1000.0, closes="expiring")
    assert (ruling.answer, ruling.how) == ("unknown", "refused before its time, so not for that")


def test_an_end_of_all_links_is_no_expiry(dropbox: Inquiry, monkeypatch: pytest.MonkeyPatch) -> None:
    ruling = ask_expiry(dropbox, monkeypatch, "all", closes="expiring lasting")
    assert (ruling.answer, ruling.how) == ("unknown", "a link without an end is refused too")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["dropbox", "dropbox+fast", "onedrive", "box"])
def test_drivers_make_links_that_end_at_their_time(scheme: str) -> None:
    with start_emulator("ideal", api=scheme.partition("+")[0]) as service:
        driver: Any = connect_driver(ProviderSpec.parse(scheme), service.endpoint)
        urls = []
        for name, life_s in (("soon", 4), ("later", 3600)):
            driver.put(f"/{name}", LiteralContent(name.encode()))
            urls.append(driver.share_until(f"/{name}", datetime.fromtimestamp(int(time()) + life_s, UTC)))

        def is_refused() -> bool:
            try:
                driver.open_link(urls[0], Stranger(service.endpoint))
            except CloudError as error:
                return error.kind in links._REFUSALS
            return False

        assert wait_for(is_refused, HANG_S, poll_s=0.05)
        assert driver.open_link(urls[1], Stranger(service.endpoint)) == b"later"
        driver.close()


# --- deletion ---


def test_deleted_content_that_can_be_restored_is_found(dropbox: Inquiry) -> None:
    ruling = links.ask_deleted(dropbox)
    assert ruling.answer == "no"
    assert "by an old link: gone" in ruling.evidence


def test_deleted_content_is_unknown_without_store_and_trash(monkeypatch: pytest.MonkeyPatch) -> None:
    for drive in make_inquiry("onedrive"):
        driver: Any = drive.provider.driver
        monkeypatch.setattr(driver, "delete", partial(delete_for_good, driver))
        assert not drive.finds_deleted
        ruling = links.ask_deleted(replace(drive, list_stored=lambda: None))
        assert (ruling.answer, *ruling.evidence[-2:]) == (
            "unknown", "by its id: gone", "in the bin: unknown, the service does not list it"
        )  # fmt: skip
        elsewhere = replace(drive, folder="/run/elsewhere", list_stored=lambda: [("other", b"x")])
        assert links.ask_deleted(elsewhere).answer == "unknown"


def delete_for_good(driver: Any, path: str) -> None:
    url = driver._item_url("delete", path, "/permanentDelete")
    driver._client.send("delete", path, "POST", url, headers=driver._token_headers())


def test_a_file_that_its_id_brings_back_from_the_recycle_bin_is_found() -> None:
    for drive in make_inquiry("onedrive"):
        ruling = links.ask_deleted(replace(drive, list_stored=lambda: None))
        assert (ruling.answer, ruling.evidence[-1]) == ("no", "by its id: restored"), ruling
        with pytest.raises(CloudError) as caught:
            drive.driver.stat(f"{drive.folder}/deleted")
        assert caught.value.kind is ErrorKind.NOT_FOUND


def test_a_restoration_that_is_refused_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with start_emulator("ideal", api="onedrive") as service:
        service.control(set={"account.type": "business"})
        driver: Any = connect_driver(ProviderSpec.parse("onedrive"), service.endpoint)
        driver.mkdir("/run")
        provider = Provider("onedrive", open=lambda: (driver, Provided("onedrive", service.endpoint)))
        ruling = links.ask_deleted(Inquiry(provider, "/run", "truth", lambda: None, lambda _: None))
        assert (ruling.answer, ruling.evidence[-2]) == ("unknown", "by its id: unknown, restoring failed (invalid)")
        driver.close()


def test_a_trash_that_was_emptied_is_found_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the answer is unknown, or yes if the store is seen and does not have it either."""
    for box in make_inquiry("box"):
        driver: Any = box.provider.driver
        assert box.endpoint is not None
        delete, wire = driver.delete, BoxWire(box.endpoint)

        def purge(path: str, delete: Any = delete, wire: BoxWire = wire) -> None:
            delete(path)
            for item in wire("GET", "/folders/trash/items").value["entries"]:
                assert wire("DELETE", f"/files/{item['id']}/trash").status == 204

        monkeypatch.setattr(driver, "delete", purge)
        ruling = links.ask_deleted(replace(box, list_stored=lambda: None))
        assert (ruling.answer, ruling.evidence[-1]) == ("unknown", "by versions and trash: gone")
        assert links.ask_deleted(replace(box, folder="/run/seen")).answer == "yes"
        wire.close()


@pytest.mark.parametrize(
    ("scheme", "location"), [("dropbox", "as a version"), ("dropbox+fast", "as a version"), ("box", "in the trash")]
)
def test_kept_content_is_found_without_access_to_the_store(
    scheme: str, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "_PURGED_S", 0.1)
    for inquiry in make_inquiry(scheme):
        blind = replace(inquiry, list_stored=lambda: None)
        ruling = links.ask_deleted(blind)
        assert (ruling.answer, ruling.how) == ("no", f"the service keeps it, {location}")


def test_a_file_in_the_trash_of_google_drive_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver deletes past the trash: only a person, or another driver, would put a file there."""
    monkeypatch.setattr(links, "_why_unasked", lambda inquiry: "an old link would answer first")
    monkeypatch.setattr(links, "_PURGED_S", 0.1)
    for drive in make_inquiry("gdrive"):
        driver: Any = drive.provider.driver
        assert drive.endpoint is not None
        wire = DriveWire(drive.endpoint)
        blind = replace(drive, folder="/run/it's", list_stored=lambda: None)
        driver.mkdir(blind.folder)
        ruling = links.ask_deleted(blind)
        assert (ruling.answer, ruling.evidence[-1]) == ("unknown", "by versions and trash: gone")

        def put_into_trash(path: str, driver: Any = driver, wire: DriveWire = wire) -> None:
            assert wire("PATCH", f"files/{driver.refer(path)}", {"trashed": True}).status == 200

        monkeypatch.setattr(driver, "delete", put_into_trash)
        ruling = links.ask_deleted(blind)
        assert (ruling.answer, ruling.how) == ("no", "the service keeps it, in the trash")
        driver.put("/it's", LiteralContent(b"trashed"))
        driver.delete("/it's")
        assert [driver.find_deleted("/it's", content) for content in (b"trashed", b"other")] == ["in the trash", ""]
        driver.put("/it's", LiteralContent(b"there"))
        assert not driver.find_deleted("/it's", b"there")
        wire.connection.close()


@pytest.mark.parametrize("scheme", ["dropbox", "dropbox+fast", "box"])
def test_find_deleted_reports_only_deleted_files_of_that_content(scheme: str) -> None:
    """A file that is there, and one that never was, are no deleted ones. Neither is a deleted one of other content."""
    with start_emulator("ideal", api=scheme.partition("+")[0]) as service:
        driver: Any = connect_driver(ProviderSpec.parse(scheme), service.endpoint)
        driver.put("/kept", LiteralContent(b"kept"))
        driver.put("/gone", LiteralContent(b"gone"))
        driver.delete("/gone")
        assert driver.find_deleted("/gone", b"gone")
        assert not driver.find_deleted("/gone", b"other")
        assert not driver.find_deleted("/kept", b"gone")
        driver.close()


def test_content_that_is_gone_for_good_is_found_gone() -> None:
    for drive in make_inquiry("gdrive"):
        assert links.ask_deleted(drive).answer == "yes"


# --- on the way and in the store ---


def test_an_emulator_behind_tls_receives_readable_content(dropbox: Inquiry) -> None:
    inquiry = Inquiry(dropbox.provider, "/run/transit", SEED, dropbox.list_stored, dropbox.wait)
    on_the_way = transit.ask_transit(inquiry)
    assert (on_the_way.answer, on_the_way.how[:7]) == ("yes", "TLSv1.3")
    assert transit.ask_content(inquiry).answer == "no"
    assert transit.ask_names(inquiry).answer == "no"
    assert transit.ask_at_rest(inquiry).answer == "no"
    assert transit.ask_operator(inquiry).answer == "yes"


@pytest.mark.slow
def test_a_client_that_encrypts_is_found() -> None:
    for mega in make_inquiry("mega"):
        assert transit.ask_transit(mega).answer == "yes"
        assert transit.ask_content(mega).answer == "yes"
        assert transit.ask_names(mega).answer == "yes"
        assert transit.ask_at_rest(mega).answer == "yes"
        assert transit.ask_operator(mega).answer == "no"


def encrypt(content: Any, key: bytes) -> LiteralContent:
    cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return LiteralContent(cipher.update(content.read(0, content.size_bytes)))


class Encrypting:
    """A driver whose content is encrypted with a key that follows from it, or with a new one each time."""

    def __init__(self, driver: Any, is_convergent: bool) -> None:
        self._driver, self._is_convergent = driver, is_convergent

    def put(self, path: str, content: Any) -> None:
        data = content.read(0, content.size_bytes)
        self._driver.put(path, encrypt(content, hashlib.sha256(data).digest() if self._is_convergent else urandom(32)))

    def close(self) -> None:
        self._driver.close()


@pytest.mark.slow
@pytest.mark.parametrize(("is_convergent", "answer"), [(True, "no"), (False, "yes")])
def test_convergent_encryption_is_found(dropbox: Inquiry, is_convergent: bool, answer: str) -> None:
    class Client(Inquiry):
        def connect(self, endpoint: Endpoint) -> Any:
            return Encrypting(self.bound.connect(endpoint, {}), is_convergent)

    inquiry = Client(dropbox.provider, f"/run/{is_convergent}", SEED, dropbox.list_stored, dropbox.wait)
    ruling = convergence.ask_convergent(inquiry)
    assert (ruling.answer, len(ruling.evidence)) == (answer, 2), ruling


def test_convergence_is_not_asked_of_a_client_that_does_not_encrypt(dropbox: Inquiry) -> None:
    inquiry = Inquiry(dropbox.provider, "/run/open-content", SEED, dropbox.list_stored, dropbox.wait)
    assert convergence.ask_convergent(inquiry).answer == "unknown"


def test_convergence_without_a_second_account() -> None:
    first, second = (Random(number).randbytes(70_000) for number in (1, 2))
    assert convergence.judge_convergence(first, second, None, 65536).answer == "yes"
    assert convergence.judge_convergence(first, first, None, 65536).answer == "unknown"
    assert convergence.judge_convergence(first, first, second, 65536).answer == "yes"
    assert convergence.judge_convergence(first, second[:1000], first, 65536).answer == "no"
    assert convergence.judge_convergence(first[:1000], first, second, 65536).answer == "unknown"


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "api", "content"), [("dropbox+fast", "dropbox", "no"), ("mega", "mega", "yes")])
def test_a_real_account_is_asked_through_a_proxy(
    monkeypatch: pytest.MonkeyPatch, scheme: str, api: str, content: str
) -> None:
    """The driver uses the provider's real host names, which the user's own proxy leads to an emulator."""
    with start_emulator("ideal", api=api) as service:
        monkeypatch.setenv("HTTPS_PROXY", service.endpoint.proxy)
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", service.endpoint.ca_file)
        for field, value in service.endpoint.credentials.items():
            monkeypatch.setenv(f"CLOUDBENCH_{api}_{field}".upper(), value)
        provider = Provider(scheme, open=lambda: (connect(Provided(scheme)), Provided(scheme)))
        provider.driver.mkdir("/run")
        inquiry = Inquiry(provider, "/run", SEED, lambda: None, lambda _: None)
        before = dict(environ)
        assert transit.ask_transit(inquiry).answer == "yes"
        assert transit.ask_content(inquiry).answer == content
        assert environ == before
        assert links.ask_revoked(inquiry).answer == "yes"
        assert transit.ask_at_rest(inquiry).answer == "unknown"
        provider.close()


def test_a_server_that_speaks_ssh_is_found_to_encrypt() -> None:
    if missing := load_recipe("sftp").describe_missing():
        pytest.skip(missing)
    with open_provider("local:sftp") as provider:
        provider.driver.mkdir("/run")
        inquiry = Inquiry(provider, "/run", SEED, lambda: None, lambda _: None)
        ruling = transit.ask_transit(inquiry)
        assert (ruling.answer, ruling.how) == ("yes", "SSH")
        assert transit.ask_content(inquiry).how == "what is inside the encrypted connection was not seen"


def test_plain_server_is_found_with_its_readable_content() -> None:
    with open_provider("local:webdav") as provider:
        provider.driver.mkdir("/run")
        ruling = transit.ask_transit(Inquiry(provider, "/run", SEED, lambda: None, lambda _: None))
    assert ruling.answer == "no"
    assert ruling.how.endswith("plain, with a content and a name")


def test_compressed_content_is_not_taken_for_encrypted() -> None:
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = b"".join(map(deflater.compress, BAIT.files.values())) + deflater.flush()
    assert transit.judge_content(packed, BAIT).answer == "no"


def test_masked_content_is_not_taken_for_encrypted() -> None:
    masked = b"".join(bytes(byte ^ 0x5A for byte in content) for content in BAIT.files.values())
    assert transit.judge_content(masked, BAIT).answer == "unknown"
    assert transit.judge_content(masked[:1000], BAIT).answer == "unknown"
    assert transit.judge_content(Random(2).randbytes(len(masked)), BAIT).answer == "yes"


def test_encrypted_traffic_is_not_judged() -> None:
    assert transit.judge_content(Random(1).randbytes(200_000), BAIT, is_open=False).answer == "unknown"
    assert transit.judge_names(b"", BAIT).answer == "unknown"
    assert transit.judge_transit([], BAIT).answer == "unknown"


def test_a_store_that_did_not_grow_is_not_judged() -> None:
    assert transit.judge_at_rest([("a", b"")], BAIT).answer == "unknown"
    log = [("server.log", Random(4).randbytes(BAIT.size_bytes))]
    assert transit.judge_at_rest(log, BAIT, [("server.log", log[0][1][100:])]).answer == "unknown"
    assert transit.judge_at_rest(log, BAIT).answer == "yes"


def test_masked_content_in_a_store_that_was_not_empty_is_not_called_encrypted() -> None:
    noise, log = ("old", Random(5).randbytes(4 * BAIT.size_bytes)), ("server.log", b"GET /\n" * BAIT.size_bytes)
    masked = [("new", bytes(byte ^ 0x20 for byte in content)) for content in BAIT.files.values()]
    for before in ([], [noise], [log], [noise, log]):
        assert transit.judge_at_rest([*before, *masked], BAIT, before).answer == "unknown"
    sealed = ("new", Random(6).randbytes(BAIT.size_bytes))
    assert transit.judge_at_rest([noise, log, sealed], BAIT, [noise, log]).answer == "yes"


def test_an_encrypted_file_is_found_in_a_store_by_its_size() -> None:
    content, log = Random(6).randbytes(65536), ("log", bytes(5000))
    sealed = ("object", Random(7).randbytes(len(content)))
    find_share = links._find_trace([log], [log, sealed], content)
    assert find_share is not None
    assert find_share([log, sealed]) == 1
    assert 0 < find_share([("log", bytes(8000))]) < 0.1
    assert links._find_trace([log], [("log", bytes(9000))], content) is None


# --- the suite ---


def test_an_answer_is_shown_in_words() -> None:
    unit = CLOUDBENCH_SUITE.conclusions["is_secure"].unit
    assert [format_with_unit(value, unit) for value in (1, 0, None)] == ["yes", "no", "-"]


@pytest.mark.slow
def test_table_has_all_questions_beside_advertised_answers(lab: Lab) -> None:
    run = run_suite(lab, "security", "--provider", "emulated:dropbox", "--provider", "local:webdav")
    assert run.counts() == {"passed": 2 * len(QUESTIONS), "skipped": 2}
    info = run.info("test_table_2_1[emulated:dropbox-tls]")
    assert (info["answer"], info["is_yes"], info["advertised_2014"]) == ("yes", 1, "Yes")
    assert run.info("test_table_2_1[emulated:dropbox-content]")["advertised_2014"] == "Server-side"
    assert run.info("test_table_2_1[local:webdav-revoked]")["answer"] == "unknown"
    assert run.lines_with("as advertised 2014")
