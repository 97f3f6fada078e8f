"""docs/extending/suite.md, followed to the letter in a copy: it runs there with its figure, and its tests pass."""

from __future__ import annotations

import pytest

from tests.followed_page import FollowedPage, follow_page, run_in

CHANGED_PATHS = {
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
def page_copy(tmp_path_factory: pytest.TempPathFactory) -> FollowedPage:
    return follow_page("extending/suite.md", tmp_path_factory.mktemp("adding") / "copy")


def test_page_lists_exactly_the_files_that_change(page_copy: FollowedPage) -> None:
    assert set(page_copy.touched) == CHANGED_PATHS


@pytest.mark.slow
def test_its_own_tests_pass(page_copy: FollowedPage) -> None:
    done = page_copy.run("-q", "tests/suites/test_smallfile.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


@pytest.mark.slow
def test_its_expectation_is_met(page_copy: FollowedPage) -> None:
    done = page_copy.run("suites/smallfile", "--provider", "emulated:ideal", "-n", "2", "-ocloudbench_max_lateness=60")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("expectation met") + done.stdout.count("expectations met") == 2, done.stdout


@pytest.mark.slow
def test_its_figure_is_drawn_and_its_conclusion_gated(page_copy: FollowedPage) -> None:
    """The report is made later, when the suite is gone. An expectation and a gate can name the conclusion."""
    done = page_copy.run(
        "suites/smallfile", "--provider", "folder:objects", "--benchmark-json=small.json",
        "--cloudbench-fail", "small_put:60",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "gate small_put:60: " in done.stdout
    suite = page_copy.folder / "suites" / "smallfile"
    suite.rename(page_copy.folder / "gone")
    try:
        report = run_in(
            page_copy.folder, "-m", "pytest_cloudbench.commands.cli", "report", "small.json", "--output", "small.html"
        )
        words = ("export", "--format", "openmetrics", "--metric", "small_put", "small.json")
        export = run_in(page_copy.folder, "-m", "pytest_cloudbench.commands.cli", *words)
    finally:
        (page_copy.folder / "gone").rename(suite)
    assert report.returncode == 0, report.stderr
    assert "Time of a small upload over its size" in (page_copy.folder / "small.html").read_text("utf-8")
    assert "lower is better" in export.stdout, export.stdout + export.stderr


@pytest.mark.slow
def test_its_page_is_in_the_site(page_copy: FollowedPage) -> None:
    done = page_copy.run("-q", "tests/test_docs.py", "-k", "links or nav or site")
    assert done.returncode == 0, done.stdout + done.stderr
