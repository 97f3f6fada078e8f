"""The pytest plugin: every hook and fixture in one place, and nothing else.

What may live here: wiring. A run that uses nothing of it pays for this module's import alone, so
everything heavier is imported inside the hook that needs it.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import pytest

from pytest_cloudbench.collect import collector_of, only_config_files
from pytest_cloudbench.options import DEFAULT_CLIENTS, DEFAULT_PROVIDER, accept_short_names, add_options

if TYPE_CHECKING:
    from pathlib import Path

    from xdist.workermanage import WorkerController

    from pytest_cloudbench.fleet.agent import Agent
    from pytest_cloudbench.fleet.clients import ClientRun
    from pytest_cloudbench.fleet.experiment import Experiment
    from pytest_cloudbench.fleet.provider import Provider
    from pytest_cloudbench.fleet.sync import SyncItem, SyncLab
    from pytest_cloudbench.payload import Payloads

__all__: list[str] = []

_SESSION = pytest.StashKey[Any]()
_ITEM_HOOKS = "cloudbench-items"
_EVERYWHERE = pytest.StashKey[bool]()
"""Whether an item runs on all agents at the same time."""

_PARAMETRIZED: Mapping[str, Literal["function", "module", "session"]] = {
    "provider": "session", "sync_lab": "module", "client_run": "function",
}  # fmt: skip
"""Fixtures whose values the command line gives, and how long each lives."""

_MEASURING = frozenset({"experiment", "sync_lab", "client_run"})
"""Fixtures whose tests are expected to measure something."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_addoption."""
    add_options(parser)
    parser.addini(
        "cloudbench_files",
        "files to collect as experiments wherever they are found (globs such as *.bench.toml); "
        "without it, only files named on the command line are collected",
        type="args",
    )


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Generator[None]:
    """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_load_initial_conftests."""
    yield
    accept_short_names(early_config, parser, args)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_configure."""
    config.addinivalue_line(
        "markers", "cloudbench_provider(spec, ...): where a test runs by default; --provider overrides it"
    )
    named_files = only_config_files(config.args, config.invocation_params.dir)
    if config.option.pyargs or named_files:
        from pytest_cloudbench.fleet import policy

        suites = policy.shipped_suites(config)
        if suites is not None:
            policy.adopt(config, suites)
        elif named_files:
            policy.adopt_files(config)
    option = config.option
    used = option.cloudbench_provider or option.cloudbench_fail or option.cloudbench_expectations
    if (used or option.cloudbench_time_scale != 1.0) and not hasattr(config, "workerinput"):
        _session(config)  # bad input is reported before anything starts


@pytest.hookimpl(tryfirst=True)  # before workers start; pytest-benchmark has its storage by now
def pytest_sessionstart(session: pytest.Session) -> None:
    """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_sessionstart."""
    ours = session.config.stash.get(_SESSION, None)
    if ours is not None and not ours.is_worker:
        from pytest_cloudbench.model import UsageError

        try:
            ours.check_baseline()
        except UsageError as error:
            raise pytest.UsageError(str(error)) from None


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_collect_file."""
    return collector_of(file_path, parent)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_generate_tests."""
    if _PARAMETRIZED.keys().isdisjoint(metafunc.fixturenames):
        return
    from pytest_cloudbench.fleet import items

    option = metafunc.config.option
    for name in sorted(_PARAMETRIZED.keys() & items.comes_to(metafunc.definition, __name__)):
        if items.is_parametrized(metafunc, name):
            continue
        if name == "provider":
            mark = metafunc.definition.get_closest_marker("cloudbench_provider")
            chosen = option.cloudbench_provider or (mark and mark.args) or [DEFAULT_PROVIDER]
        else:
            chosen = option.cloudbench_client or DEFAULT_CLIENTS
        metafunc.parametrize(name, list(dict.fromkeys(chosen)), indirect=True, scope=_PARAMETRIZED[name])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_collection_modifyitems."""
    for item in items:
        if "fleet" in getattr(item, "fixturenames", ()):
            from pytest_cloudbench.fleet.items import comes_to

            item.stash[_EVERYWHERE] = everywhere = "fleet" in comes_to(item, __name__)
            if everywhere:
                _watch_items(item.config)


@pytest.hookimpl(tryfirst=True)  # before xdist lets the controller schedule what was collected
def pytest_collection_finish(session: pytest.Session) -> None:
    """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_collection_finish."""
    if hasattr(session.config, "workerinput"):
        fleet = [item.nodeid for item in session.items if item.stash.get(_EVERYWHERE, False)]
        if fleet:  # then, and only then, stock benchmarks are switched on and run alone
            fleet += [item.nodeid for item in session.items if _runs_alone(item)]
            ours = _session(session.config)
            ours.fleet_run = True
            ours.agent.tell("collected", fleet)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_runtestloop."""
    config, option = session.config, session.config.option
    if "pytest_cloudbench.redact" in sys.modules:
        _watch_items(config)
    if not option.cloudbench_fail or option.collectonly or getattr(option, "setuponly", False):
        return
    if not config.pluginmanager.has_plugin("dsession"):  # there the workers have the items
        from pytest_cloudbench.fleet.items import comes_to

        measuring = sum(not _MEASURING.isdisjoint(comes_to(item, __name__)) for item in session.items)
        _session(config).agent.tell("selected", measuring)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_runtest_logreport."""
    _clean("clean_report", report)  # in the controller: with what all agents know


def pytest_report_header(config: pytest.Config) -> list[str]:
    """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_report_header."""
    session = config.stash.get(_SESSION, None)
    return session.header() if session is not None else []


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_terminal_summary."""
    session = config.stash.get(_SESSION, None)
    if session is not None and not session.is_worker:
        session.summarize(terminalreporter)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before pytest-benchmark saves, which is a wrapper too
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_sessionfinish."""
    ours = session.config.stash.get(_SESSION, None)
    if ours is not None:
        ours.finish(session)
    yield


def pytest_unconfigure(config: pytest.Config) -> None:
    """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_unconfigure."""
    session = config.stash.get(_SESSION, None)
    if session is not None:
        session.close()


# -- items: hooks that a session without ours does not pay for ------------------------------------------


class _ItemHooks:
    """Registered when the first test turns up that uses one of our fixtures, or modules that may meet a secret."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_runtest_protocol."""
        everywhere = item.stash.get(_EVERYWHERE, False)
        session = _session(item.config) if everywhere else item.config.stash.get(_SESSION, None)
        if session is None or not (everywhere or (session.fleet_run and _runs_alone(item))):
            return None
        from pytest_cloudbench.fleet import protocol

        (protocol.run_everywhere if everywhere else protocol.run_solo)(item, nextitem, session.agent)
        return True

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # what it raises is what the test has raised, for every other plugin
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_runtest_call."""
        return (yield from _gated(item))

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # for runs in fixtures, after the test
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None]:
        """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_runtest_teardown."""
        return (yield from _gated(item))

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # around all others: nothing that they add may show a secret
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
        """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_runtest_makereport."""
        report = yield
        if call.excinfo is not None and item.stash.get(_EVERYWHERE, False):
            from pytest_cloudbench.fleet.protocol import plain_report

            plain_report(report, call.excinfo.value)
        _clean("clean_report", report)
        return report

    # What people see besides the reports that this process makes; the first to see it take secrets out.

    @pytest.hookimpl(tryfirst=True)
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_collectreport."""
        _clean("clean_report", report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_warning_recorded(self, warning_message: Any) -> None:
        """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_warning_recorded."""
        if isinstance(warning_message.message, Warning):
            _clean("clean_error", warning_message.message)

    @pytest.hookimpl(tryfirst=True)
    def pytest_internalerror(self, excrepr: Any) -> None:
        """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_internalerror."""
        _clean("clean_shown", excrepr)


def _clean(how: str, shown: object) -> None:
    """Take secrets out of what people are about to see, where this process has met any."""
    if redact := sys.modules.get("pytest_cloudbench.redact"):
        getattr(redact, how)(shown)


def _watch_items(config: pytest.Config) -> None:
    if not config.pluginmanager.has_plugin(_ITEM_HOOKS):
        config.pluginmanager.register(_ItemHooks(), _ITEM_HOOKS)


# -- pytest-xdist -------------------------------------------------------------------------------------


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Before any worker starts."""
    from pytest_cloudbench.fleet import policy

    policy.lean_workers(config, specs)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    """https://pytest-xdist.readthedocs.io/en/stable/how-to.html: before a worker starts."""
    _session(node.config).add_node(node)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: WorkerController, error: object) -> None:
    """A worker has ended, on purpose or not."""
    _session(node.config).lose_node(node.gateway.id)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: WorkerController, ids: list[str]) -> None:
    """Fleet items need a scheduler of their own; without them the one that xdist has chosen is not touched."""
    _session(node.config).take_over(node, ids)


# -- fixtures -----------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def fleet(request: pytest.FixtureRequest) -> Agent:
    """This process's place in the fleet: ``index``, ``count``, ``once(name, work)``, ``gather(name, payload)``."""
    agent: Agent = _session(request.config).agent
    return agent


@pytest.fixture(scope="session")
def provider(request: pytest.FixtureRequest, fleet: Agent) -> Generator[Provider]:
    """The storage service under test: ``--provider``, one parameter for each."""
    from pytest_cloudbench.fleet.provider import find_provider

    found = find_provider(_chosen(request), fleet)
    yield found
    found.close()


@pytest.fixture
def payloads(request: pytest.FixtureRequest) -> Payloads:
    """Generators of file content, seeded by run and test: ``payloads.random(size_bytes)``..."""
    from pytest_cloudbench.payload import Payloads

    return Payloads(f"{_session(request.config).facts.seed}/{request.node.nodeid}")


@pytest.fixture
def experiment(request: pytest.FixtureRequest, fleet: Agent, provider: Provider) -> Generator[Experiment]:
    """Runs operations on all agents at the same time: ``experiment.run(...)``."""
    from pytest_cloudbench.fleet.worker import experiment_of

    made: Experiment = experiment_of(request.node, fleet, provider, _session(request.config).facts)
    yield made
    made.close()


@pytest.fixture(scope="module")
def sync_lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[SyncLab]:
    """A sync client on a link of its own, for all tests of a module: ``--client``, one parameter for each."""
    from pytest_cloudbench.fleet.sync import SyncLab

    session, keep = _session(request.config), request.config.option.cloudbench_keep_captures
    lab = SyncLab(_chosen(request), tmp_path_factory.mktemp("sync"), session.facts, session.agent, keep_captures=keep)
    yield lab
    lab.close()


@pytest.fixture
def sync_session(request: pytest.FixtureRequest, sync_lab: SyncLab) -> SyncItem:
    """A sync client under test: ``examine()`` for verdicts, ``measure(steps)`` for observations, ``conclude(...)``."""
    from pytest_cloudbench.fleet.sync import item_of

    return item_of(request.node, sync_lab)


@pytest.fixture
def client_run(request: pytest.FixtureRequest, fleet: Agent) -> ClientRun:
    """Measures the sync client of ``--client``, one parameter for each, on one agent while the others wait."""
    from pytest_cloudbench.fleet.clients import client_run_of

    return client_run_of(request.node, fleet, _chosen(request), _session(request.config).facts)


def _gated(item: pytest.Item) -> Generator[None]:
    """A phase of an item, which fails for gates that its results have broken; nothing where nothing is measured."""
    if item.config.stash.get(_SESSION, None) is None:
        return (yield)
    from pytest_cloudbench.fleet.verdicts import gated

    with gated(item):
        return (yield)


def _chosen(request: pytest.FixtureRequest) -> str:
    """What the command line chose for this fixture; only a test that names it among its arguments has that."""
    if not hasattr(request, "param"):
        pytest.fail(
            f"the fixture {request.fixturename!r} was asked for at run time (request.getfixturevalue): name it among "
            "the test's arguments, or in usefixtures",
            pytrace=False,
        )
    chosen: str = request.param
    return chosen


def _runs_alone(item: pytest.Item) -> bool:
    if "benchmark" not in getattr(item, "fixturenames", ()) or item.stash.get(_EVERYWHERE, False):
        return False
    from pytest_cloudbench.fleet.items import uses_stock_benchmark

    return uses_stock_benchmark(item)


def _session(config: pytest.Config) -> Any:
    """This process's part of the fleet, made when it is first needed."""
    session = config.stash.get(_SESSION, None)
    if session is None:
        from pytest_cloudbench.fleet.worker import open_session

        session = config.stash[_SESSION] = open_session(config)
        _watch_items(config)
    return session
