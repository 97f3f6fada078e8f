"""Roles of flows (control, storage, DNS, ...), assigned by rules that are data for each client or from the caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, NamedTuple

from pytest_cloudbench.model import ConfigError
from pytest_cloudbench.net.traffic.table import Flow
from pytest_cloudbench.support.opening import parse_toml

ROLES = ("control", "storage", "notification", "dns", "other")
"""All roles. ``notification`` is control traffic that waits for news. Papers 002 and 004 count it separately, and sums
of control include it."""

_CONDITIONS = {
    "names": "a list of name patterns such as *.example.com", "ports": "a list of server ports",
    "min_payload_bytes": "a number of bytes", "max_payload_bytes": "a number of bytes",
    "direction": "up or down", "transport": "tcp, udp or quic",
}  # fmt: skip


class Rule(NamedTuple):
    """A role with the conditions for a flow to have it, each of which may be None.

    Attributes:
        role: one of ``ROLES``.
        client: name of the client that it applies to, or empty for all.
        names: patterns, one of which must match a name of the server.
        ports: server ports.
        min_payload_bytes, max_payload_bytes: bounds on the payload of both directions together.
        direction: the direction with more payload.
        transport: ``tcp``, ``udp`` or ``quic``. QUIC flows also match ``udp``.
    """

    role: str
    client: str = ""
    names: tuple[str, ...] | None = None
    ports: tuple[int, ...] | None = None
    min_payload_bytes: int | None = None
    max_payload_bytes: int | None = None
    direction: str | None = None
    transport: str | None = None

    def matches_names(self, names: Sequence[str]) -> bool:
        """Return whether a server with these names meets the condition on names."""
        return self.names is None or any(_fits_pattern(name, pattern) for name in names for pattern in self.names)

    def matches_transport(self, transport: str, port: int) -> bool:
        """Return whether a flow of ``tcp``, ``udp`` or ``quic`` to this port meets the conditions on both."""
        kinds = {"quic": ("udp", "quic")}.get(transport, (transport,))
        return (self.ports is None or port in self.ports) and (self.transport is None or self.transport in kinds)

    def matches_volume(self, up_bytes: int, down_bytes: int) -> bool:
        """Return whether a flow with this much payload meets the conditions on volume."""
        total, way = up_bytes + down_bytes, "up" if up_bytes >= down_bytes else "down"
        return (
            (self.min_payload_bytes is None or total >= self.min_payload_bytes)
            and (self.max_payload_bytes is None or total <= self.max_payload_bytes)
            and (self.direction is None or way == self.direction)
        )


def _fits_pattern(name: str, pattern: str) -> bool:
    """Return whether a name fits a pattern. The ends are compared first, because ``fnmatchcase`` is slow at first."""
    return name.endswith(_find_plain_end(pattern)) and fnmatchcase(name, pattern)


@cache
def _find_plain_end(pattern: str) -> str:
    """Return the end of a pattern that stands for itself."""
    return pattern[max(pattern.rfind(special) for special in "*?]") + 1 :]


class Roles:
    """An assignment of roles to flows by rules, which are tried in order."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        # A cache, because many flows have the same server.
        self._rules_by_server: dict[tuple[tuple[str, ...], str, int], list[Rule]] = {}

    def find_role(self, flow: Flow, names: tuple[str, ...], *, is_quic: bool = False) -> str:
        """Return the role of the first matching rule, or ``other`` if none matches.

        Args:
            flow: the flow with its counts.
            names: the server's names, see ``FlowFacts.names_for_role``.
            is_quic: whether the flow is QUIC.
        """
        transport = "tcp" if flow.is_tcp else "quic" if is_quic else "udp"
        return self.find_role_of(names, transport, flow.server_port, flow.up.payload_bytes, flow.down.payload_bytes)

    def find_role_of(self, names: tuple[str, ...], transport: str, port: int, up_bytes: int, down_bytes: int) -> str:
        """Return the role of a flow that is given by its values. ``transport`` is ``tcp``, ``udp`` or ``quic``."""
        rules = self._rules_by_server.get((names, transport, port))
        if rules is None:
            rules = [
                rule for rule in self._rules if rule.matches_names(names) and rule.matches_transport(transport, port)
            ]
            self._rules_by_server[names, transport, port] = rules
        for rule in rules:
            if rule.matches_volume(up_bytes, down_bytes):
                return rule.role
        return "other"


def parse_rules(text: str, source: str = "rules", client: str | None = None) -> tuple[Rule, ...]:
    """Parse rules. Raises ConfigError with the key and the expected value.

    Rules of clients come first, in the order of the text. The general ones, which check volume, are tried last.

    Args:
        text: TOML with ``[[clients.NAME.rules]]`` and ``[[rules]]``, each with ``role`` and conditions.
        source: the text's name in errors.
        client: the only client whose rules to use, besides the general ones.
    """
    document = parse_toml(text, source, "rules for flows")
    if unknown := document.keys() - {"clients", "rules"}:
        raise ConfigError(source, min(unknown), "unknown key, expected one of clients, rules")
    clients = document.get("clients", {})
    if not isinstance(clients, dict) or not all(isinstance(table, dict) for table in clients.values()):
        raise ConfigError(source, "clients", "expected tables such as [[clients.NAME.rules]]")
    if client is not None and client not in clients:
        raise ConfigError(source, "clients", f"has no rules for {client!r}, expected one of {', '.join(clients)}")
    rules: list[Rule] = []
    for name, table in clients.items():
        if client in (None, name):
            rules += _parse_rule_list(table.get("rules", []), source, f"clients.{name}.rules", name)
    return (*rules, *_parse_rule_list(document.get("rules", []), source, "rules", ""))


def _parse_rule_list(tables: Any, source: str, path: str, client: str) -> list[Rule]:
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ConfigError(source, path, f"expected tables such as [[{path}]]")
    return [_parse_rule(table, source, f"{path}[{number}]", client) for number, table in enumerate(tables)]


def _parse_rule(table: Mapping[str, Any], source: str, path: str, client: str) -> Rule:
    def fail(key: str, expected: str) -> ConfigError:
        return ConfigError(source, f"{path}.{key}", f"{table.get(key)!r}: expected {expected}")

    for key in table:
        if key != "role" and key not in _CONDITIONS:
            raise ConfigError(source, f"{path}.{key}", f"unknown key, expected one of role, {', '.join(_CONDITIONS)}")
    if table.get("role") not in ROLES:
        raise fail("role", f"one of {', '.join(ROLES)}")
    values: dict[str, Any] = {}
    for key, expected in _CONDITIONS.items():
        if key not in table:
            continue
        value = table[key]
        kind = str if key == "names" else int
        is_list = key in ("names", "ports")
        if is_list:
            is_valid = isinstance(value, list) and value and all(type(item) is kind for item in value)
        elif key.endswith("_bytes"):
            is_valid = type(value) is int and value >= 0
        else:
            is_valid = value in (("up", "down") if key == "direction" else ("tcp", "udp", "quic"))
        if not is_valid:
            raise fail(key, expected)
        values[key] = tuple(item.lower() if kind is str else item for item in value) if is_list else value
    return Rule(table["role"], client, **values)
