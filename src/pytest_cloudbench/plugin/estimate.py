"""The plugin of ``cloudbench estimate``, which runs tests against nothing to count their work.

It has a session in place of a controller's, and an ``experiment`` fixture in place of the usual one. It is loaded with
``-p`` before anything else, and no run that measures loads it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from pytest_cloudbench import providers
from pytest_cloudbench.fleet.items import used_fixtures
from pytest_cloudbench.fleet.run import RunFacts
from pytest_cloudbench.fleet.session import run_facts
from pytest_cloudbench.load.estimate import (
    INDENT,
    AgentWithoutFleet,
    CountingExperiment,
    Estimate,
    NotForeseen,
    UnconnectedDriver,
    describe_all,
)
from pytest_cloudbench.load.item import make_experiment
from pytest_cloudbench.model import UsageError
from pytest_cloudbench.providers.for_agents import Provided
from pytest_cloudbench.providers.leaves import Leaf
from pytest_cloudbench.support.wording import format_count

_ESTIMATE: pytest.StashKey[Estimate] = pytest.StashKey()


class EstimateSession:
    """A session in place of one that measures. It serves nobody and writes nothing."""

    is_worker = serves = fleet_run = False

    def __init__(self, facts: RunFacts, results: str) -> None:
        self.facts, self.results, self.agent = facts, results, AgentWithoutFleet()
        self.estimates: list[Estimate] = []
        self.remark = ""
        self._leaves: dict[str, list[Leaf]] = {}

    def leaves_of(self, spec: str) -> list[Leaf]:
        """Return the parts of a provider. Raises UsageError."""
        if spec not in self._leaves:
            self._leaves[spec] = providers.resolve(spec).describe_leaves() if spec else []
        return self._leaves[spec]

    def header(self) -> list[str]:
        """Return no line."""
        return []

    def check_baseline(self) -> None:
        """Do nothing: no gate is judged."""

    def repeat(self, session: pytest.Session) -> None:
        """Do nothing: no test is suspect."""

    def summarize(self, reporter: Any) -> None:
        """Write the estimates."""
        reporter.ensure_newline()
        leaves: dict[str, list[Leaf]] = {}
        for estimate in self.estimates:
            try:
                leaves[estimate.provider] = self.leaves_of(estimate.provider)
            except UsageError as error:  # a test names it, in a mark
                leaves[estimate.provider], estimate.reason = [], str(error)
        lines = [*describe_all(self.estimates, leaves, self.results), *filter(None, [self.remark])]
        for line in lines if lines[-1:] != [""] else lines[:-1]:
            for part in textwrap.wrap(line, reporter._tw.fullwidth, subsequent_indent=" " * INDENT) or [""]:
                reporter.write_line(part)

    def finish(self, session: pytest.Session) -> None:
        """Do nothing: there is nothing to keep."""

    def close(self) -> None:
        """Do nothing: nothing was started."""


_SESSION: pytest.StashKey[EstimateSession] = pytest.StashKey()


def open_session(config: pytest.Config) -> EstimateSession:
    """Return the session of an estimate. Raises pytest.UsageError for a provider that does not exist."""
    option = config.option
    if option.cloudbench_versus:
        raise pytest.UsageError("estimate: expected --provider for each side, in place of --cloudbench-versus")
    facts = run_facts(config)
    session = config.stash[_SESSION] = EstimateSession(facts, Path(facts.results).parents[1].name)
    try:
        for spec in option.cloudbench_provider:
            providers.resolve(spec)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None
    return session


@pytest.hookimpl(trylast=True)  # after the plugin's own fixtures, so that these take their place
def pytest_configure(config: pytest.Config) -> None:
    """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_configure."""
    config.pluginmanager.register(_Fixtures(), "cloudbench-estimate-fixtures")


class _Fixtures:
    @pytest.fixture
    def experiment(self, request: pytest.FixtureRequest, provider: Any, fleet: Any) -> Generator[CountingExperiment]:
        """Counts operations in place of running them."""
        session = request.config.stash[_SESSION]
        estimate = request.node.stash[_ESTIMATE] = Estimate(request.node.nodeid, provider.spec)
        session.estimates.append(estimate)
        leaves = session.leaves_of(provider.spec)
        emulated = "all" if all(leaf.where == "memory" for leaf in leaves) else "none"
        driver: Any = UnconnectedDriver(leaves)
        unconnected = (driver, Provided(provider.spec, emulated=emulated))
        provider = providers.Provider(provider.spec, open=lambda: unconnected)
        counting: CountingExperiment = make_experiment(request.node, fleet, provider, session.facts, CountingExperiment)
        counting.estimate = estimate
        yield counting
        counting.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_runtest_makereport."""
    error = None if call.excinfo is None else call.excinfo.value
    if error is not None:
        estimate = item.stash.get(_ESTIMATE, None)
        if estimate is None:
            estimate = Estimate(item.nodeid, getattr(getattr(item, "callspec", None), "params", {}).get("provider", ""))
            item.config.stash[_SESSION].estimates.append(estimate)
        estimate.reason = estimate.reason or _reason_of(error, is_first=not estimate.runs)
    return (yield)


def _reason_of(error: BaseException, *, is_first: bool) -> str:
    """Return why a test was not estimated to its end. A refusal ``is_first`` if nothing was measured before it."""
    if isinstance(error, NotForeseen) or (isinstance(error, UsageError) and is_first):
        return str(error)
    message = str(getattr(error, "msg", None) or error).partition("\n")[0] or type(error).__name__
    reason = (
        "without a connection it is skipped: "
        if isinstance(error, pytest.skip.Exception)
        else "it depends on what is measured: "
    )
    return reason + message


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_runtestloop."""
    if session.testsfailed:  # a file could not be collected
        return None
    # Others may have a fixture of this name, whose tests must not run here.
    experiments = [item for item in session.items if "experiment" in used_fixtures(item, __name__)]
    for item, nextitem in zip(experiments, [*experiments[1:], None], strict=True):
        runtestprotocol(item, log=False, nextitem=nextitem)
    if others := len(session.items) - len(experiments):
        other_tests = format_count(others, "test that runs", "tests that run")
        session.config.stash[_SESSION].remark = f"{other_tests} no experiment: not estimated"
    return True
