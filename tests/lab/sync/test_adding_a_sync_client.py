"""docs/extending/sync-client.md, followed to the letter in a copy: the client conforms, and is measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.followed_page import FollowedPage, follow_page

PLACES = {
    "src/pytest_cloudbench/lab/clients/tarpipe.py",
    "src/pytest_cloudbench/lab/clients/__init__.py",
    "tests/lab/clients/test_conformance.py",
    "tests/lab/clients/test_registry.py",
    "changelog.d/+tarpipe.feature.md",
    "test_photos.py",
}


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> FollowedPage:
    return follow_page("extending/sync-client.md", tmp_path_factory.mktemp("adding") / "copy")


def test_page_lists_exactly_the_files_that_change(followed: FollowedPage) -> None:
    assert set(followed.touched) == PLACES


@pytest.mark.slow
def test_the_client_conforms(followed: FollowedPage) -> None:
    done = followed.run(
        "-q", "tests/lab/clients/test_conformance.py", "tests/lab/clients/test_registry.py", "-k", "tarpipe or names"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed, 1 skipped" in done.stdout, done.stdout


@pytest.mark.slow
def test_it_keeps_the_rules_and_needs_nothing_installed(followed: FollowedPage) -> None:
    done = followed.run(
        "-q",
        "tests/test_architecture.py",
        "tests/commands/test_testbed.py",
        "-k",
        "tarpipe or can_be_installed or clients",
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("can_link", "can_capture")
def test_it_is_measured(followed: FollowedPage, tmp_path: Path) -> None:
    done = followed.run(
        "test_photos.py", "--client", "tarpipe", "--cloudbench-fail", "tue:2.5", f"--basetemp={tmp_path / 'b'}"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    broken = followed.run(
        "test_photos.py", "--client", "tarpipe", "--cloudbench-fail", "tue:1.5", f"--basetemp={tmp_path / 'b'}"
    )
    assert broken.returncode == 1, broken.stdout
    assert "gate tue:1.5: " in broken.stdout
