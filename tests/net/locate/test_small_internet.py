"""``cloudbench locate`` in a small internet whose truth is set: places, owners, anycast, a proxy, answers by subnet."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.net.locate.placing import judge_layer
from pytest_cloudbench.net.locate.sphere import Position, distance_km
from tests.limits import HANG_S

from .dns_server import ANYONE, Zone, serve_dns
from .rdap_server import Registry, bootstrap, network, serve_rdap
from .small_internet import Site, SmallInternet, hosts_toml, listen

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        sys.platform != "linux" or os.geteuid() != 0 or not Path("/dev/net/tun").exists(),
        reason="needs Linux, root and /dev/net/tun for network namespaces",
    ),
]

OSLO, BERLIN, MADRID, ROME = (
    Position(59.91, 10.75), Position(52.52, 13.41), Position(40.42, -3.70), Position(41.89, 12.48),
)  # fmt: skip
ZURICH, LONDON, LISBON = Position(47.38, 8.54), Position(51.51, -0.13), Position(38.72, -9.14)
PLAIN, NAMED, FALSE, ANYCAST = "198.18.5.1", "198.18.6.1", "198.18.4.2", "198.18.7.1"
STORAGE, CDN = "198.18.3.2", "198.18.1.3"
EDGE_OSLO, EDGE_ROME = "198.18.1.2", "198.18.4.3"
GOOGLE_LONDON = "lhr25s34-in-f14.1e100.net"
NAMES = {
    "plain.example": {ANYONE: [PLAIN]},
    "named.example": {ANYONE: [NAMED]},
    "false.example": {ANYONE: [FALSE]},
    "anycast.example": {ANYONE: [ANYCAST]},
    "edges.example": {ANYONE: [EDGE_OSLO], "198.18.1.0/24": [EDGE_OSLO], "198.18.4.0/24": [EDGE_ROME]},
}
FAR_ROUTER, NEAR_ROUTER = "198.18.10.1", "198.18.10.2"
RESOLVER, REGISTRY = "198.18.2.1", "198.18.2.2"


READS = """
import json, sys, time, http.client
from pytest_cloudbench.net.locate.rtt import connect_ms
address = sys.argv[1]
rtt_ms = min(connect_ms(address, 80, 5.0) for _ in range(10))
connection, times = http.client.HTTPConnection(address, 80), []
for number in range(40):
    began = time.perf_counter()
    connection.request("GET", f"/{number}")
    response = connection.getresponse()
    times.append(1000 * (time.perf_counter() - began))
    response.read()
print(json.dumps([rtt_ms, times]))
"""


@contextmanager
def serve_content(address: str, source: str = "") -> Iterator[None]:
    """A storage, or an edge that fetches all content from its source, on connections that it keeps."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16  # head and body go in one packet, as those of real servers do

        def do_GET(self) -> None:
            body = b"content"
            if source:
                upstream.request("GET", self.path)
                body = upstream.getresponse().read()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    upstream = HTTPConnection(source or address, 80)
    with ThreadingHTTPServer((address, 80), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
            upstream.close()


def reverse(address: str) -> str:
    return ".".join(reversed(address.split("."))) + ".in-addr.arpa"


class World:
    """The small internet with all its servers, and the command as it is typed in Berlin."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.zone = Zone(
            NAMES,
            ptr={
                reverse(NEAR_ROUTER): "ae1.zrh2.transit.example.net",
                reverse(FAR_ROUTER): "ae7.nrt1.transit.example.net",
                reverse(NAMED): GOOGLE_LONDON, reverse(FALSE): GOOGLE_LONDON, reverse(PLAIN): "s1.example.net",
            },
        )  # fmt: skip
        self.registry = Registry(
            {"198.18.0.0/16": 404, "198.18.5.0/24": network("198.18.5.0/24", "Alpine Storage AG", "CH")}
        )
        self.sites = {
            site.name: site
            for site in (
                Site("oslo", OSLO, ("198.18.1.1", EDGE_OSLO, ANYCAST, CDN)),
                Site("berlin", BERLIN, (RESOLVER, REGISTRY)),
                Site("madrid", MADRID, ("198.18.3.1", STORAGE)),
                Site("rome", ROME, ("198.18.4.1", FALSE, EDGE_ROME, ANYCAST)),
                Site("zurich", ZURICH, (PLAIN,), routers=(FAR_ROUTER, NEAR_ROUTER)),
                Site("london", LONDON, (NAMED,)),
                Site("lisbon", LISBON, ("198.18.8.1",), behind="proxy"),
                Site("proxy", LISBON, ("198.18.9.1",)),
            )
        }
        self.url = ""
        self.sites["berlin"].servers += [
            (RESOLVER, partial(serve_dns, self.zone, port=53)),
            (REGISTRY, self.serve_registry),
        ]
        for name, addresses in {"zurich": [PLAIN], "london": [NAMED], "oslo": [ANYCAST, EDGE_OSLO]}.items():
            self.sites[name].servers += [(address, listen) for address in addresses]

        self.sites["madrid"].servers.append((STORAGE, serve_content))
        self.sites["oslo"].servers.append((CDN, partial(serve_content, source=STORAGE)))

    def read_first_bytes(self, address: str) -> tuple[float, list[float]]:
        """The shortest round trip from Berlin to an address, and the times to the first bytes of content there."""
        command = self.sites["berlin"].command(sys.executable, "-c", READS, address)
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=True)
        rtt_ms, first_bytes_ms = json.loads(done.stdout)
        return float(rtt_ms), [float(value) for value in first_bytes_ms]

    def serve_registry(self, address: str) -> Any:
        return serve_rdap(self.registry, address, 8080)

    def locate(self, *words: str, vantages: tuple[str, ...] = ("oslo", "madrid", "rome")) -> dict[str, Any]:
        """Run ``cloudbench locate`` in Berlin, which is a vantage point, too."""
        files = {
            "resolvers.txt": f"{RESOLVER}\n",
            "rdap.json": bootstrap(f"http://{REGISTRY}:8080/", "198.18.0.0/15"),
            "hosts.toml": hosts_toml({name: self.sites[name] for name in vantages}),
        }
        for name, text in files.items():
            (self.folder / name).write_text(text, "utf-8")
        command = self.sites["berlin"].command(
            sys.executable, "-m", "pytest_cloudbench.commands.cli", "locate", *words, "--json", "--cloudbench-yes",
            "--here", "52.52,13.41",
            "--resolvers", "resolvers.txt", "--rdap", "rdap.json", "--cloudbench-hosts", "hosts.toml", "--rate", "200",
        )  # fmt: skip
        environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        done = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, timeout=HANG_S, check=False, env=environment
        )
        assert done.returncode in {0, 1}, done.stderr
        return dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("world"))
    with SmallInternet(*world.sites.values()):
        yield world


def region_of(server: dict[str, Any]) -> tuple[Position, float]:
    region = server["region"]
    return Position(region["latitude_deg"], region["longitude_deg"]), region["radius_km"]


def test_places_owners_and_anycast_are_as_they_were_set(world: World) -> None:
    found = world.locate(*NAMES)
    servers = found["servers"]
    for address, truth in ((PLAIN, ZURICH), (NAMED, LONDON), (FALSE, ROME), (EDGE_OSLO, OSLO)):
        center, radius_km = region_of(servers[address])
        assert distance_km(center, truth) <= radius_km, address
    assert servers[PLAIN]["operator"] == "Alpine Storage AG"
    assert servers[PLAIN]["vantage_points"] == 4
    assert (servers[NAMED]["operator"], servers[NAMED]["place"]) == ("Google", "London")
    assert "excluded" in servers[FALSE]["known_by"]
    assert servers[ANYCAST]["place"] == "unknown"
    assert servers[ANYCAST]["known_by"].startswith("anycast: at least 2 servers")
    assert found["names"]["edges.example"]["addresses"] == [EDGE_OSLO]


def test_a_server_beside_a_vantage_point_is_placed_within_500_km(world: World) -> None:
    _, radius_km = region_of(world.locate("edges.example")["servers"][EDGE_OSLO])
    assert radius_km < 500


def test_more_addresses_come_to_light_by_clients_networks(world: World) -> None:
    (world.folder / "subnets.txt").write_text("198.18.1.0/24\n198.18.4.0/24\n", "utf-8")
    found = world.locate("edges.example", "--subnets", "subnets.txt")
    assert found["names"]["edges.example"] == {
        "addresses": [EDGE_OSLO, EDGE_ROME], "phases": [], "heeds_subnets": True,
    }  # fmt: skip
    for address, truth in ((EDGE_OSLO, OSLO), (EDGE_ROME, ROME)):
        center, radius_km = region_of(found["servers"][address])
        assert distance_km(center, truth) <= radius_km


def test_a_vantage_point_behind_a_proxy_does_not_fake_anycast(world: World) -> None:
    server = world.locate("plain.example", vantages=("oslo", "rome", "lisbon"))["servers"][PLAIN]
    center, radius_km = region_of(server)
    assert distance_km(center, ZURICH) <= radius_km
    assert "proxy" in server["left_out"]["lisbon"]
    assert server["vantage_points"] == 3


def test_routers_before_a_server_give_hints_that_round_trips_allow(world: World) -> None:
    found = world.locate("plain.example", "named.example", "--save", "traced.json")
    hint = "Zurich in ae1.zrh2.transit.example.net, a router before it"
    assert found["servers"][PLAIN]["hints"] == [hint]  # a router in Tokyo is too far from where the server is
    assert found["servers"][NAMED]["hints"] == []
    hops = json.loads((world.folder / "traced.json").read_bytes())["hops"]
    assert [hop["address"] for hop in hops[PLAIN]] == [FAR_ROUTER, NEAR_ROUTER]
    assert hops[NAMED] == []
    assert all(hop["rtt_ms"] > distance_km(BERLIN, ZURICH) / 100 for hop in hops[PLAIN])


def test_any_user_may_ask_for_the_way_to_a_server(world: World) -> None:
    code = (
        "import os; from pytest_cloudbench.net.locate.trace import trace_route; os.setgid(65534); os.setuid(65534); "
        f"print(*(hop.address for hop in trace_route('{PLAIN}')))"
    )
    command = world.sites["berlin"].command(sys.executable, "-c", code)
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=True)
    assert done.stdout.split() == [FAR_ROUTER, NEAR_ROUTER]


def test_locate_tells_a_storage_by_content_that_nobody_has_read_before(world: World) -> None:
    server = world.locate("--content", f"http://{STORAGE}/new-1", f"http://{STORAGE}/new-2")["servers"][STORAGE]
    center, radius_km = region_of(server)
    assert distance_km(center, MADRID) <= radius_km
    assert server["layer"] == "storage", server["layer_by"]


def test_locate_takes_no_edge_for_a_storage(world: World) -> None:
    server = world.locate("--content", f"http://{CDN}/new-1", f"http://{CDN}/new-2")["servers"][CDN]
    assert server["layer"] == "unknown"
    assert "a long way behind, or a slow disc" in server["layer_by"]


def test_an_edge_in_front_of_a_storage_is_no_storage(world: World) -> None:
    rtt_ms, first_bytes_ms = world.read_first_bytes(CDN)
    assert min(first_bytes_ms) - rtt_ms > distance_km(OSLO, MADRID) / 100
    assert judge_layer(rtt_ms, first_bytes_ms, "edge")[0] == "edge"
    assert judge_layer(rtt_ms, first_bytes_ms)[0] == "unknown"


def test_a_storage_is_where_its_connections_end(world: World) -> None:
    assert judge_layer(*world.read_first_bytes(STORAGE))[0] == "storage"
