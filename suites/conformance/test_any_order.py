"""Does a driver do what it declares in any order of operations?

Operations in random order, each compared with a dictionary (a hypothesis state machine). A failure is shown as the
shortest failing sequence if the provider is an emulator: shrinking would send too many requests to a real service.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cloudbench import (
    CloudError,
    Conflict,
    ErrorKind,
    LiteralContent,
    RandomContent,
    Verb,
    content_difference,
    content_digest,
    missing_extra,
)

if TYPE_CHECKING:
    from pytest_cloudbench import Sandbox

SEQUENCES = {"quick": 25, "paper": 100}
STEPS = {"quick": 20, "paper": 50}
PATHS = ("/a", "/b", "/x/a", "/x/y/a", "/x/y/b", "/z/a")
FOLDERS = ("/x", "/x/y", "/z")
SIZES = (0, 1, 17, 1000, 70_000)


class ExpectedFiles:
    """The expected content of a provider: files by path, and folders if the driver has folders of their own."""

    def __init__(self, has_folders: bool) -> None:
        self.files: dict[str, bytes] = {}
        self.folders: set[str] = set()
        self._has_folders = has_folders

    def make_folder(self, path: str) -> None:
        while path and self._has_folders:
            self.folders.add(path)
            path = path.rpartition("/")[0]

    def put(self, path: str, data: bytes) -> None:
        self.make_folder(path.rpartition("/")[0])
        self.files[path] = data

    def remove(self, path: str) -> None:
        def is_below(other: str) -> bool:
            return f"{other}/".startswith(f"{path}/")

        self.files = {other: data for other, data in self.files.items() if not is_below(other)}
        self.folders = {other for other in self.folders if not is_below(other)}

    def holds(self, path: str) -> bool:
        """Return whether there is anything at a path or below it."""
        return any(f"{other}/".startswith(f"{path}/") for other in {*self.files, *self.folders})


def require_refusal(kind: ErrorKind, method: Any, *args: Any) -> None:
    with pytest.raises(CloudError) as caught:
        list(method(*args) or ())  # iterators of get and list send their request when they are first read
    assert caught.value.kind is kind, caught.value


def make_state_machine(sandbox: Sandbox) -> Any:
    """Return the state machine for one driver. Each sequence begins in a new folder."""
    from hypothesis import strategies as st
    from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

    driver, declared = sandbox.driver, sandbox.driver.capabilities
    paths, folders, sizes = st.sampled_from(PATHS), st.sampled_from(FOLDERS), st.sampled_from(SIZES)
    indexes = st.integers(0, len(PATHS) - 1)

    class AnyOrder(RuleBasedStateMachine):
        top: str
        model: ExpectedFiles
        number: int

        @initialize()
        def begin(self) -> None:
            self.top, self.model, self.number = sandbox.folder(), ExpectedFiles(declared.folders), 0

        def teardown(self) -> None:
            if not hasattr(self, "top"):
                return
            try:
                self.list_all()
                for path in self.model.files:
                    self.get(path)
            finally:
                sandbox.remove(self.top)

        @rule(path=paths, size_bytes=sizes)
        def put(self, path: str, size_bytes: int) -> None:
            if path in self.model.files and not declared.overwrites:
                return
            self.number += 1
            data = RandomContent(f"{self.number}", size_bytes).read(0, size_bytes)
            entry = driver.put(self.top + path, LiteralContent(data))
            self.model.put(path, data)
            self.check_entry(path, entry)

        @precondition(lambda self: declared.overwrites and self.model.files)
        @rule(index=indexes, size_bytes=sizes)
        def overwrite(self, index: int, size_bytes: int) -> None:
            self.put(self.pick_file(index), size_bytes)

        @rule(path=paths)
        def get(self, path: str) -> None:
            if path in self.model.files:
                assert not content_difference(b"".join(driver.get(self.top + path)), self.model.files[path]), path
            else:
                require_refusal(ErrorKind.NOT_FOUND, driver.get, self.top + path)

        @precondition(lambda self: declared.ranges and self.model.files)
        @rule(index=indexes, share=st.floats(0, 1))
        def get_from_an_offset(self, index: int, share: float) -> None:
            path = self.pick_file(index)
            data = self.model.files[path]
            if len(data) > 1:
                offset = 1 + int(share * (len(data) - 2))
                rest = b"".join(driver.get(self.top + path, offset))
                assert not content_difference(rest, data[offset:]), (path, offset)

        @rule(path=paths)
        def stat(self, path: str) -> None:
            if path in self.model.files:
                self.check_entry(path, driver.stat(self.top + path))
            else:
                require_refusal(ErrorKind.NOT_FOUND, driver.stat, self.top + path)

        @rule()
        def list_all(self) -> None:
            entries = list(driver.list(self.top))
            by_path = {entry.path.removeprefix(self.top): entry for entry in entries}
            assert len(by_path) == len(entries), "a path is listed twice"
            assert {path for path, entry in by_path.items() if entry.is_folder} == self.model.folders
            assert by_path.keys() - self.model.folders == self.model.files.keys()
            for path in self.model.files:
                self.check_entry(path, by_path[path])

        @rule(folder=folders)
        def list_folder(self, folder: str) -> None:
            if folder in self.model.folders or (declared.lists_by_prefix and not declared.folders):
                expected = {path for path in {*self.model.files, *self.model.folders} if path.startswith(f"{folder}/")}
                assert {entry.path.removeprefix(self.top) for entry in driver.list(self.top + folder)} == expected

        @rule(path=st.one_of(paths, folders))
        def delete(self, path: str) -> None:
            if self.model.holds(path) or declared.deletes_missing:
                driver.delete(self.top + path)
                self.model.remove(path)
            else:
                require_refusal(ErrorKind.NOT_FOUND, driver.delete, self.top + path)

        @precondition(lambda _: declared.folders)
        @rule(folder=folders)
        def mkdir(self, folder: str) -> None:
            driver.mkdir(self.top + folder)
            self.model.make_folder(folder)

        @precondition(lambda self: Verb.COPY in declared.verbs and self.model.files)
        @rule(index=indexes, destination=paths)
        def copy(self, index: int, destination: str) -> None:
            source = self.pick_file(index)
            if self.is_placement_valid(driver.copy, Conflict.COPY_ON_EXISTING, source, destination):
                self.check_entry(source, driver.copy(self.top + source, self.top + destination), at=destination)
                self.model.put(destination, self.model.files[source])

        @precondition(lambda self: Verb.MOVE in declared.verbs and self.model.files)
        @rule(index=indexes, destination=paths)
        def move(self, index: int, destination: str) -> None:
            source = self.pick_file(index)
            if self.is_placement_valid(driver.move, Conflict.MOVE_ON_EXISTING, source, destination):
                self.check_entry(source, driver.move(self.top + source, self.top + destination), at=destination)
                data = self.model.files.pop(source)
                self.model.put(destination, data)

        @precondition(lambda _: declared.verbs & {Verb.COPY, Verb.MOVE})
        @rule(
            source=paths,
            destination=paths,
            verb=st.sampled_from(sorted(declared.verbs & {Verb.COPY, Verb.MOVE}) or [""]),
        )
        def copy_or_move_missing_file(self, source: str, destination: str, verb: str) -> None:
            if source != destination and not {source, destination} & self.model.files.keys():
                require_refusal(ErrorKind.NOT_FOUND, getattr(driver, verb), self.top + source, self.top + destination)

        def pick_file(self, index: int) -> str:
            return sorted(self.model.files)[index % len(self.model.files)]

        def is_placement_valid(self, method: Any, conflict: Conflict, source: str, destination: str) -> bool:
            """Return whether a copy or move must succeed. If it must be refused, check that it is."""
            if destination not in self.model.files:
                return True
            # Without a declared conflict, the driver may refuse a file in the way or replace it.
            if source != destination and conflict in declared.conflicts:
                require_refusal(ErrorKind.CONFLICT, method, self.top + source, self.top + destination)
            return False

        def check_entry(self, path: str, entry: Any, at: str = "") -> None:
            """Check an entry against the expected file. ``at`` is the path to which it was just copied or moved."""
            data = self.model.files[path]
            algorithm = declared.digest_of(len(data))
            expected = content_digest(LiteralContent(data), algorithm).hex() if algorithm else None
            actual = (entry.path, entry.size_bytes, entry.is_folder, entry.digest)
            assert actual == (self.top + (at or path), len(data), False, expected)

    return AnyOrder


def test_any_order(sandbox: Sandbox, grid: str, tmp_path: Path, payloads: Any) -> None:
    if missing := missing_extra("conformance"):
        pytest.skip(missing)
    from hypothesis import HealthCheck, Phase, configuration, seed, settings
    from hypothesis.stateful import run_state_machine_as_test

    configuration.set_hypothesis_home_dir(tmp_path)  # keeps hypothesis from writing into the user's folder
    phases = (Phase.generate,) if sandbox.provider.is_kept else (Phase.generate, Phase.shrink)
    chosen = settings(
        max_examples=SEQUENCES[grid],
        stateful_step_count=STEPS[grid],
        deadline=None,
        database=None,
        phases=phases,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    run_state_machine_as_test(seed(payloads.seed)(make_state_machine(sandbox)), settings=chosen)
