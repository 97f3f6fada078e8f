"""The command ``cloudbench estimate``: what tests would do to a provider, without running them against one."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_cloudbench.commands.become import become_pytest

_PLUGIN = "pytest_cloudbench.plugin.estimate"


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "estimate",
        help="say what tests would do to a provider, before anything is touched",
        description="Say what each test would do to a provider: operations, bytes, requests, duration, cost where the "
        "provider's prices are known, and space. Nothing is connected, started or written, and no credentials are "
        "needed. A test whose next step depends on what is measured does at least what is shown. "
        "Options of pytest may follow, such as -k TEXT.",
        usage="cloudbench estimate TEST [TEST ...] [--provider SPEC] [options of pytest]",
        allow_abbrev=False,
    )
    parser.add_argument("tests", metavar="TEST", nargs="+", help="as for pytest: a file, a folder, or file::test")
    parser.add_argument(
        "--provider", dest="providers", metavar="SPEC", action="append", default=[],
        help="as for pytest's --provider; may repeat (default: the one that the test runs on)",
    )  # fmt: skip
    parser.set_defaults(run=_estimate, passes_on=True)


def _is_path(test: str) -> bool:
    """Return whether a test is named by its file or folder. If that is missing, pytest says so without ``--pyargs``."""
    path = test.partition("::")[0]
    return Path(path).exists() or path.endswith((".py", ".toml")) or "/" in path


def _estimate(options: argparse.Namespace) -> int:
    arguments = ["-p", _PLUGIN, "-p", "no:cacheprovider", "-qq", "--no-header", "--disable-warnings", *options.tests]
    if not all(map(_is_path, options.tests)):
        arguments.append("--pyargs")
    arguments.append("--benchmark-storage=file://.")  # pytest-benchmark makes the folder, so it is one that exists
    arguments += [f"--cloudbench-provider={spec}" for spec in options.providers]
    return become_pytest([*arguments, *options.rest, "-n", "0"])  # one process tells what fifty would do
