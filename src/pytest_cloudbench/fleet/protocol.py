"""How one item runs on all agents and becomes one report.

What may live here: pytest's item protocol for fleet items. Agents run quietly, the leader alone logs; the
failures of the others, and agents that were lost, are merged into its report.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from pytest_cloudbench.fleet.agent import Agent
from pytest_cloudbench.model import FleetError

__all__ = ["plain_report", "run_everywhere", "run_solo"]

_PLACE = re.compile(r"\S+:\d+: ")
_NOT_AGAIN = "(not rerun: --reruns and flaky marks do not apply to measurements)"
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def run_everywhere(item: pytest.Item, nextitem: pytest.Item | None, agent: Agent) -> None:
    """Run a fleet item in step with all other agents."""
    agent.time_limits = (pytest.fail.Exception,)  # pytest-timeout's, by signal
    if _stopped(item, agent):
        return
    _leave(item, _run(item, nextitem, agent), agent)


def run_solo(item: pytest.Item, nextitem: pytest.Item | None, agent: Agent) -> None:
    """Run an item that uses the stock ``benchmark`` fixture on the first agent, while the others idle."""
    from pytest_cloudbench.results import benchmarks

    if _stopped(item, agent):
        return
    reports: list[pytest.TestReport] = []
    if agent.index == 0:
        with agent.sign_of_life(), benchmarks.enabled_here(item.config):
            reports = _run(item, nextitem, agent)
        agent.ask("entries", benchmarks.take_entries(item.config))
    _leave(item, reports, agent)


def _run(item: pytest.Item, nextitem: pytest.Item | None, agent: Agent) -> list[pytest.TestReport]:
    try:
        return runtestprotocol(item, log=False, nextitem=nextitem)
    except BaseException:  # Ctrl-C, or the end of the session: this process comes to no meeting any more
        agent.tell("interrupted")
        raise


def _leave(item: pytest.Item, reports: list[pytest.TestReport], agent: Agent) -> None:
    verdict = agent.leave(next((report.longreprtext for report in reports if report.failed), ""))
    if verdict is None:
        item.session.shouldstop = "the controller is gone"
    else:
        _log(item, reports, verdict, agent)


def _stopped(item: pytest.Item, agent: Agent) -> bool:
    try:
        stop = agent.enter(item.nodeid)
    except FleetError as error:
        stop = str(error)
    if stop:
        item.session.shouldstop = stop
    return bool(stop)


def _log(item: pytest.Item, reports: list[pytest.TestReport], verdict: Mapping[str, Any], agent: Agent) -> None:
    """The leader reports the item; everyone else stays silent."""
    if not verdict["log"]:
        return
    if not reports:  # a solo item whose agent was lost: this agent did not run it
        reports = [_report(item)]
    _merge(reports, verdict, agent.name, _NOT_AGAIN if _is_to_be_rerun(item) else "")
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def _report(item: pytest.Item) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid=item.nodeid, location=item.location, keywords={}, outcome="passed", longrepr=None, when="call"
    )


def _is_to_be_rerun(item: pytest.Item) -> bool:
    """Whether pytest-rerunfailures or flaky was asked to repeat the item when it fails."""
    option = item.config.option
    asked = (getattr(option, name, None) for name in ("reruns", "force_reruns", "force_flaky"))
    is_marked = item.get_closest_marker("flaky") is not None
    return is_marked or any(asked) or hasattr(getattr(item, "function", None), "_flaky_max_runs")


def _merge(reports: list[pytest.TestReport], verdict: Mapping[str, Any], agent: str, at_the_end: str) -> None:
    """Add other agents' failures to the leader's report, and a final line to a failed one."""
    failed = next((report for report in reports if report.failed), None)
    own, count = failed.longreprtext if failed else "", len(verdict["agents"])
    others = {name: text for name, text in sorted(verdict["failures"].items()) if name != agent}
    same = sum(1 for text in others.values() if _gist(text) == _gist(own))
    different: dict[str, list[str]] = {}
    for name, text in others.items():
        if _gist(text) != _gist(own):
            different.setdefault(_gist(text), []).append(name)
    lines = (
        [f"(the same on {same + 1} of {count} agents)" if same else f"(on agent {agent})"] if own and count > 1 else []
    )
    lines += [f"agent {name} {reason}" for name, reason in verdict["missing"].items()]
    lines += [f"on agent {', '.join(names)}: {others[names[0]]}" for names in different.values()]
    lines += [at_the_end] if at_the_end and (lines or failed) else []
    if not lines:
        return
    target: Any = failed or next((report for report in reports if report.when == "call"), reports[0])
    target.outcome = "failed"
    if failed and hasattr(target.longrepr, "addsection"):  # a traceback keeps its form
        target.longrepr.addsection("agents", "\n".join(lines))
    else:
        target.longrepr = "\n".join([own, *lines] if own else lines)


def _gist(text: str) -> str:
    """What is the same when agents fail for the same reason: a traceback also shows addresses and the agent itself."""
    said = [line for line in text.splitlines() if line.startswith("E ") or _PLACE.match(line)]
    return _ADDRESS.sub("", "\n".join(said) or text)


def plain_report(report: pytest.TestReport, error: BaseException) -> None:
    """Errors made for people are shown in their own words, without a traceback."""
    from pytest_cloudbench.fleet.verdicts import ExpectationBroken, ExpectationUnknown
    from pytest_cloudbench.model import CloudbenchError

    if isinstance(error, ExpectationUnknown):
        path, line, _ = report.location
        report.outcome = "skipped"
        report.longrepr = (path, (line or 0) + 1, f"inconclusive: {error}")
    elif isinstance(error, (CloudbenchError, ExpectationBroken)):
        report.longrepr = "\n".join([str(error), *getattr(error, "__notes__", ())])
