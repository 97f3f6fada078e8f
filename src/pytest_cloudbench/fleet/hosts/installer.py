"""The program that installs this package on a host, or removes it. It touches only a folder of its own.

Its source is sent to a bare Python, so it needs nothing but the standard library of Python 3.11. It talks over its
standard input and output: one line of JSON in each direction, then blocks of an archive, each of which it confirms.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import platform
import shutil
import struct
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BLOCK = struct.Struct(">I")
TAKEN, REFUSED = b"+", b"-"
_PREFIX = "pytest-cloudbench-"


def find_base(variables: Mapping[str, str]) -> Path:
    """Return the folder that holds what was installed, for a process with these variables of the environment."""
    cache = variables.get("XDG_CACHE_HOME") or os.path.join(variables.get("HOME") or os.path.expanduser("~"), ".cache")
    return Path(cache) / "pytest-cloudbench" / "installed"


def find_installed(name: str, variables: Mapping[str, str]) -> str:
    """Return the folder with the code of this name. Empty if it is not there, or if another user may have made it."""
    folder = find_base(variables) / f"{_PREFIX}{name}"
    with contextlib.suppress(OSError):
        if name and folder.stat().st_uid == os.geteuid():
            return str(folder)
    return ""


def describe_python() -> dict[str, Any]:
    """Return the facts that decide whether compiled modules of another machine run here."""
    return {
        "python": platform.python_version(),
        "abi": sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag,
    }


class _Blocks(io.RawIOBase):
    """The archive as a stream, read block by block from the standard input."""

    def __init__(self) -> None:
        self._data, self._is_over = b"", False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._data and not self._is_over:
            (size,) = BLOCK.unpack(_read_exactly(BLOCK.size))
            self._data = _read_exactly(size)
            self._is_over = not size
            os.write(1, TAKEN)
        piece = self._data[: len(buffer)]
        buffer[: len(piece)] = piece
        self._data = self._data[len(piece) :]
        return len(piece)

    def drain(self) -> None:
        """Read to the end."""
        while self.read(1 << 16):
            pass


def _read_exactly(size_bytes: int) -> bytes:
    data = b""
    while len(data) < size_bytes:
        piece = os.read(0, size_bytes - len(data))
        if not piece:
            raise EOFError("the controller has gone")
        data += piece
    return data


def _read_line() -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        line += _read_exactly(1)
    return line


def _say(**message: Any) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


def _install(name: str, check: str) -> None:
    """Fill a new folder with the archive, check that it works, and put it in its place."""
    base = find_base(os.environ)
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    part, folder = base / f".part-{os.getpid()}", base / f"{_PREFIX}{name}"
    try:
        blocks = _Blocks()
        with gzip.GzipFile(fileobj=io.BufferedReader(blocks)) as content:
            with tarfile.open(fileobj=content, mode="r|") as archive:
                if hasattr(tarfile, "data_filter"):  # since Python 3.11.4
                    archive.extraction_filter = tarfile.data_filter
                archive.extractall(part)
            content.read()
        blocks.drain()
        done = subprocess.run(
            [sys.executable, "-c", check], env={**os.environ, "PYTHONPATH": str(part)}, capture_output=True, text=True,
            stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        if done.returncode:
            raise OSError((done.stderr.strip() or "it does not run").splitlines()[-1])
        shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def remove_all() -> list[str]:
    """Remove everything that was installed, and return the names."""
    base = find_base(os.environ)
    names = sorted(path.name.removeprefix(_PREFIX) for path in base.glob(f"{_PREFIX}*"))
    shutil.rmtree(base, ignore_errors=True)
    with contextlib.suppress(OSError):
        base.parent.rmdir()
    return names


def main() -> None:
    """Do what the controller's line asks for."""
    request = json.loads(_read_line())
    if "remove" in request:
        _say(removed=remove_all())
        return
    _say(**describe_python(), has=bool(find_installed(request["name"], os.environ)))
    if not json.loads(_read_line())["sends"]:
        return
    try:
        _install(request["name"], request["check"])
    except (OSError, tarfile.TarError, EOFError) as error:
        os.write(1, REFUSED)
        _say(problem=f"{find_base(os.environ)}: {getattr(error, 'strerror', None) or error}")
    else:
        os.write(1, TAKEN)
        _say(done=True)
