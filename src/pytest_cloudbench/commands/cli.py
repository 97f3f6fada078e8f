"""The ``cloudbench`` command: what is useful without pytest.

What may live here: argument parsing and one call per command.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_cloudbench import __version__
from pytest_cloudbench.commands import catalogue, estimate, export, gate, history, load, raid, report, savingbox
from pytest_cloudbench.emulators.registry import SKINS
from pytest_cloudbench.model import CloudbenchError, UsageError

if TYPE_CHECKING:
    from pytest_cloudbench.results.journal import LeftFolder

_READER_GONE = 141
"""The exit status that a shell reports for a program ended by SIGPIPE."""
_SCHEMA = Path(__file__).resolve().parents[1] / "plugin" / "configs" / "bench.schema.json"


_START = """\
cloudbench measures and gates cloud storage. What people do with it:

  check a provider   cloudbench doctor emulated:ideal
  put load on it     cloudbench put emulated:ideal --rate 50/s --for 10s
  test of your own   cloudbench new; pytest experiment.bench.toml
  gate a build       pytest experiment.bench.toml --cloudbench-gate
  look at results    cloudbench show last; cloudbench report last -o report.html

cloudbench --help lists all commands, cloudbench COMMAND --help explains one.
"""
"""What the command says without any argument."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns the exit status: 0 done, 1 failed, 4 for an error that the user can fix, 141 if the reader of the output is
    gone.
    """
    try:
        return _run(argv)
    except BrokenPipeError:  # `cloudbench analyze FILE | head`: it has seen enough
        with contextlib.suppress(OSError, ValueError):  # or Python would write what is left when it ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _READER_GONE


def _run(argv: Sequence[str] | None) -> int:
    if not (sys.argv[1:] if argv is None else argv):
        sys.stdout.write(_START)
        sys.stdout.flush()
        return 0
    try:
        parser = make_parser()
        options, rest = parser.parse_known_args(argv)
        if rest and "passes_on" not in options:
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        options.rest = rest
    except SystemExit:
        sys.stdout.flush()  # of --help
        raise
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except UsageError as error:
        sys.stderr.write(f"cloudbench: {_shown(str(error))}\n")
        return 4
    except CloudbenchError as error:
        sys.stderr.write(f"cloudbench: {_shown(str(error))}\n")
        return 1
    return status


def _shown(text: str) -> str:
    """Makes text from other programs safe for a terminal: escapes control characters, and keeps line breaks."""
    return "\n".join(
        "".join(each if each.isprintable() else repr(each)[1:-1] for each in line) for line in text.split("\n")
    )


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="cloudbench", usage="cloudbench [-h] [--version] COMMAND ...",
        description="Measure and gate cloud storage.", formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"pytest-cloudbench {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, help=argparse.SUPPRESS)
    load.add_commands(commands)
    estimate.add_command(commands)
    emulate = commands.add_parser(
        "emulate",
        help="run an emulated provider in the foreground",
        description="Run an emulated provider on loopback until Ctrl-C. Prints one JSON line when it is ready: "
        "urls, credentials, ca_file, control, api, proxy, control_token_file, profile, pid.",
    )
    emulate.add_argument("api", metavar="API", help=f"the API to imitate: {', '.join(SKINS)}")
    emulate.add_argument("--profile", metavar="NAME", help="a profile's name or TOML file (default: the API's)")
    emulate.add_argument("--port", type=int, default=0, help="TCP port; 0 takes a free one (default: %(default)s)")
    emulate.add_argument("--time-scale", type=float, default=1.0, metavar="K", help="run its clock K times faster")
    emulate.add_argument("--seed", type=int, default=0, help="seed of its random behaviour (default: %(default)s)")
    emulate.set_defaults(run=_emulate)
    clean = commands.add_parser(
        "clean",
        help="remove what killed runs left on providers",
        description="Remove the folders that killed runs left on real providers, as the journal names them. A folder "
        "is removed when it has a run's name and holds that run's marker, once the run has ended; nothing else.",
    )
    clean.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    clean.add_argument(
        "--force", action="store_true", help="also those of other machines or containers, which may still be running"
    )
    clean.add_argument(
        "--forget", nargs=2, metavar=("PROVIDER", "FOLDER"),
        help="only cross this folder out in the journal, such as one of a mistyped provider; nothing is removed",
    )  # fmt: skip
    clean.set_defaults(run=_clean)
    recover = commands.add_parser(
        "recover",
        help="merge the records that killed runs left",
        description="Merge the logs that agents of killed runs left into Parquet files, each with an entry beside it "
        "that is marked as interrupted and is never a baseline. Logs of runs that are still running are left alone.",
    )
    recover.add_argument(
        "results", metavar="RESULTS", nargs="?", type=Path,
        help="the folder that --cloudbench-results named (default: the one that pytest's configuration names so or "
        "results, and those where runs are stored)",
    )  # fmt: skip
    recover.add_argument("--dry-run", action="store_true", help="only say what would be merged")
    recover.add_argument(
        "--force",
        action="store_true",
        help="also merge runs of other machines or containers, which may still be running",
    )
    recover.set_defaults(run=_recover)
    new = commands.add_parser(
        "new",
        help="write a commented example of an experiment without Python",
        description="Write a commented example of a bench file. An existing file is not touched.",
    )
    new.add_argument(
        "file", metavar="FILE", nargs="?", default="experiment.bench.toml",
        help="a name that ends in .bench.toml, or - for the standard output (default: %(default)s)",
    )  # fmt: skip
    new.set_defaults(run=_new)
    schema = commands.add_parser(
        "schema",
        help="print the JSON Schema of bench files",
        description="Print the JSON Schema of bench files, for editors.",
    )
    schema.add_argument("--path", action="store_true", help="print where it is installed instead")
    schema.set_defaults(run=_schema)
    published = commands.add_parser(
        "published",
        help="show the papers' tables, and a run beside them",
        description="List the papers' tables, or show one in its own units. With --run, show stored runs beside it.",
    )
    published.add_argument("table", metavar="TABLE", nargs="?", help="a table's name (default: list them)")
    published.add_argument(
        "--run", dest="runs", metavar="FILE", nargs="+", type=Path, default=[],
        help="runs that pytest-benchmark has stored, such as results/*/0001_*.json; without TABLE: beside every table",
    )  # fmt: skip
    published.set_defaults(run=_published)
    _add_analyze(commands)
    _add_accounts(commands)
    _add_testbed(commands)
    history.add_commands(commands)
    export.add_commands(commands)
    report.add(commands)
    gate.add_commands(commands)
    savingbox.add_command(commands)
    raid.add_commands(commands)
    catalogue.add_examples(parser, next(iter(SKINS)))
    return parser


def _add_accounts(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from pytest_cloudbench.commands import accounts

    login = commands.add_parser(
        "login",
        help="log in to a provider and store its credentials",
        description="Log in to a provider, by a browser where it has OAuth, or by typing its keys. Credentials go to "
        "the system's keyring, or to a file that only you can read. emulated:NAME is a rehearsal that stores nothing.",
    )
    login.add_argument("provider", metavar="PROVIDER", help="its scheme; NAME-2 is a second account")
    login.add_argument(
        "--client-id", metavar="ID", help="the application's id (default: that of the login before, or asked for)"
    )
    login.add_argument("--no-browser", action="store_true", help="paste what a browser elsewhere shows")
    login.add_argument("--device", action="store_true", help="type a code on any device, where the provider offers it")
    login.add_argument("--keys", action="store_true", help="type the credentials, though the provider has OAuth")
    login.set_defaults(run=accounts.login)
    status = commands.add_parser(
        "status",
        help="show which providers have credentials, and from where",
        description="Show which providers have credentials, where they are, and which fields; never their values.",
    )
    status.set_defaults(run=accounts.status)
    logout = commands.add_parser(
        "logout",
        help="forget a provider's stored credentials",
        description="Remove a provider's credentials from the keyring and the file. Variables of the environment stay.",
    )
    logout.add_argument("provider", metavar="PROVIDER", help="its scheme, or NAME-2")
    logout.set_defaults(run=accounts.logout)
    doctor = commands.add_parser(
        "doctor",
        help="try a provider with one small file, and say what to fix",
        description="Connect, write, read back, list and delete one small file; compare clocks; show quota and "
        "limits. Exit status 1 if something is wrong.",
    )
    doctor.add_argument("provider", metavar="PROVIDER", help="as for --provider")
    doctor.set_defaults(run=accounts.doctor)


def _add_testbed(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from pytest_cloudbench.commands import testbed

    parser = commands.add_parser(
        "testbed",
        help="install programs that local: providers and sync clients need",
        description="Programs that runs need besides Python: servers for local: providers, and sync clients.",
    )
    install = parser.add_subparsers(metavar="COMMAND", required=True).add_parser(
        "install",
        help="install what is missing",
        description="Install what is missing: packages of the system as root or through sudo, wheels into this "
        "environment, Node.js packages and Go modules into a folder of yours.",
    )
    testbed.add_options(install)
    install.set_defaults(run=_testbed)


def _testbed(options: argparse.Namespace) -> int:
    from pytest_cloudbench.commands import testbed

    rows = testbed.table()
    if options.list:
        lines = testbed.show(rows)
    else:
        lacking = testbed.install(testbed.chosen(options, rows), lambda text: print(text, flush=True))
        names = ", ".join(row.name for row in lacking)
        lines = [f"installed: {names}" if names else "nothing to install: everything is there"]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _add_analyze(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    analyze = commands.add_parser(
        "analyze",
        help="report what is in a capture file",
        description="Flows, their names and roles, payload, unique and wire bytes, retransmissions, and whether the "
        "numbers can be trusted, of a pcap or pcapng file.",
    )
    analyze.add_argument("file", metavar="FILE", type=Path, help="may be compressed with gzip; - is standard input")
    analyze.add_argument("--client", metavar="IP", help="the client's address (default: whoever opened a connection)")
    analyze.add_argument("--json", action="store_true", help="print JSON")
    analyze.add_argument("--canary", metavar="TEXT", help="look for this text in what was sent without encryption")
    analyze.add_argument("--rules", metavar="FILE", type=Path, help="rules that tell control from storage flows")
    analyze.add_argument("--changed-bytes", metavar="N", type=int, help="what the user changed: gives TUE and overhead")
    analyze.add_argument(
        "--changed-at",
        metavar="S",
        type=float,
        help="when it was changed, in seconds since 1970: gives the start-up time",
    )
    analyze.add_argument("--dissect", action="store_true", help="ask tshark for the names in QUIC hellos too")
    analyze.set_defaults(run=_analyze)


def _analyze(options: argparse.Namespace) -> int:
    from pytest_cloudbench import data
    from pytest_cloudbench.net import dissect
    from pytest_cloudbench.support import extras

    extras.require_extra("capture", "analyze")
    from pytest_cloudbench.net.traffic import analyze, parse_rules
    from pytest_cloudbench.report import capture

    rules = parse_rules(data.read_flow_rules(options.rules), str(options.rules or "flow-rules.toml"))
    canary = None if options.canary is None else options.canary.encode("utf-8", "surrogateescape")
    if options.changed_bytes is not None and options.changed_bytes < 1:
        raise UsageError(f"--changed-bytes {options.changed_bytes}: expected 1 or more")
    if options.dissect and str(options.file) == "-":
        raise UsageError("--dissect: expected a file's name, since tshark reads it again")
    with dissect.open_capture(options.file) as (buffer, release):
        found = analyze(
            buffer, source=str(options.file), client=options.client, rules=rules, canary=canary, release=release
        )
        notes = dissect.name_quic_flows(found, options.file, rules) if options.dissect else []
        changed_ns = None if options.changed_at is None else round(options.changed_at * 1e9)
        summary = found.summary(changed_bytes=options.changed_bytes, changed_ns=changed_ns)
        if options.json:
            capture.write_json(summary, notes, found.flows(), sys.stdout)
        else:
            capture.print_analysis(summary, notes, list(found.flows(capture.MOST_FLOWS)))
        del found, buffer
    return 0


def _new(options: argparse.Namespace) -> int:
    example = Path(__file__).parents[1] / "data" / "example.bench.toml"
    _, text = example.read_text(encoding="utf-8").split("\n", 1)
    text = f"#:schema {_SCHEMA.as_uri()}\n{text}"  # editors that understand Taplo's line offer keys and values
    if options.file == "-":
        sys.stdout.write(text)
        return 0
    if not options.file.endswith(".bench.toml"):
        raise UsageError(f"new {options.file}: expected a name that ends in .bench.toml, or pytest would not find it")
    try:
        with open(options.file, "x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"new {options.file}: the file exists and was not changed; give another name") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"new {options.file}: cannot be written: {error}") from error
    sys.stdout.write(f"{options.file} is written; run it with: pytest {options.file}\n")
    return 0


def _published(options: argparse.Namespace) -> int:
    from pytest_cloudbench.report.published import render_overview, render_table
    from pytest_cloudbench.results import published

    tables = [published.load_table(name) for name in ([options.table] if options.table else published.table_names())]
    runs = [entry for path in options.runs for entry in published.read_run(path)]
    found = [table for table in tables if runs and published.add_measured(table, runs)]
    if options.runs and not found:
        what = options.table or "any published table"
        raise UsageError(f"published: no experiment in {' '.join(map(str, options.runs))} repeats a row of {what}")
    shown = found if options.runs else tables if options.table else []
    lines = [line for table in shown for line in [*render_table(table), ""]] or render_overview(tables)
    sys.stdout.write("\n".join(lines).rstrip() + "\n")
    return 0


def _schema(options: argparse.Namespace) -> int:
    sys.stdout.write(f"{_SCHEMA}\n" if options.path else _SCHEMA.read_text(encoding="utf-8"))
    return 0


def _clean(options: argparse.Namespace) -> int:
    from pytest_cloudbench.results import journal

    if options.forget is not None:
        return _forget(*options.forget, may_live=options.force)
    if options.dry_run:
        return _clean_all(options)
    with journal.wait_to_clean(lambda: print("another `cloudbench clean` is at work: waiting for it", flush=True)):
        return _clean_all(options)


def _clean_all(options: argparse.Namespace) -> int:
    from pytest_cloudbench.results import journal
    from pytest_cloudbench.results.owner import is_alive

    left, problems = journal.pending_folders()
    removed = looked_at = 0
    for each in left:
        what = _shown(f"{each.provider} {each.folder}").replace("\n", "\\n")
        its_run_lives = is_alive(each.owner) if each.owner else False
        if its_run_lives or (its_run_lives is None and not options.force):
            sys.stdout.write(f"left alone: {what}: {_why_left(its_run_lives)}\n")
            continue
        looked_at += 1
        if options.dry_run:
            sys.stdout.write(f"{what}\n")
            continue
        try:
            problem = _remove(each)
        except CloudbenchError as error:  # such as missing credentials; other providers may have theirs
            problem = _shown(str(error)).replace("\n", "\\n")
        if problem:
            named = shlex.join(map(_shown, (each.provider, each.folder))).replace("\n", "\\n")
            problems.append(f"{what}: {problem} (if nothing is there: cloudbench clean --forget {named})")
        else:
            sys.stdout.write(f"{what}: removed\n")
            removed += 1
    for problem in problems:
        sys.stderr.write(f"cloudbench: {problem}\n")
    count, verb = (looked_at, "would be looked at") if options.dry_run else (removed, "removed")
    sys.stdout.write(f"{count} {'folder' if count == 1 else 'folders'} {verb}\n")
    return 1 if problems else 0


def _forget(provider: str, folder: str, *, may_live: bool) -> int:
    """Cross out a folder in the journal, for a provider that can no longer be asked, or never could."""
    from pytest_cloudbench.results import journal
    from pytest_cloudbench.results.owner import is_alive

    said = f"clean --forget {provider} {folder}"
    found = [each for each in journal.pending_folders()[0] if (each.provider, each.folder) == (provider, folder)]
    if not found:
        raise UsageError(f"{said}: not in the journal, which 'cloudbench clean --dry-run' lists")
    its_run_lives = is_alive(found[0].owner) if found[0].owner else False
    if its_run_lives or (its_run_lives is None and not may_live):
        raise UsageError(f"{said}: {_why_left(its_run_lives)}")
    journal.forget_folder(provider, folder)
    sys.stdout.write(f"{_shown(f'{provider} {folder}')}: crossed out; if the folder exists, remove it yourself\n")
    return 0


def _why_left(is_alive: bool | None) -> str:
    return "still running" if is_alive else "may run on another machine or in a container; see --force"


def _remove(left: LeftFolder) -> str:
    """Remove what one run left and check that it is gone. Returns why that failed, or an empty string."""
    from pytest_cloudbench import providers
    from pytest_cloudbench.results import journal

    with providers.opened(left.provider) as driver:
        return journal.remove_folder(driver, left)


def _recover(options: argparse.Namespace) -> int:
    from pytest_cloudbench.results import places, recovery

    if options.results is not None and not options.results.is_dir():
        raise UsageError(f"recover {options.results}: expected the folder that --cloudbench-results named")
    roots = [options.results] if options.results is not None else places.folders_of_killed_runs()
    if not roots:
        where = " or ".join(map(str, dict.fromkeys([places.results_folder(), *places.storage_folders()])))
        raise UsageError(f"recover: there is no {where}; give the folder that --cloudbench-results named")
    status = 0
    for left in list(recovery.find_unmerged(*roots)):
        run = ascii(left.note["fullname"])[1:-1]
        if left.is_alive or (left.is_alive is None and not options.force):
            sys.stdout.write(f"left alone: {run}: {_why_left(left.is_alive)}\n")
            continue
        if options.dry_run:
            sys.stdout.write(f"would be recovered: {run}: {', '.join(sorted(map(ascii, left.logs)))}\n")
            continue
        try:
            done = recovery.recover_run(left)
        except CloudbenchError as error:
            sys.stdout.write(f"left alone: {run}: {ascii(str(error))[1:-1]}\n")
            status = 1
        else:
            if done is not None:
                sys.stdout.write(f"recovered: {run}: {done[0]} records in {ascii(str(done[1]))[1:-1]}\n")
    return status


def _emulate(options: argparse.Namespace) -> int:
    from pytest_cloudbench import emulators

    if options.api not in emulators.SKINS:
        raise UsageError(f"emulate {options.api}: there is no such emulator; there are: {', '.join(emulators.SKINS)}")
    return emulators.serve_foreground(
        options.api, options.profile, port=options.port, time_scale=options.time_scale, seed=options.seed
    )


if __name__ == "__main__":
    sys.exit(main())
