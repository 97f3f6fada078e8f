"""Make the log of updates that suites/batching replays: suites/batching/updates.csv.

The log of the paper's user (UDS, Figures 15 and 22) is not available. It is known to take four hours, with 2.6 s
between two updates on average, and Dropbox's traffic was 21 times its size. This log is made to agree with that. The
traffic follows from one session of 36.3 KB for each update, as Table 1 implies, if an update has 1.8 KB. The bursts are
our own choice. They imitate the paper's "frequent, short updates" (less than a second apart).

    python tools/make_update_log.py            # write the file
    python tools/make_update_log.py --check    # exit status 1 if the file would change
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
    """Return updates as (due in seconds, bytes appended), in order of time."""
    draws = Random(_SEED)
    pause_indices = sorted(draws.sample(range(UPDATES), BURSTS - 1))
    gaps = [draws.expovariate(1 / WITHIN_S) for _ in range(UPDATES)]
    pause_s = DURATION_S - sum(gaps)
    pauses = [draws.expovariate(1.0) for _ in pause_indices]
    for number, pause in zip(pause_indices, pauses, strict=True):
        gaps[number] += pause_s * pause / sum(pauses)
    middle = math.log(MEAN_BYTES) - _SPREAD**2 / 2
    sizes = [max(1, round(draws.lognormvariate(middle, _SPREAD))) for _ in range(UPDATES)]
    updates, now_s = [], 0.0
    for gap_s, size in zip(gaps, sizes, strict=True):
        now_s += gap_s
        updates.append((round(now_s, 3), size))
    return updates


def text() -> str:
    """Return the text of the file."""
    lines = [f"{due_s:.3f},{size}" for due_s, size in rows()]
    return "\n".join(["due_s,size_bytes", *lines]) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the file, or check that it would not change. Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if the file would change")
    is_same = FILE.is_file() and FILE.read_text(encoding="ascii") == text()
    if parser.parse_args(arguments).check:
        return int(not is_same)
    FILE.write_text(text(), encoding="ascii", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
