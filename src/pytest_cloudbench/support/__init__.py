"""The clock, opening files, redaction of secrets, optional libraries and signs of changed files, for every room."""

from __future__ import annotations
