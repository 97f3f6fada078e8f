"""The experiment of one test item.

What may live here: reading pytest's item into what an experiment needs. Imported by fifty agents: keep it light.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cloudbench.fleet.agent import Agent
from pytest_cloudbench.fleet.run import RunFacts
from pytest_cloudbench.model import UsageError

if TYPE_CHECKING:
    from pytest_cloudbench.load.messages import Turn

TURN: pytest.StashKey[Turn] = pytest.StashKey()
"""Where an item that measures two sides keeps whose turn it is."""


def facts_of(item: pytest.Item, facts: RunFacts) -> RunFacts:
    """Return the run's facts as they are for one item: both blocks of a pair have a seed of their own."""
    turn = item.stash.get(TURN, None)
    return facts if turn is None else facts.replace(seed=f"{facts.seed}/pair-{turn.pair}")


def experiment_of(item: pytest.Item, agent: Agent, provider: Any, facts: RunFacts) -> Any:
    """The experiment of one test item."""
    from pytest_cloudbench.load.experiment import Experiment
    from pytest_cloudbench.load.gate.settings import marked_margins
    from pytest_cloudbench.load.gate.verdicts import unmet_gates

    params = params_of(item, "provider")
    test = getattr(item, "originalname", item.name)
    return Experiment(
        agent, provider, facts_of(item, facts), test, item.nodeid, item.name, params, unmet_gates(item),
        item.user_properties, item.stash.get(TURN, None), marked_margins(item) if facts.gated else {},
        declared_by(item), stored_name(item),
    )  # fmt: skip


def stored_name(item: pytest.Item) -> str:
    """Return the name under which an item's runs are stored: of a suite's test the same, however it was called."""
    if "pytest_cloudbench.results.suite" not in sys.modules:  # then nobody has made a Suite
        return item.nodeid
    from pytest_cloudbench.results.installed import stored_nodeid

    return stored_nodeid(item.nodeid, _module_of(item))


def declared_by(item: pytest.Item) -> dict[str, Any]:
    """Return what an item's suite declares about its entries, as plain data; empty if it is of no suite.

    A suite is known by the module of its tests, or by the package around it, wherever they are.
    """
    if "pytest_cloudbench.results.suite" not in sys.modules:  # then nobody has made a Suite
        return {}
    from pytest_cloudbench.judge.metrics import declare
    from pytest_cloudbench.results.installed import suite_of

    suite = suite_of(_module_of(item))
    if suite is None:
        return {}
    if taken := declare(suite.conclusions):
        raise UsageError(f"suite {suite.name}: {', '.join(taken)}: another metric has that name")
    return suite.about(getattr(item, "originalname", item.name)).plain()


def _module_of(item: pytest.Item) -> str:
    """Return the name of an item's module; empty for a test that is no Python function."""
    return str(getattr(getattr(item, "module", None), "__name__", ""))


def params_of(item: pytest.Item, *without: str) -> dict[str, Any]:
    """Return the parameters of one test item as plain values, except those of the fixtures in ``without``."""
    callspec = getattr(item, "callspec", None)
    params = callspec.params if callspec else {}
    return {key: _plain(value) for key, value in params.items() if key not in without}


def _plain(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, bool)) or value is None else repr(value)
