"""Examine a provider before anything is measured: write one small file, read it back, list it and remove it.

It writes into one folder, which is named like a run's and entered in the journal first, so ``cloudbench clean`` removes
it if this process is killed.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from urllib.parse import urlsplit

from pytest_cloudbench.drivers import describe_raised
from pytest_cloudbench.drivers.base import Driver
from pytest_cloudbench.drivers.egress import egress_of
from pytest_cloudbench.model import KIB, Capabilities, CloudbenchError, CloudError, Endpoint, ErrorKind
from pytest_cloudbench.providers import Provider
from pytest_cloudbench.support import redact
from pytest_cloudbench.support.clock import now_ns
from pytest_cloudbench.workload.payload import DIGESTS, digest
from pytest_cloudbench.workload.payload.contents import Literal

_SIZE_BYTES = 5 * KIB
_DATE_S = 30.0
_CLOCK_BOUND_S = 5.0
"""A service's clock is read to a second; a machine that differs by more has trouble with tokens and signatures."""

_ADVICE = {
    ErrorKind.AUTH: "check the credentials and what they may do ('cloudbench status'), or log in again",
    ErrorKind.QUOTA: "the account is full: remove something, or use another one",
    ErrorKind.THROTTLED: "the provider asks to slow down: try again later, with fewer sensors",
    ErrorKind.NETWORK: "check the network, proxies (HTTPS_PROXY) and certificates (SSL_CERT_FILE, REQUESTS_CA_BUNDLE)",
    ErrorKind.NOT_FOUND: "what the spec names is not there: check the bucket, container or path",
    ErrorKind.SERVER: "the provider failed: look at its status page, and try again",
    ErrorKind.INVALID: "the provider refuses such a request: check the spec",
    ErrorKind.CONFLICT: "something is in the way: look at the account",
    ErrorKind.CORRUPT: "bytes were damaged on the way: find out why before you measure anything",
}


@dataclass(frozen=True, slots=True)
class Checkup:
    """The result of one step.

    Attributes:
        step: its name.
        is_good: True, False, or None if it is unknown or was not tried.
        message: the finding, with what to do about it if it is not good.
    """

    step: str
    is_good: bool | None
    message: str


def examine(provider: Provider, owner: str) -> Iterator[Checkup]:
    """Yield a checkup per step. Ends early after a failure that leaves nothing more to try.

    Args:
        provider: connected at the first step.
        owner: this process, for the journal.
    """
    try:
        driver = provider.driver
    except CloudError as error:
        yield Checkup("connect", False, f"{error}: {_ADVICE[error.kind]}")
        return
    yield Checkup("driver", True, ", ".join(f"{name} {version}" for name, version in driver.versions().items()))
    clock_url = str(getattr(driver, "clock_url", ""))
    service_url = next(iter(provider.endpoint.urls.values()), "") if provider.endpoint is not None else ""
    if service_url or clock_url:  # other drivers connect to nothing, or only their program knows where
        yield _check_connection(service_url or clock_url, provider.endpoint)
    if provider.emulated == "none":
        yield _check_clock(clock_url, provider.endpoint)
    else:
        yield Checkup("clock", None, "same as this machine (emulator)")
    top = f"/cloudbench-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(2)}"
    steps = _FileSteps(driver, f"{top}/doctor.bin")
    try:
        if provider.is_kept:
            provider.claim(f"{top}/doctor.bin", owner)
        elif driver.capabilities.folders:
            driver.mkdir(top)
    except Exception as error:
        yield _failed_step("write", driver, error)
        return
    yield from steps.run_all()
    try:
        driver.delete(top)
        if provider.is_kept:
            provider.release(f"{top}/doctor.bin")
        yield Checkup("delete", True, "nothing is left")
    except Exception as error:
        if isinstance(error, CloudError) and error.kind is ErrorKind.NOT_FOUND:
            yield Checkup("delete", True, "nothing is left")
        else:
            yield _failed_step("delete", driver, error, "'cloudbench clean' removes what is left; ")
    yield _check_quota(driver)
    yield Checkup("limits", None, _describe_limits(driver.capabilities))


class _FileSteps:
    """The steps that are done to one file."""

    def __init__(self, driver: Driver, path: str) -> None:
        self._driver, self._path, self._data = driver, path, secrets.token_bytes(_SIZE_BYTES)

    def run_all(self) -> Iterator[Checkup]:
        """Yield a checkup per step, and stop after one that failed."""
        for name, step in (("write", self._write_file), ("read back", self._read_file), ("list", self._list_file)):
            begun_ns = now_ns()
            try:
                problem, message = step()
            except Exception as error:
                yield _failed_step(name, self._driver, error)
                return
            duration = f" {(now_ns() - begun_ns) / 1e6:.0f} ms"
            yield Checkup(name, not problem, problem or message + duration)
            if problem:
                return

    def _write_file(self) -> tuple[str, str]:
        entry = self._driver.put(self._path, Literal(self._data))
        if entry.size_bytes != len(self._data):
            return f"the provider says that it stored {entry.size_bytes} of {len(self._data)} bytes", ""
        return "", f"{len(self._data):,} bytes in"

    def _read_file(self) -> tuple[str, str]:
        data = b"".join(self._driver.get(self._path))
        problem = "" if data == self._data else f"{len(data)} bytes came back, and they differ"
        return problem, f"{len(data):,} bytes in"

    def _list_file(self) -> tuple[str, str]:
        folder, name = self._path.rpartition("/")[0], self._driver.capabilities.digest
        entries = [entry for entry in self._driver.list(folder) if entry.path == self._path]
        if not entries:
            return "the file is not listed yet: loss cannot be judged right after a run", ""
        if name in DIGESTS and entries[0].digest:
            if digest(Literal(self._data), name).hex() != entries[0].digest:
                return f"the listed {name} is not the file's", ""
            return "", f"found, {name} correct,"
        if entries[0].size_bytes != len(self._data):
            return f"listed with {entries[0].size_bytes:,} of {len(self._data):,} bytes", ""
        return "", "found, size correct,"


def _check_connection(url: str, endpoint: Endpoint | None) -> Checkup:
    """Open a connection to the address of a driver's requests, before the driver sends one."""
    if egress_of(endpoint, url).proxy_for(url):
        return Checkup("connect", None, "unknown: a proxy leads there")
    parts = urlsplit(url)
    address = parts.hostname or "", parts.port or (80 if parts.scheme == "http" else 443)
    begun_ns = now_ns()
    try:
        socket.create_connection(address, timeout=_DATE_S).close()
    except OSError as error:
        reason = error.strerror or str(error)
        return Checkup("connect", False, f"{address[0]}:{address[1]} does not answer: {reason}")
    return Checkup("connect", True, f"{address[0]}:{address[1]} answered in {(now_ns() - begun_ns) / 1e6:.0f} ms")


def _check_clock(url: str, endpoint: Endpoint | None) -> Checkup:
    """Compare this machine's clock with the date in an answer of the provider."""
    if not url:
        return Checkup("clock", None, "unknown: the service does not tell the time")
    begun_s = time.time()
    try:
        date = _date_of_answer(url, endpoint)
        if not date:
            return Checkup("clock", None, "unknown: the service's answers have no date")
        provider_s = parsedate_to_datetime(date).timestamp() + 0.5  # the middle of the second that it names
    except (OSError, HTTPException, ValueError, TypeError) as error:
        return Checkup("clock", None, f"unknown: {redact.clean(' '.join(str(error).split()))}")
    ended_s = time.time()
    offset_s, bound_s = provider_s - (begun_s + ended_s) / 2, 0.5 + (ended_s - begun_s) / 2
    message = f"{offset_s:+.1f} s from the provider's, within {bound_s:.1f} s"
    if abs(offset_s) - bound_s > _CLOCK_BOUND_S:
        return Checkup("clock", False, f"{message}: set this machine's clock (NTP), or tokens and signatures fail")
    return Checkup("clock", True, message)


def _date_of_answer(url: str, endpoint: Endpoint | None) -> str:
    """Return the date of an answer as the service writes it, or an empty text. Raises OSError and ValueError.

    A service that the run started is trusted by its own authority, and no proxy leads to it.
    """
    from urllib.error import HTTPError
    from urllib.request import Request

    try:
        with egress_of(endpoint, url).opener(url).open(Request(url, method="HEAD"), timeout=_DATE_S) as response:
            return str(response.headers.get("date", ""))
    except HTTPError as error:  # refused without credentials, but dated
        with error:
            return str(error.headers.get("date", ""))


def _check_quota(driver: Driver) -> Checkup:
    ask: Callable[[], tuple[int, int]] | None = getattr(driver, "space", None) if driver.capabilities.space else None
    if ask is None:
        return Checkup("quota", None, "unknown: the provider does not tell")
    try:
        used, allowed = ask()
    except Exception as error:
        return _failed_step("quota", driver, error)
    return Checkup("quota", used < allowed, f"{used / 1e9:.2f} of {allowed / 1e9:.2f} GB used")


def _describe_limits(capabilities: Capabilities) -> str:
    names = capabilities.names
    limits = [
        f"names to {names.max_chars} characters" if names.max_chars else "",
        f"without any of {names.refused!r}" if names.refused else "",
        "" if names.case_sensitive else "A and a are one name",
        f"{capabilities.max_request_bytes // (1024 * 1024)} MiB per request" if capabilities.max_request_bytes else "",
        "no overwriting" if not capabilities.overwrites else "",
        f"via {capabilities.via.removeprefix('via ')}" if capabilities.via else "",
    ]
    return "; ".join(filter(None, limits)) or "none is known"


def _failed_step(step: str, driver: Driver, error: Exception, hint: str = "") -> Checkup:
    if isinstance(error, CloudError):
        return Checkup(step, False, f"{error}: {hint}{_ADVICE[error.kind]}")
    if isinstance(error, CloudbenchError):
        raise error
    raised = describe_raised(type(driver).__name__, error, __file__)
    return Checkup(step, False, f"{raised}: {hint}a driver raises CloudError only: tell its author")
