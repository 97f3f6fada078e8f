"""What every room may use: the clock, opening files, redaction of secrets, optional libraries, changed files."""

from __future__ import annotations
