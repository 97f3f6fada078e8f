"""A second client beside the first: when a file can be read, and when all readers agree."""

from __future__ import annotations
