"""``cloudbench doctor`` confirms a healthy provider, finds each fault, and leaves no file."""

from __future__ import annotations

import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from email.utils import formatdate, parsedate_to_datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit

import pytest

from pytest_cloudbench import drivers
from pytest_cloudbench.commands.cli import main
from pytest_cloudbench.commands.doctor import examine
from pytest_cloudbench.drivers.folder import FolderDriver
from pytest_cloudbench.emulators import EmulatorService, start_emulator
from pytest_cloudbench.model import (
    CloudError,
    Content,
    Entry,
    ErrorKind,
    NameRules,
    ProviderSpec,
)
from pytest_cloudbench.providers import Provider
from tests.limits import HANG_S


@pytest.fixture(scope="module")
def emulator() -> Iterator[EmulatorService]:
    with start_emulator("ideal") as running:
        yield running


def steps(provider: Provider) -> dict[str, tuple[bool | None, str]]:
    return {checkup.step: (checkup.is_good, checkup.message) for checkup in examine(provider, "me")}


def test_a_healthy_provider_is_well_and_nothing_is_left(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOUDBENCH_JOURNAL", str(tmp_path / "journal.jsonl"))
    (tmp_path / "objects").mkdir()
    for spec in ("emulated:dropbox", f"folder:{tmp_path / 'objects'}"):
        assert main(["doctor", spec]) == 0
        output = capsys.readouterr().out
        assert "FAIL" not in output
        connects = ["connect"] if spec.startswith("emulated:") else []
        assert [line.split()[1] for line in output.splitlines() if line.startswith("ok")] == [
            "driver", *connects, "write", "read", "list", "delete", "quota",
        ]  # fmt: skip
        clock = next(line for line in output.splitlines() if line.split()[0] == "clock")
        assert ("same as this machine (emulator)" in clock) is spec.startswith("emulated:")
    assert list((tmp_path / "objects").iterdir()) == []
    assert (tmp_path / "journal.jsonl").read_bytes() == b""


def test_lines_fit_the_terminal_and_are_whole_in_a_pipe(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOUDBENCH_JOURNAL", str(tmp_path / "journal.jsonl"))
    assert main(["doctor", f"folder:{tmp_path}"]) == 0
    output = capsys.readouterr().out
    assert max(map(len, output.splitlines())) > 80
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["doctor", f"folder:{tmp_path}"]) == 0
    fitted = capsys.readouterr().out
    assert max(map(len, fitted.splitlines())) <= 80
    assert [line for line in fitted.splitlines() if line.startswith(" " * 17)]


def test_a_usage_names_the_command_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["doctor"])
    assert ended.value.code == 4, "as for all other errors that the user can fix"
    assert capsys.readouterr().err.startswith("usage: cloudbench doctor [-h] PROVIDER\n")


def test_refused_characters_of_names_stay_on_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDBENCH_JOURNAL", str(tmp_path / "journal.jsonl"))
    driver: Any = FolderDriver.connect(ProviderSpec.parse(f"folder:{tmp_path}"), None, {})
    driver.capabilities = replace(driver.capabilities, names=NameRules(refused="\r\n"), via="via another program")
    message = steps(Provider(f"folder:{tmp_path}", driver))["limits"][1]
    assert "without any of '\\r\\n'" in message
    assert "via another program" in message
    assert "via via" not in message


class DamagingDriver(FolderDriver):
    """A driver that stores other content than it receives."""

    def put(self, path: str, content: Content) -> Entry:
        entry = super().put(path, content)
        local = self._local_path("put", path)
        local.write_bytes(local.read_bytes()[::-1])
        return entry


class EmptyListingDriver(FolderDriver):
    """A driver that lists files without their sizes and digests."""

    def list(self, folder: str) -> Iterator[Entry]:
        return (replace(entry, size_bytes=0, digest=None) for entry in super().list(folder))


class RefusingDriver(FolderDriver):
    """A driver whose credentials do not permit writing."""

    def put(self, path: str, content: Content) -> Entry:
        raise CloudError(ErrorKind.AUTH, "put", path, detail="scope missing")


class ForeignDriver(FolderDriver):
    """A driver with a bug of its own."""

    def get(self, path: str, offset: int = 0) -> Iterator[bytes]:
        raise ValueError("an answer\nwithout a length")

    def delete(self, path: str) -> None:
        super().delete(path)
        raise KeyError("deleted")


HTTP_DRIVERS = {
    "azure://b": {"account": "us", "account_key": "c2VjcmV0"},
    "box": {"access_token": "some-token"},
    "dropbox": {"access_token": "some-token"},
    "dropbox+fast": {"access_token": "some-token"},
    "gcs://b": {"access_token": "some-token"},
    "gdrive": {"access_token": "some-token"},
    "mega": {"email": "a@b.c", "password": "some-password"},
    "onedrive": {"access_token": "some-token"},
    "s3://b": {"access_key_id": "us", "secret_access_key": "some-secret"},
    "s3+fast://b": {"access_key_id": "us", "secret_access_key": "some-secret"},
    "swift://b": {"auth_url": "https://h.example/auth/v1.0", "user": "us", "key": "some-key"},
    "tahoe:http://127.0.0.1:3456": {"cap": "URI:DIR2:abc:def"},
    "webdav://h.example/files": {"user": "us", "password": "some-password"},
}


@pytest.mark.parametrize("spec", HTTP_DRIVERS)
def test_every_http_driver_has_a_clock_url(spec: str) -> None:
    parsed = ProviderSpec.parse(spec)
    if missing := drivers.missing_library(parsed.scheme):
        pytest.skip(missing)
    driver: Any = drivers.connect(parsed, None, HTTP_DRIVERS[spec])
    try:
        url = urlsplit(driver.clock_url)
        assert url.scheme in ("http", "https")
        assert url.hostname
        assert not url.query
        assert "def" not in url.path, "an address on the way to files may be a secret"
    finally:
        driver.close()


class DatedHandler(BaseHTTPRequestHandler):
    """A handler that refuses each request, with the date that is set on its class."""

    date = ""

    def do_HEAD(self) -> None:
        self.send_response_only(403)
        if self.date:
            self.send_header("date", self.date)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.mark.parametrize(
    ("ahead_s", "is_good", "message"),
    [
        (0, True, "s from the provider's, within "),
        (3600, False, "set this machine's clock (NTP), or tokens and signatures fail"),
        (None, None, "unknown: the service's answers have no date"),
    ],
)
def test_the_clock_is_compared_with_the_date_of_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead_s: int | None, is_good: bool | None, message: str
) -> None:
    monkeypatch.setenv("CLOUDBENCH_JOURNAL", str(tmp_path / "journal.jsonl"))
    date = "" if ahead_s is None else formatdate(time.time() + ahead_s, usegmt=True)
    with HTTPServer(("127.0.0.1", 0), type("Handler", (DatedHandler,), {"date": date})) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        (tmp_path / "objects").mkdir()
        driver: Any = FolderDriver.connect(ProviderSpec.parse(f"folder:{tmp_path / 'objects'}"), None, {})
        driver.clock_url = f"http://127.0.0.1:{server.server_port}/"
        result = steps(Provider(f"folder:{tmp_path / 'objects'}", driver))["clock"]
        server.shutdown()
        thread.join()
    assert (result[0], message in result[1]) == (is_good, True), result


def test_doctor_reports_refused_connection(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CLOUDBENCH_JOURNAL", str(tmp_path / "journal.jsonl"))
    monkeypatch.setenv("CLOUDBENCH_WEBDAV_USER", "me")
    monkeypatch.setenv("CLOUDBENCH_WEBDAV_PASSWORD", "secret")
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    assert main(["doctor", f"webdav:http://127.0.0.1:{port}/"]) == 1
    lines = {
        line.split()[1]: line for line in capsys.readouterr().out.splitlines() if line.split()[0] in ("ok", "FAIL")
    }
    assert lines["connect"].startswith("FAIL")
    assert f"127.0.0.1:{port} does not answer: Connection refused" in lines["connect"]


def test_emulators_date_their_answers(emulator: EmulatorService) -> None:
    trusted = ssl.create_default_context(cafile=emulator.endpoint.ca_file)
    before_s = int(time.time()) - 1
    with pytest.raises(HTTPError) as refused:
        urllib.request.urlopen(emulator.endpoint.url, timeout=HANG_S, context=trusted)
    with refused.value as answer:
        dates = answer.headers.get_all("date", [])
    assert len(dates) == 1
    assert before_s <= parsedate_to_datetime(dates[0]).timestamp() <= time.time()


def make_provider(kind: type[FolderDriver], folder: Path) -> Provider:
    folder.mkdir()
    driver = kind.connect(ProviderSpec.parse(f"folder:{folder}"), None, {})
    return Provider("folder:x", driver, profile="none")


def test_each_fault_fails_its_step_with_advice(tmp_path: Path) -> None:
    results = steps(make_provider(DamagingDriver, tmp_path / "damaged"))
    assert results["write"][0] is True
    assert results["read back"] == (False, "5120 bytes came back, and they differ")
    assert "list" not in results
    results = steps(make_provider(EmptyListingDriver, tmp_path / "empty"))
    assert results["list"] == (False, "listed with 0 of 5,120 bytes")
    results = steps(make_provider(RefusingDriver, tmp_path / "refused"))
    assert results["write"][0] is False
    assert "scope missing" in results["write"][1]
    assert "cloudbench status" in results["write"][1]


def test_a_foreign_error_fails_its_step_in_one_line(tmp_path: Path) -> None:
    results = steps(make_provider(ForeignDriver, tmp_path / "foreign"))
    for step, raised in (("read back", "ValueError: an answer without a length"), ("delete", "KeyError: 'deleted'")):
        is_good, message = results[step]
        assert is_good is False
        assert message.startswith(f"ForeignDriver raised {raised} (test_doctor.py, line ")
        assert message.endswith("a driver raises CloudError only: tell its author")
        assert "\n" not in message
    assert "limits" in results, "further steps are tried"


def test_a_full_account_and_a_lost_service_have_different_advice(emulator: EmulatorService) -> None:
    with start_emulator("ideal") as own:
        driver = drivers.connect(ProviderSpec.parse("dropbox"), own.endpoint)
        own.control(set={"quota.bytes": 1000})
        is_good, message = steps(Provider("emulated:ideal", driver, profile="ideal"))["write"]
        assert is_good is False
        assert "the account is full" in message
        own.stop()
        is_good, message = steps(Provider("emulated:ideal", driver, profile="ideal"))["write"]
        assert is_good is False
        assert "check the network" in message
        driver.close()
