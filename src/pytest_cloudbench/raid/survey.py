"""A survey of an array: the packages that each child holds and lacks, and the objects that are at risk.

A survey compares listings, or reads every share. Missing and damaged packages are noted in the metadata for repairs.
Nothing else is changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from queue import SimpleQueue
from typing import Any

from pytest_cloudbench.model import CloudError, ErrorKind
from pytest_cloudbench.raid.array import Array
from pytest_cloudbench.raid.coding.manifest import Manifest
from pytest_cloudbench.raid.metadata import MissingPackage, ObjectRow
from pytest_cloudbench.raid.reading import intact_shares
from pytest_cloudbench.raid.recovery import list_children
from pytest_cloudbench.raid.transfers import TransferResult

Progress = Callable[[str, int, int], object]
"""Called with the name of the work, the amount done, and the total amount."""

_GIB_BYTES = 1 << 30
_MOST_FAILURES = 3
"""The failed reads in a row after which a scrub asks a child for nothing more, as each may take a whole timeout."""


@dataclass(slots=True)
class ChildState:
    """One child, as a survey found it. Counts are of packages: a child has one for each segment it holds shares of.

    Attributes:
        name: its name in the array's file.
        unreachable: why it does not answer, or empty if it does.
        expected: packages that it should have.
        held: those that are there with the right size and, in a scrub, with all their shares intact.
        missing: those that are not there, or too small. Except in a scrub, also those noted as missing or damaged
            before. 0 for a child that does not answer.
        damaged: in a scrub, those with damaged shares.
        unread: in a scrub, those that are listed but could not be read, or were not asked for after several failures.
        strange: packages there that belong to no object: unfinished, or another array's.
        held_bytes: total size of the array's packages there, as listed.
    """

    name: str
    unreachable: str = ""
    expected: int = 0
    held: int = 0
    missing: int = 0
    damaged: int = 0
    unread: int = 0
    strange: int = 0
    held_bytes: int = 0


@dataclass(slots=True)
class Survey:
    """An array, as a survey found it.

    Attributes:
        is_deep: whether every share was read, not only listed.
        children: in the order of the array's file.
        objects: how many there are.
        content_bytes: their total size.
        whole: objects with nothing missing: as many children may fail as the split allows.
        degraded: objects with something missing that can still lose another child.
        at_risk: objects that can be read, but could not if one more child failed.
        unreadable: objects that cannot be read now.
        unreadable_paths: the first of them.
        garbage: unused packages that are still to be deleted.
        unknown_paths: objects of which children hold a version that the metadata does not have: deleted, unfinished, or
            with too few packages left.
        written_meanwhile: objects that were not examined, because they became current after the survey began.
        equal_bytes: the size of equal shares of the content, on each child. Storage beyond that is the cost of an
            uneven placement, of manifests, and of small objects.
        usd_per_month: the cost of storage at the prices in the array's file. None: a price is missing there, or a
            child does not answer.
        equal_usd_per_month: the same for equal shares.
    """

    is_deep: bool
    children: list[ChildState]
    objects: int = 0
    content_bytes: int = 0
    whole: int = 0
    degraded: int = 0
    at_risk: int = 0
    unreadable: int = 0
    unreadable_paths: list[str] = field(default_factory=list)
    garbage: int = 0
    unknown_paths: list[str] = field(default_factory=list)
    written_meanwhile: int = 0
    equal_bytes: float = 0.0
    usd_per_month: float | None = None
    equal_usd_per_month: float | None = None

    @property
    def is_healthy(self) -> bool:
        """True if every child answers, and nothing is missing, damaged, or unknown to the metadata."""
        return (
            self.whole == self.objects
            and not self.unknown_paths
            and not any(child.unreachable or child.missing or child.damaged or child.unread for child in self.children)
        )

    def plain(self) -> dict[str, Any]:
        """Return the survey as plain data."""
        return {**asdict(self), "is_healthy": self.is_healthy}


def survey_array(
    array: Array, *, deep: bool = False, without: int | None = None,
    progress: Progress = lambda step, done, total: None,
) -> Survey:  # fmt: skip
    """Survey all children, and note the packages that they lack.

    Args:
        array: prepared.
        deep: read every share and compare it with its digest. Otherwise only the listed sizes are compared, and what
            is noted as missing or damaged is believed.
        without: a child to treat as silent.
        progress: called with the progress.

    Passes on any error that is not a CloudError: a mistake of a driver.
    """
    known = {version for version, _ in array.metadata.snapshot(len(array.children)).objects}
    noted = frozenset() if deep else frozenset(array.metadata.missing_packages())
    names, silent = list_children(array)
    if without is not None:
        names.pop(without, None)
    reasons = {child: describe_error(error) for child, error in silent.items()}
    survey = Survey(deep, [ChildState(name, reasons.get(child, "")) for child, name in enumerate(array.children.names)])
    unexplained = {child: dict(listing) for child, listing in names.items()}
    for child, listing in unexplained.items():
        listing.pop(array.children.marker_name(child), None)
        survey.children[child].held_bytes = sum(names[child].values())
    total, failures = array.metadata.count(), Counter[int]()
    for row in array.object_rows():
        if row.version not in known:  # the children may have been listed before they had it
            survey.written_meanwhile += 1
            continue
        _survey_object(array, row, names, unexplained, noted, survey, failures)
        progress("objects", survey.objects, max(total, survey.objects))
    _count_unexplained(array, unexplained, survey)
    survey.unknown_paths = [version.path for version in array.unknown]
    _add_prices(array, survey)
    return survey


def describe_error(error: CloudError) -> str:
    """Return an error's kind and its detail in one line."""
    return f"{error.kind.value}{f' ({error.detail})' if error.detail else ''}"


def _survey_object(
    array: Array, row: ObjectRow, names: Mapping[int, Mapping[str, int]], unexplained: Mapping[int, dict[str, int]],
    noted: frozenset[MissingPackage], survey: Survey, failures: Counter[int],
) -> None:  # fmt: skip
    """Find out the state of each share of an object, note what is missing, and count the object."""
    manifest = array.manifest_of("survey", row)
    states, margins = list[tuple[int, int, str]](), list[int]()
    for number, segment in enumerate(manifest.segments):
        holders = [child for child, count in enumerate(segment.split.counts) if count]
        state_by_child = {child: _listed_state(array, manifest, number, child, names, unexplained) for child in holders}
        state_by_child |= {
            child: "missing"
            for child, state in state_by_child.items()
            if state == "held" and MissingPackage(row.version, number, child) in noted
        }
        if survey.is_deep:
            listed = [child for child in holders if state_by_child[child] == "held"]
            state_by_child |= _read_states(array, manifest, number, listed, failures)
        states += [(number, child, state) for child, state in state_by_child.items()]
        margins.append(_survivable_failures(segment.split.counts, segment.split.data, [
            child for child, state in state_by_child.items() if state == "held"
        ]))  # fmt: skip
    lacking = {
        MissingPackage(row.version, number, child) for number, child, state in states if state in {"missing", "damaged"}
    }
    array.metadata.note_missing(lacking - noted)  # another process may have rebuilt what was noted
    if array.metadata.find_version(row.version) is None:
        return  # it was replaced or deleted meanwhile, together with its packages
    _count_object(survey, row, states, min(margins))


def _count_object(survey: Survey, row: ObjectRow, states: Sequence[tuple[int, int, str]], margin: int) -> None:
    for _, child, state in states:
        counts = survey.children[child]
        counts.expected += 1
        if state != "unreachable":
            setattr(counts, state, getattr(counts, state) + 1)
    survey.objects += 1
    survey.content_bytes += row.size_bytes
    if margin < 0:
        survey.unreadable += 1
        survey.unreadable_paths = [*survey.unreadable_paths, row.path][:20]
    elif all(state == "held" for _, _, state in states):
        survey.whole += 1
    elif margin == 0:
        survey.at_risk += 1
    else:
        survey.degraded += 1


def _survivable_failures(counts: Sequence[int], data: int, holding: Sequence[int]) -> int:
    """Return how many of the children that hold their shares may still fail, or -1 if they are already too few."""
    held = sorted(counts[child] for child in holding)
    return max((lost for lost in range(len(held) + 1) if sum(held[: len(held) - lost]) >= data), default=-1)


def _listed_state(
    array: Array, manifest: Manifest, number: int, child: int, names: Mapping[int, Mapping[str, int]],
    unexplained: Mapping[int, dict[str, int]],
) -> str:  # fmt: skip
    if child not in names:
        return "unreachable"
    name = array.package_name(manifest, child, number)
    unexplained[child].pop(name, None)
    expected_bytes = array.package_size_bytes(manifest, number, child)
    return "held" if names[child].get(name, -1) >= expected_bytes else "missing"


def _read_states(
    array: Array, manifest: Manifest, number: int, children: Sequence[int], failures: Counter[int]
) -> dict[int, str]:
    """Read the packages of one segment in parallel, and compare every share with its digest.

    ``failures``: how many reads of each child have failed in a row until now.
    """
    answers: SimpleQueue[TransferResult] = SimpleQueue()
    readable = [child for child in children if failures[child] < _MOST_FAILURES]
    for child in readable:
        most_bytes = array.package_size_bytes(manifest, number, child)
        array.children.get_package(child, array.package_name(manifest, child, number), most_bytes, answers.put)
    states = dict.fromkeys(children, "unread")
    for _ in readable:
        answer = answers.get()
        if answer.error is None:
            states[answer.child] = "held" if _is_package_intact(array, manifest, number, answer) else "damaged"
        elif not isinstance(answer.error, CloudError):
            raise answer.error
        elif answer.error.kind is ErrorKind.NOT_FOUND:
            states[answer.child] = "missing"
        else:
            failures[answer.child] += 1
            continue
        failures[answer.child] = 0
    return states


def _is_package_intact(array: Array, manifest: Manifest, number: int, answer: TransferResult) -> bool:
    """Return whether all shares of a package are intact, as well as its copy of the manifest if it has one."""
    segment = manifest.segments[number]
    if len(intact_shares(segment, answer.child, answer.data)) < segment.split.counts[answer.child]:
        return False
    name = array.package_name(manifest, answer.child, number)
    return number < len(manifest.segments) - 1 or array.has_head(manifest, name, answer.data)


def _count_unexplained(array: Array, unexplained: Mapping[int, dict[str, int]], survey: Survey) -> None:
    """Count listed packages that belong to no object, as known garbage or as strange."""
    garbage = Counter[int]()
    for leftover in array.metadata.garbage():
        listing = unexplained.get(leftover.child, {})
        for name in array.package_names(leftover.version, leftover.child, leftover.segments):
            garbage[leftover.child] += listing.pop(name, None) is not None
    for begun in array.metadata.snapshot(len(array.children)).begun:
        for child, listing in unexplained.items():
            for name in array.package_names(begun.version, child, begun.segments):
                listing.pop(name, None)
    survey.garbage = garbage.total()
    for child, listing in unexplained.items():
        survey.children[child].strange = len(listing)


def _add_prices(array: Array, survey: Survey) -> None:
    survey.equal_bytes = survey.content_bytes / array.file.k
    prices = [child.store_usd_per_gib_month for child in array.file.children]
    if None not in prices and not any(child.unreachable for child in survey.children):
        prices_per_byte = [price / _GIB_BYTES for price in prices if price is not None]
        survey.usd_per_month = sum(
            child.held_bytes * price for child, price in zip(survey.children, prices_per_byte, strict=True)
        )  # fmt: skip
        survey.equal_usd_per_month = survey.equal_bytes * sum(prices_per_byte)
