"""The pytest plugin: every hook, option and fixture in one place, and nothing else.

What may live here: wiring. A run that uses nothing of it pays for this module's import alone, so
everything heavier is imported inside the hook that needs it.
"""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cloudbench.collect import collector_of, only_config_files

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

_DEFAULT_PROVIDER = "emulated:dropbox"
_DEFAULT_CLIENTS = ("syncthing", "reference")
_SESSION = pytest.StashKey[Any]()


def _seconds(text: str) -> float:
    """The value of an option that is a duration."""
    from pytest_cloudbench.fleet.series import duration_s
    from pytest_cloudbench.model import UsageError

    try:
        return duration_s(text)
    except UsageError as error:
        raise ArgumentTypeError(str(error)) from None


_OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("--provider", {
        "action": "append", "metavar": "SPEC", "default": [],
        "help": "storage service under test, may repeat: emulated:PROFILE (an embedded one), folder:PATH, or the "
                f"name of a real one (default: {_DEFAULT_PROVIDER})",
    }),
    ("--client", {
        "action": "append", "metavar": "NAME|FILE.toml", "default": [],
        "help": "sync client under test, may repeat: a name with options (lsyncd?compress=0), or a file that describes "
                f"a command (default: {' and '.join(_DEFAULT_CLIENTS)}, where they are installed)",
    }),
    ("--keep-captures", {
        "action": "store_true", "help": "keep captures of sync clients with the results; they hold what was sent",
    }),
    ("--grid", {
        "choices": ("quick", "paper"), "default": "quick",
        "help": "size of the parameter grids: two minutes, or the papers' own in real time (default: %(default)s)",
    }),
    ("--time-scale", {
        "type": float, "metavar": "K", "default": 1.0,
        "help": "run intervals and the emulator's clock K times faster (emulated providers only)",
    }),
    ("--max-ops", {"type": int, "metavar": "N", "help": "stop each experiment after N operations"}),
    ("--max-bytes", {"type": int, "metavar": "N", "help": "stop each experiment before it uploads more than N bytes"}),
    ("--capacity-loss", {
        "type": float, "metavar": "SHARE", "default": 0.01,
        "help": "suites/capacity: the loss rate that is still good enough (default: %(default)s)",
    }),
    ("--capacity-p99", {
        "type": float, "metavar": "SECONDS", "default": 2.0,
        "help": "suites/capacity: the response time p99 that is still good enough (default: %(default)s)",
    }),
    ("--capacity-seconds", {
        "type": float, "metavar": "SECONDS", "help": "suites/capacity: how long each probe lasts (default: by grid)",
    }),
    ("--capacity-ops", {
        "type": int, "metavar": "N", "help": "suites/capacity: operations that a search may take (default: by grid)",
    }),
    ("--duration", {
        "type": _seconds, "metavar": "TIME",
        "help": "how long a series lasts, such as 90s, 6h or 20d (default: by grid)",
    }),
    ("--resume", {
        "nargs": "?", "const": "", "metavar": "FILE",
        "help": "go on with the latest unfinished series of the same test and provider, or with that of a state file",
    }),
    ("--cloudbench-pause", {
        "type": _seconds, "metavar": "TIME", "help": "between two rounds of a series (default: by grid)",
    }),
    ("--cloudbench-keep", {
        "action": "store_true", "help": "remove the files of a series at its end instead of after each round",
    }),
    ("--idle-seconds", {
        "type": float, "metavar": "SECONDS",
        "help": "suites/idle: how long the client is left alone (default: by grid)",
    }),
    ("--cloudbench-fail", {
        "action": "append", "metavar": "METRIC:BOUND", "default": [],
        "help": "fail a test whose metric breaks the bound, may repeat: loss_rate:0.01 (absolute), "
                "response_p99:10%% (relative to the compared run)",
    }),
    ("--cloudbench-expectations", {
        "metavar": "FILE", "help": "TOML file of recorded expectations; the suites bring their own",
    }),
    ("--cloudbench-results", {
        "metavar": "DIR", "default": "results",
        "help": "where records go, beside pytest-benchmark's JSON (default: %(default)s)",
    }),
    ("--cloudbench-seed", {
        "metavar": "TEXT", "help": "what payloads and random delays are made from (default: new for each run)",
    }),
    ("--cloudbench-patience", {
        "type": float, "metavar": "SECONDS", "default": 120.0,
        "help": "end an agent that gives no sign of life for so long while others wait (default: %(default)s)",
    }),
    ("--benchcloud-fill", {
        "metavar": "FILES:BYTES", "default": "50:102400",
        "help": "what the folder of a BenchCloud download holds: so many files of so many bytes (default: %(default)s)",
    }),
    ("--benchcloud-capture", {
        "metavar": "FILE", "help": "capture settings for BenchCloud's files, as BenchCloud took them with -c",
    }),
    ("--cloudbench-max-lateness", {
        "type": float, "metavar": "SECONDS", "default": 0.2,
        "help": "lateness p99 above which the engine counts as saturated (default: %(default)s)",
    }),
)  # fmt: skip


def pytest_addoption(parser: pytest.Parser) -> None:
    """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_addoption."""
    group = parser.getgroup("cloudbench", "cloud storage experiments")
    for name, facts in _OPTIONS:
        group.addoption(name, **facts)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_configure."""
    config.addinivalue_line("markers", "fleet: runs on all agents (pytest-xdist workers) at the same time")
    named_files = only_config_files(config.args)
    if config.option.pyargs or named_files:
        from pytest_cloudbench.fleet import policy

        suites = policy.shipped_suites(config)
        if suites is not None:
            policy.adopt(config, suites)
        elif named_files:
            policy.adopt_files(config)
    option = config.option
    used = option.provider or option.cloudbench_fail or option.cloudbench_expectations or option.time_scale != 1.0
    if used and not hasattr(config, "workerinput"):
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
    found = getattr(metafunc, "_arg2fixturedefs", {}).get("provider", ())  # a user's own fixture is left alone
    if "provider" in metafunc.fixturenames and all(each.func.__module__ == __name__ for each in found):
        of_file = getattr(metafunc.function, "cloudbench_providers", ())
        specs = metafunc.config.option.provider or of_file or [_DEFAULT_PROVIDER]
        metafunc.parametrize("provider", list(dict.fromkeys(specs)), indirect=True, scope="session")
    if "sync_lab" in metafunc.fixturenames:
        chosen = metafunc.config.option.client or _DEFAULT_CLIENTS
        metafunc.parametrize("sync_lab", list(dict.fromkeys(chosen)), indirect=True, scope="module")
    if "client_run" in metafunc.fixturenames:
        chosen = metafunc.config.option.client or _DEFAULT_CLIENTS
        metafunc.parametrize("client_run", list(dict.fromkeys(chosen)), indirect=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_collection_modifyitems."""
    for item in items:
        if {"fleet", "experiment"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("fleet")


@pytest.hookimpl(tryfirst=True)  # before xdist lets the controller schedule what was collected
def pytest_collection_finish(session: pytest.Session) -> None:
    """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_collection_finish."""
    if hasattr(session.config, "workerinput"):
        fleet = [item.nodeid for item in session.items if item.get_closest_marker("fleet")]
        if fleet:  # then, and only then, stock benchmarks are switched on and run alone
            fleet += [item.nodeid for item in session.items if _runs_alone(item)]
            ours = _session(session.config)
            ours.fleet_run = True
            ours.agent.tell("collected", fleet)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_runtest_protocol."""
    session = item.config.stash.get(_SESSION, None)
    marked = item.get_closest_marker("fleet") is not None
    if marked and session is None:
        session = _session(item.config)
    if session is None or not (marked or (session.fleet_run and _runs_alone(item))):
        return None
    from pytest_cloudbench.fleet import protocol

    (protocol.run_everywhere if marked else protocol.run_solo)(item, nextitem, session.agent)
    return True


@pytest.hookimpl(wrapper=True, tryfirst=True)  # what it raises is what the test has raised, for every other plugin
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_runtest_call."""
    return (yield from _gated(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)  # for runs in fixtures, after the test
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_runtest_teardown."""
    return (yield from _gated(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)  # around all others: nothing that they add may show a secret
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_runtest_makereport."""
    report = yield
    if call.excinfo is not None and item.get_closest_marker("fleet") is not None:
        from pytest_cloudbench.fleet.protocol import plain_report

        plain_report(report, call.excinfo.value)
    if redact := sys.modules.get("pytest_cloudbench.redact"):  # else this process has met no secret
        redact.clean_report(report)
    return report


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


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Fleet items need a scheduler of their own; without them it hands over to the stock one."""
    return _session(config).make_scheduler(log)


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

    found = find_provider(request.param, fleet)
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

    session, keep = _session(request.config), request.config.option.keep_captures
    lab = SyncLab(request.param, tmp_path_factory.mktemp("sync"), session.facts, session.agent, keep_captures=keep)
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

    return client_run_of(request.node, fleet, request.param, _session(request.config).facts)


def _gated(item: pytest.Item) -> Generator[None]:
    """A phase of an item, which fails for gates that its results have broken; nothing where nothing is measured."""
    if item.config.stash.get(_SESSION, None) is None:
        return (yield)
    from pytest_cloudbench.fleet.verdicts import gated

    with gated(item):
        return (yield)


def _runs_alone(item: pytest.Item) -> bool:
    return "benchmark" in getattr(item, "fixturenames", ()) and item.get_closest_marker("fleet") is None


def _session(config: pytest.Config) -> Any:
    """This process's part of the fleet, made when it is first needed."""
    session = config.stash.get(_SESSION, None)
    if session is None:
        from pytest_cloudbench.fleet.worker import open_session

        session = config.stash[_SESSION] = open_session(config)
    return session
