"""The experiment of one test item.

What may live here: reading pytest's item into what an experiment needs. Imported by fifty agents: keep it light.
"""

from __future__ import annotations

from typing import Any

import pytest

from pytest_cloudbench.fleet.agent import Agent
from pytest_cloudbench.fleet.run import RunFacts

__all__ = ["experiment_of", "params_of"]


def experiment_of(item: pytest.Item, agent: Agent, provider: Any, facts: RunFacts) -> Any:
    """The experiment of one test item."""
    from pytest_cloudbench.load.experiment import Experiment
    from pytest_cloudbench.load.verdicts import unmet_gates

    params = params_of(item, "provider")
    test = getattr(item, "originalname", item.name)
    return Experiment(
        agent, provider, facts, test, item.nodeid, item.name, params, unmet_gates(item), item.user_properties
    )


def params_of(item: pytest.Item, *without: str) -> dict[str, Any]:
    """Returns the parameters of one test item as plain values, except those of the fixtures in ``without``."""
    callspec = getattr(item, "callspec", None)
    params = callspec.params if callspec else {}
    return {key: _plain(value) for key, value in params.items() if key not in without}


def _plain(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, bool)) or value is None else repr(value)
