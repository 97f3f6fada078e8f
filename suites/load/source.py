"""A load as the options of this suite describe it, and the source of a test that measures the same."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from pytest_cloudbench import KIB, MIB, Verb

_MOST_PER_S = 1000
"""The most operations of one thread in a second, which bounds a closed loop."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The load that the options describe.

    Attributes:
        size_bytes: the size of each file.
        rate_per_s: the operations of all sensors that are due in a second, or None for a closed loop.
        threads: the threads of a closed loop. Each begins an operation as soon as its last one has ended.
        for_s: the duration of the load.
        files: the number of files that downloads use in turn.
        shares: the share of each operation of a mixed load.
    """

    size_bytes: int
    rate_per_s: float | None
    threads: int
    for_s: float
    files: int
    shares: dict[Verb, float]

    @property
    def sensors(self) -> int:
        """Sensors with about one operation a second each, or the threads of a closed loop."""
        return self.threads if self.rate_per_s is None else max(1, min(1000, round(self.rate_per_s)))

    @property
    def files_per_sensor(self) -> int:
        """Files that each sensor or thread downloads in turn."""
        return -(-max(self.files, self.sensors) // self.sensors)

    @property
    def interval_s(self) -> float:
        """Seconds between two operations of a sensor. Needs a rate."""
        assert self.rate_per_s is not None
        return self.sensors / self.rate_per_s

    @property
    def put_share(self) -> float:
        """The share of uploads in a mixed load, in which each sensor begins with one. Needs a rate."""
        share, ops = self.shares.get(Verb.PUT, 0.0), max(1.0, self.for_s / self.interval_s)
        return (1 + (ops - 1) * share) / ops

    @property
    def most_ops(self) -> int:
        """The most operations of one thread."""
        return max(2, ceil(self.for_s * _MOST_PER_S))


def put_test(workload: Workload) -> str:
    """Return the source of a test that uploads."""
    imports = "ThinkTime" if workload.rate_per_s is None else "FixedInterval"
    return f"""\
from pytest_cloudbench import {imports}


def test_put(experiment, payloads):
    result = experiment.run(
        payloads.random({_format_size(workload.size_bytes)}),
{_arrival_lines(workload)}
    )
    result.check()
    assert result["silent_loss_rate"] == 0
"""


def get_test(workload: Workload) -> str:
    """Return the source of a test that downloads."""
    imports = "ThinkTime, Verb" if workload.rate_per_s is None else "FixedInterval, ThinkTime, Verb"
    return f"""\
from pytest_cloudbench import {imports}


def test_get(experiment, payloads):
    upload = experiment.run(
        payloads.random({_format_size(workload.size_bytes)}),
        arrival=ThinkTime(0),
        sensors={workload.sensors},
        ops_per_sensor={workload.files_per_sensor},
        keep=True,
        store=False,
    )
    assert upload["ok"] == upload["ops"]
    result = experiment.run(
        on=upload.files,
        in_turn=True,
        operation=Verb.GET,
{_arrival_lines(workload)}
    )
    result.check()
    assert result["corrupt_rate"] == 0
"""


def mixed_test(workload: Workload) -> str:
    """Return the source of a test that mixes operations. Needs a rate."""
    shares = ", ".join(f"Verb.{verb.name}: {share!r}" for verb, share in workload.shares.items())
    size, interval_s = _format_size(workload.size_bytes), f"{workload.interval_s!r}"
    return f"""\
from pytest_cloudbench import FixedInterval, Mixture, Verb


def test_mixed(experiment, payloads):
    times = FixedInterval(interval_s={interval_s}, first_delay_max_s={interval_s})
    result = experiment.run(
        payloads.random({size}),
        arrival=Mixture(times, {{{shares}}}, size_bytes={size}),
        sensors={workload.sensors},
        for_s={workload.for_s!r},
    )
    result.check()
    assert result["corrupt_rate"] == result["silent_loss_rate"] == 0
"""


def _arrival_lines(workload: Workload) -> str:
    """Return the lines that say when operations are due."""
    if workload.rate_per_s is None:
        lines = ["arrival=ThinkTime(0)", f"sensors={workload.threads}", f"ops_per_sensor={workload.most_ops}"]
    else:
        seconds = f"{workload.interval_s!r}"
        lines = [
            f"arrival=FixedInterval(interval_s={seconds}, first_delay_max_s={seconds})",
            f"sensors={workload.sensors}",
        ]
    return "\n".join(f"        {line}," for line in [*lines, f"for_s={workload.for_s!r}"])


def _format_size(size_bytes: int) -> str:
    """Return a size as source, such as ``64 * 1024``."""
    for unit_bytes, unit in ((MIB, "1024**2"), (KIB, "1024")):
        if size_bytes and size_bytes % unit_bytes == 0:
            return f"{size_bytes // unit_bytes} * {unit}"
    return f"{size_bytes}"
