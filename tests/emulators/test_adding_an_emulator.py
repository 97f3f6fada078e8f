"""Tests that follow docs/extending/emulator.md step by step, in a copy of the repository."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from pytest_cloudbench.services.child import Child
from tests.followed_page import copy_checkout, environment_of, listed_paths, parse_steps, run_in
from tests.limits import HANG_S

_ROOT = Path(__file__).parents[2]
_PAGE = (_ROOT / "docs" / "extending" / "emulator.md").read_text()
_EMULATE = (
    "import sys; from pytest_cloudbench.commands.cli import main; sys.exit(main(['emulate', 'pail', '--port', '0']))"
)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository after all steps of the page."""
    checkout = copy_checkout(tmp_path_factory.mktemp("copy") / "checkout")
    for step in parse_steps(_PAGE):
        step.do(checkout)
    return checkout


def test_page_lists_exactly_the_files_that_change() -> None:
    assert sorted(listed_paths(_PAGE)) == sorted(step.path for step in parse_steps(_PAGE))


@pytest.mark.slow
def test_its_tests_and_the_rules_of_the_code_pass(copy: Path) -> None:
    """Run the new emulator's tests and those of profiles and architecture. No other file has to change."""
    tests = ("tests/emulators/test_pail.py", "tests/emulators/test_emulator_profile.py", "tests/test_architecture.py")
    completed = run_in(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
    assert completed.returncode == 0, completed.stdout[-3000:] + completed.stderr[-1000:]
    assert re.search(r"^\d+ passed", completed.stdout, re.MULTILINE), completed.stdout[-300:]


@pytest.mark.slow
def test_its_code_is_formatted_and_clean(copy: Path) -> None:
    modules = [path for path in listed_paths(_PAGE) if path.endswith(".py")]
    for command in (("check",), ("format", "--check")):
        completed = run_in(copy, "-m", "ruff", *command, "--no-cache", *modules)
        assert completed.returncode == 0, completed.stdout + completed.stderr


@pytest.fixture
def address(copy: Path) -> Iterator[tuple[str, str, str]]:
    """The URL, the certificate authority and the token of an emulator that was started as the page says."""
    child = Child([sys.executable, "-c", _EMULATE], env=environment_of(copy), cwd=str(copy))
    try:
        ready = json.loads(child.readline(60))
        yield ready["urls"]["api"], ready["ca_file"], ready["credentials"]["token"]
    finally:
        child.stop()


@pytest.mark.slow
def test_it_answers_over_http(address: tuple[str, str, str]) -> None:
    url, ca_file, token = address
    trusted = ssl.create_default_context(cafile=ca_file)
    connection = http.client.HTTPSConnection(urlsplit(url).netloc, timeout=HANG_S, context=trusted)
    statuses = []
    for method, path in (
        ("PUT", "/a/b"),
        ("GET", "/a/b"),
        ("GET", "/?prefix=/a/"),
        ("DELETE", "/a/b"),
        ("GET", "/a/b"),
    ):
        connection.request(method, path, b"hello" if method == "PUT" else None, {"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        statuses.append(answer.status)
        body = answer.read()
        if path == "/?prefix=/a/":
            assert json.loads(body) == [["/a/b", 5, "5d41402abc4b2a76b9719d911017c592"]]
    connection.close()
    assert statuses == [201, 200, 200, 204, 404]


def test_without_its_registry_line_there_is_no_such_emulator(tmp_path: Path) -> None:
    """Without the registry line, a copy has no such emulator. The tests above thus ran the copy, not this checkout."""
    shutil.copytree(_ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for step in parse_steps(_PAGE):
        if "/pail/" in step.path:
            step.do(tmp_path)
    completed = run_in(tmp_path, "-c", _EMULATE)
    assert completed.returncode != 0
    assert "there is no such emulator" in completed.stderr + completed.stdout
