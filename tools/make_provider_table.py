"""Write the table of capabilities in docs/providers.md, from what the drivers declare.

python tools/make_provider_table.py            # write it
python tools/make_provider_table.py --check    # exit status 1 where the page is not what the drivers declare
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pytest_cloudbench import drivers
from pytest_cloudbench.model import MIB, Capabilities, Verb

PAGE = Path(__file__).resolve().parents[1] / "docs" / "providers.md"
BEGIN, END = "<!-- capabilities: made by tools/make_provider_table.py -->\n", "<!-- end of capabilities -->\n"
COLUMNS = (
    "driver", "through", "streams", "digest", "folders", "ranges", "overwrites", "optional verbs",
    "requests per put, get", "one request to",
)  # fmt: skip


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


def table() -> str:
    head = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n"
    return head + "".join(f"{row(scheme)}\n" for scheme in drivers.schemes())


def renewed(page: str) -> str:
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether it is up to date")
    options = parser.parse_args(arguments)
    page = PAGE.read_text("utf-8")
    if renewed(page) == page:
        return 0
    if options.check:
        print("docs/providers.md is out of date: run python tools/make_provider_table.py", file=sys.stderr)
        return 1
    PAGE.write_text(renewed(page), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
