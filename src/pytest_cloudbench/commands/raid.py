"""The commands for an array: ``cloudbench raid status|scrub|repair|recover|replace|rebalance|export FILE.toml``,
and ``cloudbench raid choose OFFERS.toml`` to plan one.

The work is done by the package ``raid``, except that ``replace`` changes the array's file here.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from pytest_cloudbench.commands.command import output_width
from pytest_cloudbench.model import ConfigError, UsageError, did_you_mean
from pytest_cloudbench.report.quantities import format_bytes
from pytest_cloudbench.support import clock
from pytest_cloudbench.support.printable import printable
from pytest_cloudbench.support.wording import format_count

if TYPE_CHECKING:
    from pytest_cloudbench.raid.array import Array
    from pytest_cloudbench.raid.maintenance import RepairResult
    from pytest_cloudbench.raid.survey import Survey

_FAILED, _DEGRADED = 1, 3
_STATUSES = (
    "Exit status: 0 if all is well or done; 1 if objects cannot be read, or the command failed; "
    "3 if everything can be read, but something is missing, damaged or unreachable; 4 for bad input."
)
_PROGRESS_INTERVAL_S = 0.2


def add_commands(commands: Any) -> None:
    """Add ``raid`` to the commands of ``cloudbench``."""
    raid = commands.add_parser("raid", help="look after an array of providers", epilog=_STATUSES)
    inner = raid.add_subparsers(metavar="WHAT", required=True)

    def add(name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        command: argparse.ArgumentParser = inner.add_parser(
            name, help=text, description=f"{text[0].upper()}{text[1:]}.", epilog=_STATUSES
        )
        command.add_argument("file", metavar="FILE.toml", help="the array's file")
        command.add_argument("--json", action="store_true", help="print one JSON object")
        command.set_defaults(run=run)
        return command

    add("status", _show_status, "compare the children's listings with what they should have; show objects at risk")
    add("scrub", _scrub_shares, "read every share, and note missing and damaged ones for the next repair")
    repair = add("repair", _repair_array, "rebuild what children lack; continues an interrupted repair")
    repair.add_argument(
        "--discard-incomplete", action="store_true",
        help="also delete versions that belong to no object and cannot be read, even with the children that are silent",
    )  # fmt: skip
    repair.add_argument(
        "--force", action="store_true",
        help="also take over what processes left that may still run, such as those of other machines or containers",
    )  # fmt: skip
    add(
        "recover",
        _recover_metadata,
        "rebuild lost, old or damaged metadata, with only the key and the children's packages",
    )
    replace = add("replace", _replace_child, "replace a child by another provider, and rebuild its content there")
    replace.add_argument("child", metavar="CHILD", help="its name, or its number from 1")
    replace.add_argument(
        "spec", metavar="SPEC", nargs="?",
        help="the new provider; if left out, the array's file already names it, and it is assumed to be empty",
    )  # fmt: skip
    replace.add_argument("--force", action="store_true", help="even if that makes objects unreadable")
    rebalance = add("rebalance", _rebalance_array, "rewrite objects whose shares would now be placed differently")
    rebalance.add_argument("--dry-run", action="store_true", help="only count them")
    export = add("export", _export_objects, "write all objects as plain files into a folder, or into one .tar")
    export.add_argument("target", metavar="TARGET", type=Path, help="a folder, or a file that ends in .tar")
    export.add_argument(
        "--recover", action="store_true", help="use no metadata, only the key and the children's packages"
    )

    _add_choose_command(inner)


def _add_choose_command(inner: Any) -> None:
    """Register ``cloudbench raid choose``."""
    text = "choose an array's providers from a table, by price, throughput or availability"
    choose = inner.add_parser("choose", help=text, description=f"{text[0].upper()}{text[1:]}.")
    choose.add_argument("file", metavar="OFFERS.toml", help="[[offer]] tables, see docs/reference/raid.md")
    choose.add_argument(
        "--aim",
        choices=("price", "time", "availability"),
        default="price",
        help="the quantity to optimize (default: %(default)s)",
    )
    choose.add_argument(
        "--losses", metavar="M", type=_parse_count, default=1, help="any M may fail (default: %(default)s)"
    )
    choose.add_argument(
        "--bytes", metavar="N", type=_parse_count, default=10**8, help="object size (default: %(default)s)"
    )
    choose.add_argument(
        "--usd-at-most", metavar="USD", type=_parse_bound, default=inf, help="a month, per GiB of content"
    )
    choose.add_argument("--seconds-at-most", metavar="S", type=_parse_bound, default=inf, help="to move the object")
    choose.add_argument(
        "--unavailable-at-most", metavar="SHARE", type=_parse_bound, default=1.0, help="how often it may be unreadable"
    )
    choose.add_argument("--placement", choices=("equal", "throughput"), default="equal", help="(default: %(default)s)")
    choose.add_argument("--json", action="store_true", help="print one JSON object")
    choose.set_defaults(run=_choose_providers)


def _parse_count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 10**18):
        raise argparse.ArgumentTypeError(f"expected a whole number of 1 or more, not {text!r}")
    return int(text)


def _parse_bound(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < inf:
        raise argparse.ArgumentTypeError(f"expected a number, 0 or more, not {text!r}")
    return value


# --- the commands -------------------------------------------------------------------------------------


def _show_status(options: argparse.Namespace) -> int:
    return _survey_array(options, deep=False)


def _scrub_shares(options: argparse.Namespace) -> int:
    return _survey_array(options, deep=True)


def _survey_array(options: argparse.Namespace, *, deep: bool) -> int:
    from pytest_cloudbench.raid.survey import survey_array

    with _open_array(options.file) as array, _show_progress(options) as progress:
        result = survey_array(array, deep=deep, progress=progress)
        _print_result(options, {"file": options.file, "k": array.file.k, "m": array.file.m, **result.plain()},
                      _survey_lines(options.file, array, result))  # fmt: skip
    return _FAILED if result.unreadable else 0 if result.is_healthy else _DEGRADED


def _survey_lines(file: str, array: Array, result: Survey) -> list[str]:
    """Return the lines about an array: its children, its objects, its costs, and all that is amiss."""
    from pytest_cloudbench.raid.coding.placement import least_overhead
    from pytest_cloudbench.report.columns import fit_to_width

    held_bytes = sum(child.held_bytes for child in result.children)
    overhead, equal_overhead = "", least_overhead(array.file.k + array.file.m, array.file.m)
    if result.content_bytes and not any(child.unreachable for child in result.children):
        overhead = (
            f", {held_bytes / result.content_bytes:.2f} bytes stored per byte (equal shares: {equal_overhead:.2f})"
        )
    rows = [["child", "packages", "held", "missing", "damaged", "unread", "strange", "stored"]]
    for child in result.children:
        listed = [str(child.held), str(child.missing)]
        read = [str(child.damaged), str(child.unread)] if result.is_deep else ["-", "-"]
        cells = [*listed, *read, str(child.strange), format_bytes(child.held_bytes)]
        rows.append([child.name, str(child.expected), *(["-"] * len(cells) if child.unreachable else cells)])
    lines = [
        f"{file}: {array.file.k}+{array.file.m}, {format_count(result.objects, 'object')}, "
        f"{format_bytes(result.content_bytes)}{overhead}",
        *fit_to_width(rows, output_width()),
        f"objects: {result.whole} whole, {result.degraded} degraded, {result.at_risk} at risk (no further child may "
        f"fail), {result.unreadable} unreadable",
    ]
    if result.usd_per_month is not None:
        equal = result.equal_usd_per_month
        lines.append(f"storage: {result.usd_per_month:.4g} USD a month (equal shares: {equal:.4g})")
    lines += _silent_lines(_silent_children(result))
    lines += [f"unreadable: {path}" for path in result.unreadable_paths]
    lines += _unknown_lines(result.unknown_paths)
    if result.garbage:
        lines.append(f"{result.garbage} unused packages are still to be deleted; a repair does that")
    return lines


def _repair_array(options: argparse.Namespace) -> int:
    from pytest_cloudbench.raid.maintenance import discard_incomplete_versions, repair_array
    from pytest_cloudbench.raid.survey import survey_array

    with _open_array(options.file, takes_over_all=options.force) as array, _show_progress(options) as progress:
        if options.discard_incomplete:
            discard_incomplete_versions(array)
        result = survey_array(array, progress=progress)  # marks packages as missing that children do not list
        done = repair_array(array, progress)
        if result.unreadable and done.mended:
            result = survey_array(array, progress=progress)
        return _print_repair(options, array, done, _silent_children(result), result.unreadable_paths)


def _print_repair(
    options: argparse.Namespace, array: Array, done: RepairResult, silent: Mapping[str, str],
    unreadable_paths: Sequence[str] = (),
) -> int:  # fmt: skip
    """Print the result of a repair. Returns the exit status.

    ``silent``: why other children do not answer. ``unreadable_paths``: the first objects that still cannot be read.
    """
    from pytest_cloudbench.raid.recovery import find_unknown_owners

    lines = [f"{format_count(done.mended, 'package')} rebuilt, {format_bytes(done.mended_bytes)}"]
    lines += [
        f"{format_count(count, 'package')} still missing on {name}: {done.reasons[name]}"
        for name, count in done.left.items()
    ]
    lines += [f"too few shares are left: {path}" for path in done.lost_paths]
    lines += [f"unreadable: {path}" for path in unreadable_paths if path not in done.lost_paths]
    lines += _silent_lines(silent)
    if owners := find_unknown_owners(array):
        lines.append(
            f"{format_count(len(owners), 'process', 'processes')} with unfinished work may still run, for all that can "
            "be told here; if not, 'repair --force' takes it over"
        )
    if done.garbage:
        lines.append(
            f"unused packages could not be deleted in {format_count(done.garbage, 'case')}; the next repair tries again"
        )
    unknown_paths = [version.path for version in array.unknown]
    lines += _unknown_lines(unknown_paths)
    _print_result(options, {"file": options.file, **asdict(done), "is_complete": done.is_complete,
                            "unreadable_paths": [*unreadable_paths], "unreachable": dict(silent),
                            "unknown_paths": unknown_paths}, lines)  # fmt: skip
    if done.lost_paths or unreadable_paths:
        return _FAILED
    return 0 if done.is_complete and not silent and not unknown_paths else _DEGRADED


def _silent_children(result: Survey) -> dict[str, str]:
    """Return why children do not answer, by name."""
    return {child.name: child.unreachable for child in result.children if child.unreachable}


def _silent_when_recovered(array: Array) -> dict[str, str]:
    """Return why children did not answer when new metadata was made from the others, by name."""
    from pytest_cloudbench.raid.survey import describe_error

    return {array.children.names[child]: describe_error(error) for child, error in array.silent.items()}


def _silent_lines(silent: Mapping[str, str]) -> list[str]:
    return [f"{name}: no answer: {why}" for name, why in silent.items()]


def _unknown_lines(paths: Sequence[str]) -> list[str]:
    if not paths:
        return []
    versions = format_count(len(paths), "version on the children belongs", "versions on the children belong")
    return [
        f"{versions} to no object, such as {paths[0]}: deleted or unfinished ones, or objects that lost too many "
        "packages; 'recover' takes in what can be read, and 'repair --discard-incomplete' deletes the rest, if no "
        "silent child may complete it"
    ]


def _replace_child(options: argparse.Namespace) -> int:
    """Rebuild all that a child should have, on another provider if one is given. Returns the exit status."""
    from pytest_cloudbench import providers
    from pytest_cloudbench.raid.maintenance import note_all_missing, repair_array
    from pytest_cloudbench.raid.survey import survey_array

    child = _find_child(options.file, options.child)
    if not options.file.endswith(".toml"):
        raise UsageError(f"{options.file}: ships with the package; write your own array file instead")
    if options.spec is not None:
        providers.resolve(options.spec)
        changed = _text_with_spec(options.file, child, options.spec)
    with _open_array(options.file) as array, _show_progress(options) as progress:
        result = survey_array(array, progress=progress, without=child)
        if result.unreadable and not options.force:
            raise UsageError(
                f"{options.file}: without {array.children.names[child]}, "
                f"{format_count(result.unreadable, 'object')} cannot be read, such as {result.unreadable_paths[0]}: "
                "repair the others first, or use --force to give them up"
            )
        silent = _silent_children(result)
        silent.pop(array.children.names[child], None)
        # Before the file changes: even after a kill, the metadata tells what the new child lacks.
        note_all_missing(array, child)
        if options.spec is None:
            return _print_repair(options, array, repair_array(array, progress), silent)
    _write_array_file(Path(options.file), changed)
    with _open_array(options.file) as array, _show_progress(options) as progress:
        return _print_repair(options, array, repair_array(array, progress), silent)


def _find_child(file: str, name: str) -> int:
    """Return the index of a child of an array's file by its name, or its number from 1. Raises UsageError."""
    from pytest_cloudbench.raid import config

    names = [child.name for child in config.load(file).children]
    if name in names:
        return names.index(name)
    if name.isascii() and name.isdigit() and 1 <= int(name) <= len(names):
        return int(name) - 1
    children = ", ".join(f"{number} ({child})" for number, child in enumerate(names, 1))
    raise UsageError(f"{file}: no child {name!r}; expected one of {children}{did_you_mean(name, names)}")


def _text_with_spec(file: str, child: int, spec: str) -> str:
    """Return the text of an array's file with a new spec for a child, and all else as the user wrote it."""
    from pytest_cloudbench.raid import config

    text, old = _read_array_file(Path(file)), config.load(file).children[child].spec
    quoted_specs = [quoted for quoted in (json.dumps(old, ensure_ascii=False), f"'{old}'") if text.count(quoted) == 1]
    if len(quoted_specs) != 1:
        raise ConfigError(
            file, "children",
            f"cannot tell where child {child + 1} is written; change its spec to {spec!r} by hand, then run: "
            f"cloudbench raid replace {file} {child + 1}",
        )  # fmt: skip
    return text.replace(quoted_specs[0], json.dumps(spec, ensure_ascii=False))


def _read_array_file(path: Path) -> str:
    """Return a file's text with its line endings as they are."""
    return path.read_bytes().decode()


def _write_array_file(path: Path, text: str) -> None:
    """Replace a file atomically. If the new text is not a valid array file, restore the old. Raises UsageError."""
    from pytest_cloudbench import providers
    from pytest_cloudbench.support.opening import write_whole

    target = path.resolve()  # a user's symbolic link stays one

    def write(content: str) -> None:
        write_whole(target, lambda file: file.write(content.encode()), is_durable=True, keeps_mode=True)

    old = _read_array_file(path)
    write(text)
    try:
        providers.resolve(f"raid:{path}")  # under its own name, so that an array among its own children is refused
    except UsageError:
        write(old)
        raise


def _rebalance_array(options: argparse.Namespace) -> int:
    from pytest_cloudbench.raid.maintenance import rebalance_array

    with _open_array(options.file) as array, _show_progress(options) as progress:
        done = rebalance_array(array, dry_run=options.dry_run, progress=progress)
    would = "would be " if options.dry_run else ""
    lines = [
        f"{done.moved:,} of {format_count(done.objects, 'object')} {would}rewritten, {format_bytes(done.moved_bytes)}"
    ]
    if done.overtaken:
        lines.append(f"{format_count(done.overtaken, 'object was', 'objects were')} replaced or deleted meanwhile")
    lines += [f"left as it was: {path}: {why}" for path, why in done.failed.items()]
    _print_result(options, {"file": options.file, **asdict(done), "is_dry_run": options.dry_run}, lines)
    return _FAILED if done.failed else 0


def _export_objects(options: argparse.Namespace) -> int:
    """Write all objects into a folder or archive, and print what is not in it. Returns the exit status."""
    from pytest_cloudbench.raid import config
    from pytest_cloudbench.raid.maintenance import export_objects

    if child := config.load(options.file).child_containing(options.target):
        raise UsageError(f"{options.target}: is in the folder of the child {child}, whose provider could read it all")
    with ExitStack() as stack:
        metadata = None
        if options.recover:
            metadata = Path(stack.enter_context(TemporaryDirectory(prefix="cloudbench-recovered-"))) / "array.sqlite"
        array = stack.enter_context(_open_array(options.file, metadata))
        progress = stack.enter_context(_show_progress(options))
        done = export_objects(array, options.target, progress)
        unknown_paths, silent = [version.path for version in array.unknown], _silent_when_recovered(array)
    lines = [f"{format_count(done.objects, 'object')}, {format_bytes(done.content_bytes)}: {options.target}"]
    lines += [f"not exported: {path}: {why}" for path, why in done.failed.items()]
    lines += [*_silent_lines(silent), *_unknown_lines(unknown_paths)]
    _print_result(options, {"file": options.file, "target": str(options.target), **asdict(done), "unreachable": silent,
                            "unknown_paths": unknown_paths}, lines)  # fmt: skip
    return _FAILED if done.failed else _DEGRADED if silent or unknown_paths else 0


def _recover_metadata(options: argparse.Namespace) -> int:
    """Make new metadata from the children's packages, and keep the old file. Returns the exit status."""
    from pytest_cloudbench.raid import config
    from pytest_cloudbench.raid.database import replace_database

    old = config.load(options.file).metadata
    new = old.with_name(f"{old.name}.{os.getpid()}.new")
    try:
        with _open_array(options.file, new) as array:
            count, unknown_paths = array.metadata.count(), [version.path for version in array.unknown]
            silent = _silent_when_recovered(array)
        old_copy = replace_database(new, old)
    finally:
        for path in new.parent.glob(f"{new.name}*"):
            path.unlink()
    lines = [f"{count} objects were found on the children; {old} is new"]
    lines += [*_silent_lines(silent), *_unknown_lines(unknown_paths)]
    lines += [f"the old file was kept as {old_copy}"] if old_copy else []
    _print_result(options, {"file": options.file, "objects": count, "unreachable": silent,
                            "unknown_paths": unknown_paths, "kept": str(old_copy) if old_copy else None},
                  lines)  # fmt: skip
    return _DEGRADED if silent or unknown_paths else 0


def _choose_providers(options: argparse.Namespace) -> int:
    """Print the best choice of providers, as lines of an array's file. Returns 0. Raises UsageError."""
    from pytest_cloudbench.raid.coding.choice import Wish, choose
    from pytest_cloudbench.raid.offers import load_offers

    offers = load_offers(options.file)
    wish = Wish(
        options.aim, options.bytes, options.losses, options.usd_at_most, options.seconds_at_most,
        options.unavailable_at_most, options.placement,
    )  # fmt: skip
    try:
        choice = choose(offers, wish)
    except ValueError as error:
        raise UsageError(f"{options.file}: {error}") from None
    names = [offers[child].name for child in choice.children]
    values = {
        "children": names, "k": len(names) - choice.failures, "m": choice.failures, "placement": options.placement,
        "usd_per_gib_month": choice.price, "time_s": choice.time_s, "unavailability": choice.unavailability,
        "overhead": choice.overhead,
    }  # fmt: skip
    _print_result(options, values, [
        f"# {choice.price:.4g} USD a month per GiB, {choice.overhead:.3g} bytes stored per byte",
        f"# {format_bytes(options.bytes)} in {choice.time_s:.3g} s; unreadable with a probability of "
        f"{choice.unavailability:.2g}",
        f"k = {values['k']}", f"m = {values['m']}", f'placement = "{options.placement}"',
        f"children = [{', '.join(json.dumps(name, ensure_ascii=False) for name in names)}]",
    ])  # fmt: skip
    return 0


# --- shared -------------------------------------------------------------------------------------------


@contextmanager
def _open_array(file: str, metadata: Path | None = None, *, takes_over_all: bool = False) -> Iterator[Array]:
    """Yield the array of a file, connected and prepared, with its metadata in ``metadata`` if that is given.

    ``takes_over_all``: see ``recovery.agree``. Raises UsageError and CloudError.
    """
    from pytest_cloudbench import providers
    from pytest_cloudbench.raid.driver import RaidDriver, prepare_array

    query = f"?{urlencode({'metadata': str(metadata)})}" if metadata else ""
    with providers.opened(f"raid:{file}{query}") as driver:
        assert isinstance(driver, RaidDriver)
        yield prepare_array(
            driver.array, "raid", "/", lambda text: sys.stderr.write(f"{printable(text)}\n"),
            takes_over_all=takes_over_all,
        )  # fmt: skip


@contextmanager
def _show_progress(options: argparse.Namespace) -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function that shows a command's progress in one line of a terminal."""
    is_shown, shown_ns = sys.stderr.isatty() and not options.json, 0

    def show(phase: str, done: int, total: int) -> None:
        nonlocal shown_ns
        if is_shown and (clock.now_ns() - shown_ns > _PROGRESS_INTERVAL_S * 1e9):
            shown_ns = clock.now_ns()
            sys.stderr.write(f"\r{done} of {total} {phase}\x1b[K")
            sys.stderr.flush()

    try:
        yield show
    finally:
        if shown_ns:
            sys.stderr.write("\r\x1b[K")


def _print_result(options: argparse.Namespace, values: Mapping[str, Any], lines: Sequence[str]) -> None:
    """Print the values as JSON with ``--json``, or else the lines."""
    for line in [json.dumps(values)] if options.json else lines:
        sys.stdout.write(printable(line) + "\n")
