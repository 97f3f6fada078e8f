"""The fleet: pytest-xdist as a load engine, in which one experiment runs on all agents at the same time."""

from __future__ import annotations

__all__: list[str] = []
