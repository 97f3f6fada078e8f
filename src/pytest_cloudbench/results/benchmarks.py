"""The one place that leans on pytest-benchmark's private names.

What may live here: turning a merged result into an ordinary pytest-benchmark entry, and reading the
entries of compared runs. pytest-benchmark switches itself off under xdist (its workers write nothing),
but its controller saves, prints and compares whatever is in ``config._benchmarksession.benchmarks``.
The upper bound on the version is in pyproject.toml; ``tests/results/test_benchmarks.py`` fails loudly
when a name moves.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from pytest_cloudbench.model import ResultsError

__all__ = ["Baseline", "add_entry", "baseline", "enabled_here", "save", "storage", "take_entries"]

Baseline = Mapping[str, Mapping[str, Any]]
"""Full name of an entry to its extra_info."""


def _session(config: pytest.Config) -> Any:
    """pytest-benchmark's session object, or None where its plugin is switched off."""
    return getattr(config, "_benchmarksession", None)


def storage(config: pytest.Config) -> Path | None:
    """The folder where pytest-benchmark keeps its files, where it is a folder."""
    session = _session(config)
    return getattr(session.storage, "path", None) if session else None


def add_entry(
    config: pytest.Config, *, name: str, fullname: str, params: Mapping[str, Any], extra_info: Mapping[str, Any],
    data_s: Sequence[float], group: str | None = None, iterations: int = 1,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> None:  # fmt: skip
    """Add one experiment as an entry. ``data_s`` are the durations of its rounds in seconds, at least one.

    Raises ResultsError without a round: such an entry would break pytest-benchmark's table.
    """
    if not data_s:
        raise ResultsError(f"{fullname}: an entry needs at least one round")
    session = _session(config)
    if session is None:
        return
    fixture = SimpleNamespace(
        name=name, fullname=fullname, group=group, param=name.partition("[")[2].removesuffix("]") or None,
        params=dict(params) or None, extra_info=dict(extra_info), cprofile_stats=None, has_error=False,
    )  # fmt: skip
    entry = _entry_class()(fixture, iterations=iterations, options=dict(options))
    entry.stats.data = array("d", data_s)
    vars(entry.stats).update(_quantiles(entry.stats.data))
    session.benchmarks.append(entry)


@cache
def _entry_class() -> type[Any]:
    """pytest-benchmark's entry, whose rounds are an array: 8 bytes each instead of 32, and a list only in JSON."""
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
    """What pytest-benchmark would find in sorted lists that stay (100 bytes per round), by the same formulas."""
    ordered = array("d", sorted(data))
    rounds, n = len(ordered), len(ordered) // 4

    def middle(first: int, last: int) -> float:
        """The median of a part of what is ordered."""
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


def save(config: pytest.Config, default_name: str | None) -> None:
    """Save now what pytest-benchmark was asked to save, so that a full disk is one line and not a crash.

    ``default_name`` is the name to save under where the user asked for none; with None nothing is saved then.

    Raises ResultsError.
    """
    session = _session(config)
    if session is None or not session.benchmarks:
        return
    if default_name is not None and not (session.save or session.autosave):
        session.save = default_name
    query = getattr(session.storage, "query", list)
    former = set(query())
    try:
        session.handle_saving()
    except OSError as error:
        for torn in set(query()) - former:
            torn.unlink()
        where = error.filename or session.storage
        raise ResultsError(f"{where}: cannot save the entries: {error.strerror}; free some space") from error
    finally:
        session.save = session.autosave = session.json = None


def baseline(config: pytest.Config) -> Baseline:
    """What gates compare with: the run that ``--benchmark-compare`` names, else each entry's latest stored one."""
    session = _session(config)
    if session is None:
        return {}
    wanted = session.compare
    files = list(session.storage.load(wanted) if isinstance(wanted, str) else session.storage.load())
    if wanted:
        files = files[-1:]
    return {entry["fullname"]: entry.get("extra_info", {}) for _, run in files for entry in run["benchmarks"]}


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
