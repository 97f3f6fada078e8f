"""The one place that leans on pytest-benchmark's private names.

What may live here: turning a merged result into an ordinary pytest-benchmark entry, and reading the
entries of compared runs. pytest-benchmark switches itself off under xdist (its workers write nothing),
but its controller saves, prints and compares whatever is in ``config._benchmarksession.benchmarks``.
The upper bound on the version is in pyproject.toml; ``tests/results/test_benchmarks.py`` fails loudly
when a name moves.
"""

from __future__ import annotations

import datetime
import json
import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from pytest_cloudbench.judge.baseline import Stored
from pytest_cloudbench.model import ResultsError, UsageError
from pytest_cloudbench.results import stored
from pytest_cloudbench.results.places import is_storage_named, results_of

_COMPARED: pytest.StashKey[Any] = pytest.StashKey()
"""What ``--benchmark-compare`` names, until it is known where the runs are."""
_STORES_RESULTS: pytest.StashKey[bool] = pytest.StashKey()
"""Whether pytest-benchmark stores this session in the results."""
_NUMBERED = "[0-9][0-9][0-9][0-9]_"
"""Files of runs, as pytest-benchmark names them; other files in its folder, such as published tables, are not runs."""

_READ_BYTES = 32 * 1024 * 1024
"""How much of the stored runs is read, latest first: what takes three seconds and fits a controller's memory."""


@dataclass(slots=True)
class Runs:
    """Runs that were stored.

    Attributes:
        named: the run that the user named, or nothing.
        files: each file's name, and its entries' ``extra_info`` by their full names; the latest last.
        unreadable: names of files that could not be read.
    """

    named: str = ""
    files: list[tuple[str, Mapping[str, Mapping[str, Any]]]] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)

    def of(self, fullname: str) -> list[Stored]:
        """The entries of one test."""
        return [Stored(name, entries[fullname]) for name, entries in self.files if fullname in entries]


def _session(config: pytest.Config) -> Any:
    """Returns pytest-benchmark's session object, or None if its plugin is switched off."""
    return getattr(config, "_benchmarksession", None)


def is_loaded(config: pytest.Config) -> bool:
    """Returns whether pytest-benchmark is loaded: without it nothing is stored."""
    return _session(config) is not None


def storage(config: pytest.Config) -> Path | None:
    """Return the folder where this session's entries are stored. None if pytest-benchmark's storage is no folder."""
    session = _session(config)
    return getattr(_store_results(config, session).storage, "path", None) if session else None


def compare_later(config: pytest.Config) -> None:
    """Keep ``--benchmark-compare`` from looking for runs before it is known where this session's are stored.

    That depends on whether it has experiments, and pytest-benchmark would say that there is nothing to compare with.
    """
    option = config.option
    if getattr(option, "benchmark_compare", None) and not is_storage_named(config):
        config.stash[_COMPARED], option.benchmark_compare = option.benchmark_compare, None


def compare_now(config: pytest.Config) -> None:
    """Load what ``--benchmark-compare`` names from the storage of this session, if that was put off."""
    session, compared = _session(config), config.stash.get(_COMPARED, None)
    if session is not None and compared is not None:
        del config.stash[_COMPARED]
        session.compare = compared
        session.handle_loading()


def _store_results(config: pytest.Config, session: Any) -> Any:
    """Store a session that has experiments in the project's results, unless the user named a storage.

    A session of stock benchmarks alone stays where pytest-benchmark stores it. Returns pytest-benchmark's session.
    """
    if not config.stash.get(_STORES_RESULTS, False):
        config.stash[_STORES_RESULTS] = True
        if not is_storage_named(config):
            from pytest_benchmark.utils import load_storage

            folder = f"file://{results_of(config)}"
            machine = session.machine_id
            session.storage = load_storage(folder, logger=session.logger, default_machine_id=machine, netrc=None)
            # Its table of up to 250 columns repeats ours. It is printed for who asks about it.
            is_wanted = config.stash.get(_COMPARED, None) or session.verbose or config.option.benchmark_columns
            session.quiet = session.quiet or not is_wanted
        compare_now(config)
    return session


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
    session = _session(config)
    if session is None:
        return
    session.benchmarks.append(_made(name, fullname, params, extra_info, data_s, group, iterations, options))


def write_entry(
    path: Path, *, name: str, fullname: str, params: Mapping[str, Any], extra_info: dict[str, Any],
    data_s: Sequence[float],
) -> None:  # fmt: skip
    """Write a pytest-benchmark file with one entry, outside any session. Raises OSError."""
    import pytest_benchmark

    entry = _made(name, fullname, params, extra_info, data_s).as_dict(include_data=False)
    document = {
        "machine_info": {},
        "commit_info": {},
        "benchmarks": [entry],
        "datetime": datetime.datetime.now(datetime.UTC).isoformat(),
        "version": pytest_benchmark.__version__,
    }
    partial = path.with_suffix(".json-partial")
    partial.write_text(json.dumps(document, indent=1), encoding="utf-8")
    os.replace(partial, path)


def _made(
    name: str, fullname: str, params: Mapping[str, Any], extra_info: dict[str, Any], data_s: Sequence[float],
    group: str | None = None, iterations: int = 1, options: Mapping[str, Any] = MappingProxyType({}),
) -> Any:  # fmt: skip
    """Returns an entry in the form that pytest-benchmark's session holds."""
    fixture = SimpleNamespace(
        name=name, fullname=fullname, group=group, param=name.partition("[")[2].removesuffix("]") or None,
        params=dict(params) or None, extra_info=extra_info, cprofile_stats=None, has_error=False,
    )  # fmt: skip
    entry = _entry_class()(fixture, iterations=iterations, options=dict(options))
    entry.stats.data = array("d", data_s)
    vars(entry.stats).update(_quantiles(entry.stats.data))
    return entry


@cache
def _entry_class() -> type[Any]:
    """Returns an entry class whose rounds are an array: 8 bytes each instead of 32, and a list only in JSON."""
    from pytest_benchmark.stats import Metadata

    class Entry(Metadata):
        def as_dict(self, *args: Any, **options: Any) -> dict[str, Any]:
            found: dict[str, Any] = super().as_dict(*args, **options)  # type: ignore[no-untyped-call]  # it has no types
            stats = found.get("stats", found)
            if "data" in stats:
                stats["data"] = list(stats["data"])
            return found

    return Entry


def _quantiles(data: array[float]) -> dict[str, Any]:
    """Compute, by the same formulas, what pytest-benchmark would compute from sorted lists (100 bytes per round)."""
    ordered = array("d", sorted(data))
    rounds, n = len(ordered), len(ordered) // 4

    def middle(first: int, last: int) -> float:
        """Returns the median of a slice of the sorted data."""
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
    return {"sorted_data": ordered, "median": middle(0, rounds), "q1": q1, "q3": q3}


def save(config: pytest.Config, default_name: str | None) -> bool:
    """Save now what pytest-benchmark was asked to save, so that a full disk is one line and not a crash.

    ``default_name`` is the name to save under if the user gave none; if it is None, nothing is saved then.
    Returns whether entries are now in the storage.

    Raises ResultsError.
    """
    session = _session(config)
    if session is None or not session.benchmarks:
        return False
    if any("schema" in entry.extra_info for entry in session.benchmarks if entry):  # an experiment's entry
        _store_results(config, session)
    if default_name is not None and not (session.save or session.autosave):
        session.save = default_name
    query, folder = getattr(session.storage, "query", list), getattr(session.storage, "path", None)
    is_stored = bool(session.save or session.autosave)
    # pytest-benchmark counts the files that are there, and two sessions of one name and second would be one file
    with nullcontext() if folder is None else stored.alone(folder):
        former = set(query())
        try:
            session.handle_saving()
        except OSError as error:
            for torn in set(query()) - former:
                torn.unlink()
            where = error.filename or session.storage
            raise ResultsError(
                f"{where}: cannot save the entries: {error.strerror}; free some space, or choose another place"
            ) from error
        finally:
            session.save = session.autosave = session.json = None
    return is_stored


def stored_runs(config: pytest.Config) -> Runs:
    """Returns the runs that gates compare with: those that ``--benchmark-compare`` names, otherwise all stored ones.

    If none is named, only the latest are read, up to a bound. Files that cannot be read are omitted and
    counted. Raises UsageError if one of them is named, or none is found.
    """
    session = _session(config)
    if session is None:
        return Runs()
    _store_results(config, session)
    named = session.compare if isinstance(session.compare, str) else ""
    if not hasattr(session.storage, "path"):  # Elasticsearch
        loaded = list(session.storage.load(named) if named else session.storage.load())
        return Runs(named, [(str(path), _entries(run, "")) for path, run in loaded])
    try:
        paths = session.storage.query(named or _NUMBERED)
    except (ValueError, OSError) as error:
        raise UsageError(f"--benchmark-compare={named}: {error}") from None
    if named and not paths:
        raise UsageError(
            f"--benchmark-compare={named}: there is no such run in {session.storage}; "
            "pytest-benchmark list shows those that are"
        )
    runs, read_bytes = Runs(named), 0
    for path in reversed(paths):
        if read_bytes > _READ_BYTES and not named:
            break
        try:
            runs.files.insert(0, (path.name, _entries(stored.read_document(path), str(path))))
            read_bytes += path.stat().st_size
        except ResultsError as error:
            if named:
                raise UsageError(f"--benchmark-compare={named}: {error}") from None
            runs.unreadable.insert(0, path.name)
    return runs


def commit_info(config: pytest.Config) -> Mapping[str, Any]:
    """Returns what pytest-benchmark says about the commit that is being tested; nothing if it is switched off."""
    if _session(config) is None:
        return {}
    found: Mapping[str, Any] | None = config.hook.pytest_benchmark_generate_commit_info(config=config)
    return found or {}


def _entries(document: Any, place: str) -> dict[str, Mapping[str, Any]]:
    """``extra_info`` of each entry of a stored run, by its full name. Raises ResultsError."""
    entries = document.get("benchmarks") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise ResultsError(f"{place}: is not a run stored by pytest-benchmark: it has no list of benchmarks")
    found = {}
    for entry in entries:
        name = entry.get("fullname") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not isinstance(entry.get("extra_info", {}), dict):
            raise ResultsError(f"{place}: is not a run stored by pytest-benchmark: an entry without a name")
        found[name] = entry.get("extra_info", {})
    return found


@contextmanager
def enabled_here(config: pytest.Config) -> Iterator[None]:
    """Switch the stock ``benchmark`` fixture on in this worker, while the other workers idle."""
    session = _session(config)
    if session is None:
        yield
        return
    former, session.disabled = session.disabled, False
    try:
        yield
    finally:
        session.disabled = former


def take_entries(config: pytest.Config) -> list[dict[str, Any]]:
    """Take the entries that stock benchmarks made in this worker, as arguments for ``add_entry``."""
    session = _session(config)
    if session is None:
        return []
    taken = [
        {"name": entry.name, "fullname": entry.fullname, "group": entry.group, "params": entry.params or {},
         "extra_info": entry.extra_info, "iterations": entry.iterations, "data_s": list(entry.stats.data),
         "options": entry.as_dict(stats=False)["options"]}
        for entry in session.benchmarks if entry and not entry.has_error
    ]  # fmt: skip
    session.benchmarks.clear()
    return taken
