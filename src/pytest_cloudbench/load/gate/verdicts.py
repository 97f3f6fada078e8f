"""The effect of gates on a test's outcome, whatever the test does with its results, and its reports' properties.

What may live here: the collection of gates that an item's results have broken, the failure of the item because of
them, and results as properties of the item's reports. Imported by fifty agents: keep it light.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from typing import Any

import pytest

from pytest_cloudbench.judge.expect import worst
from pytest_cloudbench.judge.metrics import METRICS
from pytest_cloudbench.model import CloudbenchError

_UNMET = pytest.StashKey[list[str]]()


class ExpectationBroken(AssertionError):
    """An expectation or a gate is not met. The message has one line per claim."""


class ExpectationUnknown(Exception):
    """An expectation cannot be judged because the numbers may be wrong."""


def failing_gates(judgements: Sequence[tuple[str, str]]) -> list[str]:
    """Return the lines of gates that fail a test: broken ones, and those that cannot be judged."""
    return [line for status, line in judgements if status in {"broken", "unknown"} and line.startswith("gate ")]


def unmet_gates(item: pytest.Item) -> list[str]:
    """Return the list in which an item's results collect the lines of gates that must fail it."""
    return item.stash.setdefault(_UNMET, [])


_REPORTED = ("provider", "emulated", "agents", "ops", "lost", "throttled", "failed")


def entry_properties(
    info: Mapping[str, Any], judgements: Sequence[tuple[str, str]], label: str
) -> list[tuple[str, str | float | bool]]:
    """Return an entry's properties for JUnit and other reports: subject, metrics, doubts, and worst judgement.

    A number that is unknown or not finite becomes the word ``unknown``.
    """
    values = {name: info[name] for name in (*_REPORTED, *METRICS) if name in info}
    if hosts := info.get("hosts"):
        values["hosts"] = ", ".join(host["name"] for host in hosts if host["agents"])
    values |= {"doubts": "; ".join(info["doubts"]) or "none", "verdict": worst(status for status, _ in judgements)}
    prefix = f"cloudbench.{label}." if label else "cloudbench."
    return [(prefix + name, _report_value(value)) for name, value in values.items()]


def _report_value(value: Any) -> str | float | bool:
    if value is None or (isinstance(value, float) and not isfinite(value)):
        return "unknown"
    return value if isinstance(value, (str, int, float)) else str(value)


@contextmanager
def fail_for_gates(item: pytest.Item) -> Generator[None]:
    """Wrap a phase of an item: fail it for the gates broken so far, unless the test reports them itself.

    A broken gate wins over a skip, an inconclusive expectation and an error that was caught. A failure for another
    reason gets the gate's line as a note. An item that is expected to fail (xfail) may fail for a gate.
    """
    try:
        yield
    except (ExpectationBroken, ExpectationUnknown, pytest.skip.Exception) as error:
        lines = _take_lines(item, reported="" if isinstance(error, pytest.skip.Exception) else str(error))
        if not lines:
            raise
        message_lines = [] if isinstance(error, pytest.skip.Exception) else [str(error)]
        raise ExpectationBroken("\n".join([*message_lines, *lines])) from None
    except (Exception, pytest.fail.Exception) as error:
        for line in _take_lines(item):
            error.add_note(line)
        raise
    if lines := _take_lines(item):
        raise ExpectationBroken("\n".join(lines))


def _take_lines(item: pytest.Item, reported: str = "") -> list[str]:
    """Return the lines that are not in ``reported``, and forget all lines."""
    unmet = unmet_gates(item)
    lines = [line for line in dict.fromkeys(unmet) if line.partition("gate ")[2] not in reported]
    unmet.clear()
    return lines


def hide_traceback(report: pytest.TestReport, error: BaseException) -> None:
    """Show errors meant for people as their message alone, without a traceback."""
    if isinstance(error, ExpectationUnknown):
        path, line, _ = report.location
        report.outcome = "skipped"
        report.longrepr = (path, (line or 0) + 1, f"inconclusive: {error}")
    elif isinstance(error, (CloudbenchError, ExpectationBroken)):
        report.longrepr = "\n".join([str(error), *getattr(error, "__notes__", ())])
