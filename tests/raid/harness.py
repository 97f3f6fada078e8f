"""Arrays of folders with faults that a test can set: children that fail, freeze, lose or change what they store."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_cloudbench.drivers.folder import FolderDriver
from pytest_cloudbench.model import Capabilities, CloudError, Content, Entry, ErrorKind, ProviderSpec
from pytest_cloudbench.raid import config
from pytest_cloudbench.raid.coding.policies import Split
from pytest_cloudbench.raid.driver import RaidDriver, open_array

__all__ = ["ArrayFolder", "Child", "FixedHedge"]

PACKAGE = re.compile("[md][0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class FixedHedge:
    """Asks for the data shares first, because they need no decoding, and asks another child after a fixed time.

    Attributes:
        patience_ns: how long each child may take, or None: until it fails.
    """

    patience_ns: int | None

    def order(self, split: Split, share_bytes: int) -> Sequence[int]:
        """Return the children in their order."""
        del share_bytes
        return [child for child, count in enumerate(split.counts) if count]

    def after_ns(self, child: int, size_bytes: int) -> int | None:
        """Return the same for every child and size."""
        del child, size_bytes
        return self.patience_ns

    def note_extra_request(self) -> None:
        """Does nothing."""

    def note_unanswered(self, child: int, size_bytes: int, waited_ns: int) -> None:
        """Does nothing."""


class Child:
    """A folder for which a test can set faults, verb by verb."""

    capabilities: Capabilities = FolderDriver.capabilities

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        self._folder = FolderDriver.connect(ProviderSpec.parse(f"folder:{root}"), None, {})
        self.fails: dict[str, ErrorKind] = {}
        self.fails_when = threading.Event()  # a call that is to fail waits for this event
        self.fails_when.set()
        self.frozen: set[str] = set()
        self.fails_late: dict[str, ErrorKind] = {}  # once, after it was frozen
        self.thawed, self.has_frozen = threading.Event(), threading.Event()
        self.called_verbs: list[str] = []
        self.closings = 0
        self.after_put: Any = None

    def _cause_fault(self, verb: str, path: str) -> None:
        self.called_verbs.append(verb)
        if verb in self.fails:
            self.fails_when.wait()
            raise CloudError(self.fails[verb], verb, path, detail="trouble")
        if verb in self.frozen:
            self.has_frozen.set()
            self.thawed.wait()
            if verb in self.fails_late:
                raise CloudError(self.fails_late.pop(verb), verb, path, detail="trouble")

    def versions(self) -> Mapping[str, str]:
        return self._folder.versions()

    def put(self, path: str, content: Content) -> Entry:
        self._cause_fault("put", path)
        entry = self._folder.put(path, content)
        if self.after_put is not None:
            self.after_put()
        return entry

    def get(self, path: str, offset: int = 0) -> Iterator[bytes]:
        self._cause_fault("get", path)
        return self._folder.get(path, offset)

    def stat(self, path: str) -> Entry:
        return self._folder.stat(path)

    def list(self, folder: str) -> Iterator[Entry]:
        self._cause_fault("list", folder)
        return self._folder.list(folder)

    def delete(self, path: str) -> None:
        self._cause_fault("delete", path)
        self._folder.delete(path)

    def mkdir(self, path: str) -> None:
        self._folder.mkdir(path)

    def close(self) -> None:
        self.closings += 1
        self.thawed.set()

    @property
    def packages(self) -> dict[str, Path]:
        """Return its files by name, without those that a killed process had not finished."""
        return {path.name: path for path in self.root.rglob("*") if PACKAGE.fullmatch(path.name)}


class ArrayFolder:
    """An array of folders in one folder, which can be opened again and again."""

    def __init__(self, folder: Path, k: int = 2, m: int = 1, **settings: object) -> None:
        self.folder, self.k, self.m = folder, k, m
        self.file = folder / "array.toml"
        self.metadata = folder / "array.sqlite"
        for number in range(k + m):
            (folder / str(number)).mkdir(exist_ok=True)
        specs = ", ".join(f'"folder:{folder}/{number}"' for number in range(k + m))
        lines = [f"k = {k}", f"m = {m}", f"children = [{specs}]"]
        values = {"key": "array.key", "segment_mib": 1, "patience_s": 60, **settings}
        lines += [
            f"{name} = {str(value).lower() if isinstance(value, bool) else repr(value)}"
            for name, value in values.items()
        ]
        self.file.write_text("\n".join(lines) + "\n", "utf-8")
        if values["key"] == "array.key":  # the same for all arrays: each secret slows error cleaning
            (folder / "array.key").write_text("5e" * 32)
            (folder / "array.key").chmod(0o600)
        self.children: list[Any] = []

    @contextmanager
    def opened(self, **policies: Any) -> Iterator[RaidDriver]:
        """Yield the array's driver, with new children over the same folders."""
        self.children = [Child(self.folder / str(number)) for number in range(self.k + self.m)]
        driver = RaidDriver(open_array(config.load(self.file), self.children, **policies))
        try:
            yield driver
        finally:
            for child in self.children:
                child.fails.clear()
                child.thawed.set()
            driver.close()

    def lose_metadata(self) -> None:
        for path in self.folder.glob("array.sqlite*"):
            path.unlink()

    def lose_child(self, number: int) -> None:
        """Delete all files of a child."""
        for path in (self.folder / str(number)).rglob("*"):
            if path.is_file():
                path.unlink()
