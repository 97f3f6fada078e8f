"""Many objects with the same keys as JSON text, made from columns without an object for each row."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

_encode = json.JSONEncoder(check_circular=False).encode
_encode_text = json.encoder.encode_basestring_ascii
_NONE = type(None)

Numbers = Sequence[float | None]


def encode_rows(
    columns: Mapping[str, Sequence[Any]], encode_numbers: Callable[[Numbers], Sequence[str]] | None = None
) -> Iterator[str]:
    """Yield the object that each row of these columns makes, as ``json.dumps`` writes it.

    Args:
        columns: the values of each key.
        encode_numbers: returns the texts of numbers and None, such as ``make_quick_number_encoder`` does.
    """
    if not columns:
        return iter(())
    texts = [_encode_column(values, encode_numbers or _encode_numbers) for values in columns.values()]
    # What is the same in all rows becomes part of the pattern, so that it is formatted once.
    parts = [text.replace("%", "%%") if isinstance(text, str) else "%s" for text in texts]
    keys = [_encode(key).replace("%", "%%") for key in columns]
    pattern = "{" + ", ".join(map("{}: {}".format, keys, parts)) + "}"
    varying = [text for text in texts if not isinstance(text, str)]
    if varying:
        return map(pattern.__mod__, zip(*varying, strict=True))
    return iter([pattern % ()] * len(next(iter(columns.values()))))


def make_quick_number_encoder() -> Callable[[Numbers], Sequence[str]]:
    """Return an encoder that takes a fifth of the time, but writes some exponents in another way than ``json`` does."""
    import msgspec  # which takes as long as some thousand numbers

    encode = msgspec.json.Encoder().encode
    return lambda numbers: encode(numbers)[1:-1].decode().split(",")


def _encode_numbers(numbers: Numbers) -> Sequence[str]:
    return ["null" if number is None else str(number) for number in numbers]


def _encode_column(values: Sequence[Any], encode_numbers: Callable[[Numbers], Sequence[str]]) -> str | Sequence[str]:
    """Return the JSON text of each value, or one text if it is the same for all."""
    kinds = set(map(type, values))
    if len(kinds) == 1 and kinds <= {int, str, bool, _NONE} and values.count(values[0]) == len(values):
        return _encode(values[0])
    if kinds <= {int, float, _NONE}:
        if isfinite(sum(value for value in values if value is not None) if _NONE in kinds else sum(values)):
            return encode_numbers(values)
    elif kinds <= {str, bool, _NONE}:  # most of them repeat
        texts = {value: _encode_text(value) if type(value) is str else _encode(value) for value in set(values)}
        return [texts[value] for value in values]
    elif kinds <= {dict, _NONE}:
        return _encode_objects(values, encode_numbers)
    elif kinds <= {list, _NONE}:
        return _encode_lists(values)
    return [_encode(value) for value in values]


def _encode_lists(values: Sequence[list[Any] | None]) -> str | Sequence[str]:
    """Return the JSON texts of a column of lists, most of which are often empty or missing."""
    lists = [value for value in values if value]
    if not lists and None not in values:
        return "[]"
    # Of integers alone, Python's text is JSON's.
    encode = str if {type(item) for value in lists for item in value} == {int} else _encode
    return ["null" if value is None else encode(value) if value else "[]" for value in values]


def _encode_objects(values: Sequence[Any], encode_numbers: Callable[[Numbers], Sequence[str]]) -> Sequence[str]:
    """Return the JSON texts of a column of objects, some of which may be None."""
    objects = [value for value in values if value]
    keys = tuple(objects[0]) if objects else ()
    if any(tuple(value) != keys for value in objects):
        return [_encode(value) for value in values]
    columns = zip(*(value.values() for value in objects), strict=True)
    texts = encode_rows(dict(zip(keys, columns, strict=True)), encode_numbers)
    return [next(texts) if value else _encode(value) for value in values]
