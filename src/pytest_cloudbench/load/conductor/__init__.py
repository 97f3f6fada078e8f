"""The controller's half of a session, which serves agents, starts runs together and writes the outputs."""

from __future__ import annotations
