"""Arrival processes, recorded loads and the bytes of files, as pure functions of a seed."""

from __future__ import annotations
