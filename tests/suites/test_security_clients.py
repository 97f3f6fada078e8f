"""Each flaw of the reference client is found, and no flaw is found in clients without one."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from pytest_cloudbench import ClientFacts, LocalClient, Overheard, OverheardFlow, RandomContent, make_client
from pytest_cloudbench.lab.clients.base import Proof
from suites.security import authority, clients, convergence, shared_server, transit
from suites.security.clients import Observed, Secret
from suites.security.tap import TappedFlow
from tests.fleet.harness import Lab
from tests.net.traffic import craft

from .clients import skip_if_unavailable
from .harness import SUITES

BAIT = transit.Bait.make("truth")
RANDOM, TEXT = BAIT.files.values()


def ask(lab: Lab, client: str, only: str = "test_table_2_1") -> dict[str, str]:
    """Ask a client, and return the answers by the question's short name. Skips if something is not installed."""
    run = skip_if_unavailable(lab.run(str(SUITES / "security"), "--client", client, "-k", only, "-rs"))
    assert set(run.counts()) <= {"passed", "deselected"}, run.text
    answers = {name.partition("[")[2].removesuffix("]"): entry["extra_info"] for name, entry in run.entries.items()}
    return {"".join(name.split(client)).strip("-"): info["answer"] for name, info in answers.items()}


@pytest.mark.parametrize("ciphers", ["ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-NULL-SHA"])
def test_tls_without_encryption_protects_nothing(ciphers: str) -> None:
    up, down = craft.tls(f"{ciphers}:@SECLEVEL=0", TEXT)
    flow = TappedFlow("files.example.com:443", bytearray(up), bytearray(down))
    is_plain = "NULL" in ciphers
    assert flow.protocol == ("" if is_plain else f"TLSv1.2 {ciphers}")
    assert transit.judge_protection([flow], BAIT).answer == ("no" if is_plain else "yes")


@pytest.mark.slow
@pytest.mark.usefixtures("can_link", "can_capture")
def test_the_reference_client_without_a_flaw(lab: Lab) -> None:
    answers = ask(lab, "reference", "tls or certificate or redirect or secrets or content")
    assert answers.pop("device_tls") == "unknown", "by default it has no second device beside its server"
    assert sorted(answers.values()) == ["no", "yes", "yes", "yes", "yes", "yes"]


@pytest.mark.slow
@pytest.mark.usefixtures("can_link", "can_capture")
@pytest.mark.parametrize(
    ("flaw", "question"),
    [
        ("plain", "tls"),
        ("telemetry", "tls"),
        ("any-certificate", "certificate"),
        ("open-token", "secrets"),
        ("argument-token", "secrets"),
        ("plain&pull_s=0.2", "device_tls"),
        ("device-telemetry&pull_s=0.2", "device_tls"),
    ],
)
def test_a_flaw_is_found(lab: Lab, flaw: str, question: str) -> None:
    assert ask(lab, f"reference?flaw={flaw}", question)[question] == "no"


@pytest.mark.slow
@pytest.mark.usefixtures("can_link", "can_capture")
@pytest.mark.parametrize(
    ("client", "on_the_link", "to_the_device"),
    [
        ("reference?pull_s=0.2", "yes", "yes"),
        ("reference?pull_s=0.2&flaw=telemetry", "no", "yes"),
        ("reference?pull_s=0.2&flaw=device-telemetry", "yes", "no"),
        ("savingbox?over=reference&pull_s=0.2&flaw=device-telemetry", "yes", "no"),
    ],
)
def test_traffic_of_a_second_device_is_told_from_that_on_the_link(
    lab: Lab, client: str, on_the_link: str, to_the_device: str
) -> None:
    assert ask(lab, client, "tls and not old") == {"tls": on_the_link, "device_tls": to_the_device}


@pytest.mark.slow
@pytest.mark.usefixtures("can_link", "can_capture")
def test_a_client_that_encrypts_is_found_in_the_lab(lab: Lab) -> None:
    answers = ask(lab, "restic", "content or names or at_rest or operator")
    assert sorted(answers.values()) == ["no", "yes", "yes", "yes"]


NO_DEVICE, ONE_ACCOUNT = {"device_tls": "unknown"}, {"deduplication": "unknown"}
UNASKED = {"certificate": "unknown", "revocation": "unknown", "old_tls": "unknown", "redirect": "unknown"}
SHARED_SERVER = {"deduplication": "no"}
READABLE = {"content": "no", "names": "no", "operator": "yes", "at_rest": "no", "equal": "unknown"}
ENCRYPTED = {"content": "yes", "names": "yes", "operator": "no", "at_rest": "yes", "equal": "yes"}
GO_TLS = {"certificate": "yes", "revocation": "no", "old_tls": "yes"}
"""Go's library checks certificates, offers TLS 1.2 and 1.3, and asks nobody about revocation."""
PLAIN_HERE = {"tls": "unknown"}
SUBJECTS = {
    # Certificates are compared with the device's id. Both sides are the same user's devices.
    "syncthing": {"tls": "yes", "device_tls": "yes", **UNASKED, **dict.fromkeys(READABLE, "unknown"), "secrets": "yes"},
    "lsyncd": {**PLAIN_HERE, **UNASKED, **READABLE, "secrets": "unknown"},
    "lsyncd?over=ssh": {"tls": "yes", **UNASKED, **READABLE, "secrets": "yes"},
    "unison": {**PLAIN_HERE, **UNASKED, **READABLE, "secrets": "unknown"},
    "unison?over=ssh": {"tls": "yes", **UNASKED, **READABLE, "secrets": "yes"},
    "rclone": {**SHARED_SERVER, **PLAIN_HERE, **GO_TLS, "redirect": "yes", **READABLE, "secrets": "unknown"},
    "rclone?remote=compress": {
        **SHARED_SERVER,
        **PLAIN_HERE,
        **GO_TLS,
        "redirect": "yes",
        **READABLE,
        "secrets": "unknown",
    },
    "rclone?remote=crypt": {
        **SHARED_SERVER,
        **PLAIN_HERE,
        **GO_TLS,
        "redirect": "yes",
        **ENCRYPTED,
        "secrets": "unknown",
    },
    "restic": {**SHARED_SERVER, **PLAIN_HERE, **GO_TLS, "redirect": "no", **ENCRYPTED, "secrets": "unknown"},
    "restic?server=s3": {**PLAIN_HERE, **GO_TLS, "redirect": "yes", **ENCRYPTED, "secrets": "unknown"},
    # In front of another client, the savingbox shows nothing of its server's disk.
    "savingbox?over=rclone": {
        **PLAIN_HERE,
        **UNASKED,
        "content": "no",
        "names": "no",
        "operator": "yes",
        "equal": "unknown",
        "at_rest": "unknown",
        "secrets": "unknown",
    },
    "reference": {**SHARED_SERVER, "tls": "yes", **GO_TLS, "redirect": "yes", **READABLE, "secrets": "yes"},
}
"""The right answers for clients, by their documentation and by their set-up in this package."""


@pytest.mark.slow
@pytest.mark.usefixtures("can_link", "can_capture")
@pytest.mark.parametrize("client", SUBJECTS)
def test_known_facts_of_a_client_are_answered(lab: Lab, client: str) -> None:
    assert ask(lab, client) == {**NO_DEVICE, **ONE_ACCOUNT, **SUBJECTS[client]}


def test_a_client_that_asks_no_authority_or_is_never_led_elsewhere_says_so() -> None:
    for spec, reason in (
        ("syncthing", "it asks no authority: it knows its server by the hash of its certificate"),
        ("unison?over=ssh", "it asks no authority: it knows its server by the SSH host key"),
    ):
        visits = clients.visit_with(spec, [authority.GOOD])
        assert isinstance(visits, str)
        assert visits.startswith(reason)
    visits = clients.visit_with("external?folder=.", [authority.GOOD])
    assert visits == "it is not known how to lead it to another server"


def test_peer_device_of_the_user_does_not_reveal_operator_access() -> None:
    encrypted = Overheard([OverheardFlow("server:443", "TLSv1.3 X", bytes(len(RANDOM) * 2), b"", True)])
    stored = [*BAIT.files.items()]
    judges = (clients.judge_content, clients.judge_names, clients.judge_operator, clients.judge_at_rest)
    server = [judge(Observed(BAIT, encrypted, stored)).answer for judge in judges]
    assert server == ["no", "no", "yes", "no"]
    assert {judge(Observed(BAIT, encrypted, stored, is_peer=True)).answer for judge in judges} == {"unknown"}
    plain = Overheard([OverheardFlow("server:80", "", RANDOM + TEXT, b"", True)])
    assert clients.judge_content(Observed(BAIT, plain, is_peer=True)).answer == "no"
    assert clients.judge_operator(Observed(BAIT, plain, is_peer=True)).answer == "unknown"


def test_a_store_that_is_only_masked_is_not_called_unreadable() -> None:
    masked = [("object", bytes(byte ^ 0x5A for byte in RANDOM + TEXT))]
    noise = [("object", RandomContent("noise", len(RANDOM + TEXT)).read(0, len(RANDOM + TEXT)))]
    assert transit.judge_at_rest(masked, BAIT).answer == "unknown"
    assert transit.judge_at_rest(noise, BAIT).answer == "yes"
    assert transit.judge_at_rest([*BAIT.files.items()], BAIT).answer == "no"


class FolderClient(LocalClient):
    """A client that stores a file encrypted by a key: the hash of the content, or of a secret."""

    def __init__(self, secret: str, is_convergent: bool, is_known: bool = True) -> None:
        self.facts = ClientFacts("folder", watches_folder=False)
        self._secret, self._is_convergent, self._is_known = secret, is_convergent, is_known

    def _configure(self) -> None:
        self._ready = True

    def _start_server(self) -> None:
        """Start no server, because a folder is the server."""

    def _start_client(self) -> None:
        """Start no client, because it is run after each change."""

    def after_change(self) -> None:
        for path in self.folder.iterdir():
            content = path.read_bytes()
            key = content if self._is_convergent else self._secret.encode()
            stream = hashlib.shake_256(key).digest(len(content))
            mixed = int.from_bytes(content, "big") ^ int.from_bytes(stream, "big")
            (self.stored / "object").write_bytes(mixed.to_bytes(len(content), "big"))

    def wait_synced(self, timeout_s: float) -> Proof:
        del timeout_s
        return Proof.CLIENT

    def secrets(self) -> Mapping[str, str]:
        return {"key": self._secret} if self._is_known else {}


def test_a_key_that_follows_from_the_content_is_found_by_two_accounts() -> None:
    keys = iter("abcdefgh")
    convergent = clients.compare_accounts(lambda: FolderClient(next(keys), is_convergent=True), "seed")
    assert convergent.answer == "no"
    own_keys = clients.compare_accounts(lambda: FolderClient(next(keys), is_convergent=False), "seed")
    assert own_keys.answer == "yes"


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    ("client", "answer"),
    [
        ("reference?deduplication=file", "no"),
        ("reference?deduplication=file&deduplicate_accounts=1", "yes"),
        ("reference?deduplication=block&chunk_bytes=65536&deduplicate_accounts=1", "yes"),
        # Without deduplication, nothing is known to the server.
        ("reference?deduplicate_accounts=1", "no"),
    ],
)
def test_deduplication_across_accounts_of_one_server_is_found(
    client: str, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_server, "PAIRS", 2)
    ruling = shared_server.share_server(lambda: make_client(client), client)
    assert (ruling.answer, len(ruling.evidence)) == (answer, 2), ruling


def test_the_first_account_of_a_server_stores_as_many_copies_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_server, "PAIRS", 1)
    observed = Observed(BAIT, Overheard([]), spec="reference?deduplication=file")
    ruling = shared_server.ask_deduplication(observed, copies=3)
    assert (ruling.answer, ruling.how) == ("no", "not seen when one other account has the file 3 times")


def test_clients_without_second_account_are_unknown_with_reason() -> None:
    for spec, reason in (
        ("syncthing", "two accounts cannot share a server: its other side is a device of the same user"),
        ("unison", "two accounts cannot share a server: as it is set up here, its server has one account"),
        ("savingbox", "there is no second account of this client"),
    ):
        ruling = shared_server.share_server(partial(make_client, spec), spec)
        assert (ruling.answer, ruling.how[: len(reason)]) == ("unknown", reason)


def test_equal_stores_of_accounts_that_may_have_the_same_secret_say_nothing() -> None:
    keys = iter("abcd")
    one_secret = clients.compare_accounts(lambda: FolderClient("a", is_convergent=False), "seed")
    assert one_secret.answer == "unknown"
    no_secret = clients.compare_accounts(lambda: FolderClient(next(keys), is_convergent=True, is_known=False), "seed")
    assert no_secret.answer == "unknown"


def test_tables_and_padding_that_all_stores_have_do_not_look_like_equal_files() -> None:
    table = bytes(range(128, 136)) * 16384 + b"\xff" * 65536
    ones = [RandomContent(seed, 131072).read(0, 131072) for seed in ("one", "other")]
    assert not convergence.are_alike(ones[0] + table, ones[1] + table)
    assert convergence.are_alike(ones[0] + table, table + ones[0])
    assert not convergence.pick_pieces(table)


def test_uploads_as_text_are_not_called_different() -> None:
    texts = [base64.b64encode(RandomContent(seed, 65536).read(0, 65536)) for seed in ("one", "other")]
    for other in texts:
        assert convergence.judge_convergence(texts[0], texts[0], other, 65536).answer == "unknown"


def test_equal_files_are_compared_only_if_contents_are_encrypted() -> None:
    plain = Observed(BAIT, Overheard([OverheardFlow("server:80", "", RANDOM + TEXT, b"", True)]), spec="restic")
    ruling = clients.ask_equal(plain)
    assert (ruling.answer, ruling.how) == ("unknown", "not asked: it does not encrypt contents")
    assert clients.ask_equal(observe_flows()).how.startswith("not asked: what is inside")


def observe_flows(*flows: OverheardFlow, reasons: tuple[str, ...] = ()) -> Observed:
    return Observed(BAIT, Overheard(flows, reasons))


def test_a_whole_encrypted_flow_is_good_and_a_cut_one_is_unknown() -> None:
    content = bytes(len(RANDOM) * 2)
    complete = OverheardFlow("server:443", "TLSv1.3 X", content, b"", True)
    cut = OverheardFlow("server:443", "TLSv1.3 X", content, b"", False)
    assert clients.judge_transit(observe_flows(complete)).answer == "yes"
    assert clients.judge_transit(observe_flows(cut)).answer == "unknown"
    assert clients.judge_transit(observe_flows(complete, reasons=("packets were lost",))).answer == "unknown"
    assert clients.judge_transit(observe_flows()).answer == "unknown"


def test_a_plain_flow_beside_an_encrypted_one_is_found() -> None:
    encrypted = OverheardFlow("server:443", "TLSv1.3 X", bytes(len(RANDOM) * 2), b"", True)
    beacon = OverheardFlow("server:9", "", b"X-File: " + BAIT.names[0].data, b"", True)
    ruling = clients.judge_transit(observe_flows(encrypted, beacon))
    assert (ruling.answer, ruling.how) == ("no", "server:9: plain, with a name")


def test_unreadable_bytes_show_encrypted_contents_only_in_plain_http() -> None:
    noise = RandomContent("noise", len(RANDOM) * 2).read(0, len(RANDOM) * 2)
    for begin, answer in (
        (b"PUT /a HTTP/1.1\r\nhost: server\r\n\r\n", "yes"),
        (b"", "unknown"),
        (b"\x13protocol of its own", "unknown"),
        (b"CONNECT cloud:443 HTTP/1.1\r\nhost: cloud\r\n\r\n", "unknown"),
        (b"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", "unknown"),
    ):
        observed = observe_flows(OverheardFlow("server:80", "", begin + noise, b"", True))
        assert clients.judge_content(observed).answer == answer
        assert clients.judge_names(observed).answer == answer
        readable = observe_flows(OverheardFlow("server:80", "", begin + BAIT.names[0].data + RANDOM + TEXT, b"", True))
        assert clients.judge_content(readable).answer == clients.judge_names(readable).answer == "no"


def test_traffic_to_the_second_device_is_searched() -> None:
    encrypted = OverheardFlow("server:443", "TLSv1.3 X", bytes(len(RANDOM) * 2), b"", True)
    news = OverheardFlow("server:9", "", b"\x01\x02", b"\x00\xff" + BAIT.names[0].data, True)
    other = OverheardFlow("server:9", "", b"\x01\x02", b"\x00\xff" + BAIT.names[0].data[::-1], True)
    ruling = clients.judge_transit(observe_flows(encrypted, news))
    assert (ruling.answer, ruling.how) == ("no", "server:9: plain, with a name")
    assert clients.judge_transit(observe_flows(encrypted, other)).answer == "unknown"


def test_device_encryption_is_judged_only_by_received_traffic() -> None:
    link = [OverheardFlow("server:443", "TLSv1.3 X", bytes(len(RANDOM) * 2), b"", True)]

    def judge(*flows: OverheardFlow, reasons: tuple[str, ...] = ()) -> str:
        return clients.judge_device(Observed(BAIT, Overheard(link, device=Overheard(flows, reasons)))).answer

    encrypted = OverheardFlow("server:443", "TLSv1.3 X", b"asks", bytes(len(RANDOM) * 2), True)
    polls = OverheardFlow("server:443", "TLSv1.3 X", bytes(len(RANDOM) * 2), b"nothing new", True)
    plain = OverheardFlow("server:80", "", b"GET /new HTTP/1.1\r\n\r\n", RANDOM + TEXT, True)
    assert [judge(encrypted), judge(encrypted, plain), judge(plain)] == ["yes", "no", "no"]
    assert [judge(polls), judge(), judge(encrypted, reasons=("it came late",))] == ["unknown"] * 3
    without = clients.judge_device(Observed(BAIT, Overheard(link)))
    assert (without.answer, without.how[:43]) == ("unknown", "it has no second device in its definition: ")
    assert clients.judge_device(Observed(BAIT, Overheard(link), is_peer=True)).answer == "yes"


def test_plain_by_our_own_set_up_is_unknown() -> None:
    plain = OverheardFlow("server:80", "", RANDOM + TEXT, b"", True)
    assert clients.judge_transit(Observed(BAIT, Overheard([plain]), is_plain_here=True)).answer == "unknown"
    assert clients.judge_transit(observe_flows(plain)).answer == "no"
    assert clients.judge_content(observe_flows(plain)).answer == "no"


def test_unreadable_store_behind_tls_leaves_client_encryption_unknown() -> None:
    encrypted = OverheardFlow("server:443", "TLSv1.3 X", bytes(len(RANDOM) * 2), b"", True)
    stored = [("object", RandomContent("stored", len(RANDOM) * 2).read(0, len(RANDOM) * 2))]
    assert clients.judge_content(Observed(BAIT, Overheard([encrypted]), stored)).answer == "unknown"
    assert clients.judge_at_rest(Observed(BAIT, Overheard([encrypted]), stored)).answer == "yes"
    assert clients.judge_at_rest(Observed(BAIT, Overheard([encrypted]))).answer == "unknown"


@pytest.mark.parametrize(
    ("folder_mode", "file_mode", "is_open"), [(0o755, 0o644, True), (0o700, 0o644, False), (0o755, 0o600, False)]
)
def test_secret_is_open_only_if_file_and_folder_are_readable(
    tmp_path: Path, folder_mode: int, file_mode: int, is_open: bool
) -> None:
    folder = tmp_path / "config"
    folder.mkdir()
    (folder / "token").write_text("token=s3cr3t-value")
    (folder / "token").chmod(file_mode)
    folder.chmod(folder_mode)
    (secret,) = clients.find_in_files(tmp_path, {"token": "s3cr3t-value"})
    assert secret.is_open is is_open
    assert clients.find_in_files(tmp_path, {"token": "another"}) == []


def test_secrets_are_unknown_without_complete_observation() -> None:
    nothing = Observed(BAIT, Overheard([]), secrets=[], has_processes=True)
    assert clients.judge_secrets(nothing).answer == "yes"
    assert clients.judge_secrets(Observed(BAIT, Overheard([]), secrets=[])).answer == "unknown"
    assert clients.judge_secrets(Observed(BAIT, Overheard([]))).answer == "unknown"
    in_environment = Observed(BAIT, Overheard([]), None, [Secret("token", "the environment", False)], True)
    assert clients.judge_secrets(in_environment).answer == "yes"
