"""What gates make of a test, whatever the test makes of its results.

What may live here: the gates that an item's results have broken, from when a result is known to the item's failure.
Imported by fifty agents: keep it light.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

import pytest

__all__ = ["ExpectationBroken", "ExpectationUnknown", "failing_gates", "gated", "unmet_gates"]

_UNMET = pytest.StashKey[list[str]]()


class ExpectationBroken(AssertionError):
    """An expectation or a gate is not met; the message is one line per claim."""


class ExpectationUnknown(Exception):
    """An expectation cannot be judged because the numbers may be wrong."""


def failing_gates(judgements: Sequence[tuple[str, str]]) -> list[str]:
    """Lines of the gates that fail a test: those that are broken, and those that cannot be judged."""
    return [line for status, line in judgements if status in {"broken", "unknown"} and line.startswith("gate ")]


def unmet_gates(item: pytest.Item) -> list[str]:
    """Where an item's results put the lines of gates that are to fail it."""
    return item.stash.setdefault(_UNMET, [])


@contextmanager
def gated(item: pytest.Item) -> Generator[None]:
    """Around a phase of an item: it fails for the gates that were broken so far, if it does not say so itself.

    A broken gate wins over a skip, an inconclusive expectation and an error that was caught. It is added to a failure
    with a reason of its own. An item that is expected to fail (xfail) may fail for it.
    """
    try:
        yield
    except (ExpectationBroken, ExpectationUnknown, pytest.skip.Exception) as error:
        lines = _taken(item, said="" if isinstance(error, pytest.skip.Exception) else str(error))
        if not lines:
            raise
        told = [] if isinstance(error, pytest.skip.Exception) else [str(error)]
        raise ExpectationBroken("\n".join([*told, *lines])) from None
    except (Exception, pytest.fail.Exception) as error:
        for line in _taken(item):
            error.add_note(line)
        raise
    if lines := _taken(item):
        raise ExpectationBroken("\n".join(lines))


def _taken(item: pytest.Item, said: str = "") -> list[str]:
    """Lines that were not said yet; from now on they are."""
    unmet = unmet_gates(item)
    lines = [line for line in dict.fromkeys(unmet) if line.partition("gate ")[2] not in said]
    unmet.clear()
    return lines
