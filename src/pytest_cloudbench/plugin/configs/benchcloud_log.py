"""BenchCloud's log file and its statistics, for programs that read them: measured values into text.

What may live here: its lines and tables as pure functions. Writing them is the caller's, and so is the time zone.

What differs on purpose: BenchCloud's drivers printed an error and returned, so that a failure was logged as
``Operation #3 finished. (120ms)`` and counted in the average. Here such a line says ``Operation #3 failed: throttled.
(120ms)``, its place in the table says ``failed``, and only what succeeded counts. A line's time is that of what it
tells; BenchCloud stamped most lines when its log thread came to write them. A duration that was not measured is left
out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Literal

# As strftime's %b in the C locale, whatever the locale is.
_MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()


@dataclass(frozen=True, slots=True)
class LoggedOperation:
    """One operation. Times are milliseconds of the wall clock since 1970.

    Attributes:
        seq: its number, from 0.
        name: the generated file (upload) or the remote file (download).
        start_ms: when the driver was called.
        end_ms: when it returned or failed.
        failure: why it did not succeed, in one or a few words; empty when it did.
        generated_ms: when the making of its file began and ended, where that was measured.
        woke_ms: when the sleep after it ended; None if the run did not wait for that.
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
        """From the call to its end, also of a failure."""
        return self.end_ms - self.start_ms


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """All that a log tells.

    Attributes:
        description: ``test.description``.
        kind: what the operations are.
        start_ms: wall clock when the threads were about to start; for a download, before the folder was listed.
        end_ms: when the last operation had ended.
        operations: in any order.
        sleep_s: what each thread sleeps after an operation; 0 without.
        start_sleeps_s: what each thread slept before its first operation, by its number; empty without.
    """

    description: str
    kind: Literal["upload", "download"]
    start_ms: int
    end_ms: int
    operations: Sequence[LoggedOperation]
    sleep_s: int = 0
    start_sleeps_s: Sequence[int] = ()


def log_line(at_ms: int, message: str, zone: tzinfo) -> str:
    """One line without its end: ``[1396001000123] 28 Mar 2014 10:03:20 | message``.

    ``zone`` says which local time; BenchCloud's was that of its machine.
    """
    local = datetime.fromtimestamp(at_ms // 1000, zone)
    return f"[{at_ms}] {local.day:02d} {_MONTHS[local.month - 1]} {local.year:04d} {local:%H:%M:%S} | {message}"


def log_text(run: LoggedRun, zone: tzinfo) -> str:
    """The whole log file: what happened in the order of time, then the statistics."""
    events = [(run.start_ms, f"Start testing: {_one_line(run.description)}")]
    for worker, sleep_s in enumerate(run.start_sleeps_s):
        events.append((run.start_ms, f"Worker #{worker}: Sleep before start: {sleep_s}s"))
    for operation in sorted(run.operations, key=lambda each: each.seq):
        events += _uploaded(operation) if run.kind == "upload" else _downloaded(operation)
        events += _slept(operation, run.sleep_s)
    lines = [log_line(at_ms, message, zone) for at_ms, message in sorted(events, key=lambda event: event[0])]
    failures = sum(bool(operation.failure) for operation in run.operations)
    ended = f"finished, {failures} of them failed! :(" if failures else "finished! :)"
    lines += [log_line(run.end_ms, f"\nAll {len(run.operations)} operations {ended}", zone)]
    lines += ["", "Statistics of all operations:", statistics(run.operations)]
    lines += [log_line(run.end_ms, f"Time spent for all operations: {run.end_ms - run.start_ms}ms", zone)]
    return "\n".join(lines) + "\n"


def statistics(operations: Sequence[LoggedOperation]) -> str:
    """The two tables: the time of each operation, and least, most and average of those that succeeded.

    The average is cut to whole milliseconds, as BenchCloud's was. Without a success there is none of the three.
    """
    in_order = sorted(operations, key=lambda each: each.seq)
    rows = [(f"#{each.seq}", "failed" if each.failure else f"{each.took_ms}ms") for each in in_order]
    times_ms = [each.took_ms for each in in_order if not each.failure]
    summary = ("-", "-", "-")
    if times_ms:
        summary = (f"{min(times_ms)}ms", f"{max(times_ms)}ms", f"{sum(times_ms) // len(times_ms)}ms")
    return _table(("Operation", "Time"), rows) + "\n" + _table(("Min", "Max", "Average"), [summary])


def _uploaded(operation: LoggedOperation) -> list[tuple[int, str]]:
    place, name = f"Operation #{operation.seq}", _one_line(operation.name)
    begin_ms, made_ms = operation.generated_ms or (operation.start_ms, operation.start_ms)
    took = f" ({made_ms - begin_ms}ms)" if operation.generated_ms else ""
    return [
        (begin_ms, f"Start operation #{operation.seq}"),
        (begin_ms, f"{place}: Generating file..."),
        (made_ms, f"{place}: File generated: {name}{took}"),
        (operation.start_ms, f"{place}: About to execute operation..."),
        _ended(operation),
        (operation.end_ms, f"{place}: File object closed: {name}"),
    ]


def _downloaded(operation: LoggedOperation) -> list[tuple[int, str]]:
    begun = f"Start downloading file #{operation.seq}: {_one_line(operation.name)}"
    return [(operation.start_ms, begun), _ended(operation)]


def _ended(operation: LoggedOperation) -> tuple[int, str]:
    how = f"failed: {_one_line(operation.failure)}" if operation.failure else "finished"
    return operation.end_ms, f"Operation #{operation.seq} {how}. ({operation.took_ms}ms)"


def _slept(operation: LoggedOperation, sleep_s: int) -> list[tuple[int, str]]:
    if not sleep_s:
        return []
    place = f"Operation #{operation.seq}"
    lines = [(operation.end_ms, f"{place}: About to sleep for {sleep_s} second(s)...")]
    if operation.woke_ms is not None:
        lines.append((operation.woke_ms, f"{place}: Sleep finished, now wake up."))
    return lines


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """As prettytable 0.7 drew it: centred cells, one space on each side."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    drawn = [
        "|" + "|".join(f" {_centred(cell, width)} " for cell, width in zip(row, widths, strict=True)) + "|"
        for row in [header, *rows]
    ]
    return "\n".join([rule, drawn[0], rule, *drawn[1:], rule])


def _centred(text: str, width: int) -> str:
    """With an odd number of spaces to share out, a text of odd length stands left of the centre, an even one right."""
    spare = width - len(text)
    left = (spare + 1 - len(text) % 2) // 2
    return " " * left + text + " " * (spare - left)


def _one_line(text: str) -> str:
    return text if text.isprintable() else repr(text)
