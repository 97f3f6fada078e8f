"""Interruptions of real connections, as the server and the client notice them."""

from __future__ import annotations

import hashlib
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.model import UsageError
from pytest_cloudbench.net.link import Link, Way
from pytest_cloudbench.support.clock import wait_for
from tests.limits import HANG_S
from tests.net.link.peers import PATTERN
from tests.net.link.ways import open_or_skip

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="links need Linux"),
    pytest.mark.usefixtures("can_link"),
]

PEERS = str(Path(__file__).with_name("peers.py"))
SIZE_BYTES = 3_000_000


class Transfer:
    """One upload from client to server."""

    def __init__(self, link: Link, *, ipv6: bool = False, patience_s: float = 20.0) -> None:
        self.link = link
        address, patience = link.address("server", ipv6=ipv6), str(patience_s)
        self.server = link.popen(
            "server", [sys.executable, PEERS, "serve", address, patience], stdout=subprocess.PIPE, text=True
        )
        assert self.server.stdout is not None
        port = self.server.stdout.readline().strip()
        self.client = link.popen(
            "client", [sys.executable, PEERS, "send", address, port, str(SIZE_BYTES), patience], stdout=subprocess.PIPE
        )

    def end(self) -> tuple[dict[str, Any], dict[str, Any]]:
        client_output, _ = self.client.communicate(timeout=HANG_S)
        server_output, _ = self.server.communicate(timeout=HANG_S)
        return json.loads(client_output), json.loads(server_output)


def pattern_digest(size_bytes: int) -> str:
    return hashlib.sha256((PATTERN * (size_bytes // len(PATTERN) + 1))[:size_bytes]).hexdigest()


@pytest.mark.parametrize("mode", ["tun", "packet"])
@pytest.mark.parametrize("ipv6", [False, True], ids=["ipv4", "ipv6"])
def test_a_reset_hits_the_exact_byte(mode: str, ipv6: bool) -> None:
    with open_or_skip(up=Way(delay_ms=2), mode=mode) as link:
        link.interrupt("reset", at_byte=100_000)
        client_result, server_result = Transfer(link, ipv6=ipv6).end()
        (record,) = link.interruptions()
    assert client_result["error"] in ("ECONNRESET", "EPIPE")  # EPIPE: the reset came between two calls
    assert server_result["error"] == "ECONNRESET"
    assert server_result["bytes"] == 100_000
    assert server_result["sha256"] == pattern_digest(100_000)
    assert (record["passed_bytes"], record["flows"]) == (100_000, 1)


def test_a_reset_under_loss_passes_no_extra_bytes() -> None:
    with Link(Way(delay_ms=2, loss=0.03), interruptible=True, seed=5) as link:
        link.interrupt("reset", at_byte=100_000)
        client_result, server_result = Transfer(link).end()
        assert client_result["error"] in ("ECONNRESET", "EPIPE")
        assert server_result["error"] == "ECONNRESET"
        assert server_result["bytes"] <= 100_000
        assert server_result["sha256"] == pattern_digest(server_result["bytes"])
        client_result, server_result = Transfer(link).end()
    assert (client_result["answer"], server_result["sha256"]) == ("done", pattern_digest(SIZE_BYTES))


def test_a_drop_is_silent_at_both_ends() -> None:
    with Link(interruptible=True) as link:
        link.interrupt("drop", at_byte=100_000)
        client_result, server_result = Transfer(link, patience_s=1.0).end()
    assert (client_result["error"], server_result["error"]) == ("TimeoutError", "TimeoutError")
    assert (server_result["bytes"], server_result["sha256"]) == (100_000, pattern_digest(100_000))


def test_connections_survive_a_black_hole() -> None:
    with Link(Way(delay_ms=2), interruptible=True) as link:
        link.interrupt("black_hole", at_byte=500_000, duration_s=1.0)
        client_result, server_result = Transfer(link).end()
        (record,) = link.interruptions()
        counts = link.stats()["directions"]["up"]
    assert (client_result["answer"], server_result["bytes"], server_result["sha256"]) == (
        "done",
        SIZE_BYTES,
        pattern_digest(SIZE_BYTES),
    )
    assert client_result["seconds"] >= 1.0
    assert record["passed_bytes"] == 500_000
    assert counts["interrupted"] > 0


def test_a_timed_reset_ends_the_connection() -> None:
    with Link(Way(delay_ms=1, rate_bit_per_s=4e6), interruptible=True) as link:  # all bytes take 6 s
        transfer = Transfer(link)
        assert wait_for(lambda: link.stats()["directions"]["up"]["delivered"] > 10, HANG_S, poll_s=0.01)
        link.interrupt("reset", at_s=0.5)
        client_result, server_result = transfer.end()
        (record,) = link.interruptions()
    assert client_result["error"] in ("ECONNRESET", "EPIPE")
    assert server_result["error"] == "ECONNRESET"
    assert server_result["bytes"] < SIZE_BYTES
    assert record["happened_ns"] - record["armed_ns"] >= 0.5e9, "never early; on a busy machine it may be late"


@pytest.mark.parametrize(
    "wrong",
    [
        {"how": "explode", "at_byte": 1},
        {"how": "reset"},
        {"how": "reset", "at_byte": 1, "at_s": 1.0},
        {"how": "reset", "at_byte": 0},
        {"how": "reset", "at_byte": 1.5},
        {"how": "reset", "at_s": math.nan},
        {"how": "reset", "at_s": math.inf},
        {"how": "reset", "at_byte": 1, "duration_s": 1.0},
        {"how": "black_hole", "at_s": 1.0},
    ],
)
def test_impossible_interruptions_are_refused(wrong: dict[str, Any]) -> None:
    link = Link(mode="tun")
    with pytest.raises(UsageError):
        link.interrupt(**wrong)
