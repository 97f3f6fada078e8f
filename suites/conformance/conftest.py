"""The driver under test, and the choice of tests: only what its capabilities declare is tested."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cloudbench import Conflict, Verb

if TYPE_CHECKING:
    from pytest_cloudbench import Capabilities, Sandbox


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark that the fixture ``driver`` reads."""
    config.addinivalue_line("markers", "needs(what, ...): run a conformance test for drivers that declare this")


def find_undeclared(capabilities: Capabilities, need: object) -> str:
    """Return a need of a test in words if a driver does not declare it, and otherwise an empty text.

    The need is a verb, a conflict, or the name of a capability, which follows ``no`` if it must not be declared.
    """
    if isinstance(need, Verb):
        return "" if need in capabilities.verbs else need.value
    if isinstance(need, Conflict):
        return "" if need in capabilities.conflicts else f"a conflict for {need.value}"
    word, _, name = str(need).rpartition(" ")
    value: Any = capabilities
    for part in name.split("."):
        value = getattr(value, part)
    return "" if bool(value) is (word != "no") else f"{need}"


@pytest.fixture
def driver(sandbox: Sandbox, request: pytest.FixtureRequest) -> Any:
    """The driver under test. Tests that need something which it does not declare are skipped."""
    needs = [need for mark in request.node.iter_markers("needs") for need in mark.args]
    if missing := [text for need in needs if (text := find_undeclared(sandbox.driver.capabilities, need))]:
        pytest.skip(f"not declared: {', '.join(missing)}")
    return sandbox.driver


@pytest.fixture
def top(driver: Any, sandbox: Sandbox) -> Iterator[str]:
    """A folder that the test has to itself."""
    folder = sandbox.folder()
    yield folder
    sandbox.remove(folder)
