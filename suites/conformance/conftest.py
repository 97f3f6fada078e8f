"""The driver under test, and which tests are for it: what its capabilities declare is demanded, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cloudbench import Conflict, Verb

if TYPE_CHECKING:
    from pytest_cloudbench import Capabilities, Sandbox


def pytest_configure(config: pytest.Config) -> None:
    """The mark that ``declared`` reads."""
    config.addinivalue_line("markers", "needs(what, ...): run a conformance test for drivers that declare this")


def undeclared(capabilities: Capabilities, what: object) -> str:
    """What a test needs and a driver does not declare, in words; empty where it declares it.

    A verb, a conflict, the name of a capability, or that name after ``no`` for one that must not be declared.
    """
    if isinstance(what, Verb):
        return "" if what in capabilities.verbs else what.value
    if isinstance(what, Conflict):
        return "" if what in capabilities.conflicts else f"a conflict for {what.value}"
    word, _, name = str(what).rpartition(" ")
    value: Any = capabilities
    for part in name.split("."):
        value = getattr(value, part)
    return "" if bool(value) is (word != "no") else f"{what}"


@pytest.fixture
def driver(sandbox: Sandbox, request: pytest.FixtureRequest) -> Any:
    """The driver under test; a test that it declares too little for is skipped."""
    needs = [what for mark in request.node.iter_markers("needs") for what in mark.args]
    if missing := [told for what in needs if (told := undeclared(sandbox.driver.capabilities, what))]:
        pytest.skip(f"not declared: {', '.join(missing)}")
    return sandbox.driver


@pytest.fixture
def top(driver: Any, sandbox: Sandbox) -> Iterator[str]:
    """A folder of the test's own."""
    folder = sandbox.folder()
    yield folder
    sandbox.remove(folder)
