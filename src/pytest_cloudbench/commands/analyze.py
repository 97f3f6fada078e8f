"""The command ``cloudbench analyze``: the flows in a capture file, and whether its numbers can be trusted."""

from __future__ import annotations

import argparse
import gc
import math
import os
import sys
from pathlib import Path

from pytest_cloudbench.commands.command import Command, argument
from pytest_cloudbench.model import MIB, UsageError
from pytest_cloudbench.support.collector import without_collector

_KEPT_BYTES = 31 * MIB  # glibc ignores arrays from 32 MiB on


def analyze(options: argparse.Namespace) -> int:
    """Print what is in a capture. Returns the exit status. Raises UsageError and CaptureError."""
    with without_collector():  # garbage collection frees hardly anything, and takes a fifth of a short run
        try:
            return _analyze(options)
        finally:
            if options.ends_process:
                gc.freeze()  # so that Python does not collect garbage at its end, either


def _analyze(options: argparse.Namespace) -> int:
    """Analyze a capture and print the result. Returns 0. Raises UsageError."""
    # The threads that numpy starts for linear algebra, which nothing here needs, would spin for a while.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from pytest_cloudbench import data
    from pytest_cloudbench.net import dissect
    from pytest_cloudbench.support import extras

    extras.require_extra("capture", "analyze")
    if options.ends_process:
        _keep_freed_memory()
    from pytest_cloudbench.net.traffic import analyze as analyze_packets
    from pytest_cloudbench.net.traffic import parse_rules
    from pytest_cloudbench.net.traffic.analysis import LEAST_ENCODED_BYTES
    from pytest_cloudbench.report import capture

    rules = parse_rules(data.read_flow_rules(options.rules), str(options.rules or "flow-rules.toml"))
    canary = None if options.canary is None else options.canary.encode("utf-8", "surrogateescape")
    if canary == b"":
        raise UsageError("--canary: expected a text that is not empty")
    if options.changed_bytes is not None and options.changed_bytes < 1:
        raise UsageError(f"--changed-bytes {options.changed_bytes}: expected 1 or more")
    if options.changed_at is not None and not math.isfinite(options.changed_at):
        raise UsageError(f"--changed-at {options.changed_at}: expected seconds of the capture's clock")
    if options.dissect and str(options.file) == "-":
        raise UsageError("--dissect: expected a file's name, since tshark reads it again")
    with dissect.open_capture(options.file) as (buffer, release):
        analysis = analyze_packets(
            buffer, source=str(options.file), client=options.client, rules=rules, canary=canary,
            keeps_datagrams=options.changed_at is not None, release=release,
        )  # fmt: skip
        notes = dissect.name_quic_flows(analysis, options.file, rules) if options.dissect else []
        if canary is not None and len(canary) < LEAST_ENCODED_BYTES:
            notes.append(f"the canary is shorter than {LEAST_ENCODED_BYTES} bytes: encoded forms were not looked for")
        changed_ns = None if options.changed_at is None else round(options.changed_at * 1e9)
        summary = analysis.summary(changed_bytes=options.changed_bytes, changed_ns=changed_ns)
        if options.json:
            capture.write_json(summary, notes, analysis.flow_columns(), sys.stdout)
        else:
            capture.print_analysis(summary, notes, list(analysis.flows(capture.MOST_FLOWS)))
        del analysis, buffer
    return 0


def _keep_freed_memory() -> None:
    """Have the C library keep the memory of freed arrays for later ones, instead of returning it to the system.

    Getting it back costs more than most computations do. glibc keeps twice the size of the largest array freed so far.
    """
    import numpy as np

    np.empty(_KEPT_BYTES, np.uint8)
    # Arrays of this size now come from memory that glibc keeps. numpy requests huge pages for them, which smaller
    # arrays in the same place get, too: it is then prepared by 2 MiB instead of 4 KiB at a time.
    _ = [np.empty(_KEPT_BYTES - MIB, np.uint8) for _ in range(2)]


COMMAND = Command(
    "analyze",
    analyze,
    "report what is in a capture file",
    "Flows, their names and roles, payload, unique and wire bytes, retransmissions, and whether the numbers can be "
    "trusted, of a pcap or pcapng file.",
    (
        argument("file", metavar="FILE", type=Path, help="may be compressed with gzip; - is standard input"),
        argument("--client", metavar="IP", help="the client's address (default: whoever opened a connection)"),
        argument("--json", action="store_true", help="print JSON"),
        argument("--canary", metavar="TEXT", help="look for this text in what was sent without encryption"),
        argument("--rules", metavar="FILE", type=Path, help="rules that tell control from storage flows"),
        argument("--changed-bytes", metavar="N", type=int, help="what the user changed: gives TUE and overhead"),
        argument(
            "--changed-at", metavar="S", type=float,
            help="when it was changed, in seconds since 1970: gives the start-up time",
        ),
        argument("--dissect", action="store_true", help="ask tshark for the names in QUIC hellos too"),
    ),
)  # fmt: skip
COMMANDS = (COMMAND,)
