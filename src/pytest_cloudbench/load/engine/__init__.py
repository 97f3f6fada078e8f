"""An agent's half of a run: due times into operations, whose measured times go to the agent's log."""

from __future__ import annotations
