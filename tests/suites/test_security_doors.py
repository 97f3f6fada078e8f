"""Clients that send something to a wrong server are found, and those that do not are not accused."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from subprocess import run
from typing import Any
from urllib.request import urlopen

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import load_der_x509_crl

from pytest_cloudbench import Endpoint, Inquiry, RandomContent, load_recipe, open_provider
from pytest_cloudbench.drivers import missing_library
from pytest_cloudbench.providers import Provider
from pytest_cloudbench.providers.for_agents import Provided
from suites.security import certificates
from suites.security.authority import (
    CERTIFICATE_FAULTS,
    GOOD,
    NO_STAPLE,
    NOT_REVOKED,
    REVOCATION_FAULTS,
    REVOKED_BY_CRL,
    REVOKED_BY_OCSP,
)
from suites.security.certificates import Visit, Visitor, command_visitor, visit_doors
from suites.security.doors import OLD_TLS, TO_PLAIN, open_doors
from suites.security.rulings import Ruling
from tests.drivers.faults.rows import ROWS

PROGRAMS: Mapping[str, Sequence[str]] = {
    "curl": ("curl", "--silent", "--show-error", "--cacert", "{ca}", "-T", "{file}", "https://{address}/file"),
    "rclone": (
        "rclone", "--config={folder}/none.conf", "--ca-cert={ca}", "--retries=1", "--low-level-retries=1", "copyto",
        "{file}", ":webdav:/file", "--webdav-url=https://{address}",
    ),
    "restic": (
        "restic", "--cacert={ca}", "--no-cache", "--password-command=echo invented", "-r", "rest:https://{address}/",
        "init",
    ),
}  # fmt: skip
"""Programs, and the words that lead them to a door."""


def program_visitor(words: Sequence[str]) -> Visitor:
    """Return a visitor that leads a program to a door by words with placeholders, as in ``PROGRAMS``."""

    def fill(address: str, authority: str, folder: Path) -> list[str]:
        file = folder / "file"
        file.write_bytes(RandomContent(address, 3000).read(0, 3000))
        values = {"{ca}": authority, "{file}": str(file), "{address}": address, "{folder}": str(folder)}
        argv = list(words)
        for placeholder, value in values.items():
            argv = [word.replace(placeholder, value) for word in argv]
        return argv

    return command_visitor(fill)


ALL = (GOOD, *CERTIFICATE_FAULTS)
_CURL = PROGRAMS["curl"]
_CHECKING = Path(__file__).parent / "checking_client.py"
_GIT = ("git", "-c", "http.sslCAInfo={ca}", "ls-remote", "https://{address}/repository")

_OPENSSL = (
    "sh", "-c", "printf 'GET / HTTP/1.1\\r\\n\\r\\n' | openssl s_client -quiet -verify_return_error -CAfile {ca} "
    "-crl_check -crl_download -connect {address}",
)  # fmt: skip


def require_program(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")


def visit(words: Sequence[str], faults: Sequence[str]) -> Sequence[Visit] | str:
    require_program(words[0])
    return visit_doors(program_visitor(words), faults)


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_that_checks_certificates_is_found(program: str) -> None:
    ruling = certificates.judge_certificates(visit(PROGRAMS[program], ALL))
    assert ruling.answer == "yes", ruling
    assert any("certificate" in line for line in ruling.evidence)


@pytest.mark.parametrize(
    ("judge", "good", "faults"),
    [
        (certificates.judge_certificates, GOOD, CERTIFICATE_FAULTS),
        (certificates.judge_revocation, NOT_REVOKED, REVOCATION_FAULTS),
    ],
)
@pytest.mark.parametrize(("sent_bytes", "answer"), [(100, "no"), (0, "unknown")])
def test_one_request_to_a_wrong_server_decides_whatever_else_is_unknown(
    judge: Callable[[Sequence[Visit]], Ruling], good: str, faults: Sequence[str], sent_bytes: int, answer: str
) -> None:
    visits = [Visit(fault, came=True, sent_bytes=0, plain_bytes=0, output="") for fault in faults]
    visits[0] = replace(visits[0], sent_bytes=sent_bytes)
    visits[1] = replace(visits[1], came=False)
    ruling = judge([Visit(good, came=True, sent_bytes=100, plain_bytes=0, output=""), *visits])
    assert ruling.answer == answer, ruling


def test_a_program_that_accepts_any_certificate_is_found() -> None:
    ruling = certificates.judge_certificates(visit((*_CURL, "--insecure"), ALL))
    assert ruling.answer == "no"
    assert all(fault in ruling.how for fault in CERTIFICATE_FAULTS)


def test_program_that_ignores_only_the_host_name_is_found() -> None:
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


def test_program_that_contacts_no_wrong_server_is_not_judged() -> None:
    visits = [Visit(fault, fault == GOOD, 100 * (fault == GOOD), 0, "") for fault in ALL]
    assert certificates.judge_certificates(visits).answer == "unknown"


@pytest.mark.slow
def test_use_of_old_tls_versions_is_found() -> None:
    assert certificates.judge_old_tls(visit(_GIT, (GOOD, OLD_TLS))).answer == "no"
    assert certificates.judge_old_tls(visit(PROGRAMS["rclone"], (GOOD, OLD_TLS))).answer == "yes"


def test_followed_redirect_to_plain_http_is_found() -> None:
    followed = certificates.judge_redirect(visit((*_CURL, "--location"), (TO_PLAIN,)))
    assert (followed.answer, followed.how[:24]) == ("no", "it follows to plain HTTP")
    assert certificates.judge_redirect(visit(_CURL, (TO_PLAIN,))).answer == "yes"


def test_every_door_lets_a_client_through_that_accepts_everything() -> None:
    with open_doors() as (make_door, _):
        for fault in (GOOD, *CERTIFICATE_FAULTS, NOT_REVOKED, *REVOCATION_FAULTS, OLD_TLS, TO_PLAIN):
            with make_door(fault) as door:
                assert door.is_passable(), fault
                assert door.visits.sent_bytes == 0


def judge_revocation(*words: str) -> Ruling:
    return certificates.judge_revocation(visit(words, (NOT_REVOKED, *REVOCATION_FAULTS)))


def test_a_client_that_asks_whether_certificates_are_revoked_is_found() -> None:
    ruling = judge_revocation(sys.executable, str(_CHECKING), "{address}", "{ca}")
    assert ruling.answer == "yes", ruling
    assert [line.partition(";")[0] for line in ruling.evidence][1:] == [
        f"{REVOKED_BY_CRL}: 0 bytes sent, CRL asked",
        f"{REVOKED_BY_OCSP}: 0 bytes sent, OCSP asked",
        f"{NO_STAPLE}: 0 bytes sent, CRL and OCSP asked",
    ]
    assert ruling.evidence[0].endswith("bytes sent, CRL and OCSP asked")


@pytest.mark.parametrize(
    ("program", "words", "accepted", "asks"),
    [
        ("curl", _CURL, REVOCATION_FAULTS, False),
        ("git", _GIT, (REVOKED_BY_CRL, REVOKED_BY_OCSP), False),
        ("openssl", _OPENSSL, (NO_STAPLE,), True),
    ],
)
def test_each_wrong_door_that_a_program_passes_is_named(
    program: str, words: Sequence[str], accepted: Sequence[str], asks: bool
) -> None:
    require_program(program)
    if program == "git" and not is_git_with_gnutls():
        pytest.skip("only a git that uses GnuTLS wants the staple that a certificate must have")
    ruling = judge_revocation(*words)
    how = f"it sends its requests to a server with: {', '.join(accepted)}"
    assert (ruling.answer, ruling.how) == ("no", how if asks else f"{how}; it asks neither for a CRL nor by OCSP")


def is_git_with_gnutls() -> bool:
    folder = run(("git", "--exec-path"), capture_output=True, text=True, check=True).stdout.strip()
    libraries = run(("ldd", f"{folder}/git-remote-https"), capture_output=True, text=True, check=False).stdout
    return "gnutls" in libraries


def test_a_client_that_wants_a_staple_of_everybody_is_not_judged() -> None:
    ruling = judge_revocation(*_CURL, "--cert-status")
    assert (ruling.answer, ruling.how[:26]) == ("unknown", "it is silent at a good ser")


def test_a_list_of_revoked_certificates_is_heeded_by_a_client_that_has_loaded_it(tmp_path: Path) -> None:
    code = (
        "import ssl, sys, urllib.request; context = ssl.create_default_context(cafile=sys.argv[1]); "
        "context.load_verify_locations(sys.argv[3]); context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF; "
        "urllib.request.urlopen(sys.argv[2], data=b'x', context=context)"
    )
    sent_bytes, output = {}, ""
    with open_doors() as (make_door, ca_file):
        for fault in (NOT_REVOKED, REVOKED_BY_CRL, REVOKED_BY_OCSP):
            with make_door(fault) as door, urlopen(door.responder.address(fault, "CRL")) as answer:
                revoked = load_der_x509_crl(answer.read())
                (tmp_path / "revoked.pem").write_bytes(revoked.public_bytes(Encoding.PEM))
                words = (sys.executable, "-c", code, "{ca}", "https://{address}/", str(tmp_path / "revoked.pem"))
                output = program_visitor(words)(door.address, ca_file)
                sent_bytes[fault] = door.visits.sent_bytes
    assert sent_bytes.pop(NOT_REVOKED) > 0
    assert set(sent_bytes.values()) == {0}
    assert "certificate revoked" in output


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


_CAP = "URI:DIR2:aaaaaaaaaaaaaaaaaaaaaaaaaa:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
_SPECS = {
    "azure": "azure:bucket", "gcs": "gcs:bucket", "s3": "s3:bucket", "s3+fast": "s3+fast:bucket",
    "swift": "swift:bucket", "tahoe": "tahoe:https://127.0.0.1", "webdav": "webdav:https://127.0.0.1/",
}  # fmt: skip
_ENDPOINTS = {"tahoe": Endpoint({"": "http://127.0.0.1"}, {"cap": _CAP})}
_WITH_CERTIFICATES = sorted(scheme for scheme, row in ROWS.items() if not row.is_plain)
"""Drivers without HTTP have no certificates, or are led to a door in a test of their own."""


@pytest.mark.quick_cases(5)
@pytest.mark.parametrize("scheme", _WITH_CERTIFICATES)
def test_each_driver_says_that_a_certificate_is_refused(scheme: str) -> None:
    if advice := missing_library(scheme):
        pytest.skip(advice)
    spec = _SPECS.get(scheme, scheme)
    pair: Any = None, Provided(spec, _ENDPOINTS.get(scheme))
    inquiry = Inquiry(Provider(spec, open=lambda: pair), "/run", "seed", lambda: None, lambda _: None)
    visits = visit_doors(certificates.driver_visitor(inquiry), ALL)
    assert not isinstance(visits, str)
    assert [visit.sent_bytes > 0 for visit in visits] == [visit.fault == GOOD for visit in visits]
    for visit in visits[1:]:
        assert "certificate" in visit.output or "doesn't match" in visit.output, visit


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["local:webdav?driver=rclone", "local:swift"])
def test_each_driver_of_a_server_says_that_a_certificate_is_refused(spec: str) -> None:
    if missing := load_recipe(spec.partition(":")[2].partition("?")[0]).describe_missing():
        pytest.skip(missing)
    with open_provider(spec) as provider:
        ruling = certificates.ask_certificates(Inquiry(provider, "/run", "seed", lambda: None, lambda _: None))
    assert ruling.answer == "yes", ruling
    assert all("certificate" in line.partition(";")[2] for line in ruling.evidence[1:])


@pytest.mark.slow
def test_rust_driver_reports_a_refused_certificate() -> None:
    with open_provider("local:s3?driver=s3+fast") as provider, open_doors() as (make_door, ca_file):
        visitor = certificates.driver_visitor(Inquiry(provider, "/run", "seed", lambda: None, lambda _: None))
        errors = {}
        for fault in ("expired", "unknown authority", "wrong name"):
            with make_door(fault) as door:
                errors[fault] = visitor(door.address, ca_file)
    assert errors["expired"].endswith("the certificate is refused (Expired))")
    assert errors["unknown authority"].endswith("the certificate is refused (UnknownIssuer))")
    assert errors["wrong name"].endswith("the certificate is refused (NotValidForName))")


@pytest.mark.slow
def test_driver_caching_trust_per_process_is_asked_in_a_new_process() -> None:
    with open_provider("local:webdav?driver=opendal") as provider:
        inquiry = Inquiry(provider, "/run", "seed", lambda: None, lambda _: None)
        ruling = certificates.ask_certificates(inquiry)
    assert ruling.answer == "yes", ruling
    assert any("wrong name: 0 bytes sent" in line and "not valid for name" in line for line in ruling.evidence)


def test_certificates_of_a_local_provider_are_unknown(tmp_path: Path) -> None:
    with open_provider(f"folder:{tmp_path}") as provider:
        inquiry = Inquiry(provider, "/run", "seed", lambda: None, lambda _: None)
        assert certificates.ask_certificates(inquiry).answer == "unknown"
