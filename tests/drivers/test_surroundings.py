"""The environment and the home folder change no request. All rows of the table are set, together and one by one."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import trustme

from pytest_cloudbench import emulators
from pytest_cloudbench.drivers import driver_class, schemes
from pytest_cloudbench.drivers.surroundings import RULE, TABLE, Surrounding, closed, environment, rows_of
from pytest_cloudbench.model import Endpoint, SpecError
from pytest_cloudbench.services.child import ChildService
from pytest_cloudbench.services.command import load_recipe
from tests.drivers.real import served
from tests.drivers.recorder import Recorded, Recorder, Sender, recording
from tests.drivers.tls_front import folder_of_authorities, tls_in_front_of

_NETRC = "default login cloudbench-hostile password cloudbench-hostile\n"
_AWS = (
    "[default]\naws_access_key_id = HOSTILE\naws_secret_access_key = hostile\naws_session_token = hostile\n"
    "region = eu-west-9\nendpoint_url = http://127.0.0.1:9\nrequest_checksum_calculation = when_supported\n"
    "sdk_ua_app_id = hostile\n[profile cloudbench-hostile]\nregion = eu-west-9\n"
)
_FILES = {
    ".netrc": _NETRC, "_netrc": _NETRC, ".aws/config": _AWS, ".aws/credentials": _AWS,
    ".boto": "[Credentials]\naws_access_key_id = HOSTILE\naws_secret_access_key = hostile\n",
    ".aws/models/s3/2006-03-01/service-2.json": "{}", ".ssh/config": "Host *\n  ProxyCommand false\n  User hostile\n",
    ".ssh/id_rsa": "hostile", ".ssh/id_ecdsa": "hostile", ".ssh/id_ed25519": "hostile",
    ".config/gcloud/application_default_credentials.json": "{}", ".config/rclone/rclone.conf": "[mine]\ntype = local\n",
}  # fmt: skip
"""The hostile files in a home folder, where libraries look for files of their own."""

_EMULATED = ("box", "dropbox", "dropbox+fast", "gdrive", "mega", "onedrive")
_SERVED = {
    "azure": "azure", "gcs": "gcs", "opendal": "s3", "rclone": "s3", "s3": "s3", "s3+fast": "s3", "swift": "swift",
    "tahoe": "tahoe", "webdav": "webdav",
}  # fmt: skip


@dataclass
class Account:
    """A driver's account as a user has it, and the recorder of its requests."""

    spec: str
    credentials: Mapping[str, str]
    recorder: Recorder
    environment: Mapping[str, str]
    """The variables that the user has set for good reason."""

    def moved_to(self, url: str) -> Account:
        """Return the account at another address."""
        here = self.recorder.url
        if config := self.environment.get("RCLONE_CONFIG"):
            Path(config).write_text(Path(config).read_text().replace(here, url))
        credentials = {name: value.replace(here, url) for name, value in self.credentials.items()}
        return replace(self, spec=self.spec.replace(here, url), credentials=credentials)


def hostile_home(folder: Path) -> Path:
    for name, text in _FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o600)
    return folder


@contextmanager
def behind_a_proxy(scheme: str, folder: Path) -> Iterator[Account]:
    """Yield a provider by its real host names, which the user's proxy leads to an emulator."""
    api = scheme.partition("+")[0]
    with emulators.start_emulator("ideal", api=api) as emulator, recording(emulator.endpoint.url, folder) as recorder:
        trusted = recorder.trust(emulator.endpoint.ca_file)
        environment = {"HTTPS_PROXY": recorder.url, "REQUESTS_CA_BUNDLE": trusted}
        yield Account(scheme, emulator.endpoint.credentials, recorder, environment)


@contextmanager
def at_its_address(scheme: str, folder: Path) -> Iterator[Account]:
    """Yield a real server that the user's spec names by its address."""
    with served(_SERVED[scheme]) as service, recording(_site(service.endpoint), folder) as recorder:
        endpoint = service.endpoint
        here = endpoint.url.replace(_site(endpoint), recorder.url)
        target = load_recipe(_SERVED[scheme]).target
        credentials, environment = dict(endpoint.credentials), dict[str, str]()
        spec = f"{scheme}://{target}?endpoint={here}"
        if scheme == "opendal":
            spec = f"opendal:s3?bucket={target}&endpoint={here}&region=us-east-1"
        elif scheme == "s3+fast":
            spec += "&ranges=0"
        elif scheme == "swift":
            spec, credentials["auth_url"] = f"swift://{target}", here
        elif scheme in {"tahoe", "webdav"}:
            spec = f"{scheme}:{here}"
        elif scheme == "rclone":
            keys = "".join(f"{name} = {value}\n" for name, value in credentials.items())
            (folder / "mine.conf").write_text(f"[mine]\ntype = s3\nprovider = Other\nendpoint = {here}\n{keys}")
            spec, environment = f"rclone:mine:{target}", {"RCLONE_CONFIG": str(folder / "mine.conf")}
        yield Account(spec, credentials, recorder, environment)


def _site(endpoint: Endpoint) -> str:
    return "/".join(endpoint.url.split("/")[:3])


@contextmanager
def account_of(scheme: str, folder: Path) -> Iterator[Account]:
    with (behind_a_proxy if scheme in _EMULATED else at_its_address)(scheme, folder) as account:
        yield account


def variables_of(row: Surrounding, home: Path, account: Account) -> dict[str, str]:
    """Return the variables that a test sets for a row, or none for a row that may have an effect."""
    if not row.hostile or not row.is_variable or row.name in account.environment:
        return {}
    if row.passed == RULE and not account.recorder.url.startswith("http://127"):
        return {}
    if row.passed == RULE and account.environment.get("HTTPS_PROXY"):
        return {}
    name = row.name.replace("*", "CLOUDBENCH")
    return {name: str(home / ".netrc") if row.hostile == "~/.netrc" else row.hostile}


def requests_of(sender: Sender, account: Account, environment: Mapping[str, str]) -> list[Recorded]:
    answer = sender.send(account.spec, account.credentials, {**account.environment, **environment})
    assert answer.get("whole") is True, answer
    return account.recorder.take_requests()


def assert_same(expected: list[Recorded], actual: list[Recorded], changes: object) -> None:
    assert [(request.method, request.target) for request in actual] == [
        (request.method, request.target) for request in expected
    ], changes
    assert actual == expected, changes


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("scheme", [*_EMULATED, *_SERVED])
def test_all_surroundings_at_once_change_no_request(scheme: str, tmp_path: Path) -> None:
    home = hostile_home(tmp_path / "home")
    with account_of(scheme, tmp_path) as account, ExitStack() as stack:
        stack.callback((sender := Sender(tmp_path)).close)
        requests_of(sender, account, {})  # the first one sends more, such as for a folder that is made once
        expected = requests_of(sender, account, {})
        hostile = {name: value for row in TABLE[scheme] for name, value in variables_of(row, home, account).items()}
        assert expected
        assert_same(expected, requests_of(sender, account, {**hostile, "HOME": str(home)}), hostile)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [*_EMULATED, *_SERVED])
def test_no_single_surrounding_changes_a_request(scheme: str, tmp_path: Path) -> None:
    home = hostile_home(tmp_path / "home")
    with account_of(scheme, tmp_path) as account, ExitStack() as stack:
        stack.callback((sender := Sender(tmp_path)).close)
        requests_of(sender, account, {})
        expected = requests_of(sender, account, {})
        assert_same(expected, requests_of(sender, account, {"HOME": str(home)}), "the home")
        for row in TABLE[scheme]:
            if environment := variables_of(row, home, account):
                assert_same(expected, requests_of(sender, account, environment), environment)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("scheme", _EMULATED)
def test_a_proxy_that_is_asked_by_https_is_used_or_refused_in_one_line(scheme: str, tmp_path: Path) -> None:
    with behind_a_proxy(scheme, tmp_path) as account, ExitStack() as stack:
        stack.callback((sender := Sender(tmp_path)).close)
        requests_of(sender, account, {})
        expected = requests_of(sender, account, {})
        context = account.recorder.context_for("127.0.0.1")
        environment = {"HTTPS_PROXY": stack.enter_context(tls_in_front_of(account.recorder.url, context))}
        if scheme != "gdrive":
            assert_same(expected, requests_of(sender, account, environment), environment)
            return
        answer = sender.send(account.spec, account.credentials, {**account.environment, **environment})
        assert answer == {
            "error": "UsageError",
            "told": "gdrive: its library for HTTP asks a proxy only by http://: set HTTPS_PROXY to http://HOST:PORT",
        }


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("scheme", [*_EMULATED, *_SERVED])
def test_authorities_of_a_folder_are_trusted(scheme: str, tmp_path: Path) -> None:
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    with account_of(scheme, tmp_path) as plain, ExitStack() as stack:
        stack.callback((sender := Sender(tmp_path)).close)
        recorder, account = plain.recorder, plain
        environment = dict(plain.environment)
        if scheme in _SERVED:
            environment["REQUESTS_CA_BUNDLE"] = recorder.trust()
            front = tls_in_front_of(recorder.url, recorder.context_for("127.0.0.1"))
            account = plain.moved_to(stack.enter_context(front))
        environment["SSL_CERT_DIR"] = folder_of_authorities(environment.pop("REQUESTS_CA_BUNDLE"), tmp_path / "ca")
        answer = sender.send(account.spec, account.credentials, environment)
        assert answer.get("whole") is True, answer
        assert recorder.take_requests()
        environment["SSL_CERT_DIR"] = folder_of_authorities(str(tmp_path / "other.pem"), tmp_path / "other")
        assert sender.send(account.spec, account.credentials, environment).get("error") == "CloudError"


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("scheme", [*_EMULATED, *_SERVED])
def test_nothing_at_all_reaches_a_service_of_the_run(scheme: str, tmp_path: Path) -> None:
    """Neither proxies nor certificates have any effect, be they good or bad."""
    home = hostile_home(tmp_path / "home")
    hostile = {
        row.name: row.hostile for row in TABLE[scheme] if row.is_variable and row.hostile and "*" not in row.name
    }
    with ExitStack() as stack:
        if scheme in _EMULATED:
            service: ChildService = stack.enter_context(emulators.start_emulator("ideal", api=scheme.partition("+")[0]))
            target = ""
        else:
            service = stack.enter_context(served(_SERVED[scheme]))
            target = load_recipe(_SERVED[scheme]).target
        proxy = stack.enter_context(recording(service.endpoint.url, tmp_path))
        stack.callback((sender := Sender(tmp_path)).close)
        proxies = {name: proxy.url for name in hostile if name.lower().endswith("_proxy") and "no_" not in name.lower()}
        spec = f"{scheme}:{target}" + ("?ranges=0" if scheme == "s3+fast" else "")
        answer = sender.send(spec, {}, {**hostile, **proxies, "HOME": str(home)}, service.endpoint)
        assert answer.get("whole") is True, answer
        assert proxy.take_requests() == []


_REAL = {
    "azure": ("azure://bench", {"account": "cloudbench", "account_key": "a2V5"}),
    "box": ("box", {"access_token": "t"}),
    "dropbox": ("dropbox", {"access_token": "t"}),
    "dropbox+fast": ("dropbox+fast", {"access_token": "t"}),
    "gcs": ("gcs://bench", {"access_token": "t"}),
    "gdrive": ("gdrive", {"access_token": "t"}),
    "mega": ("mega", {"email": "a@example.org", "password": "p"}),
    "onedrive": ("onedrive", {"access_token": "t"}),
    "s3": ("s3://bench", {"access_key_id": "AKIA", "secret_access_key": "s"}),
    "s3+fast": ("s3+fast://bench", {"access_key_id": "AKIA", "secret_access_key": "s"}),
    "swift": ("swift://bench", {"auth_url": "https://swift.test/v3", "user": "u", "key": "k"}),
    "tahoe": ("tahoe:https://tahoe.test", {"cap": "URI:DIR2:aaaa:bbbb"}),
    "webdav": ("webdav://dav.test/files", {"token": "t"}),
}
"""Providers by their real names, to which no request is sent here."""


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("scheme", _REAL)
def test_unusable_proxy_or_certificate_is_refused_in_one_line(scheme: str, tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("")
    expected = {
        "HTTPLIB2_CA_CERTS=/nowhere.pem: cannot be read (No such file or directory)": {
            "HTTPLIB2_CA_CERTS": "/nowhere.pem"
        },
        "empty.pem: holds no certificates": {"SSL_CERT_FILE": str(tmp_path / "empty.pem")},
        "ALL_PROXY=socks5://...: drivers know no proxies but those of HTTP": {"ALL_PROXY": "socks5://127.0.0.1:9"},
        "https_proxy=http://...: no address of a proxy": {"https_proxy": "http://"},
    }
    sender = Sender(tmp_path)
    try:
        for message, environment in expected.items():
            answer = sender.send(*_REAL[scheme], environment)
            assert answer["error"] in {"UsageError", "SpecError"}, answer
            assert message in answer["told"]
            assert "\n" not in answer["told"]
    finally:
        sender.close()


class _Stranger:
    """A driver of another distribution, with the variables that it sees while it connects."""

    def __init__(self) -> None:
        self.variables = {name for name in ("STRANGE_PLACE", "STRANGE_CONFIG") if name in os.environ}


class _Declared(_Stranger):
    surroundings = (Surrounding("STRANGE_PLACE", closed="not seen"), Surrounding("STRANGE_*", passed="its own files"))


def test_third_party_driver_sees_variables_its_rows_pass_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRANGE_PLACE", "hostile")
    monkeypatch.setenv("STRANGE_CONFIG", "file")
    with closed(rows_of("strange", _Stranger)):
        assert _Stranger().variables == {"STRANGE_PLACE", "STRANGE_CONFIG"}
    with closed(rows_of("strange", _Declared)):
        assert _Declared().variables == {"STRANGE_CONFIG"}
    wrong = type("Wrong", (), {"surroundings": ("STRANGE_PLACE",)})
    with pytest.raises(SpecError, match=r"Wrong.surroundings is not a tuple of Surrounding"):
        rows_of("strange", wrong)
    for words in ({}, {"closed": "so", "passed": "so"}):
        with pytest.raises(ValueError, match="either closed, or passed through"):
            Surrounding("STRANGE_PLACE", **words)


def test_every_scheme_is_in_the_table_and_tried() -> None:
    declared = {scheme for scheme in schemes() if hasattr(driver_class(scheme), "surroundings")}
    assert set(TABLE) == set(schemes()) - declared
    tried = {*_EMULATED, *_SERVED}
    assert {scheme for scheme, rows in TABLE.items() if any(row.hostile for row in rows)} == {*tried, "sftp"}


def test_an_agent_of_ssh_is_not_asked(tmp_path: Path) -> None:
    home, sock = hostile_home(tmp_path / "home"), str(tmp_path / "agent")
    with served("sftp") as service, socket.socket(socket.AF_UNIX) as agent, ExitStack() as stack:
        agent.bind(sock)
        agent.listen()
        agent.setblocking(False)
        stack.callback((sender := Sender(tmp_path)).close)
        parts = service.endpoint.url.removeprefix("sftp://")
        answer = sender.send(
            f"sftp://{parts}", service.endpoint.credentials, {"SSH_AUTH_SOCK": sock, "HOME": str(home)}
        )
        assert answer.get("whole") is True, answer
        with pytest.raises(BlockingIOError):
            agent.accept()


def test_the_environment_is_as_before_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    before = dict(os.environ)
    with closed(TABLE["s3"]):
        assert "AWS_ENDPOINT_URL_S3" not in os.environ
        assert environment() == before
    assert dict(os.environ) == before
