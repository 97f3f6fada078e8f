"""A worker's part of a pytest session, and the function that opens a session in workers and in the controller.

The plugin's hooks delegate to it in an xdist worker. Imported by fifty agents: keep it light.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cloudbench import __version__
from pytest_cloudbench.fleet.agent import Agent
from pytest_cloudbench.fleet.interrupts import Interrupts
from pytest_cloudbench.fleet.run import RunFacts
from pytest_cloudbench.model import FleetError, UsageError
from pytest_cloudbench.support.collector import freeze_objects

if TYPE_CHECKING:
    from pytest_cloudbench.fleet.session import Answering, ControllerSession

_CHANNEL = "cloudbench_channel"
FACTS_KEY = "cloudbench_facts"


def open_session(
    config: pytest.Config, make_answering: Callable[[ControllerSession], Answering], *, at_once: bool
) -> ControllerSession | WorkerSession:
    """Open this process's session. Raises pytest.UsageError (one line, exit status 4) for bad input.

    Args:
        config: pytest's configuration in this process.
        make_answering: called in the controller, once there are agents to serve.
        at_once: whether to call it now, so that bad input is reported before anything starts.
    """
    workerinput: dict[str, Any] | None = getattr(config, "workerinput", None)
    if workerinput is not None:
        return WorkerSession(workerinput[_CHANNEL], workerinput[FACTS_KEY], workerinput["workerid"])
    from pytest_cloudbench.fleet.session import ControllerSession

    try:
        session = ControllerSession(config, _CHANNEL, FACTS_KEY, make_answering)
        if at_once:
            session.serve()
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None
    return session


class WorkerSession:
    """One agent among many: an xdist worker. Raises FleetError if the controller has another version."""

    is_worker = True

    def __init__(self, channel: Any, run: Mapping[str, Any], name: str) -> None:
        their_version = run.get("version")
        if their_version != __version__:  # another version measures differently, even if its messages are the same
            raise FleetError(
                f"{name} has pytest-cloudbench {__version__}, and the controller {their_version or 'an older one'}: "
                "install the same version on all hosts"
            )
        self.facts = RunFacts.from_plain(run)
        self.agent = Agent.over(channel, name, self.facts.host)
        self.agent.gated, self.agent.agents_here = self.facts.gated, self.facts.agents_here
        if self.facts.host_name:
            from pytest_cloudbench.fleet.hosts.facts import read_facts

            self.agent.host_name = self.facts.host_name
            self.agent.clock_was_measured = lambda: self.agent.tell("host", read_facts(self.agent))
        Interrupts().install()  # Ctrl-C reaches the whole group, and again while this process ends
        self.fleet_run = False  # set when fleet items were collected; a fixture alone may open a session, too
        freeze_objects()  # fifty agents need not visit loaded modules again and again

    def become(self, name: str) -> None:
        """Become the agent of this name, in a process that was forked from the one that collected the tests."""
        self.agent.name = name
        Interrupts().install()

    def header(self) -> list[str]:
        """Workers print nothing."""
        return []

    def finish(self, session: pytest.Session) -> None:
        """Nothing to do: the controller merges."""

    def close(self) -> None:
        """Nothing to do: the channel ends with the process."""
