"""Which figures a kind of experiment has besides the two that all have.

What may live here: a row for each kind: its suite's folder, the beginning of its test's name, and what draws it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pytest_cloudbench.report.figures import Figure
from pytest_cloudbench.report.gathering import Measurement

__all__ = ["of"]

_Drawer = Callable[[Sequence[Measurement]], list[Figure]]

_FAMILIES: tuple[tuple[str, str, _Drawer], ...] = ()


def of(members: Sequence[Measurement]) -> list[Figure]:
    """Returns the figures of one test function's experiments."""
    folder, test = members[0].kind
    drawers = [draw for suite, start, draw in _FAMILIES if folder == suite and test.startswith(start)]
    return [drawn for draw in drawers for drawn in draw(members)]
