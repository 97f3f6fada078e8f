"""Make the log of updates that suites/batching replays: suites/batching/updates.csv.

Nobody has the log of the paper's user (UDS, Figures 15 and 22). What is known of it: four hours, 2.6 s between two
updates on average, and 21 times its size as Dropbox's traffic. This one is made to agree with that: the last follows
from one session of 36.3 KB for each update, which Table 1 implies, if an update has 1.8 KB. That updates come in bursts
is ours; it is what the paper calls "frequent, short updates" (less than a second apart).

    python tools/make_update_log.py            # write the file
    python tools/make_update_log.py --check    # exit status 1 if it is not what this makes
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

FILE = Path(__file__).resolve().parents[1] / "suites" / "batching" / "updates.csv"

DURATION_S = 4 * 3600.0
MEAN_GAP_S = 2.6
UPDATES = round(DURATION_S / MEAN_GAP_S)
BURSTS = 140
WITHIN_S = 0.4
MEAN_BYTES = 1830
_SPREAD = 1.2
_SEED = 2013


def rows() -> list[tuple[float, int]]:
    """(due in seconds, bytes appended), in order of time."""
    chance = Random(_SEED)
    begins = sorted(chance.sample(range(UPDATES), BURSTS - 1))
    gaps = [chance.expovariate(1 / WITHIN_S) for _ in range(UPDATES)]
    rest_s = DURATION_S - sum(gaps)
    pauses = [chance.expovariate(1.0) for _ in begins]
    for number, pause in zip(begins, pauses, strict=True):
        gaps[number] += rest_s * pause / sum(pauses)
    middle = math.log(MEAN_BYTES) - _SPREAD**2 / 2
    sizes = [max(1, round(chance.lognormvariate(middle, _SPREAD))) for _ in range(UPDATES)]
    found, now_s = [], 0.0
    for gap_s, size in zip(gaps, sizes, strict=True):
        now_s += gap_s
        found.append((round(now_s, 3), size))
    return found


def text() -> str:
    """The file."""
    lines = [f"{due_s:.3f},{size}" for due_s, size in rows()]
    return "\n".join(["due_s,size_bytes", *lines]) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the file, or say whether it is what this makes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if the file would change")
    is_same = FILE.is_file() and FILE.read_text(encoding="ascii") == text()
    if parser.parse_args(arguments).check:
        return int(not is_same)
    FILE.write_text(text(), encoding="ascii", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
