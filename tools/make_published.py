"""Turn the papers' tables (results/published/*.toml) into pytest-benchmark files beside them.

One file per table and one entry per row; docs/reference/published.md says what an entry holds. The output
depends on the data alone: no clock, no machine, no version of anything.

    python tools/make_published.py            # write the files
    python tools/make_published.py --check    # exit status 1 where a file is not what the data say
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "results" / "published"

SCHEMA = 1
"""Of an entry's extra_info. 1: the first."""

WORDS = {"twice": Decimal(2)}
"""Numbers that a paper writes as a word."""

Cells = Mapping[str, str]


def number(cell: str) -> Decimal | None:
    """The last number of a cell as printed ("99,978%", "0 ~ 5", "50!"), None where there is none ("NA")."""
    found = re.findall(r"-?\d+(?:[.,]\d+)?", cell)
    return Decimal(found[-1].replace(",", ".")) if found else WORDS.get(cell)


def scaled(cell: str, scale: str | None) -> int | float | None:
    """A cell in the project's unit: a float where it is scaled or printed with a point, exact in decimals."""
    value = number(cell)
    if value is None:
        return None
    return int(value) if scale is None and value.as_tuple().exponent == 0 else float(value * Decimal(scale or "1"))


def rows_of(table: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, str]]]:
    """(number of the row, name of a column to its cell). Where columns of a printed table are one of ours
    (``melt``), each of its cells is a row, with the cell itself as ``printed``.
    """
    columns = table["columns"]
    for at, row in enumerate(table["rows"], 1):
        melted = next((column for column in columns if "melt" in column), None)
        if melted is None:
            yield at, dict(zip((column["name"] for column in columns), row, strict=True))
            continue
        heads = [column["name"] for column in columns if column is not melted]
        cells = dict(zip(heads, row[: len(heads)], strict=True))
        for head, cell in zip(melted["melt"], row[len(heads) :], strict=True):
            yield at, {**cells, melted["name"]: head, "printed": cell}


def values_of(table: Mapping[str, Any], cells: Cells) -> dict[str, Any]:
    """A row's values by the names of their columns: numbers in the project's units, else text."""
    values: dict[str, Any] = dict(table.get("constants", {})) | dict(cells)
    for column in table["columns"]:
        if column.get("number"):
            scale = cells[column["scale_column"]] if "scale_column" in column else column.get("scale")
            values[column["name"]] = scaled(cells[column["name"]], scale)
    if "printed" in cells:
        values["verdict"] = verdict_of(table, cells["printed"])
        values[table["stats"]["metric"]] = int(values["verdict"] == "yes")
    return values


def verdict_of(table: Mapping[str, Any], printed: str) -> str:
    """Yes, no or unknown, as the table's ``verdicts`` translate a cell; any other cell but "no" is a yes."""
    return str(table.get("verdicts", {}).get(printed, "no" if printed.lower() == "no" else "yes"))


def is_known(table: Mapping[str, Any], cells: Cells) -> bool:
    """Whether a row says anything: a cell such as "To be studied" has no number, and so no entry."""
    return "printed" not in cells or verdict_of(table, cells["printed"]) != "unknown"


def slug(text: str) -> str:
    """A value as a part of a test's name: "200 MB" is 200MB, "Amazon [EU]" is Amazon_EU."""
    return re.sub(r"[^A-Za-z0-9_.]+", "_", re.sub(r"(?<=\d) (?=[A-Za-z])", "", text)).strip("_")


def stats_of(value: float) -> dict[str, Any]:
    """What pytest-benchmark stores for one round (tests/test_make_published.py compares)."""
    same = ("min", "max", "mean", "median", "q1", "q3", "ld15iqr", "hd15iqr", "total")
    return {**dict.fromkeys(same, value), "stddev": 0, "iqr": 0.0, "rounds": 1, "iqr_outliers": 0, "stddev_outliers": 0,
            "outliers": "0;0", "ops": 1 / value if value else 0, "data": [value], "iterations": 1}  # fmt: skip


def in_stats(value: float, scale: str | int) -> float:
    """A metric's value as a round, without the noise of binary fractions (0.5533 times 100 is 55.33)."""
    return float(Decimal(str(value)) * Decimal(scale))


def entry(paper: Mapping[str, Any], table: Mapping[str, Any], at: int, cells: Cells) -> dict[str, Any]:
    """One row as an entry whose only round is the published value."""
    values, stats = values_of(table, cells), table["stats"]
    params = {name: values[name] for name in table["params"]}
    ident = "-".join(slug(part.format(**values)) for part in table["id"].split("-"))
    provider = f"published:{paper['key']}"
    test, param, of = table["test"], f"{ident}-{provider}", stats["of"].format(**values)
    value = in_stats(values[stats["metric"]], stats["scale"])
    notes = [*table.get("notes", []), *filter(None, [table.get("row_notes", {}).get(str(at))])]
    source = f"{paper['source']}, section {table['section']}, {table['title']}"
    extra = {
        "schema": SCHEMA, **values, "stats_of": of, "stats_unit": stats["unit"].format(**values),
        "stats_metric": stats["metric"], "stats_scale": int(stats["scale"]), "provider": provider,
        "emulated": False, "published": {stats["metric"]: values[stats["metric"]], "source": source}, "source": source,
        "date": paper["date"], "date_of": paper["date_of"], "measured": paper["measured"], "row": at,
        "cells": {key: cells[key] for key in cells}, "notes": notes,
    }  # fmt: skip
    if "match" in table:
        extra["match"] = table["match"]
    if found := beside(table, values):
        extra["beside"] = found
    name = f"{test.rpartition('::')[2]}[{param}]"
    return {"group": f"{of} ({paper['key']}, {table['name']})", "name": name,
            "fullname": f"{test.rpartition('::')[0]}::{name}", "params": params, "param": param, "extra_info": extra,
            "options": {}, "stats": stats_of(value)}  # fmt: skip


def beside(table: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any] | None:
    """Where a run has a row's figure, if that is not in the entry of the table's test and of the row's parameters."""
    for each in table.get("beside", []):
        if each["row"].items() <= values.items():
            told = {"test": table["test"], "scale": "1", **each}
            named = {name: told[name] for name in ("run", "has", "lacks") if name in told}
            return {"test": told["test"], "metric": told["metric"], "scale": int(told["scale"]), **named}
    return None


def document(paper: Mapping[str, Any], table: Mapping[str, Any]) -> dict[str, Any]:
    """A file of pytest-benchmark. What it says of a machine and a commit is that there is none."""
    nothing = f"published:{paper['key']}"
    return {
        "machine_info": {"node": nothing, "processor": "", "machine": "", "python_implementation": "",
                         "python_version": "", "release": "", "system": "", "cpu": {}},
        "commit_info": {"id": nothing, "time": paper["date"], "author_time": None, "dirty": False,
                        "project": paper["source"], "branch": "(none)"},
        "benchmarks": [entry(paper, table, at, cells) for at, cells in rows_of(table) if is_known(table, cells)],
        "datetime": paper["date"],
        "version": "none: transcribed",
    }  # fmt: skip


def documents(folder: Path) -> dict[str, str]:
    """All files by name, as text."""
    made = {}
    for path in sorted(folder.glob("*.toml")):
        paper = tomllib.loads(path.read_text(encoding="utf-8"))
        for table in paper["table"]:
            text = json.dumps(document(paper, table), indent=1, ensure_ascii=False)
            made[f"{paper['key']}-{table['name']}.json"] = text + "\n"
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files, or say which are not what the data say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 where a file would change")
    options = parser.parse_args(arguments)
    made = documents(FOLDER)
    stale = [path for path in sorted(FOLDER.glob("*.json")) if path.name not in made]
    changed = [name for name, text in made.items() if not _is(FOLDER / name, text)]
    if not options.check:
        for path in stale:
            path.unlink()
        for name in changed:
            (FOLDER / name).write_text(made[name], encoding="utf-8", newline="\n")
    for name in [*(path.name for path in stale), *changed]:
        print(f"{name}: {'differs from the data' if options.check else 'done'}")
    return int(options.check and bool(stale or changed))


def _is(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(main())
