"""A test that asks for another host is found, even if the code under test swallows the error. Loopback passes."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import urllib.request
from typing import Any

import pytest

from tests.limits import HANG_S
from tests.network_guard import GUARD, with_index

pytest_plugins = ["pytester"]
DOCUMENTED = "192.0.2.1"
"""An address that belongs to nobody (RFC 5737)."""


@pytest.mark.parametrize("address", [(DOCUMENTED, 443), ("2001:db8::1", 443, 0, 0), ("example.com", 443)])
def test_a_connection_is_refused_and_noted(address: tuple[Any, ...]) -> None:
    family = socket.AF_INET6 if len(address) > 2 else socket.AF_INET
    for connect in ("connect", "connect_ex"):
        with socket.socket(family) as sock, pytest.raises(OSError, match="a test connects to"):
            getattr(sock, connect)(address)
        assert GUARD.take_requests() == [address[0]]


def test_a_name_is_not_looked_up() -> None:
    with pytest.raises(socket.gaierror):
        socket.create_connection(("example.com", 443), timeout=HANG_S)

    async def ask() -> None:
        await asyncio.open_connection("example.org", 443)

    with pytest.raises(socket.gaierror):
        asyncio.run(ask())
    assert GUARD.take_requests() == ["example.com", "example.org"]


def test_a_client_that_takes_the_proxy_of_the_environment_is_noted_too() -> None:
    with pytest.raises(OSError, match="a test connects to a host behind the proxy"):
        urllib.request.urlopen("https://example.com/", timeout=HANG_S)
    assert GUARD.take_requests() == ["a host behind the proxy"]


def test_child_process_cannot_reach_other_hosts() -> None:
    code = "import urllib.request as u\ntry: u.urlopen('https://example.com/')\nexcept OSError as error: print(error)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_S, check=True)
    assert "refused" in done.stdout
    assert "HTTPS_PROXY" not in with_index()
    assert GUARD.take_requests() == []


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_loopback_is_let_pass(family: socket.AddressFamily, address: str) -> None:
    try:
        listener = socket.create_server((address, 0), family=family)
    except OSError as error:
        pytest.skip(f"no {address} here: {error}")
    with listener, socket.create_connection(listener.getsockname()[:2], timeout=HANG_S) as talker:
        assert talker.getpeername()[1] == listener.getsockname()[1]
    socket.getaddrinfo("localhost", 80)
    assert GUARD.take_requests() == []


def test_test_that_contacts_another_host_fails(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("from tests.conftest import pytest_runtest_teardown")
    pytester.makepyfile("""
        import socket
        from contextlib import suppress

        def test_asks():
            with suppress(OSError):
                socket.create_connection(("example.com", 443))

        def test_does_not():
            pass
    """)
    run = pytester.runpytest_inprocess("-p", "no:cloudbench", "-p", "no:benchmark", "-p", "no:xdist")
    run.assert_outcomes(passed=2, errors=1)
    run.stdout.fnmatch_lines(["*test_asks*", "*a test goes to loopback only, and this one asked for example.com*"])
