"""Google's credentials in the files of its own programs: their order, and their use with a real token route."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from pytest_cloudbench import drivers
from pytest_cloudbench.emulators import EmulatorService, start_emulator
from pytest_cloudbench.model import CloudError, CredentialsError, Endpoint, ErrorKind, ProviderSpec
from pytest_cloudbench.providers import credentials
from pytest_cloudbench.services.command import load_recipe
from pytest_cloudbench.support import redact
from pytest_cloudbench.workload.payload.contents import Literal

from .real import served

USER = {
    "type": "authorized_user", "client_id": "gcloud", "client_secret": "not-so-4711", "refresh_token": "1//secret-4711",
    "quota_project_id": "p",
}  # fmt: skip


@pytest.fixture(scope="module")
def emulator() -> Iterator[EmulatorService]:
    with start_emulator("gdrive-ideal") as running:
        yield running


@pytest.fixture(autouse=True)
def gcloud(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """gcloud's file of credentials for applications. There are no other credentials."""
    for scheme in ("gcs", "gdrive"):
        for field in ("access_token", "refresh_token", "client_id", "client_secret", "service_account_file"):
            monkeypatch.delenv(credentials.environment_name(scheme, field), raising=False)
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")
    monkeypatch.setattr(credentials, "credentials_path", lambda: tmp_path / "credentials.toml")
    (tmp_path / "gcloud").mkdir()
    path = tmp_path / "gcloud" / "application_default_credentials.json"
    path.write_text(json.dumps(USER))
    return path


def key(token_url: str) -> dict[str, str]:
    """Return a service account's key."""
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    account = {"type": "service_account", "client_email": "robot@example.com", "private_key_id": "1"}
    return account | {"private_key": private.decode(), "token_uri": token_url}


@pytest.mark.parametrize("scheme", ["gcs", "gdrive"])
def test_google_files_come_last_and_a_named_one_before_gclouds(
    scheme: str, gcloud: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    user = {name: USER[name] for name in ("refresh_token", "client_id", "client_secret")}
    assert credentials.load(credentials.ProviderAccount.named(scheme)) == user
    key_path = tmp_path / "key.json"
    key_path.write_text(json.dumps(key("https://127.0.0.1/token")))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key_path))
    assert credentials.load(credentials.ProviderAccount.named(scheme)) == {"service_account_file": str(key_path)}
    assert [source for source, _ in credentials.list_sources(credentials.ProviderAccount.named(scheme))] == [
        f"GOOGLE_APPLICATION_CREDENTIALS ({key_path})", str(gcloud),
    ]  # fmt: skip
    with pytest.raises(CredentialsError, match="no credentials found"):
        credentials.load(credentials.ProviderAccount.named(f"{scheme}-2"))
    (tmp_path / "credentials.toml").write_text(f'[{scheme}]\naccess_token = "of-the-file"\n')
    (tmp_path / "credentials.toml").chmod(0o600)
    assert credentials.load(credentials.ProviderAccount.named(scheme)) == {"access_token": "of-the-file"}
    monkeypatch.setenv(f"CLOUDBENCH_{scheme.upper()}_ACCESS_TOKEN", "of-the-environment")
    assert credentials.load(credentials.ProviderAccount.named(scheme)) == {"access_token": "of-the-environment"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a file of Google credentials"),
        ("[1]", "not a file of Google credentials"),
        ('{"type": "authorized_user", "client_secret": "very-secret"}', "not a file of Google credentials"),
        ('{"type": "external_account"}', "type 'external_account' cannot be used here"),
    ],
)
def test_unusable_file_is_refused_in_one_line(gcloud: Path, text: str, message: str) -> None:
    gcloud.write_text(text)
    with pytest.raises(CredentialsError, match=message) as caught:
        credentials.load(credentials.ProviderAccount.named("gcs"))
    assert "very-secret" not in str(caught.value)
    assert "\n" not in str(caught.value)
    gcloud.unlink()
    with pytest.raises(CredentialsError, match="no credentials found"):
        credentials.load(credentials.ProviderAccount.named("gcs"))


def token_requests(emulator: EmulatorService) -> int:
    routes: Any = emulator.control(get="stats")["stats"]["routes"]
    return sum(routes.get("oauth.token", {}).values())


@pytest.mark.parametrize("kind", ["user", "service account"])
def test_tokens_come_from_the_token_route(
    kind: str, emulator: EmulatorService, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Drive on its emulator, and Cloud Storage on a server of its own with the emulator's token route."""
    if missing := load_recipe("gcs").describe_missing():
        pytest.skip(missing)
    emulated = emulator.endpoint
    if kind != "user":
        (tmp_path / "key.json").write_text(json.dumps(key(f"{emulated.urls['oauth']}/token")))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    with served("gcs") as store:
        endpoints = {
            "gdrive": replace(emulated, credentials=credentials.load(credentials.ProviderAccount.named("gdrive"))),
            "gcs://bench": Endpoint(
                {"api": store.endpoint.url, "oauth": emulated.urls["oauth"]},
                credentials.load(credentials.ProviderAccount.named("gcs")),
                emulated.ca_file,
            ),
        }
        for spec, endpoint in endpoints.items():
            before = token_requests(emulator)
            driver: Any = drivers.connect(ProviderSpec.parse(spec), endpoint)
            assert driver.put("/a", Literal(b"123")).size_bytes == 3
            assert driver.stat("/a").size_bytes == 3
            if spec == "gcs://bench":
                token = driver._session.credentials.token
                assert redact.clean(f"Bearer {token}") == "Bearer ***"
            driver.close()
            assert token_requests(emulator) == before + 1


def test_revoked_login_is_an_auth_error(emulator: EmulatorService, gcloud: Path) -> None:
    gcloud.write_text(json.dumps({**USER, "refresh_token": "invalid-token"}))
    driver = drivers.connect(
        ProviderSpec.parse("gdrive"),
        replace(emulator.endpoint, credentials=credentials.load(credentials.ProviderAccount.named("gdrive"))),
    )
    with pytest.raises(CloudError) as caught:
        driver.stat("/a")
    assert caught.value.kind is ErrorKind.AUTH
    assert "invalid-token" not in str(caught.value)
    driver.close()
