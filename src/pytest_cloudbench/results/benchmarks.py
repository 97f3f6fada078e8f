"""The interface to pytest-benchmark, and the only module that uses its private names.

It makes a merged result an ordinary pytest-benchmark entry, and reads the entries of compared runs. pytest-benchmark
switches itself off under xdist (its workers write nothing), but its controller saves, prints and compares whatever is
in ``config._benchmarksession.benchmarks``. The upper bound on the version is in pyproject.toml.
``tests/results/test_benchmarks.py`` fails when a name moves.
"""

from __future__ import annotations

import datetime
import json
import shlex
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from itertools import repeat
from math import fsum, sqrt
from operator import itemgetter, mul, sub
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from pytest_cloudbench.judge.baseline import BaselineCandidate
from pytest_cloudbench.model import ResultsError, UsageError
from pytest_cloudbench.results import stored
from pytest_cloudbench.results.places import is_storage_named, session_results_folder
from pytest_cloudbench.support import opening

_DEFERRED_COMPARISON: pytest.StashKey[Any] = pytest.StashKey()
"""The value of ``--benchmark-compare``, until it is known where the runs are."""
_STORES_RESULTS: pytest.StashKey[bool] = pytest.StashKey()
"""True if pytest-benchmark stores this session in the results."""
_NOT_A_BENCHMARK = "Skipping non-benchmark (--benchmark-only active)."
"""The reason of the mark by which pytest-benchmark skips tests without its own fixture."""

_READ_BYTES = 32 * 1024 * 1024
"""How much of the stored runs is read, latest first. It takes three seconds and fits a controller's memory."""


@dataclass(slots=True)
class Runs:
    """Runs that were stored.

    Attributes:
        named: the run that the user named, or nothing.
        files: each file's name, and its entries' ``extra_info`` by their full names, the latest last.
        unreadable: names of files that could not be read.
    """

    named: str = ""
    files: list[tuple[str, Mapping[str, Mapping[str, Any]]]] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)

    def entries_of(self, fullname: str) -> list[BaselineCandidate]:
        """Return the entries of one test."""
        return [BaselineCandidate(name, entries[fullname]) for name, entries in self.files if fullname in entries]


def _benchmark_session(config: pytest.Config) -> Any:
    """Return pytest-benchmark's session object, or None if its plugin is switched off."""
    return getattr(config, "_benchmarksession", None)


def is_loaded(config: pytest.Config) -> bool:
    """Return whether pytest-benchmark is loaded. Without it nothing is stored."""
    return _benchmark_session(config) is not None


def storage_folder(config: pytest.Config) -> Path | None:
    """Return the folder of this session's entries, or None if pytest-benchmark's storage is not a folder."""
    session = _benchmark_session(config)
    return getattr(_store_results(config, session).storage, "path", None) if session else None


def compare_later(config: pytest.Config) -> None:
    """Keep ``--benchmark-compare`` from looking for runs before it is known where this session's are stored.

    That depends on whether it has experiments, and pytest-benchmark would say that there is nothing to compare with.
    """
    option = config.option
    if getattr(option, "benchmark_compare", None) and not is_storage_named(config):
        config.stash[_DEFERRED_COMPARISON], option.benchmark_compare = option.benchmark_compare, None


def compare_now(config: pytest.Config) -> None:
    """Load the runs of ``--benchmark-compare`` from the storage of this session, if that was deferred."""
    session, comparison = _benchmark_session(config), config.stash.get(_DEFERRED_COMPARISON, None)
    if session is not None and comparison is not None:
        del config.stash[_DEFERRED_COMPARISON]
        session.compare = comparison
        session.handle_loading()


def _store_results(config: pytest.Config, session: Any) -> Any:
    """Store a session that has experiments in the project's results, unless the user named a storage.

    A session of stock benchmarks alone stays where pytest-benchmark stores it. Return pytest-benchmark's session.
    """
    if not config.stash.get(_STORES_RESULTS, False):
        config.stash[_STORES_RESULTS] = True
        if not is_storage_named(config):
            from pytest_benchmark.utils import load_storage

            folder = f"file://{session_results_folder(config)}"
            machine = session.machine_id
            session.storage = load_storage(folder, logger=session.logger, default_machine_id=machine, netrc=None)
            # Its table of up to 250 columns repeats ours, so it is printed only on request.
            is_wanted = (
                config.stash.get(_DEFERRED_COMPARISON, None) or session.verbose or config.option.benchmark_columns
            )
            session.quiet = session.quiet or not is_wanted
        compare_now(config)
    return session


def apply_switches(config: pytest.Config, experiments: Sequence[pytest.Item]) -> None:
    """Let ``--benchmark-only`` run experiments, and ``--benchmark-skip`` skip them, as they do with benchmarks."""
    if getattr(config.option, "benchmark_skip", False):
        for item in experiments:
            item.add_marker(pytest.mark.skip(reason="Skipping benchmark (--benchmark-skip active)."))
    if getattr(config.option, "benchmark_only", False):
        for item in experiments:
            item.own_markers[:] = [mark for mark in item.own_markers if mark.kwargs.get("reason") != _NOT_A_BENCHMARK]


def add_entry(
    config: pytest.Config, *, name: str, fullname: str, params: Mapping[str, Any], extra_info: dict[str, Any],
    data_s: Sequence[float], group: str | None = None, iterations: int = 1,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> None:  # fmt: skip
    """Add one experiment as an entry. ``data_s`` are the durations of its rounds in seconds, at least one.

    What is added to ``extra_info`` later, such as how the test ended, is stored as well.

    Raises ResultsError without a round: such an entry would break pytest-benchmark's table.
    """
    if not data_s:
        raise ResultsError(f"{fullname}: an entry needs at least one round")
    session = _benchmark_session(config)
    if session is None:
        return
    session.benchmarks.append(_make_entry(name, fullname, params, extra_info, data_s, group, iterations, options))


def write_entry(
    path: Path, *, name: str, fullname: str, params: Mapping[str, Any], extra_info: dict[str, Any],
    data_s: Sequence[float],
) -> None:  # fmt: skip
    """Write a pytest-benchmark file with one entry, outside any session. Raises OSError."""
    import pytest_benchmark

    entry = _make_entry(name, fullname, params, extra_info, data_s).as_dict(include_data=False)
    document = {
        "machine_info": {},
        "commit_info": {},
        "benchmarks": [entry],
        "datetime": datetime.datetime.now(datetime.UTC).isoformat(),
        "version": pytest_benchmark.__version__,
    }
    text = json.dumps(document, indent=1)
    opening.write_whole(path, lambda file: file.write(text.encode()))


def _make_entry(
    name: str, fullname: str, params: Mapping[str, Any], extra_info: dict[str, Any], data_s: Sequence[float],
    group: str | None = None, iterations: int = 1, options: Mapping[str, Any] = MappingProxyType({}),
) -> Any:  # fmt: skip
    """Return an entry in the form that pytest-benchmark's session holds.

    The provider is one of its parameters, so that runs can be grouped by ``param:provider``.
    """
    params = {**({"provider": extra_info["provider"]} if "provider" in extra_info else {}), **params}
    fixture = SimpleNamespace(
        name=name, fullname=fullname, group=group, param=name.partition("[")[2].removesuffix("]") or None,
        params=dict(params) or None, extra_info=extra_info, cprofile_stats=None, has_error=False,
    )  # fmt: skip
    entry = _entry_class()(fixture, iterations=iterations, options=dict(options))
    entry.stats = _stats_class()(data_s)
    return entry


@cache
def _entry_class() -> type[Any]:
    """Return an entry class whose rounds are an array, of 8 bytes each instead of 32, and a list only in JSON."""
    from pytest_benchmark.stats import Metadata

    class Entry(Metadata):
        def as_dict(self, *args: Any, **options: Any) -> dict[str, Any]:
            fields: dict[str, Any] = super().as_dict(*args, **options)  # type: ignore[no-untyped-call]  # it has no types
            stats = fields.get("stats", fields)
            if "data" in stats:
                stats["data"] = list(stats["data"])
            return fields

    return Entry


@cache
def _stats_class() -> type[Any]:
    """Return a class with pytest-benchmark's values, computed by its formulas from arrays of floats.

    pytest-benchmark computes from lists, of 100 bytes per round, and from fractions, which take 3 us per round.
    """
    from pytest_benchmark.stats import Stats

    class ArrayStats(Stats):
        def __init__(self, data_s: Sequence[float]) -> None:
            data, ordered = array("d", data_s), array("d", sorted(data_s))
            self.data, self.sorted_data = data, ordered  # type: ignore[assignment]  # it expects lists
            self.median, self.q1, self.q3 = _quartiles(ordered)
            # Within the range also if the sum is rounded: equal values must not lie outside of their own mean.
            self.mean = min(max(fsum(data) / len(data), ordered[0]), ordered[-1])
            self.stddev = _standard_deviation(data, self.mean)

        @property
        def stddev_outliers(self) -> int:
            return self._count_outside(self.mean - self.stddev, self.mean + self.stddev)

        @property
        def iqr_outliers(self) -> int:
            fence = 1.5 * (self.q3 - self.q1)
            return self._count_outside(self.q1 - fence, self.q3 + fence)

        def _count_outside(self, low: float, high: float) -> int:
            return bisect_left(self.sorted_data, low) + len(self.data) - bisect_right(self.sorted_data, high)

    return ArrayStats


def _standard_deviation(data: array[float], mean: float) -> float:
    """Return the standard deviation of a sample. The sum of the deviations corrects for a mean that is rounded."""
    if len(data) == 1:
        return 0.0
    deviations = array("d", map(sub, data, repeat(mean)))
    squares = fsum(map(mul, deviations, deviations)) - fsum(deviations) ** 2 / len(data)
    return sqrt(max(0.0, squares) / (len(data) - 1))


def _quartiles(ordered: array[float]) -> tuple[float, float, float]:
    """Return the median, the lower and the upper quartile of ascending values."""
    rounds, n = len(ordered), len(ordered) // 4

    def middle(first: int, last: int) -> float:
        """Return the median of a slice of the sorted data."""
        half, odd = divmod(last - first, 2)
        return ordered[first + half] if odd else (ordered[first + half - 1] + ordered[first + half]) / 2

    if rounds == 1:
        q1 = q3 = ordered[0]
    elif rounds % 2 == 0:
        q1, q3 = middle(0, rounds // 2), middle(rounds // 2, rounds)
    elif rounds % 4 == 1:
        q1 = 0.25 * ordered[n - 1] + 0.75 * ordered[n]
        q3 = 0.75 * ordered[3 * n] + 0.25 * ordered[3 * n + 1]
    else:
        q1 = 0.75 * ordered[n] + 0.25 * ordered[n + 1]
        q3 = 0.25 * ordered[3 * n + 1] + 0.75 * ordered[3 * n + 2]
    return middle(0, rounds), q1, q3


def save_entries(config: pytest.Config, default_name: str | None) -> bool:
    """Save now what pytest-benchmark was asked to save, so that a full disk is one line and not a crash.

    ``default_name`` is the name to save under if the user gave none. If both are missing, nothing is saved. Return
    whether entries are now in the storage. Raises ResultsError.
    """
    session = _benchmark_session(config)
    if session is None or not session.benchmarks:
        return False
    if any("schema" in entry.extra_info for entry in session.benchmarks if entry):  # an experiment's entry
        _store_results(config, session)
    if default_name is not None and not (session.save or session.autosave):
        session.save = default_name
    query, folder = getattr(session.storage, "query", list), getattr(session.storage, "path", None)
    is_stored = bool(session.save or session.autosave)
    # pytest-benchmark numbers a file by counting the others, so two sessions at the same time could share one file.
    with nullcontext() if folder is None else stored.lock_folder(folder):
        existing = set(query())
        try:
            session.handle_saving()
        except (OSError, TypeError, ValueError, RecursionError) as error:
            for new_path in set(query()) - existing:
                new_path.unlink()
            if not isinstance(error, OSError):  # a stock benchmark's extra_info may hold anything
                raise ResultsError(f"{session.storage}: cannot save the entries as JSON: {error}") from error
            target = error.filename or session.storage
            raise ResultsError(
                f"{target}: cannot save the entries: {error.strerror}; free some space, or choose another place"
            ) from error
        finally:
            session.save = session.autosave = session.json = None
    return is_stored


def stored_runs(config: pytest.Config) -> Runs:
    """Return the runs that gates compare with: those that ``--benchmark-compare`` names, otherwise all stored ones.

    If none is named, only the latest are read, up to a bound. Files that cannot be read are omitted and listed. Raises
    UsageError if a named one cannot be read, or does not exist.
    """
    session = _benchmark_session(config)
    if session is None:
        return Runs()
    _store_results(config, session)
    named = session.compare if isinstance(session.compare, str) else ""
    if not hasattr(session.storage, "path"):  # Elasticsearch
        loaded = list(session.storage.load(named) if named else session.storage.load())
        return Runs(named, [(str(path), _read_entries(run, "")) for path, run in loaded])
    try:
        paths = session.storage.query(named or "[0-9]")
        if not named:  # it sorts names as text, and gives all runs from the 10,000th on one number
            numbers = {path: number for path in paths if (number := stored.run_number(path.name)) is not None}
            paths = sorted(numbers, key=lambda path: (numbers[path], path.name))
    except (ValueError, OSError) as error:
        raise UsageError(f"--benchmark-compare={named}: {error}") from None
    if named and not paths:
        raise UsageError(
            f"--benchmark-compare={named}: there is no such run in {session.storage}; "
            f"cloudbench baseline list --storage {shlex.quote(str(session.storage.path))} shows those that are"
        )
    runs, dated_files, read_bytes = Runs(named), list[tuple[int, str, Mapping[str, Mapping[str, Any]]]](), 0
    for path in reversed(paths):
        if read_bytes > _READ_BYTES and not named:
            break
        try:
            document = stored.read_document(path)
            entries = _read_entries(document, str(path))
            dated_files.insert(0, (stored.epoch_ms(document.get("datetime")) or 0, path.name, entries))
            read_bytes += path.stat().st_size
        except ResultsError as error:
            if named:
                raise UsageError(f"--benchmark-compare={named}: {error}") from None
            runs.unreadable.insert(0, path.name)
    # Imported runs keep the numbers that they had elsewhere, which say nothing of when they were measured.
    runs.files = [(name, entries) for _, name, entries in sorted(dated_files, key=itemgetter(0))]
    return runs


def commit_info(config: pytest.Config) -> Mapping[str, Any]:
    """Return pytest-benchmark's information about the tested commit, which is empty if it is switched off."""
    if _benchmark_session(config) is None:
        return {}
    info: Mapping[str, Any] | None = config.hook.pytest_benchmark_generate_commit_info(config=config)
    return info or {}


def _read_entries(document: Any, source: str) -> dict[str, Mapping[str, Any]]:
    """Return ``extra_info`` of each entry of a stored run, by its full name. Raises ResultsError."""
    entries = document.get("benchmarks") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise ResultsError(f"{source}: is not a run stored by pytest-benchmark: it has no list of benchmarks")
    extra_infos = {}
    for entry in entries:
        name = entry.get("fullname") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not isinstance(entry.get("extra_info", {}), dict):
            raise ResultsError(f"{source}: is not a run stored by pytest-benchmark: an entry without a name")
        extra_infos[name] = entry.get("extra_info", {})
    return extra_infos


@contextmanager
def enabled_here(config: pytest.Config) -> Iterator[None]:
    """Switch the stock ``benchmark`` fixture on in this worker, while the other workers idle."""
    session = _benchmark_session(config)
    if session is None:
        yield
        return
    was_disabled, session.disabled = session.disabled, False
    try:
        yield
    finally:
        session.disabled = was_disabled


def take_entries(config: pytest.Config) -> list[dict[str, Any]]:
    """Take the entries that stock benchmarks made in this worker, as arguments for ``add_entry``.

    Their parameters and notes may be any objects, which cannot be sent. pytest-benchmark stores them as text.
    """
    session = _benchmark_session(config)
    if session is None:
        return []
    from pytest_benchmark.utils import safe_dumps

    entries = [
        {"name": entry.name, "fullname": entry.fullname, "group": entry.group,
         "params": json.loads(safe_dumps(entry.params or {})),
         "extra_info": json.loads(safe_dumps(entry.extra_info)), "iterations": entry.iterations,
         "data_s": list(entry.stats.data), "options": entry.as_dict(stats=False)["options"]}
        for entry in session.benchmarks if entry and not entry.has_error
    ]  # fmt: skip
    session.benchmarks.clear()
    return entries
