"""Does a driver keep doing what it declares, in whatever order it is asked?

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


class Model:
    """What a provider should hold: files by path, and folders if they exist by themselves."""

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
        def is_below(each: str) -> bool:
            return f"{each}/".startswith(f"{path}/")

        self.files = {each: data for each, data in self.files.items() if not is_below(each)}
        self.folders = {each for each in self.folders if not is_below(each)}

    def holds(self, path: str) -> bool:
        """Whether there is anything at a path, or below it."""
        return any(f"{each}/".startswith(f"{path}/") for each in {*self.files, *self.folders})


def refused(kind: ErrorKind, method: Any, *args: Any) -> None:
    with pytest.raises(CloudError) as caught:
        list(method(*args) or ())  # get and list begin when they are read
    assert caught.value.kind is kind, caught.value


def machine(sandbox: Sandbox) -> Any:
    """The state machine for one driver; each sequence begins in a new folder."""
    from hypothesis import strategies as st
    from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

    driver, declared = sandbox.driver, sandbox.driver.capabilities
    paths, folders, sizes = st.sampled_from(PATHS), st.sampled_from(FOLDERS), st.sampled_from(SIZES)
    places = st.integers(0, len(PATHS) - 1)

    class AnyOrder(RuleBasedStateMachine):
        top: str
        model: Model
        number: int

        @initialize()
        def begin(self) -> None:
            self.top, self.model, self.number = sandbox.folder(), Model(declared.folders), 0

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
            self.compare(path, entry)

        @precondition(lambda self: declared.overwrites and self.model.files)
        @rule(which=places, size_bytes=sizes)
        def overwrite(self, which: int, size_bytes: int) -> None:
            self.put(self.one_of_files(which), size_bytes)

        @rule(path=paths)
        def get(self, path: str) -> None:
            if path in self.model.files:
                assert not content_difference(b"".join(driver.get(self.top + path)), self.model.files[path]), path
            else:
                refused(ErrorKind.NOT_FOUND, driver.get, self.top + path)

        @precondition(lambda self: declared.ranges and self.model.files)
        @rule(which=places, share=st.floats(0, 1))
        def get_from_an_offset(self, which: int, share: float) -> None:
            path = self.one_of_files(which)
            data = self.model.files[path]
            if len(data) > 1:
                offset = 1 + int(share * (len(data) - 2))
                assert not content_difference(b"".join(driver.get(self.top + path, offset)), data[offset:]), (
                    path,
                    offset,
                )

        @rule(path=paths)
        def stat(self, path: str) -> None:
            if path in self.model.files:
                self.compare(path, driver.stat(self.top + path))
            else:
                refused(ErrorKind.NOT_FOUND, driver.stat, self.top + path)

        @rule()
        def list_all(self) -> None:
            listed = list(driver.list(self.top))
            found = {entry.path.removeprefix(self.top): entry for entry in listed}
            assert len(found) == len(listed), "a path is listed twice"
            assert {path for path, entry in found.items() if entry.is_folder} == self.model.folders
            assert found.keys() - self.model.folders == self.model.files.keys()
            for path in self.model.files:
                self.compare(path, found[path])

        @rule(folder=folders)
        def list_folder(self, folder: str) -> None:
            if folder in self.model.folders or (declared.lists_by_prefix and not declared.folders):
                below = {each for each in {*self.model.files, *self.model.folders} if each.startswith(f"{folder}/")}
                assert {entry.path.removeprefix(self.top) for entry in driver.list(self.top + folder)} == below

        @rule(path=st.one_of(paths, folders))
        def delete(self, path: str) -> None:
            if self.model.holds(path) or declared.deletes_missing:
                driver.delete(self.top + path)
                self.model.remove(path)
            else:
                refused(ErrorKind.NOT_FOUND, driver.delete, self.top + path)

        @precondition(lambda _: declared.folders)
        @rule(folder=folders)
        def mkdir(self, folder: str) -> None:
            driver.mkdir(self.top + folder)
            self.model.make_folder(folder)

        @precondition(lambda self: Verb.COPY in declared.verbs and self.model.files)
        @rule(which=places, place=paths)
        def copy(self, which: int, place: str) -> None:
            source = self.one_of_files(which)
            if self.may_place(driver.copy, Conflict.COPY_ON_EXISTING, source, place):
                self.compare(source, driver.copy(self.top + source, self.top + place), at=place)
                self.model.put(place, self.model.files[source])

        @precondition(lambda self: Verb.MOVE in declared.verbs and self.model.files)
        @rule(which=places, place=paths)
        def move(self, which: int, place: str) -> None:
            source = self.one_of_files(which)
            if self.may_place(driver.move, Conflict.MOVE_ON_EXISTING, source, place):
                self.compare(source, driver.move(self.top + source, self.top + place), at=place)
                data = self.model.files.pop(source)
                self.model.put(place, data)

        @precondition(lambda _: declared.verbs & {Verb.COPY, Verb.MOVE})
        @rule(source=paths, place=paths, verb=st.sampled_from(sorted(declared.verbs & {Verb.COPY, Verb.MOVE}) or [""]))
        def copy_or_move_what_is_not_there(self, source: str, place: str, verb: str) -> None:
            if source != place and not {source, place} & self.model.files.keys():
                refused(ErrorKind.NOT_FOUND, getattr(driver, verb), self.top + source, self.top + place)

        def one_of_files(self, which: int) -> str:
            return sorted(self.model.files)[which % len(self.model.files)]

        def may_place(self, method: Any, conflict: Conflict, source: str, place: str) -> bool:
            """Whether a copy or move must succeed. If it must be refused, checks that it is."""
            if source == place:
                return False
            if place in self.model.files and conflict in declared.conflicts:
                refused(ErrorKind.CONFLICT, method, self.top + source, self.top + place)
            return place not in self.model.files  # else it may be replaced, or not: nothing is declared

        def compare(self, path: str, entry: Any, at: str = "") -> None:
            """Check that an entry says what it should of the file; ``at`` is where the file has just been placed."""
            data = self.model.files[path]
            algorithm = declared.digest_of(len(data))
            expected = content_digest(LiteralContent(data), algorithm).hex() if algorithm else None
            found = (entry.path, entry.size_bytes, entry.is_folder, entry.digest)
            assert found == (self.top + (at or path), len(data), False, expected)

    return AnyOrder


def test_any_order(sandbox: Sandbox, grid: str, tmp_path: Path, payloads: Any) -> None:
    if missing := missing_extra("conformance"):
        pytest.skip(missing)
    from hypothesis import HealthCheck, Phase, configuration, seed, settings
    from hypothesis.stateful import run_state_machine_as_test

    configuration.set_hypothesis_home_dir(tmp_path)  # it writes nothing into the user's folder
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
    run_state_machine_as_test(seed(payloads.seed)(machine(sandbox)), settings=chosen)
