"""A provider as agents on other hosts get it: with a way to its services here, and with its credentials.

Such an agent has neither this machine's loopback nor its environment, keyring and files. It gets what its driver needs
and nothing else, in the answer to its question. Files are in its memory only. Fifty agents import this module.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from pytest_cloudbench.drivers import egress
from pytest_cloudbench.drivers.base import Described
from pytest_cloudbench.model import ConfigError, CredentialsError, Endpoint, UsageError
from pytest_cloudbench.providers.for_agents import Provided, SentAlong
from pytest_cloudbench.providers.leaves import load_credentials, remaining_s
from pytest_cloudbench.support import opening

FindPort = Callable[[tuple[str, int]], int]
"""Returns the port of an agent's loopback that leads to an address of this machine. Raises FleetError."""

_FILE_FIELDS = re.compile(r".*_file|known_hosts")
"""Fields of credentials that name a file."""
_LEAST_LEFT_S = 120.0
"""A token that ends sooner is no longer given to a driver."""


# --- the controller's half ----------------------------------------------------------------------------


def prepare(provided: Provided, find_port: FindPort | None) -> Provided:
    """Return what an agent on another host needs to connect to a provider.

    Raises CredentialsError, and UsageError if a service of this machine stands in for the provider and the host cannot
    reach it, or if the provider keeps its metadata on this machine.
    """
    if provided.children:
        bound = provided.bind()
        if issubclass(bound.driver, Described):
            raise UsageError(
                f"{bound.spec.scheme}: its metadata is on this machine only, and agents on other hosts "
                "lack it: leave --cloudbench-hosts out"
            )
        return provided.replace(children=tuple(prepare(child, find_port) for child in provided.children))
    endpoint = provided.endpoint
    if endpoint is None:
        credentials = load_credentials(provided.bind(), provided.account)
        files = _read_files(_file_names(credentials))
        return provided.replace(sent=SentAlong(dict(credentials), files, remaining_s(credentials)))
    moves = dict[str, str]()
    for host, port in _list_loopback(endpoint):
        if find_port is None:
            raise UsageError(
                f"{provided.spec} is started on this machine and listens on its loopback, which no agent on another "
                "host reaches: name hosts by --cloudbench-hosts, or a provider that all hosts reach"
            )
        moves |= {f"{form}:{port}": f"{form}:{find_port((host, port))}" for form in (host, f"[{host}]")}
    contents = _read_files([*filter(None, [endpoint.ca_file]), *_file_names(endpoint.credentials)])
    files = {name: _move(content.decode("latin-1"), moves).encode("latin-1") for name, content in contents.items()}
    return provided.replace(endpoint=_move_endpoint(endpoint, moves), sent=SentAlong({}, files))


def _list_loopback(endpoint: Endpoint) -> tuple[tuple[str, int], ...]:
    """Return host and port of those services of an endpoint that listen on this machine's loopback."""
    urls = [*endpoint.urls.values(), endpoint.proxy]
    return Endpoint({url: url for url in urls if egress.is_on_this_machine(url)}).addresses


def _move_endpoint(endpoint: Endpoint, moves: Mapping[str, str]) -> Endpoint:
    urls = {role: _move(url, moves) for role, url in endpoint.urls.items()}
    credentials = {name: _move(value, moves) for name, value in endpoint.credentials.items()}
    return replace(endpoint, urls=urls, credentials=credentials, control="", proxy=_move(endpoint.proxy, moves))


def _move(text: str, moves: Mapping[str, str]) -> str:
    """Return a text with its addresses replaced. A digit after the port would make it another port, which stays."""
    if not moves:
        return text
    pattern = "|".join(map(re.escape, moves))
    return re.sub(rf"({pattern})(?!\d)", lambda match: moves[match[1]], text)


def _file_names(credentials: Mapping[str, str]) -> list[str]:
    return [value for name, value in credentials.items() if _FILE_FIELDS.fullmatch(name)]


def _read_files(names: Iterable[str]) -> dict[str, bytes]:
    from pytest_cloudbench.support.opening import read_file

    contents = {}
    for name in names:
        try:
            contents[name] = read_file(Path(name).expanduser())
        except (OSError, ValueError) as error:
            raise CredentialsError(f"{name}: cannot be read: {opening.explain_error(error)}") from error
    return contents


# --- an agent's half ----------------------------------------------------------------------------------


def unpack(provided: Provided) -> Provided:
    """Return a provider whose files are in memory, under names that programs started by this process can open.

    Raises ConfigError where the system has no such files.
    """
    if provided.sent is None or not provided.sent.files:
        return provided
    names = {name: _keep_in_memory(content) for name, content in provided.sent.files.items()}
    sent, endpoint = provided.sent, provided.endpoint
    if endpoint is not None:
        endpoint = replace(
            endpoint, ca_file=names.get(endpoint.ca_file, endpoint.ca_file),
            credentials=_rename(endpoint.credentials, names),
        )  # fmt: skip
    return provided.replace(
        endpoint=endpoint, sent=replace(sent, credentials=_rename(sent.credentials, names), files={})
    )


def receive_credentials(sent: SentAlong) -> Callable[[], Mapping[str, str]]:
    """Return a function that returns the credentials which were sent, and raises CredentialsError once they end."""
    if sent.lasts_s is None:
        return lambda: sent.credentials
    from pytest_cloudbench.providers.renewal import RenewedToken

    token = RenewedToken(sent.credentials["access_token"], time.time() + sent.lasts_s)

    def load() -> Mapping[str, str]:
        if token.remaining_s < _LEAST_LEFT_S:
            raise CredentialsError("this host's access token ends, and none is sent during a session: run shorter ones")
        return token

    return load


def _rename(credentials: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    return {
        field: names.get(value, value) if _FILE_FIELDS.fullmatch(field) else value
        for field, value in credentials.items()
    }


def _keep_in_memory(content: bytes) -> str:
    """Return the name of a file that exists as long as this process. No other user can read it."""
    if not hasattr(os, "memfd_create"):
        raise ConfigError("a file with credentials", "", "it is kept in memory on other hosts, which needs Linux there")
    descriptor = os.memfd_create("cloudbench")
    os.fchmod(descriptor, 0o600)
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(content)
    return f"/proc/{os.getpid()}/fd/{descriptor}"
