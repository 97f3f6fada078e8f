"""Every driver whose requests Python sends. A cassette replays its calls when no service runs any more."""

from __future__ import annotations

import gzip
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import requests

from pytest_cloudbench import drivers, providers
from pytest_cloudbench.fleet.run import RunFacts
from pytest_cloudbench.load.cassette.cassette import Cassette, open_cassette
from pytest_cloudbench.model import CloudError, ProviderSpec, ResultsError, SpecError, UsageError
from pytest_cloudbench.providers import credentials
from pytest_cloudbench.services.command import load_recipe
from pytest_cloudbench.workload.payload.contents import Literal

ACCOUNTS = {
    "dropbox": "emulated:ideal",
    "dropbox+fast": "emulated:ideal?driver=dropbox%2Bfast",
    "gdrive": "emulated:gdrive-ideal",
    "onedrive": "emulated:onedrive-ideal",
    "box": "emulated:box-ideal",
    "s3": "local:s3",
    "gcs": "local:gcs",
    "webdav": "local:webdav",
    "azure": "local:azure",
    "swift": "local:swift",
    "tahoe": "local:tahoe",
}
"""The stand-in for the provider of each driver."""
SLOW = ("azure", "swift", "tahoe")
FOLDER = "/cloudbench-cassette"


def run_story(driver: Any) -> list[str]:
    """Run some calls. Return the result of each, or the message of its refusal."""
    results: list[str] = []

    def step(act: Callable[[], object]) -> None:
        try:
            results.append(str(act()))
        except CloudError as error:
            results.append(str(error))

    if driver.capabilities.folders:
        step(lambda: driver.mkdir(FOLDER))
    if hasattr(driver, "prepare"):
        step(lambda: driver.prepare(FOLDER))
    for name in ("a.txt", "b.txt"):
        step(partial(driver.put, f"{FOLDER}/{name}", Literal(name.encode() * 600)))
    step(lambda: b"".join(driver.get(f"{FOLDER}/a.txt")))
    step(lambda: driver.stat(f"{FOLDER}/b.txt"))
    step(lambda: sorted(map(str, driver.list(FOLDER))))
    step(lambda: driver.stat(f"{FOLDER}/none"))
    step(lambda: driver.delete(FOLDER))
    return results


def spec_of(scheme: str) -> ProviderSpec:
    kind, _, name = ACCOUNTS[scheme].partition(":")
    target = load_recipe(name).target if kind == "local" else ""
    return ProviderSpec.parse(f"{scheme}:{target}" if target else scheme)


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize(
    "scheme", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in ACCOUNTS]
)
def test_driver_calls_are_replayed_without_the_service(scheme: str, tmp_path: Path) -> None:
    tape = str(tmp_path / "tape.json")
    session_facts = {"run_id": "r", "seed": "s", "provider": scheme}
    try:
        with providers.provided(ACCOUNTS[scheme]) as provider:
            with closing(Cassette("record", tape, session_facts)) as cassette:
                steps = run_story(cassette.serialize_calls(provider.driver))
            endpoint = provider.endpoint
            assert endpoint is not None
    except (SpecError, ResultsError) as error:
        # A cassette that is closed by an error says that it has recorded nothing.
        missing = error.__context__ if isinstance(error, ResultsError) else error
        if not isinstance(missing, SpecError):
            raise
        pytest.skip(str(missing))
    refusals = [
        result for result in steps if "Entry(" not in result and result != "None" and not result.startswith("b'")
    ]
    assert len(refusals) == 1, steps
    assert "not_found" in refusals[0]
    driver_class: Any = drivers.driver_class(scheme)
    public = {name for fields in driver_class.credential_sets for name in fields.public}
    secrets = [value for name, value in endpoint.credentials.items() if name not in public and len(value) > 20]
    assert not [value for value in secrets if value in Path(tape).read_text()]
    with closing(Cassette("replay", tape, session_facts)) as cassette:
        made_up_credentials = credentials.load(credentials.ProviderAccount.named(scheme))
        assert made_up_credentials, "for those without an account"
        # A cap takes the place of the file that had one, which went with its grid.
        caps = {name: value for name, value in made_up_credentials.items() if name == "cap"}
        endpoint = replace(endpoint, ca_file="", credentials={**endpoint.credentials, **caps})
        with closing(drivers.connect(spec_of(scheme), endpoint, {})) as driver:
            assert run_story(cassette.serialize_calls(driver)) == steps


@pytest.mark.parametrize("scheme", ["mega", "opendal:s3", "rclone:x:y", "s3+fast://b", "sftp://h/p"])
def test_drivers_whose_requests_cannot_be_recorded_are_refused_by_name(scheme: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"(mega|opendal|rclone|s3\+fast|sftp) cannot be recorded: \w+"):
        open_at("record", tmp_path / "tape.json", scheme)


def test_provider_made_of_others_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="raid is made of other providers"):
        open_at("record", tmp_path / "tape.json", "raid:array.toml")


def open_at(mode: str, tape: Path, *specs: str) -> Cassette:
    option = Namespace(cloudbench_cassette=[mode, str(tape)], cloudbench_provider=list(specs))
    return open_cassette(option, RunFacts("r", "s", 1.0, None, None, 0.2, "results", "here"))


class _GzipHandler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        body = gzip.compress(b'{"access_token": "in-the-answer"}')
        self.send_response(200)
        for name, value in (("content-encoding", "gzip"), ("content-length", str(len(body)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def gzip_url() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), _GzipHandler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def post(mode: str, tape: Path, url: str, body: Any) -> str:
    cassette = Cassette(mode, str(tape), {"run_id": "r", "seed": "s", "provider": "webdav://h"})
    text = requests.post(url, data=body, timeout=30).text
    cassette.close()
    return text


@pytest.mark.parametrize("make_body", [BytesIO, bytes, bytes.decode], ids=["file", "bytes", "text"])
def test_bodies_of_every_type_are_scrubbed_and_limited(
    gzip_url: str, tmp_path: Path, make_body: Callable[[bytes], Any]
) -> None:
    tape = tmp_path / "tape.json"
    answer = post("record", tape, gzip_url, make_body(b"client_secret=in-the-body"))
    assert answer == '{"access_token": "in-the-answer"}'
    text = tape.read_text()
    assert "in-the-body" not in text
    assert "in-the-answer" not in text
    assert post("replay", tape, gzip_url, make_body(b"client_secret=another")) == '{"access_token": "scrubbed"}'
    with pytest.raises(ResultsError, match="a body of 65,537 bytes is above 65,536"):
        post("record", tape, gzip_url, make_body(b"x" * 65_537))
    assert tape.read_text() == text
