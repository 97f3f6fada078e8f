"""How one item runs on all agents and becomes one report.

What may live here: pytest's item protocol for fleet items. Agents run quietly, the leader alone logs; the
failures of the others, and agents that were lost, are merged into its report.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from pytest_cloudbench.fleet.agent import Agent

__all__ = ["plain_report", "run_everywhere", "run_solo"]


def run_everywhere(item: pytest.Item, nextitem: pytest.Item | None, agent: Agent) -> None:
    """Run a fleet item in step with all other agents."""
    if _stopped(item, agent):
        return
    _leave(item, runtestprotocol(item, log=False, nextitem=nextitem), agent)


def run_solo(item: pytest.Item, nextitem: pytest.Item | None, agent: Agent) -> None:
    """Run an item that uses the stock ``benchmark`` fixture on the first agent, while the others idle."""
    from pytest_cloudbench.results import benchmarks

    if _stopped(item, agent):
        return
    reports: list[pytest.TestReport] = []
    if agent.index == 0:
        with agent.sign_of_life(), benchmarks.enabled_here(item.config):
            reports = runtestprotocol(item, log=False, nextitem=nextitem)
        agent.ask("entries", benchmarks.take_entries(item.config))
    _leave(item, reports, agent)


def _leave(item: pytest.Item, reports: list[pytest.TestReport], agent: Agent) -> None:
    verdict = agent.leave(next((report.longreprtext for report in reports if report.failed), ""))
    if verdict is None:
        item.session.shouldstop = "the controller is gone"
    else:
        _log(item, reports, verdict, agent)


def _stopped(item: pytest.Item, agent: Agent) -> bool:
    stop = agent.enter(item.nodeid)
    if stop:
        item.session.shouldstop = stop
    return bool(stop)


def _log(item: pytest.Item, reports: list[pytest.TestReport], verdict: Mapping[str, Any], agent: Agent) -> None:
    """The leader reports the item; everyone else stays silent."""
    if not verdict["log"]:
        return
    if not reports:  # a solo item whose agent was lost: this agent did not run it
        reports = [_report(item)]
    others = {name: text for name, text in verdict["failures"].items() if name != agent.name}
    _merge(reports, others, verdict["missing"], len(verdict["agents"]))
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    agent.tell("logged", item.nodeid)


def _report(item: pytest.Item) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid=item.nodeid, location=item.location, keywords={}, outcome="passed", longrepr=None, when="call"
    )


def _merge(
    reports: list[pytest.TestReport], others: Mapping[str, str], missing: Mapping[str, str], agents: int
) -> None:
    """Put what went wrong elsewhere into the leader's report."""
    failed = next((report for report in reports if report.failed), None)
    own = failed.longreprtext if failed else ""
    lines = [f"agent {name} {reason}" for name, reason in missing.items()]
    same = sum(1 for text in others.values() if text == own)
    different = {text: name for name, text in sorted(others.items()) if text != own}
    lines += [f"on agent {name}: {text}" for text, name in different.items()]
    if not lines:
        return
    target = failed or next((report for report in reports if report.when == "call"), reports[0])
    target.outcome = "failed"
    head = [f"{own}\n(the same on {same + 1} of {agents} agents)"] if own and same else [own] if own else []
    target.longrepr = "\n".join([*head, *lines])


def plain_report(report: pytest.TestReport, error: BaseException) -> None:
    """Errors made for people are shown in their own words, without a traceback."""
    from pytest_cloudbench.fleet.experiment import ExpectationBroken, ExpectationUnknown
    from pytest_cloudbench.model import CloudbenchError

    if isinstance(error, ExpectationUnknown):
        path, line, _ = report.location
        report.outcome = "skipped"
        report.longrepr = (path, line or 0, f"inconclusive: {error}")
    elif isinstance(error, (CloudbenchError, ExpectationBroken)):
        report.longrepr = str(error)
