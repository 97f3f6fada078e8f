"""docs/adding-a-suite.md, followed to the letter in a copy: the suite runs there, and its own tests pass."""

from __future__ import annotations

import pytest

from tests.adding import Followed, follow

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
def followed(tmp_path_factory: pytest.TempPathFactory) -> Followed:
    return follow("adding-a-suite.md", tmp_path_factory.mktemp("adding") / "copy")


def test_these_places_and_no_others_change(followed: Followed) -> None:
    assert set(followed.touched) == PLACES


@pytest.mark.slow
def test_its_own_tests_pass(followed: Followed) -> None:
    done = followed.run("-q", "tests/suites/test_smallfile.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


@pytest.mark.slow
def test_its_expectation_is_met(followed: Followed) -> None:
    done = followed.run("suites/smallfile", "--provider", "emulated:ideal", "-n", "2", "--cloudbench-max-lateness=60")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 expectation met" in done.stdout, done.stdout


@pytest.mark.slow
def test_its_page_is_in_the_site(followed: Followed) -> None:
    done = followed.run("-q", "tests/test_docs.py", "-k", "links or nav or site")
    assert done.returncode == 0, done.stdout + done.stderr
