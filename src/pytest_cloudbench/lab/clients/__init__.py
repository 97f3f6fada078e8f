"""The registry of sync clients by name, which turns a spec or a TOML file into a client.

Nothing is started and no program is searched before ``prepare``.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.lab.clients.base import SyncClient
from pytest_cloudbench.lab.clients.reference.settings import OPTIONS
from pytest_cloudbench.model import ProviderSpec, SpecError, UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINTS = "pytest_cloudbench.clients"
"""The group of entry points by which other distributions bring clients. Their classes name their ``options``."""
_CLIENTS: Mapping[str, tuple[str, frozenset[str]]] = {
    "syncthing": ("pytest_cloudbench.lab.clients.syncthing:SyncthingClient", frozenset({"compression"})),
    "lsyncd": ("pytest_cloudbench.lab.clients.lsyncd:LsyncdClient", frozenset({"over", "compress"})),
    "unison": ("pytest_cloudbench.lab.clients.unison:UnisonClient", frozenset({"over"})),
    "rclone": ("pytest_cloudbench.lab.clients.rclone:RcloneClient", frozenset({"remote", "chunk_size"})),
    "restic": ("pytest_cloudbench.lab.clients.restic:ResticClient", frozenset({"server"})),
    "reference": ("pytest_cloudbench.lab.clients.reference.adapter:ReferenceClient", OPTIONS),
    "external": (
        "pytest_cloudbench.lab.clients.external:ExternalClient",
        frozenset("folder interface address names product servers process quiet_s quiet_bytes verify".split()),
    ),
}
"""Each name's class, and the options that it knows."""

_WRAPPERS: Mapping[str, tuple[str, frozenset[str], str]] = {
    "savingbox": (
        "pytest_cloudbench.lab.clients.savingbox:SavingboxClient",
        frozenset("bytes quiet at_most delay_at_most ranges".split()),
        "reference",
    ),
}
"""Each name's class, its own options, and the client it is ``over`` by default, which gets all other options."""


def client_names() -> tuple[str, ...]:
    """Return the names of all clients, also of other distributions, in alphabetical order."""
    return tuple(sorted({*_CLIENTS, *_WRAPPERS, *_find_installed()}))


def make_client(spec: str, **options: str) -> SyncClient:
    """Return a client that is not prepared yet.

    Args:
        spec: ``NAME[?KEY=VALUE&...]``, such as ``syncthing?compression=always``, or the path of a TOML file
            that describes a command (it has a ``/`` or ends in ``.toml``). ``savingbox?over=NAME&...`` puts a savingbox
            in front of another client, which gets the options that are not the savingbox's.
        options: the same as after the ``?``, and these take precedence.

    Raises UsageError (ConfigError for the TOML file) for a spec that cannot work.
    """
    path = spec.partition("?")[0]
    if path.endswith(".toml") or "/" in path:
        from pytest_cloudbench.lab.clients.command import CommandClient

        if options or path != spec:
            raise UsageError(f"client {spec!r}: a TOML file takes no options; change the file")
        return CommandClient.from_file(path)
    try:
        parsed = ProviderSpec.parse(spec)
    except SpecError as error:
        if "?" not in spec:
            raise _unknown_client(spec) from error
        raise UsageError(str(error).replace("provider", "client", 1)) from error
    is_ours = parsed.scheme in _CLIENTS or parsed.scheme in _WRAPPERS
    if parsed.target or not (is_ours or parsed.scheme in _find_installed()):
        raise _unknown_client(spec)
    client_options = {**parsed.params, **options}
    if parsed.scheme in _WRAPPERS:
        class_path, own_options, over = _WRAPPERS[parsed.scheme]
        own_values = {name: client_options.pop(name) for name in own_options & client_options.keys()}
        wrapped: SyncClient = _load_class(class_path)(
            own_values, make_client(client_options.pop("over", over), **client_options)
        )
        return wrapped
    client_class, known_options = _find_class(parsed.scheme)
    for name in client_options:
        if name not in known_options:
            expected = ", ".join(sorted(known_options)) or "none"
            raise UsageError(f"client {spec!r}: unknown option {name!r}; {parsed.scheme} knows: {expected}")
    result: SyncClient = client_class(client_options)
    return result


def _unknown_client(spec: str) -> UsageError:
    return UsageError(f"client {spec!r}: unknown; expected one of {', '.join(client_names())}, or a .toml file")


def _find_class(name: str) -> tuple[Any, Collection[str]]:
    """Return a client's class and the options that it knows. Raises UsageError if it cannot be imported."""
    if name in _CLIENTS:
        class_path, known_options = _CLIENTS[name]
        return _load_class(class_path), known_options
    point = _find_installed()[name]
    try:
        client_class = point.load()
    except Exception as error:  # whatever a stranger's module raises
        reason = f"{point.value} cannot be imported: {error!r}; mend or uninstall what brings it"
        raise UsageError(f"client {name!r}: {reason}") from error
    return client_class, getattr(client_class, "options", ())


def _find_installed() -> Mapping[str, EntryPoint]:
    """Return the clients of other distributions by their names. Imports none of them."""
    from importlib.metadata import entry_points  # here, because clients of this package do not need it

    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


def _load_class(class_path: str) -> Any:
    module, _, name = class_path.partition(":")
    return getattr(importlib.import_module(module), name)
