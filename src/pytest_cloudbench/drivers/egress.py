"""The way of requests out of this machine: proxies and certificates, by one rule for all drivers.

What may live here: reading the user's variables, choosing by an address, and giving the choice to HTTP libraries. A
proxy that the user has set is used for real hosts and named in the entry, and never asked for loopback. The first
variable of ``CERTIFICATES`` that is set says whom all libraries trust. A service that the run has started has its own
authority, and no proxy leads to it. Libraries read nothing of this themselves, nor ``~/.netrc``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from pytest_cloudbench.drivers._egress_connections import unlimited_transport
from pytest_cloudbench.drivers.surroundings import environment
from pytest_cloudbench.model import Endpoint, UsageError
from pytest_cloudbench.support import opening, redact

if TYPE_CHECKING:
    import ssl
    from tempfile import TemporaryDirectory
    from urllib.request import OpenerDirector

CERTIFICATES = (
    "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "AWS_CA_BUNDLE", "HTTPLIB2_CA_CERTS", "SSL_CERT_FILE", "SSL_CERT_DIR",
)  # fmt: skip
"""Variables that name a file of trusted authorities, or a folder of such files. The first one that is set counts.

The last two are often set for the whole machine, the others by somebody who wants something else for a program.
"""

_SCHEMES = ("http", "https")
_IN_FOLDER = re.compile(r"[0-9a-f]{8}\.\d+")
"""The names by which OpenSSL finds certificates in a folder."""
_LOOPBACK = "localhost,127.0.0.0/8,::1"
_PORTS = {"http": 80, "https": 443}


def _close_connections(adapter: Any) -> None:
    """Close the idle connections of an adapter of ``requests``, whose own method leaves them to the garbage collector.

    They would stay open for as long as anything refers to a response.
    """
    for manager in (adapter.poolmanager, *adapter.proxy_manager.values()):
        for key in manager.pools.keys():  # noqa: SIM118 - it cannot be iterated over
            manager.pools[key].close()
        manager.clear()


def egress_of(endpoint: Endpoint | None, url: str = "") -> Egress:
    """Return how the requests of a driver leave this machine.

    Args:
        endpoint: the service that stands in for the provider; None for a real one.
        url: where most requests go: what they need is checked now and noted for the entry. Empty if it is not known.

    Raises UsageError, in one line, for a variable that cannot work.
    """
    if endpoint is not None:
        return Egress(trusted=endpoint.ca_file)
    environ = environment()
    certificates = next((name for name in CERTIFICATES if environ.get(name)), "")
    egress = Egress(
        proxies={scheme: entry for scheme in _SCHEMES if (entry := _proxy_in_environment(environ, scheme))},
        direct=_value_of_variable(environ, "no_proxy"), trusted=environ.get(certificates, ""), trusted_by=certificates,
    )  # fmt: skip
    if url:
        egress.check(url)
    return egress


class Egress:
    """The way of requests out of this machine. Safe to share by all threads.

    Args:
        proxies: maps the scheme of a request's address to a proxy's variable and URL.
        direct: hosts that no proxy leads to, as ``NO_PROXY`` lists them.
        trusted: file or folder of the authorities that are trusted; empty for those that a library brings.
        trusted_by: the variable that named it.

    Attributes:
        trusted: as above, but empty if it cannot be used and requests do not need it.
        remarks: the proxy, and the variable of the certificates, for the entry.
    """

    def __init__(
        self, proxies: Mapping[str, tuple[str, str]] | None = None, direct: str = "", trusted: str = "",
        trusted_by: str = "",
    ) -> None:  # fmt: skip
        self._proxies, self._direct = dict(proxies or {}), direct
        self.trusted, self._trusted_by = trusted, trusted_by
        self.remarks: dict[str, str] = {}
        self._joined: TemporaryDirectory[str] | None = None

    def check(self, url: str) -> None:
        """Note proxy and certificates for an address. Raises UsageError, in one line, if they cannot work."""
        why = _why_untrusted(self.trusted) if self._trusted_by else ""
        if why and urlsplit(url).scheme == "http":
            self._trusted_by = self.trusted = ""  # not needed here, and requests looks whether there is such a file
        elif why:
            problem = f"{self._trusted_by}={self.trusted}: {why}"
            raise UsageError(f"{problem}: name a file of certificates (PEM), or unset the variable")
        elif self._trusted_by and urlsplit(url).scheme == "https":
            self.remarks["certificates"] = self._trusted_by
        if entry := self._proxy_entry(url):
            variable, proxy = entry
            if why := _why_not_a_proxy(proxy):
                problem = f"{variable}={redact.clean(proxy.partition('://')[0])}://...: {why}"
                raise UsageError(f"{problem}: set it to http://HOST:PORT, or name the provider's host in NO_PROXY")
            parts = urlsplit(proxy)
            self.remarks["proxy"] = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"

    def proxy_for(self, url: str) -> str:
        """Return the URL of the proxy for a request. Empty if none is asked."""
        entry = self._proxy_entry(url) if self._proxies else None
        return entry[1] if entry else ""

    def _proxy_entry(self, url: str) -> tuple[str, str] | None:
        parts = urlsplit(url)
        entry = self._proxies.get(parts.scheme)
        return None if entry is None or _is_reached_directly(parts.netloc, parts.scheme, self._direct) else entry

    def context(self) -> ssl.SSLContext | bool:
        """Return the authorities that TLS trusts, or True for those that a library trusts by itself. Raises OSError."""
        import ssl

        if not self.trusted:
            return True
        if os.path.isdir(self.trusted):
            return ssl.create_default_context(capath=self.trusted)
        return ssl.create_default_context(cafile=self.trusted)

    def trusted_file(self) -> str:
        """Return ``trusted``, or a file of the folder's certificates, for a library that takes no folder.

        The file is there until ``close``. Raises OSError.
        """
        if not os.path.isdir(self.trusted):
            return self.trusted
        if self._joined is None:
            from tempfile import TemporaryDirectory

            self._joined = TemporaryDirectory(prefix="cloudbench-ca-", ignore_cleanup_errors=True)
            certificates = [path for path in sorted(Path(self.trusted).iterdir()) if _IN_FOLDER.fullmatch(path.name)]
            text = b"\n".join(path.read_bytes() for path in certificates if path.is_file())
            Path(self._joined.name, "ca.pem").write_bytes(text)
        return os.path.join(self._joined.name, "ca.pem")

    def close(self) -> None:
        """Remove the file that ``trusted_file`` has made, if it has."""
        if self._joined is not None:
            self._joined.cleanup()

    def direct_session(self, session: Any) -> None:
        """Make a session of ``requests`` use these settings, and neither the environment nor ``~/.netrc``.

        Its ``close`` ends its connections.
        """
        session.trust_env = False
        session.verify = self.trusted or True
        for adapter in session.adapters.values():
            adapter.close = partial(_close_connections, adapter)
            if self._proxies:
                adapter.send = self._send_by_proxy(adapter.send)

    def _send_by_proxy(self, send: Any) -> Any:
        """Return an adapter's ``send`` that chooses the proxy by the address of each request."""

        def send_by_proxy(request: Any, *args: Any, **options: Any) -> Any:
            proxy = self.proxy_for(request.url)
            return send(request, *args, **{**options, "proxies": dict.fromkeys(_SCHEMES, proxy) if proxy else {}})

        return send_by_proxy

    def transport(self) -> Any:
        """Return the transport of a client of httpx."""
        import httpx

        context = self.context()
        if isinstance(context, bool):
            context = httpx.create_ssl_context(trust_env=False)  # once, not again for each connection

        @cache
        def transport_through(proxy: str) -> Any:
            through = httpx.Proxy(proxy, ssl_context=context if proxy.startswith("https:") else None) if proxy else None
            return unlimited_transport(partial(httpx.HTTPTransport, verify=context, trust_env=False, proxy=through))

        if not self._proxies:
            return transport_through("")
        egress = self
        proxies = ["", *sorted({proxy for _, proxy in self._proxies.values() if not _why_not_a_proxy(proxy)})]

        class Directed(httpx.BaseTransport):
            """A transport that chooses the proxy by the address of each request."""

            def handle_request(self, request: Any) -> Any:
                return transport_through(egress.proxy_for(str(request.url))).handle_request(request)

            def close(self) -> None:
                for proxy in proxies:
                    transport_through(proxy).close()

        return Directed()

    def opener(self, url: str) -> OpenerDirector:
        """Return an opener of ``urllib`` for an address. Raises OSError."""
        from urllib.request import HTTPSHandler, ProxyHandler, build_opener

        proxy, context = self.proxy_for(url), self.context()
        if proxy.startswith("https:"):  # urllib would ask the proxy without TLS, and that hangs up
            raise OSError("this request asks a proxy only by http://: set HTTPS_PROXY to http://HOST:PORT")
        proxies = ProxyHandler(dict.fromkeys(_SCHEMES, proxy) if proxy else {})
        return build_opener(proxies, HTTPSHandler(context=None if isinstance(context, bool) else context))

    def variables(self) -> dict[str, str]:
        """Return environment variables for a library or a program that takes these settings from nowhere else."""
        proxies = {
            f"{scheme}_proxy": proxy for scheme, (_, proxy) in self._proxies.items() if not _why_not_a_proxy(proxy)
        }
        direct = ",".join(filter(None, (_LOOPBACK, self._direct)))
        settings = {**proxies, **({"no_proxy": direct} if proxies else {})}
        variables = {spelled: value for name, value in settings.items() for spelled in (name, name.upper())}
        if self.trusted:
            variables["SSL_CERT_DIR" if os.path.isdir(self.trusted) else "SSL_CERT_FILE"] = self.trusted
            variables["REQUESTS_CA_BUNDLE"] = self.trusted
        return variables

    @contextmanager
    def as_environment(self) -> Iterator[None]:
        """Put these settings into the environment, for a library that reads them nowhere else.

        For use while the environment is closed (``drivers.surroundings``). Certificates that cannot be read are left
        out, because OpenDAL's client, one for all services, could not be made with them.
        """
        is_bad = self.trusted and _why_untrusted(self.trusted)
        added = {name: value for name, value in self.variables().items() if not (is_bad and value == self.trusted)}
        os.environ.update(added)
        try:
            yield
        finally:
            for name in added:
                os.environ.pop(name, None)


def _value_of_variable(environ: Mapping[str, str], name: str) -> str:
    """Return a variable's value. Its name in lower case wins, even if it is empty, as everywhere."""
    return environ.get(name, environ.get(name.upper(), "")).strip()


def _proxy_in_environment(environ: Mapping[str, str], scheme: str) -> tuple[str, str] | None:
    """Return the variable that names a proxy for a scheme, and the proxy's URL. Messages hide its password."""
    for name in (f"{scheme}_proxy", "all_proxy"):
        if value := _value_of_variable(environ, name):
            url = value if "://" in value else f"http://{value}"
            user_info = url.partition("://")[2].partition("/")[0].rpartition("@")[0]
            redact.learn({form for part in user_info.split(":", 1)[1:] for form in (part, unquote(part)) if form})
            return (name if name in environ else name.upper()), url
    return None


def _why_not_a_proxy(url: str) -> str:
    """Return why a URL cannot be a proxy's. Empty if it can."""
    try:
        parts = urlsplit(url)
        has_address = bool(parts.hostname) and parts.port != 0 and " " not in url and url.isprintable()
    except ValueError:
        has_address = False
    if not has_address:
        return "no address of a proxy"
    return "" if parts.scheme in _SCHEMES else "drivers know no proxies but those of HTTP"


@cache
def _why_untrusted(path: str) -> str:
    """Return why a file or a folder cannot be trusted. Empty if it can."""
    import ssl

    if os.path.isdir(path):
        return ""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
    except ssl.SSLError:
        return "holds no certificates"
    except (OSError, ValueError) as error:
        return f"cannot be read ({opening.explain_error(error)})"
    return ""


def is_on_this_machine(url: str) -> bool:
    """Return whether a URL leads to a server on this machine, without resolving names."""
    try:
        return _is_this_machine((urlsplit(url).hostname or "").rstrip("."))
    except ValueError:
        return False


def _is_this_machine(host: str) -> bool:
    address = _address_of(host)
    is_local_address = address is not None and (address.is_loopback or address.is_unspecified)
    return is_local_address or host == "localhost" or host.endswith(".localhost")


@cache
def _is_reached_directly(netloc: str, scheme: str, listed: str) -> bool:
    """Return whether no proxy leads to a host: loopback, and what ``NO_PROXY`` lists."""
    try:
        parts = urlsplit(f"{scheme}://{netloc}")
        host, port = (parts.hostname or "").rstrip("."), parts.port or _PORTS.get(scheme, 0)
    except ValueError:
        return False
    if _is_this_machine(host):
        return True
    address = _address_of(host)
    return any(_lists_host(entry.strip().lower(), host, port, address) for entry in listed.split(","))


def _address_of(host: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        is_short = host.startswith("127.") and host.replace(".", "").isdecimal()  # such as 127.1
        return IPv4Address("127.0.0.1") if is_short else None
    return getattr(address, "ipv4_mapped", None) or address


def _lists_host(entry: str, host: str, port: int, address: IPv4Address | IPv6Address | None) -> bool:
    """Return whether an entry of ``NO_PROXY`` is about a host. It is a name, a domain, an address or a network."""
    if entry == "*":
        return True
    if address is not None:
        try:
            if address in ip_network(entry.strip("[]"), strict=False):
                return True
        except (ValueError, TypeError):
            pass
    name, colon, number = entry.rpartition(":")
    if colon and number.isdigit() and "]" not in number:
        if int(number) != port:
            return False
        entry = name
    entry = entry.strip("[]").removeprefix("*").strip(".")
    return bool(entry) and (host == entry or host.endswith(f".{entry}"))
