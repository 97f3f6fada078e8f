"""From records to statements: metrics, expectations, shapes, and which level to measure next.

What may live here: pure functions of numbers. No clock, no I/O.
"""

from __future__ import annotations
