"""Parsers of the configuration files that describe experiments: text into frozen values, without I/O."""

from __future__ import annotations
