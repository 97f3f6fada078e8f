"""The proxy and the trusted certificates of a request, by one rule for all drivers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trustme

from pytest_cloudbench.drivers.egress import CERTIFICATES, egress_of
from pytest_cloudbench.model import Endpoint, UsageError
from pytest_cloudbench.support import redact

PROXY = "http://proxy.test:3128"
REAL = "https://storage.test/files"


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name in CERTIFICATES or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("variables", "url", "proxy"),
    [
        ({"HTTPS_PROXY": PROXY}, REAL, PROXY),
        ({"https_proxy": PROXY}, REAL, PROXY),
        ({"ALL_PROXY": PROXY}, REAL, PROXY),
        ({"HTTP_PROXY": PROXY}, REAL, ""),
        ({"HTTP_PROXY": PROXY}, "http://storage.test", PROXY),
        ({"HTTPS_PROXY": "proxy.test:3128"}, REAL, PROXY),
        ({"HTTPS_PROXY": "http://other.test:1", "https_proxy": PROXY}, REAL, PROXY),
        ({"HTTPS_PROXY": PROXY, "https_proxy": ""}, REAL, ""),
        ({"HTTPS_PROXY": ""}, REAL, ""),
        ({}, REAL, ""),
        ({"HTTPS_PROXY": PROXY}, "https://127.storage.test", PROXY),
        *[
            ({"HTTP_PROXY": PROXY, "HTTPS_PROXY": PROXY}, f"{scheme}://{host}/files", "")
            for scheme in ("http", "https")
            for host in (
                "localhost", "LOCALHOST:9", "a.localhost", "localhost.", "127.0.0.1", "127.9.8.7:443", "127.1",
                "[::1]:8", "[::ffff:127.0.0.1]", "0.0.0.0:80",
            )
        ],
    ],
)  # fmt: skip
def test_the_proxy_of_an_address(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], url: str, proxy: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert egress_of(None, url).proxy_for(url) == proxy


@pytest.mark.parametrize(
    ("listed", "host", "is_direct"),
    [
        ("*", "storage.test", True),
        ("storage.test", "storage.test", True),
        ("storage.test", "eu.storage.test", True),
        (".storage.test", "eu.storage.test", True),
        ("*.storage.test", "eu.storage.test", True),
        ("STORAGE.test", "eu.storage.test", True),
        ("other.test, storage.test", "storage.test", True),
        ("storage.test:443", "storage.test", True),
        ("storage.test:8443", "storage.test", False),
        ("storage.test:8443", "storage.test:8443", True),
        ("age.test", "storage.test", False),
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/8", "11.1.2.3", False),
        ("10.1.2.3", "10.1.2.3:9000", True),
        ("[fd00::1]", "[fd00::1]:9000", True),
        ("fd00::/8", "[fd00::1]", True),
        (",", "storage.test", False),
        ("", "storage.test", False),
    ],
)
def test_no_proxy_list_exempts_matching_hosts(
    monkeypatch: pytest.MonkeyPatch, listed: str, host: str, is_direct: bool
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", PROXY)
    monkeypatch.setenv("NO_PROXY", listed)
    url = f"https://{host}/files"
    assert egress_of(None, url).proxy_for(url) == ("" if is_direct else PROXY)


def test_a_service_of_the_run_has_its_own_authority_and_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", PROXY)
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere.pem")
    egress = egress_of(Endpoint({"api": REAL}, ca_file="/own.pem"), REAL)
    assert (egress.trusted, egress.proxy_for(REAL), egress.remarks) == ("/own.pem", "", {})


def test_an_opener_refuses_a_proxy_that_it_would_ask_without_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "https://proxy.test:3128")
    with pytest.raises(OSError, match=r"^this request asks a proxy only by http://: set HTTPS_PROXY to http://HOST"):
        egress_of(None, REAL).opener(REAL)


def test_the_entry_names_the_proxy_without_its_password(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("HTTPS_PROXY", "http://us:pass%40word@proxy.test:3128")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    egress = egress_of(None, REAL)
    assert egress.remarks == {"proxy": PROXY, "certificates": "SSL_CERT_FILE"}
    assert "pass@word" not in redact.clean("denied: pass@word")
    assert egress_of(None, "http://127.0.0.1:9").remarks == {}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("socks5://us:secret-4711@proxy.test:1080", "drivers know no proxies but those of HTTP"),
        ("http://", "no address of a proxy"),
        ("http://[::1", "no address of a proxy"),
        ("http://proxy.test:port", "no address of a proxy"),
        ("http://proxy.test:99999", "no address of a proxy"),
        ("nonsense nonsense", "no address of a proxy"),
    ],
)
def test_unusable_proxy_is_refused_only_if_it_would_be_used(
    monkeypatch: pytest.MonkeyPatch, value: str, message: str
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", value)
    with pytest.raises(UsageError, match=rf"^HTTPS_PROXY=\w+://...: {message}: set it to http://HOST:PORT") as caught:
        egress_of(None, REAL)
    assert "4711" not in str(caught.value)
    assert egress_of(None, "https://127.0.0.1").remarks == {}
    monkeypatch.setenv("NO_PROXY", "storage.test")
    assert egress_of(None, REAL).proxy_for(REAL) == ""


def test_first_certificate_variable_counts_and_a_bad_one_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in CERTIFICATES:
        trustme.CA().cert_pem.write_to_path(str(tmp_path / name))
        monkeypatch.setenv(name, str(tmp_path / name))
    for name in CERTIFICATES:
        assert egress_of(None, REAL).trusted == str(tmp_path / name)
        monkeypatch.setenv(name, str(tmp_path / "nowhere.pem"))
        with pytest.raises(UsageError, match=rf"{name}=.*nowhere.pem: cannot be read \(No such file or directory\)"):
            egress_of(None, REAL)
        monkeypatch.setenv(name, "")
    assert egress_of(None, REAL).trusted == ""
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    assert egress_of(None, REAL).trusted == str(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "nowhere.pem"))
    assert egress_of(None, "http://storage.test").trusted == ""
