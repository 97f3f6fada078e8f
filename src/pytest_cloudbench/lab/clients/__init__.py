"""The registry of sync clients by name.

What may live here: one line per client, and what turns a spec or a TOML file into a client. Nothing is started
and no program is searched before ``prepare``.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from pytest_cloudbench.lab.clients.base import SyncClient
from pytest_cloudbench.lab.clients.reference.settings import OPTIONS
from pytest_cloudbench.model import ProviderSpec, SpecError, UsageError

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
"""Name to its class and the options that it knows."""

_WRAPPERS: Mapping[str, tuple[str, frozenset[str], str]] = {
    "savingbox": (
        "pytest_cloudbench.lab.clients.savingbox:SavingboxClient",
        frozenset("bytes quiet at_most delay_at_most ranges".split()),
        "reference",
    ),
}
"""Name to its class, its own options, and which client it is ``over`` by default; that one gets all other options."""


def names() -> tuple[str, ...]:
    """The registered client names, in alphabetical order."""
    return tuple(sorted({*_CLIENTS, *_WRAPPERS}))


def client(spec: str, **options: str) -> SyncClient:
    """A client, not yet prepared.

    Args:
        spec: ``NAME[?KEY=VALUE&...]``, such as ``syncthing?compression=always``; or the path of a TOML file
            that describes a command (it has a ``/`` or ends in ``.toml``). ``savingbox?over=NAME&...`` puts a savingbox
            in front of another client, which gets the options that are not the savingbox's.
        options: the same as after the ``?``; these take precedence.

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
        raise UsageError(str(error).replace("provider", "client", 1)) from error
    if parsed.scheme not in names() or parsed.target:
        known = ", ".join(names())
        raise UsageError(f"client {spec!r}: unknown; expected one of {known}, or a .toml file")
    given = {**parsed.params, **options}
    if parsed.scheme in _WRAPPERS:
        where, own_options, over = _WRAPPERS[parsed.scheme]
        own = {name: given.pop(name) for name in own_options & given.keys()}
        wrapped: SyncClient = _class(where)(own, client(given.pop("over", over), **given))
        return wrapped
    where, known_options = _CLIENTS[parsed.scheme]
    for name in given:
        if name not in known_options:
            expected = ", ".join(sorted(known_options)) or "none"
            raise UsageError(f"client {spec!r}: unknown option {name!r}; {parsed.scheme} knows: {expected}")
    made: SyncClient = _class(where)(given)
    return made


def _class(where: str) -> Any:
    module, _, name = where.partition(":")
    return getattr(importlib.import_module(module), name)
