"""A table of providers to choose an array from: what each costs, how fast it is, and how often it answers.

What may live here: reading the table. Whatever the file contains, ``load_offers`` raises only ConfigError::

    [[offer]]
    spec = "s3://bucket"
    store_usd_per_gib_month = 0.023
    mb_per_s = 40                   # throughput, megabytes per second
    availability = 0.9999           # how often it answers, 0 to 1
    operator = "one company"        # optional: children of one operator may fail together
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

from pytest_cloudbench import opening
from pytest_cloudbench.coding.choice import Offer
from pytest_cloudbench.model import ConfigError, did_you_mean

__all__ = ["GIB_BYTES", "load_offers"]

GIB_BYTES = 1 << 30
_BOUNDS = {"store_usd_per_gib_month": (0.0, 1e6), "mb_per_s": (1e-6, 1e6), "availability": (0.0, 1.0)}
_KEYS = ("spec", *_BOUNDS, "operator")


def load_offers(path: str | Path) -> list[Offer]:
    """Returns what a file offers; prices are USD per byte and month. Raises ConfigError, in one line."""
    source = str(path)
    table = opening.read_toml(path, "a table of offers")
    for key in table:
        if key != "offer":
            _fail(source, ascii(key)[1:-1], f"unknown; expected [[offer]]{did_you_mean(key, ['offer'])}")
    rows = table.get("offer")
    if not isinstance(rows, list) or not rows:
        _fail(source, "offer", "expected one [[offer]] or more")
    return [_offer(source, f"offer[{number}]", row) for number, row in enumerate(rows, 1)]


def _offer(source: str, place: str, row: object) -> Offer:
    if not isinstance(row, dict):
        _fail(source, place, "expected a table")
    for key in row:
        if key not in _KEYS:
            _fail(source, f"{place}.{ascii(key)[1:-1]}",
                  f"unknown; expected one of {', '.join(_KEYS)}{did_you_mean(key, _KEYS)}")  # fmt: skip
    spec, operator = _text(source, f"{place}.spec", row.get("spec")), row.get("operator", "")
    if not isinstance(operator, str):
        _fail(source, f"{place}.operator", "expected a text")
    price, rate, availability = (_number(source, f"{place}.{key}", row.get(key), *_BOUNDS[key]) for key in _BOUNDS)
    return Offer(spec, price / GIB_BYTES, rate * 1e6, 1 - availability, operator)


def _text(source: str, place: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        _fail(source, place, "expected a spec, as --provider takes it")
    return str(value)


def _number(source: str, place: str, value: Any, least: float, most: float) -> float:
    if type(value) not in (int, float) or not least <= value <= most:
        _fail(source, place, f"expected a number from {least:g} to {most:g}, found {ascii(value)[:60]}")
    return float(value)


def _fail(source: str, key: str, expected: str) -> NoReturn:
    raise ConfigError(source, key, expected)
