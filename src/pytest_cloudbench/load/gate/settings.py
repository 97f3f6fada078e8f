"""The user's settings of the regression gate: ``[tool.cloudbench.gate]`` in pyproject.toml, and a test's mark.

What may live here: the parsing of both. Imported by fifty agents: keep it light.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cloudbench.model import ConfigError, UsageError, did_you_mean
from pytest_cloudbench.support import opening

if TYPE_CHECKING:
    from pytest_cloudbench.judge.watched import Margins
    from pytest_cloudbench.results.index import Index

_MARK, _FILE = "cloudbench_gate", "pyproject.toml"


@dataclass(frozen=True, slots=True)
class RepeatBudget:
    """The limit on the time for measuring suspects again: a share of the session's own time, or seconds."""

    share: float | None = 0.5
    limit_s: float = 0.0

    def seconds(self, session_s: float) -> float:
        """Return the limit in seconds for a session of this length."""
        return self.limit_s if self.share is None else self.share * session_s


@dataclass(frozen=True, slots=True)
class GateSettings:
    """The gate's settings.

    Attributes:
        margins: see ``watched.Margins``.
        runs: the most former runs in the baseline.
        apart_s: seconds between the first run of a suspect and the first repetition.
        branch: the default branch's name, empty to determine it.
        strict: whether an inconclusive test fails.
        budget: the limit on the time for measuring suspects again. Unless it is 0, the most suspicious one is measured
            again even if that takes longer.
        unused: names of margins that are not used, because neither a loaded suite nor a stored run has such a metric.
    """

    margins: Mapping[str, float | None] = field(default_factory=dict)
    runs: int = 20
    apart_s: float = 60.0
    branch: str = ""
    strict: bool = False
    budget: RepeatBudget = RepeatBudget()
    unused: tuple[str, ...] = ()

    def describe_unused(self) -> list[str]:
        """Return a line for each margin that is not used."""
        from pytest_cloudbench.judge.watched import hint_at_metric

        return [
            f"tool.cloudbench.gate: {name} is not used: no loaded suite and no stored run has such a metric"
            f"{hint_at_metric(name)}"
            for name in self.unused
        ]


def parse_budget(text: object, where: str) -> RepeatBudget:
    """Parse a budget: ``"50%"`` of the session's time, or seconds such as ``90`` or ``"90"``. Raises UsageError."""
    try:
        is_share = isinstance(text, str) and text.strip().endswith("%")
        number = float(text.strip().removesuffix("%") if isinstance(text, str) else text)  # type: ignore[arg-type]  # what float refuses is answered below
    except (TypeError, ValueError):
        number = -1.0
    if isinstance(text, bool) or not 0 <= number < inf:
        raise UsageError(f'{where}: expected a share of the session such as "50%", or seconds, found {text!r}')
    return RepeatBudget(number / 100) if is_share else RepeatBudget(None, number)


def read_settings(
    root: Path, strict: bool, budget: str | None = None, tests: Iterable[Path] | None = None
) -> GateSettings:
    """Read ``[tool.cloudbench.gate]`` of the project's pyproject.toml. Raises ConfigError and UsageError.

    Whoever reads stored runs opens their index first, because they declare the metrics of suites that are not loaded
    here, and margins may name these.

    Args:
        root: the project's folder.
        strict: whether the user wants inconclusive tests to fail.
        budget: takes precedence over the file's.
        tests: files and folders of the tests of this session, whose suites are imported if a margin is named nearly
            like a metric. If none declares it, it is refused. None where no test runs: it is not used.
    """
    from pytest_cloudbench.judge.watched import find_unknown, hint_at_metric, parse_margins

    path = root / _FILE
    try:
        own_table = _read_own_table(root)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(str(path), "", f"cannot be read: {opening.explain_error(error)}") from error
    table = own_table.get("gate", {})
    if not isinstance(table, dict):
        raise ConfigError(str(path), "tool.cloudbench.gate", "expected a table")
    if others := [key for key in own_table if key != "gate"]:
        expected = f"no such setting; expected [tool.cloudbench.gate]{did_you_mean(others[0], ['gate'])}"
        raise ConfigError(str(path), f"tool.cloudbench.{others[0]}", expected)
    remaining = dict(table)
    runs, apart_s = remaining.pop("runs", 20), remaining.pop("apart_s", 60.0)
    branch, is_strict = remaining.pop("branch", ""), remaining.pop("strict", False)
    repeat_budget = parse_budget(remaining.pop("budget", "50%"), f"{path}: tool.cloudbench.gate.budget")
    if budget is not None:
        repeat_budget = parse_budget(budget, "cloudbench_gate_budget")
    if not isinstance(runs, int) or isinstance(runs, bool) or not 10 <= runs <= 1000:
        raise ConfigError(str(path), "tool.cloudbench.gate.runs", f"expected 10 to 1000, found {runs!r}")
    if not isinstance(apart_s, (int, float)) or isinstance(apart_s, bool) or not 0 <= apart_s <= 86_400:
        raise ConfigError(str(path), "tool.cloudbench.gate.apart_s", f"expected seconds, 0 or more, found {apart_s!r}")
    if not isinstance(branch, str) or not isinstance(is_strict, bool):
        raise ConfigError(str(path), "tool.cloudbench.gate", "expected a text as branch, and true or false as strict")
    unused = find_unknown(remaining)
    if tests is not None and any(map(hint_at_metric, unused)):
        from pytest_cloudbench.results.installed import learn_below

        learn_below(tests)
        unused = tuple(name for name in find_unknown(remaining) if not hint_at_metric(name))
    margins = parse_margins(
        {name: value for name, value in remaining.items() if name not in unused}, f"{path}: tool.cloudbench.gate"
    )
    return GateSettings(margins, runs, float(apart_s), branch, strict or is_strict, repeat_budget, unused)


def open_with_margins(storage: Path, root: Path) -> tuple[Index, Margins]:
    """Return the index of a storage, and the margins of a project. Raises ConfigError, UsageError and ResultsError."""
    from pytest_cloudbench.results.index import Index

    index = Index.open(storage)
    return index, read_settings(root, strict=False).margins


def _read_own_table(folder: Path) -> Mapping[str, Any]:
    """Return ``[tool.cloudbench]`` of a folder's pyproject.toml, empty without it. Raises OSError, ValueError."""
    import tomllib

    path = folder / _FILE
    table: Any = tomllib.loads(path.read_text("utf-8")) if path.is_file() else {}
    for name in ("tool", "cloudbench"):
        table = table.get(name, {}) if isinstance(table, dict) else {}
    return table if isinstance(table, dict) else {}


def find_unused_settings(root: Path, folders: Iterable[Path]) -> list[Path]:
    """Return the files whose settings do not count because pytest's root folder is another one.

    These files lie between the root folder and one of ``folders``. If the root folder has no settings, the nearest
    file with settings in a folder around it is one of them, too.
    """
    paths = {folder: None for start in folders for folder in (start, *start.parents) if root in folder.parents}
    unused = [folder / _FILE for folder in sorted(paths) if _has_table(folder)]
    if not _has_table(root):
        unused += [folder / _FILE for folder in root.parents if _has_table(folder)][:1]
    return unused


def _has_table(folder: Path) -> bool:
    try:
        return bool(_read_own_table(folder).get("gate"))
    except (OSError, ValueError, RecursionError):  # this file is not used, so its error does not matter
        return False


def marked_margins(item: pytest.Item) -> dict[str, Any]:
    """Return the margins of a test's marks: ``@pytest.mark.cloudbench_gate(p50=0.05, p99=None)``.

    The nearest mark wins (``watched.merge_margins``). Raises UsageError.
    """
    marks = list(item.iter_markers(_MARK))
    if not marks:
        return {}
    from pytest_cloudbench.judge.watched import merge_margins, parse_margins

    margins: dict[str, Any] = {}
    for mark in reversed(marks):
        if mark.args:
            raise UsageError(f"{item.nodeid}: {_MARK}{mark.args!r}: expected margins by name, such as p50=0.05")
        margins = merge_margins(margins, mark.kwargs)
    return parse_margins(margins, f"{item.nodeid}: {_MARK}")
