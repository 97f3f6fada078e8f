"""The facts of a run: names of files that are made from node ids."""

from __future__ import annotations

import re

import pytest

from pytest_cloudbench.fleet.run import slug


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("test_it.py::t[a+b]#1", "test_it.py::t[a/b]#1"),
        ("a/b_test_it.py::t", "a_b/test_it.py::t"),
        (f"first/{'x' * 150}", f"second/{'x' * 150}"),
        ("t[é]", "t[_]"),
    ],
)
def test_different_node_ids_have_different_file_names(text: str, other: str) -> None:
    assert slug(text) != slug(other)
    assert slug(text) == slug(text), "on every agent"
    for name in (slug(text), slug(other)):
        assert len(name) <= 150
        assert re.fullmatch(r"[\w.-]+-[0-9a-f]{8}", name)


def test_a_file_name_is_short_enough_in_bytes() -> None:
    slugs = {slug(text) for text in ("試" * 300 + "::t", "試" * 300 + "::u", "試" * 60, "試" * 300 + "t")}
    assert len(slugs) == 4
    for name in slugs:
        assert len(name.encode()) <= 150
        assert re.fullmatch(r"試+\w*-[0-9a-f]{8}", name), name


def test_a_text_that_is_a_file_name_stays_as_it_is() -> None:
    assert slug("dropbox-1.0_x") == "dropbox-1.0_x"
    assert slug("test_it.py::test_one[folder:objects]#1").startswith("test_it.py__test_one_folder_objects__1-")
