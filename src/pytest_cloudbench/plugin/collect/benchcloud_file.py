"""BenchCloud's own INI files as tests (thesis 2014, 4.1 and appendix A): each file is one test, named after it.

What may live here: how a file becomes one experiment, when that experiment fails, and BenchCloud's log and tables
of the results. What sections and keys mean is ``configs/benchcloud``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, tzinfo
from importlib import resources
from pathlib import Path
from random import Random
from typing import Any

from pytest_cloudbench.load.experiment import Experiment, Result
from pytest_cloudbench.load.gate.verdicts import ExpectationBroken
from pytest_cloudbench.load.names import FileNames
from pytest_cloudbench.model import ConfigError, UsageError, Verb
from pytest_cloudbench.plugin.collect.benchcloud_capture import Capturing
from pytest_cloudbench.plugin.collect.module import ConfigModule
from pytest_cloudbench.plugin.configs.benchcloud import BenchCloudTest, CaptureSettings, parse_benchcloud, parse_capture
from pytest_cloudbench.plugin.configs.benchcloud_classes import parse_classes
from pytest_cloudbench.plugin.configs.benchcloud_log import LoggedOperation, LoggedRun, log_text, statistics
from pytest_cloudbench.support import opening
from pytest_cloudbench.workload.arrival import Threads
from pytest_cloudbench.workload.payload import Generator, Payloads, generator

_MOST_ROWS = 100
"""Of the table of operations on the terminal; a log has them all."""

_UNMET = ("failed", "corrupt", "lost")
"""Outcomes that fail a test. A throttled operation is a result: expectations and gates judge how many may be."""


_MOST_BYTES = 256 * opening.MIB  # BenchCloud's captures are texts, too


def read_text(path: Path) -> str:
    """The text of a file from 2014, whose encoding is not declared."""
    data = opening.read_file(path, _MOST_BYTES)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")


@dataclass(frozen=True, slots=True)
class StartSleeps(Threads):
    """Threads that begin after a random number of *whole* seconds, both ends included, as BenchCloud's did."""

    def first_s(self, seed: str, thread: int) -> float:
        """When a thread begins, in seconds from the start."""
        least_s, most_s = int(self.first_delay_min_s), int(self.first_delay_max_s)
        return float(least_s + int(Random(f"{seed}/first/{thread}").random() * (most_s - least_s + 1)))


class BenchCloudModule(ConfigModule):
    """One file of BenchCloud: a test with the file's name, because that is what tables of tests show."""

    def tests(self, path: Path) -> Mapping[str, Callable[..., Any]]:
        """One test. Raises ConfigError for a file that means nothing, naming its key."""
        option, name = self.config.option, _test_name(path)
        text = read_text(path)
        shipped = resources.files("pytest_cloudbench.data") / "benchcloud.toml"
        classes = parse_classes(shipped.read_text("utf-8"), shipped.name)
        found = {
            spec: parse_benchcloud(text, path.name, classes, spec) for spec in option.cloudbench_provider or [None]
        }
        any_test = next(iter(found.values()))
        if None in found and any_test.local:
            return {name: _refusing(any_test)}
        fill = _fill(option.cloudbench_benchcloud_fill)
        captured = _capture_of(option.cloudbench_benchcloud_capture)

        def benchcloud(experiment: Experiment, payloads: Payloads) -> None:
            test = found[experiment.provider.spec if option.cloudbench_provider else None]
            _Running(test, experiment, payloads.seed, fill, captured, bool(option.cloudbench_provider)).run()

        return {name: benchcloud}


def _test_name(path: Path) -> str:
    """The file's name, unless pytest reserves that name in a module."""
    name = re.sub(r"[^\w.-]+", "_", path.stem)
    return f"benchcloud_{name}" if name.lower().startswith(("pytest", "setup", "teardown", "_")) else name


def _refusing(test: BenchCloudTest) -> Callable[..., None]:
    def benchcloud(fleet: Any) -> None:  # the fixture, so that it fails in one line
        raise ConfigError(
            test.source,
            "driver.class",
            f"expected --provider {test.scheme}:PATH, such as the folder of a sync client: {test.driver_class} used a "
            "folder of its own machine",
        )

    return benchcloud


def _fill(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9][0-9]{0,8}):([0-9]{1,15})", text, re.ASCII)
    if match is None:
        raise UsageError(f"cloudbench_benchcloud_fill {text}: expected FILES:BYTES, such as 50:102400")
    return int(match[1]), int(match[2])


def _capture_of(name: str | None) -> CaptureSettings | None:
    if name is None:
        return None
    try:
        return parse_capture(read_text(Path(name)), name)
    except OSError as error:
        raise UsageError(f"cloudbench_benchcloud_capture {name}: cannot be read: {error.strerror or error}") from error


@dataclass(slots=True)
class _Running:
    """One test while it runs, on every agent.

    Attributes:
        fill: of a download: how many files are in the folder, and of how many bytes.
        captured: what ``cloudbench_benchcloud_capture`` says; a file's own section comes first.
        is_given: whether ``--provider`` says where it runs.
    """

    test: BenchCloudTest
    experiment: Experiment
    seed: str
    fill: tuple[int, int]
    captured: CaptureSettings | None
    is_given: bool

    def run(self) -> None:
        test, experiment = self.test, self.experiment
        payload, files, names = self._load()
        settings = test.capture or self.captured
        capturing = Capturing(settings, experiment, fills=test.kind == "download") if settings else None
        notes = [*test.notes, *self._notes(), *(capturing.start() if capturing else ())]
        arrival = self._arrival()
        try:
            result = experiment.run(
                payload, arrival=arrival, files=files, operation=Verb.PUT if test.kind == "upload" else Verb.GET,
                detail=True, names=names, notes=notes, extra={"source": test.source, "description": test.description},
            )  # fmt: skip
        finally:
            said = capturing.stop() if capturing else ""
        logged = self._logged(result, arrival, names)
        content = log_text(logged, _local_zone()) if test.log_name else ""
        shown = _shown(test, experiment.provider.spec, logged, has_log=bool(content))
        failures = f"failed: {_kinds(result)}" if result["ok"] < result["ops"] else ""
        experiment.report("\n".join(filter(None, [shown, failures, said])), (content and test.log_name) or "", content)
        _check(test, result)

    def _notes(self) -> list[str]:
        """Notes besides the parser's, about decisions made here."""
        spec, test, scale = self.experiment.provider.spec, self.test, self.experiment.facts.time_scale
        notes = []
        if not self.is_given:
            if f":{test.scheme}" not in spec:  # never silently elsewhere
                raise ConfigError(test.source, "driver.class", f"expected --provider {test.scheme}")
            notes.append(f"driver.class: runs against {spec}; --provider {test.scheme} is the real service")
        if test.kind == "download":
            files, size_bytes = self.fill
            filled = f"filled with {files} files of {size_bytes:,} random bytes"
            notes.append(f"test.remote_dir: {filled}; cloudbench_benchcloud_fill takes other numbers")
        if scale != 1.0 and (test.sleep_s or test.random_start_sleep_s):
            notes.append(f"--time-scale {scale:g}: every sleep is {scale:g} times shorter than the file says")
        return notes

    def _load(self) -> tuple[Generator, int, FileNames]:
        """What files hold, how many there are, and what they are called."""
        test = self.test
        names = FileNames(test.suffix, test.prefix, self.seed, folder=test.folder)
        if test.kind == "download" or test.generator is None or test.times is None:
            files, size_bytes = self.fill
            return generator("random", {"size_bytes": size_bytes}, self.seed), files, names
        if test.remote_filename is not None:
            names = FileNames(test.suffix, test.prefix, self.seed, test.path("").rpartition("/")[2], test.folder)
        return generator(test.generator, test.generator_params, self.seed), test.times, names

    def _arrival(self) -> Threads:
        least_s, most_s = self.test.random_start_sleep_s or (0, 0)
        return StartSleeps(self.test.threads, self.test.sleep_s, most_s, least_s)

    def _logged(self, result: Result, arrival: Threads, names: FileNames) -> LoggedRun:
        """What was measured, as BenchCloud's log tells it: in wall-clock time."""
        test, scale = self.test, self.experiment.facts.time_scale
        began_ms, ops = int(result["start_wall_ms"]), result.ops
        rows = list(zip(ops["sensor"], ops["start_s"], ops["service_s"], ops["outcome"], ops["kind"], strict=True))
        ends_ms = [began_ms + round((start_s + service_s) * 1e3) for _, start_s, service_s, _, _ in rows]
        end_ms = max(ends_ms, default=began_ms)
        operations = []
        for (number, start_s, _, outcome, kind), ended_ms in zip(rows, ends_ms, strict=True):
            woke_ms = ended_ms + round(test.sleep_s * 1e3 / scale)
            operations.append(
                LoggedOperation(
                    seq=number,
                    name=names.new(number, 0),
                    start_ms=began_ms + round(start_s * 1e3),
                    end_ms=ended_ms,
                    failure="" if outcome == "ok" else str(kind or outcome),
                    woke_ms=woke_ms if woke_ms <= end_ms else None,
                )
            )
        seed, sleeps_s = self.experiment.facts.seed, []
        if test.random_start_sleep_s is not None:
            sleeps_s = [int(arrival.first_s(seed, thread)) for thread in range(test.threads)]
        return LoggedRun(test.description, test.kind, began_ms, end_ms, operations, test.sleep_s, sleeps_s)


def _local_zone() -> tzinfo:
    zone = datetime.now().astimezone().tzinfo
    assert zone is not None  # of an aware time
    return zone


def _shown(test: BenchCloudTest, spec: str, run: LoggedRun, *, has_log: bool) -> str:
    """BenchCloud's tables, for the terminal."""
    head = [f"{test.source}  {spec}: {test.description}"]
    tables = statistics(run.operations)
    if has_log and len(run.operations) > _MOST_ROWS:
        head.append(f"the times of all {len(run.operations)} operations are in the log")
        tables = "\n".join(tables.splitlines()[-5:])
    return "\n".join([*head, tables, f"Time spent for all operations: {run.end_ms - run.start_ms}ms"])


def _check(test: BenchCloudTest, result: Result) -> None:
    """A failed operation is a failure, and so is a run in which nothing has succeeded. Then what is expected."""
    wrong = _unmet(result)
    if not result["ok"]:
        wrong.append(f"none of {result['ops']} operations succeeded: {_kinds(result) or 'none was tried'}")
    if wrong:
        broken = [line for status, line in result.judgements if status == "broken"]
        raise ExpectationBroken("\n".join([*(f"{test.source}: {line}" for line in wrong), *broken]))
    result.check()


def _unmet(result: Result) -> list[str]:
    ops = result.ops
    failures = [
        (number, str(kind or outcome))
        for number, outcome, kind in zip(ops["sensor"], ops["outcome"], ops["kind"], strict=True)
        if outcome in _UNMET
    ]
    if not failures:
        return []
    number, why = min(failures)
    return [f"{len(failures)} of {len(ops['sensor'])} operations failed, the first one is #{number}: {why}"]


def _kinds(result: Result) -> str:
    """Why operations did not succeed, and how many of each kind."""
    ops = result.ops
    whys = Counter(str(kind or outcome) for outcome, kind in zip(ops["outcome"], ops["kind"], strict=True))
    return ", ".join(f"{why} {count}" for why, count in sorted(whys.items()) if why != "ok")
