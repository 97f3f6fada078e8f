"""The experiment of one test item.

What may live here: reading pytest's item into what an experiment needs. Imported by fifty agents: keep it light.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cloudbench.fleet.agent import Agent
from pytest_cloudbench.fleet.run import RunFacts

if TYPE_CHECKING:
    from pytest_cloudbench.load.messages import Turn

__all__ = ["TURN", "experiment_of", "facts_of", "params_of"]

TURN: pytest.StashKey[Turn] = pytest.StashKey()
"""Where an item that measures two sides keeps whose turn it is."""


def facts_of(item: pytest.Item, facts: RunFacts) -> RunFacts:
    """Returns the run's facts as they are for one item: both blocks of a pair have a seed of their own."""
    turn = item.stash.get(TURN, None)
    return facts if turn is None else replace(facts, seed=f"{facts.seed}/pair-{turn.pair}")


def experiment_of(item: pytest.Item, agent: Agent, provider: Any, facts: RunFacts) -> Any:
    """The experiment of one test item."""
    from pytest_cloudbench.load.experiment import Experiment
    from pytest_cloudbench.load.gate_settings import marked_margins
    from pytest_cloudbench.load.verdicts import unmet_gates

    params = params_of(item, "provider")
    test = getattr(item, "originalname", item.name)
    return Experiment(
        agent, provider, facts_of(item, facts), test, item.nodeid, item.name, params, unmet_gates(item),
        item.user_properties, item.stash.get(TURN, None), marked_margins(item) if facts.gated else {},
    )  # fmt: skip


def params_of(item: pytest.Item, *without: str) -> dict[str, Any]:
    """Returns the parameters of one test item as plain values, except those of the fixtures in ``without``."""
    callspec = getattr(item, "callspec", None)
    params = callspec.params if callspec else {}
    return {key: _plain(value) for key, value in params.items() if key not in without}


def _plain(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, bool)) or value is None else repr(value)
