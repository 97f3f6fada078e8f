"""The regression gate of one session: its settings, the stored runs that count, its rulings and their words."""

from __future__ import annotations
