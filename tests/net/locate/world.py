"""A small internet with all servers of a plan, in which ``cloudbench locate`` runs as from a terminal."""

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
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import dns.reversename
import pytest

from pytest_cloudbench.net.locate.sphere import Position
from tests.limits import HANG_S

from .dns_server import ANYONE, Zone, serve_dns
from .plans import Plan
from .rdap_server import HandlingServer, Registry, bootstrap, network, serve_rdap
from .small_internet import Site, SmallInternet, hosts_toml, listen

NEEDS_NAMESPACES = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0 or not Path("/dev/net/tun").exists(),
    reason="needs Linux, root and /dev/net/tun for network namespaces",
)
PLAIN, NAMED, FALSE, ANYCAST, ANYCAST_2 = "198.18.5.1", "198.18.6.1", "198.18.4.2", "198.18.7.1", "198.18.7.2"
STORAGE, CDN, EDGE_A, EDGE_B = "198.18.3.2", "198.18.1.3", "198.18.1.2", "198.18.4.3"
SIX = "2001:2:0:5::1"
FAR_ROUTER, NEAR_ROUTER = "198.18.10.1", "198.18.10.2"
RESOLVER, REGISTRY = "198.18.2.1", "198.18.2.2"
SUBNETS = ("198.18.1.0/24", "198.18.4.0/24")
NAMES = {
    "plain.example": {ANYONE: [PLAIN]},
    "named.example": {ANYONE: [NAMED]},
    "false.example": {ANYONE: [FALSE]},
    "anycast.example": {ANYONE: [ANYCAST, ANYCAST_2]},
    "edges.example": {ANYONE: [EDGE_A], SUBNETS[0]: [EDGE_A], SUBNETS[1]: [EDGE_B]},
    "six.example": {ANYONE: [SIX]},
}
ALIASES = {"alias.example": "alias.hosting.example", "alias.hosting.example": "plain.example"}
POOL = "pool.example"
OWNER = "Alpine Storage AG"

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
    """Run a storage, or an edge that fetches all content from its source on one connection."""

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
            """Write no log."""

    upstream = HTTPConnection(source or address, 80)
    with HandlingServer((address, 80), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
            upstream.close()


def name_of_google(code: str) -> str:
    """Return a name in Google's form, with the code of an airport."""
    return f"{code}25s34-in-f14.1e100.net"


def reverse(address: str) -> str:
    return dns.reversename.from_address(address).to_text(omit_final_dot=True)


class World:
    """The small internet of a plan."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder, self.plan = folder, plan
        self.zone = Zone(
            NAMES,
            ptr={
                reverse(NEAR_ROUTER): "ae1.zrh2.transit.example.net",
                reverse(FAR_ROUTER): "ae7.nrt1.transit.example.net",
                reverse(NAMED): name_of_google(plan.named_server[1]),
                reverse(FALSE): name_of_google(plan.false_server[1]),
                reverse(PLAIN): "s1.example.net",
            },
            fault=plan.resolver_fault, aliases=ALIASES, pools={POOL: [EDGE_A, EDGE_B]},
        )  # fmt: skip
        self.registry = Registry({"198.18.0.0/16": 404, "198.18.5.0/24": network("198.18.5.0/24", OWNER, "CH")})
        anycast = (ANYCAST, ANYCAST_2)
        sites = [
            Site("home", plan.home, (RESOLVER, REGISTRY, "2001:2:0:2::1"), servers=[
                (RESOLVER, partial(serve_dns, self.zone, port=53)), (REGISTRY, self.serve_registry),
            ]),
            Site("plain", plan.plain, (PLAIN,), routers=plan.routers, servers=[(PLAIN, listen)]),
            Site("six", plan.six, (SIX,), servers=[(SIX, listen)]),
            Site("named", plan.named_server[0], (NAMED,), servers=[(NAMED, listen)]),
            Site("false", plan.false_server[0], (FALSE,)),
            Site("cast-a", plan.anycast[0], anycast, servers=[(ANYCAST, listen)]),
            Site("cast-b", plan.anycast[1], anycast),
            Site("edge-a", plan.edges[0], (EDGE_A,), servers=[(EDGE_A, listen)]),
            Site("edge-b", plan.edges[1], (EDGE_B,)),
            Site("cdn", plan.cdn, (CDN,), servers=[(CDN, partial(serve_content, source=STORAGE))]),
            Site("storage", plan.storage, (STORAGE,), servers=[(STORAGE, serve_content)]),
            *(
                Site(name, position, (f"198.18.{20 + number}.1", f"2001:2:0:{20 + number}::1"))
                for number, (name, position) in enumerate(plan.vantages.items())
            ),
        ]  # fmt: skip
        if plan.proxied is not None:
            sites.append(Site("proxied", plan.proxied, ("198.18.8.1", "2001:2:0:8::1"), behind="proxy"))
            sites.append(Site("proxy", plan.proxied, ("198.18.9.1", "2001:2:0:9::1")))
        self.sites = {site.name: site for site in sites}
        self.internet = SmallInternet(*sites, ways=plan.ways)
        self.vantages = (*plan.vantages, *(["proxied"] if plan.proxied is not None else []))

    @property
    def truths(self) -> dict[str, Position]:
        """Positions of all servers that have one position, by address."""
        plan = self.plan
        return {
            PLAIN: plan.plain, NAMED: plan.named_server[0], FALSE: plan.false_server[0], SIX: plan.six, CDN: plan.cdn,
            STORAGE: plan.storage, EDGE_A: plan.edges[0], EDGE_B: plan.edges[1],
        }  # fmt: skip

    def read_first_bytes(self, address: str) -> tuple[float, list[float]]:
        """Return the shortest round trip from home to an address, and the times to the first bytes of its content."""
        command = self.sites["home"].command(sys.executable, "-c", READS, address)
        finished = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=True)
        rtt_ms, first_bytes_ms = json.loads(finished.stdout)
        return float(rtt_ms), [float(value) for value in first_bytes_ms]

    def serve_registry(self, address: str) -> Any:
        return serve_rdap(self.registry, address, 8080)

    def locate(self, *words: str, vantages: tuple[str, ...] | None = None) -> dict[str, Any]:
        """Run ``cloudbench locate`` at home, which is a vantage point, too."""
        sites = {name: self.sites[name] for name in (self.vantages if vantages is None else vantages)}
        files = {
            "resolvers.txt": f"{RESOLVER}\n",
            "rdap.json": bootstrap(f"http://{REGISTRY}:8080/", "198.18.0.0/15"),
            "hosts.toml": hosts_toml(sites),
            "subnets.txt": "\n".join(SUBNETS),
        }
        for name, text in files.items():
            (self.folder / name).write_text(text, "utf-8")
        home = self.plan.home
        command = self.sites["home"].command(
            sys.executable, "-m", "pytest_cloudbench.commands.cli", "locate", *words, "--json", "--cloudbench-yes",
            f"--here={home.latitude_deg},{home.longitude_deg}", "--resolvers", "resolvers.txt", "--rdap", "rdap.json",
            "--rate", "200", *(["--cloudbench-hosts", "hosts.toml"] if sites else []),
        )  # fmt: skip
        environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        finished = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, timeout=HANG_S, check=False, env=environment
        )
        assert finished.returncode in {0, 1}, finished.stderr
        return dict(json.loads(finished.stdout))


def region_of(server: dict[str, Any]) -> tuple[Position, float]:
    region = server["region"]
    return Position(region["latitude_deg"], region["longitude_deg"]), region["radius_km"]
