"""Owners of addresses by RDAP, the successor of whois (RFC 9082, 9083): who holds the network, as a registry says.

The country is the holder's, and says nothing about where a server is. Registries limit how often they may be asked:
they are asked slowly, once for each network, and no longer after they refused.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from pytest_cloudbench.model import UsageError
from pytest_cloudbench.net.locate.resolve import Manners, Pace

REGISTRY_MANNERS = Manners(rate_per_s=0.5, timeout_s=15.0)
"""One registry allows ten questions a minute and the others more. An answer serves for its whole network."""
_MOST_BYTES = 1 << 20
_REFUSALS = {
    403: "the registry refuses to answer (403)",
    404: "the registry knows no such network (404)",
    422: "the registry does not take the question (422)",
    429: "the registry asks to be asked less often (429)",
}


@dataclass(frozen=True, slots=True)
class Owner:
    """The holder of the network of an address, or the reason why it is unknown.

    Attributes:
        name: the organisation's, or the network's if the registry names none. Empty if it is unknown.
        handle: the registry's key of the network.
        country: the holder's, in two letters. It is not the server's.
        problem: why the owner is unknown, or empty.
    """

    name: str = ""
    handle: str = ""
    country: str = ""
    problem: str = ""


class Bootstrap:
    """The table of registries by address (RFC 9224). The registry with the longest prefix answers.

    Attributes:
        dated: when the lists were published.
    """

    def __init__(self, text: str, source: str) -> None:
        """Read one of IANA's lists, or a list of them. Raises UsageError if it is neither."""
        try:
            documents = json.loads(text)
            documents = documents if isinstance(documents, list) else [documents]
            self._services = {
                ipaddress.ip_network(prefix): _choose_url(urls)
                for document in documents
                for prefixes, urls in document["services"]
                for prefix in prefixes
            }
            self.dated = max(str(document.get("publication", ""))[:10] for document in documents)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UsageError(f"{source}: is not a list of RDAP services as RFC 9224 describes it") from error

    def find_url(self, address: str) -> str:
        """Return the URL of the registry of an address, or an empty text."""
        ip = ipaddress.ip_address(address)
        networks = [net for net in self._services if net.version == ip.version and ip in net]
        return self._services[max(networks, key=lambda net: net.prefixlen)] if networks else ""


class OwnerClient:
    """Asks registries for owners.

    Args:
        bootstrap: which registry answers for which addresses.
        manners: how often each registry is asked.
        asks_private: whether to ask also for addresses that no registry assigns, such as those of test networks.
    """

    def __init__(
        self, bootstrap: Bootstrap, manners: Manners = REGISTRY_MANNERS, *, asks_private: bool = False
    ) -> None:
        self._bootstrap, self._manners, self._asks_private = bootstrap, manners, asks_private
        self._paces: dict[str, Pace] = {}
        self._refused: dict[str, str] = {}
        self._known: list[tuple[int, int, int, Owner]] = []

    def find_owner(self, address: str) -> Owner:
        """Return the owner of an address. If that fails, the owner's ``problem`` says why."""
        ip = ipaddress.ip_address(address)
        for version, first, last, owner in self._known:
            if version == ip.version and first <= int(ip) <= last:
                return owner
        if not (ip.is_global or self._asks_private):
            return Owner(problem="the address belongs to a private or test network")
        url = self._bootstrap.find_url(address)
        if not url:
            return Owner(problem="no registry is listed for the address")
        host = urlsplit(url).netloc
        if host in self._refused:
            return Owner(problem=self._refused[host])
        self._paces.setdefault(host, Pace(self._manners.rate_per_s)).wait()
        answer, problem = _get(f"{url.rstrip('/')}/ip/{address}", self._manners.timeout_s)
        if problem:
            if any(problem == _REFUSALS[status] for status in (403, 429)):
                self._refused[host] = problem
            return Owner(problem=problem)
        return self._remember_owner(answer, ip.version)

    def _remember_owner(self, answer: Mapping[str, Any], version: int) -> Owner:
        owner = parse_owner(answer)
        try:
            first, last = (int(ipaddress.ip_address(answer[key])) for key in ("startAddress", "endAddress"))
        except (KeyError, ValueError, TypeError):
            return owner
        self._known.append((version, first, last, owner))
        return owner


def parse_owner(answer: Mapping[str, Any]) -> Owner:
    """Return the owner that an answer of a registry names."""
    texts = [answer.get(key) for key in ("name", "handle", "country")]
    name, handle, country = (text if isinstance(text, str) else "" for text in texts)
    organisation = _find_registrant(answer.get("entities"))
    if not organisation and not name:
        return Owner(handle=handle, country=country, problem="the registry names no owner")
    return Owner(organisation or name, handle, country)


def _find_registrant(entities: Any) -> str:
    """Return the name of the registrant among entities, which may be nested."""
    rows = [entity for entity in entities if isinstance(entity, Mapping)] if isinstance(entities, list) else []
    for entity in rows:
        if "registrant" in (entity.get("roles") or ()) and (name := _read_card(entity.get("vcardArray"))):
            return name
    return next(filter(None, (_find_registrant(entity.get("entities")) for entity in rows)), "")


def _read_card(card: Any) -> str:
    """Return the formatted name of a jCard (RFC 7095)."""
    rows: Iterable[Any] = card[1] if isinstance(card, list) and len(card) > 1 and isinstance(card[1], list) else ()
    for row in rows:
        if isinstance(row, list) and len(row) > 3 and row[0] == "fn" and isinstance(row[3], str):
            return row[3].strip()
    return ""


def _choose_url(urls: list[str]) -> str:
    return next((url for url in urls if url.startswith("https:")), urls[0])


def _get(url: str, timeout_s: float) -> tuple[Mapping[str, Any], str]:
    """Return an answer and an empty text, or an empty answer and the reason."""
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    request = Request(url, headers={"Accept": "application/rdap+json", "User-Agent": "pytest-cloudbench"})
    try:
        with urlopen(request, timeout=timeout_s) as response:
            answer = json.loads(response.read(_MOST_BYTES))
    except HTTPError as error:
        error.close()
        return {}, _REFUSALS.get(error.code, f"the registry answers with status {error.code}")
    except (URLError, OSError, HTTPException) as error:
        return {}, f"the registry at {urlsplit(url).netloc} does not answer ({getattr(error, 'reason', error)})"
    except (ValueError, RecursionError):
        return {}, "the registry's answer is no JSON"
    if not isinstance(answer, dict):
        return {}, "the registry's answer is no object"
    return answer, ""
