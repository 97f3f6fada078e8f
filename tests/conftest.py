"""Rules for all tests: the user's own state is neither read nor written, and no other host is asked."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
from collections.abc import Generator, Iterator

import pytest

from pytest_cloudbench.net.capture import CaptureUnavailable, check
from pytest_cloudbench.net.link import Link, LinkUnavailable
from pytest_cloudbench.results.installed import learn_installed
from pytest_cloudbench.support import redact
from tests.limits import register_profiles
from tests.network_guard import GUARD
from tests.parts import choose_part, mark_slow_cases, parse_part
from tests.truths import Truths, summary

register_profiles()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for one part of the tests, in a run that is divided."""
    parser.addoption("--part", metavar="PART/PARTS", help="run only this part of the tests, such as 2/4")


def pytest_configure() -> None:
    """Let runs under test, in this process or another, reach only loopback."""
    GUARD.install()


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop() -> Generator[None, object, object]:
    """Give runs under test, in this process or another, a journal in a folder of this worker's own.

    The folder is made after the collection, because workers are forked from one that has collected the tests.
    """
    with tempfile.TemporaryDirectory(prefix="cloudbench-tests-") as folder:
        os.environ["CLOUDBENCH_JOURNAL"] = os.path.join(folder, "journal.jsonl")
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, object, object]:
    """Fail a test that asked for another host, even if the request was refused."""
    try:
        return (yield)
    finally:
        if hosts := GUARD.take_requests():
            pytest.fail(f"a test goes to loopback only, and this one asked for {', '.join(dict.fromkeys(hosts))}")


@pytest.fixture(scope="module", autouse=True)
def _secrets_of_module() -> Iterator[None]:
    """Forget the secrets that the fixtures of one file have learned before the next file."""
    before = redact.begin_scope()
    yield
    redact.end_scope(before)


@pytest.fixture(autouse=True)
def _secrets_of_test(_secrets_of_module: None) -> Iterator[None]:
    """Forget the secrets that one test has learned before the next one."""
    before = redact.begin_scope()
    yield
    redact.end_scope(before)


@pytest.fixture(scope="session", autouse=True)
def _conclusions_of_suites() -> None:
    """Let tests of code that reads entries know our suites' conclusions, as a session with expectations does."""
    learn_installed()


@pytest.fixture(scope="session")
def can_link() -> None:
    """Skip if this machine cannot make a link. The reason says what would allow it."""
    try:
        with Link():
            pass
    except LinkUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def can_capture() -> None:
    """Skip if this user may not capture packets. The reason says what would allow it."""
    try:
        check()
    except CaptureUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Let Ctrl-C work in the test and its child processes, even if pytest was started with SIGINT ignored."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


@pytest.fixture
def hangup() -> Iterator[None]:
    """Let a hangup end the child processes of the test, even if pytest was started with nohup."""
    former = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, former)


@pytest.fixture
def truths(request: pytest.FixtureRequest) -> Truths:
    """The truths of a test, which decide whether a run's own doubts allow a comparison with a truth that was set."""
    assert isinstance(request.node, pytest.Item)
    return Truths(request.node)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Switch off Python's garbage collector during the collection.

    Thousands of tests stay in memory until the end, and it would examine all of them each time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests of truths, mark slow cases, and choose the part.

    Tests of truths do not run with all others, because a truth is judged only on a machine that does little else.
    """
    for item in items:
        if "truths" in getattr(item, "fixturenames", ()):
            item.add_marker("truth")
    mark_slow_cases(items)
    _choose_part(config, items)


def _choose_part(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of other parts, before -m chooses, so that its choice does not change the parts."""
    if text := config.getoption("--part"):
        try:
            part, parts = parse_part(text)
        except ValueError as error:
            raise pytest.UsageError(f"--part: {error}") from None
        items[:], others = choose_part(items, part, parts)
        config.hook.pytest_deselected(items=others)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Count the tests that were green only because their run had doubts. On an idle machine there are none."""
    reports = [report for group in terminalreporter.stats.values() for report in group]
    for line in summary(report for report in reports if isinstance(report, pytest.TestReport)):
        terminalreporter.write_line(line)
