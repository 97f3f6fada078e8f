"""The commands about stored runs: ``cloudbench history``, ``compare``, ``show``, ``ops`` and ``baseline``.

They read stored runs by ``results.index`` and render them by ``report.history``.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_cloudbench.commands.command import Argument, Command, argument, output_width, print_lines
from pytest_cloudbench.model import ResultsError, UsageError
from pytest_cloudbench.results import places
from pytest_cloudbench.support.printable import printable
from pytest_cloudbench.support.wording import format_count

if TYPE_CHECKING:
    from pytest_cloudbench.results.index import Index, RunRow

_MOST_ROWS = 1000
"""The most rows of a query that are printed without ``--csv``."""
_CLOCKS_DIFFER_MS = 3_600_000
"""The largest difference to expect between the clocks of machines that measure."""


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands about stored runs."""
    history = _add_command(
        commands, "history", _show_history, "show how a metric developed over the stored runs",
        "Show how each test's metric developed, with its lasting changes; of one test, run by run. Only runs under the "
        "same conditions are one series.",
    )  # fmt: skip
    history.add_argument("test", metavar="TEST", nargs="?", help="a part of a test's name (default: all tests)")
    history.add_argument("--metric", metavar="M", help="such as response_p99 (default: response_p50, if there is one)")
    history.add_argument("--last", metavar="N", type=int, default=100, help="the last N runs (default: %(default)s)")
    compare = _add_command(
        commands, "compare", _compare_runs, "show stored runs side by side",
        "Show metrics of runs side by side, with the difference from the first. Runs under other conditions, "
        "emulated and real ones among them, are kept apart.",
    )  # fmt: skip
    compare.add_argument("runs", metavar="RUN", nargs="+", help=f"{RUN_HELP}; or all")
    _add_metric_option(compare)
    show = _add_command(
        commands, "show", _show_run, "show one stored run",
        "Show the entries of a run, with their doubts and published values beside the measured.",
    )  # fmt: skip
    show.add_argument("name", metavar="RUN", help=RUN_HELP)
    _add_metric_option(show)
    ops = _add_command(
        commands, "ops", _query_operations, "query the operations of stored runs with SQL",
        "Query the operations of runs with SQL (DuckDB; extra sql). Tables: ops, a row for each operation with its "
        "entry's provider, parameters and times of day; entries, a row for each entry with its metrics.",
    )  # fmt: skip
    ops.add_argument("runs", metavar="RUN", nargs="+", help=RUN_HELP)
    ops.add_argument("--sql", required=True, metavar="QUERY", help="such as: FROM ops LIMIT 5")
    ops.add_argument("--csv", action="store_true", help=f"print CSV, and more than {_MOST_ROWS:,} rows")
    add_records(ops)
    _add_baseline_commands(commands)


RUN_HELP = "a run: its number or name in the storage, the beginning of that, or its file; or last, the latest one"
"""The help of each argument that names a stored run."""
_FOLDERS = "the folder that pytest's configuration names with --benchmark-storage, the project's results, "
_ALL_STORAGES = f"all of: {_FOLDERS}and its .benchmarks"
FIRST_STORAGE = f"the first of these that has runs: {_FOLDERS}its .benchmarks"
_NEW_STORAGE = "the folder that pytest's configuration names with --benchmark-storage, or the project's results"


def _add_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str,
    run: Callable[[argparse.Namespace], int], summary: str, description: str, storage: str = _ALL_STORAGES,
) -> argparse.ArgumentParser:  # fmt: skip
    parser = Command(name, run, summary, description).add_to(commands)
    add_storage(parser, storage)
    return parser


def storage_argument(default: str = _ALL_STORAGES) -> Argument:
    """Return ``--storage``, the folder of stored runs, for ``open_index``. ``default`` says what it reads without."""
    return argument("--storage", metavar="DIR", type=Path, help=f"the folder of stored runs (default: {default})")


def add_storage(parser: argparse.ArgumentParser, default: str = _ALL_STORAGES) -> None:
    """Add ``--storage`` to a parser."""
    option = storage_argument(default)
    parser.add_argument(*option.names, **option.settings)


def add_records(parser: argparse.ArgumentParser) -> None:
    """Add ``--records``, the folder of the operations' records, for ``places.record_folders``."""
    parser.add_argument("--records", metavar="DIR", type=Path, help="where the records are, if not beside the runs: "
                        "the folder that --cloudbench-results named (default: the one that pytest's configuration "
                        f"names so, or the project's {places.RESULTS})")  # fmt: skip


def _add_metric_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--metric", dest="metrics", metavar="M", action="append", default=[],
                        help="any metric or number of an entry; may be repeated")  # fmt: skip


def _add_baseline_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register ``cloudbench baseline`` and its own commands."""
    parser = commands.add_parser(
        "baseline", help="list, carry and change what gates compare with",
        description="The stored runs that gates compare with: which they are, and how they get to another machine.",
    )  # fmt: skip
    inner = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_command(inner, "list", _list_runs, "list the stored runs", "List all stored runs, interrupted ones included.")
    show = _add_command(
        inner, "show", _show_baselines, "show which runs may be a baseline",
        "Show for each test how many runs may be a baseline, and why the others may not.", FIRST_STORAGE,
    )  # fmt: skip
    show.add_argument("test", metavar="TEST", nargs="?", help="a part of a test's name (default: all tests)")
    show.add_argument("--metric", metavar="M", help="such as response_p99")
    drop = _add_command(
        inner, "drop", _drop_runs, "delete stored runs",
        "Delete the entries of runs, for good. The records of their operations stay.",
    )  # fmt: skip
    drop.add_argument("runs", metavar="RUN", nargs="+", help=RUN_HELP)
    drop.add_argument("--dry-run", action="store_true", help="only say what would be deleted")
    export = _add_command(
        inner, "export", _export_runs, "write stored runs into one file",
        "Write runs into a zip file of pytest-benchmark's own files, for CI to carry. The records of operations stay.",
    )  # fmt: skip
    export.add_argument("file", metavar="FILE", type=Path, help="is written, or replaced as a whole")
    export.add_argument("runs", metavar="RUN", nargs="*", help=f"{RUN_HELP} (default: all)")
    export.add_argument("--last", metavar="N", type=int, help="only the last N of them")
    export.add_argument("--branch", metavar="B", help="only runs of this branch")
    import_ = _add_command(
        inner, "import", _import_runs, "import runs from such a file",
        "Import the runs of a file that export wrote. Nothing is overwritten; what is there already is left.",
        _NEW_STORAGE,
    )  # fmt: skip
    import_.add_argument("file", metavar="FILE", type=Path, help="what export wrote")
    accept = _add_command(
        inner, "accept", _accept_run, "let baselines begin with a run",
        "Accept a change: earlier runs no longer serve as a baseline. They stay in the history. If only the "
        "regression gate failed this run, or stored ones after it, they count as passed.",
    )  # fmt: skip
    accept.add_argument("name", metavar="RUN", help=RUN_HELP)
    accept.add_argument("--test", metavar="TEST", help="only of tests with this in their names (default: of all)")
    accept.add_argument("--reason", metavar="TEXT", default="", help="stored with it, for later readers")
    accept.add_argument("--undo", action="store_true", help="take an acceptance of this run back")
    accept.add_argument("--yes", action="store_true", help="do not ask on a terminal whether all tests are meant")
    rename = _add_command(
        inner, "rename", _rename_test, "let a renamed test keep its runs",
        "Take over the runs of a test that has another name now: the gate compares with them. The name of a test "
        "function stands for all of its parameters.",
    )  # fmt: skip
    rename.add_argument("old", metavar="OLD", help="the full name that it had")
    rename.add_argument("new", metavar="NEW", help="the full name that it has")


# --- shared by the commands ---


def _has_plain_output() -> bool:
    try:
        "▁█".encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return True
    return False


def find_storage(options: argparse.Namespace) -> Path | None:
    """Return the folder of stored runs, or None without one. Raises UsageError if ``--storage`` is not a folder."""
    if options.storage is None:
        return places.find_storage()
    if not options.storage.is_dir():
        raise UsageError(f"--storage {options.storage}: there is no such folder")
    return Path(options.storage)


def find_run_files(options: argparse.Namespace) -> list[Path]:
    """Return the files of the runs that the user named, as folders, as files or as runs of the storage, each once.

    Raises UsageError for a name that is no run's.
    """
    return list({os.path.realpath(path): path for path in _find_named_files(options)}.values())


def _find_named_files(options: argparse.Namespace) -> Iterator[Path]:
    from pytest_cloudbench.results import stored

    index = None
    for name in options.runs:
        path = Path(name)
        if path.is_dir():
            yield from (file.path for file in sorted(stored.find_run_files(path), key=lambda file: file.place))
        elif path.exists() or name.endswith(".json"):
            yield path
        else:
            index = index or open_index(options)
            yield from index.files(index.find(name).place)


def open_index(options: argparse.Namespace, *, all_storages: bool = True) -> Index:
    """Return the index of the stored runs, and print what was left out. Raises UsageError if there is no run.

    Unless the user names a storage, the runs are those of all storages, or of the only one that the gate reads.
    """
    from pytest_cloudbench.results.index import Index
    from pytest_cloudbench.results.installed import learn_installed

    storage = find_storage(options)
    if storage is None:
        where = " or ".join(map(str, places.storage_folders()))
        raise UsageError(
            f"there are no stored runs in {where}; {_describe_killed_sessions() or 'name their folder with --storage'}"
        )
    index = Index.open(storage)
    if options.storage is None and all_storages:
        for other in places.storage_folders():
            if other.resolve() != storage.resolve():
                index.add_storage(other)
    for problem in index.problems:
        sys.stderr.write(f"cloudbench: left out: {printable(problem)}\n")
    learn_installed()
    if not index.runs():
        hint = _describe_killed_sessions(index.storage) or "pytest --benchmark-autosave stores them"
        raise UsageError(f"there are no stored runs in {index.storage}; {hint}")
    return index


def _describe_killed_sessions(storage: Path | None = None) -> str:
    """Return a hint about sessions that still run or were killed, and so are not stored. Empty if there are none."""
    from pytest_cloudbench.results.recovery import find_unmerged

    unmerged = find_unmerged(*places.folders_of_killed_runs(storage))
    is_alive = {records.folder.parent.name: records.is_alive for records in unmerged}
    if not is_alive:
        return ""
    count = sum(not alive for alive in is_alive.values())
    if not count:
        return "a session still runs, and is stored at its end"
    if count == 1:
        return "an interrupted session is there: cloudbench recover makes it a run"
    return f"{count} interrupted sessions are there: cloudbench recover makes them runs"


def _find_tests(index: Index, part: str | None) -> list[str]:
    """Return the test of this name, or else those with this part in their names. Raises UsageError if there is none."""
    if tests := _match_tests(index, part):
        return tests
    if part is None:
        raise UsageError(f"the stored runs in {index.storage} compared two sides only; cloudbench history shows them")
    raise UsageError(f"{part}: no stored run has a test with this in its name; cloudbench history lists all")


def _match_tests(index: Index, part: str | None) -> list[str]:
    """Return the test with this name, or else the tests with this part in their names. None stands for all."""
    tests = index.tests()
    return [part] if part in tests else [test for test in tests if part is None or part in test]


def _check_metrics(index: Index, names: Sequence[str]) -> None:
    unknown = [name for name in names if not index.has_number(name)]
    if unknown:
        raise UsageError(f"--metric {unknown[0]}: no stored run has such a number; docs/method.md lists the metrics")


def _find_runs(index: Index, names: Sequence[str]) -> list[RunRow]:
    return list(dict.fromkeys(index.find(name) for name in names))


def _find_runs_and_files(options: argparse.Namespace, names: Sequence[str]) -> tuple[Index, list[RunRow]]:
    """Return an index and the runs that a user named: by their files, or as runs of the storage."""
    from pytest_cloudbench.results.index import Index

    files = {name: Path(name) for name in names if Path(name).is_file()}
    index = Index(Path.cwd()) if files.keys() == set(names) else open_index(options)
    # Names first, because a file that is added could be the last run, or have the same number as another.
    runs_by_name = {name: index.find(name) for name in names if name not in files}
    runs = [runs_by_name.get(name) or index.add_file(files[name]) for name in names]
    return index, list(dict.fromkeys(runs))


# --- the commands ---


def _show_history(options: argparse.Namespace) -> int:
    """Print the histories of tests and of comparisons of two sides. Returns 0. Raises UsageError."""
    from pytest_cloudbench.report import history

    if options.last < 1:
        raise UsageError(f"--last {options.last}: expected 1 or more")
    index, plain, blocks = open_index(options), _has_plain_output(), list[list[str]]()
    compared = [row for row in index.comparisons() if options.test is None or options.test in row.fullname]
    tests = _match_tests(index, options.test) if compared else _find_tests(index, options.test)
    if tests:
        _check_metrics(index, [options.metric] if options.metric else [])
    if len(tests) == 1 and options.test is not None:
        metric = options.metric or history.main_metric(index, tests[0])
        blocks.append(history.render_test_history(index, tests[0], metric, options.last, output_width(), plain=plain))
    elif tests:
        blocks.append(history.render_overview(index, tests, options.metric, options.last, output_width(), plain=plain))
    if compared:
        blocks.append(history.render_sides_history(index, compared[-options.last :], options.metric, output_width()))
    for number, lines in enumerate(blocks):
        print_lines(["", *lines] if number else lines)
    return 0


def _compare_runs(options: argparse.Namespace) -> int:
    from pytest_cloudbench.report import history

    if options.runs == ["all"]:
        index = open_index(options)
        runs = index.runs()
    else:
        index, runs = _find_runs_and_files(options, options.runs)
    if len(runs) < 2:
        raise UsageError("compare: expected at least two different runs; cloudbench baseline list shows them")
    _check_metrics(index, options.metrics)
    print_lines(history.render_side_by_side(index, runs, options.metrics, output_width()))
    return 0


def _show_run(options: argparse.Namespace) -> int:
    from pytest_cloudbench.report import history

    index, (run,) = _find_runs_and_files(options, [options.name])
    _check_metrics(index, options.metrics)
    print_lines(history.render_run(run, index.entries(run.place), options.metrics, output_width()))
    return 0


def _query_operations(options: argparse.Namespace) -> int:
    """Run a query over the operations of runs and print the answer. Returns 0. Raises UsageError."""
    from pytest_cloudbench.support import extras

    extras.require_extra("sql", "ops")
    from pytest_cloudbench.report.columns import fit_to_width
    from pytest_cloudbench.results import operations

    index = open_index(options)
    recorded = []
    for run in _find_runs(index, options.runs):
        folders = [(index.storage / run.place).parent, *places.record_folders(options.records)]
        for entry in index.entries(run.place):
            recorded.append((run.name, entry, operations.find_records(entry, folders)))
    answer = operations.run_query(options.sql, recorded, None if options.csv else _MOST_ROWS + 1)
    if options.csv:
        from pytest_cloudbench.report.export import format_csv_row

        sys.stdout.writelines(map(format_csv_row, [answer.columns, *answer.rows]))
        return 0
    rows = [["-" if cell is None else printable(str(cell)) for cell in row] for row in answer.rows[:_MOST_ROWS]]
    print_lines(
        fit_to_width([[printable(name) for name in answer.columns], *rows], output_width()) if answer.columns else []
    )
    if len(answer.rows) > _MOST_ROWS:
        print_lines([f"only the first {_MOST_ROWS:,} rows are shown: --csv prints all"])
    return 0


def _list_runs(options: argparse.Namespace) -> int:
    from pytest_cloudbench.report.history import render_run_list
    from pytest_cloudbench.results.recovery import find_unmerged

    index, results = open_index(options), places.results_folder()
    print_lines(render_run_list(index.runs(), output_width()))
    for records in find_unmerged(*places.folders_of_killed_runs(index.storage)):
        state = "still runs" if records.is_alive else "was killed: cloudbench recover makes it an interrupted run"
        test, session = str(records.note["fullname"]), records.folder.parent.name
        print_lines([f"not in the list: {printable(test)} of {printable(session)} {state}"])
    for run in _recovered_runs(results) if results.resolve() != index.storage.resolve() else ():
        print_lines([f"not in the list: the recovered run {printable(run)}: cloudbench baseline list --storage "
              f"{printable(str(results))} has it"])  # fmt: skip
    return 0


def _recovered_runs(results: Path) -> list[str]:
    """Return the names of the recovered runs of a results folder."""
    from pytest_cloudbench.results.stored import find_run_files

    return sorted({Path(file.run).name for file in find_run_files(results) if file.is_recovered})


def _show_baselines(options: argparse.Namespace) -> int:
    from pytest_cloudbench.load.gate.history import GateHistory
    from pytest_cloudbench.load.gate.settings import read_settings
    from pytest_cloudbench.report.history import render_baselines

    index = open_index(options, all_storages=False)
    _check_metrics(index, [options.metric] if options.metric else [])
    root = places.project_folder(Path.cwd())
    explain_commit = GateHistory(index, root, read_settings(root, strict=False).branch).explain_commit
    tests = _find_tests(index, options.test)
    print_lines(render_baselines(index, tests, options.metric, output_width(), explain_commit))
    return 0


def _drop_runs(options: argparse.Namespace) -> int:
    from pytest_cloudbench.results.bundle import delete_run, find_own_files
    from pytest_cloudbench.results.index import Index

    index = open_index(options)
    runs = _find_runs(index, options.runs)
    find_own_files(index, [run.place for run in runs])  # so that nothing is deleted if one of them is elsewhere
    for run in runs:
        if not options.dry_run:
            delete_run(index, run.place)
        print_lines([f"{'would be deleted' if options.dry_run else 'deleted'}: {printable(run.place)}"])
    Index.open(index.storage)
    return 0


def _export_runs(options: argparse.Namespace) -> int:
    from pytest_cloudbench.results.bundle import export_runs

    if options.last is not None and options.last < 1:
        raise UsageError(f"--last {options.last}: expected 1 or more")
    index = open_index(options)
    runs = _find_runs(index, options.runs) if options.runs else index.runs()
    runs = [run for run in runs if options.branch in (None, run.branch)][-(options.last or 0) :]
    if not runs:
        raise UsageError(f"--branch {options.branch}: no stored run is of this branch")
    export_runs(index, [run.place for run in runs], options.file)
    print_lines([f"{options.file}: {format_count(len(runs), 'run')}, without the records of their operations"])
    return 0


def _import_runs(options: argparse.Namespace) -> int:
    from pytest_cloudbench.results.bundle import import_runs
    from pytest_cloudbench.results.index import Index

    storage = options.storage or places.configured_storage() or places.results_folder()
    new, present, rejected = import_runs(storage, options.file)
    for name in rejected:
        sys.stderr.write(f"cloudbench: not taken in: {printable(name)}: not the name of a run\n")
    Index.open(storage)
    new_files = format_count(new, "file is", "files are")
    print_lines([f"{storage}: {new_files} new, {format_count(present, 'was', 'were')} there already"])
    return 1 if rejected else 0


def _rename_test(options: argparse.Namespace) -> int:
    from pytest_cloudbench.results.acceptance import write_rename

    index = open_index(options)
    count = len(_tests_of(index, options.old))
    if not count:
        raise UsageError(f"{options.old}: no stored run has a test of this name; cloudbench history lists all")
    if options.old == options.new:
        raise UsageError(f"{options.new}: this is the former name; expected another")
    if shared_runs := _runs_with(index, options.old) & _runs_with(index, options.new):
        run = printable(min(shared_runs))
        raise UsageError(f"{options.new}: was measured beside {options.old} in {run}, so these are two tests")
    write_rename(index.storage, options.old, options.new)
    tests = format_count(count, "test")
    print_lines(
        [f"the gate compares {printable(options.new)} with the runs of {printable(options.old)} ({tests}), too"]
    )
    return 0


def _tests_of(index: Index, name: str) -> list[str]:
    """Return the tests that a name stands for: that of a test function stands for all of its parameters and labels."""
    from pytest_cloudbench.results.entry_names import split_name

    return [test for test in index.tests() if name in (test, split_name(test).test)]


def _runs_with(index: Index, name: str) -> set[str]:
    """Return the runs that measured a test, or any of those that its name stands for."""
    return {point.run for test in _tests_of(index, name) for point in index.series(test, "ops")}


def _accept_run(options: argparse.Namespace) -> int:
    """Let baselines of tests begin with a run, or undo that. Returns 1 if the user does not agree."""
    from pytest_cloudbench.results.acceptance import (
        Accepted,
        find_later_run,
        withdraw_acceptances,
        write_acceptance,
    )
    from pytest_cloudbench.results.bundle import find_own_files

    index = open_index(options)
    run = index.find(options.name)
    if not options.undo:  # a run that is not in this storage would leave its baselines empty
        find_own_files(index, [run.place])
    measured = {entry.fullname for entry in index.brief_entries(run.place)}
    # A run cannot begin baselines of tests that it did not measure.
    named = measured.intersection(_find_tests(index, options.test)) if options.test else set()
    if options.test and not named:
        raise UsageError(f"--test {options.test}: {run.place} measured no test with this in its name")
    tests = sorted(_add_former_names(index, named))
    argv = ["cloudbench", "baseline", "accept", run.place, *(["--test", options.test] if options.test else [])]
    command = shlex.join(argv)
    if options.undo:
        if not withdraw_acceptances(index.storage, run.place, tests):
            raise UsageError(f"{run.place}: was not accepted{f' for {options.test}' if options.test else ''}")
        print_lines([f"baselines are as they were before {printable(run.place)} was accepted; to accept it: {command}"])
        return 0
    tests_text = f"{len(named)} of its tests"
    if not named:
        covered = _add_former_names(index, measured)
        tests = [] if covered.issuperset(index.tests()) else sorted(covered)
        tests_text = f"its {format_count(len(tests), 'test')}" if tests else "all tests"
        count = len(tests or index.tests())
        if not options.yes and sys.stdin.isatty() and not _user_agrees(run.place, count):
            print_lines(["nothing is changed; --test TEST accepts some of them"])
            return 1
    for test, outcome in index.not_passed(run.place, tests):
        raise ResultsError(f"{run.place}: {printable(test)} is {outcome}, and no baseline can begin with it")
    now_ms = time.time_ns() // 1_000_000
    if run.time_ms > now_ms + _CLOCKS_DIFFER_MS:
        when = datetime.fromtimestamp(run.time_ms / 1e3, UTC).isoformat(" ", "minutes")
        raise ResultsError(
            f"{run.place}: began {when}, which is in the future: runs until then would count as older than it, and "
            "not as a baseline"
        )
    # A run whose clock was ahead must not excuse what the gate fails from now on.
    until_ms = index.last_start_ms(now_ms + _CLOCKS_DIFFER_MS)
    for test in tests or [""]:
        write_acceptance(index.storage, Accepted(run.place, run.time_ms, test, options.reason, until_ms))
    lines = [f"baselines of {tests_text} begin with {printable(run.place)}; to undo it: {command} --undo"]
    if later := find_later_run(index.storage, tests or index.tests(), run.time_ms):
        undo = shlex.join(["cloudbench", "baseline", "accept", later, "--undo"])
        text = f"but {printable(later)} was accepted, too, and is later: where both count, baselines begin with it"
        lines.append(f"{text}; to undo it: {undo}")
    print_lines(lines)
    return 0


def _add_former_names(index: Index, tests: Iterable[str]) -> set[str]:
    """Return tests with the names that they had before they were renamed."""
    from pytest_cloudbench.results.acceptance import former_names, names_before

    renamed = former_names(index.storage)
    return {name for test in tests for name in (test, *names_before(renamed, test))}


def _user_agrees(run: str, count: int) -> bool:
    """Ask on the terminal whether the baselines of all tests shall begin with a run."""
    try:
        answer = input(f"let the baselines of {format_count(count, 'test')} begin with {run}? [y/N] ")
    except EOFError:  # Ctrl-D
        return False
    return answer.strip().lower() in ("y", "yes")
