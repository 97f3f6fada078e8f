"""Each flaw of the reference client is found, and none where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_cloudbench import Overheard, OverheardFlow
from suites.security import clients, transit
from suites.security.clients import Observed, Secret
from tests.fleet.harness import Lab

from .harness import SUITES

BAIT = transit.Bait.make("truth")
RANDOM, TEXT = BAIT.files.values()


def ask(lab: Lab, client: str, only: str) -> dict[str, str]:
    """Ask a client, and return the answers by the question's short name."""
    run = lab.run(str(SUITES / "security"), "--client", client, "-k", only)
    assert set(run.counts()) <= {"passed", "deselected"}, run.text
    answers = {name.partition("[")[2].removesuffix("]"): entry["extra_info"] for name, entry in run.entries.items()}
    return {"".join(name.split(client)).strip("-"): info["answer"] for name, info in answers.items()}


@pytest.mark.slow
@pytest.mark.usefixtures("can_link", "can_capture")
def test_the_reference_client_without_a_flaw(lab: Lab) -> None:
    answers = ask(lab, "reference", "tls or certificate or redirect or secrets or content")
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
    ],
)
def test_a_flaw_is_found(lab: Lab, flaw: str, question: str) -> None:
    assert ask(lab, f"reference?flaw={flaw}", question)[question] == "no"


@pytest.mark.slow
@pytest.mark.usefixtures("can_link", "can_capture")
def test_a_client_that_encrypts_is_found_in_the_lab(lab: Lab) -> None:
    answers = ask(lab, "restic", "content or names or at_rest or operator")
    assert sorted(answers.values()) == ["no", "yes", "yes", "yes"]


def overheard(*flows: OverheardFlow, reasons: tuple[str, ...] = ()) -> Observed:
    return Observed(BAIT, Overheard(flows, reasons))


def test_a_whole_encrypted_flow_is_good_and_a_cut_one_is_unknown() -> None:
    sent = bytes(len(RANDOM) * 2)
    whole = OverheardFlow("server:443", "TLSv1.3 X", sent, b"", True)
    cut = OverheardFlow("server:443", "TLSv1.3 X", sent, b"", False)
    assert clients.judge_transit(overheard(whole)).answer == "yes"
    assert clients.judge_transit(overheard(cut)).answer == "unknown"
    assert clients.judge_transit(overheard(whole, reasons=("packets were lost",))).answer == "unknown"
    assert clients.judge_transit(overheard()).answer == "unknown"


def test_a_plain_flow_beside_an_encrypted_one_is_found() -> None:
    encrypted = OverheardFlow("server:443", "TLSv1.3 X", bytes(len(RANDOM) * 2), b"", True)
    beacon = OverheardFlow("server:9", "", b"X-File: " + BAIT.names[0].data, b"", True)
    ruling = clients.judge_transit(overheard(encrypted, beacon))
    assert (ruling.answer, ruling.how) == ("no", "server:9: plain, with a name")


def test_plain_by_our_own_set_up_is_unknown() -> None:
    plain = OverheardFlow("server:80", "", RANDOM + TEXT, b"", True)
    assert clients.judge_transit(Observed(BAIT, Overheard([plain]), is_plain_here=True)).answer == "unknown"
    assert clients.judge_transit(overheard(plain)).answer == "no"
    assert clients.judge_content(overheard(plain)).answer == "no"


def test_an_unreadable_store_behind_tls_does_not_tell_who_encrypts() -> None:
    encrypted = OverheardFlow("server:443", "TLSv1.3 X", bytes(len(RANDOM) * 2), b"", True)
    stored = [("object", bytes(len(RANDOM) * 2))]
    assert clients.judge_content(Observed(BAIT, Overheard([encrypted]), stored)).answer == "unknown"
    assert clients.judge_at_rest(Observed(BAIT, Overheard([encrypted]), stored)).answer == "yes"
    assert clients.judge_at_rest(Observed(BAIT, Overheard([encrypted]))).answer == "unknown"


@pytest.mark.parametrize(
    ("folder_mode", "file_mode", "is_open"), [(0o755, 0o644, True), (0o700, 0o644, False), (0o755, 0o600, False)]
)
def test_who_can_read_a_secret_depends_on_file_and_folder(
    tmp_path: Path, folder_mode: int, file_mode: int, is_open: bool
) -> None:
    folder = tmp_path / "config"
    folder.mkdir()
    (folder / "token").write_text("token=s3cr3t-value")
    (folder / "token").chmod(file_mode)
    folder.chmod(folder_mode)
    (found,) = clients.find_in_files(tmp_path, {"token": "s3cr3t-value"})
    assert found.is_open is is_open
    assert clients.find_in_files(tmp_path, {"token": "another"}) == []


def test_secrets_are_unknown_where_not_all_was_seen() -> None:
    nothing = Observed(BAIT, Overheard([]), secrets=[], has_processes=True)
    assert clients.judge_secrets(nothing).answer == "yes"
    assert clients.judge_secrets(Observed(BAIT, Overheard([]), secrets=[])).answer == "unknown"
    assert clients.judge_secrets(Observed(BAIT, Overheard([]))).answer == "unknown"
    in_environment = Observed(BAIT, Overheard([]), None, [Secret("token", "the environment", False)], True)
    assert clients.judge_secrets(in_environment).answer == "yes"
