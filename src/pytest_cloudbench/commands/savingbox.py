"""The command ``cloudbench savingbox``, which batches changes of a folder by the package ``savingbox``."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.commands.command import discard_output
from pytest_cloudbench.model import UsageError
from pytest_cloudbench.support import clock
from pytest_cloudbench.support.collector import without_collector
from pytest_cloudbench.support.wording import format_count

if TYPE_CHECKING:
    from pytest_cloudbench.savingbox.batching.batcher import Batcher
    from pytest_cloudbench.savingbox.box import Event, SavingBox

_MAX_AMOUNT = float(1 << 63)
"""The bound of bytes and of nanoseconds in options. More is surely a typing error."""
_MAX_QUOTED_CHARS = 60
"""The most characters of a wrong value that a message repeats."""
_UNITS_BYTES = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}


def add_commands(commands: Any) -> None:
    """Add ``savingbox`` to the commands of ``cloudbench``."""
    command = commands.add_parser(
        "savingbox",
        help="batch changes of a folder on their way to a sync client's folder",
        description="Mirror SAVINGBOX, a folder that you work in, into SYNC_FOLDER, which a sync client watches, and "
        "batch changes on the way; take in what the client brings. Runs until Ctrl-C or SIGTERM, and pushes what "
        "waits before it ends.",
    )
    command.add_argument("savingbox", metavar="SAVINGBOX", type=Path, help="the folder that you work in")
    command.add_argument("sync_folder", metavar="SYNC_FOLDER", type=Path, help="the folder that the client watches")
    command.add_argument(
        "--bytes", dest="limit", metavar="N", default="250k",
        help="push when N compressed bytes are waiting; k, m and g are powers of 1024 (default: %(default)s)",
    )  # fmt: skip
    command.add_argument(
        "--quiet", metavar="TIME", default="5s", help="push when nothing has changed for TIME (default: %(default)s)"
    )
    command.add_argument(
        "--at-most", metavar="TIME", default="30s", help="push when a change has waited for TIME (default: %(default)s)"
    )
    command.add_argument(
        "--delay-at-most", metavar="TIME", default=None,
        help="adaptive: a file that changes in a rhythm waits for its next change, but not longer than TIME; for files "
        "without a rhythm, --at-most is the limit",
    )  # fmt: skip
    command.add_argument(
        "--ranges", choices=("auto", "trace", "compare"), default="auto",
        help="how changed bytes are found: trace: by the kernel's tracepoints (root, on ext4 or XFS); compare: by "
        "comparing both files; auto: by tracepoints where they work (default: %(default)s)",
    )  # fmt: skip
    command.add_argument("--once", action="store_true", help="make both folders equal, and exit")
    command.add_argument("--status", action="store_true", help="show the status of a running savingbox, and exit")
    command.add_argument("--json", action="store_true", help="print JSON, one line for each event")
    command.add_argument(
        "--state", metavar="FOLDER", type=Path, help="where to keep the state file (default: the user's state folder)"
    )
    command.set_defaults(run=_run_savingbox)


def _run_savingbox(options: argparse.Namespace) -> int:
    """Keep both folders in step, once or until a signal, or print the status. Returns the exit status."""
    if options.status:
        return _print_status(options)
    from pytest_cloudbench.savingbox.box import SavingBox

    say = _ignore_broken_output(_print_json if options.json else _print_text)
    from pytest_cloudbench.savingbox.written import NoWrites, TracedWrites, find_writes

    batcher = _create_batcher(options)
    writes: TracedWrites | NoWrites
    if options.once and options.ranges == "auto":
        writes = NoWrites("writes before --once were not seen")
    else:
        writes = find_writes(options.savingbox, options.ranges)
    try:
        box = SavingBox(
            options.savingbox, options.sync_folder, batcher=batcher, writes=writes, state=options.state,
            report=lambda event: say(_event_fields(event)),
        )  # fmt: skip
    except BaseException:
        writes.close()
        raise
    if options.once:
        with without_collector():  # many thousand objects are made, and no reference cycles
            is_done = box.once()
        say({"event": "stopped", **_status_fields(box)})
        return 0 if is_done else 1
    return _run_until_signal(box, say)


def _run_until_signal(box: SavingBox, say: Callable[[dict[str, Any]], None]) -> int:
    import signal

    def stop_box(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)  # a second signal kills the process, which loses nothing
        box.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop_box)
    is_done = box.run(lambda: say({"event": "ready", "state_file": str(box.state_path), **asdict(box.status())}))
    say({"event": "stopped", **_status_fields(box)})
    return 0 if is_done else 1


def _create_batcher(options: argparse.Namespace) -> Batcher:
    """Create the batcher that the options describe. Raises UsageError."""
    from pytest_cloudbench.savingbox.batching.batcher import Batcher, BatchRules
    from pytest_cloudbench.savingbox.batching.deferral import AdaptiveBatcher

    rules = BatchRules(
        _parse_bytes("--bytes", options.limit),
        _parse_time_ns("--quiet", options.quiet),
        _parse_time_ns("--at-most", options.at_most),
    )
    if options.delay_at_most is None:
        return Batcher(rules)
    bound_ns = _parse_time_ns("--delay-at-most", options.delay_at_most)
    if bound_ns < rules.quiet_ns:
        delay, quiet = _quote_value(options.delay_at_most), _quote_value(options.quiet)
        raise UsageError(f"--delay-at-most {delay}: expected at least --quiet, {quiet}")
    return AdaptiveBatcher(rules, bound_ns)


def _parse_bytes(option: str, text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)", text.lower(), re.ASCII)
    amount = float(match[1]) * _UNITS_BYTES[match[2]] if match else 0.0
    if not 0.5 < amount < _MAX_AMOUNT:
        expected = "a number with k, m or g, such as 250k, above 0 and below 8 EiB"
        raise UsageError(f"{option} {_quote_value(text)}: expected {expected}")
    return round(amount)


def _parse_time_ns(option: str, text: str) -> int:
    try:
        amount_ns = clock.parse_duration_s(text) * 1e9
    except ValueError as error:
        raise UsageError(f"{option} {_quote_value(text)}: {error}") from error
    if not 0.5 < amount_ns < _MAX_AMOUNT:
        raise UsageError(f"{option} {_quote_value(text)}: expected a time above 0 and below 292 years")
    return round(amount_ns)


def _quote_value(text: str) -> str:
    """Return an option's value for a message: in one line, and not too long."""
    if len(text) > _MAX_QUOTED_CHARS:
        text = f"{text[:_MAX_QUOTED_CHARS]}..."
    return text if text.isprintable() else repr(text)


def _print_status(options: argparse.Namespace) -> int:
    """Print what is known of a savingbox. Returns 0 if it runs, otherwise 1."""
    from pytest_cloudbench.savingbox.box import read_status, state_path

    status = read_status(state_path(options.savingbox, options.sync_folder, options.state))
    if status is None:
        raise UsageError(
            f"savingbox {str(options.savingbox)!r} {str(options.sync_folder)!r}: has never run with these folders"
        )
    if options.json:
        sys.stdout.write(json.dumps({**asdict(status), "is_running": status.is_running}) + "\n")
        return 0 if status.is_running else 1
    state = status.state if status.is_running else "not running"
    due = "" if status.due_s is None or not status.is_running else f", pushed in {max(0.0, status.due_s):.1f} s"
    sys.stdout.write(
        f"{status.savingbox!r} -> {status.sync_folder!r}: {state}\n"
        f"  watches by {status.watching}, finds changed bytes by {status.mechanism}"
        f"{_in_parentheses(status.mechanism_why)}\n"
        f"  waiting: {status.unpushed_files}, {format_count(status.unpushed_bytes, 'byte')} compressed{due}\n"
        f"  since it started: pushes: {status.pushes}; pushed: {status.pushed_files}, "
        f"{format_count(status.written_bytes, 'byte')} written; taken in: {status.pulls}; "
        f"conflicts: {status.conflicts}\n"
    )
    for text in status.trouble:
        sys.stdout.write(f"  {text}\n")
    return 0 if status.is_running else 1


def _in_parentheses(text: str) -> str:
    """Return a text in parentheses after a space, or an empty text as it is."""
    return f" ({text})" if text else ""


def _event_fields(event: Event) -> dict[str, Any]:
    return {"event": type(event).__name__.removeprefix("Mirror").lower(), **asdict(event)}


def _status_fields(box: SavingBox) -> dict[str, Any]:
    return asdict(box.status())


def _ignore_broken_output(say: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
    """Wrap ``say`` to end the output where it cannot be written: the folders are kept equal all the same.

    Its reader or its terminal has gone, or its disk is full.
    """

    def say_if_possible(line: dict[str, Any]) -> None:
        try:
            say(line)
        except OSError:
            discard_output()

    return say_if_possible


def _print_json(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"at_s": round(time.time(), 3), **line}) + "\n")
    sys.stdout.flush()


def _print_text(line: dict[str, Any]) -> None:
    """Print one event as a line for people."""
    texts = {
        "push": "push {number} ({why}): {files} changed, {counted} compressed, "
        "{written_bytes:,} written, waited {waited_s:.1f} s",
        "pull": "taken in: {path!r}",
        "progress": "{done:,} of {all:,}",
        "trouble": "{kind}: {text}",
        "ready": "{savingbox!r} -> {sync_folder!r}: watching by {watching}, changed bytes by {mechanism}{why_so}; "
        "{limit_bytes:,} bytes, {quiet_s:g} s, {at_most_s:g} s",
        "stopped": "pushes: {pushes}; pushed: {pushed_files}, {written} written; taken in: {pulls}; "
        "conflicts: {conflicts}; waiting: {unpushed_files}; changed bytes by {mechanism}{why_so}",
    }
    more = {
        "waited_s": line.get("waited_ns", 0) / 1e9,
        "why_so": _in_parentheses(line.get("mechanism_why", "")),
        # A full counter counts no more, and what has failed is counted before it is pushed again.
        "counted": ("at least " if line.get("why") in {"bytes", "again"} else "")
        + format_count(line.get("counted_bytes", 0), "byte"),
        "written": format_count(line.get("written_bytes", 0), "byte"),
    }
    sys.stdout.write(texts[line["event"]].format(**line, **more) + "\n")
    sys.stdout.flush()
