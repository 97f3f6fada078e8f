"""Sync clients under test: their adapters, the lab that runs one in its network, and verdicts on what it sent."""

from __future__ import annotations
