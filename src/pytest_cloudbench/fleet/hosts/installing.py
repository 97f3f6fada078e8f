"""Installation of this package on hosts: what is installed here is sent in one archive. Hosts need no package index.

The files of the wheels that this interpreter has are sent, so compiled modules run only where the interpreter is of the
same kind. The code is named by its digest, and a later session uses it only if it has the same.
"""

from __future__ import annotations

import contextlib
import gzip
import inspect
import json
import tarfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest_cloudbench
from pytest_cloudbench import __version__
from pytest_cloudbench.fleet.hosts import installer, probe
from pytest_cloudbench.fleet.hosts.checks import Checked
from pytest_cloudbench.fleet.hosts.connection import HostConnection, HostStream, read_line
from pytest_cloudbench.fleet.hosts.table import Host
from pytest_cloudbench.model import FleetError, UsageError
from pytest_cloudbench.support.wording import format_count

_BLOCK_BYTES = 1 << 20
_OURS = "pytest-cloudbench"
_SOURCE = "{source}\nmain()\n"
_METADATA = ("METADATA", "entry_points.txt")


def install_hosts(hosts: Sequence[Host], patience_s: float, extras: Sequence[str] = ()) -> list[Checked]:
    """Bring this package, and the packages of some of its extras, to all hosts at the same time.

    Raises UsageError for an extra that is not installed here.
    """
    distributions = find_distributions(extras)
    with ThreadPoolExecutor(len(hosts)) as pool:
        return list(pool.map(partial(_install, patience_s=patience_s, distributions=distributions), hosts))


def remove_from_hosts(hosts: Sequence[Host], patience_s: float) -> list[Checked]:
    """Remove from all hosts what was installed there, and what killed sessions left. ``is_ready`` means gone."""
    with ThreadPoolExecutor(len(hosts)) as pool:
        return list(pool.map(partial(_remove, patience_s=patience_s), hosts))


def _install(host: Host, patience_s: float, distributions: Sequence[Distribution]) -> Checked:
    with contextlib.ExitStack() as stack:
        try:
            stream = _start_installer(host, patience_s, stack)
            return Checked(host, *_send_packages(stream, distributions))
        except FleetError as error:
            return Checked(host, False, str(error).removeprefix(f"{host.name}: "))
        except (EOFError, OSError, ValueError) as error:
            return Checked(host, False, f"the installation failed: {error}")


def _remove(host: Host, patience_s: float) -> Checked:
    with contextlib.ExitStack() as stack:
        try:
            stream = _start_installer(host, patience_s, stack)
            stream.write(b'{"remove": true}\n')
            names = json.loads(read_line(stream))["removed"]
        except FleetError as error:
            return Checked(host, False, str(error).removeprefix(f"{host.name}: "))
        except (EOFError, OSError, ValueError) as error:
            return Checked(host, False, f"the connection ended before all was removed: {error}")
    return Checked(host, True, f"removed {_OURS} {', '.join(names)}" if names else "nothing was installed there")


def _start_installer(host: Host, patience_s: float, stack: contextlib.ExitStack) -> HostStream:
    connection = HostConnection(host, patience_s, lambda connection: None)
    connection.open()
    stack.callback(connection.close)
    connection.wait(patience_s)
    stream = connection.add_stream(1, None)
    source = _SOURCE.format(source=inspect.getsource(installer))
    connection.start(stream, source)
    return stream


def _send_packages(stream: HostStream, distributions: Sequence[Distribution]) -> tuple[bool, str]:
    """Send packages to a host's installer. Returns whether they are installed, and the result in words."""
    check = f"import xdist; from {probe.__name__} import check; check({__version__!r}, {probe.digest_code()!r})"
    stream.write(json.dumps({"name": probe.name_code(), "check": check}).encode() + b"\n")
    remote, local = json.loads(read_line(stream)), installer.describe_python()
    if remote["abi"] != local["abi"]:
        stream.write(b'{"sends": false}\n')
        return False, (
            f"has Python {remote['python']} ({remote['abi']}), but the compiled packages of this machine need "
            f"{local['python']} ({local['abi']}): set python = ... to such an interpreter on the host, or install "
            f"{_OURS} {__version__} there with pip"
        )
    stream.write(b'{"sends": true}\n')
    writer = _BlockWriter(stream)
    try:
        with (
            gzip.GzipFile(fileobj=writer, mode="wb", compresslevel=1, mtime=0) as content,
            tarfile.open(fileobj=content, mode="w|") as archive,
        ):
            for distribution_here in distributions:
                for path, name in _list_files(distribution_here):
                    archive.add(path, name, recursive=False)
        writer.close()
        if stream.read(1) != installer.TAKEN:
            raise _RefusedError
    except _RefusedError:
        return False, str(json.loads(read_line(stream))["problem"])
    read_line(stream)
    sent = f"{format_count(len(distributions), 'package')}, {writer.sent_bytes / 2**20:.0f} MiB sent"
    return True, f"{_OURS} {__version__} is installed ({sent}); sessions that run this code use it"


class _RefusedError(Exception):
    """The host takes no more, and says why."""


class _BlockWriter:
    """A file that sends blocks, and waits until each was taken: what a slow host has not taken fills no memory."""

    def __init__(self, stream: HostStream) -> None:
        self._stream, self._data, self.sent_bytes = stream, bytearray(), 0
        self._is_refused = False

    def write(self, data: Any) -> int:
        self._data += data
        while len(self._data) >= _BLOCK_BYTES:
            self._send(bytes(self._data[:_BLOCK_BYTES]))
            del self._data[:_BLOCK_BYTES]
        return len(data)

    def flush(self) -> None:
        """Does nothing: what is left is sent at the end."""

    def close(self) -> None:
        """Send the rest, and the end."""
        if self._data:
            self._send(bytes(self._data))
        self._send(b"")

    def _send(self, block: bytes) -> None:
        if self._is_refused:  # an archive that is closed writes its end, even after an error
            return
        with contextlib.suppress(OSError):  # it has ended: what it has said before is still to be read
            self._stream.write(installer.BLOCK.pack(len(block)) + block)
        self.sent_bytes += len(block)
        self._is_refused = self._stream.read(1) != installer.TAKEN
        if self._is_refused:
            raise _RefusedError


# --- what is installed here -----------------------------------------------------------------------------


def find_distributions(extras: Sequence[str]) -> list[Distribution]:
    """Return the distributions that this package needs here, itself included, with those of some of its extras.

    Raises UsageError for an extra that is unknown or not installed.
    """
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    to_do, chosen = [(_OURS, extra) for extra in ("", *extras)], dict[tuple[str, str], Distribution]()
    known_extras = distribution(_OURS).metadata.get_all("Provides-Extra") or []
    for extra in extras:
        if extra not in known_extras:
            raise UsageError(f"{_OURS} has no extra {extra!r}; it has {', '.join(known_extras)}")
    while to_do:
        name, extra = key = to_do.pop()
        if key in chosen:
            continue
        try:
            chosen[key] = distribution(name)
        except PackageNotFoundError:
            raise UsageError(f"{name} is not installed here, so it cannot be sent: run pip install {name}") from None
        for text in chosen[key].requires or ():
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                to_do += [(canonicalize_name(needed.name), part) for part in ("", *needed.extras)]
    return list({name: package for (name, _), package in sorted(chosen.items())}.values())


def _list_files(package: Distribution) -> Iterator[tuple[Path, str]]:
    """Yield the files of a distribution, and their names below a folder of packages. Programs are left out."""
    if package.metadata["Name"] == _OURS:  # which may be installed as a link to its source
        yield from _list_own_files(package)
        return
    for file in package.files or ():
        path = Path(str(file.locate()))
        if ".." not in file.parts and "__pycache__" not in file.parts and path.is_file():
            yield path, file.as_posix()


def _list_own_files(package: Distribution) -> Iterator[tuple[Path, str]]:
    for path, name in probe.list_package():
        yield path, f"{pytest_cloudbench.__name__}/{name}"
    for file in package.files or ():
        if file.name in _METADATA and file.parent.name.endswith(".dist-info"):
            yield Path(str(file.locate())), file.as_posix()
