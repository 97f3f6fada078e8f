"""Write the tables of docs/surroundings.md, from what the package says of its drivers' libraries.

python tools/make_surroundings_table.py            # write them
python tools/make_surroundings_table.py --check    # exit status 1 where the page is not what the package says
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from pytest_cloudbench.drivers.surroundings import ALLOWED, LIBRARIES, USES, Surrounding

PAGE = Path(__file__).resolve().parents[1] / "docs" / "surroundings.md"
BEGIN, END = "<!-- surroundings: made by tools/make_surroundings_table.py -->\n", "<!-- end of surroundings -->\n"


def outcome(row: Surrounding) -> str:
    return f"closed: {row.closed}" if row.closed else f"passed through: {row.passed}"


def shown(row: Surrounding) -> str:
    return f"`{row.name.removeprefix('host:')}`"


def rows(library: str) -> Iterator[str]:
    """Neighbours with the same outcome share a row."""
    for told, same in groupby(LIBRARIES[library], key=outcome):
        yield f"| {library} | {', '.join(map(shown, same))} | {told} |\n"


def tables() -> str:
    drivers = "".join(f"| `{scheme}` | {', '.join(used) or 'nothing'} |\n" for scheme, used in sorted(USES.items()))
    read = "".join(row for library in LIBRARIES for row in rows(library))
    return (
        f"| driver | reads what these read |\n|---|---|\n{drivers}\n"
        f"| library | reads | which is |\n|---|---|---|\n{read}\n"
        f"Allowed while a driver connects: {', '.join(f'`{name}`' for name in ALLOWED)}.\n"
    )


def renewed(page: str) -> str:
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{tables()}\n{END}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether they are up to date")
    options = parser.parse_args(arguments)
    page = PAGE.read_text("utf-8")
    if renewed(page) == page:
        return 0
    if options.check:
        print("docs/surroundings.md is out of date: run python tools/make_surroundings_table.py", file=sys.stderr)
        return 1
    PAGE.write_text(renewed(page), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
