"""The registry: every scheme leads to a driver that fits the seam."""

from __future__ import annotations

import pytest

from pytest_cloudbench import drivers
from pytest_cloudbench.model import ProviderSpec, SpecError, Verb
from pytest_cloudbench.payload import DIGESTS


def test_schemes() -> None:
    assert drivers.schemes() == ("dropbox", "folder")


@pytest.mark.parametrize("scheme", ["dropbux", "emulated", ""])
def test_unknown_scheme_names_the_known_ones(scheme: str) -> None:
    with pytest.raises(SpecError, match="there are: dropbox, folder") as caught:
        drivers.connect(ProviderSpec(scheme, scheme, "", {}))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("scheme", drivers.schemes())
def test_what_is_declared_is_there(scheme: str) -> None:
    driver = drivers.driver_class(scheme)
    assert driver.capabilities.digest in DIGESTS
    assert {Verb.PUT, Verb.GET, Verb.STAT, Verb.LIST, Verb.DELETE} <= driver.capabilities.verbs
    assert [verb for verb in driver.capabilities.verbs if not hasattr(driver, verb.value)] == []
    undeclared = set(Verb) - driver.capabilities.verbs
    assert [verb for verb in undeclared if hasattr(driver, verb.value)] == []
