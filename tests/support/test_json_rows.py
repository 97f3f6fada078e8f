"""Rows of columns as JSON text, compared with the standard library's."""

from __future__ import annotations

import json
import random
from math import inf, nan
from typing import Any

import pytest

from pytest_cloudbench.support.json_rows import encode_rows, make_quick_number_encoder

COLUMNS: dict[str, list[Any]] = {
    "count": [0, -1, 2**70, 7, 1],
    "size": [None, 3, None, 0, 1],
    "first_s": [1700000000.123456, 1e-07, 1e22, -0.0, 5e-324],
    "rtt_s": [None, 8.1e-05, 0.5, None, 1e16],
    "of both kinds": [1, 1.5, None, 0, 2.0],
    "odd": [inf, 1.0, None, nan, -inf],
    "up": [True, False, None, True, "true"],
    'a 100 % odd "key", é': ['a "quoted" name', "\u00e9\u2028", "\ud800", "", "a % b\\\n"],
    "no value": [None] * 5,
    "truths and numbers": [True, 1, False, 0, None],
    "names": [[], ["a", "é"], [], ["}, {"], [None]],
    "chunks": [None, [1, 2], [], [2**40], None],
    "replies": [{"count": 1, "min": 0.1}, None, {"count": 2, "min": None}, {"count": 0, "min": 1e-9}, None],
    "mixed objects": [{"a": 1}, {"b": 2}, {}, None, {"a": 1}],
    "anything": ["a", 1, [1], {"a": []}, None],
}


def test_rows_are_written_as_the_standard_library_writes_them() -> None:
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in zip(*COLUMNS.values(), strict=True)]
    assert [json.dumps(row) for row in rows] == list(encode_rows(COLUMNS))


@pytest.mark.parametrize("name", COLUMNS)
def test_one_column_in_any_order_is_written_as_the_standard_library_writes_it(name: str) -> None:
    draw = random.Random(name)
    for count in range(8):
        values = draw.choices(COLUMNS[name], k=count)
        assert [json.dumps({name: value}) for value in values] == list(encode_rows({name: values}))


@pytest.mark.parametrize("name", COLUMNS)
def test_a_quick_encoder_of_numbers_writes_the_same_values(name: str) -> None:
    values = [value for value in COLUMNS[name] if value != 2**70]  # more than 64 bits
    rows = [json.loads(row) for row in encode_rows({name: values}, make_quick_number_encoder())]
    assert repr([{name: value} for value in values]) == repr(rows)


def test_no_columns_have_no_rows() -> None:
    assert list(encode_rows({})) == []
