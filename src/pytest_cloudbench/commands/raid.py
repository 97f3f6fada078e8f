"""The commands for an array: ``cloudbench raid status|scrub|repair|recover|replace|rebalance|export FILE.toml``,
and ``cloudbench raid choose OFFERS.toml`` to plan one.

What may live here: their input and output, and the change of the array's file by ``replace``. The work is in
``raid``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from pytest_cloudbench.model import ConfigError, UsageError, did_you_mean
from pytest_cloudbench.report.quantities import format_bytes
from pytest_cloudbench.support import clock

if TYPE_CHECKING:
    from pytest_cloudbench.raid.array import Array
    from pytest_cloudbench.raid.maintenance import RepairResult
    from pytest_cloudbench.raid.survey import Survey

_FAILED, _DEGRADED = 1, 3
_STATUSES = (
    "Exit status: 0 if all is well or done; 1 if objects cannot be read, or the command failed; "
    "3 if everything can be read, but something is missing, damaged or unreachable; 4 for bad input."
)
_EVERY_S = 0.2


def add_commands(commands: Any) -> None:
    """Add ``raid`` to the commands of ``cloudbench``."""
    raid = commands.add_parser("raid", help="look after an array of providers", epilog=_STATUSES)
    which = raid.add_subparsers(metavar="WHAT", required=True)

    def add(name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        command: argparse.ArgumentParser = which.add_parser(
            name, help=text, description=f"{text[0].upper()}{text[1:]}.", epilog=_STATUSES
        )
        command.add_argument("file", metavar="FILE.toml", help="the array's file")
        command.add_argument("--json", action="store_true", help="print one JSON object")
        command.set_defaults(run=run)
        return command

    add("status", _status, "compare the children's listings with what they should have; show objects at risk")
    add("scrub", _scrub, "read every share, and note missing and damaged ones for the next repair")
    repair = add("repair", _repair, "rebuild what children lack; continues an interrupted repair")
    repair.add_argument(
        "--discard-incomplete", action="store_true",
        help="also delete versions that belong to no object and cannot be read",
    )  # fmt: skip
    add("recover", _recover, "rebuild lost, old or damaged metadata, with only the key and the children's packages")
    replace = add("replace", _replace, "replace a child by another provider, and rebuild its content there")
    replace.add_argument("child", metavar="CHILD", help="its name, or its number from 1")
    replace.add_argument(
        "spec", metavar="SPEC", nargs="?",
        help="the new provider; if left out, the array's file already names it, and it is assumed to be empty",
    )  # fmt: skip
    replace.add_argument("--force", action="store_true", help="even if that makes objects unreadable")
    rebalance = add("rebalance", _rebalance, "rewrite objects whose shares would now be placed differently")
    rebalance.add_argument("--dry-run", action="store_true", help="only count them")
    export = add("export", _export, "write all objects as plain files into a folder, or into one .tar")
    export.add_argument("target", metavar="TARGET", type=Path, help="a folder, or a file that ends in .tar")
    export.add_argument(
        "--recover", action="store_true", help="use no metadata, only the key and the children's packages"
    )

    _add_choose(which)


def _add_choose(which: Any) -> None:
    text = "choose an array's providers from a table, by price, throughput or availability"
    choose = which.add_parser("choose", help=text, description=f"{text[0].upper()}{text[1:]}.")
    choose.add_argument("file", metavar="OFFERS.toml", help="[[offer]] tables, see docs/reference/raid.md")
    choose.add_argument(
        "--aim",
        choices=("price", "time", "availability"),
        default="price",
        help="the quantity to optimize (default: %(default)s)",
    )
    choose.add_argument("--losses", metavar="M", type=_count, default=1, help="any M may fail (default: %(default)s)")
    choose.add_argument("--bytes", metavar="N", type=_count, default=10**8, help="object size (default: %(default)s)")
    choose.add_argument("--usd-at-most", metavar="USD", type=_bound, default=inf, help="a month, per GiB of content")
    choose.add_argument("--seconds-at-most", metavar="S", type=_bound, default=inf, help="to move the object")
    choose.add_argument(
        "--unavailable-at-most", metavar="SHARE", type=_bound, default=1.0, help="how often it may be unreadable"
    )
    choose.add_argument("--placement", choices=("equal", "throughput"), default="equal", help="(default: %(default)s)")
    choose.add_argument("--json", action="store_true", help="print one JSON object")
    choose.set_defaults(run=_choose)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 10**18):
        raise argparse.ArgumentTypeError(f"expected a whole number of 1 or more, not {text!r}")
    return int(text)


def _bound(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < inf:
        raise argparse.ArgumentTypeError(f"expected a number, 0 or more, not {text!r}")
    return value


# --- the commands -------------------------------------------------------------------------------------


def _status(options: argparse.Namespace) -> int:
    return _survey(options, deep=False)


def _scrub(options: argparse.Namespace) -> int:
    return _survey(options, deep=True)


def _survey(options: argparse.Namespace, *, deep: bool) -> int:
    from pytest_cloudbench.raid.survey import survey_array

    with _array(options.file) as array, _progress(options) as progress:
        found = survey_array(array, deep=deep, progress=progress)
        _say(options, {"file": options.file, "k": array.file.k, "m": array.file.m, **found.plain()},
             _survey_text(options.file, array, found))  # fmt: skip
    return _FAILED if found.unreadable else 0 if found.is_healthy else _DEGRADED


def _survey_text(file: str, array: Array, found: Survey) -> list[str]:
    from pytest_cloudbench.raid.coding.placement import least_overhead
    from pytest_cloudbench.report.columns import fit_to_width

    held_bytes = sum(child.held_bytes for child in found.children)
    overhead, least = "", least_overhead(array.file.k + array.file.m, array.file.m)
    if found.content_bytes:
        overhead = f", {held_bytes / found.content_bytes:.2f} bytes stored per byte (equal shares: {least:.2f})"
    rows = [["child", "packages", "held", "missing", "damaged", "unread", "strange", "stored"]]
    for child in found.children:
        listed = [str(child.held), str(child.missing)]
        read = [str(child.damaged), str(child.unread)] if found.is_deep else ["-", "-"]
        known = [*listed, *read, str(child.strange), format_bytes(child.held_bytes)]
        rows.append([child.name, str(child.expected), *(["-"] * len(known) if child.unreachable else known)])
    lines = [
        f"{file}: {array.file.k}+{array.file.m}, {found.objects} objects, {format_bytes(found.content_bytes)}"
        f"{overhead}",
        *fit_to_width(rows, shutil.get_terminal_size((120, 24)).columns),
        f"objects: {found.whole} whole, {found.degraded} degraded, {found.at_risk} at risk (no further child may "
        f"fail), {found.unreadable} unreadable",
    ]
    if found.usd_per_month is not None:
        equal = found.equal_usd_per_month
        lines.append(f"storage: {found.usd_per_month:.4g} USD a month (equal shares: {equal:.4g})")
    lines += [f"{child.name}: no answer: {child.unreachable}" for child in found.children if child.unreachable]
    lines += [f"unreadable: {path}" for path in found.unreadable_paths]
    lines += _unknown_text(found.unknown_paths)
    if found.garbage:
        lines.append(f"{found.garbage} unused packages are still to be deleted; a repair does that")
    return lines


def _repair(options: argparse.Namespace) -> int:
    from pytest_cloudbench.raid.maintenance import discard_incomplete_versions, repair_array
    from pytest_cloudbench.raid.survey import survey_array

    with _array(options.file) as array, _progress(options) as progress:
        if options.discard_incomplete:
            discard_incomplete_versions(array)
        survey_array(array, progress=progress)  # notes packages that children do not list as missing
        done = repair_array(array, progress)
        return _repaired(options, array, done)


def _repaired(options: argparse.Namespace, array: Array, done: RepairResult) -> int:
    lines = [f"{done.mended} packages rebuilt, {format_bytes(done.mended_bytes)}"]
    lines += [f"{count} packages still missing on {name}: {done.reasons[name]}" for name, count in done.left.items()]
    lines += [f"too few shares are left: {path}" for path in done.lost_paths]
    if done.garbage:
        lines.append(f"unused packages could not be deleted in {done.garbage} cases; the next repair tries again")
    unknown_paths = [each.path for each in array.unknown]
    lines += _unknown_text(unknown_paths)
    _say(options, {"file": options.file, **asdict(done), "is_complete": done.is_complete,
                   "unknown_paths": unknown_paths}, lines)  # fmt: skip
    return _FAILED if done.lost_paths else 0 if done.is_complete and not unknown_paths else _DEGRADED


def _unknown_text(paths: Sequence[str]) -> list[str]:
    if not paths:
        return []
    return [
        f"{len(paths)} versions on the children belong to no object, such as {paths[0]}: deleted or unfinished ones, "
        "or objects that lost too many packages; 'recover' takes in what can be read, and 'repair "
        "--discard-incomplete' deletes the rest"
    ]


def _replace(options: argparse.Namespace) -> int:
    from pytest_cloudbench import providers
    from pytest_cloudbench.raid.maintenance import note_all_missing, repair_array
    from pytest_cloudbench.raid.survey import survey_array

    child = _child(options.file, options.child)
    if not options.file.endswith(".toml"):
        raise UsageError(f"{options.file}: ships with the package; write your own array file instead")
    if options.spec is not None:
        providers.resolve(options.spec)
        changed = _changed_file(options.file, child, options.spec)
    with _array(options.file) as array, _progress(options) as progress:
        found = survey_array(array, progress=progress, without=child)
        if found.unreadable and not options.force:
            raise UsageError(
                f"{options.file}: without {array.children.names[child]}, {found.unreadable} objects cannot be read, "
                f"such as {found.unreadable_paths[0]}: repair the others first, or use --force to give them up"
            )
        # Noted before the file changes: even after a kill, it is known what the new child lacks.
        note_all_missing(array, child)
        if options.spec is None:
            return _repaired(options, array, repair_array(array, progress))
    _write(Path(options.file), changed)
    with _array(options.file) as array, _progress(options) as progress:
        return _repaired(options, array, repair_array(array, progress))


def _child(file: str, wanted: str) -> int:
    from pytest_cloudbench.raid import config

    names = [child.name for child in config.load(file).children]
    if wanted in names:
        return names.index(wanted)
    if wanted.isascii() and wanted.isdigit() and 1 <= int(wanted) <= len(names):
        return int(wanted) - 1
    known = ", ".join(f"{number} ({name})" for number, name in enumerate(names, 1))
    raise UsageError(f"{file}: no child {wanted!r}; expected one of {known}{did_you_mean(wanted, names)}")


def _changed_file(file: str, child: int, spec: str) -> str:
    """Returns the text of the array's file with a new spec for a child; everything else stays as the user wrote it."""
    from pytest_cloudbench.raid import config

    text, old = Path(file).read_text("utf-8"), config.load(file).children[child].spec
    written = [quoted for quoted in (json.dumps(old, ensure_ascii=False), f"'{old}'") if text.count(quoted) == 1]
    if len(written) != 1:
        raise ConfigError(
            file, "children",
            f"cannot tell where child {child + 1} is written; change its spec to {spec!r} by hand, then run: "
            f"cloudbench raid replace {file} {child + 1}",
        )  # fmt: skip
    return text.replace(written[0], json.dumps(spec, ensure_ascii=False))


def _write(path: Path, text: str) -> None:
    """Replace a file atomically. If the new text is not a valid array file, restore the old. Raises UsageError."""
    from pytest_cloudbench import providers
    from pytest_cloudbench.support.opening import write_whole

    def put(content: str) -> None:
        write_whole(path, lambda file: file.write(content.encode()), is_durable=True, keeps_mode=True)

    old = path.read_text("utf-8")
    put(text)
    try:
        providers.resolve(f"raid:{path}")  # by its own name: it may be among its children
    except UsageError:
        put(old)
        raise


def _rebalance(options: argparse.Namespace) -> int:
    from pytest_cloudbench.raid.maintenance import rebalance_array

    with _array(options.file) as array, _progress(options) as progress:
        done = rebalance_array(array, dry_run=options.dry_run, progress=progress)
    would = "would be " if options.dry_run else ""
    lines = [f"{done.moved} of {done.objects} objects {would}rewritten, {format_bytes(done.moved_bytes)}"]
    lines += [f"{done.overtaken} objects were replaced or deleted meanwhile"] if done.overtaken else []
    lines += [f"left as it was: {path}: {why}" for path, why in done.failed.items()]
    _say(options, {"file": options.file, **asdict(done), "is_dry_run": options.dry_run}, lines)
    return _FAILED if done.failed else 0


def _export(options: argparse.Namespace) -> int:
    from pytest_cloudbench.raid import config
    from pytest_cloudbench.raid.maintenance import export_objects

    if child := config.load(options.file).child_containing(options.target):
        raise UsageError(f"{options.target}: is in the folder of the child {child}, whose provider could read it all")
    with ExitStack() as stack:
        metadata = None
        if options.recover:
            metadata = Path(stack.enter_context(TemporaryDirectory(prefix="cloudbench-recovered-"))) / "array.sqlite"
        array, progress = stack.enter_context(_array(options.file, metadata)), stack.enter_context(_progress(options))
        done = export_objects(array, options.target, progress)
        unknown_paths = [each.path for each in array.unknown]
    lines = [f"{done.objects} objects, {format_bytes(done.content_bytes)}: {options.target}"]
    lines += [f"not exported: {path}: {why}" for path, why in done.failed.items()]
    lines += _unknown_text(unknown_paths)
    _say(options, {"file": options.file, "target": str(options.target), **asdict(done),
                   "unknown_paths": unknown_paths}, lines)  # fmt: skip
    return _FAILED if done.failed else _DEGRADED if unknown_paths else 0


def _recover(options: argparse.Namespace) -> int:
    from pytest_cloudbench.raid import config
    from pytest_cloudbench.raid.database import replace_database

    old = config.load(options.file).metadata
    new = old.with_name(f"{old.name}.{os.getpid()}.new")
    try:
        with _array(options.file, new) as array:
            count, unknown_paths = array.metadata.count(), [each.path for each in array.unknown]
        kept = replace_database(new, old)
    finally:
        for path in new.parent.glob(f"{new.name}*"):
            path.unlink()
    lines = [f"{count} objects were found on the children; {old} is new", *_unknown_text(unknown_paths)]
    lines += [f"the old file was kept as {kept}"] if kept else []
    _say(options, {"file": options.file, "objects": count, "unknown_paths": unknown_paths,
                   "kept": str(kept) if kept else None}, lines)  # fmt: skip
    return _DEGRADED if unknown_paths else 0


def _choose(options: argparse.Namespace) -> int:
    from pytest_cloudbench.raid.coding.choice import Wish, choose
    from pytest_cloudbench.raid.offers import GIB_BYTES, load_offers

    offers = load_offers(options.file)
    wish = Wish(
        options.aim, options.bytes, options.losses, options.usd_at_most / GIB_BYTES, options.seconds_at_most,
        options.unavailable_at_most, options.placement,
    )  # fmt: skip
    try:
        found = choose(offers, wish)
    except ValueError as error:
        raise UsageError(f"{options.file}: {error}") from None
    names = [offers[child].name for child in found.children]
    usd = found.price * GIB_BYTES
    told = {
        "children": names, "k": len(names) - found.failures, "m": found.failures, "placement": options.placement,
        "usd_per_gib_month": usd, "time_s": found.time_s, "unavailability": found.unavailability,
        "overhead": found.overhead,
    }  # fmt: skip
    _say(options, told, [
        f"# {usd:.4g} USD a month per GiB, {found.overhead:.3g} bytes stored per byte",
        f"# {format_bytes(options.bytes)} in {found.time_s:.3g} s; unreadable with a probability of "
        f"{found.unavailability:.2g}",
        f"k = {told['k']}", f"m = {told['m']}", f'placement = "{options.placement}"',
        f"children = [{', '.join(json.dumps(name, ensure_ascii=False) for name in names)}]",
    ])  # fmt: skip
    return 0


# --- shared -------------------------------------------------------------------------------------------


@contextmanager
def _array(file: str, metadata: Path | None = None) -> Iterator[Array]:
    """Yields the array of a file, connected and prepared; with other metadata if ``metadata`` names a file.

    Raises UsageError and CloudError.
    """
    from pytest_cloudbench import providers
    from pytest_cloudbench.raid.driver import RaidDriver, prepare_array
    from pytest_cloudbench.report.history import printable

    query = f"?{urlencode({'metadata': str(metadata)})}" if metadata else ""
    with providers.opened(f"raid:{file}{query}") as driver:
        assert isinstance(driver, RaidDriver)
        yield prepare_array(driver.array, "raid", "/", lambda text: sys.stderr.write(f"{printable(text)}\n"))


@contextmanager
def _progress(options: argparse.Namespace) -> Iterator[Callable[[str, int, int], None]]:
    """Yields a function that shows a command's progress, in one line of a terminal."""
    shows, shown_ns = sys.stderr.isatty() and not options.json, 0

    def show(what: str, done: int, total: int) -> None:
        nonlocal shown_ns
        if shows and (clock.now_ns() - shown_ns > _EVERY_S * 1e9):
            shown_ns = clock.now_ns()
            sys.stderr.write(f"\r{done} of {total} {what}\x1b[K")
            sys.stderr.flush()

    try:
        yield show
    finally:
        if shown_ns:
            sys.stderr.write("\r\x1b[K")


def _say(options: argparse.Namespace, told: Mapping[str, Any], lines: Sequence[str]) -> None:
    from pytest_cloudbench.report.history import printable

    text = [json.dumps(told)] if options.json else lines
    for line in text:
        sys.stdout.write(printable(line) + "\n")
