"""Result files: operation logs, Parquet tables and pytest-benchmark entries."""

from __future__ import annotations
