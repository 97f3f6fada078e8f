"""The protocol of one item on all agents, which ends in one report.

What may live here: pytest's item protocol for fleet items, and for items that the leader runs alone. Only the leader
logs a report. The failures of other agents, and the loss of agents, are merged into it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from _pytest.runner import pytest_runtest_teardown, runtestprotocol

from pytest_cloudbench.fleet.agent import Agent
from pytest_cloudbench.fleet.messages import ItemEnded, Left, StockEntry, WhatToLog, make_plain, missing_lines
from pytest_cloudbench.model import FleetError
from pytest_cloudbench.support.clock import wait_for

_WAS_BEGUN = pytest.StashKey[bool]()
_LOCATION = re.compile(r"\S+:\d+: ")
_NOT_AGAIN = "(not rerun: --reruns and flaky marks do not apply to measurements)"
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def run_phases(item: pytest.Item, nextitem: Any, agent: Agent) -> list[pytest.TestReport]:
    """Run an item's set-up, call and teardown in this process, and log nothing.

    ``nextitem`` is the next item, or a collector whose fixtures are to be kept.
    """
    try:
        return runtestprotocol(item, log=False, nextitem=nextitem)
    except BaseException:  # Ctrl-C, or the end of the session: this process comes to no meeting any more
        agent.tell("interrupted")
        raise


def run_everywhere(
    item: pytest.Item, nextitem: pytest.Item | None, agent: Agent,
    run: Callable[[pytest.Item, pytest.Item | None, Agent], list[pytest.TestReport]] = run_phases,
) -> None:  # fmt: skip
    """Run a fleet item in step with all other agents. Each agent calls ``run``."""
    if _begin_item(item, nextitem, agent):
        _leave(item, run(item, _next_or_parent(item, nextitem), agent), agent)


def run_on_leader(item: pytest.Item, nextitem: pytest.Item | None, agent: Agent) -> None:
    """Run a fleet item on the first agent, while the others wait."""
    if _begin_item(item, nextitem, agent):
        with agent.sign_of_life():
            reports = _run_if_leader(item, nextitem, agent)
        _leave(item, reports, agent)


def run_benchmark(item: pytest.Item, nextitem: pytest.Item | None, agent: Agent) -> None:
    """Run an item that uses the stock ``benchmark`` fixture on the first agent, while the others wait."""
    from pytest_cloudbench.results import benchmarks

    if _begin_item(item, nextitem, agent):
        with agent.sign_of_life(), benchmarks.enabled_here(item.config):
            reports = _run_if_leader(item, nextitem, agent)
        if agent.index == 0:
            agent.ask("entries", [StockEntry(**entry) for entry in benchmarks.take_entries(item.config)])
        _leave(item, reports, agent)


def wait_apart(item: pytest.Item, agent: Agent) -> None:
    """Wait before a suspect is measured again, because what disturbed its first run may be over by then.

    All agents wait before the item's protocol, where no plugin's time limit for the test has begun. None asks how long
    before its first run of an item.
    """
    if not item.stash.get(_WAS_BEGUN, False):
        item.stash[_WAS_BEGUN] = True
        return
    with contextlib.suppress(FleetError), agent.sign_of_life():  # if the controller is gone, they find out at the item
        wait_for(agent.stop, float(agent.ask("apart", item.nodeid)))


def _begin_item(item: pytest.Item, nextitem: pytest.Item | None, agent: Agent) -> bool:
    """Wait for the other agents, and return whether to run the item now.

    If it is not run in this round, only the fixtures that the next item shares are kept.
    """
    agent.time_limits = (pytest.fail.Exception,)  # raised by pytest-timeout in a signal handler
    if _enter_or_stop(item, agent):
        return False
    if agent.again is None:
        for report in tear_down(item, nextitem):  # nobody meets again, so each agent logs its own
            item.ihook.pytest_runtest_logreport(report=report)
        return False
    if agent.again:
        item.user_properties.clear()
    return True


def _next_or_parent(item: pytest.Item, nextitem: pytest.Item | None) -> Any:
    """Return the node whose fixtures pytest keeps: the next item, or the parent if this item is run again."""
    return item.parent if nextitem is item else nextitem


def _run_if_leader(item: pytest.Item, nextitem: pytest.Item | None, agent: Agent) -> list[pytest.TestReport]:
    """Run an item on the leader and return its reports. Others only tear down what their next item does not share."""
    if agent.index == 0:
        return run_phases(item, _next_or_parent(item, nextitem), agent)
    return tear_down(item, nextitem)


def tear_down(item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
    """Tear down what the next item does not share. Return a report if that failed."""
    ended = pytest.CallInfo.from_call(
        lambda: pytest_runtest_teardown(item, _next_or_parent(item, nextitem)),
        "teardown",
        reraise=(pytest.exit.Exception, KeyboardInterrupt),
    )
    return [pytest.TestReport.from_item_and_call(item, ended)] if ended.excinfo is not None else []


def _leave(item: pytest.Item, reports: list[pytest.TestReport], agent: Agent) -> None:
    ending = agent.leave(next((report.longreprtext for report in reports if report.failed), ""))
    if ending is None:
        item.session.shouldstop = "the controller is gone"
    else:
        _log(item, reports, ending, agent)


def _enter_or_stop(item: pytest.Item, agent: Agent) -> bool:
    try:
        stop = agent.enter(item.nodeid)
    except FleetError as error:
        stop = str(error)
    if stop:
        item.session.shouldstop = stop
    return bool(stop)


def _log(item: pytest.Item, reports: list[pytest.TestReport], ending: Left, agent: Agent) -> None:
    """Log the item's reports if this agent is the one that logs them."""
    if not ending.log:
        return
    if not reports:  # the leader was lost: this agent did not run the item
        reports = [_report(item)]
    _merge(reports, ending, agent.name, _NOT_AGAIN if _is_to_be_rerun(item) else "")
    if agent.gated and not _apply_ruling(item, reports, agent):
        return
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def _apply_ruling(item: pytest.Item, reports: list[pytest.TestReport], agent: Agent) -> bool:
    """Let the controller decide how an item is logged. Return whether to log it now."""
    hook = item.config.hook
    plain = [hook.pytest_report_to_serializable(config=item.config, report=report) for report in reports]
    ended = ItemEnded(item.nodeid, worst_outcome(reports), tuple(map(_make_sendable, plain)))
    try:
        decision = WhatToLog.from_plain(agent.ask("ruled", ended))
    except FleetError:  # the controller is gone: nobody else will log it
        return True
    change_outcome(reports, decision)
    return not decision.is_held


def _make_sendable(value: Any) -> Any:
    """Return a value with the text of each part that cannot be sent: a property of a test may be any object."""
    if isinstance(value, dict):
        return {str(key): _make_sendable(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_make_sendable(part) for part in value]
    try:
        return make_plain(value)
    except FleetError:
        return str(value)


def worst_outcome(reports: Sequence[pytest.TestReport]) -> str:
    """Return the outcome of an item from its reports."""
    outcomes = {str(report.outcome) for report in reports}
    return next((outcome for outcome in ("failed", "skipped") if outcome in outcomes), "passed")


def change_outcome(reports: Sequence[pytest.TestReport], decision: WhatToLog) -> None:
    """Apply a decision to the reports of an item that passed: its outcome and its properties."""
    for report in reports:
        report.user_properties.extend(decision.properties)
    call = next((report for report in reports if report.when == "call"), None)
    if call is None or not decision.outcome:
        return
    if decision.outcome == "skipped":
        path, line, _ = call.location
        call.outcome, call.longrepr = "skipped", (path, (line or 0) + 1, decision.text)
    else:
        call.outcome, call.longrepr = "failed", decision.text


def _report(item: pytest.Item) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid=item.nodeid, location=item.location, keywords={}, outcome="passed", longrepr=None, when="call"
    )


def _is_to_be_rerun(item: pytest.Item) -> bool:
    """Return True if pytest-rerunfailures or flaky was asked to repeat the item when it fails."""
    option = item.config.option
    options = (getattr(option, name, None) for name in ("reruns", "force_reruns", "force_flaky"))
    is_marked = item.get_closest_marker("flaky") is not None
    return is_marked or any(options) or hasattr(getattr(item, "function", None), "_flaky_max_runs")


def _merge(reports: list[pytest.TestReport], ending: Left, agent: str, final_line: str) -> None:
    """Add other agents' failures to the leader's report, and a final line to a failed one."""
    failed = next((report for report in reports if report.failed), None)
    own, count = failed.longreprtext if failed else "", len(ending.agents)
    others = {name: text for name, text in sorted(ending.failures.items()) if name != agent}
    same_count = sum(1 for text in others.values() if _gist(text) == _gist(own))
    agents_by_gist: dict[str, list[str]] = {}
    for name, text in others.items():
        if _gist(text) != _gist(own):
            agents_by_gist.setdefault(_gist(text), []).append(name)
    lines = (
        [f"(the same on {same_count + 1} of {count} agents)" if same_count else f"(on agent {agent})"]
        if own and count > 1
        else []
    )
    lines += [f"agent {line}" for line in missing_lines(ending.missing)]
    lines += [f"on agent {', '.join(names)}: {others[names[0]]}" for names in agents_by_gist.values()]
    lines += [final_line] if final_line and (lines or failed) else []
    if not lines:
        return
    target: Any = failed or next((report for report in reports if report.when == "call"), reports[0])
    target.outcome = "failed"
    if failed and hasattr(target.longrepr, "addsection"):  # a traceback keeps its form
        target.longrepr.addsection("agents", "\n".join(lines))
    else:
        target.longrepr = "\n".join([own, *lines] if own else lines)


def _gist(text: str) -> str:
    """Return the part of a failure that agents share if they fail for the same reason, without addresses."""
    lines = [line for line in text.splitlines() if line.startswith("E ") or _LOCATION.match(line)]
    return _ADDRESS.sub("", "\n".join(lines) or text)
