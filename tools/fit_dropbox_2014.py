"""Fit the emulator's profile ``dropbox-2014`` to Tables 4.2 and 4.3 of the BenchCloud thesis, or check the fit.

    PYTHONPATH=src python tools/fit_dropbox_2014.py --check    # the committed profile, about 8 s
    PYTHONPATH=src python tools/fit_dropbox_2014.py --fit      # search, some minutes, prints TOML

A discrete-event simulation of the thesis's sensors drives the emulator's own ``Throttle`` with a virtual clock.
Each sensor uploads 10 files in a closed loop: request, answer, sleep ``interval_s``, next request. In Table 4.2
all start together, in Table 4.3 each after a uniformly random delay. As in the emulator, a request is admitted
or refused when it arrives and answered a lognormal latency later: an admitted one with the median
``median_s * write_factor``, a refused one with ``median_s``. A refused file is lost: BenchCloud does not retry.

The ordering is kept when
* each pair of neighbouring rows whose *published* losses differ by more than the thesis's own sampling noise
  (one run: the 95 % interval of Agresti and Caffo for two shares does not reach zero) differs in the same
  direction in the simulation. Neighbours have the same table and interval and the next number of sensors, or
  the same table and sensors and the next interval;
* the simulated loss never falls with more sensors by more than two standard errors.

Arrival spread: through real clients a burst of 100 requests arrives over some tenths of a second. ``spread_s``
delays each request by a uniformly random time up to ``spread_s * sensors / 100`` (of the emulator's clock).
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import math
import random
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_cloudbench.emulators.profile import Latency, Profile, change_profile, list_settings, load_profile
from pytest_cloudbench.emulators.throttle import Throttle, ThrottlePolicy

ROOT = Path(__file__).resolve().parents[1]
TABLES = ROOT / "suites" / "iot" / "published.toml"
PROFILE = ROOT / "src" / "pytest_cloudbench" / "emulators" / "profiles" / "dropbox-2014.toml"
FILES_PER_SENSOR = 10
SEED = 2014
MAX_MEAN_ERROR = 4.0
"""Percentage points, mean absolute error over the 30 rows."""


@dataclass(frozen=True, slots=True)
class Row:
    """One published row. ``loss`` is in percent, times are in seconds."""

    table: str
    sensors: int
    interval_s: float
    first_delay_max_s: float
    files: int
    lost: int

    @property
    def loss(self) -> float:
        return 100.0 * self.lost / self.files


@dataclass(frozen=True, slots=True)
class Simulated:
    """A row's simulated loss in percent: the mean of some runs, and the spread of single runs."""

    loss: float
    run_sd: float
    runs: int

    @property
    def error_of_mean(self) -> float:
        return self.run_sd / math.sqrt(self.runs)


@dataclass(frozen=True, slots=True)
class Verdict:
    """All rows with their simulated values. Errors are in percentage points."""

    rows: Sequence[Row]
    simulated: Sequence[Simulated]
    violations: Sequence[str]

    @property
    def errors(self) -> list[float]:
        return [simulated.loss - row.loss for row, simulated in zip(self.rows, self.simulated, strict=True)]

    @property
    def mean_error(self) -> float:
        return sum(map(abs, self.errors)) / len(self.errors)

    @property
    def largest(self) -> tuple[float, Row]:
        return max(zip(self.errors, self.rows, strict=True), key=lambda pair: abs(pair[0]))

    @property
    def gaps(self) -> list[float]:
        """The simulated differences of the pairs that the tables tell apart, positive where the order is kept."""
        return [self.simulated[b].loss - self.simulated[a].loss for a, b in distinct_pairs(self.rows)]

    @property
    def passed(self) -> bool:
        return self.mean_error <= MAX_MEAN_ERROR and not self.violations


# -------------------------------------------------------------------- published


def read_published() -> list[Row]:
    """Return the 30 rows of both tables in printed order."""
    keys = ("table", "sensors", "interval_s", "first_delay_max_s", "files", "lost")
    return [Row(*(entry[key] for key in keys)) for entry in tomllib.loads(TABLES.read_text())["row"]]


def neighbours(rows: Sequence[Row], key: Callable[[Row], tuple[object, ...]], along: str) -> Iterable[tuple[int, int]]:
    """Yield the indices of rows that share ``key`` and are next to each other along an attribute, in its order."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for index in sorted(range(len(rows)), key=lambda index: float(getattr(rows[index], along))):
        groups.setdefault(key(rows[index]), []).append(index)
    for group in groups.values():
        yield from itertools.pairwise(group)


def differs(one: Row, other: Row) -> bool:
    """Return whether two published losses differ by more than the noise of one run each (Agresti and Caffo, 95 %)."""
    shares = [(row.lost + 1) / (row.files + 2) for row in (one, other)]
    variance = sum(share * (1 - share) / (row.files + 2) for share, row in zip(shares, (one, other), strict=True))
    return abs(shares[0] - shares[1]) > 1.96 * math.sqrt(variance)


# -------------------------------------------------------------------- simulation


def simulate(row: Row, policy: ThrottlePolicy, latency: Latency, draws: random.Random, spread_s: float = 0.0) -> float:
    """Simulate one run of one row on the virtual clock, and return the loss in percent."""
    throttle = Throttle(policy)
    spread_s *= row.sensors / 100
    medians_s = latency.median_s * latency.write_factor, latency.median_s
    remaining_files = [FILES_PER_SENSOR] * row.sensors
    due = ((draws.random() * row.first_delay_max_s + draws.random() * spread_s, s, True) for s in range(row.sensors))
    events = list(due)
    heapq.heapify(events)
    holds = [False] * row.sensors
    lost = 0
    while events:
        now_s, sensor, arrives = heapq.heappop(events)
        if arrives:
            holds[sensor] = throttle.admit(now_s, write=True) is None
            lost += not holds[sensor]
            median_s = medians_s[0] if holds[sensor] else medians_s[1]
            served_s = max(latency.min_s, median_s * math.exp(latency.sigma * draws.gauss(0.0, 1.0)))
            heapq.heappush(events, (now_s + served_s, sensor, False))
            continue
        if holds[sensor]:
            throttle.release(now_s, write=True)
        remaining_files[sensor] -= 1
        if remaining_files[sensor]:
            heapq.heappush(events, (now_s + row.interval_s + draws.random() * spread_s, sensor, True))
    return 100.0 * lost / row.files


def simulate_rows(rows: Sequence[Row], profile: Profile, runs: int, spread_s: float = 0.0) -> list[Simulated]:
    """Simulate all rows, each as the mean of ``runs`` runs. Equal arguments give equal results."""
    results = []
    for index, row in enumerate(rows):
        losses = [
            simulate(row, profile.throttle, profile.latency, random.Random(f"{SEED} {index} {run}"), spread_s)
            for run in range(runs)
        ]
        mean = sum(losses) / runs
        variance = sum((loss - mean) ** 2 for loss in losses) / max(1, runs - 1)
        results.append(Simulated(mean, math.sqrt(variance), runs))
    return results


def distinct_pairs(rows: Sequence[Row]) -> list[tuple[int, int]]:
    """Return the neighbours whose published losses differ by more than noise, as indices, the smaller loss first."""
    pairs = itertools.chain(
        neighbours(rows, lambda row: (row.table, row.interval_s), "sensors"),
        neighbours(rows, lambda row: (row.table, row.sensors), "interval_s"),
    )
    return [(a, b) if rows[a].loss < rows[b].loss else (b, a) for a, b in pairs if differs(rows[a], rows[b])]


def violations(rows: Sequence[Row], simulated: Sequence[Simulated]) -> list[str]:
    """Return a sentence for each pair that violates the ordering (see the module)."""
    sentences = [
        f"{_name(rows[a])} lost less than {_name(rows[b])}, simulated {simulated[a].loss:.1f} and "
        f"{simulated[b].loss:.1f} %"
        for a, b in distinct_pairs(rows)
        if simulated[a].loss >= simulated[b].loss
    ]
    for a, b in neighbours(rows, lambda row: (row.table, row.interval_s), "sensors"):
        noise = 2 * math.hypot(simulated[a].error_of_mean, simulated[b].error_of_mean)
        if simulated[b].loss < simulated[a].loss - noise:
            sentences.append(f"{_name(rows[b])}: more sensors, simulated loss falls to {simulated[b].loss:.1f} %")
    return sentences


def judge(profile: Profile, runs: int = 20, spread_s: float = 0.0) -> Verdict:
    """Simulate all rows with a profile, and compare them with the published ones."""
    rows = read_published()
    simulated = simulate_rows(rows, profile, runs, spread_s)
    return Verdict(rows, simulated, violations(rows, simulated))


# -------------------------------------------------------------------- search

BOUNDS: Mapping[str, tuple[float, float]] = {
    "throttle.rate_per_s": (2.0, 12.0),
    "throttle.burst": (1.0, 40.0),
    "throttle.refused_cost": (0.02, 1.5),
    "latency.median_s": (0.1, 5.0),
    "latency.write_factor": (0.1, 10.0),
    "latency.sigma": (0.05, 0.8),
}
"""Maps each fitted parameter to its range in the search. The start profile fixes all others."""


def objective(profile: Profile, runs: int) -> float:
    """Return the cost that the search minimises, without and with arrival spread, in percentage points.

    It is the mean absolute error, plus a tenth of the excess of errors over 6 points. For each pair of rows that the
    tables tell apart it adds a third of the points by which the difference is less than 3 (the noise of a single
    run), so that a measurement keeps the order as well.
    """
    cost = 0.0
    for spread_s in (0.0, 0.3, 1.0):
        verdict = judge(profile, runs, spread_s)
        excess = sum(max(0.0, abs(error) - 6.0) for error in verdict.errors)
        lacking = sum(max(0.0, 3.0 - gap) for gap in verdict.gaps)
        cost += (verdict.mean_error + excess / 10 + lacking / 3) / 3
    return cost


Point = list[float]


def _profile_at(start: Profile, point: Point) -> Profile:
    """Return the profile at a point of the search space (natural logarithms of the parameters)."""
    changes: dict[str, object] = {}
    for (key, (low, high)), value in zip(BOUNDS.items(), point, strict=True):
        changes[key] = float(f"{min(max(math.exp(value), low), high):.3g}")
    return change_profile(start, changes, "fit")


def _nelder_mead(cost: Callable[[Point], float], start: Point, steps: int, size: float = 0.15) -> tuple[float, Point]:
    """Search with the classic simplex: reflect, expand, contract, shrink."""
    corners = [
        start,
        *([value + (size if i == j else 0.0) for j, value in enumerate(start)] for i in range(len(start))),
    ]
    simplex = sorted((cost(corner), corner) for corner in corners)
    for _ in range(steps):
        worst = simplex[-1]
        centre = [sum(values) / (len(simplex) - 1) for values in zip(*(p for _, p in simplex[:-1]), strict=True)]

        def along(factor: float, centre: Point = centre, worst: Point = worst[1]) -> tuple[float, Point]:
            point = [c + factor * (c - w) for c, w in zip(centre, worst, strict=True)]
            return cost(point), point

        best = along(1.0)
        if best[0] < simplex[0][0]:
            best = min(best, along(2.0))
        elif best[0] >= simplex[-2][0]:
            best = min(best, along(-0.5))
        if best[0] < worst[0]:
            simplex[-1] = best
        else:
            lowest = simplex[0][1]
            halved = [[(a + b) / 2 for a, b in zip(lowest, point, strict=True)] for _, point in simplex[1:]]
            simplex[1:] = [(cost(point), point) for point in halved]
        simplex.sort()
    return simplex[0]


def search(start: Profile, tries: int, steps: int) -> Profile:
    """Search by Nelder-Mead from the start and from the best two of some random points, always with the same result."""
    draws = random.Random(SEED)
    bounds = [(math.log(low), math.log(high)) for low, high in BOUNDS.values()]
    points = [[draws.uniform(low, high) for low, high in bounds] for _ in range(tries)]
    ranked = sorted((objective(_profile_at(start, point), 1), point) for point in points)
    print(f"random search over {tries} points: best objective {ranked[0][0]:.2f}", flush=True)
    minima = []
    settings = list_settings(start)
    begin = [math.log(float(str(settings[key]))) for key in BOUNDS]
    for point in (begin, *(point for _, point in ranked[:2])):
        minima.append(_nelder_mead(lambda at: objective(_profile_at(start, at), 2), point, steps))
        print(f"Nelder-Mead: objective {minima[-1][0]:.2f}", flush=True)
    return _profile_at(start, min(minima)[1])


# -------------------------------------------------------------------- output


def _name(row: Row) -> str:
    return f"Table {row.table}, {row.sensors} sensors, {row.interval_s:g} s"


def table(verdict: Verdict) -> list[str]:
    """Return published against simulated losses in percent, one line per row."""
    lines = [
        f"{'table':>5} {'sensors':>7} {'interval':>8} {'published':>9} {'simulated':>9} {'error':>6} {'run sd':>6}"
    ]
    for row, simulated, error in zip(verdict.rows, verdict.simulated, verdict.errors, strict=True):
        shares = f"{row.loss:9.2f} {simulated.loss:9.2f} {error:+6.1f} {simulated.run_sd:6.1f}"
        lines.append(f"{row.table:>5} {row.sensors:7d} {row.interval_s:6g} s {shares}")
    return lines


def summary(verdict: Verdict) -> list[str]:
    """Return the figures of a verdict as sentences."""
    error, row = verdict.largest
    order = "kept" if not verdict.violations else f"broken {len(verdict.violations)} times"
    return [
        f"mean absolute error {verdict.mean_error:.2f} points (bound {MAX_MEAN_ERROR:g}), {len(BOUNDS)} fitted "
        f"parameters for {len(verdict.rows)} rows",
        f"largest error {error:+.1f} points: {_name(row)}",
        f"ordering {order}: {len(verdict.gaps)} pairs of neighbours are told apart by the tables, smallest simulated "
        f"difference {min(verdict.gaps):+.1f} points",
        *(f"  {violation}" for violation in verdict.violations),
        f"rows published without loss: largest simulated loss {largest_where_none_lost(verdict):.2f} %",
    ]


def largest_where_none_lost(verdict: Verdict) -> float:
    """Return the largest simulated loss, in percent, of rows whose published loss is zero."""
    pairs = zip(verdict.rows, verdict.simulated, strict=True)
    return max(simulated.loss for row, simulated in pairs if row.lost == 0)


def sensitivity(profile: Profile, runs: int = 5) -> list[str]:
    """Return lines about the errors when bursts arrive spread. Times are in seconds of the emulator's clock."""
    lines = ["arrival spread of 100 sensors -> mean absolute error, largest error, rows beyond 8 points, out of order"]
    for spread_s in (0.3, 1.0, 3.0):
        verdict = judge(profile, runs, spread_s)
        beyond = sum(abs(error) > 8.0 for error in verdict.errors)
        figures = f"{verdict.mean_error:5.2f} {verdict.largest[0]:+6.1f} {beyond:3d} {len(verdict.violations):3d}"
        lines.append(f"  {spread_s:4.1f} s  {figures}")
    return lines


def snippet(profile: Profile) -> str:
    """Return the fitted settings as TOML."""
    values = {"throttle": profile.throttle, "latency": profile.latency}
    lines = []
    for section, value in values.items():
        keys = [key.partition(".")[2] for key in BOUNDS if key.startswith(section)]
        lines += [f"[{section}]", *(f"{key} = {getattr(value, key):g}" for key in keys), ""]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Check or fit, and return the exit status: 1 if the profile misses the bound or the ordering."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--check", action="store_true", help="hold a profile against the published tables")
    mode.add_argument("--fit", action="store_true", help="search the parameters and print them as TOML")
    parser.add_argument("--profile", default=str(PROFILE), help="the profile to check or to start from")
    parser.add_argument("--tries", type=int, default=150, help="random points of the search")
    parser.add_argument("--steps", type=int, default=30, help="Nelder-Mead steps from each of three points")
    options = parser.parse_args(arguments)
    profile = load_profile(options.profile)
    if options.fit:
        profile = search(profile, options.tries, options.steps)
        print(snippet(profile))
    verdict = judge(profile)
    print("\n".join([*table(verdict), "", *summary(verdict), "", *sensitivity(profile)]))
    return 0 if verdict.passed else 1


if __name__ == "__main__":
    sys.exit(main())
