"""The fleet: pytest-xdist as a load engine, in which one item runs on all agents at the same time.

What may live here: transport only: agents, coordinator, scheduler, clocks, sessions. It knows no provider, no sync
client and no metric.
"""

from __future__ import annotations
