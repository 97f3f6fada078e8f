"""The promises of an array when children fail, lie or disappear."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.model import MIB, CloudError, Content, Entry, ErrorKind
from pytest_cloudbench.raid import config
from pytest_cloudbench.raid.coding.policies import Split
from pytest_cloudbench.raid.costs import Costs
from pytest_cloudbench.raid.driver import RaidDriver, open_array
from pytest_cloudbench.raid.metadata import MissingPackage
from pytest_cloudbench.raid.survey import survey_array
from pytest_cloudbench.raid.upkeep import delete_leftovers
from pytest_cloudbench.support.clock import wait_for
from pytest_cloudbench.workload.payload.contents import Literal
from tests.limits import HANG_S

from .harness import ArrayFolder, Child, FixedHedge

MakeArray = Callable[..., ArrayFolder]
CONTENT = random.Random(3).randbytes(2 * MIB + 12345)


def read_content(driver: RaidDriver, path: str = "/a") -> bytes:
    return b"".join(driver.get(path))


def refusal(kind: ErrorKind, action: Callable[[], object]) -> CloudError:
    with pytest.raises(CloudError) as caught:
        action()
    assert caught.value.kind is kind, caught.value
    return caught.value


def fail_after_storing() -> None:
    """Fail after a put, like a child that has stored the package before the connection ended."""
    raise CloudError(ErrorKind.NETWORK, "put", "/", detail="reset after it was stored")


def flip_bit(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


# --- any k, not k - 1 ---


def test_any_k_children_are_enough_to_read_and_fewer_fail(make_array: MakeArray) -> None:
    array_folder = make_array(2, 2, mends=False)
    with array_folder.opened() as driver:
        driver.put("/a", Literal(CONTENT))
        for lost in combinations(range(4), 2):
            for child in lost:
                array_folder.children[child].fails = {"get": ErrorKind.SERVER}
            assert read_content(driver) == CONTENT, lost
            third = next(child for child in range(4) if child not in lost)
            array_folder.children[third].fails = {"get": ErrorKind.SERVER}
            error = refusal(ErrorKind.SERVER, lambda: read_content(driver))
            assert "1 of 4 children returned their shares, and 2 are needed" in error.detail
            for child in array_folder.children:
                child.fails.clear()


def test_children_that_answer_500_are_replaced_by_others_and_counted(make_array: MakeArray) -> None:
    array_folder = make_array(2, 1)
    with array_folder.opened(hedge=FixedHedge(None)) as driver:
        driver.put("/a", Literal(CONTENT))
        array_folder.children[0].fails = {"get": ErrorKind.SERVER}
        assert read_content(driver) == CONTENT
        costs = driver.ledger.last()
        assert costs is not None
        assert (costs.failed, costs.damaged, costs.missing) == (3, 0, 0)  # once for each segment


def test_a_frozen_child_delays_a_read_only_by_the_patience(make_array: MakeArray) -> None:
    array_folder = make_array(2, 1, patience_s=0.01)
    with array_folder.opened() as driver:
        driver.put("/a", Literal(b"content"))
        array_folder.children[0].frozen = {"get"}
        assert read_content(driver) == b"content"
        costs = driver.ledger.last()
        assert costs is not None
        assert costs.hedged == 1


def test_a_read_waits_for_a_late_child_that_it_needs(make_array: MakeArray) -> None:
    """No other child can be asked, so the late answer is used."""
    array_folder = make_array(2, 0, patience_s=0.001)
    with array_folder.opened() as driver:
        driver.put("/a", Literal(b"content"))
        array_folder.children[0].frozen = {"get"}
        pieces = driver.get("/a")
        array_folder.children[0].thawed.set()
        assert b"".join(pieces) == b"content"


# --- damage is located ---


class First(FixedHedge):
    """A hedge that asks one child before the others."""

    first = 0

    def order(self, split: Split, share_bytes: int) -> Sequence[int]:
        return sorted(super().order(split, share_bytes), key=lambda child: child != self.first)


@pytest.mark.parametrize("child", [0, 1, 2])
def test_a_damaged_share_is_located_and_rebuilt(make_array: MakeArray, child: int) -> None:
    array_folder, hedge = make_array(1, 2), First(None)
    with array_folder.opened(hedge=hedge) as driver:
        driver.put("/a", Literal(b"content"))
        (package,) = array_folder.children[child].packages.values()
        original = package.read_bytes()
        flip_bit(package, -1)
        type(hedge).first = child
        for other in {0, 1, 2} - {child}:
            array_folder.children[other].fails = {"get": ErrorKind.SERVER}
        error = refusal(ErrorKind.CORRUPT, lambda: read_content(driver))
        assert f"/{child}: corrupt (differ from what was written: 1 of 1 share)" in error.detail
        for other in {0, 1, 2} - {child}:
            array_folder.children[other].fails = {}
        assert read_content(driver) == b"content"
        costs = driver.ledger.last()
        assert costs is not None
        assert (costs.damaged, costs.failed, costs.missing) == (1, 0, 0)
        assert driver.settle(10)
        assert package.read_bytes()[-8:] == original[-8:]
        assert driver.ledger.totals()["mend"].mended == 1


def test_swapped_packages_count_as_damaged(make_array: MakeArray) -> None:
    array_folder = make_array(1, 1, mends=False)
    with array_folder.opened() as driver:
        driver.put("/a", Literal(b"first"))
        driver.put("/b", Literal(b"other"))
        one, other = array_folder.children[0].packages.values()
        first, second = one.read_bytes(), other.read_bytes()
        one.write_bytes(second)
        other.write_bytes(first)
        assert (read_content(driver, "/a"), read_content(driver, "/b")) == (b"first", b"other")
        totals = driver.ledger.totals()["get"]
        assert totals.damaged == 2


def test_reading_rebuilds_the_packages_of_an_emptied_child(make_array: MakeArray) -> None:
    array_folder = make_array(2, 1)
    with array_folder.opened() as driver:
        driver.put("/a", Literal(CONTENT))
        before = {name: path.stat().st_size for name, path in array_folder.children[0].packages.items()}
        array_folder.lose_child(0)
        assert read_content(driver) == CONTENT
        assert driver.settle(10)
        assert {name: path.stat().st_size for name, path in array_folder.children[0].packages.items()} == before
        assert read_content(driver) == CONTENT
        costs = driver.ledger.last()
        assert costs is not None
        assert costs.missing == 0


# --- writes ---


def test_a_failed_write_leaves_the_old_object_and_no_packages(make_array: MakeArray) -> None:
    array_folder = make_array(2, 1)
    with array_folder.opened() as driver:
        driver.put("/a", Literal(b"old"))
        before = [set(child.packages) for child in array_folder.children]
        array_folder.children[1].fails = {"put": ErrorKind.QUOTA}
        error = refusal(ErrorKind.QUOTA, lambda: driver.put("/a", Literal(CONTENT)))
        assert "1 of 3 children failed, but a write must reach all" in error.detail
        assert read_content(driver) == b"old"
        assert driver.settle(10)
        assert [set(child.packages) for child in array_folder.children] == before
        refusal(ErrorKind.QUOTA, lambda: driver.put("/new", Literal(b"new")))
        refusal(ErrorKind.NOT_FOUND, lambda: driver.stat("/new"))


def test_an_interrupted_small_write_leaves_the_old_object_and_no_packages(make_array: MakeArray) -> None:
    array_folder = make_array(2, 1)
    with array_folder.opened() as driver:
        driver.put("/a", Literal(b"old"))
        driver.array.children.note_small_write(1, 0)  # so that the caller itself writes to it
        before = [set(child.packages) for child in array_folder.children]

        def interrupt() -> None:
            raise KeyboardInterrupt

        array_folder.children[1].after_put = interrupt
        with pytest.raises(KeyboardInterrupt):
            driver.put("/a", Literal(b"new"))
        assert driver.settle(HANG_S)
        assert read_content(driver) == b"old"
        assert [set(child.packages) for child in array_folder.children] == before


def test_a_failed_write_does_not_wait_for_a_quick_child_that_hangs(make_array: MakeArray) -> None:
    array_folder = make_array(2, 1)
    with array_folder.opened() as driver:
        for child in range(3):
            driver.array.children.note_small_write(child, 0)
        array_folder.children[0].fails, array_folder.children[2].frozen = {"put": ErrorKind.SERVER}, {"put"}
        refusal(ErrorKind.SERVER, lambda: driver.put("/a", Literal(b"content")))
        assert not array_folder.children[2].has_frozen.is_set()


def test_a_quick_child_that_hangs_delays_no_write_that_is_durable_without_it(make_array: MakeArray) -> None:
    array_folder = make_array(2, 2, durability="k+1")
    with array_folder.opened() as driver:
        for child in range(4):
            driver.array.children.note_small_write(child, 0)
        array_folder.children[0].frozen = {"put"}
        driver.put("/a", Literal(b"content"))
        assert [len(child.packages) for child in array_folder.children] == [0, 1, 1, 1]


def test_a_throttled_child_makes_the_write_throttled(make_array: MakeArray) -> None:
    array_folder = make_array(2, 1)
    with array_folder.opened() as driver:
        array_folder.children[2].fails = {"put": ErrorKind.THROTTLED}
        refusal(ErrorKind.THROTTLED, lambda: driver.put("/a", Literal(b"1")))


def test_a_write_ends_when_durable_enough_and_is_completed_later(make_array: MakeArray) -> None:
    array_folder = make_array(2, 2, durability="k+1")
    with array_folder.opened() as driver:
        array_folder.children[3].frozen = {"put"}
        driver.put("/a", Literal(b"content"))
        assert [len(child.packages) for child in array_folder.children] == [1, 1, 1, 0]
        assert [package.child for package in driver.array.metadata.missing_packages()] == [3]
        array_folder.children[3].thawed.set()
        assert driver.settle(10)
        assert len(array_folder.children[3].packages) == 1
        assert driver.array.metadata.missing_packages() == []


def test_a_late_package_is_intact_although_its_buffer_was_reused(make_array: MakeArray) -> None:
    array_folder = make_array(2, 2, durability="k+1")
    with array_folder.opened() as driver:
        array_folder.children[3].frozen = {"put"}
        content = random.Random(4).randbytes(5 * MIB)
        driver.put("/a", Literal(content))
        driver.put("/b", Literal(bytes(5 * MIB)))
        array_folder.children[3].thawed.set()
        assert driver.settle(HANG_S)
        assert survey_array(driver.array, deep=True).is_healthy
        assert "mend" not in driver.ledger.totals()
        assert read_content(driver) == content


def test_a_package_that_arrives_after_its_write_failed_is_deleted(make_array: MakeArray) -> None:
    array_folder = make_array(2, 1)
    with array_folder.opened() as driver:
        array_folder.children[0].fails, array_folder.children[2].frozen = {"put": ErrorKind.SERVER}, {"put"}
        array_folder.children[0].fails_when = array_folder.children[2].has_frozen
        refusal(ErrorKind.SERVER, lambda: driver.put("/a", Literal(b"content")))
        assert wait_for(lambda: driver.array.pending.count == 1, HANG_S, poll_s=0.01), "the second child has its own"
        delete_leftovers(driver.array, driver.array.metadata.garbage(), Costs())

        def list_garbage() -> list[int]:
            return [package.child for package in driver.array.metadata.garbage()]

        # The upkeep may have been quicker to claim the others, and deletes them a moment later.
        assert wait_for(lambda: list_garbage() == [2], HANG_S, poll_s=0.01), "it may still arrive"
        array_folder.children[2].thawed.set()
        assert driver.settle(HANG_S)
        assert [len(child.packages) for child in array_folder.children] == [0, 0, 0]


def test_a_hanging_child_does_not_delay_a_deletion(make_array: MakeArray) -> None:
    array_folder = make_array(2, 1, patience_s=0.02)
    with array_folder.opened() as driver:
        for name in ("/a", "/b"):
            driver.put(name, Literal(b"content"))
        hanging = array_folder.children[2]
        hanging.frozen = {"delete"}
        driver.delete("/a")
        assert hanging.has_frozen.wait(HANG_S)
        assert [entry.path for entry in driver.list("/")] == ["/b"]
        driver.delete("/b")
        others = array_folder.children[:2]
        assert wait_for(lambda: not any(child.packages for child in others), HANG_S, poll_s=0.01)
        assert not driver.settle(0.1), "a child still has packages"
        assert hanging.called_verbs.count("delete") == 2, "it was asked for each once, not again and again"
        hanging.thawed.set()
        assert driver.settle(HANG_S)
        assert not hanging.packages
        assert driver.array.metadata.garbage() == []
        assert driver.ledger.totals()["tidy"].failed == 0


def test_a_deletion_that_fails_late_is_tried_again(make_array: MakeArray) -> None:
    array_folder = make_array(2, 1, patience_s=0.02)
    with array_folder.opened() as driver:
        driver.put("/a", Literal(b"content"))
        hanging = array_folder.children[2]
        hanging.frozen, hanging.fails_late = {"delete"}, {"delete": ErrorKind.SERVER}
        driver.delete("/a")
        hanging.thawed.set()
        assert wait_for(lambda: not hanging.packages, HANG_S, poll_s=0.01)
        assert driver.settle(HANG_S)
        assert driver.ledger.totals()["tidy"].failed == 1


def test_an_arrived_package_is_not_rebuilt_before_its_arrival_is_noted(
    make_array: MakeArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    array_folder = make_array(2, 2, durability="k+1")
    with array_folder.opened() as driver:
        note_transfer_end = driver.array.metadata.note_transfer_end

        def note_slowly(package: MissingPackage, segments: int, *, has_it: bool) -> None:
            driver.settle(0.5)  # the package is listed as missing, and upkeep looks
            note_transfer_end(package, segments, has_it=has_it)

        monkeypatch.setattr(driver.array.metadata, "note_transfer_end", note_slowly)
        array_folder.children[3].frozen = {"put"}
        driver.put("/a", Literal(CONTENT))
        array_folder.children[3].thawed.set()
        assert driver.settle(HANG_S)
        assert "mend" not in driver.ledger.totals()


def test_a_package_that_arrives_after_the_listing_is_not_rebuilt(
    make_array: MakeArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    array_folder = make_array(2, 2, durability="k+1")
    with array_folder.opened() as driver:
        missing_packages = driver.array.metadata.missing_packages

        def list_before_arrival(*, own: bool = False) -> Sequence[MissingPackage]:
            packages = missing_packages(own=own)
            array_folder.children[3].thawed.set()
            assert wait_for(lambda: not missing_packages(own=True), HANG_S, poll_s=0.01)
            return packages

        array_folder.children[3].frozen = {"put"}
        driver.put("/a", Literal(CONTENT))
        monkeypatch.setattr(driver.array.metadata, "missing_packages", list_before_arrival)
        assert driver.settle(HANG_S)
        assert "mend" not in driver.ledger.totals()


def test_a_child_that_failed_a_write_gets_its_packages_when_it_is_back(make_array: MakeArray) -> None:
    array_folder = make_array(2, 1, durability="k+0")
    with array_folder.opened() as driver:
        array_folder.children[0].fails = {"put": ErrorKind.SERVER}
        driver.put("/a", Literal(CONTENT))
        assert read_content(driver) == CONTENT
        array_folder.children[0].fails.clear()
        assert driver.settle(20)
        assert len(array_folder.children[0].packages) == 3


def test_a_package_stored_by_a_failed_put_is_deleted_with_its_object(make_array: MakeArray) -> None:
    """The package is rebuilt while the object is deleted. Then the child stores it, and fails."""
    array_folder = make_array(2, 1, durability="k+0")
    with array_folder.opened() as driver:
        slow = array_folder.children[2]
        slow.fails = {"put": ErrorKind.SERVER}
        driver.put("/a", Literal(CONTENT[:1000]))
        slow.fails, slow.frozen, slow.after_put = {}, {"put"}, fail_after_storing
        driver.array.pending.wake()
        assert slow.has_frozen.wait(HANG_S), "upkeep rebuilds it"
        driver.delete("/a")
        slow.thawed.set()
        assert driver.settle(HANG_S)
        assert [len(child.packages) for child in array_folder.children] == [0, 0, 0]


def test_an_ended_transfer_keeps_no_package_in_memory(make_array: MakeArray, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the frames of a child's error nor an idle thread may keep packages, since 64 of them are 256 MiB."""
    array_folder = make_array(2, 1, durability="k+0")
    packages: list[weakref.ref[Content]] = []
    put = Child.put

    def remember_package(child: Child, path: str, content: Content) -> Entry:
        packages.append(weakref.ref(content))
        return put(child, path, content)

    monkeypatch.setattr(Child, "put", remember_package)
    gc.disable()
    try:
        with array_folder.opened() as driver:
            array_folder.children[2].fails = {"put": ErrorKind.SERVER}
            for number in range(4):
                driver.put(f"/{number}", Literal(CONTENT))
            array_folder.children[2].fails.clear()
            assert driver.settle(HANG_S)
            assert len(packages) >= 4 * 3 * (3 + 1), "two arrive at once, the third fails and is rebuilt"
            assert wait_for(lambda: not any(package() for package in packages), HANG_S, poll_s=0.01)
    finally:
        gc.enable()


def test_a_child_that_hangs_is_closed_again_after_its_last_transfer(make_array: MakeArray) -> None:
    """The first time ends what hangs. The second time closes what the transfer has opened meanwhile."""
    array_folder = make_array(2, 1)
    children: list[Any] = [Child(array_folder.folder / str(number)) for number in range(3)]
    driver = RaidDriver(open_array(config.load(array_folder.file), children))
    driver.put("/a", Literal(CONTENT))
    slow_child = children[0]
    slow_child.frozen = {"get"}
    driver.array.children.get_package(0, "name", 1, lambda _: None)
    assert slow_child.has_frozen.wait(HANG_S)
    driver.close()
    assert [child.closings for child in children[1:]] == [1, 1]
    assert wait_for(lambda: slow_child.closings == 2, HANG_S, poll_s=0.01)


def test_a_full_disk_is_a_cloud_error_and_changes_nothing(make_array: MakeArray) -> None:
    array_folder = make_array(2, 1)
    with array_folder.opened() as driver:
        driver.put("/a", Literal(b"old"))
        database = driver.array.metadata._db
        (pages,) = database.execute("PRAGMA page_count").fetchone()
        database.execute(f"PRAGMA max_page_count = {pages}")  # no page can be added

        def fill() -> None:
            for number in range(50):
                driver.put(f"/{number}/{'x' * 3000}", Literal(b"new"))

        assert "database or disk is full" in refusal(ErrorKind.SERVER, fill).detail
        assert read_content(driver) == b"old"
        assert {read_content(driver, entry.path) for entry in driver.list("/")} <= {b"old", b"new"}
        database.execute("PRAGMA max_page_count = 1000000")
        driver.put("/a", Literal(b"new"))
        assert read_content(driver) == b"new"


def test_a_write_below_the_durability_fails(make_array: MakeArray) -> None:
    array_folder = make_array(2, 2, durability="k+1")
    with array_folder.opened() as driver:
        for child in (0, 1):
            array_folder.children[child].fails = {"put": ErrorKind.NETWORK}
        error = refusal(ErrorKind.NETWORK, lambda: driver.put("/a", Literal(b"1")))
        assert "2 of 4 children failed, but a write must reach k+1" in error.detail
        refusal(ErrorKind.NOT_FOUND, lambda: driver.stat("/a"))


# --- metadata is lost ---


def test_metadata_is_rebuilt_from_any_k_children_and_the_key(make_array: MakeArray) -> None:
    array_folder = make_array(2, 2)
    objects = {"/x/a": CONTENT, "/x/ü": b"", "/y": b"small"}
    with array_folder.opened() as driver:
        for path, content in objects.items():
            driver.put(path, Literal(b"an older version"))
            driver.put(path, Literal(content))
        assert driver.settle(10)
    for lost in combinations(range(4), 2):
        array_folder.lose_metadata()
        with array_folder.opened() as driver:
            for child in lost:
                array_folder.children[child].fails = dict.fromkeys(("list", "get", "put"), ErrorKind.NETWORK)
            assert {entry.path: entry.size_bytes for entry in driver.list("/")} == {
                path: len(content) for path, content in objects.items()
            }, lost
            assert {path: read_content(driver, path) for path in objects} == objects


def test_recovery_refuses_to_begin_with_fewer_than_k_children(make_array: MakeArray) -> None:
    array_folder = make_array(2, 1)
    with array_folder.opened() as driver:
        driver.put("/a", Literal(b"content"))
    array_folder.lose_metadata()
    with array_folder.opened() as driver:
        for child in (0, 1):
            array_folder.children[child].fails = {"list": ErrorKind.NETWORK}
        error = refusal(ErrorKind.NETWORK, lambda: driver.put("/b", Literal(b"1")))
        assert "1 of 3 children answer, and 2 are needed to begin" in error.detail
        for child in array_folder.children:
            child.fails.clear()
        assert read_content(driver) == b"content"


def interrupt_write(array_folder: ArrayFolder, path: str, content: bytes) -> None:
    """Leave the state of a process killed when one child has the first package of a new version."""
    with array_folder.opened() as driver:
        before = [{name: file.read_bytes() for name, file in child.packages.items()} for child in array_folder.children]
        driver.put(path, Literal(content))
        assert driver.settle(10)
        (begun_name,) = array_folder.children[0].packages.keys() - before[0].keys()
        first_package = array_folder.children[0].packages[begun_name].read_bytes()
        for child, packages in zip(array_folder.children, before, strict=True):
            for file in child.packages.values():
                file.unlink()
            for name, data in packages.items():
                (child.root / "cloudraid" / name).write_bytes(data)
        (array_folder.children[0].root / "cloudraid" / begun_name).write_bytes(first_package)
    array_folder.lose_metadata()


def test_an_interrupted_write_does_not_block_recovery_with_silent_children(make_array: MakeArray) -> None:
    array_folder = make_array(2, 1)
    with array_folder.opened() as driver:
        driver.put("/a", Literal(b"first"))
        driver.put("/z", Literal(b"last"))
    interrupt_write(array_folder, "/a", b"never acknowledged")
    with array_folder.opened() as driver:
        array_folder.children[2].fails = dict.fromkeys(("list", "get", "put"), ErrorKind.NETWORK)
        assert {path: read_content(driver, path) for path in ("/a", "/z")} == {"/a": b"first", "/z": b"last"}


def test_recovery_refuses_while_a_silent_child_may_hold_acknowledged_versions(make_array: MakeArray) -> None:
    array_folder = make_array(2, 1, durability="k+0")  # acknowledged when two of the three have it
    with array_folder.opened() as driver:
        driver.put("/a", Literal(b"first"))
        assert driver.settle(10)
    interrupt_write(array_folder, "/a", b"perhaps acknowledged")
    with array_folder.opened() as driver:
        array_folder.children[2].fails = dict.fromkeys(("list", "get", "put"), ErrorKind.NETWORK)
        error = refusal(ErrorKind.NETWORK, lambda: read_content(driver))
        assert "1 object may be newer on children that do not answer; if one of them is gone for good" in error.detail


def test_another_key_opens_no_packages(make_array: MakeArray) -> None:
    array_folder = make_array(2, 1)
    with array_folder.opened() as driver:
        driver.put("/a", Literal(b"content"))
    array_folder.lose_metadata()
    key = (array_folder.folder / "array.key").read_text()
    (array_folder.folder / "array.key").write_text("a1" * 32)
    with array_folder.opened() as driver:
        error = refusal(ErrorKind.AUTH, lambda: driver.put("/a", Literal(b"1")))
        assert "not sealed with this key" in error.detail
    (array_folder.folder / "array.key").write_text(key)
    with array_folder.opened() as driver:
        assert read_content(driver) == b"content", "the wrong key has left nothing"


def test_a_stale_child_does_not_restore_an_old_version(make_array: MakeArray) -> None:
    """A child is reset to an older state, which neither reads nor recovery take for the newest."""
    array_folder = make_array(1, 1, mends=False)
    with array_folder.opened() as driver:
        driver.put("/a", Literal(b"old"))
        old = {name: path.read_bytes() for name, path in array_folder.children[0].packages.items()}
        driver.put("/a", Literal(b"new"))
        assert driver.settle(10)
        for path in array_folder.children[0].packages.values():
            path.unlink()
        for name, content in old.items():
            (array_folder.children[0].root / "cloudraid" / name).write_bytes(content)
        assert read_content(driver) == b"new"
    array_folder.lose_metadata()
    with array_folder.opened() as driver:
        assert read_content(driver) == b"new"
        assert driver.settle(10)
        assert not set(old) & set(array_folder.children[0].packages)


def test_deleted_objects_stay_deleted_after_metadata_loss(make_array: MakeArray) -> None:
    array_folder = make_array(2, 1)
    with array_folder.opened() as driver:
        driver.put("/a", Literal(CONTENT))
        driver.put("/b/c", Literal(b"1"))
        array_folder.children[0].fails = {"delete": ErrorKind.SERVER}
        driver.delete("/a")
        driver.delete("/b")
        array_folder.children[0].fails.clear()
        assert driver.settle(10)
        assert [child.packages for child in array_folder.children] == [{}, {}, {}]
    array_folder.lose_metadata()
    with array_folder.opened() as driver:
        assert list(driver.list("/")) == []


def test_children_see_neither_names_nor_content(make_array: MakeArray) -> None:
    array_folder = make_array(2, 1)
    with array_folder.opened() as driver:
        driver.put("/secret-name", Literal(b"secret content " * 1000))
        names = [name for child in array_folder.children for name in child.packages]
        stored = b"".join(path.read_bytes() for child in array_folder.children for path in child.packages.values())
    assert len(set(names)) == 3
    assert b"secret" not in stored
    assert b"array" not in stored
    assert not [name for name in names if "secret" in name]
