import pytest

from pytest_cloudbench.support.wording import format_count


@pytest.mark.parametrize(
    ("count", "words", "text"),
    [
        (1, ("run",), "1 run"),
        (0, ("run",), "0 runs"),
        (1200, ("run",), "1,200 runs"),
        (1, ("entry", "entries"), "1 entry"),
        (2, ("killed run has", "killed runs have"), "2 killed runs have"),
    ],
)
def test_numbers_with_their_nouns(count: int, words: tuple[str, ...], text: str) -> None:
    assert format_count(count, *words) == text
