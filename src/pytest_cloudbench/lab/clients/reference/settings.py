"""The options of the reference client, and the capabilities that follow from them.

Detectors are checked against these answers. Nothing is measured: the answers follow from the options alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_cloudbench.model import UsageError

_SWITCHES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    # option: (the value that 1 stands for, all values besides "no")
    "chunking": ("yes", ("yes",)),
    "bundling": ("request", ("request", "pipelined")),
    "deduplication": ("file", ("file", "block")),
    "delta": ("rolling", ("fixed", "rolling")),
    "compression": ("always", ("always", "smart", "by-name")),
}
_NUMBERS: Mapping[str, tuple[float, float, float]] = {
    # option: (default, least, most), in whole numbers, except periods (``polling`` and names in _s)
    "chunk_bytes": (1 << 20, 1 << 10, 1 << 28),
    "delta_bytes": (1 << 12, 1 << 6, 1 << 20),
    "polling": (0, 0, 86_400),
    "pull_s": (0, 0, 86_400),
    "retry": (0, 0, 100),
    "settle_s": (0.1, 0.01, 60),
}
FLAWS = ("none", "plain", "any-certificate", "telemetry", "device-telemetry", "open-token", "argument-token")
"""Security flaws, one at a time: detectors must find each, and none where there is none."""
OPTIONS = frozenset(
    {*_SWITCHES, *_NUMBERS, "deduplicate_deleted", "deduplicate_accounts", "connections", "server_name", "flaw"}
)
"""Names of all options."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All options with their values. docs/reference/reference-client.md explains them on the wire.

    Attributes:
        chunking: content goes in pieces of ``chunk_bytes``, each acknowledged before the next one begins.
        bundling: files of one batch in one request, or one request each without waiting for answers, or ``no``.
        deduplication: content that the server has is not sent: whole files, or blocks of ``chunk_bytes``, or ``no``.
        delta: only what differs from the server's version of the same file is sent, in blocks of ``delta_bytes`` at
            their old places (``fixed``) or anywhere (``rolling``), or ``no``.
        compression: what is sent is deflated: never, always, unless the content is known as compressed
            (``smart``), or unless the name says so (``by-name``).
        chunk_bytes: bytes of content per chunk, and per block of deduplication.
        delta_bytes: bytes of content per block of delta.
        deduplicate_deleted: whether content that no file contains any longer counts as known to the server.
        deduplicate_accounts: whether content of other accounts of the server counts as known to it.
        polling_s: seconds between two polls of the server for news, or 0 if it never asks.
        pull_s: seconds that a second device waits between two polls for news, or 0 if there is no second device.
        connections: ``one`` that stays open, or one ``per-file``.
        retries: the number of times that a request is repeated on a new connection after an error.
        settle_s: seconds without a change after which changes are sent as one batch.
        server_name: the server's name in the TLS hello, or empty if it has only an address.
        flaw: a security flaw. ``plain``: no TLS. ``any-certificate``: the server's is not checked. ``telemetry``: the
            name of each changed file and how it begins, in a datagram without encryption. ``device-telemetry``: the
            same of each file that a second device has received. ``open-token``: others may read the file with the
            token. ``argument-token``: the token is on the command line.
    """

    chunking: bool = False
    bundling: str = "no"
    deduplication: str = "no"
    delta: str = "no"
    compression: str = "no"
    chunk_bytes: int = 1 << 20
    delta_bytes: int = 1 << 12
    deduplicate_deleted: bool = True
    deduplicate_accounts: bool = False
    polling_s: float = 0
    pull_s: float = 0
    connections: str = "one"
    retries: int = 0
    settle_s: float = 0.1
    server_name: str = ""
    flaw: str = "none"

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Settings:
        """Read options as a spec has them. Raises UsageError that names the option and what was expected."""
        if unknown := sorted(options.keys() - OPTIONS):
            raise _option_error(unknown[0], f"one of {', '.join(sorted(OPTIONS))}", "")
        numbers = {name: _read_number(options, name) for name in _NUMBERS}
        settings = cls(
            chunking=_read_switch(options, "chunking") == "yes",
            bundling=_read_switch(options, "bundling"),
            deduplication=_read_switch(options, "deduplication"),
            delta=_read_switch(options, "delta"),
            compression=_read_switch(options, "compression"),
            chunk_bytes=int(numbers["chunk_bytes"]),
            delta_bytes=int(numbers["delta_bytes"]),
            deduplicate_deleted=_read_choice(options, "deduplicate_deleted", ("1", "0")) == "1",
            deduplicate_accounts=_read_choice(options, "deduplicate_accounts", ("0", "1")) == "1",
            polling_s=numbers["polling"],
            pull_s=numbers["pull_s"],
            connections=_read_choice(options, "connections", ("one", "per-file")),
            retries=int(numbers["retry"]),
            settle_s=numbers["settle_s"],
            server_name=options.get("server_name", ""),
            flaw=_read_choice(options, "flaw", FLAWS),
        )
        if settings.connections == "per-file" and settings.bundling != "no":
            raise _option_error("connections", "one, because bundling puts many files on one connection", "per-file")
        return settings

    @property
    def block_bytes(self) -> int | None:
        """Bytes of a block that deduplication knows: None without deduplication, 0 if a block is a whole file."""
        return {"no": None, "file": 0}.get(self.deduplication, self.chunk_bytes)

    def truth(self) -> dict[str, tuple[bool, str]]:
        """Return, for each of the five capabilities, whether the client has it and in which way."""
        deleted = "also" if self.deduplicate_deleted else "not"
        return {
            "chunking": (self.chunking, f"{self.chunk_bytes} bytes" if self.chunking else "one body per file"),
            "bundling": (self.bundling != "no", _BUNDLING[self.bundling]),
            "deduplication": (
                self.deduplication != "no",
                f"by {self.deduplication}, {deleted} of deleted content" if self.deduplication != "no" else "none",
            ),
            "delta": (
                self.delta != "no",
                f"{self.delta} blocks of {self.delta_bytes} bytes" if self.delta != "no" else "none",
            ),
            "compression": (self.compression != "no", _COMPRESSION[self.compression]),
        }


_BUNDLING = {
    "no": "one request per file, each acknowledged before the next one",
    "request": "files of one batch in one request",
    "pipelined": "one request per file, sent without waiting for answers",
}
_COMPRESSION = {
    "no": "none",
    "always": "deflate, whatever the content",
    "smart": "deflate, unless the content is of a compressed format",
    "by-name": "deflate, unless the extension is of a compressed format",
}


def _read_switch(options: Mapping[str, str], name: str) -> str:
    """Return the value of a switch, with 0 and 1 replaced by their meanings."""
    value_of_1, values = _SWITCHES[name]
    value = options.get(name, "0")
    value = {"0": "no", "1": value_of_1}.get(value, value)
    if value != "no" and value not in values:
        raise _option_error(name, f"0, 1, no or {', '.join(values)}", value)
    return value


def _read_choice(options: Mapping[str, str], name: str, values: tuple[str, ...]) -> str:
    value = options.get(name, values[0])
    if value not in values:
        raise _option_error(name, " or ".join(values), value)
    return value


def _read_number(options: Mapping[str, str], name: str) -> float:
    default, minimum, maximum = _NUMBERS[name]
    text = options.get(name, str(default))
    is_whole = name not in {"polling", "pull_s", "settle_s"}
    expected = f"a {'whole ' if is_whole else ''}number from {minimum:g} to {maximum:g}"
    try:
        value: Any = int(text) if is_whole else float(text)
    except ValueError as error:
        raise _option_error(name, expected, text) from error
    if not minimum <= value <= maximum:
        raise _option_error(name, expected, text)
    return float(value)


def _option_error(name: str, expected: str, value: str) -> UsageError:
    suffix = f"; not {value!r}" if value else ""
    return UsageError(f"client 'reference': {name} must be {expected}{suffix}")
