"""The addresses that this process is connected to."""

from __future__ import annotations

import socket
import sys

import pytest

from pytest_cloudbench.net.sockets.peers import list_peers, parse_address

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists sockets in /proc")


def test_a_connection_is_listed_while_it_is_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert ("127.0.0.1", port) not in list_peers()
        with socket.create_connection(("127.0.0.1", port)):
            assert ("127.0.0.1", port) in list_peers()
        assert ("127.0.0.1", port) not in list_peers()


@pytest.mark.skipif(sys.byteorder != "little", reason="the examples are of such a machine")
@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0100007F", "127.0.0.1"),
        ("0000000000000000FFFF0000010200C0", "192.0.2.1"),
        ("B80D0120000000000000000001000000", "2001:db8::1"),
    ],
)
def test_addresses_are_read_in_the_machines_order(text: str, address: str) -> None:
    assert parse_address(text) == address
