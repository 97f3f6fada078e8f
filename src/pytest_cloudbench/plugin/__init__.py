"""The pytest plugin: all hooks and fixtures in one module.

This module holds wiring only. Every pytest run imports it, also those that do not use the plugin, so everything heavier
is imported inside the hook that needs it.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import pytest

from pytest_cloudbench.plugin.collect import find_collector, has_only_config_files
from pytest_cloudbench.plugin.options import (
    DEFAULT_CLIENTS,
    DEFAULT_PROVIDER,
    accept_short_names,
    add_options,
    describe_taken_names,
    find_suites,
    is_any_option_given,
    is_versus_given,
    note_suite_options,
    read_settings,
    refuse_unknown_keys,
)

if TYPE_CHECKING:
    from pathlib import Path

    from xdist.workermanage import WorkerController

    from pytest_cloudbench.fleet.agent import Agent
    from pytest_cloudbench.fleet.session import ControllerSession
    from pytest_cloudbench.lab.sync.item import LabItem
    from pytest_cloudbench.load.conductor.serving import Serving
    from pytest_cloudbench.load.experiment import Experiment
    from pytest_cloudbench.load.sandbox import Sandbox
    from pytest_cloudbench.providers import Provider
    from pytest_cloudbench.workload.payload import Payloads

_SESSION = pytest.StashKey[Any]()
_ITEM_HOOKS = "cloudbench-items"
_ESTIMATE = f"{__name__}.estimate"
"""The plugin that says what tests would do, in place of running them."""
_RunMode = Literal["everywhere", "directly", "in turns", "leader"] | None
_RUN_MODE = pytest.StashKey[_RunMode]()
"""How agents run a fleet item, or the current one: all, directly (no experiment), in blocks of two sides, or one."""
_LAB = pytest.StashKey["LabItem"]()
_CASSETTE = pytest.StashKey[Any]()
_COLLECTED = pytest.StashKey[int]()
"""The number of tests that measure something, before any of them was deselected."""

_PARAMETRIZED: Mapping[str, Literal["module", "session"]] = {
    "provider": "session", "sandbox": "session", "_client": "module",
}  # fmt: skip
"""Fixtures that are parametrized from the command line, with their scopes."""

_ON_PROVIDERS = frozenset({"provider", "sandbox"})
"""The fixtures that take their values from ``--provider``. ``_client`` takes its values from ``--client``."""

_MEASURING = frozenset({"experiment", "lab"})
"""Fixtures whose tests are expected to measure something."""


def _import_as_compiled() -> None:
    """Exclude this package, except its suites, from pytest's assertion rewriting. Other asserts here test nothing.

    Where bytecode is not written (PYTHONDONTWRITEBYTECODE, as in most container images), pytest compiles each module
    that it rewrites anew, in each of fifty workers: half of what a short run costs. pytest has no public way to do so.
    """
    package = __name__.partition(".")[0]
    for finder in sys.meta_path:
        names = getattr(finder, "_must_rewrite", None)
        if isinstance(names, set) and package in names:
            names.remove(package)
            names.add(f"{package}.suites")


_import_as_compiled()


def pytest_addoption(parser: pytest.Parser) -> None:
    """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_addoption."""
    add_options(parser)


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Generator[None]:
    """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_load_initial_conftests."""
    _forget_secrets_at_end(early_config)
    read_settings(early_config)
    find_suites(early_config)
    yield
    accept_short_names(early_config, parser, args)
    refuse_unknown_keys(early_config)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_configure."""
    config.addinivalue_line(
        "markers", "cloudbench_gate(p50=0.1, p99=0.25, ...): margins of --cloudbench-gate; None leaves a metric out"
    )
    config.addinivalue_line(
        "markers", "cloudbench_provider(spec, ...): where a test runs by default; --provider overrides it"
    )
    if has_only_config_files(config.args, config.invocation_params.dir):
        from pytest_cloudbench.load import policy

        policy.adopt_files(config)
    if config.option.cloudbench_hosts and not hasattr(config, "workerinput"):
        from pytest_cloudbench.fleet.hosts import gateways

        gateways.plan_agents(config, config.option.cloudbench_hosts)
    if getattr(config.option, "benchmark_compare", None) and not hasattr(config, "workerinput"):
        from pytest_cloudbench.results.benchmarks import compare_later

        compare_later(config)
    note_suite_options(config, config._parser)
    is_needed = _has_plugin_option(config) or config.option.cloudbench_time_scale != 1.0
    if (is_needed or config.pluginmanager.has_plugin(_ESTIMATE)) and not hasattr(config, "workerinput"):
        _fleet_session(config)  # bad input is reported before anything starts


@pytest.hookimpl(tryfirst=True)  # before workers start; pytest-benchmark has its storage by now
def pytest_sessionstart(session: pytest.Session) -> None:
    """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_sessionstart."""
    fleet_session = session.config.stash.get(_SESSION, None)
    if fleet_session is not None and not fleet_session.is_worker:
        from pytest_cloudbench.model import UsageError

        try:
            fleet_session.check_baseline()
        except UsageError as error:
            raise pytest.UsageError(str(error)) from None


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_collect_file."""
    return find_collector(file_path, parent)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_generate_tests."""
    if _PARAMETRIZED.keys().isdisjoint(metafunc.fixturenames):
        return
    from pytest_cloudbench.fleet import items

    option, used = metafunc.config.option, items.used_fixtures(metafunc.definition, __name__)
    for name in sorted(_PARAMETRIZED.keys() & used):
        if items.is_parametrized(metafunc, "lab" if name == "_client" else name):
            continue
        if name in _ON_PROVIDERS:
            specs = option.cloudbench_provider or items.marked_providers(metafunc.definition) or [DEFAULT_PROVIDER]
        else:
            specs = option.cloudbench_client or DEFAULT_CLIENTS
        specs = ids = list(dict.fromkeys(specs))
        if option.cloudbench_versus and name == "provider" and "experiment" in used:
            ids = [f"{spec}-vs-{option.cloudbench_versus}" for spec in specs]
        if any("?" in spec or "@" in spec for spec in ids):  # it may hold a secret, and everybody sees ids
            from pytest_cloudbench.support import redact

            ids = list(map(redact.mask_named, ids))
        metafunc.parametrize(name, specs, indirect=True, scope=_PARAMETRIZED[name], ids=ids)


# A wrapper, to see what others deselect, and what pytest-benchmark marks as no benchmark.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_collection_modifyitems."""
    if _is_gate_requested(config.option):
        from pytest_cloudbench.fleet.items import used_fixtures

        measuring = (item for item in items if not _MEASURING.isdisjoint(used_fixtures(item, __name__)))
        config.stash[_COLLECTED] = sum(1 for _ in measuring)
    yield
    experiments = []
    for item in items:
        if "fleet" in getattr(item, "fixturenames", ()):
            from pytest_cloudbench.fleet.items import used_fixtures

            used = used_fixtures(item, __name__)
            if "fleet" in used:
                is_versus = item.config.option.cloudbench_versus and "experiment" in used
                everywhere: _RunMode = "everywhere" if "experiment" in used else "directly"
                item.stash[_RUN_MODE] = "leader" if "lab" in used else "in turns" if is_versus else everywhere
                _register_item_hooks(item.config)
            if not _MEASURING.isdisjoint(used):
                experiments.append(item)
    option = config.option
    if experiments and (getattr(option, "benchmark_only", False) or getattr(option, "benchmark_skip", False)):
        from pytest_cloudbench.results import benchmarks

        benchmarks.apply_switches(config, experiments)


@pytest.hookimpl(tryfirst=True)  # before xdist lets the controller schedule what was collected
def pytest_collection_finish(session: pytest.Session) -> None:
    """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_collection_finish."""
    if hasattr(session.config, "workerinput"):
        item_ids = [item.nodeid for item in session.items if _RUN_MODE in item.stash]
        if item_ids:  # only beside fleet items are stock benchmarks switched on, and run on one agent
            item_ids += [item.nodeid for item in session.items if _runs_alone(item)]
            fleet_session = _fleet_session(session.config)
            fleet_session.fleet_run = True
            fleet_session.agent.tell("collected", item_ids)


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_runtestloop."""
    _prepare_loop(session)
    result = yield
    fleet_session = session.config.stash.get(_SESSION, None)
    has_workers = session.config.pluginmanager.has_plugin("dsession")
    if fleet_session is not None and not fleet_session.is_worker and not has_workers:
        fleet_session.repeat(session)
    return result


def _prepare_loop(session: pytest.Session) -> None:
    config, option = session.config, session.config.option
    if "pytest_cloudbench.support.redact" in sys.modules:
        _register_item_hooks(config)
    is_judged = option.cloudbench_fail or _is_gate_requested(option)
    if not is_judged or option.collectonly or getattr(option, "setuponly", False):
        return
    if not config.pluginmanager.has_plugin("dsession"):  # with xdist, only the workers have the items
        from pytest_cloudbench.fleet.items import used_fixtures

        measuring_count = sum(not _MEASURING.isdisjoint(used_fixtures(item, __name__)) for item in session.items)
        agent = _fleet_session(config).agent
        agent.tell("selected", measuring_count)
        agent.tell("deselected", max(0, config.stash.get(_COLLECTED, 0) - measuring_count))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_runtest_logreport."""
    _remove_secrets("clean_report", report)  # again in the controller, which knows the secrets of all agents


def pytest_report_header(config: pytest.Config) -> list[str]:
    """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_report_header."""
    session = config.stash.get(_SESSION, None)
    return session.header() if session is not None else []


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_terminal_summary."""
    session = config.stash.get(_SESSION, None)
    if session is not None and not session.is_worker:
        session.summarize(terminalreporter)
        for line in describe_taken_names(config._parser) if session.serves else ():
            terminalreporter.write_line(line)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before pytest-benchmark saves, which is a wrapper too
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_sessionfinish."""
    fleet_session = session.config.stash.get(_SESSION, None)
    if fleet_session is not None:
        fleet_session.finish(session)
    if "pytest_cloudbench.results.benchmarks" in sys.modules:
        from pytest_cloudbench.results.benchmarks import compare_now

        compare_now(session.config)
    yield


def pytest_unconfigure(config: pytest.Config) -> None:
    """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_unconfigure."""
    session = config.stash.get(_SESSION, None)
    if session is not None:
        session.close()


# -- items: hooks that are registered only in sessions that need them -------------------------------------


class _ItemHooks:
    """Hooks around items, registered with the first test that uses our fixtures or a module that handles secrets."""

    @pytest.hookimpl(wrapper=True, tryfirst=True, specname="pytest_runtest_protocol")  # around all time limits
    def wait_before_item(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_runtest_protocol."""
        session = item.config.stash.get(_SESSION, None)
        if session is not None and _RUN_MODE in item.stash and session.agent.gated:
            from pytest_cloudbench.fleet import protocol

            protocol.wait_apart(item, session.agent)
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_runtest_protocol."""
        mode = item.stash.get(_RUN_MODE, None)
        session = _fleet_session(item.config) if mode else item.config.stash.get(_SESSION, None)
        if session is None or not (mode or (session.fleet_run and _runs_alone(item))):
            return None
        from pytest_cloudbench.fleet import protocol

        item.config.stash[_RUN_MODE] = mode
        if mode == "in turns":
            from pytest_cloudbench.load.versus.turns import run_in_turns

            protocol.run_everywhere(item, nextitem, session.agent, run_in_turns)
            return True
        run = {None: protocol.run_benchmark, "leader": protocol.run_on_leader}.get(mode, protocol.run_everywhere)
        run(item, nextitem, session.agent)
        return True

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # other plugins see what it raises as the test's own error
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_runtest_call."""
        return (yield from _run_and_judge(item))

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # for runs in fixtures, after the test
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None]:
        """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_runtest_teardown."""
        return (yield from _run_and_judge(item))

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # around all others, which may add secrets to the report
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
        """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_runtest_makereport."""
        report = yield
        if call.excinfo is not None and _RUN_MODE in item.stash:
            from pytest_cloudbench.load.gate.verdicts import hide_traceback

            hide_traceback(report, call.excinfo.value)
        elif call.excinfo is not None and "sandbox" in getattr(item, "fixturenames", ()):
            from pytest_cloudbench.load.sandbox import report_once

            report_once(report, call.excinfo.value)
        _remove_secrets("clean_report", report)
        return report

    # The other texts that people see. These hooks come first, so that no other plugin reads a secret in them.

    @pytest.hookimpl(tryfirst=True)
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_collectreport."""
        _remove_secrets("clean_report", report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_warning_recorded(self, warning_message: Any) -> None:
        """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_warning_recorded."""
        if isinstance(warning_message.message, Warning):
            _remove_secrets("clean_error", warning_message.message)

    @pytest.hookimpl(tryfirst=True)
    def pytest_internalerror(self, excrepr: Any) -> None:
        """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_internalerror."""
        _remove_secrets("clean_shown", excrepr)


def _remove_secrets(function: str, target: object) -> None:
    """Remove secrets from an object that people are about to see, if this process has handled any."""
    if redact := sys.modules.get("pytest_cloudbench.support.redact"):
        getattr(redact, function)(target)


def _forget_secrets_at_end(config: pytest.Config) -> None:
    """Forget the secrets of this session when it ends. The same process may run another session."""
    redact = sys.modules.get("pytest_cloudbench.support.redact")
    outer_scope = redact.begin_scope() if redact else None

    def forget() -> None:
        if redact := sys.modules.get("pytest_cloudbench.support.redact"):
            redact.end_scope(outer_scope or redact.SecretScope())

    config.add_cleanup(forget)


def _register_item_hooks(config: pytest.Config) -> None:
    if not config.pluginmanager.has_plugin(_ITEM_HOOKS):
        config.pluginmanager.register(_ItemHooks(), _ITEM_HOOKS)


# -- pytest-xdist -------------------------------------------------------------------------------------


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Called by pytest-xdist before any worker starts."""
    from pytest_cloudbench.load import policy

    policy.lean_workers(config, specs)
    # A table of hosts may stand in pytest's configuration: without its plugin, its agents would run on this machine.
    if config.option.cloudbench_hosts or policy.is_adopted(config) or is_any_option_given(config, config._parser):
        from pytest_cloudbench.fleet.start import forking

        program = f"{__name__}.warm_entry"
        forking.fork_workers(config, specs, program)
        if config.option.cloudbench_hosts:
            from pytest_cloudbench.fleet.hosts import gateways

            gateways.connect_hosts(config, program)
        _fleet_session(config).serve()  # watch the workers from the start: all may be stopped before any one collects


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    """https://pytest-xdist.readthedocs.io/en/stable/how-to.html: before a worker starts."""
    _fleet_session(node.config).add_node(node)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: WorkerController, error: object) -> None:
    """Called by pytest-xdist when a worker has ended, as planned or not."""
    _fleet_session(node.config).lose_node(node.gateway.id)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: WorkerController, ids: list[str]) -> None:
    """Schedule fleet items, which need their own scheduler. Without such items, xdist's choice is kept."""
    _fleet_session(node.config).take_over(node, ids)


# -- fixtures -----------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def fleet(request: pytest.FixtureRequest) -> Agent:
    """This process's place in the fleet: ``index``, ``count``, ``once(name, work)``, ``gather(name, payload)``."""
    agent: Agent = _fleet_session(request.config).agent
    return agent


@pytest.fixture(scope="session")
def provider(request: pytest.FixtureRequest, fleet: Agent) -> Generator[Provider]:
    """The storage service under test: ``--provider``, one parameter for each."""
    from pytest_cloudbench.load.sandbox import ask_before_use, open_provider
    from pytest_cloudbench.providers import find_provider

    stash, sides = request.config.stash, {"A": _spec_of(request), "B": request.config.option.cloudbench_versus}
    if sides["B"]:
        from pytest_cloudbench.load.versus.turns import provide_sides

        providers = provide_sides(request.config, lambda side: find_provider(sides[side], fleet.ask))
    else:
        providers = open_provider(find_provider(sides["A"], fleet.ask), stash.get(_CASSETTE, None))
    yield from ask_before_use(providers, fleet, lambda: stash.get(_RUN_MODE, None) == "directly")


@pytest.fixture(scope="session")
def sandbox(request: pytest.FixtureRequest) -> Generator[Sandbox]:
    """Folders of the test's own on the service under test, for tests that measure nothing: ``sandbox.folder()``.

    Each such test runs once per ``--provider``, in any process.
    """
    from pytest_cloudbench.load.sandbox import open_sandbox
    from pytest_cloudbench.providers import find_provider

    session, workers = _fleet_session(request.config), getattr(request.config, "workerinput", {}).get("workercount", 1)
    provider = find_provider(_spec_of(request), session.agent.ask)
    yield from open_sandbox(provider, session.agent, session.facts, workers)


@pytest.fixture
def payloads(request: pytest.FixtureRequest) -> Payloads:
    """Generators of file content, seeded by run and test: ``payloads.random(size_bytes)``..."""
    from pytest_cloudbench.load.item import item_facts
    from pytest_cloudbench.workload.payload import Payloads

    return Payloads(f"{item_facts(request.node, _fleet_session(request.config).facts).seed}/{request.node.nodeid}")


@pytest.fixture
def experiment(request: pytest.FixtureRequest, fleet: Agent, provider: Provider) -> Generator[Experiment]:
    """Runs operations on all agents at the same time: ``experiment.run(...)``."""
    from pytest_cloudbench.load.item import make_experiment

    new_experiment: Experiment = make_experiment(request.node, fleet, provider, _fleet_session(request.config).facts)
    yield new_experiment
    new_experiment.close()


@pytest.fixture(scope="module")
def _client(request: pytest.FixtureRequest) -> str:
    """The client spec from ``--client``, for ``lab``. The scope keeps a file's tests of one client together."""
    return getattr(request, "param", "")


@pytest.fixture
def lab(
    request: pytest.FixtureRequest, fleet: Agent, _client: str, tmp_path_factory: pytest.TempPathFactory
) -> Generator[LabItem]:  # fmt: skip
    """A sync client, its network and captures, for each ``--client``. See ``pytest_cloudbench.LabItem``."""
    from functools import partial

    from pytest_cloudbench.fleet.items import used_fixtures
    from pytest_cloudbench.lab.sync.item import LabItem

    spec = _client or _spec_of(request)
    if "experiment" in used_fixtures(request.node, __name__):
        pytest.fail("lab measures a client on one agent, experiment a provider on all: make two tests", pytrace=False)
    if request.config.option.cloudbench_versus:
        message = "--cloudbench-versus compares providers; to compare sync clients, name both: --client A --client B"
        pytest.fail(message, pytrace=False)
    new_folder = partial(tmp_path_factory.mktemp, "lab")
    facts = _fleet_session(request.config).facts
    lab_item = request.node.stash[_LAB] = LabItem(request.node, spec, fleet, facts, new_folder)
    yield lab_item
    lab_item.close()


def _run_and_judge(item: pytest.Item) -> Generator[None]:
    """Run a phase of an item, and fail it if its results broke a gate. Does nothing else if nothing is measured."""
    if item.config.stash.get(_SESSION, None) is None:
        return (yield)
    from contextlib import nullcontext

    from pytest_cloudbench.load.gate.verdicts import fail_for_gates

    with fail_for_gates(item), item.stash[_LAB].judged() if _LAB in item.stash else nullcontext():
        return (yield)


def _spec_of(request: pytest.FixtureRequest) -> str:
    """Return the spec that the command line gives this fixture. Fails a test that does not name it as an argument."""
    if not hasattr(request, "param"):
        pytest.fail(
            f"the fixture {request.fixturename!r} was asked for at run time (request.getfixturevalue): name it among "
            "the test's arguments, or in usefixtures",
            pytrace=False,
        )
    return str(request.param)


def _runs_alone(item: pytest.Item) -> bool:
    if "benchmark" not in getattr(item, "fixturenames", ()) or _RUN_MODE in item.stash:
        return False
    from pytest_cloudbench.fleet.items import uses_stock_benchmark

    return uses_stock_benchmark(item)


def _has_plugin_option(config: pytest.Config) -> bool:
    """Return whether the command line gives an option that only this plugin has."""
    option = config.option
    values = (
        option.cloudbench_provider, option.cloudbench_fail, option.cloudbench_expectations, option.cloudbench_summary,
        option.cloudbench_report, option.cloudbench_update_expectations, option.cloudbench_cassette,
        option.cloudbench_client, _is_gate_requested(option),
    )  # fmt: skip
    return any(values) or is_versus_given(option) or option.cloudbench_live is not None  # 0 is any port


def _is_gate_requested(option: Any) -> bool:
    """Return whether the regression gate was asked for."""
    return bool(option.cloudbench_gate or option.cloudbench_gate_strict)


def _make_serving(session: ControllerSession) -> Serving:
    """Return the object that answers the agents of a controller's session. Raises UsageError for bad input."""
    from pytest_cloudbench import providers
    from pytest_cloudbench.lab import clients
    from pytest_cloudbench.load.conductor.serving import Serving

    option, cassette = session.config.option, None
    if option.cloudbench_cassette is not None:
        from pytest_cloudbench.load.cassette.cassette import check_options, open_cassette, recorded_values

        check_options(option)
        if recorded := recorded_values(option):  # they decide names and content of files, which must be those recorded
            session.facts = session.facts.replace(run_id=recorded["run_id"], seed=recorded["seed"])
        cassette = session.config.stash[_CASSETTE] = open_cassette(option, session.facts)
    if is_versus_given(option):
        from pytest_cloudbench.load.versus import turns

        turns.check_options(option, session.config.pluginmanager.get_plugins())
    for spec in (*option.cloudbench_provider, *filter(None, [option.cloudbench_versus])):
        providers.check(spec, option.cloudbench_time_scale)
    for spec in option.cloudbench_client:
        clients.make_client(spec)
    return Serving(session.config, session.facts, session, cassette)


def _fleet_session(config: pytest.Config) -> Any:
    """Return this process's part of the fleet, and create it at the first call."""
    session = config.stash.get(_SESSION, None)
    if session is None and (estimating := config.pluginmanager.get_plugin(_ESTIMATE)) is not None:
        session = config.stash[_SESSION] = estimating.open_session(config)
    elif session is None:
        from pytest_cloudbench.fleet.worker import open_session

        session = config.stash[_SESSION] = open_session(config, _make_serving, at_once=_has_plugin_option(config))
        _register_item_hooks(config)
    return session
