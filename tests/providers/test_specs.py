"""Specs: trees of providers, one-line errors of wrong specs, and the known facts of a provider."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cloudbench import providers
from pytest_cloudbench.model import (
    CloudError,
    ConfigError,
    Content,
    CredentialsError,
    ProviderSpec,
    ServiceError,
    SpecError,
    UsageError,
)
from pytest_cloudbench.providers import Providers, check, connect, opened, resolve
from pytest_cloudbench.providers.for_agents import Provided
from pytest_cloudbench.providers.stand_ins import find_stand_in
from pytest_cloudbench.results import journal
from pytest_cloudbench.workload.payload import RandomContent

from .conftest import recipe


@pytest.fixture
def content() -> Content:
    return RandomContent("x", 100)


def children(text: str) -> list[str]:
    return [child.text for child in ProviderSpec.parse(text).children()]


@pytest.mark.parametrize(
    ("text", "expected", "params"),
    [
        ("m:a", ["a"], {}),
        ("m:a,b", ["a", "b"], {}),
        ("m: a , b ", ["a", "b"], {}),
        ("m:a:x,a:x", ["a:x", "a:x"], {}),
        ("m:a,b?k=v", ["a", "b"], {"k": "v"}),
        ("m:(a?x=1),(b?y=2,3)?k=v", ["a?x=1", "b?y=2,3"], {"k": "v"}),
        ("m:(m:a,b),c", ["m:a,b", "c"], {}),
        ("m:(m:(a?x=1),b?z=1),c", ["m:(a?x=1),b?z=1", "c"], {}),
        ("m:m:a,b", ["m:a", "b"], {}),
        ("m:( a ),(b)", ["a", "b"], {}),
        ("m:folder:/tmp/(x),folder:/y", ["folder:/tmp/(x)", "folder:/y"], {}),
    ],
)
def test_children(text: str, expected: list[str], params: dict[str, str]) -> None:
    assert children(text) == expected
    assert ProviderSpec.parse(text).params == params


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("m:", "a child is empty"),
        ("m:a,", "a child is empty"),
        ("m:a,,b", "a child is empty"),
        ("m:()", "a child is empty"),
        ("m:(a", "not closed"),
        ("m:(a)b,c", r"expected ',' after '\)'"),
        ("m:(a)(b)", r"expected ',' after '\)'"),
        ("m:a b,c", "provider 'a b': expected SCHEME"),
    ],
)
def test_malformed_children(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        ProviderSpec.parse(text).children()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["folder:/tmp/(a", "folder:(x)", "folder:/a,b", "folder:/tmp/(a?fsync=1", "folder:a)"])
def test_parentheses_mean_nothing_to_a_driver_that_takes_no_children(text: str) -> None:
    spec = ProviderSpec.parse(text)
    assert spec.target == text.partition("?")[0].partition(":")[2]
    assert spec.params == ({"fsync": "1"} if "?" in text else {})


NAMES = st.sampled_from(["a", "folder:/x", "b?k=v", "c?k=v,w", "m:a,b"])


@given(st.recursive(NAMES, lambda inner: st.lists(inner, min_size=1, max_size=3).map(lambda specs: "m:" + ",".join(
    f"({spec})" for spec in specs)), max_leaves=8))  # fmt: skip
def test_children_in_parentheses_keep_their_text(text: str) -> None:
    spec = ProviderSpec.parse(f"m:({text}),({text})?own=1")
    assert [child.text for child in spec.children()] == [text, text]
    assert spec.params == {"own": "1"}


@given(st.text(alphabet="m:(),?ab=1 ", max_size=25))
def test_any_text_has_children_or_a_spec_error(text: str) -> None:
    outcome: object
    try:
        outcome = ProviderSpec.parse(text).children()
    except SpecError as error:
        outcome = "\n" not in str(error)
    assert outcome


# --- wrong specs and checks ---


BAD: dict[str, tuple[str, str]] = {
    "no driver": ("mirror:emulated:ideal,nosuch:x", "provider 'nosuch': no driver has this name"),
    "no profile": ("mirror:emulated:ideal,emulated:nosuch", "profile 'nosuch': expected one of"),
    "too few": ("mirror:emulated:ideal", "expected two children or more"),
    "parameter": ("mirror:emulated:ideal,emulated:ideal?quorum=1", "unknown parameter 'quorum'; mirror knows: note"),
    "empty": ("mirror:", "a child is empty"),
    "nested": ("mirror:(mirror:emulated:ideal),emulated:ideal", "expected two children or more"),
    "twice": ("mirror:folder:x,folder:./x", "two children are the same place: folder:"),
    "one token": ("mirror:(dropbox?token_env=T),(dropbox?token_env=T)", "the same place: dropbox?token_env=T"),
    "numbered child": ("mirror:(dropbox?account_number=2),folder:x", "an array numbers the accounts of its children"),
    "numbered token": ("dropbox?token_env=T&account_number=2", "token_env names the account; leave account_number out"),
    "numbered folder": ("folder:x?account_number=2", "it has no accounts; leave account_number out"),
    "bad number": ("dropbox?account_number=0", "account_number is a number from 1 to 99"),
    "no recipe's name": ("served", "provider 'served': expected served:RECIPE.toml"),
    "no recipe": ("served:none.toml", "none.toml: cannot be read"),
    "bad recipe": ("served:bad.toml", "bad.toml: name: expected a text"),
    "recipe without driver": ("served:nodriver.toml", "provider 'nosuch': no driver has this name"),
    "no file": ("mirror:nofile.toml", "nofile.toml: cannot be read"),
    "not toml": ("mirror:broken.toml", "broken.toml: not TOML"),
    "no children": ("mirror:bad.toml", "bad.toml: children: expected children = "),
    "more keys": ("mirror:more.toml", "more.toml: quorum: expected children = "),
    "itself": ("mirror:itself.toml", "nested more than 8 deep"),
}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files that specs name, in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.toml").write_text("driver = 'tiny'\n")
    (tmp_path / "broken.toml").write_text("children = \n")
    (tmp_path / "more.toml").write_text("children = ['a', 'b']\nquorum = 1\n")
    (tmp_path / "itself.toml").write_text("children = ['mirror:itself.toml', 'emulated:ideal']\n")
    (tmp_path / "nodriver.toml").write_text(recipe().replace('"tiny"', '"nosuch"'))
    (tmp_path / "tiny.toml").write_text(recipe())
    return tmp_path


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("ask", [resolve, lambda text: check(text, 1.0), lambda text: Providers("x").provide("", text)])
def test_wrong_spec_is_refused_in_one_line(case: str, ask: Callable[[str], object]) -> None:
    text, message = BAD[case]
    with pytest.raises(UsageError) as caught:
        ask(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


SECRET = [
    "opendal:s3?secret_access_key=hush-hush&x",
    "opendal:s3?secret_access_key=hush-hush&secret_access_key=b",
    " opendal :s3?secret_access_key=hush-hush",
    "opendal:s3?token=hush-hush&account_number=300",
    "dropbox?token_env=X&account_number=3&refresh_token=hush-hush",
    "local:webdav?profile=x&password=hush-hush",
    "raid:2/3:(opendal:s3?bucket=b&secret_access_key=hush-hush),(folder:x)",
    "mirror:(opendal:s3?secret_access_key=hush-hush),()",
    "mirror:(opendal:s3?secret_access_key=hush%2Dhush&account_number=1),folder:x",
    "webdav:https://me:hush-hush@host/x?unknown=1",
    "dropbox?token_env=hush-hush",
    "dropbox:http://me:hush-hush@host/",
    "mirror:(local:webdav?password=hush-hush),folder:x,folder:./x",
]


@pytest.mark.parametrize("spec", SECRET)
def test_a_refused_spec_shows_no_secret(spec: str) -> None:
    with pytest.raises(UsageError) as caught:
        check(spec, 1.0)
    assert "hush" not in str(caught.value)


def test_only_emulators_run_faster() -> None:
    check("mirror:emulated:ideal,emulated:ideal", 10.0)
    with pytest.raises(UsageError, match="--time-scale 10 needs an emulated provider: mirror:"):
        check("mirror:emulated:ideal,folder:x", 10.0)


def test_resolving_needs_no_credentials_but_checking_does(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACCESS_TOKEN", "REFRESH_TOKEN", "APP_KEY", "2_ACCESS_TOKEN"):
        monkeypatch.delenv(f"CLOUDBENCH_DROPBOX_{name}", raising=False)
    resolve("mirror:dropbox,dropbox")
    with pytest.raises(
        CredentialsError, match=r"dropbox: no credentials found: run .*; or set CLOUDBENCH_DROPBOX_ACCESS_TOKEN"
    ):
        check("mirror:dropbox,dropbox", 1.0)
    monkeypatch.setenv("CLOUDBENCH_DROPBOX_ACCESS_TOKEN", "one")
    with pytest.raises(
        CredentialsError, match=r"dropbox-2: no credentials found: run .*; or set CLOUDBENCH_DROPBOX_2_ACCESS_TOKEN"
    ):
        check("mirror:dropbox,dropbox", 1.0)
    monkeypatch.setenv("CLOUDBENCH_DROPBOX_2_ACCESS_TOKEN", "two")
    check("mirror:dropbox,dropbox", 1.0)


def test_only_a_part_of_a_provider_may_be_lost(tmp_path: Path) -> None:
    check(f"mirror:emulated:ideal,folder:{tmp_path}/lost", 1.0)
    with pytest.raises(SpecError, match=r"there is no folder .*/lost"):
        check(f"folder:{tmp_path}/lost", 1.0)


def test_equal_children_without_a_service_are_two_accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDBENCH_DROPBOX_ACCESS_TOKEN", "token-of-one")
    monkeypatch.setenv("CLOUDBENCH_DROPBOX_2_ACCESS_TOKEN", "token-of-two")
    monkeypatch.setenv("MINE", "token-of-mine")
    provided = Providers("x").provide("", "mirror:dropbox,(dropbox?token_env=MINE),dropbox")
    driver: Any = connect(provided)
    tokens = [child._client._oauth2_access_token for child in driver.children]
    assert tokens == ["token-of-one", "token-of-mine", "token-of-two"]
    assert (provided.emulated, provided.is_kept, provided.has_services, provided.digest) == ("none", True, False, None)
    driver.close()


# --- data for agents ---


TWO = "mirror:emulated:ideal,emulated:ideal"
DEEP = "mirror:emulated:ideal,(mirror:emulated:ideal,emulated:dropbox)"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Providers]:
    """One run with real services, shared by all tests that do not end one."""
    new_run = Providers("seed", logs=tmp_path_factory.mktemp("logs"))
    yield new_run
    new_run.close()


def test_tree_is_plain_data_and_each_child_is_its_own_account(run: Providers) -> None:
    provided = run.provide("gw0", DEEP)
    assert Provided.from_plain(json.loads(json.dumps(provided.plain()))) == provided
    assert run.provide("gw1", DEEP) is provided, "found out once"
    assert (provided.emulated, provided.is_kept, provided.has_services, provided.profile) == ("all", False, True, None)
    assert [child.profile for child in provided.children] == ["ideal", None]
    inner = provided.children[1].children
    endpoints = [child.endpoint for child in (provided.children[0], *inner)]
    assert len({endpoint.url for endpoint in endpoints if endpoint}) == 3
    assert len({endpoint.credentials["access_token"] for endpoint in endpoints if endpoint}) == 3


def test_equal_children_store_separate_files(run: Providers, content: Content) -> None:
    driver: Any = connect(run.provide("", TWO))
    driver.put("/both", content)
    first, second = driver.children
    first.delete("/both")
    with pytest.raises(CloudError, match="not_found"):
        first.stat("/both")
    assert second.stat("/both").size_bytes == content.size_bytes
    run.reset(TWO)
    with pytest.raises(CloudError, match="not_found"):
        second.stat("/both")
    driver.close()


def test_digests_tell_trees_apart(run: Providers, tmp_path: Path) -> None:
    part = f"mirror:emulated:ideal,folder:{tmp_path}/x"
    for text in (TWO, DEEP, "emulated:ideal", part):
        run.provide("", text)
    digests = [run.digest(text) for text in (TWO, DEEP, "emulated:ideal")]
    assert None not in digests
    assert len(set(digests)) == 3
    assert run.digest(part) is None
    assert run.digest("nothing") is None


def test_every_part_of_a_recipe_that_decides_how_its_server_behaves_is_in_its_digest(files: Path) -> None:
    texts = ["", 'setup = ["true"]\n', 'setup = ["false"]\n', 'params = { a = "1" }\n', 'params = { a = "2" }\n']
    digests = []
    for text in texts:
        (files / "own.toml").write_text(text + recipe())
        stand_in = find_stand_in(ProviderSpec.parse("served:own.toml"))
        assert stand_in is not None
        digests.append(stand_in.digest)
    assert len(set(digests)) == len(texts)


@pytest.mark.parametrize(
    ("text", "emulated", "is_kept"),
    [
        ("emulated:ideal", "all", False),
        ("folder:{}/x", "none", True),
        (TWO, "all", False),
        ("mirror:emulated:ideal,folder:{}/x", "some", True),
        ("mirror:folder:{0}/y,folder:{0}/x", "none", True),
    ],
)
def test_tree_combines_emulated_and_kept_state_of_its_children(
    run: Providers, tmp_path: Path, text: str, emulated: str, is_kept: bool
) -> None:
    provided = run.provide("", text.format(tmp_path))
    assert (provided.emulated, provided.is_kept) == (emulated, is_kept)


def server_pids(logs: Path) -> list[int]:
    return [
        int(pid) for log in sorted(logs.glob("server-*.log")) for pid in re.findall(r"process (\d+)", log.read_text())
    ]


def test_the_services_of_one_provider_are_all_started_or_none(files: Path) -> None:
    (files / "fails.toml").write_text(recipe(program=files / "nothing.py"))
    own = Providers("seed", logs=files / "logs")
    with pytest.raises(ServiceError, match=r"the server tiny server did not start: .*nothing\.py"):
        own.provide("", "mirror:served:tiny.toml,served:fails.toml")
    (pid,) = server_pids(files / "logs")
    assert not psutil.pid_exists(pid)
    own.close()


def test_dead_server_is_named(files: Path) -> None:
    own = Providers("seed", logs=files / "logs")
    text = "mirror:served:tiny.toml,served:tiny.toml"
    own.provide("", text)
    assert own.died(text) == own.died("another") == ""
    psutil.Process(server_pids(files / "logs")[1]).kill()
    limit_s = time.monotonic() + 30
    while not own.died(text):
        assert time.monotonic() < limit_s
    assert re.fullmatch(
        rf"the server of served:tiny\.toml \(child 2 of {text}\) died \(.*killed by signal 9\)\)", own.died(text)
    )
    with pytest.raises(ServiceError, match=r"the server died: served:tiny\.toml \(child 2 of"):
        own.close()
    assert not any(map(psutil.pid_exists, server_pids(files / "logs")))


# --- from a file, and from any folder ---


def test_a_file_names_children(files: Path) -> None:
    (files / "two.toml").write_text("children = ['emulated:ideal', 'folder:x']\n")
    spelled_out, from_file = (
        providers.resolve(text) for text in ("mirror:emulated:ideal,folder:x?note=1", "mirror:two.toml?note=1")
    )
    assert [leaf.spec for leaf in from_file.leaves()] == [leaf.spec for leaf in spelled_out.leaves()]
    assert from_file.bound.spec.params == {"note": "1"}
    absolute = from_file.absolute()
    assert absolute == f"mirror:(emulated:ideal),(folder:{files}/x)?note=1"
    assert providers.resolve(absolute).absolute() == absolute


def test_a_spec_may_name_the_second_account() -> None:
    part = providers.resolve("dropbox?account_number=2&timeout_s=9")
    assert (part.account, part.bound.spec.text) == (2, "dropbox?timeout_s=9")
    assert part.bound.spec.params == {"timeout_s": "9"}
    assert providers.resolve(part.absolute()).account == 2
    assert providers.resolve("dropbox?account_number=2").bound.spec.text == "dropbox"


def test_a_child_may_be_a_file_of_its_own(files: Path) -> None:
    (files / "mine.toml").write_text('[meta]\nname = "mine"\napi = "dropbox"\ndescription = "x"\n')
    part = providers.resolve("mirror:emulated:mine.toml,emulated:mine.toml")
    assert [leaf.stand_in and leaf.stand_in.profile for leaf in part.leaves()] == ["mine", "mine"]
    assert part.absolute() == f"mirror:(emulated:{files}/mine.toml),(emulated:{files}/mine.toml)"


def test_folder_of_killed_run_on_a_tree_is_removed_with_new_services(files: Path, content: Content) -> None:
    """As with ``cloudbench clean``, the old services are gone, and new ones are started."""
    (files / "kept").mkdir()
    spec = providers.resolve("mirror:folder:kept,served:tiny.toml").absolute()
    with opened("folder:kept") as driver:
        journal.claim_folder(driver, spec, "/cloudbench-one", "nobody")
        driver.put("/cloudbench-one/exp/a.bin", content)
    (note,), problems = journal.pending_folders()
    assert (note.provider, problems) == (spec, [])
    with opened(note.provider) as driver:
        assert journal.remove_folder(driver, note) == ""
    assert list((files / "kept").iterdir()) == []
    assert journal.pending_folders() == ([], [])


def test_a_recipe_that_cannot_be_read_is_no_other_error(files: Path) -> None:
    with pytest.raises(ConfigError, match=r"bad\.toml: name"):
        check("served:bad.toml", 1.0)
