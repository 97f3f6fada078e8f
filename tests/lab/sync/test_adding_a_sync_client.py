"""The client of docs/extending/sync-client.md, added to a copy of the project, conforms and is measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.followed_page import FollowedPage, follow_page

CHANGED_FILES = {
    "src/pytest_cloudbench/lab/clients/tarpipe.py",
    "src/pytest_cloudbench/lab/clients/__init__.py",
    "tests/lab/clients/test_conformance.py",
    "tests/lab/clients/test_registry.py",
    "changelog.d/+tarpipe.feature.md",
    "test_photos.py",
}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> FollowedPage:
    return follow_page("extending/sync-client.md", tmp_path_factory.mktemp("adding") / "copy")


def test_page_lists_exactly_the_files_that_change(page: FollowedPage) -> None:
    assert set(page.touched) == CHANGED_FILES


@pytest.mark.slow
def test_the_client_conforms(page: FollowedPage) -> None:
    run = page.run(
        "-q", "tests/lab/clients/test_conformance.py", "tests/lab/clients/test_registry.py", "-k", "tarpipe or names"
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "5 passed, 1 skipped" in run.stdout, run.stdout


@pytest.mark.slow
def test_it_keeps_the_rules_and_needs_nothing_installed(page: FollowedPage) -> None:
    run = page.run(
        "-q",
        "tests/test_architecture.py",
        "tests/commands/test_testbed.py",
        "-k",
        "tarpipe or can_be_installed or clients",
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("can_link", "can_capture")
def test_it_is_measured(page: FollowedPage, tmp_path: Path) -> None:
    run = page.run(
        "test_photos.py", "--client", "tarpipe", "--cloudbench-fail", "tue:2.5", f"--basetemp={tmp_path / 'b'}"
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "1 passed" in run.stdout
    failing_run = page.run(
        "test_photos.py", "--client", "tarpipe", "--cloudbench-fail", "tue:1.5", f"--basetemp={tmp_path / 'b'}"
    )
    assert failing_run.returncode == 1, failing_run.stdout
    assert "gate tue:1.5: " in failing_run.stdout
