"""A small real RDAP server on loopback or in a namespace, with the faults of real registries."""

from __future__ import annotations

import ipaddress
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any


@dataclass
class Registry:
    """A registry that has an answer, a status or raw bytes for each network."""

    networks: Mapping[str, Any]
    asked: list[str] = field(default_factory=list)


def network(prefix: str, organisation: str, country: str = "NO") -> dict[str, Any]:
    """Return the minimal answer of a registry about a network."""
    net = ipaddress.ip_network(prefix)
    return {
        "objectClassName": "ip network", "handle": f"NET-{organisation[:3].upper()}", "startAddress": str(net[0]),
        "endAddress": str(net[-1]), "name": f"{organisation.upper()}-NET", "country": country,
        "entities": [
            {"roles": ["abuse"], "vcardArray": ["vcard", [["fn", {}, "text", "Abuse desk"]]]},
            {"roles": ["registrant"], "vcardArray": ["vcard", [["fn", {}, "text", organisation]]]},
        ],
    }  # fmt: skip


def bootstrap(url: str, *prefixes: str) -> str:
    """Return a list of services as IANA publishes it."""
    return json.dumps({"publication": "2026-11-01T00:00:00Z", "services": [[[*prefixes], [url]]]})


class HandlingServer(ThreadingTCPServer):
    """An HTTP server that does not look up its own name. Python's own server waits 10 s if there is no resolver."""

    allow_reuse_address = daemon_threads = True


@contextmanager
def serve_rdap(registry: Registry, address: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Answer until the block ends. Yield the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            ip = ipaddress.ip_address(self.path.rpartition("/")[2])
            registry.asked.append(str(ip))
            inside = [prefix for prefix in registry.networks if ip in ipaddress.ip_network(prefix)]
            answer = registry.networks[inside[-1]] if inside else 404
            status, body = (answer, b"") if isinstance(answer, int) else (200, answer)
            body = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Write no log."""

    with HandlingServer((address, port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield f"http://{address}:{server.server_address[1]}/registry"
        finally:
            server.shutdown()
            thread.join()
