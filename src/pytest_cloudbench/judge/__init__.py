"""Statements from records: metrics, expectations, shapes, gates, and which level to measure next.

All modules here are pure functions of numbers, without clock and I/O.
"""

from __future__ import annotations
