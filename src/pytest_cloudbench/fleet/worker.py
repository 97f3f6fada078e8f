"""A worker's part of a pytest session: one agent among many.

What may live here: what the plugin's hooks delegate to in an xdist worker, and the way into either kind
of session. Imported by fifty agents: keep it light.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cloudbench.fleet.agent import Agent
from pytest_cloudbench.fleet.facts import RunFacts
from pytest_cloudbench.fleet.interrupts import Interrupts
from pytest_cloudbench.model import UsageError

if TYPE_CHECKING:
    from pytest_cloudbench.fleet.session import ControllerSession

__all__ = ["WorkerSession", "experiment_of", "open_session"]

_CHANNEL = "cloudbench_channel"
_FACTS = "cloudbench_facts"


def open_session(config: pytest.Config) -> ControllerSession | WorkerSession:
    """This process's session. Raises pytest.UsageError (one line, exit status 4) for bad input."""
    workerinput: dict[str, Any] | None = getattr(config, "workerinput", None)
    if workerinput is not None:
        return WorkerSession(workerinput[_CHANNEL], workerinput[_FACTS], workerinput["workerid"])
    from pytest_cloudbench.fleet.session import ControllerSession

    try:
        return ControllerSession(config, _CHANNEL, _FACTS)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None


def experiment_of(item: pytest.Item, agent: Agent, provider: Any, facts: RunFacts) -> Any:
    """The experiment of one test item."""
    from pytest_cloudbench.fleet.experiment import Experiment
    from pytest_cloudbench.fleet.verdicts import unmet_gates

    callspec = getattr(item, "callspec", None)
    params = {key: _plain(value) for key, value in callspec.params.items()} if callspec else {}
    params.pop("provider", None)
    test = getattr(item, "originalname", item.name)
    return Experiment(
        agent, provider, facts, test, item.nodeid, item.name, params, unmet_gates(item), item.user_properties
    )


def _plain(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, bool)) or value is None else repr(value)


class WorkerSession:
    """One agent among many: an xdist worker."""

    is_worker = True

    def __init__(self, channel: Any, facts: Mapping[str, Any], name: str) -> None:
        self.facts = RunFacts(**facts)
        self.agent = Agent.over(channel, name, self.facts.host)
        Interrupts().install()  # Ctrl-C reaches the whole group, and again while this process ends
        self.fleet_run = False  # set when fleet items were collected; a fixture alone may open a session, too
        gc.freeze()  # what is loaded by now stays for good: fifty agents need not collect it again and again

    def header(self) -> list[str]:
        """Workers print nothing."""
        return []

    def finish(self, session: pytest.Session) -> None:
        """Nothing to do: the controller merges."""

    def close(self) -> None:
        """Nothing to do: the channel ends with the process."""
