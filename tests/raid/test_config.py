"""The file of an array. An error is one line that names the setting, and only its owner can read the array's key."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from pytest_cloudbench import providers
from pytest_cloudbench.model import MIB, CredentialsError, UsageError
from pytest_cloudbench.raid import config
from pytest_cloudbench.raid.coding.sealing import MasterKey
from pytest_cloudbench.workload.payload.contents import Literal
from tests.provider_folders import make_folders

GOOD = {"k": "1", "m": "1", "children": '["emulated:ideal", "folder:{here}/one"]', "key": '"array.key"'}


def write_array_file(here: Path, /, **changes: str | None) -> Path:
    """Write an array's file with some of the valid values replaced, where None leaves a key out."""
    values = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    path = here / "array.toml"
    lines = (f"{key} = {value.replace('{here}', here.as_posix())}" for key, value in values.items())
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


BAD: dict[str, tuple[dict[str, str | None], str]] = {
    "unknown key": ({"durabilty": '"all"'}, "durabilty: unknown; expected one of children, k, m, key"),
    "a near one": ({"folde": '"/x"'}, "did you mean folder?"),
    "no k": ({"k": None}, "k: expected a whole number from 1 to 256"),
    "k of text": ({"k": '"2"'}, "k: expected a whole number from 1 to 256, found '2'"),
    "k of truth": ({"k": "true"}, "k: expected a whole number from 1 to 256, found True"),
    "k 0": ({"k": "0", "m": "2"}, "k: expected a whole number from 1 to 256, found 0"),
    "too few": ({"k": "2"}, "children: expected k + m = 3 of them, found 2"),
    "too many": (
        {"k": "200", "m": "100", "children": str(["emulated:ideal"] * 300)},
        "children: expected at most 256 of them, found 300",
    ),
    "the key on a child": (
        {"key": '"one/array.key"'},
        "one/array.key is in the folder of the child folder:{here}/one: its provider could read everything",
    ),
    "the metadata on a child": (
        {"metadata": '"one/of/it.sqlite"'},
        "one/of/it.sqlite is in the folder of the child folder:{here}/one: its provider could read the names",
    ),
    "a folder of nobody": (
        {"children": '["emulated:ideal", "folder:~nobodyx/a"]'},
        "children: cannot use the folder of the child folder:~nobodyx/a: ",
    ),
    "a child in a child": (
        {"m": "2", "children": '["emulated:ideal", "folder:{here}/one", "folder:{here}/one/two"]'},
        "folder:{here}/one/two is inside folder:{here}/one: they would fail together",
    ),
    "no children": ({"children": None}, "children: expected a list of specs, or of tables"),
    "a number among them": ({"children": '["emulated:ideal", 3]'}, "children[2]: expected a spec or a table with one"),
    "a table without spec": (
        {"children": '["emulated:ideal", {name = "x"}]'}, "children[2].spec: expected a text",
    ),
    "unknown price": (
        {"children": '["emulated:ideal", {spec = "folder:{here}/one", price = 3}]'}, "children[2].price: unknown",
    ),
    "availability": (
        {"children": '["emulated:ideal", {spec = "folder:{here}/one", availability = 99.9}]'},
        "children[2].availability: expected a number from 0 to 1, found 99.9",
    ),
    "durability": ({"durability": '"k+2"'}, "durability: expected all, or k+0 to k+1, found 'k+2'"),
    "placement": ({"placement": '"equa"'}, "did you mean equal?"),
    "folder": ({"folder": '"cloudraid"'}, "folder: expected a path such as /cloudraid, found 'cloudraid'"),
    "folder above": ({"folder": '"/../x"'}, "folder: expected a path"),
    "segment": ({"segment_mib": "0"}, "segment_mib: expected a whole number from 1 to 1024, found 0"),
    "mends": ({"mends": "1"}, "mends: expected true or false, found 1"),
    "patience": ({"patience_s": '"2"'}, "patience_s: expected a number"),
    "a child that depends on the folder": (
        {"children": '["emulated:ideal", "folder:one"]'}, "children: 'folder:one' depends on the current folder: write",
    ),
    "twice the same place": (
        {"children": '["folder:{here}/one", "folder:{here}/one"]'}, "two children are the same place",
    ),
    "itself": ({"children": '["raid:{here}/array.toml", "emulated:ideal"]'}, "nested more than 8 deep"),
    "no driver": ({"children": '["emulated:ideal", "nosuch:x"]'}, "no driver has this name"),
    "no key": ({"key": None}, 'key: missing; expected a file, such as key = "array.key" (created at first use)'),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_an_invalid_file_is_refused_in_one_line(case: str, tmp_path: Path) -> None:
    changes, message = BAD[case]
    with pytest.raises(UsageError) as caught:
        providers.resolve(f"raid:{write_array_file(tmp_path, **changes)}")
    assert message.replace("{here}", tmp_path.as_posix()) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("raid", "expected raid:FILE.toml"),
        ("raid:emulated:ideal,emulated:ideal", "expected raid:FILE.toml"),
        ("raid:none.toml", "none.toml: cannot be read"),
        ("raid:none.toml?quorum=1", "unknown parameter 'quorum'; raid knows: metadata, state"),
    ],
)
def test_a_spec_names_a_file(spec: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        providers.resolve(spec)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_is_read_with_defaults(tmp_path: Path) -> None:
    children = '["folder:/x", "folder:/x?fsync=1", {spec = "folder:/y", name = "y", read_usd_per_gib = 1}]'
    changes = {"k": "2", "children": children, "durability": '"k + 1"', "segment_mib": "3", "metadata": '"of/it"'}
    file = config.load(write_array_file(tmp_path, **changes))
    assert [child.name for child in file.children] == ["1:folder:/x", "2:folder:/x", "y"]
    assert file.children[2].read_usd_per_gib == 1.0
    assert file.children[2].availability is None
    assert (file.losses, file.segment_bytes, file.placement) == (1, 3 * MIB, "equal")
    assert (file.key, file.metadata) == (str(tmp_path / "array.key"), tmp_path / "of" / "it")
    assert config.load(write_array_file(tmp_path)).losses is None


@pytest.mark.parametrize("name", config.shipped_names())
def test_a_shipped_array_is_loaded_by_its_name(name: str) -> None:
    assert config.load(f"raid:{name}") == config.load(name)


# --- the key ---


def test_a_key_is_created_once_and_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "array.key"
    key = config.load_master_key(str(path))
    assert config.load_master_key(str(path)).fingerprint == key.fingerprint
    assert len(bytes.fromhex(path.read_text())) == 32
    assert sys.platform == "win32" or path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["array.key"]


def test_a_new_key_and_its_name_are_on_the_disk_before_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, sync, synced = tmp_path / "array.key", os.fsync, list[tuple[int, bool]]()

    def record_sync(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_ino, path.exists()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", record_sync)
    config.load_master_key(str(path))
    expected = [(path.stat().st_ino, False), (tmp_path.stat().st_ino, True)]
    assert synced == (expected if os.name == "posix" else expected[:1])
    config.load_master_key(str(path))
    assert len(synced) == len(expected), "nothing is new"


@pytest.mark.skipif(os.name != "posix", reason="modes of files mean nothing here")
def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "array.key"
    config.load_master_key(str(path))
    path.chmod(0o640)
    with pytest.raises(CredentialsError, match=r"other users may read this key \(mode 0640\): run 'chmod 600"):
        config.load_master_key(str(path))


def test_an_invalid_key_is_refused_and_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "array.key"
    path.touch(0o600)
    path.write_text("secret but short")
    with pytest.raises(CredentialsError, match="expected 64 hexadecimal digits") as caught:
        config.load_master_key(str(path))
    assert "secret" not in str(caught.value)


def test_metadata_of_another_key_is_refused(tmp_path: Path) -> None:
    children = '["folder:{here}/one", "folder:{here}/two"]'
    make_folders(tmp_path, [children.format(here=tmp_path)])
    spec = f"raid:{write_array_file(tmp_path, children=children)}"
    with providers.opened(spec) as driver:
        driver.put("/a", Literal(b"content"))
    (tmp_path / "array.key").write_text("5e" * 32)
    with (
        pytest.raises(CredentialsError, match="not the key of the array whose metadata is in"),
        providers.opened(spec),
    ):
        pass


# --- as a provider ---


def test_an_array_of_emulators_needs_no_key_and_leaves_nothing(tmp_path: Path) -> None:
    file = write_array_file(tmp_path, children='["emulated:ideal", "emulated:ideal"]', key=None)
    for _ in range(2):  # the second run finds nothing of the first one's
        with providers.provided(f"raid:{file}") as provider:
            driver = provider.driver
            assert list(driver.list("/")) == []
            driver.put("/a", Literal(b"content"))
            assert b"".join(driver.get("/a")) == b"content"
            assert (provider.emulated, provider.is_kept) == ("all", False)
            state = driver.array.file.metadata.parent  # type: ignore[attr-defined]  # an array's
            assert state.exists()
        assert not state.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["array.toml"]


def test_an_array_with_a_persistent_child_is_persistent(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    with providers.provided(f"raid:{write_array_file(tmp_path)}") as provider:
        provider.driver.put("/a", Literal(b"content"))
        assert (provider.emulated, provider.is_kept) == ("some", True)
    assert (tmp_path / "array.sqlite").exists()
    with providers.provided(
        f"raid:{tmp_path}/array.toml"
    ) as provider:  # one child is new, and empty: the other is enough
        assert b"".join(provider.driver.get("/a")) == b"content"


def test_a_key_is_read_from_the_keyring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries: dict[str, str] = {}
    monkeypatch.setattr("pytest_cloudbench.providers.credentials.ask_keyring", lambda user: (True, entries.get(user)))
    with pytest.raises(CredentialsError, match=r"no such key: run python -c .* \| keyring set \S+ raid\.home"):
        config.load_master_key("keyring:home")
    entries["raid.home"] = "ab" * 32
    assert config.load_master_key("keyring:home").fingerprint == MasterKey(b"\xab" * 32).fingerprint
    assert config.load(write_array_file(tmp_path, key='"keyring:home"')).key == "keyring:home"
    monkeypatch.setattr("pytest_cloudbench.providers.credentials.ask_keyring", lambda user: (False, None))
    with pytest.raises(CredentialsError, match="the keyring does not answer"):
        config.load_master_key("keyring:home")
