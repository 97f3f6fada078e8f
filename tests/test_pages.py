"""The documents stay few and short, and no page is named that is not there."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
NAMING = ("src", "suites", "examples", "tests", "tools", "benchmarks")
ENDINGS = {".py", ".toml", ".json", ".md", ".yml", ".ini", ".cfg"}
MADE_BY_TESTS = {"suites/smallfile.md", "a.md"}
"""Pages that only a test's copy of the project has."""


def words(text: str) -> int:
    """Return the number of words in a text. A word has a letter or a digit, so that bars of tables are none."""
    return sum(bool(re.search(r"[^\W_]", word)) for word in text.split())


def section(nav: str, title: str) -> list[str]:
    """Return the pages of a section of the site's navigation, in their order."""
    body = nav.partition(f"\n  - {title}:\n")[2]
    own = re.split(r"^  - ", body, maxsplit=1, flags=re.MULTILINE)[0]
    return re.findall(r"(\S+\.md)$", own, re.MULTILINE)


def named_pages(texts: Iterable[str]) -> set[str]:
    """Return the paths below ``docs`` that texts name."""
    return {name for text in texts for name in re.findall(r"(?<![\w.])docs/([\w/.-]+?\.md)\b", text)}


NAV = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:")[2]
GUIDE = section(NAV, "Guide")


def test_user_guide_has_at_most_twelve_pages() -> None:
    assert 0 < len(GUIDE) <= 12
    assert GUIDE[0] == "index.md"


def test_every_page_is_in_the_navigation_once() -> None:
    assert sorted(re.findall(r"(\S+\.md)$", NAV, re.MULTILINE)) == PAGES


def test_all_pages_together_are_short() -> None:
    texts = [(DOCS / page).read_text("utf-8") for page in PAGES if not page.startswith("decisions/")]
    assert sum(map(words, texts)) <= 38_350


def test_gates_are_explained_on_one_page() -> None:
    assert len((DOCS / "gates.md").read_text("utf-8").split()) <= 900


@pytest.mark.parametrize("page", [*GUIDE, *section(NAV, "Reference")])
def test_a_page_begins_with_its_purpose_and_an_example(page: str) -> None:
    heading, purpose, *others = re.split(r"\n{2,}", (DOCS / page).read_text("utf-8"))
    assert heading.startswith("# ")
    assert words(purpose) >= 5
    assert any(block.startswith("```") for block in others[:3]), "no example among the first blocks"


def test_the_first_page_says_how_to_run_from_several_machines() -> None:
    first = " ".join((DOCS / "index.md").read_text("utf-8").split())
    assert "How do I run it from several machines?" in first
    assert "](experiments.md#from-several-machines)" in first


def test_no_file_names_a_page_that_is_not_there() -> None:
    files = [path for folder in NAMING for path in (ROOT / folder).rglob("*") if path.suffix in ENDINGS]
    files += [ROOT / "pyproject.toml", *ROOT.glob("*.md")]
    texts = [path.read_text("utf-8") for path in files if path != Path(__file__)]
    assert named_pages(texts) - {*PAGES} <= MADE_BY_TESTS


def test_reading_of_the_navigation_and_of_names() -> None:
    nav = "\n  - Guide:\n      - Start: index.md\n      - a/b.md\n  - Other:\n      - c.md\n"
    assert section(nav, "Guide") == ["index.md", "a/b.md"]
    assert named_pages(["see docs/a/b.md, (docs/c-d.md)", "https://x.com/docs/#e", "mydocs/f.md"]) == {
        "a/b.md",
        "c-d.md",
    }
    assert words("| a-b | 1 |\n|---|---|\n") == 2
