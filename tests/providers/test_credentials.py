"""Credentials: their sources, the order of these, and their secrecy."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keyring.backend
import keyring.errors
import pytest

from pytest_cloudbench.drivers import bind
from pytest_cloudbench.model import CredentialsError, ProviderSpec
from pytest_cloudbench.providers import credentials
from pytest_cloudbench.providers.credentials import (
    KEYRING_SERVICE,
    ProviderAccount,
    Secrets,
    credentials_path,
    environment_name,
    load,
)

PREFIX = "CLOUDBENCH_DROPBOX_"
FIELDS = ("access_token", "refresh_token", "app_key", "app_secret")


class Ring(keyring.backend.KeyringBackend):
    """A keyring in memory that can also be absent, or wait for a user who is not there."""

    priority = 1

    def __init__(self) -> None:
        self.entries: dict[str, str] = {}
        self.error: Exception | None = None
        self.gate: threading.Event | None = None
        self.lookups = 0

    def get_password(self, service: str, username: str) -> str | None:
        assert service == KEYRING_SERVICE
        self.lookups += 1
        if self.gate is not None:
            self.gate.wait()
        if self.error is not None:
            raise self.error
        return self.entries.get(username)

    def set_password(self, service: str, username: str, password: str) -> None:
        raise NotImplementedError

    def delete_password(self, service: str, username: str) -> None:
        raise NotImplementedError


@pytest.fixture(autouse=True)
def ring(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Ring]:
    for field in FIELDS:
        monkeypatch.delenv(environment_name("dropbox", field), raising=False)
    monkeypatch.setattr(credentials, "credentials_path", lambda: tmp_path / "credentials.toml")
    before = keyring.get_keyring()
    new_ring = Ring()
    keyring.set_keyring(new_ring)
    yield new_ring
    keyring.set_keyring(before)


@pytest.fixture
def file(tmp_path: Path) -> Any:
    def write(text: str, mode: int = 0o600) -> Path:
        path = tmp_path / "credentials.toml"
        path.write_text(text)
        path.chmod(mode)
        return path

    return write


def refusal() -> str:
    with pytest.raises(CredentialsError) as caught:
        load(ProviderAccount.named("dropbox"))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_missing_credentials_error_lists_every_way_to_set_them(tmp_path: Path) -> None:
    assert refusal() == (
        "dropbox: no credentials found: run 'cloudbench login dropbox'; "
        "or set CLOUDBENCH_DROPBOX_ACCESS_TOKEN, or CLOUDBENCH_DROPBOX_REFRESH_TOKEN "
        "and CLOUDBENCH_DROPBOX_APP_KEY; "
        f'or write access_token = "..." below [dropbox] in {tmp_path}/credentials.toml (mode 0600)'
    )


def test_the_second_account_has_names_of_its_own(ring: Ring, file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDBENCH_DROPBOX_ACCESS_TOKEN", "of-the-first")
    with pytest.raises(
        CredentialsError,
        match=r"^dropbox-2: no credentials found: run .*; or set CLOUDBENCH_DROPBOX_2_ACCESS_TOKEN",
    ):
        load(ProviderAccount.named("dropbox-2"))
    file('[dropbox-2]\naccess_token = "from-file"\n')
    assert load(ProviderAccount.named("dropbox-2")) == {"access_token": "from-file"}
    ring.entries["dropbox-2.access_token"] = "from-keyring"
    assert load(ProviderAccount.named("dropbox-2")) == {"access_token": "from-keyring"}
    monkeypatch.setenv("CLOUDBENCH_DROPBOX_2_ACCESS_TOKEN", "from-environment")
    assert load(ProviderAccount.named("dropbox-2")) == {"access_token": "from-environment"}
    assert load(ProviderAccount.named("dropbox")) == {"access_token": "of-the-first"}


def test_driver_without_credentials_needs_none(ring: Ring) -> None:
    assert load(ProviderAccount.named("folder")) == {}
    assert ring.lookups == 0


def test_precedence(monkeypatch: pytest.MonkeyPatch, ring: Ring, file: Any) -> None:
    file('[dropbox]\naccess_token = "from-file"\n')
    assert load(ProviderAccount.named("dropbox")) == {"access_token": "from-file"}
    ring.entries["dropbox.access_token"] = "from-keyring"
    assert load(ProviderAccount.named("dropbox")) == {"access_token": "from-keyring"}
    former_lookups = ring.lookups
    monkeypatch.setenv(PREFIX + "ACCESS_TOKEN", " from-environment\n")
    assert load(ProviderAccount.named("dropbox")) == {"access_token": "from-environment"}
    monkeypatch.setenv("MY_TOKEN", "from-option")
    assert load(ProviderAccount.of(bind(ProviderSpec.parse("dropbox?token_env=MY_TOKEN")))) == {
        "access_token": "from-option"
    }
    assert ring.lookups == former_lookups


@pytest.mark.parametrize(
    ("spec", "field"),
    [("webdav://example.org/x", "token"), ("gcs://b", "access_token"), ("azure://c?account=a", "connection_string"),
     ("tahoe", "cap"), ("onedrive", "access_token")],
)  # fmt: skip
def test_option_fills_the_only_field_of_a_set(spec: str, field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "a-token")
    separator = "&" if "?" in spec else "?"
    account = ProviderAccount.of(bind(ProviderSpec.parse(f"{spec}{separator}token_env=MY_TOKEN")))
    assert load(account) == {field: "a-token"}


@pytest.mark.parametrize("spec", ["s3://b", "swift://c", "sftp://h/p", "opendal:s3?bucket=b"])
def test_option_is_refused_if_one_value_is_not_enough(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "a-token")
    separator = "&" if "?" in spec else "?"
    with pytest.raises(
        CredentialsError, match="token_env=MY_TOKEN: one value is not enough here; see cloudbench login"
    ):
        load(ProviderAccount.of(bind(ProviderSpec.parse(f"{spec}{separator}token_env=MY_TOKEN"))))


def test_option_that_names_nothing_is_not_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PREFIX + "ACCESS_TOKEN", "other")
    with pytest.raises(CredentialsError, match="token_env=MY_TOKEN: this environment variable is not set"):
        load(ProviderAccount.of(bind(ProviderSpec.parse("dropbox?token_env=MY_TOKEN"))))


@pytest.mark.parametrize("secret", [None, "s"])
def test_refresh_token_with_its_app(monkeypatch: pytest.MonkeyPatch, secret: str | None) -> None:
    fields = {"refresh_token": "r", "app_key": "k"} | ({"app_secret": secret} if secret else {})
    for field, value in fields.items():
        monkeypatch.setenv(PREFIX + field.upper(), value)
    assert load(ProviderAccount.named("dropbox")) == fields


def test_incomplete_credentials_are_not_completed_from_the_keyring(monkeypatch: pytest.MonkeyPatch, ring: Ring) -> None:
    ring.entries["dropbox.app_key"] = "k"
    monkeypatch.setenv(PREFIX + "REFRESH_TOKEN", "very-secret")
    message = refusal()
    assert "the environment has refresh_token only" in message
    assert "CLOUDBENCH_DROPBOX_APP_KEY" in message
    assert "very-secret" not in message


@pytest.mark.parametrize(
    "error", [keyring.errors.NoKeyringError("headless"), keyring.errors.InitError(), RuntimeError("D-Bus")]
)
def test_credentials_come_from_the_file_without_a_keyring(ring: Ring, file: Any, error: Exception) -> None:
    ring.error = error
    file('[dropbox]\naccess_token = "from-file"\n')
    assert load(ProviderAccount.named("dropbox")) == {"access_token": "from-file"}
    assert ring.lookups == 1


def test_file_of_killed_process_does_not_block_storing(file: Any) -> None:
    path = file("")
    leftover = path.with_name(f"{path.name}.{os.getpid()}.new")
    leftover.touch()
    assert credentials.store(ProviderAccount.named("dropbox"), {"access_token": "stored"}) == str(path)
    assert load(ProviderAccount.named("dropbox")) == {"access_token": "stored"}


def test_keyring_that_waits_for_its_user_is_left(ring: Ring, file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "_KEYRING_S", 0.05)
    ring.gate = threading.Event()
    file('[dropbox]\naccess_token = "from-file"\n')
    try:
        assert load(ProviderAccount.named("dropbox")) == {"access_token": "from-file"}
    finally:
        ring.gate.set()
    assert ring.lookups == 1


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps permissions elsewhere than in the mode")
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_file_that_others_can_read_is_refused(file: Any, mode: int) -> None:
    path = file('[dropbox]\naccess_token = "very-secret"\n', mode)
    assert refusal() == f"{path}: other users may read it (mode {mode:04o}): run 'chmod 600 {path}'"
    path.chmod(stat.S_IRUSR)
    assert load(ProviderAccount.named("dropbox")) == {"access_token": "very-secret"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[dropbox]\naccess_token = very-secret\n", "is not TOML (line 2"),
        ("[dropbox", "is not TOML ("),
        ("dropbox = 'very-secret'\n", "[dropbox]: expected a table of texts"),
        ("[dropbox]\naccess_token = 5\n", "[dropbox]: expected a table of texts"),
        ("[other]\naccess_token = 'very-secret'\n", "no credentials found"),
        ("[dropbox]\nrefresh_token = 'very-secret'\n", "has refresh_token only"),
        ("[dropbox]\nacces_token = 'very-secret'\n", "[dropbox]: acces_token: no such field; expected one of"),
        (
            "[dropbox]\nrefresh_token = 'very-secret'\napp_key = 'k'\napp_secrt = 'very-secret'\n",
            "did you mean app_secret?",
        ),
    ],
)
def test_file_with_a_mistake(file: Any, text: str, expected: str) -> None:
    path = file(text)
    message = refusal()
    assert expected in message
    assert str(path) in message
    assert "very-secret" not in message


def test_file_that_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "credentials.toml").mkdir()
    assert "cannot be read" in refusal()


def test_secrets_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PREFIX + "ACCESS_TOKEN", "very-secret")
    loaded = load(ProviderAccount.named("dropbox"))
    assert isinstance(loaded, Secrets)
    assert repr(loaded) == str(loaded) == f"{loaded}" == "Secrets(access_token=***)"


def test_path_is_in_the_users_config_folder() -> None:
    assert credentials_path().parts[-2:] == ("pytest-cloudbench", "credentials.toml")


def test_nothing_heavy_is_imported_for_the_environment() -> None:
    code = (
        "import os, sys; os.environ['CLOUDBENCH_DROPBOX_ACCESS_TOKEN'] = 't'\n"
        f"sys.path.insert(0, {str(Path(__file__).parents[2] / 'src')!r})\n"
        "from pytest_cloudbench.providers import credentials as c; c.load(c.ProviderAccount.named('dropbox'))\n"
        "print([name for name in ('keyring', 'platformdirs', 'dropbox', 'requests') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_symbolic_link_to_the_file_stays_one(tmp_path: Path) -> None:
    elsewhere = tmp_path / "dotfiles" / "mine.toml"
    elsewhere.parent.mkdir()
    elsewhere.write_text('[box]\nrefresh_token = "former"\n')
    elsewhere.chmod(0o600)
    path = credentials.credentials_path()
    path.symlink_to(elsewhere)
    credentials.store(ProviderAccount.named("dropbox"), {"access_token": "new"})
    assert path.is_symlink()
    assert "former" in elsewhere.read_text()
    assert load(ProviderAccount.named("dropbox")) == {"access_token": "new"}


def test_reader_during_store_sees_former_or_new_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """This includes the moment before the file is replaced."""
    credentials.store(ProviderAccount.named("dropbox"), {"access_token": "former"})
    tokens: list[str] = []

    def replace(path: Path, tables: Mapping[str, Any]) -> None:
        tokens.append(load(ProviderAccount.named("dropbox"))["access_token"])
        real(path, tables)
        tokens.append(load(ProviderAccount.named("dropbox"))["access_token"])

    real = credentials._write
    monkeypatch.setattr(credentials, "_write", replace)
    credentials.store(ProviderAccount.named("dropbox"), {"access_token": "new"})
    assert tokens == ["former", "new"]
