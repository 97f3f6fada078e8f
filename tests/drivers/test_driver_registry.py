"""The registry of drivers, in which every scheme leads to a driver with the common interface."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest

from pytest_cloudbench import drivers
from pytest_cloudbench.drivers.folder import FolderDriver
from pytest_cloudbench.model import ProviderSpec, SpecError, Verb
from pytest_cloudbench.support import redact
from pytest_cloudbench.workload.payload import DIGESTS

from .conformance_table import TABLE


def test_every_scheme_has_a_conformance_row() -> None:
    """A driver without a row in the conformance table would go unchecked."""
    assert drivers.schemes() == tuple(sorted(TABLE))
    assert {"dropbox", "folder"} <= TABLE.keys()


@pytest.mark.parametrize("scheme", ["dropbux", "emulated", ""])
def test_unknown_scheme_names_the_known_ones(scheme: str) -> None:
    with pytest.raises(SpecError, match=re.escape(f"there are: {', '.join(drivers.schemes())}")) as caught:
        drivers.connect(ProviderSpec(scheme, scheme, "", {}))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("scheme", drivers.schemes())
def test_driver_implements_exactly_its_declared_verbs(scheme: str) -> None:
    driver: Any = drivers.driver_class(scheme)
    assert driver.capabilities.digest in {None, *DIGESTS}
    assert {Verb.PUT, Verb.GET, Verb.STAT, Verb.LIST, Verb.DELETE} <= driver.capabilities.verbs
    assert [verb for verb in driver.capabilities.verbs if not hasattr(driver, verb.value)] == []
    undeclared = set(Verb) - driver.capabilities.verbs
    assert [verb for verb in undeclared if hasattr(driver, verb.value)] == []


DECLARED_OTHERWISE = {"dropbox": {"app_key"}, "dropbox+fast": {"app_key"}, "tahoe": {"cap"}}
"""Fields whose name contradicts the driver's declaration: an id called a key, and a capability."""


@pytest.mark.parametrize("scheme", drivers.schemes())
def test_fields_are_public_or_secret_as_their_names_say(scheme: str) -> None:
    """A wrong declaration would hide an id from the user, or show a secret."""
    sets = getattr(drivers.driver_class(scheme), "credential_sets", ())
    for fields in sets:
        names = {*fields.required, *fields.optional}
        assert names >= set(fields.public)
        mismatched = {name for name in names if redact.names_secret(name) == (name in fields.public)}
        assert mismatched <= DECLARED_OTHERWISE.get(scheme, set())


def make_class(*absent: str, **more: Any) -> type[Any]:
    """Make a driver class without the absent methods, and with more attributes."""
    names = {"connect", "versions", "put", "get", "stat", "list", "delete", "mkdir", "close"} - {*absent}
    methods = dict.fromkeys(names, classmethod(lambda *_: None))
    return type("Made", (), {"capabilities": FolderDriver.capabilities, **methods, **more})


@pytest.mark.parametrize(
    ("driver", "expected"),
    [
        (make_class("mkdir"), f"{__name__}:Made has no mkdir: every driver must have it"),
        (make_class("stat"), f"{__name__}:Made has no stat: every driver must have it"),
        (make_class(connect=lambda *_: make_class("stat")()), "Made has no stat: every driver must have it"),
    ],
)
def test_a_missing_method_is_one_line_for_drivers_of_the_package_too(
    driver: type[Any], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same holds if ``connect`` returns an object of another class than the registered one."""
    monkeypatch.setattr(sys.modules[__name__], "Registered", driver, raising=False)
    monkeypatch.setattr(drivers, "_DRIVERS", {"made": f"{__name__}:Registered"})
    with pytest.raises(SpecError) as caught:
        drivers.connect(ProviderSpec.parse("made:"))
    assert str(caught.value) == f"provider 'made': {expected}"
