"""Make the synthetic trace that ships: sensors, loggers and cameras around one store, for an hour.

No measurement: every number below is a choice in the spirit of the papers.

- 40 thermometers put 5 KiB every 60 s, each from a random moment, up to a second late (thesis 4.2.4: 5 KB, 60 s).
- 8 loggers put small updates in bursts of about 30 s with one each 5 s, and nothing for about 5 minutes; 1 to
  10 KiB each (paper 002, section 3: streams of short updates).
- 4 cameras put photos, Poisson with one each 120 s, lognormal sizes with a median of 400 kB and at most 4 MB (paper
  004 uses files of these two sizes), and read one in four back 10 to 20 s later if no other came between.

The text depends on the seed alone: ``--check`` compares it with the file that ships.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from random import Random
from statistics import NormalDist

from pytest_cloudbench.model import KIB
from pytest_cloudbench.workload.arrival import Arrival, Bursts, Jittered, Poisson
from pytest_cloudbench.workload.trace import COLUMNS

FILE = Path(__file__).resolve().parents[1] / "src" / "pytest_cloudbench" / "data" / "traces" / "iot-hour.csv"
SEED = "pytest-cloudbench"
HOUR_S = 3600.0
HEAD = """\
# Synthetic: every number is a choice, none was measured. Made by tools/make_trace.py, which says what it imitates;
# the same seed gives the same text.
"""

Row = tuple[float, int, str, int]


def due_s(arrival: Arrival, seed: str, sensor: int) -> list[float]:
    """Return the sensor's due times within the hour."""
    return [due for due in arrival.due_s(seed, sensor, 1000) if due < HOUR_S]


def photos(seed: str, sensor: int) -> list[Row]:
    """Return the operations of one camera."""
    draws, sizes = Random(f"{seed}/photo/{sensor}"), NormalDist(0.0, 0.7)
    due = due_s(Poisson(120.0), seed, sensor)
    rows: list[Row] = []
    for now, after in zip(due, [*due[1:], HOUR_S], strict=True):
        size = min(4_000_000, round(400_000 * 2.718281828 ** sizes.inv_cdf(0.5 + 0.499 * (2 * draws.random() - 1))))
        rows.append((now, sensor, "put", size))
        read = now + 10.0 + 10.0 * draws.random()
        if draws.random() < 0.25 and read < after:
            rows.append((read, sensor, "get", size))
    return rows


def make(seed: str = SEED) -> str:
    """Return the trace as CSV text."""
    rows: list[Row] = []
    for sensor in range(40):
        rows += [(due, sensor, "put", 5 * KIB) for due in due_s(Jittered(60.0, 1.0, 60.0), seed, sensor)]
    for sensor in range(40, 48):
        draws = Random(f"{seed}/update/{sensor}")
        for due in due_s(Bursts(5.0, 30.0, 300.0), seed, sensor):
            rows.append((due, sensor, "put", KIB + int(9 * KIB * draws.random())))
    for sensor in range(48, 52):
        rows += photos(seed, sensor)
    lines = [f"{time:.3f},{sensor},{operation},{size}\n" for time, sensor, operation, size in sorted(rows)]
    return HEAD + ",".join(COLUMNS) + "\n" + "".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the file, or compare it. Return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", default=SEED, help="another seed makes another hour (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=FILE, help="where to write it (default: the file that ships)")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the file differs")
    options = parser.parse_args(argv)
    text = make(options.seed)
    if options.check:
        is_same = options.output.read_text(encoding="utf-8") == text
        print(f"{options.output.name}: {'the same' if is_same else 'differs'}")
        return 0 if is_same else 1
    options.output.write_text(text, encoding="utf-8", newline="\n")
    print(f"{options.output.name}: {text.count(chr(10)) - 3} operations")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
