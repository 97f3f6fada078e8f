"""Tables fit terminals of any width, and keep all their content."""

from __future__ import annotations

import pytest

from pytest_cloudbench.report.columns import fit_to_width

HOW = "unchanged content is not sent, even if it has moved (rolling); 12.3 KiB for a small edit"
VERDICTS = [
    ["capability", "service", "answer", "how", "confidence", "imc 2013 yes"],
    ["Delta-encoding", "syncthing?compression=always", "yes", HOW, "0.9312", "Dropbox"],
    ["Chunking", "reference", "no", "one piece, up to 48 MiB", "1", "all but Cloud Drive"],
]
NUMBERS = [
    [f"column {number}" for number in range(14)],
    *[[f"{row * 10_000 + number:,}" for number in range(14)] for row in range(3)],
]
PATHS = [["client", "file"], ["/" + "a" * 300, "12 %"], ["b", "/" + "/".join("cd" * 60)]]


@pytest.mark.parametrize("width", [60, 79, 80, 100, 120, 137, 200])
@pytest.mark.parametrize("rows", [VERDICTS, NUMBERS, PATHS], ids=["verdicts", "numbers", "paths"])
def test_lines_fit_and_keep_all_content(rows: list[list[str]], width: int) -> None:
    lines = fit_to_width(rows, width)
    assert max(map(len, lines)) <= width
    text = "".join(lines)
    for row in rows:
        for cell in row:
            for word in cell.split():
                assert all(text.count(letter) >= word.count(letter) for letter in word), word
                assert len(word) > 24 or word in text, word


def test_fitting_table_has_one_line_per_row() -> None:
    assert fit_to_width([["size", "mean ms"], ["7", "12.3"], ["1,000", "1.5"]], 80) == [
        " size  mean ms",
        "--------------",
        "    7     12.3",
        "1,000      1.5",
    ]


def test_wide_text_is_folded() -> None:
    assert fit_to_width([["name", "how", "n"], ["one", "a text that is longer than there is room", "1"]], 30) == [
        "name  how                    n",
        "------------------------------",
        " one  a text that is longer  1",
        "      than there is room",
    ]


def test_numbers_below_a_folded_title_end_at_the_right() -> None:
    assert fit_to_width([["size", "clock offset ms"], ["10 MB", "5"], ["1 MB", "12.5"]], 16) == [
        " size      clock",
        "       offset ms",
        "----------------",
        "10 MB          5",
        " 1 MB       12.5",
    ]


def test_continued_table_repeats_identifying_columns() -> None:
    rows = [["a", "b", "cccccccccccc", "dddddddddddd"], ["1", "1", "5", "6"], ["1", "2", "7", "8"]]
    assert fit_to_width(rows, 20) == [
        "a  b  cccccccccccc",
        "------------------",
        "1  1             5",
        "1  2             7",
        "a  b  dddddddddddd",
        "------------------",
        "1  1             6",
        "1  2             8",
    ]


def test_further_columns_follow_below_with_first_column() -> None:
    assert fit_to_width([["key", "aaaaaaaaaa", "bbbbbbbbbb", "cccccccccc"], ["x", "1", "2", "3"]], 30) == [
        "key  aaaaaaaaaa  bbbbbbbbbb",
        "---------------------------",
        "  x           1           2",
        "key  cccccccccc",
        "---------------",
        "  x           3",
    ]


@pytest.mark.parametrize("width", [40, 60, 80, 100])
@pytest.mark.parametrize("pairs", [3, 7, 8])
def test_an_attached_column_is_beside_the_one_before_it(pairs: int, width: int) -> None:
    head = ["run", *(title for number in range(pairs) for title in (f"metric{number}", "difference"))]
    rows = [head, *[[run, *["12.5 ms", "+1.0 %"] * pairs] for run in ("0001_run", "0002_run")]]
    lines = fit_to_width(rows, width, attached=range(2, len(head), 2))
    assert max(map(len, lines)) <= width
    titles = [line.split() for line in lines if "difference" in line]
    assert [word for line in titles for word in line if word != "run"] == head[1:]
    assert all(line[0] == "run" and line[1] != "difference" for line in titles)
