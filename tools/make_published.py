"""Turn the papers' tables (results/published/*.toml) into pytest-benchmark files beside them.

One file per table and one entry per row; docs/reference/published.md says what an entry holds. The output
depends on the data alone: no clock, no machine, no version of anything.

    python tools/make_published.py            # write the files
    python tools/make_published.py --check    # exit status 1 if a file differs from the data
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
"""The version of an entry's extra_info."""

WORDS = {"twice": Decimal(2)}
"""Numbers that a paper writes as a word."""

Cells = Mapping[str, str]


def number(cell: str) -> Decimal | None:
    """Return the last number of a cell as printed ("99,978%", "0 ~ 5", "50!"), None where there is none ("NA")."""
    numbers = re.findall(r"-?\d+(?:[.,]\d+)?", cell)
    return Decimal(numbers[-1].replace(",", ".")) if numbers else WORDS.get(cell)


def scale_cell(cell: str, scale: str | None) -> int | float | None:
    """Return a cell in the project's unit: a float if it is scaled or printed with a point, exact in decimals."""
    value = number(cell)
    if value is None:
        return None
    return int(value) if scale is None and value.as_tuple().exponent == 0 else float(value * Decimal(scale or "1"))


def rows_of(table: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the number of each row, and its cells by the names of their columns.

    If several columns of a printed table are one column of ours (``melt``), each of their cells becomes a row, with the
    cell itself as ``printed``.
    """
    columns = table["columns"]
    for row_number, row in enumerate(table["rows"], 1):
        melted = next((column for column in columns if "melt" in column), None)
        if melted is None:
            yield row_number, dict(zip((column["name"] for column in columns), row, strict=True))
            continue
        heads = [column["name"] for column in columns if column is not melted]
        cells = dict(zip(heads, row[: len(heads)], strict=True))
        for head, cell in zip(melted["melt"], row[len(heads) :], strict=True):
            yield row_number, {**cells, melted["name"]: head, "printed": cell}


def values_of(table: Mapping[str, Any], cells: Cells) -> dict[str, Any]:
    """Return a row's values by the names of their columns: numbers in the project's units, else text."""
    values: dict[str, Any] = dict(table.get("constants", {})) | dict(cells)
    for column in table["columns"]:
        if column.get("number"):
            scale = cells[column["scale_column"]] if "scale_column" in column else column.get("scale")
            values[column["name"]] = scale_cell(cells[column["name"]], scale)
    if "printed" in cells:
        values["verdict"] = verdict_of(table, cells["printed"])
        values[table["stats"]["metric"]] = int(values["verdict"] == "yes")
    return values


def verdict_of(table: Mapping[str, Any], printed: str) -> str:
    """Return yes, no or unknown. The table's ``verdicts`` translate a cell, and any other cell but "no" is a yes."""
    return str(table.get("verdicts", {}).get(printed, "no" if printed.lower() == "no" else "yes"))


def is_known(table: Mapping[str, Any], cells: Cells) -> bool:
    """Return whether a row has a value: a cell such as "To be studied" has no number, and so no entry."""
    return "printed" not in cells or verdict_of(table, cells["printed"]) != "unknown"


def slug(text: str) -> str:
    """Return a value as a part of a test's name: "200 MB" is 200MB, "Amazon [EU]" is Amazon_EU."""
    return re.sub(r"[^A-Za-z0-9_.]+", "_", re.sub(r"(?<=\d) (?=[A-Za-z])", "", text)).strip("_")


def stats_of(value: float) -> dict[str, Any]:
    """Return the statistics that pytest-benchmark stores for one round (tests/test_make_published.py compares)."""
    same = ("min", "max", "mean", "median", "q1", "q3", "ld15iqr", "hd15iqr", "total")
    return {**dict.fromkeys(same, value), "stddev": 0, "iqr": 0.0, "rounds": 1, "iqr_outliers": 0, "stddev_outliers": 0,
            "outliers": "0;0", "ops": 1 / value if value else 0, "data": [value], "iterations": 1}  # fmt: skip


def in_stats(value: float, scale: str | int) -> float:
    """Return a metric's value as a round, without the noise of binary fractions (0.5533 times 100 is 55.33)."""
    return float(Decimal(str(value)) * Decimal(scale))


def entry(paper: Mapping[str, Any], table: Mapping[str, Any], row_number: int, cells: Cells) -> dict[str, Any]:
    """Return one row as an entry whose only round is the published value."""
    values, stats = values_of(table, cells), table["stats"]
    params = {name: values[name] for name in table["params"]}
    ident = "-".join(slug(part.format(**values)) for part in table["id"].split("-"))
    provider = f"published:{paper['key']}"
    test, param, subject = table["test"], f"{ident}-{provider}", stats["of"].format(**values)
    value = in_stats(values[stats["metric"]], stats["scale"])
    notes = [*table.get("notes", []), *filter(None, [table.get("row_notes", {}).get(str(row_number))])]
    source = f"{paper['source']}, section {table['section']}, {table['title']}"
    extra = {
        "schema": SCHEMA, **values, "stats_of": subject, "stats_unit": stats["unit"].format(**values),
        "stats_metric": stats["metric"], "stats_scale": int(stats["scale"]), "provider": provider,
        "emulated": False, "published": {stats["metric"]: values[stats["metric"]], "source": source}, "source": source,
        "date": paper["date"], "date_of": paper["date_of"], "measured": paper["measured"], "row": row_number,
        "cells": {key: cells[key] for key in cells}, "notes": notes,
    }  # fmt: skip
    if "match" in table:
        extra["match"] = table["match"]
    if figure := figure_elsewhere(table, values):
        extra["beside"] = figure
    name = f"{test.rpartition('::')[2]}[{param}]"
    return {"group": f"{subject} ({paper['key']}, {table['name']})", "name": name,
            "fullname": f"{test.rpartition('::')[0]}::{name}", "params": params, "param": param, "extra_info": extra,
            "options": {}, "stats": stats_of(value)}  # fmt: skip


def figure_elsewhere(table: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return where a run has a row's figure if it is not in the entry of the table's test and row's parameters."""
    for rule in table.get("beside", []):
        if rule["row"].items() <= values.items():
            fields = {"test": table["test"], "scale": "1", **rule}
            conditions = {name: fields[name] for name in ("run", "has", "lacks") if name in fields}
            return {"test": fields["test"], "metric": fields["metric"], "scale": int(fields["scale"]), **conditions}
    return None


def document(paper: Mapping[str, Any], table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a file of pytest-benchmark, which says that there is no machine and no commit."""
    source = f"published:{paper['key']}"
    return {
        "machine_info": {"node": source, "processor": "", "machine": "", "python_implementation": "",
                         "python_version": "", "release": "", "system": "", "cpu": {}},
        "commit_info": {"id": source, "time": paper["date"], "author_time": None, "dirty": False,
                        "project": paper["source"], "branch": "(none)"},
        "benchmarks": [entry(paper, table, row, cells) for row, cells in rows_of(table) if is_known(table, cells)],
        "datetime": paper["date"],
        "version": "none: transcribed",
    }  # fmt: skip


def documents(folder: Path) -> dict[str, str]:
    """Return the text of all files by name."""
    texts = {}
    for path in sorted(folder.glob("*.toml")):
        paper = tomllib.loads(path.read_text(encoding="utf-8"))
        for table in paper["table"]:
            text = json.dumps(document(paper, table), indent=1, ensure_ascii=False)
            texts[f"{paper['key']}-{table['name']}.json"] = text + "\n"
    return texts


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files, or print those that differ from the data. Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 where a file would change")
    options = parser.parse_args(arguments)
    texts = documents(FOLDER)
    stale = [path for path in sorted(FOLDER.glob("*.json")) if path.name not in texts]
    changed = [name for name, text in texts.items() if not _has_text(FOLDER / name, text)]
    if not options.check:
        for path in stale:
            path.unlink()
        for name in changed:
            (FOLDER / name).write_text(texts[name], encoding="utf-8", newline="\n")
    for name in [*(path.name for path in stale), *changed]:
        print(f"{name}: {'differs from the data' if options.check else 'done'}")
    return int(options.check and bool(stale or changed))


def _has_text(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(main())
