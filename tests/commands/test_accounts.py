"""``cloudbench login``, ``status`` and ``logout`` against emulators, with real requests on loopback."""

from __future__ import annotations

import io
import shutil
import socket
import ssl
import stat
import struct
import subprocess
import sys
import threading
import time
import tomllib
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError
from urllib.parse import parse_qsl, urlencode, urlsplit

import keyring
import keyring.backends.fail
import pytest

from pytest_cloudbench import drivers, providers
from pytest_cloudbench.commands.cli import main
from pytest_cloudbench.drivers.base import OAuthLogin
from pytest_cloudbench.emulators import EmulatorService, start_emulator
from pytest_cloudbench.lab.clients.processes import free_port
from pytest_cloudbench.model import CloudError, CredentialsError, Endpoint, ErrorKind, ProviderSpec
from pytest_cloudbench.providers import credentials, elsewhere, renewal
from pytest_cloudbench.providers.for_agents import Provided
from pytest_cloudbench.providers.login import (
    Application,
    login_by_browser,
    login_by_device_code,
    login_by_pasted_code,
    redirect_to_service,
    request_tokens,
)
from pytest_cloudbench.workload.payload.contents import Literal
from tests.limits import HANG_S


@pytest.fixture(scope="module")
def emulator() -> Iterator[EmulatorService]:
    with start_emulator("ideal") as running:
        yield running


@pytest.fixture
def app(emulator: EmulatorService) -> Application:
    oauth: Any = drivers.driver_class("dropbox")
    return Application(redirect_to_service(oauth.oauth, emulator.endpoint), "an-app", ca_file=emulator.endpoint.ca_file)


@pytest.fixture(autouse=True)
def file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The path of a separate credentials file, without any keyring."""
    for field in ("access_token", "refresh_token", "app_key", "app_secret"):
        monkeypatch.delenv(credentials.environment_name("dropbox", field), raising=False)
    path = tmp_path / "config" / "credentials.toml"
    monkeypatch.setattr(credentials, "credentials_path", lambda: path)
    before = keyring.get_keyring()
    none: Any = keyring.backends.fail.Keyring
    keyring.set_keyring(none())
    yield path
    keyring.set_keyring(before)


class ReturnRedirects(urllib.request.HTTPRedirectHandler):
    """A handler that returns a redirect instead of following it."""

    def redirect_request(self, *_: Any) -> None:
        return None


def visit(app: Application) -> Callable[[str], None]:
    """Return a browser, which opens a page and follows its redirect."""
    context = ssl.create_default_context(cafile=app.ca_file)

    def go(address: str) -> None:
        opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), ReturnRedirects())
        with pytest.raises(HTTPError) as redirect:
            opener.open(address, timeout=HANG_S)
        with redirect.value as answer:
            back = urlsplit(answer.headers["location"])
        query = dict(parse_qsl(back.query))
        with urllib.request.urlopen(f"http://{back.netloc}/?{urlencode(query)}", timeout=HANG_S) as page:
            assert b"logged in" in page.read()

    return lambda address: threading.Thread(target=go, args=(address,), daemon=True).start()


def works(tokens: Any, emulator: EmulatorService) -> bool:
    endpoint = emulator.endpoint
    token_endpoint = type(endpoint)(endpoint.urls, {"access_token": tokens["access_token"]}, endpoint.ca_file)
    driver = drivers.connect(ProviderSpec.parse(endpoint.api), token_endpoint)
    try:
        return list(driver.list("/")) == []
    finally:
        driver.close()


def test_a_browser_that_comes_back_brings_tokens(app: Application, emulator: EmulatorService) -> None:
    tokens = login_by_browser(app, lambda _line: None, visit(app))
    assert {"access_token", "refresh_token"} <= tokens.keys()
    assert works(tokens, emulator)


def test_unused_and_aborted_browser_connections_do_not_block_login(
    app: Application, emulator: EmulatorService, capsys: pytest.CaptureFixture[str]
) -> None:
    connections: list[socket.socket] = []

    def go(address: str) -> None:
        target = urlsplit(dict(parse_qsl(urlsplit(address).query))["redirect_uri"])
        for request in (b"", b"GET /", b"GET /favicon.ico HTTP/1.1\r\n\r\n"):
            connections.append(socket.create_connection((str(target.hostname), target.port or 0)))
            connections[-1].sendall(request)
        # The last connection is reset, as by a browser that no longer wants the answer.
        connections[-1].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connections.pop().close()
        visit(app)(address)

    try:
        assert works(login_by_browser(app, lambda _line: None, go), emulator)
    finally:
        for connection in connections:
            connection.close()
    assert capsys.readouterr().err == ""


STRANGERS = {
    "no query": b"GET / HTTP/1.1\r\nHost: HERE\r\n\r\n",
    "an error": b"GET /?error=access_denied&error_description=call+1-800-EVIL HTTP/1.1\r\nHost: HERE\r\n\r\n",
    "another state": b"GET /?code=theirs&state=wrong HTTP/1.1\r\nHost: HERE\r\n\r\n",
    "an empty state": b"GET /?code=theirs&state= HTTP/1.1\r\nHost: HERE\r\n\r\n",
    "a state of other characters": b"GET /?code=theirs&state=%ff%F0 HTTP/1.1\r\nHost: HERE\r\n\r\n",
    "the right state, wrong last": b"GET /?code=theirs&state=STATE&state=wrong HTTP/1.1\r\nHost: HERE\r\n\r\n",
    "another host": b"GET /?code=theirs&state=STATE HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    "another host's error": b"GET /?error=theirs&state=STATE HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    "no host": b"GET /?code=theirs&state=STATE HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /?code=theirs&state=STATE HTTP/1.1\r\nHost: evil.example\r\nHost: HERE\r\n\r\n",
    "another method": b"POST /?code=theirs&state=STATE HTTP/1.1\r\nHost: HERE\r\nContent-Length: 0\r\n\r\n",
    "no address": b"GET http://[ HTTP/1.1\r\nHost: HERE\r\n\r\n",
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
    "a long line": b"GET /?" + b"x" * 70_000 + b" HTTP/1.1\r\nHost: HERE\r\n\r\n",
}


def test_foreign_requests_do_not_end_a_login(
    app: Application, emulator: EmulatorService, capsys: pytest.CaptureFixture[str]
) -> None:
    answers: dict[str, bytes] = {}

    def go(address: str) -> None:
        query = dict(parse_qsl(urlsplit(address).query))
        target = urlsplit(query["redirect_uri"])
        for name, request in STRANGERS.items():
            data = request.replace(b"HERE", target.netloc.encode()).replace(b"STATE", query["state"].encode())
            with socket.create_connection((str(target.hostname), target.port or 0), HANG_S) as connection:
                connection.sendall(data)
                answers[name] = b""
                with suppress(ConnectionResetError):  # the server does not read the long line to its end
                    answers[name] = connection.recv(65536)
        visit(app)(address)

    assert works(login_by_browser(app, lambda _line: None, go), emulator)
    assert answers.keys() == STRANGERS.keys()
    assert [name for name, answer in answers.items() if b"logged in" in answer or b"theirs" in answer] == []
    assert capsys.readouterr().err == ""


def test_error_of_the_provider_is_reported_in_one_line(app: Application) -> None:
    def come_back(address: str) -> None:
        query = dict(parse_qsl(urlsplit(address).query))
        back = {"error": "access_denied", "error_description": "\n no\r\nsuch\x85user ", "state": query["state"]}
        with pytest.raises(HTTPError) as refused:
            urllib.request.urlopen(f"{query['redirect_uri']}?{urlencode(back)}", timeout=HANG_S)
        refused.value.close()

    with pytest.raises(CredentialsError, match=r"^login: refused: no such user$"):
        login_by_browser(app, lambda _line: None, come_back)


def test_a_login_without_an_answer_times_out(app: Application, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_cloudbench.providers.login._AGREE_S", 0.05)
    connections: list[socket.socket] = []

    def go(address: str) -> None:
        target = urlsplit(dict(parse_qsl(urlsplit(address).query))["redirect_uri"])
        connections.append(socket.create_connection((str(target.hostname), target.port or 0)))

    with pytest.raises(CredentialsError, match="did not come back within 10 minutes"):
        login_by_browser(app, lambda _line: None, go)
    connections[0].close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda query: query.pop("code"), "has no code"),
        (lambda query: query.update(error="access_denied", error_description="The user said no"), "The user said no"),
        (lambda query: query.update(code="invalid-code"), "gave no tokens: code is .* or revoked"),
    ],
)
def test_a_wrong_answer_of_the_browser_is_refused(
    app: Application, change: Callable[[dict[str, str]], object], message: str
) -> None:
    def come_back(address: str) -> None:
        query = dict(parse_qsl(urlsplit(address).query))
        back = {"code": "some-code", "state": query["state"]}
        change(back)
        with suppress(HTTPError):  # the browser gets an error page, too
            urllib.request.urlopen(f"{query['redirect_uri']}?{urlencode(back)}", timeout=HANG_S).close()

    with pytest.raises(CredentialsError, match=message):
        login_by_browser(
            app, lambda _line: None, lambda address: threading.Thread(target=come_back, args=(address,)).start()
        )


def test_a_pasted_code_brings_tokens(app: Application, emulator: EmulatorService) -> None:
    shown: list[str] = []

    def paste(_question: str) -> str:
        address = shown[-1].removeprefix("visit: ")
        context = ssl.create_default_context(cafile=app.ca_file)
        with urllib.request.urlopen(address, timeout=HANG_S, context=context) as page:
            return str(page.read().decode())

    assert works(login_by_pasted_code(app, shown.append, paste), emulator)
    with pytest.raises(CredentialsError, match="no code was given"):
        login_by_pasted_code(app, shown.append, lambda _question: "")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_a_real_browser_brings_tokens(app: Application, emulator: EmulatorService, tmp_path: Path) -> None:
    quiet = "--disable-background-networking --disable-component-update --disable-sync --disable-quic --no-first-run"
    browsers: list[subprocess.Popen[bytes]] = []

    def visit_page(address: str) -> None:
        argv = [
            "chromium",
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--ignore-certificate-errors",
            *quiet.split(),
        ]
        browsers.append(subprocess.Popen([*argv, f"--user-data-dir={tmp_path}", "--dump-dom", address],
                                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL))  # fmt: skip

    try:
        tokens = login_by_browser(app, lambda _line: None, visit_page)
        page, _ = browsers[0].communicate(timeout=HANG_S)
    finally:
        for browser in browsers:
            browser.kill()
            browser.wait()
    assert b"You are logged in" in page
    assert works(tokens, emulator)


def test_a_login_is_rehearsed_on_an_emulator(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("a-code\n"))
    assert main(["login", "emulated:ideal", "--no-browser"]) == 0
    assert "the login works; nothing is stored" in capsys.readouterr().out
    assert not file.exists()


@pytest.fixture(scope="module")
def box() -> Iterator[EmulatorService]:
    with start_emulator("box-ideal") as running:
        yield running


@pytest.fixture
def box_app(box: EmulatorService, monkeypatch: pytest.MonkeyPatch) -> Application:
    """The application for Box, with a redirect to a port that no other test uses."""
    for field in ("access_token", "client_id", "client_secret", "enterprise_id", "user_id"):
        monkeypatch.delenv(credentials.environment_name("box", field), raising=False)
    driver: Any = drivers.driver_class("box")
    monkeypatch.setattr(driver, "oauth", replace(driver.oauth, port=free_port("127.0.0.1")))
    return Application(redirect_to_service(driver.oauth, box.endpoint), "an-app", "its-secret", box.endpoint.ca_file)


def test_box_returns_to_the_registered_address(box_app: Application, box: EmulatorService) -> None:
    shown: list[str] = []
    assert works(login_by_browser(box_app, shown.append, visit(box_app)), box)
    assert f"redirect_uri=http%3A%2F%2F127.0.0.1%3A{box_app.oauth.port}%2F" in shown[0]
    message = rf"come back to port {box_app.oauth.port}, which is taken"
    with socket.create_server(("127.0.0.1", box_app.oauth.port)), pytest.raises(CredentialsError, match=message):
        login_by_browser(box_app, shown.append, visit(box_app))


def test_an_address_of_box_can_be_pasted(box_app: Application, box: EmulatorService) -> None:
    shown: list[str] = []
    pasted: list[str] = []

    def paste(question: str) -> str:
        """Return the address that a browser shows if no server is there."""
        assert question == "address: "
        context = ssl.create_default_context(cafile=box_app.ca_file)
        opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), ReturnRedirects())
        with pytest.raises(HTTPError) as redirect:
            opener.open(shown[0].removeprefix("visit: "), timeout=HANG_S)
        with redirect.value as answer:
            pasted.append(str(answer.headers["location"]))
        return pasted[0]

    assert works(login_by_pasted_code(box_app, shown.append, paste), box)
    assert pasted[0].startswith(f"http://127.0.0.1:{box_app.oauth.port}/?")
    for address, reason in (
        (pasted[0], "belongs to another login"),
        (pasted[0].partition("&state")[0], "copy all of it"),
        ("http://[", "copy all of it"),
        ("\udcff?state=\udcff", "belongs to another login"),
    ):
        with pytest.raises(CredentialsError, match=reason):
            login_by_pasted_code(box_app, shown.append, {"address: ": address}.__getitem__)


@pytest.fixture
def renewals(box_app: Application, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The refresh tokens that are sent to the emulator, in order."""
    tokens: list[str] = []

    def renew_at_emulator(app: Application, refresh_token: str) -> Any:
        tokens.append(refresh_token)
        return request_tokens(replace(app, oauth=box_app.oauth, ca_file=box_app.ca_file), refresh_token)

    monkeypatch.setattr("pytest_cloudbench.providers.login.request_tokens", renew_at_emulator)
    return tokens


@pytest.mark.parametrize("spec", ["box", "emulated:box?profile=ideal"])
def test_login_to_box_stores_only_the_secrets_for_renewal(
    spec: str, box_app: Application, box: EmulatorService, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], file: Path, renewals: list[str],
) -> None:  # fmt: skip
    def login_at_emulator(app: Application, show: Callable[[str], object]) -> Any:
        emulator_app = app if app.ca_file else replace(app, oauth=box_app.oauth, ca_file=box_app.ca_file)
        return login_by_browser(emulator_app, show, visit(emulator_app))

    monkeypatch.setattr("pytest_cloudbench.providers.login.login_by_browser", login_at_emulator)
    monkeypatch.setattr(sys, "stdin", io.StringIO("an-app\nits-secret\n"))
    assert main(["login", spec]) == 0
    output = capsys.readouterr().out
    if spec == "box":
        assert f"and to return to http://127.0.0.1:{box_app.oauth.port}/" in output
        assert "expire soon" not in output
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert tomllib.loads(file.read_text())["box"].keys() == {"refresh_token", "client_id", "client_secret"}
        tokens = renewal.load_usable(credentials.ProviderAccount.named("box"))
        assert tokens.keys() == {"access_token"}
        assert works(tokens, box)
        assert len(renewals) == 1
    else:
        assert "the login works; nothing is stored" in output
        assert not file.exists()
    assert "its-secret" not in output


BOX = {"refresh_token": "the-first", "client_id": "an-app", "client_secret": "its-secret"}
BOX_TOKEN_S = 3600.0


def test_each_refresh_token_of_box_is_used_once(
    renewals: list[str], box: EmulatorService, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight simultaneous callers share one access token. When it has aged, the next refresh token renews it."""
    credentials.store(credentials.ProviderAccount.named("box"), BOX)
    with ThreadPoolExecutor(8) as pool:
        first, *others = pool.map(lambda _: renewal.load_usable(credentials.ProviderAccount.named("box")), range(8))
    assert others == [first] * 7
    assert renewals == ["the-first"]
    stored = tomllib.loads(file.read_text())["box"]
    assert stored["refresh_token"] != "the-first"
    assert float(stored["renewed_until_s"]) - time.time() > 3000
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    credentials.store(
        credentials.ProviderAccount.named("box"), {**stored, "renewed_until_s": f"{time.time() + 60:.0f}"}
    )
    second = renewal.load_usable(credentials.ProviderAccount.named("box"))
    assert second != first
    assert works(second, box)
    assert renewals == ["the-first", stored["refresh_token"]]
    monkeypatch.setenv("CLOUDBENCH_BOX_ACCESS_TOKEN", "of-the-environment")
    assert renewal.load_usable(credentials.ProviderAccount.named("box")) == {"access_token": "of-the-environment"}


def test_ended_login_to_box_is_reported_with_the_providers_reason(renewals: list[str]) -> None:
    credentials.store(credentials.ProviderAccount.named("box-2"), {**BOX, "refresh_token": "invalid"})
    with pytest.raises(CredentialsError, match=r"^box-2: the provider renewed no token: Invalid refresh token; "):
        renewal.load_usable(credentials.ProviderAccount.named("box-2"))
    assert renewals == ["invalid"]


@pytest.fixture
def connect_box(box: EmulatorService, renewals: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A function that connects an agent's driver by the stored login. The emulator is in the place of Box."""
    driver_class: Any = drivers.driver_class("box")
    connect = driver_class.connect

    def connect_to_emulator(spec: ProviderSpec, _endpoint: object, given: Mapping[str, str]) -> Any:
        return connect(spec, Endpoint(box.endpoint.urls, dict(given), box.endpoint.ca_file), {})

    monkeypatch.setattr(driver_class, "connect", connect_to_emulator)
    credentials.store(credentials.ProviderAccount.named("box"), BOX)
    before = box.control(get="profile")["profile"]
    box.control(reset=True)
    box.control(set={"account.token_lifetime_s": BOX_TOKEN_S})
    with ExitStack() as stack:

        def connect_agent(provided: Provided) -> Any:
            driver: Any = providers.connect(provided)
            stack.callback(driver.close)
            return driver

        yield connect_agent
    box.control(set=before)


def end_tokens(box: EmulatorService, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let time pass for this process and the service, so that access tokens end."""
    box.control(reset=True)  # it knows no token any more
    real_time, real_monotonic = time.time, time.monotonic
    clock = SimpleNamespace(time=lambda: real_time() + BOX_TOKEN_S, monotonic=lambda: real_monotonic() + BOX_TOKEN_S)
    for module in ("drivers.web", "providers.renewal"):
        monkeypatch.setattr(f"pytest_cloudbench.{module}.time", clock)


def test_drivers_of_box_share_a_token_that_is_renewed_during_a_run(
    connect_box: Any, box: EmulatorService, renewals: list[str], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents = [connect_box(Provided("box")) for _ in range(3)]
    for number, driver in enumerate(agents):
        driver.put(f"/{number}", Literal(b"before"))
    assert renewals == ["the-first"]
    second = tomllib.loads(file.read_text())["box"]["refresh_token"]
    end_tokens(box, monkeypatch)
    barrier = threading.Barrier(6)

    def put(number: int) -> None:
        barrier.wait(HANG_S)
        agents[number % 3].put(f"/later-{number}", Literal(b"after"))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(put, range(6)))
    assert renewals == ["the-first", second]
    assert len(list(agents[0].list("/"))) == 6


def test_login_to_box_that_ends_during_a_run_is_an_auth_error(
    connect_box: Any, box: EmulatorService, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, account = connect_box(Provided("box")), credentials.ProviderAccount.named("box")
    driver.put("/a", Literal(b"before"))
    end_tokens(box, monkeypatch)
    credentials.store(account, {**BOX, "refresh_token": "invalid"})
    with pytest.raises(CloudError, match=r"the provider renewed no token: .* run 'cloudbench login box'") as caught:
        driver.put("/a", Literal(b"after"))
    assert (caught.value.kind, caught.value.operation, caught.value.path) == (ErrorKind.AUTH, "put", "/a")
    credentials.forget(account)
    with pytest.raises(CloudError, match="no credentials found") as caught:
        driver.put("/a", Literal(b"after"))
    assert caught.value.kind is ErrorKind.AUTH


def test_agent_on_another_host_says_that_its_token_has_ended(
    connect_box: Any, box: EmulatorService, renewals: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = elsewhere.prepare(Provided("box"), None)
    assert prepared.sent is not None
    assert prepared.sent.credentials.keys() == {"access_token"}
    driver = connect_box(Provided.from_plain(prepared.plain()))
    driver.put("/a", Literal(b"before"))
    end_tokens(box, monkeypatch)
    with pytest.raises(CloudError, match="this host's access token ends") as caught:
        driver.put("/a", Literal(b"after"))
    assert caught.value.kind is ErrorKind.AUTH
    assert renewals == ["the-first"]


def test_single_use_refresh_token_is_not_read_from_the_environment(
    box_app: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in BOX.items():
        monkeypatch.setenv(credentials.environment_name("box", name), value)
    with pytest.raises(CredentialsError, match=r"has client_id, client_secret only.*or set (?!.*REFRESH_TOKEN)"):
        renewal.load_usable(credentials.ProviderAccount.named("box"))


def test_a_device_code_is_confirmed_on_another_device(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command shows a code and polls until a user has entered it at the service. Then its tokens work."""
    endpoints: list[Endpoint] = []
    tokens: list[dict[str, str]] = []
    shown: list[str] = []

    def redirect_and_record(oauth: OAuthLogin, endpoint: Endpoint) -> OAuthLogin:
        endpoints.append(endpoint)
        return redirect_to_service(oauth, endpoint)

    def wait(_is_over: object, timeout_s: float, **_: object) -> bool:
        """Return at once. In the second pause, a user agrees on another device."""
        shown.append(capsys.readouterr().out)
        if len(shown) == 2:
            code = shown[0].split(" and type ")[1].split()[0]
            context = ssl.create_default_context(cafile=endpoints[0].ca_file)
            with urllib.request.urlopen(
                f"{endpoints[0].url}/devicelogin?otc={code}", timeout=HANG_S, context=context
            ) as page:
                assert page.status == 200
        assert timeout_s == 5, "the service asks for this pause"
        return False

    def connect(provided: Provided) -> Any:
        assert provided.endpoint is not None
        tokens.append(dict(provided.endpoint.credentials))
        driver = real_connect(provided)
        assert list(driver.list("/")) == []
        return driver

    real_connect = providers.connect
    monkeypatch.setattr("pytest_cloudbench.providers.login.redirect_to_service", redirect_and_record)
    monkeypatch.setattr("pytest_cloudbench.providers.login.wait_for", wait)
    monkeypatch.setattr(providers, "connect", connect)
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert main(["login", "emulated:onedrive?profile=ideal", "--device"]) == 0
    assert "the login works; nothing is stored" in capsys.readouterr().out
    assert len(shown) == 2
    assert "visit https://microsoft.com/devicelogin and type " in shown[0]
    assert "refresh_token" in tokens[-1]


def test_a_device_code_that_nobody_confirms_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_cloudbench.providers.login._AGREE_S", 0.0)
    with start_emulator("onedrive-ideal") as running:
        oauth: Any = drivers.driver_class("onedrive")
        app = Application(
            redirect_to_service(oauth.oauth, running.endpoint), "an-app", ca_file=running.endpoint.ca_file
        )
        with pytest.raises(CredentialsError, match="nobody agreed in time"):
            login_by_device_code(app, lambda _line: None)
        with pytest.raises(CredentialsError, match="no device code"):
            login_by_device_code(replace(app, client_id=""), lambda _line: None)


def test_keys_are_stored_for_this_user_only_and_forgotten_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    file.parent.mkdir()
    file.write_text('[other]\npassword = "of \\"another\\" \\\\ provider"\n')
    file.chmod(0o600)
    monkeypatch.setattr(sys, "stdin", io.StringIO("1\nvery-secret\n"))
    assert main(["login", "dropbox", "--keys"]) == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert tomllib.loads(file.read_text()) == {
        "other": {"password": 'of "another" \\ provider'}, "dropbox": {"access_token": "very-secret"},
    }  # fmt: skip
    assert credentials.load(credentials.ProviderAccount.named("dropbox"))["access_token"] == "very-secret"
    assert main(["status"]) == 0
    assert main(["logout", "dropbox"]) == 0
    output = capsys.readouterr().out
    assert f"dropbox: access_token ({file})" in output
    assert f"dropbox: removed from {file}" in output
    assert "very-secret" not in output
    assert tomllib.loads(file.read_text()) == {"other": {"password": 'of "another" \\ provider'}}
    assert main(["logout", "dropbox"]) == 0
    assert "nothing was stored" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "owner", "typed", "values"),
    [("dropbox+fast", "dropbox", "1\nvery-secret\n", {"access_token": "very-secret"}),
     ("s3+fast-2", "s3-2", "the-id\nvery-secret\n\n", {"access_key_id": "the-id", "secret_access_key": "very-secret"})],
)  # fmt: skip
def test_a_second_driver_for_the_same_accounts_has_no_credentials_of_its_own(
    name: str, owner: str, typed: str, values: dict[str, str], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], file: Path,
) -> None:  # fmt: skip
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    assert main(["login", name, "--keys"]) == 0
    assert tomllib.loads(file.read_text()) == {owner: values}
    assert credentials.load(credentials.ProviderAccount.named(name)) == values
    assert main(["status"]) == 0
    assert main(["logout", name]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[0] for line in lines if str(file) in line and "stored" not in line] == [f"{owner}:"] * 2
    assert tomllib.loads(file.read_text()) == {}


def test_login_reuses_the_application_of_the_previous_login(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pytest_cloudbench.providers.login.login_by_browser", lambda app, show: {
        "access_token": "some-access", "refresh_token": f"of-{app.client_id}-{app.client_secret}",
    })  # fmt: skip
    for typed, arguments, refresh in (
        ("first-app\nits-secret\n", [], "of-first-app-its-secret"),
        ("", [], "of-first-app-its-secret"),
        ("\n", ["--client-id", "second-app"], "of-second-app-"),
        ("", [], "of-second-app-"),
    ):
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        assert main(["login", "dropbox", *arguments]) == 0
        assert credentials.load(credentials.ProviderAccount.named("dropbox"))["refresh_token"] == refresh
    output = capsys.readouterr().out
    assert "with the application second-app, from " in output
    assert "its-secret" not in output


def test_a_second_account_has_credentials_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("1\nsecond\n"))
    assert main(["login", "dropbox-2", "--keys"]) == 0
    assert credentials.load(credentials.ProviderAccount.named("dropbox-2"))["access_token"] == "second"
    with pytest.raises(CredentialsError, match="cloudbench login dropbox"):
        credentials.load(credentials.ProviderAccount.named("dropbox"))
    monkeypatch.setenv("CLOUDBENCH_DROPBOX_2_ACCESS_TOKEN", "other")
    assert main(["logout", "dropbox-2"]) == 0
    assert "dropbox-2: the environment still has access_token" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["login", "folder"], "needs no credentials"),
        (["login", "dropbax"], "did you mean dropbox"),
        (["login", "folder:/tmp"], "expected a provider's name"),
        (["login", "dropbox"], "no answer to"),
        (["login", "emulated:ideal", "--device"], "no device code"),
        (["login", "dropbox", "--device"], "no device code"),
        (["logout", "folder"], "needs no credentials"),
        (["doctor", "dropbox"], "run 'cloudbench login dropbox'"),
    ],
)
def test_an_impossible_account_command_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert main(arguments) == 4
    complaint = capsys.readouterr().err
    assert message in complaint
    assert complaint.count("\n") == 1
