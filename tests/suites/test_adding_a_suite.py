"""docs/extending/suite.md, followed to the letter in a copy: it runs there with its figure, and its tests pass."""

from __future__ import annotations

import pytest

from tests.followed_page import FollowedPage, follow_page, run_in

PLACES = {
    "suites/smallfile/__init__.py",
    "suites/smallfile/test_smallfile.py",
    "suites/smallfile/conftest.py",
    "suites/expectations.toml",
    "tests/suites/test_smallfile.py",
    "docs/suites/smallfile.md",
    "mkdocs.yml",
    "docs/suites.md",
    "changelog.d/+suite-smallfile.feature.md",
}


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> FollowedPage:
    return follow_page("extending/suite.md", tmp_path_factory.mktemp("adding") / "copy")


def test_page_lists_exactly_the_files_that_change(followed: FollowedPage) -> None:
    assert set(followed.touched) == PLACES


@pytest.mark.slow
def test_its_own_tests_pass(followed: FollowedPage) -> None:
    done = followed.run("-q", "tests/suites/test_smallfile.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


@pytest.mark.slow
def test_its_expectation_is_met(followed: FollowedPage) -> None:
    done = followed.run("suites/smallfile", "--provider", "emulated:ideal", "-n", "2", "-ocloudbench_max_lateness=60")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("expectation met") + done.stdout.count("expectations met") == 2, done.stdout


@pytest.mark.slow
def test_its_figure_is_drawn_and_its_conclusion_gated(followed: FollowedPage) -> None:
    """The report is made later, when the suite is gone; an expectation and a gate can name the conclusion."""
    done = followed.run(
        "suites/smallfile", "--provider", "folder:objects", "--benchmark-json=small.json",
        "--cloudbench-fail", "small_put:60",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "gate small_put:60: " in done.stdout
    suite = followed.folder / "suites" / "smallfile"
    suite.rename(followed.folder / "gone")
    try:
        made = run_in(
            followed.folder, "-m", "pytest_cloudbench.commands.cli", "report", "small.json", "--output", "small.html"
        )
        words = ("export", "--format", "openmetrics", "--metric", "small_put", "small.json")
        told = run_in(followed.folder, "-m", "pytest_cloudbench.commands.cli", *words)
    finally:
        (followed.folder / "gone").rename(suite)
    assert made.returncode == 0, made.stderr
    assert "Time of a small upload over its size" in (followed.folder / "small.html").read_text("utf-8")
    assert "lower is better" in told.stdout, told.stdout + told.stderr


@pytest.mark.slow
def test_its_page_is_in_the_site(followed: FollowedPage) -> None:
    done = followed.run("-q", "tests/test_docs.py", "-k", "links or nav or site")
    assert done.returncode == 0, done.stdout + done.stderr
