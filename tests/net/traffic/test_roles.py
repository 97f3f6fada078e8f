"""Rules for roles: those that ship, those of users, and errors in them."""

from __future__ import annotations

from fnmatch import fnmatchcase
from ipaddress import ip_address
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_cloudbench.data import read_flow_rules
from pytest_cloudbench.model import ConfigError
from pytest_cloudbench.net.traffic import parse_rules
from pytest_cloudbench.net.traffic.roles import Roles, Rule
from pytest_cloudbench.net.traffic.table import Flow, Side


def flow(up: int = 100, down: int = 100, *, port: int = 443, protocol: int = 6) -> Flow:
    ends = (ip_address("10.0.0.1"), 4000, ip_address("10.0.0.2"), port)
    return Flow(0, protocol, *ends, "syn", 0, 1, Side(payload_bytes=up), Side(payload_bytes=down))


SHIPPED = parse_rules(read_flow_rules())


@pytest.mark.parametrize(
    ("name", "up", "expected"),
    [
        ("content.dropboxapi.com", 10, "storage"), ("api.dropboxapi.com", 10**9, "control"),
        ("notify.dropboxapi.com", 10, "notification"), ("www.googleapis.com", 10**6, "storage"),
        ("www.googleapis.com", 10, "control"), ("upload.box.com", 10, "storage"), ("10.0.0.2", 10, "control"),
        ("10.0.0.2", 10**6, "storage"),
    ],
)  # fmt: skip
def test_shipped_rules_assign_roles(name: str, up: int, expected: str) -> None:
    assert Roles(SHIPPED).find_role(flow(up), (name,)) == expected


def test_general_rules_use_transport_port_and_volume() -> None:
    assert Roles(SHIPPED).find_role(flow(port=53, protocol=17), ("10.0.0.2",)) == "dns"
    assert Roles(SHIPPED).find_role(flow(protocol=17), ("10.0.0.2",)) == "other"
    assert Roles(SHIPPED).find_role(flow(protocol=17), ("10.0.0.2",), is_quic=True) == "control"
    assert Roles(SHIPPED).find_role(flow(port=22_000), ("10.0.0.2",)) == "storage"
    assert Roles(()).find_role(flow(), ("x",)) == "other"


def test_rules_of_a_client_come_first() -> None:
    text = """
    [[rules]]
    role = "storage"
    direction = "up"
    max_payload_bytes = 1000
    [[clients.mine.rules]]
    role = "control"
    names = ["*.Example.com"]
    [[clients.other.rules]]
    role = "dns"
    """
    rules = parse_rules(text, client="mine")
    assert [(rule.role, rule.client) for rule in rules] == [("control", "mine"), ("storage", "")]
    assert Roles(rules).find_role(flow(200, 100), ("a.example.com",)) == "control", "a client's rules come first"
    assert Roles(rules).find_role(flow(200, 100), ("a.example.org",)) == "storage"
    assert Roles(rules).find_role(flow(100, 200), ("a.example.org",)) == "other"
    assert Roles(rules).find_role(flow(2000), ("a.example.org",)) == "other"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("=", "not TOML"), ("x = " + "[" * 5_000, "not TOML"), ("x = " + "1" * 5_000, "not TOML"),
        ("x = 1", "x: unknown key, expected one of clients, rules"),
        ("rules = 3", r"rules: expected tables"), ("clients = 3", "clients: expected tables"),
        ("[[rules]]", r"rules\[0\].role: None: expected one of control"),
        ('[[rules]]\nrole="big"', "'big': expected one of control"),
        ('[[rules]]\nrole="dns"\nport=[1]', r"rules\[0\].port: unknown key, expected one of role, names"),
        ('[[rules]]\nrole="dns"\nports=[]', "ports: .*a list of server ports"),
        ('[[rules]]\nrole="dns"\nports=[true]', "ports"), ('[[rules]]\nrole="dns"\nnames="x"', "names: 'x'"),
        ('[[rules]]\nrole="dns"\nmin_payload_bytes=-1', "min_payload_bytes: -1: expected a number of bytes"),
        ('[[rules]]\nrole="dns"\ndirection="left"', "direction: 'left': expected up or down"),
        ('[[clients.a.rules]]\nrole="dns"\ntransport=1', r"clients\.a\.rules\[0\]\.transport"),
    ],
)  # fmt: skip
def test_wrong_rules_name_the_key(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_rules(text, "mine.toml")


def test_an_unknown_client_is_refused() -> None:
    with pytest.raises(ConfigError, match="no rules for 'nobody', expected one of a"):
        parse_rules('[[clients.a.rules]]\nrole="dns"', client="nobody")


def test_a_missing_rules_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_flow_rules(tmp_path / "none.toml")


@example("a.b", "*.b")
@given(st.text("ab.]", max_size=6), st.text("ab.*?[]!-", max_size=6))
def test_a_pattern_matches_as_in_file_names(name: str, pattern: str) -> None:
    assert Rule("control", names=(pattern,)).matches_names((name,)) == fnmatchcase(name, pattern)
