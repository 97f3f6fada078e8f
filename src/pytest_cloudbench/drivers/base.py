"""The one narrow seam between experiments and providers.

What may live here: the driver protocol and what all drivers share. Drivers never time, never retry
and never swallow: what goes wrong leaves as ``CloudError`` with the cause chained. The engine is the
only clock. A driver is safe to call from many threads at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from pytest_cloudbench import redact
from pytest_cloudbench.model import Capabilities, Content, CredentialsError, Endpoint, Entry, ProviderSpec, SpecError

__all__ = ["CredentialSet", "Driver", "Placed", "check_params", "usable_credentials"]


@dataclass(frozen=True, slots=True)
class CredentialSet:
    """One way to authenticate, as data: a driver that needs credentials declares ``credential_sets``.

    Attributes:
        required: names of the fields that it takes all of.
        optional: names of fields that may go with them.
        public: names of fields that only say who asks, and are no secret.
    """

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    public: tuple[str, ...] = ()


def check_params(spec: ProviderSpec, known: Collection[str]) -> None:
    """Raise SpecError for a parameter that the driver does not know: a typo must not pass for a setting."""
    for name in spec.params:
        if name not in known:
            expected = ", ".join(sorted(known)) or "none"
            raise SpecError(f"provider {spec.text!r}: unknown parameter {name!r}; {spec.scheme} knows: {expected}")


def usable_credentials(scheme: str, sets: Iterable[CredentialSet], credentials: Mapping[str, str]) -> Mapping[str, str]:
    """The first complete set of credentials, without the others; CredentialsError if there is none.

    From here on nothing shows what is secret of them.
    """
    for fields in sets:
        if all(credentials.get(name) for name in fields.required):
            names = (*fields.required, *fields.optional)
            usable = {name: _checked(scheme, name, credentials[name]) for name in names if credentials.get(name)}
            redact.learn(value for name, value in usable.items() if name not in fields.public)
            return usable
    wanted = ", or ".join(" and ".join(fields.required) for fields in sets)
    raise CredentialsError(f"{scheme}: credentials are missing: {wanted}")


def _checked(scheme: str, name: str, secret: str) -> str:
    # Here, because an HTTP library that finds it prints the value in its own message.
    if not secret.isascii() or not secret.isprintable() or " " in secret:
        raise CredentialsError(
            f"{scheme}: {name} holds a space or another character that it cannot have: copy it again"
        )
    return secret


@runtime_checkable
class Driver(Protocol):
    """A connection to one provider. Paths are absolute POSIX paths such as ``/run/s00001.bin``.

    Every method raises CloudError, and nothing else, when the provider refuses or fails.
    """

    capabilities: ClassVar[Capabilities]

    @classmethod
    def connect(cls, spec: ProviderSpec, endpoint: Endpoint | None, credentials: Mapping[str, str]) -> Driver:
        """A driver ready for use. ``endpoint`` is set when an emulator stands in for the provider.

        Raises SpecError or CredentialsError when the spec or the credentials cannot work.
        """
        ...

    def versions(self) -> Mapping[str, str]:
        """Names and versions of the libraries that do the work, for the results."""
        ...

    def put(self, path: str, content: Content) -> Entry:
        """Create or overwrite the file at ``path``; missing parent folders are created."""
        ...

    def get(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """The file's bytes from ``offset`` as they arrive; the first item marks the first byte."""
        ...

    def stat(self, path: str) -> Entry:
        """What the provider knows of one path."""
        ...

    def list(self, folder: str) -> Iterator[Entry]:
        """All files and folders below ``folder``, recursively, with size and digest."""
        ...

    def delete(self, path: str) -> None:
        """Remove a file, or a folder with all it holds."""
        ...

    def mkdir(self, path: str) -> None:
        """Create a folder and its parents; no error where it exists."""
        ...

    def close(self) -> None:
        """Release connections. The driver is not used afterwards."""
        ...


@runtime_checkable
class Placed(Protocol):
    """A driver whose spec depends on the current folder."""

    @classmethod
    def absolute(cls, spec: ProviderSpec) -> str:
        """The spec in a form that does not depend on the current folder. Raises SpecError."""
        ...
