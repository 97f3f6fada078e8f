"""A table of providers to choose an array from: price, throughput and availability of each.

What may live here: reading the table. Whatever the file contains, ``load_offers`` raises only ConfigError::

    [[offer]]
    spec = "s3://bucket"
    store_usd_per_gib_month = 0.023
    mb_per_s = 40                   # throughput, megabytes per second
    availability = 0.9999           # the probability that it answers, 0 to 1
    operator = "one company"        # optional: children of one operator may fail together
"""

from __future__ import annotations

from pathlib import Path

from pytest_cloudbench.raid.coding.choice import Offer
from pytest_cloudbench.raid.tables import StrictTable
from pytest_cloudbench.support import opening

_BOUNDS = {"store_usd_per_gib_month": (0.0, 1e6), "mb_per_s": (1e-6, 1e6), "availability": (0.0, 1.0)}


def load_offers(path: str | Path) -> list[Offer]:
    """Return the offers of a file, with prices in USD a month per GiB. Raises ConfigError, in one line."""
    file = StrictTable(str(path), opening.read_toml(path, "a table of offers"), ("offer",))
    rows = file.get("offer", None, lambda value: isinstance(value, list) and len(value) > 0, "one [[offer]] or more")
    return [_parse_offer(file, f"offer[{number}]", row) for number, row in enumerate(rows, 1)]


def _parse_offer(file: StrictTable, name: str, row: object) -> Offer:
    if not isinstance(row, dict):
        file.fail(name, "expected a table")
    table = file.subtable(f"{name}.", row, ("spec", *_BOUNDS, "operator"))
    spec, operator = table.text("spec", None, "a spec, as --provider takes it"), table.text("operator", "")
    price, rate, availability = (table.real(key, None, *bounds) for key, bounds in _BOUNDS.items())
    return Offer(spec, price, rate * 1e6, 1 - availability, operator)
