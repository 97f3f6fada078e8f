"""Requests and answers in a file, recorded without secrets and replayed."""

from __future__ import annotations
