"""Measurements with a second client: when a file can be read, and when all reads agree."""

from __future__ import annotations
