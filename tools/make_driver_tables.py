"""Write the tables of drivers in the documents: declared capabilities, and settings that their libraries read.

python tools/make_driver_tables.py            # write docs/reference/drivers.md and docs/reference/surroundings.md
python tools/make_driver_tables.py --check    # exit status 1 if a page differs from the declarations
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from pytest_cloudbench import drivers
from pytest_cloudbench.drivers.surroundings import ALLOWED, LIBRARIES, USES, Surrounding
from pytest_cloudbench.model import MIB, Capabilities, Verb

DOCS = Path(__file__).resolve().parents[1] / "docs"
COLUMNS = (
    "driver", "through", "streams", "digest", "folders", "ranges", "overwrites", "optional verbs",
    "requests per put, get", "one request to",
)  # fmt: skip
MANY = 4
"""From this number on, closed names with one beginning are counted. ``drivers/surroundings.py`` lists them all."""


def yes(value: bool) -> str:
    return "yes" if value else "no"


def row(scheme: str) -> str:
    declared = getattr(drivers.driver_class(scheme), "capabilities", None)
    if not isinstance(declared, Capabilities):
        return f"| `{scheme}` | " + " | ".join(["depends on the service", *["" for _ in COLUMNS[2:]]]) + " |"
    optional = [verb.value for verb in Verb if verb in declared.verbs and verb.value in ("copy", "move", "share")]
    requests = ", ".join(str(declared.requests.get(verb, "unknown")) for verb in (Verb.PUT, Verb.GET))
    limit = declared.max_request_bytes
    cells = [
        declared.via or "-", yes(declared.streams), declared.digest or "none", yes(declared.folders),
        yes(declared.ranges), yes(declared.overwrites), ", ".join(optional) or "none", requests,
        f"{limit // MIB} MiB" if limit else "any size",
    ]  # fmt: skip
    return f"| `{scheme}` | " + " | ".join(cells) + " |"


def capabilities() -> str:
    head = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n"
    return head + "".join(f"{row(scheme)}\n" for scheme in drivers.schemes())


def outcome(row: Surrounding) -> str:
    return f"closed: {row.closed}" if row.closed else f"passed through: {row.passed}"


def quote_name(row: Surrounding) -> str:
    return f"`{row.name.removeprefix('host:')}`"


def list_names(neighbours: Sequence[Surrounding]) -> str:
    """Return the names of neighbours. Many closed names with one beginning become a count of them."""
    by_beginning: dict[str, list[str]] = {}
    for row in neighbours:
        by_beginning.setdefault(row.name.partition("_")[0], []).append(quote_name(row))
    several = {beginning for beginning, names in by_beginning.items() if neighbours[0].closed and len(names) >= MANY}
    return ", ".join(
        f"{len(names)} `{beginning}_...`" if beginning in several else ", ".join(names)
        for beginning, names in by_beginning.items()
    )


def rows(library: str) -> Iterator[str]:
    """Yield the rows of a library. Neighbours with the same outcome share a row."""
    for result, neighbours in groupby(LIBRARIES[library], key=outcome):
        yield f"| {library} | {list_names([*neighbours])} | {result} |\n"


def surroundings() -> str:
    drivers = "".join(f"| `{scheme}` | {', '.join(used) or 'nothing'} |\n" for scheme, used in sorted(USES.items()))
    read = "".join(row for library in LIBRARIES for row in rows(library))
    return (
        f"| driver | reads what these read |\n|---|---|\n{drivers}\n"
        f"| library | reads | which is |\n|---|---|---|\n{read}\n"
        f"Allowed while a driver connects: {', '.join(f'`{name}`' for name in ALLOWED)}.\n"
    )


MADE: Mapping[str, tuple[str, Callable[[], str]]] = {
    "reference/drivers.md": ("capabilities", capabilities),
    "reference/surroundings.md": ("surroundings", surroundings),
}
"""Maps a page to the name of its marks, and to the function that makes the text between them."""


def replace_table(page: str, name: str, table: str) -> str:
    begin, end = f"<!-- {name}: made by tools/make_driver_tables.py -->\n", f"<!-- end of {name} -->\n"
    before, _, remainder = page.partition(begin)
    _, _, after = remainder.partition(end)
    return f"{before}{begin}\n{table}\n{end}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether they are up to date")
    options = parser.parse_args(arguments)
    status = 0
    for file, (name, make) in MADE.items():
        page = (DOCS / file).read_text("utf-8")
        text = replace_table(page, name, make())
        if text != page and options.check:
            print(f"docs/{file} is out of date: run python tools/make_driver_tables.py", file=sys.stderr)
            status = 1
        elif text != page:
            (DOCS / file).write_text(text, "utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main())
