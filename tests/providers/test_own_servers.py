"""The user's own servers on this machine, which count as no account, and specs in test ids, which show no secret."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_cloudbench.drivers import bind
from pytest_cloudbench.model import CredentialsError, ProviderSpec
from pytest_cloudbench.providers import Providers
from pytest_cloudbench.providers.leaves import load_credentials
from pytest_cloudbench.support.redact import mask_named
from tests.fleet.harness import Lab
from tests.limits import HANG_S

from .test_sessions import SMALL


@pytest.mark.parametrize(
    ("spec", "accounts"),
    [
        ("s3://b?endpoint=http://127.0.0.1:9000", 0),
        ("s3://b?endpoint=http://localhost:9000", 0),
        ("s3://b?endpoint=http://[::1]:9000", 0),
        ("s3://b?endpoint=http://minio.localhost:9000", 0),
        ("s3://b?endpoint=http://127.1:9000", 0),
        ("s3://b?endpoint=http://[::ffff:127.0.0.1]:9000", 0),
        ("s3://b?endpoint=http://128.0.0.1:9000", 1),
        ("s3://b?endpoint=https://s3.example.org", 1),
        ("s3://b?endpoint=http://localhost.example.org", 1),
        ("s3://b?endpoint=http://127.0.0.1@example.org", 1),
        ("s3://localhost", 1),
        ("webdav://localhost:8080/files", 0),
        ("webdav:http://127.0.0.1/files", 0),
        ("webdav://example.org/localhost", 1),
        ("sftp://127.0.0.1:2222/home", 0),
        ("sftp://example.org/home", 1),
        ("tahoe:http://127.0.0.1:3456", 0),
        ("tahoe:http://example.org:3456", 1),
        ("mirror:webdav://localhost/a,webdav://example.org/b", 1),
    ],
)
def test_a_server_on_this_machine_is_no_account(spec: str, accounts: int) -> None:
    assert len(Providers("x").accounts(spec)) == accounts


def test_only_a_server_on_this_machine_may_want_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "WEBDAV_USER",
        "WEBDAV_PASSWORD",
        "WEBDAV_TOKEN",
        "S3_ACCESS_KEY_ID",
        "S3_PROFILE",
        "GCS_ACCESS_TOKEN",
    ):
        monkeypatch.delenv(f"CLOUDBENCH_{name}", raising=False)
    for scheme in ("s3", "s3+fast", "gcs"):
        assert load_credentials(bind(ProviderSpec.parse(f"{scheme}://b?endpoint=http://localhost:9000"))) == {}
    assert load_credentials(bind(ProviderSpec.parse("webdav://localhost/x?tls=0"))) == {}
    for spec in ("webdav://example.org/x", "webdav://localhost/x?token_env=NOT_SET", "sftp://localhost/x"):
        with pytest.raises(CredentialsError):
            load_credentials(bind(ProviderSpec.parse(spec)))


def test_incomplete_credentials_of_a_server_on_this_machine_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLOUDBENCH_WEBDAV_PASSWORD", raising=False)
    monkeypatch.setenv("CLOUDBENCH_WEBDAV_USER", "me")
    with pytest.raises(CredentialsError, match="has user only, which is not enough"):
        load_credentials(bind(ProviderSpec.parse("webdav://localhost/x?tls=0")))


@pytest.fixture
def open_server(tmp_path: Path) -> Iterator[str]:
    """The spec of a WebDAV server that needs no login."""
    from cheroot.wsgi import Server
    from wsgidav.wsgidav_app import WsgiDAVApp

    folder = tmp_path / "files"
    folder.mkdir()
    app = WsgiDAVApp({
        "provider_mapping": {"/": str(folder)}, "simple_dc": {"user_mapping": {"*": True}}, "verbose": 0,
        "logging": {"enable": False}, "lock_storage": False, "property_manager": False,
    })  # fmt: skip
    server = Server(("127.0.0.1", 0), app)
    server.prepare()
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    yield f"webdav://127.0.0.1:{server.bind_addr[1]}/?tls=0"
    server.stop()
    thread.join(HANG_S)


def test_a_run_on_an_own_server_asks_nobody(lab: Lab, open_server: str) -> None:
    """The run needs no --cloudbench-yes and no credentials, and its folder is removed as on an account."""
    run = lab.write(SMALL).run("--provider", open_server)
    assert run.status == 0, run.text
    assert f"{open_server}: about 12 operations, 600 bytes up" in run.text


@pytest.fixture
def open_bucket(tmp_path: Path) -> Iterator[str]:
    """The spec, without its scheme, of a bucket on an S3 server that needs no credentials."""
    program = shutil.which("rclone", path=Path(sys.executable).parent)
    if program is None:
        pytest.skip("rclone is not installed: it comes with the extra rclone")
    (tmp_path / "files" / "bench").mkdir(parents=True)
    command = [program, "serve", "s3", "--config", "", "--addr", "127.0.0.1:0", str(tmp_path / "files")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        address = next(match[1] for line in server.stderr if (match := re.search(r"(http://127\.0\.0\.1:\d+)", line)))
        yield f"bench?endpoint={address}"
        server.terminate()


@pytest.mark.parametrize("scheme", ["s3", "s3+fast"])
def test_an_own_bucket_needs_no_credentials(lab: Lab, open_bucket: str, scheme: str) -> None:
    # One sensor: rclone's server answers 500 to some of the first puts that begin together in a new folder.
    one_sensor = SMALL.replace("sensors=4, ops_per_sensor=3", "sensors=1, ops_per_sensor=12")
    run = lab.write(one_sensor).run("--provider", f"{scheme}://{open_bucket}")
    assert run.status == 0, run.text


@pytest.mark.parametrize(
    ("spec", "shown"),
    [
        ("s3://b?region=x", "s3://b?region=x"),
        ("opendal:s3?bucket=b&secret_access_key=hush&region=x", "opendal:s3?bucket=b&secret_access_key=***&region=x"),
        ("raid:(opendal:s3?token=hush),(folder:x?fsync=1)", "raid:(opendal:s3?token=***),(folder:x?fsync=1)"),
        ("s3://b?token_env=NAME", "s3://b?token_env=NAME"),
        ("own:http://me:hush@host/x?a=1", "own:http://me:***@host/x?a=1"),
        ("raid:(own:?at=ftp://me:hush@h),(folder:/x:y@z)", "raid:(own:?at=ftp://me:***@h),(folder:/x:y@z)"),
        ("s3://b?endpoint=http://localhost:9000", "s3://b?endpoint=http://localhost:9000"),
        ("s3://b?endpoint=http://h:9000&prefix=a@b", "s3://b?endpoint=http://h:9000&prefix=a@b"),
        ("sftp://host:22/a@b", "sftp://host:22/a@b"),
    ],
)
def test_a_spec_is_shown_without_its_secrets(spec: str, shown: str) -> None:
    assert mask_named(spec) == shown


def test_a_secret_in_a_spec_is_in_nothing_that_a_run_shows_or_stores(lab: Lab, open_bucket: str) -> None:
    bucket, _, address = open_bucket.partition("?endpoint=")
    spec = (
        f"opendal:s3?bucket={bucket}&endpoint={address}&region=us-east-1&access_key_id=somebody"
        "&secret_access_key=hush-hush"
    )
    (lab.folder / "claims.toml").write_text(
        f"[[expect]]\nprovider = '{mask_named(spec)}'\nmetric = 'loss_rate'\nat_most = 0.5\n"
        "source = 'this test'\ndate = 2026-12-01\n"
    )
    outputs = ("--cloudbench-report=page.html", "--cloudbench-summary=summary.md", "--junitxml=junit.xml")
    test = f"""{SMALL}
        from pytest_cloudbench import Series, SeriesPlan

        plan = SeriesPlan(rounds=1, pause_s=0)
        series = Series(experiment, {{}}, plan, resume=None, keeps_plan=False)
        for number in series.rounds():
            series.add({{"round": number}})
        experiment.report(experiment.provider.spec, "note.txt", experiment.provider.spec)
    """
    run = lab.write(test).run("--provider", spec, *outputs, "-ocloudbench_expectations=claims.toml")
    assert run.status == 0, run.text
    [entry] = run.document["benchmarks"]
    assert entry["extra_info"]["provider"] == mask_named(spec)
    assert entry["extra_info"]["verdict"] == "met"
    assert "hush-hush" not in run.text
    written = [path for path in lab.folder.rglob("*") if path.is_file() and path.name != "out.txt"]
    assert {"out.json", "page.html", "summary.md", "junit.xml"} <= {path.name for path in written}
    assert [path for path in written if b"hush-hush" in path.read_bytes()] == []


@pytest.mark.slow
def test_a_secret_in_a_spec_is_in_no_id(lab: Lab) -> None:
    spec = "opendal:s3?bucket=b&region=us-east-1&access_key_id=somebody&secret_access_key=hush-hush"
    for words in (("--provider", spec), ("--provider", "emulated:ideal", "--cloudbench-versus", spec)):
        run = lab.write(SMALL).run(*words, "--collect-only", "-q", store=False)
        assert "hush-hush" not in run.text
        assert "secret_access_key=***" in run.text
