"""Drivers with one known mistake each (``wrong:FOLDER?how=NAME``), which the conformance suite has to find.

The tests install this module as a distribution of its own, so it imports nothing from them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, cast

from pytest_cloudbench.drivers.folder import FolderDriver
from pytest_cloudbench.model import (
    Capabilities,
    CloudError,
    Conflict,
    Content,
    Endpoint,
    Entry,
    ErrorKind,
    NameRules,
    ProviderSpec,
    Verb,
    ignore_missing,
)

__all__ = ["LIES", "WRONGS", "BareDriver", "BoastfulDriver", "WrongDriver"]

_RIGHT = FolderDriver.capabilities

LIES: Mapping[str, Capabilities] = {
    "share": replace(_RIGHT, conflicts=frozenset(Conflict)),
    "digest": replace(_RIGHT, digest="md5"),
    "no_digest": replace(_RIGHT, digest=None),
    "revisions": replace(_RIGHT, revisions=True),
    "flat": replace(_RIGHT, folders=False),
    "prefix": replace(_RIGHT, lists_by_prefix=True),
    "deletes_missing": replace(_RIGHT, deletes_missing=True),
    "copies_folders": replace(_RIGHT, copies_folders=True),
    "case": replace(_RIGHT, names=replace(_RIGHT.names, case_sensitive=False)),
    "longest": replace(_RIGHT, names=NameRules(max_chars=300)),
    "shortest": replace(_RIGHT, names=NameRules(max_chars=100)),
    "requests": replace(_RIGHT, requests=dict.fromkeys(_RIGHT.verbs, 1)),
    "splits": replace(_RIGHT, max_request_bytes=1024),
    "refused": replace(_RIGHT, names=replace(_RIGHT.names, refused=":")),
}
"""False declarations of an otherwise correct driver."""


class WrongDriver(FolderDriver):
    """The driver of a folder, with one mistake."""

    capabilities: Any = _RIGHT  # type: ignore[misc]  # set on each driver, since it depends on the spec
    _sizes: dict[str, int]

    @classmethod
    def connect(cls, spec: ProviderSpec, endpoint: Endpoint | None, credentials: Mapping[str, str]) -> WrongDriver:
        """Return the driver with the mistake that ``how`` names."""
        params = dict(spec.params)
        how = params.pop("how", "")
        if how in WRONGS and cls is WrongDriver:
            return WRONGS[how].connect(spec, endpoint, credentials)
        driver: Any = super().connect(replace(spec, params=params), endpoint, credentials)
        driver.capabilities, driver._sizes = LIES.get(how, _RIGHT), {}
        return cast("WrongDriver", driver)


class _Cut:
    """A content without its last byte."""

    def __init__(self, content: Content) -> None:
        self._content, self.size_bytes = content, max(0, content.size_bytes - 1)

    def read(self, offset: int, length: int) -> bytes:
        return self._content.read(offset, min(length, self.size_bytes - offset))


class LosesBytes(WrongDriver):
    """Stores all but the last byte, but reports the full size."""

    def put(self, path: str, content: Content) -> Entry:
        super().put(path, _Cut(content))
        return replace(super().stat(path), size_bytes=content.size_bytes)


class IgnoresRanges(WrongDriver):
    """Gives the whole file, whatever the offset."""

    def get(self, path: str, offset: int = 0) -> Iterator[bytes]:
        return super().get(path)


class ListsStaleSizes(WrongDriver):
    """Lists the size of a file's first content, even after an overwrite."""

    def put(self, path: str, content: Content) -> Entry:
        self._sizes.setdefault(path, content.size_bytes)
        return super().put(path, content)

    def list(self, folder: str) -> Iterator[Entry]:
        for entry in super().list(folder):
            yield replace(entry, size_bytes=self._sizes.get(entry.path, entry.size_bytes))


class WrongKind(WrongDriver):
    """Reports a missing file as the server's fault."""

    def stat(self, path: str) -> Entry:
        try:
            return super().stat(path)
        except CloudError as error:
            raise CloudError(ErrorKind.SERVER, "stat", path) from error


class ForeignError(WrongDriver):
    """Lets its library's own error escape."""

    def get(self, path: str, offset: int = 0) -> Iterator[bytes]:
        try:
            yield from super().get(path, offset)
        except CloudError as error:
            raise FileNotFoundError(path) from error


class NoCause(WrongDriver):
    """Does not chain the cause."""

    def delete(self, path: str) -> None:
        try:
            super().delete(path)
        except CloudError as error:
            raise CloudError(error.kind, "delete", path) from None


class Swallows(WrongDriver):
    """Deletes a missing file without an error, though it declares otherwise."""

    def delete(self, path: str) -> None:
        with ignore_missing():
            super().delete(path)


class NotRecursive(WrongDriver):
    """Lists only the direct children of a folder."""

    def list(self, folder: str) -> Iterator[Entry]:
        for entry in super().list(folder):
            if entry.path.rpartition("/")[0] == folder.rstrip("/"):
                yield entry


class ReadsOnePage(WrongDriver):
    """Lists the first 20 entries only. The root is exempt, since other tests have files there."""

    def list(self, folder: str) -> Iterator[Entry]:
        return islice(super().list(folder), None if folder == "/" else 20)


class StopsWhereAFolderGoes(WrongDriver):
    """Reports not_found if a folder disappears while it is listed. The root is exempt, since its files come and go."""

    def list(self, folder: str) -> Iterator[Entry]:
        for entry in list(super().list(folder)):
            if folder != "/":
                self.stat(entry.path)
            yield entry


class MovesOverFiles(WrongDriver):
    """Replaces a file at the target of a move, though it declares a conflict."""

    def move(self, source: str, target: str) -> Entry:
        os.replace(self._local_path("move", source), self._local_path("move", target))
        return self.stat(target)


class CopiesAreLinks(WrongDriver):
    """Links a copy to its source, so that a put changes both. Only a sequence of operations shows that."""

    def put(self, path: str, content: Content) -> Entry:
        local = self._local_path("put", path)
        if not os.path.isfile(local):
            return super().put(path, content)
        local.write_bytes(content.read(0, content.size_bytes))
        return self.stat(path)

    def copy(self, source: str, target: str) -> Entry:
        entry = super().copy(source, target)
        local = self._local_path("copy", target)
        local.unlink()
        os.link(self._local_path("copy", source), local)
        return entry


class NotForThreads(WrongDriver):
    """Keeps the content of a put in an attribute, which another thread's put overwrites."""

    _latest_put = threading.Event()

    def put(self, path: str, content: Content) -> Entry:
        self._latest_content = content
        earlier, mine = self._latest_put, threading.Event()
        self._latest_put = mine
        earlier.set()
        mine.wait(0.002)  # until another thread begins a put, if there is one
        return super().put(path, self._latest_content)


class SplitsElsewhere(WrongDriver):
    """Splits uploads at a different size from the one it declares."""

    part_bytes = multipart_bytes = 1024


class Whole(WrongDriver):
    """Gives the whole file at once, though it declares pieces."""

    def get(self, path: str, offset: int = 0) -> Iterator[bytes]:
        yield b"".join(super().get(path, offset))


WRONGS: Mapping[str, type[WrongDriver]] = {
    driver.__name__: driver
    for driver in (
        LosesBytes, IgnoresRanges, ListsStaleSizes, WrongKind, ForeignError, NoCause, Swallows, NotRecursive,
        ReadsOnePage, StopsWhereAFolderGoes, MovesOverFiles, CopiesAreLinks, NotForThreads, SplitsElsewhere, Whole,
    )
}  # fmt: skip
"""Mistakes, by name."""


class BareDriver:
    """Lacks methods that every driver has."""

    capabilities = _RIGHT

    @classmethod
    def connect(cls, spec: ProviderSpec, endpoint: Endpoint | None, credentials: Mapping[str, str]) -> Any:
        """Never called."""
        raise AssertionError


class BoastfulDriver(FolderDriver):
    """Declares verbs that it does not have."""

    capabilities = replace(_RIGHT, verbs=frozenset(Verb))
