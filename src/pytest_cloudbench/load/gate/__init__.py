"""The regression gate of one session: its settings, its baselines, its rulings and their texts."""

from __future__ import annotations
