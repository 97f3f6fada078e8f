"""Experiments on a sync client: a client in its network under a capture, and what it sent."""

from __future__ import annotations
