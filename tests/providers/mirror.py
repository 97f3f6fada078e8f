"""A provider made of others, for tests: every file is on all of them, and is read from the first one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pytest_cloudbench.drivers.base import check_params
from pytest_cloudbench.model import Capabilities, Content, Entry, ProviderSpec, SpecError, Verb, ignore_missing

__all__ = ["Mirror"]


class Mirror:
    capabilities = Capabilities(digest=None, verbs=frozenset({Verb.PUT, Verb.GET, Verb.STAT, Verb.LIST, Verb.DELETE}))

    def __init__(self, children: Sequence[Any]) -> None:
        self.children = children

    @classmethod
    def check_children(cls, spec: ProviderSpec, children: Sequence[ProviderSpec]) -> None:
        check_params(spec, {"note"})
        if len(children) < 2:
            raise SpecError(f"provider {spec.text!r}: expected two children or more")

    @classmethod
    def compose(cls, spec: ProviderSpec, children: Sequence[Any]) -> Any:
        return cls(children)

    def versions(self) -> Mapping[str, str]:
        return {"mirror": "1"} | {name: text for child in self.children for name, text in child.versions().items()}

    def put(self, path: str, content: Content) -> Entry:
        entries = [child.put(path, content) for child in self.children]
        return Entry(entries[0].path, entries[0].size_bytes)

    def get(self, path: str, offset: int = 0) -> Iterator[bytes]:
        yield from self.children[0].get(path, offset)

    def stat(self, path: str) -> Entry:
        entry: Entry = self.children[0].stat(path)
        return entry

    def list(self, folder: str) -> Iterator[Entry]:
        for entry in self.children[0].list(folder):
            yield Entry(entry.path, entry.size_bytes, is_folder=entry.is_folder)

    def delete(self, path: str) -> None:
        self.children[0].delete(path)
        for child in self.children[1:]:
            with ignore_missing():
                child.delete(path)

    def mkdir(self, path: str) -> None:
        for child in self.children:
            child.mkdir(path)

    def close(self) -> None:
        for child in self.children:
            child.close()
