"""Collect BenchCloud's own INI files (thesis 2014, 4.1 and appendix A): each file is one test, named after the file.

This module turns a file into one experiment, decides when that fails, and writes BenchCloud's log and tables of the
results. ``configs.benchcloud`` knows what sections and keys mean.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from random import Random
from typing import Any

from pytest_cloudbench.load.experiment import Experiment, Result
from pytest_cloudbench.load.gate.verdicts import ExpectationBroken
from pytest_cloudbench.load.names import FileNames
from pytest_cloudbench.model import ConfigError, UsageError, Verb
from pytest_cloudbench.plugin.collect.benchcloud_capture import ExperimentCapture
from pytest_cloudbench.plugin.collect.module import ConfigModule
from pytest_cloudbench.plugin.configs.benchcloud import BenchCloudTest, CaptureSettings, parse_benchcloud, parse_capture
from pytest_cloudbench.plugin.configs.benchcloud_classes import parse_classes
from pytest_cloudbench.plugin.configs.benchcloud_log import LoggedOperation, LoggedRun, format_statistics, log_text
from pytest_cloudbench.support import opening
from pytest_cloudbench.support.wording import format_count, format_counts
from pytest_cloudbench.workload.arrival import Threads
from pytest_cloudbench.workload.payload import Generator, Payloads, generator

_MAX_ROWS = 100
"""Rows of the table of operations on the terminal. The log has the rows of all operations."""

_FAILED_OUTCOMES = ("failed", "corrupt", "lost")
"""Outcomes that fail a test. Throttled operations do not: expectations and gates judge how many are allowed."""

_MAX_FILE_BYTES = 256 * opening.MIB  # files that are named as captures are read as text, too


def read_legacy_text(path: Path) -> str:
    """Return the text of a file from 2014, whose encoding is not declared: UTF-8 if it is valid, else Latin-1."""
    data = opening.read_file(path, _MAX_FILE_BYTES)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")


@dataclass(frozen=True, slots=True)
class StartSleeps(Threads):
    """Threads that start after a random number of *whole* seconds, both bounds included, as in BenchCloud."""

    def first_s(self, seed: str, thread: int) -> float:
        """Return when a thread starts, in seconds from the start of the run."""
        min_s, max_s = int(self.first_delay_min_s), int(self.first_delay_max_s)
        return float(min_s + int(Random(f"{seed}/first/{thread}").random() * (max_s - min_s + 1)))


class BenchCloudModule(ConfigModule):
    """The collector of one BenchCloud file. Its test has the file's name, which tables of tests show."""

    def make_tests(self, path: Path) -> Mapping[str, Callable[..., Any]]:
        """Return the file's one test. Raises ConfigError for an invalid file, naming the key."""
        option, name = self.config.option, _test_name(path)
        text = read_legacy_text(path)
        classes_file = resources.files("pytest_cloudbench.data") / "benchcloud.toml"
        classes = parse_classes(classes_file.read_text("utf-8"), classes_file.name)
        specs = [*(option.cloudbench_provider or [None]), *filter(None, [option.cloudbench_versus])]
        tests_by_spec = {spec: parse_benchcloud(text, path.name, classes, spec) for spec in specs}
        any_test = next(iter(tests_by_spec.values()))
        if None in tests_by_spec and any_test.local:
            return {name: _make_refusing_test(any_test)}
        fill = _parse_fill(option.cloudbench_benchcloud_fill)
        capture_settings = _read_capture_settings(option.cloudbench_benchcloud_capture)

        def benchcloud(experiment: Experiment, payloads: Payloads) -> None:
            spec = experiment.provider.spec
            test = tests_by_spec[spec if spec in tests_by_spec else None]
            _TestRun(test, experiment, payloads.seed, fill, capture_settings, spec in tests_by_spec).run()

        return {name: benchcloud}


def _test_name(path: Path) -> str:
    """Return the file's name as the name of its test, changed if pytest reserves that name in a module."""
    name = re.sub(r"[^\w.-]+", "_", path.stem)
    return f"benchcloud_{name}" if name.lower().startswith(("pytest", "setup", "teardown", "_")) else name


def _make_refusing_test(test: BenchCloudTest) -> Callable[..., None]:
    def benchcloud(fleet: Any) -> None:  # takes the fixture, so that the fleet reports the failure in one line
        raise ConfigError(
            test.source,
            "driver.class",
            f"expected --provider {test.scheme}:PATH, such as the folder of a sync client: {test.driver_class} used a "
            "folder of its own machine",
        )

    return benchcloud


def _parse_fill(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9][0-9]{0,8}):([0-9]{1,15})", text, re.ASCII)
    if match is None:
        raise UsageError(f"cloudbench_benchcloud_fill {text}: expected FILES:BYTES, such as 50:102400")
    return int(match[1]), int(match[2])


def _read_capture_settings(name: str | None) -> CaptureSettings | None:
    if name is None:
        return None
    try:
        return parse_capture(read_legacy_text(Path(name)), name)
    except OSError as error:
        raise UsageError(f"cloudbench_benchcloud_capture {name}: cannot be read: {error.strerror or error}") from error


@dataclass(slots=True)
class _TestRun:
    """The run of one test, on every agent.

    Attributes:
        fill: for a download: how many files are in the folder, and how many bytes each has.
        default_capture: the settings of ``cloudbench_benchcloud_capture``, used by a file without ``[capture]``.
        is_named: whether the provider is on the command line.
    """

    test: BenchCloudTest
    experiment: Experiment
    seed: str
    fill: tuple[int, int]
    default_capture: CaptureSettings | None
    is_named: bool

    def run(self) -> None:
        """Run the test as one load, and report it in BenchCloud's own tables and log."""
        test, experiment = self.test, self.experiment
        payload, files, names = self._payload_and_names()
        settings = test.capture or self.default_capture
        capture = ExperimentCapture(settings, experiment, fills=test.kind == "download") if settings else None
        notes = [*test.notes, *self._collect_notes(), *(capture.start() if capture else ())]
        arrival, quiet_text = self._make_arrival(), ""
        try:
            result = experiment.run(
                payload, arrival=arrival, files=files, operation=Verb.PUT if test.kind == "upload" else Verb.GET,
                detail=True, names=names, notes=notes, extra={"source": test.source, "description": test.description},
                keep=capture is not None and capture.keeps_files,
            )  # fmt: skip
            if capture and result["ok"]:
                quiet_text = capture.wait_quiet()
        finally:
            capture_summary = capture.stop() if capture else ""
        log = self._build_log(result, arrival, names)
        content = log_text(log) if test.log_name else ""
        tables = _format_tables(test, experiment.provider.spec, log, has_log=bool(content))
        failures = f"failed: {_count_failure_kinds(result)}" if result["ok"] < result["ops"] else ""
        text = "\n".join(filter(None, [tables, failures, capture_summary, quiet_text]))
        experiment.report(text, (content and test.log_name) or "", content)
        _check_result(test, result)

    def _collect_notes(self) -> list[str]:
        """Return notes about decisions made here, in addition to the parser's."""
        spec, test, scale = self.experiment.provider.spec, self.test, self.experiment.facts.time_scale
        notes = []
        if not self.is_named:
            if f":{test.scheme}" not in spec:  # a real service is never replaced silently
                raise ConfigError(test.source, "driver.class", f"expected --provider {test.scheme}")
            notes.append(f"driver.class: runs against {spec}; --provider {test.scheme} is the real service")
        if test.kind == "download":
            files, size_bytes = self.fill
            fill_text = f"filled with {format_count(files, 'file')} of {format_count(size_bytes, 'random byte')}"
            notes.append(f"test.remote_dir: {fill_text}; cloudbench_benchcloud_fill takes other numbers")
        if scale != 1.0 and (test.sleep_s or test.random_start_sleep_s):
            notes.append(f"--time-scale {scale:g}: every sleep is {scale:g} times shorter than the file says")
        return notes

    def _payload_and_names(self) -> tuple[Generator, int, FileNames]:
        """Return the generator of the files' content, the number of files, and their names."""
        test = self.test
        names = FileNames(test.suffix, test.prefix, self.seed, folder=test.folder)
        if test.kind == "download" or test.generator is None or test.times is None:
            files, size_bytes = self.fill
            return generator("random", {"size_bytes": size_bytes}, self.seed), files, names
        if test.remote_filename is not None:
            names = FileNames(test.suffix, test.prefix, self.seed, test.path("").rpartition("/")[2], test.folder)
        return generator(test.generator, test.generator_params, self.seed), test.times, names

    def _make_arrival(self) -> Threads:
        min_s, max_s = self.test.random_start_sleep_s or (0, 0)
        return StartSleeps(self.test.threads, self.test.sleep_s, max_s, min_s)

    def _build_log(self, result: Result, arrival: Threads, names: FileNames) -> LoggedRun:
        """Return the measured operations in the form of BenchCloud's log, with wall-clock times."""
        test, scale = self.test, self.experiment.facts.time_scale
        run_start_ms, ops = int(result["start_wall_ms"]), result.ops
        rows = list(zip(ops["sensor"], ops["start_s"], ops["service_s"], ops["outcome"], ops["kind"], strict=True))
        ends_ms = [run_start_ms + round((start_s + service_s) * 1e3) for _, start_s, service_s, _, _ in rows]
        run_end_ms = max(ends_ms, default=run_start_ms)
        operations = []
        for (number, start_s, _, outcome, kind), op_end_ms in zip(rows, ends_ms, strict=True):
            woke_ms = op_end_ms + round(test.sleep_s * 1e3 / scale)
            operations.append(
                LoggedOperation(
                    seq=number,
                    name=names.new(number, 0),
                    start_ms=run_start_ms + round(start_s * 1e3),
                    end_ms=op_end_ms,
                    failure="" if outcome == "ok" else str(kind or outcome),
                    woke_ms=woke_ms if woke_ms <= run_end_ms else None,
                )
            )
        seed, sleeps_s = self.experiment.facts.seed, []
        if test.random_start_sleep_s is not None:
            sleeps_s = [int(arrival.first_s(seed, thread)) for thread in range(test.threads)]
        return LoggedRun(test.description, test.kind, run_start_ms, run_end_ms, operations, test.sleep_s, sleeps_s)


def _format_tables(test: BenchCloudTest, spec: str, run: LoggedRun, *, has_log: bool) -> str:
    """Return BenchCloud's tables for the terminal."""
    lines = [f"{test.source}  {spec}: {test.description}"]
    tables = format_statistics(run.operations)
    if has_log and len(run.operations) > _MAX_ROWS:
        lines.append(f"the times of all {len(run.operations)} operations are in the log")
        tables = "\n".join(tables.splitlines()[-5:])
    return "\n".join([*lines, tables, f"Time spent for all operations: {run.end_ms - run.start_ms}ms"])


def _check_result(test: BenchCloudTest, result: Result) -> None:
    """Raise ExpectationBroken if operations failed or none succeeded. Then check the expectations."""
    failures = _describe_failures(result)
    if not result["ok"]:
        reasons = _count_failure_kinds(result) or "none was tried"
        failures.append(f"none of {format_count(result['ops'], 'operation')} succeeded: {reasons}")
    if failures:
        broken_lines = [line for status, line in result.judgements if status == "broken"]
        raise ExpectationBroken("\n".join([*(f"{test.source}: {line}" for line in failures), *broken_lines]))
    result.check()


def _describe_failures(result: Result) -> list[str]:
    """Return one line that counts the failed operations and names the first, or no line."""
    ops = result.ops
    failures = [
        (number, str(kind or outcome))
        for number, outcome, kind in zip(ops["sensor"], ops["outcome"], ops["kind"], strict=True)
        if outcome in _FAILED_OUTCOMES
    ]
    if not failures:
        return []
    number, first_reason = min(failures)
    counts = f"{len(failures)} of {format_count(len(ops['sensor']), 'operation')}"
    return [f"{counts} failed, the first one is #{number}: {first_reason}"]


def _count_failure_kinds(result: Result) -> str:
    """Return why operations did not succeed and how often, such as ``throttled 3, timeout 1``."""
    ops = result.ops
    reasons = Counter(str(kind or outcome) for outcome, kind in zip(ops["outcome"], ops["kind"], strict=True))
    return format_counts({**reasons, "ok": 0})
