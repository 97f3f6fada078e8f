"""Requests and answers in a file: recorded, replayed, and free of secrets."""

from __future__ import annotations
