"""What links really deliver, by measuring it. Tolerances are in each test; skips where no link can be made."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from pytest_cloudbench.model import UsageError
from pytest_cloudbench.net.link import Delivered, Link, LinkError, LinkUnavailable, Way
from pytest_cloudbench.net.link.delivered import DeliveredWay
from pytest_cloudbench.net.link.devices import INTERFACE
from tests.limits import HANG_S
from tests.net.link.ways import open_or_skip
from tests.unprivileged import needs_root, run_as_nobody

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="links need Linux"),
    pytest.mark.usefixtures("can_link"),
]

MODES = ["netem", "tun", "packet"]


def measured(link: Link, stream_s: float = 0, rel: float = math.inf) -> Delivered:
    """What it delivers; measured again, at most twice, where the link itself says that it is not as asked.

    The link judges its rate by datagrams. A pause of this machine makes a stream slower than that: ``rel`` is how close
    to the rate the test needs its streams. On a machine with more work than cores nothing can be said.
    """
    for _ in range(3):
        got = link.measure(stream_s=stream_s)
        off = [*got.off, *slow_streams(link, got, rel)]
        if not off:
            return got
    if os.getloadavg()[0] > (os.cpu_count() or 1):
        pytest.skip(f"this machine is too busy: {'; '.join(off)}")
    return got


def slow_streams(link: Link, got: Delivered, rel: float) -> list[str]:
    """The streams that were slower than their direction's rate by more than ``rel``."""
    ways = (("up", link.up, got.up), ("down", link.down, got.down))
    return [
        f"{name} stream: {delivered.throughput_bit_per_s} bit/s"
        for name, asked, delivered in ways
        if asked.rate_bit_per_s and (delivered.throughput_bit_per_s or 0) < (1 - rel) * asked.rate_bit_per_s
    ]


def near(asked_ms: float, deviation_ms: float | None) -> Any:
    """A tenth around what was asked, and as much more as the link saw its own probes scatter on this machine."""
    assert deviation_ms is not None
    return pytest.approx(asked_ms, abs=0.1 * asked_ms + deviation_ms)


def delayed(way: DeliveredWay, asked_ms: float) -> bool:
    """Whether a direction without jitter has its delay. ``jitter_ms`` is twice the deviation of its probes."""
    return way.jitter_ms is not None and way.delay_ms == near(asked_ms, way.jitter_ms / 2)


@pytest.mark.parametrize("mode", MODES)
def test_a_delay_of_40_ms_is_delivered(mode: str) -> None:
    with open_or_skip(up=Way(delay_ms=20), mode=mode) as link:
        got = measured(link)
    assert got.rtt_ms == near(40, got.rtt_mad_ms)
    assert delayed(got.up, 20)
    assert (got.up.arrived, got.down.arrived) == (got.up.sent, got.down.sent)
    assert got.up.goodput_bit_per_s is None


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("mode", MODES)
def test_directions_differ_in_delay_and_rate(mode: str) -> None:
    up, down = Way(delay_ms=15, rate_bit_per_s=10e6), Way(delay_ms=5, rate_bit_per_s=40e6)
    with open_or_skip(up=up, down=down, mode=mode) as link:
        got = measured(link, 0.7, rel=0.1)
    assert delayed(got.up, 15)
    assert delayed(got.down, 5)
    assert got.up.throughput_bit_per_s == pytest.approx(10e6, rel=0.1)
    assert got.down.throughput_bit_per_s == pytest.approx(40e6, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(("rtt_ms", "rate_mbit_per_s"), [(73, 12), (300, 50)])
def test_a_long_link_has_its_rate_before_a_stream_is_up_to_speed(rtt_ms: float, rate_mbit_per_s: float) -> None:
    """And a link that has half of the requested rate has not: the link stays, and twice as much is requested."""
    way = Way(delay_ms=rtt_ms / 2, rate_bit_per_s=rate_mbit_per_s * 1e6)
    with Link(way) as link:
        got = measured(link, 0.3)
        link.up = link.down = replace(way, rate_bit_per_s=2 * rate_mbit_per_s * 1e6)
        wrong = link.measure(stream_s=0.3)
    assert got.up.rate_bit_per_s == pytest.approx(rate_mbit_per_s * 1e6, rel=0.05)
    assert got.down.rate_bit_per_s == pytest.approx(rate_mbit_per_s * 1e6, rel=0.05)
    assert [text.partition(":")[0] for text in wrong.off if "rate" in text] == ["up rate", "down rate"]


def test_loss_and_jitter_are_delivered() -> None:
    with Link(Way(delay_ms=8, jitter_ms=6, loss=0.05), Way(delay_ms=8), seed=3) as link:
        got = measured(link)
        lost = link.stats()["directions"]
    bound = 3.3 * math.sqrt(got.up.sent * 0.05 * 0.95)
    assert abs(got.up.sent - got.up.arrived - got.up.sent * 0.05) <= bound
    assert got.up.sent >= 1000
    assert got.down.arrived == got.down.sent
    assert got.up.jitter_ms == pytest.approx(6, rel=0.3)
    if lost:  # netem has no counts
        assert lost["up"]["lost"] >= got.up.sent - got.up.arrived
        assert lost["down"]["lost"] == 0


def test_a_link_with_extreme_loss_is_measured() -> None:
    with Link(Way(loss=0.97), Way()) as link:
        got = link.measure(stream_s=0)
    assert 0.9 < (got.up.loss or 0) < 1
    assert got.down.loss == 0


@pytest.mark.slow
def test_a_slow_link_is_measured_quickly() -> None:
    with Link(Way(rate_bit_per_s=256e3), Way()) as link:
        got = measured(link, 0.5, rel=0.1)
    assert got.up.delay_ms == pytest.approx(48 * 8 / 256, abs=1)
    assert got.up.throughput_bit_per_s == pytest.approx(256e3, rel=0.1)
    assert got.up.stream_bytes <= 30_000


def test_the_record_has_request_and_measurement() -> None:
    with Link(Way(delay_ms=2), run="record") as link:
        got = link.measure(stream_s=0)
        record = json.loads(json.dumps(link.record()))
    assert record["asked"]["up"]["delay_ms"] == 2
    assert record["delivered"]["up"]["delay_ms"] == got.up.delay_ms
    assert got.up.delay_ms == pytest.approx(2, abs=1) or record["delivered"]["off"] == list(got.off) != []
    assert record["mode"] in ("netem", "tun", "packet")
    assert record["offloads"] == {
        side: {"tx_checksum": False, "tso": False, "gso": False, "gro": False} for side in ("client", "server")
    }


@pytest.mark.parametrize("mode", ["tun", "packet"])
def test_ipv6_addresses_are_usable_at_once(mode: str) -> None:
    """The kernel looks for no duplicates of them, which it would do in its own time."""
    with open_or_skip(mode=mode) as link:
        for side in ("client", "server"):
            listed = link.run(side, ["cat", "/proc/net/if_inet6"], capture_output=True, text=True).stdout
            flags = {line.split()[-1]: int(line.split()[4], 16) for line in listed.splitlines()}
            assert flags[INTERFACE] & 0x42 == 0x02, "without search (0x02), not tentative (0x40)"


def test_both_address_families_reach_the_other_side() -> None:
    script = (
        "import socket, sys\nfamily = socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET\n"
        "one = socket.socket(family, socket.SOCK_DGRAM)\none.bind((sys.argv[1], 0))\n"
        "print(one.getsockname()[1], flush=True)\nprint(one.recv(100).decode())"
    )
    for ipv6 in (False, True):
        with Link() as link:
            address = link.address("server", ipv6=ipv6)
            with link.popen(
                "server", [sys.executable, "-c", script, address], stdout=subprocess.PIPE, text=True
            ) as server:
                assert server.stdout is not None
                port = server.stdout.readline().strip()
                send = (
                    "import socket, sys; socket.socket(socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET, "
                    "socket.SOCK_DGRAM).sendto(b'hello', (sys.argv[1], int(sys.argv[2])))"
                )
                assert link.run("client", [sys.executable, "-c", send, address, port]).returncode == 0
                assert server.stdout.readline().strip() == "hello"


def test_commands_keep_status_output_and_environment() -> None:
    with Link() as link:
        script = "import os, sys; print(os.environ['WORD']); sys.exit(7)"
        done = link.run(
            "client", [sys.executable, "-c", script], env={**os.environ, "WORD": "said"}, capture_output=True, text=True
        )
        missing = link.run("client", ["no-such-command"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (7, "said\n")
    assert missing.returncode == 125
    assert "no-such-command" in missing.stderr


TBF = (
    "import sys; sys.path.append(sys.argv.pop(1)); from pytest_cloudbench.net.link import devices; "
    "devices.make_netem = lambda name, way: devices._run_command('tc', 'qdisc', 'replace', 'dev', name, 'root', 'tbf', "
    "'rate', str(int(way['rate_bit_per_s'])), 'burst', '16k', 'latency', '100ms'); "
    "from pytest_cloudbench.net.link.{} import main; sys.exit(main())"
)


@pytest.mark.slow
def test_netem_wiring_works_with_another_qdisc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels without netem often have tbf, with which devices, redirection and directions are the same."""
    monkeypatch.setattr("pytest_cloudbench.net.link._RUN_MODULE", TBF)
    up, down = Way(rate_bit_per_s=10e6), Way(rate_bit_per_s=30e6)
    with open_or_skip(up=up, down=down, mode="netem") as link:
        with pytest.raises(UsageError, match="interruptible"):
            link.interrupt("reset", at_byte=1)
        got = measured(link, 1.0, rel=0.15)
    assert got.up.throughput_bit_per_s == pytest.approx(10e6, rel=0.15)
    assert got.down.throughput_bit_per_s == pytest.approx(30e6, rel=0.15)
    assert (got.up.loss, got.down.loss) == (0, 0)


def test_two_links_do_not_see_each_other() -> None:
    listen = "import socket; s = socket.create_server(('198.18.0.2', 4711)); print('up', flush=True); s.accept()"
    connect = "import socket; socket.create_connection(('198.18.0.2', 4711), timeout=2)"
    with Link() as one, Link() as other:
        server = one.popen("server", [sys.executable, "-c", listen], stdout=subprocess.PIPE)
        assert server.stdout is not None
        assert server.stdout.readline() == b"up\n"
        refused = other.run("client", [sys.executable, "-c", connect], stderr=subprocess.DEVNULL).returncode
        reached = one.run("client", [sys.executable, "-c", connect]).returncode
        server.communicate(timeout=HANG_S)
    assert (refused, reached) == (1, 0)


def test_commands_inside_end_with_the_link() -> None:
    with Link() as link:
        process = link.popen("client", [sys.executable, "-c", "print(1, flush=True); input()"], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE)  # fmt: skip
        assert process.stdout is not None
        process.stdout.readline()
        assert process.poll() is None
    process.communicate(timeout=HANG_S)
    assert process.returncode < 0
    with pytest.raises(LinkError, match="not open"):
        link.run("client", ["true"])


def test_a_user_namespace_needs_no_root() -> None:
    with open_or_skip(up=Way(delay_ms=10), rights="user") as link:
        assert link.rights == "user"
        got = measured(link)
        assert got.rtt_ms is not None
        assert got.rtt_ms >= 20  # what is longer, the product flags: a busy machine adds to it
        assert got.rtt_ms == near(20, got.rtt_mad_ms) or got.off


@needs_root
def test_a_user_without_rights_gets_a_link_or_a_reason() -> None:
    said = run_as_nobody(
        "from pytest_cloudbench.net.link import Delivered, Link, LinkUnavailable, Way\n"
        "try:\n    with Link(Way(delay_ms=10)) as link:\n"
        "        got = link.measure(stream_s=0)\n"
        "        print(link.rights, got.rtt_ms, got.rtt_mad_ms, 'off' if got.off else 'as set')\n"
        "except LinkUnavailable as error: print(error)"
    )
    words = said.split()
    if words[0] == "user":
        rtt_ms = float(words[1])
        assert rtt_ms >= 20  # what is longer, the product flags: a busy machine adds to it
        assert rtt_ms == near(20, float(words[2])) or words[3] == "off"
    else:
        assert "sysctl" in said or "/dev/net/tun" in said


def test_unknown_modes_are_named() -> None:
    with pytest.raises(UsageError, match="netem, tun, packet"):
        Link(mode="fast")
    with pytest.raises(UsageError, match="netem cannot interrupt"):
        Link(mode="netem", interruptible=True)


def test_unavailable_link_mode_names_its_kernel_module() -> None:
    try:
        with Link(mode="netem") as link:
            assert link.mode == "netem"
    except LinkUnavailable as error:
        assert "sch_netem" in str(error)  # noqa: PT017 - either it works, or it says this
