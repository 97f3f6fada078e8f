"""Names, options, and the message about a client that is not installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_cloudbench.lab import clients
from pytest_cloudbench.lab.clients.base import LocalClient, MissingProgramError
from pytest_cloudbench.model import ConfigError, UsageError
from tests.drivers.distributions import install

STARTED = [name for name in clients.client_names() if name != "external"]


def test_names() -> None:
    names = "external lsyncd rclone reference restic savingbox syncthing unison"
    assert clients.client_names() == tuple(names.split())


CARRIER = """
class CarrierClient:
    options = frozenset({"birds"})

    def __init__(self, options):
        self.birds = options["birds"]
"""


@pytest.fixture
def carrier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A distribution with two clients, one of which cannot be imported."""
    points = {"carrier": "carrier_client:CarrierClient", "lame": "carrier_client:Lame"}
    install(tmp_path, "carrier", points, {"carrier_client": CARRIER}, clients.ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("carrier_client", None)


@pytest.mark.usefixtures("carrier")
def test_another_distribution_brings_a_client() -> None:
    assert {"carrier", "lame"} <= {*clients.client_names()}
    assert vars(clients.make_client("carrier?birds=2")) == {"birds": "2"}
    with pytest.raises(UsageError, match="unknown option 'wings'; carrier knows: birds"):
        clients.make_client("carrier?wings=2")


@pytest.mark.usefixtures("carrier")
def test_a_client_that_cannot_be_imported_is_named() -> None:
    with pytest.raises(UsageError, match="client 'lame': carrier_client:Lame cannot be imported: AttributeError"):
        clients.make_client("lame")


@pytest.mark.parametrize("name", STARTED)
def test_a_client_is_made_without_looking_for_programs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert clients.make_client(name).facts.name == name


@pytest.mark.parametrize("name", ["syncthing", "lsyncd", "unison", "restic"])
def test_missing_client_is_reported_with_its_install_command(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_cloudbench.lab.clients.base.find_binary", lambda program, path: None)
    pair = clients.make_client(name)
    assert isinstance(pair, LocalClient)
    assert pair.missing().endswith(f"not installed: tools/testbed install {name}")
    with pytest.raises(MissingProgramError, match=f"{name}.* not installed: tools/testbed install {name}"):
        pair.prepare(tmp_path)
    assert list(tmp_path.iterdir()) == []
    pair.stop()


def test_options_change_documented_capabilities_of_a_client() -> None:
    def answer(spec: str, capability: str, **options: str) -> str:
        return clients.make_client(spec, **options).facts.documented[capability].answer

    assert answer("syncthing", "compression") == "no"
    assert answer("syncthing?compression=always", "compression") == "yes"
    assert answer("syncthing?compression=always", "compression", compression="never") == "no"
    assert answer("rclone?remote=chunker", "chunking") == "yes"
    assert answer("rclone?remote=chunker", "compression") == "no"
    assert answer("lsyncd?compress=0", "compression") == "no"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("dropbox", "unknown; expected one of external, "),
        ("syncthing:x", "unknown; expected one of"),
        ("syncthing?compresion=always", "unknown option 'compresion'; syncthing knows: compression"),
        ("syncthing?compression=1", "compression must be one of always, metadata, never; not '1'"),
        ("rclone?remote", "expected KEY=VALUE"),
        ("restic?server=ftp", "server must be one of rest, s3; not 'ftp'"),
        ("tool.toml?x=1", "takes no options"),
        ("", "expected one of external, .* or a .toml file"),
        ("mine.tml", "expected one of external, .* or a .toml file"),
        ("my client", "expected one of external, .* or a .toml file"),
    ],
)
def test_wrong_client_spec_is_a_usage_error(spec: str, message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("?", r"\?")):
        clients.make_client(spec)


def test_a_toml_file_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"no/tool\.toml: cannot be read"):
        clients.make_client("no/tool.toml")
