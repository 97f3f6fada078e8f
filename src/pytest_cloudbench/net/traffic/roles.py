"""What flows are for: control, storage, DNS. The rules are data, for each client, and a caller may supply others.

What may live here: reading rules, and the role of a flow under them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from pytest_cloudbench.model import ConfigError
from pytest_cloudbench.net.traffic.table import Flow

ROLES = ("control", "storage", "notification", "dns", "other")
"""``notification`` is control that waits for news (papers 002 and 004 count it apart); sums of control include it."""

_CONDITIONS = {
    "names": "a list of name patterns such as *.example.com", "ports": "a list of server ports",
    "min_payload_bytes": "a number of bytes", "max_payload_bytes": "a number of bytes",
    "direction": "up or down", "transport": "tcp, udp or quic",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rule:
    """A role and the conditions for a flow to have it. A condition that is None does not matter.

    Attributes:
        role: one of ``ROLES``.
        client: whose rule it is; empty for everybody's.
        names: patterns of the server's name, of which one must match.
        ports: server ports.
        min_payload_bytes, max_payload_bytes: payload of both directions together.
        direction: the direction with more payload.
        transport: ``quic`` is also ``udp``.
    """

    role: str
    client: str = ""
    names: tuple[str, ...] | None = None
    ports: tuple[int, ...] | None = None
    min_payload_bytes: int | None = None
    max_payload_bytes: int | None = None
    direction: str | None = None
    transport: str | None = None

    def names_fit(self, names: Sequence[str]) -> bool:
        """Whether a server with these names meets the condition on names."""
        return self.names is None or any(fnmatchcase(name, pattern) for name in names for pattern in self.names)

    def kind_fits(self, transport: str, port: int) -> bool:
        """Whether a flow of ``tcp``, ``udp`` or ``quic`` to this port meets the conditions on both."""
        kinds = {"quic": ("udp", "quic")}.get(transport, (transport,))
        return (self.ports is None or port in self.ports) and (self.transport is None or self.transport in kinds)

    def volume_fits(self, up_bytes: int, down_bytes: int) -> bool:
        """Whether a flow with this much payload meets the conditions on volume."""
        total, way = up_bytes + down_bytes, "up" if up_bytes >= down_bytes else "down"
        return (
            (self.min_payload_bytes is None or total >= self.min_payload_bytes)
            and (self.max_payload_bytes is None or total <= self.max_payload_bytes)
            and (self.direction is None or way == self.direction)
        )


class Roles:
    """Assigns roles to flows, by rules in the order in which they are tried."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self._for: dict[tuple[tuple[str, ...], str, int], list[Rule]] = {}  # many flows have the same server

    def of(self, flow: Flow, names: tuple[str, ...], *, is_quic: bool = False) -> str:
        """The role of the first rule that fits; ``other`` if none does.

        Args:
            flow: with its counts.
            names: what the server is called: by SNI, by DNS, or its address.
            is_quic: whether the flow is QUIC.
        """
        transport = "tcp" if flow.is_tcp else "quic" if is_quic else "udp"
        return self.find(names, transport, flow.server_port, flow.up.payload_bytes, flow.down.payload_bytes)

    def find(self, names: tuple[str, ...], transport: str, port: int, up_bytes: int, down_bytes: int) -> str:
        """The same for a flow of ``tcp``, ``udp`` or ``quic`` to a port, with this much payload each way."""
        rules = self._for.get((names, transport, port))
        if rules is None:
            rules = [rule for rule in self._rules if rule.names_fit(names) and rule.kind_fits(transport, port)]
            self._for[names, transport, port] = rules
        return next((rule.role for rule in rules if rule.volume_fits(up_bytes, down_bytes)), "other")


def parse_rules(text: str, source: str = "rules", client: str | None = None) -> tuple[Rule, ...]:
    """Read rules. Raises ConfigError that names the key and what was expected.

    Rules of clients come first, in the order of the text; the general ones, which look at volume, are tried last.

    Args:
        text: TOML: ``[[clients.NAME.rules]]`` and ``[[rules]]``, each with ``role`` and conditions.
        source: what errors call it.
        client: take the rules of this client only, beside the general ones.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(source, "", f"is no TOML ({error})") from error
    if unknown := document.keys() - {"clients", "rules"}:
        raise ConfigError(source, min(unknown), "unknown key, expected one of clients, rules")
    clients = document.get("clients", {})
    if not isinstance(clients, dict) or not all(isinstance(each, dict) for each in clients.values()):
        raise ConfigError(source, "clients", "expected tables such as [[clients.NAME.rules]]")
    if client is not None and client not in clients:
        raise ConfigError(source, "clients", f"has no rules for {client!r}, expected one of {', '.join(clients)}")
    found: list[Rule] = []
    for name, each in clients.items():
        if client in (None, name):
            found += _rules(each.get("rules", []), source, f"clients.{name}.rules", name)
    return (*found, *_rules(document.get("rules", []), source, "rules", ""))


def _rules(given: Any, source: str, where: str, client: str) -> list[Rule]:
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise ConfigError(source, where, f"expected tables such as [[{where}]]")
    return [_rule(each, source, f"{where}[{number}]", client) for number, each in enumerate(given)]


def _rule(given: Mapping[str, Any], source: str, where: str, client: str) -> Rule:
    def fail(key: str, expected: str) -> ConfigError:
        return ConfigError(source, f"{where}.{key}", f"{given.get(key)!r}: expected {expected}")

    for key in given:
        if key != "role" and key not in _CONDITIONS:
            raise ConfigError(source, f"{where}.{key}", f"unknown key, expected one of role, {', '.join(_CONDITIONS)}")
    if given.get("role") not in ROLES:
        raise fail("role", f"one of {', '.join(ROLES)}")
    values: dict[str, Any] = {}
    for key, expected in _CONDITIONS.items():
        if key not in given:
            continue
        value = given[key]
        kind = str if key == "names" else int
        is_list = key in ("names", "ports")
        if is_list:
            good = isinstance(value, list) and value and all(type(each) is kind for each in value)
        elif key.endswith("_bytes"):
            good = type(value) is int and value >= 0
        else:
            good = value in (("up", "down") if key == "direction" else ("tcp", "udp", "quic"))
        if not good:
            raise fail(key, expected)
        values[key] = tuple(each.lower() if kind is str else each for each in value) if is_list else value
    return Rule(given["role"], client, **values)
