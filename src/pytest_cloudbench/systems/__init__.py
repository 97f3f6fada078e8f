"""Experiments that need several parts: links, captures, clients, detectors.

What may live here: nothing but modules of such experiments.
"""

from __future__ import annotations

__all__: list[str] = []
