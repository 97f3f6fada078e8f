"""BenchCloud's log file and its statistics as text, for programs that read them.

The lines and tables are pure functions. The caller writes the file and chooses the time zone.

The log differs from BenchCloud's on purpose. BenchCloud's drivers printed an error and returned, so that a failure was
logged as ``Operation #3 finished. (120ms)`` and counted in the average. Here such a line says ``Operation #3 failed:
throttled. (120ms)``, its row in the table says ``failed``, and only operations that succeeded count in the statistics.
A line has the time of its event, while BenchCloud stamped most lines when its log thread came to write them. A duration
that was not measured is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Literal

# The names of strftime's %b in the C locale, so that the log does not depend on the locale.
_MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()


@dataclass(frozen=True, slots=True)
class LoggedOperation:
    """One operation of the log. Times are milliseconds of the wall clock since 1970.

    Attributes:
        seq: its number, from 0.
        name: the generated file (upload) or the remote file (download).
        start_ms: when the driver was called.
        end_ms: when it returned or failed.
        failure: why it did not succeed, in a few words. Empty if it did.
        generated_ms: when the generation of its file started and ended. None if that was not measured.
        woke_ms: when the sleep after it ended. None if the run did not wait for that.
    """

    seq: int
    name: str
    start_ms: int
    end_ms: int
    failure: str = ""
    generated_ms: tuple[int, int] | None = None
    woke_ms: int | None = None

    @property
    def took_ms(self) -> int:
        """The time from the call to its end, also of a failure."""
        return self.end_ms - self.start_ms


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """The run that a log describes.

    Attributes:
        description: ``test.description``.
        kind: what the operations do.
        start_ms: wall clock just before the threads start. For a download, before the folder is listed.
        end_ms: when the last operation ended.
        operations: in any order.
        sleep_s: how long each thread sleeps after an operation. 0 for no sleep.
        start_sleeps_s: how long each thread slept before its first operation, by its number. Empty for no sleeps.
    """

    description: str
    kind: Literal["upload", "download"]
    start_ms: int
    end_ms: int
    operations: Sequence[LoggedOperation]
    sleep_s: int = 0
    start_sleeps_s: Sequence[int] = ()


def log_line(at_ms: int, message: str, zone: tzinfo | None) -> str:
    """Return one line without its end: ``[1396001000123] 28 Mar 2014 10:03:20 | message``.

    ``zone`` is the zone of the local time, None for that of this machine, which BenchCloud used.
    """
    local = datetime.fromtimestamp(at_ms // 1000, zone)
    return f"[{at_ms}] {local.day:02d} {_MONTHS[local.month - 1]} {local.year:04d} {local:%H:%M:%S} | {message}"


def log_text(run: LoggedRun, zone: tzinfo | None = None) -> str:
    """Return the whole log file: events in the order of time, then the statistics. ``zone`` is as in ``log_line``."""
    events = [(run.start_ms, f"Start testing: {_escape_text(run.description)}")]
    for worker, sleep_s in enumerate(run.start_sleeps_s):
        events.append((run.start_ms, f"Worker #{worker}: Sleep before start: {sleep_s}s"))
    for operation in sorted(run.operations, key=lambda operation: operation.seq):
        events += _upload_lines(operation) if run.kind == "upload" else _download_lines(operation)
        events += _sleep_lines(operation, run.sleep_s)
    lines = [log_line(at_ms, message, zone) for at_ms, message in sorted(events, key=lambda event: event[0])]
    failures = sum(bool(operation.failure) for operation in run.operations)
    outcome = f"finished, {failures} of them failed! :(" if failures else "finished! :)"
    lines += [log_line(run.end_ms, f"\nAll {len(run.operations)} operations {outcome}", zone)]
    lines += ["", "Statistics of all operations:", format_statistics(run.operations)]
    lines += [log_line(run.end_ms, f"Time spent for all operations: {run.end_ms - run.start_ms}ms", zone)]
    return "\n".join(lines) + "\n"


def format_statistics(operations: Sequence[LoggedOperation]) -> str:
    """Return the two tables: the time of each operation, and minimum, maximum and average of those that succeeded.

    The average is cut to whole milliseconds, as in BenchCloud. If no operation succeeded, all three are ``-``.
    """
    in_order = sorted(operations, key=lambda operation: operation.seq)
    rows = [(f"#{op.seq}", "failed" if op.failure else f"{op.took_ms}ms") for op in in_order]
    times_ms = [op.took_ms for op in in_order if not op.failure]
    summary = ("-", "-", "-")
    if times_ms:
        summary = (f"{min(times_ms)}ms", f"{max(times_ms)}ms", f"{sum(times_ms) // len(times_ms)}ms")
    return _draw_table(("Operation", "Time"), rows) + "\n" + _draw_table(("Min", "Max", "Average"), [summary])


def _upload_lines(operation: LoggedOperation) -> list[tuple[int, str]]:
    label, name = f"Operation #{operation.seq}", _escape_text(operation.name)
    generation_start_ms, generation_end_ms = operation.generated_ms or (operation.start_ms, operation.start_ms)
    duration = f" ({generation_end_ms - generation_start_ms}ms)" if operation.generated_ms else ""
    return [
        (generation_start_ms, f"Start operation #{operation.seq}"),
        (generation_start_ms, f"{label}: Generating file..."),
        (generation_end_ms, f"{label}: File generated: {name}{duration}"),
        (operation.start_ms, f"{label}: About to execute operation..."),
        _end_line(operation),
        (operation.end_ms, f"{label}: File object closed: {name}"),
    ]


def _download_lines(operation: LoggedOperation) -> list[tuple[int, str]]:
    message = f"Start downloading file #{operation.seq}: {_escape_text(operation.name)}"
    return [(operation.start_ms, message), _end_line(operation)]


def _end_line(operation: LoggedOperation) -> tuple[int, str]:
    outcome = f"failed: {_escape_text(operation.failure)}" if operation.failure else "finished"
    return operation.end_ms, f"Operation #{operation.seq} {outcome}. ({operation.took_ms}ms)"


def _sleep_lines(operation: LoggedOperation, sleep_s: int) -> list[tuple[int, str]]:
    if not sleep_s:
        return []
    label = f"Operation #{operation.seq}"
    lines = [(operation.end_ms, f"{label}: About to sleep for {sleep_s} second(s)...")]
    if operation.woke_ms is not None:
        lines.append((operation.woke_ms, f"{label}: Sleep finished, now wake up."))
    return lines


def _draw_table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Draw a table as prettytable 0.7 did, with centred cells and one space on each side."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    lines = [
        "|" + "|".join(f" {_centre_text(cell, width)} " for cell, width in zip(row, widths, strict=True)) + "|"
        for row in [header, *rows]
    ]
    return "\n".join([rule, lines[0], rule, *lines[1:], rule])


def _centre_text(text: str, width: int) -> str:
    """Centre a text. With an odd number of spaces, a text of odd length stands left of the centre, others right."""
    space_count = width - len(text)
    left_count = (space_count + 1 - len(text) % 2) // 2
    return " " * left_count + text + " " * (space_count - left_count)


def _escape_text(text: str) -> str:
    return text if text.isprintable() else repr(text)
