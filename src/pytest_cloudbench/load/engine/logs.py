"""Where an agent logs a run, and what the log says about itself.

What may live here: opening an agent's log.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from pytest_cloudbench.fleet.agent import Agent
from pytest_cloudbench.fleet.run import RunFacts, slug
from pytest_cloudbench.load.messages import LogMoved
from pytest_cloudbench.results.oplog import OpLog
from pytest_cloudbench.results.owner import owner_text


def open_log(
    agent: Agent, facts: RunFacts, nodeid: str, run: str, progress: Callable[..., None] | None = None
) -> OpLog:
    """Open this agent's log of a run: in the run's folder, or in a temporary folder on another host. See ``OpLog``."""
    header = {"agent": agent.name, "nodeid": nodeid, "run": run, "owner": facts.owner, "writer": owner_text()}
    if not agent.same_clock:
        return OpLog(Path(tempfile.mkdtemp(prefix="cloudbench-")) / f"{agent.name}.oplog", header, progress)
    path = Path(facts.results) / slug(run) / f"{agent.name}.oplog"
    return OpLog(path, header, progress, moved=lambda place: agent.tell("moved", LogMoved(run, str(place))))
