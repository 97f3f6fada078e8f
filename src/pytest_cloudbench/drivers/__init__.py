"""The registry: which driver serves which scheme.

What may live here: one line per driver, and the functions that turn a spec into a connected driver. Nothing heavy is
imported before a driver is asked for, so a run pays only for the one it uses. Other schemes are looked up among the
entry points of installed distributions (group ``pytest_cloudbench.drivers``, name = scheme).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from os.path import basename
from traceback import extract_tb
from typing import TYPE_CHECKING, cast

from pytest_cloudbench.drivers.base import Composite, CredentialSet, Driver, Placed, check_class, check_declared
from pytest_cloudbench.drivers.surroundings import closed, rows_of
from pytest_cloudbench.model import SERVICE_SCHEMES, Endpoint, ProviderSpec, SpecError, UsageError, did_you_mean
from pytest_cloudbench.support import redact

ENTRY_POINTS = "pytest_cloudbench.drivers"
"""The group of entry points by which a distribution brings a driver; an entry point's name is the scheme."""

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_DRIVERS: Mapping[str, str] = {
    "azure": "pytest_cloudbench.drivers.azure:AzureDriver",
    "box": "pytest_cloudbench.drivers.box:BoxDriver",
    "dropbox": "pytest_cloudbench.drivers.dropbox:DropboxDriver",
    "dropbox+fast": "pytest_cloudbench.drivers.dropbox_fast:DropboxFastDriver",
    "folder": "pytest_cloudbench.drivers.folder:FolderDriver",
    "gcs": "pytest_cloudbench.drivers.gcs:GcsDriver",
    "gdrive": "pytest_cloudbench.drivers.gdrive:GoogleDriveDriver",
    "mega": "pytest_cloudbench.drivers.mega:MegaDriver",
    "onedrive": "pytest_cloudbench.drivers.onedrive:OneDriveDriver",
    "opendal": "pytest_cloudbench.drivers.opendal:OpendalDriver",
    "raid": "pytest_cloudbench.raid.driver:RaidDriver",
    "rclone": "pytest_cloudbench.drivers.rclone:RcloneDriver",
    "s3": "pytest_cloudbench.drivers.s3:S3Driver",
    "s3+fast": "pytest_cloudbench.drivers.s3_fast:S3FastDriver",
    "sftp": "pytest_cloudbench.drivers.sftp:SftpDriver",
    "swift": "pytest_cloudbench.drivers.swift:SwiftDriver",
    "tahoe": "pytest_cloudbench.drivers.tahoe:TahoeDriver",
    "webdav": "pytest_cloudbench.drivers.webdav:WebdavDriver",
}

_LIBRARIES: Mapping[str, tuple[str, str]] = {
    "azure": ("azure", "azure.storage.blob"),
    "box": ("box", "box_sdk_gen"),
    "dropbox+fast": ("dropbox-fast", "httpx"),
    "gcs": ("gcs", "google.cloud.storage"),
    "gdrive": ("gdrive", "googleapiclient"),
    "mega": ("mega", "mega"),
    "onedrive": ("onedrive", "httpx"),
    "opendal": ("opendal", "opendal"),
    "raid": ("raid", "numpy"),
    "rclone": ("rclone", "httpx"),
    "s3": ("s3", "boto3"),
    "s3+fast": ("s3-fast", "obstore"),
    "sftp": ("sftp", "paramiko"),
    "swift": ("swift", "swiftclient"),
    "tahoe": ("tahoe", "httpx"),
    "webdav": ("webdav", "webdav4"),
}
"""Maps a scheme to the extra that brings its library, and the library's module. Other schemes need no extra."""


def schemes() -> tuple[str, ...]:
    """Return the schemes whose drivers are part of this package, in alphabetical order."""
    return tuple(sorted(_DRIVERS))


def installed_schemes() -> tuple[str, ...]:
    """Return the schemes whose drivers other distributions bring, in alphabetical order. Imports none of them."""
    return tuple(sorted({point.name for point in _installed_drivers()} - _DRIVERS.keys()))


def has_driver(scheme: str) -> bool:
    """Return whether any process can find a driver of this name, here or among installed distributions."""
    return scheme in _DRIVERS or bool(_installed_drivers(scheme))


def driver_class(scheme: str) -> type[Driver]:
    """Return the driver class of a scheme. Imports no SDK.

    Raises SpecError, in one line, if there is none, if two distributions provide one, if its library is not installed,
    or if it cannot be used.
    """
    if scheme in _DRIVERS:
        if advice := missing_library(scheme):
            raise SpecError(f"provider {scheme!r}: {advice}")
        module_name, _, class_name = _DRIVERS[scheme].partition(":")
        return _checked_class(scheme, getattr(importlib.import_module(module_name), class_name))
    return _checked_class(scheme, _load_installed(scheme))


def _checked_class(scheme: str, candidate: object) -> type[Driver]:
    check_class(scheme, candidate)
    return cast("type[Driver]", candidate)


def _load_installed(scheme: str) -> object:
    """Return the object that another distribution offers as the driver of a scheme. Raises SpecError."""
    points = _installed_drivers(scheme)
    if not points:
        names = [*schemes(), *installed_schemes(), *sorted(SERVICE_SCHEMES)]
        problem = f"no driver has this name; there are: {', '.join(names)}{did_you_mean(scheme, names)}"
        raise SpecError(f"provider {scheme!r}: {problem}")
    if len(points) > 1:
        providers = ", ".join(sorted(f"{_distribution_name(point)} ({point.value})" for point in points))
        raise SpecError(
            f"provider {scheme!r}: several distributions bring this driver: {providers}; uninstall all but one"
        )
    try:
        return points[0].load()
    except (Exception, SystemExit) as error:  # another distribution's module may raise anything
        why = f"{points[0].value} cannot be imported: {type(error).__name__}: {_reason_of(error)}"
        raise SpecError(f"provider {scheme!r}: {why} (from {_distribution_name(points[0])})") from error


def _reason_of(error: BaseException) -> str:
    """Return the message of an error in one line."""
    return " ".join(str(error).split()) or "no reason given"


def missing_library(scheme: str) -> str:
    """Return how to install the library of a driver of this package, in one line. Empty if nothing is missing."""
    if scheme not in _LIBRARIES:
        return ""
    from pytest_cloudbench.support import extras

    extra, module = _LIBRARIES[scheme]
    return extras.missing_extra(extra, (module,))


def _installed_drivers(scheme: str | None = None) -> Sequence[EntryPoint]:
    """Return the entry points of other distributions: those of one scheme, or all. Imports none of them."""
    points = _scan_entry_points(tuple(sys.path))
    return tuple(point for point in points if scheme is None or point.name == scheme)


@lru_cache(maxsize=1)
def _scan_entry_points(_folders: tuple[str, ...]) -> Sequence[EntryPoint]:
    """Read the entry points of all distributions in ``sys.path``: once, because a session asks some 25 times.

    What is installed into these folders later is not seen by this process.
    """
    from importlib.metadata import entry_points  # here, because a run on a provider of this package does not need it

    return tuple(entry_points(group=ENTRY_POINTS))


def _distribution_name(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown distribution"


@dataclass(frozen=True, slots=True)
class BoundSpec:
    """A provider's spec, together with the class of the driver that reads it.

    A scheme is looked up once, by ``bind``. After that, functions pass this value on instead of the scheme.
    """

    spec: ProviderSpec
    driver: type[Driver]

    @property
    def credential_sets(self) -> Sequence[CredentialSet]:
        """The sets of fields by which the driver can log in. Empty if it needs none."""
        sets: Sequence[CredentialSet] = getattr(self.driver, "credential_sets", ())
        return sets

    @property
    def token_field(self) -> str:
        """The field that ``?token_env=`` fills: the only one of a set, and secret. Empty if no set has only one."""
        alone = (fields.required[0] for fields in self.credential_sets if len(fields.required) == 1)
        public = {name for fields in self.credential_sets for name in fields.public}
        return next((name for name in alone if name not in public), "")

    @property
    def owner(self) -> str:
        """The scheme under which users keep the driver's credentials.

        A second driver for the same accounts has the first one's scheme in its class attribute ``credentials_of``.
        """
        return str(getattr(self.driver, "credentials_of", self.spec.scheme))

    def absolute(self) -> str:
        """Return the spec in a form that means the same from every folder."""
        return self.driver.absolute(self.spec) if issubclass(self.driver, Placed) else self.spec.text

    def load_libraries(self) -> None:
        """Import what ``connect`` will need, for processes that are forked from this one. Connects to nothing."""
        with closed(rows_of(self.spec.scheme, self.driver)):  # some modules read the environment as they are imported
            for name in getattr(self.driver, "imports", ()):
                importlib.import_module(name)

    def connect(
        self, endpoint: Endpoint | None = None, credentials: Mapping[str, str] | None = None, *, is_part: bool = False
    ) -> Driver:
        """Return a driver ready for use, without a network call.

        A part of an array (``is_part``) may be unavailable, because an array works without some of its parts.

        For an emulated provider the caller passes the emulator's endpoint, and a spec that has the API's name as its
        scheme and only the driver's parameters.

        Raises UsageError, in one line, if the spec, the credentials, or a proxy or certificates that the user has set
        cannot work.
        """
        with closed(rows_of(self.spec.scheme, self.driver)):
            connect_driver = (
                getattr(self.driver, "connect_part", self.driver.connect) if is_part else self.driver.connect
            )
            try:
                driver: Driver = connect_driver(self.spec, endpoint, credentials or {})
            except Exception as error:
                if isinstance(error, UsageError) or self.spec.scheme in _DRIVERS:
                    raise
                raise SpecError(self._describe_foreign_error(error, credentials or {})) from error
        check_declared(self.spec.scheme, driver)
        return driver

    def _describe_foreign_error(self, error: Exception, credentials: Mapping[str, str]) -> str:
        """Return in one line what a driver of another distribution has raised, and where in its code."""
        redact.learn(credentials.values())
        raised = describe_raised(f"{self.driver.__qualname__}.connect", error, __file__)
        return f"provider {self.spec.scheme!r}: {raised}"

    def compose(self, children: Sequence[Driver]) -> Driver:
        """Return the driver of a composite provider, whose children are connected already. Raises SpecError."""
        if not issubclass(self.driver, Composite):
            raise SpecError(f"provider {self.spec.text!r}: {self.spec.scheme} is not made of other providers")
        driver = self.driver.compose(self.spec, children)
        check_declared(self.spec.scheme, driver)
        return driver


def describe_raised(name: str, error: Exception, caller: str) -> str:
    """Return in one line what a driver, or a function of it, has raised and where.

    Args:
        name: the driver's, or the function's.
        error: what it has raised.
        caller: the file that has called it, which is not named as the place of the error.
    """
    frames = [frame for frame in extract_tb(error.__traceback__) if frame.filename != caller]
    location = f" ({basename(frames[-1].filename)}, line {frames[-1].lineno})" if frames else ""
    return redact.clean(f"{name} raised {type(error).__name__}: {_reason_of(error)}") + location


def bind(spec: ProviderSpec) -> BoundSpec:
    """Look up the driver of a spec. Raises SpecError as ``driver_class`` does."""
    return BoundSpec(spec, driver_class(spec.scheme))


def connect(
    spec: ProviderSpec, endpoint: Endpoint | None = None, credentials: Mapping[str, str] | None = None,
    *, is_part: bool = False,
) -> Driver:  # fmt: skip
    """Return a driver ready for use, see ``BoundSpec.connect``."""
    return bind(spec).connect(endpoint, credentials, is_part=is_part)
