"""Clients that send something to a wrong server are found, and those that do not are not accused."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_cloudbench import Inquiry, open_provider
from suites.security import certificates
from suites.security.certificates import PROGRAMS, Visit, program_visitor, visit_doors
from suites.security.doors import CERTIFICATE_FAULTS, GOOD, OLD_TLS, TO_PLAIN, open_doors

ALL = (GOOD, *CERTIFICATE_FAULTS)
_CURL = PROGRAMS["curl"]
_GIT = ("git", "-c", "http.sslCAInfo={ca}", "ls-remote", "https://{address}/repository")


def need(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")


def visit(words: Sequence[str], faults: Sequence[str]) -> Sequence[Visit] | str:
    need(words[0])
    return visit_doors(program_visitor(words), faults)


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_that_checks_certificates_is_found(program: str) -> None:
    ruling = certificates.judge_certificates(visit(PROGRAMS[program], ALL))
    assert ruling.answer == "yes", ruling
    assert any("certificate" in line for line in ruling.evidence)


def test_a_program_that_accepts_any_certificate_is_found() -> None:
    ruling = certificates.judge_certificates(visit((*_CURL, "--insecure"), ALL))
    assert ruling.answer == "no"
    assert all(fault in ruling.how for fault in CERTIFICATE_FAULTS)


def test_one_that_only_ignores_the_name_is_found() -> None:
    code = (
        "import ssl, sys, urllib.request; context = ssl.create_default_context(cafile=sys.argv[1]); "
        "context.check_hostname = False; urllib.request.urlopen(sys.argv[2], data=b'x', context=context)"
    )
    ruling = certificates.judge_certificates(visit((sys.executable, "-c", code, "{ca}", "https://{address}/"), ALL))
    assert (ruling.answer, ruling.how) == ("no", "it sends its requests to a server with: wrong name")


def test_a_program_that_is_silent_at_a_good_server_is_not_judged() -> None:
    visits = visit((sys.executable, "-c", "pass"), (GOOD, *CERTIFICATE_FAULTS, OLD_TLS, TO_PLAIN))
    for judge in (certificates.judge_certificates, certificates.judge_old_tls, certificates.judge_redirect):
        assert judge(visits).answer == "unknown"


def test_one_that_does_not_come_to_a_wrong_server_is_not_judged() -> None:
    came = [Visit(fault, fault == GOOD, 100 * (fault == GOOD), 0, "") for fault in ALL]
    assert certificates.judge_certificates(came).answer == "unknown"


@pytest.mark.slow
def test_old_versions_are_found_where_they_are_used() -> None:
    assert certificates.judge_old_tls(visit(_GIT, (GOOD, OLD_TLS))).answer == "no"
    assert certificates.judge_old_tls(visit(PROGRAMS["rclone"], (GOOD, OLD_TLS))).answer == "yes"


def test_a_redirect_to_plain_http_is_found_where_it_is_followed() -> None:
    followed = certificates.judge_redirect(visit((*_CURL, "--location"), (TO_PLAIN,)))
    assert (followed.answer, followed.how[:24]) == ("no", "it follows to plain HTTP")
    assert certificates.judge_redirect(visit(_CURL, (TO_PLAIN,))).answer == "yes"


def test_every_door_lets_a_client_through_that_accepts_everything() -> None:
    with open_doors() as (make_door, _):
        for fault in (GOOD, *CERTIFICATE_FAULTS, OLD_TLS, TO_PLAIN):
            with make_door(fault) as door:
                assert door.is_passable(), fault
                assert door.visits.sent_bytes == 0


def test_a_body_that_waits_for_100_continue_is_counted() -> None:
    waiting = (*_CURL, "-H", "Expect: 100-continue", "--expect100-timeout", "15")
    visits = visit(waiting, (GOOD,))
    assert not isinstance(visits, str)
    assert visits[0].sent_bytes > 3000


@pytest.mark.slow
def test_a_driver_that_checks_certificates_is_found() -> None:
    with open_provider("emulated:dropbox?profile=ideal&driver=dropbox+fast") as provider:
        inquiry = Inquiry(provider, "/run", "seed", lambda: None, lambda _: None)
        assert certificates.ask_certificates(inquiry).answer == "yes"
        assert certificates.ask_old_tls(inquiry).answer == "yes"
        assert certificates.ask_redirect(inquiry).answer == "yes"


@pytest.mark.slow
def test_a_driver_in_rust_says_that_the_certificate_is_refused() -> None:
    with open_provider("local:s3?driver=s3+fast") as provider, open_doors() as (make_door, ca_file):
        visitor = certificates.driver_visitor(Inquiry(provider, "/run", "seed", lambda: None, lambda _: None))
        said = {}
        for fault in ("expired", "unknown authority", "wrong name"):
            with make_door(fault) as door:
                said[fault] = visitor(door.address, ca_file)
    assert said["expired"].endswith("the certificate is refused (Expired))")
    assert said["unknown authority"].endswith("the certificate is refused (UnknownIssuer))")
    assert said["wrong name"].endswith("the certificate is refused (NotValidForName))")


@pytest.mark.slow
def test_a_driver_that_trusts_only_whom_its_process_met_first_is_asked_in_a_new_one() -> None:
    with open_provider("local:webdav?driver=opendal") as provider:
        inquiry = Inquiry(provider, "/run", "seed", lambda: None, lambda _: None)
        ruling = certificates.ask_certificates(inquiry)
    assert ruling.answer == "yes", ruling
    assert any("wrong name: 0 bytes sent" in line and "not valid for name" in line for line in ruling.evidence)


def test_what_makes_no_connections_is_not_judged(tmp_path: Path) -> None:
    with open_provider(f"folder:{tmp_path}") as provider:
        inquiry = Inquiry(provider, "/run", "seed", lambda: None, lambda _: None)
        assert certificates.ask_certificates(inquiry).answer == "unknown"
