"""The registry: every scheme leads to a driver that fits the seam."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pytest_cloudbench import drivers
from pytest_cloudbench.model import ProviderSpec, SpecError, Verb
from pytest_cloudbench.payload import DIGESTS

from .conformance_table import TABLE


def test_schemes() -> None:
    """Each has its row of the conformance table: a driver that nobody checks is none."""
    assert drivers.schemes() == tuple(sorted(TABLE))
    assert {"dropbox", "folder"} <= TABLE.keys()


@pytest.mark.parametrize("scheme", ["dropbux", "emulated", ""])
def test_unknown_scheme_names_the_known_ones(scheme: str) -> None:
    with pytest.raises(SpecError, match=re.escape(f"there are: {', '.join(drivers.schemes())}")) as caught:
        drivers.connect(ProviderSpec(scheme, scheme, "", {}))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("scheme", drivers.schemes())
def test_what_is_declared_is_there(scheme: str) -> None:
    driver: Any = drivers.driver_class(scheme)
    assert driver.capabilities.digest in {None, *DIGESTS}
    assert {Verb.PUT, Verb.GET, Verb.STAT, Verb.LIST, Verb.DELETE} <= driver.capabilities.verbs
    assert [verb for verb in driver.capabilities.verbs if not hasattr(driver, verb.value)] == []
    undeclared = set(Verb) - driver.capabilities.verbs
    assert [verb for verb in undeclared if hasattr(driver, verb.value)] == []
