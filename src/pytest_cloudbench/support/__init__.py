"""The clock, opening files, redaction of secrets, optional libraries and signs of changed files, for all packages."""

from __future__ import annotations
