"""A driver with flat keys, as in an object store, and whole downloads, unlike the drivers of the package.

Its capabilities depend on the spec (``?overwrites=0``). It imports nothing from the tests, since they also
install it as a distribution of its own.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from urllib.parse import quote, unquote

from pytest_cloudbench.drivers.base import check_params
from pytest_cloudbench.model import (
    MIB,
    Capabilities,
    CloudError,
    Content,
    Endpoint,
    Entry,
    ErrorKind,
    ProviderSpec,
    Verb,
)

__all__ = ["FlatDriver"]

_CAPABILITIES = Capabilities(
    digest="md5",
    max_digest_bytes=5 * MIB,
    verbs=frozenset({Verb.PUT, Verb.GET, Verb.STAT, Verb.LIST, Verb.DELETE, Verb.COPY}),
    ranges=True,
    streams=False,
    folders=False,
    lists_by_prefix=True,
    deletes_missing=True,
    via="files named by their key's hash",
)


class FlatDriver:
    """Objects in one folder, each in a file whose first line is the key."""

    capabilities = _CAPABILITIES

    def __init__(self, root: Path, capabilities: Capabilities = _CAPABILITIES) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.root, self.capabilities = root, capabilities
        self._numbers = count()

    @classmethod
    def connect(cls, spec: ProviderSpec, endpoint: Endpoint | None, credentials: Mapping[str, str]) -> FlatDriver:
        check_params(spec, {"overwrites"})
        return cls(Path(spec.target), replace(_CAPABILITIES, overwrites=spec.params.get("overwrites", "1") == "1"))

    @classmethod
    def absolute(cls, spec: ProviderSpec) -> str:
        _, mark, query = spec.text.partition("?")
        return f"{spec.scheme}:{Path(spec.target).resolve()}{mark}{query}"

    def versions(self) -> Mapping[str, str]:
        return {"flat": "1"}

    def close(self) -> None:
        pass

    def _file(self, verb: str, path: str) -> Path:
        if not path.startswith("/"):
            raise CloudError(ErrorKind.INVALID, verb, path)
        return self.root / hashlib.sha256(path.encode()).hexdigest()

    def _read_data(self, verb: str, path: str) -> bytes:
        try:
            return self._file(verb, path).read_bytes().partition(b"\n")[2]
        except FileNotFoundError as error:
            raise CloudError(ErrorKind.NOT_FOUND, verb, path) from error

    def _entry(self, path: str, data: bytes) -> Entry:
        algorithm = self.capabilities.digest_of(len(data))
        digest = hashlib.new(algorithm, data).hexdigest() if algorithm else None
        return Entry(path, size_bytes=len(data), digest=digest)

    def put(self, path: str, content: Content) -> Entry:
        file, data = self._file("put", path), content.read(0, content.size_bytes)
        if file.exists() and not self.capabilities.overwrites:
            raise CloudError(ErrorKind.CONFLICT, "put", path)
        new = self.root / f"new-{os.getpid()}-{next(self._numbers)}"
        new.write_bytes(quote(path).encode() + b"\n" + data)
        new.replace(file)
        return self._entry(path, data)

    def get(self, path: str, offset: int = 0) -> Iterator[bytes]:
        yield self._read_data("get", path)[offset:]

    def stat(self, path: str) -> Entry:
        return self._entry(path, self._read_data("stat", path))

    def _keys(self, prefix: str) -> list[str]:
        keys = []
        for file in self.root.glob("[!n]*"):
            try:
                with file.open("rb") as stream:
                    keys.append(unquote(stream.readline().decode().rstrip("\n")))
            except FileNotFoundError:
                continue
        return sorted(key for key in keys if key.startswith(prefix))

    def list(self, folder: str) -> Iterator[Entry]:
        for key in self._keys(folder.rstrip("/") + "/"):
            try:
                yield self.stat(key)
            except CloudError:
                continue

    def delete(self, path: str) -> None:
        for key in [path, *self._keys(path.rstrip("/") + "/")]:
            self._file("delete", key).unlink(missing_ok=True)

    def mkdir(self, path: str) -> None:
        pass

    def copy(self, source: str, target: str) -> Entry:
        data = self._read_data("copy", source)
        return self.put(target, _Whole(data))


class _Whole:
    def __init__(self, data: bytes) -> None:
        self.data, self.size_bytes = data, len(data)

    def read(self, offset: int, length: int) -> bytes:
        return self.data[offset : offset + length]
