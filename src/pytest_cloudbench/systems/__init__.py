"""Systems of the papers, as tools and as subjects."""

from __future__ import annotations

__all__: list[str] = []
