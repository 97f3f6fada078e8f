"""The registry: which driver serves which scheme.

What may live here: one line per driver, and what turns a spec into a connected driver. Nothing heavy is
imported before a driver is asked for, so that a run pays for the one it uses.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import cast

from pytest_cloudbench.drivers.base import Driver, Placed
from pytest_cloudbench.model import Endpoint, ProviderSpec, SpecError

__all__ = ["absolute", "connect", "driver_class", "schemes"]

_DRIVERS: Mapping[str, str] = {
    "dropbox": "pytest_cloudbench.drivers.dropbox:DropboxDriver",
    "folder": "pytest_cloudbench.drivers.folder:FolderDriver",
}


def schemes() -> tuple[str, ...]:
    """The schemes that have a driver, in alphabetical order."""
    return tuple(sorted(_DRIVERS))


def driver_class(scheme: str) -> type[Driver]:
    """The driver of one scheme, for its capabilities and the credentials it needs; imports no SDK."""
    if scheme not in _DRIVERS:
        raise SpecError(f"provider {scheme!r}: no driver has this name; there are: {', '.join(schemes())}")
    module_name, _, class_name = _DRIVERS[scheme].partition(":")
    return cast("type[Driver]", getattr(importlib.import_module(module_name), class_name))


def absolute(spec: ProviderSpec) -> str:
    """The provider's spec in a form that means the same from every folder."""
    driver = driver_class(spec.scheme)
    return driver.absolute(spec) if issubclass(driver, Placed) else spec.text


def connect(
    spec: ProviderSpec, endpoint: Endpoint | None = None, credentials: Mapping[str, str] | None = None
) -> Driver:
    """A driver ready for use, without a network call.

    For an emulated provider the caller passes the emulator's endpoint, and a spec whose scheme is the
    name of the API and whose parameters are the driver's alone.

    Raises SpecError or CredentialsError when the spec or the credentials cannot work.
    """
    return driver_class(spec.scheme).connect(spec, endpoint, credentials or {})
