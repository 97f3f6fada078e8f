"""Driver for an array: one provider made of n others, any k of which are enough to read.

What may live here: the parts of a driver, in this order: imports, capabilities, compose, required verbs.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import ClassVar

from pytest_cloudbench.drivers.base import Driver, Preparing, check_params
from pytest_cloudbench.drivers.keys import key_of, path_of, prefix_of
from pytest_cloudbench.model import (
    Capabilities,
    CloudError,
    ConfigError,
    Content,
    CredentialsError,
    Endpoint,
    Entry,
    ErrorKind,
    ProviderSpec,
    SpecError,
    UsageError,
    Verb,
)
from pytest_cloudbench.raid import config
from pytest_cloudbench.raid.array import Array
from pytest_cloudbench.raid.coding.hedging import HedgingRule
from pytest_cloudbench.raid.coding.placement import Throughput
from pytest_cloudbench.raid.coding.policies import Equal, Hedge, Placement, Rates
from pytest_cloudbench.raid.coding.reed_solomon import find_codec
from pytest_cloudbench.raid.config import ArrayFile
from pytest_cloudbench.raid.costs import Ledger
from pytest_cloudbench.raid.metadata import Metadata, ObjectRow
from pytest_cloudbench.raid.observing import Observer
from pytest_cloudbench.raid.reading import read_object
from pytest_cloudbench.raid.recovery import Recovery, agree, recover
from pytest_cloudbench.raid.transfers import Children, TransferResult, is_package
from pytest_cloudbench.raid.upkeep import Upkeep, delete_leftovers
from pytest_cloudbench.raid.writing import write_object
from pytest_cloudbench.results.owner import owner_text
from pytest_cloudbench.support import clock

# --- capabilities ---------------------------------------------------------------------------------

_CAPABILITIES = Capabilities(
    digest=None,
    verbs=frozenset({Verb.PUT, Verb.GET, Verb.STAT, Verb.LIST, Verb.DELETE}),
    ranges=True,
    folders=False,
    lists_by_prefix=True,
    requests={Verb.STAT: 0, Verb.LIST: 0},
    via="its children's drivers; stat and list are answered from local metadata",
)
_TEMPORARY_SCHEMES = frozenset({"emulated", "served", "local"})
"""Schemes of children that end with the run. An array of only such children needs no key of its own."""
_PARAMS = {"state", "metadata"}
_RATES = "rates"
"""The setting in the metadata with the observed rates."""
_CLOSE_S = 10.0
_MARKER_INTERVAL_S = 1.0


def open_array(
    file: ArrayFile, children: Sequence[Driver], *,
    placement: Placement | None = None, hedge: Hedge | None = None, rates: Rates | None = None,
) -> Array:  # fmt: skip
    """Open an array of connected children. Creates its key and its metadata if there are none.

    By default, the file decides the policies, which follow the observed rates of the children.

    Raises UsageError.
    """
    metadata = Metadata(file.metadata, owner_text(), f"cloudbench raid recover {file.source}")
    try:
        if config.is_key_missing(file.key):
            _check_nothing_needs_the_key(file, metadata, children)
        master = config.load_master_key(file.key)
        if metadata.setting("key") not in {None, master.fingerprint}:
            raise CredentialsError(f"{file.key}: not the key of the array whose metadata is in {file.metadata}")
        _check_children(file, metadata)
        rule = HedgingRule(file.patience_s, file.hedge_percentile, file.hedge_budget)
        observer = Observer(len(children), rule)
        observer.restore(metadata.setting(_RATES) or "")
    except CloudError as error:
        metadata.close()
        raise UsageError(error.detail) from error
    except UsageError:
        metadata.close()
        raise
    names = [child.name for child in file.children]
    return Array(
        file, Children(children, names, file.folder, master, rates or observer), metadata, master,
        placement or _make_placement(file, observer), hedge or observer,
    )  # fmt: skip


def _check_nothing_needs_the_key(file: ArrayFile, metadata: Metadata, children: Sequence[Driver]) -> None:
    """Raise CredentialsError if the missing key may be that of existing packages, which no new key would open."""
    advice = "nothing else opens its packages; put it back from your copy"
    if metadata.setting("key") is not None:
        raise CredentialsError(f"{file.key}: missing, but {file.metadata} belongs to an array with this key; {advice}")
    for child, driver in zip(file.children, children, strict=True):
        try:
            has_any = any(is_package(entry.path) for entry in driver.list(file.folder))
        except CloudError as error:
            if error.kind is ErrorKind.NOT_FOUND:
                continue
            raise CredentialsError(
                f"{file.key}: missing, and no new key is created before every child confirms that it has no packages "
                f"of an old one; {child.name}: {error.kind.value} ({error.detail})"
            ) from error
        if has_any and config.is_key_missing(file.key):  # otherwise another process has just made it
            raise CredentialsError(f"{file.key}: missing, but {child.name} has packages in {file.folder}; {advice}")


def _check_children(file: ArrayFile, metadata: Metadata) -> None:
    """Compare the file's children with those of the last use, because a child's position decides what it holds.

    Another spec in a child's position is its new address, or a new child that ``replace`` fills. More children at the
    end are filled by ``rebalance``. Raises ConfigError, in one line, for anything else.
    """
    specs, before = [child.spec for child in file.children], metadata.child_specs()
    if specs == before or not (metadata.count() or metadata.garbage()):
        return
    if len(specs) < len(before):
        detail = (
            f"the array has {len(before)} and the file names {len(specs)}: a child cannot be taken away; replace it, "
            "or export all objects"
        )
        raise ConfigError(str(file.source), "children", detail)
    for position, (spec, old_spec) in enumerate(zip(specs, before, strict=False), 1):
        if spec != old_spec and spec in before:
            detail = f"{spec} was number {before.index(spec) + 1} and is now {position}: restore the order"
            raise ConfigError(str(file.source), "children", detail)


def _make_placement(file: ArrayFile, observer: Observer) -> Placement:
    children = len(file.children)
    if file.placement == "equal":
        return Equal(file.k, children)
    return Throughput(file.k, children, observer.write_rates, overhead_at_most=file.overhead_at_most)


def _make_folders(array: Array) -> None:
    """Create the folder for packages on each child, before many threads would do so together. Errors show later."""
    answers: SimpleQueue[TransferResult] = SimpleQueue()
    for child in range(len(array.children)):
        array.children.make_folder(child, answers.put)
    for _ in range(len(array.children)):
        answers.get()


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=2)


def _entry(row: ObjectRow) -> Entry:
    return Entry(row.path, size_bytes=row.size_bytes)


def _not_found_error(verb: str, path: str) -> CloudError:
    error = CloudError(ErrorKind.NOT_FOUND, verb, path, detail="the metadata has no such object")
    error.__cause__ = LookupError(path)
    return error


def prepare_array(
    array: Array, verb: str, path: str, say: Callable[[str], object] = lambda text: None,
    *, takes_over_all: bool = False,
) -> Array:  # fmt: skip
    """Make an array ready for use, by an agreement of its metadata and its children, see ``recovery.agree``.

    ``say``: called with a message if the metadata was an old copy. ``takes_over_all``: see ``recovery.agree``.

    Raises CloudError, for the operation that needs it, if too few children answer.
    """
    is_new = not array.metadata.is_prepared
    recovery = agree(array, verb, path, takes_over_all=takes_over_all)
    array.unknown[:] = recovery.unknown
    if is_new:
        array.silent.update(recovery.silent)
        _make_folders(array)
    elif recovery.is_old:
        say(
            f"{array.file.metadata} was older than what the children hold: {recovery.objects} objects were taken in, "
            f"and {recovery.dropped} that were deleted meanwhile were removed"
        )
    return array


def _apply_params(file: ArrayFile, params: Mapping[str, str]) -> ArrayFile:
    """Return an array's file with the changes that a spec's parameters make."""
    if state := params.get("state"):
        file = replace(file, key=str(Path(state) / "array.key"), metadata=Path(state) / "array.sqlite")
    if metadata := params.get("metadata"):
        file = replace(file, metadata=Path(metadata))
    return file


class RaidDriver:
    """An array of providers, as its file describes it: ``raid:FILE.toml``. Safe for many threads.

    ``?state=FOLDER`` keeps key and metadata there instead of where the file says, ``?metadata=FILE`` only the metadata.
    """

    capabilities: ClassVar[Capabilities] = _CAPABILITIES

    def __init__(self, array: Array) -> None:
        self.array, self._lock = array, threading.Lock()
        self._upkeep: Upkeep | None = None
        self._next_marker_ns = 0
        if array.children.all_count_requests:
            self.requests: Callable[[], int] = array.ledger.requests

    def __repr__(self) -> str:
        return f"RaidDriver({str(self.array.file.source)!r})"

    @classmethod
    def described(cls, spec: ProviderSpec) -> Sequence[str]:
        """Return the specs of the children, from the file that the spec names. Raises UsageError."""
        check_params(spec, _PARAMS)
        return [child.spec for child in config.load(spec.target).children]

    @classmethod
    def check_children(cls, spec: ProviderSpec, children: Sequence[ProviderSpec]) -> None:
        """Raise UsageError if the array cannot work, or a child could read what it must not."""
        file = config.load(spec.target)
        config.check_places(_apply_params(file, spec.params))
        if (
            not file.key
            and "state" not in spec.params
            and not all(child.scheme in _TEMPORARY_SCHEMES for child in children)
        ):
            raise config.missing_key_error(file)

    @classmethod
    def connect(cls, spec: ProviderSpec, endpoint: Endpoint | None, credentials: Mapping[str, str]) -> RaidDriver:
        """Refuse: an array is made of other drivers, see ``compose``. Raises SpecError."""
        check_params(spec, _PARAMS)
        raise SpecError(f"provider {spec.text!r}: an array cannot be connected without its children")

    @classmethod
    def compose(cls, spec: ProviderSpec, children: Sequence[Driver]) -> RaidDriver:
        """Return the driver of an array whose children are connected. Raises UsageError."""
        file = config.load(spec.target)
        file = _apply_params(file, spec.params)
        if not file.key:
            raise config.missing_key_error(file)
        return cls(open_array(file, children))

    def versions(self) -> Mapping[str, str]:
        """Return the library that computes the code, and the libraries of the children, with their versions."""
        file = self.array.file
        libraries = {name: text for child in self.array.children.drivers for name, text in child.versions().items()}
        return {**libraries, "reed-solomon": find_codec(file.k, file.m).version(), "raid": f"{file.k}+{file.m}"}

    @property
    def ledger(self) -> Ledger:
        """The costs of operations, by verb and of each thread's last one."""
        return self.array.ledger

    def prepare(self, folder: str) -> None:
        """Make the array ready, and let the children prepare the folder of its packages."""
        self._prepared_array("prepare", folder)
        for child in self.array.children.drivers:
            if isinstance(child, Preparing):
                with suppress(CloudError):  # an array works without some of its children
                    child.prepare(self.array.file.folder)

    def settle(self, timeout_s: float) -> bool:
        """Wait until all background work is done. Returns whether all of it succeeded."""
        return self._upkeep is None or self._upkeep.settle(timeout_s)

    def recover(self) -> Recovery:
        """Take in every object that the children hold, see ``recovery``. Raises CloudError."""
        return recover(self.array, "recover", "/")

    def close(self) -> None:
        """Finish background work, if it does not take long, and close the children."""
        if self._upkeep is not None:
            self._upkeep.close(_CLOSE_S)
        rates = self.array.children.rates
        if isinstance(rates, Observer) and rates.has_observed:
            with suppress(CloudError):  # the next process observes them again
                if self.array.metadata.setting(_RATES) != rates.text():
                    self.array.metadata.put_setting(_RATES, rates.text())
        self.array.children.close()
        self.array.metadata.close()

    def _prepared_array(self, verb: str, path: str) -> Array:
        """Return the array. The first operation of a process prepares it."""
        array = self.array
        if self._upkeep is not None:
            return array
        with self._lock:
            if self._upkeep is None:
                self._upkeep = Upkeep(prepare_array(array, verb, path, _warn))
        return array

    def _find_row(self, verb: str, path: str) -> ObjectRow:
        row = self._prepared_array(verb, path).metadata.find(path)
        if row is None:
            raise _not_found_error(verb, path)
        return row

    def _marker_generation(self, generation: int) -> int:
        """Return the generation that children are to note for a deletion, or 0 if they have noted one a moment ago."""
        with self._lock:
            if clock.now_ns() < self._next_marker_ns:
                return 0
            self._next_marker_ns = clock.due_ns(_MARKER_INTERVAL_S)
            return generation

    # --- required verbs -----------------------------------------------------------------------------

    def put(self, path: str, content: Content) -> Entry:
        """Write an object. It replaces the old one once it is as durable as the file says, or not at all."""
        if "\0" in key_of("put", path):
            raise CloudError(ErrorKind.INVALID, "put", path, detail="a NUL in a name: no export could write it")
        array = self._prepared_array("put", path)
        with array.ledger.operation("put") as costs:
            write_object(array, path, content, costs)
        return Entry(path, size_bytes=content.size_bytes)

    def get(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """Yield the object's bytes from ``offset``, in pieces of a MiB, each verified."""
        key_of("get", path)
        array = self._prepared_array("get", path)
        with array.ledger.operation("get") as costs:
            row, has_begun = self._find_row("get", path), False
            while True:
                try:
                    for piece in read_object(array, array.manifest_of("get", row), offset, costs):
                        has_begun = True
                        yield piece
                    return
                except CloudError:
                    newer = self._find_row("get", path)
                    if has_begun or newer.version == row.version:
                        raise
                    row = newer  # it was replaced meanwhile

    def stat(self, path: str) -> Entry:
        """Return the object's size, from the metadata."""
        key_of("stat", path)
        with self.array.ledger.operation("stat") as costs, costs.timed("metadata_ns"):
            return _entry(self._find_row("stat", path))

    def list(self, folder: str) -> Iterator[Entry]:
        """Yield all objects below ``folder``, in order of their paths, from the metadata."""
        prefix = path_of(prefix_of("list", folder))
        yield from map(_entry, self._prepared_array("list", folder).object_rows(prefix))

    def delete(self, path: str) -> None:
        """Remove an object, and all below it. Packages that a child does not delete soon are deleted later."""
        prefix = path_of(prefix_of("delete", path))
        if path == "/":
            raise CloudError(ErrorKind.INVALID, "delete", path, detail="the root cannot be deleted")
        array = self._prepared_array("delete", path)
        with array.ledger.operation("delete") as costs:
            rows = [row for row in (array.metadata.find(path),) if row is not None]
            rows += array.object_rows(prefix)
            if not rows:
                raise _not_found_error("delete", path)
            with costs.timed("metadata_ns"):
                generation = array.metadata.next_generation()
                leftovers = [
                    leftover for row in rows for leftover in array.metadata.remove_object(row, len(array.children))
                ]
                is_last = array.metadata.is_empty
            generation = 0 if is_last else self._marker_generation(generation)
            delete_leftovers(array, leftovers, costs, array.file.patience_s, generation, is_last=is_last)
        array.pending.wake()

    def mkdir(self, path: str) -> None:
        """Does nothing: there are no folders, only paths with a common prefix."""
        prefix_of("mkdir", path)
