"""INI texts of Python 2: values as its own parser reads them, their types, and errors of one clear line.

``python2_ini.jsonl`` holds texts and the results of SafeConfigParser of Python 2.7.18: every value with its
references expanded, null for a value that it refused, null in place of the sections for a text that it refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_cloudbench.model import ConfigError
from pytest_cloudbench.plugin.configs.ini import Ini, parse_ini, quote_value
from tests.limits import scale_examples

MANY = settings(deadline=None, max_examples=scale_examples(300))
RECORDED = [json.loads(line) for line in (Path(__file__).parent / "python2_ini.jsonl").read_text("utf-8").splitlines()]
PIECES = st.sampled_from(
    ["[s]\n", "[t]", "[DEFAULT]\n", *"[]aB =:;#%\n\x00\u2028\xa0", "rem ", "\n ", " ;", "%%", "%(a)s", "%(b)s", '""']
)


def read_values(ini: Ini) -> dict[str, dict[str, str | None]]:
    values: dict[str, dict[str, str | None]] = {}
    for section, keys in ini.sections.items():
        values[section] = {}
        for key in {**ini.defaults, **keys}:
            try:
                values[section][key] = ini.text(section, key)
            except ConfigError:
                values[section][key] = None
    return values


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda recorded: recorded["about"].replace(" ", "-"))
def test_texts_are_parsed_as_by_python_2(recorded: dict[str, Any]) -> None:
    if recorded["sections"] is None:
        with pytest.raises(ConfigError, match=r"^old\.conf: line \d+: expected "):
            parse_ini(recorded["text"], "old.conf")
    else:
        assert read_values(parse_ini(recorded["text"], "old.conf")) == recorded["sections"]


def test_the_recorded_texts_contain_refused_ones() -> None:
    assert len(RECORDED) > 40
    assert sum(recorded["sections"] is None for recorded in RECORDED) >= 5


@pytest.mark.parametrize("text", ["True", "true", "YES", "on", "1"])
def test_true_booleans(text: str) -> None:
    assert parse_ini(f"[s]\nk = {text}\n", "f").boolean("s", "k") is True


@pytest.mark.parametrize("text", ["False", "no", "OFF", "0"])
def test_false_booleans(text: str) -> None:
    assert parse_ini(f"[s]\nk = {text}\n", "f").boolean("s", "k") is False


@pytest.mark.parametrize("text", ["", "2", "t", "y", "None", "yes no", "tru"])
def test_invalid_booleans(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_ini(f"[s]\nk = {text}\n", "f").boolean("s", "k")
    assert str(caught.value) == f"f: s.k: expected True or False, found {text!r}"


@pytest.mark.parametrize(("text", "value"), [("0", 0), ("007", 7), ("+5", 5), ("-3", -3), ("9" * 18, 10**18 - 1)])
def test_whole_numbers(text: str, value: int) -> None:
    assert parse_ini(f"[s]\nk = {text}\n", "f").whole_number("s", "k") == value


@pytest.mark.parametrize("text", ["", "1.5", "1_000", "1e3", "0x10", "10L", "- 3", "\u0663", "9" * 19, "9" * 5000])
def test_invalid_whole_numbers(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^f: s\.k: expected a whole number, 1 or more, found '"):
        parse_ini(f"[s]\nk = {text}\n", "f").whole_number("s", "k", 1)


def test_a_whole_number_may_have_a_minimum() -> None:
    assert parse_ini("[s]\nk = 1", "f").whole_number("s", "k", 1) == 1
    with pytest.raises(ConfigError, match=r"expected a whole number, 2 or more, found '1'$"):
        parse_ini("[s]\nk = 1", "f").whole_number("s", "k", 2)


@pytest.mark.parametrize(("text", "value"), [("0", 0.0), ("1", 1.0), ("0.9", 0.9), (".5", 0.5), ("5e-1", 0.5)])
def test_shares(text: str, value: float) -> None:
    assert parse_ini(f"[s]\nk = {text}\n", "f").share("s", "k") == value


@pytest.mark.parametrize("text", ["", "90%%", "\u0660", "1.01", "-0.1", "nan", "inf", "0.1_1", "half"])
def test_invalid_shares(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^f: s\.k: expected a number from 0 to 1, found '"):
        parse_ini(f"[s]\nk = {text}\n", "f").share("s", "k")


def test_lines_are_joined_by_one_space() -> None:
    ini = parse_ini("[s]\nk =\n  one  two\n\n  three\n", "f")
    assert ini.text("s", "k") == "\none  two\nthree"
    assert ini.line("s", "k") == "one  two three"


def test_a_key_that_is_missing_is_named() -> None:
    ini = parse_ini("[DEFAULT]\nd = 1\n[s]\na = 1\n", "f")
    assert ini.has("s", "a")
    assert ini.has("s", "d")
    assert not ini.has("s", "b")
    assert not ini.has("t", "d"), "a section that is not there inherits nothing"
    with pytest.raises(ConfigError, match=r"^f: s\.b: is missing; expected the path of a file$"):
        ini.text("s", "b", "the path of a file")


def test_single_percent_sign_error_explains_its_escape() -> None:
    with pytest.raises(
        ConfigError, match=r"^f: s\.k: expected %% or %\(name\)s, found '% of it'; %% is a percent sign$"
    ):
        parse_ini("[s]\nk = 90 % of it", "f").text("s", "k")


@pytest.mark.parametrize("last", ["x" * 99, ""])
def test_references_that_multiply_end_soon(last: str) -> None:
    """Each of nine levels refers to the next one twenty times, which makes 20 to the power of 9 references."""
    keys = "".join(f"k{level} = {f'%(k{level + 1})s' * 20}\n" for level in range(9))
    with pytest.raises(ConfigError, match=r"^f: s\.k0: is longer than 1000000 characters"):
        parse_ini(f"[s]\n{keys}k9 = {last}\n", "f").text("s", "k0")


def test_a_byte_order_mark_is_not_part_of_the_text() -> None:
    assert parse_ini("\ufeff[s]\na = 1", "f").sections == {"s": {"a": "1"}}


def test_a_long_value_is_cut_off_for_a_message() -> None:
    assert quote_value("x" * 60) == repr("x" * 60)
    assert quote_value("x" * 61) == repr("x" * 57 + "...")
    assert quote_value("a\nb") == r"'a\nb'"


@given(st.one_of(st.text(max_size=60), st.lists(PIECES, max_size=25).map("".join)))
@MANY
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    try:
        ini = parse_ini(text, "f")
    except ConfigError as error:
        line = str(error)
        assert line.startswith("f: line ")
        assert "\n" not in line
        return
    for section, keys in read_values(ini).items():
        assert keys.keys() == {**ini.defaults, **ini.sections[section]}.keys()
