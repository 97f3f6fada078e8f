"""The controller's half of a session: it serves agents, starts runs together and writes what was asked for."""

from __future__ import annotations
