"""The experiment of one test item.

What may live here: an experiment's arguments, read from pytest's item. Imported by fifty agents: keep it light.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cloudbench.fleet.agent import Agent
from pytest_cloudbench.fleet.run import RunFacts
from pytest_cloudbench.model import UsageError

if TYPE_CHECKING:
    from pytest_cloudbench.load.messages import Turn

TURN: pytest.StashKey[Turn] = pytest.StashKey()
"""The turn of an item that measures two sides."""


def item_facts(item: pytest.Item, facts: RunFacts) -> RunFacts:
    """Return the run's facts for one item. Both blocks of a pair share a seed of their own."""
    turn = item.stash.get(TURN, None)
    return facts if turn is None else facts.replace(seed=f"{facts.seed}/pair-{turn.pair}")


def make_experiment(
    item: pytest.Item, agent: Agent, provider: Any, facts: RunFacts, kind: Callable[..., Any] | None = None
) -> Any:
    """Make the experiment of one test item. ``kind`` is its class, if that is not ``Experiment``.

    Raises UsageError if the test's own parameter takes the place of the fixture ``provider``.
    """
    if isinstance(provider, str):
        raise UsageError(f'{item.nodeid}: parametrize("provider", ...) needs indirect=True: {provider!r} is a text')
    from pytest_cloudbench.load.experiment import Experiment
    from pytest_cloudbench.load.gate.settings import marked_margins
    from pytest_cloudbench.load.gate.verdicts import unmet_gates

    params = plain_params(item, "provider")
    test = getattr(item, "originalname", item.name)
    return (kind or Experiment)(
        agent, provider, item_facts(item, facts), test, item.nodeid, item.name, params, unmet_gates(item),
        item.user_properties, item.stash.get(TURN, None), marked_margins(item) if facts.gated else {},
        declared_suite(item), stored_name(item),
    )  # fmt: skip


def stored_name(item: pytest.Item) -> str:
    """Return the name under which an item's runs are stored. A suite's test has the same name however it is called."""
    if "pytest_cloudbench.results.suite" not in sys.modules:  # then nobody has made a Suite
        return item.nodeid
    from pytest_cloudbench.results.installed import stored_nodeid

    return stored_nodeid(item.nodeid, _module_name(item))


def declared_suite(item: pytest.Item) -> dict[str, Any]:
    """Return an item's suite's declarations about its entries as plain data, empty without a suite.

    A suite is recognized by the module of its tests, or by the package around it, wherever they are.
    """
    if "pytest_cloudbench.results.suite" not in sys.modules:  # then nobody has made a Suite
        return {}
    from pytest_cloudbench.judge.metrics import declare
    from pytest_cloudbench.results.installed import suite_of

    suite = suite_of(_module_name(item))
    if suite is None:
        return {}
    if conflicts := declare(suite.conclusions):
        raise UsageError(f"suite {suite.name}: {', '.join(conflicts)}: another metric has that name")
    return suite.about(getattr(item, "originalname", item.name)).plain()


def _module_name(item: pytest.Item) -> str:
    """Return the name of an item's module, empty for a test that is not a Python function."""
    return str(getattr(getattr(item, "module", None), "__name__", ""))


def plain_params(item: pytest.Item, *without: str) -> dict[str, Any]:
    """Return the parameters of one test item as plain values, except those of the fixtures in ``without``."""
    callspec = getattr(item, "callspec", None)
    params = callspec.params if callspec else {}
    return {key: _plain(value) for key, value in params.items() if key not in without}


def _plain(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, bool)) or value is None else repr(value)
